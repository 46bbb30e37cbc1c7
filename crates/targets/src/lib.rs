//! Targets: the ends of a stack, one module for each kind of storage.
#![forbid(unsafe_code)]

mod file;
mod memory;
mod memory_pool;
mod null;
mod nvme;
mod nvme_tcp;
mod pages;
mod paused;
mod remote;

pub use file::storage_at;
pub use file::{
    File, FileConfig, FileControl, FileError, FileIdentity, FileProbe, NoSpace, PreparedFile, probe_lease,
};
pub use memory::Memory;
pub use memory_pool::{EXTENT, MemoryPool, PoolPort, PoolRefused, PoolStatus, PooledMemory};
pub use null::Null;
pub use nvme::{
    Address, Generic, GenericConfig, GenericError, Nvme, NvmeConfig, NvmeControl, NvmeError, NvmeStatus,
    OnLoss, Passes, PreparedGeneric, PreparedNvme,
};
pub use nvme_tcp::{
    Digests, Expected, Multipath, NvmeTcp, NvmeTcpConfig, NvmeTcpControl, NvmeTcpError, NvmeTcpStatus,
    PATHS_MAX, PathPolicy, PreparedNvmeTcp, UnreportedLosses, discover,
};
pub use paused::Paused;
pub use remote::{
    Activation, CommitLimits, ControllerContext, LossNotice, Maintenance, MaintenanceFault, PowerId,
    PreviousSession, ResetReport, await_shutdowns,
};
