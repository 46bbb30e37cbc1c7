//! Tests of the NVMe targets over vfio-user and over TCP, with a drive of Sluice as the device, and the host
//! crate as the guest.

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
