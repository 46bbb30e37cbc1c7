//! The layouts of PDU headers (TCP Transport 3.6.2).

use sluice_nvme::{CompletionEntry, SubmissionEntry};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// PDU type; open, since the peer may send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Kind(pub u8);

impl Kind {
    pub const IC_REQ: Kind = Kind(0x00);
    pub const IC_RESP: Kind = Kind(0x01);
    pub const H2C_TERM_REQ: Kind = Kind(0x02);
    pub const C2H_TERM_REQ: Kind = Kind(0x03);
    pub const CAPSULE_CMD: Kind = Kind(0x04);
    pub const CAPSULE_RESP: Kind = Kind(0x05);
    pub const H2C_DATA: Kind = Kind(0x06);
    pub const C2H_DATA: Kind = Kind(0x07);
    pub const R2T: Kind = Kind(0x09);

    /// Returns the HLEN of a PDU of this type; none if there is no such type.
    pub const fn header_length(self) -> Option<usize> {
        match self {
            Kind::IC_REQ | Kind::IC_RESP => Some(128),
            Kind::CAPSULE_CMD => Some(8 + SubmissionEntry::SIZE),
            Kind::CAPSULE_RESP => Some(8 + CompletionEntry::SIZE),
            Kind::H2C_TERM_REQ | Kind::C2H_TERM_REQ => Some(24),
            Kind::H2C_DATA | Kind::C2H_DATA | Kind::R2T => Some(24),
            _ => None,
        }
    }

    /// Returns whether a PDU of this type may carry data.
    pub const fn carries_data(self) -> bool {
        matches!(
            self,
            Kind::CAPSULE_CMD | Kind::H2C_DATA | Kind::C2H_DATA | Kind::H2C_TERM_REQ | Kind::C2H_TERM_REQ
        )
    }

    /// Returns whether a PDU of this type has digests if they are in use.
    pub const fn has_digests(self) -> bool {
        !matches!(self, Kind::IC_REQ | Kind::IC_RESP | Kind::H2C_TERM_REQ | Kind::C2H_TERM_REQ)
    }
}

/// Bits of the common header's FLAGS.
pub mod flag {
    /// A header digest follows the header.
    pub const HDGSTF: u8 = 1 << 0;
    /// A data digest follows the data.
    pub const DDGSTF: u8 = 1 << 1;
    /// The last PDU of a transfer.
    pub const LAST_PDU: u8 = 1 << 2;
    /// Success of the command, in C2HData: no response capsule follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Offsets of fields, for [`Violation`](crate::Violation).
pub(crate) mod at {
    pub(crate) const TYPE: u32 = 0;
    pub(crate) const FLAGS: u32 = 1;
    pub(crate) const HLEN: u32 = 2;
    pub(crate) const PDO: u32 = 3;
    pub(crate) const PLEN: u32 = 4;
    pub(crate) const PFV: u32 = 8;
    pub(crate) const PDA: u32 = 10;
    pub(crate) const DATAL: u32 = 16;
}

/// The header that every PDU begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CommonHeader {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) hlen: u8,
    /// Offset of the data.
    pub(crate) pdo: u8,
    /// Bytes of the whole PDU.
    pub(crate) plen: u32,
}

impl CommonHeader {
    pub(crate) const SIZE: usize = 8;
}

/// Digests that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    pub header: bool,
    pub data: bool,
}

impl Digests {
    pub const NONE: Digests = Digests { header: false, data: false };

    pub(crate) fn of(dgst: u8) -> Self {
        Self { header: dgst & 1 != 0, data: dgst & 2 != 0 }
    }

    pub(crate) fn to_dgst(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }
}

/// The Initialize Connection Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// Alignment of the data in PDUs for the host, bytes: a multiple of 4 up to 128.
    pub alignment: u8,
    pub digests: Digests,
    /// R2T PDUs that a command may have outstanding, one-based.
    pub r2t_max: u64,
}

/// The Initialize Connection Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// Alignment of the data in PDUs for the controller, bytes: a multiple of 4 up to 128.
    pub alignment: u8,
    pub digests: Digests,
    /// Bytes of data in an H2CData PDU at most.
    pub h2c_data_max: u32,
}

/// ICReq and ICResp as they are laid out.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IcWire {
    pub(crate) common: CommonHeader,
    /// PDU format version; zero is the only one there is.
    pub(crate) pfv: u16,
    /// HPDA or CPDA: dwords, 0's based, 0 to 31.
    pub(crate) pda: u8,
    pub(crate) dgst: u8,
    /// MAXR2T (0's based) or MAXH2CDATA.
    pub(crate) limit: u32,
    pub(crate) reserved: [u8; 112],
}

/// The part of H2CData, C2HData and R2T that describes the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TransferWire {
    pub(crate) common: CommonHeader,
    pub(crate) cccid: u16,
    pub(crate) ttag: u16,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) reserved: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TermWire {
    pub(crate) common: CommonHeader,
    pub(crate) fes: u16,
    pub(crate) fei: [u8; 4],
    pub(crate) reserved: [u8; 10],
}

/// Header of an H2CData or C2HData PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Command capsule CID.
    pub cccid: u16,
    /// Transfer tag of the R2T that requested the data; zero in C2HData.
    pub ttag: u16,
    /// Bytes from the beginning of the command's data.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
    /// The last PDU of the transfer.
    pub last: bool,
    /// Success of the command, in C2HData.
    pub success: bool,
}

/// Ready to Transfer: the controller's request for data of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    pub cccid: u16,
    pub ttag: u16,
    /// Bytes from the beginning of the command's data.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

const _: () = {
    assert!(size_of::<CommonHeader>() == CommonHeader::SIZE);
    assert!(size_of::<IcWire>() == 128);
    assert!(size_of::<TransferWire>() == 24);
    assert!(size_of::<TermWire>() == 24);
};
