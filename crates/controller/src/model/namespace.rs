//! Namespace: a size, a block size, and the router to its data.

use crate::model::Subsystem;
use crate::state::limits::NAMESPACES_MAX;
use crate::state::management::Attachment;
use crate::state::reservation::{Group, HostId, ReservationRecord, Reservations};
use crate::state::uncorrectable::UncorrectableRanges;
use crate::state::{chunk, fused};
use sluice_command::{Characteristics, Operation, Passthrough};
use sluice_nvme::Status;
use sluice_router::Router;
use std::fmt;
use std::ops::Range;

/// Configuration of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    pub nsid: u32,
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Globally unique identifier that survives a restart (Base 4.5.1).
    pub uuid: [u8; 16],
}

/// Reason why a namespace cannot be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceError {
    BlockSize(u32),
    /// Block size smaller than the target's.
    TargetBlockSize {
        namespace: u32,
        target: u32,
    },
    TooSmall {
        size: u64,
        block_size: u32,
    },
    Nsid(u32),
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize(size) => write!(f, "block size {size} is not possible; use 512 or 4096"),
            Self::TargetBlockSize { namespace, target } => {
                write!(f, "block size {namespace} is smaller than the target's {target}; use {target}")
            }
            Self::TooSmall { size, block_size } => {
                write!(f, "{size} bytes are less than one block of {block_size}")
            }
            Self::Nsid(nsid) => {
                write!(f, "NSID {nsid} is not possible; use 1 to {}", NAMESPACES_MAX)
            }
        }
    }
}

impl std::error::Error for NamespaceError {}

/// Reasons why a command of some controller may be refused.
const RESERVED: u8 = 1 << 0;

const ASYMMETRIC: u8 = 1 << 1;

const DETACHED: u8 = 1 << 2;

/// Namespace of a drive.
#[derive(Debug)]
pub struct Namespace {
    pub(super) config: NamespaceConfig,
    pub(super) router: Router,
    block_shift: u32,
    blocks: u64,
    /// Number of blocks that a command may name without further checks; zero while a block needs one.
    open_blocks: u64,
    /// Status that all commands get while the namespace is closed.
    closed: Option<Status>,
    /// Blocks that cannot be read.
    uncorrectable: UncorrectableRanges,
    /// Bytes that a fused operation has to itself.
    claimed: Option<Range<u64>>,
    /// Bytes that [abandoned](crate::state::abandoned) commands may still change.
    held_back: Vec<Range<u64>>,
    fixed_block_size: bool,
    erasable: bool,
    read_only: bool,
    passthrough: Passthrough,
    pub(super) reservations: Reservations,
    /// Reasons for checks of each command: a reservation, an ANA group with refusing paths, or a controller
    /// without the namespace.
    guards: u8,
    ana_group: u32,
    /// Whether a host has created it.
    created: bool,
    /// Whether several controllers may have it at a time.
    shared: bool,
    attachment: Attachment,
    /// Bit per number of a controller that has it.
    attached: u32,
    leaves: bool,
    /// Whether it may have finished commands in this turn.
    pub(super) touched: bool,
}

impl Namespace {
    pub fn new(config: NamespaceConfig, mut router: Router) -> Result<Self, NamespaceError> {
        if config.block_size != 512 && config.block_size != 4096 {
            return Err(NamespaceError::BlockSize(config.block_size));
        }
        if config.nsid == 0 || config.nsid as usize > NAMESPACES_MAX {
            return Err(NamespaceError::Nsid(config.nsid));
        }
        let below = router.characteristics();
        if below.block_size > config.block_size {
            return Err(NamespaceError::TargetBlockSize {
                namespace: config.block_size,
                target: below.block_size,
            });
        }
        let block_shift = config.block_size.trailing_zeros();
        let blocks = below.size >> block_shift;
        if blocks == 0 {
            return Err(NamespaceError::TooSmall { size: below.size, block_size: config.block_size });
        }
        router.set_format(config.nsid, config.block_size);
        let Characteristics { read_only, passthrough, .. } = below;
        Ok(Self {
            config,
            router,
            block_shift,
            blocks,
            open_blocks: blocks,
            closed: None,
            uncorrectable: UncorrectableRanges::default(),
            claimed: None,
            held_back: Vec::new(),
            // The device counts in its current blocks, since some commands go to it unchanged.
            fixed_block_size: passthrough != Passthrough::NONE,
            erasable: true,
            read_only,
            passthrough,
            reservations: Reservations::default(),
            guards: 0,
            ana_group: 1,
            created: false,
            shared: true,
            attachment: Attachment::ALL,
            attached: 0,
            leaves: false,
            touched: false,
        })
    }

    /// Forbids a change of the block size by hosts, since other users count in its blocks.
    pub fn fix_block_size(self) -> Self {
        Self { fixed_block_size: true, ..self }
    }

    /// Forbids an erasure by hosts, since there is more data than its first path reaches.
    pub fn forbid_erasing(self) -> Self {
        Self { erasable: false, ..self }
    }

    /// Restores registrations and the reservation of an earlier daemon.
    pub fn reserved(mut self, record: &ReservationRecord) -> Self {
        self.set_reservations(Reservations::restore(record));
        self
    }

    /// Sets the ANA group, from one to [`ANA_GROUPS_MAX`](crate::ANA_GROUPS_MAX). The default is the first.
    pub fn in_ana_group(self, group: u32) -> Self {
        Self { ana_group: group, ..self }
    }

    pub(crate) fn ana_group(&self) -> u32 {
        self.ana_group
    }

    /// Marks a namespace that a host has created, and may delete.
    pub fn created(self, shared: bool) -> Self {
        Self { created: true, shared, attachment: Attachment::NONE, ..self }
    }

    /// Restores the attachment that hosts have set under an earlier daemon.
    pub fn attached_to(self, attachment: Attachment) -> Self {
        Self { attachment, ..self }
    }

    pub fn is_created(&self) -> bool {
        self.created
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    pub(crate) fn set_attachment(&mut self, attachment: Attachment) {
        self.attachment = attachment;
    }

    /// Returns a bit per number of a controller that has the namespace.
    pub(crate) fn attached(&self) -> u32 {
        self.attached
    }

    pub(crate) fn is_attached(&self, number: u8) -> bool {
        self.attached >> number & 1 != 0
    }

    /// Attaches the namespace to these controllers; `present` are all that exist.
    pub(crate) fn attach(&mut self, attached: u32, present: &[u8]) {
        self.attached = attached;
        self.guard(DETACHED, !present.iter().all(|number| self.is_attached(*number)));
    }

    /// Returns the bytes that it takes of the pool, whatever its block size.
    pub(crate) fn bytes(&self) -> u64 {
        self.router.characteristics().size
    }

    /// Returns whether it is being deleted, and so is hidden from all hosts.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves
    }

    pub(crate) fn leave(&mut self) {
        self.leaves = true;
        self.close(Subsystem::status_of_inactive(self.nsid()));
    }

    /// Cancels the deletion.
    pub(crate) fn stay(&mut self) {
        self.leaves = false;
        self.open();
    }

    pub(crate) fn set_reservations(&mut self, reservations: Reservations) {
        self.guard(RESERVED, reservations.kind().is_some());
        self.reservations = reservations;
    }

    /// Sets whether some controller may be refused for its ANA state.
    pub(crate) fn set_asymmetric(&mut self, is_asymmetric: bool) {
        self.guard(ASYMMETRIC, is_asymmetric);
    }

    fn guard(&mut self, why: u8, is_split: bool) {
        self.guards = self.guards & !why | if is_split { why } else { 0 };
    }

    /// Returns whether not every controller can do everything with it.
    #[inline]
    pub(crate) fn is_guarded(&self) -> bool {
        self.guards != 0
    }

    /// Checks an I/O command of this host against the reservation.
    pub(crate) fn check_reservation(&self, host: HostId, opcode: u8) -> Result<(), Status> {
        match self.reservations.permits(host, Group::of_io(opcode)) {
            true => Ok(()),
            false => Err(Status::RESERVATION_CONFLICT),
        }
    }

    pub(crate) fn is_block_size_fixed(&self) -> bool {
        self.fixed_block_size
    }

    pub(crate) fn is_erasable(&self) -> bool {
        self.erasable
    }

    pub fn nsid(&self) -> u32 {
        self.config.nsid
    }

    /// Returns the number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    #[inline]
    pub fn block_shift(&self) -> u32 {
        self.block_shift
    }

    pub fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the commands that go to a device unchanged.
    pub(crate) fn passthrough(&self) -> Passthrough {
        self.passthrough
    }

    /// Returns the characteristics of its layers, for Identify.
    pub fn characteristics(&self) -> Characteristics {
        self.router.characteristics()
    }

    /// Returns the router, where commands choose their paths and the classifier is replaced.
    pub fn router(&self) -> &Router {
        &self.router
    }

    pub(crate) fn router_mut(&mut self) -> &mut Router {
        &mut self.router
    }

    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.config.uuid
    }

    /// Sets the new size of the target in bytes. Returns whether hosts must be notified.
    pub(crate) fn resize(&mut self, size: u64) -> bool {
        self.router.resize(size);
        self.count_blocks()
    }

    /// Updates what depends on its layers after they were changed; its blocks are the same.
    pub(crate) fn stack_edited(&mut self) {
        let Characteristics { read_only, passthrough, .. } = self.router.characteristics();
        (self.read_only, self.passthrough) = (read_only, passthrough);
    }

    /// Sets the block size, which the layers below must support.
    pub(crate) fn set_block_size(&mut self, block_size: u32) {
        self.config.block_size = block_size;
        self.block_shift = block_size.trailing_zeros();
        self.router.set_format(self.config.nsid, block_size);
        self.count_blocks();
    }

    /// Counts the blocks again, and returns whether their number has changed.
    fn count_blocks(&mut self) -> bool {
        let blocks = self.router.characteristics().size >> self.block_shift;
        let before = std::mem::replace(&mut self.blocks, blocks);
        self.count_open();
        before != blocks
    }

    fn count_open(&mut self) {
        let is_plain = self.closed.is_none() && !self.is_claimed() && self.uncorrectable.is_empty();
        self.open_blocks = if is_plain { self.blocks } else { 0 };
    }

    /// Closes the namespace: every command fails with this status.
    pub(crate) fn close(&mut self, status: Status) {
        self.closed = Some(status);
        self.count_open();
    }

    pub(crate) fn open(&mut self) {
        self.closed = None;
        self.count_open();
    }

    pub(crate) fn uncorrectable(&self) -> &UncorrectableRanges {
        &self.uncorrectable
    }

    pub(crate) fn set_uncorrectable(&mut self, ranges: UncorrectableRanges) {
        self.uncorrectable = ranges;
        self.count_open();
    }

    #[cold]
    pub(crate) fn is_uncorrectable(&self, bytes: &Range<u64>) -> bool {
        self.uncorrectable.overlap(bytes)
    }

    /// Makes commands with these bytes [wait](crate::state::fused), or none.
    pub(crate) fn claim(&mut self, bytes: Option<Range<u64>>) {
        self.claimed = bytes;
        self.count_open();
    }

    /// Makes commands with any of these bytes wait, in place of the former ranges, which are returned.
    pub(crate) fn hold_back(&mut self, bytes: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let before = std::mem::replace(&mut self.held_back, bytes);
        self.count_open();
        before
    }

    /// Returns whether commands with some bytes wait.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.is_some() || !self.held_back.is_empty()
    }

    /// Returns whether no block needs further checks.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.open_blocks != 0
    }

    /// Checks commands that name no block.
    pub(crate) fn check_open(&self) -> Result<(), Status> {
        self.closed.map_or(Ok(()), Err)
    }

    /// Checks whether a command may do this with these blocks. With no special blocks this is one comparison.
    #[inline]
    pub(crate) fn check(&self, operation: Operation, slba: u64, blocks: u64) -> Result<(), Status> {
        match slba.checked_add(blocks).is_some_and(|end| end <= self.open_blocks) {
            true => Ok(()),
            false => self.check_guarded(operation, slba, blocks),
        }
    }

    #[cold]
    fn check_guarded(&self, operation: Operation, slba: u64, blocks: u64) -> Result<(), Status> {
        if let Some(status) = self.closed {
            return Err(status);
        }
        let end =
            slba.checked_add(blocks).filter(|end| *end <= self.blocks).ok_or(Status::LBA_OUT_OF_RANGE)?;
        let bytes = slba << self.block_shift..end << self.block_shift;
        let overlaps = |it: &Range<u64>| it.start < bytes.end && bytes.start < it.end;
        if self.claimed.iter().chain(&self.held_back).any(overlaps) {
            return Err(fused::CLAIMED);
        }
        match operation == Operation::Read && self.is_uncorrectable(&bytes) {
            true => Err(Status::UNRECOVERED_READ_ERROR),
            false => Ok(()),
        }
    }
}

/// Returns whether fused operations are supported. A device that receives commands unchanged would ignore
/// claims.
pub(crate) fn is_offered(subsystem: &Subsystem) -> bool {
    subsystem.iter().all(|namespace| namespace.passthrough() == Passthrough::NONE)
}

/// Returns the bytes of the largest pair that a namespace takes: the atomic write unit, and at most one
/// chunk.
pub(crate) fn largest(namespace: &Namespace) -> u64 {
    (atomic_write_blocks(namespace) << namespace.block_shift()).min(chunk::CHUNK as u64)
}

/// Returns the blocks between two boundaries, zero for none. A distance that does not fit into the field is
/// replaced by a part of it: a command that crosses no such boundary crosses no real one.
pub(crate) fn boundary_blocks(namespace: &Namespace, below: &Characteristics) -> u16 {
    in_field(below.boundary >> namespace.block_shift())
}

fn in_field(blocks: u32) -> u16 {
    u16::try_from(blocks).unwrap_or(1 << blocks.trailing_zeros().min(15))
}

/// Returns the blocks between two boundaries of atomic writes, zero for none. A boundary inside a block makes every
/// block one of its own.
pub(crate) fn atomic_boundary_blocks(namespace: &Namespace, below: &Characteristics) -> u16 {
    let (unit, shift) = (below.atomic_boundary, namespace.block_shift());
    match unit.is_multiple_of(1 << shift) {
        true => in_field(unit >> shift),
        false => 1,
    }
}

/// Returns the blocks of the largest atomic write, at least one. It does not exceed the distance of two
/// boundaries (NVM Command Set 4.1.5.1, NABSN).
pub(crate) fn atomic_write_blocks(namespace: &Namespace) -> u64 {
    let below = namespace.characteristics();
    let atomic = u64::from(below.atomic_write >> namespace.block_shift()).max(1);
    match atomic_boundary_blocks(namespace, &below) {
        0 => atomic,
        boundary => atomic.min(u64::from(boundary)),
    }
}
