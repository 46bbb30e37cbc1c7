//! An NVMe controller without a transport: registers, queues, admin commands, namespaces and events.
//!
//! A drive is a [`Subsystem`], with its namespaces and the slab of its commands, beside any number of
//! controllers. Each call into a controller borrows the subsystem. A front-end owns a [`Controller`], reports
//! what the host did (a register written, a doorbell rung) and gives the controller turns. In a turn the
//! controller copies new entries out of the submission queues, checks them, and sends them through the router
//! of their namespace. Then it writes the completions of all finished commands. The transport is never
//! visible to the controller.
#![forbid(unsafe_code)]

mod abandoned;
mod access;
mod admin;
mod ana;
mod arbitration;
mod attached;
mod capsules;
mod chunk;
mod client_dma;
mod compare;
mod complete;
mod controller;
mod copy;
mod dataset;
mod doorbells;
mod edit_stack;
mod erase;
mod events;
mod failures;
mod features;
mod fetch;
mod format;
mod fused;
mod health;
mod interrupts;
mod io;
mod losses;
mod mailbox;
mod management;
mod namespace;
mod overview;
mod passthrough;
mod pause;
mod persist;
mod persistent_event;
mod power;
mod queue;
mod registers;
mod remote_queues;
mod reservation;
mod reset;
mod sanitize;
mod self_test;
mod sharing;
mod subsystem;
mod sync;
mod turn;
mod uncorrectable;
mod unmapped_queues;
mod verify;

pub use admin::describe::PCI_VENDOR;
pub use ana::{ANA_GROUPS_MAX, AnaRule};
pub use attached::Attached;
pub use capsules::{CAPSULES_MAX, IN_CAPSULE_MAX, QueuePair};
pub use client_dma::{DMA_REQUESTS_MAX, DMA_TIMEOUT_NS, DmaRequest};
pub use controller::{Config, Controller, DoorbellMode, Statistics};
pub use edit_stack::{EditStackError, Refusal};
pub use format::{FormatRecord, FormatState};
pub use mailbox::CONTROLLERS_MAX;
pub use management::{ATTACHED_MAX, Attachment, Creation, Pool};
pub use namespace::{Namespace, NamespaceConfig, NamespaceError};
pub use overview::{Overview, Phase};
pub use persist::{PERSIST_BURST, PERSIST_INTERVAL_NS, PersistentRecord};
pub use persistent_event::{PERSISTENT_EVENT_LOG_BYTES, PersistentEventRecord};
pub use power::PowerCounts;
pub use remote_queues::{CannotMigrate, MigratingGroup, PeerConfig, RecallCause, ReturningGroup};
pub use reservation::{
    HostId, KnownAs, REGISTRANTS_MAX, REGISTRANTS_OF_ONE_MAX, RegistrantRecord, ReservationRecord,
    ReservationType,
};
pub use sanitize::{SanitizeRecord, SanitizeState};
pub use subsystem::{Identity, Subsystem};
pub use sync::Synced;
pub use uncorrectable::UNCORRECTABLE_RANGES_MAX;

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
