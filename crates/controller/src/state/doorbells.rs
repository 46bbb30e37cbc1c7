//! Doorbells: the page at offset 0x1000 of the register space, and the shadow buffers of Doorbell Buffer
//! Config (Base 5.8, Annex B.5).
//!
//! This module returns the current tail or head of a queue, whichever way a host rings. The page holds the
//! values that were written to the register space: by the host's own stores if the page is mapped, or by
//! [`ring`](Doorbells::ring) if the front-end traps them. The shadow buffer holds the values that the host
//! wrote without ringing. The event index makes the host ring in addition.

use crate::state::limits::IO_QUEUES_MAX;
use sluice_memory::doorbell::{PageWord, SharedWord};
use sluice_memory::{Pages, SharedRegion, doorbell};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Path of the host's doorbell writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DoorbellMode {
    /// Each write traps to the front-end. Doorbell Buffer Config is offered so that few do.
    #[default]
    Trapped,
    /// The host stores to the doorbell page itself. Shadow doorbells are not offered: a host that uses them
    /// does not ring, and nothing could wake the controller.
    Mapped,
    /// The transport is message-based and has no doorbells. The front-end rings for the capsules that it
    /// received. Features of memory-based transports are not offered.
    Capsules,
}

/// Two pages that a host provided with Doorbell Buffer Config.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    /// Guest addresses of the two pages.
    pub(crate) addresses: [u64; 2],
    pub(crate) doorbells: Pages,
    pub(crate) event_index: Pages,
}

#[derive(Debug)]
pub(crate) struct Doorbells {
    page: SharedRegion,
    /// Whether a host may have the page mapped, even after the end of its connection.
    mapped: bool,
    shadow: Option<Shadow>,
}

/// Bytes of the doorbell page.
pub(crate) const PAGE: usize = 4096;

/// Offset of the page in its region, which is laid out like the register space. A host with the descriptor
/// maps the region at the offset that the doorbells have in the register space.
pub(crate) const BASE: usize = sluice_nvme::register::DOORBELLS as usize;

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

    /// Continues with the page and the shadow buffers of another process, in which the host has its doorbells.
    pub(crate) fn resume(page: SharedRegion, mapped: bool, shadow: Option<Shadow>) -> Self {
        Self { page, mapped, shadow }
    }

    /// Returns whether a host may have the page mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped
    }

    fn new_page() -> std::io::Result<SharedRegion> {
        SharedRegion::new("sluice-doorbells", BASE + PAGE)
    }

    /// Returns the same doorbells for another reactor.
    pub(crate) fn share(&self) -> std::io::Result<Self> {
        let file = self.page.fd().try_clone_to_owned()?;
        let page = SharedRegion::from_fd(file, 0, BASE + PAGE)?;
        Ok(Self { page, mapped: self.mapped, shadow: self.shadow.clone() })
    }

    pub(crate) fn take_shadow(&mut self) -> Option<Shadow> {
        self.shadow.take()
    }

    /// Prepares the page to be mapped by a host.
    pub(crate) fn make_mappable(&mut self) -> std::io::Result<()> {
        self.make_private()?;
        self.mapped = true;
        Ok(())
    }

    /// Makes the page private. A page that was mapped is replaced: the former host may still have it mapped,
    /// and must not ring the doorbells of the next host.
    pub(crate) fn make_private(&mut self) -> std::io::Result<()> {
        if self.mapped {
            (self.page, self.mapped) = (Self::new_page()?, false);
        }
        Ok(())
    }

    /// Returns the region that holds the page, at the offset of the doorbells in the register space.
    pub(crate) fn page(&self) -> &SharedRegion {
        &self.page
    }

    /// Stores a doorbell write that came through the front-end. `offset` is from the start of the page.
    pub(crate) fn ring(&self, offset: usize, value: u32) {
        // The queue may be served by another thread.
        self.page.atomic_u32(BASE + offset).store(value, Release);
    }

    /// Returns the shadow buffer of a queue. The admin queue pair never has one.
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

    /// Prefetches the doorbells of a queue pair into the cache.
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

    /// Takes the host's shadow buffers into use, with the current values from the page or from the former
    /// buffers. A host that kept its indices continues from there: a zeroed buffer does not move a queue
    /// backwards.
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

    /// Clears the doorbell of a new queue, whatever an earlier one of the same identifier left.
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

    /// Keeps the event index just behind `tail`, so that a host that moves its tail beyond it does not ring:
    /// it rings only when the event index lies between its old tail and its new one.
    #[inline]
    pub(crate) fn put_event_index_behind(&self, id: u16, tail: u32) {
        if let Some(event_index) = self.event_index(id, sq_offset(id)) {
            doorbell::suppress_rings(&event_index, tail);
        }
    }

    /// Requests a doorbell write when a tail or head of these queues moves beyond the given value, before the
    /// task sleeps. Only a look at the doorbells *after* this shows whether there is work: the host may have
    /// moved one before the request was visible.
    pub(crate) fn request_rings(
        &self,
        tails: impl Iterator<Item = (u16, u32)>,
        heads: impl Iterator<Item = (u16, u32)>,
    ) {
        let tails = tails.map(|(id, tail)| (self.event_index(id, sq_offset(id)), tail));
        let heads = heads.map(|(id, head)| (self.event_index(id, cq_offset(id)), head));
        doorbell::request_rings(
            tails.chain(heads).filter_map(|(event_index, seen)| Some((event_index?, seen))),
        );
    }

    /// Requests a doorbell write for the head alone, of a controller that is awake and will look again.
    pub(crate) fn request_head_ring(&self, id: u16, head: u32) {
        if let Some(event_index) = self.event_index(id, cq_offset(id)) {
            event_index.write(head);
        }
    }

    /// Restores the state after power-on.
    pub(crate) fn reset(&mut self) {
        self.shadow = None;
        self.page.write(BASE, &[0; PAGE]);
    }

    /// Drops the shadow buffers, whose memory is gone.
    pub(crate) fn drop_shadow(&mut self) {
        self.shadow = None;
    }
}
