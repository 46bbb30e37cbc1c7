//! The configuration file, which a daemon reads when it starts.

mod described;
mod file;
mod group;
mod locate;
mod metrics;
mod page;
mod settings;
mod tcp;
mod write;

pub use described::{Described, Served};
pub use file::check_reactor;
pub use file::{Config, examine, load, parse};
pub use metrics::Metrics;
pub use page::Page;
pub use settings::{Idle, Settings};
pub use tcp::Tcp;
pub use write::{Exported, write};
