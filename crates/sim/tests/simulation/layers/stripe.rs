//! Stripe: units in turn over several legs of the same size.

use super::split::{part, parts};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, Request};

#[derive(Debug)]
pub(crate) struct Stripe {
    /// Bytes; a multiple of the block size.
    pub(crate) unit: u64,
    pub(crate) legs: u64,
    /// Most parts of one request.
    pub(crate) parts_max: u32,
}

impl Stripe {
    /// The leg of a request that lies in one unit, and the request as the leg sees it.
    fn map(&self, request: Request) -> (usize, Request) {
        let unit = request.offset / self.unit;
        let offset = unit / self.legs * self.unit + request.offset % self.unit;
        ((unit % self.legs) as usize, Request { offset, ..request })
    }

    fn flush_legs(&self, command: Command, lane: &mut Lane<'_>) {
        lane.fork(command, self.legs as u32, 1, [0; 2], |leg, whole, child| {
            child.request = whole.request;
            leg as usize
        });
    }
}

impl Layer for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let fan_out = below.iter().map(|leg| leg.fan_out).max().unwrap_or(0);
        let parts = self.parts_max.max(self.legs as u32);
        Characteristics {
            size: below[0].size / self.unit * self.unit * self.legs,
            fan_out: parts * (1 + fan_out),
            atomic_write: below[0].block_size,
            volatile_cache: below.iter().any(|leg| leg.volatile_cache),
            depth: below.iter().map(|leg| leg.depth).max().unwrap_or(0) + 1,
            ..below[0]
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        if request.operation == Operation::Flush {
            return self.flush_legs(command, lane);
        }
        let count = parts(request.offset, request.end(), self.unit);
        if count == 1 {
            let (leg, mapped) = self.map(request);
            lane.slot_mut(&command).request = mapped;
            return lane.forward_with(leg, command, 0, [request.offset, 0]);
        }
        lane.fork(command, count, 1, [0; 2], |number, whole, child| {
            let (start, end) = part(request.offset, request.end(), self.unit, number);
            let (leg, mapped) = self.map(Request { offset: start, length: end - start, ..request });
            child.request = mapped;
            if !whole.data.is_empty() {
                let at = (start - request.offset) as usize;
                whole.data.slice(at, (end - start) as usize, &mut child.data).expect("inside of the whole");
            }
            leg
        });
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let slot = lane.slot_mut(&command);
        if frame.stage == 0 {
            slot.request.offset = frame.data[0];
        }
        let status = slot.status;
        lane.finish(command, status);
    }
}
