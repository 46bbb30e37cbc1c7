//! Queues of a host, in memory that it shares with the device.

use sluice_memory::SharedRegion;
use sluice_nvme::opcode::admin;
use sluice_nvme::{CompletionEntry, SubmissionEntry, register};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// Entries of each queue.
const ENTRIES: u32 = 16;

/// Memory of a host with its queues. All addresses are those of the device.
pub(crate) struct Rings {
    pub(crate) memory: SharedRegion,
    base: u64,
    free: u64,
    queues: BTreeMap<u16, Pair>,
}

/// Submission queue and completion queue of the same number.
struct Pair {
    sq: u64,
    cq: u64,
    tail: u32,
    /// Number of completions that were popped.
    popped: u32,
}

impl Rings {
    /// Takes memory that the device will have at `base`.
    pub(crate) fn new(base: u64, bytes: usize) -> Self {
        let memory = SharedRegion::new("guest", bytes).expect("memory");
        Self { memory, base, free: base, queues: BTreeMap::new() }
    }

    /// Returns the address of the memory that is not allocated yet.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn allocate(&mut self, bytes: usize) -> u64 {
        let address = self.free;
        self.free += bytes.next_multiple_of(4096) as u64;
        assert!(self.free <= self.base + self.memory.len() as u64);
        address
    }

    /// Returns the place of an address in the memory.
    pub(crate) fn offset(&self, address: u64) -> usize {
        (address - self.base) as usize
    }

    /// Adds a queue pair, empty and in new memory. It replaces a pair of the same number.
    fn add(&mut self, id: u16) -> &Pair {
        let pair = Pair { sq: self.allocate(4096), cq: self.allocate(4096), tail: 0, popped: 0 };
        self.queues.insert(id, pair);
        &self.queues[&id]
    }

    /// Adds the admin queue pair. Returns the writes to registers that enable the controller with it.
    pub(crate) fn enabling(&mut self) -> [(u32, Vec<u8>); 4] {
        let Pair { sq, cq, .. } = self.add(0);
        [
            (register::AQA, ((ENTRIES - 1) << 16 | (ENTRIES - 1)).to_le_bytes().to_vec()),
            (register::ASQ, sq.to_le_bytes().to_vec()),
            (register::ACQ, cq.to_le_bytes().to_vec()),
            (register::CC, (1_u32 | 6 << 16 | 4 << 20).to_le_bytes().to_vec()),
        ]
    }

    /// Adds an I/O queue pair. Returns the commands that create it; `vector` is none without interrupts.
    pub(crate) fn creating(&mut self, id: u16, vector: Option<u16>) -> [SubmissionEntry; 2] {
        let Pair { sq, cq, .. } = self.add(id);
        let create = |opcode, address, cdw11| SubmissionEntry {
            opcode,
            dptr: [address, 0],
            cdw10: u32::from(id) | (ENTRIES - 1) << 16,
            cdw11,
            ..SubmissionEntry::default()
        };
        let interrupts = vector.map_or(0, |vector| u32::from(vector) << 16 | 2);
        [
            create(admin::CREATE_IO_CQ, *cq, 1 | interrupts),
            create(admin::CREATE_IO_SQ, *sq, 1 | u32::from(id) << 16),
        ]
    }

    /// Puts an entry into a submission queue. Returns the value for its doorbell.
    pub(crate) fn push(&mut self, queue: u16, entry: SubmissionEntry) -> u32 {
        let pair = self.queues.get_mut(&queue).expect("there is such a queue");
        let at = (pair.sq - self.base) as usize + pair.tail as usize * SubmissionEntry::SIZE;
        self.memory.write(at, entry.as_bytes());
        pair.tail = (pair.tail + 1) % ENTRIES;
        pair.tail
    }

    /// Takes the next completion of a queue, if there is one.
    pub(crate) fn pop(&mut self, queue: u16) -> Option<CompletionEntry> {
        let pair = self.queues.get_mut(&queue).expect("there is such a queue");
        let slot = (pair.popped % ENTRIES) as usize * CompletionEntry::SIZE;
        let mut entry = CompletionEntry::default();
        self.memory.read((pair.cq - self.base) as usize + slot, entry.as_mut_bytes());
        let is_new = entry.phase() == (pair.popped / ENTRIES).is_multiple_of(2);
        pair.popped += u32::from(is_new);
        is_new.then_some(entry)
    }

    /// Returns the value for the doorbell of a completion queue.
    pub(crate) fn head(&self, queue: u16) -> u32 {
        self.queues[&queue].popped % ENTRIES
    }
}
