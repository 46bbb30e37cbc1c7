//! Why a namespace cannot be a target, whoever has it.

use std::fmt;

/// What a controller or a namespace says of itself that we cannot work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incompatible {
    /// No namespace of that NSID is active.
    NoNamespace(u32),
    /// Metadata, protection information, or blocks that no drive of ours can have.
    Format(&'static str),
    /// It was told to hand on what the device does not have.
    Unsupported(&'static str),
    /// It is less than the configuration says.
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
                "the namespace is smaller than `size` says, has larger blocks than the drive, or is only read",
            ),
            Incompatible::Unsupported(what) => {
                write!(f, "the device does not have {what}; take it out of passthrough")
            }
        }
    }
}
