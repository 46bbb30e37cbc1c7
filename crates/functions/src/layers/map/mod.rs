//! Map: chunks of the drive, each at any place of several layers.

mod options;
mod table;
#[cfg(test)]
mod tests;

pub use options::{MapEntry, MapOptions, MapPlacement};
pub use table::{MapChunk, MapTable};

use super::parts::{self, DIVIDED};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation};
use sluice_nvme::Status;
use std::sync::Arc;
use table::Part;

/// Most parts of a command that are under way at a time. A command of more parts takes several rounds.
const PARTS: usize = 8;

/// Chunks of a Deallocate that ends soon.
const DEALLOCATE_CHUNKS: u64 = 1024;

/// Layer that looks up the chunk of each command in a table. Bytes without a chunk have no place, and commands
/// that touch them fail as a whole.
#[derive(Debug)]
pub struct Map {
    table: Arc<MapTable>,
    targets: usize,
}

impl Map {
    /// Creates a layer over so many targets.
    pub fn new(table: Arc<MapTable>, targets: usize) -> Self {
        Self { table, targets }
    }

    /// Divides a command from byte `from` of the drive on: one round.
    fn divide(&self, command: Command, from: u64, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let (mut divided, mut count, mut at) = ([Part::default(); PARTS], 0, from);
        for place in &mut divided {
            if at >= request.end() {
                break;
            }
            let Some(part) = self.table.part(at, request.end()) else {
                return lane.finish(command, unmapped(request.operation));
            };
            (*place, count, at) = (part, count + 1, part.end);
        }
        lane.fork(command, count, DIVIDED, [at, 0], |number, whole, child| {
            let part = &divided[number as usize];
            parts::take(whole, child, part.from, part.end, part.offset);
            part.target
        });
    }
}

/// Returns the status of a command that touches a hole.
fn unmapped(operation: Operation) -> Status {
    match operation {
        Operation::Read => Status::DEALLOCATED_OR_UNWRITTEN,
        _ => Status::CAPACITY_EXCEEDED,
    }
}

impl Layer for Map {
    fn name(&self) -> &'static str {
        "map"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let together = parts::together(below);
        let soon = self.table.chunk().saturating_mul(DEALLOCATE_CHUNKS);
        let limits = [soon, together.deallocate_limit].into_iter().filter(|limit| *limit > 0);
        Characteristics {
            size: self.table.size(),
            boundary: u32::try_from(self.table.chunk()).unwrap_or(0),
            deallocate_limit: limits.min().unwrap_or(soon),
            fan_out: (PARTS as u32).saturating_mul(together.fan_out.saturating_add(1)),
            storage: together.storage.part(self.table.checksum()),
            // Sanitize overwrites all blocks, and would never end with success.
            keeps_versions: together.keeps_versions || self.table.entries().any(|chunk| chunk.is_none()),
            ..together
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        if request.operation == Operation::Flush {
            return parts::flush_all(self.targets, command, lane);
        }
        if self.table.is_in_one(request.offset, request.end()) {
            return match self.table.find(request.offset) {
                Some((target, offset)) => parts::move_to(target, offset, command, lane),
                None => lane.finish(command, unmapped(request.operation)),
            };
        }
        // No part of a command is executed if another part has no place.
        match self.table.is_mapped(request.offset, request.end()) {
            true => self.divide(command, request.offset, lane),
            false => lane.finish(command, unmapped(request.operation)),
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let (slot, next) = (lane.slot(&command), frame.data[0]);
        if frame.stage == DIVIDED && slot.status.is_success() && next < slot.request.end() {
            return self.divide(command, next, lane);
        }
        parts::resume(command, frame, lane);
    }
}
