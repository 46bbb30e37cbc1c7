//! Which submission queue is next (Base 3.4.4): round robin, or weighted round robin with an urgent class.
//!
//! In a round, the commands of urgent queues come first, all of them; then so many of each of the other
//! classes as the Arbitration feature gives it credits, its queues taking turns with bursts. A turn of the
//! controller is as many rounds as it takes commands for.

use crate::controller::Controller;
use crate::features::Features;
use crate::{FETCH_MAX, TURN_BYTES};
use sluice_memory::Space;

/// The classes (QPRIO of Create I/O Submission Queue).
const URGENT: usize = 0;
const CLASSES: usize = 4;

/// Commands of a turn, all queues together. Short, so that what is urgent does not wait for long.
const TURN_COMMANDS: usize = 4 * FETCH_MAX as usize;

/// What is left of a turn.
struct Turn {
    commands: usize,
    /// Bytes moved by then are enough.
    bytes: u64,
}

/// Where each class goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rotation([usize; CLASSES]);

impl Controller {
    /// Looks at the queues in the order of their classes. Returns how many commands were taken or completed.
    #[inline(never)]
    pub(crate) fn look_by_priority(&mut self, space: &Space, now_ns: u64) -> usize {
        let mut work = self.fetch_from(0, FETCH_MAX, space, now_ns).1;
        let credits = credits(&self.features);
        let mut turn =
            Turn { commands: TURN_COMMANDS, bytes: self.health.bytes().saturating_add(TURN_BYTES) };
        loop {
            let mut taken = 0;
            for (class, credits) in credits.into_iter().enumerate() {
                let (of_class, done) = self.look_at_class(class, credits, &mut turn, space, now_ns);
                taken += of_class;
                work += done;
            }
            if taken == 0 || turn.is_over(self) {
                return work;
            }
        }
    }

    /// Takes commands of a class for as many credits, or until it has none. Returns how many, and the work.
    fn look_at_class(
        &mut self,
        class: usize,
        credits: u32,
        turn: &mut Turn,
        space: &Space,
        now_ns: u64,
    ) -> (usize, usize) {
        let (mut left, mut idle, mut taken, mut work) = (credits, 0, 0, 0);
        let (burst, queues) = (burst(&self.features), self.queues_of(class));
        while left > 0 && idle < queues && !turn.is_over(self) {
            let Some(id) = self.next_of(class) else { break };
            let (count, done) = self.fetch_from(id, burst.min(left).min(turn.commands as u32), space, now_ns);
            idle = if count == 0 { idle + 1 } else { 0 };
            left -= count;
            taken += count as usize;
            work += done;
            turn.commands -= count as usize;
        }
        (taken, work)
    }

    fn queues_of(&self, class: usize) -> usize {
        let queues = self.active.iter().filter_map(|id| self.sqs[usize::from(*id)].as_ref());
        queues.filter(|queue| queue.id != 0 && usize::from(queue.class) == class).count()
    }

    /// The queue of a class whose turn it is.
    fn next_of(&mut self, class: usize) -> Option<u16> {
        let Self { rotations: Rotation(rotations), active, sqs, .. } = self;
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

    /// Takes and runs up to `most` commands of a queue. Returns how many, and how much work it was.
    fn fetch_from(&mut self, id: u16, most: u32, space: &Space, now_ns: u64) -> (u32, usize) {
        let taken = self.fetch(id, most, space, now_ns);
        if taken == 0 {
            return (0, 0);
        }
        if id != 0 {
            self.health.busy(now_ns);
        }
        (taken as u32, taken + self.settle(now_ns))
    }
}

impl Turn {
    fn is_over(&self, controller: &Controller) -> bool {
        self.commands == 0 || controller.health.bytes() >= self.bytes
    }
}

/// Commands of each class in a round. Weights are 0's based.
fn credits(features: &Features) -> [u32; CLASSES] {
    let [_, low, medium, high] = features.arbitration.to_le_bytes();
    let weight = |byte: u8| u32::from(byte) + 1;
    let mut credits = [0, weight(high), weight(medium), weight(low)];
    credits[URGENT] = u32::MAX;
    credits
}

/// Commands that are taken of a queue before the next of its class has its turn (AB, a power of two).
fn burst(features: &Features) -> u32 {
    const NO_LIMIT: u32 = 7;
    match features.arbitration & 7 {
        NO_LIMIT => FETCH_MAX,
        power => 1 << power,
    }
}
