//! The NVMe/TCP wire format (NVM Express TCP Transport Specification 1.0), for both ends.
//!
//! The crate has no sockets. A [`Decoder`] returns the destination of the next bytes of a connection: memory
//! of its own for headers and digests, memory of its owner for the payload of a PDU. So payload goes to its
//! final place at once. [`encode`] writes headers.
//!
//! The peer is hostile: each field is checked when its header is complete. An invalid field is a
//! [`Violation`], with the contents of the termination request.
#![forbid(unsafe_code)]

mod decoder;
mod digest;
pub mod encode;
mod pdu;
mod violation;

pub use decoder::{Decoder, Event, Limits, Pdu, Place, Role, UnfinishedPdu};
pub use digest::{Digest, crc32c};
pub use pdu::{Data, Digests, IcReq, IcResp, Kind, R2t, flag};
pub use violation::{Fes, Violation};

/// The port of I/O controllers (TCP Transport 3.1).
pub const PORT: u16 = 4420;

/// The port of discovery controllers.
pub const DISCOVERY_PORT: u16 = 8009;

/// Bytes of a PDU's header at most: those of ICReq and ICResp.
pub const HEADER_MAX: usize = 128;

/// Bytes of a header or data digest.
pub const DIGEST_SIZE: usize = 4;
