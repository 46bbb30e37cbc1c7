//! A further layer below a function as a user describes it.

use super::namespace::default_block_size;
use super::{FunctionSpec, ImageFormat, NamespaceSpec, NvmeSpec, NvmeTcpSpec, OnFull, TargetKind};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A target, and the functions over it, for a function that keeps something elsewhere than in the rest of
/// its stack: a second copy, its metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    pub target: TargetKind,
    /// Bytes. May be left out for a file that exists. It is the layer's own: a resize of the namespace leaves
    /// it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// File or block device of a `file` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// What a `file` target does when its file system is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// `raw` if a `file` target is to be served as it is, although it begins like an image of another format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// A file or partition with the lease of a `file` target whose disk several machines have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lease: Option<PathBuf>,
    /// The device of an `nvme` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
    /// Bytes of what is read and written at least: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Storage functions over the target, topmost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub functions: Vec<FunctionSpec>,
}

impl LayerSpec {
    /// How large it is, as far as that can be said from here.
    pub fn known_size(&self) -> Option<Size> {
        if !self.functions.iter().all(FunctionSpec::keeps_size) {
            return None;
        }
        let of_file =
            || self.path.as_ref()?.metadata().ok().filter(|file| file.is_file()).map(|it| Size(it.len()));
        let far = self.nvme_tcp.as_ref().and_then(|far| far.size);
        self.size.or(far).or_else(of_file)
    }

    /// The namespace that it would be.
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
            block_size: self.block_size,
            ana_group: None,
            functions: self.functions.clone(),
            paths: Vec::new(),
        }
    }
}
