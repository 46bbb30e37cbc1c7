//! The process that hands over.

use crate::channel::{Channel, ChannelError};
use crate::greeting::{Greeting, Version, greet};
use crate::kind;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs, io, thread};

/// Bytes of a refusal that are shown.
const REFUSAL_MAX: usize = 1024;

/// Time limits of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time from the start of the successor until it has greeted.
    pub greeting: Duration,
    /// Time for the preparation of the successor.
    pub ready: Duration,
    /// Time for the successor to take one item. Hosts wait for that long.
    pub item: Duration,
    /// Time for all items. Hosts of the first one wait for that long.
    pub all: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { greeting: seconds(5), ready: seconds(60), item: seconds(5), all: seconds(12) }
    }
}

/// Item on its way: a record, and the descriptors that it names.
#[derive(Debug, Default)]
pub struct Parcel {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// State of the daemon that hands over.
pub trait Source {
    /// Returns the names of the items, in the order of their hand-over. Nothing is touched yet.
    ///
    /// # Errors
    /// Some item cannot be handed over; with the reason in words.
    fn items(&mut self) -> Result<Vec<String>, String>;

    /// Suspends an item and returns its record.
    ///
    /// # Errors
    /// The item cannot be suspended now. It goes on by itself.
    fn suspend(&mut self, item: &str) -> Result<Parcel, String>;

    /// Lets all suspended items go on. The successor is gone.
    fn go_on(&mut self);
}

/// Step of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Greeting,
    Preparation,
    Transfer,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greeting => "when it was greeted",
            Self::Preparation => "while it prepared itself",
            Self::Transfer => "while it took the drives over",
        })
    }
}

/// Reason why an upgrade was called off. The daemon goes on.
#[derive(Debug)]
pub enum UpgradeError {
    /// The binary cannot be started.
    Start(PathBuf, io::Error),
    /// The successor failed in this step.
    Successor(Stage, ChannelError),
    /// The successor speaks other versions.
    Foreign { own: Version, other: Version },
    /// The successor refused an item, or its preparation failed.
    Refused { item: Option<String>, why: String },
    /// An item cannot be handed over.
    Item { item: Option<String>, why: String },
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(binary, error) => write!(f, "{} cannot be started: {error}", binary.display()),
            Self::Successor(stage, error) => write!(f, "the new process failed {stage}: {error}"),
            Self::Foreign { own, other } => write!(
                f,
                "the new process speaks version {} and reads {} or later; this one speaks {} and reads {} or later: \
                 upgrade over a version between them",
                other.own, other.oldest, own.own, own.oldest
            ),
            Self::Refused { item: Some(item), why } => write!(f, "the new process refused {item}: {why}"),
            Self::Refused { item: None, why } => write!(f, "the new process is not ready: {why}"),
            Self::Item { item: Some(item), why } => write!(f, "{item} cannot be handed over: {why}"),
            Self::Item { item: None, why } => f.write_str(why),
        }
    }
}

impl std::error::Error for UpgradeError {}

/// Time for the processes that a killed successor has started to end.
const CHILDREN_LIMIT: Duration = Duration::from_secs(5);

/// Interval of the looks at them.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Returns whether a process of this group has not ended. A zombie has ended: its descriptors are closed.
fn is_alive(group: Pid) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let stats =
        processes.flatten().filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    let states = stats.filter_map(|stat| state_in(&stat, group.as_raw_pid())).collect::<Vec<_>>();
    // A process that cannot be seen in /proc counts as alive.
    states.is_empty() || states.iter().any(|state| *state != 'Z' && *state != 'X')
}

/// Returns the state of a process from its `/proc/PID/stat`, if it is in this group (`proc_pid_stat(5)`).
fn state_in(stat: &str, group: i32) -> Option<char> {
    // The name of the process may contain parentheses and spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let of: i32 = fields.nth(1)?.parse().ok()?;
    (of == group).then_some(state)
}

/// Process of the successor, in a group of its own with the processes that it starts. All of them are killed when this is
/// dropped: the successor has not got everything.
struct Process(Option<Child>);

impl Process {
    /// Lets the process live, and returns its identifier.
    fn keep(mut self) -> u32 {
        self.0.take().map_or(0, |child| child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        let group = Pid::from_child(child);
        // The members that run as other users end with their sockets.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.kill();
        // Waits for the end: two processes must not have the items at the same time, and neither two of their functions.
        let _ = child.wait();
        let until = Instant::now() + CHILDREN_LIMIT;
        while is_alive(group) {
            if Instant::now() >= until {
                tracing::warn!("processes of the successor did not end within 5 s");
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Upgrades to a binary, started with these arguments and a channel as its standard input. On success the items
/// belong to the process with the returned identifier. The caller must end without touching any of them.
///
/// # Errors
/// The upgrade was called off. The successor is gone, and every item goes on.
pub fn upgrade(
    binary: &Path,
    arguments: &[OsString],
    source: &mut dyn Source,
    limits: Limits,
) -> Result<u32, UpgradeError> {
    let items = items(source)?;
    let start = |error| UpgradeError::Start(binary.to_owned(), error);
    let (channel, theirs) = Channel::pair().map_err(start)?;
    let mut command = Command::new(binary);
    // The service manager has set it to the identifier of this process (`sd_watchdog_enabled(3)`).
    command.args(arguments).env_remove("WATCHDOG_PID").stdin(Stdio::from(theirs.into_fd()));
    let child = command.process_group(0).spawn();
    // Only the other process has the other end of the channel.
    drop(command);
    let process = Process(Some(child.map_err(start)?));
    match hand_over(&channel, &items, source, Version::CURRENT, limits) {
        Ok(()) => Ok(process.keep()),
        Err(error) => {
            drop(process);
            source.go_on();
            Err(error)
        }
    }
}

/// Hands all items over to a successor that is at the other end of a channel.
///
/// # Errors
/// As [`upgrade`]. The successor must be gone before this is called again.
pub fn upgrade_over(
    channel: Channel,
    source: &mut dyn Source,
    version: Version,
    limits: Limits,
) -> Result<(), UpgradeError> {
    let items = items(source)?;
    let outcome = hand_over(&channel, &items, source, version, limits);
    drop(channel);
    outcome.inspect_err(|_| source.go_on())
}

fn items(source: &mut dyn Source) -> Result<Vec<String>, UpgradeError> {
    source.items().map_err(|why| UpgradeError::Item { item: None, why })
}

fn hand_over(
    channel: &Channel,
    items: &[String],
    source: &mut dyn Source,
    own: Version,
    limits: Limits,
) -> Result<(), UpgradeError> {
    let failed = |stage| move |error| UpgradeError::Successor(stage, error);
    let until = |limit| Instant::now() + limit;
    let greeting = greet(channel, own, until(limits.greeting)).map_err(failed(Stage::Greeting))?;
    if let Greeting::Foreign(other) = greeting {
        return Err(UpgradeError::Foreign { own, other });
    }
    answer(channel, kind::READY, None, Stage::Preparation, until(limits.ready))?;
    let end = until(limits.all);
    for item in items {
        if Instant::now() >= end {
            return Err(failed(Stage::Transfer)(ChannelError::Late));
        }
        let parcel =
            source.suspend(item).map_err(|why| UpgradeError::Item { item: Some(item.clone()), why })?;
        let fds: Vec<BorrowedFd<'_>> = parcel.fds.iter().map(AsFd::as_fd).collect();
        let bytes = named(item, &parcel.bytes);
        let until = until(limits.item).min(end);
        channel.send(kind::ITEM, &bytes, &fds, until).map_err(failed(Stage::Transfer))?;
        answer(channel, kind::TAKEN, Some(item), Stage::Transfer, until)?;
    }
    channel.send(kind::COMMIT, &[], &[], until(limits.item)).map_err(failed(Stage::Transfer))
}

/// Receives an answer, which must be of this kind.
fn answer(
    channel: &Channel,
    wanted: u16,
    item: Option<&String>,
    stage: Stage,
    until: Instant,
) -> Result<(), UpgradeError> {
    let message = channel.receive(until).map_err(|error| UpgradeError::Successor(stage, error))?;
    match message.kind {
        kind if kind == wanted => Ok(()),
        kind::REFUSED => {
            let shown = &message.bytes[..message.bytes.len().min(REFUSAL_MAX)];
            let why = String::from_utf8_lossy(shown).into_owned();
            Err(UpgradeError::Refused { item: item.cloned(), why })
        }
        _ => Err(UpgradeError::Successor(stage, ChannelError::Malformed("an answer that fits no question"))),
    }
}

/// Returns the name of an item, preceded by its length, with the record.
fn named(item: &str, record: &[u8]) -> Vec<u8> {
    [&(item.len() as u32).to_le_bytes()[..], item.as_bytes(), record].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_that_of_a_member_whatever_its_name_is() {
        assert_eq!(state_in("12 (sluice) S 1 7 7 0 -1", 7), Some('S'));
        assert_eq!(state_in("12 (a) Z 1 7 (b) R 1 9 9", 9), Some('R'));
        assert_eq!(state_in("12 (sluice) S 1 12 7 0", 7), None, "it is of another group");
        for broken in ["", "12", "12 (sluice", "12 (sluice) S", "12 (sluice) S 1", "12 (sluice) S 1 x"] {
            assert_eq!(state_in(broken, 7), None, "{broken}");
        }
    }

    #[test]
    fn a_group_of_zombies_has_ended() {
        let mut command = Command::new("sleep");
        let mut child = command.arg("600").process_group(0).spawn().expect("sleep is installed");
        let group = Pid::from_child(&child);
        assert!(is_alive(group));
        child.kill().expect("it runs");
        // It has ended, and can still be signalled until this process has waited for it.
        while is_alive(group) {
            thread::sleep(LOOK_EVERY);
        }
        assert_eq!(test_kill_process_group(group), Ok(()));
        child.wait().expect("it has ended");
        assert!(!is_alive(group));
    }
}
