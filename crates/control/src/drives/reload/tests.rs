//! Reloads: drives are added and removed with the configuration file.

use super::super::script::{DECLARED, MIB, Stage, spec};
use super::super::tests::{apply, names, size};
use super::*;
use crate::drives::DriveState;
use sluice_spec::size::Size;
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn drives_come_and_go_with_the_file() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.create(spec("a")).expect("a free name");
    assert_eq!(apply(&drives, DECLARED).expect("nothing is wrong"), Reloaded::default());
    let other = DECLARED.replace("fixed", "other");
    let outcome = apply(&drives, &other).expect("nothing is wrong");
    assert_eq!(outcome.added, ["other"]);
    assert_eq!(outcome.removed, ["fixed"]);
    assert!(outcome.refused.is_empty());
    assert_eq!(names(&drives), ["a", "other"], "created drives are none of the file's business");
    assert_eq!(lock(&stage.script.open).len(), 2);
}

#[test]
fn what_a_reload_cannot_do_is_said_and_left() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let changed = DECLARED.replace("1MiB", "2MiB").replace("[[drive]]", "[daemon]\ndrain_s = 3\n[[drive]]");
    let refused = apply(&drives, &changed).expect("the rest is done").refused;
    let refused: Vec<&str> = refused.iter().map(|problem| problem.error.as_str()).collect();
    assert_eq!(refused, ["[daemon] is not what it was", "drive `fixed` is not declared as it was"]);
    assert_eq!(size(&drives, "fixed"), MIB);

    for tcp in
        ["listen = [\"127.0.0.1:4420\"]", "listen_tls = [\"[::1]:8009\"]\ndiscovery_keys = \"/etc/keys\""]
    {
        let outcome = apply(&drives, &format!("[tcp]\n{tcp}\n{DECLARED}")).expect("the rest is done");
        let problem = &outcome.refused[0];
        assert_eq!((outcome.refused.len(), problem.error.as_str()), (1, "[tcp] is not what it was"));
        assert_eq!(problem.hint.as_deref(), Some("restart the daemon to apply that"));
    }

    stage.played("fixed").connected.store(true, SeqCst);
    let outcome = apply(&drives, "").expect("the rest is done");
    assert!(outcome.removed.is_empty() && outcome.refused[0].error.contains("has a client"));
    assert_eq!(names(&drives), ["fixed"]);

    drives.create(spec("a")).expect("a free name");
    assert!(apply(&drives, &DECLARED.replace("fixed", "a")).expect_err("a clash").error.contains("`a`"));
    assert_eq!(names(&drives), ["a", "fixed"], "nothing was done");
}

#[test]
fn sizes_given_through_the_api_are_no_difference() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.resize("fixed", 1, Size(2 * MIB), false).expect("there is room");
    assert_eq!(apply(&drives, DECLARED).expect("nothing is wrong"), Reloaded::default());
    let larger = DECLARED.replace("1MiB", "4MiB");
    assert_eq!(apply(&drives, &larger).expect("the rest is done").refused.len(), 1);
    apply(&drives, "").expect("nothing is wrong");
    apply(&drives, DECLARED).expect("nothing is wrong");
    assert_eq!(size(&drives, "fixed"), MIB, "another drive of that name, and nobody gave it a size");
}

#[test]
fn a_declared_drive_that_cannot_be_opened_is_there_and_said_to_fail() {
    let stage = Stage::new();
    let drives = stage.start("");
    lock(&stage.script.refuse_open).push("fixed".into());
    let outcome = apply(&drives, DECLARED).expect("the rest is done");
    assert_eq!((outcome.added, outcome.refused.len()), (vec!["fixed".to_owned()], 1));
    assert_eq!(drives.show("fixed").expect("it is known").state, DriveState::Failed);
}

#[test]
fn a_reload_puts_classifiers_in_the_place_of_others() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let object = |name: &str| {
        let object = stage.folder.path().join(name);
        std::fs::write(&object, name).expect("room on the disk");
        object
    };
    let declared = |name: &str| {
        let classifier = format!("[drive.classifier]\nobject = \"{}\"\n", object(name).display());
        DECLARED.replace("[[drive.namespace]]", &format!("{classifier}[[drive.namespace]]"))
    };
    let attached = || drives.show_classifier("fixed").ok().map(|status| status.object);
    let given = |name: &str| Some(object(name).display().to_string());
    for (config, name) in
        [(declared("a.o"), Some("a.o")), (declared("b.o"), Some("b.o")), (DECLARED.into(), None)]
    {
        let outcome = apply(&drives, &config).expect("nothing is wrong");
        assert_eq!((outcome.classified, outcome.refused), (vec!["fixed".to_owned()], Vec::new()));
        assert_eq!(attached(), name.and_then(given));
        assert_eq!(apply(&drives, &config).expect("nothing is wrong"), Reloaded::default());
    }
    // The classifier attached through the API is older than the file's next change. It does not return when
    // the file has its former text again.
    let spec = serde_json::json!({ "object": object("c.o") });
    let spec = serde_json::from_value(spec).expect("a classifier");
    drives.attach_classifier("fixed", spec).expect("it has none");
    assert_eq!(apply(&drives, DECLARED).expect("nothing is wrong"), Reloaded::default());
    apply(&drives, &declared("a.o")).expect("nothing is wrong");
    assert_eq!(attached(), given("a.o"));
    apply(&drives, DECLARED).expect("nothing is wrong");
    assert_eq!(attached(), None);
}

#[test]
fn a_reload_leaves_a_classifier_whose_successor_is_refused() {
    let stage = Stage::new();
    let declared = |name: &str| {
        let object = stage.folder.path().join(name);
        std::fs::write(&object, name).expect("room on the disk");
        let classifier = format!("[drive.classifier]\nobject = \"{}\"\n", object.display());
        DECLARED.replace("[[drive.namespace]]", &format!("{classifier}[[drive.namespace]]"))
    };
    let drives = stage.start(&declared("a.o"));
    stage.script.refuse_program.store(true, SeqCst);
    let outcome = apply(&drives, &declared("b.o")).expect("the rest is done");
    assert_eq!(outcome.refused[0].error, "drive `fixed`: it is no program");
    assert!(drives.show_classifier("fixed").expect("it is there").object.ends_with("a.o"));
    stage.script.refuse_program.store(false, SeqCst);
    assert_eq!(apply(&drives, &declared("b.o")).expect("nothing is wrong").classified, ["fixed"]);
    // A change of the classifier together with any other change needs a restart.
    let both = declared("a.o").replace("1MiB", "2MiB");
    assert_eq!(apply(&drives, &both).expect("the rest is done").refused.len(), 1);
    assert!(drives.show_classifier("fixed").expect("it is there").object.ends_with("b.o"));
}
