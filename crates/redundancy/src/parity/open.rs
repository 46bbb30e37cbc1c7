//! Opening of an array: its state is read from the log, and the journal is replayed.

use super::array::{Fault, Parity, Step};
use super::notes::MAGIC;
use super::ring::{Entry, Found, Place, RING_MAX, Replay, Ring};
use super::state::{State, UNSYNCED};
use super::{ArrayConfig, Geometry, NOTES_BYTES};
use crate::log::{Loader, Outcome, Piece};
use crate::{BLOCK, Members};
use std::collections::VecDeque;

/// Attempts to read the log.
const TRIES: u32 = 3;

/// Stage of an opening.
#[derive(Debug)]
pub(super) struct Opening {
    stage: Stage,
    is_issued: bool,
    failures: u32,
    /// Entries of the present batch that are still to be written, each with the place of its content.
    entries: VecDeque<(Entry, usize)>,
    /// Writes of the present entry in flight.
    left: usize,
}

#[derive(Debug)]
enum Stage {
    Load(Box<Loader>, Option<Box<State>>),
    Replay(Replay),
    /// Everything was replayed, and the members are being flushed.
    Flush,
    /// The state is being written for the first time.
    Store,
    Over,
    /// Waits for an operator.
    Asks {
        epoch: u64,
        half: usize,
        was_damaged: bool,
    },
    Refused,
}

impl Opening {
    pub(super) fn load() -> Self {
        let stage = Stage::Load(Box::new(Loader::new(MAGIC, NOTES_BYTES)), None);
        Self { stage, is_issued: false, failures: 0, entries: VecDeque::new(), left: 0 }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    pub(super) fn is_replayed(&self) -> bool {
        matches!(self.stage, Stage::Flush)
    }
}

impl Parity {
    /// Returns the next access of the log, besides batches.
    pub(super) fn log_step(&mut self, now_ns: u64) -> Option<Step> {
        match &self.opening.stage {
            Stage::Load(loader, _) => {
                let (offset, length) = loader.next().filter(|_| !self.opening.is_issued)?;
                self.opening.is_issued = true;
                Some(Step::ReadLog { offset, length })
            }
            Stage::Replay(replay) => {
                let is_busy =
                    self.opening.is_issued || self.opening.left > 0 || !self.opening.entries.is_empty();
                let (offset, length) = Some(replay.next()).filter(|_| !is_busy)?;
                self.opening.is_issued = true;
                Some(Step::ReadBatch { offset: NOTES_BYTES + offset, length })
            }
            Stage::Store | Stage::Over => self.note_step(now_ns),
            Stage::Flush | Stage::Asks { .. } | Stage::Refused => None,
        }
    }

    /// Ends a [`Step::ReadLog`] with its bytes; `None` if they cannot be read.
    pub fn log_read(&mut self, bytes: Option<&[u8]>) {
        let Stage::Load(loader, state) = &mut self.opening.stage else { return };
        self.opening.is_issued = false;
        let Some(bytes) = bytes else { return self.read_failed() };
        loader.read(bytes, &mut |piece| match piece {
            Piece::State(bytes) => {
                *state = State::read(bytes).map(Box::new);
                state.is_some()
            }
            Piece::Record(record) => state.as_mut().is_some_and(|state| state.replay(record)),
        });
        if let Some(outcome) = loader.outcome().cloned() {
            let state = state.take();
            self.loaded(outcome, state.map(|state| *state));
        }
    }

    fn read_failed(&mut self) {
        self.opening.failures += 1;
        if self.opening.failures >= TRIES {
            self.refuse("the log cannot be read".to_owned());
        }
    }

    fn loaded(&mut self, outcome: Outcome, state: Option<State>) {
        let ArrayConfig { geometry, size, id: new, .. } = self.config;
        let members = Members::first(geometry.members);
        match (outcome, state) {
            (Outcome::Refused(words), _) => self.refuse(format!("the log is refused: {words}")),
            (Outcome::Damaged { epoch, half }, _) => {
                self.ask(Stage::Asks { epoch, half, was_damaged: true }, "the log is damaged");
            }
            (Outcome::Loaded { id, epoch, half }, Some(mut state)) => {
                if let Err(words) = self.check_shape(&state) {
                    return self.refuse(words);
                }
                // A parity that was added is in the log alone.
                self.config.geometry = state.geometry;
                let Geometry { members, parities, .. } = state.geometry;
                let members = Members::first(members);
                let replaced = state.replaced(&self.config.storage);
                let lacking = replaced.with(state.lacking()).without(UNSYNCED);
                // The parities of a region that becomes longer are computed again, and recover nothing until then.
                let is_longer = size > state.size && !state.size.is_multiple_of(state.region_bytes);
                if is_longer && !lacking.is_empty() {
                    return self.refuse(format!(
                        "its members have {size} bytes now, and had {}: it does not grow while members {lacking:?} lack \
                         something; give its members the former size until they have all",
                        state.size
                    ));
                }
                state.grow(size);
                state.make_stale(0..state.regions.len(), replaced);
                self.state = state;
                self.member_state.losses += replaced.iter().count() as u64;
                self.member_state.joined = members.without(self.state.out);
                if self.incomplete().iter().count() > parities {
                    let words =
                        format!("members {:?} lack something, or are other storage", self.incomplete());
                    return self.ask(Stage::Asks { epoch, half, was_damaged: false }, &words);
                }
                self.notes.open(id, epoch, half, false);
                let State { ring_blocks, tail, .. } = self.state;
                let replay = Replay::new(self.geometry(), size, id, ring_blocks, tail);
                self.opening.stage = Stage::Replay(replay);
            }
            (_, _) if self.config.new.covers(members) => self.begin_new(new, 1, 0, false, Members::NONE),
            (_, _) => {
                let used = members.without(self.config.new);
                let words = format!("the log is blank, and members {used:?} are not new");
                self.ask(Stage::Asks { epoch: 1, half: 0, was_damaged: false }, &words);
            }
        }
    }

    /// Compares the array in the log with the configuration.
    fn check_shape(&self, state: &State) -> Result<(), String> {
        let ArrayConfig { geometry, size, log_bytes, .. } = self.config;
        if state.geometry.without_q().unwrap_or(state.geometry) != geometry {
            let words = |geometry: Geometry| {
                let Geometry { members, parities, chunk, q_is_last } = geometry;
                let last = if q_is_last { ", the second of them added" } else { "" };
                format!("{members} members with {parities} parities{last} and chunks of {chunk} bytes")
            };
            let (theirs, ours) = (words(state.geometry), words(geometry));
            return Err(format!("the log is of an array of {theirs}, and this one has {ours}"));
        }
        if state.geometry.members > self.available {
            let last = state.geometry.members - 1;
            return Err(format!(
                "the log is of an array whose second parity is on member {last}, which is not declared: \
                 declare it, with `spare = \"true\"`"
            ));
        }
        if size < state.size {
            return Err(format!("the log is of members with {} bytes, and one has {size}", state.size));
        }
        if size.div_ceil(state.region_bytes) > super::state::REGIONS_MAX {
            return Err(format!("the log has no room for members of {size} bytes"));
        }
        let needed = NOTES_BYTES + state.ring_blocks * BLOCK as u64;
        match log_bytes < needed {
            true => Err(format!("the log has {log_bytes} bytes, and had {needed}")),
            false => Ok(()),
        }
    }

    /// Begins a set whose data is right as it is, with these marks in all regions.
    fn begin_new(&mut self, id: u64, epoch: u64, half: usize, was_damaged: bool, stale: Members) {
        let ArrayConfig { geometry, size, region_bytes, log_bytes, .. } = self.config;
        let ring_blocks = ((log_bytes - NOTES_BYTES) / BLOCK as u64).min(RING_MAX);
        self.state = State::new(geometry, size, region_bytes, ring_blocks, stale);
        self.member_state.joined = self.state.members;
        self.notes.open(id, epoch, half, was_damaged);
        // No batch of an earlier array has this identifier.
        self.ring = Ring::new(ring_blocks, Place { sequence: 1, block: 0 });
        self.store();
    }

    /// Ends a [`Step::ReadBatch`] with its bytes; `None` if they cannot be read.
    pub fn batch_read(&mut self, bytes: Option<&[u8]>) {
        let Stage::Replay(replay) = &mut self.opening.stage else { return };
        self.opening.is_issued = false;
        let Some(bytes) = bytes else { return self.read_failed() };
        match replay.take(bytes) {
            Found::Batch(entries) => {
                self.opening.entries = entries.into();
                self.replay_next();
            }
            Found::Refused(words) => self.refuse(words),
            Found::End => {
                self.ring = Ring::new(self.state.ring_blocks, replay.at);
                self.opening.stage = Stage::Flush;
                self.flush_members();
            }
        }
    }

    /// Writes the cells of the next entry to the members.
    fn replay_next(&mut self) {
        while let Some((entry, mut at)) = self.opening.entries.pop_front() {
            let geometry = self.geometry();
            let rows = entry.rows();
            let regions = self.state.regions_of(&rows);
            let (offset, length, stripe) = (entry.row, entry.length, entry.row / geometry.chunk);
            self.state.touch(regions.clone());
            let mut absent = Members(entry.missing).and(self.state.members.with(UNSYNCED));
            for role in 0..geometry.members {
                let is_zeroes = entry.zeroes == 1;
                let member = if is_zeroes { role } else { geometry.member(stripe, role) };
                if is_zeroes && absent.contains(member) || !is_zeroes && entry.roles >> role & 1 == 0 {
                    continue;
                }
                let content = (!is_zeroes).then_some(at);
                at += content.map_or(0, |_| length as usize);
                if self.member_state.joined.contains(member) {
                    self.opening.left += 1;
                    self.steps.push_back(Step::Restore { member, offset, length, at: content });
                } else {
                    absent = absent.with(Members::one(member));
                }
            }
            self.state.make_stale(regions, absent);
            if self.opening.left > 0 {
                return;
            }
        }
    }

    /// Ends a [`Step::Restore`].
    pub fn restored(&mut self, member: usize, outcome: Result<(), Fault>) {
        self.opening.left = self.opening.left.saturating_sub(1);
        if outcome.is_err() && !self.lose(member) {
            return self.refuse(format!("member {member} cannot be written, and no other parity is left"));
        }
        if self.opening.left == 0 && matches!(self.opening.stage, Stage::Replay(_)) {
            self.replay_next();
        }
    }

    /// Stores the state when all that was replayed is durable.
    pub(super) fn open_with_tail(&mut self) {
        if self.incomplete().iter().count() > self.geometry().parities {
            return self.refuse("more members lack something than there are parities".to_owned());
        }
        self.store();
    }

    fn store(&mut self) {
        self.state.note_storage(&self.config.storage);
        self.opening.stage = Stage::Store;
        self.notes.want_whole();
    }

    /// Notes that the state is durable.
    pub(super) fn is_open(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            self.opening.stage = Stage::Over;
            self.steps.push_back(Step::Ready(Ok(())));
        }
    }

    pub(super) fn refuse(&mut self, words: String) {
        self.opening.stage = Stage::Refused;
        self.steps.clear();
        self.steps.push_back(Step::Ready(Err(words)));
    }

    /// Stops until an operator has declared the data right.
    fn ask(&mut self, stage: Stage, why: &str) {
        self.opening.stage = stage;
        self.steps.push_back(Step::Ready(Err(format!(
            "{why}: nothing says which members are right, and nothing is overwritten. Mount or connect what is missing \
             and open the drive again, or say `recompute`: the data of all members is right, and the parities are \
             computed from it"
        ))));
    }

    /// Returns whether an operator has to declare the data right.
    pub fn asks(&self) -> bool {
        matches!(self.opening.stage, Stage::Asks { .. })
    }

    /// Declares the data of all members right, by an operator's order: the parities are computed from it.
    ///
    /// # Errors
    /// Returns a message if the array is open and a member lacks something.
    pub fn trust_data(&mut self) -> Result<(), String> {
        let Stage::Asks { epoch, half, was_damaged } = self.opening.stage else {
            return self.recompute();
        };
        self.begin_new(self.config.id, epoch, half, was_damaged, UNSYNCED);
        Ok(())
    }
}
