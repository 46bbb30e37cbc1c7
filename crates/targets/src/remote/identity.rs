//! Identify data of a controller and of one namespace, as far as it matters to a target.

use super::Incompatible;
use sluice_command::{
    Characteristics, Deallocated, Opcodes, Operation, Passthrough, Request, Storage, common_boundary,
};
use sluice_host::identify;
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace};
use sluice_nvme::opcode::io;
use std::ops::Range;
use std::time::Duration;

/// Blocks that one command can name: NLB has 16 bits.
pub(crate) const BLOCKS_MAX: u64 = 1 << 16;

/// Bytes that one command moves at most, even if the device allows more: as many as a host of the drive
/// sends.
const TRANSFER_MAX: usize = 1 << 20;

/// Bits of ONCS (Base 5.17.2.1).
const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
const ONCS_WRITE_ZEROES: u16 = 1 << 3;
const ONCS_VERIFY: u16 = 1 << 7;

/// Bit of CTRATT: Traffic Based Keep Alive Support.
const CTRATT_TBKAS: u32 = 1 << 6;

/// A value that a controller keeps for as long as it has lost no acknowledged write.
pub type PowerId = [u8; 16];

/// Properties of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceInfo {
    /// Identifiers, which must be the same after a reconnection.
    pub(crate) name: Name,
    /// Size of a logical block as a power of two, bytes.
    pub(crate) block_shift: u32,
    pub(crate) blocks: u64,
    /// Bytes that one Read or Write moves at most; a multiple of the block size.
    pub(crate) transfer_max: usize,
    pub(crate) write_zeroes: bool,
    /// Content of deallocated blocks (DLFEAT).
    pub(crate) deallocated: Deallocated,
    pub(crate) zeroes_deallocate: bool,
    /// Optional commands, for [`NamespaceInfo::supports`].
    optional: Optional,
    volatile_cache: bool,
    /// Power identifier, which changes whenever acknowledged writes may have been lost; none if the device
    /// does not report one.
    pub(crate) power: Option<PowerId>,
    /// Set if commands of a lost connection hold back overlapping commands, on all connections.
    pub(crate) holds_back: bool,
    /// Command Quiesce Time, if the controller reports it.
    pub(crate) quiesce: Option<Duration>,
    /// Set if any command restarts the Keep Alive Timer (CTRATT.TBKAS).
    pub(crate) restarts_keep_alive: bool,
    read_only: bool,
    /// Blocks of a write that a power failure does not tear.
    atomic_blocks: u64,
    /// Blocks between two boundaries of atomic writes; zero if there are none.
    atomic_boundary: u64,
    /// First of those boundaries.
    atomic_offset: u64,
    optimal_blocks: u64,
    boundary_blocks: u64,
}

/// Optional features of a device, as far as passthrough commands need them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Optional {
    verify: bool,
    write_uncorrectable: bool,
    /// Vendor specific commands describe their data in the common format (ICSVSCC, AVSCC).
    vendor_io: bool,
    vendor_admin: bool,
}

impl Optional {
    fn of(controller: &IdentifyController) -> Self {
        Self {
            verify: controller.oncs & ONCS_VERIFY != 0,
            write_uncorrectable: controller.oncs & ONCS_WRITE_UNCORRECTABLE != 0,
            vendor_io: controller.icsvscc & 1 != 0,
            vendor_admin: controller.avscc & 1 != 0,
        }
    }
}

/// Returns whether one of the vendor specific opcodes, which begin at `first`, has data.
fn has_data(opcodes: Opcodes, first: u8) -> bool {
    opcodes.iter().any(|opcode| opcode >= first && opcode & 3 != 0)
}

/// Identifiers of controller and namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    serial: [u8; 20],
    model: [u8; 40],
    subnqn: Box<[u8; 256]>,
    nguid: [u8; 16],
    eui64: [u8; 8],
    /// Set if a controller has reported them.
    is_seen: bool,
    /// UUID of the namespace. Linux's target gives its namespaces no other identifier unless one is
    /// configured.
    uuid: Option<[u8; 16]>,
}

impl NamespaceInfo {
    pub(crate) fn of(
        nsid: u32,
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
    ) -> Result<Self, Incompatible> {
        if namespace.nsze == 0 {
            return Err(Incompatible::NoNamespace(nsid));
        }
        let format = identify::lba_format(namespace);
        if format.ms != 0 || namespace.dps & 7 != 0 {
            return Err(Incompatible::Format("metadata"));
        }
        let block_shift = u32::from(format.lbads);
        if block_shift != 9 && block_shift != 12 {
            return Err(Incompatible::Format("blocks of another size"));
        }
        // The layers above address the end of the namespace in bytes.
        if namespace.nsze > i64::MAX as u64 >> block_shift {
            return Err(Incompatible::Format("more blocks than there are bytes to count them in"));
        }
        let limit = identify::max_transfer(controller).unwrap_or(TRANSFER_MAX);
        // NSFEAT bit 1: the namespace has atomic units of its own.
        let own = namespace.nsfeat & 1 << 1 != 0;
        let optimal = namespace.nsfeat & 1 << 4 != 0;
        Ok(Self {
            name: Name::of(controller, namespace),
            block_shift,
            blocks: namespace.nsze,
            transfer_max: limit.min(TRANSFER_MAX),
            write_zeroes: controller.oncs & ONCS_WRITE_ZEROES != 0,
            deallocated: match namespace.dlfeat & 7 {
                _ if controller.oncs & ONCS_DATASET_MANAGEMENT == 0 => Deallocated::Unsupported,
                1 => Deallocated::Zeroes,
                _ => Deallocated::Indeterminate,
            },
            zeroes_deallocate: namespace.dlfeat & 1 << 3 != 0,
            optional: Optional::of(controller),
            volatile_cache: controller.vwc & 1 != 0,
            power: identify::power_id(controller),
            holds_back: controller.holds_back_mark == IdentifyController::HOLDS_BACK_MARK,
            quiesce: (controller.cqt != 0).then(|| Duration::from_millis(controller.cqt.into())),
            restarts_keep_alive: controller.ctratt & CTRATT_TBKAS != 0,
            read_only: namespace.nsattr & 1 != 0,
            atomic_blocks: u64::from(if own { namespace.nawupf } else { controller.awupf }) + 1,
            atomic_boundary: if own { zeros_based(namespace.nabspf) } else { 0 },
            atomic_offset: if own { namespace.nabo.into() } else { 0 },
            optimal_blocks: if optimal { u64::from(namespace.npwg) + 1 } else { 1 },
            boundary_blocks: u64::from(namespace.noiob),
        })
    }

    /// Adds the UUID of the namespace, if it has one.
    pub(crate) fn with_uuid(mut self, uuid: Option<[u8; 16]>) -> Self {
        self.name.uuid = uuid;
        self
    }

    /// Returns the least that a namespace of this size can be, for one that was not seen yet.
    pub(crate) fn assumed(bytes: u64, block_size: u32) -> Self {
        let block_shift = block_size.trailing_zeros();
        let optional =
            Optional { verify: false, write_uncorrectable: false, vendor_io: false, vendor_admin: false };
        let subnqn = Box::new([0; 256]);
        Self {
            name: Name {
                serial: [0; 20],
                model: [0; 40],
                subnqn,
                nguid: [0; 16],
                eui64: [0; 8],
                is_seen: false,
                uuid: None,
            },
            block_shift,
            blocks: bytes >> block_shift,
            transfer_max: TRANSFER_MAX,
            write_zeroes: false,
            deallocated: Deallocated::Unsupported,
            zeroes_deallocate: false,
            optional,
            volatile_cache: true,
            power: None,
            holds_back: false,
            quiesce: None,
            restarts_keep_alive: false,
            read_only: false,
            atomic_blocks: 1,
            atomic_boundary: 0,
            atomic_offset: 0,
            optimal_blocks: 1,
            boundary_blocks: 0,
        }
    }

    /// Returns whether this namespace has at least the properties that were assumed.
    pub(crate) fn is_enough_for(&self, assumed: &NamespaceInfo) -> bool {
        self.bytes() >= assumed.bytes() && self.block_shift <= assumed.block_shift && !self.read_only
    }

    /// Returns whether commands for the namespace before have the same meaning for this one.
    pub(crate) fn is_same_as(&self, before: &NamespaceInfo) -> bool {
        self.name == before.name && self.block_shift == before.block_shift
    }

    /// Returns how this namespace differs from the one before in identity, format or size; none if it does not.
    pub(crate) fn difference(&self, before: &NamespaceInfo) -> Option<String> {
        if self.name != before.name {
            let same_device =
                self.name.serial == before.name.serial && self.name.subnqn == before.name.subnqn;
            let what = if same_device { "namespace" } else { "controller" };
            return Some(format!("another {what} answers there"));
        }
        if self.block_shift != before.block_shift {
            let (now, was) = (self.block_size(), before.block_size());
            return Some(format!("its blocks have {now} bytes, and had {was}"));
        }
        (self.blocks != before.blocks)
            .then(|| format!("its namespace has {} bytes, and had {}", self.bytes(), before.bytes()))
    }

    /// Returns whether this namespace can take the place of the one before: the same device, in the same
    /// format, with no less than it had.
    pub(crate) fn replaces(&self, before: &NamespaceInfo, end: u64) -> bool {
        self.is_same_as(before)
            && self.blocks >= end
            && self.transfer_max >= before.transfer_max
            && self.deallocated == before.deallocated
            && self.read_only == before.read_only
            && self.optional == before.optional
            && (before.volatile_cache || !self.volatile_cache)
    }

    /// Returns whether the controller kept all writes that it acknowledged when its power identifier was
    /// `before`. A controller without a volatile cache loses none, unless its identifier has changed.
    pub(crate) fn has_kept_power(&self, before: Option<PowerId>) -> bool {
        match (before, self.power) {
            (Some(before), Some(now)) => before == now,
            _ => !self.volatile_cache,
        }
    }

    /// Returns whether the controller's power identifier has changed. The end of a daemon does not reset a
    /// controller that the kernel drives, so an unknown identifier is no loss.
    pub(crate) fn has_changed_power(&self, before: Option<PowerId>) -> bool {
        before.zip(self.power).is_some_and(|(before, now)| before != now)
    }

    /// Checks that the device supports all listed passthrough commands, and describes their data in the
    /// common format.
    pub(crate) fn supports(&self, wanted: &Passthrough) -> Result<(), Incompatible> {
        let missing = [
            (wanted.io.contains(io::VERIFY) && !self.optional.verify, "Verify"),
            (
                wanted.io.contains(io::WRITE_UNCORRECTABLE) && !self.optional.write_uncorrectable,
                "Write Uncorrectable",
            ),
            (
                has_data(wanted.io, 0x80) && !self.optional.vendor_io,
                "vendor specific I/O commands with data in the common format (ICSVSCC)",
            ),
            (
                has_data(wanted.admin, 0xc0) && !self.optional.vendor_admin,
                "vendor specific admin commands with data in the common format (AVSCC)",
            ),
        ];
        let first = missing.iter().find(|(is_missing, _)| *is_missing);
        first.map_or(Ok(()), |(_, what)| Err(Incompatible::Unsupported(what)))
    }

    /// Returns whether a request needs no command: it is empty, or optional and not supported by the device.
    pub(crate) fn is_done(&self, request: &Request) -> bool {
        match request.operation {
            Operation::Flush => false,
            Operation::Deallocate if self.deallocated == Deallocated::Unsupported => true,
            _ => request.length == 0,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }

    /// Returns the bytes of a logical block.
    pub(crate) fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    /// Returns the identity of the storage of a range of the namespace.
    pub(crate) fn storage(&self, blocks: &Range<u64>) -> Storage {
        self.name.storage().part(blocks.start)
    }

    /// Returns the characteristics of a range of the namespace for the layers above.
    pub(crate) fn characteristics(&self, blocks: &Range<u64>) -> Characteristics {
        let bytes = |blocks: u64| u32::try_from(blocks << self.block_shift).unwrap_or(0);
        // A unit that is counted from the beginning of the namespace must also fit the beginning of the
        // range.
        let meets = |unit: u64| unit > 0 && blocks.start.is_multiple_of(unit);
        let optimal_boundary = if meets(self.boundary_blocks) { self.boundary_blocks } else { 0 };
        // A write that crosses none of these boundaries crosses no atomic boundary of the device.
        let unit = self.atomic_boundary;
        let first =
            if unit == 0 { 0 } else { (self.atomic_offset % unit + unit - blocks.start % unit) % unit };
        let atomic_boundary = common_boundary(unit << self.block_shift, first << self.block_shift);
        let optimal = self.optimal_blocks.is_power_of_two() && meets(self.optimal_blocks);
        let size = (blocks.end - blocks.start) << self.block_shift;
        Characteristics {
            optimal_write: if optimal { bytes(self.optimal_blocks) } else { self.block_size() },
            boundary: bytes(optimal_boundary),
            atomic_boundary,
            atomic_write: bytes(self.atomic_blocks).min(self.transfer_max as u32).max(self.block_size()),
            volatile_cache: self.volatile_cache,
            deallocated: self.deallocated,
            read_only: self.read_only,
            keeps_versions: true,
            storage: self.storage(blocks),
            ..Characteristics::target(size, self.block_size())
        }
    }
}

impl Name {
    /// Returns the storage under the most durable identifier: that of the namespace, or else that of the
    /// device.
    fn storage(&self) -> Storage {
        let own = [&self.uuid.unwrap_or_default()[..], &self.nguid, &self.eui64];
        let own = own.into_iter().find(|id| id.iter().any(|byte| *byte != 0));
        match own {
            Some(id) => Storage::named(id),
            None if !self.is_seen => Storage::UNSEEN,
            None if self.serial == [0; 20] => Storage::default(),
            None => Storage::named(&[&self.serial[..], &self.model[..], &self.subnqn[..]].concat()),
        }
    }

    fn of(controller: &IdentifyController, namespace: &IdentifyNamespace) -> Self {
        Self {
            serial: controller.sn,
            model: controller.mn,
            subnqn: Box::new(controller.subnqn),
            nguid: namespace.nguid,
            eui64: namespace.eui64,
            is_seen: true,
            uuid: None,
        }
    }
}

/// Decodes a 0's based number in which zero means that there is none.
fn zeros_based(value: u16) -> u64 {
    if value == 0 { 0 } else { u64::from(value) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(atomic: u64, [unit, first, optimal]: [u64; 3]) -> NamespaceInfo {
        NamespaceInfo {
            atomic_blocks: atomic,
            atomic_boundary: unit,
            atomic_offset: first,
            boundary_blocks: optimal,
            ..NamespaceInfo::assumed(1 << 20, 512)
        }
    }

    #[test]
    fn no_atomic_write_of_a_range_crosses_a_boundary_of_the_device() {
        for (blocks, units, start, expected) in [
            // Without boundaries, any place is the same.
            (8, [0, 0, 0], 3, [8, 0, 0]),
            (8, [0, 0, 64], 64, [8, 64, 0]),
            // Boundaries of the range are those of the device, or not.
            (8, [32, 0, 0], 64, [8, 0, 32]),
            (64, [32, 0, 0], 64, [64, 0, 32]),
            (8, [32, 0, 0], 8, [8, 0, 8]),
            // The first one lies elsewhere.
            (8, [32, 8, 0], 64, [8, 0, 8]),
            (8, [32, 8, 0], 8, [8, 0, 32]),
            (8, [32, 8, 0], 40, [8, 0, 32]),
            (8, [32, 3, 0], 0, [8, 0, 1]),
            // The preferred boundary is another one.
            (8, [32, 0, 64], 64, [8, 64, 32]),
            (8, [64, 0, 16], 64, [8, 16, 64]),
            (32, [64, 8, 16], 64, [32, 16, 8]),
        ] {
            let seen = info(blocks, units).characteristics(&(start..1 << 11));
            let seen = [seen.atomic_write, seen.boundary, seen.atomic_boundary].map(|bytes| bytes / 512);
            assert_eq!(seen, expected, "{blocks} blocks, {units:?} from {start}");
        }
    }
}
