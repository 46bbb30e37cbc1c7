//! A shared object as a user describes it.

use super::{Fault, check_name};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// Bytes of an extent of a pool.
const EXTENT: u64 = 64 << 10;

/// Kind of a shared object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SharedKind {
    #[default]
    /// Memory of the daemon for `memory-pool` targets.
    MemoryPool,
    /// A file or block device for `thin` targets.
    Thin,
}

impl SharedKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryPool => "memory-pool",
            Self::Thin => "thin",
        }
    }
}

/// An object that several drives on several reactors use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedSpec {
    /// Name, unique among shared objects.
    pub name: String,
    #[serde(rename = "type")]
    pub kind: SharedKind,
    /// Bytes, a multiple of 64 KiB. A pool of memory takes them from the machine when the daemon starts.
    pub size: Size,
    /// The file or block device of a `thin` pool. A file that does not exist is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Reactor on which the object is, counted from 0; the first if not given.
    #[serde(default)]
    pub reactor: usize,
}

impl SharedSpec {
    /// Checks the description, for a daemon with this number of reactors.
    pub fn check(&self, reactors: usize) -> Result<(), Fault> {
        check_name(&self.name)?;
        let Size(size) = self.size;
        if size == 0 || !size.is_multiple_of(EXTENT) || size / EXTENT > u32::MAX.into() {
            return Err(Fault::at_key("size", format!("{} is not possible", self.size))
                .hint("use a multiple of 64KiB, such as \"1GiB\""));
        }
        match (self.kind, &self.path) {
            (SharedKind::MemoryPool, Some(_)) => {
                return Err(Fault::at_key("path", "a pool of memory has none")
                    .hint("remove path, or say type = \"thin\""));
            }
            (SharedKind::Thin, None) => {
                return Err(Fault::at_key("path", "a thin pool needs one")
                    .hint("add path = \"/folder/pool.img\" or that of a block device"));
            }
            (SharedKind::Thin, Some(path)) if !path.is_absolute() => {
                return Err(Fault::at_key("path", format!("{} is not absolute", path.display()))
                    .hint("begin with a slash"));
            }
            _ => {}
        }
        if self.reactor >= reactors {
            let (be, last) = (if reactors == 1 { "is" } else { "are" }, reactors);
            return Err(Fault::at_key("reactor", format!("there is no reactor {}", self.reactor))
                .hint(format!("there {be} {last}, counted from 0: one for each of daemon.cores")));
        }
        Ok(())
    }
}
