//! Commands whose lists or data are read from the client, or written back to it.
//!
//! A walk finds missing memory only as far as its lists are here, so a command may need several rounds. Each
//! round starts the command again with the buffers that have been read so far. Each round adds a buffer, and
//! buffers are limited, so the rounds end.

use crate::state::client_dma::pool::{BounceBuffer, BouncePool};
use crate::state::client_dma::{DMA_TIMEOUT_NS, Transfer, TransferKind};
use sluice_command::{Command, Slab};
use sluice_memory::{BounceBuffers, MAX_MISSING, MissingRange, Role};
use sluice_nvme::Status;
use std::collections::{BTreeMap, VecDeque};

/// Buffers of one command; no walker goes through more.
const BUFFERS_MAX: usize = 2 * MAX_MISSING;

/// Next step of a command that has waited.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Start of the command with these buffers.
    Begin(BounceBuffers),
    /// End of the command with this status, and this value in dword 0.
    Over(Status, u32),
}

/// State of one command until its completion entry is written.
#[derive(Debug, Default)]
struct BouncedCommand {
    /// The command while it waits for the client or for memory; a router has it otherwise.
    command: Option<Command>,
    buffers: Vec<BounceBuffer>,
    /// Number of transfers that are not finished.
    open: u32,
    has_failed: bool,
    /// Dword 0 of the completion, once only the results have still to be written back.
    dw0: Option<u32>,
    /// Time by which the client must have finished all current transfers of the command.
    until_ns: Option<u64>,
}

/// Time in nanoseconds for all transfers that a command needs at once, however many DMA requests that takes.
const COMMAND_TIMEOUT_NS: u64 = 2 * DMA_TIMEOUT_NS;

/// Bounced commands of a controller, by slot number.
#[derive(Debug, Default)]
pub(crate) struct BouncedCommands {
    commands: BTreeMap<usize, BouncedCommand>,
    /// Lower bound of all deadlines; none if there is no deadline.
    earliest_ns: Option<u64>,
    /// Commands that can go on.
    ready: Vec<usize>,
    /// Commands that found no free memory, in order. While there is one, some other command holds memory.
    waiting: VecDeque<usize>,
    /// Pool of the buffers, created for the first command.
    pool: Option<BouncePool>,
}

impl BouncedCommands {
    /// Adds these buffers to those of a command, and starts the transfers that fill them.
    pub(crate) fn fetch(
        &mut self,
        number: usize,
        command: Command,
        wanted: &[MissingRange],
        transfers: &mut VecDeque<Transfer>,
        now_ns: u64,
    ) {
        let Self { commands, ready, waiting, pool, earliest_ns } = self;
        let bounced = commands.entry(number).or_default();
        bounced.command = Some(command);
        if pool.is_none() {
            let made = BouncePool::new();
            let failed = |error| tracing::error!(%error, "no memory for the bounce buffers of a client");
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
            // The command gives up memory that others may need to go on. It starts again when one of them has
            // ended.
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

    /// Returns whether the client has exceeded the time limit of a command.
    pub(crate) fn is_overdue(&mut self, now_ns: u64) -> bool {
        if self.earliest_ns.is_none_or(|earliest_ns| now_ns < earliest_ns) {
            return false;
        }
        self.earliest_ns = self.commands.values().filter_map(|bounced| bounced.until_ns).min();
        self.earliest_ns.is_some_and(|earliest_ns| earliest_ns <= now_ns)
    }

    /// Returns the time of the next check by `is_overdue`.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.earliest_ns
    }

    /// Counts one more transfer of a command, since one was split.
    pub(crate) fn one_more(&mut self, number: usize) {
        if let Some(bounced) = self.commands.get_mut(&number) {
            bounced.open += 1;
        }
    }

    pub(crate) fn answered(&mut self, number: usize, well: bool) {
        let Some(bounced) = self.commands.get_mut(&number) else { return };
        bounced.has_failed |= !well;
        bounced.open -= 1;
        if bounced.open == 0 {
            self.ready.push(number);
        }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn take_ready(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.ready)
    }

    /// Hands out a command that is ready.
    pub(crate) fn resume(&mut self, number: usize) -> Option<(Command, Outcome)> {
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

    /// Stores a handed-out command until it can go on.
    pub(crate) fn put_back(&mut self, number: usize, command: Command) {
        self.commands.entry(number).or_default().command = Some(command);
    }

    /// Returns whether a command has written data that must go to the client.
    pub(crate) fn has_results(&self, number: usize) -> bool {
        let buffers = self.commands.get(&number).map_or(&[][..], |bounced| &bounced.buffers);
        buffers.iter().any(|buffer| buffer.wanted.role == Role::Destination)
    }

    /// Starts the transfers that write the results of a command to the client.
    pub(crate) fn store(
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

    /// Ends a command and lets the next waiting one use its memory.
    pub(crate) fn close(&mut self, number: usize) {
        let Some(bounced) = self.commands.remove(&number) else { return };
        if let Some(pool) = &mut self.pool {
            bounced.buffers.into_iter().for_each(|buffer| pool.give(buffer));
        }
        self.ready.extend(self.waiting.pop_front());
    }

    /// Releases all commands that are here. Their host waits for none of them.
    pub(crate) fn reset(&mut self, slab: &mut Slab) {
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

    pub(crate) fn abandon(&mut self) {
        let commands = self.commands.values_mut().filter_map(|bounced| bounced.command.take());
        commands.for_each(std::mem::forget);
    }

    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        if let Some(pool) = &self.pool {
            pool.read(offset, data);
        }
    }

    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
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
    let MissingRange { address, length, .. } = buffer.wanted;
    Transfer { address, length: length as usize, kind, offset: buffer.offset }
}
