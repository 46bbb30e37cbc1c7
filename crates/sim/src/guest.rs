//! The simulated host's memory: scattered, with holes, and in part read-only.

use crate::Random;
use sluice_memory::{Backing, PAGE_SIZE, Permissions, SharedRegion, Space};
use std::collections::BTreeSet;

const PAGE: u64 = PAGE_SIZE as u64;

/// Pages in one window.
const WINDOW_PAGES: u64 = 512;

/// Guest addresses of the windows. The first two are neighbours for the guest, and not in the file behind
/// them; the others are far from each other.
const WINDOWS: [u64; 4] =
    [0x1000_0000, 0x1000_0000 + WINDOW_PAGES * PAGE, 0xffff_f000_0000_0000, 0x20_0000_0000];

/// Position of each window in the file, in windows.
const PLACES: [u64; 4] = [2, 0, 3, 1];

/// Memory of a host, mapped into the [`Space`] of its controller.
pub struct Guest {
    file: SharedRegion,
    space: Space,
    /// Guest addresses of unused pages.
    free: BTreeSet<u64>,
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guest({} pages free)", self.free.len())
    }
}

impl Guest {
    /// Guest address without memory.
    pub const HOLE: u64 = 0x7000_0000;
    /// Guest address of a page that the controller may read and not write.
    pub const READ_ONLY: u64 = 0x6000_0000;
    /// Contents of unused memory.
    pub const POISON: u8 = 0x5c;

    pub fn new() -> Self {
        let windows = WINDOWS.len() as u64;
        let length = windows * WINDOW_PAGES * PAGE;
        let file = SharedRegion::new("sim-guest", (length + PAGE) as usize).expect("memory for a guest");
        file.write(0, &vec![Self::POISON; file.len()]);
        let mut space = Space::new();
        let mut free = BTreeSet::new();
        for (iova, place) in WINDOWS.into_iter().zip(PLACES) {
            let offset = place * WINDOW_PAGES * PAGE;
            map(&mut space, &file, iova, WINDOW_PAGES * PAGE, offset, Permissions::READ_WRITE);
            free.extend((0..WINDOW_PAGES).map(|page| iova + page * PAGE));
        }
        map(&mut space, &file, Self::READ_ONLY, PAGE, length, Permissions::READ_ONLY);
        Self { file, space, free }
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the offset in the file of a guest address, and how many bytes follow it there.
    fn locate(&self, iova: u64) -> (usize, usize) {
        let window_bytes = WINDOW_PAGES * PAGE;
        let found =
            WINDOWS.iter().zip(PLACES).find(|&(&first, _)| (first..first + window_bytes).contains(&iova));
        let (first, place) = found.unwrap_or_else(|| panic!("the host has no memory at {iova:#x}"));
        let inside = iova - first;
        ((place * window_bytes + inside) as usize, (window_bytes - inside) as usize)
    }

    /// Reads as the host's own processor does, without the controller's permissions.
    pub fn read(&self, mut iova: u64, mut into: &mut [u8]) {
        while !into.is_empty() {
            let (offset, room) = self.locate(iova);
            let (now, later) = into.split_at_mut(room.min(into.len()));
            self.file.read(offset, now);
            iova += now.len() as u64;
            into = later;
        }
    }

    pub fn write(&self, mut iova: u64, mut from: &[u8]) {
        while !from.is_empty() {
            let (offset, room) = self.locate(iova);
            let (now, later) = from.split_at(room.min(from.len()));
            self.file.write(offset, now);
            iova += now.len() as u64;
            from = later;
        }
    }

    pub fn read_u32(&self, iova: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read(iova, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Returns whether the longest transfers, and the lists that describe them, might not fit any more.
    pub fn is_short(&self) -> bool {
        self.free.len() < 1000
    }

    /// Takes a random page.
    pub fn page(&mut self, random: &mut Random) -> u64 {
        self.pages(1, random)
    }

    /// Takes pages with consecutive guest addresses.
    pub fn pages(&mut self, count: u64, random: &mut Random) -> u64 {
        let start = *random.pick(&WINDOWS) + random.below(WINDOW_PAGES) * PAGE;
        let fits = |first: &u64| (1..count).all(|page| self.free.contains(&first.wrapping_add(page * PAGE)));
        let found = self.free.range(start..).chain(self.free.range(..start)).copied().find(fits);
        let first = found.expect("the guest has memory left");
        (0..count).for_each(|page| _ = self.free.remove(&(first + page * PAGE)));
        first
    }

    /// Gives pages back, full of poison.
    pub fn release(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            self.write(page, &[Self::POISON; PAGE_SIZE]);
            assert!(self.free.insert(page), "page {page:#x} was given back twice");
        }
    }

    /// Returns everything in the memory, for a later comparison.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut all = vec![0; self.file.len()];
        self.file.read(0, &mut all);
        all
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self::new()
    }
}

fn map(
    space: &mut Space,
    file: &SharedRegion,
    iova: u64,
    length: u64,
    offset: u64,
    permissions: Permissions,
) {
    let fd = file.fd().try_clone_to_owned().expect("a descriptor");
    space.map(iova, length, permissions, Backing::File { fd, offset }).expect("a map without overlaps");
}
