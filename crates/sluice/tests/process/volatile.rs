//! A disk with a volatile write cache: a file of which only synced data survives a power cut.
//!
//! The test process is a FUSE server for one regular file, which is mounted over a file in a folder of its
//! own. Writes and holes go to a cache. FSYNC copies the cache to the medium, and a write with O_DSYNC goes to both.
//! [`Disk::cut`] replaces the cache by the medium, as a power cut does. [`Disk::power_off`] does so, and fails all
//! requests until [`Disk::power_on`]: caches of the kernel above the disk are not written back either. All I/O is direct, so that the kernel
//! keeps no copy of the data.
//!
//! Mounting takes root and /dev/fuse. Without them a test prints that and is skipped.

use crate::fuse::{Attributes, Fallocate, Head, Init, ReplyHead, Transfer, operation};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use zerocopy::byteorder::native_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of one write at most.
const WRITE_MAX: u32 = 128 << 10;

/// The inode of the root, which is the file.
const ROOT: u64 = 1;

const REGULAR: u32 = 0o100_600;

/// Errors of Linux.
const EIO: i32 = 5;
const ENXIO: i32 = 6;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// The two copies of the data, and faults that a test has ordered.
#[derive(Debug, Default)]
struct Content {
    cache: Vec<u8>,
    medium: Vec<u8>,
    syncs: u64,
    /// Number of the next syncs that fail.
    failing_syncs: u32,
    /// Number of the next writes that wait for [`Disk::let_go`].
    to_hold: u32,
    /// Requests of the writes that wait, as they came.
    held: Vec<Vec<u8>>,
    /// Whether the power is off: reads, writes and syncs fail.
    is_off: bool,
    /// Whether holes can be punched, and ranges zeroed; `longest_hole`: bytes of the longest one.
    has_holes: bool,
    longest_hole: u64,
}

/// The disk. Dropping it takes it out of the file system.
#[derive(Debug)]
pub(crate) struct Disk {
    content: Arc<Mutex<Content>>,
    device: Arc<File>,
    folder: tempfile::TempDir,
    server: Option<JoinHandle<()>>,
}

impl Disk {
    /// Creates a disk of `size` bytes, all zero. Returns none where FUSE file systems cannot be mounted, and
    /// prints that.
    pub(crate) fn new(size: usize) -> Option<Self> {
        Self::with(Content { cache: vec![0; size], medium: vec![0; size], ..Content::default() })
    }

    /// Creates a disk on which holes can be punched, and ranges zeroed.
    pub(crate) fn with_holes(size: usize) -> Option<Self> {
        let (cache, medium) = (vec![0; size], vec![0; size]);
        Self::with(Content { cache, medium, has_holes: true, ..Content::default() })
    }

    fn with(content: Content) -> Option<Self> {
        let skipped = |why: &dyn std::fmt::Display| {
            eprintln!("SKIPPED: no disk with a volatile cache here: {why}");
            None
        };
        let device = match File::options().read(true).write(true).open("/dev/fuse") {
            Ok(device) => device,
            Err(error) => return skipped(&format!("/dev/fuse: {error}")),
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        std::fs::write(&path, []).expect("room on the disk");
        let uid = rustix::process::getuid().as_raw();
        let options = format!("fd=0,rootmode={REGULAR:o},user_id={uid},group_id=0");
        let mount = Command::new("mount")
            .args(["-i", "-t", "fuse.sluice-test", "-o", &options, "sluice-test"])
            .arg(&path)
            .stdin(Stdio::from(device.try_clone().expect("a descriptor")))
            .output();
        match mount {
            Ok(done) if done.status.success() => {}
            Ok(done) => return skipped(&String::from_utf8_lossy(&done.stderr).trim_end()),
            Err(error) => return skipped(&format!("mount: {error}")),
        }
        let (content, device) = (Arc::new(Mutex::new(content)), Arc::new(device));
        let server = {
            let (content, device) = (Arc::clone(&content), Arc::clone(&device));
            std::thread::spawn(move || serve(&device, &content))
        };
        Some(Self { content, device, folder, server: Some(server) })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().expect("nobody panicked")
    }

    /// Cuts the power and turns it on again: unsynced data is lost.
    pub(crate) fn cut(&self) {
        let mut content = self.content();
        content.cache = content.medium.clone();
        // The issuers of held writes are gone, or get an error.
        let held = std::mem::take(&mut content.held);
        content.to_hold = 0;
        held.iter().for_each(|request| reply(&self.device, request, Err(EIO)));
    }

    /// Cuts the power, but a block of 4096 bytes reaches the medium before where `survives` returns true: a
    /// cache is written back in any order.
    pub(crate) fn cut_partly(&self, mut survives: impl FnMut() -> bool) {
        const BLOCK: usize = 4096;
        let mut guard = self.content();
        let content = &mut *guard;
        for (kept, cached) in content.medium.chunks_mut(BLOCK).zip(content.cache.chunks(BLOCK)) {
            if kept != cached && survives() {
                kept.copy_from_slice(cached);
            }
        }
        drop(guard);
        self.cut();
    }

    /// Cuts the power, with the blocks where `survives` returns true on the medium, and leaves it off.
    pub(crate) fn power_off(&self, survives: impl FnMut() -> bool) {
        self.content().is_off = true;
        self.cut_partly(survives);
    }

    pub(crate) fn power_on(&self) {
        self.content().is_off = false;
    }

    /// Returns the bytes of the longest range that one request has punched or zeroed.
    pub(crate) fn longest_hole(&self) -> u64 {
        self.content().longest_hole
    }

    /// Returns the data as reads return it.
    pub(crate) fn read(&self) -> Vec<u8> {
        self.content().cache.clone()
    }

    /// Returns the data that would survive a power cut now.
    pub(crate) fn durable(&self) -> Vec<u8> {
        self.content().medium.clone()
    }

    /// Returns the number of syncs so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.content().syncs
    }

    /// Makes the next `count` syncs fail, with the unsynced data lost, as after a failed write-back.
    pub(crate) fn fail_syncs(&self, count: u32) {
        self.content().failing_syncs = count;
    }

    /// Holds writes from now on.
    pub(crate) fn hold(&self) {
        self.hold_next(u32::MAX);
    }

    /// Holds the next `count` writes. Later ones are carried out before them.
    pub(crate) fn hold_next(&self, count: u32) {
        self.content().to_hold = count;
    }

    /// Returns the number of writes that wait.
    pub(crate) fn held(&self) -> usize {
        self.content().held.len()
    }

    /// Carries out the writes that wait, in the order they came.
    pub(crate) fn let_go(&self) {
        let mut content = self.content();
        content.to_hold = 0;
        for request in std::mem::take(&mut content.held) {
            let answer = content.carry_out(&request);
            reply(&self.device, &request, answer);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        // A read of the device ends when no mount is left. A daemon in another mount namespace may keep one.
        if unmounted.is_ok_and(|status| status.success())
            && let Some(server) = self.server.take()
            && server.is_finished()
        {
            let _ = server.join();
        }
    }
}

impl Content {
    /// Carries out a request. Returns the data of the answer, or an error.
    fn carry_out(&mut self, request: &[u8]) -> Result<Vec<u8>, i32> {
        let (head, body) = Head::read_from_prefix(request).map_err(|_| EIO)?;
        match head.operation.get() {
            operation::INIT => Ok(self.init(body)),
            operation::GETATTR => Ok(self.attributes()),
            operation::SETATTR => self.set_attributes(body),
            // The flag is FOPEN_DIRECT_IO.
            operation::OPEN => Ok([0_u64.to_ne_bytes(), 1_u64.to_le_bytes()].concat()),
            operation::READ | operation::WRITE | operation::FSYNC | operation::FALLOCATE if self.is_off => {
                Err(EIO)
            }
            operation::FALLOCATE if self.has_holes => self.zero(body),
            // The search for data finds none in a disk that was never written.
            operation::LSEEK if self.has_holes && self.cache.iter().all(|byte| *byte == 0) => Err(ENXIO),
            operation::LSEEK if self.has_holes => Ok(body.get(8..16).ok_or(EIO)?.to_vec()),
            operation::READ => self.read(body),
            operation::WRITE => self.write(body),
            operation::FSYNC => self.sync(),
            operation::STATFS => Ok(vec![0; 80]),
            operation::RELEASE | operation::FLUSH => Ok(Vec::new()),
            _ => Err(ENOSYS),
        }
    }

    fn init(&self, body: &[u8]) -> Vec<u8> {
        const READAHEAD: usize = 8;
        let readahead = U32::read_from_prefix(&body[READAHEAD..]).map_or(U32::ZERO, |(value, _)| value);
        const ASYNC_READ: u32 = 1 << 0;
        const BIG_WRITES: u32 = 1 << 5;
        const ASYNC_DIO: u32 = 1 << 15;
        const MAX_PAGES: u32 = 1 << 22;
        let init = Init {
            major: U32::new(7),
            minor: U32::new(31),
            readahead_max: readahead,
            flags: U32::new(ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES),
            background_max: U16::new(64),
            congestion: U16::new(48),
            write_max: U32::new(WRITE_MAX),
            time_granularity: U32::new(1),
            pages_max: U16::new((WRITE_MAX / 4096) as u16),
            ..Init::default()
        };
        init.as_bytes().to_vec()
    }

    fn attributes(&self) -> Vec<u8> {
        let size = self.cache.len() as u64;
        let attributes = Attributes {
            inode: U64::new(ROOT),
            size: U64::new(size),
            blocks: U64::new(size.div_ceil(512)),
            mode: U32::new(REGULAR),
            links: U32::new(1),
            uid: U32::new(rustix::process::getuid().as_raw()),
            block_size: U32::new(4096),
            ..Attributes::default()
        };
        attributes.as_bytes().to_vec()
    }

    fn set_attributes(&mut self, body: &[u8]) -> Result<Vec<u8>, i32> {
        const HAS_SIZE: u32 = 1 << 3;
        const SIZE: usize = 16;
        let (valid, _) = U32::read_from_prefix(body).map_err(|_| EIO)?;
        if valid.get() & HAS_SIZE != 0 {
            let (size, _) = U64::read_from_prefix(&body[SIZE..]).map_err(|_| EIO)?;
            // A size is metadata, which a journal keeps.
            self.cache.resize(size.get() as usize, 0);
            self.medium.resize(size.get() as usize, 0);
        }
        Ok(self.attributes())
    }

    fn read(&self, body: &[u8]) -> Result<Vec<u8>, i32> {
        let (transfer, _) = Transfer::read_from_prefix(body).map_err(|_| EIO)?;
        let start = (transfer.offset.get() as usize).min(self.cache.len());
        let end = (start + transfer.size.get() as usize).min(self.cache.len());
        Ok(self.cache[start..end].to_vec())
    }

    fn write(&mut self, body: &[u8]) -> Result<Vec<u8>, i32> {
        let (transfer, data) = Transfer::read_from_prefix(body).map_err(|_| EIO)?;
        let data = data.get(..transfer.size.get() as usize).ok_or(EIO)?;
        let start = transfer.offset.get() as usize;
        let end = start + data.len();
        for copy in [&mut self.cache, &mut self.medium] {
            copy.resize(copy.len().max(end), 0);
        }
        self.cache[start..end].copy_from_slice(data);
        let dsync = rustix::fs::OFlags::DSYNC.bits();
        if transfer.flags.get() & dsync != 0 {
            self.medium[start..end].copy_from_slice(data);
        }
        Ok(u64::from(data.len() as u32).to_le_bytes().to_vec())
    }

    /// Zeroes a range, in the cache alone.
    fn zero(&mut self, body: &[u8]) -> Result<Vec<u8>, i32> {
        const KEEP_SIZE: u32 = 1;
        let (request, _) = Fallocate::read_from_prefix(body).map_err(|_| EIO)?;
        if request.mode.get() & KEEP_SIZE == 0 {
            return Err(EOPNOTSUPP);
        }
        let end = (request.offset.get() + request.length.get()).min(self.cache.len() as u64) as usize;
        let start = (request.offset.get() as usize).min(end);
        self.cache[start..end].fill(0);
        self.longest_hole = self.longest_hole.max((end - start) as u64);
        Ok(Vec::new())
    }

    fn sync(&mut self) -> Result<Vec<u8>, i32> {
        self.syncs += 1;
        if self.failing_syncs > 0 {
            self.failing_syncs -= 1;
            self.cache = self.medium.clone();
            return Err(EIO);
        }
        self.medium = self.cache.clone();
        Ok(Vec::new())
    }
}

/// Answers requests until the file system is unmounted.
fn serve(mut device: &File, content: &Mutex<Content>) {
    let mut buffer = vec![0; WRITE_MAX as usize + 8192];
    loop {
        let length = match device.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // ENOENT: the kernel withdrew the request before it was read.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) => return,
        };
        let request = &buffer[..length];
        let Ok((head, _)) = Head::read_from_prefix(request) else { return };
        let operation = head.operation.get();
        if [operation::FORGET, operation::BATCH_FORGET, operation::INTERRUPT].contains(&operation) {
            continue;
        }
        let mut content = content.lock().expect("nobody panicked");
        if operation == operation::WRITE && content.to_hold > 0 {
            content.to_hold -= 1;
            content.held.push(request.to_vec());
            continue;
        }
        let answer = content.carry_out(request);
        reply(device, request, answer);
    }
}

fn reply(mut device: &File, request: &[u8], answer: Result<Vec<u8>, i32>) {
    let Ok((head, _)) = Head::read_from_prefix(request) else { return };
    let (error, data) = match answer {
        Ok(data) => (0, data),
        Err(error) => (-error, Vec::new()),
    };
    let length = (size_of::<ReplyHead>() + data.len()) as u32;
    let reply = ReplyHead { length: U32::new(length), error: error.to_ne_bytes(), unique: head.unique };
    // Writing fails if the request was aborted.
    let _ = device.write(&[reply.as_bytes(), &data].concat());
}

/// A block device above a [`Disk`]. Two of its writes can be in flight at the same blocks, which is
/// impossible for a file.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
}

impl LoopDevice {
    /// Creates a device above a disk. Returns none where that is impossible, and prints it.
    pub(crate) fn over(disk: &Disk) -> Option<Self> {
        Self::with(&["--direct-io=on"], &disk.path())
    }

    /// Creates a device with sectors of 4096 bytes above a disk.
    pub(crate) fn of_4096(disk: &Disk) -> Option<Self> {
        Self::with(&["--direct-io=on", "--sector-size", "4096"], &disk.path())
    }

    /// Creates a device above any file.
    pub(crate) fn over_file(path: &Path) -> Option<Self> {
        Self::with(&[], path)
    }

    fn with(options: &[&str], path: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["-f", "--show"]).args(options).arg(path).output();
        let why = match made {
            Ok(made) if made.status.success() => {
                let path = String::from_utf8_lossy(&made.stdout).trim_end().to_owned();
                return Some(Self { path: path.into() });
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).trim_end().to_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("SKIPPED: no loop device here: {why}");
        None
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // The device goes when its last user has closed it.
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

/// Writes a boot identifier other than this machine's, for [`Daemon::boot`](crate::common::Daemon::boot).
pub(crate) fn boot_id(folder: &Path, number: u32) -> PathBuf {
    let path = folder.join(format!("boot-{number}"));
    std::fs::write(&path, format!("00000000-0000-4000-8000-{number:012x}\n")).expect("room on the disk");
    path
}

#[test]
fn it_loses_what_was_not_synced() {
    use rustix::fs::OFlags;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let Some(disk) = Disk::new(64 << 10) else { return };
    let open = |flags: OFlags| {
        let mut options = File::options();
        let flags = flags.bits().cast_signed();
        options.read(true).write(true).custom_flags(flags).open(disk.path()).expect("it is there")
    };
    let (plain, durable) = (open(OFlags::empty()), open(OFlags::DSYNC));
    plain.write_all_at(&[1; 4096], 0).expect("written");
    plain.sync_data().expect("synced");
    plain.write_all_at(&[2; 4096], 0).expect("written");
    durable.write_all_at(&[3; 4096], 4096).expect("written");
    let read = |offset| {
        let mut read = [0; 4096];
        plain.read_exact_at(&mut read, offset).expect("read");
        read
    };
    assert!(read(0) == [2; 4096] && read(4096) == [3; 4096]);
    disk.cut();
    assert!(read(0) == [1; 4096] && read(4096) == [3; 4096]);
    disk.fail_syncs(1);
    plain.write_all_at(&[4; 4096], 0).expect("written");
    assert!(plain.sync_data().is_err(), "it is told");
    assert!(read(0) == [1; 4096]);
    disk.hold();
    let writer = std::thread::spawn(move || durable.write_all_at(&[5; 4096], 8192));
    crate::common::wait_for("the write", || disk.held() == 1);
    assert!(read(8192) == [0; 4096]);
    disk.let_go();
    writer.join().expect("it ends").expect("written");
    assert!(disk.durable()[8192..12288] == [5; 4096] && disk.syncs() == 2);
    disk.power_off(|| true);
    assert!(plain.write_all_at(&[6; 4096], 0).is_err() && plain.sync_data().is_err(), "it is off");
    disk.power_on();
    assert!(read(0) == [1; 4096] && read(8192) == [5; 4096]);
}

#[test]
fn a_hole_is_lost_that_was_not_synced() {
    use rustix::fs::{FallocateFlags, fallocate};
    let Some(disk) = Disk::with_holes(64 << 10) else { return };
    let file = File::options().read(true).write(true).open(disk.path()).expect("it is there");
    rustix::io::pwrite(&file, &[1; 16384], 0).expect("written");
    file.sync_data().expect("synced");
    for mode in [FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE] {
        fallocate(&file, mode | FallocateFlags::KEEP_SIZE, 4096, 8192).expect("zeroed");
        assert!(disk.read()[4096..12288] == [0; 8192] && disk.durable()[..16384] == [1; 16384]);
        disk.cut();
        assert!(disk.read()[..16384] == [1; 16384]);
    }
    assert_eq!(disk.longest_hole(), 8192);
}
