//! Limits of the commands that a target sends to its device, checked before a command is submitted.

use super::error::ErrorKind;
use crate::remote::NamespaceInfo;
use sluice_command::{Characteristics, Deallocated, Operation, Request};
use sluice_nvme::Status;
use std::ops::Range;

/// The blocks of a namespace that one target has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) nsid: u32,
    /// Range in the device's logical blocks.
    pub(super) blocks: Range<u64>,
    /// Size of a logical block as a power of two, bytes.
    pub(super) block_shift: u32,
}

impl Partition {
    /// Returns the range of namespace `nsid` from block `first` on: `blocks` of them, or all that follow.
    ///
    /// # Errors
    /// The range is not inside the namespace.
    pub(super) fn of(
        info: &NamespaceInfo,
        nsid: u32,
        first: u64,
        blocks: Option<u64>,
    ) -> Result<Self, ErrorKind> {
        let blocks = blocks.unwrap_or(info.blocks.saturating_sub(first));
        match first.checked_add(blocks) {
            Some(end) if end <= info.blocks && blocks > 0 => {
                Ok(Self { nsid, blocks: first..end, block_shift: info.block_shift })
            }
            _ => Err(ErrorKind::Range { namespace: nsid, blocks: info.blocks }),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.blocks.end - self.blocks.start) << self.block_shift
    }

    /// Returns the first block and the number of blocks, on the device, of `length` bytes from byte `offset`
    /// of the range on.
    ///
    /// # Errors
    /// LBA_OUT_OF_RANGE if a byte of them is outside. INTERNAL_ERROR if they are not whole blocks, which is a
    /// mistake of a layer above or of this target.
    pub(super) fn locate(&self, offset: u64, length: u64) -> Result<(u64, u64), Status> {
        let block = (1u64 << self.block_shift) - 1;
        if (offset | length) & block != 0 {
            return Err(Status::INTERNAL_ERROR);
        }
        let (first, count) = (offset >> self.block_shift, length >> self.block_shift);
        let slba = self.blocks.start.checked_add(first).ok_or(Status::LBA_OUT_OF_RANGE)?;
        match slba.checked_add(count) {
            Some(end) if end <= self.blocks.end => Ok((slba, count)),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }

    /// Returns whether some block is in both.
    pub(super) fn overlaps(&self, other: &Partition) -> bool {
        let (a, b) = (&self.blocks, &other.blocks);
        self.nsid == other.nsid && a.start < b.end && b.start < a.end
    }
}

/// Set of operations that pass to the device; all others are denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes(u8);

impl Passes {
    pub const NONE: Passes = Passes(0);
    pub const ALL: Passes = Passes(0x1f);

    /// Adds an operation to the set.
    #[must_use]
    pub fn and(self, operation: Operation) -> Self {
        Self(self.0 | Self::bit(operation))
    }

    pub fn contains(self, operation: Operation) -> bool {
        self.0 & Self::bit(operation) != 0
    }

    /// Checks that a request passes.
    ///
    /// # Errors
    /// OPERATION_DENIED if the request does not pass.
    pub(super) fn check(self, request: &Request) -> Result<(), Status> {
        if self.contains(request.operation) { Ok(()) } else { Err(Status::OPERATION_DENIED) }
    }

    /// Returns the characteristics of a device of which only these operations are used.
    pub(super) fn limit(self, device: Characteristics) -> Characteristics {
        Characteristics {
            read_only: device.read_only || !self.contains(Operation::Write),
            deallocated: match self.contains(Operation::Deallocate) {
                true => device.deallocated,
                false => Deallocated::Unsupported,
            },
            ..device
        }
    }

    fn bit(operation: Operation) -> u8 {
        1 << match operation {
            Operation::Read => 0,
            Operation::Write => 1,
            Operation::Flush => 2,
            Operation::WriteZeroes => 3,
            Operation::Deallocate => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Checks that each located range lies inside, block for block where it should.
        #[test]
        fn nothing_leaves_its_range(
            start in prop_oneof![0u64..100, (u64::MAX - 100)..u64::MAX - 10, any::<u64>()],
            count in 1u64..1000,
            shift in prop::sample::select(vec![9u32, 12]),
            offset in prop_oneof![0u64..1000 << 12, any::<u64>()],
            length in prop_oneof![0u64..1000 << 12, any::<u64>()],
        ) {
            let end = start.saturating_add(count);
            let partition = Partition { nsid: 1, blocks: start..end, block_shift: shift };
            for (offset, length) in [(offset, length), (offset >> shift << shift, length >> shift << shift)] {
                let inside = u128::from(offset) + u128::from(length) <= u128::from(end - start) << shift;
                let whole = (offset | length) % (1 << shift) == 0;
                let expected = (inside && whole).then(|| (start + (offset >> shift), length >> shift));
                prop_assert_eq!(partition.locate(offset, length).ok(), expected);
            }
        }
    }

    #[test]
    fn ranges_overlap_on_one_namespace_only() {
        let partition = |nsid, blocks| Partition { nsid, blocks, block_shift: 9 };
        let held = partition(1, 10..20);
        for (nsid, blocks, expected) in
            [(1, 0..10, false), (1, 20..30, false), (1, 19..20, true), (1, 0..100, true), (2, 10..20, false)]
        {
            assert_eq!(held.overlaps(&partition(nsid, blocks)), expected);
        }
    }

    #[test]
    fn nothing_passes_that_was_not_named() {
        let passes = Passes::NONE.and(Operation::Read).and(Operation::Flush);
        let all = [
            (Operation::Read, true),
            (Operation::Write, false),
            (Operation::Flush, true),
            (Operation::WriteZeroes, false),
            (Operation::Deallocate, false),
        ];
        for (operation, expected) in all {
            let request = Request { operation, ..Request::default() };
            let denied = Err(Status::OPERATION_DENIED);
            assert_eq!(passes.check(&request), if expected { Ok(()) } else { denied });
            assert!(Passes::ALL.contains(operation));
        }
    }
}
