//! Admin command with its context.

use crate::state::data_pointer;
use sluice_memory::{Access, SegmentList, Space};
use sluice_nvme::{Status, SubmissionEntry};

/// Admin command with its context.
pub(crate) struct Admin<'a> {
    pub(crate) entry: &'a SubmissionEntry,
    pub(crate) space: &'a Space,
    pub(crate) now_ns: u64,
}

impl Admin<'_> {
    /// Writes `bytes` to the host's buffer.
    pub(crate) fn to_host(&self, bytes: &[u8]) -> Result<(), Status> {
        self.to_buffer(bytes.len(), bytes)
    }

    /// Writes `bytes` to the beginning of the host's buffer of `length` bytes. The length decides on the
    /// meaning of its PRPs: of a longer buffer the second one is a list.
    pub(crate) fn to_buffer(&self, length: usize, bytes: &[u8]) -> Result<(), Status> {
        let data = self.data(length, Access::Write)?;
        match data.copy_from(0, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(Status::DATA_TRANSFER_ERROR),
        }
    }

    /// Copies the host's buffer, once, into `bytes`.
    pub(crate) fn take_from_host(&self, bytes: &mut [u8]) -> Result<(), Status> {
        let data = self.data(bytes.len(), Access::Read)?;
        match data.copy_to(0, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(Status::DATA_TRANSFER_ERROR),
        }
    }

    pub(crate) fn data(&self, length: usize, access: Access) -> Result<SegmentList, Status> {
        let mut data = SegmentList::new();
        data_pointer::walk(self.space, self.entry, length as u32, access, &mut data)?;
        Ok(data)
    }
}
