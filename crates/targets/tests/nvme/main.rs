//! The NVMe targets, with our own drive as the device, over vfio-user and over TCP, and our own host as the guest.

mod confine;
mod elsewhere;
mod io;
mod loss;
mod memory;
mod model;
mod passthrough;
mod rig;
mod sleep;
mod tcp;
