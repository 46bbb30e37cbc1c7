//! Protocol violations, which end a connection.

use std::fmt;

/// Fatal error status of a termination request (TCP Transport 3.6.2.3 and 3.6.2.4); open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fes(pub u16);

impl Fes {
    pub const INVALID_HEADER_FIELD: Fes = Fes(0x01);
    pub const PDU_SEQUENCE: Fes = Fes(0x02);
    pub const HEADER_DIGEST: Fes = Fes(0x03);
    pub const DATA_OUT_OF_RANGE: Fes = Fes(0x04);
    pub const DATA_LIMIT_EXCEEDED: Fes = Fes(0x05);
    pub const UNSUPPORTED_PARAMETER: Fes = Fes(0x06);
}

impl fmt::Display for Fes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Fes::INVALID_HEADER_FIELD => f.write_str("a field of a PDU header cannot be"),
            Fes::PDU_SEQUENCE => f.write_str("a PDU out of sequence"),
            Fes::HEADER_DIGEST => f.write_str("a header digest is wrong"),
            Fes::DATA_OUT_OF_RANGE => f.write_str("data outside of what was asked for"),
            Fes::DATA_LIMIT_EXCEEDED => f.write_str("more data in a PDU than agreed"),
            Fes::UNSUPPORTED_PARAMETER => f.write_str("a parameter that is not supported"),
            Fes(other) => write!(f, "fatal error status {other:#x}"),
        }
    }
}

/// A violation of the protocol by the peer. The connection ends with a termination request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub fes: Fes,
    /// Fatal error information: the offset of the field in the PDU, or the digest that came.
    pub fei: u32,
}

impl Violation {
    pub const SEQUENCE: Violation = Violation { fes: Fes::PDU_SEQUENCE, fei: 0 };

    /// Returns a violation in the header field at `offset`.
    pub const fn field(offset: u32) -> Self {
        Self { fes: Fes::INVALID_HEADER_FIELD, fei: offset }
    }

    /// Returns a violation in the parameter at `offset` of an ICReq or ICResp.
    pub const fn parameter(offset: u32) -> Self {
        Self { fes: Fes::UNSUPPORTED_PARAMETER, fei: offset }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fes {
            Fes::INVALID_HEADER_FIELD | Fes::UNSUPPORTED_PARAMETER => {
                write!(f, "{} (at byte {})", self.fes, self.fei)
            }
            fes => fes.fmt(f),
        }
    }
}

impl std::error::Error for Violation {}
