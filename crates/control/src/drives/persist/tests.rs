//! Changes by hosts: stored, reported, and given to the next daemon's drives.

use crate::drives::script::{DECLARED, Stage, spec};
use crate::drives::tests::{LIMIT, far, keep, wait_for, while_creating};
use crate::drives::*;
use crate::state::Saved;
use sluice_spec::TargetKind;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Covers stores for hosts, and readers, while a change of another drive hangs.
#[test]
fn a_change_that_hangs_holds_up_no_host() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    while_creating(&stage, &drives, |hanging| {
        assert_eq!(keep(&stage, &drives, uncorrectable()), Some(true));
        assert_eq!(drives.ana("fixed").expect("it is there"), []);
        drop(hanging);
    });
    assert_eq!(drives.host_state("fixed").uncorrectable.len(), 1, "the change did not undo it");
}

/// Covers a record of a drive that is not listed yet: it is stored and reported once the drive is listed.
#[test]
fn what_a_drive_wants_remembered_while_it_is_opened_waits_for_that() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let of = |drive: &str, generation| PersistRequest {
        drive: drive.to_owned(),
        generation,
        what: uncorrectable(),
    };
    // The drive `slow` is the next one that is opened.
    let next = stage.played("fixed").generation + 1;
    let mut orders = vec![of("slow", next), of("fixed", next - 1), of("slow", next)];
    while_creating(&stage, &drives, |hanging| {
        drives.keep_all(&mut orders, Instant::now());
        assert_eq!(orders, [of("slow", next), of("slow", next)]);
        drop(hanging);
    });
    drives.keep_all(&mut orders, Instant::now());
    assert_eq!((orders.len(), lock(&stage.played("slow").kept).len()), (0, 2));
    // No drive with this `generation` will ever be listed.
    orders.push(of("gone", next + 1));
    drives.keep_all(&mut orders, Instant::now());
    assert!(orders.is_empty());
    for drive in ["slow", "fixed"] {
        assert_eq!(drives.host_state(drive).uncorrectable.len(), 1);
    }
}

/// Covers a new drive with the name of a former one: it gets none of the former one's records.
#[test]
fn what_a_drive_wanted_remembered_is_not_said_of_the_next_of_its_name() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.create(spec("a")).expect("a free name");
    let mut orders = vec![stage.order("a", uncorrectable())];
    drives.delete("a", false).expect("nobody is there");
    drives.create(spec("a")).expect("a free name");
    drives.keep_all(&mut orders, Instant::now());
    assert!(orders.is_empty() && drives.host_state("a").uncorrectable.is_empty());
    assert!(lock(&stage.played("a").kept).is_empty());
}

/// Covers an open that waits for a machine on the network.
#[test]
fn what_hosts_want_remembered_is_stored_while_other_drives_are_opened() {
    let stage = Stage::new();
    let (drives, specs) = stage.prepare(&DECLARED.replace("fixed", "late")).expect("nothing is wrong");
    let mut early = specs.clone();
    early[0].0.name = "early".to_owned();
    drives.open_all(early);
    let hanging = lock(&stage.script.hang_open);
    stage.script.opening.store(false, SeqCst);
    let mut orders = vec![stage.order("early", uncorrectable())];
    orders.push(PersistRequest {
        drive: "late".to_owned(),
        generation: orders[0].generation + 1,
        what: uncorrectable(),
    });
    std::thread::scope(|scope| {
        scope.spawn(|| drives.open_all(specs));
        wait_for(&stage.script.opening);
        drives.keep_all(&mut orders, Instant::now());
        assert_eq!((orders.len(), lock(&stage.played("early").kept).len()), (1, 1));
        drop(hanging);
    });
    drives.keep_all(&mut orders, Instant::now());
    assert_eq!((orders.len(), lock(&stage.played("late").kept).len()), (0, 1));
}

#[test]
fn what_hosts_of_a_far_drive_want_remembered_does_not_wait_for_another_machine() {
    let stage = Stage::new();
    let config = [far("fixed"), far("late")].concat();
    let (drives, specs) = stage.prepare(&config).expect("nothing is wrong");
    *lock(&stage.script.hangs) = Some("late".to_owned());
    let hanging = lock(&stage.script.hang_open);
    std::thread::scope(|scope| {
        scope.spawn(|| drives.open_all(specs));
        let deadline = Instant::now() + LIMIT;
        while drives.show("fixed").is_err() {
            assert!(Instant::now() < deadline, "it waits for the other");
            std::thread::yield_now();
        }
        assert_eq!(keep(&stage, &drives, uncorrectable()), Some(true));
        assert!(drives.show("late").is_err(), "nobody has answered");
        drop(hanging);
    });
    assert_eq!(drives.show("late").expect("it is known").state, DriveState::Ready);
}

/// Covers a command that waits for a store while its drive ends: the result is reported.
#[test]
fn a_drive_that_is_deleted_is_told_what_is_remembered() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.create(spec("a")).expect("a free name");
    let drive = stage.played("a");
    drive.in_flight.store(1, SeqCst);
    std::thread::scope(|scope| {
        let deleted = scope.spawn(|| drives.delete("a", true));
        wait_for(&drive.draining);
        drives.keep_all(&mut vec![stage.order("a", uncorrectable())], Instant::now());
        assert_eq!(*lock(&drive.kept), [true]);
        drive.in_flight.store(0, SeqCst);
        deleted.join().expect("no panic").expect("it has ended");
    });
    assert_eq!(drives.saved(), Saved::default());
}

/// Covers sanitize operations and formats that are resumed, and then erase everything.
#[test]
fn what_a_host_began_to_erase_is_erased_and_no_other() {
    use sluice_controller::{FormatRecord, FormatState, PersistentRecord, SanitizeRecord, SanitizeState};
    let stage = Stage::new();
    let on = |name: &str| {
        let path = stage.folder.path().join(name);
        DECLARED.replace("\"memory\"", &format!("\"file\"\npath = \"{}\"", path.display()))
    };
    let formatting =
        PersistentRecord::Format(FormatRecord { nsid: 1, block_size: 4096, state: FormatState::Running });
    let running = SanitizeRecord { cdw10: 2, pattern: 0, state: SanitizeState::Running };
    for what in [formatting, PersistentRecord::Sanitize(running)] {
        let erases = || {
            let remembered = stage.played("fixed").remembered.clone();
            let is_running = |it: SanitizeRecord| it.state == SanitizeState::Running;
            remembered.formatting.is_some() || remembered.sanitized.is_some_and(is_running)
        };
        let begin = || assert_eq!(keep(&stage, &stage.start(&on("a")), what.clone()), Some(true));
        begin();
        drop(stage.start(""));
        drop(stage.start(&on("a")));
        assert!(erases(), "the drive was missing for a while");
        for file in ["b", "a"] {
            drop(stage.start(&on(file)));
            assert!(!erases(), "on {file}, where hosts may have written since");
        }
        // A format covers one namespace; other namespaces of the drive stay.
        begin();
        for more in ["[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n", ""] {
            drop(stage.start(&format!("{}{more}", on("a"))));
            assert_eq!(erases(), matches!(what, PersistentRecord::Format(_)));
        }
        begin();
        // A created drive is new, even with the name of a former one.
        let drives = stage.start("");
        let mut created = spec("fixed");
        lock(&stage.script.refuse_open).push("fixed".into());
        drives.create(created.clone()).expect_err("nothing comes of it");
        lock(&stage.script.refuse_open).clear();
        assert_ne!(drives.saved(), Saved::default(), "so nothing was forgotten");
        created.namespaces[0].target = TargetKind::Null;
        drives.create(created).expect("a free name");
        assert!(!erases());
        drives.delete("fixed", false).expect("nobody uses it");
        assert!(drives.saved().storage_of("fixed").known.is_empty());
        assert_eq!(Saved { storage: None, ..drives.saved() }, Saved::default());
    }
}

#[test]
fn block_sizes_that_hosts_gave_are_remembered_until_the_configuration_says_another() {
    let stage = Stage::new();
    let format = |drives: &Drives, name: &str, block_size| {
        let what = sluice_controller::PersistentRecord::Format(sluice_controller::FormatRecord {
            nsid: 1,
            block_size,
            state: sluice_controller::FormatState::Done,
        });
        drives.keep(&stage.order(name, what));
        lock(&stage.played(name).kept).pop()
    };
    let opened_with = |name: &str| stage.played(name).remembered.block_sizes.clone();
    let drives = stage.start(DECLARED);
    drives.create(spec("made")).expect("a drive");
    for name in ["fixed", "made"] {
        assert_eq!(format(&drives, name, 4096), Some(true));
    }
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!((opened_with("fixed"), opened_with("made")), (vec![(1, 4096)], vec![(1, 4096)]));
    // One namespace gets its initial block size again; the change of the other cannot be stored.
    assert_eq!(format(&drives, "made", 512), Some(true));
    stage.break_disk();
    assert_eq!(format(&drives, "fixed", 512), Some(false));
    drop(drives);
    stage.mend_disk();
    let drives = stage.start(DECLARED);
    assert_eq!((opened_with("fixed"), opened_with("made")), (vec![(1, 4096)], vec![]));
    drop(drives);
    drop(stage.start(&format!("{DECLARED}block_size = 4096\n")));
    assert_eq!(opened_with("fixed"), []);
    drop(stage.start(DECLARED));
    assert_eq!(opened_with("fixed"), [], "the newer word was the configuration's");
}

#[test]
fn reservations_that_persist_are_given_to_the_next_daemons_drive() {
    use sluice_controller::{
        HostId, KnownAs, PersistentRecord, RegistrantRecord, ReservationRecord, ReservationType,
    };
    let stage = Stage::new();
    let keep = |drives: &Drives, name: &str, record: Option<ReservationRecord>| {
        let what = PersistentRecord::Reservations(vec![(1, record)]);
        drives.keep(&stage.order(name, what));
        lock(&stage.played(name).kept).pop()
    };
    let opened_with = |name: &str| stage.played(name).remembered.reservations.clone();
    let drives = stage.start(DECLARED);
    drives.create(spec("made")).expect("a drive");
    let (host, name) = (HostId::Extended([7; 16]), KnownAs::Socket(2));
    let record = ReservationRecord {
        registrants: vec![RegistrantRecord { host, name, key: 5, holds: true }],
        reservation: Some(ReservationType::WriteExclusive),
    };
    for name in ["fixed", "made"] {
        assert_eq!(keep(&drives, name, Some(record.clone())), Some(true));
    }
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!(opened_with("fixed"), [(1, record.clone())]);
    assert_eq!(opened_with("made"), [(1, record.clone())]);
    assert_eq!(keep(&drives, "fixed", None), Some(true));
    // A deleted drive leaves no record to the next one of its name.
    drives.delete("made", false).expect("nobody is there");
    drives.create(spec("made")).expect("a drive");
    stage.break_disk();
    assert_eq!(keep(&drives, "fixed", Some(record)), Some(false));
    drop(drives);
    stage.mend_disk();
    drop(stage.start(DECLARED));
    assert_eq!((opened_with("fixed"), opened_with("made")), (vec![], vec![]));
}

/// Covers ranges that belong to one drive and one of its namespaces.
#[test]
fn marks_are_given_to_the_namespace_of_the_drive_alone() {
    use crate::state::{HostState, Uncorrectable};
    let of = |drive: &str, nsid| Uncorrectable { drive: drive.to_owned(), nsid, ranges: vec![[0, 512]] };
    let saved = HostState { uncorrectable: vec![of("a", 1), of("a", 9), of("b", 1)], ..HostState::default() };
    assert_eq!(super::uncorrectable(&spec("a"), &saved), [(1, vec![[0, 512]])]);
}

fn uncorrectable() -> sluice_controller::PersistentRecord {
    sluice_controller::PersistentRecord::Uncorrectable { nsid: 1, ranges: vec![[0, 512]] }
}
