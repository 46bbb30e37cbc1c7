use super::super::lock;
use super::super::script::{MIB, Stage, spec};
use super::*;
use sluice_spec::error::Kind;
use sluice_targets::MaintenanceFault;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;

fn file(stage: &Stage, name: &str) -> PathBuf {
    let path = stage.folder.path().join(name);
    std::fs::write(&path, vec![0; MIB as usize]).expect("room on the disk");
    path
}

/// Returns the configuration of a drive on a file.
fn declared(path: &Path) -> String {
    format!(
        "[[drive]]\nname = \"fixed\"\n[[drive.namespace]]\ntarget = \"file\"\nsize = \"1MiB\"\npath = \"{}\"\n\
         functions = [ {{ kind = \"pass\" }} ]\n",
        path.display()
    )
}

/// Returns the file of a drive, and the identifiers that its namespace was opened with.
fn place(stage: &Stage, drives: &Drives, name: &str) -> (PathBuf, Vec<(u32, [u8; 16])>) {
    let path = drives.entry(name).expect("it is there").spec.namespaces[0].path.clone();
    (path.expect("it is on a file"), stage.played(name).remembered.uuids.clone())
}

#[test]
fn a_pause_is_stored_and_ends_once() {
    let stage = Stage::new();
    let config = declared(&file(&stage, "a"));
    let drives = stage.start(&config);
    let view = drives.pause_target("fixed", 1, Some(60)).expect("it runs");
    assert_eq!((view.state, view.fail_after_s), (TargetState::Paused, Some(60)));
    assert_eq!(drives.pause_target("fixed", 1, None).expect_err("it is paused").kind, Kind::Conflict);
    assert_eq!(drives.pause_target("fixed", 2, None).expect_err("there is one").kind, Kind::NotFound);
    drop(drives);
    let drives = stage.start(&config);
    assert_eq!(stage.played("fixed").remembered.paused_targets, [(1, Some(60))]);
    let view = drives.resume_target("fixed", 1).expect("it is paused");
    assert_eq!((view.state, lock(&stage.played("fixed").paused).len()), (TargetState::Ready, 0));
    assert_eq!(drives.resume_target("fixed", 1).expect_err("it runs").kind, Kind::Conflict);
    let kinds: Vec<_> = drives.events().since(0).iter().map(|event| event.event).collect();
    assert_eq!(kinds, [EventKind::TargetResumed]);
    drop(drives);
    stage.start(&config);
    assert_eq!(stage.played("fixed").remembered.paused_targets, []);
}

#[test]
fn hosts_see_the_same_namespace_on_another_target() {
    let stage = Stage::new();
    let (config, b) = (declared(&file(&stage, "a")), file(&stage, "b"));
    let drives = stage.start(&config);
    let (_, before) = place(&stage, &drives, "fixed");
    let target = TargetSpec::file(b.clone());
    let refused = drives.replace_target("fixed", 1, target.clone(), false).expect_err("other storage");
    assert!(refused.hint.expect("a hint").contains("--different-storage"));
    assert!(lock(&stage.played("fixed").paused).is_empty(), "it goes on");
    drives.replace_target("fixed", 1, target, true).expect("the operator insists");
    assert!(lock(&stage.played("fixed").paused).is_empty(), "it goes on");
    drop(drives);
    for _ in 0..2 {
        let drives = stage.start(&config);
        assert_eq!(place(&stage, &drives, "fixed"), (b.clone(), before.clone()));
    }
    // Other storage under the new path is another namespace.
    std::fs::rename(file(&stage, "c"), &b).expect("it was made");
    let drives = stage.start(&config);
    let (path, after) = place(&stage, &drives, "fixed");
    assert_eq!(path, b);
    assert_ne!(after, before);
    drop(drives);
    // The file has a newer word.
    let d = file(&stage, "d");
    let drives = stage.start(&declared(&d));
    assert_eq!(place(&stage, &drives, "fixed").0, d);
    assert!(lock(&drives.saved).replaced.is_empty());
}

#[test]
fn a_created_drive_keeps_its_new_target() {
    let stage = Stage::new();
    let (a, b) = (file(&stage, "a"), file(&stage, "b"));
    let drives = stage.start("");
    let mut made = spec("made");
    made.namespaces[0].set_target(TargetSpec { size: Some(Size(MIB)), ..TargetSpec::file(a) });
    drives.create(made).expect("a free name");
    let (_, before) = place(&stage, &drives, "made");
    drives.pause_target("made", 1, None).expect("it runs");
    drives.replace_target("made", 1, TargetSpec::file(b.clone()), true).expect("the operator insists");
    assert!(lock(&stage.played("made").paused).is_empty());
    drop(drives);
    let drives = stage.start("");
    assert_eq!(place(&stage, &drives, "made"), (b, before));
    assert_eq!(drives.targets("made").expect("it is there")[0].state, TargetState::Ready);
}

#[test]
fn a_replacement_that_fails_changes_nothing() {
    let stage = Stage::new();
    let (a, b) = (file(&stage, "a"), file(&stage, "b"));
    let config = declared(&a);
    let drives = stage.start(&config);
    let saved = drives.saved();
    stage.script.refuse_move.store(true, SeqCst);
    drives.replace_target("fixed", 1, TargetSpec::file(b.clone()), true).expect_err("it is busy");
    assert_eq!(drives.saved(), saved);
    assert!(lock(&stage.played("fixed").paused).is_empty(), "it goes on");
    let missing = stage.folder.path().join("missing");
    let refused =
        |target: TargetSpec| drives.replace_target("fixed", 1, target, true).expect_err("it cannot be");
    assert!(refused(TargetSpec::file(missing.clone())).error.contains("does not exist"));
    let small = TargetSpec { size: Some(Size(MIB / 2)), ..TargetSpec::file(b) };
    assert!(refused(small).error.contains("less than"));
    let made = TargetSpec { size: Some(Size(MIB)), ..TargetSpec::file(missing.clone()) };
    refused(made);
    assert!(!missing.exists(), "the file that was made is gone");
    assert_eq!(drives.saved(), saved);
}

#[test]
fn some_targets_are_not_replaced() {
    let stage = Stage::new();
    let b = file(&stage, "b");
    let drives = stage.start(
        "[[drive]]\nname = \"memory\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
         [[drive]]\nname = \"ways\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n\
         paths = [ { name = \"other\", target = \"null\" } ]\n\
         [[drive]]\nname = \"set\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"/set\"\nsize = \"1MiB\"\n\
         functions = [ { kind = \"uif\", function = \"mirror\", layers = [ { target = \"null\", size = \"1MiB\" } ] } ]\n",
    );
    let refused =
        |name: &str| drives.replace_target(name, 1, TargetSpec::file(b.clone()), true).expect_err("no").error;
    assert!(refused("memory").contains("in the daemon alone"));
    assert!(refused("ways").contains("in the daemon alone"));
    assert!(refused("set").contains("recognizes the storage below it"));
    drives.pause_target("ways", 1, None).expect("all of its paths can wait");
    assert_eq!(drives.reset_target("memory", 1, None).expect_err("no controller").kind, Kind::Conflict);
    drives.pause_target("memory", 1, None).expect("it can wait");
}

#[test]
fn a_target_of_a_drive_that_is_not_open_is_replaced_and_opened() {
    let stage = Stage::new();
    let (a, b) = (file(&stage, "a"), file(&stage, "b"));
    let config = declared(&a);
    drop(stage.start(&config));
    std::fs::remove_file(&a).expect("it was made");
    let drives = stage.start(&config);
    assert_eq!(drives.targets("fixed").expect("it is there")[0].state, TargetState::Closed);
    let target = TargetSpec::file(b.clone());
    drives.replace_target("fixed", 1, target.clone(), false).expect_err("other storage");
    assert_eq!(drives.replace_target("fixed", 1, target, true).expect("it opens").state, TargetState::Ready);
    assert_eq!(place(&stage, &drives, "fixed").0, b);
}

/// Puts a drive on another controller, whose loss of power must be noticed after a crash.
#[test]
fn a_drive_that_is_put_on_another_controller_has_a_record_of_that() {
    let stage = Stage::new();
    let config = declared(&file(&stage, "a"));
    let drives = stage.start(&config);
    assert_eq!(drives.state.load_unflushed("fixed"), None);
    let far = serde_json::json!({ "address": "10.0.0.1:4420", "subnqn": "nqn.2026-11.example:far" });
    let target = TargetSpec::nvme_tcp(serde_json::from_value(far).expect("a subsystem"));
    drives.replace_target("fixed", 1, target, true).expect("the operator insists");
    let record = drives.state.load_unflushed("fixed").expect("it is on another controller");
    assert!(!record.clean && record.boot.is_some(), "{record:?}");
}

/// Fails a reset while the state cannot be stored.
#[test]
fn a_pause_after_a_failed_reset_applies_on_a_full_disk() {
    let why = MaintenanceFault::NotBack { limit: Duration::from_secs(1), last: "refused".to_owned() };
    for is_resumed in [true, false] {
        let stage = Stage::new();
        let config = declared(&file(&stage, "a"));
        let drives = stage.start(&config);
        let (entry, running) = drives.paused_or_not("fixed", 1, false).expect("it runs");
        drives.pause_for_a_moment(&entry, running.as_ref(), 1).expect("it runs");
        stage.break_disk();
        drives.keep_parked(&entry, running.as_ref(), 1, &why).expect("it applies");
        let view = drives.targets("fixed").expect("it is there").remove(0);
        assert_eq!(view.state, TargetState::Paused);
        let again = drives.pause_target("fixed", 1, None).expect_err("it is paused");
        assert!(again.error.contains("paused already"), "{again}");
        if is_resumed {
            drives.resume_target("fixed", 1).expect("the disk is not needed");
            assert_eq!(lock(&stage.played("fixed").paused).len(), 0);
        }
        stage.mend_disk();
        drives.settle();
        drop((entry, running, drives));
        let _drives = stage.start(&config);
        let expected: &[_] = if is_resumed { &[] } else { &[(1, None)] };
        assert_eq!(stage.played("fixed").remembered.paused_targets, expected);
    }
}

/// Returns the configuration of a drive whose hosts see a paused target by ANA.
fn with_ana(path: &Path) -> String {
    format!(
        "[tcp]\nlisten = [\"127.0.0.1:4420\"]\n[[drive]]\nname = \"fixed\"\nabsence = {{ answer = \"ana\" }}\n[drive.tcp]\n[[drive.namespace]]\n\
         target = \"file\"\nsize = \"1MiB\"\npath = \"{}\"\nana_group = 1\n",
        path.display()
    )
}

/// Replaces a target by one that is reached after a long time.
#[test]
fn hosts_see_no_change_for_longer_than_its_limit_during_a_replacement() {
    let stage = Stage::new();
    let (config, b) = (with_ana(&file(&stage, "a")), file(&stage, "b"));
    let mut drives = stage.start(&config);
    drives.change_limit = Duration::ZERO;
    stage.script.replaces_late.store(true, SeqCst);
    drives.replace_target("fixed", 1, TargetSpec::file(b), true).expect("it is there in the end");
    assert_eq!(lock(&stage.played("fixed").ana).last(), None);
}

/// Shows the Change state for longer than hosts wait for its end.
#[test]
fn hosts_see_no_change_for_longer_than_its_limit() {
    let stage = Stage::new();
    let path = file(&stage, "a");
    let config = with_ana(&path);
    let drives = stage.start(&config);
    let (entry, running) = drives.paused_or_not("fixed", 1, false).expect("it runs");
    let running = running.as_ref();
    let shown = || lock(&stage.played("fixed").ana).last().cloned();
    let rule = |state| Some(sluice_spec::AnaSpec { port: None, group: Some(1), state }.rule());
    drives.pause_for_a_moment(&entry, running, 1).expect("it runs");
    let hour = Duration::from_secs(3600);
    let seen = drives.while_changing(&entry, running, 1, hour, shown);
    assert_eq!(seen, rule(AnaStateName::Change));
    drives.while_changing(&entry, running, 1, Duration::ZERO, || {
        while shown() != rule(AnaStateName::Inaccessible) {
            std::thread::yield_now();
        }
    });
    drives.end_moment(&entry.spec, running, 1).expect("it runs");
    assert_eq!(shown(), None);
}
