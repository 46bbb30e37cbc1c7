//! `[daemon]`: paths, reactors and access rights of the daemon.

use super::group;
use serde::Deserialize;
use sluice_frontend_vfio_user::Access;
use sluice_spec::Fault;
use sluice_spec::error::ApiError;
use sluice_spec::paths::Places;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of reactors of one daemon.
const CORES_MAX: usize = 256;

/// Longest time that commands get to complete when the daemon is stopped, seconds.
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
    /// Socket of the holder, a process that keeps the connections of virtual machines if the daemon dies.
    pub holder: Option<PathBuf>,
    /// Mode of the drives' sockets, in octal.
    pub socket_mode: Option<String>,
    /// Group of the drives' sockets, by its name or number. Without it, the sockets have the daemon's own
    /// group.
    pub socket_group: Option<String>,
    /// Processors, one reactor on each. If the list is empty, there is one reactor, which the kernel places.
    pub cores: Vec<usize>,
    pub idle: Idle,
    /// Whether drives move by themselves from a reactor that is too busy.
    pub balance: bool,
    /// Users that may call the API, besides root and the daemon's own user.
    pub allow_uids: Vec<u32>,
    pub allow_gids: Vec<u32>,
    /// Seconds that commands in flight get to complete when the daemon is stopped.
    pub drain_s: u64,
    /// Whether reactors measure how their turns spend time.
    pub watch_turns: bool,
    /// Whether other processes of the daemon's user may read its memory, and the daemon leaves core dumps.
    pub dumpable: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api: None,
            state: None,
            sockets: None,
            holder: None,
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

/// Polling of a reactor without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Idle {
    /// Microseconds that a drive is polled without work before it sleeps.
    pub spin_us: u64,
    /// Whether reactors never sleep.
    pub always_poll: bool,
}

impl Default for Idle {
    fn default() -> Self {
        Self { spin_us: 50, always_poll: false }
    }
}

impl Idle {
    /// Maximum of `spin_us`. A longer time would amount to `always_poll`.
    const SPIN_MAX_US: u64 = 1_000_000;

    pub fn spin(&self) -> Duration {
        Duration::from_micros(self.spin_us)
    }
}

/// Implements comparisons key by key.
macro_rules! keys {
    ($($key:ident)*) => {
        impl Settings {
            /// Returns the keys that are not as they are without the table.
            pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
                let usual = Self::default();
                let given = [$((stringify!($key), self.$key != usual.$key)),*];
                given.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key)
            }

            /// Returns whether a key has the same value in both.
            pub(super) fn has_same(&self, other: &Self, key: &str) -> bool {
                match key {
                    $(stringify!($key) => self.$key == other.$key,)*
                    _ => false,
                }
            }
        }
    };
}

keys!(api state sockets socket_mode socket_group cores idle balance allow_uids allow_gids drain_s watch_turns dumpable);

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

    /// Makes relative paths absolute; they are relative to `folder`.
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        for path in
            [&mut self.api, &mut self.state, &mut self.sockets, &mut self.holder].into_iter().flatten()
        {
            *path = folder.join(&path);
        }
    }

    /// Returns the paths of the daemon. A path that is not configured has the default of the daemon's user.
    pub fn places(&self) -> Result<Places, ApiError> {
        Places::resolve(self.api.clone(), self.sockets.clone(), self.state.clone())
    }

    /// Returns the mode and group of the drives' sockets.
    pub fn access(&self) -> Access {
        let group = self.socket_group.as_deref().and_then(group::number_of);
        // A group without write permission could not connect.
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
