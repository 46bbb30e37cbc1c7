//! A minimal device for tests of the host: registers that become ready, queues that are processed in order,
//! commands that do nothing. It uses shared memory like a real device.

use crate::doorbell::Doorbells;
use crate::{DmaAllocator, Error, PciTransport, Region};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use zerocopy::FromBytes;

/// Creates an allocator for a device that does nothing else.
pub(crate) fn memory_only() -> DmaAllocator {
    DmaAllocator::new(TestDevice::new(false))
}

#[derive(Debug)]
pub(crate) struct TestDevice {
    state: Mutex<State>,
    page: Option<Arc<SharedRegion>>,
    /// Doorbells that came as messages.
    pub(crate) posts: AtomicU64,
    /// The connection: the host's end, and the device's.
    line: [UnixStream; 2],
}

#[derive(Debug, Default)]
struct State {
    maps: Vec<(u64, SharedRegion)>,
    registers: Vec<u8>,
    config: Vec<u8>,
    queues: BTreeMap<u16, Queue>,
    /// Addresses of shadow doorbells and event indexes.
    shadow: Option<[u64; 2]>,
    events: Vec<u16>,
}

/// A submission queue and the completion queue of the same number.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    sq: u64,
    cq: u64,
    entries: u32,
    sq_head: u32,
    cq_tail: u32,
    /// Rounds of the completion queue that are over.
    rounds: u32,
}

impl TestDevice {
    pub(crate) fn new(mapped: bool) -> Arc<Self> {
        let page = mapped.then(|| Arc::new(SharedRegion::new("doorbells", 4096).expect("memory")));
        let mut state = State { registers: vec![0; 0x1000], config: vec![0; 256], ..State::default() };
        // 1024 entries, half a second until ready.
        state.registers[CAP as usize..][..8].copy_from_slice(&(1023u64 | 1 << 24).to_le_bytes());
        let line = UnixStream::pair().expect("two sockets").into();
        Arc::new(Self { state: Mutex::new(state), page, posts: AtomicU64::new(0), line })
    }

    /// Returns doorbells like those of a controller without shadow doorbells.
    pub(crate) fn doorbells(self: &Arc<Self>) -> Doorbells {
        Doorbells { transport: self.clone(), stride: 4, shadow: None }
    }

    /// Registers a queue without a command.
    pub(crate) fn attach(&self, id: u16, sq: u64, cq: u64, entries: u32) {
        self.state().queues.insert(id, Queue { sq, cq, entries, ..Queue::default() });
    }

    /// Processes the commands up to the mapped doorbell of a queue.
    pub(crate) fn turn(&self, id: u16) {
        let page = self.page.as_ref().expect("mapped doorbells");
        let tail = page.atomic_u32(usize::from(id) * 8).load(Ordering::Acquire);
        self.state().work(id, tail);
    }

    /// Reads the shadow doorbells as a device does that has just been woken, then sets the event index for
    /// the next command.
    pub(crate) fn turn_shadow(&self, id: u16) {
        let mut state = self.state();
        let Some([values, events]) = state.shadow else { return };
        let tail = state.read_u32(values + u64::from(id) * 8);
        state.work(id, tail);
        state.write_u32(events + u64::from(id) * 8, tail);
    }

    /// Reports an event to a request that waits for one.
    pub(crate) fn raise(&self, dw0: u32) {
        let mut state = self.state();
        let cid = state.events.pop().expect("a request");
        state.complete(0, cid, dw0, Status::SUCCESS);
    }

    /// Completes any identifier, in flight or not.
    pub(crate) fn complete(&self, id: u16, cid: u16) {
        self.state().complete(id, cid, 0, Status::SUCCESS);
    }

    /// Returns the entry in a slot of a submission queue.
    pub(crate) fn entry(&self, id: u16, slot: u32) -> SubmissionEntry {
        let state = self.state();
        state.entry(state.queues[&id].sq + u64::from(slot) * 64)
    }

    /// Ends the device like the death of its process. It does nothing more, except for explicit calls.
    pub(crate) fn die(&self) {
        self.line[1].shutdown(Shutdown::Both).expect("connected");
    }

    pub(crate) fn mapped_ranges(&self) -> usize {
        self.state().maps.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test goes on after a panic")
    }
}

impl State {
    /// Returns the region of an address, and the offset in it.
    fn find(&self, iova: u64) -> (&SharedRegion, usize) {
        let inside = |start: u64, region: &SharedRegion| iova >= start && iova - start < region.len() as u64;
        let found = self.maps.iter().find(|(start, region)| inside(*start, region));
        let (start, region) = found.expect("an address that is mapped");
        (region, (iova - start) as usize)
    }

    fn read_u32(&self, iova: u64) -> u32 {
        let (region, offset) = self.find(iova);
        region.atomic_u32(offset).load(Ordering::Acquire)
    }

    fn write_u32(&self, iova: u64, value: u32) {
        let (region, offset) = self.find(iova);
        region.atomic_u32(offset).store(value, Ordering::SeqCst);
    }

    fn register(&self, offset: u32, size: usize) -> u64 {
        let bytes = &self.registers[offset as usize..][..size];
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn entry(&self, iova: u64) -> SubmissionEntry {
        let mut bytes = [0; SubmissionEntry::SIZE];
        let (region, offset) = self.find(iova);
        region.read(offset, &mut bytes);
        SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes")
    }

    /// Applies CC.EN: creates the admin queue, and sets CSTS.RDY.
    fn configure(&mut self) {
        let enabled = self.register(CC, 4) & 1 != 0;
        self.registers[CSTS as usize] = enabled.into();
        self.queues.clear();
        self.events.clear();
        self.shadow = None;
        if enabled {
            let entries = (self.register(AQA, 4) as u32 & 0xfff) + 1;
            let (sq, cq) = (self.register(ASQ, 8), self.register(ACQ, 8));
            self.queues.insert(0, Queue { sq, cq, entries, ..Queue::default() });
        }
    }

    fn work(&mut self, id: u16, tail: u32) {
        while let Some(queue) = self.queues.get_mut(&id)
            && queue.sq_head != tail
        {
            let at = queue.sq + u64::from(queue.sq_head) * 64;
            queue.sq_head = (queue.sq_head + 1) % queue.entries;
            let entry = self.entry(at);
            match id {
                0 => self.admin(entry),
                _ => self.complete(id, entry.cid, entry.cdw10, io_status(&entry)),
            }
        }
    }

    fn admin(&mut self, entry: SubmissionEntry) {
        let id = entry.cdw10 as u16;
        let entries = (entry.cdw10 >> 16) + 1;
        let mut dw0 = 0;
        match entry.opcode {
            admin::IDENTIFY => self.identify(&entry),
            admin::CREATE_IO_CQ => {
                self.queues.insert(id, Queue { cq: entry.dptr[0], entries, ..Queue::default() });
            }
            admin::CREATE_IO_SQ => match self.queues.get_mut(&id) {
                Some(queue) => queue.sq = entry.dptr[0],
                None => return self.complete(0, entry.cid, 0, Status::COMPLETION_QUEUE_INVALID),
            },
            admin::DELETE_IO_SQ => {}
            admin::DELETE_IO_CQ => drop(self.queues.remove(&id)),
            admin::SET_FEATURES => dw0 = 0x0003_0002,
            admin::DOORBELL_BUFFER_CONFIG => self.shadow = Some(entry.dptr),
            admin::ASYNC_EVENT_REQUEST => return self.events.push(entry.cid),
            _ => return self.complete(0, entry.cid, 0, Status::INVALID_OPCODE),
        }
        self.complete(0, entry.cid, dw0, Status::SUCCESS);
    }

    /// Writes Identify data: a controller with Doorbell Buffer Config, or namespaces 1 to 1500, of 100 blocks
    /// of 512 bytes.
    fn identify(&self, entry: &SubmissionEntry) {
        let mut data = [0u8; 4096];
        match entry.cdw10 as u8 {
            0 => (data[0], data[130]) = (100, 9),
            1 => (data[77], data[257]) = (5, 1),
            _ => {
                for (slot, nsid) in data.chunks_exact_mut(4).zip(entry.nsid + 1..=1500) {
                    slot.copy_from_slice(&nsid.to_le_bytes());
                }
            }
        }
        let (region, offset) = self.find(entry.dptr[0]);
        region.write(offset, &data);
    }

    fn complete(&mut self, id: u16, cid: u16, dw0: u32, status: Status) {
        let queue = self.queues.get_mut(&id).expect("a queue");
        let phase = queue.rounds.is_multiple_of(2);
        let at = queue.cq + u64::from(queue.cq_tail) * 16;
        let completion = CompletionEntry::new(dw0, queue.sq_head as u16, id, cid, status, phase);
        queue.cq_tail = (queue.cq_tail + 1) % queue.entries;
        queue.rounds += u32::from(queue.cq_tail == 0);
        let [low, high]: [u64; 2] = zerocopy::transmute!(completion);
        let (region, offset) = self.find(at);
        region.atomic_u64(offset).store(low, Ordering::Relaxed);
        region.atomic_u64(offset + 8).store(high, Ordering::Release);
    }
}

/// Reads and flushes succeed; a write finds what it writes to protected.
fn io_status(entry: &SubmissionEntry) -> Status {
    if entry.opcode == io::WRITE { Status::NAMESPACE_WRITE_PROTECTED } else { Status::SUCCESS }
}

impl PciTransport for TestDevice {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let state = self.state();
        let bytes = if region == Region::CONFIG { &state.config } else { &state.registers };
        data.copy_from_slice(&bytes[offset as usize..][..data.len()]);
        Ok(())
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut state = self.state();
        let config = region == Region::CONFIG;
        let bytes = if config { &mut state.config } else { &mut state.registers };
        bytes[offset as usize..][..data.len()].copy_from_slice(data);
        if !config && offset == u64::from(CC) {
            state.configure();
        }
        Ok(())
    }

    fn post(&self, offset: u64, value: u32) -> Result<(), Error> {
        self.posts.fetch_add(1, Ordering::Relaxed);
        let index = (offset - u64::from(DOORBELLS)) / 4;
        if index.is_multiple_of(2) {
            self.state().work((index / 2) as u16, value);
        }
        Ok(())
    }

    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>> {
        self.page.as_ref()
    }

    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error> {
        let copy = SharedRegion::from_fd(memory.fd().try_clone_to_owned()?, 0, memory.len())?;
        self.state().maps.push((iova, copy));
        Ok(())
    }

    fn unmap(&self, iova: u64, size: u64) -> Result<(), Error> {
        let mut state = self.state();
        let before = state.maps.len();
        state.maps.retain(|(start, region)| (*start, region.len() as u64) != (iova, size));
        assert_eq!(state.maps.len(), before - 1, "what is unmapped was mapped once");
        Ok(())
    }

    fn vectors(&self) -> u32 {
        0
    }

    fn set_interrupt(&self, _vector: u32, _eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        Err(Error::Unsupported("interrupts of the test device"))
    }

    fn disable_interrupts(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        self.write32(Region::BAR0, CC.into(), 0)
    }

    fn presence(&self) -> Option<BorrowedFd<'_>> {
        Some(self.line[0].as_fd())
    }
}
