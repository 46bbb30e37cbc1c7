//! A further path of a namespace as a user describes it.

use super::{
    Fault, FunctionSpec, ImageFormat, NamespaceSpec, NvmeSpec, NvmeTcpSpec, OnFull, TargetKind, check_name,
};
use crate::words::count;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::PathBuf;
use utoipa::ToSchema;

/// Maximum number of paths of a namespace besides the first, which is its whole stack.
pub const PATHS_MAX: usize = sluice_router::Leg::COUNT - 1;

/// A path that a classifier can choose besides the whole stack: into the middle of the stack, or to a target
/// of its own. The first in the list is path 1, which leg 1 of a verdict takes, and so on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PathSpec {
    /// Name for people; programs use the path's number.
    pub name: String,
    /// Number of the namespace's functions below which the path enters the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<usize>,
    /// Whether a program may send commands to all blocks there, even beyond the namespace's size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beyond: bool,
    /// Target of its own, instead of `below`, which is as large as the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetKind>,
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
    /// The device of an `nvme` target, whose range is at least as large as the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target, whose namespace is at least as large as this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
    /// Storage functions over its own target, topmost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionSpec>,
}

/// Destination of a path.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// The namespace's stack, below this number of functions.
    Below(usize),
    /// A stack of its own, like that of a namespace.
    Own(Box<NamespaceSpec>),
}

impl PathSpec {
    /// Converts the loose keys into the destination of the path.
    pub fn way(&self, namespace: &NamespaceSpec) -> Result<Way, Fault> {
        match (self.below, self.target) {
            (Some(below), None) => self.way_below(below, namespace).map(Way::Below),
            (None, Some(target)) if !self.beyond => Ok(Way::Own(Box::new(NamespaceSpec {
                target,
                path: self.path.clone(),
                on_full: self.on_full,
                format: self.format,
                lease: self.lease.clone(),
                read_only: false,
                nvme: self.nvme.clone(),
                nvme_tcp: self.nvme_tcp.clone(),
                shared: None,
                volume: None,
                functions: self.functions.clone(),
                paths: Vec::new(),
                size: namespace.size.filter(|_| !matches!(target, TargetKind::Nvme | TargetKind::NvmeTcp)),
                block_size: namespace.block_size,
                ana_group: None,
            }))),
            (None, Some(_)) => {
                Err(Fault::at_key("beyond", "only a path with `below` leads beyond the namespace")
                    .hint("a target of its own is as large as the namespace"))
            }
            _ => Err(Fault::at_key("below", "a path has either `below` or a `target`")
                .hint("below = 1 passes by one function; target = \"memory\" leads elsewhere")),
        }
    }

    fn way_below(&self, below: usize, namespace: &NamespaceSpec) -> Result<usize, Fault> {
        let misplaced = [
            ("path", self.path.is_some()),
            ("on_full", self.on_full.is_some()),
            ("format", self.format.is_some()),
            ("lease", self.lease.is_some()),
            ("nvme", self.nvme.is_some()),
            ("nvme_tcp", self.nvme_tcp.is_some()),
            ("functions", !self.functions.is_empty()),
        ];
        if let Some((key, _)) = misplaced.iter().find(|(_, given)| *given) {
            return Err(Fault::at_key(key, "only a path with a target of its own has one"));
        }
        let functions = namespace.functions.len();
        if below == 0 || below > functions {
            return Err(Fault::at_key(
                "below",
                format!("the namespace has {}", count(functions, "function")),
            )
            .hint("use 1 to pass by the topmost, and so on: the whole stack is the first path already"));
        }
        Ok(below)
    }
}

/// Checks the further paths of a namespace.
pub(super) fn check_paths(namespace: &NamespaceSpec) -> Result<(), Fault> {
    if namespace.paths.len() > PATHS_MAX {
        return Err(Fault::at_key(
            "paths",
            format!("at most {PATHS_MAX} besides the whole stack are possible"),
        ));
    }
    let mut names = HashSet::new();
    for (index, path) in namespace.paths.iter().enumerate() {
        let checked = check_name(&path.name).and_then(|()| match path.way(namespace)? {
            Way::Below(_) => Ok(()),
            Way::Own(own) => own.check(),
        });
        checked.map_err(|fault| fault.inside("paths", index))?;
        if !names.insert(&path.name) {
            return Err(Fault::at_key("name", format!("`{}` is the name of an earlier path", path.name))
                .inside("paths", index));
        }
    }
    Ok(())
}
