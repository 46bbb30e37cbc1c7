//! Headers of PDUs, written into memory of the sender: the header, its digest, and the padding before the
//! data. Payload and its digest follow elsewhere.

use crate::digest::crc32c;
use crate::pdu::{CommonHeader, IcWire, TermWire, TransferWire};
use crate::{DIGEST_SIZE, Data, Digests, HEADER_MAX, IcReq, IcResp, Kind, R2t, Violation, flag};
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use zerocopy::{FromZeros, IntoBytes};

/// Bytes of a termination request at most (TCP Transport 3.6.2.3).
const TERM_MAX: usize = 152;

/// The longest header with its digest and padding: PDO is a byte.
pub const HEAD_MAX: usize = 256;

/// A header, ready to be sent.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; HEAD_MAX],
    length: usize,
}

impl Head {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn empty() -> Self {
        Self { bytes: [0; HEAD_MAX], length: 0 }
    }

    /// Encodes a header without data behind it.
    fn plain(header: &[u8], digests: Digests) -> Self {
        Self::before_data(header, digests, 4, 0)
    }

    /// Encodes a header with `length` bytes of data behind it, which begin at a multiple of `alignment`.
    fn before_data(header: &[u8], digests: Digests, alignment: u8, length: u32) -> Self {
        let mut head = Self::empty();
        let hlen = header.len();
        head.bytes[..hlen].copy_from_slice(header);
        let mut behind = hlen;
        if digests.header {
            head.bytes[1] |= flag::HDGSTF;
            behind += DIGEST_SIZE;
        }
        let mut plen = behind as u32;
        if length > 0 {
            behind = behind.next_multiple_of(usize::from(alignment).max(1));
            plen = behind as u32 + length;
            if digests.data {
                head.bytes[1] |= flag::DDGSTF;
                plen += DIGEST_SIZE as u32;
            }
        }
        head.bytes[2] = hlen as u8;
        head.bytes[3] = if length > 0 { behind as u8 } else { 0 };
        head.bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        if digests.header {
            let digest = crc32c(&head.bytes[..hlen]);
            head.bytes[hlen..hlen + DIGEST_SIZE].copy_from_slice(&digest.to_le_bytes());
        }
        head.length = behind;
        head
    }
}

fn common(kind: Kind, flags: u8) -> CommonHeader {
    CommonHeader { kind, flags, hlen: 0, pdo: 0, plen: 0 }
}

fn initialization(kind: Kind, alignment: u8, digests: Digests, limit: u32) -> Head {
    let wire = IcWire {
        common: common(kind, 0),
        pda: (alignment / 4).saturating_sub(1),
        dgst: digests.to_dgst(),
        limit,
        ..IcWire::new_zeroed()
    };
    Head::plain(wire.as_bytes(), Digests::NONE)
}

pub fn ic_req(request: IcReq) -> Head {
    let r2t_max = u32::try_from(request.r2t_max.saturating_sub(1)).unwrap_or(u32::MAX);
    initialization(Kind::IC_REQ, request.alignment, request.digests, r2t_max)
}

pub fn ic_resp(response: IcResp) -> Head {
    initialization(Kind::IC_RESP, response.alignment, response.digests, response.h2c_data_max)
}

/// Encodes a command capsule with `length` bytes of data.
pub fn capsule_cmd(entry: &SubmissionEntry, digests: Digests, alignment: u8, length: u32) -> Head {
    let mut header = [0; CommonHeader::SIZE + SubmissionEntry::SIZE];
    header[0] = Kind::CAPSULE_CMD.0;
    header[CommonHeader::SIZE..].copy_from_slice(entry.as_bytes());
    Head::before_data(&header, digests, alignment, length)
}

pub fn capsule_resp(entry: &CompletionEntry, digests: Digests) -> Head {
    let mut header = [0; CommonHeader::SIZE + CompletionEntry::SIZE];
    header[0] = Kind::CAPSULE_RESP.0;
    header[CommonHeader::SIZE..].copy_from_slice(entry.as_bytes());
    Head::plain(&header, digests)
}

pub fn r2t(r2t: R2t, digests: Digests) -> Head {
    let R2t { cccid, ttag, offset, length } = r2t;
    let wire = TransferWire { common: common(Kind::R2T, 0), cccid, ttag, offset, length, reserved: 0 };
    Head::plain(wire.as_bytes(), digests)
}

pub fn h2c_data(data: Data, digests: Digests, alignment: u8) -> Head {
    transfer(Kind::H2C_DATA, data, digests, alignment)
}

pub fn c2h_data(data: Data, digests: Digests, alignment: u8) -> Head {
    transfer(Kind::C2H_DATA, data, digests, alignment)
}

fn transfer(kind: Kind, data: Data, digests: Digests, alignment: u8) -> Head {
    let Data { cccid, ttag, offset, length, last, success } = data;
    let mut flags = if last { flag::LAST_PDU } else { 0 };
    if success {
        flags |= flag::SUCCESS;
    }
    let wire = TransferWire { common: common(kind, flags), cccid, ttag, offset, length, reserved: 0 };
    Head::before_data(wire.as_bytes(), digests, alignment, length)
}

/// Encodes the controller's termination request; `offender` is the invalid header.
pub fn c2h_term(violation: Violation, offender: &[u8]) -> Head {
    termination(Kind::C2H_TERM_REQ, violation, offender)
}

/// Encodes the host's termination request; `offender` is the invalid header.
pub fn h2c_term(violation: Violation, offender: &[u8]) -> Head {
    termination(Kind::H2C_TERM_REQ, violation, offender)
}

fn termination(kind: Kind, violation: Violation, offender: &[u8]) -> Head {
    let wire = TermWire {
        common: common(kind, 0),
        fes: violation.fes.0,
        fei: violation.fei.to_le_bytes(),
        reserved: [0; 10],
    };
    let offender = &offender[..offender.len().min(HEADER_MAX)];
    let mut head = Head::plain(wire.as_bytes(), Digests::NONE);
    let end = (head.length + offender.len()).min(TERM_MAX);
    head.bytes[head.length..end].copy_from_slice(&offender[..end - head.length]);
    // The rest of the offender counts as data, and PDO is reserved (TCP Transport 3.6.2.4).
    head.bytes[4..8].copy_from_slice(&(end as u32).to_le_bytes());
    head.length = end;
    head
}
