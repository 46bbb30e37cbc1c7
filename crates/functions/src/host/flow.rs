//! Path of a command: to the function, below, back, and to its end.

use super::arena::{Arena, Buffer};
use super::commands::{CommandState, Next, Progress};
use super::control::ORDER;
use super::entry;
use super::layer::Uif;
use super::peer::Peer;
use super::start::{Leaving, Readiness};
use super::unreported_loss::UnreportedLoss;
use super::{OnDeath, RETURNS_MAX};
use sluice_command::{Lane, Operation, Request, Ticket};
use sluice_nvme::Status;
use sluice_uif::abi::{Reply, Submission, disposition, kind};
use sluice_uif::{Answer, Interest};
use std::sync::atomic::Ordering::Relaxed;

/// Status of a command whose function has exited or sent a malformed reply. Without Do Not Retry: a retry may
/// find another instance of the function.
const LOST: Status = Status::INTERNAL_ERROR;

/// Result of an attempt to begin a command.
#[derive(PartialEq, Eq)]
enum Begun {
    Yes,
    NotYet,
}

impl Uif {
    /// Starts waiting commands, as far as there is room.
    pub(super) fn pump(&mut self, lane: &mut Lane<'_>) {
        loop {
            self.leave_if_done(lane);
            self.start_if_changed(lane);
            self.start_waiting(lane);
            self.give_order(lane);
            // A function in this process gets other calls when it has no command to answer.
            let Some(notice) = self.unsent.pop_front() else { break };
            self.notify(notice, lane);
        }
        self.instance.counts.waiting.set((self.waiting.len() + self.returning.len()) as u64);
    }

    fn start_waiting(&mut self, lane: &mut Lane<'_>) {
        while self.has_place()
            && let Some(index) = self.returning.pop_front()
        {
            self.send(index, lane);
        }
        while let Some(index) = self.waiting.pop_front() {
            if self.begin(index, lane) == Begun::NotYet {
                self.waiting.push_front(index);
                break;
            }
        }
    }

    /// Returns whether the function can be sent another command.
    fn has_place(&self) -> bool {
        self.readiness == Readiness::Ready
            && match &self.peer {
                Peer::Absent => false,
                Peer::Local(_) => true,
                Peer::External(external) => self.out < external.commands,
            }
    }

    /// Returns whether commands wait for a function that is not running.
    fn waits_for_instance(&self) -> bool {
        self.on_death == OnDeath::Park || self.instance.is_planned()
    }

    fn begin(&mut self, index: u32, lane: &mut Lane<'_>) -> Begun {
        let Some(arena) = &mut self.arena else {
            if self.waits_for_instance() {
                return Begun::NotYet;
            }
            self.fail(index, LOST, lane);
            return Begun::Yes;
        };
        match self.readiness {
            _ if self.leaving != Leaving::No => return Begun::NotYet,
            Readiness::Starting { .. } => return Begun::NotYet,
            Readiness::Unable(status) => {
                self.fail(index, status, lane);
                return Begun::Yes;
            }
            Readiness::Ready => {}
        }
        let state = self.commands.of(index);
        let before = self.properties.interests[state.request.operation as usize] == Interest::Before;
        let length = buffer_length(&state.request, self.properties.scratch);
        let full = matches!(&self.peer, Peer::External(external) if self.out >= external.commands);
        let buffer = (length > 0 && !(before && full)).then(|| arena.take(length)).flatten();
        if before && full || length > 0 && buffer.is_none() {
            if before && full || !arena.is_untouched() {
                self.instance.counts.waits.increment();
                return Begun::NotYet;
            }
            // The command needs more than the arena holds.
            self.finish(index, LOST, lane);
            return Begun::Yes;
        }
        state.buffer = buffer;
        state.link = self.peer.number();
        self.first_step(index, before, lane);
        Begun::Yes
    }

    /// Starts a command that has its buffer.
    fn first_step(&mut self, index: u32, before: bool, lane: &mut Lane<'_>) {
        let state = self.commands.of(index);
        if let (Operation::Write, Some(buffer), Some(arena)) =
            (state.request.operation, &state.buffer, &self.arena)
        {
            // Private copy: from here on the host may change its own memory.
            let whole = lane.parked(state.ticket).is_some_and(|slot| arena.gather(buffer, slot));
            if !whole {
                return self.finish(index, LOST, lane);
            }
        }
        if before {
            state.progress = Progress::Waiting;
            return self.send(index, lane);
        }
        let request = state.request;
        self.send_below(index, request, 0, Next::ShowSuccess, lane);
    }

    /// Sends the function a command: a new one, or one that returns.
    fn send(&mut self, index: u32, lane: &mut Lane<'_>) {
        let state = self.commands.of(index);
        state.generation = state.generation.wrapping_add(1);
        let returns = state.progress == Progress::Returning;
        let stage = if let Next::Return(stage) = state.next { stage } else { 0 };
        (state.progress, state.sent_ns) = (Progress::Sent, lane.now_ns());
        self.instance.counts.sent.increment();
        match &mut self.peer {
            Peer::External(external) => {
                external.sender.push(&command_entry(index, state, returns, stage));
                self.out += 1;
            }
            Peer::Local(_) => self.call(index, returns, stage, lane),
            Peer::Absent => self.lose(index, lane),
        }
    }

    /// Executes a reply of a function's process. It may be anything.
    pub(super) fn execute(&mut self, reply: &Reply, lane: &mut Lane<'_>) {
        match reply.disposition {
            _ if self.peer.is_first_version() => self.execute_answer(reply, lane),
            disposition::REQUEST => {
                let request = entry::request(reply);
                self.originate(reply.tag, reply.layer, request, reply.data_offset, lane);
            }
            disposition::READY => self.started(entry::status(reply)),
            disposition::TRANSLATE => self.translate_reply(reply),
            _ if reply.tag as u32 == ORDER => self.order_answered(reply),
            _ => self.execute_answer(reply, lane),
        }
    }

    /// Executes a reply to a command.
    fn execute_answer(&mut self, reply: &Reply, lane: &mut Lane<'_>) {
        let Some(index) = self.commands.sent(reply.tag) else {
            return self.instance.counts.stray.increment();
        };
        self.instance.counts.replies.increment();
        self.out -= 1;
        let state = self.commands.of(index);
        // The command has its buffer and is in no other place; the answer decides where it goes.
        (state.progress, state.cookie) = (Progress::Waiting, reply.cookie);
        self.execute_step(index, entry::answer(reply), reply.layer, lane);
    }

    /// Executes the answer to a command, with the request for the layers below.
    pub(super) fn execute_step(
        &mut self,
        index: u32,
        answer: Option<(Answer, Request)>,
        layer: u8,
        lane: &mut Lane<'_>,
    ) {
        match answer {
            Some((Answer::Finish(status), _)) => self.conclude(index, entry::valid(status), lane),
            Some((Answer::Forward, request)) => {
                self.send_below(index, request, layer, Next::Finish, lane);
            }
            Some((Answer::ForwardAndReturn(stage), request)) if self.may_return(index, lane) => {
                self.commands.of(index).returns += 1;
                self.send_below(index, request, layer, Next::Return(stage), lane);
            }
            // Malformed, held, or returned more often than is allowed.
            Some(_) | None => self.refuse(index, lane),
        }
    }

    /// Returns whether a command may return to its function once more.
    fn may_return(&mut self, index: u32, lane: &Lane<'_>) -> bool {
        let state = self.commands.of(index);
        let length = lane.parked(state.ticket).map_or(0, |slot| slot.request.length);
        let piece = state.buffer.as_ref().map_or(length, |buffer| buffer.len() as u64);
        let further = length.saturating_sub(1).checked_div(piece).unwrap_or(0);
        u64::from(state.returns) < u64::from(RETURNS_MAX) + further
    }

    /// Fails a command whose reply is malformed.
    fn refuse(&mut self, index: u32, lane: &mut Lane<'_>) {
        self.instance.counts.invalid.increment();
        self.finish(index, LOST, lane);
    }

    /// Sends a command below, with its buffer instead of the host's memory. It goes as a child, so that the
    /// command itself does not change.
    fn send_below(&mut self, index: u32, request: Request, layer: u8, next: Next, lane: &mut Lane<'_>) {
        let layer = if self.peer.is_first_version() { 0 } else { layer };
        let state = self.commands.of(index);
        let data = state.buffer.as_ref().filter(|_| request.has_data());
        let room = data.map_or(0, |buffer| buffer.len() as u64);
        if !self.below.get(layer).is_some_and(|below| is_possible(&request, room, below)) {
            return self.refuse(index, lane);
        }
        let arena = self.arena.as_ref().filter(|arena| data.is_none_or(|buffer| arena.owns(buffer)));
        let segment = data.zip(arena).map(|(buffer, arena)| arena.segment(buffer, request.length as usize));
        let Some(command) = lane.unpark(state.ticket) else { return };
        (state.progress, state.request, state.next) = (Progress::Below, request, next);
        lane.fork(command, 1, 0, [u64::from(index), 0], |_, _, child| {
            child.request = request;
            child.data.clear();
            if let Some(segment) = segment {
                child.data.push(segment).expect("one segment is not too many");
            }
            layer.into()
        });
    }

    /// Takes a command back from below.
    pub(super) fn came_back(&mut self, index: u32, ticket: Ticket, status: Status, lane: &mut Lane<'_>) {
        let here = self.peer.number();
        let state = self.commands.of(index);
        (state.ticket, state.status) = (ticket, status);
        if !status.is_success() && matches!(state.next, Next::Return(_)) {
            let (is_loss, link) = (UnreportedLoss::is_loss(&state.request, status), state.link);
            self.note_loss(is_loss, link, lane);
        }
        let state = self.commands.of(index);
        match state.next {
            Next::Finish => self.conclude(index, status, lane),
            Next::ShowSuccess if !status.is_success() => self.finish(index, status, lane),
            // Also if its host is gone: the function may have noted the command and would wait for it.
            _ if state.link != here => self.lose(index, lane),
            _ => {
                state.progress = Progress::Returning;
                match self.readiness {
                    Readiness::Unable(status) => self.fail(index, status, lane),
                    _ if self.has_place() => self.send(index, lane),
                    _ => self.returning.push_back(index),
                }
            }
        }
    }

    /// Finishes a command with its status; the data of a successful read goes to the host.
    fn conclude(&mut self, index: u32, status: Status, lane: &mut Lane<'_>) {
        let state = self.commands.of(index);
        let asked = lane.parked(state.ticket).map(|slot| slot.request.operation);
        if status.is_success()
            && asked == Some(Operation::Read)
            && let Some(buffer) = &state.buffer
        {
            let arena = self.arena.iter().chain(&self.retiring).find(|arena| arena.owns(buffer));
            let slot = lane.parked(state.ticket);
            if !arena.zip(slot).is_some_and(|(arena, slot)| arena.scatter(buffer, slot)) {
                return self.finish(index, LOST, lane);
            }
        }
        self.finish(index, status, lane);
    }

    /// Handles a command whose function is gone: it fails, or begins anew with the next instance.
    fn lose(&mut self, index: u32, lane: &mut Lane<'_>) {
        let ticket = self.commands.of(index).ticket;
        if !self.waits_for_instance() || lane.is_of(self.ending, ticket) {
            return self.fail(index, LOST, lane);
        }
        self.release_buffer(index);
        let state = self.commands.of(index);
        (state.progress, state.next, state.status) = (Progress::Waiting, Next::Finish, Status::SUCCESS);
        (state.cookie, state.returns) = ([0; 2], 0);
        if let Some(slot) = lane.parked(state.ticket) {
            state.request = slot.request;
        }
        self.waiting.push_back(index);
    }

    /// Ends commands that were sent to no function and whose host does not wait any more. Returns their
    /// number.
    pub(super) fn end_waiting(&mut self, lane: &mut Lane<'_>) -> usize {
        let ending = self.ending;
        self.end_some(|ticket, lane| lane.is_of(ending, ticket), Status::ABORTED_SQ_DELETION, lane)
    }

    /// Ends some commands that were sent to no function. Returns their number.
    pub(super) fn end_some(
        &mut self,
        ends: impl Fn(Ticket, &Lane<'_>) -> bool,
        why: Status,
        lane: &mut Lane<'_>,
    ) -> usize {
        let mut ended = 0;
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else { break };
            if ends(self.commands.of(index).ticket, lane) {
                self.finish(index, why, lane);
                ended += 1;
            } else {
                self.waiting.push_back(index);
            }
        }
        ended
    }

    /// Handles the end of the function.
    pub(super) fn on_exit(&mut self, lane: &mut Lane<'_>) {
        if matches!(self.peer, Peer::Absent) {
            return;
        }
        self.instance.counts.deaths.increment();
        if let Peer::Local(local) = std::mem::replace(&mut self.peer, Peer::Absent) {
            self.instance.dispose_function(*local.function);
        }
        self.unreported_loss.orphan();
        self.publish_loss();
        self.leaving = Leaving::No;
        self.set_readiness(Readiness::Starting { since_ns: 0 });
        self.eventfds.detach();
        self.out = 0;
        self.returning.clear();
        self.postponed.clear();
        self.unsent.clear();
        // Before the buffers are given back: a request of the function's own may have its data in one of
        // them.
        self.retiring.extend(self.arena.take());
        self.order_lost();
        for place in [Progress::Sent, Progress::Returning] {
            for index in self.commands.all_in(place) {
                self.lose(index, lane);
            }
        }
        self.retire();
    }

    /// Frees the arenas of ended connections that are idle.
    pub(super) fn retire(&mut self) {
        while let Some(index) = self.retiring.iter().position(Arena::is_idle) {
            self.instance.dispose(self.retiring.swap_remove(index));
        }
    }

    /// Ends a command that the function cannot work on.
    fn fail(&mut self, index: u32, status: Status, lane: &mut Lane<'_>) {
        self.instance.counts.failed.increment();
        self.finish(index, status, lane);
    }

    fn finish(&mut self, index: u32, status: Status, lane: &mut Lane<'_>) {
        self.release_buffer(index);
        let status =
            if self.unreported_loss.is_open() { self.status_with_loss(index, status, lane) } else { status };
        let state = self.commands.of(index);
        state.progress = Progress::Gone;
        if let Some(command) = lane.unpark(state.ticket) {
            lane.finish(command, status);
        }
    }

    /// Returns the status of a command that ends while a loss may be unreported.
    #[cold]
    fn status_with_loss(&mut self, index: u32, status: Status, lane: &Lane<'_>) -> Status {
        let CommandState { ticket, sent_ns, .. } = *self.commands.of(index);
        let Some(slot) = lane.parked(ticket).filter(|slot| slot.request.operation == Operation::Flush) else {
            return status;
        };
        let status = self.unreported_loss.flushed(status, sent_ns, &slot.origin);
        self.publish_loss();
        status
    }

    /// Notes that the function is gone to which a loss was to be reported: the next Flush of a host fails.
    pub(super) fn owe(&mut self) {
        self.unreported_loss.owe();
        self.publish_loss();
    }

    pub(super) fn publish_loss(&self) {
        self.instance.counts.owes.store(self.unreported_loss.is_owed(), Relaxed);
        self.instance.counts.unreported_loss.store(self.unreported_loss.is_unreported(), Relaxed);
    }

    fn release_buffer(&mut self, index: u32) {
        if let Some(buffer) = self.commands.of(index).buffer.take() {
            self.give_back(buffer);
        }
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        if let Some(arena) = self.arena.as_mut().filter(|arena| arena.owns(&buffer)) {
            arena.scrub(buffer);
        } else if let Some(arena) = self.retiring.iter_mut().find(|arena| arena.owns(&buffer)) {
            arena.release(buffer);
        }
        self.retire();
    }
}

/// Returns the entry of a command: a new one, or one that `returns`.
fn command_entry(index: u32, state: &CommandState, returns: bool, stage: u8) -> Submission {
    Submission {
        tag: u64::from(state.generation) << 32 | u64::from(index),
        kind: if returns { kind::RETURNED } else { kind::COMMAND },
        stage,
        status: state.status.0,
        data_offset: state.buffer.as_ref().map_or(0, Buffer::offset) as u32,
        data_length: state.buffer.as_ref().map_or(0, Buffer::len) as u32,
        cookie: state.cookie,
        ..entry::about(&state.request)
    }
}

/// Returns the bytes of the buffer of a host's command.
fn buffer_length(request: &Request, scratch: u32) -> usize {
    match request.operation {
        Operation::Read | Operation::Write => request.length as usize,
        Operation::WriteZeroes => request.length.min(scratch.into()) as usize,
        Operation::Flush | Operation::Deallocate => 0,
    }
}

/// Returns whether a function may send this request below: inside the layer, and no longer than its data.
pub(super) fn is_possible(request: &Request, data: u64, (size, block_size): (u64, u32)) -> bool {
    let block_size = u64::from(block_size);
    if request.operation == Operation::Flush {
        return request.offset == 0 && request.length == 0;
    }
    let fits = !request.has_data() || request.length <= data;
    let inside = request.offset.checked_add(request.length).is_some_and(|end| end <= size);
    let blocks = request.offset.is_multiple_of(block_size) && request.length.is_multiple_of(block_size);
    fits && inside && blocks && request.length > 0
}
