//! The controller as a host sees it: every test drives queues in memory and gives turns by hand.

mod arbitration;
mod client;
mod copy;
mod doorbells;
mod events;
mod features;
mod firmware;
mod format;
mod fused;
mod hold;
mod host;
mod hostile;
mod identify;
mod interrupts;
mod io;
mod life;
mod log;
mod model;
mod pages;
mod queues;
mod remote;
mod reservation;
mod sanitize;
mod self_test;
mod shared;
mod uncorrectable;
