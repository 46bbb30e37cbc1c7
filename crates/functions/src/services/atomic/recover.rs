//! Recovery: entries that may not be durable at their places are written there again, in their order.

use super::format::{self, BLOCK, Entry, Found, Geometry, SUPERBLOCKS, Superblock};
use super::log::Log;
use super::requests::{Checkpoint, Job, request};
use super::{Atomic, DATA, LOG, Phase};
use crate::services::service::send;
use sluice_command::{Operation, Storage};
use sluice_nvme::Status;
use sluice_uif::{Buffer, Data, Done, Io, Part};

/// Time after which a recovery lets the function be announced, nanoseconds.
const LONG_NS: u64 = 20_000_000_000;

/// Request of a recovery that is to be sent, or is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Superblocks,
    /// Read of the head in a slot.
    Head(u32),
    /// Read of an entry, by its index in the order, and the write to its place.
    Entry(usize),
    Place(usize),
    Flush,
    Store,
}

#[derive(Debug)]
pub(super) struct Recovery {
    step: Step,
    superblock: Superblock,
    /// Entries from the watermark on.
    entries: Vec<Entry>,
    /// Highest sequence number in the log.
    last: u64,
    /// Memory with the entry that is being written to its place.
    buffer: Option<Buffer>,
}

impl Recovery {
    /// Returns the index of the next entry after a step.
    fn entry_or_flush(&self, index: usize) -> Step {
        if index < self.entries.len() { Step::Entry(index) } else { Step::Flush }
    }

    /// Takes the entry in a slot, if it is not durable at its place.
    fn take_head(&mut self, block: &[u8], slot: u32) {
        let Some(entry) = format::open(block, &self.superblock.geometry, slot) else { return };
        self.last = self.last.max(entry.sequence);
        if entry.sequence >= self.superblock.watermark {
            self.entries.push(entry);
        }
    }

    /// Returns whether the log has writes of other storage than the present one.
    fn is_of_other(&self, storage: u128) -> bool {
        let known = |id: u128| id != 0 && id != Storage::UNSEEN.id;
        let before = self.superblock.storage;
        !self.entries.is_empty() && known(before) && known(storage) && before != storage
    }
}

/// Describes entries that end at `needed`, behind the end of the data.
fn behind_end(needed: u64, size: u64) -> String {
    format!(
        "the log has writes up to byte {needed}, and the data ends at {size}: open the drive once with {needed} bytes of \
         data, so that they reach their places, and make it smaller then; zeros over the first 8 KiB of the log drop them"
    )
}

impl Atomic {
    /// Begins to read the log.
    pub(super) fn begin_recovery(&mut self, io: &mut Io<'_>) {
        let superblock = Superblock::default();
        let (step, entries) = (Step::Superblocks, Vec::new());
        self.phase = Phase::Recovering(Recovery { step, superblock, entries, last: 0, buffer: None });
        self.checkpoint = Checkpoint::Idle;
        self.began_ns = io.now_ns();
        self.unsent.push_back(Job::Recover);
        self.send_waiting(io);
    }

    /// Begins to read the log when nothing is below any more.
    pub(super) fn begin_recovery_if_drained(&mut self, io: &mut Io<'_>) {
        let is_over = !self.ops.are_under_way() && self.checkpoint == Checkpoint::Idle;
        if matches!(self.phase, Phase::Draining) && is_over {
            self.begin_recovery(io);
        }
    }

    /// Sends the next request of the recovery.
    pub(super) fn send_recovery(&mut self, token: u64, io: &mut Io<'_>) -> bool {
        let Phase::Recovering(recovery) = &self.phase else { return true };
        let geometry = recovery.superblock.geometry;
        let (at, length) = match recovery.step {
            Step::Superblocks => (0, SUPERBLOCKS),
            Step::Head(slot) => (geometry.slot_at(slot), BLOCK),
            Step::Entry(index) => {
                let Some(entry) = recovery.entries.get(index) else { return false };
                (geometry.slot_at(entry.slot), format::entry_bytes(entry.length))
            }
            Step::Place(index) => {
                let (Some(entry), Some(buffer)) = (recovery.entries.get(index), &recovery.buffer) else {
                    return false;
                };
                let length = entry.length as usize;
                let write = request(Operation::Write, entry.offset, length as u64, false);
                let part = Part::of(buffer, BLOCK, length);
                return part.is_some_and(|part| io.request(DATA, write, Data::Part(part), token).is_ok());
            }
            Step::Flush => {
                let flush = request(Operation::Flush, 0, 0, false);
                return io.request(DATA, flush, Data::None, token).is_ok();
            }
            Step::Store => {
                let watermark = format::next_run(recovery.last.max(recovery.superblock.watermark));
                return self.write_superblock(watermark, token, io);
            }
        };
        let Some(buffer) = io.buffer(length) else { return false };
        let read = request(Operation::Read, at, length as u64, false);
        send(io, LOG, read, Data::Own(buffer), token)
    }

    /// Takes a request of the recovery back.
    pub(super) fn recovery_done(&mut self, done: Done, io: &mut Io<'_>) {
        let Phase::Recovering(mut recovery) = std::mem::replace(&mut self.phase, Phase::Closed) else {
            return done.buffer.into_iter().for_each(|buffer| io.release(buffer));
        };
        if !done.status.is_success() {
            done.buffer.into_iter().chain(recovery.buffer).for_each(|buffer| io.release(buffer));
            return self.recovery_failed(recovery.step, done.status, io);
        }
        let outcome = self.recovery_step(&mut recovery, done.buffer, io);
        match outcome {
            Ok(Some(step)) => {
                recovery.step = step;
                self.announce_if_long(step, io);
                if step == Step::Store {
                    self.set_geometry(&recovery.superblock.geometry);
                }
                self.phase = Phase::Recovering(recovery);
                self.unsent.push_back(Job::Recover);
            }
            Ok(None) => self.recovered(&recovery, io),
            Err(why) => {
                recovery.buffer.into_iter().for_each(|buffer| io.release(buffer));
                self.refuse(&why, io);
                self.end_recovered(Status::WRITE_FAULT, io);
            }
        }
    }

    /// Returns the step after the one that is done; none at the end.
    fn recovery_step(
        &mut self,
        recovery: &mut Recovery,
        buffer: Option<Buffer>,
        io: &mut Io<'_>,
    ) -> Result<Option<Step>, String> {
        let step = match (recovery.step, buffer) {
            (Step::Superblocks, Some(buffer)) => {
                let (found, copy) = format::read_superblocks(io.bytes(&buffer));
                io.release(buffer);
                self.newest_copy = copy;
                self.superblock_found(recovery, found)?
            }
            (Step::Head(slot), Some(buffer)) => {
                recovery.take_head(io.bytes(&buffer), slot);
                io.release(buffer);
                self.head_taken(recovery, slot)?
            }
            (Step::Entry(index), Some(buffer)) => {
                let entry = recovery.entries.get(index).copied().unwrap_or_default();
                let whole = format::open_whole(io.bytes(&buffer), &recovery.superblock.geometry, entry.slot);
                if whole.is_some_and(|(found, _)| found == entry) {
                    recovery.buffer = Some(buffer);
                    Step::Place(index)
                } else {
                    io.release(buffer);
                    self.counts.dropped += 1;
                    recovery.entry_or_flush(index + 1)
                }
            }
            (Step::Place(index), _) => {
                recovery.buffer.take().into_iter().for_each(|buffer| io.release(buffer));
                self.counts.replayed += 1;
                recovery.entry_or_flush(index + 1)
            }
            (Step::Flush, _) => Step::Store,
            (Step::Store, buffer) => {
                buffer.into_iter().for_each(|buffer| io.release(buffer));
                return Ok(None);
            }
            (_, None) => return Err("a request returned without its memory".to_owned()),
        };
        Ok(Some(step))
    }

    /// Announces the function in the middle of a long recovery, whose log is checked: a process that is not ready in a
    /// minute is ended, and would begin anew each time. Commands wait.
    fn announce_if_long(&mut self, step: Step, io: &mut Io<'_>) {
        let is_checked = !matches!(step, Step::Superblocks | Step::Head(_));
        let is_long = io.now_ns() >= self.began_ns.saturating_add(LONG_NS);
        if is_checked && is_long && !std::mem::replace(&mut self.is_announced, true) {
            tracing::warn!("atomic is still writing its log to the places: commands wait");
            io.ready(Status::SUCCESS);
        }
    }

    fn superblock_found(&mut self, recovery: &mut Recovery, found: Found) -> Result<Step, String> {
        match found {
            Found::Good(superblock) if superblock.geometry.fits(self.log_layer.size) => {
                recovery.superblock = superblock;
                recovery.last = superblock.watermark;
                Ok(Step::Head(0))
            }
            Found::Good(_) => Err("the log has become smaller".to_owned()),
            Found::Later(version) => {
                Err(format!("the log has version {version}, which is later than this program"))
            }
            Found::Other => Err("the layer of the log holds something else; to begin a new log there, \
                 overwrite its first 8 KiB with zeros"
                .to_owned()),
            Found::Blank => {
                if !self.log_layer.is_new {
                    tracing::warn!("atomic begins a new log: its layer is blank, and was written to before");
                }
                Ok(Step::Store)
            }
        }
    }

    fn head_taken(&self, recovery: &mut Recovery, slot: u32) -> Result<Step, String> {
        if slot + 1 < recovery.superblock.geometry.slots {
            return Ok(Step::Head(slot + 1));
        }
        recovery.entries.sort_unstable_by_key(|entry| entry.sequence);
        let end = |entry: &Entry| entry.offset.saturating_add(entry.length.into());
        // Storage that was exchanged under the open function has the same data.
        if !self.is_announced && recovery.is_of_other(self.data.id) {
            return Err("the log has writes of another drive, which are not on it yet".to_owned());
        }
        let needed = recovery.entries.iter().map(end).max().unwrap_or(0);
        if needed > self.data.size {
            return Err(behind_end(needed, self.data.size));
        }
        match recovery.entries.is_empty() {
            true => Ok(Step::Store),
            false => Ok(Step::Entry(0)),
        }
    }

    /// Sets the geometry for the time after the recovery. Another one begins a new log.
    fn set_geometry(&mut self, former: &Geometry) {
        let new = self.new_geometry();
        let is_same = (new.limit, new.slots) == (former.limit, former.slots);
        self.geometry = if is_same { *former } else { new };
    }

    fn recovered(&mut self, recovery: &Recovery, io: &mut Io<'_>) {
        let watermark = format::next_run(recovery.last.max(recovery.superblock.watermark));
        self.superblock_written();
        self.log = Log::new(&self.geometry, watermark);
        self.phase = Phase::Open;
        (self.tick_ns, self.refused_until_ns) = (None, None);
        if !recovery.entries.is_empty() {
            tracing::info!("atomic has written {} entries of its log again", recovery.entries.len());
        }
        self.end_recovered(Status::SUCCESS, io);
        if !std::mem::replace(&mut self.is_announced, true) {
            io.ready(Status::SUCCESS);
        }
        self.admit(io);
    }

    fn recovery_failed(&mut self, step: Step, status: Status, io: &mut Io<'_>) {
        let is_lost = status.same_code(Status::WRITES_LOST);
        // The layer below reports a loss once, also by a Flush that fails.
        if is_lost || step == Step::Flush {
            self.note_loss();
        }
        if is_lost {
            // The writes so far are lost: the log is read again.
            return self.begin_recovery(io);
        }
        tracing::error!("atomic cannot write its log to the places: {status:?}");
        self.phase = Phase::Failed { again_ns: Self::retry_ns(io) };
        self.end_recovered(Status::WRITE_FAULT, io);
        self.fail_waiting(io);
        if !self.is_announced {
            io.ready(Status::NAMESPACE_NOT_READY);
        }
    }
}
