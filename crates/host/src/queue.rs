//! A queue pair: two rings and the identifiers of the commands between them.

use crate::doorbell::Doorbells;
use crate::lists::ListPages;
use crate::ring::RingMemory;
use crate::wait::{Backoff, check_presence};
use crate::{
    CompletionRing, Deadline, DmaAllocator, DmaRange, Error, Interrupt, PciTransport, SubmissionRing,
};
use sluice_nvme::{CompletionEntry, PAGE_SIZE, SubmissionEntry};
use std::sync::Arc;

/// Bits 7:6 of the flags of an entry whose data pointer is an SGL (Base 3.3.3.1, PSDT).
const PSDT_SGL: u8 = 0b01 << 6;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueueLayout {
    /// Entries of either ring, 2 to 65,536. One command fewer can be in flight.
    pub entries: u32,
    /// The longest transfer for which there is room for a PRP list, in bytes.
    pub max_transfer: usize,
}

impl Default for QueueLayout {
    fn default() -> Self {
        Self { entries: 128, max_transfer: 1 << 20 }
    }
}

/// The host's side of a submission queue and the completion queue of the same number.
///
/// A queue pair never waits, and takes no lock and no memory per command. It does not notify the device
/// before [`QueuePair::ring`]. A command in flight holds an identifier. There is one identifier fewer than
/// either ring has entries, so neither ring overflows unless the device violates the protocol.
#[derive(Debug)]
pub struct QueuePair {
    id: u16,
    sq: SubmissionRing,
    cq: CompletionRing,
    slots: Slots,
    lists: ListPages,
    strays: u64,
    /// Transport, for checks whether the device is still there.
    transport: Arc<dyn PciTransport>,
}

impl QueuePair {
    /// Takes the memory for a queue pair and shows it to the device, but does not create the queues.
    pub(crate) fn new(
        id: u16,
        layout: QueueLayout,
        memory: &DmaAllocator,
        doorbells: &Doorbells,
    ) -> Result<Self, Error> {
        let QueueLayout { entries, max_transfer } = layout;
        if !(2..=65_536).contains(&entries) {
            return Err(Error::Unsupported("a queue of fewer than 2 or more than 65,536 entries"));
        }
        let completions = (entries as usize * SubmissionEntry::SIZE).next_multiple_of(PAGE_SIZE);
        let lists = completions + (entries as usize * CompletionEntry::SIZE).next_multiple_of(PAGE_SIZE);
        let list_pages = ListPages::pages_for(max_transfer);
        let buffer = Arc::new(memory.allocate(lists + entries as usize * list_pages * PAGE_SIZE)?);
        let ring_memory = |offset| RingMemory { buffer: buffer.clone(), offset, entries };
        Ok(Self {
            id,
            sq: SubmissionRing::new(ring_memory(0), id, doorbells),
            cq: CompletionRing::new(ring_memory(completions), id, doorbells),
            slots: Slots::new(entries - 1),
            lists: ListPages::new(buffer.clone(), lists, list_pages),
            strays: 0,
            transport: doorbells.transport.clone(),
        })
    }

    /// Returns the identifier of both queues.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Submits a command. Its identifier is chosen here and returned; `None` if all of them are in flight.
    #[inline(always)]
    pub fn submit(&mut self, entry: SubmissionEntry) -> Option<u16> {
        let cid = self.slots.take()?;
        self.sq.push(&SubmissionEntry { cid, ..entry });
        Some(cid)
    }

    /// Puts a command in the queue whose data pointer is PRPs for one range. `None` if all identifiers
    /// are in flight.
    ///
    /// # Panics
    /// If the range is longer than the queue was laid out for.
    #[inline(always)]
    pub fn submit_prp(&mut self, entry: SubmissionEntry, data: DmaRange) -> Option<u16> {
        let cid = self.slots.take()?;
        let dptr = self.lists.prp(cid, data).expect("a transfer longer than the queue was laid out for");
        self.sq.push(&SubmissionEntry { cid, dptr, ..entry });
        Some(cid)
    }

    /// Submits a command whose data pointer `point` makes, with the list pages of its identifier. Returns
    /// `None`, and submits nothing, if all identifiers are in flight or `point` returns `None`.
    #[inline]
    pub fn submit_with(
        &mut self,
        entry: SubmissionEntry,
        point: impl FnOnce(u16, &ListPages) -> Option<[u64; 2]>,
    ) -> Option<u16> {
        let cid = self.slots.take()?;
        let Some(dptr) = point(cid, &self.lists) else {
            self.slots.give_back(cid);
            return None;
        };
        self.sq.push(&SubmissionEntry { cid, dptr, ..entry });
        Some(cid)
    }

    /// Puts a command in the queue whose data pointer is an SGL for some ranges. `None` if all
    /// identifiers are in flight.
    ///
    /// # Panics
    /// If there are more ranges than the lists of the queue have room for.
    pub fn submit_sgl(&mut self, entry: SubmissionEntry, data: &[DmaRange]) -> Option<u16> {
        let cid = self.slots.take()?;
        let sgl = self.lists.sgl(cid, data).expect("more ranges than the queue was laid out for");
        let flags = entry.flags | PSDT_SGL;
        self.sq.push(&SubmissionEntry { cid, flags, dptr: sgl.to_dptr(), ..entry });
        Some(cid)
    }

    /// Writes the doorbells for all entries submitted and reaped since the last call.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Error> {
        self.sq.ring()?;
        self.cq.ring()
    }

    /// Takes every completion there is; their number.
    ///
    /// A completion of a command that is not in flight is dropped and counted in
    /// [`QueuePair::strays`].
    #[inline(always)]
    pub fn reap(&mut self, mut each: impl FnMut(CompletionEntry)) -> usize {
        // No correct device has more completions, and a malicious one must not keep this thread here.
        for count in 0..self.cq.entries() as usize {
            let Some(completion) = self.cq.pop() else { return count };
            match self.slots.give_back(completion.cid) {
                true => each(completion),
                false => self.strays += 1,
            }
        }
        self.cq.entries() as usize
    }

    /// Returns whether there is something to reap.
    pub fn has_completions(&self) -> bool {
        self.cq.is_ready()
    }

    /// Waits for one command by polling. All other completions go to `other`.
    ///
    /// # Errors
    /// The time is up, or the device is gone: a ring in shared memory does not show that no device writes to
    /// it any more.
    pub fn wait(
        &mut self,
        cid: u16,
        deadline: &Deadline,
        other: impl FnMut(CompletionEntry),
    ) -> Result<CompletionEntry, Error> {
        let mut backoff = Backoff::default();
        let transport = Arc::clone(&self.transport);
        // The queue is polled once more after the limit, in case this thread did not run until then. The
        // device may also have completed the command before it went.
        let mut end = Ok(());
        self.wait_by(cid, other, || {
            std::mem::replace(&mut end, Ok(()))?;
            backoff.pause();
            end = deadline.check();
            if end.is_ok() && backoff.sleeps() {
                end = check_presence(&*transport);
            }
            Ok(())
        })
    }

    /// Waits for one command by sleeping until the interrupt of the completion queue.
    pub fn wait_for_interrupt(
        &mut self,
        cid: u16,
        interrupt: &Interrupt,
        deadline: &Deadline,
        other: impl FnMut(CompletionEntry),
    ) -> Result<CompletionEntry, Error> {
        self.wait_by(cid, other, || interrupt.wait(deadline).map(drop))
    }

    fn wait_by(
        &mut self,
        cid: u16,
        mut other: impl FnMut(CompletionEntry),
        mut pause: impl FnMut() -> Result<(), Error>,
    ) -> Result<CompletionEntry, Error> {
        loop {
            let mut mine = None;
            self.reap(|completion| match completion.cid == cid {
                true => mine = Some(completion),
                false => other(completion),
            });
            self.ring()?;
            match mine {
                Some(completion) => return Ok(completion),
                None => pause()?,
            }
        }
    }

    /// Returns the number of commands in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.slots.taken()
    }

    /// Returns the most commands that can be in flight.
    pub fn depth(&self) -> u32 {
        self.cq.entries() - 1
    }

    /// Returns the number of completions that belonged to no command in flight.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Returns the list pages of every identifier, for data pointers that [`QueuePair`] does not make.
    pub fn lists(&self) -> &ListPages {
        &self.lists
    }

    /// Returns the submission ring alone, for entries and doorbells of any content.
    pub fn submission(&mut self) -> &mut SubmissionRing {
        &mut self.sq
    }

    /// Returns the completion ring alone, for completions of commands that were not submitted here.
    pub fn completion(&mut self) -> &mut CompletionRing {
        &mut self.cq
    }
}

/// Command identifiers. The free ones are on a stack, the last used on top, since its memory is still in the
/// cache.
#[derive(Debug)]
struct Slots {
    free: Vec<u16>,
    in_flight: Vec<bool>,
}

impl Slots {
    fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().map(|cid| cid as u16).collect(),
            in_flight: vec![false; count as usize],
        }
    }

    #[inline]
    fn take(&mut self) -> Option<u16> {
        let cid = self.free.pop()?;
        self.in_flight[usize::from(cid)] = true;
        Some(cid)
    }

    /// Releases an identifier; returns false if it is not in flight.
    #[inline]
    fn give_back(&mut self, cid: u16) -> bool {
        match self.in_flight.get_mut(usize::from(cid)) {
            Some(in_flight) if *in_flight => {
                *in_flight = false;
                // The stack has room for every identifier since the beginning, and each identifier is on it
                // only once.
                self.free.push(cid);
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn taken(&self) -> u32 {
        (self.in_flight.len() - self.free.len()) as u32
    }
}
