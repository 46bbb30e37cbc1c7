//! The map of regions against a model, and all of its errors.

mod common;

use common::{FILE_PAGES, cases, fd, memfd};
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags, SealFlags};
use sluice_memory::{
    Access, Backing, MAX_FILES, MAX_MAPPED_BYTES, MAX_REGIONS, MapError, PAGE_SIZE, Permissions, SegmentList,
    SharedRegion, Space,
};
use sluice_nvme::Status;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

const PAGE: u64 = PAGE_SIZE as u64;
const READ_WRITE: Permissions = Permissions::READ_WRITE;

/// Change of a map, in pages.
#[derive(Clone, Debug)]
enum Step {
    Map { first: u64, pages: u64, offset: u64, permissions: Permissions, memory: bool },
    Unmap { first: u64, pages: u64 },
    UnmapAll,
    Read { at: u64, bytes: usize },
    Write { at: u64, bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let permissions = (any::<bool>(), any::<bool>()).prop_map(|(read, write)| Permissions { read, write });
    let place = || (0u64..40, 1u64..8);
    let bytes = || (0..44 * PAGE, prop_oneof![1usize..64, 1usize..20_000]);
    prop_oneof![
        6 => (place(), 0..FILE_PAGES as u64, prop_oneof![3 => Just(READ_WRITE), 1 => permissions], 0..8)
            .prop_map(|((first, pages), offset, permissions, memory)| {
                Step::Map { first, pages, offset, permissions, memory: memory > 0 }
            }),
        3 => place().prop_map(|(first, pages)| Step::Unmap { first, pages }),
        1 => Just(Step::UnmapAll),
        6 => bytes().prop_map(|(at, bytes)| Step::Read { at, bytes }),
        6 => bytes().prop_map(|(at, bytes)| Step::Write { at, bytes }),
    ]
}

/// The model: regions by first page, with their length, file offset in pages, and permissions.
#[derive(Default)]
struct Model {
    regions: BTreeMap<u64, (u64, Option<u64>, Permissions)>,
    file: Vec<u8>,
}

impl Model {
    fn at(&self, page: u64) -> Option<(u64, Permissions)> {
        let (first, (pages, offset, permissions)) = self.regions.range(..=page).next_back()?;
        (page < first + pages).then_some((offset.as_ref()? + page - first, *permissions))
    }

    /// Returns the file offset of each byte, if there is memory for all.
    fn bytes(&self, at: u64, bytes: usize, may: impl Fn(Permissions) -> bool) -> Option<Vec<usize>> {
        let byte = |at: u64| match self.at(at / PAGE) {
            Some((page, permissions)) if may(permissions) => Some((page * PAGE + at % PAGE) as usize),
            _ => None,
        };
        (at..at + bytes as u64).map(byte).collect()
    }

    fn map(
        &mut self,
        first: u64,
        pages: u64,
        offset: Option<u64>,
        permissions: Permissions,
    ) -> Result<(), MapError> {
        let meets = |(&other, (length, ..)): (&u64, &(u64, Option<u64>, Permissions))| {
            other < first + pages && first < other + length
        };
        if self.regions.iter().any(meets) {
            return Err(MapError::Overlaps);
        }
        if offset.is_some_and(|offset| offset + pages > FILE_PAGES as u64) {
            return Err(MapError::BeyondFile);
        }
        self.regions.insert(first, (pages, offset, permissions));
        Ok(())
    }

    fn unmap(&mut self, first: u64, pages: u64) -> Result<(), MapError> {
        let end = first + pages;
        let mut met: Vec<(u64, u64)> =
            self.regions.iter().map(|(&at, &(pages, ..))| (at, at + pages)).collect();
        met.retain(|&(start, stop)| start < end && first < stop);
        if met.iter().any(|&(start, stop)| start < first || end < stop) {
            return Err(MapError::PartOfRegion);
        }
        if met.is_empty() {
            return Err(MapError::NotMapped);
        }
        self.regions.retain(|start, _| !met.iter().any(|(first, _)| first == start));
        Ok(())
    }
}

struct Test {
    file: SharedRegion,
    space: Space,
    model: Model,
    base: u64,
}

impl Test {
    fn run(&mut self, step: &Step) {
        let generation = self.space.generation();
        match *step {
            Step::Map { first, pages, offset, permissions, memory } => {
                let wanted = self.model.map(first, pages, memory.then_some(offset), permissions);
                let backing = match memory {
                    true => Backing::File { fd: fd(&self.file), offset: offset * PAGE },
                    false => Backing::None,
                };
                let done = self.space.map(self.base + first * PAGE, pages * PAGE, permissions, backing);
                assert_eq!(done, wanted);
                assert_eq!(self.space.generation() != generation, done.is_ok());
            }
            Step::Unmap { first, pages } => {
                let wanted = self.model.unmap(first, pages);
                let done = self.space.unmap(self.base + first * PAGE, pages * PAGE);
                assert_eq!(
                    done.as_ref().map(|removed| assert!(!removed.is_empty())),
                    wanted.as_ref().copied()
                );
                assert_eq!(self.space.generation() != generation, done.is_ok());
            }
            Step::UnmapAll => {
                self.model.regions.clear();
                drop(self.space.unmap_all());
                assert_ne!(self.space.generation(), generation);
            }
            Step::Read { at, bytes } => self.read(at, bytes),
            Step::Write { at, bytes } => self.write(at, bytes),
        }
        assert_eq!(self.space.len(), self.model.regions.len());
    }

    /// Compares `read` and `translate` with the model.
    fn read(&mut self, at: u64, bytes: usize) {
        let wanted = self.model.bytes(at, bytes, |permissions| permissions.read);
        let wanted: Option<Vec<u8>> =
            wanted.map(|all| all.iter().map(|&byte| self.model.file[byte]).collect());
        let mut data = vec![0; bytes];
        let done = self.space.read(self.base + at, &mut data);
        assert_eq!(done.ok().map(|()| &data), wanted.as_ref());
        let mut list = SegmentList::new();
        let done = self.space.translate(self.base + at, bytes as u32, Access::Read, &mut list);
        assert_eq!(done.is_ok(), wanted.is_some());
        if let Some(wanted) = wanted {
            assert!(list.as_slice().iter().all(|segment| self.space.contains(segment)));
            assert_eq!(list.copy_to(0, &mut data), bytes);
            assert_eq!(data, wanted);
        }
    }

    fn write(&mut self, at: u64, bytes: usize) {
        let wanted = self.model.bytes(at, bytes, |permissions| permissions.write);
        let data: Vec<u8> = (0..bytes).map(|n| (n as u64 + at) as u8).collect();
        let mut list = SegmentList::new();
        let done = self.space.translate(self.base + at, bytes as u32, Access::Write, &mut list);
        assert_eq!(done.is_ok(), wanted.is_some());
        let Some(wanted) = wanted else { return };
        assert_eq!(self.space.write(self.base + at, &data), Ok(()));
        wanted.iter().zip(&data).for_each(|(&at, &byte)| self.model.file[at] = byte);
        let mut file = vec![0; self.model.file.len()];
        self.file.read(0, &mut file);
        assert!(file == self.model.file, "the write went where it should");
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn behaves_as_the_model(
        steps in prop::collection::vec(step(), 1..80),
        base in prop::sample::select(vec![0, 1 << 33, (64 * PAGE).wrapping_neg()]),
    ) {
        let file = SharedRegion::new("guest", FILE_PAGES * PAGE_SIZE).expect("a memfd");
        let contents: Vec<u8> = (0..FILE_PAGES * PAGE_SIZE).map(|n| (n ^ (n >> 11)) as u8).collect();
        file.write(0, &contents);
        let model = Model { regions: BTreeMap::new(), file: contents };
        let mut test = Test { file, space: Space::new(), model, base };
        steps.iter().for_each(|step| test.run(step));
    }
}

fn file(fd: &OwnedFd, offset: u64) -> Backing {
    Backing::File { fd: fd.try_clone().expect("a descriptor"), offset }
}

/// Opens the same file in another way.
fn reopen(fd: impl AsFd, flags: OFlags) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("open again")
}

#[test]
fn refuses_what_is_not_a_region() {
    let mut space = Space::new();
    let ram = memfd(16 * PAGE);
    let mut map = |iova, length, offset| space.map(iova, length, READ_WRITE, file(&ram, offset)).err();
    assert_eq!(map(0, 0, 0), Some(MapError::Empty));
    assert_eq!(map(1, PAGE, 0), Some(MapError::Unaligned));
    assert_eq!(map(0, PAGE - 1, 0), Some(MapError::Unaligned));
    assert_eq!(map(0, PAGE, 512), Some(MapError::Unaligned));
    assert_eq!(map(PAGE.wrapping_neg(), 2 * PAGE, 0), Some(MapError::Wraps));
    assert_eq!(map(0, 17 * PAGE, 0), Some(MapError::BeyondFile));
    assert_eq!(map(0, PAGE, 16 * PAGE), Some(MapError::BeyondFile));
    assert_eq!(map(0, PAGE, PAGE.wrapping_neg()), Some(MapError::BeyondFile));
    assert_eq!(map(PAGE.wrapping_neg(), PAGE, 0), None, "the last page there is");
    assert_eq!(space.unmap(0, 0).err(), Some(MapError::Empty));
    assert_eq!(space.unmap(2, u64::MAX).err(), Some(MapError::Wraps));
    assert_eq!(space.unmap(0, PAGE).err(), Some(MapError::NotMapped));
    assert_eq!(space.len(), 1);
}

#[test]
fn refuses_what_is_not_memory() {
    let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
    let directory = rustix::fs::open(".", OFlags::RDONLY, Mode::empty()).expect("a directory");
    let null = rustix::fs::open("/dev/zero", OFlags::RDWR, Mode::empty()).expect("a device");
    let mut path = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    path.push("not-memory");
    std::fs::write(&path, [0; 8192]).expect("a file");
    let disk = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()).expect("the file");
    // Where the build directory is on tmpfs, that file is memory indeed.
    let on_disk = rustix::fs::fcntl_get_seals(&disk).is_err();
    let mut space = Space::new();
    for fd in [pipe, directory, null].into_iter().chain(on_disk.then_some(disk)) {
        let refused = space.map(0, PAGE, READ_WRITE, Backing::File { fd, offset: 0 });
        assert_eq!(refused, Err(MapError::NotMemory));
    }
}

#[test]
fn a_descriptor_gives_no_more_access_than_it_has() {
    let ram = memfd(2 * PAGE);
    let read_only = reopen(&ram, OFlags::RDONLY);
    let write_only = reopen(&ram, OFlags::WRONLY);
    let mut space = Space::new();
    assert_eq!(space.map(0, PAGE, READ_WRITE, file(&read_only, 0)), Err(MapError::AccessDenied));
    assert_eq!(space.map(0, PAGE, READ_WRITE, file(&write_only, 0)), Err(MapError::AccessDenied));
    assert_eq!(space.map(0, PAGE, Permissions::READ_ONLY, file(&read_only, 0)), Ok(()));
    assert_eq!(space.write(0, &[1]), Err(Status::DATA_TRANSFER_ERROR));
    // The other access mode of the file is another mapping.
    assert_eq!(space.map(PAGE, PAGE, READ_WRITE, file(&ram, 0)), Ok(()));
    assert_eq!(space.write(PAGE, &[1]), Ok(()));
    let mut byte = [0];
    assert_eq!(space.read(0, &mut byte), Ok(()));
    assert_eq!(byte, [1]);

    let sealed = memfd(PAGE);
    rustix::fs::fcntl_add_seals(&sealed, SealFlags::FUTURE_WRITE).expect("a seal");
    assert_eq!(space.map(2 * PAGE, PAGE, READ_WRITE, file(&sealed, 0)), Err(MapError::AccessDenied));
    assert_eq!(space.map(2 * PAGE, PAGE, Permissions::READ_ONLY, file(&sealed, 0)), Ok(()));
}

#[test]
fn a_file_that_has_grown_is_mapped_again() {
    let ram = memfd(PAGE);
    let mut space = Space::new();
    space.map(0, PAGE, READ_WRITE, file(&ram, 0)).expect("a region");
    rustix::fs::ftruncate(&ram, 4 * PAGE).expect("grow");
    space.map(PAGE, 3 * PAGE, READ_WRITE, file(&ram, PAGE)).expect("a region beyond");
    space.write(PAGE - 2, &[1, 2, 3, 4]).expect("across the two");
    let mut bytes = [0; 4];
    space.read(PAGE - 2, &mut bytes).expect("across the two");
    assert_eq!(bytes, [1, 2, 3, 4]);
}

#[test]
fn removed_regions_are_gone_but_stay_mapped() {
    let ram = memfd(4 * PAGE);
    let mut space = Space::new();
    space.map(0, 2 * PAGE, READ_WRITE, file(&ram, 0)).expect("a region");
    space.map(1 << 30, 2 * PAGE, READ_WRITE, file(&ram, 2 * PAGE)).expect("a region");
    let mut list = SegmentList::new();
    space.translate(100, 4096, Access::Write, &mut list).expect("memory");
    let mut other = SegmentList::new();
    space.translate(1 << 30, 4096, Access::Write, &mut other).expect("memory");
    let queue = space.queue(PAGE, PAGE_SIZE, Access::Write).expect("memory");

    let removed = space.unmap(0, 2 * PAGE).expect("a region");
    assert_eq!(
        space.translate(100, 1, Access::Write, &mut SegmentList::new()),
        Err(Status::DATA_TRANSFER_ERROR)
    );
    assert!(removed.contains(&list.as_slice()[0]) && !removed.contains(&other.as_slice()[0]));
    assert!(removed.touches_pages(&queue));
    assert_eq!(list.copy_from(0, &[7; 4096]), 4096);
    let all = space.unmap_all();
    assert!(all.contains(&other.as_slice()[0]) && !all.touches_pages(&queue));
    drop((removed, all, space));
    // The queue keeps its memory mapped.
    assert_eq!(queue.load_u32(96, Ordering::Relaxed), 0x0707_0707);
    queue.store_u32(4092, 1, Ordering::Relaxed);
}

#[test]
fn a_queue_is_whole_pages_of_memory() {
    let ram = memfd(4 * PAGE);
    let mut space = Space::new();
    // Neighbours for the guest, in reverse order here.
    for n in 0..4 {
        space.map(n * PAGE, PAGE, READ_WRITE, file(&ram, (3 - n) * PAGE)).expect("a region");
    }
    let queue = space.queue(0, 4 * PAGE_SIZE, Access::Write).expect("memory");
    assert_eq!(queue.len(), 4 * PAGE_SIZE);
    for n in 0..256 {
        queue.write_completion(n * 64, n as u64, !(n as u64));
        queue.store_u32(n * 64 + 60, 5, Ordering::Relaxed);
    }
    for n in 0..256 {
        let entry = queue.read_entry(n * 64);
        assert_eq!(entry, [n as u64, !(n as u64), 0, 0, 0, 0, 0, 5 << 32]);
        let mut bytes = [0; 16];
        space.read(n as u64 * 64, &mut bytes).expect("memory");
        assert_eq!(bytes[..8], (n as u64).to_le_bytes());
    }
    queue.prefetch(0);
    queue.prefetch(1 << 20);
    assert_eq!(space.queue(512, 4096, Access::Read).err(), Some(Status::PRP_OFFSET_INVALID));
    assert_eq!(space.queue(PAGE, 4 * PAGE_SIZE, Access::Read).err(), Some(Status::DATA_TRANSFER_ERROR));
    assert_eq!(
        space.queue(PAGE.wrapping_neg(), 2 * PAGE_SIZE, Access::Read).err(),
        Some(Status::DATA_TRANSFER_ERROR)
    );
    // A last page that is partly used.
    assert_eq!(space.queue(3 * PAGE, 48, Access::Read).map(|queue| queue.len()), Ok(48));
}

#[test]
fn the_limits() {
    let mut space = Space::new();
    for n in 0..MAX_REGIONS as u64 {
        space.map(n * PAGE, PAGE, READ_WRITE, Backing::None).expect("within the limit");
    }
    let one_more = space.map(MAX_REGIONS as u64 * PAGE, PAGE, READ_WRITE, Backing::None);
    assert_eq!(one_more, Err(MapError::Limit));
    assert_eq!(space.unmap(0, u64::MAX).map(|removed| removed.is_empty()), Ok(false));
    assert!(space.is_empty());

    for n in 0..MAX_FILES as u64 {
        space.map(n * PAGE, PAGE, READ_WRITE, file(&memfd(PAGE), 0)).expect("within the limit");
    }
    let next = MAX_FILES as u64 * PAGE;
    assert_eq!(space.map(next, PAGE, READ_WRITE, file(&memfd(PAGE), 0)), Err(MapError::Limit));
    drop(space.unmap(0, PAGE).expect("a region"));
    assert_eq!(space.map(next, PAGE, READ_WRITE, file(&memfd(PAGE), 0)), Ok(()));
    drop(space.unmap_all());

    let huge = memfd(MAX_MAPPED_BYTES + PAGE);
    assert_eq!(space.map(0, PAGE, READ_WRITE, file(&huge, 0)), Err(MapError::Limit));
}

/// Checks the limit of a client's files. The whole file counts: any mapped part of it is memory that may be
/// charged to this process.
#[test]
fn files_have_no_more_memory_together_than_the_limit() {
    let mut space = Space::new();
    space.set_memory_limit(10 * PAGE);
    let sparse = memfd(1 << 40);
    assert_eq!(space.map(0, PAGE, READ_WRITE, file(&sparse, 0)), Err(MapError::TooMuchMemory));
    let (six, four, one) = (memfd(6 * PAGE), memfd(4 * PAGE), memfd(PAGE));
    space.map(0, PAGE, READ_WRITE, file(&six, 0)).expect("within the limit");
    // The same file counts once, for all access modes and mapped parts.
    space.map(PAGE, PAGE, READ_WRITE, file(&six, PAGE)).expect("it is mapped");
    space
        .map(2 * PAGE, PAGE, Permissions::READ_ONLY, file(&reopen(&six, OFlags::RDONLY), 0))
        .expect("the same");
    space.map(3 * PAGE, PAGE, READ_WRITE, file(&four, 0)).expect("just within the limit");
    assert_eq!(space.map(4 * PAGE, PAGE, READ_WRITE, file(&one, 0)), Err(MapError::TooMuchMemory));
    // A file that grows counts with its present size.
    drop(space.unmap(3 * PAGE, PAGE).expect("a region"));
    rustix::fs::ftruncate(&six, 11 * PAGE).expect("room");
    assert_eq!(space.map(4 * PAGE, PAGE, READ_WRITE, file(&six, 10 * PAGE)), Err(MapError::TooMuchMemory));
    space.map(4 * PAGE, PAGE, READ_WRITE, file(&one, 0)).expect("there is room again");
}

#[test]
fn a_clone_is_a_map_of_its_own() {
    let ram = memfd(PAGE);
    let mut space = Space::new();
    space.map(0, PAGE, READ_WRITE, file(&ram, 0)).expect("a region");
    let clone = space.clone();
    drop(space.unmap_all());
    assert_eq!((space.write(0, &[1]), clone.write(0, &[1])), (Err(Status::DATA_TRANSFER_ERROR), Ok(())));
    std::thread::spawn(move || assert_eq!(clone.write(0, &[2]), Ok(()))).join().expect("on another thread");
}

#[test]
fn thousands_of_regions_are_one_mapping() {
    let mappings =
        || std::fs::read_to_string("/proc/self/maps").expect("maps").matches("many-regions").count();
    let ram = SharedRegion::new("many-regions", 4096 * PAGE_SIZE).expect("a memfd");
    let mut space = Space::new();
    for n in 0..4096 {
        let backing = Backing::File { fd: fd(&ram), offset: (n * 7 % 4096) * PAGE };
        space.map(n * 2 * PAGE, PAGE, READ_WRITE, backing).expect("a region");
    }
    assert_eq!(mappings(), 2, "ours, and the one behind all regions");
    drop(space);
    assert_eq!(mappings(), 1);
}

/// Checks windows that overlap in the file, in any order, with holes: their union is removed, and the memory
/// between them is not.
#[test]
fn removed_memory_is_what_its_windows_cover() {
    const WINDOWS: [(u64, u64); 6] = [(20, 4), (3, 2), (22, 5), (40, 1), (4, 6), (41, 1)];
    const FILE: u64 = 64;
    const WHOLE: u64 = 1 << 40;
    let fd = memfd(FILE * PAGE);
    let mut space = Space::new();
    space.map(WHOLE, FILE * PAGE, READ_WRITE, file(&fd, 0)).expect("a region");
    for (n, (first, pages)) in WINDOWS.into_iter().enumerate() {
        let iova = n as u64 * 16 * PAGE;
        space.map(iova, pages * PAGE, READ_WRITE, file(&fd, first * PAGE)).expect("a region");
    }
    let removed = space.unmap(0, WHOLE).expect("all windows");
    for page in 0..FILE {
        let mut list = SegmentList::new();
        space.translate(WHOLE + page * PAGE, 4096, Access::Read, &mut list).expect("memory");
        let covered = WINDOWS.iter().any(|(first, pages)| (*first..first + pages).contains(&page));
        assert_eq!(removed.contains(&list.as_slice()[0]), covered, "page {page}");
    }
}

/// Checks the file of a segment, which is mapped for a device; and that it is held for as long as a region of
/// it is mapped, however many regions are added and removed.
#[test]
fn files_can_be_shown_to_others() {
    let (ram, other) = (memfd(4 * PAGE), memfd(PAGE));
    let mut space = Space::with_files();
    space.map(0, 2 * PAGE, READ_WRITE, file(&ram, PAGE)).expect("a region");
    space.map(8 * PAGE, PAGE, READ_WRITE, file(&ram, 0)).expect("a region");
    space.map(9 * PAGE, PAGE, READ_WRITE, file(&other, 0)).expect("a region");
    let mut list = SegmentList::new();
    space.translate(PAGE, 512, Access::Write, &mut list).expect("memory");
    let segment = list.as_slice()[0];
    let shown = space.file_of(&segment).expect("a file");
    assert_eq!((shown.len(), shown.is_writable()), (4 * PAGE, true));
    assert_eq!(segment.pointer().addr() - shown.address(), 2 * PAGE_SIZE);
    let copy = SharedRegion::from_fd(shown.fd().try_clone_to_owned().expect("a copy"), 0, 4 * PAGE_SIZE);
    space.write(PAGE, &[7]).expect("memory");
    let mut byte = [0];
    copy.expect("mapped").read(2 * PAGE_SIZE, &mut byte);
    assert_eq!(byte, [7]);

    let first = space.unmap(0, 2 * PAGE).expect("a region");
    assert!(first.holds(&shown) && space.holds(&shown));
    let second = space.unmap(8 * PAGE, PAGE).expect("a region");
    assert!(second.holds(&shown) && !space.holds(&shown));
    assert!(!space.unmap_all().holds(&shown));
}

#[test]
fn a_space_that_keeps_no_descriptors_has_no_files() {
    let mut space = Space::new();
    space.map(0, PAGE, READ_WRITE, file(&memfd(PAGE), 0)).expect("a region");
    let mut list = SegmentList::new();
    space.translate(0, 512, Access::Write, &mut list).expect("memory");
    assert!(space.file_of(&list.as_slice()[0]).is_none());
}
