//! The state file, and the file of the hosts of a drive. Any contents of each are loaded whole or refused
//! with a reason. Loaded contents can be stored and loaded again.

use crate::{Input, configuration, scratch};
use sluice_control::state::{HostFile, HostState, Reserved, Saved, StateFile};
use std::path::{Path, PathBuf};

/// Drive that the second file belongs to.
const DRIVE: &str = "a";

/// The files and their folder, the same for all inputs.
struct Place {
    file: StateFile,
    path: PathBuf,
    hosts: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = scratch().join("state");
        Self {
            file: StateFile::open(&folder).expect("the folder is ours"),
            path: folder.join("drives.state"),
            hosts: folder.join(format!("hosts/{DRIVE}.state")),
        }
    }
}

/// Loads the input as each of the two files. Each refuses the first line of the other.
pub fn run(data: &[u8]) {
    thread_local!(static PLACE: Place = Place::new());
    PLACE.with(|place| {
        std::fs::write(&place.path, file(&mut Input::new(data), "sluice-state")).expect("room");
        match place.file.load() {
            Ok(saved) => check(&place.file, &saved),
            Err(problem) => check_refusal(&problem, &place.path),
        }
        std::fs::write(&place.hosts, file(&mut Input::new(data), "sluice-hosts")).expect("room");
        // This is the state at the start of a daemon, which has not read the file yet.
        let mut hosts = place.file.host_file(DRIVE);
        match hosts.load() {
            Ok(state) => check_hosts(&mut hosts, &state.expect("the file is there")),
            Err(problem) => check_refusal(&problem, &place.hosts),
        }
    });
}

fn check_refusal(problem: &sluice_spec::error::ApiError, path: &Path) {
    let path = path.to_str().expect("a path of ours");
    assert!(problem.error.contains(path) && problem.hint.is_some(), "{problem}");
}

/// Returns the input as it is, or as the body of a file with a valid first line.
fn file(input: &mut Input<'_>, magic: &str) -> Vec<u8> {
    let has_header = !input.one_in(4);
    let body = input.bytes(usize::MAX);
    if !has_header {
        return body.to_vec();
    }
    let sum = twox_hash::XxHash3_64::oneshot(body);
    [format!("{magic} 1 {sum:016x} {}\n", body.len()).as_bytes(), body].concat()
}

fn check(file: &StateFile, saved: &Saved) {
    file.store(saved).expect("room");
    assert_eq!(file.load().as_ref(), Ok(saved));
    // Drives are only checked when they are created.
    saved.drives.iter().filter(|drive| drive.check().is_ok()).for_each(configuration::check_drive);
}

fn check_hosts(file: &mut HostFile, state: &HostState) {
    file.store(state, false).expect("room");
    assert_eq!(file.load(), Ok(Some(state.clone())));
    state.check_size(&HostState::default(), DRIVE).expect("an input is small");
    for reserved in &state.reserved {
        check_reservations(reserved);
    }
}

/// Checks that reservations that were loaded are stored and loaded again without a change. Only the first
/// load leaves out invalid ones.
fn check_reservations(reserved: &Reserved) {
    let record = reserved.record();
    let stored = Reserved::of(&reserved.drive, reserved.nsid, &record);
    assert_eq!(stored.record(), record);
}
