//! Replicate and mirror: copies of a drive that are always equal, or marked as different.
//!
//! The layers below are the members, and after them the log. A write goes to all members from the one private
//! copy of its data, and ends when all of them are done. [`Mirror`](sluice_redundancy::Mirror) has the rest
//! of the protocol; this module connects it to the host and to the layers.
//!
//! The two functions differ in the role of the members. Layer 0 of a replicate is the drive, which the host
//! reads past the function, and layer 1 is a copy. All members of a mirror are equal, and the first that has
//! the data is read.

mod control;
mod jobs;
mod member;
mod order;
mod read;
mod wire;

pub(super) use wire::Equals;
pub use wire::{LogState, MemberState, SetCheck, SetOrder, SetState, SetStatus};

use crate::services::mirrored::{Event, Mirrored};
use member::Mode;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_redundancy::{Begun, Ended, Members, WriteId};
use sluice_uif::{Answer, Call, Control, Data, Done, Function, Held, Interest, Io, Options, Properties};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Bytes that are copied or compared at once.
const CHUNK_BYTES: u32 = 512 << 10;

/// Stages of a command: back from its lead member; allowed to go; read.
const BACK: u8 = 1;
const GO: u8 = 2;
const READ: u8 = 3;

/// Purpose of a write's request, in the high half of its token, plus the member. Lower values belong to the
/// set.
const LEG: u64 = 16;

/// Function with its set of members.
#[derive(Debug)]
pub struct Replicate {
    mode: Mode,
    rate: u64,
    /// Number for a new log.
    id: u64,
    set: Option<Mirrored>,
    /// Reason why there is no set.
    error: String,
    /// Whether a set failed that may have requests in flight: no other set is opened.
    refused: bool,
    /// Whether an operator took a member out and waits until the log has that.
    leaving: bool,
    /// Answer to an operator who cancelled a copy, for the time when the log has that.
    cancelled: Option<String>,
    /// Whether an operator chose the right member and waits until the set serves.
    ordered: bool,
    /// Writes by [`WriteId`].
    writes: Vec<Write>,
    /// Writes that may go and found no room to be sent to all members.
    blocked: VecDeque<u32>,
}

/// Write or flush of the host.
#[derive(Clone, Debug)]
struct Write {
    held: Held,
    /// Whether the write waits for an event of the set.
    waits: bool,
    to: Members,
    /// Members still to be sent this write, excluding the lead member.
    unsent: Members,
    /// Members that are not done with the write.
    left: Members,
    failed: Members,
    /// First error; that of the lead member, if it failed.
    status: Status,
}

impl Write {
    fn new(held: Held, waits: bool) -> Self {
        let none = Members::NONE;
        let (to, unsent, left, failed) = (none, none, none, none);
        Self { held, waits, to, unsent, left, failed, status: Status::SUCCESS }
    }

    /// Sends the write to these members.
    fn send(&mut self, to: Members) {
        (self.to, self.left, self.waits) = (to, to, false);
        self.unsent = to.without(Members::one(self.lead()));
    }

    /// Returns the lead member, which gets the command itself.
    fn lead(&self) -> usize {
        self.to.lowest().unwrap_or_default()
    }
}

impl Replicate {
    /// Creates a replicate: layer 0 is the drive, and layer 1 its copy. The option `resync_mib_s` limits
    /// copying while the host writes (64).
    ///
    /// # Errors
    /// The options are not valid.
    pub fn new(options: &Options) -> Result<Self, String> {
        Self::of(Mode::Copy, options)
    }

    /// Creates a mirror of equal members, with the same option.
    ///
    /// # Errors
    /// The options are not valid.
    pub fn mirror(options: &Options) -> Result<Self, String> {
        Self::of(Mode::Equals, options)
    }

    fn of(mode: Mode, options: &Options) -> Result<Self, String> {
        Ok(Self {
            mode,
            rate: mode.rate(options)?,
            id: RandomState::new().hash_one("a new log"),
            set: None,
            error: "it waits for the layers below".into(),
            refused: false,
            leaving: false,
            cancelled: None,
            ordered: false,
            writes: Vec::new(),
            blocked: VecDeque::new(),
        })
    }

    /// Sends a write: the lead member gets the command itself, the others get requests of the function's own.
    fn go(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        // Deallocated blocks may read as anything; written zeros are equal on both copies.
        if call.request.operation == Operation::Deallocate {
            (call.request.operation, call.request.deallocate) = (Operation::WriteZeroes, true);
        }
        let write = &mut self.writes[id as usize];
        while let Some(member) = write.unsent.lowest() {
            let data = if call.request.has_data() { Data::Of(write.held, 0) } else { Data::None };
            let token = (LEG + member as u64) << 32 | u64::from(id);
            if io.request(member as u8, call.request, data, token).is_err() {
                self.blocked.push_back(id);
                return Answer::Hold;
            }
            write.unsent = write.unsent.without(Members::one(member));
        }
        call.layer = write.lead() as u8;
        Answer::ForwardAndReturn(BACK)
    }

    /// Notes that a member is done with a write. Returns the status if it was the last one and the log need
    /// not be written first.
    fn leg_done(&mut self, id: u32, member: usize, status: Status) -> Option<Status> {
        let (status, write) = (self.note_loss(member, status), &mut self.writes[id as usize]);
        write.left = write.left.without(Members::one(member));
        if !status.is_success() {
            write.failed = write.failed.with(Members::one(member));
            if member == write.lead() || write.status.is_success() {
                write.status = status;
            }
        }
        if !write.left.is_empty() {
            return None;
        }
        let Some(set) = &mut self.set else { return Some(Status::NAMESPACE_NOT_READY) };
        // A write that its host aborted fails, and no member is lost for it.
        match set.mirror.end_for(WriteId(id), write.failed, write.status.is_of_host()) {
            Ended::Good => Some(Status::SUCCESS),
            // No member failed it; it fails for an earlier loss.
            Ended::Failed if write.status.is_success() => Some(Status::WRITE_FAULT),
            Ended::Failed => Some(write.status),
            Ended::Wait => {
                write.waits = true;
                None
            }
        }
    }

    /// Executes the steps of the set, as long as there is room for requests.
    fn run(&mut self, io: &mut Io<'_>) {
        while let Some(event) = self.set.as_mut().and_then(|set| set.next(io)) {
            match event {
                Event::Ready(outcome) => self.opened(outcome, io),
                Event::Go { write, to } => {
                    let write = &mut self.writes[write as usize];
                    write.send(to);
                    io.resume(write.held, GO, Status::SUCCESS);
                }
                Event::Over { write, good } => {
                    let status = if good { Status::SUCCESS } else { Status::WRITE_FAULT };
                    let write = &mut self.writes[write as usize];
                    write.waits = false;
                    io.finish(write.held, status);
                }
            }
        }
        while io.has_room()
            && let Some(id) = self.blocked.pop_front()
        {
            io.resume(self.writes[id as usize].held, GO, Status::SUCCESS);
        }
        self.answer_leaving(io);
        io.wake_at(self.set.as_ref().and_then(|set| set.mirror.alarm_ns()));
    }
}

fn is_range(request: &Request) -> bool {
    request.operation != Operation::Flush
}

impl Function for Replicate {
    fn properties(&self) -> Properties {
        let changes = [Operation::Write, Operation::WriteZeroes, Operation::Deallocate, Operation::Flush];
        let own = Properties { pool: 4 * CHUNK_BYTES, ..Properties::NONE };
        let own = match self.mode {
            Mode::Copy => own,
            Mode::Equals => own.with(Operation::Read, Interest::Before),
        };
        changes.into_iter().fold(own, |own, operation| own.with(operation, Interest::Before))
    }

    fn start(&mut self, io: &mut Io<'_>) {
        if self.refused {
            return io.ready(Status::NAMESPACE_NOT_READY);
        }
        let layers = io.layers().to_vec();
        let mode = self.mode;
        let outcome = match &mut self.set {
            Some(set) if set.mirror.asks() => return io.ready(Status::NAMESPACE_NOT_READY),
            // The layers have another size.
            Some(set) => mode
                .members(&layers)
                .and_then(|members| mode.check(&layers[..members]))
                .and_then(|()| set.mirror.resize(layers[0].size))
                .map(|()| io.ready(Status::SUCCESS)),
            None => mode
                .open(&layers, self.rate, self.id)
                .map(|(mirror, members)| self.set = Some(Mirrored::new(mirror, members))),
        };
        if let Err(message) = outcome {
            self.refuse(message, io);
        }
        self.run(io);
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if self.awaits_order() {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        if call.request.operation == Operation::Read {
            return self.read(call);
        }
        let Some(set) = &mut self.set else { return Answer::Finish(Status::NAMESPACE_NOT_READY) };
        let request = &call.request;
        let bytes = if is_range(request) { request.offset..request.end() } else { 0..0 };
        let (WriteId(id), begun) = set.mirror.begin(bytes);
        let write = Write::new(call.hold(), begun == Begun::Wait);
        if self.writes.len() <= id as usize {
            self.writes.resize(id as usize + 1, write.clone());
        }
        self.writes[id as usize] = write;
        call.cookie[0] = id.into();
        let answer = match begun {
            Begun::Go(to) => {
                self.writes[id as usize].send(to);
                self.go(id, call, io)
            }
            Begun::Wait => Answer::Hold,
        };
        self.run(io);
        answer
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if call.stage == READ {
            return self.was_read(call, io);
        }
        let id = call.cookie[0] as u32;
        if call.stage == GO && self.set.is_none() {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        if call.stage == GO {
            return self.go(id, call, io);
        }
        // Each return of a command gives another handle to hold.
        let write = &mut self.writes[id as usize];
        write.held = call.hold();
        let lead = write.lead();
        let over = self.leg_done(id, lead, call.status);
        self.run(io);
        over.map_or(Answer::Hold, Answer::Finish)
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        match ((done.token >> 32).checked_sub(LEG), &mut self.set) {
            (Some(member), _) => {
                let id = done.token as u32;
                if let Some(status) = self.leg_done(id, member as usize, done.status) {
                    io.finish(self.writes[id as usize].held, status);
                }
            }
            (None, Some(set)) => set.done(done, io),
            (None, None) => {}
        }
        self.run(io);
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        self.run(io);
    }

    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        self.take_order(text, io)
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        if let Some(set) = &self.set {
            set.mirror.status().count(count);
        }
    }
}

#[cfg(test)]
mod tests;
