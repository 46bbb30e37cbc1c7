//! Front-ends: where commands come in.
//!
//! A front-end sees the doorbell (or the capsule), gives the controller its turns and carries interrupts
//! back. It knows controllers and guest memory, and neither functions nor targets.
//!
//! - [`vfio_user`]: NVMe controllers for virtual machines, over the vfio-user protocol.
#![forbid(unsafe_code)]

mod log_limit;
pub mod vfio_user;

pub use log_limit::LogLimit;
