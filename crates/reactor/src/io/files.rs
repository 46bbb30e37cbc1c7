//! Table of registered files, and the signals in flight to eventfds among them.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::{fmt, io};

use io_uring::squeue::{Entry, Flags};
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::process::{Resource, getrlimit};

use super::Core;
use super::eager::Record;
use crate::task::TaskId;

/// Memory that operations may name.
pub(super) type Kept = Arc<dyn Any + Send + Sync>;

/// Receiver of the results of a file's operations, beside the task. It receives them also after the owner has dropped
/// the file.
pub trait Results: Send + Sync {
    /// Takes a result before the task does. Called on the reactor.
    fn ended(&self, result: i32);
}

/// The receiver of a file's results.
#[derive(Clone)]
struct Receiver(Arc<dyn Results>);

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// A file, and the place of its registration.
#[derive(Debug)]
pub(super) struct Registration {
    file: OwnedFd,
    /// The number of the reactor in the high half, the index in its table in the low one. Written by the
    /// reactor that has the task.
    place: AtomicU64,
    /// Set when the owner dropped the file on a thread where the file was not registered.
    is_stray: AtomicBool,
}

/// Counts a stray file, so that the reactor searches for it.
impl Drop for Registration {
    fn drop(&mut self) {
        if *self.is_stray.get_mut() {
            STRAYS.fetch_add(1, Release);
        }
    }
}

impl Registration {
    fn of_place(reactor: u32, index: u32) -> u64 {
        u64::from(reactor) << 32 | u64::from(index)
    }

    /// Returns the index, if the file is registered with this reactor.
    pub(super) fn index_on(&self, reactor: u32) -> Option<u32> {
        let place = self.place.load(Relaxed);
        ((place >> 32) as u32 == reactor).then_some(place as u32)
    }

    fn place(&self, reactor: u32, index: u32) {
        self.place.store(Self::of_place(reactor, index), Relaxed);
    }

    /// Handles the drop of the owner: calls `retire` with the index, if that is on the reactor of this
    /// thread. Otherwise the reactor finds the file when it next registers one.
    pub(super) fn dropped(&self, retire: impl FnOnce(&mut Core, u32)) {
        let here = Core::of_thread_if_any(|core| self.index_on(core.number).map(|index| retire(core, index)));
        if here.flatten().is_none() {
            self.is_stray.store(true, Relaxed);
        }
    }
}

/// Number of files that were dropped where they were not registered.
static STRAYS: AtomicU64 = AtomicU64::new(0);

pub(super) fn strays() -> u64 {
    STRAYS.load(Acquire)
}

impl AsFd for Registration {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A file registered with a reactor's ring; it moves with its task. Dropping it, where the task is,
/// unregisters and closes the file when the operations that were started on it are done.
#[derive(Debug)]
pub struct FileSlot(pub(super) Arc<Registration>);

impl AsFd for FileSlot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Drop for FileSlot {
    fn drop(&mut self) {
        // The kernel's table holds the file itself; this descriptor may be closed now.
        self.0.dropped(Core::retire);
    }
}

/// Returns a write of 1 to an eventfd. The kernel does not write to a blocking one from the ring: it polls and
/// tries 128 times, and then passes the write to a worker. With the flag the worker is first, and waits by a
/// poll, too, while the eventfd is full.
fn signal_entry(index: u32, is_blocking: bool) -> Entry {
    static ONE: u64 = 1;
    let bytes = std::ptr::from_ref(&ONE).cast::<u8>();
    let entry = opcode::Write::new(types::Fixed(index), bytes, size_of::<u64>() as u32).build();
    if is_blocking { entry.flags(Flags::ASYNC) } else { entry }
}

/// Returns whether operations on a file wait. A later change of the flag costs attempts, nothing else.
fn is_blocking(file: &OwnedFd) -> bool {
    fcntl_getfl(file).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
}

/// Returns a multishot poll for readability.
pub(super) fn watch_entry(index: u32) -> Entry {
    let events = u32::from(PollFlags::IN.bits());
    opcode::PollAdd::new(types::Fixed(index), events).multi(true).build()
}

/// Operations of a ring that a table of files needs.
pub(super) trait Registers {
    /// Makes room for this many files.
    fn register_sparse(&self, count: u32) -> io::Result<()>;
    /// Registers `files` at `index` and the following indices; -1 clears an entry. Returns how many were
    /// registered: fewer if the next one failed.
    fn register_at(&self, index: u32, files: &[RawFd]) -> io::Result<usize>;
}

#[derive(Debug, Default)]
struct FileState {
    /// Operations in flight, from the call that starts each to its completion. The kernel looks a file up
    /// when it executes an operation, which may be after the submission.
    in_flight: u32,
    /// The owner has dropped the file.
    retired: bool,
    /// The file was registered without O_NONBLOCK.
    blocks: bool,
    /// A signal is in flight; `again` if another was requested meanwhile.
    signal: bool,
    again: bool,
    /// A poll was started that ends only when it is cancelled.
    watched: bool,
    /// Results of earlier receives, if the file is a socket.
    record: Record,
    /// Memory that operations on the file may still name.
    kept: Option<Kept>,
    results: Option<Receiver>,
    /// Owner of the file, and the registration that the owner holds.
    owned: Option<(TaskId, Weak<Registration>)>,
}

/// A file of a task that moves.
#[derive(Debug)]
pub(super) struct MovedFile {
    pub(super) file: Arc<Registration>,
    /// Index on the previous reactor.
    pub(super) index: u32,
    kept: Option<Kept>,
    results: Option<Receiver>,
}

impl MovedFile {
    pub(super) fn left(&self) -> StaleFile {
        StaleFile { file: Arc::downgrade(&self.file), index: self.index }
    }
}

/// A file that a task had on this reactor.
#[derive(Debug)]
pub(super) struct StaleFile {
    file: Weak<Registration>,
    index: u32,
}

/// Files that are registered here, but not yet in use by their task.
pub(super) struct RegisteredFiles(Vec<(Arc<Registration>, u32)>);

impl RegisteredFiles {
    /// Puts the files into use on this reactor.
    pub(super) fn place(self, reactor: u32) {
        self.0.iter().for_each(|(file, index)| file.place(reactor, *index));
    }
}

pub(super) struct FileTable {
    /// Number of the reactor.
    reactor: u32,
    capacity: u32,
    /// Indices below `uses.len()` that are free.
    free: Vec<u32>,
    /// State by index; as long as the highest index used so far.
    uses: Vec<FileState>,
}

impl FileTable {
    pub(super) fn register(ring: &impl Registers, limit: u32, reactor: u32) -> io::Result<Self> {
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let capacity = limit.min(u32::try_from(open_files).unwrap_or(u32::MAX)).max(1);
        ring.register_sparse(capacity)?;
        Ok(Self { reactor, capacity, free: Vec::new(), uses: Vec::new() })
    }

    pub(super) fn insert(
        &mut self,
        ring: &impl Registers,
        file: OwnedFd,
        owner: TaskId,
    ) -> io::Result<Arc<Registration>> {
        let index = self.put(ring, &file)?;
        self.of(index).blocks = is_blocking(&file);
        let place = AtomicU64::new(Registration::of_place(self.reactor, index));
        let registration = Arc::new(Registration { file, place, is_stray: AtomicBool::new(false) });
        self.of(index).owned = Some((owner, Arc::downgrade(&registration)));
        Ok(registration)
    }

    pub(super) fn put(&mut self, ring: &impl Registers, file: &OwnedFd) -> io::Result<u32> {
        let index = self.reserve()?;
        if let Err(error) = ring.register_at(index, &[file.as_raw_fd()]) {
            self.free.push(index);
            return Err(error);
        }
        Ok(index)
    }

    /// Returns the files whose owner was dropped on another thread.
    pub(super) fn strays(&self) -> Vec<u32> {
        let is_stray = |state: &FileState| match &state.owned {
            Some((_, file)) => !state.retired && file.strong_count() == 0,
            None => false,
        };
        (0..).zip(&self.uses).filter(|(_, state)| is_stray(state)).map(|(index, _)| index).collect()
    }

    /// Returns the files of a task that moves, which stay registered here as well, until they are
    /// [released](Self::leave).
    pub(super) fn pack(&self, task: TaskId) -> Vec<MovedFile> {
        let pack = |(index, state): (u32, &FileState)| {
            let (_, file) = state.owned.as_ref().filter(|(owner, _)| *owner == task && !state.retired)?;
            let (kept, results) = (state.kept.clone(), state.results.clone());
            Some(MovedFile { file: file.upgrade()?, index, kept, results })
        };
        (0..).zip(&self.uses).filter_map(pack).collect()
    }

    /// Registers the files of a task that arrives, all of them or none. Files that are registered here
    /// already are its own.
    pub(super) fn unpack(
        &mut self,
        ring: &impl Registers,
        packed: &[MovedFile],
        owner: TaskId,
    ) -> io::Result<RegisteredFiles> {
        let reactor = self.reactor;
        let coming: Vec<&MovedFile> =
            packed.iter().filter(|it| it.file.index_on(reactor).is_none()).collect();
        let indices = self.reserve_all(coming.len())?;
        let mut count = 0;
        for run in indices.chunk_by(|a, b| a + 1 == *b) {
            let files: Vec<RawFd> =
                coming[count..].iter().take(run.len()).map(|it| it.file.file.as_raw_fd()).collect();
            let done = ring.register_at(run[0], &files);
            count += *done.as_ref().unwrap_or(&0);
            if done.as_ref().ok() != Some(&run.len()) {
                self.free.extend(&indices[count..]);
                self.unregister(ring, indices[..count].to_vec());
                return Err(done.err().unwrap_or(io::Error::from_raw_os_error(libc::ENOMEM)));
            }
        }
        let arrived =
            coming.into_iter().zip(indices).map(|(MovedFile { file, kept, results, .. }, index)| {
                let state = self.of(index);
                state.results.clone_from(results);
                (state.kept, state.owned) = (kept.clone(), Some((owner, Arc::downgrade(file))));
                state.blocks = is_blocking(&file.file);
                (Arc::clone(file), index)
            });
        Ok(RegisteredFiles(arrived.collect()))
    }

    /// Unregisters the files of a task that cannot stay, because others of its files cannot be registered.
    pub(super) fn unregister_all(&mut self, ring: &impl Registers, arrived: RegisteredFiles) {
        self.unregister(ring, arrived.0.into_iter().map(|(_, index)| index).collect());
    }

    /// Unregisters the files of a task that has them on another reactor now, and nothing in flight here.
    pub(super) fn leave(&mut self, ring: &impl Registers, left: Vec<StaleFile>) {
        let is_its = |StaleFile { file, index }: &StaleFile| {
            let state = self.uses.get(*index as usize);
            let owned = state.and_then(|state| state.owned.as_ref());
            // Skips an index that another file has taken since.
            owned.is_some_and(|(_, its)| its.ptr_eq(file))
        };
        let indices = left.iter().filter(|left| is_its(left)).map(|left| left.index).collect();
        self.unregister(ring, indices);
    }

    /// Reserves this many indices, in ascending order.
    fn reserve_all(&mut self, count: usize) -> io::Result<Vec<u32>> {
        let mut indices = Vec::with_capacity(count);
        while indices.len() < count {
            match self.reserve() {
                Ok(index) => indices.push(index),
                Err(error) => {
                    self.free.extend(indices);
                    return Err(error);
                }
            }
        }
        indices.sort_unstable();
        Ok(indices)
    }

    fn reserve(&mut self) -> io::Result<u32> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        let index = self.uses.len() as u32;
        if index >= self.capacity {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        self.uses.push(FileState::default());
        Ok(index)
    }

    fn of(&mut self, index: u32) -> &mut FileState {
        &mut self.uses[index as usize]
    }

    /// Counts an operation on the file that starts.
    pub(super) fn begin(&mut self, index: u32) {
        self.of(index).in_flight += 1;
    }

    /// Counts an operation on the file that has ended.
    pub(super) fn end(&mut self, ring: &impl Registers, index: u32) {
        self.of(index).in_flight -= 1;
        self.unregister_if_done(ring, index);
    }

    /// Marks a file as dropped by its owner. Returns whether a signal or a poll is in flight, which might
    /// never end by itself.
    pub(super) fn retire(&mut self, ring: &impl Registers, index: u32) -> bool {
        self.of(index).retired = true;
        self.unregister_if_done(ring, index);
        self.of(index).signal || self.of(index).watched
    }

    pub(super) fn record(&mut self, index: u32) -> &mut Record {
        &mut self.of(index).record
    }

    pub(super) fn begin_watch(&mut self, index: u32) {
        self.of(index).watched = true;
    }

    pub(super) fn keep(&mut self, index: u32, memory: Kept) {
        self.of(index).kept = Some(memory);
    }

    pub(super) fn report(&mut self, index: u32, to: Arc<dyn Results>) {
        self.of(index).results = Some(Receiver(to));
    }

    /// Passes the result of an operation to the receiver of the file's results.
    #[inline]
    pub(super) fn reported(&self, index: u32, result: i32) {
        let state = self.uses.get(index as usize);
        if let Some(Receiver(results)) = state.and_then(|state| state.results.as_ref()) {
            results.ended(result);
        }
    }

    pub(super) fn is_retired(&mut self, index: u32) -> bool {
        self.of(index).retired
    }

    fn unregister_if_done(&mut self, ring: &impl Registers, index: u32) {
        if self.of(index).in_flight > 0 || !self.of(index).retired {
            return;
        }
        self.unregister(ring, vec![index]);
    }

    /// Unregisters these indices, whichever file each belongs to, and frees them.
    fn unregister(&mut self, ring: &impl Registers, mut indices: Vec<u32>) {
        indices.sort_unstable();
        for run in indices.chunk_by(|a, b| a + 1 == *b) {
            if let Err(error) = ring.register_at(run[0], &vec![-1; run.len()]) {
                // The kernel lacks memory; the next file with this index replaces this one.
                tracing::warn!(index = run[0], %error, "a file could not be unregistered");
            }
        }
        indices.iter().for_each(|index| *self.of(*index) = FileState::default());
        self.free.extend(indices);
    }

    /// Returns the write of a signal.
    pub(super) fn signal_entry(&mut self, index: u32) -> Entry {
        signal_entry(index, self.of(index).blocks)
    }

    /// Returns whether a write must be pushed; false if a further one will follow the write in flight.
    pub(super) fn begin_signal(&mut self, index: u32) -> bool {
        let state = self.of(index);
        state.again = state.signal;
        !std::mem::replace(&mut state.signal, true)
    }

    /// Ends a write; `unsent` if it did not happen. Returns whether another must follow, such as for a signal
    /// that was requested meanwhile.
    pub(super) fn end_signal(&mut self, index: u32, unsent: bool) -> bool {
        let state = self.of(index);
        state.signal = (std::mem::take(&mut state.again) || unsent) && !state.retired;
        state.signal
    }
}
