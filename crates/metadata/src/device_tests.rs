//! Tests of the places of labels on files and block devices, with every byte of a device compared.

use crate::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const APART: u64 = AREA_BYTES / 2;
const LABEL: u64 = LABEL_BYTES as u64;

fn label(data_bytes: u64, sequence: u64) -> Label {
    let member = Uuid([1; 16]);
    Label {
        features: [0; 3],
        set: Uuid([9; 16]),
        kind: SetKind::Concat,
        role: Role::Data(0),
        members: vec![member],
        log: Uuid::NIL,
        member,
        sequence,
        epoch: 1,
        next_epoch: 0,
        data_offset: 0,
        data_bytes,
        device_bytes: data_bytes.next_multiple_of(UNIT) + AREA_BYTES,
        chunk: 0,
        storage: 5,
    }
}

/// File in a folder of its own.
struct Disk(TempDir);

impl Disk {
    fn new(bytes: &[u8]) -> Self {
        let disk = Self(tempfile::tempdir().expect("a folder"));
        disk.write(bytes);
        disk
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn write(&self, bytes: &[u8]) {
        fs::write(self.path(), bytes).expect("room");
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).expect("it is there")
    }

    fn file(&self) -> Device {
        Device::claim(&self.path()).expect("it is free")
    }

    fn block(&self) -> Device {
        self.file().into_block()
    }
}

/// Returns bytes of data, and zeros behind them.
fn data(bytes: u64, length: u64) -> Vec<u8> {
    let mut all = vec![7; bytes as usize];
    all.resize(length as usize, 0);
    all
}

/// Compares all pairs of copies with the rule: any unsupported copy, then the later valid one, then damage.
#[test]
fn the_later_valid_copy_counts_unless_one_is_of_another_version() {
    let valid = |sequence| Copy::Valid(Box::new(label(MIB, sequence)));
    let unsupported = Copy::Unsupported(Unsupported::Version(7));
    let all = [valid(1), valid(2), valid(3), Copy::Blank, Copy::Foreign, Copy::Broken, unsupported.clone()];
    for first in &all {
        for second in &all {
            let pair = [first.clone(), second.clone()];
            let latest = pair.iter().filter_map(|copy| match copy {
                Copy::Valid(label) => Some(label.clone()),
                _ => None,
            });
            let latest = latest.max_by_key(|label| label.sequence);
            let wanted = match latest {
                _ if pair.contains(&unsupported) => Found::Unsupported(Unsupported::Version(7)),
                Some(label) => Found::Label(label),
                None if pair.contains(&Copy::Broken) => Found::Damaged,
                None => Found::Missing,
            };
            let is_whole = first == second && matches!(first, Copy::Valid(_));
            let copies = Copies(pair);
            assert_eq!((copies.found(), copies.are_whole()), (wanted, is_whole), "{copies:?}");
        }
    }
}

/// Lets the process before this one hold a device for some time more.
#[test]
fn a_device_is_claimed_when_its_lock_is_released_soon() {
    let disk = Disk::new(&[1; 4096]);
    let held = disk.file();
    let releases = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        drop(held);
    });
    drop(Device::claim(&disk.path()).expect("it is free soon"));
    releases.join().expect("no panic");
}

/// Checks the flags of a device that was claimed: an open never waits for a tape or a lease.
#[test]
fn a_device_is_opened_without_waiting() {
    let disk = Disk::new(&[1; 4096]);
    let _device = disk.file();
    let is_it = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|path| path == disk.path());
    let entry =
        fs::read_dir("/proc/self/fd").expect("there is one").flatten().find(is_it).expect("it is open");
    let about =
        fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).expect("it is open");
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).expect("there are some");
    let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
    assert_ne!(flags & rustix::fs::OFlags::NONBLOCK.bits(), 0, "{about}");
}

#[test]
fn a_file_that_cannot_be_opened_is_not_in_use() {
    // The kernel lets no process write a program that runs.
    let program = std::env::current_exe().expect("it runs");
    let failed = Device::open_owned(&program).expect_err("it runs");
    assert!(matches!(failed, Error::Io(_, "open", _)), "{failed:?}");
}

#[test]
fn the_label_of_a_device_with_another_length_is_none() {
    let label = label(MIB, 1);
    for (length, start, is_found) in [
        (2 * MIB, MIB, true),
        (3 * MIB, 2 * MIB, false),
        (2 * MIB + 100, MIB, true),
        (2 * MIB - UNIT, MIB - UNIT, false),
    ] {
        let mut bytes = data(MIB - UNIT, length);
        bytes[start as usize..][..LABEL_BYTES].copy_from_slice(&label.encode());
        let disk = Disk::new(&bytes);
        let found = if is_found { Found::Label(Box::new(label.clone())) } else { Found::Missing };
        assert_eq!(disk.block().found().expect("readable"), found, "{length}");
        assert_eq!(disk.file().found().expect("readable"), found, "{length}");
    }
}

/// Compares labels at the very end: only a file can end with the first copy of its label, and in its own place.
#[test]
fn a_label_at_the_end_is_unfinished_on_a_file_alone() {
    for (data_bytes, is_own) in [(MIB, true), (MIB + UNIT, false), (MIB - UNIT, false)] {
        let disk = Disk::new(&[data(MIB, MIB), label(data_bytes, 1).encode()].concat());
        let found = disk.file().found().expect("readable");
        assert_eq!(found != Found::Missing, is_own, "{data_bytes}");
        let own = if is_own { MIB } else { MIB + LABEL };
        assert_eq!(disk.file().own_bytes().expect("readable"), own);
        assert_eq!(disk.block().found().expect("readable"), Found::Missing);
        assert_eq!(disk.block().own_bytes().expect("readable"), MIB + LABEL);
    }
}

/// Labels files of all lengths again, also with less data than the file has.
#[test]
fn no_byte_of_a_file_is_under_its_label() {
    for length in [0, 1, UNIT - 1, UNIT, MIB - 1, MIB, MIB + 1, 3 * MIB] {
        for data_bytes in [1, UNIT, MIB, 2 * MIB] {
            let disk = Disk::new(&data(length, length));
            let wanted = length.max(data_bytes).next_multiple_of(UNIT) + AREA_BYTES;
            assert_eq!(disk.file().labelled_bytes(data_bytes).expect("readable"), wanted);
            let label = Label { device_bytes: wanted, ..label(data_bytes, 1) };
            disk.file().store(&label).expect("room");
            // With its label the whole file is data of a second one.
            assert_eq!(disk.file().own_bytes().expect("readable"), wanted);
            assert_eq!(disk.file().labelled_bytes(data_bytes).expect("readable"), wanted + AREA_BYTES);
            assert_eq!(disk.bytes()[..length as usize], data(length, length));
        }
    }
}

/// Forgets labels behind files of all lengths: a file has its own length again if the bytes behind it are its
/// unit's rest, and keeps all bytes that may be data.
#[test]
fn a_file_without_its_label_has_its_own_bytes() {
    for length in [1, 511, UNIT - 1, UNIT, UNIT + 1, MIB - 512, MIB, MIB + UNIT] {
        for data_bytes in [length, length.saturating_sub(1).max(1), length.saturating_sub(UNIT).max(1)] {
            for is_zero in [false, true] {
                let mut bytes = data(length, length);
                let from = if is_zero { data_bytes } else { length };
                bytes[from as usize..].fill(0);
                let disk = Disk::new(&bytes);
                let start = length.next_multiple_of(UNIT);
                let label = Label { device_bytes: start + AREA_BYTES, ..label(data_bytes, 1) };
                disk.file().store(&label).expect("room");
                disk.file().forget().expect("it can be shortened");
                let is_rest = bytes[data_bytes as usize..].iter().all(|byte| *byte == 0);
                let left = if start - data_bytes < UNIT && is_rest { data_bytes } else { start };
                bytes.resize(left as usize, 0);
                assert!(disk.bytes() == bytes, "{length} {data_bytes} {is_zero}");
            }
        }
    }
}

#[test]
fn a_block_device_has_room_for_a_label_where_all_is_zero() {
    let length = 3 * MIB;
    let room = |bytes: &[u8], data_bytes| {
        let disk = Disk::new(bytes);
        let has_room = disk.block().has_room(data_bytes);
        let labelled = disk.block().labelled_bytes(data_bytes);
        assert_eq!(has_room.is_ok(), labelled.is_ok());
        assert!(disk.bytes() == bytes, "nothing is written");
        labelled
    };
    assert_eq!(room(&data(2 * MIB, length), 2 * MIB).expect("room"), length);
    assert_eq!(room(&data(MIB, length + 100), MIB).expect("room"), length + 100);
    let failed = room(&data(2 * MIB, length), 2 * MIB + 1).expect_err("no room");
    assert!(
        matches!(failed, Error::NoRoom { bytes, data_bytes, .. } if (bytes, data_bytes) == (length, 2 * MIB + 1))
    );
    assert!(matches!(room(&data(1, MIB - 1), 1), Err(Error::NoRoom { .. })), "no room for any label");
    for at in [0, LABEL, APART, AREA_BYTES - 1] {
        let mut bytes = data(2 * MIB, length);
        bytes[(2 * MIB + at) as usize] = 1;
        assert!(matches!(room(&bytes, MIB), Err(Error::NotBlank(_))), "{at}");
    }
    // An earlier attempt has left its label.
    let disk = Disk::new(&data(2 * MIB, length));
    disk.block().store(&label(2 * MIB, 1)).expect("room");
    assert_eq!(room(&disk.bytes(), 2 * MIB).expect("room"), length);
}

/// Forms a set of a block device and another one without room.
#[test]
fn no_device_is_written_if_one_has_no_room() {
    let (good, bad) = (Disk::new(&data(MIB, 2 * MIB)), Disk::new(&data(2 * MIB, 2 * MIB)));
    let devices = [good.block(), bad.block()];
    let member = |(device, index)| Member { device, role: Role::Data(index), data_bytes: MIB, storage: 0 };
    let wanted: Vec<_> = devices.iter().zip(0..).map(member).collect();
    let shape = Shape { kind: SetKind::Concat, chunk: 0 };
    assert!(matches!(form(&shape, &wanted), Err(Error::NotBlank(_))));
    assert!(good.bytes() == data(MIB, 2 * MIB) && bad.bytes() == data(2 * MIB, 2 * MIB));
}

#[test]
fn a_forgotten_label_of_a_block_device_is_zeros_in_both_places() {
    let disk = Disk::new(&data(2 * MIB, 3 * MIB));
    disk.block().store(&label(2 * MIB, 1)).expect("room");
    assert!(disk.block().copies().expect("readable").are_whole());
    disk.block().forget().expect("it can be written");
    assert!(disk.bytes() == data(2 * MIB, 3 * MIB));
    // A damaged label is forgotten, too.
    disk.block().store(&label(2 * MIB, 1)).expect("room");
    let mut bytes = disk.bytes();
    for copy in [2 * MIB, 2 * MIB + APART] {
        bytes[copy as usize + 100] ^= 1;
    }
    disk.write(&bytes);
    assert_eq!(disk.block().found().expect("readable"), Found::Damaged);
    disk.block().forget().expect("it can be written");
    assert!(disk.bytes() == data(2 * MIB, 3 * MIB));
}

/// Name of a variable that is set in a process that may not write where the second copy is.
const LIMITED: &str = "SLUICE_TEST_LIMITED_COPY";

/// Stores a label over one whose first copy is the later one, where the second place cannot be written: the first
/// copy stays as it is.
#[test]
fn the_later_copy_is_whole_until_the_other_is_written() {
    let disk = match std::env::var_os(LIMITED) {
        Some(path) => return store_limited(Path::new(&path)),
        None => Disk::new(&data(MIB, MIB)),
    };
    disk.file().store(&label(MIB, 2)).expect("room");
    let mut bytes = disk.bytes();
    bytes[(MIB + APART) as usize..][..LABEL_BYTES].copy_from_slice(&label(MIB, 1).encode());
    disk.write(&bytes);
    let test = "device_tests::the_later_copy_is_whole_until_the_other_is_written";
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" --exact {test}", (MIB + APART) / 1024);
    let program = std::env::current_exe().expect("it runs");
    let child = Command::new("bash").args(["-c", &limited]).arg(program).env(LIMITED, disk.path()).output();
    let output = child.expect("bash is there");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && words.contains("1 passed"), "{words}");
    assert!(disk.bytes() == bytes, "nothing is written before the older copy");
}

fn store_limited(path: &Path) {
    let device = Device::claim(path).expect("it is free");
    let failed = device.store(&label(MIB, 3)).expect_err("a write fails");
    assert!(matches!(failed, Error::Io(_, "write the label of", _)), "{failed:?}");
}

/// Compares the words of each failure, and its remedy.
#[test]
fn failures_name_their_device_and_a_remedy() {
    let path = PathBuf::from("/dev/x");
    let io = std::io::Error::other("no luck");
    let room = Error::NoRoom { path: path.clone(), bytes: 5, data_bytes: MIB };
    let all = [
        (Error::Io(path.clone(), "read", io), "cannot read /dev/x: no luck", None),
        (Error::InUse(path.clone()), "/dev/x is in use", Some("stop the daemon")),
        (
            Error::NotStorage(path.clone()),
            "/dev/x is neither a file nor",
            Some("only files and block devices"),
        ),
        (room, "/dev/x has 5 bytes, and needs 2097152 for 1048576", Some("one of 2097152 bytes or more")),
        (
            Error::NotBlank(path.clone()),
            "/dev/x has bytes other than zero",
            Some("zero the last 1048576 bytes"),
        ),
        (Error::Impossible(path), "/dev/x cannot have a label", Some("nothing was written")),
    ];
    for (error, words, hint) in all {
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.hint().is_some(), hint.is_some());
        assert!(
            hint.is_none_or(|hint| error.hint().is_some_and(|all| all.contains(hint))),
            "{:?}",
            error.hint()
        );
    }
}
