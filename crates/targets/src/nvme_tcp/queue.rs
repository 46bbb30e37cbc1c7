//! An I/O queue: its connection, its memory, and the operations in progress in either direction.
//!
//! Received PDUs are decoded in [`receive`](super::receive); PDUs to send are made in
//! [`transmit`](super::transmit). The queue finishes no command. A completion of the controller is an
//! [`Outcome`], for the target to take.

use super::admin_thread::{Connected, Generation};
use super::chunk::{Chunk, ZEROS};
use super::counters::Tally;
use super::fabrics::IoQueue;
use super::in_flight::{InFlight, InFlightTable, Remaining};
use super::link::Negotiated;
use super::receive::Payload;
use super::transmit::{Item, OUTBOX, Outbox, PduFormat, Transmit};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use sluice_command::{Lane, Ticket};
use sluice_memory::{Segment, SegmentList, SharedRegion};
use sluice_nvme::Status;
use sluice_nvme_tcp::{Decoder, Violation, encode};
use sluice_reactor::{FileSlot, INTERRUPTED, Io, TaskId};
use sluice_tls::{Failure, Stream};
use std::ops::Range;
use std::sync::Arc;
use std::{fmt, io};

/// Tokens that belong to no command.
pub(super) const EVENTS: Ticket = Ticket(u32::MAX - 1);
pub(super) const RECEIVED: Ticket = Ticket(u32::MAX - 2);
pub(super) const SENT: Ticket = Ticket(u32::MAX - 3);

/// Bytes received at once, without payload that goes to its final place.
pub(super) const INBOX: usize = 256 << 10;

/// Bytes of data in a capsule at most, even if the controller accepts more. Larger data is worth an R2T.
const IN_CAPSULE_MAX: u32 = 16 << 10;

/// Number of commands in flight up to which their sender probably waits for each.
const FEW: usize = 4;

/// Reactor of a target, with the target's task on it.
#[derive(Clone, Debug)]
pub(super) struct ReactorHandle {
    pub(super) io: Io,
    pub(super) task: TaskId,
    pub(super) token_prefix: u64,
}

impl ReactorHandle {
    pub(super) fn token(&self, ticket: Ticket) -> u64 {
        self.token_prefix | u64::from(ticket.0)
    }
}

/// Reason of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The controller closed it.
    ByController,
    Socket(Errno),
    /// The controller sent bytes that are no TLS record of this connection, or ended TLS.
    Tls(Failure),
    /// The controller violated the protocol.
    Violation(Violation),
    /// The controller reported a violation by this host.
    Terminated(Violation),
    /// A command was not answered in time.
    TimedOut,
    /// The admin thread has given the connection up.
    ByAdminThread,
}

impl From<Violation> for CloseReason {
    fn from(violation: Violation) -> Self {
        CloseReason::Violation(violation)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::ByController => f.write_str("the controller closed a connection"),
            CloseReason::Socket(errno) => write!(f, "a connection failed: {errno}"),
            CloseReason::Tls(failure) => failure.fmt(f),
            CloseReason::Violation(violation) => {
                write!(f, "the controller violated the protocol: {violation}")
            }
            CloseReason::Terminated(violation) => {
                write!(f, "the controller reported a protocol violation by this host: {violation}")
            }
            CloseReason::TimedOut => f.write_str("a command was not answered in time"),
            CloseReason::ByAdminThread => f.write_str("the admin queue failed"),
        }
    }
}

/// Result of a chunk of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) remaining: Remaining,
    /// Bytes of the command in the chunk.
    pub(super) bytes: u64,
    pub(super) status: Status,
    /// Count of acknowledged writes at the time the chunk was sent.
    pub(super) mark: u64,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) generation: Generation,
    reactor: ReactorHandle,
    socket: FileSlot,
    /// The inbox, the outbox, and zeros. The kernel's operations keep the memory alive as long as they name
    /// it.
    pub(super) memory: Arc<SharedRegion>,
    /// TLS stream between the socket and the decoder, if the connection is encrypted.
    pub(super) tls: Option<Box<Stream>>,
    pub(super) in_capsule_max: u32,
    pub(super) decoder: Decoder,
    /// Bytes in the inbox that are not decoded yet; on an encrypted connection, bytes of a record.
    pub(super) staged: Range<usize>,
    pub(super) payload: Option<Payload>,
    /// Set if the command has succeeded with the present payload.
    pub(super) is_success: bool,
    /// Set if the last received data was large: more of it is expected, and is received past the inbox.
    pub(super) expects_large: bool,
    /// Bytes of the receive in progress that go to their final place.
    pub(super) direct: usize,
    receiving: bool,
    sending: bool,
    pub(super) close_reason: Option<CloseReason>,
    pub(super) in_flight: InFlightTable,
    pub(super) transmit: Transmit,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) tally: Tally,
    /// Scratch, kept for its memory.
    part: SegmentList,
    segments: Vec<Segment>,
}

impl Queue {
    pub(super) fn new(connected: Connected, reactor: ReactorHandle) -> io::Result<Self> {
        let Connected { generation, queue: IoQueue { negotiated, entries, in_capsule_max }, .. } = connected;
        let Negotiated { socket, tls, decoder, response } = negotiated;
        let tls = tls.map(|session| Stream::new(session).map(Box::new)).transpose()?;
        let memory = Arc::new(SharedRegion::new("sluice-nvme-tcp-host", INBOX + OUTBOX + ZEROS)?);
        let socket = reactor.io.register_file(socket)?;
        let kept: Arc<SharedRegion> = Arc::clone(&memory);
        reactor.io.keep(&socket, kept);
        if let Some(stream) = &tls {
            let kept: Arc<SharedRegion> = Arc::clone(stream.memory());
            reactor.io.keep(&socket, kept);
        }
        let format = PduFormat {
            digests: response.digests,
            alignment: response.alignment,
            data_max: response.h2c_data_max,
        };
        // A full queue has one free entry.
        let depth = entries - 1;
        Ok(Self {
            generation,
            reactor,
            socket,
            memory,
            tls,
            in_capsule_max: in_capsule_max.min(IN_CAPSULE_MAX),
            decoder,
            staged: 0..0,
            payload: None,
            is_success: false,
            expects_large: false,
            direct: 0,
            receiving: false,
            sending: false,
            close_reason: None,
            in_flight: InFlightTable::new(depth),
            transmit: Transmit::new(format, depth),
            outcomes: Vec::with_capacity(depth as usize),
            tally: Tally::default(),
            part: SegmentList::new(),
            segments: Vec::with_capacity(sluice_memory::MAX_SEGMENTS + 1),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.close_reason.is_none()
    }

    /// Returns whether no receive was started yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_open() && !self.receiving
    }

    /// Returns whether the connection has ended, and no operation of the kernel names memory of a command.
    pub(super) fn is_over(&self) -> bool {
        !self.is_open() && !self.receiving && !self.sending
    }

    /// Adds a chunk of a command. `mark` is the present count of acknowledged writes.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn submit(&mut self, remaining: Remaining, chunk: &Chunk, now_ns: u64, mark: u64) {
        let cid = self.in_flight.begin(InFlight::new(remaining, chunk, now_ns, mark));
        self.transmit.push(Item::Capsule(cid));
        self.tally.sent += 1;
    }

    /// Closes the connection. Operations on it complete; the admin thread resets it.
    pub(super) fn close(&mut self, why: CloseReason) {
        if !self.is_open() {
            return;
        }
        if !self.sending {
            self.send_termination(why);
        }
        self.close_reason = Some(why);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends the controller the reason of the end, if the socket takes it at once.
    fn send_termination(&mut self, why: CloseReason) {
        const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
        let term = match why {
            // Within a PDU a termination request would be data.
            CloseReason::Violation(violation) if self.transmit.is_between_pdus() => {
                Some(encode::h2c_term(violation, self.decoder.header()))
            }
            _ => None,
        };
        let words = term.as_ref().map_or(&[][..], |head| head.as_bytes());
        let failure = if let CloseReason::Tls(failure) = why { Some(failure) } else { None };
        let _ = match &mut self.tls {
            Some(stream) => rustix::net::send(&self.socket, &stream.farewell(words, failure), FLAGS),
            None => rustix::net::send(&self.socket, words, FLAGS),
        };
    }

    /// Starts sends and receives that are possible on the socket.
    pub(super) fn start(&mut self, lane: &Lane<'_>) {
        if !self.is_open() {
            return;
        }
        let owes = self.tls.as_ref().is_some_and(|stream| stream.owes());
        if !self.sending && (owes || !self.transmit.is_empty()) {
            self.start_sending(lane);
        }
        if !self.receiving && self.staged.is_empty() {
            self.start_receiving(lane);
        }
    }

    fn start_sending(&mut self, lane: &Lane<'_>) {
        let outbox = Outbox { region: &self.memory, at: INBOX, zeros: INBOX + OUTBOX };
        let segments = self.transmit.prepare(&mut self.in_flight, outbox, lane);
        let (task, token) = (self.reactor.task, self.reactor.token(SENT));
        let sealed = match &mut self.tls {
            Some(stream) if !segments.is_empty() || stream.owes() => [stream.seal(segments)],
            None if !segments.is_empty() => {
                self.sending = true;
                self.tally.sends += 1;
                return self.reactor.io.send(&self.socket, segments, task, token);
            }
            _ => return,
        };
        self.sending = true;
        self.tally.sends += 1;
        self.reactor.io.send(&self.socket, &sealed, task, token);
    }

    /// Receives missing payload into its final place, and all that follows into the inbox.
    ///
    /// With few commands in flight their sender waits for the next response, so the receive is speculative.
    /// With many commands in flight a response comes with others.
    fn start_receiving(&mut self, lane: &Lane<'_>) {
        let soon = !self.expects_large && self.in_flight.len() <= FEW;
        if let Some(stream) = &self.tls {
            self.receiving = true;
            self.tally.receives += 1;
            let token = self.reactor.token(RECEIVED);
            return self.reactor.io.receive(&self.socket, &[stream.inbox()], soon, self.reactor.task, token);
        }
        self.segments.clear();
        self.direct = self.direct_segments(lane);
        if self.direct > 0 {
            self.segments.extend_from_slice(self.part.as_slice());
        }
        // The header of expected data has to be decoded before the data is received.
        const HEADERS: usize = 64;
        let inbox = if self.expects_large { HEADERS } else { INBOX };
        self.segments.push(self.memory.segment(0, inbox as u32));
        self.receiving = true;
        self.tally.receives += 1;
        let token = self.reactor.token(RECEIVED);
        self.reactor.io.receive(&self.socket, &self.segments, soon, self.reactor.task, token);
    }

    /// Finds the segments for the rest of the present payload; returns zero bytes if it has to be copied.
    fn direct_segments(&mut self, lane: &Lane<'_>) -> usize {
        let Some(left) = self.payload_left() else { return 0 };
        let Some(payload) = &self.payload else { return 0 };
        let Some(flight) = self.in_flight.get(payload.cid) else { return 0 };
        let Some(slot) = lane.parked(flight.remaining.ticket) else { return 0 };
        if slot.data.has_bit_bucket() {
            return 0;
        }
        let from = flight.remaining.done as usize + payload.at as usize;
        match slot.data.slice(from, left, &mut self.part) {
            Ok(()) => left,
            Err(_) => 0,
        }
    }

    /// Handles the end of a send.
    pub(super) fn sent(&mut self, result: i32) -> Result<(), CloseReason> {
        self.sending = false;
        if !self.is_open() {
            return Ok(());
        }
        let mut bytes =
            usize::try_from(result).map_err(|_| CloseReason::Socket(Errno::from_raw_os_error(-result)))?;
        if let Some(stream) = &mut self.tls {
            let Some(content) = stream.sent(bytes) else { return Ok(()) };
            bytes = content;
        }
        let (in_flight, outcomes) = (&mut self.in_flight, &mut self.outcomes);
        self.transmit.sent(bytes, |cid| {
            let Some(flight) = in_flight.get_mut(cid) else { return };
            flight.pins -= 1;
            if let (0, Some(status)) = (flight.pins, flight.answer) {
                outcomes.extend(in_flight.end(cid).map(|flight| outcome_of(&flight, status)));
            }
        });
        Ok(())
    }

    /// Handles the end of a receive.
    pub(super) fn received(&mut self, result: i32, lane: &Lane<'_>) -> Result<(), CloseReason> {
        self.receiving = false;
        if !self.is_open() || result == INTERRUPTED {
            return Ok(());
        }
        match usize::try_from(result) {
            Ok(0) => Err(CloseReason::ByController),
            Ok(bytes) => self.take(bytes, lane),
            Err(_) => Err(CloseReason::Socket(Errno::from_raw_os_error(-result))),
        }
    }

    /// Records the controller's completion of a command. The command is over when no send names its memory
    /// any more.
    pub(super) fn answer(&mut self, cid: u16, status: Status) -> Option<()> {
        let flight = self.in_flight.get_mut(cid).filter(|flight| flight.is_there())?;
        let status = flight.outcome(status);
        if flight.pins > 0 {
            flight.answer = Some(status);
        } else {
            self.outcomes.extend(self.in_flight.end(cid).map(|flight| outcome_of(&flight, status)));
        }
        Some(())
    }

    /// Removes all commands that will not be completed, the oldest first. Each comes with true if the
    /// controller may still change blocks for it.
    pub(super) fn take_interrupted(&mut self, now_ns: u64) -> Vec<(Remaining, bool)> {
        let interrupted =
            |remaining: Remaining| Remaining { since_ns: remaining.since_ns.or(Some(now_ns)), ..remaining };
        let all = self.in_flight.end_all().into_iter();
        all.map(|flight| (interrupted(flight.remaining), flight.may_change())).collect()
    }
}

fn outcome_of(flight: &InFlight, status: Status) -> Outcome {
    Outcome { remaining: flight.remaining, bytes: flight.bytes, status, mark: flight.mark }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Operations in progress end, and keep their memory until then.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}
