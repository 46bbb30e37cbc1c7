//! Common parts of the targets on other NVMe controllers, for all transports.

mod event_requests;
mod identity;
mod incompatible;
pub(crate) mod maintenance;
mod notifier;
pub(crate) mod orders;
mod presence;
mod retry;
mod unflushed;
mod waiting;

pub(crate) use event_requests::{EventRequests, LogLimit};
pub use identity::PowerId;
pub(crate) use identity::{BLOCKS_MAX, NamespaceInfo};
pub(crate) use incompatible::Incompatible;
pub use maintenance::{Activation, CommitLimits, ControllerContext, MaintenanceFault, ResetReport};
pub(crate) use notifier::Notifier;
pub use orders::Maintenance;
pub(crate) use presence::Present;
pub use presence::await_shutdowns;
pub(crate) use retry::Retry;
pub(crate) use unflushed::Unflushed;
pub use unflushed::{LossNotice, PreviousSession};
pub(crate) use waiting::{end_some, finish};
