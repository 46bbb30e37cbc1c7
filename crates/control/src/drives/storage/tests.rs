use super::*;
use crate::drives::Origin;
use crate::drives::script::Stage;
use std::path::PathBuf;

fn config(path: &Path, more: &str) -> String {
    format!(
        "[[drive]]\nname = \"a\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n{more}\n",
        path.display()
    )
}

fn uuid(stage: &Stage) -> [u8; 16] {
    let [(1, uuid)] = stage.played("a").remembered.uuids[..] else { panic!("it has one namespace") };
    uuid
}

fn legacy() -> [u8; 16] {
    let text = r#"{"name": "a", "namespaces": [{"target": "null", "size": "1MiB"}]}"#;
    serde_json::from_str::<DriveSpec>(text).expect("a drive").namespace_uuid(1, &[])
}

const SIZED: &str = "size = \"1MiB\"";

#[test]
fn a_file_is_made_once_and_again_by_order_alone() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    drop(stage.start(&config(&path, SIZED)));
    assert!(path.exists(), "it is made");
    let first = uuid(&stage);
    std::fs::remove_file(&path).expect("it is there");
    let drives = stage.start(&config(&path, SIZED));
    let problem = drives.open("a", Insist::default()).expect_err("it is not made anew");
    assert!(!path.exists() && problem.error.contains("has had it open (inode "), "{problem}");
    assert!(problem.hint.is_some_and(|hint| hint.contains("sluice drive open a --make-anew")));
    drives.open("a", Insist { make_anew: true, adopt: false }).expect("the operator insists");
    assert!(path.exists() && uuid(&stage) != first);
    // The next daemon needs no insistence.
    drop(drives);
    let drives = stage.start(&config(&path, SIZED));
    drives.open("a", Insist::default()).expect("it is open");
}

#[test]
fn a_file_without_a_size_is_missed_too() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    std::fs::write(&path, [7; 4096]).expect("room");
    drop(stage.start(&config(&path, "")));
    std::fs::remove_file(&path).expect("it is there");
    let drives = stage.start(&config(&path, ""));
    for make_anew in [false, true] {
        let insist = Insist { make_anew, adopt: false };
        let problem = drives.open("a", insist).expect_err("there is nothing, and no size to make it with");
        assert!(problem.error.contains("has had it open"), "{problem}");
        assert!(problem.hint.is_some_and(|hint| !hint.contains("--make-anew")));
    }
}

#[test]
fn what_an_order_made_before_it_failed_goes_again() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    lock(&stage.script.refuse_open).push("a".to_owned());
    let drives = stage.start(&config(&path, SIZED));
    assert!(!path.exists(), "nothing came of it");
    let text = format!(r#"{{"target": "file", "path": "{}", "size": "1MiB"}}"#, path.display());
    let spec = serde_json::from_str(&format!(r#"{{"name": "b", "namespaces": [{text}]}}"#)).expect("a drive");
    lock(&stage.script.refuse_open).push("b".to_owned());
    drives.create(spec).expect_err("it cannot be opened");
    assert!(!path.exists(), "nothing came of it");
    // A drive whose opens all failed never had the file open.
    std::fs::write(&path, [7; 4096]).expect("room");
    drives.open("a", Insist::default()).expect_err("it cannot be opened");
    std::fs::remove_file(&path).expect("it is there");
    lock(&stage.script.refuse_open).clear();
    drives.open("a", Insist::default()).expect("it was never there, and is made");
    assert!(path.exists());
}

#[test]
fn drives_of_a_daemon_without_such_records_keep_their_identifiers() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    std::fs::write(&path, [7; 4096]).expect("room");
    for _ in 0..2 {
        drop(stage.start(&config(&path, "")));
        assert_eq!(uuid(&stage), legacy());
    }
    // Another file in its place is not the one that the older daemon had open.
    std::fs::write(path.with_extension("new"), [8; 4096]).expect("room");
    std::fs::rename(path.with_extension("new"), &path).expect("room");
    drop(stage.start(&config(&path, "")));
    assert_ne!(uuid(&stage), legacy());
}

#[test]
fn a_drive_that_failed_over_the_upgrade_keeps_its_identifiers() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    let drives = stage.start(&config(&path, ""));
    std::fs::write(&path, [7; 4096]).expect("room");
    drives.end(drives.entry("a").expect("it is declared")).expect("nothing is in the way");
    drop(drives);
    // The records began without the drive.
    let mut saved = Saved::default();
    note_older(std::iter::once(&spec_of(&path)), &mut saved);
    assert_eq!(saved.known_storage("a", &path.display().to_string()).expect("it is noted").label, None);
    let before = saved.clone();
    note_older(std::iter::once(&spec_of(&path)), &mut saved);
    assert_eq!(saved, before, "only once");
}

fn spec_of(path: &Path) -> DriveSpec {
    let text = format!(r#"{{"target": "file", "path": "{}"}}"#, path.display());
    serde_json::from_str(&format!(r#"{{"name": "a", "namespaces": [{text}]}}"#)).expect("a drive")
}

/// Starts a daemon with the drive on this file, and returns the UUID of its namespace.
fn uuid_on(stage: &Stage, path: &Path) -> [u8; 16] {
    drop(stage.start(&config(path, "")));
    uuid(stage)
}

#[test]
fn identifiers_are_those_of_the_file() {
    let stage = Stage::new();
    let at = |name: &str| -> PathBuf { stage.folder.path().join(name) };
    drop(stage.start(&config(&at("a.img"), SIZED)));
    let first = uuid(&stage);
    std::fs::write(at("b.img"), [7; 4096]).expect("room");
    assert_eq!(uuid_on(&stage, &at("a.img")), first);
    let other = uuid_on(&stage, &at("b.img"));
    assert_ne!(other, first);
    assert_eq!(uuid_on(&stage, &at("a.img")), first, "it is back");
    // A file that is renamed keeps its identity.
    std::fs::rename(at("b.img"), at("c.img")).expect("room");
    let moved = uuid_on(&stage, &at("c.img"));
    if look(&at("c.img")).expect("it is there").is_some_and(|found| found.identity.is_some()) {
        assert_eq!(moved, other);
    }
    std::fs::write(at("d.img"), [7; 4096]).expect("room");
    std::fs::rename(at("d.img"), at("a.img")).expect("room");
    let replaced = uuid_on(&stage, &at("a.img"));
    assert!(replaced != first && replaced != other);
}

#[test]
fn what_is_created_anew_is_new_and_so_is_memory() {
    let stage = Stage::new();
    let drives = stage.start("");
    let memory = crate::drives::script::spec("a");
    drives.create(memory.clone()).expect("it is new");
    let first = uuid(&stage);
    drives.delete("a", false).expect("nothing is in the way");
    drives.create(memory).expect("it is new");
    let second = uuid(&stage);
    drop(drives);
    drop(stage.start(""));
    let third = uuid(&stage);
    assert!(first != second && second != third && third != first);
}

#[test]
fn a_set_of_copies_is_the_same_when_a_member_is_another() {
    let stage = Stage::new();
    let at = |name: &str| stage.folder.path().join(name).display().to_string();
    let set = |first: &str| {
        let layer = |name: &str| format!("{{ target = \"file\", path = \"{}\", size = \"1MiB\" }}", at(name));
        let function = format!(
            "functions = [ {{ kind = \"uif\", function = \"mirror\", layers = [ {}, {} ] }} ]\n{SIZED}",
            layer("copy"),
            layer("log")
        );
        config(Path::new(&at(first)), &function)
    };
    drop(stage.start(&set("one")));
    let first = uuid(&stage);
    drop(stage.start(&set("two")));
    assert_eq!(uuid(&stage), first);
    // The log and the copy are created once, too.
    for name in ["copy", "log"] {
        std::fs::rename(at(name), at("away")).expect("it was made");
        let drives = stage.start(&set("two"));
        let problem = drives.open("a", Insist::default()).expect_err("it is missing");
        assert!(problem.error.contains(&at(name)), "{problem}");
        std::fs::rename(at("away"), at(name)).expect("it is there");
        drives.open("a", Insist::default()).expect("it is back");
    }
}

#[test]
fn a_reload_and_a_resize_notice_that_a_path_names_another_file() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    let text = config(&path, SIZED);
    let drives = stage.start(&text);
    let again = crate::config::parse(&text, Path::new("/etc/sluice.toml")).expect("a configuration");
    assert!(drives.apply(&again).expect("nothing is wrong").refused.is_empty());
    std::fs::rename(&path, path.with_extension("away")).expect("it is there");
    let refused = drives.apply(&again).expect("the others go on").refused;
    assert!(refused[0].error.contains("does not exist any more"), "{refused:?}");
    std::fs::write(&path, []).expect("room");
    let refused = drives.apply(&again).expect("the others go on").refused;
    assert!(refused[0].error.contains("names another file"), "{refused:?}");
    let larger = sluice_spec::size::Size(2 << 20);
    let problem = drives.resize("a", 1, larger, false).expect_err("it would be another's size");
    assert!(problem.error.contains("names another file"), "{problem}");
    std::fs::rename(path.with_extension("away"), &path).expect("it is there");
    drives.resize("a", 1, larger, false).expect("it is back");
    assert_eq!(drives.show("a").expect("it is there").origin, Origin::Declared);
}

#[test]
fn a_link_to_a_file_that_is_to_be_made_is_followed() {
    let stage = Stage::new();
    let (link, path) = (stage.folder.path().join("link"), stage.folder.path().join("it.img"));
    std::os::unix::fs::symlink(&path, &link).expect("room");
    drop(stage.start(&config(&link, SIZED)));
    assert!(path.exists() && link.is_symlink());
}

#[test]
fn storage_that_was_served_under_another_state_is_adopted_by_order_alone() {
    let stage = Stage::new();
    let path = stage.folder.path().join("it.img");
    drop(stage.start(&config(&path, SIZED)));
    let first = uuid(&stage);
    if look(&path).expect("it is there").is_none_or(|found| found.identity.is_none()) {
        return eprintln!("skipped: the file system has no extended attributes");
    }
    std::fs::remove_dir_all(stage.state()).expect("it is there");
    for _ in 0..2 {
        let drives = stage.start(&config(&path, SIZED));
        let problem = drives.open("a", Insist::default()).expect_err("its state is elsewhere");
        assert!(problem.error.contains("has been served before"), "{problem}");
        assert!(problem.hint.is_some_and(|hint| hint.contains("--adopt")));
    }
    let drives = stage.start(&config(&path, SIZED));
    drives.open("a", Insist { adopt: true, make_anew: false }).expect("the operator insists");
    assert_eq!(uuid(&stage), first, "it is the same storage");
    drop(drives);
    let drives = stage.start(&config(&path, SIZED));
    assert!(drives.entry("a").expect("it is declared").running.is_ok(), "once is enough");
}
