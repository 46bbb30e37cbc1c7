//! A connection's bytes, PDU by PDU.

use crate::digest::crc32c;
use crate::pdu::{
    CommonHeader, Data, Digests, IcReq, IcResp, IcWire, Kind, R2t, TermWire, TransferWire, at, flag,
};
use crate::violation::{Fes, Violation};
use crate::{DIGEST_SIZE, HEADER_MAX};
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

/// End of the connection on which the decoder runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Controller,
    Host,
}

/// Limits that were announced to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of data in a command capsule.
    pub in_capsule_max: u32,
    /// Bytes of data in an H2CData or C2HData PDU.
    pub data_max: u32,
    /// Alignment of the data of a PDU, from the beginning of the PDU.
    pub alignment: u8,
}

/// Destination of the next bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A buffer of the decoder, for as many bytes as it has.
    Here(&'a mut [u8]),
    /// Any place of the connection's owner, for this many bytes of payload.
    Payload(u32),
}

/// A PDU whose header is complete and was checked. Its payload is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    IcReq(IcReq),
    IcResp(IcResp),
    /// A command capsule with this many bytes of data.
    Command(SubmissionEntry, u32),
    Response(CompletionEntry),
    Data(Data),
    R2t(R2t),
    /// A termination request of the peer.
    Terminated(Violation),
}

/// Event that received bytes have completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Pdu(Pdu),
    /// All payload of the PDU has come, and the data digest if there is one: what the digest of the
    /// payload has to be.
    End {
        digest: Option<u32>,
    },
}

/// Part of a PDU that a decoder has taken, for another decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedPdu {
    /// 0 in the common header, 1 in the rest of the header, 2 in the payload, 3 in the data digest.
    pub step: u8,
    /// Bytes of the header or the digest.
    pub head: Vec<u8>,
    /// Bytes of the payload that are missing.
    pub payload: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Common,
    /// The rest of the header, its digest and the padding.
    Header,
    Payload,
    Digest,
}

/// Bytes of header, header digest and padding at most: PDO is one byte.
const HEAD_MAX: usize = 256;

/// Takes a connection apart. After a [`Violation`] it must not be used any more.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    limits: Limits,
    digests: Digests,
    state: State,
    /// The connection has been initialized.
    initialized: bool,
    head: Box<[u8; HEAD_MAX]>,
    filled: usize,
    wanted: usize,
    payload: u32,
    has_data_digest: bool,
}

impl Decoder {
    /// Creates the decoder of a new connection, which begins with an ICReq or ICResp. Digests are not in use
    /// before [`set_digests`](Self::set_digests).
    pub fn new(role: Role, limits: Limits) -> Self {
        Self {
            role,
            limits,
            digests: Digests::NONE,
            state: State::Common,
            initialized: false,
            head: Box::new([0; HEAD_MAX]),
            filled: 0,
            wanted: CommonHeader::SIZE,
            payload: 0,
            has_data_digest: false,
        }
    }

    /// Creates the decoder of the controller's end of a connection that was initialized elsewhere, between
    /// two PDUs.
    pub fn resumed(limits: Limits, digests: Digests) -> Self {
        Self { initialized: true, digests, ..Self::new(Role::Controller, limits) }
    }

    /// Returns the state of a connection that was initialized, for [`continued`](Self::continued).
    pub fn unfinished(&self) -> UnfinishedPdu {
        let step = match self.state {
            State::Common => 0,
            State::Header => 1,
            State::Payload => 2,
            State::Digest => 3,
        };
        let head = match self.state {
            State::Payload => &[],
            _ => &self.head[..self.filled],
        };
        UnfinishedPdu { step, head: head.to_vec(), payload: self.payload }
    }

    /// Creates the decoder of the controller's end of a connection within a PDU. Returns none if no decoder has such
    /// a state.
    pub fn continued(limits: Limits, digests: Digests, pdu: &UnfinishedPdu) -> Option<Self> {
        let mut decoder = Self::resumed(limits, digests);
        let UnfinishedPdu { step, head, payload } = pdu;
        match step {
            0 | 1 => {
                let (common, rest) = head.split_at(head.len().min(CommonHeader::SIZE));
                decoder.fill(common)?;
                decoder.fill(rest)?;
                let is_in_header = decoder.state == State::Header;
                (is_in_header == (*step == 1) && (*payload == 0 || is_in_header)).then_some(())?;
            }
            2 => {
                let most = limits.data_max.max(limits.in_capsule_max);
                (head.is_empty() && (1..=most).contains(payload)).then_some(())?;
                (decoder.state, decoder.payload) = (State::Payload, *payload);
                decoder.has_data_digest = digests.data;
            }
            3 if digests.data && head.len() < DIGEST_SIZE && *payload == 0 => {
                decoder.expect(State::Digest, DIGEST_SIZE);
                decoder.fill(head)?;
            }
            _ => return None,
        }
        Some(decoder)
    }

    /// Takes bytes that complete no PDU.
    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.is_empty() {
            return Some(());
        }
        let Place::Here(room) = self.place() else { return None };
        room.get_mut(..bytes.len())?.copy_from_slice(bytes);
        matches!(self.filled(bytes.len()), Ok(None)).then_some(())
    }

    /// Sets the digests of all PDUs from the next one on.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Returns the destination of the next bytes, which is never empty.
    pub fn place(&mut self) -> Place<'_> {
        match self.state {
            State::Payload => Place::Payload(self.payload),
            _ => Place::Here(&mut self.head[self.filled..self.wanted]),
        }
    }

    /// Returns the received part of the present PDU's header.
    pub fn header(&self) -> &[u8] {
        let hlen = usize::from(self.head[2]).min(HEADER_MAX);
        &self.head[..self.filled.min(hlen.max(CommonHeader::SIZE))]
    }

    /// Records that `count` bytes are in the last [`place`](Self::place).
    ///
    /// # Errors
    /// The peer has violated the protocol. The connection is to be terminated.
    ///
    /// # Panics
    /// If the place has room for fewer bytes.
    pub fn filled(&mut self, count: usize) -> Result<Option<Event>, Violation> {
        if self.state == State::Payload {
            assert!(count <= self.payload as usize, "more payload than there is");
            self.payload -= count as u32;
            return Ok(if self.payload == 0 { self.end_payload() } else { None });
        }
        assert!(count <= self.wanted - self.filled, "more than there was room for");
        self.filled += count;
        if self.filled < self.wanted {
            return Ok(None);
        }
        match self.state {
            State::Common => self.begin().map(|()| None),
            State::Header => self.complete(),
            State::Digest | State::Payload => {
                let digest = self.head[..DIGEST_SIZE].try_into().map(u32::from_le_bytes).ok();
                self.expect(State::Common, CommonHeader::SIZE);
                Ok(Some(Event::End { digest }))
            }
        }
    }

    fn expect(&mut self, state: State, wanted: usize) {
        (self.state, self.filled, self.wanted) = (state, 0, wanted);
    }

    fn end_payload(&mut self) -> Option<Event> {
        if self.has_data_digest {
            self.expect(State::Digest, DIGEST_SIZE);
            return None;
        }
        self.expect(State::Common, CommonHeader::SIZE);
        Some(Event::End { digest: None })
    }

    fn common(&self) -> CommonHeader {
        let bytes: [u8; CommonHeader::SIZE] = std::array::from_fn(|at| self.head[at]);
        zerocopy::transmute!(bytes)
    }

    /// Computes the length of the header from a complete common header.
    fn begin(&mut self) -> Result<(), Violation> {
        let common = self.common();
        let hlen = self.header_length(common.kind)?;
        if usize::from(common.hlen) != hlen {
            return Err(Violation::field(at::HLEN));
        }
        let has_header_digest = self.digests.header && common.kind.has_digests();
        if (common.flags & flag::HDGSTF != 0) != has_header_digest {
            return Err(Violation::field(at::FLAGS));
        }
        let behind = hlen + if has_header_digest { DIGEST_SIZE } else { 0 };
        let (start, payload) = self.extent(&common, behind)?;
        self.has_data_digest = payload > 0 && self.digests.data && common.kind.has_digests();
        self.payload = payload;
        self.state = State::Header;
        self.wanted = start;
        Ok(())
    }

    /// Returns the HLEN of a PDU that is allowed now.
    fn header_length(&self, kind: Kind) -> Result<usize, Violation> {
        let hlen = kind.header_length().ok_or(Violation::field(at::TYPE))?;
        let may_come = match self.role {
            Role::Controller => {
                matches!(kind, Kind::IC_REQ | Kind::H2C_TERM_REQ | Kind::CAPSULE_CMD | Kind::H2C_DATA)
            }
            Role::Host => matches!(
                kind,
                Kind::IC_RESP | Kind::C2H_TERM_REQ | Kind::CAPSULE_RESP | Kind::C2H_DATA | Kind::R2T
            ),
        };
        let initializes = matches!(kind, Kind::IC_REQ | Kind::IC_RESP);
        let terminates = matches!(kind, Kind::H2C_TERM_REQ | Kind::C2H_TERM_REQ);
        match may_come {
            false => Err(Violation::field(at::TYPE)),
            true if !terminates && initializes == self.initialized => Err(Violation::SEQUENCE),
            true => Ok(hlen),
        }
    }

    /// Returns the offset of the data, and its length. `behind` is the end of the header digest.
    fn extent(&self, common: &CommonHeader, behind: usize) -> Result<(usize, u32), Violation> {
        let has_digest_flag = common.flags & flag::DDGSTF != 0;
        let terminates = matches!(common.kind, Kind::H2C_TERM_REQ | Kind::C2H_TERM_REQ);
        if terminates {
            // PDO of a termination request is reserved; behind its header is a header that this end sent.
            let data = common.plen.checked_sub(behind as u32).filter(|data| *data <= HEADER_MAX as u32);
            return data.map(|data| (behind, data)).ok_or(Violation::field(at::PLEN));
        }
        if common.plen as usize == behind && common.pdo == 0 {
            let needs_data = matches!(common.kind, Kind::H2C_DATA | Kind::C2H_DATA);
            return match (needs_data, has_digest_flag) {
                (false, false) => Ok((behind, 0)),
                (false, true) => Err(Violation::field(at::FLAGS)),
                (true, _) => Err(Violation::field(at::PLEN)),
            };
        }
        if !common.kind.carries_data() {
            return Err(Violation::field(if common.pdo == 0 { at::PLEN } else { at::PDO }));
        }
        if has_digest_flag != self.digests.data {
            return Err(Violation::field(at::FLAGS));
        }
        let start = usize::from(common.pdo);
        if start < behind || !start.is_multiple_of(usize::from(self.limits.alignment)) {
            return Err(Violation::field(at::PDO));
        }
        let overhead = start + if self.digests.data { DIGEST_SIZE } else { 0 };
        let payload = common.plen.checked_sub(overhead as u32).filter(|payload| *payload > 0);
        let payload = payload.ok_or(Violation::field(at::PLEN))?;
        match common.kind {
            Kind::CAPSULE_CMD if payload > self.limits.in_capsule_max => {
                Err(Violation { fes: Fes::DATA_LIMIT_EXCEEDED, fei: 0 })
            }
            Kind::H2C_DATA | Kind::C2H_DATA if payload > self.limits.data_max => {
                Err(Violation { fes: Fes::DATA_LIMIT_EXCEEDED, fei: 0 })
            }
            _ => Ok((start, payload)),
        }
    }

    /// Parses a complete header. The PDU is made last, where it is returned, and never copied.
    fn complete(&mut self) -> Result<Option<Event>, Violation> {
        let common = self.common();
        let hlen = usize::from(common.hlen);
        if common.flags & flag::HDGSTF != 0 {
            let received = self.u32_at(hlen);
            if received != crc32c(&self.head[..hlen]) {
                return Err(Violation { fes: Fes::HEADER_DIGEST, fei: received });
            }
        }
        if matches!(common.kind, Kind::IC_REQ | Kind::IC_RESP) {
            // After an error the header is kept for the termination request.
            self.parse_initialization(common.kind)?;
            self.initialized = true;
        }
        match self.payload {
            0 => self.expect(State::Common, CommonHeader::SIZE),
            _ => self.state = State::Payload,
        }
        self.parse(common, hlen)
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|n| self.head[offset + n]))
    }

    fn parse(&self, common: CommonHeader, hlen: usize) -> Result<Option<Event>, Violation> {
        let body = &self.head[CommonHeader::SIZE..hlen];
        let pdu = match common.kind {
            Kind::CAPSULE_RESP => return Ok(Some(Event::Pdu(Pdu::Response(copy_of(body))))),
            Kind::CAPSULE_CMD => return Ok(Some(Event::Pdu(Pdu::Command(copy_of(body), self.payload)))),
            Kind::IC_REQ | Kind::IC_RESP => self.parse_initialization(common.kind)?,
            Kind::H2C_TERM_REQ | Kind::C2H_TERM_REQ => {
                let wire: TermWire = copy_of(&self.head[..hlen]);
                Pdu::Terminated(Violation { fes: Fes(wire.fes), fei: u32::from_le_bytes(wire.fei) })
            }
            Kind::R2T => {
                let TransferWire { cccid, ttag, offset, length, .. } = copy_of(&self.head[..hlen]);
                Pdu::R2t(R2t { cccid, ttag, offset, length })
            }
            _ => {
                let wire: TransferWire = copy_of(&self.head[..hlen]);
                if wire.length != self.payload {
                    return Err(Violation::field(at::DATAL));
                }
                let flags = wire.common.flags;
                let TransferWire { cccid, ttag, offset, length, .. } = wire;
                let (last, success) = (flags & flag::LAST_PDU != 0, flags & flag::SUCCESS != 0);
                Pdu::Data(Data { cccid, ttag, offset, length, last, success })
            }
        };
        Ok(Some(Event::Pdu(pdu)))
    }

    fn parse_initialization(&self, kind: Kind) -> Result<Pdu, Violation> {
        const DATA_MAX_LEAST: u32 = 4096;
        let wire: IcWire = copy_of(&self.head[..size_of::<IcWire>()]);
        if wire.pfv != 0 {
            return Err(Violation::parameter(at::PFV));
        }
        if wire.pda > 31 {
            return Err(Violation::field(at::PDA));
        }
        let alignment = (wire.pda + 1) * 4;
        let digests = Digests::of(wire.dgst);
        if kind == Kind::IC_REQ {
            return Ok(Pdu::IcReq(IcReq { alignment, digests, r2t_max: u64::from(wire.limit) + 1 }));
        }
        if wire.limit < DATA_MAX_LEAST || !wire.limit.is_multiple_of(4) {
            return Err(Violation::field(at::PDA + 2));
        }
        Ok(Pdu::IcResp(IcResp { alignment, digests, h2c_data_max: wire.limit }))
    }
}

/// # Panics
/// If the length is not that of `T`: HLEN was checked.
fn copy_of<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    T::read_from_bytes(bytes).unwrap_or_else(|_| panic!("a header of {} bytes", bytes.len()))
}
