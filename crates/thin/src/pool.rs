//! A pool for control threads, and the thread that is its home.

use crate::VolumeUse;
use crate::committer::{Committer, of_store};
use crate::counting::PIECE;
use crate::layer::{OnFull, Parts, ThinPort};
use crate::layout::Layout;
use crate::storage::{ReadOnly, Storage, read_padded};
use crate::store::examine;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_shared::{Connection, HomeSide, Refused};
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{error, fmt, io, thread};

/// Reason for which a pool does not do something.
#[derive(Debug)]
pub enum Error {
    Io(io::Error),
    /// The device holds no pool, or a damaged one; in words.
    Refused(String),
    /// The metadata cannot be written any more.
    Failed(String),
    InUse(String),
    /// The home is busy with an earlier order, or its device is slow.
    AtWork,
    /// Commands of a volume have not ended for a while.
    Busy(String),
    NoVolume(String),
    Impossible(String),
    Port(Refused),
    /// The pool has ended.
    Gone,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Refused(words) | Self::Impossible(words) => f.write_str(words),
            Self::Failed(words) => write!(f, "the metadata of the pool cannot be written: {words}"),
            Self::InUse(name) => write!(f, "volume `{name}` is in use by another namespace"),
            Self::AtWork => f.write_str("the pool is at work for an earlier order, or its device is slow"),
            Self::Busy(name) => write!(f, "commands of volume `{name}` have not ended for 10 s"),
            Self::NoVolume(name) => write!(f, "there is no volume `{name}` in the pool"),
            Self::Port(error) => write!(f, "{error}"),
            Self::Gone => f.write_str("the pool has ended"),
        }
    }
}

impl error::Error for Error {}

/// Space of a pool. The bytes in use are exactly `size - free - credit - bad`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Bytes of all extents.
    pub size: u64,
    /// Bytes that no volume has, neither in use nor as credit.
    pub free: u64,
    /// Bytes that volumes have taken in advance, or that are being mapped.
    pub credit: u64,
    /// Bytes of extents that the device does not write. They are left out until the pool is opened again.
    pub bad: u64,
    /// Namespaces that use the pool.
    pub users: usize,
    pub volumes: Vec<VolumeUse>,
    /// Reason for which no change is made any more.
    pub failure: Option<String>,
}

/// Time for a pool to come to rest. Its drives are suspended meanwhile.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

pub(crate) type Reply<T> = Sender<Result<T, Error>>;

/// Order of a control thread.
enum Order {
    Open(String, u64, Connection, Reply<crate::committer::Opened>),
    Clone(String, String, Reply<()>),
    Delete(String, Reply<()>),
    Resize(String, u64, Reply<()>),
    Grow(u64, Reply<()>),
    Settle(Reply<()>),
    Usage(bool, Reply<PoolUse>),
}

/// A pool, for control threads. Its thread ends when the handle and all ports are dropped.
#[derive(Debug)]
pub struct ThinPool {
    orders: Orders,
    layout: Layout,
    recent: Mutex<RecentUse>,
}

/// The last known space, and the answer that is under way.
#[derive(Debug)]
struct RecentUse {
    usage: PoolUse,
    coming: Option<Receiver<Result<PoolUse, Error>>>,
}

/// The way to the thread of a pool.
#[derive(Clone, Debug)]
struct Orders(Arc<Link>);

#[derive(Debug)]
struct Link {
    /// Taken out by the drop alone.
    sender: Mutex<Option<Sender<Order>>>,
    side: Arc<HomeSide>,
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.sender.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        self.side.wake();
    }
}

impl Orders {
    fn call<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, Error> {
        self.send(order)?.recv().map_err(|_| Error::Gone)?
    }

    fn send<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<Receiver<Result<T, Error>>, Error> {
        let (reply, answer) = channel();
        let sender = self.0.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().and_then(|sender| sender.send(order(reply)).ok()).ok_or(Error::Gone)?;
        drop(sender);
        self.0.side.wake();
        Ok(answer)
    }
}

impl ThinPool {
    /// Checks whether [`start`](Self::start) can open or make a pool on a file or device that has, or will have, `size`
    /// bytes. Writes nothing. With `loads`, all of its metadata is read. Returns whether there is a pool already. Blocks.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn examine(file: &File, size: u64, loads: bool) -> Result<bool, Error> {
        let read = |at, bytes: &mut [u8]| read_padded(file, at, bytes);
        examine(&mut ReadOnly(read), size, loads).map_err(of_store)
    }

    /// Checks whether a new pool can have `size` bytes.
    ///
    /// # Errors
    /// It is too small, or too large.
    pub fn check_new(size: u64) -> Result<(), Error> {
        Layout::plan(0, size).map(drop).map_err(Error::Refused)
    }

    /// Opens the pool on storage of `size` bytes, or makes one on storage of zeros. `hold` is dropped with the pool.
    /// Blocks.
    ///
    /// # Errors
    /// The storage holds something else, or a damaged pool, or cannot be read and written.
    pub fn start(storage: impl Storage + 'static, size: u64, hold: impl Any + Send) -> Result<Self, Error> {
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        Self::run(Committer::open(storage, size, u64::from_le_bytes(id))?, hold)
    }

    /// Opens a pool that is [at rest](Self::settle) in another process. Nothing is written before the first change by a
    /// volume, which must not come before the other process has given the pool up. Blocks.
    ///
    /// # Errors
    /// The storage holds no pool, or cannot be read.
    pub fn start_lent(
        storage: impl Storage + 'static,
        size: u64,
        hold: impl Any + Send,
    ) -> Result<Self, Error> {
        Self::run(Committer::open_lent(storage, size)?, hold)
    }

    fn run(committer: Committer<impl Storage + 'static>, hold: impl Any + Send) -> Result<Self, Error> {
        let side = Arc::clone(committer.home.side());
        let (layout, usage) = (committer.layout(), committer.usage());
        let notifier = side.as_fd().try_clone_to_owned()?;
        let (sender, orders) = channel();
        let run = move || {
            serve(committer, &orders, &notifier);
            drop(hold);
        };
        thread::Builder::new().name("thin-pool".to_owned()).spawn(run)?;
        let orders = Orders(Arc::new(Link { sender: Mutex::new(Some(sender)), side }));
        Ok(Self { orders, layout, recent: Mutex::new(RecentUse { usage, coming: None }) })
    }

    fn call<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, Error> {
        self.orders.call(order)
    }

    /// Opens a volume for one layer over the device. A volume that does not exist is made, and one that is smaller
    /// grows. Blocks.
    ///
    /// # Errors
    /// The volume is in use, or the pool has no room for it.
    pub fn open(&self, name: &str, size: u64, on_full: OnFull) -> Result<(ThinPort, VolumeControl), Error> {
        let (port, connection) = self.orders.0.side.connect().map_err(Error::Port)?;
        let opened = self.call(|reply| Order::Open(name.to_owned(), size, connection, reply));
        // The home does not have the port of a volume that is not opened.
        let opened = opened.inspect_err(|_| self.orders.0.side.release(port.number()))?;
        let parts = Parts::new(&self.layout, opened.size, on_full);
        let size = Arc::clone(&parts.size);
        let control = VolumeControl { name: name.to_owned(), orders: self.orders.clone(), size };
        Ok((ThinPort::new(port, opened, parts), control))
    }

    /// Makes a volume with the content of another one, which shares its extents. If the other one is in use, its content is
    /// that of one moment between the call and the return. All commands that were acknowledged before the call are in it. A
    /// write that is under way is in it as a whole, or not at all. The clone is durable. Blocks.
    ///
    /// # Errors
    /// Commands of the other volume do not end, or the pool has no room.
    pub fn clone_volume(&self, name: &str, from: &str) -> Result<(), Error> {
        self.call(|reply| Order::Clone(name.to_owned(), from.to_owned(), reply))
    }

    /// Deletes a volume. Blocks.
    ///
    /// # Errors
    /// The volume is in use.
    pub fn delete_volume(&self, name: &str) -> Result<(), Error> {
        self.call(|reply| Order::Delete(name.to_owned(), reply))
    }

    /// Returns the bytes of the largest device that the pool can have.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.layout.reach()
    }

    /// Checks whether the pool can have a device of `size` bytes.
    ///
    /// # Errors
    /// The device is too large.
    pub fn check_size(&self, size: u64) -> Result<(), Error> {
        self.layout.extents(size).map(drop).map_err(Error::Impossible)
    }

    /// Takes the further extents of a device that has `size` bytes now. Drives reach them already. Blocks.
    ///
    /// # Errors
    /// The device is too large.
    pub fn grow(&self, size: u64) -> Result<(), Error> {
        self.call(|reply| Order::Grow(size, reply))
    }

    /// Brings the pool to rest: nothing is written any more until a volume changes something. So another process can
    /// [open](Self::start_lent) it while all volumes are suspended. Blocks.
    ///
    /// # Errors
    /// The metadata cannot be written.
    pub fn settle(&self) -> Result<(), Error> {
        match self.orders.send(Order::Settle)?.recv_timeout(SETTLE_LIMIT) {
            Ok(settled) => settled,
            Err(RecvTimeoutError::Timeout) => Err(Error::AtWork),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Gone),
        }
    }

    /// Returns the space of the pool and of its volumes. The thread of the pool may be writing a checkpoint: after `limit`
    /// the space of an earlier call is returned. Blocks.
    ///
    /// # Errors
    /// The pool has ended.
    pub fn recent_usage(&self, limit: Duration) -> Result<PoolUse, Error> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match recent.coming.take() {
            Some(answer) => answer,
            None => self.orders.send(|reply| Order::Usage(false, reply))?,
        };
        match answer.recv_timeout(limit) {
            Ok(usage) => recent.usage = usage?,
            Err(RecvTimeoutError::Timeout) => recent.coming = Some(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Gone),
        }
        Ok(recent.usage.clone())
    }

    /// Returns the space of the pool and of its volumes. `counts` if the exclusive extents are counted, which takes a
    /// look at all mappings. Blocks.
    ///
    /// # Errors
    /// The pool has ended.
    pub fn usage(&self, counts: bool) -> Result<PoolUse, Error> {
        self.call(|reply| Order::Usage(counts, reply))
    }
}

/// Control of an open volume.
#[derive(Clone, Debug)]
pub struct VolumeControl {
    name: String,
    orders: Orders,
    size: Arc<AtomicU64>,
}

impl VolumeControl {
    /// Makes the volume larger. Blocks. The stack derives its size afterwards.
    ///
    /// # Errors
    /// The volume would become smaller, or too large.
    pub fn resize(&self, size: u64) -> Result<(), Error> {
        self.orders.call(|reply| Order::Resize(self.name.clone(), size, reply))?;
        self.size.fetch_max(size, Ordering::Release);
        Ok(())
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bytes of the volume.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}

/// Runs a pool until its handle and all of its ports are gone.
fn serve<S: Storage>(mut committer: Committer<S>, orders: &Receiver<Order>, notifier: &OwnedFd) {
    let mut is_left = false;
    loop {
        let mut work = committer.turn();
        if committer.deadline().is_some() {
            work += committer.look_at_clones(Instant::now());
        }
        work += take_orders(&mut committer, orders, &mut is_left);
        work += committer.step_counts(PIECE);
        if work > 0 {
            continue;
        }
        if is_left && committer.home.side().ports() == 0 {
            return;
        }
        let was_left = is_left;
        let is_idle = !committer.home.arm() && take_orders(&mut committer, orders, &mut is_left) == 0;
        if is_idle && is_left == was_left {
            // An error is a spurious wake-up.
            let left = committer.deadline().map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let _ = poll(&mut [PollFd::new(notifier, PollFlags::IN)], left.as_ref());
        }
        committer.home.disarm();
        let _ = rustix::io::read(notifier, &mut [0; 8]);
    }
}

/// Executes all orders that have arrived. Returns their number.
fn take_orders<S: Storage>(
    committer: &mut Committer<S>,
    orders: &Receiver<Order>,
    is_left: &mut bool,
) -> usize {
    let mut count = 0;
    loop {
        match orders.try_recv() {
            Ok(order) => execute(committer, order),
            Err(TryRecvError::Empty) => return count,
            Err(TryRecvError::Disconnected) => {
                *is_left = true;
                return count;
            }
        }
        count += 1;
    }
}

fn execute<S: Storage>(committer: &mut Committer<S>, order: Order) {
    // A caller that does not wait any more has no use for the answer.
    match order {
        Order::Open(name, size, connection, reply) => {
            drop(reply.send(committer.open_volume(&name, size, connection)));
        }
        Order::Clone(name, from, reply) => committer.order_clone(name, from, Instant::now(), reply),
        Order::Delete(name, reply) => drop(reply.send(committer.delete_volume(&name))),
        Order::Resize(name, size, reply) => drop(reply.send(committer.resize_volume(&name, size))),
        Order::Grow(size, reply) => drop(reply.send(committer.grow(size))),
        Order::Settle(reply) => drop(reply.send(committer.settle())),
        Order::Usage(true, reply) => committer.order_count(reply),
        Order::Usage(false, reply) => drop(reply.send(Ok(committer.usage()))),
    }
}
