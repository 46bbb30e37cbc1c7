//! Pools on a disk that loses power.

mod disk;
mod power;
mod rig;
mod rules;
mod snapshots;
mod stack;
mod thread;
