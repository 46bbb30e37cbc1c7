//! Queue groups of a virtual machine on reactors other than their drive's.
//!
//! The drive is home: it has the client's socket, and everything but the commands of the queues that are away. An
//! [`RemoteQueues`] is a task of another reactor that serves one group. Home sends it the group with what it takes to serve
//! it (the queues, the map of the client's memory, the eventfd of its interrupt), and gets it back likewise; nothing is
//! touched by both, but for the doorbells. A doorbell that comes over the socket is stored where the outpost looks, and wakes
//! it if it sleeps.

mod handle;
mod owner;
mod task;

pub use handle::RemoteHandle;
pub use owner::Migration;
pub(crate) use owner::RemoteGroups;
pub use task::RemoteQueues;
