//! Speculative receives, which are tried before the ring gets them.
//!
//! A reactor that polls anyway finds data sooner by calling recvmsg() than by a completion: no poll is armed
//! and removed, and the sender's processor is spared the notification. So a receive that is likely to end
//! soon is tried in each turn without other work, and a few times in other turns. After that, or when the
//! reactor goes to sleep, the receive goes to the ring. A socket with failed tries is left to the ring for
//! longer each time.

// The target of a receive is named by pointers.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use sluice_memory::Segment;

use super::MAX_SEGMENTS;
use super::core::{Completion, Core, iovec};
use super::files::Registration;
use super::operations::{Operation, OperationKind};
use super::ring::RawCompletion;
use crate::task::TaskId;

/// Receives that are tried at a time: each costs every turn a system call.
const RECEIVES_MAX: usize = 4;

/// Tries of a receive, in turns that find nothing else to do.
const TRIES_MAX: u32 = 256;

/// Weight of a try in any other turn, in such tries.
const BUSY_TURN_WEIGHT: u32 = 32;

/// Limit of consecutive receives that a socket is left to the ring for, as a power of two.
const SKIP_MAX: u8 = 6;

/// Results of earlier tries of a socket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    /// Failures in a row.
    failures: u8,
    /// Receives that are left to the ring before the socket is tried again.
    rest: u8,
}

impl Record {
    /// Returns whether the next receive is worth a try.
    fn is_worthwhile(&mut self) -> bool {
        let rested = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        rested
    }

    fn record_try(&mut self, in_vain: bool) {
        self.failures = if in_vain { (self.failures + 1).min(SKIP_MAX) } else { 0 };
        self.rest = if in_vain { (1 << self.failures) - 1 } else { 0 };
    }
}

/// Receives that the ring does not have.
#[derive(Default)]
pub(super) struct Eager {
    waiting: Vec<Waiting>,
    /// Lists of earlier receives, kept for their memory.
    lists: Vec<Vec<libc::iovec>>,
    tries: u64,
    vain: u64,
}

impl Eager {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of tries since the last call, and how many of them found nothing.
    pub(super) fn take_tries(&mut self) -> (u64, u64) {
        (mem::take(&mut self.tries), mem::take(&mut self.vain))
    }

    fn keep_list(&mut self, mut list: Vec<libc::iovec>) {
        list.clear();
        self.lists.push(list);
    }
}

struct Waiting {
    /// Held, so that the descriptor number is not reused for another file.
    socket: Arc<Registration>,
    index: u32,
    operation: Operation,
    user_data: u64,
    list: Vec<libc::iovec>,
    tries_left: u32,
}

impl Waiting {
    /// Returns the number of bytes received, or a negated errno.
    fn attempt(&mut self) -> i32 {
        // SAFETY: zeros are a header without anything.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_iov = self.list.as_mut_ptr();
        header.msg_iovlen = self.list.len() as _;
        let socket = self.socket.as_fd().as_raw_fd();
        // SAFETY: the list is of segments, whose memory is valid until the operation has ended, as for the
        // ring.
        let received = unsafe { libc::recvmsg(socket, &raw mut header, libc::MSG_DONTWAIT) };
        match received {
            0.. => i32::try_from(received).unwrap_or(i32::MAX),
            _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl Core {
    /// Begins a speculative receive, if one is worthwhile.
    pub(super) fn receive_eagerly(
        &mut self,
        socket: &Arc<Registration>,
        segments: &[Segment],
        task: TaskId,
        token: u64,
    ) -> bool {
        let index = self.here(socket);
        if self.eager.waiting.len() == RECEIVES_MAX || !self.files.record(index).is_worthwhile() {
            return false;
        }
        self.files.begin(index);
        let operation = Operation::new(task, token, OperationKind::Receive(index));
        let user_data = self.operations.begin(operation);
        let mut list = self.eager.lists.pop().unwrap_or_default();
        let segments = &segments[..segments.len().min(MAX_SEGMENTS)];
        list.extend(segments.iter().map(iovec));
        let socket = Arc::clone(socket);
        self.eager.waiting.push(Waiting { socket, index, operation, user_data, list, tries_left: TRIES_MAX });
        true
    }

    /// Tries each receive that waits here. `is_idle` is true in a turn after an idle one.
    pub(super) fn try_receives(&mut self, is_idle: bool, out: &mut Vec<Completion>) {
        let mut position = 0;
        while let Some(waiting) = self.eager.waiting.get_mut(position) {
            self.eager.tries += 1;
            let result = waiting.attempt();
            if [-libc::EAGAIN, -libc::EINTR].contains(&result) {
                self.eager.vain += 1;
                waiting.tries_left =
                    waiting.tries_left.saturating_sub(if is_idle { 1 } else { BUSY_TURN_WEIGHT });
                match waiting.tries_left {
                    0 => self.give_up(position),
                    _ => position += 1,
                }
                continue;
            }
            let Waiting { index, user_data, list, .. } = self.eager.waiting.swap_remove(position);
            self.eager.keep_list(list);
            self.files.record(index).record_try(false);
            out.extend(self.on_completion(RawCompletion { user_data, result, more: false }));
        }
    }

    /// Hands all receives to the ring: the reactor goes to sleep.
    pub(super) fn hand_all_to_ring(&mut self) {
        while !self.eager.is_empty() {
            self.give_up(0);
        }
    }

    /// Hands matching receives to the ring, where they can be cancelled. The socket's failures are not
    /// counted up.
    pub(super) fn hand_matching_to_ring(&mut self, fits: impl Fn(&Operation) -> bool) {
        let mut position = 0;
        while let Some(waiting) = self.eager.waiting.get(position) {
            match fits(&waiting.operation) {
                true => drop(self.hand_to_ring(position)),
                false => position += 1,
            }
        }
    }

    /// Hands a receive to the ring after failed tries.
    fn give_up(&mut self, position: usize) {
        let index = self.hand_to_ring(position);
        self.files.record(index).record_try(true);
    }

    /// Hands a receive to the ring; returns the index of its socket.
    fn hand_to_ring(&mut self, position: usize) -> u32 {
        let Waiting { index, user_data, list, .. } = self.eager.waiting.swap_remove(position);
        let entry = self.receive_entry(index, list.iter().copied());
        self.eager.keep_list(list);
        self.ring.push(entry.user_data(user_data));
        index
    }
}
