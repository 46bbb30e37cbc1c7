//! Receives that are tried before the ring gets them.
//!
//! A reactor that polls anyway finds out sooner by asking a socket than by being told: nothing is armed and taken
//! down again, and the sender's processor, which would do the telling, is spared that. So a receive that is likely to
//! end soon is tried in each turn that finds nothing else to do, and a few times in others. After that, or when
//! the reactor goes to sleep, the ring has it; and a socket that was asked in vain is left to the ring for longer each time.

// What a receive writes to is named by pointers.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use sluice_memory::Segment;

use super::MAX_SEGMENTS;
use super::core::{Completion, Core, iovec};
use super::files::Registration;
use super::operations::{Kind, Operation};
use super::ring::RawCompletion;
use crate::task::TaskId;

/// Receives that are tried at a time: each costs every turn an entry into the kernel.
const PLACES: usize = 4;

/// Tries of a receive, in turns that find nothing else to do.
const PATIENCE: u32 = 256;

/// Of which a try in any other turn is worth so many.
const BUSY: u32 = 32;

/// Receives that a socket is left to the ring for at most, as a power of two.
const REST_MAX: u8 = 6;

/// What came of asking a socket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    /// In vain, one after the other.
    failures: u8,
    /// Receives that are left to the ring before it is asked again.
    rest: u8,
}

impl Record {
    /// True if the next receive is worth a try.
    fn is_worth_it(&mut self) -> bool {
        let rested = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        rested
    }

    fn asked(&mut self, in_vain: bool) {
        self.failures = if in_vain { (self.failures + 1).min(REST_MAX) } else { 0 };
        self.rest = if in_vain { (1 << self.failures) - 1 } else { 0 };
    }
}

/// Receives that the ring does not have.
#[derive(Default)]
pub(super) struct Eager {
    waiting: Vec<Waiting>,
    /// Lists of those before, kept for their memory.
    lists: Vec<Vec<libc::iovec>>,
    tries: u64,
    vain: u64,
}

impl Eager {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tries since this was last asked, and how many of them found nothing.
    pub(super) fn take_tries(&mut self) -> (u64, u64) {
        (mem::take(&mut self.tries), mem::take(&mut self.vain))
    }

    fn keep_list(&mut self, mut list: Vec<libc::iovec>) {
        list.clear();
        self.lists.push(list);
    }
}

struct Waiting {
    /// Kept, so that its descriptor is no other file's.
    socket: Arc<Registration>,
    index: u32,
    operation: Operation,
    user_data: u64,
    list: Vec<libc::iovec>,
    patience: u32,
}

impl Waiting {
    /// The bytes that came, or a negated errno.
    fn attempt(&mut self) -> i32 {
        // SAFETY: zeros are a header without anything.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = self.list.as_mut_ptr();
        header.msg_iovlen = self.list.len() as _;
        let socket = self.socket.as_fd().as_raw_fd();
        // SAFETY: the list is of segments, whose memory is valid until the operation has ended, as for the ring.
        let received = unsafe { libc::recvmsg(socket, &raw mut header, libc::MSG_DONTWAIT) };
        match received {
            0.. => i32::try_from(received).unwrap_or(i32::MAX),
            _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Core {
    /// Begins a receive that is tried, if it is worth that.
    pub(super) fn receive_eagerly(
        &mut self,
        socket: &Arc<Registration>,
        segments: &[Segment],
        task: TaskId,
        token: u64,
    ) -> bool {
        let index = self.here(socket);
        if self.eager.waiting.len() == PLACES || !self.files.record(index).is_worth_it() {
            return false;
        }
        self.files.begin(index);
        let operation = Operation::new(task, token, Kind::Receive(index));
        let user_data = self.operations.begin(operation);
        let mut list = self.eager.lists.pop().unwrap_or_default();
        let segments = &segments[..segments.len().min(MAX_SEGMENTS)];
        list.extend(segments.iter().map(iovec));
        let socket = Arc::clone(socket);
        self.eager.waiting.push(Waiting { socket, index, operation, user_data, list, patience: PATIENCE });
        true
    }

    /// Asks each socket that has a receive here, in a turn after one that was idle or not.
    pub(super) fn try_receives(&mut self, is_idle: bool, out: &mut Vec<Completion>) {
        let mut position = 0;
        while let Some(waiting) = self.eager.waiting.get_mut(position) {
            self.eager.tries += 1;
            let result = waiting.attempt();
            if [-libc::EAGAIN, -libc::EINTR].contains(&result) {
                self.eager.vain += 1;
                waiting.patience = waiting.patience.saturating_sub(if is_idle { 1 } else { BUSY });
                match waiting.patience {
                    0 => self.give_up(position),
                    _ => position += 1,
                }
                continue;
            }
            let Waiting { index, user_data, list, .. } = self.eager.waiting.swap_remove(position);
            self.eager.keep_list(list);
            self.files.record(index).asked(false);
            out.extend(self.settle(RawCompletion { user_data, result, more: false }));
        }
    }

    /// The reactor goes to sleep: nobody tries any more.
    pub(super) fn give_all_up(&mut self) {
        while !self.eager.is_empty() {
            self.give_up(0);
        }
    }

    /// The ring gets what fits: what is to happen to it happens there. That is no fault of its socket's.
    pub(super) fn give_to_ring_what(&mut self, fits: impl Fn(&Operation) -> bool) {
        let mut position = 0;
        while let Some(waiting) = self.eager.waiting.get(position) {
            match fits(&waiting.operation) {
                true => drop(self.give_to_ring(position)),
                false => position += 1,
            }
        }
    }

    /// It was tried in vain.
    fn give_up(&mut self, position: usize) {
        let index = self.give_to_ring(position);
        self.files.record(index).asked(true);
    }

    /// The index of its socket.
    fn give_to_ring(&mut self, position: usize) -> u32 {
        let Waiting { index, user_data, list, .. } = self.eager.waiting.swap_remove(position);
        let entry = self.receive_entry(index, list.iter().copied());
        self.eager.keep_list(list);
        self.ring.push(entry.user_data(user_data));
        index
    }
}
