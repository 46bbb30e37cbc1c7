//! A client that truncates its file affects its own commands and no others.

mod common;

use common::memfd;
use rustix::fs::MemfdFlags;
use sluice_memory::{
    Access, Arena, Backing, PAGE_SIZE, Permissions, SegmentList, SharedRegion, Space, walk_prp,
};
use sluice_nvme::Status;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::Ordering;

const PAGE: u64 = PAGE_SIZE as u64;

fn map(space: &mut Space, iova: u64, fd: &OwnedFd, length: u64) {
    let backing = Backing::File { fd: fd.try_clone().expect("a descriptor"), offset: 0 };
    space.map(iova, length, Permissions::READ_WRITE, backing).expect("a region");
}

#[test]
fn a_truncated_file_reads_zeros_and_poisons_its_map() {
    let (ram, other) = (memfd(64 * PAGE), memfd(PAGE));
    let mut space = Space::new();
    map(&mut space, 0, &ram, 64 * PAGE);
    map(&mut space, 1 << 30, &other, PAGE);
    space.write(0, &[7; 64 * PAGE_SIZE]).expect("memory");
    let mut list = SegmentList::new();
    space.translate(0, 64 * PAGE as u32, Access::Write, &mut list).expect("memory");

    rustix::fs::ftruncate(&ram, 2 * PAGE).expect("truncated");
    assert!(!space.poisoned());
    let mut bytes = vec![1; 64 * PAGE_SIZE];
    assert_eq!(list.copy_to(0, &mut bytes), bytes.len());
    assert!(bytes[..2 * PAGE_SIZE].iter().all(|&byte| byte == 7));
    assert!(bytes[2 * PAGE_SIZE..].iter().all(|&byte| byte == 0));
    assert!(space.poisoned());

    // Data in flight goes nowhere; later translations fail, in this file and not in the other.
    assert_eq!(list.copy_from(0, &bytes), bytes.len());
    let later = space.translate(0, 512, Access::Read, &mut SegmentList::new());
    assert_eq!(later, Err(Status::DATA_TRANSFER_ERROR));
    assert_eq!(space.queue(0, 64, Access::Read).err(), Some(Status::DATA_TRANSFER_ERROR));
    assert_eq!(space.write(1 << 30, &[1; 64]), Ok(()));
    drop(space.unmap(0, 64 * PAGE).expect("a region"));
    assert!(!space.poisoned());
}

#[test]
fn a_file_that_comes_back_is_mapped_anew() {
    let ram = memfd(4 * PAGE);
    let mut space = Space::new();
    map(&mut space, 0, &ram, 4 * PAGE);
    let queue = space.queue(0, 4 * PAGE_SIZE, Access::Write).expect("memory");
    rustix::fs::ftruncate(&ram, 0).expect("truncated");
    assert_eq!(queue.read_entry(0), [0; 8]);
    queue.write_completion(4096, 1, 2);
    queue.store_u32(8192, 1, Ordering::Release);
    drop(space.unmap_all());

    rustix::fs::ftruncate(&ram, 4 * PAGE).expect("grown");
    map(&mut space, 0, &ram, 4 * PAGE);
    assert_eq!((space.write(4096, &[5; 16]), space.poisoned()), (Ok(()), false));
    assert_eq!(queue.read_entry(4096)[..2], [1, 2], "the old queue is still the old mapping");
}

#[test]
fn every_way_of_touching_it_survives() {
    // The command may fail or not; the process must survive.
    type Touch = fn(&Space, &SegmentList) -> bool;
    let touches: [Touch; 5] = [
        |space, _| space.read(PAGE, &mut [0; 64]).is_ok(),
        |space, _| space.write(PAGE, &[0; 64]).is_ok(),
        |space, _| walk_prp(space, 0, PAGE, 65536, PAGE_SIZE, Access::Read, &mut SegmentList::new()).is_ok(),
        |_, list| Arena::new(64 << 20).expect("memory").write_from(0, list).is_ok(),
        |_, list| Arena::new(64 << 20).expect("memory").read_into(0, list).is_ok(),
    ];
    let mut outcomes = Vec::new();
    for touch in touches {
        let ram = memfd(32 * PAGE);
        let mut space = Space::new();
        map(&mut space, 0, &ram, 32 * PAGE);
        let mut list = SegmentList::new();
        space.translate(0, 32 * PAGE as u32, Access::Write, &mut list).expect("memory");
        rustix::fs::ftruncate(&ram, 0).expect("truncated");
        outcomes.push(touch(&space, &list));
        assert!(space.poisoned());
    }
    // The list that reads as zeros names pages of a map that is poisoned by then.
    assert_eq!(outcomes, [true, true, false, true, true]);
}

/// Checks huge pages on a machine with and without them. Without, the first touch faults; with them the one
/// after the truncation does.
#[test]
fn huge_pages() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(ram) = rustix::fs::memfd_create("huge", flags) else {
        return eprintln!("this kernel has no huge pages");
    };
    let length = 4 << 20;
    rustix::fs::ftruncate(&ram, length).expect("length");
    let mut space = Space::new();
    map(&mut space, 0, &ram, length);
    let mut list = SegmentList::new();
    space.translate(0, length as u32, Access::Write, &mut list).expect("memory");
    // The middle of the second huge page.
    assert_eq!(list.copy_from(3 << 20, &[1; 64]), 64);
    rustix::fs::ftruncate(&ram, 0).expect("truncated");
    list.fill(0, length as usize, 1);
    assert!(space.poisoned());
    drop(space);
}

/// Variable with the path of a file system for the test below.
const SMALL: &str = "SLUICE_TEST_SMALL_TMPFS";

#[test]
fn a_full_file_system_in_memory_poisons_its_map() {
    let program = std::env::current_exe().expect("this program");
    let script = "mount -t tmpfs -o size=64k sluice-test /tmp || exit 77; exec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(program)
        .args(["--exact", "is_on_a_full_tmpfs", "--ignored"])
        .env(SMALL, "/tmp")
        .output();
    match output.map(|output| (output.status.code(), output)) {
        Ok((Some(0), _)) => {}
        // No such program, no namespaces, or no mounts in them.
        Err(error) => eprintln!("skipped: {error}"),
        Ok((Some(1 | 77), output)) if !String::from_utf8_lossy(&output.stdout).contains("running") => {
            eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok((_, output)) => panic!("{output:?}"),
    }
}

#[test]
#[ignore = "needs a small tmpfs; run by another test"]
fn is_on_a_full_tmpfs() {
    let folder = std::env::var(SMALL).expect("it is run by another test");
    let path = std::path::Path::new(&folder).join("ram");
    let ram: OwnedFd =
        std::fs::File::options().read(true).write(true).create_new(true).open(path).expect("a file").into();
    rustix::fs::ftruncate(&ram, 64 * PAGE).expect("no page is there yet");
    let mut space = Space::new();
    map(&mut space, 0, &ram, 64 * PAGE);
    let mut list = SegmentList::new();
    space.translate(0, 64 * PAGE as u32, Access::Write, &mut list).expect("memory");
    list.fill(0, 64 * PAGE_SIZE, 7);
    assert!(space.poisoned(), "there is no room for so much");
    assert_eq!(space.write(0, &[1; 64]), Err(Status::DATA_TRANSFER_ERROR));
}

#[test]
fn a_region_that_a_peer_truncates() {
    let bar = memfd(2 * PAGE);
    let region =
        SharedRegion::from_fd(bar.try_clone().expect("a descriptor"), PAGE, PAGE_SIZE).expect("a BAR");
    region.atomic_u32(8).store(3, Ordering::Relaxed);
    rustix::fs::ftruncate(&bar, 0).expect("truncated");
    assert_eq!(region.atomic_u32(8).load(Ordering::Relaxed), 0);
}

#[test]
fn many_threads_and_many_clients() {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..50 {
                    let ram = memfd(16 * PAGE);
                    let mut space = Space::new();
                    map(&mut space, 0, &ram, 16 * PAGE);
                    let mut list = SegmentList::new();
                    space.translate(0, 16 * PAGE as u32, Access::Write, &mut list).expect("memory");
                    let keep = round % 16;
                    rustix::fs::ftruncate(&ram, keep * PAGE).expect("truncated");
                    list.fill(0, 16 * PAGE_SIZE, 9);
                    assert!(space.poisoned());
                    let mut file = vec![0; (keep * PAGE) as usize];
                    assert_eq!(rustix::io::pread(&ram, &mut file, 0), Ok(file.len()));
                    assert!(file.iter().all(|&byte| byte == 9), "what is left of the file was written");
                }
            });
        }
    });
}

#[test]
fn places_in_the_table_are_used_again() {
    for _ in 0..=sluice_memory::fault::MAX_MAPPINGS {
        drop(SharedRegion::new("short-lived", PAGE_SIZE).expect("a place"));
    }
}

/// Runs one of the ignored tests below, each of which ends its process.
fn die(test: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args(["--exact", test, "--ignored"]).output().expect("a child");
    output.status
}

#[test]
fn a_fault_that_is_not_ours_ends_the_process() {
    assert_eq!(die("faults_elsewhere").signal(), Some(libc::SIGBUS));
    assert_eq!(die("is_sent_the_signal").signal(), Some(libc::SIGBUS));
}

#[test]
#[ignore = "ends the process; run by another test"]
#[allow(unsafe_code)] // The fault has to be made somewhere that the crate knows nothing of.
fn faults_elsewhere() {
    let _region = SharedRegion::new("installs the handler", PAGE_SIZE).expect("a region");
    let file = memfd(0);
    // SAFETY: a new mapping; reading it raises SIGBUS, as it is meant to.
    unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let page = mmap(std::ptr::null_mut(), PAGE_SIZE, ProtFlags::READ, MapFlags::SHARED, &file, 0);
        page.expect("a mapping").cast::<u8>().read_volatile();
    }
}

#[test]
#[ignore = "ends the process; run by another test"]
fn is_sent_the_signal() {
    let _region = SharedRegion::new("installs the handler", PAGE_SIZE).expect("a region");
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS).expect("sent");
    std::thread::park();
}
