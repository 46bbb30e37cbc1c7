//! Commands whose lists or data are brought over, or back.
//!
//! What is missing is known only as far as its lists are here, so a command may come several times. It begins anew
//! each time, with what has been brought in place; as each time brings a piece more, and pieces are limited, that ends.

use super::staging::{Piece, Staging};
use super::{ERRAND_NS, Job, Place};
use sluice_command::{Command, Slab};
use sluice_memory::{MAX_WANTED, Role, StandIns, Wanted};
use sluice_nvme::Status;
use std::collections::{BTreeMap, VecDeque};

/// Pieces of one command; no walker goes through more.
const PIECES_MAX: usize = 2 * MAX_WANTED;

/// What becomes of a command that has waited.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It begins, with these.
    Begin(StandIns),
    /// It has ended so, with this in dword 0.
    Over(Status, u32),
}

/// One command, until its completion entry is written.
#[derive(Debug, Default)]
struct Case {
    /// Here while it waits for its client, or for memory; else it is with a router.
    command: Option<Command>,
    pieces: Vec<Piece>,
    /// Jobs that are not done.
    open: u32,
    has_failed: bool,
    /// It is done but for its results; dword 0 of its completion.
    dw0: Option<u32>,
    /// Until when its client has to have done all that it needs.
    until_ns: Option<u64>,
}

/// How long a client may take for all that a command needs at a time, in nanoseconds, be it in ever so many errands.
const CASE_NS: u64 = 2 * ERRAND_NS;

/// All of a controller's, by number of command.
#[derive(Debug, Default)]
pub(super) struct Cases {
    cases: BTreeMap<usize, Case>,
    /// None of them has to have ended before; none if none has to.
    earliest_ns: Option<u64>,
    /// Those that can go on.
    ready: Vec<usize>,
    /// Those for which there was no memory, in order. As long as there is one, some other has memory.
    waiting: VecDeque<usize>,
    /// Made for the first of them.
    staging: Option<Staging>,
}

impl Cases {
    /// A command needs these, besides what it has.
    pub(super) fn fetch(
        &mut self,
        number: usize,
        command: Command,
        wanted: &[Wanted],
        jobs: &mut VecDeque<Job>,
        now_ns: u64,
    ) {
        let Self { cases, ready, waiting, staging, earliest_ns } = self;
        let case = cases.entry(number).or_default();
        case.command = Some(command);
        if staging.is_none() {
            let made = Staging::new();
            let failed = |error| tracing::error!(%error, "no memory for what a client has to be asked for");
            *staging = made.map_err(failed).ok();
        }
        let Some(staging) = staging else {
            case.has_failed = true;
            return ready.push(number);
        };
        let had = case.pieces.len();
        let fits = had + wanted.len() <= PIECES_MAX;
        let all = fits
            && wanted.iter().all(|&wanted| {
                let piece = staging.take(wanted);
                let is_there = piece.is_some();
                case.pieces.extend(piece);
                is_there
            });
        if !all {
            // It does not keep what others may need to go on, and begins anew when one of them has ended.
            case.pieces.drain(..).for_each(|piece| staging.give(piece));
            if fits && !staging.is_untouched() {
                return waiting.push_back(number);
            }
            case.has_failed = true;
            return ready.push(number);
        }
        for piece in &case.pieces[had..] {
            if piece.wanted.role == Role::Destination {
                staging.clear(piece);
            } else {
                jobs.push_back(job(piece, Place::Fetch(number)));
                case.open += 1;
            }
        }
        if case.open == 0 {
            return ready.push(number);
        }
        start_clock(case, earliest_ns, now_ns);
    }

    /// A client has had enough time for a command.
    pub(super) fn is_overdue(&mut self, now_ns: u64) -> bool {
        if self.earliest_ns.is_none_or(|earliest_ns| now_ns < earliest_ns) {
            return false;
        }
        self.earliest_ns = self.cases.values().filter_map(|case| case.until_ns).min();
        self.earliest_ns.is_some_and(|earliest_ns| earliest_ns <= now_ns)
    }

    /// When to ask whether one is overdue.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.earliest_ns
    }

    /// A job of a command became two.
    pub(super) fn one_more(&mut self, number: usize) {
        if let Some(case) = self.cases.get_mut(&number) {
            case.open += 1;
        }
    }

    pub(super) fn answered(&mut self, number: usize, well: bool) {
        let Some(case) = self.cases.get_mut(&number) else { return };
        case.has_failed |= !well;
        case.open -= 1;
        if case.open == 0 {
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
        let case = self.cases.get_mut(&number)?;
        let command = case.command.take()?;
        case.until_ns = None;
        let outcome = match (case.has_failed, case.dw0) {
            (true, _) => Outcome::Over(Status::DATA_TRANSFER_ERROR, 0),
            (false, Some(dw0)) => Outcome::Over(Status::SUCCESS, dw0),
            (false, None) => {
                let mut stand_ins = StandIns::default();
                if let Some(staging) = &self.staging {
                    case.pieces
                        .iter()
                        .for_each(|piece| stand_ins.insert(piece.wanted, staging.segment(piece)));
                }
                Outcome::Begin(stand_ins)
            }
        };
        Some((command, outcome))
    }

    /// A command that was handed out goes on later.
    pub(super) fn put_back(&mut self, number: usize, command: Command) {
        self.cases.entry(number).or_default().command = Some(command);
    }

    /// True if a command has written what its client is to get.
    pub(super) fn has_results(&self, number: usize) -> bool {
        let pieces = self.cases.get(&number).map_or(&[][..], |case| &case.pieces);
        pieces.iter().any(|piece| piece.wanted.role == Role::Destination)
    }

    /// Sends off what a command has written.
    pub(super) fn store(
        &mut self,
        number: usize,
        command: Command,
        dw0: u32,
        jobs: &mut VecDeque<Job>,
        now_ns: u64,
    ) {
        let case = self.cases.entry(number).or_default();
        start_clock(case, &mut self.earliest_ns, now_ns);
        (case.command, case.dw0) = (Some(command), Some(dw0));
        for piece in case.pieces.iter().filter(|piece| piece.wanted.role == Role::Destination) {
            jobs.push_back(job(piece, Place::Store(number)));
            case.open += 1;
        }
    }

    /// A command is over: what it had is for the next that waits.
    pub(super) fn close(&mut self, number: usize) {
        let Some(case) = self.cases.remove(&number) else { return };
        if let Some(staging) = &mut self.staging {
            case.pieces.into_iter().for_each(|piece| staging.give(piece));
        }
        self.ready.extend(self.waiting.pop_front());
    }

    /// Nobody waits for any of them.
    pub(super) fn reset(&mut self, slab: &mut Slab) {
        self.ready.clear();
        self.waiting.clear();
        let staging = &mut self.staging;
        self.cases.retain(|_, case| {
            let Some(command) = case.command.take() else { return true };
            slab.release(command);
            if let Some(staging) = staging {
                case.pieces.drain(..).for_each(|piece| staging.give(piece));
            }
            false
        });
        if self.cases.is_empty() {
            self.staging = None;
        }
    }

    pub(super) fn abandon(&mut self) {
        let commands = self.cases.values_mut().filter_map(|case| case.command.take());
        commands.for_each(std::mem::forget);
    }

    pub(super) fn read(&self, offset: usize, data: &mut [u8]) {
        if let Some(staging) = &self.staging {
            staging.read(offset, data);
        }
    }

    pub(super) fn write(&self, offset: usize, data: &[u8]) {
        if let Some(staging) = &self.staging {
            staging.write(offset, data);
        }
    }
}

fn start_clock(case: &mut Case, earliest_ns: &mut Option<u64>, now_ns: u64) {
    let until_ns = now_ns.saturating_add(CASE_NS);
    case.until_ns = Some(until_ns);
    *earliest_ns = Some(earliest_ns.map_or(until_ns, |earliest_ns| earliest_ns.min(until_ns)));
}

fn job(piece: &Piece, place: Place) -> Job {
    let Wanted { address, length, .. } = piece.wanted;
    Job { address, length: length as usize, place, offset: piece.offset }
}
