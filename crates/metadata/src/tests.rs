use crate::*;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

mod labels;

const MIB: u64 = 1 << 20;
const STRIPE: Shape = Shape { kind: SetKind::Stripe, chunk: 65536 };
const MIRROR: Shape = Shape { kind: SetKind::Mirror, chunk: 0 };

/// Files of a set.
struct Set {
    folder: TempDir,
    shape: Shape,
    roles: Vec<Role>,
}

impl Set {
    fn new(shape: Shape, members: usize) -> Self {
        let mut roles: Vec<Role> = (0..members).map(Role::Data).collect();
        roles.extend(shape.kind.is_redundant().then_some(Role::Log));
        let set = Self { folder: tempfile::tempdir().expect("a folder"), shape, roles };
        for index in 0..set.roles.len() {
            std::fs::write(set.path(index), vec![(index as u8).wrapping_add(1); MIB as usize]).expect("room");
        }
        set
    }

    fn labelled(shape: Shape, members: usize) -> Self {
        let set = Self::new(shape, members);
        let devices = set.devices();
        let member = |(device, role): (_, &Role)| Member { device, role: *role, data_bytes: MIB, storage: 7 };
        let wanted: Vec<_> = devices.iter().zip(&set.roles).map(member).collect();
        form(&set.shape, &wanted).expect("there is room");
        set
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    fn devices(&self) -> Vec<Device> {
        (0..self.roles.len()).map(|index| Device::claim(&self.path(index)).expect("it is free")).collect()
    }

    fn judge_with(&self, size: Option<u64>) -> Result<Verdict, Refusal> {
        let look =
            |(index, role): (usize, &Role)| Place::look(&self.path(index), *role, size).expect("readable");
        judge(&self.shape, &self.roles.iter().enumerate().map(look).collect::<Vec<_>>())
    }

    fn judge(&self) -> Result<Verdict, Refusal> {
        self.judge_with(Some(MIB))
    }

    fn assembly(&self) -> Assembly {
        match self.judge() {
            Ok(Verdict::Labelled(assembly)) => assembly,
            other => panic!("{other:?}"),
        }
    }

    /// Opens the set as a daemon does.
    fn open(&self) -> Assembly {
        let mut assembly = self.assembly();
        let stale = assembly.stale.clone();
        raise(&mut assembly, &self.devices()).expect("nothing is wrong");
        assert!(!assembly.stale.contains(&true), "none is any more");
        Assembly { stale, ..assembly }
    }

    fn refused(&self) -> String {
        let before = self.bytes();
        let refusal = self.judge().expect_err("it is wrong");
        assert!(self.bytes() == before, "nothing is written");
        refusal.error
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        (0..self.roles.len()).map(|index| std::fs::read(self.path(index)).expect("it is there")).collect()
    }

    fn label(&self, index: usize) -> Label {
        label_of(&self.path(index))
    }
}

fn label_of(path: &Path) -> Label {
    match Device::open(path).and_then(|device| device.found()).expect("readable") {
        Found::Label(label) => *label,
        other => panic!("{other:?}"),
    }
}

fn uuids(words: &str, wanted: &[Uuid]) {
    for uuid in wanted {
        assert!(words.contains(&uuid.to_string()), "{words} lacks {uuid}");
    }
}

#[test]
fn a_labelled_set_is_opened_again_and_again() {
    for shape in [STRIPE, MIRROR] {
        let set = Set::labelled(shape, 3);
        for epoch in 2..5 {
            let assembly = set.open();
            assert_eq!((assembly.epoch, assembly.stale.contains(&true)), (epoch, false));
            assert!((0..set.roles.len()).all(|index| set.label(index).epoch == epoch));
        }
        assert!(
            set.bytes()
                .iter()
                .zip(1..)
                .all(|(bytes, byte)| bytes[..MIB as usize].iter().all(|it| *it == byte))
        );
    }
}

#[test]
fn a_set_without_labels_is_no_set_of_ours() {
    let set = Set::new(STRIPE, 2);
    assert!(matches!(set.judge(), Ok(Verdict::Unlabelled)));
    (0..2).for_each(|index| std::fs::write(set.path(index), "").expect("room"));
    assert!(matches!(set.judge(), Ok(Verdict::Fresh)));
    (0..2).for_each(|index| std::fs::remove_file(set.path(index)).expect("it is there"));
    assert!(matches!(set.judge(), Ok(Verdict::Fresh)));
}

#[test]
fn swapped_members_are_refused() {
    for shape in [STRIPE, MIRROR] {
        let set = Set::labelled(shape, 2);
        let (first, second) = (set.label(0).member, set.label(1).member);
        std::fs::rename(set.path(0), set.path(9)).expect("it is there");
        std::fs::rename(set.path(1), set.path(0)).expect("it is there");
        std::fs::rename(set.path(9), set.path(1)).expect("it is there");
        uuids(&set.refused(), &[first, second]);
    }
}

#[test]
fn a_blank_or_truncated_member_is_refused() {
    for length in [0, MIB / 2, MIB, MIB + 100_000] {
        let set = Set::labelled(STRIPE, 2);
        let label = set.label(1);
        std::fs::File::options()
            .write(true)
            .open(set.path(1))
            .and_then(|it| it.set_len(length))
            .expect("room");
        uuids(&set.refused(), &[label.set, label.member]);
        std::fs::write(set.path(1), vec![0; 2 * MIB as usize]).expect("room");
        uuids(&set.refused(), &[label.set, label.member]);
    }
}

#[test]
fn a_member_of_another_set_is_refused() {
    for shape in [STRIPE, MIRROR] {
        let (set, other) = (Set::labelled(shape, 2), Set::labelled(shape, 2));
        let (own, theirs) = (set.label(1), other.label(1));
        std::fs::copy(other.path(1), set.path(1)).expect("room");
        uuids(&set.refused(), &[own.set, own.member, theirs.set, theirs.member]);
    }
}

#[test]
fn an_older_copy_of_a_stripe_is_refused() {
    let set = Set::labelled(STRIPE, 2);
    set.open();
    std::fs::copy(set.path(1), set.path(9)).expect("room");
    set.open();
    std::fs::copy(set.path(9), set.path(1)).expect("room");
    uuids(&set.refused(), &[set.label(0).set, set.label(1).member, set.label(0).member]);
}

#[test]
fn an_older_copy_of_a_mirror_is_copied_to_as_new_storage() {
    let set = Set::labelled(MIRROR, 2);
    std::fs::copy(set.path(0), set.path(9)).expect("room");
    set.open();
    std::fs::copy(set.path(9), set.path(0)).expect("room");
    let former = set.label(0);
    assert_eq!(set.assembly().stale, [true, false, false]);
    let assembly = set.open();
    assert_ne!((set.label(0).member, set.label(0).storage), (former.member, former.storage));
    assert_eq!(assembly.labels[0].storage, set.label(0).storage);
    assert_eq!(set.label(1).members[0], set.label(0).member);
    assert_eq!(set.open().stale, [false; 3]);
    // The former incarnation is outdated for ever.
    std::fs::copy(set.path(9), set.path(0)).expect("room");
    assert_eq!(set.assembly().stale, [true, false, false]);
}

#[test]
fn an_older_primary_is_refused() {
    let set = Set::labelled(Shape { kind: SetKind::Replicate, chunk: 0 }, 2);
    std::fs::copy(set.path(0), set.path(9)).expect("room");
    std::fs::copy(set.path(1), set.path(8)).expect("room");
    set.open();
    std::fs::copy(set.path(8), set.path(1)).expect("room");
    assert_eq!(set.assembly().stale, [false, true, false]);
    std::fs::copy(set.path(9), set.path(0)).expect("room");
    uuids(&set.refused(), &[set.label(0).set, set.label(0).member]);
}

#[test]
fn a_forgotten_label_leaves_the_data() {
    let set = Set::labelled(STRIPE, 2);
    Device::claim(&set.path(0)).and_then(|device| device.forget()).expect("it is free");
    assert_eq!(std::fs::read(set.path(0)).expect("it is there"), vec![1; MIB as usize]);
}

#[test]
fn a_forgotten_label_takes_no_byte_along_that_lies_between_it_and_the_data() {
    let set = Set::labelled(STRIPE, 2);
    let device = Device::claim(&set.path(0)).expect("it is free");
    let mut label = set.label(0);
    (label.data_bytes, label.sequence) = (MIB - 512, label.sequence + 1);
    device.store(&label).and_then(|()| device.forget()).expect("it is free");
    assert_eq!(std::fs::read(set.path(0)).expect("it is there"), vec![1; MIB as usize]);
}

/// Writes the state of a file whose labelling was interrupted before it had its full length.
fn interrupt(set: &Set) {
    let mut label = set.label(0);
    (label.epoch, label.next_epoch) = (0, 1);
    let bytes = [vec![1; MIB as usize], label.encode()].concat();
    std::fs::write(set.path(0), bytes).expect("room");
}

#[test]
fn an_unfinished_label_is_forgotten_without_a_byte_of_data() {
    let set = Set::labelled(STRIPE, 2);
    interrupt(&set);
    Device::claim(&set.path(0)).and_then(|device| device.forget()).expect("it is free");
    assert_eq!(std::fs::read(set.path(0)).expect("it is there"), vec![1; MIB as usize]);
}

/// Covers labels of sets that were opened, which have later epochs than 0.
#[test]
fn a_torn_or_later_label_at_the_end_of_a_file_is_no_data() {
    let set = Set::labelled(STRIPE, 2);
    let label = set.label(0).encode();
    let found = |bytes: Vec<u8>| {
        std::fs::write(set.path(9), bytes).expect("room");
        Device::open(&set.path(9)).and_then(|device| device.found()).expect("readable")
    };
    let data = vec![1; MIB as usize];
    assert!(matches!(found([data.clone(), label.clone()].concat()), Found::Label(_)));
    let mut torn = label;
    torn[100..].fill(0);
    assert_eq!(found([data, torn].concat()), Found::Damaged);
}

#[test]
fn a_second_label_leaves_nothing_of_an_unfinished_one() {
    let set = Set::labelled(MIRROR, 2);
    let other = set.label(1);
    interrupt(&set);
    let device = Device::claim(&set.path(0)).expect("it is free");
    replace(&device, &other, Role::Data(0), MIB).expect("there is room");
    assert_eq!(device.bytes().expect("readable"), other.device_bytes);
    device.forget().expect("it is free");
    assert_eq!(std::fs::read(set.path(0)).expect("it is there"), vec![1; MIB as usize]);
}

/// Interrupts the labelling of a file before it has its full length.
#[test]
fn a_file_that_is_longer_for_a_label_alone_is_labelled_again_with_its_own_data() {
    let set = Set::labelled(STRIPE, 2);
    let whole = set.label(0).device_bytes;
    interrupt(&set);
    std::fs::write(set.path(1), vec![2; MIB as usize]).expect("room");
    for size in [None, Some(MIB)] {
        let refusal = set.judge_with(size);
        assert!(size.is_some() || refusal.expect_err("one label").error.contains("are not complete"));
    }
    let devices = set.devices();
    let own = |device: &Device| match device.found().expect("readable") {
        Found::Label(label) => label.data_bytes,
        _ => device.bytes().expect("readable"),
    };
    let member =
        |(device, role): (_, &Role)| Member { device, role: *role, data_bytes: own(device), storage: 7 };
    let wanted: Vec<_> = devices.iter().zip(&set.roles).map(member).collect();
    form(&STRIPE, &wanted).expect("there is room");
    drop(devices);
    for (index, bytes) in set.bytes().into_iter().enumerate() {
        assert_eq!(bytes.len() as u64, whole);
        assert_eq!(bytes[..MIB as usize], vec![index as u8 + 1; MIB as usize]);
    }
    assert_eq!(set.label(0).data_bytes, MIB);
    set.open();
}

#[test]
fn an_older_log_is_refused() {
    let set = Set::labelled(MIRROR, 2);
    std::fs::copy(set.path(2), set.path(9)).expect("room");
    set.open();
    std::fs::copy(set.path(9), set.path(2)).expect("room");
    uuids(&set.refused(), &[set.label(0).set, set.label(2).member, set.label(1).member]);
    let set = Set::labelled(MIRROR, 2);
    let copy = |from: usize, to: usize| std::fs::copy(set.path(from), set.path(to)).map(drop).expect("room");
    (0..2).for_each(|index| copy(index, index + 7));
    set.open();
    (0..2).for_each(|index| copy(index + 7, index));
    uuids(&set.refused(), &[set.label(0).set, set.label(2).member]);
}

#[test]
fn a_new_disk_replaces_a_member_or_the_log() {
    for (index, role) in [(1, Role::Data(1)), (2, Role::Log)] {
        let set = Set::labelled(MIRROR, 2);
        set.open();
        let former = set.label(index);
        std::fs::write(set.path(index), "").expect("room");
        uuids(&set.refused(), &[former.set, former.member]);
        let device = Device::claim(&set.path(index)).expect("it is free");
        replace(&device, &set.label(0), role, MIB).expect("there is room");
        drop(device);
        assert_eq!(set.open().stale, [false, index == 1, index == 2]);
        let assembly = set.open();
        assert_eq!(assembly.stale, [false; 3]);
        assert_ne!(assembly.labels[index].member, former.member);
        assert!(
            assembly.labels.iter().all(|label| label.expected(role) == Some(assembly.labels[index].member))
        );
    }
}

#[test]
fn another_configuration_is_refused() {
    let mut set = Set::labelled(STRIPE, 2);
    set.shape.chunk *= 2;
    uuids(&set.refused(), &[set.label(0).set]);
    set.shape = Shape { kind: SetKind::Concat, chunk: 0 };
    assert!(set.refused().contains("is a stripe of 2 members with chunks of 65536 bytes"));
    set.shape = STRIPE;
    assert!(set.judge_with(Some(MIB / 2)).is_err());
    set.roles.push(Role::Data(2));
    std::fs::write(set.path(2), "").expect("room");
    assert!(set.refused().contains("of 3 members"));
}

/// Interrupts the opening of a set after each write of a label.
#[test]
fn an_interrupted_opening_leaves_a_set_that_opens() {
    for shape in [STRIPE, MIRROR] {
        let set = Set::labelled(shape, 2);
        set.open();
        let before = set.bytes();
        set.open();
        let after = set.bytes();
        let count = set.roles.len();
        let current = set.label(0).epoch;
        for step in 0..2 * count {
            for index in 0..count {
                let mut label = set.label_in(&before[index]);
                if step < count {
                    label.next_epoch = if index <= step { current } else { 0 };
                } else {
                    label.next_epoch = current;
                }
                std::fs::write(set.path(index), &before[index]).expect("room");
                match step >= count && index <= step - count {
                    true => std::fs::write(set.path(index), &after[index]).expect("room"),
                    false => Device::claim(&set.path(index)).and_then(|it| it.store(&label)).expect("room"),
                }
            }
            assert!(!set.open().stale.contains(&true), "{shape:?} {step}");
        }
    }
}

impl Set {
    fn label_in(&self, bytes: &[u8]) -> Label {
        std::fs::write(self.path(8), bytes).expect("room");
        label_of(&self.path(8))
    }
}

#[test]
fn one_lost_copy_loses_nothing() {
    let set = Set::labelled(STRIPE, 2);
    let label = set.label(0);
    let whole = std::fs::read(set.path(0)).expect("it is there");
    for copy in [MIB as usize, MIB as usize * 3 / 2] {
        for damage in [0..LABEL_BYTES, 0..512, 4096..4608, 20..21] {
            let mut bytes = whole.clone();
            bytes[copy..][damage].iter_mut().for_each(|byte| *byte ^= 0xff);
            std::fs::write(set.path(0), &bytes).expect("room");
            let device = Device::claim(&set.path(0)).expect("it is free");
            assert!(!device.copies().expect("readable").are_whole());
            assert_eq!(set.label(0), label);
            device.store(&label).expect("it can be written");
            assert!(device.copies().expect("readable").are_whole());
            assert_eq!(std::fs::read(set.path(0)).expect("it is there"), whole);
        }
    }
    let mut bytes = whole;
    for copy in [MIB as usize, MIB as usize * 3 / 2] {
        bytes[copy + 50] ^= 1;
    }
    std::fs::write(set.path(0), &bytes).expect("room");
    assert!(set.refused().contains("damaged"));
}

#[test]
fn a_label_within_the_data_is_a_guests() {
    let set = Set::labelled(STRIPE, 2);
    assert!(matches!(set.judge_with(Some(2 * MIB)), Ok(Verdict::Unlabelled)));
    assert!(matches!(set.judge_with(None), Ok(Verdict::Labelled(_))));
}

#[test]
fn a_device_in_use_is_not_written() {
    let set = Set::labelled(STRIPE, 2);
    let _held = set.devices();
    assert!(matches!(Device::claim(&set.path(0)), Err(Error::InUse(_))));
    assert!(matches!(Device::claim(set.folder.path()), Err(Error::NotStorage(_))));
}

#[test]
fn labels_of_later_versions_are_left_alone() {
    let set = Set::labelled(STRIPE, 2);
    let with = |change: &dyn Fn(&mut Label)| {
        let mut label = set.label(0);
        change(&mut label);
        Label::decode(&label.encode())
    };
    assert!(matches!(with(&|label| label.features[0] = 8), Copy::Valid(_)));
    assert_eq!(with(&|label| label.features[1] = 8), Copy::Unsupported(Unsupported::Features(8)));
    assert_eq!(with(&|label| label.features[2] = 4), Copy::Unsupported(Unsupported::Features(4)));
    assert_eq!(with(&|label| label.data_bytes = u64::MAX), Copy::Broken);
    assert_eq!(with(&|label| label.member = label.set), Copy::Broken);
    assert_eq!(with(&|label| label.next_epoch = 99), Copy::Broken);
}

prop_compose! {
    fn any_label()(
        kind in prop::sample::select(vec![SetKind::Stripe, SetKind::Concat, SetKind::Mirror, SetKind::Replicate, SetKind::Parity]),
        members in prop::collection::vec(prop::array::uniform16(1u8..), 1..=MEMBERS_MAX),
        uuids in prop::array::uniform2(prop::array::uniform16(1u8..)),
        index in any::<prop::sample::Index>(),
        is_log in any::<bool>(),
        numbers in (1u64..1 << 62, 0u64..1 << 61, any::<bool>(), 1u64..1 << 40, any::<u128>(), any::<u64>()),
    ) -> Label {
        let (sequence, epoch, is_raised, data_bytes, storage, feature) = numbers;
        let members: Vec<Uuid> = members.into_iter().map(Uuid).collect();
        let log = if kind.is_redundant() { Uuid(uuids[1]) } else { Uuid::NIL };
        let role = match is_log && kind.is_redundant() {
            true => Role::Log,
            false => Role::Data(index.index(members.len())),
        };
        let member = match role {
            Role::Data(index) => members[index],
            Role::Log => log,
        };
        let next_epoch = if is_raised { epoch + 1 } else { 0 };
        let device_bytes = data_bytes.next_multiple_of(UNIT) + AREA_BYTES;
        let chunk = if kind == SetKind::Stripe { 65536 } else { 0 };
        Label {
            features: [feature, 0, 0], set: Uuid(uuids[0]), kind, role, members, log, member, sequence, epoch,
            next_epoch, data_offset: 0, data_bytes, device_bytes, chunk, storage,
        }
    }
}

proptest! {
    #[test]
    fn a_label_is_read_as_it_was_written(label in any_label()) {
        let bytes = label.encode();
        prop_assert_eq!(bytes.len(), LABEL_BYTES);
        prop_assert_eq!(Label::decode(&bytes), Copy::Valid(Box::new(label)));
    }

    #[test]
    fn a_changed_bit_is_no_label(label in any_label(), at in 0..LABEL_BYTES * 8) {
        let mut bytes = label.encode();
        bytes[at / 8] ^= 1 << (at % 8);
        prop_assert!(!matches!(Label::decode(&bytes), Copy::Valid(_) | Copy::Unsupported(_)));
    }

    #[test]
    fn a_torn_label_is_no_label(label in any_label(), other in any_label(), sectors in 1..LABEL_BYTES / 512) {
        let (mut bytes, other) = (label.encode(), other.encode());
        bytes[sectors * 512..].copy_from_slice(&other[sectors * 512..]);
        let torn = Label::decode(&bytes);
        prop_assert!(bytes == label.encode() || torn == Copy::Broken);
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), length in 0..2 * LABEL_BYTES) {
        let mut whole = b"sluiceLB".to_vec();
        whole.extend(bytes);
        whole.resize(length, 0);
        prop_assert!(!matches!(Label::decode(&whole), Copy::Valid(_)));
    }
}

/// Checks that no label is written that could not be read again.
#[test]
fn a_set_that_no_label_can_describe_is_refused_and_its_files_stay() {
    let odd = Shape { kind: SetKind::Stripe, chunk: 6000 };
    for (shape, data_bytes) in [(STRIPE, 0), (MIRROR, 0), (STRIPE, u64::MAX), (odd, MIB)] {
        let set = Set::new(shape, 2);
        let devices = set.devices();
        let member = |(device, role): (_, &Role)| Member { device, role: *role, data_bytes, storage: 0 };
        let wanted: Vec<_> = devices.iter().zip(&set.roles).map(member).collect();
        assert!(matches!(form(&shape, &wanted), Err(Error::Impossible(_))), "{shape:?} {data_bytes}");
        for index in 0..set.roles.len() {
            let bytes = std::fs::read(set.path(index)).expect("it is there");
            assert_eq!(bytes, vec![index as u8 + 1; MIB as usize]);
        }
    }
    let too_many = Set::new(STRIPE, 257);
    let devices = too_many.devices();
    let member = |(device, role): (_, &Role)| Member { device, role: *role, data_bytes: MIB, storage: 0 };
    let wanted: Vec<_> = devices.iter().zip(&too_many.roles).map(member).collect();
    assert!(matches!(form(&STRIPE, &wanted), Err(Error::Impossible(_))));
}

/// Name of a variable that is set in a process that may not make files as long as a label needs.
const LIMITED: &str = "SLUICE_TEST_LIMITED";

/// Runs a test of this program alone, in a process whose files may have this many KiB.
fn run_limited(test: &str, kib: u64) {
    let limited = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" --exact \"$1\"");
    let program = std::env::current_exe().expect("it runs");
    let child = Command::new("bash").args(["-c", &limited]).arg(program).arg(test).env(LIMITED, "1").output();
    let output = child.expect("bash is there");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && words.contains("1 passed"), "{words}");
}

/// Checks a file that grows for the first copy of its label, and no further.
#[test]
fn a_file_whose_label_cannot_be_stored_keeps_its_length() {
    if std::env::var_os(LIMITED).is_none() {
        return run_limited("tests::a_file_whose_label_cannot_be_stored_keeps_its_length", 1100);
    }
    // A set of members that are short enough.
    let set = Set::new(MIRROR, 1);
    (0..2).for_each(|index| std::fs::write(set.path(index), [1; 4096]).expect("room"));
    let devices = set.devices();
    let member = |(device, role): (_, &Role)| Member { device, role: *role, data_bytes: 4096, storage: 7 };
    form(&MIRROR, &devices.iter().zip(&set.roles).map(member).collect::<Vec<_>>()).expect("there is room");
    let long = set.folder.path().join("long");
    std::fs::write(&long, vec![1; MIB as usize]).expect("room");
    let device = &Device::claim(&long).expect("it is free");
    let formed = form(&STRIPE, &[Member { device, role: Role::Data(0), data_bytes: MIB, storage: 7 }]);
    assert!(matches!(formed, Err(Error::Io(_, "grow", _))), "{formed:?}");
    assert_eq!(device.bytes().expect("it is open"), MIB);
    let replaced = replace(device, &set.label(0), Role::Data(0), MIB);
    assert!(matches!(replaced, Err(Error::Io(_, "grow", _))), "{replaced:?}");
    assert_eq!(device.bytes().expect("it is open"), MIB);
}
