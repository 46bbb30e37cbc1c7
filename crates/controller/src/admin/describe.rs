//! Contents of the Identify data structures (Base 5.17.2.1, 5.17.2.8; NVM Command Set 4.1.5.1).
//!
//! All values follow from the limits of the crate, the mode of the controller, and the characteristics of the
//! namespaces.

use crate::admin::persistent;
use crate::model::history::{ascii, firmware};
use crate::model::namespace::{atomic_boundary_blocks, atomic_write_blocks, boundary_blocks};
use crate::model::{Controller, Namespace, Subsystem, erasing, namespace};
use crate::state::doorbells::DoorbellMode;
use crate::state::events::{Configuration, REQUESTS_MAX};
use crate::state::limits::{
    ANA_GROUPS_MAX, CAPSULES_MAX, FETCH_MAX, IN_CAPSULE_MAX, NAMESPACES_MAX, TRANSFER_MAX,
};
use crate::state::patience::RETRY_DELAYS;
use crate::state::{ana, copy, features, format, health, reservation, self_test};
use sluice_command::{Characteristics, Deallocated};
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace, IndependentNamespace};
use sluice_nvme::{CompletionEntry, PAGE_SIZE, SubmissionEntry, register};
use zerocopy::FromZeros;

/// PCI vendor identifier, here and in configuration space. None is assigned to this project. This one is
/// common for emulated devices without a vendor, and no NVMe driver has quirks for it.
pub const PCI_VENDOR: u16 = 0x1234;

/// Aborts that may be outstanding, 0's based. Each is finished at once.
const ABORT_LIMIT: u8 = 3;

pub(super) fn controller(controller: &Controller, subsystem: &Subsystem) -> IdentifyController {
    let mut page = IdentifyController::new_zeroed();
    let identity = subsystem.identity();
    page.vid = PCI_VENDOR;
    page.ssvid = PCI_VENDOR;
    ascii(&mut page.sn, &identity.serial);
    ascii(&mut page.mn, &identity.model);
    page.fr = firmware(subsystem);
    let subnqn = identity.subnqn.as_bytes();
    let length = subnqn.len().min(SUBNQN_MAX);
    page.subnqn[..length].copy_from_slice(&subnqn[..length]);
    page.cntlid = controller.cntlid();
    page.ver = register::VERSION;
    page.rab = FETCH_MAX.ilog2() as u8;
    page.mdts = (TRANSFER_MAX / PAGE_SIZE as u32).ilog2() as u8;
    page.cntrltype = 1;
    page.crdt = RETRY_DELAYS;
    page.holds_back_mark = IdentifyController::HOLDS_BACK_MARK;
    if let Some(power_id) = subsystem.power_id() {
        (page.power_id_mark, page.power_id) = (IdentifyController::POWER_ID_MARK, power_id);
    }
    if subsystem.is_shared() {
        asymmetric_access(&mut page);
    }
    admin_attributes(&mut page, controller, subsystem);
    io_attributes(&mut page, subsystem);
    if controller.is_fabrics() {
        fabrics_attributes(&mut page);
    }
    page
}

/// Sets the fields for several paths to the namespaces with different ANA states.
fn asymmetric_access(page: &mut IdentifyController) {
    const TWO_OR_MORE_PORTS: u8 = 1 << 0;
    const TWO_OR_MORE_CONTROLLERS: u8 = 1 << 1;
    const ASYMMETRIC_NAMESPACE_ACCESS: u8 = 1 << 3;
    page.cmic = TWO_OR_MORE_PORTS | TWO_OR_MORE_CONTROLLERS | ASYMMETRIC_NAMESPACE_ACCESS;
    page.oaes |= Configuration::ASYMMETRIC_ACCESS_NOTICES;
    page.anatt = ana::TRANSITION_SECONDS;
    page.anacap = ana::CAPABILITIES;
    page.anagrpmax = ANA_GROUPS_MAX;
    page.nanagrpid = ANA_GROUPS_MAX;
    // The host computes the largest length of the log page from it.
    page.mnan = NAMESPACES_MAX as u32;
}

/// Returns Multi-path I/O and Namespace Sharing Capabilities (NMIC) of a namespace, and its ANA group.
fn sharing(subsystem: &Subsystem, namespace: &Namespace) -> (u8, u32) {
    const SHARED: u8 = 1 << 0;
    let shared = if namespace.is_shared() { SHARED } else { 0 };
    if subsystem.is_shared() { (shared, namespace.ana_group()) } else { (0, 0) }
}

/// Bytes of an NVMe Qualified Name, without the zero at its end (Base 4.5).
const SUBNQN_MAX: usize = 223;

fn admin_attributes(page: &mut IdentifyController, controller: &Controller, subsystem: &Subsystem) {
    const FORMAT: u16 = 1 << 1;
    const FIRMWARE_COMMANDS: u16 = 1 << 2;
    const SELF_TEST: u16 = 1 << 4;
    const NO_FIRMWARE_GRANULARITY: u8 = 0xff;
    const DOORBELL_BUFFER_CONFIG: u16 = 1 << 8;
    // One slot, read-only.
    const FIRMWARE: u8 = 1 << 1 | 1;
    page.oaes |= Configuration::NAMESPACE_ATTRIBUTE_NOTICES;
    page.oacs = FORMAT | FIRMWARE_COMMANDS | SELF_TEST;
    page.fwug = NO_FIRMWARE_GRANULARITY;
    if controller.doorbell_mode() == DoorbellMode::Trapped {
        page.oacs |= DOORBELL_BUFFER_CONFIG;
    }
    page.edstt = self_test::EXTENDED_MINUTES;
    page.acl = ABORT_LIMIT;
    page.aerl = REQUESTS_MAX as u8 - 1;
    page.frmw = FIRMWARE;
    page.lpa = lpa::COMMAND_EFFECTS | lpa::EXTENDED_DATA | lpa::PERSISTENT_EVENTS | lpa::SUPPORTED_PAGES;
    page.pels = persistent::SIZE;
    page.elpe = health::ERROR_ENTRIES as u8 - 1;
    page.wctemp = health::WARNING_TEMPERATURE;
    page.cctemp = health::CRITICAL_TEMPERATURE;
    page.sanicap = erasing::capabilities(subsystem);
    page.kas = (features::KEEP_ALIVE_GRANULARITY_MS / 100) as u16;
    let capacity: u128 = subsystem.iter().map(capacity_bytes).sum();
    let unallocated = u128::from(subsystem.unallocated());
    page.tnvmcap = halves(capacity + unallocated);
    page.unvmcap = halves(unallocated);
    if subsystem.jobs().management.pool.is_some() {
        const NAMESPACE_MANAGEMENT: u16 = 1 << 3;
        const CREATED_IN_AN_ANA_GROUP: u8 = 1 << 7;
        page.oacs |= NAMESPACE_MANAGEMENT;
        page.mnan = NAMESPACES_MAX as u32;
        if subsystem.is_shared() {
            page.anacap |= CREATED_IN_AN_ANA_GROUP;
        }
    }
}

/// Bits of Log Page Attributes.
mod lpa {
    pub(super) const COMMAND_EFFECTS: u8 = 1 << 1;
    pub(super) const EXTENDED_DATA: u8 = 1 << 2;
    pub(super) const PERSISTENT_EVENTS: u8 = 1 << 4;
    /// Log pages 00h, 12h and 13h, and scopes in 05h.
    pub(super) const SUPPORTED_PAGES: u8 = 1 << 5;
}

fn io_attributes(page: &mut IdentifyController, subsystem: &Subsystem) {
    // Required and largest entry size are the same.
    page.sqes = SubmissionEntry::SIZE.ilog2() as u8 * 0x11;
    page.cqes = CompletionEntry::SIZE.ilog2() as u8 * 0x11;
    page.nn = NAMESPACES_MAX as u32;
    let handed_on = subsystem.passthrough();
    page.oncs = oncs::COMPARE
        | oncs::WRITE_UNCORRECTABLE
        | oncs::WRITE_ZEROES
        | oncs::SAVE_AND_SELECT
        | oncs::TIMESTAMP
        | oncs::VERIFY
        | oncs::COPY
        | oncs::RESERVATIONS;
    page.ctratt |= HOST_IDENTIFIER_OF_128_BITS;
    page.ocfs = copy::FORMATS;
    page.fna = format::ATTRIBUTES;
    if subsystem.deallocates() {
        page.oncs |= oncs::DATASET_MANAGEMENT;
    }
    // Vendor specific commands have their data pointer in the standard place.
    page.icsvscc = u8::from(handed_on.io.iter().any(|opcode| opcode >= 0x80));
    page.avscc = u8::from(handed_on.admin.iter().any(|opcode| opcode >= 0xc0));
    page.vwc = vwc::NO_BROADCAST_FLUSH;
    if subsystem.has_volatile_cache() {
        page.vwc |= vwc::PRESENT;
    }
    // The smallest value among all namespaces counts.
    let atomic = subsystem.iter().map(atomic_write_blocks).min().unwrap_or(1);
    page.awun = zeros_based(atomic);
    page.awupf = zeros_based(atomic);
    if namespace::is_offered(subsystem) {
        const COMPARE_AND_WRITE: u16 = 1;
        page.fuses = COMPARE_AND_WRITE;
        let largest = subsystem.namespaces().map(|it| namespace::largest(it) >> it.block_shift()).min();
        page.acwu = zeros_based(largest.unwrap_or(1));
    }
    page.sgls = sgls::SUPPORTED | sgls::BIT_BUCKET | sgls::LONGER_THAN_DATA;
}

/// First bit of the Controller Attributes.
const HOST_IDENTIFIER_OF_128_BITS: u32 = 1 << 0;

/// Sets the fields that differ, or only exist, over a message-based transport.
fn fabrics_attributes(page: &mut IdentifyController) {
    const TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
    const UNIT: u32 = 16;
    // There is no PCI function.
    (page.vid, page.ssvid) = (0, 0);
    page.ctratt |= TRAFFIC_BASED_KEEP_ALIVE;
    page.maxcmd = CAPSULES_MAX;
    page.ioccsz = (SubmissionEntry::SIZE as u32 + IN_CAPSULE_MAX) / UNIT;
    page.iorcsz = CompletionEntry::SIZE as u32 / UNIT;
    // Only the descriptor in the entry.
    page.msdbd = 1;
    page.sgls = sgls::SUPPORTED | sgls::OFFSET | sgls::TRANSPORT_DATA_BLOCK;
}

/// Bits of Optional NVM Command Support.
mod oncs {
    pub(super) const COMPARE: u16 = 1 << 0;
    pub(super) const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    pub(super) const DATASET_MANAGEMENT: u16 = 1 << 2;
    pub(super) const WRITE_ZEROES: u16 = 1 << 3;
    /// Set Features has a save bit (and returns that nothing is saveable), Get Features a select field.
    pub(super) const SAVE_AND_SELECT: u16 = 1 << 4;
    pub(super) const RESERVATIONS: u16 = 1 << 5;
    pub(super) const TIMESTAMP: u16 = 1 << 6;
    pub(super) const VERIFY: u16 = 1 << 7;
    pub(super) const COPY: u16 = 1 << 8;
}

/// Bits of Volatile Write Cache.
mod vwc {
    pub(super) const PRESENT: u8 = 1 << 0;
    /// Flush does not take the broadcast NSID.
    pub(super) const NO_BROADCAST_FLUSH: u8 = 0b10 << 1;
}

/// Bits of SGL Support.
mod sgls {
    /// Support without a requirement on alignment or granularity.
    pub(super) const SUPPORTED: u32 = 1;
    pub(super) const BIT_BUCKET: u32 = 1 << 16;
    pub(super) const LONGER_THAN_DATA: u32 = 1 << 18;
    /// A data block's address may be an offset in the capsule.
    pub(super) const OFFSET: u32 = 1 << 20;
    pub(super) const TRANSPORT_DATA_BLOCK: u32 = 1 << 21;
}

pub(super) fn namespace(subsystem: &Subsystem, namespace: &Namespace) -> IdentifyNamespace {
    let below = namespace.characteristics();
    let mut page = IdentifyNamespace::new_zeroed();
    // The namespace is not thinly provisioned, whatever the target does: size, capacity and use are equal.
    page.nsze = namespace.blocks();
    page.ncap = namespace.blocks();
    page.nuse = namespace.blocks();
    page.nvmcap = halves(capacity_bytes(namespace));
    page.nsfeat = nsfeat::OWN_ATOMICITY | nsfeat::OPTIMAL_PERFORMANCE;
    for (index, block_size) in erasing::formats(namespace) {
        page.lbaf[index].lbads = block_size.trailing_zeros() as u8;
        page.nlbaf = index as u8;
        if block_size == namespace.block_size() {
            page.flbas = index as u8;
        }
    }
    page.fpi = erasing::progress_indicator(subsystem, namespace.nsid());
    (page.nmic, page.anagrpid) = sharing(subsystem, namespace);
    page.nsattr = u8::from(below.read_only);
    page.rescap = reservation::CAPABILITIES;
    page.nguid = nguid(namespace);
    page.dlfeat = match below.deallocated {
        Deallocated::Zeroes => dlfeat::READS_ZEROES | dlfeat::WRITE_ZEROES_DEALLOCATES,
        Deallocated::Unsupported | Deallocated::Indeterminate => 0,
    };
    page.nawun = zeros_based(atomic_write_blocks(namespace));
    page.nawupf = page.nawun;
    page.nacwu = zeros_based(namespace::largest(namespace) >> namespace.block_shift());
    page.msrc = copy::RANGES_MAX as u8 - 1;
    page.mcl = (copy::LENGTH_MAX >> namespace.block_shift()) as u32;
    page.mssrl = page.mcl as u16;
    granularity(&mut page, namespace, &below);
    boundaries(&mut page, namespace, &below);
    page
}

/// Returns the common fields of all namespaces that hosts create: their block sizes.
pub(super) fn creatable() -> IdentifyNamespace {
    let mut page = IdentifyNamespace::new_zeroed();
    for (index, block_size) in format::BLOCK_SIZES.into_iter().enumerate() {
        page.lbaf[index].lbads = block_size.trailing_zeros() as u8;
        page.nlbaf = index as u8;
    }
    page.rescap = reservation::CAPABILITIES;
    page
}

/// Bits of Namespace Features.
mod nsfeat {
    /// NAWUN, NAWUPF and NACWU are for this namespace.
    pub(super) const OWN_ATOMICITY: u8 = 1 << 1;
    /// NPWG, NPWA, NPDG, NPDA and NOWS exist.
    pub(super) const OPTIMAL_PERFORMANCE: u8 = 1 << 4;
}

/// Deallocate Logical Block Features.
mod dlfeat {
    pub(super) const READS_ZEROES: u8 = 0b001;
    /// The deallocate bit of Write Zeroes takes effect.
    pub(super) const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
}

/// Sets the units of writing and deallocating. Both are the unit in which the target stores its data.
fn granularity(page: &mut IdentifyNamespace, namespace: &Namespace, below: &Characteristics) {
    let unit = zeros_based(u64::from(below.optimal_write >> namespace.block_shift()));
    page.npwg = unit;
    page.npwa = unit;
    page.nows = unit;
    if below.deallocated != Deallocated::Unsupported {
        page.npdg = unit;
        page.npda = unit;
    }
}

/// Sets the boundaries. A command across one of the first kind is slower, and a write across one of the second kind is
/// atomic in each part only.
fn boundaries(page: &mut IdentifyNamespace, namespace: &Namespace, below: &Characteristics) {
    page.noiob = boundary_blocks(namespace, below);
    page.nabsn = atomic_boundary_blocks(namespace, below).saturating_sub(1);
    page.nabspf = page.nabsn;
}

pub(super) fn independent(subsystem: &Subsystem, namespace: &Namespace) -> IndependentNamespace {
    const READY: u8 = 1;
    let mut page = IndependentNamespace::new_zeroed();
    (page.nmic, page.anagrpid) = sharing(subsystem, namespace);
    page.nsattr = u8::from(namespace.characteristics().read_only);
    page.nstat = READY;
    page.rescap = reservation::CAPABILITIES;
    page.fpi = erasing::progress_indicator(subsystem, namespace.nsid());
    page
}

/// Returns the namespace's UUID in the form of an NGUID. Its OUI is marked as locally administered (bit 1 of
/// its first octet) and not as a group (bit 0). So it cannot be a vendor's.
pub(super) fn nguid(namespace: &Namespace) -> [u8; 16] {
    const OUI: usize = 8;
    let mut nguid = namespace.uuid();
    nguid[OUI] = nguid[OUI] & !0b11 | 0b10;
    nguid
}

fn capacity_bytes(namespace: &Namespace) -> u128 {
    u128::from(namespace.blocks()) << namespace.block_shift()
}

/// Returns a number of blocks as a 0's based field of 16 bits, from one to the largest value.
fn zeros_based(blocks: u64) -> u16 {
    blocks.saturating_sub(1).min(u64::from(u16::MAX)) as u16
}

/// Returns 128 bits, the low half first.
fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_padded_cut_and_made_printable() {
        let mut field = [0; 8];
        ascii(&mut field, "ab");
        assert_eq!(&field, b"ab      ");
        ascii(&mut field, "abcdefghij");
        assert_eq!(&field, b"abcdefgh");
        ascii(&mut field, "a\u{e9}\n");
        assert_eq!(&field, b"a??     ");
    }

    #[test]
    fn zeros_based_numbers_saturate() {
        assert_eq!([0, 1, 2, 65_536, 65_537].map(zeros_based), [0, 0, 1, 65_535, 65_535]);
        assert_eq!(halves(3 << 64 | 5), [5, 3]);
    }
}
