//! REGION_READ and REGION_WRITE: the layout of BAR0, and configuration space.

use super::config_space::{self, ConfigSpace, Effect, Layout, PciIdentity};
use super::interrupts::Interrupts;
use super::record::{HandOverError, Incoming, Outgoing, take_config_space};
use sluice_command::record::{Reader, Writer};
use sluice_controller::{CannotMigrate, Controller, Subsystem};
use sluice_memory::Space;
use sluice_nvme::register::DOORBELLS;
use sluice_vfio_user::Errno;
use sluice_vfio_user::device::region as regions;
use sluice_vfio_user::region::RegionAccess;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Bytes of a page of BAR0. Each page has one purpose.
pub(super) const PAGE: u64 = 4096;

/// Bytes of BAR0: registers, doorbells, MSI-X table, MSI-X pending bits.
const BAR0_SIZE: u64 = 4 * PAGE;

const MSIX_TABLE: u64 = 2 * PAGE;
const MSIX_PENDING: u64 = 3 * PAGE;

/// Bytes of an entry in the MSI-X table (PCI Local Bus 3.0, 6.8.2).
const TABLE_ENTRY: usize = 16;

/// Byte of an entry whose lowest bit masks the vector.
const VECTOR_CONTROL: usize = 12;

/// Most vectors whose table fits its page.
const MAX_VECTORS: usize = PAGE as usize / TABLE_ENTRY;

const _: () = assert!(DOORBELLS as u64 == PAGE, "the doorbells are the second page");
const _: () =
    assert!(BAR0_SIZE <= sluice_vfio_user::MAX_DATA_TRANSFER as u64, "a message has room for all of it");

/// Returns the bytes of a region; zero if there is none.
pub(super) fn size(index: u32) -> u64 {
    match index {
        regions::BAR0 => BAR0_SIZE,
        regions::CONFIG => config_space::SIZE,
        _ => 0,
    }
}

/// Refuses an access that does not lie in its region.
pub(super) fn check(access: &RegionAccess) -> Result<(), Errno> {
    let end = access.offset.checked_add(u64::from(access.count)).ok_or(Errno::INVAL)?;
    if end <= size(access.region) { Ok(()) } else { Err(Errno::INVAL) }
}

/// Effect of a write outside the function itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Written {
    /// No further effect.
    Plainly,
    /// Number of doorbells rung.
    Doorbells(usize),
    /// Reset of the function.
    Reset,
}

/// PCI function around a controller: everything that a client can access besides the controller's registers.
#[derive(Debug)]
pub(super) struct Function {
    config: ConfigSpace,
    /// Table that is only stored: the client masks and routes the vectors itself.
    msix_table: Vec<u8>,
    pub(super) interrupts: Interrupts,
}

impl Function {
    pub(super) fn new(identity: &PciIdentity, interrupts: Interrupts) -> Self {
        let vectors = interrupts.vectors();
        assert!(usize::from(vectors) <= MAX_VECTORS, "{vectors} vectors have no table");
        let layout = Layout {
            bar0_size: BAR0_SIZE as u32,
            vectors,
            msix_table: MSIX_TABLE as u32,
            msix_pending: MSIX_PENDING as u32,
        };
        let config = ConfigSpace::new(identity, &layout);
        let mut function =
            Self { config, msix_table: vec![0; usize::from(vectors) * TABLE_ENTRY], interrupts };
        function.reset();
        function
    }

    pub(super) fn put(&self, part: &mut Writer, outgoing: &mut Outgoing) {
        part.raw(self.config.bytes());
        part.bytes(&self.msix_table);
        self.interrupts.put(part, outgoing);
    }

    pub(super) fn take(&mut self, part: &mut Reader<'_>, incoming: &Incoming) -> Result<(), HandOverError> {
        self.config.resume(&take_config_space(part)?);
        let table = part.bytes(self.msix_table.len())?;
        self.msix_table[..table.len()].copy_from_slice(table);
        self.interrupts.take(part, incoming)
    }

    /// Resets the function as at power-on. The client's eventfds stay.
    pub(super) fn reset(&mut self) {
        self.config.reset();
        self.interrupts.reset();
        self.msix_table.fill(0);
        self.msix_table.iter_mut().skip(VECTOR_CONTROL).step_by(TABLE_ENTRY).for_each(|byte| *byte = 1);
    }

    /// Reads a range that [`check`] has accepted.
    pub(super) fn read(&self, controller: &mut Controller, access: &RegionAccess, out: &mut [u8]) {
        if access.region == regions::CONFIG {
            let intx = controller.intx_asserted();
            return self.config.read(access.offset, out, intx);
        }
        for (page, offset, range) in split_at_pages(access.offset, out.len()) {
            let out = &mut out[range];
            match page * PAGE {
                0 => controller.read_register(offset, out),
                MSIX_TABLE => read_table(&self.msix_table, offset as usize, out),
                MSIX_PENDING => self.interrupts.read_pending(offset as usize, out),
                // The value of a doorbell read is not defined (NVMe over PCIe Transport 1.0, 3.1.2.1).
                _ => out.fill(0),
            }
        }
    }

    /// Writes a range that [`check`] has accepted.
    pub(super) fn write(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        access: &RegionAccess,
        data: &[u8],
        space: &Space,
        now_ns: u64,
    ) -> Written {
        if access.region == regions::CONFIG {
            return match self.config.write(access.offset, data) {
                Effect::Nothing => Written::Plainly,
                Effect::Reset => Written::Reset,
            };
        }
        let mut doorbells = 0;
        for (page, offset, range) in split_at_pages(access.offset, data.len()) {
            let data = &data[range];
            match page * PAGE {
                0 => controller.write_register(subsystem, offset, data, space, now_ns),
                PAGE => doorbells += ring(controller, offset, data),
                MSIX_TABLE => self.write_table(offset as usize, data),
                _ => {}
            }
        }
        if doorbells > 0 { Written::Doorbells(doorbells) } else { Written::Plainly }
    }

    fn write_table(&mut self, offset: usize, data: &[u8]) {
        let entries = self.msix_table.get_mut(offset..).unwrap_or_default();
        entries.iter_mut().zip(data).for_each(|(byte, value)| *byte = *value);
    }

    /// Returns a copy of a vector's eventfd.
    ///
    /// # Errors
    /// The host does not take interrupts by MSI-X, or the vector has no eventfd yet.
    pub(super) fn eventfd(&self, vector: u16) -> Result<OwnedFd, CannotMigrate> {
        let by_vectors = self.config.msix_enabled() && !self.interrupts.has_intx();
        let eventfd = self.interrupts.eventfd(vector).filter(|_| by_vectors);
        eventfd.ok_or(CannotMigrate("the host does not take the queue's interrupts by MSI-X"))
    }

    /// Signals the controller's interrupts to the client. Returns their number.
    #[inline]
    pub(super) fn interrupt(&mut self, controller: &mut Controller) -> u64 {
        let Self { config, interrupts, .. } = self;
        controller.take_vectors(|vector| interrupts.signal(vector, config.msix_enabled()));
        if interrupts.has_intx() {
            interrupts.set_intx(config.may_assert_intx() && controller.intx_asserted());
        }
        interrupts.take_signalled()
    }
}

fn read_table(table: &[u8], offset: usize, out: &mut [u8]) {
    let entries = table.get(offset..).unwrap_or_default().iter().copied();
    out.iter_mut().zip(entries.chain(std::iter::repeat(0))).for_each(|(byte, value)| *byte = value);
}

/// Rings the doorbells that are written as a whole; a write of eight bytes rings two of them. Returns their
/// number.
fn ring(controller: &mut Controller, offset: u32, data: &[u8]) -> usize {
    if !offset.is_multiple_of(4) {
        return 0;
    }
    let (doorbells, _) = data.as_chunks::<4>();
    for (offset, value) in (offset..).step_by(4).zip(doorbells) {
        controller.ring(offset, u32::from_le_bytes(*value));
    }
    doorbells.len()
}

/// Splits an access at page boundaries. Each item has the page, the offset in the page, and the range of the
/// bytes.
fn split_at_pages(offset: u64, length: usize) -> impl Iterator<Item = (u64, u32, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let left = (PAGE - at % PAGE).min((length - done) as u64) as usize;
        let range = done..done + left;
        done += left;
        (left > 0).then_some((at / PAGE, (at % PAGE) as u32, range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_cut_at_pages() {
        let cut = |offset, length| split_at_pages(offset, length).collect::<Vec<_>>();
        assert_eq!(cut(0x14, 4), [(0, 0x14, 0..4)]);
        assert_eq!(cut(0xffc, 8), [(0, 0xffc, 0..4), (1, 0, 4..8)]);
        assert_eq!(
            cut(0, 0x4000),
            [0, 1, 2, 3].map(|page| (page as u64, 0, page * 0x1000..(page + 1) * 0x1000))
        );
        assert_eq!(cut(0x2000, 0), []);
    }

    #[test]
    fn the_table_reads_as_zeros_behind_its_end() {
        let table: Vec<u8> = (1..=32).collect();
        for (offset, length) in [(0, 32), (0, 40), (12, 4), (30, 5), (32, 3), (4000, 8)] {
            let mut out = vec![0xaa; length];
            read_table(&table, offset, &mut out);
            let expected: Vec<u8> =
                (offset..offset + length).map(|at| table.get(at).copied().unwrap_or(0)).collect();
            assert_eq!(out, expected, "{length} bytes at {offset}");
        }
    }

    #[test]
    fn accesses_lie_in_their_region() {
        let access = |region, offset, count| check(&RegionAccess { offset, region, count });
        assert_eq!(access(0, 0x3ffc, 4), Ok(()));
        assert_eq!(access(7, 0, 4096), Ok(()));
        for (region, offset, count) in [
            (0, 0x3ffd, 4),
            (0, 0x4000, 1),
            (0, u64::MAX, 1),
            (0, u64::MAX - 3, 4),
            (0, 0, u32::MAX),
            (7, 4095, 2),
            (1, 0, 1),
            (8, 0, 1),
            (9, 0, 1),
            (u32::MAX, 0, 1),
        ] {
            assert_eq!(access(region, offset, count), Err(Errno::INVAL), "{region} {offset:#x} {count}");
        }
    }
}
