//! Pools on a disk that loses power.

mod disk;
mod power;
mod releases;
mod rig;
mod rules;
mod snapshots;
mod stack;
mod thread;
