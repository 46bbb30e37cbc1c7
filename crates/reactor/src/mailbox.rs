//! Closures sent to a reactor by other threads.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::{error, fmt, io, mem};

use rustix::event::{EventfdFlags, eventfd};

use crate::local::Local;
use crate::park::ParkFlag;

pub(crate) type Mail = Box<dyn FnOnce(&mut Local) + Send>;

/// Error: the mailbox is full, or its reactor has ended and accepts no more mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxFull;

impl fmt::Display for MailboxFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reactor takes no more mail: its mailbox is full, or it has ended")
    }
}

impl error::Error for MailboxFull {}

/// Reason for which a mail is returned to its sender.
pub(crate) enum Returned {
    Full(Mail),
    Closed(Mail),
}

/// A bounded queue whose reader polls one flag and never waits for the lock.
pub(crate) struct Mailbox {
    limit: usize,
    queue: Mutex<Queue>,
    /// Written under the lock, read without: the flag that the reactor polls in each turn.
    filled: AtomicBool,
    /// Requests the end of the reactor; independent of the queue, which may be full.
    stop: AtomicBool,
    park: ParkFlag<AtomicU32>,
    notifier: OwnedFd,
}

struct Queue {
    mails: VecDeque<Mail>,
    closed: bool,
}

impl Mailbox {
    pub(crate) fn new(limit: usize) -> io::Result<Self> {
        // Non-blocking: an eventfd that was written 2^64 - 2 times without being read must not hang a sender.
        let notifier = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue = Queue { mails: VecDeque::new(), closed: false };
        Ok(Self {
            limit,
            queue: Mutex::new(queue),
            filled: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            park: ParkFlag::default(),
            notifier,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a mail, and wakes the reactor if it sleeps. For any thread.
    pub(crate) fn send(&self, mail: Mail) -> Result<(), Returned> {
        self.send_up_to(self.limit, mail)
    }

    /// Queues a mail of another reactor, which cannot wait for room, beyond the limit if need be.
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

    /// Requests the end of the reactor. For any thread.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if self.park.must_wake() {
            // The only possible failure is EAGAIN, of an eventfd that is readable already.
            let _ = rustix::io::write(&self.notifier, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns whether there is mail. Called by the reactor.
    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Takes all mail. Called by the reactor. A sender that holds the lock is not waited for: the flag that
    /// it leaves set brings the reactor back next turn.
    pub(crate) fn take(&self, into: &mut VecDeque<Mail>) {
        let mut queue = match self.queue.try_lock() {
            Ok(queue) => queue,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        mem::swap(&mut queue.mails, into);
        self.filled.store(false, Ordering::Release);
    }

    /// Closes the mailbox. Called by the reactor. Waiting mail is dropped without being run, which its
    /// senders notice.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut queue = self.lock();
            queue.closed = true;
            mem::take(&mut queue.mails)
        };
        drop(dropped);
    }

    /// Returns the eventfd that wakes the reactor.
    pub(crate) fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Announces sleep. Called by the reactor. Returns false if there is something to do first.
    pub(crate) fn may_sleep(&self) -> bool {
        self.park.announce_sleep();
        if self.is_filled() || self.stop_requested() {
            self.park.withdraw();
            return false;
        }
        true
    }

    pub(crate) fn woke(&self) {
        self.park.withdraw();
    }
}
