//! Commands that are divided among several layers below.

use sluice_command::{Characteristics, Command, Frame, Lane, Operation, Request, Slot, Storage};

/// Layers that a command can be divided among: as many as a function can have below it.
pub(crate) const LEGS_MAX: usize = 8;

/// Returns the characteristics of several layers together: those of the worst of them.
pub(crate) fn together(below: &[Characteristics]) -> Characteristics {
    let most = |of: fn(&Characteristics) -> u32| below.iter().map(of).max().unwrap_or(0);
    let first = below[0];
    let block_size = most(|leg| leg.block_size);
    Characteristics {
        block_size,
        optimal_write: most(|leg| leg.optimal_write).max(block_size),
        boundary: 0,
        // Two blocks may lie on two layers, and a block of several smaller ones is torn there. So no write of several
        // blocks is atomic, with boundaries or without.
        atomic_boundary: 0,
        atomic_write: below.iter().map(|leg| leg.atomic_write).fold(block_size, u32::min),
        volatile_cache: below.iter().any(|leg| leg.volatile_cache),
        deallocated: match below.iter().all(|leg| leg.deallocated == first.deallocated) {
            true => first.deallocated,
            false => sluice_command::Deallocated::Indeterminate,
        },
        deallocate_limit: least_limit(below),
        fan_out: most(|leg| leg.fan_out),
        read_only: below.iter().any(|leg| leg.read_only),
        keeps_versions: below.iter().any(|leg| leg.keeps_versions),
        depth: below.iter().map(|leg| leg.depth).max().unwrap_or(0).saturating_add(1),
        storage: Storage::of_all(below.iter().map(|leg| leg.storage)),
        ..first.over()
    }
}

/// Returns the smallest limit; zero for none.
fn least_limit(below: &[Characteristics]) -> u64 {
    below.iter().map(|leg| leg.deallocate_limit).filter(|limit| *limit > 0).min().unwrap_or(0)
}

/// Has a child transfer `from..end` of a command's range at `offset` of another layer.
pub(crate) fn take(whole: &Slot, child: &mut Slot, from: u64, end: u64, offset: u64) {
    child.request = Request { offset, length: end - from, ..whole.request };
    if !whole.data.is_empty() {
        let at = (from - whole.request.offset) as usize;
        let length = (end - from) as usize;
        whole.data.slice(at, length, &mut child.data).expect("a part lies in its command");
    }
}

/// Forwards a command to the one layer that it lies on, with another offset until it is back.
pub(crate) fn move_to(leg: usize, offset: u64, command: Command, lane: &mut Lane<'_>) {
    let request = &mut lane.slot_mut(&command).request;
    let seen = std::mem::replace(&mut request.offset, offset);
    lane.forward_with(leg, command, MOVED, [seen, 0]);
}

/// Sends a Flush to all of so many layers.
pub(crate) fn flush_all(legs: usize, command: Command, lane: &mut Lane<'_>) {
    debug_assert_eq!(lane.slot(&command).request.operation, Operation::Flush);
    lane.fork(command, legs as u32, DIVIDED, [0; 2], |leg, whole, child| {
        child.request = whole.request;
        leg as usize
    });
}

/// Stages of frames.
pub(crate) const MOVED: u8 = 0;
pub(crate) const DIVIDED: u8 = 1;

/// Finishes a command that is back, with its own offset.
pub(crate) fn resume(command: Command, frame: Frame, lane: &mut Lane<'_>) {
    let slot = lane.slot_mut(&command);
    if frame.stage == MOVED {
        slot.request.offset = frame.data[0];
    }
    let status = slot.status;
    lane.finish(command, status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_of_a_deallocation_counts() {
        let layer =
            |deallocate_limit| Characteristics { deallocate_limit, ..Characteristics::target(1 << 20, 512) };
        for (limits, expected) in [([0, 0], 0), ([0, 4096], 4096), ([8192, 4096], 4096), ([4096, 8192], 4096)]
        {
            assert_eq!(together(&limits.map(layer)).deallocate_limit, expected, "{limits:?}");
        }
    }
}
