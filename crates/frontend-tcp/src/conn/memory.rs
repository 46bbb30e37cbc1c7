//! Memory of one connection: the queue pair that the controller uses, staging, headers, and the data of
//! commands.
//!
//! Each connection has its own memfd. It is freed with the connection, and no connection can use up the
//! memory of another. Pages that were never written take no memory.

use sluice_controller::{IN_CAPSULE_MAX, QueuePair, TRANSFER_MAX};
use sluice_memory::Backing;
use sluice_memory::{MapError, PAGE_SIZE, Permissions, Removed, Segment, SharedRegion, Space};
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Acquire;

/// Bytes of one receive, without payload that goes directly to its final place.
pub(super) const STAGING: usize = 64 << 10;

/// Bytes for the headers of a capsule: of its data, with digest, and of its response; or of its R2T.
pub(super) const HEADS: usize = 512;

/// Bytes of the inline buffer of a capsule: the limit of in-capsule data, and enough for most commands.
pub(super) const INLINE: usize = IN_CAPSULE_MAX as usize;

/// Bytes of the pool for the data of larger commands, shared by the capsules of a connection. Commands wait
/// for space in their order. The pool can hold a command of the largest size.
pub(super) const POOL: usize = 4 << 20;

const _: () = assert!(POOL >= TRANSFER_MAX as usize && INLINE.is_multiple_of(PAGE_SIZE));

/// Distance of the guest addresses of two queues.
const STRIDE: u64 = 1 << 28;

/// Memory of a queue, with the offsets of its parts in bytes.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    region: SharedRegion,
    qid: u16,
    /// Entries of both queues: one more than there are capsules, since a full queue has one that is free.
    entries: u32,
    cq: usize,
    heads: usize,
    staging: usize,
    inline: usize,
    pool: usize,
}

impl QueueMemory {
    /// Allocates the memory for `capsules` outstanding capsules.
    pub(crate) fn new(qid: u16, capsules: u16) -> io::Result<Self> {
        Self::with(qid, capsules, |length| SharedRegion::new("sluice-nvme-tcp", length))
    }

    /// Continues with the memory of a connection of another process.
    ///
    /// # Errors
    /// The file is too short, or cannot be mapped.
    pub(crate) fn resume(qid: u16, capsules: u16, file: OwnedFd) -> io::Result<Self> {
        Self::with(qid, capsules, |length| SharedRegion::from_fd(file, 0, length))
    }

    fn with(
        qid: u16,
        capsules: u16,
        region: impl FnOnce(usize) -> io::Result<SharedRegion>,
    ) -> io::Result<Self> {
        let entries = u32::from(capsules) + 1;
        let count = usize::from(capsules);
        let page = |bytes: usize| bytes.next_multiple_of(PAGE_SIZE);
        let cq = page(entries as usize * SubmissionEntry::SIZE);
        let heads = cq + page(entries as usize * CompletionEntry::SIZE);
        // One more, for C2HTermReq.
        let staging = heads + page((count + 1) * HEADS);
        let inline = staging + STAGING;
        let pool = inline + count * INLINE;
        let region = region(pool + POOL)?;
        Ok(Self { region, qid, entries, cq, heads, staging, inline, pool })
    }

    /// Returns the guest address of the beginning, which is never zero.
    fn base(&self) -> u64 {
        (u64::from(self.qid) + 1) * STRIDE
    }

    pub(crate) fn map(&self, space: &mut Space) -> Result<(), MapError> {
        let fd = self.region.fd().try_clone_to_owned().map_err(MapError::from)?;
        let length = self.region.len() as u64;
        space.map(self.base(), length, Permissions::READ_WRITE, Backing::File { fd, offset: 0 })
    }

    pub(crate) fn unmap(&self, space: &mut Space) -> Option<Removed> {
        space.unmap(self.base(), self.region.len() as u64).ok()
    }

    pub(crate) fn queue_pair(&self) -> QueuePair {
        QueuePair { id: self.qid, sq: self.base(), cq: self.base() + self.cq as u64, entries: self.entries }
    }

    /// Returns the file of the memory, for another process.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Returns whether a range is in the staging area.
    pub(super) fn has_staged(&self, range: &Range<usize>) -> bool {
        range.start <= range.end && range.end <= STAGING
    }

    /// Returns whether a range is where data of commands can be.
    pub(super) fn has_data(&self, range: &Range<usize>) -> bool {
        self.inline <= range.start && range.start <= range.end && range.end <= self.region.len()
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the region, for release elsewhere.
    pub(crate) fn into_region(self) -> SharedRegion {
        self.region
    }

    /// Returns the offset of the headers of capsule `slot`. The header of C2HTermReq comes after the last.
    pub(super) fn heads(&self, slot: u16) -> usize {
        self.heads + usize::from(slot) * HEADS
    }

    pub(super) fn term_head(&self) -> usize {
        self.heads((self.entries - 1) as u16)
    }

    pub(super) fn staging(&self) -> usize {
        self.staging
    }

    pub(super) fn inline(&self, slot: u16) -> usize {
        self.inline + usize::from(slot) * INLINE
    }

    pub(super) fn pool(&self) -> usize {
        self.pool
    }

    /// Returns the guest address of an offset.
    pub(super) fn address(&self, offset: usize) -> u64 {
        self.base() + offset as u64
    }

    pub(super) fn segment(&self, offset: usize, length: usize) -> Segment {
        self.region.segment(offset, length as u32)
    }

    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.region.read(offset, bytes);
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes);
    }

    pub(super) fn copy_within(&self, from: usize, to: usize, length: usize) {
        self.region.copy_within(from, to, length);
    }

    /// Returns all pages but those of the queues to the kernel. They read as zeros afterwards.
    pub(super) fn give_back(&self) {
        self.region.give_back(self.heads, self.region.len() - self.heads);
    }

    pub(super) fn zero(&self, offset: usize, length: usize) {
        self.region.fill(offset, length, 0);
    }

    /// Returns the digest of `length` bytes at `offset`.
    pub(super) fn digest(&self, offset: usize, length: usize) -> u32 {
        let mut digest = sluice_nvme_tcp::Digest::new();
        let mut piece = [0; PAGE_SIZE];
        for at in (0..length).step_by(PAGE_SIZE) {
            let piece = &mut piece[..PAGE_SIZE.min(length - at)];
            self.region.read(offset + at, piece);
            digest.add(piece);
        }
        digest.value()
    }

    /// Writes a submission queue entry.
    pub(super) fn put_entry(&self, index: u32, entry: &SubmissionEntry) {
        use std::sync::atomic::Ordering::Relaxed;
        let words = self.region.words::<8>(index as usize * SubmissionEntry::SIZE);
        words.iter().zip(entry.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
    }

    /// Clears the completion queue, so that no entry has a phase of one.
    pub(super) fn clear_completions(&self) {
        self.region.fill(self.cq, self.entries as usize * CompletionEntry::SIZE, 0);
    }

    /// Returns the completion queue entry at `index`, if it has this phase.
    pub(super) fn completion(&self, index: u32, phase: bool) -> Option<CompletionEntry> {
        let words = self.region.words::<2>(self.cq + index as usize * CompletionEntry::SIZE);
        let high = words[1].load(Acquire);
        let entry = [words[0].load(Acquire), high];
        let entry: CompletionEntry = zerocopy::transmute!(entry);
        (entry.phase() == phase).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the parts of a queue's memory follow one another, and that each is as long as its limit.
    #[test]
    fn the_parts_of_a_queue_do_not_overlap() {
        for capsules in [1, 63, 64, 1023] {
            let memory = QueueMemory::new(5, capsules).expect("memory");
            let (count, entries) = (usize::from(capsules), u32::from(capsules) + 1);
            let page = |bytes: usize| bytes.next_multiple_of(4096);
            let pair = memory.queue_pair();
            assert_eq!((memory.entries(), pair.entries, pair.id, pair.sq), (entries, entries, 5, 6 << 28));
            let cq = page(entries as usize * 64);
            assert_eq!(pair.cq, (6 << 28) + cq as u64);
            let heads = cq + page(entries as usize * 16);
            assert_eq!((memory.heads(0), memory.heads(capsules - 1)), (heads, heads + (count - 1) * 512));
            assert_eq!(memory.term_head(), heads + count * 512);
            let staging = heads + page((count + 1) * 512);
            assert_eq!(memory.staging(), staging);
            let inline = staging + (64 << 10);
            assert_eq!(
                (memory.inline(0), memory.inline(capsules - 1)),
                (inline, inline + (count - 1) * 8192)
            );
            let pool = inline + count * 8192;
            assert_eq!((memory.pool(), memory.region.len()), (pool, pool + (4 << 20)));
            assert!((memory.region.len() as u64) < STRIDE, "the next queue's memory begins behind it");
            let end = memory.region.len();
            for (range, is_data) in [
                (inline..inline, true),
                (inline..end, true),
                (inline - 1..end, false),
                (inline..end + 1, false),
                (end..end, true),
                (pool..inline, pool == inline),
            ] {
                assert_eq!(memory.has_data(&range), is_data, "{range:?}");
            }
            for (range, is_staged) in [
                (0..0, true),
                (0..64 << 10, true),
                (0..(64 << 10) + 1, false),
                (Range { start: 5, end: 4 }, false),
                (70_000..70_001, false),
            ] {
                assert_eq!(memory.has_staged(&range), is_staged, "{range:?}");
            }
        }
    }

    #[test]
    fn entries_and_data_are_read_as_they_were_written() {
        let memory = QueueMemory::new(0, 3).expect("memory");
        assert_eq!(memory.address(8), STRIDE + 8);
        let entry = SubmissionEntry { cid: 7, cdw15: 9, ..SubmissionEntry::default() };
        memory.put_entry(2, &entry);
        let mut bytes = [0; 64];
        memory.read(2 * 64, &mut bytes);
        assert_eq!(bytes, zerocopy::IntoBytes::as_bytes(&entry));
        let place = memory.cq + 3 * 16;
        // The phase is bit 16 of the last dword.
        memory.write(place, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1, 0]);
        assert_eq!(memory.completion(3, true).map(|entry| entry.cid), Some(5));
        assert!(memory.completion(3, false).is_none() && memory.completion(2, true).is_none());
        memory.clear_completions();
        assert!(memory.completion(3, true).is_none() && memory.completion(3, false).is_some());
        let data: Vec<u8> = (0..10_000).map(|n| (n % 251) as u8).collect();
        let pool = memory.pool();
        memory.write(pool + 3, &data);
        assert_eq!(memory.digest(pool + 3, data.len()), sluice_nvme_tcp::crc32c(&data));
        memory.copy_within(pool + 3, pool + 20_000, data.len());
        let mut copy = vec![0; data.len()];
        memory.read(pool + 20_000, &mut copy);
        assert!(copy == data);
        memory.zero(pool + 20_001, 5000);
        memory.read(pool + 20_000, &mut copy);
        assert!(
            copy[0] == data[0] && copy[1..5001].iter().all(|byte| *byte == 0) && copy[5001..] == data[5001..]
        );
        let segment = memory.segment(pool, 100);
        assert_eq!(segment.len(), 100);
        // The queues stay, and headers and data go.
        memory.give_back();
        memory.read(2 * 64, &mut bytes);
        assert_eq!(bytes, zerocopy::IntoBytes::as_bytes(&entry));
        memory.read(pool + 3, &mut copy);
        assert!(copy.iter().all(|byte| *byte == 0));
    }
}
