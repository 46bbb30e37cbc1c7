//! An NVMe controller without a transport: registers, queues, admin commands, namespaces and events.
//!
//! A drive is a [`Subsystem`], with its namespaces and the slab of its commands, beside any number of
//! controllers. Each call into a controller borrows the subsystem. A front-end owns a [`Controller`], reports
//! what the host did (a register written, a doorbell rung) and gives the controller turns. In a turn the
//! controller copies new entries out of the submission queues, checks them, and sends them through the router
//! of their namespace. Then it writes the completions of all finished commands. The transport is never
//! visible to the controller.
#![forbid(unsafe_code)]

mod admin;
mod command;
mod engine;
mod jobs;
mod model;
mod state;

pub use admin::describe::PCI_VENDOR;
pub use engine::attached::Attached;
pub use engine::capsules::QueuePair;
pub use engine::edit_stack::EditStackError;
pub use engine::kept::Remains;
pub use engine::remote_queues::migrate::MigratingGroup;
pub use engine::remote_queues::recall::ReturningGroup;
pub use model::namespace::{NamespaceConfig, NamespaceError};
pub use model::overview::{Overview, Phase};
pub use model::peer_config::{CannotMigrate, PeerConfig};
pub use model::subsystem::Config;
pub use model::{Controller, Namespace, Subsystem};
pub use quanta::Clock as LatencyClock;
pub use state::ana::{AnaRule, TRANSITION_SECONDS};
pub use state::background::{ALL_NAMESPACES, BackgroundJob};
pub use state::client_dma::{DMA_REQUESTS_MAX, DMA_TIMEOUT_NS, DmaRequest};
pub use state::counters::{CommandCounts, QueueCounts};
pub use state::doorbells::DoorbellMode;
pub use state::format::{FormatRecord, FormatState};
pub use state::health::Statistics;
pub use state::identity::Identity;
pub use state::latency::{
    LATENCY_BUCKETS, LatencyCells, OperationLatency, TimedOperation, bucket_of, bucket_upper_ns,
};
pub use state::limits::{
    ANA_GROUPS_MAX, CAPSULES_MAX, COMMANDS_MAX, CONTROLLERS_MAX, FETCH_MAX, HOST_TIMEOUT, IN_CAPSULE_MAX,
    IO_QUEUES_MAX, NAMESPACES_MAX, QUEUE_ENTRIES_MAX, TRANSFER_MAX,
};
pub use state::management::{ATTACHED_MAX, Attachment, Creation, Pool};
pub use state::persist::{PERSIST_BURST, PERSIST_INTERVAL_NS, PersistentRecord};
pub use state::persistent_event::{PERSISTENT_EVENT_LOG_BYTES, PersistentEventRecord};
pub use state::power::PowerCounts;
pub use state::record::{CannotHandOver, ControllerRecord, SubsystemRecord};
pub use state::refusal::Refusal;
pub use state::remote_queues::cause::RecallCause;
pub use state::reservation::{
    HostId, KnownAs, REGISTRANTS_MAX, REGISTRANTS_OF_ONE_MAX, RegistrantRecord, ReservationRecord,
    ReservationType,
};
pub use state::sampling::TIMED_EVERY;
pub use state::sanitize::{SanitizeRecord, SanitizeState};
pub use state::slow::SlowCommand;
pub use state::sync::Synced;
pub use state::trace::{TRACE_ENTRIES, TRACE_EVERY, TRACE_LEASE_NS, TraceChoice, TraceRing, TracedCommand};
pub use state::uncorrectable::UNCORRECTABLE_RANGES_MAX;
