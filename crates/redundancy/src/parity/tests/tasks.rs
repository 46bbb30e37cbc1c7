//! Requests of an array on their way to the simulated disks.

use super::rig::{BLOCK, Rig};
use crate::parity::{Access, BATCH_MAX, CommandId, End, Fault, HostCommand, OpId, Step};

/// Request of the array that has not ended.
#[derive(Debug)]
pub(super) enum Task {
    ReadLog {
        offset: u64,
        length: usize,
    },
    WriteLog {
        offset: u64,
        bytes: Vec<u8>,
    },
    ReadBatch {
        offset: u64,
        length: usize,
    },
    WriteBatch {
        offset: u64,
        bytes: Vec<u8>,
    },
    Restore {
        member: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    Memory {
        op: OpId,
        length: usize,
    },
    Compute {
        op: OpId,
        command: Option<CommandId>,
    },
    Read {
        op: OpId,
        role: usize,
        member: usize,
        offset: u64,
        length: u64,
        at: usize,
    },
    Write {
        op: OpId,
        role: usize,
        member: usize,
        offset: u64,
        bytes: Vec<u8>,
        fua: bool,
    },
    Direct {
        command: CommandId,
        member: usize,
        offset: u64,
        length: u64,
        at: u64,
    },
    /// Read of the host that its side has sent to a member.
    Routed {
        slot: usize,
        member: usize,
        offset: u64,
    },
    /// Flush, with whether the disk has done it already.
    Flush {
        member: usize,
        is_done: bool,
    },
}

impl Task {
    /// Begins a step.
    pub(super) fn of(step: Step, rig: &mut Rig) -> Self {
        let inside = |offset: u64, length: u64, rig: &Rig| {
            assert!(
                length > 0
                    && offset + length <= rig.config.size
                    && offset.is_multiple_of(BLOCK)
                    && length.is_multiple_of(BLOCK)
            );
        };
        match step {
            Step::ReadLog { offset, length } => Self::ReadLog { offset, length },
            Step::WriteLog { offset } => Self::WriteLog { offset, bytes: rig.parity.log_bytes().to_vec() },
            Step::ReadBatch { offset, length } => Self::ReadBatch { offset, length },
            Step::WriteBatch { offset, length } => {
                assert!(length <= BATCH_MAX && offset + length as u64 <= rig.config.log_bytes);
                let mut bytes = vec![0xa5; length];
                let head = rig.parity.batch_head();
                bytes[..head.len()].copy_from_slice(head);
                for part in rig.parity.batch_parts() {
                    bytes[part.to..][..part.length]
                        .copy_from_slice(&rig.memory[&part.op][part.from..][..part.length]);
                }
                Self::WriteBatch { offset, bytes }
            }
            Step::Restore { member, offset, length, at } => {
                inside(offset, length, rig);
                let bytes = match at {
                    Some(at) => rig.batch[at..][..length as usize].to_vec(),
                    None => vec![0; length as usize],
                };
                Self::Restore { member, offset, bytes }
            }
            Step::Memory { op, length } => Self::Memory { op, length },
            Step::Compute { op, command } => Self::Compute { op, command },
            Step::Cell { op, role, member, offset, length, at, access } => {
                inside(offset, length, rig);
                match access {
                    Access::Read => {
                        rig.reads += 1;
                        Self::Read { op, role, member, offset, length, at }
                    }
                    Access::Write { fua } => {
                        rig.writes += 1;
                        let bytes = rig.memory[&op][at..][..length as usize].to_vec();
                        Self::Write { op, role, member, offset, bytes, fua }
                    }
                }
            }
            Step::Zero { op, role, member, offset, length, fua } => {
                inside(offset, length, rig);
                rig.writes += 1;
                Self::Write { op, role, member, offset, bytes: vec![0; length as usize], fua }
            }
            Step::Direct { command, member, offset, length, at } => {
                inside(offset, length, rig);
                rig.reads += 1;
                Self::Direct { command, member, offset, length, at }
            }
            Step::Flush { member } => {
                // A flush may cover only the writes that had ended when it began.
                let is_one =
                    |task: &Self| matches!(task, Self::Flush { member: other, .. } if *other == member);
                assert!(!rig.tasks.iter().any(is_one), "a flush is in flight already");
                let is_done = rig.random.one_in(2) && rig.members[member].up;
                if is_done {
                    rig.members[member].disk.lock().flush();
                }
                Self::Flush { member, is_done }
            }
            step => panic!("{step:?}"),
        }
    }

    /// Returns whether the task changes a disk.
    pub(super) fn stores(&self) -> bool {
        matches!(
            self,
            Self::WriteLog { .. } | Self::WriteBatch { .. } | Self::Restore { .. } | Self::Write { .. }
        )
    }

    /// Returns whether the task has the data of a command.
    pub(super) fn is_of(&self, id: CommandId) -> bool {
        match self {
            Self::Direct { command, .. } => *command == id,
            Self::Compute { command, .. } => *command == Some(id),
            _ => false,
        }
    }

    /// Executes some blocks of a task whose end is not reported.
    pub(super) fn tear(self, rig: &mut Rig) {
        match self {
            Self::WriteLog { offset, bytes } | Self::WriteBatch { offset, bytes } => {
                write_some(&mut rig.random, &rig.log, offset, &bytes);
            }
            Self::Restore { member, offset, bytes, .. } | Self::Write { member, offset, bytes, .. }
                if rig.members[member].up =>
            {
                write_some(&mut rig.random, &rig.members[member].disk, offset, &bytes);
            }
            _ => {}
        }
    }
}

/// Writes a random part of the blocks.
fn write_some(random: &mut sluice_sim::Random, disk: &sluice_sim::SimDisk, offset: u64, bytes: &[u8]) {
    let chance = *random.pick(&[0.0, 0.5, 0.9, 1.0]);
    for (at, block) in (offset..).step_by(BLOCK as usize).zip(bytes.chunks(BLOCK as usize)) {
        if random.chance(chance) {
            disk.lock().write(at, block);
        }
    }
}

impl Rig {
    /// Returns the failure of the next request to a member.
    fn fault(&mut self, number: usize, reads: Option<(u64, u64)>) -> Result<(), Fault> {
        let is_bad = self.random.chance(self.faults);
        let member = &mut self.members[number];
        if !member.up || is_bad {
            member.lost &= member.up;
            return Err(Fault::Device);
        }
        if std::mem::take(&mut member.lost) {
            return Err(Fault::LostWrites);
        }
        let overlaps = |(offset, length): (u64, u64)| {
            member.bad.iter().any(|block| offset < (block + 1) * BLOCK && block * BLOCK < offset + length)
        };
        if reads.is_some_and(overlaps) { Err(Fault::Media) } else { Ok(()) }
    }

    fn write_member(&mut self, number: usize, offset: u64, bytes: &[u8], fua: bool) -> Result<(), Fault> {
        let outcome = self.fault(number, None);
        let member = &mut self.members[number];
        if outcome.is_err() {
            if member.up {
                write_some(&mut self.random, &member.disk, offset, bytes);
            }
            return outcome;
        }
        let mut disk = member.disk.lock();
        for (at, block) in (offset..).step_by(BLOCK as usize).zip(bytes.chunks(BLOCK as usize)) {
            disk.write(at, block);
        }
        let end = offset + bytes.len() as u64;
        if fua {
            disk.persist(offset..end);
        }
        member.bad.retain(|block| !(offset..end).contains(&(block * BLOCK)));
        Ok(())
    }

    fn read_member(&mut self, number: usize, offset: u64, length: u64) -> Result<Vec<u8>, Fault> {
        self.fault(number, Some((offset, length)))?;
        let mut bytes = vec![0; length as usize];
        self.members[number].disk.lock().read(offset, &mut bytes);
        Ok(bytes)
    }

    /// Writes to the log, durable if it succeeds.
    fn write_log(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if !self.log_up {
            write_some(&mut self.random, &self.log, offset, bytes);
            return false;
        }
        let mut log = self.log.lock();
        for (at, block) in (offset..).step_by(BLOCK as usize).zip(bytes.chunks(BLOCK as usize)) {
            log.write(at, block);
        }
        log.persist(offset..offset + bytes.len() as u64);
        true
    }

    /// Ends a task, and reports its result.
    pub(super) fn end(&mut self, task: Task) {
        match task {
            Task::ReadLog { offset, length } => {
                let mut bytes = vec![0; length];
                self.log.lock().read(offset, &mut bytes);
                self.parity.log_read(Some(&bytes).filter(|_| self.log_up).map(Vec::as_slice));
            }
            Task::WriteLog { offset, bytes } => {
                let good = self.write_log(offset, &bytes);
                self.parity.log_written(good, self.now_ns);
            }
            Task::ReadBatch { offset, length } => {
                self.log.lock().read(offset, &mut self.batch[..length]);
                self.parity.batch_read(Some(&self.batch[..length]).filter(|_| self.log_up));
            }
            Task::WriteBatch { offset, bytes } => {
                let good = self.write_log(offset, &bytes);
                self.parity.batch_written(good);
            }
            Task::Restore { member, offset, bytes } => {
                let outcome = self.write_member(member, offset, &bytes, false);
                self.parity.restored(member, outcome);
            }
            Task::Memory { op, length } => {
                assert!(self.memory.insert(op, vec![0xc3; length]).is_none(), "it has memory once");
                self.parity.has_memory(op);
            }
            Task::Compute { op, command } => self.compute(op, command),
            Task::Read { op, role, member, offset, length, at } => {
                let read = self.read_member(member, offset, length);
                if let Ok(bytes) = &read {
                    self.memory.get_mut(&op).expect("it has memory")[at..][..bytes.len()]
                        .copy_from_slice(bytes);
                }
                self.parity.cell_done(op, role, read.map(drop));
            }
            Task::Write { op, role, member, offset, bytes, fua } => {
                let outcome = self.write_member(member, offset, &bytes, fua);
                self.parity.cell_done(op, role, outcome);
            }
            Task::Direct { command, member, offset, length, at } => {
                let read = match self.random.chance(self.gives_up) {
                    true => Err(Fault::GivenUp),
                    false => self.read_member(member, offset, length),
                };
                if let (Ok(bytes), false) = (&read, self.parity.is_halted()) {
                    self.command(command).data[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                self.parity.direct_done(command, member, at..at + length, read.map(drop));
            }
            Task::Routed { slot, member, offset } => self.routed(slot, member, offset),
            Task::Flush { member, is_done } => {
                let outcome = self.fault(member, None);
                if outcome.is_ok() && !is_done {
                    self.members[member].disk.lock().flush();
                }
                self.parity.flushed(member, outcome);
            }
        }
    }

    fn compute(&mut self, op: OpId, command: Option<CommandId>) {
        let mut memory = self.memory.remove(&op).expect("it has memory");
        match command.and_then(|id| self.by_id.get(&id.0).copied()) {
            Some(slot) => {
                let mut data =
                    std::mem::take(&mut self.commands[slot].as_mut().expect("it is not over").data);
                self.parity.compute(op, &mut memory, &mut data);
                self.commands[slot].as_mut().expect("it is not over").data = data;
            }
            None => self.parity.compute(op, &mut memory, &mut []),
        }
        self.memory.insert(op, memory);
    }

    /// Ends a read that the host's side has sent to a member, or hands it to the array.
    fn routed(&mut self, slot: usize, member: usize, offset: u64) {
        let bytes = self.commands[slot].as_ref().expect("it is not over").bytes.clone();
        let read = self.read_member(member, offset, bytes.end - bytes.start);
        if self.parity.is_halted() {
            return self.finish(slot, End::ReadFailed);
        }
        let id = match read {
            Ok(data) if self.parity.route(&bytes) == Some((member, offset)) => {
                self.commands[slot].as_mut().expect("it is not over").data = data;
                return self.finish(slot, End::Good);
            }
            Ok(_) => self.parity.begin(HostCommand::Read, bytes, false),
            Err(fault) => self.parity.begin_recovery(bytes, member, fault),
        };
        self.commands[slot].as_mut().expect("it is not over").id = Some(id);
        assert_eq!(self.by_id.insert(id.0, slot), None, "the number is free");
    }
}
