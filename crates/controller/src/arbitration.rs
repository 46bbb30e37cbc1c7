//! Arbitration of submission queues (Base 3.4.4): round robin, or weighted round robin with an urgent class.
//!
//! In a round, all commands of urgent queues come first. Then each of the other classes gets as many commands
//! as the Arbitration feature gives it credits, its queues taking turns with bursts. A turn of the controller
//! consists of rounds until the turn's limit of commands. A round that the limit cuts short is continued by
//! the next turn, behind the commands that are urgent by then.

use crate::FETCH_MAX;
use crate::controller::Controller;
use crate::features::Features;

/// Indices of the classes (QPRIO of Create I/O Submission Queue).
const URGENT: usize = 0;
const CLASSES: usize = 4;

/// Commands of a turn, all queues together. The limit is low so that urgent commands do not wait for long.
const TURN_COMMANDS: u32 = 4 * FETCH_MAX;

/// Position of a turn in the order of the queues, and the start of the next one.
#[derive(Debug, Default)]
pub(crate) struct Priorities {
    /// Start of the next turn in each class.
    rotations: [usize; CLASSES],
    stage: TurnStage,
    /// Credits of each class in a round.
    credits: [u32; CLASSES],
    burst: u32,
    class: usize,
    /// Number of queues of the class.
    queues: usize,
    /// Remaining credits of the class in this round.
    left: u32,
    /// Consecutive queues of the class that were empty.
    idle: usize,
    /// Commands of this round.
    taken: u32,
    /// Remaining commands of the turn.
    room: u32,
    /// Class in which the last turn ended, with its remaining credits.
    cut_short: Option<(usize, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
enum TurnStage {
    #[default]
    Begins,
    /// The admin queue comes first, and costs no class a credit.
    Admin,
    Classes,
}

impl Priorities {
    /// Starts a turn.
    #[cold]
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
    #[cold]
    pub(crate) fn end(&mut self, taken: u32) {
        if matches!(self.stage, TurnStage::Classes) {
            self.note(taken);
        }
    }

    /// Counts commands that were taken from a queue.
    fn note(&mut self, taken: u32) {
        self.left -= taken;
        self.taken += taken;
        self.room -= taken;
        self.idle = if taken == 0 { self.idle + 1 } else { 0 };
    }

    /// Advances to the next class. Returns false if all classes were empty for a whole round.
    fn next_class(&mut self) -> bool {
        self.class += 1;
        if self.class == CLASSES {
            if self.taken == 0 {
                return false;
            }
            (self.class, self.taken) = (URGENT, 0);
        }
        (self.left, self.idle) = (self.credits[self.class], 0);
        if let Some((class, left)) = self.cut_short.take_if(|_| self.class > URGENT) {
            // The classes before this one had their part of the round in the last turn.
            (self.class, self.left, self.taken) = (class, left, self.taken + 1);
        }
        true
    }
}

impl Controller {
    /// Returns the next queue and the number of commands that it may have, or none if the turn is over.
    /// `taken` is the number that was taken from the queue before.
    #[cold]
    pub(crate) fn next_by_priority(&mut self, taken: u32) -> Option<(u16, u32)> {
        match self.priorities.stage {
            TurnStage::Begins => {
                self.priorities.stage = TurnStage::Admin;
                return Some((0, FETCH_MAX));
            }
            TurnStage::Admin => {
                self.priorities.stage = TurnStage::Classes;
                self.priorities.queues = self.queues_of(URGENT);
            }
            TurnStage::Classes => self.priorities.note(taken),
        }
        loop {
            let Priorities { class, queues, left, idle, room, burst, .. } = self.priorities;
            if room == 0 {
                return None;
            }
            if left > 0
                && idle < queues
                && let Some(id) = self.next_of(class)
            {
                return Some((id, burst.min(left).min(room)));
            }
            if !self.priorities.next_class() {
                return None;
            }
            self.priorities.queues = self.queues_of(self.priorities.class);
        }
    }

    fn queues_of(&self, class: usize) -> usize {
        let queues = self.active.iter().filter_map(|id| self.sqs[usize::from(*id)].as_ref());
        queues.filter(|queue| queue.id != 0 && usize::from(queue.class) == class).count()
    }

    /// Returns the next queue of a class.
    fn next_of(&mut self, class: usize) -> Option<u16> {
        let Self { priorities: Priorities { rotations, .. }, active, sqs, .. } = self;
        let is_of = |id: &u16| {
            let queue = sqs[usize::from(*id)].as_ref();
            *id != 0 && queue.is_some_and(|queue| usize::from(queue.class) == class)
        };
        let start = rotations[class] % active.len().max(1);
        let places = (start + 1..active.len()).chain(0..=start.min(active.len().saturating_sub(1)));
        let place = places.into_iter().find(|place| active.get(*place).is_some_and(is_of))?;
        rotations[class] = place;
        Some(active[place])
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
