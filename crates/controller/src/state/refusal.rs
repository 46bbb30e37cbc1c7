//! Refusal of a change of layers or namespaces.

use sluice_command::StackError;
use std::fmt;

/// Reason why the stack of a namespace cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Commands of the host are in flight; the drive must be [held](crate::Subsystem::hold) first.
    NotQuiet,
    NoSuchNamespace(u32),
    /// The layer has work under way, or a layer over it has.
    Busy,
    /// The namespace is being formatted.
    Formatted,
    Stack(StackError),
    /// The namespace would have another size.
    Size,
    /// The new target has fewer bytes than the namespace.
    Smaller {
        has: u64,
        needs: u64,
    },
    /// The new target accepts no write, and the old one does.
    ReadOnly,
    /// The layer cannot transfer less than this.
    BlockSize(u32),
    /// Finished writes would not be durable any more without a Flush.
    VolatileCache,
    /// Deallocate would start or cease to be supported.
    Deallocate,
    /// The layers would make more commands than a drive can have.
    TooManyCommands,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotQuiet => f.write_str("commands are in flight"),
            Self::NoSuchNamespace(nsid) => write!(f, "there is no namespace {nsid}"),
            Self::Busy => f.write_str("it still has something under way"),
            Self::Formatted => f.write_str("the namespace is being formatted"),
            Self::Stack(error) => error.fmt(f),
            Self::Size => f.write_str("the size of the namespace would change under its host"),
            Self::Smaller { has, needs } => {
                write!(f, "it has {has} bytes, and the namespace has {needs}")
            }
            Self::ReadOnly => f.write_str("it accepts no write, and the host writes"),
            Self::BlockSize(size) => {
                write!(f, "it needs blocks of {size} bytes, and those of the namespace are smaller")
            }
            Self::VolatileCache => f.write_str(
                "finished writes would need a Flush to be durable, and the host was told that they do not",
            ),
            Self::Deallocate => f.write_str("the host was told something else about Deallocate"),
            Self::TooManyCommands => f.write_str("the layers would make more commands than a drive can have"),
        }
    }
}

impl std::error::Error for Refusal {}
