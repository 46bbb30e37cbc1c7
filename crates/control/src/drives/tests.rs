use super::script::{DECLARED, MIB, Stage, spec};
use super::*;
use sluice_spec::error::Kind;
use sluice_spec::size::Size;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A limit that no operation reaches.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn wait_for(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        std::thread::yield_now();
    }
}

pub(super) fn names(drives: &Drives) -> Vec<String> {
    drives.list().into_iter().map(|drive| drive.name).collect()
}

pub(super) fn size(drives: &Drives, name: &str) -> u64 {
    drives.show(name).expect("it is there").namespaces[0].size.expect("it is open").0
}

pub(super) fn apply(drives: &Drives, config: &str) -> Result<Reloaded, ApiError> {
    drives.apply(&crate::config::parse(config, Path::new("/etc/sluice.toml")).expect("a configuration"))
}

#[test]
fn created_drives_survive_a_restart_and_deleted_ones_do_not() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    for name in ["a", "b", "c"] {
        assert_eq!(drives.create(spec(name)).expect("a free name").origin, Origin::Created);
    }
    drives.delete("b", false).expect("nobody uses it");
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!(names(&drives), ["a", "c", "fixed"]);
    assert_eq!(drives.show("fixed").expect("declared").origin, Origin::Declared);
}

#[test]
fn a_name_is_given_once() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let problem = drives.create(spec("fixed")).expect_err("the name is taken");
    assert_eq!(problem.kind, Kind::Conflict);
    assert_eq!(
        drives.create(DriveSpec { name: "../x".into(), ..spec("x") }).expect_err("a path").kind,
        Kind::Invalid
    );
}

#[test]
fn a_serial_number_is_given_once() {
    let stage = Stage::new();
    let drives = stage.start(&DECLARED.replace("name = ", "serial = \"S1\"\nname = "));
    let same = |name| DriveSpec { serial: Some("S1".into()), ..spec(name) };
    let problem = drives.create(same("a")).expect_err("the serial number is taken");
    assert_eq!(problem.error, "drive `fixed` has the serial number S1 already");
    assert_eq!(names(&drives), ["fixed"]);
}

#[test]
fn unknown_names_get_the_nearest() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let problem = drives.show("fixde").expect_err("a slip");
    assert_eq!(problem.to_string(), "there is no drive `fixde`\nhint: did you mean `fixed`?");
    assert_eq!(drives.delete("zebra", false).expect_err("no such drive").kind, Kind::NotFound);
}

#[test]
fn a_declared_drive_is_not_deleted() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let problem = drives.delete("fixed", true).expect_err("declared");
    assert_eq!(
        problem.hint.as_deref(),
        Some("remove its [[drive]] from /etc/sluice.toml and run `sluice reload`")
    );
    assert_eq!(names(&drives), ["fixed"]);
}

#[test]
fn a_drive_in_use_is_deleted_by_force_only() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.create(spec("a")).expect("a free name");
    stage.played("a").connected.store(true, SeqCst);
    assert_eq!(drives.delete("a", false).expect_err("a client is there").kind, Kind::Conflict);
    drives.delete("a", true).expect("forced");
    assert!(lock(&stage.script.open).is_empty(), "closed");
}

#[test]
fn sizes_of_created_drives_are_remembered() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.create(spec("a")).expect("a free name");
    drives.resize("a", 1, Size(2 * MIB), false).expect("there is room");
    assert_eq!(lock(&stage.played("a").sizes)[0], Size(2 * MIB));
    drop(drives);
    assert_eq!(size(&stage.start(""), "a"), 2 * MIB);
}

#[test]
fn a_size_given_to_a_declared_drive_counts_until_the_file_is_changed() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.resize("fixed", 1, Size(2 * MIB), false).expect("there is room");
    drives.resize("fixed", 1, Size(3 * MIB), false).expect("there is room");
    drop(drives);
    assert_eq!(size(&stage.start(DECLARED), "fixed"), 3 * MIB);
    let changed = DECLARED.replace("1MiB", "5MiB");
    assert_eq!(size(&stage.start(&changed), "fixed"), 5 * MIB);
    // The former size is removed, not just overruled.
    assert_eq!(size(&stage.start(DECLARED), "fixed"), MIB);
}

/// Covers a reload of an edited file that matches the drive as it is.
#[test]
fn a_size_given_after_the_file_was_read_again_is_newer_than_the_file() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.resize("fixed", 1, Size(2 * MIB), false).expect("there is room");
    let edited = DECLARED.replace("1MiB", "2MiB");
    assert_eq!(apply(&drives, &edited).expect("nothing is wrong"), Reloaded::default());
    drives.resize("fixed", 1, Size(3 * MIB), false).expect("there is room");
    assert_eq!(apply(&drives, &edited).expect("nothing is wrong"), Reloaded::default());
    drop(drives);
    let drives = stage.start(&edited);
    assert_eq!(size(&drives, "fixed"), 3 * MIB);
    // The drive differs from the file; a restart would apply the file.
    let other = DECLARED.replace("1MiB", "5MiB");
    assert_eq!(apply(&drives, &other).expect("the rest is done").refused.len(), 1);
    drives.resize("fixed", 1, Size(4 * MIB), false).expect("there is room");
    drop(drives);
    assert_eq!(size(&stage.start(&other), "fixed"), 4 * MIB);
}

#[test]
fn resizes_that_cannot_be_are_refused() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let refuse = |nsid, bytes| drives.resize("fixed", nsid, Size(bytes), false).expect_err("not possible");
    assert_eq!(refuse(2, MIB).to_string(), "drive `fixed` has no namespace 2\nhint: its only namespace is 1");
    assert_eq!(refuse(0, MIB).kind, Kind::NotFound);
    assert_eq!(refuse(1, MIB + 1).kind, Kind::Invalid);
    assert!(refuse(1, MIB / 2).hint.is_some_and(|hint| hint.contains("--shrink")));
    drives.resize("fixed", 1, Size(MIB / 2), true).expect("said so");
    assert_eq!(size(&drives, "fixed"), MIB / 2);
}

/// Covers a resize at which the function would end its service.
#[test]
fn a_mirror_does_not_outgrow_its_members() {
    let stage = Stage::new();
    let layer = |size: &str| format!("{{ target = \"memory\", size = \"{size}\" }}");
    let layers = [layer("3MiB"), layer("2MiB"), layer("1MiB")].join(", ");
    let mirror =
        format!("functions = [ {{ kind = \"uif\", function = \"mirror\", layers = [ {layers} ] }} ]\n");
    let drives = stage.start(&format!("{DECLARED}{mirror}"));
    let problem = drives.resize("fixed", 1, Size(3 * MIB), false).expect_err("one has 2 MiB");
    assert_eq!(problem.error, "a copy of namespace 1 is kept that has room for 2MiB");
    drives.resize("fixed", 1, Size(2 * MIB), false).expect("both have that");
}

#[test]
fn a_change_that_cannot_be_stored_is_not_made() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.create(spec("a")).expect("a free name");
    stage.break_disk();
    assert!(drives.create(spec("b")).is_err());
    assert!(drives.delete("a", false).is_err());
    assert!(drives.resize("a", 1, Size(2 * MIB), false).is_err());
    assert_eq!(names(&drives), ["a", "fixed"]);
    assert_eq!(size(&drives, "a"), MIB);
    let mut open: Vec<String> = lock(&stage.script.open).keys().cloned().collect();
    open.sort();
    assert_eq!(open, ["a", "fixed"], "the one that was not created is closed again");
}

#[test]
fn a_resize_that_fails_is_not_remembered() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    stage.script.refuse_resize.store(true, SeqCst);
    assert!(drives.resize("fixed", 1, Size(2 * MIB), false).is_err());
    drop(drives);
    assert_eq!(size(&stage.start(DECLARED), "fixed"), MIB);
}

#[test]
fn a_drive_that_cannot_be_opened_does_not_hold_up_the_others() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.create(spec("a")).expect("a free name");
    drives.create(spec("b")).expect("a free name");
    drop(drives);
    lock(&stage.script.refuse_open).push("a".into());
    let drives = stage.start("");
    let failed = drives.show("a").expect("it is known");
    assert_eq!(failed.state, DriveState::Failed);
    assert_eq!(failed.problem.expect("why").error, "the disk is not there");
    assert_eq!(drives.show("b").expect("it is there").state, DriveState::Ready);
    assert!(drives.resize("a", 1, Size(2 * MIB), false).is_err());
    assert!(drives.open("a", Insist::default()).is_err());
    lock(&stage.script.refuse_open).clear();
    assert_eq!(drives.open("a", Insist::default()).expect("the disk is back").state, DriveState::Ready);
    assert_eq!(drives.show("a").expect("it is there").state, DriveState::Ready);
}

#[test]
fn what_a_killed_daemon_still_holds_is_waited_for() {
    let stage = Stage::new();
    stage.script.lingering.store(3, SeqCst);
    let drives = stage.start(DECLARED);
    assert_eq!(drives.show("fixed").expect("it is known").state, DriveState::Ready);
    // Later another process uses it, and the caller gets the error at once.
    stage.script.lingering.store(1, SeqCst);
    assert_eq!(drives.create(spec("a")).map(|view| view.name).expect_err("in use").kind, Kind::InUse);
}

/// Returns the declaration of a drive that is partly on another machine.
pub(super) fn far(name: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
         functions = [{{ kind = \"concat\", layers = [{{ target = \"nvme-tcp\", \
         nvme_tcp = {{ address = \"10.0.0.1:4420\", subnqn = \"nqn.2024-01.org.example:{name}\" }} }}] }}]\n"
    )
}

/// Covers machines that do not respond: their time is spent once, and other drives do not wait for them.
#[test]
fn drives_on_the_network_are_opened_side_by_side_and_after_the_others() {
    let stage = Stage::new();
    let remote = r#"{"name": "e", "serial": "SAME", "namespaces": [{"target": "nvme-tcp",
        "nvme_tcp": {"address": "10.0.0.1:4420", "subnqn": "nqn.2024-01.org.example:e"}}]}"#;
    stage.start("").create(serde_json::from_str(remote).expect("a spec")).expect("a free name");
    // The drive is declared later, and a guest cannot distinguish the two.
    let same = far("d").replace("name = \"d\"", "name = \"d\"\nserial = \"SAME\"");
    stage.script.far.store(0, SeqCst);
    stage.script.side_by_side.store(4, SeqCst);
    lock(&stage.script.open).clear();
    let config = [far("a"), far("b"), far("c"), same, DECLARED.to_owned()].concat();
    let drives = stage.start(&format!("[daemon]\ncores = [0, 1]\n{config}"));
    assert_eq!(*lock(&stage.script.before_far), ["fixed"]);
    for name in ["a", "b", "c", "d", "fixed"] {
        assert_eq!(drives.show(name).expect("it is known").state, DriveState::Ready, "{name}");
    }
    let problem = drives.show("e").expect("it is known").problem.expect("the first of two counts");
    assert!(problem.error.contains("serial number SAME"), "{problem:?}");
    assert_eq!(lock(&stage.script.open).len(), 5, "one of them was never open");
    let on = |reactor| lock(&drives.entries).values().filter(|entry| entry.reactor == reactor).count();
    assert_eq!([on(0), on(1)], [3, 3]);
}

#[test]
fn a_drive_that_cannot_be_created_is_not_there() {
    let stage = Stage::new();
    let drives = stage.start("");
    lock(&stage.script.refuse_open).push("a".into());
    assert!(drives.create(spec("a")).is_err());
    assert!(names(&drives).is_empty());
}

#[test]
fn two_drives_of_one_name_stop_the_start() {
    let stage = Stage::new();
    stage.start("").create(spec("fixed")).expect("a free name");
    let problem = stage.try_start(DECLARED).expect_err("declared and created");
    assert!(problem.error.contains("`fixed`"), "{problem}");
    assert_eq!(names(&stage.start("")), ["fixed"], "nothing was lost");
}

#[test]
fn drives_spread_over_the_reactors() {
    let stage = Stage::new();
    let drives = stage.start("[daemon]\ncores = [0, 1]\n");
    let reactors: Vec<usize> =
        ["a", "b", "c"].iter().map(|name| drives.create(spec(name)).expect("a free name").reactor).collect();
    assert_eq!(reactors, [0, 1, 0]);
    let asked = DriveSpec { reactor: Some(0), ..spec("d") };
    assert_eq!(drives.create(asked).expect("it exists").reactor, 0);
    let problem = drives.create(DriveSpec { reactor: Some(2), ..spec("e") }).expect_err("no such reactor");
    assert_eq!(problem.kind, Kind::Invalid);
}

#[test]
fn a_move_holds_up_no_other_change() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let hang = lock(&stage.script.hang_move);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| drives.move_to("fixed", 0).map(drop));
        wait_for(&stage.script.moving);
        let is_free = drives.changes.are_over();
        drop(hang);
        assert_eq!(moving.join().expect("no panic"), Ok(()));
        assert!(is_free, "what others change can be stored");
    });
    drives.ending.store(true, SeqCst);
    assert_eq!(drives.move_to("fixed", 0).expect_err("too late").kind, Kind::Unavailable);
}

#[test]
fn a_drain_waits_for_commands_and_names_what_is_left() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let drive = stage.played("fixed");
    drive.in_flight.store(3, SeqCst);
    let problem = drives.drain(Instant::now(), &AtomicBool::new(false)).expect_err("they never finish");
    assert!(problem.error.ends_with("3 commands of drive fixed"), "{problem}");
    assert!(drive.draining.load(SeqCst));
    assert!(lock(&stage.script.open).is_empty(), "closed all the same");

    let drives = stage.try_start(DECLARED);
    assert!(drives.is_err(), "the first daemon still has the folder");
}

#[test]
fn a_drive_that_does_not_end_keeps_no_other_from_its_flush() {
    let stage = Stage::new();
    let drives = stage.start(&format!("{DECLARED}{}", DECLARED.replace("fixed", "other")));
    stage.played("other").in_flight.store(1, SeqCst);
    drives.drain(Instant::now(), &AtomicBool::new(false)).expect_err("a command is left");
    assert_eq!(stage.script.syncs.load(SeqCst), 1, "the one that has ended is flushed");
}

#[test]
fn a_drain_ends_when_the_last_command_does() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let drive = stage.played("fixed");
    drive.in_flight.store(1, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(&drive.draining);
            drive.in_flight.store(0, SeqCst);
        });
        drives.drain(Instant::now() + LIMIT, &AtomicBool::new(false)).expect("it finishes");
    });
}

#[test]
fn a_drain_in_a_hurry_does_not_wait() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    stage.played("fixed").in_flight.store(1, SeqCst);
    assert!(drives.drain(Instant::now() + 60 * LIMIT, &AtomicBool::new(true)).is_err());
}

/// Covers a slow request, which must not undo a move of the drive meanwhile.
#[test]
fn a_drive_that_is_moved_during_a_change_stays_where_it_is() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    lock(&stage.script.refuse_open).push("fixed".into());
    drop(drives);
    let drives = stage.start(DECLARED);
    lock(&stage.script.refuse_open).clear();
    let hanging = lock(&stage.script.hang_open);
    stage.script.opening.store(false, SeqCst);
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| drives.open("fixed", Insist::default()).map(drop));
        wait_for(&stage.script.opening);
        drives.amend("fixed", |entry| entry.moved = true);
        drop(hanging);
        opened.join().expect("no panic").expect("it is there now");
    });
    assert!(drives.entry("fixed").expect("it is there").moved);
}

/// Covers a drive that stays because of its client when the file drops it. The file then declares it again.
#[test]
fn what_is_said_of_a_drive_that_the_file_has_lost_counts_when_it_is_there_again() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.resize("fixed", 1, Size(2 * MIB), false).expect("there is room");
    stage.played("fixed").connected.store(true, SeqCst);
    assert_eq!(apply(&drives, "").expect("the rest is done").refused.len(), 1);
    drives.resize("fixed", 1, Size(3 * MIB), false).expect("there is room");
    assert_eq!(apply(&drives, DECLARED).expect("nothing is wrong"), Reloaded::default());
    drop(drives);
    assert_eq!(size(&stage.start(DECLARED), "fixed"), 3 * MIB);
}

#[test]
fn a_daemon_has_so_many_drives_and_the_others_are_said_to_fail() {
    let stage = Stage::new();
    const CORES: &str = "[daemon]\ncores = [0, 1]\n";
    let drives = stage.start(CORES);
    drives.create(DriveSpec { reactor: Some(1), ..spec("a") }).expect("a free name");
    drop(drives);
    lock(&stage.script.open).clear();
    let declared: String = (0..DRIVES_MAX).map(|n| DECLARED.replace("fixed", &format!("d{n}"))).collect();
    let drives = stage.start(&format!("{CORES}{declared}"));
    let surplus = drives.show("a").expect("it is known");
    let no_room = |name: &str| format!("there is no room for drive `{name}`");
    assert_eq!(surplus.problem.map(|problem| problem.error), Some(no_room("a")));
    assert_eq!(surplus.reactor, 1, "the one that it asks for");
    assert_eq!(drives.open("a", Insist::default()).expect_err("there still is none").kind, Kind::Conflict);
    assert_eq!(lock(&stage.script.open).len(), DRIVES_MAX);
    drop(drives);
    // A failed drive gives up its place, even if it is opened again.
    lock(&stage.script.open).clear();
    lock(&stage.script.refuse_open).push("d0".into());
    let drives = stage.start(&format!("{CORES}{declared}"));
    lock(&stage.script.refuse_open).clear();
    assert_eq!(drives.open("a", Insist::default()).expect("there is room").state, DriveState::Ready);
    assert_eq!(drives.open("d0", Insist::default()).expect_err("there is none left").error, no_room("d0"));
    let classifier = "[drive.classifier]\nobject = \"/a.o\"\n[[drive.namespace]]";
    let other = format!("{CORES}{}", declared.replacen("[[drive.namespace]]", classifier, 1));
    let refused = apply(&drives, &other).expect("the rest is done").refused;
    let refused: Vec<_> = refused.into_iter().map(|problem| problem.error).collect();
    assert_eq!(refused, [format!("drive `d0`: {}", no_room("d0"))]);
    assert_eq!(lock(&stage.script.open).len(), DRIVES_MAX);
    assert_eq!(apply(&drives, "").expect("nobody uses them").removed.len(), DRIVES_MAX);
}

/// Runs `end` while another thread creates the drive `slow`. The creation lasts until the guard that `end`
/// gets is dropped.
pub(super) fn while_creating(stage: &Stage, drives: &Drives, end: impl FnOnce(MutexGuard<'_, ()>)) {
    let hanging = lock(&stage.script.hang_open);
    stage.script.opening.store(false, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| drives.create(spec("slow")));
        wait_for(&stage.script.opening);
        end(hanging);
    });
}

/// Covers a drive whose functions end slowly, such as one whose descriptors cannot be closed.
#[test]
fn looking_does_not_wait_for_a_drive_that_is_slow_to_end() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.create(spec("slow")).expect("a new drive");
    let ends = lock(&stage.script.hang_drop);
    stage.script.dropping.store(false, SeqCst);
    std::thread::scope(|scope| {
        let deleted = scope.spawn(|| drives.delete("slow", false));
        wait_for(&stage.script.dropping);
        let (looked, has_looked) = std::sync::mpsc::channel();
        let drives = &drives;
        scope.spawn(move || looked.send(drives.list().len()));
        let seen = has_looked.recv_timeout(LIMIT);
        drop(ends);
        deleted.join().expect("no panic").expect("it is deleted");
        assert_eq!(seen, Ok(1), "the others can be looked at meanwhile");
    });
}

#[test]
fn a_change_that_hangs_does_not_hold_up_the_end() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let drive = stage.played("fixed");
    while_creating(&stage, &drives, |hanging| {
        let problem = drives.drain(Instant::now(), &AtomicBool::new(false)).expect_err("it hangs");
        assert!(problem.error.ends_with("longer for a change of the drives"), "{problem}");
        assert!(drive.draining.load(SeqCst), "the others are drained all the same");
        drop(hanging);
    });
}

#[test]
fn a_change_under_way_is_waited_for_and_ended_too() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let drive = stage.played("fixed");
    while_creating(&stage, &drives, |hanging| {
        std::thread::scope(|scope| {
            let drained = scope.spawn(|| drives.drain(Instant::now() + LIMIT, &AtomicBool::new(false)));
            wait_for(&drive.draining);
            drop(hanging);
            drained.join().expect("no panic").expect("nothing is in flight");
        });
    });
    assert!(lock(&stage.script.open).is_empty(), "also the one that was created meanwhile");
    assert_eq!(drives.create(spec("late")).expect_err("too late").kind, Kind::Unavailable);
}

/// Returns the declaration of a drive with this pool.
fn pooled(pool: &str) -> String {
    DECLARED.replace(
        "[[drive.namespace]]",
        &format!("[drive.pool]\nsize = \"1MiB\"\n{pool}\n[[drive.namespace]]"),
    )
}

fn creation(nsid: u32) -> sluice_controller::PersistentRecord {
    let (block_size, blocks, shared, ana_group) = (512, 8, true, 1);
    sluice_controller::PersistentRecord::Creation(sluice_controller::Creation {
        nsid,
        block_size,
        blocks,
        shared,
        ana_group,
    })
}

/// Returns the name of the only file in a folder.
fn only_file(folder: &Path) -> String {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").flatten().map(|it| it.file_name()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0).into_string().expect("our names are text")
}

pub(super) fn keep(
    stage: &Stage,
    drives: &Drives,
    what: sluice_controller::PersistentRecord,
) -> Option<bool> {
    drives.keep(&stage.order("fixed", what));
    lock(&stage.played("fixed").kept).pop()
}

#[test]
fn a_namespace_that_is_being_made_holds_up_no_other_change() {
    let stage = Stage::new();
    let folder = stage.folder.path().join("pool");
    let drives = stage.start(&pooled(&format!("target = \"file\"\nfolder = \"{}\"", folder.display())));
    let hang = lock(&stage.script.hang_make);
    std::thread::scope(|scope| {
        let making = scope.spawn(|| keep(&stage, &drives, creation(2)));
        wait_for(&stage.script.making);
        let is_free = drives.changes.are_over();
        drop(hang);
        assert_eq!(making.join().expect("no panic"), Some(true));
        assert!(is_free, "what others change can be stored");
    });
    assert!(only_file(&folder).starts_with("fixed-2-1-"));
    std::fs::write(folder.join("fixed-3-2.img"), "theirs").expect("room");
    assert_eq!(keep(&stage, &drives, creation(3)), Some(true));
    assert_eq!(keep(&stage, &drives, sluice_controller::PersistentRecord::Deletion(vec![2, 3])), Some(true));
    assert_eq!(keep(&stage, &drives, sluice_controller::PersistentRecord::Removal), Some(true));
    assert_eq!(only_file(&folder), "fixed-3-2.img");
    assert_eq!(std::fs::read(folder.join("fixed-3-2.img")).expect("it is there"), b"theirs");
}

#[test]
fn creations_that_fail_leave_nothing() {
    let stage = Stage::new();
    let folder = stage.folder.path().join("pool");
    let config = pooled(&format!("target = \"file\"\nfolder = \"{}\"", folder.display()));
    let drives = stage.start(&config);
    stage.script.refuse_make.store(true, SeqCst);
    for _ in 0..3 {
        assert_eq!(keep(&stage, &drives, creation(2)), Some(false));
        assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0);
    }
    stage.script.refuse_make.store(false, SeqCst);
    assert_eq!(keep(&stage, &drives, creation(2)), Some(true));
    let name = only_file(&folder);
    drop(drives);
    let drives = stage.start(&config);
    assert_eq!(only_file(&folder), name);
    // Names are unique by their random part, even for the same number.
    assert_eq!(keep(&stage, &drives, sluice_controller::PersistentRecord::Deletion(vec![2])), Some(true));
    assert_eq!(keep(&stage, &drives, sluice_controller::PersistentRecord::Removal), Some(true));
    drop(drives);
    std::fs::remove_dir_all(stage.state()).expect("it is there");
    assert_eq!(keep(&stage, &stage.start(&config), creation(2)), Some(true));
    let another = only_file(&folder);
    let number = |name: &str| name.rsplit_once('-').map(|(number, _)| number.to_owned());
    assert_eq!(
        (number(&name), number(&another)),
        (Some("fixed-2-1".to_owned()), Some("fixed-2-1".to_owned()))
    );
    assert_ne!(name, another);
}

#[test]
fn nothing_of_a_deleted_namespace_is_the_next_ones() {
    use sluice_controller::{
        HostId, KnownAs, PersistentRecord, RegistrantRecord, ReservationRecord, ReservationType,
    };
    let stage = Stage::new();
    let config = pooled("target = \"memory\"");
    let drives = stage.start(&config);
    let (host, name) = (HostId::Extended([7; 16]), KnownAs::Socket(2));
    let record = ReservationRecord {
        registrants: vec![RegistrantRecord { host, name, key: 5, holds: true }],
        reservation: Some(ReservationType::WriteExclusive),
    };
    let reserved = |nsid| PersistentRecord::Reservations(vec![(nsid, Some(record.clone()))]);
    for what in [creation(2), reserved(2), reserved(1)] {
        assert_eq!(keep(&stage, &drives, what), Some(true));
    }
    drop(drives);
    let drives = stage.start(&config);
    assert_eq!(stage.played("fixed").remembered.reservations.len(), 2);
    assert_eq!(keep(&stage, &drives, PersistentRecord::Deletion(vec![2])), Some(true));
    // A record that was in flight at the deletion comes too late.
    assert_eq!(keep(&stage, &drives, reserved(2)), Some(true));
    assert_eq!(keep(&stage, &drives, creation(2)), Some(true));
    drop(drives);
    drop(stage.start(&config));
    assert_eq!(stage.played("fixed").remembered.reservations, [(1, record)]);
}

#[test]
fn no_classifier_is_attached_beside_a_pool() {
    let stage = Stage::new();
    let drives = stage.start(&pooled("target = \"memory\""));
    let object = stage.folder.path().join("a.o");
    std::fs::write(&object, "a program").expect("room");
    let spec = serde_json::from_str(&format!(r#"{{"object": "{}"}}"#, object.display())).expect("a spec");
    let problem = drives.attach_classifier("fixed", spec).expect_err("it has a pool");
    assert_eq!((problem.kind, problem.error.as_str()), (Kind::Conflict, "drive `fixed` has a pool"));
    assert!(drives.show_classifier("fixed").is_err(), "it has none");
}
