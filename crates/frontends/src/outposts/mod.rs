//! Queue groups of a virtual machine on reactors other than their drive's.
//!
//! The drive is home: it has the client's socket, and everything but the commands of the queues that are away. An
//! [`Outpost`] is a task of another reactor that serves one group. Home sends it the group with what it takes to serve
//! it (the queues, the map of the client's memory, the eventfd of its interrupt), and gets it back likewise; nothing is
//! touched by both, but for the doorbells. A doorbell that comes over the socket is stored where the outpost looks, and wakes
//! it if it sleeps.

mod home;
mod line;
mod outpost;

pub use home::Departure;
pub(crate) use home::Outposts;
pub use line::Post;
pub use outpost::Outpost;
