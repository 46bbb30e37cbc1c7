//! Memory of the guest that is mapped for the device: all other memory must not change.

use sluice_memory::{PAGE_SIZE, SharedRegion};

/// A range of guest addresses, and its offset in the memory. In bytes.
#[derive(Clone, Copy, Debug)]
struct DmaMapping {
    address: u64,
    offset: u64,
    size: u64,
}

#[derive(Debug)]
pub struct DmaMaps<'a> {
    ram: &'a SharedRegion,
    maps: Vec<DmaMapping>,
    /// Contents of the pages that are not mapped.
    image: Vec<u8>,
    /// Flag that the mappings are known: every message about them was answered.
    is_known: bool,
}

impl<'a> DmaMaps<'a> {
    pub fn new(ram: &'a SharedRegion) -> Self {
        let image = vec![0; ram.len()];
        ram.write(0, &image);
        Self { ram, maps: Vec::new(), image, is_known: true }
    }

    /// Writes the memory as the guest.
    pub fn poke(&mut self, at: usize, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.ram.len() - at)];
        self.ram.write(at, bytes);
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Marks the mappings as unknown, until all are unmapped.
    pub fn lose_track(&mut self) {
        self.is_known = false;
    }

    pub fn map(&mut self, address: u64, offset: u64, size: u64) {
        self.maps.push(DmaMapping { address, offset, size });
    }

    /// Unmaps all mappings that begin in the range; the device does not use them any more.
    pub fn unmap(&mut self, address: u64, size: u64) {
        let is_inside = |map: &DmaMapping| map.address.wrapping_sub(address) < size;
        self.unmap_where(is_inside);
    }

    pub fn unmap_all(&mut self) {
        self.unmap_where(|_| true);
        self.maps.clear();
        if !std::mem::replace(&mut self.is_known, true) {
            self.ram.read(0, &mut self.image);
        }
    }

    fn unmap_where(&mut self, is_unmapped: impl Fn(&DmaMapping) -> bool) {
        let was_mapped: Vec<bool> = self.pages().map(|page| self.is_mapped(page)).collect();
        self.maps.retain(|map| !is_unmapped(map));
        let unmapped: Vec<usize> =
            self.pages().filter(|page| was_mapped[*page] && !self.is_mapped(*page)).collect();
        for page in unmapped {
            self.ram.read(page * PAGE_SIZE, &mut self.image[page * PAGE_SIZE..][..PAGE_SIZE]);
        }
    }

    fn pages(&self) -> std::ops::Range<usize> {
        0..self.ram.len() / PAGE_SIZE
    }

    fn is_mapped(&self, page: usize) -> bool {
        let at = (page * PAGE_SIZE) as u64;
        self.maps.iter().any(|map| at.wrapping_sub(map.offset) < map.size)
    }

    /// Checks that unmapped memory is as the guest has left it.
    pub fn check(&self) {
        if !self.is_known {
            return;
        }
        let mut found = vec![0; self.ram.len()];
        self.ram.read(0, &mut found);
        for page in self.pages().filter(|page| !self.is_mapped(*page)) {
            let bytes = page * PAGE_SIZE..(page + 1) * PAGE_SIZE;
            assert!(
                found[bytes.clone()] == self.image[bytes],
                "page {page} was written after it was given back"
            );
        }
    }
}
