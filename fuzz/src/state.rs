//! The state file: any contents are loaded whole or refused with a reason, and a loaded state can be stored
//! and loaded again.

use crate::{Input, configuration, scratch};
use sluice_control::state::{Saved, StateFile};
use std::path::PathBuf;

/// File and its folder, the same for all inputs.
struct Place {
    file: StateFile,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = scratch().join("state");
        Self {
            file: StateFile::open(&folder).expect("the folder is ours"),
            path: folder.join("drives.state"),
        }
    }
}

pub fn run(data: &[u8]) {
    thread_local!(static PLACE: Place = Place::new());
    PLACE.with(|place| {
        std::fs::write(&place.path, file(&mut Input::new(data))).expect("room");
        match place.file.load() {
            Ok(saved) => check(&place.file, &saved),
            Err(problem) => {
                let path = place.path.to_str().expect("a path of ours");
                assert!(problem.error.contains(path) && problem.hint.is_some(), "{problem}");
            }
        }
    });
}

/// Returns the input as it is, or as the body of a file whose first line fits.
fn file(input: &mut Input<'_>) -> Vec<u8> {
    let has_header = !input.one_in(4);
    let body = input.bytes(usize::MAX);
    if !has_header {
        return body.to_vec();
    }
    let sum = twox_hash::XxHash3_64::oneshot(body);
    [format!("sluice-state 1 {sum:016x} {}\n", body.len()).as_bytes(), body].concat()
}

fn check(file: &StateFile, saved: &Saved) {
    file.store(saved).expect("room");
    assert_eq!(file.load().as_ref(), Ok(saved));
    // Drives are only checked when they are created.
    saved.drives.iter().filter(|drive| drive.check().is_ok()).for_each(configuration::check_drive);
}
