//! Fabrics commands (Base 6): commands of a host on a message-based transport, beside those of every
//! transport.

use crate::{Status, SubmissionEntry};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The opcode that all of them share; FCTYPE distinguishes them.
pub const OPCODE: u8 = 0x7f;

/// Fabrics command type; open, since hosts may send any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fctype(pub u8);

impl Fctype {
    pub const PROPERTY_SET: Fctype = Fctype(0x00);
    pub const CONNECT: Fctype = Fctype(0x01);
    pub const PROPERTY_GET: Fctype = Fctype(0x04);
    pub const AUTHENTICATION_SEND: Fctype = Fctype(0x05);
    pub const AUTHENTICATION_RECEIVE: Fctype = Fctype(0x06);
    pub const DISCONNECT: Fctype = Fctype(0x08);

    /// Returns FCTYPE of a Fabrics command: bits 7:0 of the NSID field of other commands.
    pub fn of(entry: &SubmissionEntry) -> Fctype {
        Fctype(entry.nsid as u8)
    }
}

/// The subsystem that every discovery service answers to (Base 4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of an NVMe Qualified Name, without the zero at its end (Base 4.5).
pub const NQN_MAX: usize = 223;

/// The controller identifier by which a host requests any controller (Base 6.3, dynamic).
pub const CNTLID_DYNAMIC: u16 = 0xffff;

/// The Connect command (Base 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format; zero is the only one that is defined.
    pub recfmt: u16,
    pub qid: u16,
    /// Entries of the submission queue, one-based: 1 to 65,536.
    pub entries: u32,
    pub cattr: u8,
    /// Keep Alive Timeout in milliseconds; zero is off.
    pub kato_ms: u32,
}

impl Connect {
    /// CATTR: the host does not read the submission queue's head in completions.
    pub const DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

    pub fn of(entry: &SubmissionEntry) -> Connect {
        Connect {
            recfmt: entry.cdw10 as u16,
            qid: (entry.cdw10 >> 16) as u16,
            entries: (entry.cdw11 & 0xffff) + 1,
            cattr: (entry.cdw11 >> 16) as u8,
            kato_ms: entry.cdw12,
        }
    }

    /// Returns the command without CID and data pointer.
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: u32::from(self.recfmt) | u32::from(self.qid) << 16,
            cdw11: self.entries.wrapping_sub(1) & 0xffff | u32::from(self.cattr) << 16,
            cdw12: self.kato_ms,
            ..command(Fctype::CONNECT)
        }
    }

    pub fn disables_flow_control(&self) -> bool {
        self.cattr & Self::DISABLE_SQ_FLOW_CONTROL != 0
    }
}

/// AUTHREQ in dword 0 of Connect's completion: the queue is to be authenticated (Base 6.3, ATR).
pub const AUTHENTICATION_REQUIRED: u32 = 1 << 17;

/// AUTHREQ: a secure channel is to be made of the queue, too (ASCR).
pub const SECURE_CHANNEL_REQUIRED: u32 = 1 << 18;

/// The Authentication Send and Authentication Receive commands (Base 6.1, 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Security Protocol.
    pub secp: u8,
    /// SP Specific, SPSP0 in the low byte.
    pub spsp: u16,
    /// Bytes to transfer, or allocated.
    pub length: u32,
}

impl Authentication {
    pub fn of(entry: &SubmissionEntry) -> Authentication {
        let spsp = (entry.cdw10 >> 8) as u16;
        Authentication { secp: (entry.cdw10 >> 24) as u8, spsp, length: entry.cdw11 }
    }

    /// Returns one of the two commands without CID and data pointer.
    pub fn entry(&self, fctype: Fctype) -> SubmissionEntry {
        let cdw10 = u32::from(self.spsp) << 8 | u32::from(self.secp) << 24;
        SubmissionEntry { cdw10, cdw11: self.length, ..command(fctype) }
    }
}

/// The data of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnectData {
    pub hostid: [u8; 16],
    pub cntlid: u16,
    reserved_18: [u8; 238],
    subnqn: [u8; 256],
    hostnqn: [u8; 256],
    reserved_768: [u8; 256],
}

impl ConnectData {
    pub const SIZE: usize = 1024;

    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &str, hostnqn: &str) -> Self {
        let mut data = Self {
            hostid,
            cntlid,
            reserved_18: [0; 238],
            subnqn: [0; 256],
            hostnqn: [0; 256],
            reserved_768: [0; 256],
        };
        for (field, name) in [(&mut data.subnqn, subnqn), (&mut data.hostnqn, hostnqn)] {
            let length = name.len().min(NQN_MAX);
            field[..length].copy_from_slice(&name.as_bytes()[..length]);
        }
        data
    }

    /// Returns the NVM Subsystem NVMe Qualified Name; none if the field is not a name.
    pub fn subnqn(&self) -> Option<&str> {
        qualified_name(&self.subnqn)
    }

    /// Returns the Host NVMe Qualified Name. Empty if the host sends no name; none if the field is not a
    /// name.
    pub fn hostnqn(&self) -> Option<&str> {
        if self.hostnqn[0] == 0 { Some("") } else { qualified_name(&self.hostnqn) }
    }
}

/// Location of an invalid parameter in the Connect command or its data (Base 6.3, dword 0 of the completion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Bytes from the beginning.
    pub offset: u16,
    /// Flag for an offset in the data.
    pub in_data: bool,
}

impl InvalidParameter {
    pub const QID: Self = Self { offset: 42, in_data: false };
    pub const SQSIZE: Self = Self { offset: 44, in_data: false };
    pub const HOSTID: Self = Self { offset: 0, in_data: true };
    pub const CNTLID: Self = Self { offset: 16, in_data: true };
    pub const SUBNQN: Self = Self { offset: 256, in_data: true };
    pub const HOSTNQN: Self = Self { offset: 512, in_data: true };

    pub fn dw0(self) -> u32 {
        u32::from(self.offset) | u32::from(self.in_data) << 16
    }
}

/// Returns a name that ends with a zero, of visible characters.
fn qualified_name(field: &[u8; 256]) -> Option<&str> {
    let length = field.iter().position(|byte| *byte == 0).filter(|length| (1..=NQN_MAX).contains(length))?;
    let name = core::str::from_utf8(&field[..length]).ok()?;
    name.chars().all(|c| !c.is_control()).then_some(name)
}

/// The Property Get and Property Set commands (Base 6.5, 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// Offset of the property, as in the register space of the memory-based transport.
    pub offset: u32,
    /// Size: 4 or 8; none for a reserved size.
    pub bytes: Option<usize>,
    /// New value.
    pub value: u64,
}

impl Property {
    pub fn of(entry: &SubmissionEntry) -> Property {
        Property {
            offset: entry.cdw11,
            bytes: match entry.cdw10 & 0b111 {
                0 => Some(4),
                1 => Some(8),
                _ => None,
            },
            value: u64::from(entry.cdw12) | u64::from(entry.cdw13) << 32,
        }
    }
}

/// Returns a Property Get of `bytes` bytes, which are 4 or 8.
pub fn property_get(offset: u32, bytes: usize) -> SubmissionEntry {
    SubmissionEntry { cdw10: u32::from(bytes == 8), cdw11: offset, ..command(Fctype::PROPERTY_GET) }
}

/// Returns a Property Set of 4 bytes.
pub fn property_set(offset: u32, value: u32) -> SubmissionEntry {
    SubmissionEntry { cdw11: offset, cdw12: value, ..command(Fctype::PROPERTY_SET) }
}

fn command(fctype: Fctype) -> SubmissionEntry {
    SubmissionEntry { opcode: OPCODE, nsid: u32::from(fctype.0), ..SubmissionEntry::default() }
}

/// Command specific status of Fabrics commands (Base 6, figures with "Status Values"). Other commands
/// have other meanings for these codes.
impl Status {
    pub const CONNECT_INCOMPATIBLE_FORMAT: Status = command_specific(0x80);
    pub const CONNECT_CONTROLLER_BUSY: Status = Status(command_specific(0x81).0 & !Status::DNR);
    pub const CONNECT_INVALID_PARAMETERS: Status = command_specific(0x82);
    pub const CONNECT_INVALID_HOST: Status = command_specific(0x84);
    /// Status of a Disconnect of the Admin Queue.
    pub const INVALID_QUEUE_TYPE: Status = command_specific(0x85);
    /// Status of every command on a queue that is not authenticated yet.
    pub const AUTHENTICATION_REQUIRED: Status = command_specific(0x91);
}

const fn command_specific(code: u16) -> Status {
    Status(1 << 8 | code | Status::DNR)
}

const _: () = assert!(size_of::<ConnectData>() == ConnectData::SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_writes_is_what_a_controller_reads() {
        let cattr = Connect::DISABLE_SQ_FLOW_CONTROL;
        for entries in [2, 128, 65_536] {
            let connect = Connect { recfmt: 0, qid: 7, entries, cattr, kato_ms: 5000 };
            assert_eq!(Connect::of(&connect.entry()), connect);
        }
        let property = Property::of(&property_get(8, 8));
        assert_eq!((property.offset, property.bytes), (8, Some(8)));
        let property = Property::of(&property_set(0x14, 1));
        assert_eq!((property.offset, property.bytes, property.value), (0x14, Some(4), 1));
        let authentication = Authentication { secp: 0xe9, spsp: 0x0201, length: 4096 };
        let entry = authentication.entry(Fctype::AUTHENTICATION_SEND);
        assert_eq!((entry.cdw10, Fctype::of(&entry)), (0xe902_0100, Fctype::AUTHENTICATION_SEND));
        assert_eq!(Authentication::of(&entry), authentication);
    }
}
