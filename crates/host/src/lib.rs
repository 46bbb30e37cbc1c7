//! An NVMe host: a driver over a PCI-like transport.
//!
//! Tests and the benchmark drive a controller with it, without a virtual machine. Its transports are a
//! vfio-user client, and VFIO for a real PCI device.
//!
//! From the bottom up:
//! - [`PciTransport`]: registers, memory for DMA, interrupts, reset; implemented by [`VfioUser`] and [`Vfio`].
//! - [`DmaBuffer`]: memory that host and device share.
//! - [`QueuePair`]: a submission queue, its completion queue and the identifiers of commands, without
//!   waiting, allocation or locks, for polling benchmarks.
//! - [`Controller`]: initialization, shutdown and admin commands, which wait, with a time limit.
//! - [`Namespace`]: blocks read and written one command at a time, for tests.
//!
//! The driver follows the specification by default. Tests can make it violate the specification: registers,
//! doorbells and queue entries can be written with anything.
#![forbid(unsafe_code)]

mod admin;
mod controller;
#[cfg(test)]
mod controller_tests;
mod dma;
mod doorbell;
pub mod entry;
mod error;
mod events;
pub mod identify;
mod interrupt;
mod lists;
mod namespace;
pub mod pci;
mod queue;
#[cfg(test)]
mod queue_tests;
mod ring;
#[cfg(test)]
mod test_device;
mod transport;
mod vfio;
mod vfio_user;
mod wait;

pub use admin::QueueCount;
pub use controller::{Capabilities, Controller, Settings};
pub use dma::{DmaAllocator, DmaBuffer, DmaRange};
pub use error::Error;
pub use events::AsyncEvent;
pub use interrupt::Interrupt;
pub use lists::ListPages;
pub use namespace::Namespace;
pub use queue::{QueueLayout, QueuePair};
pub use ring::{CompletionRing, SubmissionRing};
pub use transport::{PciTransport, Region};
pub use vfio::Vfio;
pub use vfio_user::{Client, Mode, Peer, Reply, VfioUser};
pub use wait::Deadline;
