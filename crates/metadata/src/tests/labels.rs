//! Tests of the fields of labels: their limits, and how they change when a set is formed and opened.

use super::*;

/// Compares the versions of labels, and the members that they list, when a set with an outdated member is opened.
#[test]
fn each_store_of_a_label_is_a_later_version_and_the_latest_list_of_members_counts() {
    let set = Set::labelled(MIRROR, 3);
    let old = std::fs::read(set.path(0)).expect("it is there");
    set.open();
    let new = set.folder.path().join("new");
    std::fs::write(&new, vec![2; MIB as usize]).expect("room");
    let device = Device::claim(&new).expect("it is free");
    let replaced = replace(&device, &set.label(0), Role::Data(1), MIB).expect("there is room");
    drop(device);
    std::fs::rename(&new, set.path(1)).expect("one folder");
    assert_eq!(set.open().stale, [false, true, false, false]);
    assert_ne!(set.label(1).member, replaced.member, "an outdated member is new storage");
    // The member and the log may both be older than others.
    let before: Vec<Label> = (0..4).map(|index| set.label(index)).collect();
    std::fs::write(set.path(0), &old).expect("room");
    let outdated = set.label(0);
    assert_eq!(set.open().stale, [true, false, false, false]);
    for index in 0..4 {
        let label = set.label(index);
        let former = if index == 0 { &outdated } else { &before[index] };
        // Other members announce the epoch first.
        let stores = if index == 0 { 1 } else { 2 };
        assert_eq!(label.sequence, former.sequence + stores, "{index}");
        assert_eq!((label.epoch, label.next_epoch), (before[1].epoch + 1, 0));
        assert_eq!((&label.members[1..], label.log), (&before[1].members[1..], before[1].log), "{index}");
        assert_eq!(label.members[0], set.label(0).member);
        assert_eq!(label.member == former.member, index != 0);
    }
    assert_eq!(set.open().stale, [false; 4]);
}

/// Forms a set of members that have labels already, with as much data, less and more.
#[test]
fn a_label_that_is_made_again_is_later_and_lies_behind_the_data() {
    for (data_bytes, is_same) in
        [(MIB, true), (MIB - UNIT, false), (MIB + AREA_BYTES, false), (4 * MIB, false)]
    {
        let set = Set::labelled(STRIPE, 2);
        let (former, before) = (set.label(0), set.bytes());
        let devices = set.devices();
        let member = |(device, role): (_, &Role)| Member { device, role: *role, data_bytes, storage: 0 };
        let wanted: Vec<_> = devices.iter().zip(&set.roles).map(member).collect();
        form(&set.shape, &wanted).expect("there is room");
        let label = set.label(0);
        assert_eq!((label.sequence, label.epoch, label.next_epoch), (former.sequence + 2, 1, 0));
        assert_ne!(label.set, former.set);
        // With another size the former label may be data.
        let length =
            if is_same { former.device_bytes } else { former.device_bytes.max(data_bytes) + AREA_BYTES };
        assert_eq!((label.device_bytes, label.data_bytes), (length, data_bytes));
        let kept = if is_same { MIB as usize } else { before[0].len() };
        assert!(set.bytes()[0][..kept] == before[0][..kept]);
    }
}

/// Compares the limits of each field with a label that just keeps them, and one that does not.
#[test]
fn a_label_beyond_a_limit_is_broken() {
    let (stripe, mirror) = (Set::labelled(STRIPE, 2).label(1), Set::labelled(MIRROR, 2).label(0));
    let log = Label { role: Role::Log, member: mirror.log, ..mirror.clone() };
    let is_valid = |label: &Label, change: &dyn Fn(&mut Label)| {
        let mut changed = label.clone();
        change(&mut changed);
        match Label::decode(&changed.encode()) {
            Copy::Valid(found) => *found == changed,
            Copy::Broken => false,
            other => panic!("{other:?}"),
        }
    };
    let limit = 1 << 62;
    let both = |number: u64| move |label: &mut Label| (label.epoch, label.next_epoch) = (number, 0);
    for label in [&stripe, &mirror, &log] {
        let check = |is: bool, change: &dyn Fn(&mut Label)| {
            assert_eq!(is_valid(label, change), is, "{label:?}");
        };
        check(true, &|_| ());
        check(true, &|label| label.sequence = limit);
        check(false, &|label| label.sequence = limit + 1);
        check(true, &both(limit));
        check(false, &both(limit + 1));
        check(true, &|label| label.next_epoch = label.epoch + 1);
        check(false, &|label| label.next_epoch = label.epoch + 2);
        check(false, &|label| label.next_epoch = label.epoch);
        check(false, &|label| label.data_bytes = 0);
        check(true, &|label| label.data_bytes = label.device_bytes - AREA_BYTES);
        check(false, &|label| label.data_bytes = label.device_bytes - AREA_BYTES + 1);
        check(false, &|label| label.data_bytes = u64::MAX - AREA_BYTES + 1);
        check(false, &|label| label.data_offset = 512);
        check(true, &|label| label.device_bytes = i64::MAX as u64 / UNIT * UNIT);
        check(false, &|label| label.device_bytes = 1 << 63);
        check(false, &|label| label.device_bytes += 512);
        check(false, &|label| label.set = Uuid::NIL);
        check(false, &|label| label.member = Uuid::NIL);
        check(false, &|label| label.members.clear());
        check(false, &|label| label.members.resize(MEMBERS_MAX + 1, label.set));
        check(true, &|label| label.members.resize(MEMBERS_MAX, label.set));
    }
    for chunk in [0, 512, UNIT - 1, UNIT, UNIT + 512, 2 * UNIT] {
        let is_chunk = chunk > 0 && chunk % UNIT == 0;
        assert_eq!(is_valid(&stripe, &|label| label.chunk = chunk), is_chunk, "{chunk}");
        assert_eq!(is_valid(&mirror, &|label| label.chunk = chunk), chunk == 0, "{chunk}");
    }
    assert!(!is_valid(&stripe, &|label| label.log = label.set), "only redundant sets have logs");
    assert!(!is_valid(&mirror, &|label| label.log = Uuid::NIL), "all redundant sets have logs");
    assert!(!is_valid(&stripe, &|label| label.role = Role::Data(0)), "the place of another member");
    assert!(!is_valid(&stripe, &|label| label.role = Role::Data(2)), "no such place");
    let both = Label { features: [0, 12, 10], ..stripe };
    assert_eq!(Label::decode(&both.encode()), Copy::Unsupported(Unsupported::Features(14)));
}

#[test]
fn only_zeros_are_blank() {
    let mut bytes = vec![0; LABEL_BYTES];
    assert_eq!(Label::decode(&bytes), Copy::Blank);
    for at in [0, 8, LABEL_BYTES - 1] {
        bytes[at] = 1;
        assert_eq!(Label::decode(&bytes), Copy::Foreign);
        bytes[at] = 0;
    }
    assert_eq!(Label::decode(&vec![1; LABEL_BYTES]), Copy::Foreign);
}

#[test]
fn names_are_those_of_the_configuration() {
    for name in ["stripe", "concat", "mirror", "replicate", "parity"] {
        assert_eq!(SetKind::named(name).map(SetKind::name), Some(name));
    }
    assert_eq!(SetKind::named("none"), None);
    assert_eq!(
        (Role::Data(3).to_string(), Role::Log.to_string()),
        ("member 3".to_owned(), "the log".to_owned())
    );
    let words =
        [Unsupported::Version(2), Unsupported::Features(20), Unsupported::Kind(9)].map(|it| it.to_string());
    assert_eq!(words, ["version 2", "the features 0x14", "a set of kind 9"]);
}

#[test]
fn random_uuids_have_version_4_and_122_random_bits() {
    let mut ever = ([0xffu8; 16], [0u8; 16]);
    for _ in 0..200 {
        let uuid = Uuid::random().expect("the kernel has some");
        for (at, byte) in uuid.0.into_iter().enumerate() {
            (ever.0[at], ever.1[at]) = (ever.0[at] & byte, ever.1[at] | byte);
        }
    }
    let (mut always, mut never) = ([0u8; 16], [0xffu8; 16]);
    (always[6], never[6], always[8], never[8]) = (0x40, 0x4f, 0x80, 0xbf);
    assert_eq!(ever, (always, never));
    let uuid = Uuid(*b"\x00\x01\x02\x03\x04\x05\x46\x07\x88\x09\x0a\x0b\x0c\x0d\x0e\xff");
    assert_eq!(uuid.to_string(), "00010203-0405-4607-8809-0a0b0c0d0eff");
    assert!(format!("{uuid:?}").contains("0405-4607"));
}

/// Compares places that cannot be examined with those where there is no file yet.
#[test]
fn only_a_place_without_a_file_is_fresh() {
    let set = Set::new(STRIPE, 1);
    let look = |path: &Path| Place::look(path, Role::Data(0), None);
    let missing = look(&set.path(7)).expect("it can be made");
    assert!(missing.is_fresh && missing.bytes == 0);
    assert!(!look(&set.path(0)).expect("a file").is_fresh);
    let failed = look(&set.path(0).join("below")).expect_err("a file is no folder");
    assert!(matches!(failed, Error::Io(_, "examine", _)), "{failed:?}");
    assert!(matches!(look(set.folder.path()), Err(Error::NotStorage(_))));
}

#[test]
fn a_refusal_names_the_chunks_of_a_stripe_and_a_newer_member_of_a_mirror() {
    let mut set = Set::labelled(STRIPE, 2);
    set.shape = MIRROR;
    let words = set.refused();
    let both = ["is a stripe of 2 members with chunks of 65536 bytes;", "has a mirror of 2 members"];
    assert!(words.contains(both[0]) && words.ends_with(both[1]), "{words}");
    let set = Set::labelled(STRIPE, 2);
    std::fs::copy(set.path(1), set.path(9)).expect("room");
    set.open();
    std::fs::copy(set.path(9), set.path(1)).expect("room");
    let words = set.refused();
    assert!(words.contains("has epoch 1") && !words.contains(" now"), "{words}");
}
