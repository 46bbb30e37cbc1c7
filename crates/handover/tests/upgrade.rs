//! Upgrades that succeed, and upgrades to programs and processes that fail at each step.

use sluice_handover::{
    Channel, Limits, Parcel, Sink, Source, Stage, TakeOverError, UpgradeError, Version, take_over, upgrade,
    upgrade_over,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

const LIMITS: Limits = Limits {
    greeting: Duration::from_secs(20),
    ready: Duration::from_secs(20),
    item: Duration::from_secs(20),
    all: Duration::from_secs(60),
};

/// Items of a predecessor, each a file.
#[derive(Default)]
struct Items {
    names: Vec<String>,
    suspended: Vec<String>,
    /// Number of times that all went on.
    resumed: u32,
    /// Item that cannot be suspended.
    stubborn: Option<&'static str>,
}

impl Items {
    fn new() -> Self {
        Self { names: ["one", "two", "three"].map(str::to_owned).to_vec(), ..Self::default() }
    }
}

fn file_with(text: &str) -> OwnedFd {
    let fd = rustix::fs::memfd_create("item", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let mut file = File::from(fd);
    file.write_all(text.as_bytes()).expect("written");
    file.rewind().expect("a file");
    file.into()
}

impl Source for Items {
    fn items(&mut self) -> Result<Vec<String>, String> {
        Ok(self.names.clone())
    }

    fn suspend(&mut self, item: &str) -> Result<Parcel, String> {
        if self.stubborn == Some(item) {
            return Err("commands are in flight".to_owned());
        }
        self.suspended.push(item.to_owned());
        Ok(Parcel { bytes: vec![item.len() as u8; 100_000], fds: vec![file_with(item)] })
    }

    fn go_on(&mut self) {
        self.suspended.clear();
        self.resumed += 1;
    }
}

/// Items that a successor has taken.
#[derive(Default)]
struct Taken {
    names: Vec<String>,
    /// Item that is refused.
    unwanted: Option<&'static str>,
    unprepared: bool,
}

impl Sink for Taken {
    fn prepare(&mut self) -> Result<(), String> {
        if self.unprepared { Err("the configuration has a fault".to_owned()) } else { Ok(()) }
    }

    fn take(&mut self, item: &str, parcel: Parcel) -> Result<(), String> {
        if self.unwanted == Some(item) {
            return Err("it has another size".to_owned());
        }
        let mut text = String::new();
        let [fd] = parcel.fds.try_into().expect("one descriptor");
        File::from(fd).read_to_string(&mut text).expect("a file");
        assert_eq!((text.as_str(), parcel.bytes), (item, vec![item.len() as u8; 100_000]));
        self.names.push(text);
        Ok(())
    }
}

/// Runs an upgrade to a successor in another thread.
fn run(
    items: &mut Items,
    mut taken: Taken,
    version: Version,
) -> (Result<(), UpgradeError>, Result<Vec<String>, TakeOverError>) {
    let (one, other) = Channel::pair().expect("a pair");
    let successor =
        thread::spawn(move || take_over(&other, &mut taken, version, LIMITS).map(|()| taken.names));
    let outcome = upgrade_over(one, items, Version { own: 5, oldest: 4 }, LIMITS);
    (outcome, successor.join().expect("it does not panic"))
}

#[test]
fn all_items_are_taken() {
    for version in [4, 5, 6] {
        let mut items = Items::new();
        let (outcome, taken) =
            run(&mut items, Taken::default(), Version { own: version, oldest: version - 1 });
        outcome.expect("upgraded");
        assert_eq!(taken.expect("taken"), items.names);
        assert_eq!((items.suspended.len(), items.resumed), (3, 0));
    }
}

#[test]
fn all_items_together_have_a_limit() {
    let (one, other) = Channel::pair().expect("a pair");
    let successor =
        thread::spawn(move || take_over(&other, &mut Taken::default(), Version::CURRENT, LIMITS).is_err());
    let mut items = Items::new();
    let limits = Limits { all: Duration::ZERO, ..LIMITS };
    let problem = upgrade_over(one, &mut items, Version::CURRENT, limits).expect_err("too late");
    assert!(problem.to_string().contains("did not answer in time"), "{problem}");
    assert!(items.suspended.is_empty() && items.resumed == 1, "all went on");
    assert!(successor.join().expect("it does not panic"));
}

#[test]
fn a_distant_version_is_refused_in_words() {
    for version in [2, 3, 7] {
        let mut items = Items::new();
        let (outcome, taken) =
            run(&mut items, Taken::default(), Version { own: version, oldest: version - 1 });
        let error = outcome.expect_err("another version");
        assert!(error.to_string().contains(&format!("version {version}")), "{error}");
        assert!(matches!(taken, Err(TakeOverError::Foreign { .. })));
        assert_eq!((items.suspended.len(), items.resumed), (0, 1));
    }
}

#[test]
fn refusals_call_the_upgrade_off() {
    let current = Version { own: 5, oldest: 4 };
    let mut items = Items::new();
    let (outcome, _) = run(&mut items, Taken { unwanted: Some("two"), ..Taken::default() }, current);
    let error = outcome.expect_err("refused").to_string();
    assert_eq!(error, "the new process refused two: it has another size");
    let (outcome, _) = run(&mut items, Taken { unprepared: true, ..Taken::default() }, current);
    let error = outcome.expect_err("refused").to_string();
    assert_eq!(error, "the new process is not ready: the configuration has a fault");
    items.stubborn = Some("three");
    let (outcome, taken) = run(&mut items, Taken::default(), current);
    let error = outcome.expect_err("not suspended").to_string();
    assert_eq!(error, "three cannot be handed over: commands are in flight");
    taken.expect_err("it was not committed");
    assert_eq!((items.suspended.len(), items.resumed), (0, 3));
    items.stubborn = None;
    let (outcome, taken) = run(&mut items, Taken::default(), current);
    outcome.expect("upgraded after all");
    assert_eq!(taken.expect("taken").len(), 3);
}

/// Successor that ends at a step, as a killed process does.
struct Mortal {
    end_at: usize,
    step: usize,
}

impl Mortal {
    fn step(&mut self) {
        self.step += 1;
        if self.step == self.end_at {
            std::panic::resume_unwind(Box::new("killed"));
        }
    }
}

impl Sink for Mortal {
    fn prepare(&mut self) -> Result<(), String> {
        self.step();
        Ok(())
    }

    fn take(&mut self, _item: &str, _parcel: Parcel) -> Result<(), String> {
        self.step();
        Ok(())
    }
}

#[test]
fn the_end_of_a_successor_at_any_step_leaves_the_predecessor_in_charge() {
    for end_at in 1..=4 {
        let mut items = Items::new();
        let (one, other) = Channel::pair().expect("a pair");
        let successor = thread::spawn(move || {
            drop(take_over(&other, &mut Mortal { end_at, step: 0 }, Version::CURRENT, LIMITS));
        });
        let outcome = upgrade_over(one, &mut items, Version::CURRENT, LIMITS);
        let stage = if end_at == 1 { Stage::Preparation } else { Stage::Transfer };
        assert!(matches!(outcome, Err(UpgradeError::Successor(found, _)) if found == stage), "{outcome:?}");
        assert_eq!((items.suspended.len(), items.resumed), (0, 1));
        successor.join().expect_err("it was killed");
    }
}

/// Checks that the end of the predecessor before the commit ends the successor.
#[test]
fn the_end_of_a_predecessor_ends_its_successor() {
    let (one, other) = Channel::pair().expect("a pair");
    let successor = thread::spawn(move || take_over(&other, &mut Taken::default(), Version::CURRENT, LIMITS));
    drop(one);
    successor.join().expect("it does not panic").expect_err("it has nothing");
}

fn upgrade_to(binary: &str, arguments: &[&str], limits: Limits) -> UpgradeError {
    let mut items = Items::new();
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let error = upgrade(Path::new(binary), &arguments, &mut items, limits).expect_err("no daemon");
    assert_eq!(items.suspended.len(), 0);
    error
}

#[test]
fn other_programs_are_refused_in_words() {
    let error = upgrade_to("/nowhere/sluice", &[], LIMITS);
    assert!(matches!(error, UpgradeError::Start(..)), "{error}");
    let error = upgrade_to("/bin/false", &[], LIMITS).to_string();
    assert_eq!(error, "the new process failed when it was greeted: the other process has ended");
    let error = upgrade_to("/bin/sh", &["-c", "echo hello >&0; exec sleep 1000"], LIMITS).to_string();
    assert!(error.contains("no daemon of this kind"), "{error}");
    let hasty = Limits { greeting: Duration::from_millis(100), ..LIMITS };
    let error = upgrade_to("/bin/sleep", &["1000"], hasty).to_string();
    assert_eq!(error, "the new process failed when it was greeted: the other process did not answer in time");
}

/// Checks that the predecessor goes on only when the processes that its successor started have ended, too.
#[test]
fn no_process_of_a_killed_successor_is_left() {
    let note = std::env::temp_dir().join(format!("sluice-upgrade-{}", std::process::id()));
    // The greeting is wrong, and follows the note.
    let script = format!("sleep 1000 & echo $! > {}; echo hello >&0; exec sleep 1000", note.display());
    let error = upgrade_to("/bin/sh", &["-c", &script], LIMITS).to_string();
    assert!(error.contains("no daemon of this kind"), "{error}");
    let process = std::fs::read_to_string(&note).expect("it was started");
    std::fs::remove_file(&note).expect("it is there");
    let process: u32 = process.trim().parse().expect("the number of a process");
    // A process without a parent that waits for it is a zombie.
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let is_over = state.is_empty() || state.split_whitespace().nth(2) == Some("Z");
    assert!(is_over, "it lives: {state}");
}
