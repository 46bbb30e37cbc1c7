//! One part of a set at a time: a member, or the log, that loses power, loses what it was to flush, answers too late,
//! or is another disk, while the others go on.

use super::rig::{Rig, SIZE, Task, disk};
use crate::{Members, Mirror, WriteId};

/// The key of a flush that the set asks for itself, among those of the host.
const OWN: u32 = u32::MAX;

/// What came of a write to the log that is said to have failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Partly {
    Nothing,
    Some,
    All,
}

#[derive(Debug)]
pub(super) struct Parts {
    /// Bytes that a power cut leaves as a whole or not at all.
    pub(super) unit: u64,
    /// They lost power since they last answered, and say so with their next answer.
    lost_power: Vec<bool>,
    /// Another disk is in the place of a member: it answers nothing before the set is opened again.
    swapped: Vec<bool>,
    /// The next flush of a member fails and loses what it was to make durable. True if that can be read until the power
    /// fails.
    fails_to_flush: Vec<Option<bool>>,
    /// A flush failed, and what it lost can be read until the member is opened again: no flush succeeds before.
    is_stuck: Vec<bool>,
    /// The flushes that failed so, by their key, until the set is told.
    failed: Vec<(u32, usize, bool)>,
    /// Of so many writes to a member one times out, and is done later.
    pub(super) late: Option<u64>,
    /// A member answers again before its late writes are done, as no transport may let it.
    pub(super) is_hasty: bool,
    /// Writes to the log so far, the one that fails, and what comes of it. No other succeeds after it.
    pub(super) log_writes: u64,
    pub(super) log_fault: Option<(u64, Partly)>,
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
            power_losses: 0,
            lost_flushes: 0,
            timeouts: 0,
            swaps: 0,
        }
    }

    /// What a member is told is lost: it is another disk.
    pub(super) fn is_swapped(&self, member: usize) -> bool {
        self.swapped[member]
    }
}

impl Rig {
    /// A member alone loses power, and with it what was not flushed, while the set lives on.
    pub(super) fn lose_power_of(&mut self, member: usize) {
        self.disks[member].lock().power_cut();
        self.parts.lost_power[member] = true;
        self.parts.power_losses += 1;
    }

    /// The member says that it lost power, if it did: that is the answer to whatever it was asked for.
    pub(super) fn says_it_lost_power(&mut self, member: usize) -> bool {
        if !std::mem::take(&mut self.parts.lost_power[member]) {
            return false;
        }
        let status = self.mirror.status();
        if status.current == Members::one(member) || !self.config.promotes && status.source == member {
            // Nothing else has what it lost: a Flush that fails tells the host.
            self.source_loses();
        }
        self.mirror.has_lost_writes(member);
        true
    }

    /// What nothing takes the place of loses what is not durable.
    fn source_loses(&mut self) {
        let waiting: Vec<u64> = self.asked.values().filter(|it| it.is_waiting()).map(|it| it.tag).collect();
        self.history.lose_unflushed(&waiting);
        self.cut = true;
    }

    /// Between two associations the member becomes another disk, with this content or any.
    pub(super) fn swap(&mut self, member: usize, image: Option<&[u8]>) {
        self.disks[member] = disk(SIZE, true, &mut self.random);
        if let Some(image) = image {
            self.disks[member].lock().write(0, image);
            self.disks[member].lock().flush();
        }
        (self.parts.swapped[member], self.parts.lost_power[member]) = (true, false);
        self.parts.swaps += 1;
    }

    /// A member's next flush fails, and loses what it was to make durable.
    pub(super) fn fail_next_flush_of(&mut self, member: usize, is_cached: bool) {
        self.parts.fails_to_flush[member] = Some(is_cached);
    }

    /// The set begins anew: it is told which disks the members are.
    pub(super) fn part_restart(&mut self) {
        let source = self.mirror.status().source;
        if !self.mirror.is_noted() {
            // The log does not have the last loss. That member may be believed once more, without the writes that it lost
            // and that the others have flushed: no Flush of these was acknowledged since.
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
    }

    /// Nothing fails any more.
    pub(super) fn part_rest(&mut self) {
        self.parts.fails_to_flush.fill(None);
        self.parts.late = None;
        assert!(!self.parts.is_stuck.contains(&true), "one that is stuck flushes after a restart only");
        assert!(!self.parts.swapped.contains(&true), "one that was swapped answers after a restart only");
    }

    pub(super) fn is_there(&self, member: usize) -> bool {
        self.up[member] && !self.is_mute(member)
    }

    /// True if the member answers nothing: it is another disk, or a write that timed out may still be done there, and the
    /// transport waits for that.
    pub(super) fn is_mute(&self, member: usize) -> bool {
        let is_late = |task: &Task| matches!(task, Task::Late { member: other, .. } if *other == member);
        let waits = !self.parts.is_hasty && self.tasks.iter().any(is_late);
        self.parts.swapped[member] || waits
    }

    /// A leg of a write has failed. It may be done later.
    pub(super) fn fail_leg(&mut self, write: WriteId, member: usize) {
        let (bytes, data) = self.leg_data(write);
        if bytes.is_empty() || self.parts.late.is_none() || self.parts.swapped[member] {
            return self.do_some(&Task::Leg { write, member });
        }
        self.parts.timeouts += 1;
        self.tasks.push(Task::Late { member, offset: bytes.start, data });
    }

    /// True if a leg to this member times out.
    pub(super) fn times_out(&mut self, member: usize) -> bool {
        self.is_there(member) && self.parts.late.is_some_and(|of| self.random.one_in(of))
    }

    /// A flush that the set asked for itself.
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

    /// The set is told of the end of a flush, if it is one: what its members lost by it is lost now.
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
        let good = self.log_up && !self.random.one_in(200);
        match fault {
            Some((_, Partly::Nothing)) => {}
            None if good => self.write_log_durably(offset, bytes),
            Some((_, Partly::All)) => self.write_log_durably(offset, bytes),
            _ => self.do_some(&Task::WriteLog(offset, bytes.to_vec())),
        }
        self.mirror.log_written(good, self.now_ns);
    }

    fn write_log_durably(&mut self, offset: u64, bytes: &[u8]) {
        let mut log = self.log.lock();
        log.write(offset, bytes);
        log.persist(offset..offset + bytes.len() as u64);
    }
}
