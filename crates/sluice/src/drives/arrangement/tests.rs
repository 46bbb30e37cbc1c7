use super::super::script::{Stage, spec};
use super::*;
use crate::problem::Kind;
use crate::spec::FunctionSpec;
use std::sync::atomic::Ordering::SeqCst;

/// A drive with a function that has another below it, and one on a further path.
const DECLARED: &str = "[[drive]]\nname = \"fixed\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
    functions = [ { kind = \"pass\" }, { kind = \"uif\", function = \"replicate\", layers = [\
    { target = \"null\", size = \"1MiB\", functions = [ { kind = \"uif\", function = \"encrypt\" } ] } ] } ]\n\
    paths = [ { name = \"other\", target = \"null\", functions = [ { kind = \"uif\", function = \"pass\" } ] } ]\n\
    [[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
    functions = [ { kind = \"uif\", function = \"snapshot\" } ]\n";

/// The functions of a drive in the order of their numbers, and where they are.
fn places(drives: &Drives, name: &str) -> Vec<(String, Place)> {
    let mut spec = drives.entry(name).expect("it is there").spec;
    let place = |number| spec.uif_mut(number).map(|(_, uif)| (uif.about(), uif.place));
    (1..).map_while(place).collect()
}

fn moved(drives: &Drives, name: &str) -> Vec<usize> {
    let in_daemon = |(_, (_, place)): &(usize, (String, Place))| *place == Place::Daemon;
    (1..).zip(places(drives, name)).filter(in_daemon).map(|(number, _)| number).collect()
}

#[test]
fn functions_are_counted_as_they_are_listed() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let names: Vec<String> = places(&drives, "fixed").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["replicate", "encrypt", "pass", "snapshot"]);
    for number in 1..=4 {
        drives.move_function("fixed", number, Place::Daemon).expect("it is elsewhere");
        assert_eq!(moved(&drives, "fixed"), (1..=number).collect::<Vec<_>>());
    }
    let refused =
        |number, place| drives.move_function("fixed", number, place).expect_err("it cannot be").kind;
    assert_eq!(refused(0, Place::Process), Kind::NotFound);
    assert_eq!(refused(5, Place::Process), Kind::NotFound);
    assert_eq!(refused(4, Place::Daemon), Kind::Conflict);
}

#[test]
fn what_was_moved_stays_where_it_is_until_the_file_has_a_newer_word() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    let mut made = spec("made");
    let pass = serde_json::json!({ "kind": "uif", "function": "pass" });
    made.namespaces[0].functions = vec![serde_json::from_value::<FunctionSpec>(pass).expect("a function")];
    drives.create(made).expect("a free name");
    drives.move_function("made", 1, Place::Daemon).expect("it is elsewhere");
    drives.move_function("fixed", 3, Place::Daemon).expect("it is elsewhere");
    drives.move_function("fixed", 4, Place::Daemon).expect("it is elsewhere");
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!((moved(&drives, "made"), moved(&drives, "fixed")), (vec![1], vec![3, 4]));
    drop(drives);
    // Of the second namespace.
    let changed = DECLARED.replace("\"snapshot\"", "\"snapshot\", deadline_ms = 1");
    let drives = stage.start(&changed);
    assert_eq!(moved(&drives, "fixed"), [3]);
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!(moved(&drives, "fixed"), [3], "the older word is forgotten");
    drives.move_function("fixed", 3, Place::Process).expect("it is elsewhere");
    assert!(lock(&drives.saved).arranged.is_empty(), "all is as the file has it");
}

#[test]
fn a_move_that_fails_or_cannot_be_stored_is_none() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    stage.script.refuse_move.store(true, SeqCst);
    let problem = drives.move_function("fixed", 1, Place::Daemon).expect_err("it stays");
    assert_eq!(problem.error, "it does not leave");
    assert!(moved(&drives, "fixed").is_empty());
    drop(drives);
    let drives = stage.start(DECLARED);
    assert!(moved(&drives, "fixed").is_empty());
    stage.script.refuse_move.store(false, SeqCst);
    stage.break_disk();
    drives.move_function("fixed", 1, Place::Daemon).expect_err("it would be forgotten");
    assert!(moved(&drives, "fixed").is_empty());
}
