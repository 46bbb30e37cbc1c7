//! A chunk: a command, or the part of it that one command of the controller can carry.

use super::in_flight::DataKind;
use crate::remote::{BLOCKS_MAX, NamespaceInfo};
use sluice_command::{Operation, Request};
use sluice_host::entry;
use sluice_nvme::{SglDescriptor, Status, SubmissionEntry};

/// Bytes that one Dataset Management command deallocates at most.
const DEALLOCATE_MAX: u64 = 1 << 30;

/// Bytes of zeros in one write, if the controller has no Write Zeroes.
pub(super) const ZEROS: usize = 64 << 10;

/// Bytes of a range of Dataset Management (NVM Command Set 3.2.3).
const RANGE: u32 = 16;

/// The next command for the controller, on behalf of a command of the drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Entry, complete but for the CID.
    pub(super) entry: SubmissionEntry,
    /// Bytes of the request.
    pub(super) bytes: u64,
    /// Bytes of data that move.
    pub(super) length: u32,
    pub(super) data_kind: DataKind,
    pub(super) in_capsule: bool,
}

impl Chunk {
    /// Returns the chunk after the first `done` bytes of a request to the first `size` bytes of namespace
    /// `nsid`.
    ///
    /// # Errors
    /// LBA_OUT_OF_RANGE beyond the size. INTERNAL_ERROR if the request is not whole blocks, which is a
    /// mistake of a layer above.
    pub(super) fn next(
        request: &Request,
        done: u64,
        info: &NamespaceInfo,
        (nsid, size, in_capsule_max): (u32, u64, u32),
    ) -> Result<Self, Status> {
        if request.end() > size {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let (offset, left) = (request.offset + done, request.length.saturating_sub(done));
        if (offset | left) & u64::from(info.block_size() - 1) != 0 {
            return Err(Status::INTERNAL_ERROR);
        }
        let transfer = (info.transfer_max as u64).min(BLOCKS_MAX << info.block_shift);
        let most = match request.operation {
            Operation::WriteZeroes if !info.write_zeroes => transfer.min(ZEROS as u64),
            Operation::Deallocate => DEALLOCATE_MAX,
            _ => transfer,
        };
        let bytes = left.min(most);
        let (slba, blocks) = (offset >> info.block_shift, (bytes >> info.block_shift) as u32);
        let fua = |entry| if request.fua { entry::with_fua(entry) } else { entry };
        let (entry, data_kind, length) = match request.operation {
            Operation::Flush => (entry::flush(nsid), DataKind::None, 0),
            Operation::Read => (fua(entry::read(nsid, slba, blocks)), DataKind::Read, bytes as u32),
            Operation::Write => (fua(entry::write(nsid, slba, blocks)), DataKind::Write, bytes as u32),
            Operation::WriteZeroes if info.write_zeroes => {
                let deallocate = request.deallocate && info.zeroes_deallocate;
                (fua(entry::write_zeroes(nsid, slba, blocks, deallocate)), DataKind::None, 0)
            }
            Operation::WriteZeroes => (fua(entry::write(nsid, slba, blocks)), DataKind::Zeros, bytes as u32),
            Operation::Deallocate => {
                let range = u128::from(blocks) << 32 | u128::from(slba) << 64;
                (entry::deallocate(nsid, 1), DataKind::Bytes(range.to_le_bytes()), RANGE)
            }
        };
        let in_capsule = !matches!(data_kind, DataKind::Read | DataKind::None) && length <= in_capsule_max;
        let pointer = match in_capsule {
            true => SglDescriptor::in_capsule(length),
            false => SglDescriptor::apart(length),
        };
        const SGL: u8 = 1 << 6;
        let entry = SubmissionEntry { flags: SGL, dptr: pointer.to_dptr(), ..entry };
        Ok(Self { entry, bytes, length, data_kind, in_capsule })
    }
}
