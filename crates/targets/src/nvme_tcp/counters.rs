//! What is counted of a target, for whoever looks from another thread.

use sluice_nvme::AnaState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

/// What an operator sees of an NVMe/TCP target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeTcpStatus {
    /// There is a connection.
    pub connected: bool,
    /// How good the path is, if the controller reports that.
    pub ana: Option<AnaState>,
    /// Commands that it has now: under way, or waiting for room or a connection.
    pub under_way: u64,
    /// Commands sent.
    pub sent: u64,
    /// Commands answered.
    pub completed: u64,
    /// Bytes of data moved for them.
    pub bytes: u64,
    /// Of those, how many were copied on this machine by us.
    pub bytes_copied: u64,
    /// Sends: all that a turn has to say is one.
    pub sends: u64,
    /// Receives.
    pub receives: u64,
    /// How often the connection was lost.
    pub losses: u64,
    /// Commands that were under way when it was.
    pub interrupted: u64,
    /// Changes that the controller reported by itself.
    pub events: u64,
}

/// What the control side keeps of a target.
#[derive(Clone, Debug, Default)]
pub struct NvmeTcpControl(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    disconnected: AtomicBool,
    /// The target can send commands.
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

/// What a reactor has counted since it last told.
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

    /// How good a path it is; none if it is not connected.
    pub(super) fn path(&self) -> Option<AnaState> {
        let open = self.0.open.load(Relaxed);
        open.then(|| AnaState::of(self.0.ana.load(Relaxed)).unwrap_or_default())
    }

    /// The reactor's to say.
    pub(super) fn set_open(&self, open: bool) {
        self.0.open.store(open, Relaxed);
    }

    /// The keeper's to say, and the reactor's when a command was refused for it. True if it is another than before.
    pub(super) fn set_ana(&self, state: Option<AnaState>) -> bool {
        let code = state.map_or(0, |state| state as u8);
        self.0.ana.swap(code, Relaxed) != code
    }

    /// The reactor's to say.
    pub(super) fn set_under_way(&self, commands: usize) {
        self.0.under_way.store(commands as u64, Relaxed);
    }

    /// The reactor's to say.
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

    /// The reactor's to say, too.
    pub(super) fn count_interrupted(&self, commands: u64) {
        add(&self.0.interrupted, commands);
    }

    /// The keeper's to say.
    pub(super) fn count_event(&self) {
        add(&self.0.events, 1);
    }

    /// There has not been a connection yet.
    pub(super) fn start_disconnected(&self) {
        self.0.disconnected.store(true, Relaxed);
    }

    /// The keeper's to say: a target without a host hears nothing.
    pub(super) fn set_connected(&self, connected: bool) {
        let before = self.0.disconnected.swap(!connected, Relaxed);
        if !connected && !before {
            add(&self.0.losses, 1);
        }
    }
}

/// Each cell has one thread that adds to it: the target's, or the keeper's.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed) + more, Relaxed);
}
