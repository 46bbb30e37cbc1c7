//! Parity: a drive over several members, of which one or two may be lost (RAID-5, RAID-6).
//!
//! The layers below are the members, and after them the log. [`Parity`](sluice_redundancy::parity::Parity) has
//! the protocol; this module connects it to the host and to the layers.
//!
//! A read of one chunk goes to its member by itself. All other commands are held, and their parts are requests
//! of the function's own: their data lies in its memory, and is copied once from the host's or to it.

mod array;
mod control;
mod reopen;
mod requests;
mod settings;
mod wire;

pub use wire::{ArrayState, ArrayStatusView};

use array::Array;
use settings::Settings;
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_redundancy::parity::{CommandId, End, HostCommand, Step};
use sluice_uif::abi::operation;
use sluice_uif::{Answer, Call, Control, Done, Function, Interest, Io, Options, Properties};
use std::hash::{BuildHasher, RandomState};

/// Bytes of memory for operations, and for the log.
const POOL: u32 = sluice_uif::abi::POOL_MAX;

/// Stages of a command: read by a member; at work on its data.
const READ: u8 = 1;
const COMPUTE: u8 = 2;

/// Function with its array.
#[derive(Debug)]
pub(super) struct ParityFunction {
    settings: Settings,
    /// Number for a new log.
    id: u64,
    array: Option<Array>,
    /// Reason why there is no array, or why it does not serve.
    error: String,
    /// Whether the array has served since the function was made.
    was_open: bool,
    /// Whether an operator took a member out and waits until the log has that.
    leaving: bool,
    /// Whether an operator changed the number of parities and waits until the log has that.
    changing: bool,
    /// Whether an operator declared the data right and waits until the array serves.
    ordered: bool,
    reopening: reopen::Reopening,
}

impl ParityFunction {
    /// Creates the function.
    ///
    /// # Errors
    /// The options are not valid.
    pub(super) fn new(options: &Options) -> Result<Self, String> {
        Ok(Self {
            settings: Settings::of(options)?,
            id: RandomState::new().hash_one("a new log"),
            array: None,
            error: "it waits for the layers below".into(),
            was_open: false,
            leaving: false,
            changing: false,
            ordered: false,
            reopening: reopen::Reopening::default(),
        })
    }

    /// Executes the steps of the array, as long as there is room for requests.
    fn run(&mut self, io: &mut Io<'_>) {
        while let Some(array) = &mut self.array {
            array.feed(io);
            if !io.has_room() {
                break;
            }
            let Some(step) = array.parity.next(io.now_ns()) else { break };
            match step {
                Step::Ready(outcome) => self.opened(outcome, io),
                Step::Halt(why) => self.halted(why, io),
                Step::Over { command, end } => array.over(command, end, io),
                Step::Compute { op, command: Some(command) } => array.compute_later(op, command, io),
                Step::Compute { op, command: None } => array.compute(op, &mut [], io),
                step => array.begin(step, io),
            }
        }
        self.reopen_if_drained(io);
        self.answer_leaving(io);
        self.answer_changing(io);
        let alarm_ns = self.array.as_ref().and_then(|array| array.parity.alarm_ns());
        io.wake_at([alarm_ns, self.reopening.at_ns].into_iter().flatten().min());
    }

    /// Sends a read of one chunk to its member.
    fn read(&mut self, call: &mut Call<'_>) -> Option<Answer> {
        let bytes = call.request.offset..call.request.end();
        let (member, offset) = self.array.as_ref()?.parity.route(&bytes)?;
        call.cookie = [call.request.offset, member as u64];
        (call.request.offset, call.layer) = (offset, member as u8);
        Some(Answer::ForwardAndReturn(READ))
    }

    /// Takes a read back from its member.
    fn was_read(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let [offset, member] = call.cookie;
        let bytes = offset..offset + call.request.length;
        let member = member as usize;
        let outcome = requests::outcome(call.status);
        let Some(array) = self.array.as_mut().filter(|array| !array.parity.is_halted()) else {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        };
        let fault = match outcome {
            Ok(()) if array.parity.route(&bytes).is_some_and(|(now, _)| now == member) => {
                return Answer::Finish(Status::SUCCESS);
            }
            Ok(()) => None,
            Err(_) if call.status.is_of_host() => return Answer::Finish(call.status),
            Err(fault) => Some(fault),
        };
        let command = match fault {
            Some(fault) => array.parity.begin_recovery(bytes, member, fault),
            None => array.parity.begin(HostCommand::Read, bytes, false),
        };
        self.hold(command, call, io)
    }

    fn hold(&mut self, CommandId(id): CommandId, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        call.cookie[0] = id.into();
        if let Some(array) = &mut self.array {
            array.hold(id, call.hold());
        }
        self.run(io);
        Answer::Hold
    }
}

impl Function for ParityFunction {
    fn properties(&self) -> Properties {
        // Blocks that are deallocated in a part of a stripe keep their data.
        let interests = [Interest::Before; operation::COUNT];
        Properties { interests, pool: POOL, transforms: true, ..Properties::NONE }
    }

    fn start(&mut self, io: &mut Io<'_>) {
        self.layers_changed(io);
        self.run(io);
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let Some(array) = self.array.as_mut().filter(|array| array.is_open) else {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        };
        let request = call.request;
        let kind = match request.operation {
            Operation::Read => {
                if let Some(answer) = self.read(call) {
                    return answer;
                }
                HostCommand::Read
            }
            Operation::Write => HostCommand::Write,
            Operation::WriteZeroes => HostCommand::Zero,
            Operation::Deallocate => HostCommand::Deallocate,
            Operation::Flush => {
                let command = array.parity.begin_flush();
                return self.hold(command, call, io);
            }
        };
        let Some(array) = &mut self.array else { return Answer::Finish(Status::NAMESPACE_NOT_READY) };
        let command = array.parity.begin(kind, request.offset..request.end(), request.fua);
        self.hold(command, call, io)
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if call.stage == READ {
            return self.was_read(call, io);
        }
        let id = call.cookie[0] as u32;
        if let Some(array) = &mut self.array {
            while let Some(op) = array.take_compute(id) {
                array.compute(op, call.data, io);
            }
        }
        self.run(io);
        Answer::Hold
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        if let Some(array) = &mut self.array {
            array.done(&done, io);
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
        if let Some(array) = &self.array {
            array.parity.status().count(count);
        }
    }
}

/// Returns the status for the host.
fn status_of(end: End) -> Status {
    match end {
        End::Good => Status::SUCCESS,
        End::ReadFailed => Status::UNRECOVERED_READ_ERROR,
        End::WriteFailed => Status::WRITE_FAULT,
        End::GivenUp => Status::ABORT_REQUESTED,
    }
}

#[cfg(test)]
mod tests;
