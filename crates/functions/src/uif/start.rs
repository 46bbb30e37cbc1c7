//! The beginning of a function: it is told of the layers below, and says when it is ready.

use super::START_LIMIT;
use super::commands::Progress;
use super::entry;
use super::layer::Uif;
use super::peer::Peer;
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
    pub(super) announced: Cell<bool>,
}

impl Below {
    pub(super) fn update(&self, below: &[Characteristics]) {
        self.count.set(below.len().min(LAYERS_MAX));
        for ((layer, storage), below) in self.layers.iter().zip(&self.storages).zip(below) {
            let now = (below.size, below.block_size);
            let was = (layer.replace(now), storage.replace(below.storage));
            if was != (now, below.storage) {
                self.announced.set(false);
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
    pub(super) fn start_if_changed(&mut self, lane: &mut Lane<'_>) {
        if !self.must_start() {
            return;
        }
        self.below.announced.set(true);
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
            self.send_entry(Submission {
                kind: kind::BELOW,
                stage: layer,
                offset,
                length,
                cookie: [low, high],
                flags: if storage.is_new { flag::NEW } else { 0 },
                ..Submission::default()
            });
        }
        self.send_entry(Submission { kind: kind::START, ..Submission::default() });
    }

    /// The layers below are news to the function, and it can be told: not after it was told to stop, when it has
    /// no requests any more to start with.
    pub(super) fn must_start(&self) -> bool {
        let stays = matches!(self.leaving, Leaving::No | Leaving::Finishing);
        !self.below.announced.get() && stays && !matches!(self.peer, Peer::Absent) && self.is_alone()
    }

    /// True if a function was asked to start, or can be: one that says it has while another's requests are
    /// under way lies.
    pub(super) fn may_start(&self) -> bool {
        self.below.announced.get() || self.is_alone()
    }

    /// Takes the planned end of a function a step further.
    pub(super) fn leave_if_done(&mut self, lane: &mut Lane<'_>) {
        if self.leaving == Leaving::Finishing {
            let busy = [Progress::Sent, Progress::Below, Progress::Returning]
                .iter()
                .any(|progress| self.commands.has_in(*progress, |_| true));
            let is_here = matches!(self.peer, Peer::Local(_));
            if busy || self.active_order.is_some() || is_here && !self.instance.decide() {
                return;
            }
            self.leaving = Leaving::Stopping;
            if !self.peer.is_first_version() {
                self.send_entry(Submission { kind: kind::STOP, ..Submission::default() });
            }
        }
        let all_sent = self.unsent.is_empty();
        let is_alone = self.arena.as_ref().is_none_or(|arena| arena.requests == 0);
        if self.leaving == Leaving::Stopping && all_sent && is_alone {
            self.leaving = Leaving::Left;
            self.instance.set_quiesced(self.peer.number());
            if let Peer::Local(_) = self.peer {
                // It has no keeper who would end it.
                self.on_exit(lane);
                self.load_next();
            }
        }
    }

    /// The seat is empty, and stays so: what waits for a function goes on without. False while somebody is there,
    /// or something of whoever was is under way.
    pub(super) fn give_up(&mut self, lane: &mut Lane<'_>) -> bool {
        self.retire();
        let busy = [Progress::Sent, Progress::Below, Progress::Returning]
            .iter()
            .any(|it| self.commands.has_in(*it, |_| true));
        if !self.instance.is_empty() || busy || !self.retiring.is_empty() {
            return false;
        }
        self.let_pass(lane);
        true
    }

    /// What waits for a function goes on without.
    pub(super) fn let_pass(&mut self, lane: &mut Lane<'_>) {
        for index in std::mem::take(&mut self.waiting) {
            let state = self.commands.of(index);
            state.progress = Progress::Gone;
            if let Some(command) = lane.unpark(state.ticket) {
                lane.forward(command);
            }
        }
    }

    /// True if nothing is under way below any more of a function that was here before: what it wrote is
    /// written, and what it did not write will not be.
    fn is_alone(&self) -> bool {
        self.retiring.is_empty() && !self.commands.has_in(Progress::Below, |link| link != self.peer.number())
    }

    /// The function has started, or cannot, which it may say again at any time.
    pub(super) fn started(&mut self, reply: &Reply) {
        if !self.may_start() {
            return self.instance.counts.invalid.increment();
        }
        let status = entry::status(reply);
        let readiness = match status.is_success() {
            true => Readiness::Ready,
            false => Readiness::Unable(status),
        };
        if let Readiness::Unable(status) = readiness
            && self.readiness != readiness
        {
            let drive = self.instance.drive();
            tracing::error!(drive, ?status, "a function cannot start: its commands fail");
        }
        self.set_readiness(readiness);
    }

    pub(super) fn set_readiness(&mut self, readiness: Readiness) {
        self.readiness = readiness;
        let refusal = if let Readiness::Unable(status) = readiness { status } else { Status::SUCCESS };
        self.instance.counts.ready.store(readiness == Readiness::Ready, Relaxed);
        self.instance.counts.refusal.store(refusal.0, Relaxed);
    }

    /// When a function in a process has had enough time to start.
    pub(super) fn start_deadline_ns(&self) -> Option<u64> {
        let Readiness::Starting { since_ns } = self.readiness else { return None };
        let is_told = self.below.announced.get() && matches!(self.peer, Peer::External(_));
        is_told.then(|| since_ns.saturating_add(START_LIMIT.as_nanos() as u64))
    }
}
