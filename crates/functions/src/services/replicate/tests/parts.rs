//! Faults of one part of a set at a time, while the function goes on. A member loses power, loses the data of
//! a flush, or answers too late. After a restart, disks may be others.

use super::rig::{Asked, Rig, SIZE};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_sim::{Action, DiskConfig, FlightId, SimDisk};

/// Part of a write that timed out, and is done later.
#[derive(Debug)]
pub(super) struct Late {
    layer: usize,
    offset: u64,
    data: Vec<u8>,
}

/// Faults of the members beside those of the rig.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Members that lost power since their last answer, and report the loss with the next one.
    owes: Vec<bool>,
    /// Members whose next flush fails, and loses the data it should make durable.
    fails_to_flush: Vec<bool>,
    /// Average number of writes to a member of which one times out.
    pub(super) late: Option<u64>,
    waiting: Vec<Late>,
    /// Whether a member answers again before its late writes are done, which no transport may allow.
    pub(super) is_hasty: bool,
    /// Whether a member has lost data since the function began.
    has_lost: bool,
    /// Commands of the host that end while the function handles a failed flush.
    ends: Option<Vec<(FlightId, bool)>>,
    /// Times that each of these happened.
    pub(super) power_losses: u64,
    pub(super) lost_flushes: u64,
    pub(super) timeouts: u64,
    pub(super) replaced: u64,
}

impl Parts {
    pub(super) fn new(members: usize) -> Self {
        Self { owes: vec![false; members], fails_to_flush: vec![false; members], ..Self::default() }
    }
}

/// Answer of a layer, and the part of the request that it executes.
pub(super) struct Fate {
    pub(super) status: Status,
    pub(super) chance: f64,
    /// Source and its count of errors before the result of a failed flush goes to the function.
    before: Option<(usize, u64)>,
}

impl Fate {
    fn undone(status: Status) -> Self {
        Self { status, chance: 0.0, before: None }
    }
}

impl Rig {
    /// Cuts the power of one member alone, which loses its unflushed data.
    pub(super) fn lose_power_of(&mut self, member: usize) {
        self.disks[member].lock().power_cut();
        self.parts.owes[member] = true;
        self.parts.power_losses += 1;
    }

    pub(super) fn fail_next_flush_of(&mut self, member: usize) {
        self.parts.fails_to_flush[member] = true;
    }

    /// Returns whether a write that timed out may still be done there: the transport delivers no answer
    /// before.
    fn is_mute(&self, layer: usize) -> bool {
        !self.parts.is_hasty && self.parts.waiting.iter().any(|late| late.layer == layer)
    }

    /// Does a late write, if there is one and its time has come.
    pub(super) fn does_late(&mut self) -> bool {
        let count = self.parts.waiting.len();
        let comes = count > 0 && (self.asked.is_empty() || self.random.one_in(8));
        if comes {
            let late = self.parts.waiting.swap_remove(self.random.below(count as u64) as usize);
            self.disks[late.layer].lock().write(late.offset, &late.data);
        }
        comes
    }

    /// Returns the fault of a member's request; none if it is executed as usual.
    pub(super) fn fate(&mut self, asked: &Asked) -> Option<Fate> {
        let layer = usize::from(asked.reply.layer);
        if layer >= self.members {
            return None;
        }
        if std::mem::take(&mut self.parts.owes[layer]) {
            if self.is_irreplaceable(layer) {
                self.model.lose_unflushed();
            }
            self.parts.has_lost = true;
            return Some(Fate::undone(Status::WRITES_LOST));
        }
        if self.is_mute(layer) {
            return Some(Fate::undone(Status::WRITE_FAULT));
        }
        let operation = asked.request.operation;
        if operation == Operation::Flush {
            // A Flush of the host ends when each member has done it: this one is the last.
            let is_last = self.asked.iter().all(|other| other.request.operation != Operation::Flush);
            let fails = self.up[layer] && is_last && std::mem::take(&mut self.parts.fails_to_flush[layer]);
            return fails.then(|| self.lose_by_flush(layer));
        }
        let times_out = operation.modifies()
            && self.up[layer]
            && self.parts.late.is_some_and(|of| self.random.one_in(of));
        times_out.then(|| {
            let late = Late { layer, offset: asked.request.offset, data: self.data_of(asked) };
            self.parts.waiting.push(late);
            self.parts.timeouts += 1;
            Fate::undone(Status::WRITE_FAULT)
        })
    }

    fn lose_by_flush(&mut self, layer: usize) -> Fate {
        self.disks[layer].lock().lose(0..SIZE);
        self.parts.lost_flushes += 1;
        self.parts.has_lost = true;
        let before = Some((self.source(), self.source_errors()));
        Fate { before, ..Fate::undone(Status::WRITE_FAULT) }
    }

    /// Returns the answer to the function. If the flush of a source without a replacement failed, its data is
    /// lost in the model before the host receives any result.
    pub(super) fn meet(&mut self, asked: &Asked, fate: &Fate) {
        let Some((source, errors)) = fate.before else { return self.answer(asked, fate.status) };
        self.parts.ends = Some(Vec::new());
        self.answer(asked, fate.status);
        if self.source_errors() > errors && self.source() == source {
            self.model.lose_unflushed();
        }
        for (flight, good) in self.parts.ends.take().into_iter().flatten() {
            self.model.end(flight, good);
        }
    }

    /// Ends a command of the host.
    pub(super) fn end(&mut self, flight: FlightId, good: bool) {
        match &mut self.parts.ends {
            Some(ends) => ends.push((flight, good)),
            None => self.model.end(flight, good),
        }
    }

    fn source_errors(&mut self) -> u64 {
        let metrics = self.tell("metrics").expect("every function has them");
        let (_, number) = metrics.split_once("source_errors_total ").expect("it is counted");
        number.lines().next().and_then(|line| line.parse().ok()).expect("a number")
    }

    /// Returns for each member whether it is in sync.
    fn in_sync(&mut self) -> Vec<bool> {
        let status = self.tell("status").expect("it serves");
        let (_, states) = status.split_once(r#""members":["#).expect("members");
        let (states, _) = states.split_once(']').expect("members");
        states.split(',').map(|state| state == r#""in sync""#).collect()
    }

    /// Returns whether no other member has the data of this one.
    fn is_irreplaceable(&mut self, member: usize) -> bool {
        let in_sync = self.in_sync();
        let others = (0..self.members).filter(|other| *other != member && in_sync[*other]);
        !self.is_mirror && member == 0 || in_sync[member] && others.count() == 0
    }

    /// Runs until the source has reported its losses and has done its late writes, before a read past the
    /// function.
    pub(super) fn hear_losses(&mut self) {
        loop {
            let source = self.source();
            if !self.parts.owes[source] && !self.is_mute(source) {
                return;
            }
            self.submit_flush();
            self.turn();
        }
    }

    /// Ends all faults of parts.
    pub(super) fn part_rest(&mut self) {
        self.parts.late = None;
        self.parts.fails_to_flush.fill(false);
    }

    /// Ends the function, after its late writes. The next function may have no record of a member's loss, so
    /// the layer above it fails the host's next Flush.
    pub(super) fn part_kill_function(&mut self) {
        while !self.parts.waiting.is_empty() {
            self.does_late();
        }
        if std::mem::take(&mut self.parts.has_lost) {
            self.model.lose_unflushed();
            let flush = self.model.begin(Action::Flush);
            self.model.end(flush, false);
        }
    }

    /// Ends the daemon; late writes are done or not. Returns whether a member has lost data that only a Flush
    /// had made durable.
    pub(super) fn part_kill_daemon(&mut self) -> bool {
        for late in std::mem::take(&mut self.parts.waiting) {
            if self.random.one_in(2) {
                self.disks[late.layer].lock().write(late.offset, &late.data);
            }
        }
        std::mem::take(&mut self.parts.has_lost)
    }

    /// Restarts the daemon with another disk in the place of this member, if another member has everything.
    /// An operator chooses that member, if the log does not show which is right.
    pub(super) fn kill_daemon_and_replace(&mut self, member: usize, cut: bool) {
        let member = if self.is_mirror { member } else { 1 };
        let right = self.in_sync().iter().enumerate().position(|(other, good)| *good && other != member);
        let Some(right) = right else { return self.kill_daemon(cut) };
        self.end_daemon(cut);
        let config = DiskConfig { size: SIZE, block_size: 512, atomic_write: 512, volatile_cache: true };
        self.disks[member] = SimDisk::used(config, self.random.split());
        self.parts.owes[member] = false;
        self.parts.replaced += 1;
        self.storage[member] = 1 << 32 | self.parts.replaced;
        if !self.serves() {
            self.ready = None;
            self.tell(&format!("copy from {right}")).expect("it asks for it");
            assert!(self.comes_up());
        }
        assert_ne!(self.source(), member, "another disk is not believed");
    }
}
