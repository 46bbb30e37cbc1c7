//! I/O commands: one module for each. A module checks a command, prepares its steps, and returns the next one.

pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod dataset;
pub(crate) mod fused;
pub(crate) mod io;
pub(crate) mod passthrough;
pub(crate) mod reservation;
pub(crate) mod transfer;
pub(crate) mod uncorrectable;
pub(crate) mod verify;

use sluice_nvme::Status;

/// Next step of a command that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Submission of its request to the router.
    Send,
    /// Submission to the router as it is.
    Pass,
    /// Completion, since it requests no operation.
    Nothing,
}

/// Next step of a command that is back from the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Submission of its next request to the router of its namespace.
    Send,
    /// Submission of its next request to the router of this namespace.
    SendTo(u32),
    /// Completion with this status, and this value in dword 0.
    Finish(Status, u32),
    /// Turn among the reservation commands.
    Order,
    /// Change of the uncorrectable ranges, before the completion.
    ChangeRanges,
}
