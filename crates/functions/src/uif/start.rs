//! The beginning of a function: it is told of the layers below, and says when it is ready.

use super::START_LIMIT;
use super::entry;
use super::layer::Uif;
use super::peer::Peer;
use super::work::Place;
use sluice_command::{Characteristics, Lane, Storage};
use sluice_nvme::Status;
use sluice_uif::abi::{LAYERS_MAX, Reply, Submission, flag, kind};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

/// If the function can be sent commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It was told of the layers below at this time, or is yet to be.
    Starting {
        since_ns: u64,
    },
    Ready,
    /// It cannot, for this reason.
    Unable(Status),
}

/// How far the planned end of a function has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// It gets no more commands, and finishes those it has.
    Finishing,
    /// It was told to stop, and its own requests come back.
    Stopping,
    /// The keeper knows.
    Left,
}

/// The layers below, as they last said.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// Bytes of the layer, and of its blocks.
    layers: [Cell<(u64, u32)>; LAYERS_MAX],
    storages: [Cell<Storage>; LAYERS_MAX],
    count: Cell<usize>,
    /// The function knows.
    pub(super) told: Cell<bool>,
}

impl Below {
    pub(super) fn learn(&self, below: &[Characteristics]) {
        self.count.set(below.len().min(LAYERS_MAX));
        for ((layer, storage), below) in self.layers.iter().zip(&self.storages).zip(below) {
            let now = (below.size, below.block_size);
            let was = (layer.replace(now), storage.replace(below.storage));
            if was != (now, below.storage) {
                self.told.set(false);
            }
        }
    }

    /// Size and block size of a layer.
    pub(super) fn get(&self, layer: u8) -> Option<(u64, u32)> {
        self.layers[..self.count.get()].get(usize::from(layer)).map(Cell::get)
    }
}

impl Uif {
    /// Tells a function that is there what it stands on, if that is news to it.
    pub(super) fn begin_if_news(&mut self, lane: &mut Lane<'_>) {
        if !self.has_news() {
            return;
        }
        self.below.told.set(true);
        if self.peer.is_first_version() {
            return self.set_readiness(Readiness::Ready);
        }
        self.set_readiness(Readiness::Starting { since_ns: lane.now_ns() });
        self.forget_translations();
        for layer in 0..LAYERS_MAX as u8 {
            let Some((offset, block_size)) = self.below.get(layer) else { break };
            let storage = self.below.storages[usize::from(layer)].get();
            let length = block_size.into();
            let (low, high) = (storage.id as u64, (storage.id >> 64) as u64);
            self.tell(Submission {
                kind: kind::BELOW,
                stage: layer,
                offset,
                length,
                cookie: [low, high],
                flags: if storage.is_new { flag::NEW } else { 0 },
                ..Submission::default()
            });
        }
        self.tell(Submission { kind: kind::START, ..Submission::default() });
    }

    /// The layers below are news to the function, and it can be told: not after it was told to stop, when it has
    /// no requests any more to start with.
    pub(super) fn has_news(&self) -> bool {
        let stays = matches!(self.leaving, Leaving::No | Leaving::Finishing);
        !self.below.told.get() && stays && !matches!(self.peer, Peer::Absent) && self.is_alone()
    }

    /// True if a function was asked to start, or can be: one that says it has while another's requests are
    /// under way lies.
    pub(super) fn may_start(&self) -> bool {
        self.below.told.get() || self.is_alone()
    }

    /// Takes the planned end of a function a step further.
    pub(super) fn leave_if_done(&mut self, lane: &mut Lane<'_>) {
        if self.leaving == Leaving::Finishing {
            let busy = [Place::Sent, Place::Below, Place::Returning]
                .iter()
                .any(|place| self.works.has_in(*place, |_| true));
            let is_here = matches!(self.peer, Peer::Here(_));
            if busy || self.given.is_some() || is_here && !self.seat.decide() {
                return;
            }
            self.leaving = Leaving::Stopping;
            if !self.peer.is_first_version() {
                self.tell(Submission { kind: kind::STOP, ..Submission::default() });
            }
        }
        let has_heard = self.untold.is_empty();
        let is_alone = self.arena.as_ref().is_none_or(|arena| arena.requests == 0);
        if self.leaving == Leaving::Stopping && has_heard && is_alone {
            self.leaving = Leaving::Left;
            self.seat.leave(self.peer.number());
            if let Peer::Here(_) = self.peer {
                // It has no keeper who would end it.
                self.mourn(lane);
                self.seat_next();
            }
        }
    }

    /// The seat is empty, and stays so: what waits for a function goes on without. False while somebody is there,
    /// or something of whoever was is under way.
    pub(super) fn give_up(&mut self, lane: &mut Lane<'_>) -> bool {
        self.retire();
        let busy =
            [Place::Sent, Place::Below, Place::Returning].iter().any(|it| self.works.has_in(*it, |_| true));
        if !self.seat.is_vacant() || busy || !self.retiring.is_empty() {
            return false;
        }
        self.let_pass(lane);
        true
    }

    /// What waits for a function goes on without.
    pub(super) fn let_pass(&mut self, lane: &mut Lane<'_>) {
        for index in std::mem::take(&mut self.waiting) {
            let work = self.works.of(index);
            work.place = Place::Gone;
            if let Some(command) = lane.unpark(work.ticket) {
                lane.forward(command);
            }
        }
    }

    /// True if nothing is under way below any more of a function that was here before: what it wrote is
    /// written, and what it did not write will not be.
    fn is_alone(&self) -> bool {
        self.retiring.is_empty() && !self.works.has_in(Place::Below, |link| link != self.peer.number())
    }

    /// The function has started, or cannot, which it may say again at any time.
    pub(super) fn started(&mut self, reply: &Reply) {
        if !self.may_start() {
            return self.seat.counts.invalid.increment();
        }
        let status = entry::status(reply);
        let readiness = match status.is_success() {
            true => Readiness::Ready,
            false => Readiness::Unable(status),
        };
        if let Readiness::Unable(status) = readiness
            && self.readiness != readiness
        {
            let drive = self.seat.drive();
            tracing::error!(drive, ?status, "a function cannot start: its commands fail");
        }
        self.set_readiness(readiness);
    }

    pub(super) fn set_readiness(&mut self, readiness: Readiness) {
        self.readiness = readiness;
        let refusal = if let Readiness::Unable(status) = readiness { status } else { Status::SUCCESS };
        self.seat.counts.ready.store(readiness == Readiness::Ready, Relaxed);
        self.seat.counts.refusal.store(refusal.0, Relaxed);
    }

    /// When a function in a process has had enough time to start.
    pub(super) fn start_deadline_ns(&self) -> Option<u64> {
        let Readiness::Starting { since_ns } = self.readiness else { return None };
        let is_told = self.below.told.get() && matches!(self.peer, Peer::There(_));
        is_told.then(|| since_ns.saturating_add(START_LIMIT.as_nanos() as u64))
    }
}
