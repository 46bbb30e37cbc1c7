//! An NVMe host of our own: a driver over a PCI-like transport.
//!
//! Tests and the benchmark drive a controller with it, without a virtual machine. Its transports are a
//! vfio-user client, and VFIO for a real PCI device.
//!
//! From the bottom up:
//! - [`PciTransport`]: registers, memory for DMA, interrupts, reset; [`VfioUser`] is one, [`Vfio`]
//!   another.
//! - [`DmaBuffer`]: memory that both sides see.
//! - [`QueuePair`]: a submission queue, its completion queue and the identifiers of commands, without
//!   waiting, allocation or locks; what a benchmark spins on.
//! - [`Controller`]: life cycle and admin commands, which wait, with a time limit.
//! - [`Namespace`]: blocks read and written one command at a time, for tests.
//!
//! It is a polite driver by default and lets itself be made an impolite one: registers, doorbells and
//! queue entries can be written with anything.
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
