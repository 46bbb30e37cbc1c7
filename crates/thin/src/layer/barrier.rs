//! A moment at which no command changes the volume, for a clone of it.
//!
//! The home calls, and new commands that change something wait. When the earlier ones have ended, and all notes are
//! acknowledged, the layer marks all extents as shared and sends a note. The home clones the volume, and acknowledges
//! the note: commands continue. Reads never wait.

use super::Thin;
use super::extents::Note;
use sluice_command::Lane;

/// State of a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Step {
    #[default]
    Off,
    /// Earlier commands end.
    Draining,
    /// The home has the note, or gets it.
    Sent,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Barrier {
    pub(super) step: Step,
    /// Last call that was answered.
    answered: u32,
}

impl Barrier {
    pub(super) fn is_on(self) -> bool {
        self.step != Step::Off
    }
}

impl Thin {
    /// Begins a barrier that the home calls for, or ends one that it does not need any more. The number of the call is
    /// odd while the home needs one.
    pub(super) fn heed_calls(&mut self, lane: &mut Lane<'_>) {
        let calls = self.port.calls();
        let is_needed = calls % 2 == 1 && calls != self.barrier.answered;
        match self.barrier.step {
            Step::Off if is_needed && !self.is_broken => self.barrier.step = Step::Draining,
            Step::Draining if !is_needed => self.end_barrier(lane),
            _ => {}
        }
    }

    /// Returns whether the note of a barrier can be sent.
    pub(super) fn is_quiet(&self) -> bool {
        self.barrier.step == Step::Draining && self.writing == 0 && self.sent.is_empty()
    }

    /// Sends the note of a barrier when no command changes the volume any more.
    pub(super) fn answer_call(&mut self) {
        if !self.is_quiet() || self.port.note(Note::Barrier.word()).is_err() {
            return;
        }
        // The clone gets all present extents of the volume, and no later one.
        self.map.share_all();
        self.sent.push_back(Note::Barrier);
        self.barrier = Barrier { step: Step::Sent, answered: self.port.calls() };
    }

    pub(super) fn end_barrier(&mut self, lane: &mut Lane<'_>) {
        self.barrier.step = Step::Off;
        self.run_waiting(lane);
    }
}
