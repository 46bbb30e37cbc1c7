//! The completion queue entry (Base 3.3.3.2).

use crate::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A 16-byte completion queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct CompletionEntry {
    /// Command specific dword.
    pub dw0: u32,
    pub dw1: u32,
    pub sq_head: u16,
    pub sq_id: u16,
    pub cid: u16,
    /// Status in bits 15:1, phase tag in bit 0.
    pub status_phase: u16,
}

impl CompletionEntry {
    pub const SIZE: usize = 16;

    #[inline]
    pub fn new(dw0: u32, sq_head: u16, sq_id: u16, cid: u16, status: Status, phase: bool) -> Self {
        Self { dw0, dw1: 0, sq_head, sq_id, cid, status_phase: status.0 << 1 | u16::from(phase) }
    }

    #[inline]
    pub fn status(&self) -> Status {
        Status(self.status_phase >> 1)
    }

    #[inline]
    pub fn phase(&self) -> bool {
        self.status_phase & 1 != 0
    }
}

const _: () = assert!(size_of::<CompletionEntry>() == CompletionEntry::SIZE);
