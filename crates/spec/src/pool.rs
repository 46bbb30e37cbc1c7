//! The pool of a drive as a user describes it.

use super::{Fault, ImageFormat, NamespaceSpec, OnFull, TargetKind};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// Storage of which hosts create namespaces. Without a pool, the drive has only the namespaces that the
/// operator gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolSpec {
    /// `memory`, or `file` for one file per namespace.
    pub target: TargetKind,
    /// Bytes of all these namespaces together.
    pub size: Size,
    /// Folder of the files, which is created if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub folder: Option<PathBuf>,
    /// Outcome of a write when the folder's file system is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
}

impl PoolSpec {
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.size.0 == 0 || self.size > Size::MAX {
            return Err(Fault::at_key("size", format!("{} is not possible", self.size)).hint(
                "say how much all namespaces together may have that hosts create, such as \"100GiB\"",
            ));
        }
        match (self.target, &self.folder) {
            (TargetKind::Memory, None) if self.on_full.is_none() => Ok(()),
            (TargetKind::Memory, _) => {
                let key = if self.folder.is_some() { "folder" } else { "on_full" };
                Err(Fault::at_key(key, "a pool in memory has none")
                    .hint("say target = \"file\", or remove it"))
            }
            (TargetKind::File, None) => Err(Fault::at_key("folder", "a pool of files needs one")
                .hint("add folder = \"/where/the/files/are\"")),
            (TargetKind::File, Some(folder)) if !folder.is_absolute() => {
                Err(Fault::at_key("folder", format!("{} is not an absolute path", folder.display()))
                    .hint("the daemon has another working directory than you: start the path with /"))
            }
            (TargetKind::File, Some(_)) => Ok(()),
            (kind, _) => {
                Err(Fault::at_key("target", format!("a pool cannot be of {} targets", kind.as_str()))
                    .hint("use \"memory\" or \"file\""))
            }
        }
    }

    /// Resolves relative paths against `base`.
    pub(super) fn resolve_paths(&mut self, base: &Path) {
        self.folder.iter_mut().for_each(|folder| *folder = base.join(&folder));
    }

    /// Returns whether finished writes may be lost at a power cut, unless they are flushed.
    pub fn has_volatile_cache(&self) -> bool {
        self.target == TargetKind::File
    }

    /// Returns a namespace of the pool, in this file if the pool has files. Without `new_size`, a file that
    /// exists keeps its size.
    pub fn namespace(&self, file: Option<&str>, block_size: u32, new_size: Option<Size>) -> NamespaceSpec {
        let path = self.folder.as_ref().zip(file).map(|(folder, file)| folder.join(file));
        NamespaceSpec {
            target: self.target,
            size: new_size,
            path,
            on_full: self.on_full,
            // The first bytes are a host's data, so no image format is detected.
            format: (self.target == TargetKind::File).then_some(ImageFormat::Raw),
            lease: None,
            read_only: false,
            nvme: None,
            nvme_tcp: None,
            shared: None,
            volume: None,
            block_size,
            ana_group: None,
            functions: Vec::new(),
            paths: Vec::new(),
        }
    }
}
