use super::super::lock;
use super::super::script::{DECLARED, Stage, spec};
use super::*;
use sluice_spec::error::Kind;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;

/// Writes an object file whose content is never parsed, and returns its specification.
fn program(stage: &Stage, name: &str) -> ClassifierSpec {
    let object = stage.folder.path().join(name);
    std::fs::write(&object, name).expect("room on the disk");
    ClassifierSpec { object, section: "classifier".to_owned(), errors_max: None, precise_clock: false }
}

fn kept(stage: &Stage) -> Vec<PathBuf> {
    let read = std::fs::read_dir(stage.state().join("objects"));
    let mut kept: Vec<PathBuf> =
        read.into_iter().flatten().map(|entry| entry.expect("it is readable").path()).collect();
    kept.sort();
    kept
}

fn attached(drives: &Drives, name: &str) -> Option<PathBuf> {
    drives.show_classifier(name).ok().map(|status| PathBuf::from(status.object))
}

#[test]
fn a_classifier_is_remembered_out_of_a_copy() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.create(spec("made")).expect("a free name");
    for name in ["fixed", "made"] {
        drives.attach_classifier(name, program(&stage, "a.o")).expect("it has none");
    }
    drop(drives);
    std::fs::remove_file(stage.folder.path().join("a.o")).expect("it is there");
    let drives = stage.start(DECLARED);
    let [copy] = kept(&stage).try_into().expect("both are the same");
    assert_eq!(std::fs::read(&copy).expect("it is there"), b"a.o");
    for name in ["fixed", "made"] {
        assert_eq!(attached(&drives, name), Some(copy.clone()));
        drives.detach_classifier(name).expect("it has one");
    }
    drop(drives);
    let drives = stage.start(DECLARED);
    assert!(["fixed", "made"].iter().all(|name| attached(&drives, name).is_none()));
}

#[test]
fn one_is_attached_to_a_drive_without_and_replaced_on_a_drive_with() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let [a, b] = ["a.o", "b.o"].map(|name| program(&stage, name));
    let refused = |done: Result<(), ApiError>| done.expect_err("it cannot be").kind;
    assert_eq!(refused(drives.replace_classifier("fixed", a.clone(), false).map(drop)), Kind::NotFound);
    assert_eq!(refused(drives.detach_classifier("fixed")), Kind::NotFound);
    drives.attach_classifier("fixed", a.clone()).expect("it has none");
    assert_eq!(refused(drives.attach_classifier("fixed", b.clone()).map(drop)), Kind::Conflict);
    drives.replace_classifier("fixed", b, false).expect("it has one");
    drives.detach_classifier("fixed").expect("it has one");
    assert_eq!(refused(drives.list_maps("fixed").map(drop)), Kind::NotFound);
}

#[test]
fn a_program_that_is_refused_changes_nothing() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.attach_classifier("fixed", program(&stage, "a.o")).expect("it has none");
    let before = (attached(&drives, "fixed"), kept(&stage));
    let relative = ClassifierSpec { object: "b.o".into(), ..program(&stage, "b.o") };
    drives.replace_classifier("fixed", relative, false).expect_err("a relative path");
    stage.script.refuse_program.store(true, SeqCst);
    drives.replace_classifier("fixed", program(&stage, "b.o"), false).expect_err("it is none");
    stage.script.refuse_program.store(false, SeqCst);
    stage.script.refuse_classifier.store(true, SeqCst);
    drives.replace_classifier("fixed", program(&stage, "c.o"), false).expect_err("no reactor");
    assert_eq!(attached(&drives, "fixed"), before.0);
    assert!(before.1.iter().all(|copy| copy.exists()));
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!(attached(&drives, "fixed"), before.0);
}

#[test]
fn what_cannot_be_stored_is_not_done() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    stage.break_disk();
    drives.attach_classifier("fixed", program(&stage, "a.o")).expect_err("the disk is broken");
    assert_eq!(attached(&drives, "fixed"), None);
}

#[test]
fn a_new_word_of_the_file_replaces_what_was_said_since() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.attach_classifier("fixed", program(&stage, "a.o")).expect("it has none");
    drop(drives);
    let file = program(&stage, "b.o").object;
    let classifier = format!("[drive.classifier]\nobject = \"{}\"\n[[drive.namespace]]", file.display());
    let declared = DECLARED.replace("[[drive.namespace]]", &classifier);
    assert_eq!(attached(&stage.start(&declared), "fixed"), Some(file));
    assert_eq!(attached(&stage.start(DECLARED), "fixed"), None, "what was said before is forgotten");
}

/// Returns the namespaces that the classifier is detached from, as passed to the engine when the drive was
/// opened.
fn detached(stage: &Stage, name: &str) -> Vec<u32> {
    lock(&stage.played(name).detached).clone()
}

#[test]
fn a_detachment_is_remembered_until_somebody_says_otherwise() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.attach_classifier("fixed", program(&stage, "a.o")).expect("it has none");
    let detach = |drives: &Drives| {
        *lock(&stage.played("fixed").detached) = vec![1];
        drives.remember_detachment("fixed").expect("room on the disk");
    };
    detach(&drives);
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!(detached(&stage, "fixed"), [1]);
    drives.replace_classifier("fixed", program(&stage, "a.o"), false).expect("it has one");
    drop(drives);
    let drives = stage.start(DECLARED);
    assert!(detached(&stage, "fixed").is_empty(), "it may try again");
    detach(&drives);
    drives.detach_classifier("fixed").expect("it has one");
    drives.attach_classifier("fixed", program(&stage, "a.o")).expect("it has none");
    drop(drives);
    drop(stage.start(DECLARED));
    assert!(detached(&stage, "fixed").is_empty(), "it is told to");
}

#[test]
fn another_program_under_the_same_name_was_not_detached() {
    let stage = Stage::new();
    let object = program(&stage, "a.o").object;
    let classifier = format!("[drive.classifier]\nobject = \"{}\"\n[[drive.namespace]]", object.display());
    let declared = DECLARED.replace("[[drive.namespace]]", &classifier);
    let drives = stage.start(&declared);
    *lock(&stage.played("fixed").detached) = vec![1];
    drives.remember_detachment("fixed").expect("room on the disk");
    drop(drives);
    drop(stage.start(&declared));
    assert_eq!(detached(&stage, "fixed"), [1]);
    std::fs::write(&object, "mended").expect("room on the disk");
    drop(stage.start(&declared));
    assert!(detached(&stage, "fixed").is_empty());
}
