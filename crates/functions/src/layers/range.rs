//! Range: a part of the layer below as a layer of its own.

use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation};

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
        Characteristics {
            size: self.config.size.unwrap_or(left).min(left),
            // Other boundaries would lie in the middle of this layer's.
            boundary: if meets { below.boundary } else { 0 },
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
