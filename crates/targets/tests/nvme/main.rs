//! The NVMe target, with our own drive as the device and our own host as the guest.

mod io;
mod loss;
mod memory;
mod rig;
