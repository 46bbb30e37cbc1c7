//! A guest small enough to be modelled byte by byte.
// Each test uses a part of this module.
#![allow(dead_code, unreachable_pub)]

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use rustix::fs::{MemfdFlags, SealFlags};
use sluice_memory::{Access, Backing, PAGE_SIZE, Permissions, SharedRegion, Space};
use std::os::fd::OwnedFd;

/// Returns a configuration with this many cases; seeds that failed are kept beside the test, to be committed.
pub fn cases(cases: u32) -> ProptestConfig {
    let beside = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { failure_persistence: Some(Box::new(beside)), ..ProptestConfig::with_cases(cases) }
}

/// Pages of guest address space, and of each of the two files behind it.
pub const GUEST_PAGES: usize = 96;
pub const FILE_PAGES: usize = 64;
pub const FILES: usize = 2;

/// A region, in pages; `file` is `None` for a region without memory.
#[derive(Clone, Debug)]
pub struct Region {
    pub first: usize,
    pub pages: usize,
    pub file: Option<(usize, usize)>,
    pub permissions: Permissions,
}

/// Returns regions with gaps between some of them, in order.
pub fn regions() -> impl Strategy<Value = Vec<Region>> {
    let gap = prop_oneof![6 => Just(0usize), 1 => 1usize..3];
    let region = (gap, 1usize..24, 0..FILES, 0..FILE_PAGES, 0u8..16);
    prop::collection::vec(region, 8..40).prop_map(|shapes| {
        let mut first = 0;
        let mut regions = Vec::new();
        for (gap, pages, file, offset, kind) in shapes {
            first += gap;
            let pages = pages.min(FILE_PAGES - offset).min(GUEST_PAGES.saturating_sub(first));
            if pages == 0 {
                continue;
            }
            let file = (kind != 0).then_some((file, offset));
            let permissions = Permissions { read: kind != 1, write: kind != 2 };
            regions.push(Region { first, pages, file, permissions });
            first += pages;
        }
        regions
    })
}

/// Returns the begin of guest addresses: zero, high, and so high that they end with the last address.
pub fn base() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1 << 40, ((GUEST_PAGES * PAGE_SIZE) as u64).wrapping_neg()])
}

/// A guest's memory, mapped and as a model of bytes.
pub struct Guest {
    pub base: u64,
    pub space: Space,
    files: Vec<SharedRegion>,
    model: Vec<Vec<u8>>,
    pages: Vec<Option<Region>>,
}

impl Guest {
    pub fn new(base: u64, regions: &[Region]) -> Guest {
        let length = FILE_PAGES * PAGE_SIZE;
        let files: Vec<_> =
            (0..FILES).map(|_| SharedRegion::new("guest", length).expect("a memfd")).collect();
        let mut space = Space::new();
        let mut pages = vec![None; GUEST_PAGES];
        for region in regions {
            let backing = match region.file {
                Some((file, page)) => {
                    Backing::File { fd: fd(&files[file]), offset: (page * PAGE_SIZE) as u64 }
                }
                None => Backing::None,
            };
            let iova = base + (region.first * PAGE_SIZE) as u64;
            let length = (region.pages * PAGE_SIZE) as u64;
            space.map(iova, length, region.permissions, backing).expect("a region that does not overlap");
            pages[region.first..][..region.pages].fill(Some(region.clone()));
        }
        let mut guest = Guest { base, space, files, model: vec![vec![0; length]; FILES], pages };
        guest.scribble();
        guest
    }

    /// Fills everything with different bytes.
    fn scribble(&mut self) {
        for file in 0..FILES {
            for (n, byte) in self.model[file].iter_mut().enumerate() {
                *byte = (n ^ (n >> 8) ^ (n >> 13) ^ (file * 85)) as u8;
            }
            self.files[file].write(0, &self.model[file]);
        }
    }

    /// Returns file and offset of a guest address. `access` is that of this process; the guest's own has no
    /// limits.
    pub fn locate(&self, iova: u64, access: Option<Access>) -> Option<(usize, usize)> {
        let offset = iova.checked_sub(self.base)? as usize;
        let region = self.pages.get(offset / PAGE_SIZE)?.as_ref()?;
        let may = match access {
            Some(Access::Read) => region.permissions.read,
            Some(Access::Write) => region.permissions.write,
            None => true,
        };
        let (file, page) = region.file.filter(|_| may)?;
        Some((file, (page + offset / PAGE_SIZE - region.first) * PAGE_SIZE + offset % PAGE_SIZE))
    }

    /// Returns one byte that this process may read.
    pub fn byte(&self, iova: u64) -> Option<u8> {
        self.locate(iova, Some(Access::Read)).map(|(file, offset)| self.model[file][offset])
    }

    /// Returns `N` bytes that this process may read.
    pub fn bytes<const N: usize>(&self, iova: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(iova.checked_add(n as u64)?)?;
        }
        Some(bytes)
    }

    /// Returns a part of one of the files, as a region is mapped.
    pub fn backing(&self, file: usize, page: usize) -> Backing {
        Backing::File { fd: fd(&self.files[file]), offset: (page * PAGE_SIZE) as u64 }
    }

    /// Copies the guest's bytes at an address.
    pub fn copy_out(&self, iova: u64, bytes: &mut [u8]) {
        for (n, byte) in bytes.iter_mut().enumerate() {
            let found = self.locate(iova.wrapping_add(n as u64), None);
            *byte = found.map_or(0, |(file, offset)| self.model[file][offset]);
        }
    }

    /// Writes the guest's memory as the guest, where it has some.
    pub fn poke(&mut self, iova: u64, bytes: &[u8]) {
        for (n, &byte) in bytes.iter().enumerate() {
            if let Some((file, offset)) = self.locate(iova.wrapping_add(n as u64), None) {
                self.model[file][offset] = byte;
                self.files[file].write(offset, &[byte]);
            }
        }
    }

    /// Sets a byte that was reported as written, in the model only.
    pub fn expect_byte(&mut self, iova: u64, byte: u8) {
        let (file, offset) = self.locate(iova, Some(Access::Write)).expect("writable memory");
        self.model[file][offset] = byte;
    }

    /// Returns whether the memory equals the model.
    pub fn is_as_modelled(&self) -> bool {
        self.files.iter().zip(&self.model).all(|(file, model)| {
            let mut bytes = vec![0; model.len()];
            file.read(0, &mut bytes);
            bytes == *model
        })
    }
}

/// Returns another descriptor of a region's file.
pub fn fd(region: &SharedRegion) -> OwnedFd {
    region.fd().try_clone_to_owned().expect("a descriptor")
}

/// Returns a memfd that is not sealed.
pub fn memfd(length: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("client", flags).expect("a memfd");
    rustix::fs::ftruncate(&fd, length).expect("length");
    assert_eq!(rustix::fs::fcntl_get_seals(&fd).expect("seals"), SealFlags::empty());
    fd
}
