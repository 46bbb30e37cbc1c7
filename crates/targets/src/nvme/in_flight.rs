//! Commands that are the target's: on the device, or waiting for a place there.

use super::buffers::Buffer;
use super::dma_maps::MappingSet;
use sluice_command::Ticket;
use std::collections::VecDeque;

/// A command, or what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) ticket: Ticket,
    /// Bytes that earlier pieces have moved.
    pub(super) done: u64,
}

/// A piece of a command on the device.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) remaining: Remaining,
    /// Bytes that this piece moves.
    pub(super) bytes: u64,
    pub(super) maps: MappingSet,
    pub(super) buffer: Option<Buffer>,
    pub(super) since_ns: u64,
    /// Writes that were acknowledged when it was sent.
    pub(super) mark: u64,
}

/// All of them.
#[derive(Debug)]
pub(super) struct InFlightTable {
    /// By the identifier that the queue pair gave them.
    slots: Vec<Option<InFlight>>,
    count: usize,
    /// In the order they are to be started.
    pub(super) waiting: VecDeque<Remaining>,
}

impl InFlightTable {
    /// `commands` of a drive can wait at once before memory is taken anew.
    pub(super) fn new(commands: usize) -> Self {
        Self { slots: Vec::new(), count: 0, waiting: VecDeque::with_capacity(commands) }
    }

    /// The queue pair has identifiers below `depth`. Nothing is in flight.
    pub(super) fn set_depth(&mut self, depth: u32) {
        debug_assert_eq!(self.count, 0, "identifiers change under commands in flight");
        self.slots.clear();
        self.slots.resize_with(depth as usize, || None);
    }

    pub(super) fn begin(&mut self, cid: u16, flight: InFlight) {
        let slot = &mut self.slots[usize::from(cid)];
        debug_assert!(slot.is_none(), "an identifier that is in flight is not given again");
        *slot = Some(flight);
        self.count += 1;
    }

    pub(super) fn end(&mut self, cid: u16) -> Option<InFlight> {
        let flight = self.slots.get_mut(usize::from(cid))?.take()?;
        self.count -= 1;
        Some(flight)
    }

    /// One that will never be answered; none if there is no more.
    pub(super) fn end_any(&mut self) -> Option<InFlight> {
        let cid = self.slots.iter().position(Option::is_some)?;
        self.end(cid as u16)
    }

    /// Commands on the device.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Since when the device has had the oldest.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.slots.iter().flatten().map(|flight| flight.since_ns).min()
    }
}
