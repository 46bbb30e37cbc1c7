//! Faults of one part of a set at a time, a member or the log, while the others go on. It loses power, loses
//! the data of a flush, answers too late, or is another disk.

use super::rig::{Rig, SIZE, Task, disk};
use crate::{Members, Mirror, WriteId};

/// Key of a flush that the set itself issues, among those of the host.
const OWN: u32 = u32::MAX;

/// Effect of a write to the log that is reported as failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Partly {
    Nothing,
    Some,
    All,
}

#[derive(Debug)]
pub(super) struct Parts {
    /// Bytes that a power cut keeps as a whole or not at all.
    pub(super) unit: u64,
    /// Members that lost power since their last answer, and report the loss with the next one.
    lost_power: Vec<bool>,
    /// Members with another disk in their place: they do not answer before the set is opened again.
    swapped: Vec<bool>,
    /// Members whose next flush fails and loses the data it should make durable. True if that data can be
    /// read until the power fails.
    fails_to_flush: Vec<Option<bool>>,
    /// Members with a failed flush whose lost data can be read until they are opened again. No flush succeeds
    /// before.
    is_stuck: Vec<bool>,
    /// Flushes that failed so, by their key, until their result goes to the set.
    failed: Vec<(u32, usize, bool)>,
    /// Average number of writes to a member of which one times out, and is done later.
    pub(super) late: Option<u64>,
    /// Whether a member answers again before its late writes are done, which no transport may allow.
    pub(super) is_hasty: bool,
    /// Writes to the log so far. `log_fault` is the write that fails, with its effect; no write succeeds
    /// after it.
    pub(super) log_writes: u64,
    pub(super) log_fault: Option<(u64, Partly)>,
    /// Writes to the log that failed by chance since the set was opened and before it served.
    log_failures: u32,
    /// Times that each of these happened.
    pub(super) power_losses: u64,
    pub(super) lost_flushes: u64,
    pub(super) timeouts: u64,
    pub(super) swaps: u64,
}

impl Parts {
    pub(super) fn new(members: usize, unit: u64) -> Self {
        Self {
            unit,
            lost_power: vec![false; members],
            swapped: vec![false; members],
            fails_to_flush: vec![None; members],
            is_stuck: vec![false; members],
            failed: Vec::new(),
            late: None,
            is_hasty: false,
            log_writes: 0,
            log_fault: None,
            log_failures: 0,
            power_losses: 0,
            lost_flushes: 0,
            timeouts: 0,
            swaps: 0,
        }
    }

    /// Returns whether the member is another disk, so that its writes are lost.
    pub(super) fn is_swapped(&self, member: usize) -> bool {
        self.swapped[member]
    }
}

impl Rig {
    /// Cuts the power of one member alone, which loses its unflushed data, while the set lives on.
    pub(super) fn lose_power_of(&mut self, member: usize) {
        self.disks[member].lock().power_cut();
        self.parts.lost_power[member] = true;
        self.parts.power_losses += 1;
    }

    /// Returns whether the member answers that it lost power. That is its answer to any request after the
    /// loss.
    pub(super) fn says_it_lost_power(&mut self, member: usize) -> bool {
        if !std::mem::take(&mut self.parts.lost_power[member]) {
            return false;
        }
        let status = self.mirror.status();
        if status.current == Members::one(member) || !self.config.promotes && status.source == member {
            // No other member has the lost data: a Flush that fails informs the host.
            self.source_loses();
        }
        self.mirror.has_lost_writes(member);
        true
    }

    /// Loses the data that is not durable on a member without a replacement.
    fn source_loses(&mut self) {
        let waiting: Vec<u64> = self.asked.values().filter(|it| it.is_waiting()).map(|it| it.tag).collect();
        self.history.lose_unflushed(&waiting);
        self.cut = true;
    }

    /// Replaces a member by another disk between two associations, with this content or random content.
    pub(super) fn swap(&mut self, member: usize, image: Option<&[u8]>) {
        self.disks[member] = disk(SIZE, true, &mut self.random);
        if let Some(image) = image {
            self.disks[member].lock().write(0, image);
            self.disks[member].lock().flush();
        }
        (self.parts.swapped[member], self.parts.lost_power[member]) = (true, false);
        self.parts.swaps += 1;
    }

    /// Makes a member's next flush fail and lose the data it should make durable.
    pub(super) fn fail_next_flush_of(&mut self, member: usize, is_cached: bool) {
        self.parts.fails_to_flush[member] = Some(is_cached);
    }

    /// Restarts the set, which receives the storage numbers of its disks.
    pub(super) fn part_restart(&mut self) {
        let source = self.mirror.status().source;
        if !self.mirror.is_noted() {
            // The log does not have the last loss, so that member may be trusted once more. It lacks the
            // writes that it lost and that the others have flushed: no Flush of these was acknowledged since.
            self.history.forget_flushes();
            self.source_loses();
        }
        for member in 0..self.disks.len() {
            self.disks[member].lock().reopen();
            if std::mem::take(&mut self.parts.is_stuck[member]) && member == source {
                self.source_loses();
            }
            if std::mem::take(&mut self.parts.swapped[member]) {
                self.config.storage[member] = self.random.next_u64().into();
            }
        }
        self.parts.failed.clear();
        self.parts.log_failures = 0;
    }

    /// Ends all faults.
    pub(super) fn part_rest(&mut self) {
        self.parts.fails_to_flush.fill(None);
        self.parts.late = None;
        assert!(!self.parts.is_stuck.contains(&true), "one that is stuck flushes after a restart only");
        assert!(!self.parts.swapped.contains(&true), "one that was swapped answers after a restart only");
    }

    pub(super) fn is_there(&self, member: usize) -> bool {
        self.up[member] && !self.is_mute(member)
    }

    /// Returns whether the member does not answer. It is another disk, or a write that timed out may still be
    /// done there, and the transport waits for that.
    pub(super) fn is_mute(&self, member: usize) -> bool {
        let is_late = |task: &Task| matches!(task, Task::Late { member: other, .. } if *other == member);
        let waits = !self.parts.is_hasty && self.tasks.iter().any(is_late);
        self.parts.swapped[member] || waits
    }

    /// Fails a leg of a write, which may be done later.
    pub(super) fn fail_leg(&mut self, write: WriteId, member: usize) {
        let (bytes, data) = self.leg_data(write);
        if bytes.is_empty() || self.parts.late.is_none() || self.parts.swapped[member] {
            return self.do_some(&Task::Leg { write, member });
        }
        self.parts.timeouts += 1;
        self.tasks.push(Task::Late { member, offset: bytes.start, data });
    }

    /// Returns whether a leg to this member times out.
    pub(super) fn times_out(&mut self, member: usize) -> bool {
        self.is_there(member) && self.parts.late.is_some_and(|of| self.random.one_in(of))
    }

    /// Performs a flush that the set itself issued.
    pub(super) fn flush(&mut self, member: usize) {
        let good = self.flush_works(OWN, member);
        if good {
            self.disks[member].lock().flush();
        }
        let is_last = !self.tasks.iter().any(|task| matches!(task, Task::Flush(_)));
        self.may_lose(is_last.then_some(OWN), |mirror| mirror.flushed(member, good));
    }

    pub(super) fn flush_works(&mut self, key: u32, member: usize) -> bool {
        let good = self.works(member) && !self.parts.is_stuck[member];
        match self.parts.fails_to_flush[member].take_if(|_| good) {
            Some(is_cached) => self.parts.failed.push((key, member, is_cached)),
            None => return good,
        }
        false
    }

    /// Returns a result to the set. If it ends a flush, the members lose the data that the flush failed to
    /// make durable.
    pub(super) fn may_lose<T>(&mut self, key: Option<u32>, told: impl FnOnce(&mut Mirror) -> T) -> T {
        let is_over = |failed: &mut (u32, usize, bool)| Some(failed.0) == key;
        let failed: Vec<_> = self.parts.failed.extract_if(.., is_over).collect();
        for (_, member, is_cached) in &failed {
            self.parts.is_stuck[*member] |= is_cached;
            let mut disk = self.disks[*member].lock();
            match is_cached {
                true => disk.forget(0..SIZE),
                false => disk.lose(0..SIZE),
            }
        }
        let before = self.mirror.status();
        let outcome = told(&mut self.mirror);
        let after = self.mirror.status();
        self.parts.lost_flushes += failed.len() as u64;
        if !failed.is_empty() && after.source_errors > before.source_errors && after.source == before.source {
            self.source_loses();
        }
        outcome
    }

    pub(super) fn write_log(&mut self, offset: u64, bytes: &[u8]) {
        self.parts.log_writes += 1;
        let fault = self.parts.log_fault.filter(|(at, _)| *at == self.parts.log_writes);
        self.log_up &= fault.is_none();
        let good = self.log_up && !(self.random.one_in(200) && self.log_may_fail());
        match fault {
            Some((_, Partly::Nothing)) => {}
            None if good => self.write_log_durably(offset, bytes),
            Some((_, Partly::All)) => self.write_log_durably(offset, bytes),
            _ => self.do_some(&Task::WriteLog(offset, bytes.to_vec())),
        }
        self.mirror.log_written(good, self.now_ns);
    }

    /// Returns whether a write to the log may fail by chance. After three failures at its start the set does not serve, and here
    /// it is to serve wherever the log is up.
    fn log_may_fail(&mut self) -> bool {
        let serves = self.ready.is_some();
        self.parts.log_failures += u32::from(!serves);
        serves || self.parts.log_failures < 3
    }

    fn write_log_durably(&mut self, offset: u64, bytes: &[u8]) {
        let mut log = self.log.lock();
        log.write(offset, bytes);
        log.persist(offset..offset + bytes.len() as u64);
    }
}
