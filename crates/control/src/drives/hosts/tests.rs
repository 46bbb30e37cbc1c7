//! Files of drives' hosts after a crash or a loss, or beside a busy neighbour.

use crate::drives::script::{DECLARED, Stage, spec};
use crate::drives::*;
use crate::state::{Disk, FileSystem};
use sluice_controller::PersistentRecord;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

fn mark(at: u64) -> PersistentRecord {
    PersistentRecord::Uncorrectable { nsid: 1, ranges: vec![[at << 9, (at + 1) << 9]] }
}

fn keep(stage: &Stage, drives: &Drives, drive: &str, what: PersistentRecord) -> Option<bool> {
    drives.keep(&stage.order(drive, what));
    lock(&stage.played(drive).kept).pop()
}

/// Returns the mark that a drive was opened with.
fn marked(stage: &Stage, drive: &str) -> Option<u64> {
    let remembered = &stage.played(drive).remembered.uncorrectable;
    remembered.first().map(|(_, ranges)| ranges[0][0] >> 9)
}

#[test]
fn what_hosts_of_a_drive_store_holds_up_neither_the_operator_nor_another_drive() {
    let stage = Stage::new();
    let drives = stage.start(&(DECLARED.to_owned() + &DECLARED.replace("fixed", "other")));
    for drive in ["fixed", "other"] {
        assert_eq!(keep(&stage, &drives, drive, mark(1)), Some(true));
    }
    // Lock the host state, as a store in progress does.
    let hosted = drives.hosted("fixed");
    let storing = lock(&hosted);
    drives.create(spec("new")).expect("the operator's state is another file");
    drives.delete("new", false).expect("the operator's state is another file");
    assert_eq!(keep(&stage, &drives, "other", mark(2)), Some(true));
    drop(storing);
    let storing = lock(&drives.saved);
    assert_eq!(keep(&stage, &drives, "fixed", mark(3)), Some(true), "it has a file already");
    drop(storing);
    drop(drives);
    drop(stage.start(&(DECLARED.to_owned() + &DECLARED.replace("fixed", "other"))));
    assert_eq!((marked(&stage, "fixed"), marked(&stage, "other")), (Some(3), Some(2)));
}

#[test]
fn a_state_of_one_piece_is_taken_apart_at_the_first_start() {
    let stage = Stage::new();
    drop(stage.start(DECLARED));
    let ranges = vec![[512, 1024]];
    let mark = crate::state::Uncorrectable { drive: "fixed".into(), nsid: 1, ranges };
    let file = StateFile::open(&stage.state()).expect("nobody has it");
    let saved = file.load().expect("it is whole");
    let whole = Saved { uncorrectable: vec![mark], ..saved };
    file.store(&whole).expect("room on the disk");
    drop(file);
    for _ in 0..2 {
        let drives = stage.start(DECLARED);
        assert_eq!(marked(&stage, "fixed"), Some(1));
        let saved = drives.saved();
        assert!(saved.uncorrectable.is_empty() && saved.hosted.contains("fixed"));
    }
    assert!(stage.state().join("hosts/fixed.state").exists());
}

#[test]
fn a_drive_whose_file_is_lost_is_not_opened_as_if_hosts_had_left_nothing() {
    let stage = Stage::new();
    let config = DECLARED.to_owned() + &DECLARED.replace("fixed", "other");
    let path = stage.state().join("hosts/fixed.state");
    let lose: [&dyn Fn(); 2] = [&|| std::fs::remove_file(&path).expect("it is there"), &|| {
        std::fs::write(&path, "half").expect("room on the disk")
    }];
    for lose in lose {
        let drives = stage.start(&config);
        for drive in ["fixed", "other"] {
            assert_eq!(keep(&stage, &drives, drive, mark(1)), Some(true));
        }
        drop(drives);
        lose();
        for _ in 0..2 {
            let drives = stage.start(&config);
            let problem = drives.show("fixed").expect("it is kept").problem.expect("it is not open");
            assert!(problem.error.contains("hosts/fixed.state cannot be used"), "{problem}");
            assert!(problem.hint.is_some_and(|hint| hint.contains("sluice drive open fixed --adopt")));
            assert_eq!(marked(&stage, "other"), Some(1), "nothing is wrong with the other");
            let again = drives.open("fixed", Insist::default());
            assert!(again.is_err(), "it is not there yet");
        }
        let drives = stage.start(&config);
        let insist = Insist { adopt: true, ..Insist::default() };
        drives.open("fixed", insist).expect("the operator insists");
        assert_eq!(marked(&stage, "fixed"), None);
        drop(drives);
        let drives = stage.start(&config);
        assert_eq!(drives.show("fixed").expect("it is kept").problem, None);
    }
}

#[test]
fn a_missing_state_file_beside_what_hosts_did_is_not_an_empty_state() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    assert_eq!(keep(&stage, &drives, "fixed", mark(1)), Some(true));
    drop(drives);
    for name in ["drives.state", "drives.state.previous"] {
        let _ = std::fs::remove_file(stage.state().join(name));
    }
    let problem = stage.try_start(DECLARED).expect_err("somebody took it away");
    assert!(problem.error.contains("it is missing"), "{problem}");
}

#[test]
fn the_former_version_of_the_state_file_lists_files_of_hosts_too() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    assert_eq!(keep(&stage, &drives, "fixed", mark(1)), Some(true));
    drop(drives);
    let state = stage.state();
    std::fs::rename(state.join("drives.state.previous"), state.join("drives.state")).expect("there are two");
    drop(stage.start(DECLARED));
    assert_eq!(marked(&stage, "fixed"), Some(1));
}

#[test]
fn a_new_drive_has_nothing_of_the_hosts_of_one_that_had_its_name() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    assert_eq!(keep(&stage, &drives, "fixed", mark(1)), Some(true));
    drop(drives);
    let drives = stage.start("");
    drives.create(spec("fixed")).expect("a free name");
    assert_eq!(marked(&stage, "fixed"), None);
    drop(drives);
    drop(stage.start(""));
    assert_eq!(marked(&stage, "fixed"), None);
    assert!(!stage.state().join("hosts/fixed.state").exists());
}

/// A disk that copies the state's folder before each step, so that each copy is the result of a crash.
#[derive(Debug)]
struct Crashes {
    state: PathBuf,
    copies: PathBuf,
    steps: AtomicUsize,
}

impl Crashes {
    fn copy(&self) {
        let step = self.steps.fetch_add(1, SeqCst);
        let to = self.copies.join(step.to_string());
        std::fs::create_dir_all(to.join("hosts")).expect("room on the disk");
        for folder in [Path::new(""), Path::new("hosts")] {
            for entry in std::fs::read_dir(self.state.join(folder)).expect("a folder").flatten() {
                if entry.file_type().expect("it is there").is_file() && entry.file_name() != "lock" {
                    std::fs::copy(entry.path(), to.join(folder).join(entry.file_name())).expect("room");
                }
            }
        }
    }
}

impl Disk for Crashes {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.copy();
        FileSystem.create(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        FileSystem.write(file, &bytes[..bytes.len() / 2])?;
        self.copy();
        FileSystem.write(file, &bytes[bytes.len() / 2..])
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        FileSystem.sync(file)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.copy();
        FileSystem.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.copy();
        FileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.copy();
        FileSystem.remove(path)
    }

    fn sync_folder(&self, folder: &File) -> io::Result<()> {
        FileSystem.sync_folder(folder)
    }
}

/// Covers a crash at each step: every drive has the state that its hosts stored last, or were about to store.
#[test]
fn a_crash_between_files_leaves_each_drive_as_it_was_or_as_it_was_to_be() {
    let mut stage = Stage::new();
    drop(stage.start(DECLARED));
    let crashes = Arc::new(Crashes {
        state: stage.state(),
        copies: stage.folder.path().join("copies"),
        steps: AtomicUsize::default(),
    });
    stage.disk = Some(Arc::clone(&crashes) as Arc<dyn Disk>);
    let drives = stage.start(DECLARED);
    let step = || crashes.steps.load(SeqCst);
    // The step from which on each mark, or drive, is certain.
    let mut certain = vec![(step(), None)];
    for at in 1..4 {
        assert_eq!(keep(&stage, &drives, "fixed", mark(at)), Some(true));
        certain.push((step(), Some(at)));
    }
    let (made, marks) = (step(), certain.clone());
    drives.create(spec("made")).expect("a free name");
    let created = step();
    assert_eq!(keep(&stage, &drives, "made", mark(7)), Some(true));
    let deleting = step();
    drives.delete("made", false).expect("nobody uses it");
    let deleted = step();
    drives.create(spec("made")).expect("a free name");
    let created_again = step();
    drop(drives);
    crashes.copy();
    for crash in 0..step() {
        let copy = Stage::new();
        std::fs::rename(crashes.copies.join(crash.to_string()), copy.state()).expect("it is there");
        let drives = copy.start(DECLARED);
        assert_eq!(drives.show("fixed").expect("it is declared").problem, None, "{crash}");
        let found = marked(&copy, "fixed");
        let before = marks.iter().rev().find(|(from, _)| *from <= crash).and_then(|(_, mark)| *mark);
        let next = marks.iter().find(|(from, _)| *from > crash).map_or(before, |(_, mark)| *mark);
        assert!(found == before || found == next, "{crash}: {found:?}, not {before:?} or {next:?}");
        let is_there = drives.show("made").is_ok();
        if crash < made || (deleted..deleted + 1).contains(&crash) {
            assert!(!is_there, "{crash}");
        }
        if (created..deleting).contains(&crash) || crash >= created_again {
            assert!(is_there, "{crash}");
        }
        if is_there {
            let problem = drives.show("made").expect("it is there").problem;
            assert_eq!(problem, None, "{crash}");
            let is_new = crash >= deleted || crash < created;
            assert!(!is_new || marked(&copy, "made").is_none(), "{crash}: hosts of another drive did that");
        }
    }
    assert!(step() > 40, "{}", step());
}

/// Covers hosts that store without end: they wait, and other hosts do not.
#[test]
fn hosts_that_store_without_end_are_slowed_down_by_themselves() {
    let stage = Stage::new();
    let drives = stage.start(&(DECLARED.to_owned() + &DECLARED.replace("fixed", "other")));
    let mut orders: Vec<PersistRequest> = (0..1000).map(|at| stage.order("fixed", mark(at))).collect();
    orders.push(stage.order("other", mark(1)));
    drives.keep_all(&mut orders, Instant::now());
    // A drive's hosts may store 200 times without a wait.
    assert_eq!(orders.len(), 800);
    assert!(orders.iter().all(|order| order.drive == "fixed"));
    assert_eq!(lock(&stage.played("other").kept).len(), 1);
}
