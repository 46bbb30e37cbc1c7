//! Concat: layers one behind the other.

use super::parts::{self, DIVIDED, LEGS_MAX};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, Request};

/// Layer that has the first layer's bytes, then the second's, and so on.
#[derive(Debug)]
pub struct Concat {
    legs: usize,
}

/// End of each layer; each begins at the end of the one before.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    ends: [u64; LEGS_MAX],
    legs: usize,
}

impl Bounds {
    fn of(legs: usize, lane: &Lane<'_>) -> Self {
        let (mut ends, mut end) = ([u64::MAX; LEGS_MAX], 0u64);
        for (leg, place) in ends.iter_mut().enumerate().take(legs) {
            end = end.saturating_add(lane.size_below(leg));
            *place = end;
        }
        Self { ends, legs }
    }

    fn begin(&self, leg: usize) -> u64 {
        leg.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Returns the layer that has a byte.
    fn leg(&self, offset: u64) -> usize {
        self.ends[..self.legs].iter().position(|end| offset < *end).unwrap_or(self.legs - 1)
    }
}

impl Concat {
    /// Creates a concat over so many layers, at most eight.
    pub fn new(legs: usize) -> Self {
        Self { legs: legs.min(LEGS_MAX) }
    }
}

impl Layer for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let together = parts::together(below);
        let legs = self.legs as u32;
        Characteristics {
            size: below.iter().map(|leg| leg.size).fold(0, u64::saturating_add),
            fan_out: legs.saturating_mul(together.fan_out.saturating_add(1)),
            ..together
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        if request.operation == Operation::Flush {
            return parts::flush_all(self.legs, command, lane);
        }
        let bounds = Bounds::of(self.legs, lane);
        let first = bounds.leg(request.offset);
        let last = if request.length == 0 { first } else { bounds.leg(request.end() - 1) };
        if first == last {
            return parts::move_to(first, request.offset - bounds.begin(first), command, lane);
        }
        let count = (last - first + 1) as u32;
        lane.fork(command, count, DIVIDED, [0; 2], |number, whole, child| {
            let leg = first + number as usize;
            let Request { offset, .. } = whole.request;
            let from = bounds.begin(leg).max(offset);
            let end = bounds.ends[leg].min(whole.request.end());
            parts::take(whole, child, from, end, from - bounds.begin(leg));
            leg
        });
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        parts::resume(command, frame, lane);
    }
}
