//! The NVMe/TCP wire format (NVM Express TCP Transport Specification 1.0), for both ends.
//!
//! Nothing here has a socket. A [`Decoder`] says where the next bytes of a connection are to be received:
//! headers and digests in memory of its own, the payload of a PDU wherever its owner wants it. So payload
//! goes to its final place at once. [`encode`] writes headers.
//!
//! What the other end sends is hostile: each field is checked when its header is complete, and what is
//! wrong with one is a [`Violation`], which says what the termination request has to say.
#![forbid(unsafe_code)]

mod decoder;
mod digest;
pub mod encode;
mod pdu;
mod violation;

pub use decoder::{Decoder, Event, Limits, Pdu, Place, Role};
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
