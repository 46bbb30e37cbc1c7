//! A command as the layers see it, and what is kept with it.

use crate::{NodeId, Operation, Origin, Request, Route, frame::Frames};
use sluice_memory::{Segment, SegmentList};
use sluice_nvme::Status;
use zerocopy::{FromZeros, KnownLayout};

/// Where a slot's command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
#[repr(u8)]
pub enum SlotState {
    #[default]
    Free,
    /// Somebody holds the handle.
    Held,
    /// An engine holds the ticket.
    Parked,
    /// Waiting for its children or legs.
    Forked,
}

/// Who waits for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromZeros)]
#[repr(u8)]
pub(crate) enum Owner {
    #[default]
    Host,
    /// The layer that forked the command in this slot.
    Fork(u32),
    /// The router, for the command in this slot.
    Leg(u32),
    /// The layer that made it.
    Layer,
}

impl Owner {
    #[inline]
    pub(crate) fn is_fork(self) -> bool {
        matches!(self, Self::Fork(_))
    }
}

/// One command, as the layers see it. One of zeros is free, and as good as new.
#[derive(Debug, Default, FromZeros, KnownLayout)]
pub struct Slot {
    pub request: Request,
    /// The data of a read or write: checked segments, as long as the request.
    pub data: SegmentList,
    /// The outcome so far. What a layer finishes with, and what the completion entry carries.
    pub status: Status,
    pub origin: Origin,
    pub route: Route,
    /// What a command of several steps keeps between them; made when a slot first needs it, and kept.
    pub steps: Option<Box<Steps>>,
    /// All data of the command while `data` is only a piece of it; made and kept like `steps`.
    pub(crate) whole: Option<Box<SegmentList>>,
    pub(crate) frames: Frames,
    pub(crate) owner: Owner,
    pub(crate) pending: u32,
    pub(crate) state: SlotState,
    pub(crate) generation: u16,
}

/// What a command of several steps (a Compare, a Dataset Management, a Copy) keeps between them.
#[derive(Debug, Default)]
pub struct Steps {
    /// Memory of the host that is not the data of the present step.
    pub aside: SegmentList,
    /// Every range of the command, or what of it is still to come.
    pub ranges: Vec<Range>,
    /// Where the next piece goes, bytes.
    pub destination: u64,
    /// How far the command has come: bytes or ranges.
    pub progress: u32,
}

/// Blocks that a command names in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Of which namespace.
    pub nsid: u32,
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Slot {
    /// All memory this command may still touch.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        let aside = self.steps.iter().flat_map(|steps| steps.aside.as_slice());
        let whole = self.whole.iter().flat_map(|whole| whole.as_slice());
        self.data.as_slice().iter().chain(aside).chain(whole)
    }

    /// Leaves only `length` bytes of the data, those from `offset` on, until [`widen`](Self::widen).
    ///
    /// # Panics
    /// If the data does not go that far.
    pub fn narrow(&mut self, offset: usize, length: usize) {
        let whole = self.whole.get_or_insert_default();
        debug_assert!(whole.is_empty(), "a piece of a piece would lose the whole");
        std::mem::swap(&mut self.data, whole);
        whole.slice(offset, length, &mut self.data).expect("a piece inside its command");
    }

    /// The data is again what it was before [`narrow`](Self::narrow), if it was narrowed.
    pub fn widen(&mut self) {
        if let Some(whole) = &mut self.whole
            && !whole.is_empty()
        {
            std::mem::swap(&mut self.data, whole);
            whole.clear();
        }
    }

    /// What a target of `size` bytes can say before anything is done: the request is inside of it, which is
    /// looked at here since sizes change under commands in flight, and has the data that it speaks of.
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

    /// True if the command comes back to this layer.
    pub(crate) fn passes(&self, node: NodeId) -> bool {
        self.frames.has(node)
    }

    /// True for a child of a forked command, for a leg that is not its command itself, and for a command
    /// that a layer made.
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
