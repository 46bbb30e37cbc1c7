//! The table of registered files, and the signals on their way to eventfds among them.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::process::{Resource, getrlimit};

use super::Core;
use super::eager::Record;
use crate::task::TaskId;

/// Memory that operations may name.
pub(super) type Kept = Arc<dyn Any + Send + Sync>;

/// A file, and where it is registered.
#[derive(Debug)]
pub(super) struct Registration {
    file: OwnedFd,
    /// The number of the reactor in the high half, the index in its table in the low one. Written by the reactor
    /// that has the task.
    place: AtomicU64,
    /// Its owner let go of it where it was not registered.
    is_stray: AtomicBool,
}

/// From now on nobody has it, which is what the reactor looks for.
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

    /// The index, if it is registered with this reactor.
    pub(super) fn index_on(&self, reactor: u32) -> Option<u32> {
        let place = self.place.load(Relaxed);
        ((place >> 32) as u32 == reactor).then_some(place as u32)
    }

    fn place(&self, reactor: u32, index: u32) {
        self.place.store(Self::of_place(reactor, index), Relaxed);
    }

    /// The owner lets go: `retire` is told the index, if that is on the reactor of this thread. Otherwise the reactor
    /// finds out when it next registers a file.
    pub(super) fn dropped(&self, retire: impl FnOnce(&mut Core, u32)) {
        let here = Core::of_thread_if_any(|core| self.index_on(core.number).map(|index| retire(core, index)));
        if here.flatten().is_none() {
            self.is_stray.store(true, Relaxed);
        }
    }
}

/// How many files were dropped where they were not registered.
static STRAYS: AtomicU64 = AtomicU64::new(0);

pub(super) fn strays() -> u64 {
    STRAYS.load(Acquire)
}

impl AsFd for Registration {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A file registered with a reactor's ring; it moves with its task. Dropping it, where the task is, unregisters
/// and closes the file when the operations that were started on it are done.
#[derive(Debug)]
pub struct FileSlot(pub(super) Arc<Registration>);

impl AsFd for FileSlot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Drop for FileSlot {
    fn drop(&mut self) {
        // The kernel's table has the file for itself; our descriptor may be closed now.
        self.0.dropped(Core::retire);
    }
}

/// A write of 1 to an eventfd.
pub(super) fn signal_entry(index: u32) -> Entry {
    static ONE: u64 = 1;
    let bytes = std::ptr::from_ref(&ONE).cast::<u8>();
    opcode::Write::new(types::Fixed(index), bytes, size_of::<u64>() as u32).build()
}

/// A multishot poll for something to read.
pub(super) fn watch_entry(index: u32) -> Entry {
    let events = u32::from(PollFlags::IN.bits());
    opcode::PollAdd::new(types::Fixed(index), events).multi(true).build()
}

/// A ring, as far as a table of files concerns it.
pub(super) trait Registers {
    /// Makes room for so many files.
    fn register_sparse(&self, count: u32) -> io::Result<()>;
    /// Puts files in their places, this one and those behind it, or none (-1). Returns how many: fewer if the next
    /// could not be.
    fn register_at(&self, index: u32, files: &[RawFd]) -> io::Result<usize>;
}

#[derive(Debug, Default)]
struct Use {
    /// Operations from the call that starts them to their completion. The kernel looks a file up when
    /// it carries an operation out, which for some is after they were submitted.
    in_flight: u32,
    /// The owner has let go.
    retired: bool,
    /// A signal is on its way; `again` if another was asked for meanwhile.
    signal: bool,
    again: bool,
    /// A poll was started that ends only when it is cancelled.
    watched: bool,
    /// Of a socket: what came of asking it.
    record: Record,
    /// Memory that operations on the file may still name.
    kept: Option<Kept>,
    /// Whose it is, and what its owner has.
    owned: Option<(TaskId, Weak<Registration>)>,
}

/// A file of a task that moves.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) file: Arc<Registration>,
    /// Where it was.
    pub(super) index: u32,
    kept: Option<Kept>,
}

impl Packed {
    pub(super) fn left(&self) -> Left {
        Left { file: Arc::downgrade(&self.file), index: self.index }
    }
}

/// A file that a task had here.
#[derive(Debug)]
pub(super) struct Left {
    file: Weak<Registration>,
    index: u32,
}

/// Files that are registered here, and not yet where their task looks for them.
pub(super) struct Arrived(Vec<(Arc<Registration>, u32)>);

impl Arrived {
    /// From now on they are used here.
    pub(super) fn settle(self, reactor: u32) {
        self.0.iter().for_each(|(file, index)| file.place(reactor, *index));
    }
}

pub(super) struct FileTable {
    /// The reactor's number.
    reactor: u32,
    capacity: u32,
    /// Indices below `uses.len()` that are free.
    free: Vec<u32>,
    /// By index; as long as the highest index used so far.
    uses: Vec<Use>,
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

    /// Files whose owner is gone and could not say so.
    pub(super) fn strays(&self) -> Vec<u32> {
        let is_stray = |state: &Use| match &state.owned {
            Some((_, file)) => !state.retired && file.strong_count() == 0,
            None => false,
        };
        (0..).zip(&self.uses).filter(|(_, state)| is_stray(state)).map(|(index, _)| index).collect()
    }

    /// The files of a task that moves. They stay here as well, until it has [left](Self::leave).
    pub(super) fn pack(&self, task: TaskId) -> Vec<Packed> {
        let pack = |(index, state): (u32, &Use)| {
            let (_, file) = state.owned.as_ref().filter(|(owner, _)| *owner == task && !state.retired)?;
            Some(Packed { file: file.upgrade()?, index, kept: state.kept.clone() })
        };
        (0..).zip(&self.uses).filter_map(pack).collect()
    }

    /// Registers the files of a task that has come, all of them or none. Those that are here already are its own.
    pub(super) fn unpack(
        &mut self,
        ring: &impl Registers,
        packed: &[Packed],
        owner: TaskId,
    ) -> io::Result<Arrived> {
        let reactor = self.reactor;
        let coming: Vec<&Packed> = packed.iter().filter(|it| it.file.index_on(reactor).is_none()).collect();
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
        let arrived = coming.into_iter().zip(indices).map(|(Packed { file, kept, .. }, index)| {
            let state = self.of(index);
            (state.kept, state.owned) = (kept.clone(), Some((owner, Arc::downgrade(file))));
            (Arc::clone(file), index)
        });
        Ok(Arrived(arrived.collect()))
    }

    /// The files of a task that cannot stay, since others of its cannot be registered.
    pub(super) fn turn_away(&mut self, ring: &impl Registers, arrived: Arrived) {
        self.unregister(ring, arrived.0.into_iter().map(|(_, index)| index).collect());
    }

    /// The files of a task that has them elsewhere now, and nothing in flight here.
    pub(super) fn leave(&mut self, ring: &impl Registers, left: Vec<Left>) {
        let is_its = |Left { file, index }: &Left| {
            let state = self.uses.get(*index as usize);
            let owned = state.and_then(|state| state.owned.as_ref());
            // Not another's that has its place since.
            owned.is_some_and(|(_, its)| its.ptr_eq(file))
        };
        let indices = left.iter().filter(|left| is_its(left)).map(|left| left.index).collect();
        self.unregister(ring, indices);
    }

    /// So many places, in ascending order.
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
        self.uses.push(Use::default());
        Ok(index)
    }

    fn of(&mut self, index: u32) -> &mut Use {
        &mut self.uses[index as usize]
    }

    /// An operation on the file starts.
    pub(super) fn begin(&mut self, index: u32) {
        self.of(index).in_flight += 1;
    }

    /// An operation on the file is over.
    pub(super) fn end(&mut self, ring: &impl Registers, index: u32) {
        self.of(index).in_flight -= 1;
        self.unregister_if_done(ring, index);
    }

    /// The owner has let go. True if a signal or a poll is on its way, which might never end by itself.
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

    pub(super) fn is_retired(&mut self, index: u32) -> bool {
        self.of(index).retired
    }

    fn unregister_if_done(&mut self, ring: &impl Registers, index: u32) {
        if self.of(index).in_flight > 0 || !self.of(index).retired {
            return;
        }
        self.unregister(ring, vec![index]);
    }

    /// These places are free, whoever had them.
    fn unregister(&mut self, ring: &impl Registers, mut indices: Vec<u32>) {
        indices.sort_unstable();
        for run in indices.chunk_by(|a, b| a + 1 == *b) {
            if let Err(error) = ring.register_at(run[0], &vec![-1; run.len()]) {
                // The kernel lacks memory; the next file with this index replaces this one.
                tracing::warn!(index = run[0], %error, "a file could not be unregistered");
            }
        }
        indices.iter().for_each(|index| *self.of(*index) = Use::default());
        self.free.extend(indices);
    }

    /// True if a write must be pushed; false if the one under way will be followed by another.
    pub(super) fn begin_signal(&mut self, index: u32) -> bool {
        let state = self.of(index);
        state.again = state.signal;
        !std::mem::replace(&mut state.signal, true)
    }

    /// A write is over, `unsent` if it was not done; true if another must follow it, perhaps for those who asked
    /// meanwhile.
    pub(super) fn end_signal(&mut self, index: u32, unsent: bool) -> bool {
        let state = self.of(index);
        state.signal = (std::mem::take(&mut state.again) || unsent) && !state.retired;
        state.signal
    }
}
