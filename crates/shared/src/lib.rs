//! Objects that lie under several drives on several reactors: a pool of memory, a budget of tokens.
//!
//! A shared [`Object`] has a home reactor, where a [task](HomeTask) polls it. Each user has a [`Port`]: a pair of
//! bounded rings to the home. The port belongs to a layer of a drive and moves with the drive, so messages need no
//! forwarding after a move.
//!
//! # Credit
//!
//! The object consists of units, such as extents or tokens. A port takes units in advance, its *credit*. While credit
//! is left, taking a unit touches no memory of another reactor. Without credit, the layer keeps its command in order
//! and [requests](Port::request) more. All messages of a turn are published with one store. The other side is woken
//! only if it sleeps.
//!
//! # Recall
//!
//! A request is refused only if the object has too few units and no other port holds unused credit. For that the home
//! recalls the credit of all other ports, and waits for their answers. A port keeps credit that its own waiting
//! commands need.
//!
//! # Ends
//!
//! A dropped port is closed by a flag, which needs no room in a ring. The home then reclaims the units of the port. An
//! object is [removed](SharedObject::remove) only after the last port is closed and reclaimed.
#![forbid(unsafe_code)]

mod home;
mod message;
mod notifier;
mod object;
mod port;
mod ports;
mod ring;
mod task;
#[cfg(test)]
mod tests;
mod units;

pub use home::Home;
pub use object::{Object, Unit};
pub use port::{NEED_MAX, Port, Received};
pub use ports::{Connection, HomeSide, PORTS_MAX, PortNumber, Refused};
pub use task::{HomeTask, SharedObject};
pub use units::Units;
