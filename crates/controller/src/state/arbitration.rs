//! Arbitration of submission queues (Base 3.4.4): round robin, or weighted round robin with an urgent class.
//!
//! In a round, all commands of urgent queues come first. Then each of the other classes gets as many commands
//! as the Arbitration feature gives it credits, its queues taking turns with bursts. A turn of the controller
//! consists of rounds until the turn's limit of commands. A round that the limit cuts short is continued by
//! the next turn, behind the commands that are urgent by then.

use crate::state::features::Features;
use crate::state::limits::FETCH_MAX;

/// Indices of the classes (QPRIO of Create I/O Submission Queue).
pub(crate) const URGENT: usize = 0;

const CLASSES: usize = 4;

/// Commands of a turn, all queues together. The limit is low so that urgent commands do not wait for long.
const TURN_COMMANDS: u32 = 4 * FETCH_MAX;

/// Position of a turn in the order of the queues, and the start of the next one.
#[derive(Debug, Default)]
pub(crate) struct Priorities {
    /// Start of the next turn in each class.
    pub(crate) rotations: [usize; CLASSES],
    pub(crate) stage: TurnStage,
    /// Credits of each class in a round.
    credits: [u32; CLASSES],
    pub(crate) burst: u32,
    pub(crate) class: usize,
    /// Number of queues of the class.
    pub(crate) queues: usize,
    /// Remaining credits of the class in this round.
    pub(crate) left: u32,
    /// Consecutive queues of the class that were empty.
    pub(crate) idle: usize,
    /// Commands of this round.
    taken: u32,
    /// Remaining commands of the turn.
    pub(crate) room: u32,
    /// Class in which the last turn ended, with its remaining credits.
    cut_short: Option<(usize, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum TurnStage {
    #[default]
    Begins,
    /// The admin queue comes first, and costs no class a credit.
    Admin,
    Classes,
}

impl Priorities {
    /// Starts a turn.
    pub(crate) fn begin(&mut self, features: &Features) {
        let (credits, burst) = (credits(features), burst(features));
        let (rotations, left) = (self.rotations, credits[URGENT]);
        let (room, cut_short) = (TURN_COMMANDS, self.cut_short());
        *self = Self { rotations, credits, burst, left, room, cut_short, ..Self::default() };
    }

    /// Returns the position where the current round would go on.
    fn cut_short(&self) -> Option<(usize, u32)> {
        match self.class {
            URGENT => self.cut_short,
            class => (class < CLASSES).then_some((class, self.left)),
        }
    }

    /// Ends a turn that took this many commands from the last queue.
    pub(crate) fn end(&mut self, taken: u32) {
        if matches!(self.stage, TurnStage::Classes) {
            self.note(taken);
        }
    }

    /// Counts commands that were taken from a queue.
    pub(crate) fn note(&mut self, taken: u32) {
        self.left -= taken;
        self.taken += taken;
        self.room -= taken;
        self.idle = if taken == 0 { self.idle + 1 } else { 0 };
    }

    /// Advances to the next class. Returns false if all classes were empty for a whole round.
    pub(crate) fn next_class(&mut self) -> bool {
        self.class += 1;
        if self.class == CLASSES {
            if self.taken == 0 {
                return false;
            }
            (self.class, self.taken) = (URGENT, 0);
        }
        (self.left, self.idle) = (self.credits[self.class], 0);
        if let Some((class, left)) = self.cut_short.take() {
            // The classes before this one had their part of the round in the last turn.
            (self.class, self.left, self.taken) = (class, left, self.taken + 1);
        }
        true
    }
}

/// Returns the commands of each class in a round. Weights are 0's based.
fn credits(features: &Features) -> [u32; CLASSES] {
    let [_, low, medium, high] = features.arbitration.to_le_bytes();
    let weight = |byte: u8| u32::from(byte) + 1;
    let mut credits = [0, weight(high), weight(medium), weight(low)];
    credits[URGENT] = u32::MAX;
    credits
}

/// Returns the commands that are taken from a queue before the next queue of its class (AB, a power of two).
fn burst(features: &Features) -> u32 {
    const NO_LIMIT: u32 = 7;
    match features.arbitration & 7 {
        NO_LIMIT => FETCH_MAX,
        power => 1 << power,
    }
}
