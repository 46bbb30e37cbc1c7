//! Simulated runs, each decided by one seed. `SLUICE_SEEDS=n` runs more of them, `SLUICE_SEED=n` one.

mod controller;
mod file;
mod layers;
mod model;
mod nvme;
mod remote;
mod snapshot;
mod stacks;
mod target;
