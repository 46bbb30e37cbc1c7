//! Closures sent to a reactor by other threads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::{error, fmt, io, mem};

use rustix::event::{EventfdFlags, eventfd};

use crate::local::Local;
use crate::park::Bed;

pub(crate) type Mail = Box<dyn FnOnce(&mut Local) + Send>;

/// The mailbox holds as many mails as it may, or its reactor has ended and takes no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxFull;

impl fmt::Display for MailboxFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reactor takes no more mail: its mailbox is full, or it has ended")
    }
}

impl error::Error for MailboxFull {}

/// Why a mail came back to its sender.
pub(crate) enum Returned {
    Full(Mail),
    Closed(Mail),
}

/// A bounded queue whose reader polls one flag and never waits for the lock.
pub(crate) struct Mailbox {
    limit: usize,
    queue: Mutex<Queue>,
    /// Written under the lock, read without: what the reactor's turn looks at.
    filled: AtomicBool,
    /// Asks the reactor to end; survives a full queue.
    stop: AtomicBool,
    bed: Bed<AtomicU32>,
    bell: OwnedFd,
}

struct Queue {
    mails: VecDeque<Mail>,
    closed: bool,
}

impl Mailbox {
    pub(crate) fn new(limit: usize) -> io::Result<Self> {
        // Non-blocking: a bell that was rung 2^64 - 2 times without being read must not hang a sender.
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue = Queue { mails: VecDeque::new(), closed: false };
        Ok(Self {
            limit,
            queue: Mutex::new(queue),
            filled: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            bed: Bed::default(),
            bell,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Any thread: leaves a mail, and wakes the reactor if it sleeps.
    pub(crate) fn send(&self, mail: Mail) -> Result<(), Returned> {
        self.send_up_to(self.limit, mail)
    }

    /// The same for a mail of another reactor, which cannot wait until there is room.
    pub(crate) fn send_always(&self, mail: Mail) -> Result<(), Returned> {
        self.send_up_to(usize::MAX, mail)
    }

    fn send_up_to(&self, limit: usize, mail: Mail) -> Result<(), Returned> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(Returned::Closed(mail));
        }
        if queue.mails.len() >= limit {
            return Err(Returned::Full(mail));
        }
        queue.mails.push_back(mail);
        self.filled.store(true, Ordering::Release);
        drop(queue);
        self.wake();
        Ok(())
    }

    /// Any thread: asks the reactor to end.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if self.bed.must_wake() {
            // The only failure is EAGAIN, of a bell that has been rung already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Reactor: whether there is anything to do here.
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Reactor: takes what is there. A sender that holds the lock is not waited for: the flag it leaves
    /// set brings the reactor back next turn.
    pub(crate) fn take(&self, into: &mut VecDeque<Mail>) {
        let mut queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        mem::swap(&mut queue.mails, into);
        self.filled.store(false, Ordering::Release);
    }

    /// Reactor: takes no more mail; what waits is dropped unrun, which its senders notice.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut queue = self.lock();
            queue.closed = true;
            mem::take(&mut queue.mails)
        };
        drop(dropped);
    }

    /// Reactor: what rings when it sleeps.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Reactor: announces sleep. False means that there is something to do first.
    pub(crate) fn may_sleep(&self) -> bool {
        self.bed.lie_down();
        if self.is_filled() || self.stop_requested() {
            self.bed.get_up();
            return false;
        }
        true
    }

    pub(crate) fn woke(&self) {
        self.bed.get_up();
    }
}
