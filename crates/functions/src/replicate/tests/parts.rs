//! One part of a set at a time: a member that loses power, loses what it was to flush, or answers too late, while the
//! function goes on; and disks that are others after a restart.

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

/// What happens to the members beside what the rig does anyway.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// They lost power since they last answered, and their next answer tells it.
    owes: Vec<bool>,
    /// The next flush of a member fails, and loses what it was to make durable.
    fails_to_flush: Vec<bool>,
    /// Of so many writes to a member one times out.
    pub(super) late: Option<u64>,
    waiting: Vec<Late>,
    /// A member answers again before its late writes are done, as no transport may let it.
    pub(super) is_hasty: bool,
    /// A member has lost something since the function began.
    has_lost: bool,
    /// Commands of the host that are over, while the function is told of a flush that failed.
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

/// What a layer answers, and how much of what it was asked for it does.
pub(super) struct Fate {
    pub(super) status: Status,
    pub(super) chance: f64,
    /// A flush failed: the errors of the source before the function is told.
    before: Option<(usize, u64)>,
}

impl Fate {
    fn undone(status: Status) -> Self {
        Self { status, chance: 0.0, before: None }
    }
}

impl Rig {
    /// A member alone loses power, and with it what was not flushed.
    pub(super) fn lose_power_of(&mut self, member: usize) {
        self.disks[member].lock().power_cut();
        self.parts.owes[member] = true;
        self.parts.power_losses += 1;
    }

    pub(super) fn fail_next_flush_of(&mut self, member: usize) {
        self.parts.fails_to_flush[member] = true;
    }

    /// True if a write that timed out may still be done there: the transport answers nothing before.
    fn is_mute(&self, layer: usize) -> bool {
        !self.parts.is_hasty && self.parts.waiting.iter().any(|late| late.layer == layer)
    }

    /// A late write is done, if there is one and its time has come.
    pub(super) fn does_late(&mut self) -> bool {
        let count = self.parts.waiting.len();
        let comes = count > 0 && (self.asked.is_empty() || self.random.one_in(8));
        if comes {
            let late = self.parts.waiting.swap_remove(self.random.below(count as u64) as usize);
            self.disks[late.layer].lock().write(late.offset, &late.data);
        }
        comes
    }

    /// What becomes of something that a member was asked for; none if nothing special does.
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
            // A Flush of the host is over when each member is done with it: this one is the last.
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

    /// The function is told. If nothing takes the place of a source whose flush failed, what that lost is lost, before
    /// the host is told of anything.
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

    /// A command of the host is over.
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

    /// By number, if it is in sync.
    fn in_sync(&mut self) -> Vec<bool> {
        let status = self.tell("status").expect("it serves");
        let (_, states) = status.split_once(r#""members":["#).expect("members");
        let (states, _) = states.split_once(']').expect("members");
        states.split(',').map(|state| state == r#""in sync""#).collect()
    }

    /// True if no other member has what this one has.
    fn is_irreplaceable(&mut self, member: usize) -> bool {
        let in_sync = self.in_sync();
        let others = (0..self.members).filter(|other| *other != member && in_sync[*other]);
        !self.is_mirror && member == 0 || in_sync[member] && others.count() == 0
    }

    /// What the source owes is told before it is read past the function, and what is late there is done.
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

    /// Nothing happens to a part any more.
    pub(super) fn part_rest(&mut self) {
        self.parts.late = None;
        self.parts.fails_to_flush.fill(false);
    }

    /// The function is gone, and what was late is done. Where a member has lost something, the next function may not know
    /// it: the layer above it fails the host's next Flush.
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

    /// The daemon is gone, and what was late is done or not. True if a member has lost something that nothing but a Flush
    /// made durable.
    pub(super) fn part_kill_daemon(&mut self) -> bool {
        for late in std::mem::take(&mut self.parts.waiting) {
            if self.random.one_in(2) {
                self.disks[late.layer].lock().write(late.offset, &late.data);
            }
        }
        std::mem::take(&mut self.parts.has_lost)
    }

    /// The daemon is gone, and when it comes back another disk is in the place of this member, if another member has
    /// everything. By an order, if nothing else says which that is.
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
