//! A namespace: a size, a block size, and the router that leads to its data.

use crate::management::Attachment;
use crate::reservation::{Group, HostId, Reservations};
use crate::uncorrectable::UncorrectableRanges;
use crate::{ReservationRecord, Subsystem, fused};
use sluice_command::{Characteristics, Operation, Passthrough};
use sluice_nvme::Status;
use sluice_router::Router;
use std::fmt;
use std::ops::Range;

/// What an operator says of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    pub nsid: u32,
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Globally unique and the same after a restart (Base 4.5.1).
    pub uuid: [u8; 16],
}

/// Why a namespace cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceError {
    BlockSize(u32),
    /// The target cannot transfer less than this.
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
                write!(f, "NSID {nsid} is not possible; use 1 to {}", crate::NAMESPACES_MAX)
            }
        }
    }
}

impl std::error::Error for NamespaceError {}

/// Why a command of some controller may be refused.
const RESERVED: u8 = 1 << 0;
const ASYMMETRIC: u8 = 1 << 1;
const DETACHED: u8 = 1 << 2;

/// One namespace of a drive.
#[derive(Debug)]
pub struct Namespace {
    pub(crate) config: NamespaceConfig,
    pub(crate) router: Router,
    block_shift: u32,
    blocks: u64,
    /// How many of them a command may name without a closer look: none while something is the matter.
    open_blocks: u64,
    /// Why it is.
    closed: Option<Status>,
    /// Blocks that cannot be read.
    uncorrectable: UncorrectableRanges,
    /// Bytes that a fused operation has to itself.
    claimed: Option<Range<u64>>,
    /// Bytes that [abandoned](crate::abandoned) commands may still change.
    held_back: Vec<Range<u64>>,
    fixed_block_size: bool,
    erasable: bool,
    read_only: bool,
    passthrough: Passthrough,
    pub(crate) reservations: Reservations,
    /// It is reserved, or its group is not to be accessed by every way, or some controller does not have it.
    guards: u8,
    ana_group: u32,
    /// A host has created it.
    created: bool,
    /// Several controllers may have it at a time.
    shared: bool,
    attachment: Attachment,
    /// Bit per number of a controller that has it.
    attached: u32,
    leaves: bool,
    /// Has commands to settle in this turn.
    pub(crate) touched: bool,
}

impl Namespace {
    pub fn new(config: NamespaceConfig, mut router: Router) -> Result<Self, NamespaceError> {
        if config.block_size != 512 && config.block_size != 4096 {
            return Err(NamespaceError::BlockSize(config.block_size));
        }
        if config.nsid == 0 || config.nsid as usize > crate::NAMESPACES_MAX {
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
            // What goes to the device as it is counts in the blocks that there are now.
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

    /// No host may change its block size: somebody besides the host counts in its blocks.
    pub fn fix_block_size(self) -> Self {
        Self { fixed_block_size: true, ..self }
    }

    /// No host may erase it: there is more behind it than its first path reaches.
    pub fn forbid_erasing(self) -> Self {
        Self { erasable: false, ..self }
    }

    /// Hosts have registered with it, and perhaps reserved it, in an earlier life of its subsystem.
    pub fn reserved(mut self, record: &ReservationRecord) -> Self {
        self.set_reservations(Reservations::restore(record));
        self
    }

    /// It is in this ANA group, from one to [`ANA_GROUPS_MAX`](crate::ANA_GROUPS_MAX); otherwise in the first.
    pub fn in_ana_group(self, group: u32) -> Self {
        Self { ana_group: group, ..self }
    }

    pub(crate) fn ana_group(&self) -> u32 {
        self.ana_group
    }

    /// A host has created it, and may delete it.
    pub fn created(self, shared: bool) -> Self {
        Self { created: true, shared, attachment: Attachment::NONE, ..self }
    }

    /// Hosts have said in an earlier life of its subsystem which controllers have it.
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

    /// Bit per number of a controller.
    pub(crate) fn attached(&self) -> u32 {
        self.attached
    }

    pub(crate) fn is_attached(&self, number: u8) -> bool {
        self.attached >> number & 1 != 0
    }

    /// To these controllers, of those there are.
    pub(crate) fn attach(&mut self, attached: u32, present: &[u8]) {
        self.attached = attached;
        self.guard(DETACHED, !present.iter().all(|number| self.is_attached(*number)));
    }

    /// Bytes that it takes of the pool, whatever blocks it is formatted with.
    pub(crate) fn bytes(&self) -> u64 {
        self.router.characteristics().size
    }

    /// It is being deleted: to everybody it is not there.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves
    }

    pub(crate) fn leave(&mut self) {
        self.leaves = true;
        self.close(Subsystem::status_of_inactive(self.nsid()));
    }

    /// It stays after all.
    pub(crate) fn stay(&mut self) {
        self.leaves = false;
        self.open();
    }

    pub(crate) fn set_reservations(&mut self, reservations: Reservations) {
        self.guard(RESERVED, reservations.kind().is_some());
        self.reservations = reservations;
    }

    /// Some controller may be refused for the way that it is.
    pub(crate) fn set_asymmetric(&mut self, is_asymmetric: bool) {
        self.guard(ASYMMETRIC, is_asymmetric);
    }

    fn guard(&mut self, why: u8, is_split: bool) {
        self.guards = self.guards & !why | if is_split { why } else { 0 };
    }

    /// Not every controller can do everything with it.
    #[inline]
    pub(crate) fn is_guarded(&self) -> bool {
        self.guards != 0
    }

    /// For an I/O command of this host.
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

    /// Logical blocks.
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

    /// What goes on to a device as the host writes it.
    pub(crate) fn passthrough(&self) -> Passthrough {
        self.passthrough
    }

    /// What lies below, for Identify.
    pub fn characteristics(&self) -> Characteristics {
        self.router.characteristics()
    }

    /// Where its commands choose their paths, and its classifier is replaced.
    pub fn router(&self) -> &Router {
        &self.router
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.config.uuid
    }

    /// The target was made `size` bytes large. True if the host has to be told.
    pub(crate) fn resize(&mut self, size: u64) -> bool {
        self.router.resize(size);
        self.count_blocks()
    }

    /// Its layers are others now; its blocks are what they were.
    pub(crate) fn restacked(&mut self) {
        let Characteristics { read_only, passthrough, .. } = self.router.characteristics();
        (self.read_only, self.passthrough) = (read_only, passthrough);
    }

    /// It has blocks of this size from now on, which the layers below can do.
    pub(crate) fn set_block_size(&mut self, block_size: u32) {
        self.config.block_size = block_size;
        self.block_shift = block_size.trailing_zeros();
        self.router.set_format(self.config.nsid, block_size);
        self.count_blocks();
    }

    /// True if there are not as many as there were.
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

    /// Every command is refused from now on, with this status.
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

    /// Commands with these bytes [wait](crate::fused), or none do.
    pub(crate) fn claim(&mut self, bytes: Option<Range<u64>>) {
        self.claimed = bytes;
        self.count_open();
    }

    /// Commands with any of these bytes wait, until others are named. Returns those before.
    pub(crate) fn hold_back(&mut self, bytes: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let before = std::mem::replace(&mut self.held_back, bytes);
        self.count_open();
        before
    }

    /// Commands with some bytes wait.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.is_some() || !self.held_back.is_empty()
    }

    /// Nothing is the matter with any block.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.open_blocks != 0
    }

    /// For commands that name no block.
    pub(crate) fn check_open(&self) -> Result<(), Status> {
        self.closed.map_or(Ok(()), Err)
    }

    /// Whether a command may do this with these blocks. While nothing is the matter with any, that is one comparison.
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
