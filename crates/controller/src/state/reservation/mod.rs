//! Reservations (Base 8.19): access rights of hosts that share a namespace.
//!
//! The modules only compute: who is [registered](state), the [actions](command) that hosts request, the
//! [changes](change) by them, the [access](access) of other hosts, the [report](report), the [record](record)
//! for a loss of power, and the [notifications](notification) of a controller for its host.

pub(crate) mod access;
pub(crate) mod change;
pub(crate) mod command;
#[cfg(test)]
mod edges;
pub(crate) mod host;
pub(crate) mod name;
pub(crate) mod notification;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod state;
#[cfg(test)]
mod tests;

/// Registrants of a namespace.
pub const REGISTRANTS_MAX: usize = 64;

/// Registrants of a namespace with the same host name. More than one is possible, since an identifier may be
/// lost with its machine. They are limited, since one host could otherwise leave no room for others.
pub const REGISTRANTS_OF_ONE_MAX: usize = 4;

/// Identify Namespace's RESCAP: reservations may persist through power loss, all six types, and an existing
/// key is ignored as revision 1.3 of the specification defines it.
pub(crate) const CAPABILITIES: u8 = 0xff;

pub(crate) use access::Group;
pub(crate) use change::{Action, Change, Register};
pub use host::HostId;
pub use name::KnownAs;
pub(crate) use notification::Notifications;
pub use record::{RegistrantRecord, ReservationRecord};
pub use state::ReservationType;
pub(crate) use state::{Registrant, Reservations};
