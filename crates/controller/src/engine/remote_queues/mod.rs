//! Remote queue groups: a completion queue with its submission queues, served by another reactor than their
//! drive's.
//!
//! The controller that a host sees is the *owner*. A *remote* controller is another [`Controller`](crate::Controller) beside
//! another [`Subsystem`](crate::Subsystem), whose layers reach the same data. It has only the queues of the groups that it was
//! sent. So a command of a remote group takes the path of all commands, and a drive without remote groups
//! pays nothing.
//!
//! All unusual work is done by the owner. The lists in
//! [`groups`](crate::state::remote_queues::groups) name the work that is possible while groups are remote. All other work recalls them first: the owner [requests](crate::Controller::recall_cause) the recall,
//! and the remote controller takes no more entries and returns the group when its commands have ended. A
//! reset, a shutdown and an unmap count each remote group as a command in flight, and wait for it.
//!
//! The owner reads the counters of a remote controller at any time, as of the end of a turn: see
//! [`tally`](crate::state::remote_queues::tally).

pub(crate) mod groups;
pub(crate) mod migrate;
pub(crate) mod recall;
