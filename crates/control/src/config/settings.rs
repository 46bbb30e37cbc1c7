//! `[daemon]`: where the daemon lives, and what it runs on.

use super::group;
use serde::Deserialize;
use sluice_frontends::vfio_user::Access;
use sluice_spec::Fault;
use sluice_spec::paths::Places;
use sluice_spec::problem::Problem;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reactors of one daemon.
const CORES_MAX: usize = 256;

/// Longest time that commands get when the daemon is told to stop, seconds.
const DRAIN_MAX_S: u64 = 24 * 60 * 60;

/// The table `[daemon]`; every key has a default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Socket of the API.
    pub api: Option<PathBuf>,
    /// Folder of the state file.
    pub state: Option<PathBuf>,
    /// Folder of the drives' sockets.
    pub sockets: Option<PathBuf>,
    /// Mode of the drives' sockets, in octal.
    pub socket_mode: Option<String>,
    /// Group of the drives' sockets, by its name or number; the daemon's own if there is none.
    pub socket_group: Option<String>,
    /// Processors, one reactor on each. One reactor that the kernel places if there are none.
    pub cores: Vec<usize>,
    pub idle: Idle,
    /// Drives move by themselves from a reactor that is too busy.
    pub balance: bool,
    /// Who may call the API, besides root and the daemon's own user.
    pub allow_uids: Vec<u32>,
    pub allow_gids: Vec<u32>,
    /// Seconds that commands in flight get when the daemon is told to stop.
    pub drain_s: u64,
    /// Reactors find out what their turns spend time on.
    pub watch_turns: bool,
    /// Other processes of the daemon's user may look into its memory, and it leaves cores.
    pub dumpable: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api: None,
            state: None,
            sockets: None,
            socket_mode: None,
            socket_group: None,
            cores: Vec::new(),
            idle: Idle::default(),
            balance: false,
            allow_uids: Vec::new(),
            allow_gids: Vec::new(),
            drain_s: 10,
            watch_turns: false,
            dumpable: false,
        }
    }
}

/// When a reactor stops polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Idle {
    /// Microseconds that a drive is polled without work before it sleeps.
    pub spin_us: u64,
    /// Never sleep.
    pub always_poll: bool,
}

impl Default for Idle {
    fn default() -> Self {
        Self { spin_us: 50, always_poll: false }
    }
}

impl Idle {
    /// Longer than this is not spinning but always polling.
    const SPIN_MAX_US: u64 = 1_000_000;

    pub fn spin(&self) -> Duration {
        Duration::from_micros(self.spin_us)
    }
}

impl Settings {
    pub(super) fn check(&self) -> Result<(), Fault> {
        if let Some(mode) = self.socket_mode.as_ref().filter(|mode| parse_mode(mode).is_none()) {
            return Err(Fault::at_key("socket_mode", format!("`{mode}` is not a mode"))
                .hint("use octal digits such as \"0660\""));
        }
        if let Some(group) = self.socket_group.as_ref().filter(|group| group::number_of(group).is_none()) {
            return Err(Fault::at_key(
                "socket_group",
                format!("there is no group `{group}` in {}", group::FILE),
            )
            .hint("a group that is kept elsewhere can be given by its number, which `getent group` says"));
        }
        if self.cores.len() > CORES_MAX {
            return Err(Fault::at_key("cores", format!("at most {CORES_MAX} are possible")));
        }
        if let Some(core) = repeated(&self.cores) {
            return Err(Fault::at_key("cores", format!("core {core} is named twice"))
                .hint("a core has one reactor; name each once"));
        }
        if self.drain_s > DRAIN_MAX_S {
            return Err(Fault::at_key("drain_s", "more than a day").hint("the unit is seconds"));
        }
        if self.idle.spin_us > Idle::SPIN_MAX_US {
            return Err(Fault::at_key("spin_us", "more than a second")
                .hint("the unit is microseconds; to poll for ever say always_poll = true")
                .under("idle"));
        }
        Ok(())
    }

    /// Relative paths become absolute ones below `folder`.
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        for path in [&mut self.api, &mut self.state, &mut self.sockets].into_iter().flatten() {
            *path = folder.join(&path);
        }
    }

    /// Where everything is, defaults filled in for whoever runs this.
    pub fn places(&self) -> Result<Places, Problem> {
        Places::resolve(self.api.clone(), self.sockets.clone(), self.state.clone())
    }

    /// Who may connect to the drives' sockets.
    pub fn access(&self) -> Access {
        let group = self.socket_group.as_deref().and_then(group::number_of);
        // A group that could not connect would be of no use.
        let usual = if group.is_some() { 0o660 } else { 0o600 };
        let mode = self.socket_mode.as_deref().and_then(parse_mode).unwrap_or(usual);
        Access { mode, group }
    }

    pub fn reactors(&self) -> usize {
        self.cores.len().max(1)
    }

    pub fn drain_limit(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }
}

fn parse_mode(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777)
}

fn repeated(cores: &[usize]) -> Option<usize> {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
