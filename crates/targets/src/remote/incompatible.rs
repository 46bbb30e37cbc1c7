//! Reasons for which a namespace cannot be a target, for all transports.

use std::fmt;

/// A property of a controller or namespace that makes it unusable as a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incompatible {
    /// No namespace of that NSID is active.
    NoNamespace(u32),
    /// Metadata, protection information, or a block size that no drive can have.
    Format(&'static str),
    /// A passthrough command is configured that the device does not support.
    Unsupported(&'static str),
    /// The namespace has less than the configuration requires.
    TooSmall,
}

impl fmt::Display for Incompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incompatible::NoNamespace(nsid) => write!(f, "there is no active namespace {nsid}"),
            Incompatible::Format(what) => {
                write!(
                    f,
                    "the namespace has {what}; use one with blocks of 512 or 4096 bytes and no metadata"
                )
            }
            Incompatible::TooSmall => f.write_str(
                "the namespace is smaller than `size`, has larger blocks than the drive, or is read-only",
            ),
            Incompatible::Unsupported(what) => {
                write!(f, "the device does not have {what}; take it out of passthrough")
            }
        }
    }
}
