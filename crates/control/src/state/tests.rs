use super::*;
use sluice_controller::{PersistentEventRecord, ReservationRecord};
use sluice_spec::AnaStateName;

fn drive(name: &str) -> DriveSpec {
    let text = format!(r#"{{"name": "{name}", "namespaces": [{{"target": "null", "size": "1MiB"}}]}}"#);
    serde_json::from_str(&text).expect("a spec")
}

fn saved(names: &[&str]) -> Saved {
    let resized = Resized { drive: "declared".into(), nsid: 1, declared: Some(Size(512)), size: Size(1024) };
    let classified = Classified { drive: "declared".into(), declared: None, classifier: None };
    let spec = serde_json::json!({ "object": "/a.o" });
    let detached = Detached {
        drive: "declared".into(),
        classifier: serde_json::from_value(spec).expect("a classifier"),
        digest: "0123456789abcdef".into(),
        namespaces: vec![1],
    };
    Saved {
        drives: names.iter().map(|name| drive(name)).collect(),
        resized: vec![resized],
        classified: vec![classified],
        arranged: vec![Arranged {
            drive: "declared".into(),
            nsid: 1,
            declared: Layout::default(),
            layout: drive("declared").namespaces[0].layout(),
        }],
        limited: vec![Limited {
            drive: "declared".into(),
            nsid: 1,
            number: 1,
            declared: QosLimits::default(),
            limits: QosLimits { iops: Some(1), ..QosLimits::default() },
        }],
        groups: vec![SavedGroup { name: "gold".into(), declared: None, limits: QosLimits::default() }],
        grown: vec![GrownPool { name: "thin".into(), path: "/srv/pool.img".into(), size: Size(1 << 30) }],
        detached: vec![detached],
        uncorrectable: vec![Uncorrectable { drive: "declared".into(), nsid: 1, ranges: vec![[0, 512]] }],
        formatting: vec![Formatting {
            drive: "declared".into(),
            nsid: 2,
            block_size: 512,
            targets: vec!["file /srv/a.img".into()],
        }],
        sanitized: vec![Sanitized {
            drive: "declared".into(),
            cdw10: 2,
            pattern: 0,
            state: SanitizedState::Running,
            targets: Vec::new(),
        }],
        formatted: vec![Formatted { drive: "declared".into(), nsid: 1, declared: 512, block_size: 4096 }],
        reserved: vec![reserved()],
        pools: vec![pooled()],
        storage: Some(storage()),
        hosted: ["declared".to_owned()].into(),
        paused: ["declared:1:1:resync".to_owned()].into(),
        replaced: vec![Replaced {
            drive: "declared".into(),
            nsid: 1,
            declared: TargetSpec::file("/a".into()),
            target: TargetSpec::file("/b".into()),
        }],
        applying: Some(Box::new(Applying {
            names: ["declared".to_owned()].into(),
            missing: vec!["/b".into()],
            drives: vec![drive("other")],
            ..Applying::default()
        })),
        paused_targets: vec![PausedTarget { drive: "declared".into(), nsid: 1, fail_after_s: Some(60) }],
        ana: vec![Access { drive: "declared".into(), states: vec![access()] }],
    }
}

/// Checks that the state of a daemon which stored no pauses is read.
#[test]
fn a_state_without_pauses_is_read() {
    let mut stored = serde_json::to_value(saved(&["a"])).expect("JSON");
    let paused = stored.as_object_mut().and_then(|fields| fields.remove("paused"));
    assert_eq!(paused, Some(serde_json::json!(["declared:1:1:resync"])));
    let read: Saved = serde_json::from_value(stored).expect("a state");
    assert_eq!(read, Saved { paused: BTreeSet::new(), ..saved(&["a"]) });
    assert!(!serde_json::to_string(&read).expect("JSON").contains("\"paused\""), "an older daemon reads it");
}

/// Checks that a daemon without limits reads the state, as long as none are stored.
#[test]
fn a_state_without_limits_has_no_key_for_them() {
    let without = Saved { limited: Vec::new(), groups: Vec::new(), ..saved(&["a"]) };
    let stored = serde_json::to_value(&without).expect("JSON");
    let has = |key| stored.get(key).is_some();
    assert!(!has("limited") && !has("groups"), "{stored}");
    assert_eq!(serde_json::from_value::<Saved>(stored).expect("a state"), without);
}

/// Checks the key of a changed layout in the state file, which earlier daemons wrote.
#[test]
fn a_changed_layout_is_stored_under_the_key_of_before() {
    let arranged = serde_json::to_value(saved(&[]).arranged).expect("JSON");
    assert!(arranged[0]["arrangement"]["functions"].is_array(), "{arranged}");
    assert_eq!(serde_json::from_value::<Vec<Arranged>>(arranged).expect("a record"), saved(&[]).arranged);
}

fn storage() -> Storage {
    let known = KnownStorage {
        drive: "declared".into(),
        location: "/a.img".into(),
        label: Some("inode 12".into()),
        device: Some("8:1".into()),
        identity: None,
    };
    let identified =
        Identified { drive: "declared".into(), nsid: 1, identities: vec!["00ff".into()], replaced_by: None };
    Storage { began_empty: true, known: vec![known], identified: vec![identified] }
}

fn pooled() -> Pooled {
    let created = Created {
        nsid: 2,
        number: 7,
        file: Some("namespace-2-7.img".into()),
        size: Size(8192),
        block_size: 512,
        shared: true,
        ana_group: 1,
        identity: None,
    };
    let attached = Attached { nsid: 2, to_others: false, listed: vec!["socket 1".into()] };
    let leaving = vec!["namespace-2-6.img".into()];
    Pooled { drive: "declared".into(), numbers: 7, created: vec![created], attached: vec![attached], leaving }
}

fn access() -> AnaSpec {
    AnaSpec { port: Some("10.0.0.1:4420".into()), group: None, state: AnaStateName::Inaccessible }
}

fn reserved() -> Reserved {
    let of = |host: &str, name: &str, key, holds| SavedRegistrant {
        host: host.into(),
        name: name.into(),
        key,
        holds,
    };
    Reserved {
        drive: "declared".into(),
        nsid: 1,
        registrants: vec![
            of("0123456789abcdef", "socket 2", 7, true),
            of("0123456789abcdef0123456789abcdef", "nqn.2026-01.test:a", u64::MAX, false),
            of("0123456789abcdef0123456789abcdee", "", 8, false),
        ],
        rtype: 1,
    }
}

#[test]
fn reservations_are_what_they_were_and_nothing_that_cannot_be() {
    let record = reserved().record();
    assert_eq!(Reserved::of("declared", 1, &record), reserved());
    let none = Reserved { registrants: vec![], rtype: 0, ..reserved() };
    assert_eq!(none.record(), ReservationRecord::default());
    let strange =
        |host: &str| SavedRegistrant { host: host.into(), name: String::new(), key: 1, holds: true };
    let registrants = ["", "xyz", "0123", "0000000000000000"].map(strange).to_vec();
    let record = Reserved { registrants, rtype: 9, ..reserved() }.record();
    assert_eq!((record.registrants, record.reservation), (vec![], None));
}

#[test]
fn what_is_stored_is_loaded_by_the_next_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("not/there/yet");
    let file = StateFile::open(&place).expect("a new folder");
    assert_eq!(file.load(), Ok(Saved::default()));
    for names in [&["a"][..], &["a", "b"], &[]] {
        file.store(&saved(names)).expect("room on the disk");
        assert_eq!(file.load(), Ok(saved(names)));
    }
    let problem = StateFile::open(&place).expect_err("one daemon for a folder");
    assert!(problem.error.contains("is in use by process"), "{problem}");
    drop(file);
    assert_eq!(StateFile::open(&place).and_then(|file| file.load()), Ok(saved(&[])));
}

#[test]
fn every_torn_file_is_refused_and_the_previous_version_offered() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = StateFile::open(folder.path()).expect("a folder");
    file.store(&saved(&["a"])).expect("room on the disk");
    file.store(&saved(&["a", "b"])).expect("room on the disk");
    let whole = std::fs::read(file.current()).expect("the file is there");
    for length in 0..whole.len() {
        std::fs::write(file.current(), &whole[..length]).expect("room on the disk");
        let problem = file.load().expect_err("a torn file");
        let hint = problem.hint.expect("what to do");
        assert!(hint.contains("whole (1 created drives)"), "{length}: {hint}");
    }
    std::fs::rename(file.previous(), file.current()).expect("as the hint says");
    assert_eq!(file.load(), Ok(saved(&["a"])));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let whole = text::encode(&saved(&["a"]));
    assert_eq!(text::decode(&whole), Ok(saved(&["a"])));
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // A hexadecimal digit has the same value in both cases.
        if !bytes.eq_ignore_ascii_case(&whole) {
            assert!(text::decode(&bytes).is_err(), "bit {bit}");
        }
    }
    assert!(text::decode(&[&whole[..], b"x"].concat()).is_err(), "something follows");
}

#[test]
fn a_newer_version_is_not_misread() {
    let text = String::from_utf8(text::encode(&saved(&[]))).expect("text");
    let newer = text.replacen("sluice-state 2 ", "sluice-state 3 ", 1);
    let why = text::decode(newer.as_bytes()).expect_err("from the future");
    assert!(why.contains("version 3"), "{why}");
}

#[test]
fn a_missing_file_with_a_previous_version_is_not_an_empty_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = StateFile::open(folder.path()).expect("a folder");
    file.store(&saved(&["a"])).expect("room on the disk");
    file.store(&saved(&[])).expect("room on the disk");
    std::fs::remove_file(file.current()).expect("it was there");
    let problem = file.load().expect_err("somebody took it away");
    assert!(problem.error.contains("it is missing"), "{problem}");
}

#[test]
fn what_an_interrupted_store_leaves_is_harmless() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = StateFile::open(folder.path()).expect("a folder");
    file.store(&saved(&["a"])).expect("room on the disk");
    std::fs::write(folder.path().join("drives.state.new"), "half").expect("room on the disk");
    std::fs::write(folder.path().join("drives.state.spare"), "half").expect("room on the disk");
    assert_eq!(file.load(), Ok(saved(&["a"])));
    file.store(&saved(&["b"])).expect("leftovers are no obstacle");
    assert_eq!(file.load(), Ok(saved(&["b"])));
    assert_eq!(read(&file.previous()).map(|bytes| text::decode(&bytes)).expect("kept"), Ok(saved(&["a"])));
}

#[test]
fn a_store_that_fails_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = StateFile::open(folder.path()).expect("a folder");
    file.store(&saved(&["a"])).expect("room on the disk");
    // A folder has the name of the new version; not even root can write a file over it.
    std::fs::create_dir(folder.path().join("drives.state.new")).expect("room on the disk");
    let problem = file.store(&saved(&["b"])).expect_err("a folder is in the way");
    assert!(problem.hint.is_some_and(|hint| hint.starts_with("nothing was changed")));
    assert_eq!(file.load(), Ok(saved(&["a"])));
}

#[test]
fn what_could_not_be_read_again_is_not_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = StateFile::open(folder.path()).expect("a folder");
    file.store(&saved(&["a"])).expect("room on the disk");
    let long = "x".repeat(BYTES_MAX as usize);
    let problem = file.store(&saved(&[&long])).expect_err("more than is read");
    assert!(problem.hint.is_some_and(|hint| hint.starts_with("nothing was changed")));
    assert_eq!(file.load(), Ok(saved(&["a"])));
}

#[test]
fn nobody_else_reads_what_is_stored() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let file = StateFile::open(folder.path()).expect("a folder");
    file.store(&saved(&["a"])).expect("room on the disk");
    let mode = std::fs::metadata(file.current()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Covers the same folder, reached through a symbolic link.
#[test]
fn copies_in_use_are_kept_whatever_their_folder_is_called() {
    let folder = tempfile::tempdir().expect("a folder");
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    std::fs::create_dir(&real).expect("a folder");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let original = folder.path().join("a.o");
    std::fs::write(&original, b"object").expect("room on the disk");
    let keep = |file: StateFile| file.keep_object(&original).map(KeptObject::into_path);
    let copy = StateFile::open(&real).and_then(keep).expect("a copy");
    let mut now = saved(&["a"]);
    now.drives[0].classifier = serde_json::from_value(serde_json::json!({ "object": copy })).ok();
    assert!(now.drives[0].classifier.is_some());
    let file = StateFile::open(&link).expect("the same folder");
    std::fs::write(real.join("objects/unused-0123456789abcdef.o"), b"object").expect("room on the disk");
    file.sweep(|| now.clone());
    let left: Vec<_> = std::fs::read_dir(real.join("objects")).expect("a folder").collect();
    assert!(copy.exists() && left.len() == 1, "{left:?}");
    // An apply may go back to a state from before with the copy.
    let names = ["a".to_owned()].into();
    let applying = Some(Box::new(Applying::of(&now, names, Vec::new())));
    file.sweep(|| Saved { applying, ..Saved::default() });
    assert!(copy.exists());
    file.sweep(Saved::default);
    assert!(!copy.exists());
}

#[test]
fn what_happened_to_a_drive_is_loaded_until_the_drive_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = StateFile::open(folder.path()).expect("a new folder");
    assert_eq!(state.load_history("a"), PersistentEventRecord::default());
    // An event without data.
    let mut event = [0; 24];
    event[..3].copy_from_slice(&[4, 1, 21]);
    let record = PersistentEventRecord::new(event.repeat(3)).expect("a history");
    state.store_history("a", &record).expect("room on the disk");
    assert_eq!(state.load_history("a"), record);
    assert_eq!(state.load_history("b"), PersistentEventRecord::default());
    state.forget_history("a");
    assert_eq!(state.load_history("a"), PersistentEventRecord::default());
    state.forget_history("a");
}
