use super::super::lock;
use super::super::script::{Stage, spec};
use super::*;
use sluice_spec::FunctionSpec;
use sluice_spec::error::Kind;
use std::sync::atomic::Ordering::SeqCst;

/// A drive with a function that has another one below it, and with a function on a further path.
const DECLARED: &str = "[[drive]]\nname = \"fixed\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
    functions = [ { kind = \"pass\" }, { kind = \"uif\", function = \"replicate\", layers = [\
    { target = \"null\", size = \"1MiB\", functions = [ { kind = \"uif\", function = \"encrypt\" } ] } ] } ]\n\
    paths = [ { name = \"other\", target = \"null\", functions = [ { kind = \"uif\", function = \"pass\" } ] } ]\n\
    [[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
    functions = [ { kind = \"uif\", function = \"snapshot\" } ]\n";

/// Returns the functions of a drive in the order of their numbers, each with its place.
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
    // Only the second namespace changes.
    let changed = DECLARED.replace("\"snapshot\"", "\"snapshot\", deadline_ms = 1");
    let drives = stage.start(&changed);
    assert_eq!(moved(&drives, "fixed"), [3]);
    drop(drives);
    let drives = stage.start(DECLARED);
    assert_eq!(moved(&drives, "fixed"), [3], "the older word is forgotten");
    drives.move_function("fixed", 3, Place::Process).expect("it is elsewhere");
    assert!(lock(&drives.saved).arranged.is_empty(), "all is as the file has it");
}

/// Covers a reload of an edited file that matches the functions as they are.
#[test]
fn what_is_moved_after_the_file_was_read_again_is_newer_than_the_file() {
    let stage = Stage::new();
    let drives = stage.start(DECLARED);
    drives.move_function("fixed", 4, Place::Daemon).expect("it is elsewhere");
    let edited = DECLARED.replace("\"snapshot\"", "\"snapshot\", place = \"daemon\"");
    let config = crate::config::parse(&edited, std::path::Path::new("/etc/sluice.toml")).expect("it is one");
    assert!(drives.apply(&config).expect("nothing is wrong").refused.is_empty());
    drives.move_function("fixed", 4, Place::Process).expect("it is elsewhere");
    drop(drives);
    assert!(moved(&stage.start(&edited), "fixed").is_empty());
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

const STACKED: &str = "[[drive]]\nname = \"fixed\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
    functions = [ { kind = \"delay\" }, { kind = \"uif\", function = \"pass\" }, { kind = \"pass\" } ]\n\
    paths = [ { name = \"one\", below = 1 }, { name = \"all\", below = 3 } ]\n";

/// Returns the functions of a drive from the top, and the number of functions that each of its paths
/// bypasses.
fn stack(drives: &Drives) -> (Vec<String>, Vec<usize>) {
    let spec = drives.entry("fixed").expect("it is there").spec;
    let name = |function: &FunctionSpec| match function {
        FunctionSpec::Uif(uif) => format!("uif {}", uif.about()),
        other => other.name(),
    };
    let namespace = &spec.namespaces[0];
    let below = namespace.paths.iter().filter_map(|path| path.below).collect();
    (namespace.functions.iter().map(name).collect(), below)
}

fn encrypt() -> UifSpec {
    UifSpec { function: Some("encrypt".to_owned()), ..UifSpec::default() }
}

#[test]
fn functions_come_and_go_and_paths_enter_what_they_entered() {
    let stage = Stage::new();
    let drives = stage.start(STACKED);
    drives.attach_function("fixed", 1, 1, encrypt()).expect("there is a place");
    let attached = (["delay", "uif encrypt", "uif pass", "pass"].map(str::to_owned).to_vec(), vec![2, 4]);
    assert_eq!(stack(&drives), attached);
    drop(drives);
    let drives = stage.start(STACKED);
    assert_eq!(stack(&drives), attached, "it is remembered");
    drives.detach_function("fixed", 2).expect("it stands in the stack");
    assert_eq!(stack(&drives), (["delay", "uif encrypt", "pass"].map(str::to_owned).to_vec(), vec![2, 3]));
    drives.detach_function("fixed", 1).expect("it stands in the stack");
    assert_eq!(stack(&drives), (["delay", "pass"].map(str::to_owned).to_vec(), vec![1, 2]));
    drives.attach_function("fixed", 1, 0, encrypt()).expect("there is a place");
    assert_eq!(stack(&drives), (["uif encrypt", "delay", "pass"].map(str::to_owned).to_vec(), vec![2, 3]));
}

#[test]
fn what_cannot_be_attached_or_detached_is_left() {
    let stage = Stage::new();
    let drives = stage.start(&format!("{STACKED}{}", DECLARED.replace("fixed", "nested")));
    let before = stack(&drives);
    let attach =
        |nsid, below, uif| drives.attach_function("fixed", nsid, below, uif).expect_err("it cannot be");
    assert_eq!(attach(2, 0, encrypt()).kind, Kind::NotFound);
    assert_eq!(
        attach(1, 4, encrypt()).hint.expect("what to do"),
        "below = 0 is over all of them, and below = 3 under all"
    );
    let unknown = UifSpec { function: Some("encript".to_owned()), ..UifSpec::default() };
    assert!(attach(1, 0, unknown).hint.expect("what to do").contains("`encrypt`"));
    let detach = |name: &str, number| drives.detach_function(name, number).expect_err("it cannot be").kind;
    assert_eq!(detach("fixed", 2), Kind::NotFound);
    // The first function is below another one, the second is on a path.
    assert_eq!([detach("nested", 2), detach("nested", 3)], [Kind::Conflict; 2]);
    stage.script.refuse_move.store(true, SeqCst);
    assert_eq!([detach("fixed", 1), attach(1, 0, encrypt()).kind], [Kind::Conflict; 2]);
    assert_eq!(stack(&drives), before);
    drop(drives);
    stage.script.refuse_move.store(false, SeqCst);
    assert_eq!(stack(&stage.start(STACKED)), before, "nor is it remembered");
}

#[test]
fn a_path_that_would_pass_by_nothing_keeps_its_function() {
    let stage = Stage::new();
    let drives =
        stage.start(&STACKED.replace("{ kind = \"delay\" }, ", "").replace("below = 3", "below = 2"));
    let problem = drives.detach_function("fixed", 1).expect_err("a path needs it");
    assert!(problem.error.contains("the path `one` passes by this function"), "{problem}");
}

/// Covers a disk that fails after the move is stored and before its refusal is stored.
#[test]
fn a_move_that_is_refused_is_not_made_by_a_restart_also_if_nothing_can_be_stored_any_more() {
    for other_stores in [false, true] {
        let stage = Stage::new();
        let drives = stage.start(DECLARED);
        drives.move_function("fixed", 1, Place::Daemon).expect("it is elsewhere");
        stage.script.refuse_move.store(true, SeqCst);
        *lock(&stage.script.break_at_move) = Some(stage.state().join("drives.state.new"));
        drives.move_function("fixed", 4, Place::Daemon).expect_err("it does not leave");
        assert_eq!(moved(&drives, "fixed"), [1]);
        if other_stores {
            drives.create(spec("late")).expect_err("nothing can be stored");
        }
        drop(drives);
        std::fs::remove_dir(stage.state().join("drives.state.new")).expect("it was made");
        let drives = stage.start(DECLARED);
        assert_eq!(moved(&drives, "fixed"), [1]);
        assert!(drives.show("late").is_err(), "it was refused");
    }
}
