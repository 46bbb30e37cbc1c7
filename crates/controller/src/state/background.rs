//! Background work of a controller, as an operator sees it.

use sluice_jobs::Report;

/// NSID of work that concerns all namespaces.
pub const ALL_NAMESPACES: u32 = 0;

/// Job that a host ordered from the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackgroundJob {
    /// NSID of the namespace, or [`ALL_NAMESPACES`].
    pub nsid: u32,
    pub report: Report,
}
