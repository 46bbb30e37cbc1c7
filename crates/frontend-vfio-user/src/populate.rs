//! Population of the memory that clients share, on a thread of the process. The thread populates a chunk for
//! each client in turn, so that a client with very much memory keeps no other waiting.
//!
//! The kernel charges pages to the daemon that no other process has touched before. The limit of a socket's
//! memory bounds them, since it counts files as a whole.

use sluice_frontend::{LogLimit, limited};
use sluice_memory::Unpopulated;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Regions of a client that wait to be populated; further ones are left as they are.
const WAITING_MAX: usize = 64;

/// Sender of jobs to the thread; `None` until a client has shared memory.
static THREAD: Mutex<Option<Sender<Job>>> = Mutex::new(None);

/// Region of a client to be populated.
#[derive(Debug)]
struct Job {
    memory: Unpopulated,
    drive: Arc<str>,
    place: Place,
}

/// Place among the regions of a client that wait.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(waiting: &Arc<AtomicUsize>) -> Option<Self> {
        let one_more = |count: usize| (count < WAITING_MAX).then_some(count + 1);
        waiting.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(waiting)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Populator of the memory that the clients of one socket share.
#[derive(Debug)]
pub(super) struct Populator {
    drive: Arc<str>,
    waiting: Arc<AtomicUsize>,
}

impl Populator {
    pub(super) fn new(drive: &str) -> Self {
        Self { drive: drive.into(), waiting: Arc::default() }
    }

    /// Populates memory on the thread, if there is any and few other regions of the socket wait. Returns at
    /// once.
    pub(super) fn populate(&self, memory: Option<Unpopulated>) {
        let Some((memory, place)) = memory.zip(Place::take(&self.waiting)) else { return };
        let job = Job { memory, drive: Arc::clone(&self.drive), place };
        // A panic ends the process, so the lock is never poisoned. The lock is held for a moment only.
        let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
        // If no thread can be started, the next region tries again.
        if thread.get_or_insert_with(start).send(job).is_err() {
            *thread = None;
        }
    }
}

fn start() -> Sender<Job> {
    let (sender, receiver) = channel();
    let run = move || populate_all(&receiver);
    if let Err(error) = std::thread::Builder::new().name("populate".to_owned()).spawn(run) {
        tracing::warn!(%error, "cannot start a thread that populates the memory of clients");
    }
    sender
}

/// Populates a chunk of each region in turn.
fn populate_all(jobs: &Receiver<Job>) {
    let (mut waiting, mut warnings, began) = (VecDeque::new(), LogLimit::default(), Instant::now());
    loop {
        if waiting.is_empty() {
            let Ok(job) = jobs.recv() else { return };
            waiting.push_back(job);
        }
        waiting.extend(jobs.try_iter());
        let Some(mut job) = waiting.pop_front() else { continue };
        match job.memory.populate_next() {
            Ok(true) => waiting.push_back(job),
            Ok(false) => drop(job.place),
            Err(error) => {
                let now_ns = began.elapsed().as_nanos() as u64;
                limited!(
                    warn,
                    warnings,
                    now_ns,
                    drive = &*job.drive,
                    %error,
                    "a part of the client's memory is not populated: its file has become smaller, its file system is full, \
                     or the kernel is older than 5.14"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
    use sluice_memory::{Backing, MapError, Permissions, Space};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    const SIZE: u64 = 5 << 20;

    /// Makes a file in memory without any page.
    fn file() -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, SIZE).expect("room");
        file
    }

    fn map(space: &mut Space, file: &OwnedFd, offset: u64, length: u64) -> Result<(), MapError> {
        let fd = file.try_clone().expect("a descriptor");
        space.map(offset, length, Permissions::READ_WRITE, Backing::File { fd, offset })
    }

    fn bytes(file: &OwnedFd) -> u64 {
        fstat(file).expect("it is ours").st_blocks as u64 * 512
    }

    fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_idle(populator: &Populator) -> bool {
        populator.waiting.load(Relaxed) == 0
    }

    #[test]
    fn the_pages_of_a_region_are_there_and_no_others() {
        let (file, mut space, populator) = (file(), Space::new(), Populator::new("a"));
        map(&mut space, &file, 1 << 20, 3 << 20).expect("mapped");
        populator.populate(space.unpopulated(1 << 20));
        wait_for("populated", || is_idle(&populator));
        assert_eq!(bytes(&file), 3 << 20);
        assert!(space.unpopulated(0).is_none());
    }

    #[test]
    fn memory_beyond_the_limit_is_neither_mapped_nor_populated() {
        let (file, mut space, populator) = (file(), Space::new(), Populator::new("a"));
        space.set_memory_limit(SIZE - 4096);
        assert_eq!(map(&mut space, &file, 0, 4096), Err(MapError::TooMuchMemory));
        populator.populate(space.unpopulated(0));
        assert!(is_idle(&populator) && bytes(&file) == 0);
    }

    #[test]
    fn a_file_that_becomes_smaller_or_is_unmapped_does_no_harm() {
        let (small, gone, mut space, populator) = (file(), file(), Space::new(), Populator::new("a"));
        map(&mut space, &small, 0, SIZE).expect("mapped");
        let memory = space.unpopulated(0);
        ftruncate(&small, 1 << 20).expect("it is ours");
        populator.populate(memory);
        wait_for("given up", || is_idle(&populator));
        assert!(bytes(&small) <= 1 << 20);
        drop(space.unmap_all());
        map(&mut space, &gone, 0, SIZE).expect("mapped");
        let memory = space.unpopulated(0);
        drop(space.unmap_all());
        populator.populate(memory);
        wait_for("given up", || is_idle(&populator));
        assert_eq!(bytes(&gone), 0);
        // The thread goes on.
        map(&mut space, &gone, 0, SIZE).expect("mapped");
        populator.populate(space.unpopulated(0));
        wait_for("populated", || bytes(&gone) == SIZE);
    }

    #[test]
    fn a_client_has_few_regions_that_wait() {
        let waiting = Arc::default();
        let places: Vec<Place> = (0..WAITING_MAX).filter_map(|_| Place::take(&waiting)).collect();
        assert_eq!(places.len(), WAITING_MAX);
        assert!(Place::take(&waiting).is_none());
        drop(places);
        assert!(Place::take(&waiting).is_some());
    }
}
