//! Target whose commands a test holds in flight.

use sluice_command::{Characteristics, Command, Lane, Layer, Ticket};
use sluice_memory::Space;
use sluice_nvme::Status;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State that the test and the target share.
#[derive(Default)]
pub(crate) struct Gate {
    /// Flag that commands stay in flight, until it is cleared.
    pub(crate) is_closed: bool,
    /// Number of commands that the target has taken.
    pub(crate) taken: u32,
    /// Number of turns of the controller.
    pub(crate) turns: u64,
}

/// Locks the gate. A test that failed with the lock held does not hide its failure behind a poisoned lock.
pub(crate) fn lock(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Target that moves no data. Its host cannot abort a held command.
pub(crate) struct GatedTarget {
    gate: Arc<Mutex<Gate>>,
    held: Vec<Ticket>,
}

impl GatedTarget {
    pub(crate) fn new(gate: Arc<Mutex<Gate>>) -> Self {
        Self { gate, held: Vec::new() }
    }
}

impl Layer for GatedTarget {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let mut gate = lock(&self.gate);
        gate.taken += 1;
        match gate.is_closed {
            true => self.held.push(lane.park(command)),
            false => lane.finish(command, Status::SUCCESS),
        }
    }

    /// Returns true, so that a turn after the gate was opened ends the held commands.
    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        let mut gate = lock(&self.gate);
        gate.turns += 1;
        if gate.is_closed {
            return 0;
        }
        let held = self.held.drain(..).filter_map(|ticket| lane.unpark(ticket)).collect::<Vec<_>>();
        let count = held.len();
        held.into_iter().for_each(|command| lane.finish(command, Status::SUCCESS));
        count
    }
}
