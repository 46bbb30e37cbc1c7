//! Opening, locking, resizing.

use std::io::IoSliceMut;
use std::os::unix::fs::MetadataExt;

use rustix::io::{ReadWriteFlags, preadv2};

use super::*;

fn refusal(config: &FileConfig) -> String {
    PreparedFile::open(config).expect_err("it cannot be opened").to_string()
}

#[test]
fn a_file_that_is_only_read_may_be_another_drives() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let only_read = FileConfig { read_only: true, ..config.clone() };
    assert!(
        PreparedFile::open(&only_read).expect_err("it is not made").to_string().contains("does not exist")
    );
    let _owner = open(&config);
    let reader = open(&only_read);
    assert_eq!(reader.size(), MIB);
    let larger = FileConfig { size: Some(2 * MIB), ..only_read };
    PreparedFile::open(&larger).expect_err("it is not grown");
    let by = |size| {
        PreparedFile::open(&FileConfig { size: Some(size), ..larger.clone() }).map(|prepared| prepared.size())
    };
    for size in [512, MIB - 512, MIB] {
        assert_eq!(by(size).expect("the rest is not seen"), size);
    }
    assert!(by(MIB + 512).is_err() && by(511).is_err());
    assert_eq!(open(&FileConfig { size: None, ..larger.clone() }).size(), MIB);
    assert_eq!(std::fs::metadata(&config.path).expect("it is there").len(), MIB);
}

#[test]
fn a_file_belongs_to_one_drive_until_that_is_gone() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let drive = Drive::new(open(&config));
    let refused = PreparedFile::open(&config).expect_err("it is in use");
    assert!(refused.is_in_use());
    assert!(refused.to_string().contains("image is in use by another drive"), "{refused}");
    let control = drive.reactor.clone();
    let task = drive.task;
    control.call(move |local| drop(local.remove(task))).expect("an answer");
    drop(open(&config));
    drive.stop();
}

#[test]
fn what_cannot_be_opened_is_said_in_words() {
    let folder = Folder::on_disk();
    let missing = FileConfig { size: None, ..folder.config("missing", 0) };
    assert!(PreparedFile::open(&missing).expect_err("it is not there").is_missing());
    assert!(refusal(&missing).contains("does not exist; give a size"));
    let device = FileConfig { path: "/dev/null".into(), ..missing.clone() };
    assert!(refusal(&device).contains("neither a file nor a block device"));
    let folder_itself = FileConfig { path: folder.0.clone(), ..missing.clone() };
    assert!(refusal(&folder_itself).contains("neither a file nor a block device"));
    fs::write(folder.0.join("tiny"), [0; 100]).expect("room");
    let tiny = FileConfig { path: folder.0.join("tiny"), ..missing.clone() };
    assert!(refusal(&tiny).contains("less than one block"));
    let nowhere = FileConfig { path: folder.0.join("no/such/folder"), size: Some(MIB), ..missing };
    assert!(refusal(&nowhere).contains("cannot be opened"));
}

/// Checks storage that can be opened for writing, but accepts no write.
#[test]
fn what_takes_no_writes_is_refused_unless_it_is_only_read() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::os::fd::AsRawFd;
    let memory = memfd_create("image", MemfdFlags::ALLOW_SEALING).expect("there is memory");
    rustix::fs::ftruncate(&memory, MIB).expect("room");
    fcntl_add_seals(&memory, SealFlags::WRITE).expect("nobody has mapped it");
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd()).into();
    let config = FileConfig {
        path,
        size: None,
        no_space: NoSpace::Fail,
        block_size: 512,
        read_only: false,
        raw: false,
    };
    let refused = refusal(&config);
    assert!(refused.contains("takes no writes") && refused.contains("read_only = true"), "{refused}");
    assert_eq!(open(&FileConfig { read_only: true, ..config }).size(), MIB);
}

#[test]
fn a_file_of_another_format_is_refused_unless_it_is_said_to_be_raw() {
    let folder = Folder::on_disk();
    let image = FileConfig { size: None, ..folder.config("image", 0) };
    let mut bytes = vec![0; 4096];
    bytes[64..68].copy_from_slice(&[0x7f, 0x10, 0xda, 0xbe]);
    fs::write(&image.path, &bytes).expect("room");
    assert!(refusal(&image).contains("is a VDI image"));
    for (format, signature) in
        [("qcow", &b"QFI\xfb"[..]), ("VHDX", b"vhdxfile"), ("VMDK", b"# Disk DescriptorFile")]
    {
        bytes[..signature.len()].copy_from_slice(signature);
        fs::write(&image.path, &bytes).expect("room");
        let said = refusal(&image);
        assert!(
            said.contains(&format!("is a {format} image")) && said.contains("format = \"raw\""),
            "{said}"
        );
        drop(open(&FileConfig { raw: true, ..image.clone() }));
    }
    // A part of a signature is no signature.
    fs::write(&image.path, b"QFI").expect("room");
    assert!(refusal(&image).contains("less than one block"));
}

#[test]
fn a_look_finds_what_opening_would_and_changes_nothing() {
    let folder = Folder::on_disk();
    let new = folder.config("new", MIB);
    let missing = new.probe(true).expect("it can be made");
    assert!(!new.path.exists(), "it was only looked at");
    fs::write(folder.0.join("small"), [0; 4096]).expect("room");
    let grown = folder.config("small", MIB).probe(true).expect("it can be grown");
    assert_eq!(fs::metadata(folder.0.join("small")).expect("it is there").len(), 4096);
    std::os::unix::fs::symlink("small", folder.0.join("link")).expect("a link");
    let link = folder.config("link", MIB).probe(true).expect("it can be grown");
    assert!(grown.identity == link.identity && grown.identity != missing.identity);
    let said = |config: &FileConfig| config.probe(true).expect_err("it cannot be opened").to_string();
    // No file system has files of this size.
    assert!(said(&folder.config("huge", i64::MAX as u64)).contains("cannot be grown"));
    assert!(said(&folder.config("no/such/folder", MIB)).contains("cannot be made"));
    assert!(said(&FileConfig { size: None, ..new.clone() }).contains("does not exist"));
    let too_large = FileConfig { read_only: true, ..folder.config("small", MIB) };
    assert!(said(&too_large).contains("has 4096 bytes"));
    fs::write(folder.0.join("odd"), [0; 1000]).expect("room");
    let odd = FileConfig { size: None, ..folder.config("odd", 0) };
    assert_eq!(odd.probe(true).expect("it can be opened").tail, 488);
    let _owner = open(&new);
    assert!(said(&new).contains("is in use"));
    new.probe(false).expect("whoever has it is left out of account");
}

#[test]
fn a_look_checks_the_size_as_opening_does() {
    let folder = Folder::on_disk();
    fs::write(folder.0.join("image"), vec![0; 8192]).expect("room");
    for read_only in [false, true] {
        for (size, is_good) in [
            (Some(511), false),
            (Some(512), true),
            (Some(8192), true),
            (None, true),
            (Some(8704), !read_only),
        ] {
            let config = FileConfig { size, read_only, ..folder.config("image", 0) };
            assert_eq!(config.probe(true).is_ok(), is_good, "{size:?} {read_only}");
        }
    }
    for (size, is_good) in [(511, false), (512, true), (1024, true)] {
        assert_eq!(folder.config("missing", size).probe(true).is_ok(), is_good, "{size}");
    }
    // No program that runs can be written.
    let path = std::env::current_exe().expect("a test has a program");
    let program = FileConfig { path, size: None, raw: true, ..folder.config("", 0) };
    let refused = program.probe(false).expect_err("it runs");
    assert!(!refused.is_in_use() && refused.io_error().is_some(), "{refused}");
    FileConfig { read_only: true, ..program }.probe(true).expect("it can be read");
}

#[test]
fn a_size_makes_grows_or_hides() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    assert_eq!(open(&config).size(), MIB);
    let meta = fs::metadata(&config.path).expect("it was made");
    assert_eq!((meta.len(), meta.mode() & 0o777), (MIB, 0o600));
    let larger = FileConfig { size: Some(2 * MIB), ..config.clone() };
    assert_eq!(open(&larger).size(), 2 * MIB);
    assert_eq!(open(&config).size(), MIB);
    assert_eq!(fs::metadata(&config.path).expect("it is there").len(), 2 * MIB);
    let own = FileConfig { size: None, ..config };
    assert_eq!(open(&own).size(), 2 * MIB);
}

#[test]
fn a_size_is_rounded_to_whole_blocks() {
    let folder = Folder::in_memory();
    let config = FileConfig { size: Some(10_000), block_size: 4096, ..folder.config("image", 0) };
    assert_eq!(open(&config).size(), 8192);
}

#[test]
fn a_disk_is_used_directly() {
    let folder = Folder::on_disk();
    let stat = statx(&folder.0);
    let prepared = open(&FileConfig { block_size: 4096, ..folder.config("image", MIB) });
    assert_eq!(prepared.is_direct(), stat);
    let flags = rustix::fs::fcntl_getfl(&prepared.data).expect("it is open");
    assert_eq!(flags.contains(rustix::fs::OFlags::DIRECT), stat);
    assert!(!open(&FileConfig { block_size: 4096, ..Folder::in_memory().config("image", MIB) }).is_direct());
}

/// Checks a target for hosts with blocks of their own size.
#[test]
fn a_part_of_a_file_has_its_own_block_size() {
    let folder = Folder::on_disk();
    let control = open(&folder.config("image", MIB)).control();
    assert!(control.open_part(4096, 1 << 20).is_err(), "the lock is gone with the only target");
    let whole = open(&folder.config("image", MIB));
    let part = whole.control().open_part(4096, 1 << 20).expect("it is open");
    assert_eq!([&whole, &part].map(|it| it.control.block_size.load(Relaxed)), [512, 4096]);
    assert_eq!((part.size(), part.is_direct()), (MIB, whole.is_direct()));
}

/// Returns whether the kernel reports the alignment of direct I/O for files in this folder.
fn statx(folder: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let probe = folder.join("probe");
    fs::write(&probe, []).expect("room");
    let stat = statx(CWD, &probe, AtFlags::empty(), StatxFlags::DIOALIGN).expect("it is there");
    stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && (1..=4096).contains(&stat.stx_dio_offset_align)
}

/// Checks the description from which hosts and sets learn what the storage is.
#[test]
fn a_file_is_described_as_it_is() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let described = |optimal: u32, unit: u32, read_only: bool| {
        let mut prepared = open(&FileConfig { read_only, ..config.clone() });
        prepared.optimal_write = optimal;
        prepared.direct = Some(Alignment { memory: 4, unit });
        prepared.identify(77);
        let drive = Drive::new(prepared);
        let found = drive.with(|host, _| {
            assert_eq!(host.stack.names().collect::<Vec<_>>(), ["file"]);
            host.stack.characteristics()
        });
        drive.stop();
        found
    };
    for (optimal, unit, expected) in [
        (4096, 512, 4096),
        (4096, 4096, 4096),
        (512, 4096, 4096),
        (0, 512, 512),
        (12288, 512, 512),
        (1 << 20, 1, 1 << 20),
        (256, 1, 512),
    ] {
        let found = described(optimal, unit, false);
        assert_eq!((found.optimal_write, found.block_size), (expected, unit.max(512)), "{optimal} {unit}");
    }
    let found = described(4096, 512, false);
    assert_eq!((found.size, found.deallocate_limit, found.read_only), (MIB, 512 << 10, false));
    assert!(found.volatile_cache, "the file system stores the place of data later than the data");
    assert_eq!(found.storage, Storage { id: 77, is_new: true });
    fs::write(&config.path, vec![1; 1 << 20]).expect("room");
    let found = described(4096, 512, true);
    assert_eq!((found.storage, found.read_only), (Storage { id: 77, is_new: false }, true));
    assert!(!found.volatile_cache, "nothing is written");
}

#[test]
fn a_drive_grows_and_shrinks_with_its_file() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let prepared = open(&config);
    let control = prepared.control();
    let drive = Drive::new(prepared);
    let resize = |size: u64| {
        drive.with(move |host, _| {
            host.stack.resize(size);
            host.stack.characteristics().size
        })
    };
    // The reactor uses only bytes that the file has.
    assert_eq!(resize(4 * MIB), MIB);
    control.resize(4 * MIB).expect("room");
    assert_eq!(resize(4 * MIB), 4 * MIB);
    assert_eq!(drive.run(write(3 * MIB, 4096), one(0, 4096)), Status::SUCCESS);
    assert_eq!(resize(2 * MIB), 2 * MIB);
    control.resize(2 * MIB).expect("less is always possible");
    assert_eq!(drive.run(read(3 * MIB, 4096), one(0, 4096)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(fs::metadata(&config.path).expect("it is there").len(), 2 * MIB);
    let held = |control: &FileControl| control.held().expect("it is there");
    assert_eq!(held(&control), 2 * MIB);
    fs::OpenOptions::new().write(true).open(&config.path).expect("a file").set_len(3 * MIB).expect("room");
    assert_eq!(held(&control), 3 * MIB, "more than the drive has");
    drive.stop();
}

/// Checks that a write with the kernel does not make the file longer again, to be read when the drive has
/// grown: one behind the new end, one across it from the begin on, and one across it in two chunks through buffers.
#[test]
fn a_file_is_cut_off_when_nothing_is_written_behind_its_new_end() {
    let across =
        [(write(3 * MIB, 4096), 0), (write(0, 2 * MIB + 4096), 0), (write(2 * MIB - 4096, 128 * KIB), 1)];
    for (across, memory) in across {
        let folder = Folder::on_disk();
        let prepared = open(&folder.config("image", 4 * MIB));
        let (control, drive) = (prepared.control(), Drive::new(prepared));
        drive.fill(0, vec![7; 3 << 20]);
        let cut = control.clone();
        let cutting = drive.with(move |host, now_ns| {
            host.submit(1, across, &one(memory, across.length as u32), now_ns);
            host.submit(2, write(2 * MIB - 4096, 4096), &one(0, 4096), now_ns);
            host.stack.resize(2 * MIB);
            assert_eq!(cut.beyond.load(Relaxed), 1, "the other ends at the new end");
            let cutting = thread::spawn(move || cut.resize(2 * MIB));
            // This is long enough for a resize that does not wait: no write ends on the blocked reactor
            // meanwhile.
            thread::sleep(Duration::from_millis(200));
            assert!(!cutting.is_finished(), "it was cut off while a write was under way");
            cutting
        });
        assert_eq!(drive.status(2), Status::SUCCESS);
        // Only the first chunk of a command in chunks was written.
        assert_eq!(drive.status(1).is_success(), memory == 0);
        cutting.join().expect("it does not panic").expect("less is always possible");
        control.resize(4 * MIB).expect("room");
        drive.with(|host, _| host.stack.resize(4 * MIB));
        assert_eq!(drive.run(read(across.end() - 4096, 4096), one(4 << 20, 4096)), Status::SUCCESS);
        assert!(drive.bytes(4 << 20, 4096).iter().all(|byte| *byte == 0), "it was cut off");
        drive.stop();
    }
}

/// Checks more writes than there are buffers: the writes that wait for one must not extend the file again.
#[test]
fn what_waits_while_a_drive_shrinks_is_out_of_range() {
    let folder = Folder::on_disk();
    let config = folder.config("image", 4 * MIB);
    let mut prepared = open(&config);
    prepared.direct = prepared.direct.map(|_| Alignment { memory: 4096, unit: 512 });
    let (staged, control, drive) = (prepared.is_direct(), prepared.control(), Drive::new(prepared));
    let writes = 40;
    drive.with(move |host, now_ns| {
        for cid in 0..writes {
            host.submit(cid, write(3 * MIB, 4096), &one(1, 4096), now_ns);
        }
        host.stack.resize(2 * MIB);
    });
    let statuses: Vec<Status> = (0..writes).map(|cid| drive.status(cid)).collect();
    let refused = statuses.iter().filter(|status| **status == Status::LBA_OUT_OF_RANGE).count();
    let expected = if staged { usize::from(writes) - staging::BUFFERS } else { 0 };
    assert_eq!(refused, expected, "{statuses:?}");
    control.resize(2 * MIB).expect("less is always possible");
    drive.stop();
}

#[test]
fn deallocated_blocks_give_their_room_back() {
    let folder = Folder::on_disk();
    let config = folder.config("image", 4 * MIB);
    let drive = Drive::new(open(&config));
    assert_eq!(drive.with(|host, _| host.stack.characteristics().deallocated), Deallocated::Zeroes);
    drive.fill(0, vec![1; 4 << 20]);
    assert_eq!(drive.run(write(0, 4 * MIB), one(0, 4 << 20)), Status::SUCCESS);
    assert_eq!(drive.flush(), Status::SUCCESS);
    let room = || fs::metadata(&config.path).expect("it is there").blocks() * 512;
    let full = room();
    assert!(full >= 4 * MIB);
    assert_eq!(drive.run(request(Operation::Deallocate, MIB, 2 * MIB), Vec::new()), Status::SUCCESS);
    assert!(room() <= full - 2 * MIB);
    // The first zeroes keep their room, and the second need not.
    assert_eq!(drive.run(request(Operation::WriteZeroes, 0, MIB), Vec::new()), Status::SUCCESS);
    let kept = room();
    let freed = Request { deallocate: true, ..request(Operation::WriteZeroes, 0, MIB) };
    assert_eq!(drive.run(freed, Vec::new()), Status::SUCCESS);
    assert!(room() < kept);
    drive.stop();
}

#[test]
fn a_file_is_new_until_it_is_written_to_and_another_file_is_another() {
    let folder = Folder::on_disk();
    let of = |name: &str| PreparedFile::open(&folder.config(name, MIB)).expect("it can be opened").storage;
    let first = of("a");
    assert!(first.is_new && of("a") == first, "a hole is new");
    let path = folder.config("a", MIB).path;
    let mut zeros = vec![0; MIB as usize];
    fs::write(&path, &zeros).expect("room");
    let written = of("a");
    assert!(!written.is_new && written.id == first.id, "zeros that were written are data");
    assert!(of("b").id != first.id || first.id == 0);
    fs::rename(&path, folder.config("c", MIB).path).expect("it is there");
    assert_eq!(of("c"), written, "by another name");
    zeros.truncate(1);
    fs::write(&path, &zeros).expect("room");
    let anew = of("a");
    assert!(!anew.is_new && (anew.id != first.id || first.id == 0), "made anew");
}

/// Checks the number of a file in a file system with stable inodes, as earlier versions have stored it.
#[test]
fn a_file_has_the_number_of_its_inode_and_its_birth() {
    use super::super::storage_at;
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let folder = Folder::in_memory();
    let path = folder.config("image", MIB).path;
    let first = PreparedFile::open(&folder.config("image", MIB)).expect("it can be opened").storage;
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(CWD, &path, AtFlags::empty(), flags).expect("it is there");
    let born = match stat.stx_mask & StatxFlags::BTIME.bits() != 0 {
        true => [stat.stx_btime.tv_sec.cast_unsigned(), stat.stx_btime.tv_nsec.into()],
        false => [0; 2],
    };
    let name = [stat.stx_ino, born[0], born[1]].map(u64::to_le_bytes);
    assert_eq!(first.id, Storage::named(name.as_flattened()).id);
    assert_eq!(storage_at(&path).expect("it is there").id, first.id);
    assert!(storage_at(&folder.path().join("missing")).is_err());
    assert_eq!(storage_at(Path::new("/dev/null")).expect("it is there").id, 0, "a device without a name");
}

/// Checks that another opening reads from the disk: after a failed write-back, a page may differ from the
/// disk.
#[test]
fn pages_of_an_earlier_opening_are_read_anew() {
    let folder = Folder::on_disk();
    let path = folder.path().join("image");
    fs::write(&path, [7; 64 << 10]).expect("room on the disk");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    file.sync_all().expect("the disk is well");
    let is_cached = || {
        let mut bytes = [0; 4096];
        let read = preadv2(&file, &mut [IoSliceMut::new(&mut bytes)], 32 << 10, ReadWriteFlags::NOWAIT);
        read == Ok(bytes.len())
    };
    if is_cached() {
        super::super::open::drop_clean_pages(&file);
        assert!(!is_cached());
    }
}

#[test]
fn a_part_reaches_what_the_file_has_grown_by() {
    let folder = Folder::on_disk();
    let whole = PreparedFile::open(&folder.config("x.img", MIB)).expect("it opens");
    let control = whole.control();
    let part = control.open_part(4096, 4 * MIB).expect("it opens");
    assert_eq!(part.reach, Some(4 * MIB));
    control.grow(2 * MIB).expect("room");
    assert_eq!((part.size(), control.end().expect("it is there")), (2 * MIB, 2 * MIB));
    // A file that is longer stays so.
    control.grow(MIB).expect("nothing is done");
    assert_eq!((part.size(), control.end().expect("it is there")), (2 * MIB, 2 * MIB));
}
