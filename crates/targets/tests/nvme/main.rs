//! The NVMe target, with our own drive as the device and our own host as the guest.

mod confine;
mod io;
mod loss;
mod memory;
mod model;
mod passthrough;
mod rig;
mod sleep;
