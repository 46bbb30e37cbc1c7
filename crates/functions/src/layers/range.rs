//! Range: a part of the layer below as a layer of its own.

use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, common_boundary};
use sluice_options::{Fault, Size};
use utoipa::ToSchema;

/// Part of the layer below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RangeOptions {
    /// Beginning of the part: a multiple of 4096 bytes.
    pub from: Size,
    /// Size of the part, also a multiple; all that follows if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

impl<L> Kind<L> for RangeOptions {
    const NAME: &'static str = "range";
    const ABOUT: &'static str = "Shows a part of the layer below, as if there were nothing else.";

    fn check(&self) -> Result<(), Fault> {
        let ends = [("from", Some(self.from)), ("size", self.size)];
        match ends.iter().find(|(_, end)| !end.unwrap_or_default().0.is_multiple_of(Range::UNIT)) {
            Some((key, _)) => Err(Fault::at_key(key, "not a multiple of 4096 bytes")),
            None if self.size == Some(Size(0)) => Err(Fault::at_key("size", "nothing is left")),
            None => Ok(()),
        }
    }

    fn shape(&self) -> Shape {
        let size = self.size.map_or_else(|| "all".to_owned(), |size| size.to_string());
        Shape { is_stateless: true, ..Shape::moved(format!("range of {size} from {}", self.from)) }
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let config = RangeConfig { from: self.from.0, size: self.size.map(|size| size.0) };
        Ok(Prepared::new(move |_| Range::new(config)))
    }
}

/// Position of the part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeConfig {
    /// Beginning in bytes; a multiple of [`Range::UNIT`].
    pub from: u64,
    /// Bytes, also a multiple; `None` for all that follow.
    pub size: Option<u64>,
}

/// Layer that moves commands to the part. Whether a command lies inside is checked above, as for every layer.
#[derive(Debug)]
pub struct Range {
    config: RangeConfig,
}

impl Range {
    /// Unit of the beginning in bytes: a multiple of every block size.
    pub const UNIT: u64 = 4096;

    pub fn new(config: RangeConfig) -> Self {
        Self { config }
    }
}

impl Layer for Range {
    fn name(&self) -> &'static str {
        "range"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let below = below[0].over();
        let left = below.size.saturating_sub(self.config.from);
        let meets = below.boundary != 0 && self.config.from.is_multiple_of(below.boundary.into());
        let atomic_boundary = match below.atomic_boundary {
            0 => 0,
            // Boundaries are counted from the beginning of the layer below.
            unit => common_boundary(unit.into(), self.config.from),
        };
        Characteristics {
            size: self.config.size.unwrap_or(left).min(left),
            // Other boundaries would lie in the middle of this layer's.
            boundary: if meets { below.boundary } else { 0 },
            atomic_boundary,
            storage: below.storage.part(self.config.from),
            ..below
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = &mut lane.slot_mut(&command).request;
        if request.operation == Operation::Flush {
            return lane.forward(command);
        }
        let seen = request.offset;
        request.offset = seen.saturating_add(self.config.from);
        lane.forward_with(0, command, 0, [seen, 0]);
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let slot = lane.slot_mut(&command);
        slot.request.offset = frame.data[0];
        let status = slot.status;
        lane.finish(command, status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_atomic_write_crosses_a_boundary_below() {
        let below =
            Characteristics { atomic_write: 16384, boundary: 65536, ..Characteristics::target(1 << 20, 512) };
        for (from, atomic_boundary, expected) in [
            (65536, 32768, (65536, 32768)),
            (8192, 32768, (0, 8192)),
            (8192, 0, (0, 0)),
            (0, 32768, (65536, 32768)),
        ] {
            let range = Range::new(RangeConfig { from, size: None });
            let seen = range.characteristics(&[Characteristics { atomic_boundary, ..below }]);
            assert_eq!(seen.atomic_write, 16384);
            let boundaries = (seen.boundary, seen.atomic_boundary);
            assert_eq!(boundaries, expected, "from {from}, over {atomic_boundary}");
        }
    }
}
