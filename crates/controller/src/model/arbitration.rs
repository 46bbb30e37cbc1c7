//! Choice of the next queue by priority.

use crate::model::Controller;
use crate::state::arbitration::{Priorities, TurnStage, URGENT};
use crate::state::limits::FETCH_MAX;

impl Controller {
    /// Starts a turn by priority.
    #[cold]
    pub(crate) fn begin_priorities(&mut self) {
        self.priorities.begin(&self.features);
    }

    /// Ends a turn that took this many commands from the last queue.
    #[cold]
    pub(crate) fn end_priorities(&mut self, taken: u32) {
        self.priorities.end(taken);
    }

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
