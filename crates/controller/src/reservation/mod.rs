//! Reservations (Base 8.19): which hosts may read and write a namespace that several of them share.
//!
//! Most of it is about what they mean, and does nothing: who is [registered](state), what a command
//! [changes](change), what it may not [do](access), what is [reported](report), what is [kept](record) over a loss of
//! power, and which [notifications](notification) a controller has for its host. The [commands](command) say what a host wants,
//! and the [orders](orders) are carried out one after the other.

mod access;
mod change;
pub(crate) mod command;
mod host;
mod name;
pub(crate) mod notification;
mod orders;
mod record;
mod report;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use access::Group;
pub(crate) use change::{Action, Change, Register};
pub use host::HostId;
pub use name::KnownAs;
pub(crate) use notification::{NOTIFICATIONS_MAX, Notification, Notifications};
pub(crate) use orders::Orders;
pub use record::{RegistrantRecord, ReservationRecord};
pub use state::ReservationType;
pub(crate) use state::{Registrant, Reservations};

/// Registrants of a namespace.
pub const REGISTRANTS_MAX: usize = 64;

/// Registrants of a namespace that are one host by its name: more than one, since an identifier may be lost with the
/// machine that had it; and no more, since one host could else leave no room for others.
pub const REGISTRANTS_OF_ONE_MAX: usize = 4;

/// Identify Namespace's RESCAP: reservations may persist through power loss, all six types, and an existing key is
/// ignored as revision 1.3 of the specification has it.
pub(crate) const CAPABILITIES: u8 = 0xff;
