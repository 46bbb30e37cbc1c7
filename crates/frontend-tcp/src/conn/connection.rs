//! One connection, which is one queue: its socket, its memory, and its operations in flight.
//!
//! Received bytes are decoded in [`receive`](super::receive), commands executed in
//! [`execute`](super::execute), and responses sent by [`transmit`](super::transmit).

use super::close_reason::CloseReason;
use super::execute;
use super::memory::{QueueMemory, STAGING};
use super::receive::Payload;
use super::reclaim::Reclaim;
use super::slots::{Outcome, Slots, Stage};
use super::transmit::{Agreed, Item, Transmit};
use crate::LIMITS;
use crate::accept::{AcceptedConnect, Refusal, refuse};
use crate::auth::{AuthResult, AuthState};
use crate::token::{Kind, Owner, Token};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use sluice_controller::{Controller, Subsystem};
use sluice_memory::{Segment, SharedRegion, Space};
use sluice_nvme::SubmissionEntry;
use sluice_nvme_tcp::{Decoder, Place, Violation, encode};
use sluice_reactor::{FileSlot, INTERRUPTED, Io, TaskId};
use sluice_tls::{Failure, Stream, Suite};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// Largest batch of a host that waits for each command, in PDUs and pieces of data of 4 KiB.
const FEW: usize = 4;
const PIECE: usize = 4 << 10;

/// Time that a host has to read why its connection ends, in nanoseconds.
const LINGER_NS: u64 = 1_000_000_000;

/// State outside of a connection that it needs to process commands.
pub(crate) struct Context<'a> {
    /// Controller of the association.
    pub(crate) controller: &'a mut Controller,
    pub(crate) subsystem: &'a mut Subsystem,
    pub(crate) space: &'a Space,
    /// Keep Alive Timeout of the association, in milliseconds.
    pub(crate) kato_ms: u32,
    pub(crate) now_ns: u64,
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// The last response is queued, that to Disconnect for instance. Received bytes are dropped.
    Leaving,
    /// The reason of the end is being sent to the host. Received bytes are dropped.
    Terminating {
        until_ns: u64,
    },
    /// The socket is shut down; operations on it are completing.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) qid: u16,
    /// Address of the host.
    pub(crate) peer: SocketAddr,
    pub(super) socket: FileSlot,
    pub(super) io: Io,
    pub(super) task: TaskId,
    pub(super) owner: Owner,
    pub(super) phase: Phase,
    pub(crate) memory: QueueMemory,
    /// TLS layer between the socket and the PDUs, if the connection is encrypted.
    pub(super) tls: Option<Box<Stream>>,
    pub(super) agreed: Agreed,
    pub(super) decoder: Decoder,
    /// Unprocessed bytes in the staging area. On an encrypted connection they are bytes of a record, see
    /// [`next_record`](Self::next_record).
    pub(super) staged: Range<usize>,
    /// PDUs and pieces of data that the last receive brought.
    pub(super) received_pieces: usize,
    /// Bytes of the receive in flight that go directly to their final place.
    pub(super) direct: usize,
    pub(super) receiving: bool,
    pub(super) sending: bool,
    /// Set while no receive is started, because the connection goes to another process.
    pub(super) is_quiet: bool,
    /// Set while another process may have the connection, so that its socket must not be shut down.
    pub(super) is_lent: bool,
    pub(super) payload: Option<Payload>,
    /// Capsule that waits for a slot, with the length of its data.
    pub(super) held: Option<(SubmissionEntry, u32)>,
    pub(super) slots: Slots,
    pub(super) transmit: Transmit,
    pub(super) reclaim: Reclaim,
    /// Authentication state, also after success; None if no authentication is required.
    pub(crate) auth: Option<Box<AuthState>>,
    pub(super) sq_tail: u32,
    pub(super) sq_rung: u32,
    pub(super) cq_head: u32,
    pub(super) cq_phase: bool,
}

impl Connection {
    /// Creates the connection of an accepted Connect command. The command takes the first slot.
    pub(crate) fn new(
        accepted: AcceptedConnect,
        io: Io,
        task: TaskId,
        owner: Owner,
    ) -> Result<Self, std::io::Error> {
        let AcceptedConnect { socket, tls, peer, memory, connect, agreed, entry, auth, .. } = accepted;
        let tls = tls.map(|session| Stream::new(session).map(Box::new)).transpose()?;
        let decoder = Decoder::resumed(LIMITS, agreed.digests);
        let staged = 0..tls.as_ref().map_or(0, |stream| stream.content().len());
        let mut slots = Slots::new((memory.entries() - 1) as u16);
        let first = slots.take(&entry);
        debug_assert_eq!(first, Some(0), "the Connect command has the first slot");
        let socket = io.register_file(socket)?;
        if let Some(stream) = &tls {
            let kept: Arc<SharedRegion> = Arc::clone(stream.memory());
            io.keep(&socket, kept);
        }
        Ok(Self {
            qid: connect.qid,
            peer,
            socket,
            io,
            task,
            owner,
            phase: Phase::Open,
            memory,
            tls,
            agreed,
            decoder,
            staged,
            received_pieces: 0,
            direct: 0,
            receiving: false,
            sending: false,
            is_quiet: false,
            is_lent: false,
            payload: None,
            held: None,
            slots,
            transmit: Transmit::default(),
            reclaim: Reclaim::new(),
            auth,
            sq_tail: 0,
            sq_rung: 0,
            cq_head: 0,
            cq_phase: true,
        })
    }

    /// Fails the Connect command. The caller must drop the connection then.
    pub(crate) fn refuse(mut self, cid: u16, refusal: &Refusal) {
        let tls = self.tls.as_mut().map(|stream| stream.session());
        refuse(&self.socket, tls, cid, refusal, self.agreed.digests);
    }

    fn token(&self, kind: Kind) -> u64 {
        Token { kind, owner: self.owner, qid: self.qid }.raw()
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Leaving)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Returns whether the connection is closed, and the kernel has let go of its memory.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed() && !self.receiving && !self.sending
    }

    /// Returns whether no PDU is queued or being sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.transmit.is_idle()
    }

    /// Returns whether no command is outstanding, nothing is being sent, and all received bytes are
    /// processed.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.phase == Phase::Open
            && self.slots.are_free()
            && !self.sending
            && !self.has_to_send()
            && self.payload.is_none()
            && self.held.is_none()
            && self.staged.is_empty()
    }

    /// Cancels the receive in flight. Its completion still arrives.
    pub(super) fn stop_receiving(&self) {
        self.io.cancel(self.task, self.token(Kind::Receive));
    }

    /// Returns when the connection is to be closed, if nothing changes before.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Terminating { until_ns } => Some(until_ns),
            Phase::Open | Phase::Leaving => self.auth.as_ref().and_then(|auth| auth.until_ns()),
            Phase::Closed => None,
        }
    }

    /// Returns whether only authentication commands are served on the connection.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.is_unauthenticated())
    }

    /// Returns whether an authentication result belongs to this connection.
    pub(crate) fn awaits(&self, result: &AuthResult) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.has_token(&result.liveness))
    }

    /// Closes the connection if the time to read the reason of its end, or to authenticate, is over. Returns
    /// whether it is.
    pub(crate) fn expire(&mut self, now_ns: u64) -> bool {
        let is_due = self.deadline_ns().is_some_and(|until_ns| until_ns <= now_ns);
        if is_due {
            self.close();
        }
        is_due
    }

    /// Shuts the socket down, which ends all operations on it.
    pub(crate) fn close(&mut self) {
        if self.phase != Phase::Closed {
            if self.is_open() && !self.is_lent {
                self.send_close_notify();
            }
            self.phase = Phase::Closed;
            self.abandon_authentication();
            if !self.is_lent {
                // The socket may be shut down already.
                let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            }
        }
    }

    /// Discards authentication in progress.
    fn abandon_authentication(&mut self) {
        self.auth.iter_mut().for_each(|auth| auth.abandon());
    }

    /// Sends close_notify on an encrypted connection, unless that would block.
    fn send_close_notify(&mut self) {
        if let Some(stream) = self.tls.as_mut().filter(|_| !self.sending) {
            let last = stream.farewell(&[], None);
            let _ = rustix::net::send(&self.socket, &last, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Returns the cipher suite, if the connection is encrypted.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.tls.as_ref().map(|stream| stream.suite())
    }

    /// Ends the connection after the last queued response. Received commands are dropped, and no response follows.
    pub(crate) fn leave(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Leaving;
            self.transmit.finish();
            (self.staged, self.held) = (0..0, None);
        }
    }

    /// Sends C2HTermReq for a violation of the protocol, and ends the connection.
    pub(crate) fn terminate(&mut self, violation: Violation, now_ns: u64) {
        let head = encode::c2h_term(violation, self.decoder.header());
        let (at, bytes) = (self.memory.term_head(), head.as_bytes());
        self.memory.write(at, bytes);
        self.end_with(Some(self.memory.segment(at, bytes.len())), None, now_ns);
    }

    /// Sends a TLS alert for invalid records, and ends the connection.
    pub(crate) fn alert(&mut self, failure: Failure, now_ns: u64) {
        self.end_with(None, Some(failure), now_ns);
    }

    fn end_with(&mut self, last: Option<Segment>, failure: Option<Failure>, now_ns: u64) {
        self.abandon_authentication();
        self.transmit.end(last);
        self.tls.iter_mut().for_each(|stream| stream.end(failure));
        self.phase = Phase::Terminating { until_ns: now_ns.saturating_add(LINGER_NS) };
    }

    /// Returns whether received bytes can be processed, or a send can be started.
    pub(crate) fn has_work(&self) -> bool {
        let arrived = match self.held {
            // The held command waits for a slot, and all bytes behind it wait for the command.
            Some(_) => self.slots.has_free(),
            None => !self.staged.is_empty(),
        };
        self.is_open() && (arrived || !self.sending && self.has_to_send())
    }

    /// Handles the completion of a receive.
    pub(crate) fn received(&mut self, result: i32, context: &mut Context<'_>) -> Result<(), CloseReason> {
        self.receiving = false;
        if self.reclaim.is_answer(result) {
            self.give_back();
            return Ok(());
        }
        if result == INTERRUPTED {
            return Ok(());
        }
        let bytes = match result {
            0 => return Err(CloseReason::ByHost),
            bytes if bytes < 0 => return Err(CloseReason::Socket(Errno::from_raw_os_error(-bytes))),
            bytes => bytes as usize,
        };
        self.reclaim.note_receive(context.now_ns);
        self.received_pieces = bytes / PIECE;
        if self.phase != Phase::Open {
            return Ok(());
        }
        if let Some(stream) = &mut self.tls {
            stream.received(bytes);
            return self.next_record().map(drop);
        }
        let direct = self.direct.min(bytes);
        self.staged = 0..bytes - direct;
        if direct > 0 { self.take_payload(direct, context) } else { Ok(()) }
    }

    /// Handles the completion of a send. Frees the slots of responses that were sent completely.
    pub(crate) fn sent(&mut self, result: i32) -> Result<(), CloseReason> {
        self.sending = false;
        if result < 0 {
            return Err(CloseReason::Socket(Errno::from_raw_os_error(-result)));
        }
        let mut bytes = result as usize;
        if let Some(stream) = &mut self.tls {
            let Some(content) = stream.sent(bytes) else { return Ok(()) };
            bytes = content;
        }
        let slots = &mut self.slots;
        self.transmit.sent(bytes, |item| match item {
            Item::R2t(_) => {}
            Item::Answer(number) => {
                slots.answering -= 1;
                slots.release(number);
            }
        });
        if matches!(self.phase, Phase::Terminating { .. }) && !self.has_to_send() {
            // The host reads to the end of the stream. Closing with unread bytes would discard the last
            // message.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
        match self.phase == Phase::Leaving && self.transmit.is_idle() {
            true => Err(CloseReason::ByHost),
            false => Ok(()),
        }
    }

    /// Starts a send and a receive, where each is possible.
    pub(crate) fn start(&mut self) {
        if self.is_closed() {
            return;
        }
        if !self.sending && self.has_to_send() {
            self.sending = true;
            let token = self.token(Kind::Send);
            let segments = self.transmit.prepare(&self.slots, &self.memory, &self.agreed);
            match &mut self.tls {
                None => self.io.send(&self.socket, segments, self.task, token),
                Some(stream) => self.io.send(&self.socket, &[stream.seal(segments)], self.task, token),
            }
        }
        if !self.receiving
            && !self.is_quiet
            && self.held.is_none()
            && (self.staged.is_empty() || !self.is_open())
        {
            self.start_receiving();
        }
    }

    fn has_to_send(&self) -> bool {
        !self.transmit.is_idle() || self.tls.as_ref().is_some_and(|stream| stream.owes())
    }

    /// Stages the content of the next TLS record. Returns false if there is none.
    pub(super) fn next_record(&mut self) -> Result<bool, CloseReason> {
        let Some(stream) = &mut self.tls else { return Ok(false) };
        stream.take_all();
        self.staged = 0..stream.advance().map_err(CloseReason::Tls)?;
        Ok(!self.staged.is_empty())
    }

    /// Starts a receive. The rest of the current payload goes to its final place, and all following bytes to
    /// the staging area.
    ///
    /// A host that sends few commands at a time waits for them, and sends the next ones soon. Other hosts
    /// send many at once.
    fn start_receiving(&mut self) {
        let soon = self.received_pieces <= FEW;
        if let Some(stream) = &self.tls {
            self.receiving = true;
            let token = self.token(Kind::Receive);
            return self.io.receive(&self.socket, &[stream.inbox()], soon, self.task, token);
        }
        let staging = self.memory.segment(self.memory.staging(), STAGING);
        let is_open = self.phase == Phase::Open;
        let direct = match (self.decoder.place(), &self.payload) {
            (Place::Payload(left), Some(payload)) if is_open => {
                Some(self.memory.segment(payload.at, left as usize))
            }
            _ => None,
        };
        self.direct = direct.map_or(0, |segment: Segment| segment.len() as usize);
        self.receiving = true;
        let segments = [direct.unwrap_or(staging), staging];
        let first = usize::from(direct.is_none());
        self.io.receive(&self.socket, &segments[first..], soon, self.task, self.token(Kind::Receive));
    }

    /// Puts a command into the submission queue. The controller fetches it after [`ring`](Self::ring).
    pub(crate) fn submit(&mut self, number: u16) {
        let entry = self.slots.entry_for_controller(number, &self.memory);
        self.slots.slot_mut(number).stage = Stage::Submitted;
        self.memory.put_entry(self.sq_tail, &entry);
        self.sq_tail = (self.sq_tail + 1) % self.memory.entries();
    }

    /// Rings the doorbell for commands submitted since the last time.
    pub(crate) fn ring(&mut self, controller: &mut Controller) {
        if self.sq_rung != self.sq_tail {
            self.sq_rung = self.sq_tail;
            controller.ring(u32::from(self.qid) * 8, self.sq_tail);
        }
    }

    /// Takes the completions that the controller has written. Returns how many.
    pub(crate) fn reap(&mut self, controller: &mut Controller) -> usize {
        let mut count = 0;
        while let Some(entry) = self.memory.completion(self.cq_head, self.cq_phase) {
            self.cq_head += 1;
            if self.cq_head == self.memory.entries() {
                (self.cq_head, self.cq_phase) = (0, !self.cq_phase);
            }
            count += 1;
            if self.slots.get(entry.cid).is_some_and(|slot| slot.stage == Stage::Submitted) {
                let outcome = Outcome { status: entry.status(), dw0: entry.dw0, dw1: entry.dw1 };
                self.answer(entry.cid, outcome);
            }
        }
        if count > 0 {
            controller.ring(u32::from(self.qid) * 8 + 4, self.cq_head);
        }
        count
    }

    pub(crate) fn answer(&mut self, number: u16, outcome: Outcome) {
        let slot = self.slots.slot_mut(number);
        (slot.outcome, slot.stage) = (outcome, Stage::Answering);
        self.slots.answering += 1;
        self.transmit.push(Item::Answer(number));
    }

    /// Resumes commands that waited for buffer space, as far as there is some now. Returns how many.
    pub(crate) fn resume(&mut self) -> usize {
        let mut count = 0;
        while let Some(number) = self.slots.next_with_room() {
            execute::with_room(self, number);
            count += 1;
        }
        count
    }

    /// Completes all submitted commands with `outcome`, and resets both queues. The controller has deleted
    /// its queues.
    pub(super) fn abandon_submitted(&mut self, outcome: Outcome) {
        for number in 0..(self.memory.entries() - 1) as u16 {
            if self.slots.slot(number).stage == Stage::Submitted {
                self.answer(number, outcome);
            }
        }
        (self.sq_tail, self.sq_rung) = (0, 0);
        (self.cq_head, self.cq_phase) = (0, true);
        self.memory.clear_completions();
    }
}

#[cfg(test)]
mod tests;
