//! Queue groups away from home: a completion queue with its submission queues, served by another reactor than their
//! drive's.
//!
//! A drive's controller is *home*. An *outpost* is another [`Controller`], beside another [`Subsystem`] whose layers
//! reach the same data, which has no queues but those of the groups that it was sent. So a command of a group that is away
//! takes the path that all commands take, and a drive that has none away pays nothing.
//!
//! There is one place for everything unusual, which is home. What is done while groups are away is on the lists of
//! [`apart`]; whatever else comes up brings them home first: home [calls](Controller::calls_groups_home), the outpost takes
//! nothing more, and comes when its commands have ended. Whoever waits for commands in flight waits for groups that are away,
//! too: to a reset, a shutdown and an unmap each is one.
//!
//! What an outpost counts home reads at any time, as of the end of a turn ([`tally`]).

mod cause;
mod groups;
mod migrate;
mod peer_config;
mod recall;
mod tally;

pub use cause::RecallCause;
pub(crate) use groups::RemoteGroups;
pub use migrate::MigratingGroup;
pub use peer_config::{CannotMigrate, PeerConfig};
pub use recall::ReturningGroup;
pub(crate) use tally::{Tallies, Tally};
