//! Submission and completion ring, without losing an entry or a completion.

// The entries of a submission ring are pointers for the kernel, so pushing one is unsafe.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, squeue};

use super::files::Registers;
use super::setup::{self, Completing};

/// Kernel threads that may execute signals at once. Only a blocking eventfd needs one, and only a peer that
/// fills the eventfd at just the wrong moment occupies it.
const SIGNAL_WORKERS: u32 = 64;

/// Limit of a sleep while the kernel had no memory for an entry.
const RETRY: Duration = Duration::from_millis(1);

/// A completion, as the kernel has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawCompletion {
    pub(super) user_data: u64,
    pub(super) result: i32,
    /// The operation continues.
    pub(super) more: bool,
}

impl From<cqueue::Entry> for RawCompletion {
    fn from(entry: cqueue::Entry) -> Self {
        let more = cqueue::more(entry.flags());
        Self { user_data: entry.user_data(), result: entry.result(), more }
    }
}

/// A ring with entries of the usual size, unless others are named.
pub(super) struct Ring<S = squeue::Entry, C = cqueue::Entry>
where
    S: squeue::EntryMarker,
    C: cqueue::EntryMarker,
{
    ring: IoUring<S, C>,
    /// Entries that the kernel had no room for. Usually empty.
    backlog: VecDeque<S>,
    /// Completions that had to leave the ring before their turn. Usually empty.
    early: VecDeque<RawCompletion>,
    enters: u64,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    pub(super) fn open(entries: u32, completing: Completing) -> io::Result<Self> {
        let ring = setup::open(entries, completing)?;
        // Bounded workers, for files and disks, stay as they are; unbounded ones are those of signals.
        ring.submitter().register_iowq_max_workers(&mut [0, SIGNAL_WORKERS])?;
        Ok(Self { ring, backlog: VecDeque::new(), early: VecDeque::new(), enters: 0 })
    }

    /// Returns whether the kernel supports the operation of this code.
    pub(super) fn supports(&self, code: u8) -> bool {
        let mut probe = io_uring::Probe::new();
        self.ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(code)
    }

    /// Queues an entry. Entries of this crate point to one of three things. The first is segments, whose
    /// memory is valid until the command that holds them finishes. The second is the arena, which is not
    /// cleared before the ring is drained. The third is constants.
    pub(super) fn push(&mut self, entry: S) {
        if !self.try_push(&entry) {
            self.submit();
            if !self.try_push(&entry) {
                self.backlog.push_back(entry);
            }
        }
    }

    fn try_push(&mut self, entry: &S) -> bool {
        // SAFETY: the memory that the entry points to outlives its use, see `push`; this module is private to
        // `io`, whose methods are the only callers.
        self.backlog.is_empty() && unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Submits all entries, as far as the kernel takes them.
    pub(super) fn submit(&mut self) {
        loop {
            self.refill();
            let goes_on = match self.enter() {
                Ok(_) => !self.is_drained(),
                Err(error) => self.handle_refusal(&error),
            };
            if !goes_on {
                break;
            }
        }
    }

    /// Moves entries of the backlog into the ring.
    fn refill(&mut self) {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `try_push`.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    fn enter(&mut self) -> io::Result<usize> {
        self.enters += 1;
        self.ring.submit()
    }

    /// Handles a refusal; returns whether to try again now.
    fn handle_refusal(&mut self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EINTR) => true,
            // The completion ring overflowed: its completions must leave first.
            Some(libc::EBUSY) => {
                let before = self.early.len();
                self.drain_completions();
                self.early.len() > before
            }
            // No memory for the entry: it stays in the ring until the next turn.
            Some(libc::EAGAIN | libc::ENOMEM) => false,
            // Any other error (EBADF, EFAULT, EEXIST, ...) means that this code broke the ring's contract.
            _ => panic!("io_uring_enter: {error}"),
        }
    }

    fn drain_completions(&mut self) {
        self.early.extend(self.ring.completion().map(|entry| RawCompletion::from(entry.into())));
    }

    /// Returns whether the kernel has taken every entry.
    pub(super) fn is_drained(&mut self) -> bool {
        self.backlog.is_empty() && self.ring.submission().is_empty()
    }

    /// Returns whether there is anything that only a system call moves on.
    pub(super) fn needs_enter(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow() || !self.backlog.is_empty()
    }

    /// Returns whether there are completions that left the ring early.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns the next completion, if there is one.
    pub(super) fn next_completion(&mut self) -> Option<RawCompletion> {
        self.early.pop_front().or_else(|| Some(RawCompletion::from(self.ring.completion().next()?.into())))
    }

    /// Sleeps until there is a completion or a signal, or the time is over.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        if !self.early.is_empty() {
            return;
        }
        self.refill();
        let timeout =
            if self.backlog.is_empty() { timeout } else { Some(timeout.unwrap_or(RETRY).min(RETRY)) };
        self.enters += 1;
        let waited = match timeout {
            Some(timeout) => {
                let time = Timespec::from(timeout);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            None => self.ring.submit_and_wait(1),
        };
        match waited {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => {}
            Err(error) => {
                self.handle_refusal(&error);
            }
        }
    }

    /// Returns the descriptor by which another ring polls this one.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    pub(super) fn take_enters(&mut self) -> u64 {
        std::mem::take(&mut self.enters)
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Registers for Ring<S, C> {
    fn register_sparse(&self, count: u32) -> io::Result<()> {
        self.ring.submitter().register_files_sparse(count)
    }

    fn register_at(&self, index: u32, files: &[RawFd]) -> io::Result<usize> {
        self.ring.submitter().register_files_update(index, files)
    }
}
