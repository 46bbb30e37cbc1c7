//! Simulated runs, each decided by one seed. `SLUICE_SEEDS=n` runs more of them, `SLUICE_SEED=n` one.

mod controller;
mod file;
mod layers;
mod model;
mod nvme;
mod parity;
mod remote;
mod stacks;
mod target;
mod thin;

/// Layers have room for the parts of a host's longest command, the most that a function requests at once.
const _: () = assert!(sluice_uif::abi::DATA_MAX == sluice_controller::TRANSFER_MAX);
