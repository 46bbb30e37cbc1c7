//! NVMe specification types in their wire format.
//!
//! This crate contains no behaviour. It has the layouts, codes and constants of two specifications, with the
//! section beside each: the NVM Express Base Specification 2.0 and the NVM Command Set Specification 1.0.
//! Codes that a host sends are *open*: a newtype with named constants, so that a value without a name is
//! still a value and not an error. 0's-based numbers are widened by the accessor that reads them and never
//! leave this crate in that form.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("NVMe is little-endian, and so is every machine Sluice runs on");

mod ana;
mod completion;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod log;
pub mod opcode;
pub mod persistent_event;
pub mod register;
pub mod reservation;
mod sgl;
mod status;
mod submission;

pub use ana::AnaState;
pub use completion::CompletionEntry;
pub use feature::FeatureId;
pub use identify::Cns;
pub use log::LogId;
pub use sgl::{SglDescriptor, SglType};
pub use status::Status;
pub use submission::{DataTransfer, SubmissionEntry};

/// Bytes of the smallest memory page, CC.MPS = 0, in which MDTS counts (Base 3.1.3.5).
pub const PAGE_SIZE: usize = 4096;

/// The NSID that names every namespace (Base 3.2.1.2).
pub const NSID_ALL: u32 = 0xffff_ffff;
