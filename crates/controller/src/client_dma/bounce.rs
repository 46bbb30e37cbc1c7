//! Commands whose lists or data are brought over, or back.
//!
//! What is missing is known only as far as its lists are here, so a command may come several times. It begins anew
//! each time, with what has been brought in place; as each time brings a piece more, and pieces are limited, that ends.

use super::pool::{BounceBuffer, BouncePool};
use super::{DMA_TIMEOUT_NS, Transfer, TransferKind};
use sluice_command::{Command, Slab};
use sluice_memory::{BounceBuffers, MAX_WANTED, Role, Wanted};
use sluice_nvme::Status;
use std::collections::{BTreeMap, VecDeque};

/// Pieces of one command; no walker goes through more.
const BUFFERS_MAX: usize = 2 * MAX_WANTED;

/// What becomes of a command that has waited.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It begins, with these.
    Begin(BounceBuffers),
    /// It has ended so, with this in dword 0.
    Over(Status, u32),
}

/// One command, until its completion entry is written.
#[derive(Debug, Default)]
struct BouncedCommand {
    /// Here while it waits for its client, or for memory; else it is with a router.
    command: Option<Command>,
    buffers: Vec<BounceBuffer>,
    /// Jobs that are not done.
    open: u32,
    has_failed: bool,
    /// It is done but for its results; dword 0 of its completion.
    dw0: Option<u32>,
    /// Until when its client has to have done all that it needs.
    until_ns: Option<u64>,
}

/// How long a client may take for all that a command needs at a time, in nanoseconds, be it in ever so many errands.
const COMMAND_TIMEOUT_NS: u64 = 2 * DMA_TIMEOUT_NS;

/// All of a controller's, by number of command.
#[derive(Debug, Default)]
pub(super) struct BouncedCommands {
    commands: BTreeMap<usize, BouncedCommand>,
    /// None of them has to have ended before; none if none has to.
    earliest_ns: Option<u64>,
    /// Those that can go on.
    ready: Vec<usize>,
    /// Those for which there was no memory, in order. As long as there is one, some other has memory.
    waiting: VecDeque<usize>,
    /// Made for the first of them.
    pool: Option<BouncePool>,
}

impl BouncedCommands {
    /// A command needs these, besides what it has.
    pub(super) fn fetch(
        &mut self,
        number: usize,
        command: Command,
        wanted: &[Wanted],
        transfers: &mut VecDeque<Transfer>,
        now_ns: u64,
    ) {
        let Self { commands, ready, waiting, pool, earliest_ns } = self;
        let bounced = commands.entry(number).or_default();
        bounced.command = Some(command);
        if pool.is_none() {
            let made = BouncePool::new();
            let failed = |error| tracing::error!(%error, "no memory for what a client has to be asked for");
            *pool = made.map_err(failed).ok();
        }
        let Some(pool) = pool else {
            bounced.has_failed = true;
            return ready.push(number);
        };
        let had = bounced.buffers.len();
        let fits = had + wanted.len() <= BUFFERS_MAX;
        let all = fits
            && wanted.iter().all(|&wanted| {
                let buffer = pool.take(wanted);
                let is_there = buffer.is_some();
                bounced.buffers.extend(buffer);
                is_there
            });
        if !all {
            // It does not keep what others may need to go on, and begins anew when one of them has ended.
            bounced.buffers.drain(..).for_each(|buffer| pool.give(buffer));
            if fits && !pool.is_untouched() {
                return waiting.push_back(number);
            }
            bounced.has_failed = true;
            return ready.push(number);
        }
        for buffer in &bounced.buffers[had..] {
            if buffer.wanted.role == Role::Destination {
                pool.clear(buffer);
            } else {
                transfers.push_back(transfer(buffer, TransferKind::Fetch(number)));
                bounced.open += 1;
            }
        }
        if bounced.open == 0 {
            return ready.push(number);
        }
        start_clock(bounced, earliest_ns, now_ns);
    }

    /// A client has had enough time for a command.
    pub(super) fn is_overdue(&mut self, now_ns: u64) -> bool {
        if self.earliest_ns.is_none_or(|earliest_ns| now_ns < earliest_ns) {
            return false;
        }
        self.earliest_ns = self.commands.values().filter_map(|bounced| bounced.until_ns).min();
        self.earliest_ns.is_some_and(|earliest_ns| earliest_ns <= now_ns)
    }

    /// When to ask whether one is overdue.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.earliest_ns
    }

    /// A job of a command became two.
    pub(super) fn one_more(&mut self, number: usize) {
        if let Some(bounced) = self.commands.get_mut(&number) {
            bounced.open += 1;
        }
    }

    pub(super) fn answered(&mut self, number: usize, well: bool) {
        let Some(bounced) = self.commands.get_mut(&number) else { return };
        bounced.has_failed |= !well;
        bounced.open -= 1;
        if bounced.open == 0 {
            self.ready.push(number);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn take_ready(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.ready)
    }

    /// Hands out a command that is ready.
    pub(super) fn resume(&mut self, number: usize) -> Option<(Command, Outcome)> {
        let bounced = self.commands.get_mut(&number)?;
        let command = bounced.command.take()?;
        bounced.until_ns = None;
        let outcome = match (bounced.has_failed, bounced.dw0) {
            (true, _) => Outcome::Over(Status::DATA_TRANSFER_ERROR, 0),
            (false, Some(dw0)) => Outcome::Over(Status::SUCCESS, dw0),
            (false, None) => {
                let mut bounce_buffers = BounceBuffers::default();
                if let Some(pool) = &self.pool {
                    bounced
                        .buffers
                        .iter()
                        .for_each(|buffer| bounce_buffers.insert(buffer.wanted, pool.segment(buffer)));
                }
                Outcome::Begin(bounce_buffers)
            }
        };
        Some((command, outcome))
    }

    /// A command that was handed out goes on later.
    pub(super) fn put_back(&mut self, number: usize, command: Command) {
        self.commands.entry(number).or_default().command = Some(command);
    }

    /// True if a command has written what its client is to get.
    pub(super) fn has_results(&self, number: usize) -> bool {
        let buffers = self.commands.get(&number).map_or(&[][..], |bounced| &bounced.buffers);
        buffers.iter().any(|buffer| buffer.wanted.role == Role::Destination)
    }

    /// Sends off what a command has written.
    pub(super) fn store(
        &mut self,
        number: usize,
        command: Command,
        dw0: u32,
        transfers: &mut VecDeque<Transfer>,
        now_ns: u64,
    ) {
        let bounced = self.commands.entry(number).or_default();
        start_clock(bounced, &mut self.earliest_ns, now_ns);
        (bounced.command, bounced.dw0) = (Some(command), Some(dw0));
        for buffer in bounced.buffers.iter().filter(|buffer| buffer.wanted.role == Role::Destination) {
            transfers.push_back(transfer(buffer, TransferKind::Store(number)));
            bounced.open += 1;
        }
    }

    /// A command is over: what it had is for the next that waits.
    pub(super) fn close(&mut self, number: usize) {
        let Some(bounced) = self.commands.remove(&number) else { return };
        if let Some(pool) = &mut self.pool {
            bounced.buffers.into_iter().for_each(|buffer| pool.give(buffer));
        }
        self.ready.extend(self.waiting.pop_front());
    }

    /// Nobody waits for any of them.
    pub(super) fn reset(&mut self, slab: &mut Slab) {
        self.ready.clear();
        self.waiting.clear();
        let pool = &mut self.pool;
        self.commands.retain(|_, bounced| {
            let Some(command) = bounced.command.take() else { return true };
            slab.release(command);
            if let Some(pool) = pool {
                bounced.buffers.drain(..).for_each(|buffer| pool.give(buffer));
            }
            false
        });
        if self.commands.is_empty() {
            self.pool = None;
        }
    }

    pub(super) fn abandon(&mut self) {
        let commands = self.commands.values_mut().filter_map(|bounced| bounced.command.take());
        commands.for_each(std::mem::forget);
    }

    pub(super) fn read(&self, offset: usize, data: &mut [u8]) {
        if let Some(pool) = &self.pool {
            pool.read(offset, data);
        }
    }

    pub(super) fn write(&self, offset: usize, data: &[u8]) {
        if let Some(pool) = &self.pool {
            pool.write(offset, data);
        }
    }
}

fn start_clock(bounced: &mut BouncedCommand, earliest_ns: &mut Option<u64>, now_ns: u64) {
    let until_ns = now_ns.saturating_add(COMMAND_TIMEOUT_NS);
    bounced.until_ns = Some(until_ns);
    *earliest_ns = Some(earliest_ns.map_or(until_ns, |earliest_ns| earliest_ns.min(until_ns)));
}

fn transfer(buffer: &BounceBuffer, kind: TransferKind) -> Transfer {
    let Wanted { address, length, .. } = buffer.wanted;
    Transfer { address, length: length as usize, kind, offset: buffer.offset }
}
