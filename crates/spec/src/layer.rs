//! A further layer below a function as a user describes it.

use super::namespace::default_block_size;
use super::{FunctionSpec, ImageFormat, NamespaceSpec, NvmeSpec, NvmeTcpSpec, OnFull, TargetKind};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A target, and the functions over it, for a function that keeps data elsewhere than in the rest of its
/// stack: a second copy, or its metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    pub target: TargetKind,
    /// Bytes. May be left out for a file that exists. A resize of the namespace does not change this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// File or block device of a `file` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Reaction of a `file` target to a full file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// `raw` if a `file` target is to be served as it is, although it begins like an image of another format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// File or partition with the lease of a `file` target whose disk several machines have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lease: Option<PathBuf>,
    /// The device of an `nvme` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
    /// Smallest number of bytes that is read or written: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Storage functions over the target, topmost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub functions: Vec<FunctionSpec>,
}

impl LayerSpec {
    /// Returns the size of the layer, if the description or the file determines it.
    pub fn known_size(&self) -> Option<Size> {
        if !self.functions.iter().all(FunctionSpec::keeps_size) {
            return None;
        }
        let of_file =
            || self.path.as_ref()?.metadata().ok().filter(|file| file.is_file()).map(|it| Size(it.len()));
        let far = self.nvme_tcp.as_ref().and_then(|far| far.size);
        self.size.or(far).or_else(of_file)
    }

    /// Converts the layer into a namespace.
    pub fn as_namespace(&self) -> NamespaceSpec {
        NamespaceSpec {
            target: self.target,
            size: self.size,
            path: self.path.clone(),
            on_full: self.on_full,
            format: self.format,
            lease: self.lease.clone(),
            read_only: false,
            nvme: self.nvme.clone(),
            nvme_tcp: self.nvme_tcp.clone(),
            shared: None,
            volume: None,
            block_size: self.block_size,
            ana_group: None,
            functions: self.functions.clone(),
            paths: Vec::new(),
        }
    }
}
