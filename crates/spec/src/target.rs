//! The target of a namespace alone, as a user describes it.

use super::{Fault, ImageFormat, NamespaceSpec, NvmeSpec, NvmeTcpSpec, OnFull, TargetKind};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// The keys of a namespace that describe its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    pub target: TargetKind,
    /// Bytes. May be left out for a file that exists.
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
    /// Whether a `file` target is only read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The device of an `nvme` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
}

impl TargetSpec {
    /// Returns the description of a file or block device.
    pub fn file(path: PathBuf) -> Self {
        Self { path: Some(path), ..Self::of_kind(TargetKind::File) }
    }

    /// Returns the description of a namespace of a subsystem on the network.
    pub fn nvme_tcp(nvme_tcp: NvmeTcpSpec) -> Self {
        Self { nvme_tcp: Some(nvme_tcp), ..Self::of_kind(TargetKind::NvmeTcp) }
    }

    fn of_kind(target: TargetKind) -> Self {
        Self {
            target,
            size: None,
            path: None,
            on_full: None,
            format: None,
            lease: None,
            read_only: false,
            nvme: None,
            nvme_tcp: None,
        }
    }

    /// Resolves relative paths against `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        super::resolve::resolve(folder, [&mut self.path, &mut self.lease], &mut self.nvme, &mut []);
    }

    /// Checks that the target holds data that outlives the daemon.
    pub fn check_storage(&self) -> Result<(), Fault> {
        match self.target {
            TargetKind::File | TargetKind::Nvme | TargetKind::NvmeTcp => Ok(()),
            kind => Err(Fault::at_key("target", format!("a {} target is no storage", kind.as_str()))
                .hint("use file, nvme or nvme-tcp")),
        }
    }
}

impl NamespaceSpec {
    /// Returns the target without the functions over it.
    pub fn target_spec(&self) -> TargetSpec {
        TargetSpec {
            target: self.target,
            size: self.size,
            path: self.path.clone(),
            on_full: self.on_full,
            format: self.format,
            lease: self.lease.clone(),
            read_only: self.read_only,
            nvme: self.nvme.clone(),
            nvme_tcp: self.nvme_tcp.clone(),
        }
    }

    /// Replaces the target, and keeps the functions over it.
    pub fn set_target(&mut self, spec: TargetSpec) {
        let TargetSpec { target, size, path, on_full, format, lease, read_only, nvme, nvme_tcp } = spec;
        (self.target, self.size, self.path) = (target, size, path);
        (self.on_full, self.format, self.lease, self.read_only) = (on_full, format, lease, read_only);
        (self.nvme, self.nvme_tcp, self.shared) = (nvme, nvme_tcp, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_taken_out_and_put_in() {
        let text = r#"{"target": "file", "path": "/a", "size": "1MiB", "on_full": "park", "lease": "/l",
                       "functions": [{"kind": "pass"}], "block_size": 4096}"#;
        let was: NamespaceSpec = serde_json::from_str(text).expect("a namespace");
        let mut is = was.clone();
        is.set_target(TargetSpec::file("/b".into()));
        assert_eq!((is.path.as_deref(), is.size, is.lease.clone()), (Some(Path::new("/b")), None, None));
        assert_eq!((&is.functions, is.block_size), (&was.functions, was.block_size));
        is.set_target(was.target_spec());
        assert_eq!(is, was);
        let memory = TargetSpec::of_kind(TargetKind::Memory);
        assert!(memory.check_storage().is_err() && was.target_spec().check_storage().is_ok());
    }
}
