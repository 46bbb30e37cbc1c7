//! What a user says of a drive: the same shapes in the configuration file, the API and the state file.
//!
//! The types here are as lenient as the text they come from; [`DriveSpec::check`] says what is wrong
//! with one, and [`NamespaceSpec::target`] turns the loose keys of a namespace into one [`Target`].

mod ana;
mod arrangement;
mod classifier;
mod compose;
mod dhchap;
mod drive;
mod fault;
mod function;
mod identity;
mod layer;
mod namespace;
mod nvme;
mod nvme_tcp;
mod passthrough;
mod path;
mod pool;
mod power;
mod resolve;
mod stacks;
mod storage;
mod tcp;
mod uif;
mod vfio_user;

pub use ana::{AnaSpec, AnaStateName};
pub use arrangement::Arrangement;
pub use classifier::{ClassifierSpec, default_section};
pub use compose::{ConcatSpec, StripeSpec};
pub use dhchap::{DhchapSpec, GroupName, HashName};
pub use drive::{Doorbells, DriveSpec, check_name};
pub use fault::{Fault, KeyPath, Step};
pub use function::{DelaySpec, FaultSpec, FunctionSpec, OperationName, OutcomeName, PassSpec, RangeSpec};
pub(crate) use identity::{uuid, uuid_nqn};
pub use layer::LayerSpec;
pub use namespace::{FileTarget, ImageFormat, NamespaceSpec, OnFull, Target, TargetKind};
pub use nvme::{LossName, NvmeSpec};
pub use nvme_tcp::{DigestName, NvmeTcpSpec, PolicyName};
pub use passthrough::{Opcode, PassthroughSpec};
pub use path::{PATHS_MAX, PathSpec, Way};
pub use pool::PoolSpec;
pub(crate) use stacks::StackSpec;
pub(crate) use storage::Location;
pub(crate) use tcp::check_keys;
pub use tcp::{HostSpec, KnownHostSpec, TcpSpec};
pub(crate) use uif::check_kind;
pub use uif::{OnDeathName, Place, Provenance, UifSpec};
pub use vfio_user::VfioUserSpec;

#[cfg(test)]
mod tests;
