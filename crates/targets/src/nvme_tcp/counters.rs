//! Counters of a target, readable from other threads.

use sluice_nvme::AnaState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

/// Status of an NVMe/TCP target, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeTcpStatus {
    /// Set while there is a connection.
    pub connected: bool,
    /// Access state of the path, if the controller reports it.
    pub ana: Option<AnaState>,
    /// Commands of the target now: in flight, or waiting for room or a connection.
    pub under_way: u64,
    /// Commands sent.
    pub sent: u64,
    /// Commands answered.
    pub completed: u64,
    /// Bytes of data moved for them.
    pub bytes: u64,
    /// Bytes that were copied on this machine.
    pub bytes_copied: u64,
    /// Sends; all PDUs of a turn are in one send.
    pub sends: u64,
    /// Receives.
    pub receives: u64,
    /// Number of losses of the connection.
    pub losses: u64,
    /// Commands that were in flight when the connection was lost.
    pub interrupted: u64,
    /// Asynchronous events of the controller.
    pub events: u64,
}

/// Handle of the control plane on a target's counters.
#[derive(Clone, Debug, Default)]
pub struct NvmeTcpControl(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    disconnected: AtomicBool,
    /// Set while the target can send commands.
    open: AtomicBool,
    /// A code of [`AnaState`]; zero if the controller reports none.
    ana: AtomicU8,
    under_way: AtomicU64,
    sent: AtomicU64,
    completed: AtomicU64,
    bytes: AtomicU64,
    bytes_copied: AtomicU64,
    sends: AtomicU64,
    receives: AtomicU64,
    losses: AtomicU64,
    interrupted: AtomicU64,
    events: AtomicU64,
}

/// Counts of a reactor since its last [`add_tally`](NvmeTcpControl::add_tally).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) completed: u64,
    pub(super) bytes: u64,
    pub(super) bytes_copied: u64,
    pub(super) sends: u64,
    pub(super) receives: u64,
}

impl NvmeTcpControl {
    pub fn status(&self) -> NvmeTcpStatus {
        let cells = &self.0;
        NvmeTcpStatus {
            connected: !cells.disconnected.load(Relaxed),
            ana: AnaState::of(cells.ana.load(Relaxed)),
            under_way: cells.under_way.load(Relaxed),
            sent: cells.sent.load(Relaxed),
            completed: cells.completed.load(Relaxed),
            bytes: cells.bytes.load(Relaxed),
            bytes_copied: cells.bytes_copied.load(Relaxed),
            sends: cells.sends.load(Relaxed),
            receives: cells.receives.load(Relaxed),
            losses: cells.losses.load(Relaxed),
            interrupted: cells.interrupted.load(Relaxed),
            events: cells.events.load(Relaxed),
        }
    }

    /// Returns the access state of the path; none if it is not connected.
    pub(super) fn path(&self) -> Option<AnaState> {
        let open = self.0.open.load(Relaxed);
        open.then(|| AnaState::of(self.0.ana.load(Relaxed)).unwrap_or_default())
    }

    /// Sets whether commands can be sent. The reactor calls it.
    pub(super) fn set_open(&self, open: bool) {
        self.0.open.store(open, Relaxed);
    }

    /// Sets the access state; returns whether it has changed. The admin thread calls it, and the reactor
    /// after a refused command.
    pub(super) fn set_ana(&self, state: Option<AnaState>) -> bool {
        let code = state.map_or(0, |state| state as u8);
        self.0.ana.swap(code, Relaxed) != code
    }

    /// Sets the number of commands. The reactor calls it.
    pub(super) fn set_under_way(&self, commands: usize) {
        self.0.under_way.store(commands as u64, Relaxed);
    }

    /// Adds the counts of the reactor, and clears them.
    pub(super) fn add_tally(&self, tally: &mut Tally) {
        let Tally { sent, completed, bytes, bytes_copied, sends, receives } = std::mem::take(tally);
        let cells = &self.0;
        let pairs = [
            (&cells.sent, sent),
            (&cells.completed, completed),
            (&cells.bytes, bytes),
            (&cells.bytes_copied, bytes_copied),
            (&cells.sends, sends),
            (&cells.receives, receives),
        ];
        pairs.into_iter().for_each(|(cell, more)| add(cell, more));
    }

    /// Counts commands of a lost connection. The reactor calls it.
    pub(super) fn count_interrupted(&self, commands: u64) {
        add(&self.0.interrupted, commands);
    }

    /// Counts an event. The admin thread calls it.
    pub(super) fn count_event(&self) {
        add(&self.0.events, 1);
    }

    /// Sets the state of a target that was not connected yet.
    pub(super) fn start_disconnected(&self) {
        self.0.disconnected.store(true, Relaxed);
    }

    /// Sets the state of the connection. The admin thread calls it, since a target without a host takes no
    /// turns.
    pub(super) fn set_connected(&self, connected: bool) {
        let before = self.0.disconnected.swap(!connected, Relaxed);
        if !connected && !before {
            add(&self.0.losses, 1);
        }
    }
}

/// Adds to a cell. Each cell has one thread that adds to it: the target's, or the admin thread.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed) + more, Relaxed);
}
