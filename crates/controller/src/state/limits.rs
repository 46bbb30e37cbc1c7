//! Limits of the crate.

use std::time::Duration;

/// Number of ANA groups; they are numbered from one.
pub const ANA_GROUPS_MAX: u32 = 32;

/// Time after which a host gives up a command, unless the operator sets another: that of Linux
/// (`nvme_core.io_timeout`).
pub const HOST_TIMEOUT: Duration = Duration::from_secs(30);

/// Controllers of a subsystem at a time.
pub const CONTROLLERS_MAX: usize = sluice_command::Controllers::MAX;

/// I/O queue pairs of a controller, without the admin queue pair.
pub const IO_QUEUES_MAX: u16 = 128;

/// Entries of the deepest queue; CAP.MQES is one less (Base 3.1.3.1).
pub const QUEUE_ENTRIES_MAX: u32 = 4096;

/// Bytes of the largest data transfer; Identify Controller's MDTS is the same in pages (Base 5.17.2.1).
pub const TRANSFER_MAX: u32 = 1 << 20;

/// Namespaces of a drive.
pub const NAMESPACES_MAX: usize = 128;

/// Commands of one drive in flight, all queues together. More commands wait in their submission queues.
pub const COMMANDS_MAX: u32 = sluice_command::handover::COMMANDS_MAX as u32;

/// Entries taken out of one queue in one turn, so that a deep queue does not starve other queues.
pub const FETCH_MAX: u32 = 64;

/// Entries taken before the first of them is completed. With fewer, the host's core waits less for its first
/// completion; with more, the work that is done once per batch costs less. Measured at queue depths of 32 and
/// 128 with the host on another core: 8 and 16 are a third faster than 64 at 32, and 16 loses 5 % to 64 at
/// 128.
pub(crate) const BATCH_MAX: u32 = 16;

/// Largest NSID.
pub(crate) const NN: u32 = NAMESPACES_MAX as u32;

/// Bytes of data in a command capsule at most; Identify's IOCCSZ reports it (Base 5.17.2.1).
pub const IN_CAPSULE_MAX: u32 = 8192;

/// Commands that a host may have outstanding on one queue: CAP.MQES is one less, MAXCMD the same.
pub const CAPSULES_MAX: u16 = 128;
