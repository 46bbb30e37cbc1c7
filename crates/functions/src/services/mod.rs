//! Functions that come with Sluice and are written against the function SDK.

mod encrypt;
mod kinds;
mod mirrored;
mod replicate;
pub mod snapshot;
pub mod store;

pub use encrypt::Encrypt;
pub use kinds::{Changes, KINDS, changes, make};
pub use replicate::Replicate;
