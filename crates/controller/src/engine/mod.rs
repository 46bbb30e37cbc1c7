//! Engine: turns, fetching, completion and resets. Only this floor posts completions.

pub(crate) mod abandoned;
pub(crate) mod abort;
pub(crate) mod admin;
pub(crate) mod arm;
pub(crate) mod attached;
pub(crate) mod capsules;
pub(crate) mod client_dma;
pub(crate) mod complete;
pub(crate) mod copy;
pub(crate) mod edit_stack;
pub(crate) mod fetch;
pub(crate) mod firsts;
pub(crate) mod fused;
pub(crate) mod intake;
pub(crate) mod mailbox;
pub(crate) mod patience;
pub(crate) mod pause;
pub(crate) mod queues;
pub(crate) mod remote_queues;
pub(crate) mod reset;
pub(crate) mod resize;
pub(crate) mod sharing;
pub(crate) mod sync;
pub(crate) mod turn;
pub(crate) mod unmapped_queues;
pub(crate) mod write_cache;
