//! Admin commands with their answers.

use crate::ring::RingMemory;
use crate::{CompletionRing, Controller, DmaAllocator, Error, QueueLayout, QueuePair, SubmissionRing, entry};
use sluice_nvme::identify::IdentifyNamespace;
use sluice_nvme::{Cns, CompletionEntry, FeatureId, LogId, PAGE_SIZE, SubmissionEntry};
use std::sync::Arc;

/// Numbers of I/O queues of either kind that the controller grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    pub submission: u32,
    pub completion: u32,
}

impl Controller {
    /// Returns a page of Identify data.
    pub fn identify(&mut self, cns: Cns, nsid: u32) -> Result<Box<[u8; 4096]>, Error> {
        let mut data = Box::new([0; 4096]);
        self.admin_read(entry::identify(cns, nsid), &mut data[..])?;
        Ok(data)
    }

    pub fn identify_namespace(&mut self, nsid: u32) -> Result<IdentifyNamespace, Error> {
        let data = self.identify(Cns::NAMESPACE, nsid)?;
        Ok(zerocopy::transmute!(*data))
    }

    /// Returns the NSIDs of all active namespaces.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, Error> {
        let mut found: Vec<u32> = Vec::new();
        loop {
            let after = found.last().copied().unwrap_or(0);
            let data = self.identify(Cns::ACTIVE_NAMESPACES, after)?;
            let (list, _) = data.as_chunks::<4>();
            let list = list.iter().map(|nsid| u32::from_le_bytes(*nsid)).take_while(|nsid| *nsid != 0);
            let before = found.len();
            for nsid in list {
                if nsid <= found.last().copied().unwrap_or(0) {
                    return Err(Error::Protocol("a namespace list that is not in order"));
                }
                found.push(nsid);
            }
            if found.len() - before < PAGE_SIZE / size_of::<u32>() {
                return Ok(found);
            }
        }
    }

    /// Reads a part of a log page, from `offset` bytes on. Length and offset are multiples of four.
    pub fn get_log_page(&mut self, lid: LogId, nsid: u32, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let mut offset = offset;
        for chunk in data.chunks_mut(PAGE_SIZE) {
            let entry = entry::get_log_page(lid, nsid, offset, chunk.len() as u32, false);
            self.admin_read(entry, chunk)?;
            offset += chunk.len() as u64;
        }
        Ok(())
    }

    /// Returns the value of a feature without data.
    pub fn get_feature(&mut self, fid: FeatureId, nsid: u32) -> Result<u32, Error> {
        Ok(self.admin(entry::get_features(fid, nsid))?.dw0)
    }

    /// Sets a feature that has no data; what the controller answered.
    pub fn set_feature(&mut self, fid: FeatureId, nsid: u32, value: u32) -> Result<u32, Error> {
        Ok(self.admin(entry::set_features(fid, nsid, value))?.dw0)
    }

    /// Requests `count` I/O queues of either kind; the controller may grant more or fewer.
    pub fn set_queue_count(&mut self, count: u32) -> Result<QueueCount, Error> {
        let granted = self.set_feature(FeatureId::NUMBER_OF_QUEUES, 0, entry::queue_count(count))?;
        Ok(QueueCount { submission: (granted & 0xffff) + 1, completion: (granted >> 16) + 1 })
    }

    /// Creates a completion queue and a submission queue of the same number, which is not zero, with an
    /// interrupt vector or none.
    pub fn create_queue_pair(
        &mut self,
        id: u16,
        layout: QueueLayout,
        vector: Option<u16>,
    ) -> Result<QueuePair, Error> {
        let queue = self.lay_out_queue(id, layout)?;
        self.create(queue, layout, vector)
    }

    /// Creates an I/O queue pair, with all memory of the queues from `memory`.
    pub fn create_queue_pair_in(
        &mut self,
        memory: &DmaAllocator,
        id: u16,
        layout: QueueLayout,
        vector: Option<u16>,
    ) -> Result<QueuePair, Error> {
        let queue = QueuePair::new(id, layout, memory, self.doorbells())?;
        self.create(queue, layout, vector)
    }

    fn create(
        &mut self,
        mut queue: QueuePair,
        layout: QueueLayout,
        vector: Option<u16>,
    ) -> Result<QueuePair, Error> {
        let id = queue.id();
        let iova = queue.completion().iova();
        self.admin(entry::create_cq(id, iova, layout.entries, vector))?;
        let iova = queue.submission().iova();
        if let Err(error) = self.admin(entry::create_sq(id, iova, layout.entries, id)) {
            self.admin(entry::delete_cq(id))?;
            return Err(error);
        }
        Ok(queue)
    }

    /// Deletes both queues of a pair, and with them what was in flight.
    pub fn delete_queue_pair(&mut self, queue: QueuePair) -> Result<(), Error> {
        self.admin(entry::delete_sq(queue.id()))?;
        self.admin(entry::delete_cq(queue.id())).map(drop)
    }

    /// Creates a completion queue alone.
    pub fn create_completion_queue(
        &mut self,
        id: u16,
        entries: u32,
        vector: Option<u16>,
    ) -> Result<CompletionRing, Error> {
        let ring_memory = self.ring_memory(entries, size_of::<CompletionEntry>())?;
        let ring = CompletionRing::new(ring_memory, id, self.doorbells());
        self.admin(entry::create_cq(id, ring.iova(), entries, vector))?;
        Ok(ring)
    }

    /// Creates a submission queue alone, on a completion queue that exists.
    pub fn create_submission_queue(
        &mut self,
        id: u16,
        entries: u32,
        cq: u16,
    ) -> Result<SubmissionRing, Error> {
        let ring_memory = self.ring_memory(entries, size_of::<SubmissionEntry>())?;
        let ring = SubmissionRing::new(ring_memory, id, self.doorbells());
        self.admin(entry::create_sq(id, ring.iova(), entries, cq))?;
        Ok(ring)
    }

    fn ring_memory(&self, entries: u32, size: usize) -> Result<RingMemory, Error> {
        let buffer = Arc::new(self.memory().allocate(entries as usize * size)?);
        Ok(RingMemory { buffer, offset: 0, entries })
    }
}
