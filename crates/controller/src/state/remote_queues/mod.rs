//! State of remote queue groups: their queues, the causes of a recall, and counters.

pub(crate) mod cause;
pub(crate) mod groups;
pub(crate) mod tally;
