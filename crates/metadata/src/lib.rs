//! Labels of the members of sets, and the [`engine`] of checkpoints and logs.
//!
//! A label shows which set a file or block device belongs to, and as which member.
//! It lies behind the data of a member, at the end of its device, in two copies. It names the set and the
//! member by UUIDs, with the kind of the set, the member's index, the sizes, and the *epoch*, a count of the
//! times that the set was opened or closed. [`judge`] compares the labels of all members before a set is opened.
//! [`raise`] stores the next epoch on each of them, so that an older copy of one member is recognized later.
//!
//! The format is in docs/internals/formats.md. A disk may come from anywhere, so parsing a label is
//! bounded and never panics.
#![forbid(unsafe_code)]

mod copies;
mod device;
pub mod engine;
mod epoch;
mod form;
mod label;
mod set;
mod uuid;

pub use copies::{Copies, Found};
pub use device::{AREA_BYTES, Device, Error};
pub use epoch::raise;
pub use form::{Member, Shape, form, replace};
pub use label::{Copy, LABEL_BYTES, Label, MEMBERS_MAX, Role, SetKind, UNIT, Unsupported};
pub use set::{Assembly, Place, Refusal, Verdict, judge};
pub use uuid::Uuid;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
