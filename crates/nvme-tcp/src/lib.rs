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

/// How many bytes a receive waits for when so many are missing of the payload at hand; none if it takes what there is.
///
/// A payload is of no use before all of it is here, and whoever takes it as it trickles in wakes up for every packet and has
/// the socket when the next one wants it. Of a long one a part is taken, so that it is copied while the rest comes.
pub fn worth_waiting_for(missing: u32) -> Option<u32> {
    const FROM: u32 = 64 << 10;
    const AT_ONCE: u32 = 128 << 10;
    (missing >= FROM).then(|| missing.min(AT_ONCE))
}
