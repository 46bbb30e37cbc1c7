//! Submission queue entries of the commands that a driver sends. The submitter adds the data pointer. Numbers
//! are one-based here and 0's-based in the entry.

use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{Cns, FeatureId, LogId, SubmissionEntry};

fn entry(opcode: u8, nsid: u32) -> SubmissionEntry {
    SubmissionEntry { opcode, nsid, ..SubmissionEntry::default() }
}

/// Returns a 0's based count, in the lower half of a dword.
fn zeros_based(count: u32) -> u32 {
    count.wrapping_sub(1) & 0xffff
}

pub fn identify(cns: Cns, nsid: u32) -> SubmissionEntry {
    SubmissionEntry { cdw10: cns.0.into(), ..entry(admin::IDENTIFY, nsid) }
}

/// Builds Create I/O Completion Queue, physically contiguous, at an address; with an interrupt vector or
/// none.
pub fn create_cq(id: u16, iova: u64, entries: u32, vector: Option<u16>) -> SubmissionEntry {
    const CONTIGUOUS: u32 = 1;
    const INTERRUPTS: u32 = 1 << 1;
    SubmissionEntry {
        dptr: [iova, 0],
        cdw10: u32::from(id) | zeros_based(entries) << 16,
        cdw11: CONTIGUOUS | vector.map_or(0, |vector| INTERRUPTS | u32::from(vector) << 16),
        ..entry(admin::CREATE_IO_CQ, 0)
    }
}

/// Builds Create I/O Submission Queue, physically contiguous, at an address, of the default priority.
pub fn create_sq(id: u16, iova: u64, entries: u32, cq: u16) -> SubmissionEntry {
    const CONTIGUOUS: u32 = 1;
    SubmissionEntry {
        dptr: [iova, 0],
        cdw10: u32::from(id) | zeros_based(entries) << 16,
        cdw11: CONTIGUOUS | u32::from(cq) << 16,
        ..entry(admin::CREATE_IO_SQ, 0)
    }
}

pub fn delete_sq(id: u16) -> SubmissionEntry {
    SubmissionEntry { cdw10: id.into(), ..entry(admin::DELETE_IO_SQ, 0) }
}

pub fn delete_cq(id: u16) -> SubmissionEntry {
    SubmissionEntry { cdw10: id.into(), ..entry(admin::DELETE_IO_CQ, 0) }
}

/// Builds Get Log Page of `length` bytes, a multiple of four, from an offset. `lid` and `retain` (do not
/// clear the asynchronous event) are in one dword with the lower half of the length.
pub fn get_log_page(lid: LogId, nsid: u32, offset: u64, length: u32, retain: bool) -> SubmissionEntry {
    let dwords = (length / 4).wrapping_sub(1);
    SubmissionEntry {
        cdw10: u32::from(lid.0) | u32::from(retain) << 15 | (dwords & 0xffff) << 16,
        cdw11: dwords >> 16,
        cdw12: offset as u32,
        cdw13: (offset >> 32) as u32,
        ..entry(admin::GET_LOG_PAGE, nsid)
    }
}

pub fn get_features(fid: FeatureId, nsid: u32) -> SubmissionEntry {
    SubmissionEntry { cdw10: fid.0.into(), ..entry(admin::GET_FEATURES, nsid) }
}

pub fn set_features(fid: FeatureId, nsid: u32, value: u32) -> SubmissionEntry {
    SubmissionEntry { cdw10: fid.0.into(), cdw11: value, ..entry(admin::SET_FEATURES, nsid) }
}

/// Returns the value of Set Features, Number of Queues, for `count` queues of either kind.
pub fn queue_count(count: u32) -> u32 {
    zeros_based(count) | zeros_based(count) << 16
}

pub fn doorbell_buffer_config(values: u64, events: u64) -> SubmissionEntry {
    SubmissionEntry { dptr: [values, events], ..entry(admin::DOORBELL_BUFFER_CONFIG, 0) }
}

pub fn async_event_request() -> SubmissionEntry {
    entry(admin::ASYNC_EVENT_REQUEST, 0)
}

/// Builds a command with a range of blocks.
fn range(opcode: u8, nsid: u32, slba: u64, blocks: u32) -> SubmissionEntry {
    SubmissionEntry {
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: zeros_based(blocks),
        ..entry(opcode, nsid)
    }
}

#[inline]
pub fn read(nsid: u32, slba: u64, blocks: u32) -> SubmissionEntry {
    range(io::READ, nsid, slba, blocks)
}

#[inline]
pub fn write(nsid: u32, slba: u64, blocks: u32) -> SubmissionEntry {
    range(io::WRITE, nsid, slba, blocks)
}

pub fn compare(nsid: u32, slba: u64, blocks: u32) -> SubmissionEntry {
    range(io::COMPARE, nsid, slba, blocks)
}

/// Builds Write Zeroes; with `deallocate` the blocks may be deallocated instead of written.
pub fn write_zeroes(nsid: u32, slba: u64, blocks: u32, deallocate: bool) -> SubmissionEntry {
    let mut entry = range(io::WRITE_ZEROES, nsid, slba, blocks);
    entry.cdw12 |= u32::from(deallocate) << 25;
    entry
}

/// Adds Force Unit Access to a Read or Write.
pub fn with_fua(entry: SubmissionEntry) -> SubmissionEntry {
    SubmissionEntry { cdw12: entry.cdw12 | 1 << 30, ..entry }
}

pub fn flush(nsid: u32) -> SubmissionEntry {
    entry(io::FLUSH, nsid)
}

/// Builds Dataset Management, deallocate, for `ranges` ranges in the data.
pub fn deallocate(nsid: u32, ranges: u32) -> SubmissionEntry {
    const DEALLOCATE: u32 = 1 << 2;
    let cdw10 = zeros_based(ranges) & 0xff;
    SubmissionEntry { cdw10, cdw11: DEALLOCATE, ..entry(io::DATASET_MANAGEMENT, nsid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_from_one_here_and_from_zero_there() {
        let entry = write(3, 0x1_0000_0002, 65_536);
        assert_eq!((entry.slba(), entry.blocks(), entry.nsid), (0x1_0000_0002, 65_536, 3));
        assert_eq!(entry.cdw12, 0xffff);
        assert!(with_fua(entry).fua() && !entry.fua());
        assert!(write_zeroes(1, 0, 1, true).deac());
    }

    #[test]
    fn long_logs() {
        let entry = get_log_page(LogId::SMART_HEALTH, 1, 0x1_0000_0004, 4 << 16, true);
        assert_eq!((entry.cdw10, entry.cdw11), (0xffff_8002, 0));
        assert_eq!(get_log_page(LogId::SMART_HEALTH, 1, 0, (4 << 16) + 4, false).cdw11, 1);
        assert_eq!((entry.cdw12, entry.cdw13), (4, 1));
    }
}
