//! Receives that are tried before the ring gets them.
//!
//! A reactor that polls anyway finds out sooner by asking a socket than by being told: nothing is armed and taken
//! down again, and the sender's processor, which would do the telling, is spared that. So a receive that is likely to
//! end soon is tried in each turn that finds nothing else to do, and a few times in others. After that, or when
//! the reactor goes to sleep, the ring has it; and a socket that was asked in vain is left to the ring for longer each time.

// What a receive writes to is named by pointers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{opcode, types};
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
}

struct Waiting {
    /// Kept, so that its descriptor is no other file's.
    socket: Arc<Registration>,
    index: u32,
    user_data: u64,
    list: Vec<libc::iovec>,
    patience: u32,
}

impl Waiting {
    /// The bytes that came, or a negated errno.
    fn attempt(&mut self) -> i32 {
        // SAFETY: zeros are a header without anything.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
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
        let user_data = self.operations.begin(Operation::new(task, token, Kind::Receive(index)));
        let mut list = self.eager.lists.pop().unwrap_or_default();
        let segments = &segments[..segments.len().min(MAX_SEGMENTS)];
        list.extend(segments.iter().map(iovec));
        let socket = Arc::clone(socket);
        self.eager.waiting.push(Waiting { socket, index, user_data, list, patience: PATIENCE });
        true
    }

    /// Asks each socket that has a receive here, in a turn after one that was idle or not.
    pub(super) fn try_receives(&mut self, is_idle: bool, out: &mut Vec<Completion>) {
        let mut position = 0;
        while let Some(waiting) = self.eager.waiting.get_mut(position) {
            self.tries += 1;
            let result = waiting.attempt();
            if [-libc::EAGAIN, -libc::EINTR].contains(&result) {
                self.vain_tries += 1;
                waiting.patience = waiting.patience.saturating_sub(if is_idle { 1 } else { BUSY });
                match waiting.patience {
                    0 => self.give_to_ring(position),
                    _ => position += 1,
                }
                continue;
            }
            let Waiting { index, user_data, list, .. } = self.eager.waiting.swap_remove(position);
            self.keep_list(list);
            self.files.record(index).asked(false);
            out.extend(self.settle(RawCompletion { user_data, result, more: false }));
        }
    }

    /// The ring gets what was not received so far of the files that fit: what is to happen to it happens there.
    pub(super) fn give_all_to_ring(&mut self, fits: impl Fn(u32) -> bool) {
        let mut position = 0;
        while let Some(waiting) = self.eager.waiting.get(position) {
            match fits(waiting.index) {
                true => self.give_to_ring(position),
                false => position += 1,
            }
        }
    }

    fn give_to_ring(&mut self, position: usize) {
        let Waiting { index, user_data, list, .. } = self.eager.waiting.swap_remove(position);
        self.files.record(index).asked(true);
        if !self.arena.has_room(list.len()) {
            self.submit();
        }
        let (entries, count) = self.arena.copy(list.iter().copied());
        self.keep_list(list);
        let entry = opcode::Readv::new(types::Fixed(index), entries, count).build();
        self.ring.push(entry.user_data(user_data));
    }

    fn keep_list(&mut self, mut list: Vec<libc::iovec>) {
        list.clear();
        self.eager.lists.push(list);
    }
}

impl Eager {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
