//! Doorbells: the page at offset 0x1000 of the register space, and the shadow buffers of Doorbell
//! Buffer Config (Base 5.8, Annex B.5).
//!
//! Whichever way a host rings, this module answers one question: what is the tail (or head) now. The
//! page holds what was written to the register space, by the host's own stores if the page is mapped
//! or by [`ring`](Doorbells::ring) if the front-end traps them. The shadow buffer holds what the host
//! left there without ringing; the event index tells it when to ring all the same.

use crate::IO_QUEUES_MAX;
use sluice_memory::doorbell::{self, PageWord, SharedWord};
use sluice_memory::{Pages, SharedRegion};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The two pages a host gave with Doorbell Buffer Config.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    /// Guest addresses of the two.
    pub(crate) addresses: [u64; 2],
    pub(crate) doorbells: Pages,
    pub(crate) event_index: Pages,
}

#[derive(Debug)]
pub(crate) struct Doorbells {
    page: SharedRegion,
    /// A host may have the page mapped, and keep it so for ever.
    mapped: bool,
    shadow: Option<Shadow>,
}

/// Bytes of the doorbell page.
pub(crate) const PAGE: usize = 4096;

/// Where the page lies in its region, which is laid out like the register space: a host that is handed
/// the descriptor maps it at the offset that the doorbells have there.
const BASE: usize = sluice_nvme::register::DOORBELLS as usize;

fn sq_offset(id: u16) -> usize {
    usize::from(id) * 8
}

fn cq_offset(id: u16) -> usize {
    usize::from(id) * 8 + 4
}

impl Doorbells {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { page: Self::new_page()?, mapped: false, shadow: None })
    }

    fn new_page() -> std::io::Result<SharedRegion> {
        SharedRegion::new("sluice-doorbells", BASE + PAGE)
    }

    /// The same doorbells, for another reactor.
    pub(crate) fn share(&self) -> std::io::Result<Self> {
        let file = self.page.fd().try_clone_to_owned()?;
        let page = SharedRegion::from_fd(file, 0, BASE + PAGE)?;
        Ok(Self { page, mapped: self.mapped, shadow: self.shadow.clone() })
    }

    pub(crate) fn take_shadow(&mut self) -> Option<Shadow> {
        self.shadow.take()
    }

    /// The page is about to be lent to a host.
    pub(crate) fn make_mappable(&mut self) -> std::io::Result<()> {
        self.make_private()?;
        self.mapped = true;
        Ok(())
    }

    /// The page is nobody else's. One that was lent is replaced: whoever has it mapped must not ring the doorbells of
    /// the next host.
    pub(crate) fn make_private(&mut self) -> std::io::Result<()> {
        if self.mapped {
            (self.page, self.mapped) = (Self::new_page()?, false);
        }
        Ok(())
    }

    /// The region that holds the page, at the offset of the doorbells in the register space.
    pub(crate) fn page(&self) -> &SharedRegion {
        &self.page
    }

    /// A doorbell written through the front-end. `offset` is from the start of the page.
    pub(crate) fn ring(&self, offset: usize, value: u32) {
        // Whoever serves the queue may be another thread.
        self.page.atomic_u32(BASE + offset).store(value, Release);
    }

    /// The shadow buffer, where this queue has one: the admin queue pair never does.
    #[inline]
    fn shadow_of(&self, id: u16) -> Option<&Shadow> {
        if id == 0 { None } else { self.shadow.as_ref() }
    }

    #[inline]
    fn load(&self, id: u16, offset: usize) -> u32 {
        match self.shadow_of(id) {
            Some(shadow) => PageWord { pages: &shadow.doorbells, offset }.read(),
            None => self.page.atomic_u32(BASE + offset).read(),
        }
    }

    #[inline]
    fn event_index(&self, id: u16, offset: usize) -> Option<PageWord<'_>> {
        self.shadow_of(id).map(|shadow| PageWord { pages: &shadow.event_index, offset })
    }

    /// Asks the cache for the doorbells of a queue pair.
    #[inline]
    pub(crate) fn prefetch(&self, id: u16) {
        match self.shadow_of(id) {
            Some(shadow) => shadow.doorbells.prefetch(sq_offset(id)),
            None => self.page.prefetch(BASE + sq_offset(id)),
        }
    }

    #[inline]
    pub(crate) fn sq_tail(&self, id: u16) -> u32 {
        self.load(id, sq_offset(id))
    }

    #[inline]
    pub(crate) fn cq_head(&self, id: u16) -> u32 {
        self.load(id, cq_offset(id))
    }

    pub(crate) fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    pub(crate) fn shadow(&self) -> Option<&Shadow> {
        self.shadow.as_ref()
    }

    /// Takes the host's shadow buffers into use. What was rung before stands in the page, or in the
    /// buffers of before; a host that kept its indices carries on from there (the shadow is written, so a
    /// zeroed one does not move a queue backwards).
    pub(crate) fn use_shadow(&mut self, shadow: Shadow) {
        for id in 1..=IO_QUEUES_MAX {
            for offset in [sq_offset(id), cq_offset(id)] {
                let value = self.load(id, offset);
                shadow.doorbells.store_u32(offset, value, Relaxed);
                shadow.event_index.store_u32(offset, value, Relaxed);
            }
        }
        self.shadow = Some(shadow);
    }

    /// A new queue starts at zero, whatever an earlier one of the same identifier left.
    pub(crate) fn clear_sq(&self, id: u16) {
        self.clear(id, sq_offset(id));
    }

    pub(crate) fn clear_cq(&self, id: u16) {
        self.clear(id, cq_offset(id));
    }

    fn clear(&self, id: u16, offset: usize) {
        self.page.atomic_u32(BASE + offset).store(0, Relaxed);
        if let Some(shadow) = self.shadow_of(id) {
            shadow.doorbells.store_u32(offset, 0, Relaxed);
            shadow.event_index.store_u32(offset, 0, Relaxed);
        }
    }

    /// Keeps the event index just behind `tail`, so that a host that moves its tail beyond it does not
    /// ring: it rings only when the event index lies between its old tail and its new one.
    #[inline]
    pub(crate) fn put_event_index_behind(&self, id: u16, tail: u32) {
        if let Some(event_index) = self.event_index(id, sq_offset(id)) {
            doorbell::excuse(&event_index, tail);
        }
    }

    /// About to sleep: asks to be rung when one of these queues' tail or head moves beyond the value
    /// given. Only a look at the doorbells *after* this tells whether there is nothing to do: the host
    /// may have moved one before it could see that we asked.
    pub(crate) fn request_rings(
        &self,
        tails: impl Iterator<Item = (u16, u32)>,
        heads: impl Iterator<Item = (u16, u32)>,
    ) {
        let tails = tails.map(|(id, tail)| (self.event_index(id, sq_offset(id)), tail));
        let heads = heads.map(|(id, head)| (self.event_index(id, cq_offset(id)), head));
        doorbell::ask(tails.chain(heads).filter_map(|(event_index, seen)| Some((event_index?, seen))));
    }

    /// Asks for the head alone, of a controller that is awake and will look again.
    pub(crate) fn request_head_ring(&self, id: u16, head: u32) {
        if let Some(event_index) = self.event_index(id, cq_offset(id)) {
            event_index.write(head);
        }
    }

    /// Everything back to how it is after power-on.
    pub(crate) fn reset(&mut self) {
        self.shadow = None;
        self.page.write(BASE, &[0; PAGE]);
    }

    /// The shadow buffers' memory is gone.
    pub(crate) fn drop_shadow(&mut self) {
        self.shadow = None;
    }
}
