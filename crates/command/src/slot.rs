//! A command as the layers see it, and the state stored with it.

use crate::{NodeId, Operation, Origin, Request, Route, frame::Frames};
use sluice_memory::{Segment, SegmentList};
use sluice_nvme::Status;
use zerocopy::{FromZeros, KnownLayout};

/// State of a slot's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
#[repr(u8)]
pub enum SlotState {
    #[default]
    Free,
    /// The handle is held.
    Held,
    /// The ticket is held by an engine.
    Parked,
    /// Waiting for its children or legs.
    Forked,
}

/// Receiver of a finished command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
#[repr(u8)]
pub(crate) enum Owner {
    #[default]
    Host,
    /// Layer that forked the command in this slot.
    Fork(u32),
    /// Router, for the command in this slot.
    Leg(u32),
    /// Layer that made the command.
    Layer,
}

impl Owner {
    #[inline]
    pub(crate) fn is_fork(self) -> bool {
        matches!(self, Self::Fork(_))
    }
}

/// A command, as the layers see it. A slot of zeros is free, and as good as new.
#[derive(Debug, Default, FromZeros, KnownLayout)]
pub struct Slot {
    pub request: Request,
    /// Data of a read or write: checked segments, as long as the request.
    pub data: SegmentList,
    /// The outcome so far: the status that a layer finishes with, and that the completion entry carries.
    pub status: Status,
    pub origin: Origin,
    pub route: Route,
    /// Value that the controller keeps with the command, and no layer reads: see `controller::LatencyCells`.
    pub stamp: u64,
    /// State of a command of several steps between them; allocated at the first use of a slot, and kept.
    pub steps: Option<Box<Steps>>,
    /// All data of the command while `data` is only a part of it; allocated and kept like `steps`.
    pub(crate) whole: Option<Box<SegmentList>>,
    pub(crate) frames: Frames,
    pub(crate) owner: Owner,
    pub(crate) pending: u32,
    pub(crate) state: SlotState,
    pub(crate) generation: u16,
}

/// State of a command of several steps (a Compare, a Dataset Management, a Copy) between them.
#[derive(Debug, Default)]
pub struct Steps {
    /// Memory of the host that is not the data of the present step.
    pub aside: SegmentList,
    /// Ranges of the command: all, or the remaining ones.
    pub ranges: Vec<Range>,
    /// Destination of the next part, bytes.
    pub destination: u64,
    /// Progress of the command: bytes or ranges.
    pub progress: u32,
}

/// Blocks that a command names in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Namespace of the blocks.
    pub nsid: u32,
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Slot {
    /// Returns all memory that this command may still access.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        let aside = self.steps.iter().flat_map(|steps| steps.aside.as_slice());
        let whole = self.whole.iter().flat_map(|whole| whole.as_slice());
        self.data.as_slice().iter().chain(aside).chain(whole)
    }

    /// Reduces the data to `length` bytes from `offset` on, until [`widen`](Self::widen).
    ///
    /// # Panics
    /// If the data is shorter.
    pub fn narrow(&mut self, offset: usize, length: usize) {
        let whole = self.whole.get_or_insert_default();
        debug_assert!(whole.is_empty(), "a part of a part would lose the whole");
        std::mem::swap(&mut self.data, whole);
        whole.slice(offset, length, &mut self.data).expect("a part inside its command");
    }

    /// Restores the data from before [`narrow`](Self::narrow), if it was narrowed.
    pub fn widen(&mut self) {
        if let Some(whole) = &mut self.whole
            && !whole.is_empty()
        {
            std::mem::swap(&mut self.data, whole);
            whole.clear();
        }
    }

    /// Checks a request against a target of `size` bytes before it starts. The request must lie inside, which
    /// is checked here since sizes change under commands in flight, and must have data of its length.
    ///
    /// # Errors
    /// LBA Out of Range; Internal Error where a layer above made a mistake.
    #[inline]
    pub fn check(&self, size: u64) -> Result<(), Status> {
        let moves_data = matches!(self.request.operation, Operation::Read | Operation::Write);
        if self.request.end() > size {
            Err(Status::LBA_OUT_OF_RANGE)
        } else if moves_data && self.data.len_bytes() as u64 != self.request.length {
            Err(Status::INTERNAL_ERROR)
        } else {
            Ok(())
        }
    }

    pub fn state(&self) -> SlotState {
        self.state
    }

    /// Returns whether the command comes back to this layer.
    pub(crate) fn passes(&self, node: NodeId) -> bool {
        self.frames.has(node)
    }

    /// Returns whether this is a child of a forked command, a leg that is not its command itself, or a
    /// command that a layer made.
    pub fn is_child(&self) -> bool {
        self.owner != Owner::Host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_zeros_is_as_good_as_new() {
        let (zeros, new) = (Slot::new_zeroed(), Slot::default());
        assert_eq!(format!("{zeros:?}"), format!("{new:?}"));
        assert_eq!((zeros.state, zeros.status, zeros.owner), (SlotState::Free, Status::SUCCESS, Owner::Host));
    }
}
