//! Layer that splits requests, so that none crosses a boundary below it.

use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation};

#[derive(Debug)]
pub(crate) struct Split {
    /// Bytes between boundaries; a multiple of the block size.
    pub(crate) boundary: u64,
    /// Most parts of one request.
    pub(crate) parts_max: u32,
}

/// Returns begin and end of part `number` of a range that is cut at multiples of `boundary`.
pub(crate) fn part(offset: u64, end: u64, boundary: u64, number: u32) -> (u64, u64) {
    let first = offset / boundary + u64::from(number);
    ((first * boundary).max(offset), ((first + 1) * boundary).min(end))
}

pub(crate) fn parts(offset: u64, end: u64, boundary: u64) -> u32 {
    (end.div_ceil(boundary) - offset / boundary) as u32
}

impl Layer for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let fan_out = self.parts_max * (1 + below[0].fan_out);
        Characteristics { fan_out, atomic_write: below[0].block_size, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let count = parts(request.offset, request.end(), self.boundary);
        if request.operation == Operation::Flush || count == 1 {
            return lane.forward(command);
        }
        lane.fork(command, count, 7, [count.into(), request.offset], |number, whole, child| {
            let (start, end) = part(request.offset, request.end(), self.boundary, number);
            child.request = request;
            child.request.offset = start;
            child.request.length = end - start;
            if !whole.data.is_empty() {
                let at = (start - request.offset) as usize;
                whole.data.slice(at, (end - start) as usize, &mut child.data).expect("inside of the whole");
            }
            0
        });
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        assert_eq!((frame.stage, frame.data[1]), (7, slot.request.offset), "somebody else's frame");
        let status = slot.status;
        lane.finish(command, status);
    }
}
