//! Commands of the host, from their arrival to their end.

use super::array::{End, Fault, Parity, Step};
use super::geometry::{Cut, Rect};
use super::ops::Kind;
use super::{OpId, ROWS_MAX};
use std::collections::VecDeque;
use std::ops::Range;

/// Operations of a command that are under way at a time.
const OPS_MAX: usize = 8;

/// Number of a command until [`Step::Over`]. It is reused after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(pub u32);

/// Command of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCommand {
    Read,
    Write,
    /// Write of zeros, without data.
    Zero,
    /// Deallocation: zeros in whole stripes, and no change elsewhere.
    Deallocate,
}

#[derive(Clone, Debug)]
struct Command {
    kind: HostCommand,
    bytes: Range<u64>,
    fua: bool,
    /// Parts that have not begun.
    cut: Cut,
    /// Byte up to which a read has begun.
    next: u64,
    /// Parts that are under way.
    left: usize,
    is_begun: bool,
    end: End,
}

#[derive(Debug, Default)]
pub(super) struct Commands {
    list: Vec<Command>,
    free: Vec<u32>,
    /// Commands that may have a next part, or are over.
    runnable: VecDeque<u32>,
    /// Number of commands that are not over.
    count: usize,
    /// Number of commands since the last call of [`were_busy`](Self::were_busy).
    since: u64,
}

impl Commands {
    /// Returns whether the host has been at work since the last call.
    pub(super) fn were_busy(&mut self) -> bool {
        std::mem::take(&mut self.since) > 0 || self.count > 0
    }

    pub(super) fn is_fua(&self, command: Option<u32>) -> bool {
        command.is_some_and(|id| self.list[id as usize].fua)
    }

    /// Returns the first byte of a command.
    pub(super) fn start(&self, id: u32) -> u64 {
        self.list[id as usize].bytes.start
    }

    /// Frees the number of a command whose end goes to the host now.
    pub(super) fn close(&mut self, CommandId(id): CommandId) {
        self.free.push(id);
    }

    /// Ends a part of a command.
    pub(super) fn part_done(&mut self, id: u32, end: End) {
        let command = &mut self.list[id as usize];
        command.left -= 1;
        if command.end == End::Good {
            command.end = end;
        }
        self.runnable.push_back(id);
    }
}

impl Parity {
    /// Begins a command. Its bytes must lie inside of the drive.
    pub fn begin(&mut self, kind: HostCommand, bytes: Range<u64>, fua: bool) -> CommandId {
        let cut =
            Cut::new(bytes.clone(), ROWS_MAX, matches!(kind, HostCommand::Zero | HostCommand::Deallocate));
        let next = bytes.start;
        let command = Command { kind, bytes, fua, cut, next, left: 0, is_begun: false, end: End::Good };
        let id = self.open_command(command);
        self.commands.runnable.push_back(id);
        CommandId(id)
    }

    /// Begins a Flush.
    pub fn begin_flush(&mut self) -> CommandId {
        let command = Command {
            kind: HostCommand::Write,
            bytes: 0..0,
            fua: false,
            cut: Cut::new(0..0, ROWS_MAX, false),
            next: 0,
            left: 1,
            is_begun: true,
            end: End::Good,
        };
        let id = self.open_command(command);
        self.flush_for(id);
        CommandId(id)
    }

    fn open_command(&mut self, command: Command) -> u32 {
        let commands = &mut self.commands;
        (commands.count, commands.since) = (commands.count + 1, commands.since + 1);
        let Some(id) = commands.free.pop() else {
            commands.list.push(command);
            return (commands.list.len() - 1) as u32;
        };
        commands.list[id as usize] = command;
        id
    }

    /// Returns the member and the offset there that a read of one chunk may go to by itself.
    pub fn route(&self, bytes: &Range<u64>) -> Option<(usize, u64)> {
        let geometry = self.geometry();
        if bytes.is_empty()
            || self.config.safe_read
            || geometry.chunk_end(bytes.start, bytes.end) != bytes.end
        {
            return None;
        }
        let (stripe, column, row) = geometry.place(bytes.start);
        let member = geometry.member(stripe, column);
        let rows = row..row + (bytes.end - bytes.start);
        self.is_readable(member, &rows).then_some((member, row))
    }

    /// Notes the failure of a read that went to a member by itself.
    pub fn route_failed(&mut self, member: usize, fault: Fault) {
        self.note_fault(member, fault);
    }

    /// Begins the next parts of commands.
    pub(super) fn run_commands(&mut self) {
        while let Some(id) = self.commands.runnable.pop_front() {
            let command = &self.commands.list[id as usize];
            if !command.is_begun {
                match command.kind {
                    HostCommand::Read => self.run_read(id),
                    _ => self.run_write(id),
                }
            }
            let command = &self.commands.list[id as usize];
            if command.is_begun && command.left == 0 {
                let end = command.end;
                self.commands.list[id as usize].left = usize::MAX;
                self.commands.count -= 1;
                self.steps.push_back(Step::Over { command: CommandId(id), end });
            }
        }
    }

    fn run_write(&mut self, id: u32) {
        let (geometry, region) = (self.geometry(), self.state.region_bytes);
        loop {
            let command = &mut self.commands.list[id as usize];
            if command.left >= OPS_MAX {
                return;
            }
            let rect = command.cut.next(&geometry, region).filter(|_| command.end == End::Good);
            let Some(rect) = rect else {
                command.is_begun = true;
                return;
            };
            let is_whole = rect.columns == (0..geometry.columns());
            let kind = match command.kind {
                HostCommand::Write => Kind::Write,
                HostCommand::Zero if !is_whole => Kind::Write,
                HostCommand::Deallocate if !is_whole => continue,
                _ => Kind::Zero,
            };
            command.left += 1;
            self.queue_op(kind, rect, Some(id));
        }
    }

    /// Returns whether an operation writes zeros instead of the data of its command.
    pub(super) fn is_zeroes(&self, command: Option<u32>) -> bool {
        command.is_some_and(|id| self.commands.list[id as usize].kind != HostCommand::Write)
    }

    fn run_read(&mut self, id: u32) {
        let geometry = self.geometry();
        loop {
            let command = &mut self.commands.list[id as usize];
            if command.left >= OPS_MAX {
                return;
            }
            let (from, end) = (command.next, command.bytes.end);
            if from >= end || command.end != End::Good {
                command.is_begun = true;
                return;
            }
            let chunk_end = geometry.chunk_end(from, end);
            match self.route(&(from..chunk_end)) {
                Some((member, offset)) => {
                    let command = &mut self.commands.list[id as usize];
                    let at = from - command.bytes.start;
                    (command.next, command.left) = (chunk_end, command.left + 1);
                    let (command, length) = (CommandId(id), chunk_end - from);
                    self.steps.push_back(Step::Direct { command, member, offset, length, at });
                }
                None => {
                    let to = (from + ROWS_MAX).min(chunk_end);
                    let command = &mut self.commands.list[id as usize];
                    (command.next, command.left) = (to, command.left + 1);
                    self.queue_read(id, from..to);
                }
            }
        }
    }

    /// Queues the operation that recovers some bytes of a chunk. Returns its number.
    fn queue_read(&mut self, id: u32, bytes: Range<u64>) -> OpId {
        let (_, column, row) = self.geometry().place(bytes.start);
        let rows = row..row + (bytes.end - bytes.start);
        self.queue_op(Kind::Read, Rect { rows, columns: column..column + 1 }, Some(id))
    }

    /// Ends a [`Step::Direct`]. A part that could not be read is recovered.
    pub fn direct_done(
        &mut self,
        CommandId(id): CommandId,
        member: usize,
        range: Range<u64>,
        outcome: Result<(), Fault>,
    ) {
        let start = self.commands.list[id as usize].bytes.start;
        let bytes = start + range.start..start + range.end;
        match outcome {
            Err(Fault::GivenUp) => return self.commands.part_done(id, End::GivenUp),
            Ok(()) if self.route(&bytes).is_some_and(|(now, _)| now == member) => {
                return self.commands.part_done(id, End::Good);
            }
            Ok(()) => {}
            Err(fault) => self.note_fault(member, fault),
        }
        // The part becomes several: an operation has fewer rows than a chunk.
        let mut from = bytes.start;
        self.commands.list[id as usize].left -= 1;
        while from < bytes.end {
            let to = (from + ROWS_MAX).min(bytes.end);
            self.commands.list[id as usize].left += 1;
            let op = self.queue_read(id, from..to);
            if outcome == Err(Fault::Media) {
                self.avoid(op, member);
            }
            from = to;
        }
    }

    /// Begins a read that another way has failed to do: the member's content cannot be read there.
    pub fn begin_recovery(&mut self, bytes: Range<u64>, member: usize, fault: Fault) -> CommandId {
        let id = self.begin(HostCommand::Read, bytes.clone(), false);
        let command = &mut self.commands.list[id.0 as usize];
        (command.is_begun, command.left) = (true, 1);
        self.direct_done(id, member, 0..bytes.end - bytes.start, Err(fault));
        id
    }
}
