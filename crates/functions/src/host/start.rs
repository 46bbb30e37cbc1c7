//! Start of a function: it is sent the layers below, and replies READY. Also its planned end.

use super::START_LIMIT;
use super::commands::Progress;
use super::entry;
use super::layer::Uif;
use super::local::Notice;
use super::peer::Peer;
use sluice_command::{Characteristics, Lane, Storage};
use sluice_nvme::Status;
use sluice_uif::abi::{LAYERS_MAX, Submission, flag, kind};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

/// Whether the function can be sent commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The function was sent the layers below at this time, or is still to be sent them.
    Starting {
        since_ns: u64,
    },
    Ready,
    /// The function cannot start, with this status.
    Unable(Status),
}

/// Progress of the planned end of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The function gets no more commands, and finishes those it has.
    Finishing,
    /// The function was sent STOP, and its own requests come back.
    Stopping,
    /// The supervisor was notified.
    Left,
}

/// Layers below, as last reported.
#[derive(Debug, Default)]
pub(super) struct Below {
    /// Bytes of each layer, and of its blocks.
    layers: [Cell<(u64, u32)>; LAYERS_MAX],
    /// Bytes of the unit of each layer that is never torn.
    units: [Cell<u32>; LAYERS_MAX],
    storages: [Cell<Storage>; LAYERS_MAX],
    count: Cell<usize>,
    /// Whether the function was sent these layers.
    pub(super) announced: Cell<bool>,
}

impl Below {
    pub(super) fn update(&self, below: &[Characteristics]) {
        self.count.set(below.len().min(LAYERS_MAX));
        let layers = self.layers.iter().zip(&self.storages).zip(&self.units);
        for (((layer, storage), unit), below) in layers.zip(below) {
            let now = ((below.size, below.block_size), below.storage, untorn_unit(below));
            if (layer.replace(now.0), storage.replace(now.1), unit.replace(now.2)) != now {
                self.announced.set(false);
            }
        }
    }

    /// Returns size and block size of a layer.
    pub(super) fn get(&self, layer: u8) -> Option<(u64, u32)> {
        self.layers[..self.count.get()].get(usize::from(layer)).map(Cell::get)
    }

    /// Returns the description of a layer for the function.
    pub(super) fn describe(&self, layer: u8) -> Option<sluice_uif::Below> {
        let (size, block_size) = self.get(layer)?;
        let Storage { id, is_new } = self.storages[usize::from(layer)].get();
        let atomic = self.units[usize::from(layer)].get();
        Some(sluice_uif::Below { size, block_size, atomic, id, is_new })
    }
}

impl Uif {
    /// Sends the layers below to a connected function, if they have changed for it.
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
        match &mut self.peer {
            Peer::External(external) => {
                let layers = (0..).map_while(|layer| self.below.describe(layer));
                (0..).zip(layers).for_each(|(number, layer)| external.sender.push(&below(number, &layer)));
                external.sender.push(&Submission { kind: kind::START, ..Submission::default() });
            }
            Peer::Local(_) => self.unsent.push_back(Notice::Start),
            Peer::Absent => {}
        }
    }

    /// Returns whether the function is to be sent changed layers below. After STOP it is not: it could send
    /// no requests any more to start with.
    pub(super) fn must_start(&self) -> bool {
        let stays = matches!(self.leaving, Leaving::No | Leaving::Finishing);
        !self.below.announced.get() && stays && !matches!(self.peer, Peer::Absent) && self.is_sole_instance()
    }

    /// Returns whether a function was sent START, or can be. A READY while another instance's requests are in
    /// flight is false.
    pub(super) fn may_start(&self) -> bool {
        self.below.announced.get() || self.is_sole_instance()
    }

    /// Continues the planned end of a function.
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
            match &mut self.peer {
                Peer::External(external) if !external.is_first_version => {
                    external.sender.push(&Submission { kind: kind::STOP, ..Submission::default() });
                }
                Peer::Local(_) => self.unsent.push_back(Notice::Stop),
                _ => {}
            }
        }
        let all_sent = self.unsent.is_empty();
        let is_sole_instance = self.arena.as_ref().is_none_or(|arena| arena.requests == 0);
        if self.leaving == Leaving::Stopping && all_sent && is_sole_instance {
            self.leaving = Leaving::Left;
            self.instance.set_quiesced(self.peer.number());
            if let Peer::Local(_) = self.peer {
                // A function in this process has no supervisor that would end it.
                self.on_exit(lane);
                self.load_next();
            }
        }
    }

    /// Has waiting commands go on without a function. Returns false while an instance is there, or while
    /// commands or requests of the last one are in flight.
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

    /// Has commands that wait for a function go on without one.
    pub(super) fn let_pass(&mut self, lane: &mut Lane<'_>) {
        for index in std::mem::take(&mut self.waiting) {
            let state = self.commands.of(index);
            state.progress = Progress::Gone;
            if let Some(command) = lane.unpark(state.ticket) {
                lane.forward(command);
            }
        }
    }

    /// Returns whether no request of a previous instance is still in flight below this layer: its writes are
    /// done, and no other will follow.
    fn is_sole_instance(&self) -> bool {
        self.retiring.is_empty() && !self.commands.has_in(Progress::Below, |link| link != self.peer.number())
    }

    /// Takes a READY, which may come again at any time: the function has started, or cannot start.
    pub(super) fn started(&mut self, status: Status) {
        if !self.may_start() {
            return self.instance.counts.invalid.increment();
        }
        let status = entry::valid(status);
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

    /// Returns the time by which a function in a process must have started.
    pub(super) fn start_deadline_ns(&self) -> Option<u64> {
        let Readiness::Starting { since_ns } = self.readiness else { return None };
        let is_told = self.below.announced.get() && matches!(self.peer, Peer::External(_));
        is_told.then(|| since_ns.saturating_add(START_LIMIT.as_nanos() as u64))
    }
}

/// Returns the bytes of the largest power of two that has no boundary of the layer inside, and whose writes
/// the layer never tears.
fn untorn_unit(below: &Characteristics) -> u32 {
    let within = match below.atomic_boundary {
        0 => u32::MAX,
        boundary => 1 << boundary.trailing_zeros(),
    };
    let unit = below.atomic_write.min(within).max(1);
    1 << unit.ilog2()
}

/// Returns the entry of a layer below.
fn below(number: u8, layer: &sluice_uif::Below) -> Submission {
    Submission {
        kind: kind::BELOW,
        stage: number,
        offset: layer.size,
        length: layer.block_size.into(),
        data_length: layer.atomic,
        cookie: [layer.id as u64, (layer.id >> 64) as u64],
        flags: if layer.is_new { flag::NEW } else { 0 },
        ..Submission::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_is_never_torn_has_no_atomic_boundary_inside() {
        let below = |atomic_write, boundary, atomic_boundary| Characteristics {
            atomic_write,
            boundary,
            atomic_boundary,
            ..Characteristics::target(1 << 20, 512)
        };
        for (atomic_write, boundary, atomic_boundary, unit) in [
            (65536, 0, 0, 65536),
            (65536, 8192, 0, 65536),
            (65536, 131_072, 32768, 32768),
            (65536, 0, 6144, 2048),
            (24576, 0, 32768, 16384),
        ] {
            assert_eq!(untorn_unit(&below(atomic_write, boundary, atomic_boundary)), unit);
        }
    }
}
