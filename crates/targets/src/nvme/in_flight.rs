//! Commands of the target: on the device, or waiting for an identifier there.

use super::buffers::Buffer;
use super::dma_maps::MappingSet;
use sluice_command::Ticket;
use std::collections::VecDeque;

/// A command, or the remaining part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) ticket: Ticket,
    /// Bytes that earlier chunks have moved.
    pub(super) done: u64,
}

/// A chunk of a command on the device.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) remaining: Remaining,
    /// Bytes that this chunk moves.
    pub(super) bytes: u64,
    pub(super) maps: MappingSet,
    pub(super) buffer: Option<Buffer>,
    pub(super) since_ns: u64,
    /// Count of acknowledged writes at the time it was sent.
    pub(super) mark: u64,
}

/// All commands of a target.
#[derive(Debug)]
pub(super) struct InFlightTable {
    /// Chunks on the device, by their identifier in the queue pair.
    slots: Vec<Option<InFlight>>,
    count: usize,
    /// Waiting commands, in the order of their start.
    pub(super) waiting: VecDeque<Remaining>,
}

impl InFlightTable {
    /// Creates a table with room for `commands` that wait, which need no further allocation.
    pub(super) fn new(commands: usize) -> Self {
        Self { slots: Vec::new(), count: 0, waiting: VecDeque::with_capacity(commands) }
    }

    /// Sets the number of identifiers of the queue pair. Nothing is in flight.
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

    /// Removes a chunk that the device will not complete any more; returns none if there is none left.
    pub(super) fn end_any(&mut self) -> Option<InFlight> {
        let cid = self.slots.iter().position(Option::is_some)?;
        self.end(cid as u16)
    }

    /// Returns the number of commands on the device.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the time at which the oldest command on the device was submitted.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.slots.iter().flatten().map(|flight| flight.since_ns).min()
    }
}
