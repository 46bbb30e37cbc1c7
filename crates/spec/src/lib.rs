//! A user's description of a drive, in the same form in the configuration file, the API and the state file.
//!
//! The types here are as lenient as the text they come from. [`DriveSpec::check`] returns the first fault of
//! a description. [`NamespaceSpec::target`] converts the loose keys of a namespace into one [`Target`].

#![forbid(unsafe_code)]

mod ana;
mod classifier;
mod dhchap;
mod drive;
pub mod error;
mod function;
mod group;
pub mod host_name;
mod identity;
mod layer;
mod layout;
mod namespace;
mod nvme;
mod nvme_tcp;
pub mod output;
mod passthrough;
mod path;
pub mod paths;
mod pool;
mod power;
mod resolve;
mod sets;
mod shared;
mod stacks;
mod storage;
pub mod table;
mod target;
mod tcp;
mod uif;
mod vfio_user;

pub use ana::{AnaSpec, AnaStateName};
pub use classifier::{ClassifierSpec, default_section};
pub use dhchap::{DhchapSpec, GroupName, HashName};
pub use drive::{AbsenceAnswer, AbsenceSpec, Doorbells, DriveSpec, check_name};
pub use function::FunctionSpec;
pub use group::GroupSpec;
pub use identity::{uuid, uuid_nqn};
pub use layer::LayerSpec;
pub use layout::Layout;
pub use namespace::{FileTarget, ImageFormat, NamespaceSpec, OnFull, Target, TargetKind};
pub use nvme::{LossName, NvmeSpec};
pub use nvme_tcp::{DigestName, NvmeTcpSpec, PolicyName};
pub use passthrough::{Opcode, PassthroughSpec};
pub use path::{PATHS_MAX, PathSpec, Way};
pub use pool::PoolSpec;
pub use sets::{PlaceSpec, SetSpec};
pub use shared::{SharedKind, SharedSpec};
pub use sluice_functions::OperationName;
pub use sluice_options::{Fault, KeyPath, Step, size, words};
pub use stacks::StackSpec;
pub use storage::Location;
pub use target::TargetSpec;
pub use tcp::check_keys;
pub use tcp::{HostSpec, KnownHostSpec, TcpSpec};
pub use uif::check_kind;
pub use uif::{OnDeathName, Place, Provenance, UifSpec};
pub use vfio_user::VfioUserSpec;

#[cfg(test)]
mod tests;
