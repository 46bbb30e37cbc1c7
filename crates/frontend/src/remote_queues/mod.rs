//! Remote queue groups of a virtual machine, served by other reactors than their drive's.
//!
//! The drive is the owner: it has the client's socket, and does everything except the commands of remote
//! queues. A [`RemoteQueues`] is a task of another reactor that serves one group. The owner sends the group
//! with all that is needed to serve it: the queues, the map of the client's memory, the eventfd of its
//! interrupt. The remote task returns the group in the same way. The two share nothing except the doorbells
//! and a few [flags](RemoteHandle). The owner stores a doorbell that arrives over the socket in the memory
//! that the remote task reads, and wakes a sleeping task.

mod handle;
mod owner;
mod task;

pub use handle::RemoteHandle;
pub use owner::Migration;
pub(crate) use owner::RemoteGroups;
pub use task::RemoteQueues;
