//! What targets on other NVMe controllers have in common, however they are reached.

mod bell;
mod facts;
mod notices;
mod presence;
mod retry;
mod unfit;
mod unflushed;

pub(crate) use bell::Bell;
pub use facts::PowerId;
pub(crate) use facts::{BLOCKS_MAX, Facts};
pub(crate) use notices::{Logged, Requests};
pub(crate) use presence::Present;
pub use presence::await_shutdowns;
pub(crate) use retry::Retry;
pub(crate) use unfit::Unfit;
pub(crate) use unflushed::Unflushed;
pub use unflushed::{Former, LossNotice};
