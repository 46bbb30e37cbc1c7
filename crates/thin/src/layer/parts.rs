//! Commands on the device: moved to one place, or divided among several.

use super::{PLACE, Thin, stage};
use crate::layout::EXTENT;
use sluice_command::{Command, Frame, Lane, Operation, Request, Slot};
use sluice_nvme::Status;

/// Most parts of a command that are under way at a time. A command of more parts takes several rounds.
pub(super) const PARTS: usize = 8;

/// Part of a command that lies together on the device.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    from: u64,
    end: u64,
    /// First byte on the device.
    offset: u64,
}

impl Thin {
    /// Returns the offset of a byte on the device; none where the volume has no extent.
    #[inline]
    fn place(&self, byte: u64) -> Option<u64> {
        let extent = (self.map.get((byte / EXTENT) as u32) & PLACE).checked_sub(1)?;
        Some(self.parts.data_at + u64::from(extent) * EXTENT + byte % EXTENT)
    }

    /// Sends a command to the device, as far as the volume has extents. All extents of a write are there.
    pub(super) fn transfer(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let is_in_one = request.offset / EXTENT == (request.end().max(1) - 1) / EXTENT;
        self.in_flight[self.epoch] += 1;
        self.writing += u64::from(request.operation.modifies());
        match self.place(request.offset) {
            Some(offset) if is_in_one => {
                lane.slot_mut(&command).request.offset = offset;
                lane.forward_with(0, command, stage::MOVED, [request.offset, self.epoch as u64]);
            }
            _ => self.divide(command, request.offset, self.epoch, lane),
        }
    }

    /// Divides a command from byte `from` of the volume on: one round.
    fn divide(&mut self, command: Command, from: u64, epoch: usize, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let (mut parts, mut count, mut at) = ([Part::default(); PARTS], 0, from);
        while at < request.end() {
            let end = (at / EXTENT + 1).saturating_mul(EXTENT).min(request.end());
            match self.place(at) {
                None => fill(lane.slot(&command), &request, at, end),
                Some(offset) if count > 0 && adjoins(&parts[count - 1], at, offset) => {
                    parts[count - 1].end = end
                }
                Some(_) if count == PARTS => break,
                Some(offset) => {
                    parts[count] = Part { from: at, end, offset };
                    count += 1;
                }
            }
            at = end;
        }
        if count == 0 {
            self.in_flight[epoch] -= 1;
            self.writing -= u64::from(request.operation.modifies());
            return lane.finish(command, Status::SUCCESS);
        }
        lane.fork(command, count as u32, stage::DIVIDED, [at, epoch as u64], |number, whole, child| {
            let part = &parts[number as usize];
            take(whole, child, part.from, part.end, part.offset);
            0
        });
    }

    /// Continues a command of a host that is back from the device.
    pub(super) fn resume_command(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let slot = lane.slot_mut(&command);
        let ([at, epoch], status) = (frame.data, slot.status);
        match frame.stage {
            stage::MOVED => slot.request.offset = at,
            stage::DIVIDED if status.is_success() && at < slot.request.end() => {
                return self.divide(command, at, epoch as usize, lane);
            }
            _ => {}
        }
        self.in_flight[epoch as usize] -= 1;
        self.writing -= u64::from(lane.slot(&command).request.operation.modifies());
        match frame.stage == stage::EDGES && status.is_success() {
            true => self.begin_release(command, lane),
            false => lane.finish(command, status),
        }
    }

    /// Writes zeros to the ends of a Deallocate, and then gives its whole extents back.
    pub(super) fn zero_edges(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let (whole, end) = (Self::whole(&request), request.end());
        let (first, last) = (whole.start * EXTENT, whole.end * EXTENT);
        let edges = if first >= last {
            // The range may lie in two extents, and cover neither.
            let middle = (request.offset / EXTENT + 1).saturating_mul(EXTENT).min(end);
            [(request.offset, middle), (middle, end)]
        } else {
            [(request.offset, first), (last, end)]
        };
        let mut parts = [Part::default(); 2];
        let mut count = 0;
        for (from, end) in edges.into_iter().filter(|(from, end)| from < end) {
            if let Some(offset) = self.place(from) {
                parts[count] = Part { from, end, offset };
                count += 1;
            }
        }
        if count == 0 {
            return self.begin_release(command, lane);
        }
        self.in_flight[self.epoch] += 1;
        self.writing += 1;
        let data = [0, self.epoch as u64];
        lane.fork(command, count as u32, stage::EDGES, data, |number, whole, child| {
            let Part { from, end, offset } = parts[number as usize];
            let operation = Operation::WriteZeroes;
            child.request = Request { operation, offset, length: end - from, ..whole.request };
            0
        });
    }
}

fn adjoins(part: &Part, at: u64, offset: u64) -> bool {
    part.end == at && part.offset + (at - part.from) == offset
}

/// Reads zeros.
fn fill(slot: &Slot, request: &Request, from: u64, end: u64) {
    if request.operation == Operation::Read {
        slot.data.fill((from - request.offset) as usize, (end - from) as usize, 0);
    }
}

/// Has a child transfer `from..end` of a command's range at `offset` of the device.
fn take(whole: &Slot, child: &mut Slot, from: u64, end: u64, offset: u64) {
    child.request = Request { offset, length: end - from, ..whole.request };
    if !whole.data.is_empty() {
        let at = (from - whole.request.offset) as usize;
        let length = (end - from) as usize;
        whole.data.slice(at, length, &mut child.data).expect("a part lies in its command");
    }
}
