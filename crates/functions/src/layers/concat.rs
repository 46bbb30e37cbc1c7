//! Concat: layers one behind the other.

use super::parts::{self, DIVIDED, LEGS_MAX};
use crate::{Kind, OpenCx, Prepared, SetShape, Shape};
use serde::{Deserialize, Serialize};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, Request};
use sluice_options::Fault;
use utoipa::ToSchema;

/// Layers one behind the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConcatOptions<L> {
    /// Whether each member must have a label; if not given, labels count where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// The layers behind the rest of the stack, which is the first.
    #[schema(no_recursion)]
    pub layers: Vec<L>,
}

impl<L> Kind<L> for ConcatOptions<L> {
    const NAME: &'static str = "concat";
    const ABOUT: &'static str = "Puts several layers one behind the other.";
    const LAYERS: (usize, usize) = (1, LEGS_MAX - 1);

    fn shape(&self) -> Shape {
        let set = Some(SetShape { kind: "concat", chunk: 0, labels: self.labels });
        Shape { is_composed: true, is_stateless: true, set, ..Shape::moved("concat".to_owned()) }
    }

    fn layers(&self) -> &[L] {
        &self.layers
    }

    fn layers_mut(&mut self) -> &mut [L] {
        &mut self.layers
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, Fault> {
        Ok(Prepared::new(Concat::new))
    }
}

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
