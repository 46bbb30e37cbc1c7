//! Commands and queues in memory that only the client itself reaches.
//!
//! What the controller needs of such memory, and what it has for it, are *errands*: the front-end asks for them, has
//! the client do them, and brings back what it said. Shared memory is not concerned, and never waits for one: a
//! command comes here when a walk of its data pointer has failed, and a queue when it is created.

mod cases;
mod mirrors;
mod staging;

use crate::Controller;
use crate::admin;
use crate::complete::refuse;
use crate::io::Intake;
use crate::subsystem::Subsystem;
use cases::Cases;
use mirrors::Mirrors;
pub(crate) use mirrors::QueueMemory;
use sluice_command::{Command, Operation, Slab, Slot};
use sluice_memory::{Space, StandIns, Wanted};
use sluice_nvme::Status;
use std::collections::VecDeque;

/// Errands that a client has at a time.
pub const ERRANDS_MAX: usize = 16;

/// How long a client may take for one before its controller is in fatal status, in nanoseconds.
pub const ERRAND_NS: u64 = 30_000_000_000;

/// Something that only the client can do: read its memory for the controller, or write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errand {
    /// No other errand ever has it.
    pub id: u64,
    pub address: u64,
    /// Bytes.
    pub length: usize,
    pub writes: bool,
}

/// An errand that is still to be done, as a whole or in pieces.
#[derive(Clone, Copy, Debug)]
struct Job {
    address: u64,
    length: usize,
    place: Place,
    /// In the memory of the place.
    offset: usize,
}

/// What a job is for, and so where the bytes are on our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Data or a list of a command, by its number.
    Fetch(usize),
    Store(usize),
    /// Entries of a submission queue.
    Entries(u16),
    /// Of a completion queue.
    Completions(u16),
}

impl Place {
    fn writes(self) -> bool {
        matches!(self, Place::Store(_) | Place::Completions(_))
    }
}

/// What the controller is to do when a queue's bytes have moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// A submission queue's entries are here, up to this tail.
    Tail { sq: u16, tail: u32 },
    /// Completions are where the host sees them.
    Posted { vector: Option<u16> },
}

/// The errands of one controller.
#[derive(Debug, Default)]
pub(crate) struct Courier {
    cases: Cases,
    mirrors: Mirrors,
    /// Not taken by the front-end yet.
    jobs: VecDeque<Job>,
    /// With the client: identifier, since when, and what.
    sent: Vec<(u64, u64, Job)>,
    /// What was to be written for a life that has ended, and may still be: identifier, and since when.
    late: Vec<(u64, u64)>,
    last_id: u64,
    now_ns: u64,
    /// A queue's memory could not be read or written.
    is_broken: bool,
}

impl Courier {
    /// The next errand, of at most so many bytes; those that it writes go to `data`.
    fn take(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<Errand> {
        if self.sent.len() >= ERRANDS_MAX {
            return None;
        }
        let front = self.jobs.front_mut()?;
        let job = Job { length: front.length.min(most.max(1)), ..*front };
        if job.length == front.length {
            self.jobs.pop_front();
        } else {
            front.address += job.length as u64;
            front.length -= job.length;
            front.offset += job.length;
            match job.place {
                Place::Fetch(case) | Place::Store(case) => self.cases.one_more(case),
                Place::Entries(_) | Place::Completions(_) => self.mirrors.one_more(job.place),
            }
        }
        let Job { address, length, place, offset } = job;
        data.clear();
        if place.writes() {
            data.resize(length, 0);
            match place {
                Place::Fetch(_) | Place::Store(_) => self.cases.read(offset, data),
                Place::Entries(_) | Place::Completions(_) => self.mirrors.read(place, offset, data),
            }
        }
        self.last_id += 1;
        self.sent.push((self.last_id, now_ns, job));
        Some(Errand { id: self.last_id, address, length, writes: place.writes() })
    }

    /// An errand is done, with what was read if it did not write; none if it failed. Those of commands and queues that
    /// are gone concern nobody any more.
    fn answer(&mut self, id: u64, data: Option<&[u8]>) -> Option<News> {
        self.late.retain(|(late, _)| *late != id);
        let index = self.sent.iter().position(|(sent, ..)| *sent == id)?;
        let (_, _, Job { length, place, offset, .. }) = self.sent.swap_remove(index);
        let data = data.filter(|data| place.writes() || data.len() == length);
        if let Some(data) = data.filter(|_| !place.writes()) {
            match place {
                Place::Fetch(_) | Place::Store(_) => self.cases.write(offset, data),
                Place::Entries(_) | Place::Completions(_) => self.mirrors.write(place, offset, data),
            }
        }
        match place {
            Place::Fetch(case) | Place::Store(case) => {
                self.cases.answered(case, data.is_some());
                None
            }
            Place::Entries(_) | Place::Completions(_) if data.is_none() => {
                self.is_broken |= self.mirrors.has(place);
                None
            }
            Place::Entries(_) | Place::Completions(_) => self.mirrors.answered(place, &mut self.jobs),
        }
    }

    /// When the client has had enough time for the errand that it has had for the longest, or for a command.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let late = self.late.iter().map(|(_, since_ns)| *since_ns);
        let errands = self.sent.iter().map(|(_, since_ns, _)| *since_ns).chain(late).min();
        let errands = errands.map(|since_ns| since_ns.saturating_add(ERRAND_NS));
        [errands, self.cases.deadline_ns()].into_iter().flatten().min()
    }

    /// The host takes its memory back when the controller says that it has ended. Until then what is being written
    /// there is waited for.
    pub(crate) fn await_writes(&mut self) {
        let writes = self.sent.iter().filter(|(.., job)| job.place.writes());
        self.late.extend(writes.map(|(id, since_ns, _)| (*id, *since_ns)));
    }

    /// What is being written concerns nobody: its client is gone, or ends it itself.
    pub(crate) fn await_nothing(&mut self) {
        self.late.clear();
    }

    pub(crate) fn awaits_writes(&self) -> bool {
        !self.late.is_empty()
    }

    /// The client has had enough time.
    fn is_overdue(&mut self, now_ns: u64) -> bool {
        let is_over = |since_ns: u64| since_ns.saturating_add(ERRAND_NS) <= now_ns;
        self.late.retain(|(_, since_ns)| !is_over(*since_ns));
        self.cases.is_overdue(now_ns) || self.sent.iter().any(|(_, since_ns, _)| is_over(*since_ns))
    }

    /// Forgets the jobs of a queue that is gone.
    pub(crate) fn forget_sq(&mut self, id: u16) {
        let place = Place::Entries(id);
        self.mirrors.forget_sq(id);
        self.jobs.retain(|job| job.place != place);
        self.sent.retain(|(_, _, job)| job.place != place);
    }

    /// The same, but for what is with the client: that is still [written](Self::is_writing).
    pub(crate) fn forget_cq(&mut self, id: u16) {
        self.mirrors.forget_cq(id);
        self.jobs.retain(|job| job.place != Place::Completions(id));
    }

    /// The client may be writing to the memory of this completion queue.
    pub(crate) fn is_writing(&self, id: u16) -> bool {
        self.sent.iter().any(|(_, _, job)| job.place == Place::Completions(id))
    }

    /// No queue is left, and nobody waits for a command. Those that are with a router come back.
    pub(crate) fn reset(&mut self, slab: &mut Slab) {
        self.mirrors = Mirrors::default();
        self.jobs.clear();
        self.sent.clear();
        self.is_broken = false;
        self.cases.reset(slab);
    }

    /// A command ends that has no completion entry: what was brought for it goes with it.
    pub(crate) fn drop_command(&mut self, number: usize) {
        self.cases.close(number);
    }

    /// Ends without a subsystem to give the commands back to.
    pub(crate) fn abandon(&mut self) {
        self.cases.abandon();
    }
}

/// True if a command failed for nothing but memory that its client can bring.
#[cold]
pub(crate) fn can_help(space: &Space, status: Status) -> bool {
    status == Status::DATA_TRANSFER_ERROR && space.has_wanted()
}

/// Takes a command that cannot begin before this is here.
#[cold]
pub(crate) fn send_for(
    courier: &mut Option<Box<Courier>>,
    subsystem: &mut Subsystem,
    command: Command,
    wanted: &[Wanted],
    now_ns: u64,
) {
    let courier = courier.get_or_insert_default();
    let number = subsystem.slab.number(&command);
    let slot = subsystem.slab.slot_mut(&command);
    let is_first = !std::mem::replace(&mut slot.origin.carried, true);
    slot.data.clear();
    if is_first {
        // Whatever is left of another command of this number was never this one's.
        courier.cases.close(number);
    }
    courier.cases.fetch(number, command, wanted, &mut courier.jobs, now_ns);
}

/// Fails an admin command that was not started, unless its client can help.
#[cold]
pub(crate) fn send_for_or_refuse(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
    space: &Space,
    now_ns: u64,
) {
    match can_help(space, status) {
        true => send_for(&mut controller.courier, subsystem, command, &space.take_wanted(), now_ns),
        false => refuse(controller, subsystem, command, status),
    }
}

/// Part of every turn of a controller that has a courier: goes on with what the client has done. Returns for how many
/// commands.
#[cold]
pub(crate) fn advance(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    space: &Space,
    now_ns: u64,
) -> usize {
    let Some(courier) = &mut controller.courier else { return 0 };
    courier.now_ns = now_ns;
    let is_overdue = courier.is_overdue(now_ns);
    if courier.is_broken || is_overdue {
        let why = if is_overdue { "did not answer for too long" } else { "cannot reach a queue of its own" };
        tracing::warn!("a client that was asked for its memory {why}");
        courier.reset(&mut subsystem.slab);
        controller.registers.set_fatal();
        return 0;
    }
    let ready = courier.cases.take_ready();
    let count = ready.len();
    for number in ready {
        go_on(controller, subsystem, number, space, now_ns);
    }
    count + admin::queues::finish_cq_deletions(controller, subsystem)
}

/// Everything that a command waited for is here, or where it belongs.
fn go_on(controller: &mut Controller, subsystem: &mut Subsystem, number: usize, space: &Space, now_ns: u64) {
    let Some(courier) = &mut controller.courier else { return };
    let Some((command, outcome)) = courier.cases.resume(number) else { return };
    let stand_ins = match outcome {
        cases::Outcome::Begin(stand_ins) => stand_ins,
        cases::Outcome::Over(status, dw0) => return conclude(controller, subsystem, command, status, dw0),
    };
    let entry = *subsystem.slab.entry(&command);
    let sq = subsystem.slab.slot(&command).origin.sq;
    space.use_stand_ins(stand_ins);
    if sq == 0 {
        admin::begin(controller, subsystem, command, &entry, space, now_ns);
    } else {
        let Controller { features, courier, .. } = &mut *controller;
        Intake { subsystem, space, features, courier, now_ns }.begin(command, &entry);
    }
    space.use_stand_ins(StandIns::default());
}

/// Begins a command with all that was brought for it, which had to wait for something else.
#[cold]
pub(crate) fn begin_again(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    space: &Space,
    now_ns: u64,
) {
    let number = subsystem.slab.number(&command);
    controller.courier.get_or_insert_default().cases.put_back(number, command);
    go_on(controller, subsystem, number, space, now_ns);
}

/// A command is on its way from its client or to it, or waits for memory, and no layer has it.
pub(crate) fn has(slot: &Slot) -> bool {
    let deallocates = slot.request.operation == Operation::Deallocate && slot.request.length > 0;
    slot.origin.carried && slot.data.is_empty() && !deallocates
}

/// A command is over but for what the client has to be brought of it. Its completion entry comes after that.
#[cold]
pub(crate) fn carry_out(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
    dw0: u32,
) {
    let number = subsystem.slab.number(&command);
    let slot = subsystem.slab.slot_mut(&command);
    let origin = slot.origin;
    let sq = controller.sqs[usize::from(origin.sq)].as_ref();
    let has_host = sq.is_some_and(|queue| queue.epoch == origin.epoch) && !controller.registers.is_fatal();
    if let Some(courier) = &mut controller.courier
        && has_host
        && status.is_success()
        && courier.cases.has_results(number)
    {
        // An unmap waits for whatever uses memory, and does not have to wait for this.
        slot.data.clear();
        return courier.cases.store(number, command, dw0, &mut courier.jobs, courier.now_ns);
    }
    conclude(controller, subsystem, command, status, dw0);
}

fn conclude(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    status: Status,
    dw0: u32,
) {
    if let Some(courier) = &mut controller.courier {
        courier.cases.close(subsystem.slab.number(&command));
    }
    let slot = subsystem.slab.slot_mut(&command);
    slot.data.clear();
    slot.origin.carried = false;
    controller.finish(subsystem, command, status, dw0);
}

impl Controller {
    /// The next thing that only the client can do, of at most `most` bytes at a time; what is to be written goes to
    /// `data`. None if there is nothing, or the client has [`ERRANDS_MAX`].
    pub fn take_errand(&mut self, most: usize, data: &mut Vec<u8>, now_ns: u64) -> Option<Errand> {
        let errand = self.courier.as_mut()?.take(most, data, now_ns)?;
        self.next_deadline_ns = self.next_deadline_ns.min(now_ns.saturating_add(ERRAND_NS));
        Some(errand)
    }

    /// There is something for [`take_errand`](Self::take_errand).
    #[inline]
    pub fn has_errands(&self) -> bool {
        self.courier.as_ref().is_some_and(|courier| !courier.jobs.is_empty())
    }

    /// The client has done an errand, and sent these bytes if it read; none if it could not. To be followed by a turn.
    pub fn answer_errand(&mut self, id: u64, data: Option<&[u8]>) {
        let Some(courier) = &mut self.courier else { return };
        match courier.answer(id, data) {
            Some(News::Tail { sq, tail }) => self.doorbells.ring(usize::from(sq) * 8, tail),
            Some(News::Posted { vector: Some(vector) }) => {
                self.interrupts.insert(vector);
                let held_until_ns = self.interrupts.deadline_ns().unwrap_or(u64::MAX);
                self.next_deadline_ns = self.next_deadline_ns.min(held_until_ns);
            }
            _ => {}
        }
    }

    /// Completions that the host does not see yet are on their way to it.
    pub fn is_delivering(&self) -> bool {
        let Some(courier) = &self.courier else { return false };
        courier.mirrors.are_behind(&self.cqs) || courier.mirrors.are_posting()
    }

    /// The courier can go on by itself.
    pub(crate) fn has_carried(&self) -> bool {
        let Some(courier) = &self.courier else { return false };
        courier.is_broken || courier.cases.has_ready() || courier.mirrors.are_behind(&self.cqs)
    }

    /// Sends off the completions that were written since the last time.
    #[cold]
    pub(crate) fn send_completions(&mut self) {
        if let Some(Courier { mirrors, jobs, .. }) = self.courier.as_deref_mut() {
            mirrors.post(&self.cqs, jobs);
        }
    }
}
