//! The REST API: on a UNIX socket, for callers whose credentials allow it.
#![forbid(unsafe_code)]

mod ana;
mod answer;
mod callers;
mod classifier;
pub mod client;
mod declare;
mod events;
mod function;
mod jobs;
mod limits;
mod line_stream;
mod metrics;
mod orders;
mod page;
mod routes;
mod scrape;
mod server;
mod shared;
mod targets;
mod trace;

pub use ana::AnaList;
pub use answer::{Answer, ErrorAnswer, THREADS, ordered};
pub use callers::Policy;
pub use classifier::{MapList, ReplaceRequest, ValueRequest};
pub use function::{
    AttachRequest, ControlAnswer, ControlRequest, FunctionList, KindList, MoveRequest, RestartRequest,
};
pub use jobs::{JobList, PaceRequest};
pub use limits::{GroupList, LimitsList, LimitsRequest};
pub use orders::NO_DRIVE;
pub use page::{PageAccess, PageServer, PageView};
pub use routes::{
    App, DriveList, DriveMoveRequest, LatencyList, ReactorList, ResizeRequest, UpgradeRequest, Version,
    document, router,
};
pub use scrape::MetricsServer;
pub use server::{Server, refusal};
pub use shared::{CloneRequest, GrowRequest, SharedList, VolumeList};
pub use targets::{FirmwareRequest, PauseRequest, TargetList, TargetReplaceRequest, TargetResetRequest};

#[cfg(test)]
mod tests;
