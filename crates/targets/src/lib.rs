//! Targets: the ends of a stack, one module for each kind of storage.
#![forbid(unsafe_code)]

mod file;
mod memory;
mod memory_pool;
mod null;
mod nvme;
mod nvme_tcp;
mod pages;
mod remote;

pub use file::storage_at;
pub use file::{
    File, FileConfig, FileControl, FileError, FileIdentity, FileProbe, FileSeed, NoSpace, probe_lease,
};
pub use memory::Memory;
pub use memory_pool::{EXTENT, MemoryPool, PoolPort, PoolRefused, PoolStatus, PooledMemory};
pub use null::Null;
pub use nvme::{
    Address, Generic, GenericConfig, GenericError, GenericSeed, Nvme, NvmeConfig, NvmeControl, NvmeError,
    NvmeSeed, NvmeStatus, OnLoss, Passes,
};
pub use nvme_tcp::{
    Digests, Expected, Multipath, NvmeTcp, NvmeTcpConfig, NvmeTcpControl, NvmeTcpError, NvmeTcpSeed,
    NvmeTcpStatus, PATHS_MAX, PathPolicy, discover,
};
pub use remote::{LossNotice, PowerId, PreviousSession, await_shutdowns};
