//! One copy of a label as bytes: little-endian, [`LABEL_BYTES`] long. See docs/formats.md.

use crate::Uuid;
use crate::device::AREA_BYTES;
use crc32c::{crc32c, crc32c_append};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a copy in bytes: a block of fields, and a block with the UUIDs of all members.
pub const LABEL_BYTES: usize = 2 * BLOCK;

/// Maximum number of members of a set, without its log.
pub const MEMBERS_MAX: usize = BLOCK / size_of::<[u8; 16]>();

/// Unit of a device with a label, bytes: its length and the place of the copies are multiples.
pub const UNIT: u64 = BLOCK as u64;

const BLOCK: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"sluiceLB");
const VERSION: u32 = 1;

/// Limit of an epoch and of a sequence number. No device is opened that often.
const COUNT_MAX: u64 = 1 << 62;

/// Limit of the length of a device, bytes.
const DEVICE_MAX: u64 = i64::MAX as u64;

/// Feature bits that this version supports. None is defined yet.
const KNOWN_INCOMPATIBLE: u64 = 0;
const KNOWN_READ_ONLY: u64 = 0;

/// Kind of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    Stripe,
    Concat,
    Mirror,
    Replicate,
    /// Members with parities.
    Parity,
}

impl SetKind {
    const ALL: [Self; 5] = [Self::Stripe, Self::Concat, Self::Mirror, Self::Replicate, Self::Parity];

    /// Returns its name, as configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stripe => "stripe",
            Self::Concat => "concat",
            Self::Mirror => "mirror",
            Self::Replicate => "replicate",
            Self::Parity => "parity",
        }
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether an outdated member can be copied to, or computed from others.
    pub fn is_redundant(self) -> bool {
        matches!(self, Self::Mirror | Self::Replicate | Self::Parity)
    }

    fn number(self) -> u16 {
        match self {
            Self::Stripe => 1,
            Self::Concat => 2,
            Self::Mirror => 3,
            Self::Replicate => 4,
            Self::Parity => 5,
        }
    }

    fn numbered(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// Role of a device in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Member with this index.
    Data(usize),
    /// The log of a redundant set.
    Log,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(index) => write!(f, "member {index}"),
            Self::Log => f.write_str("the log"),
        }
    }
}

/// Label of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Feature bits: compatible, read-only-compatible, incompatible.
    pub features: [u64; 3],
    pub set: Uuid,
    pub kind: SetKind,
    pub role: Role,
    /// UUIDs of the members, by index.
    pub members: Vec<Uuid>,
    /// UUID of the log; nil if the set has none.
    pub log: Uuid,
    /// UUID of this device in the set.
    pub member: Uuid,
    /// Number of this version of the label on its device.
    pub sequence: u64,
    /// Number of times that the set was opened, or closed in order; zero while its labels are being made.
    pub epoch: u64,
    /// Epoch that is being stored on all members; zero if none is.
    pub next_epoch: u64,
    /// First byte of the data, and its size.
    pub data_offset: u64,
    pub data_bytes: u64,
    /// Length of the device.
    pub device_bytes: u64,
    /// Bytes of a chunk; zero for kinds without chunks.
    pub chunk: u64,
    /// Number of the storage in the log of the set.
    pub storage: u128,
}

/// Content of the place of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copy {
    Valid(Box<Label>),
    /// Zeros only.
    Blank,
    /// Bytes that are no label.
    Foreign,
    /// Label that is torn or damaged.
    Broken,
    /// Label that this version must not use, or not write.
    Unsupported(Unsupported),
}

/// Reason why a label is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    Version(u32),
    Features(u64),
    Kind(u16),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "version {version}"),
            Self::Features(bits) => write!(f, "the features {bits:#x}"),
            Self::Kind(number) => write!(f, "a set of kind {number}"),
        }
    }
}

/// Fields of a copy, at its beginning. Zeros follow up to the table of members.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Fields {
    magic: u64,
    version: u32,
    /// CRC-32C of the copy, without these four bytes.
    checksum: u32,
    features: [u64; 3],
    set: [u8; 16],
    member: [u8; 16],
    log: [u8; 16],
    sequence: u64,
    epoch: u64,
    next_epoch: u64,
    kind: u16,
    role: u16,
    index: u16,
    members: u16,
    data_offset: u64,
    data_bytes: u64,
    device_bytes: u64,
    chunk: u64,
    storage: [u8; 16],
}

/// Values of [`Fields::role`].
const ROLE_DATA: u16 = 0;
const ROLE_LOG: u16 = 1;

impl Label {
    /// Returns the bytes of a copy.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (role, index) = match self.role {
            Role::Data(index) => (ROLE_DATA, index as u16),
            Role::Log => (ROLE_LOG, 0),
        };
        let mut fields = Fields {
            magic: MAGIC,
            version: VERSION,
            checksum: 0,
            features: self.features,
            set: self.set.0,
            member: self.member.0,
            log: self.log.0,
            sequence: self.sequence,
            epoch: self.epoch,
            next_epoch: self.next_epoch,
            kind: self.kind.number(),
            role,
            index,
            members: self.members.len() as u16,
            data_offset: self.data_offset,
            data_bytes: self.data_bytes,
            device_bytes: self.device_bytes,
            chunk: self.chunk,
            storage: self.storage.to_le_bytes(),
        };
        let mut bytes = vec![0; LABEL_BYTES];
        for (place, member) in bytes[BLOCK..].chunks_exact_mut(16).zip(&self.members) {
            place.copy_from_slice(&member.0);
        }
        bytes[..size_of::<Fields>()].copy_from_slice(fields.as_bytes());
        fields.checksum = checksum(&bytes);
        bytes[..size_of::<Fields>()].copy_from_slice(fields.as_bytes());
        bytes
    }

    /// Interprets the bytes of a copy.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Copy {
        let Ok((fields, _)) = Fields::read_from_prefix(bytes) else { return Copy::Foreign };
        if fields.magic != MAGIC {
            let is_blank = bytes.iter().all(|byte| *byte == 0);
            return if is_blank { Copy::Blank } else { Copy::Foreign };
        }
        if bytes.len() != LABEL_BYTES || fields.checksum != checksum(bytes) {
            return Copy::Broken;
        }
        let unknown = fields.features[1] & !KNOWN_READ_ONLY | fields.features[2] & !KNOWN_INCOMPATIBLE;
        if fields.version != VERSION {
            return Copy::Unsupported(Unsupported::Version(fields.version));
        }
        if unknown != 0 {
            return Copy::Unsupported(Unsupported::Features(unknown));
        }
        match SetKind::numbered(fields.kind) {
            Some(kind) => {
                Self::of(&fields, kind, &bytes[BLOCK..]).map_or(Copy::Broken, |it| Copy::Valid(Box::new(it)))
            }
            None => Copy::Unsupported(Unsupported::Kind(fields.kind)),
        }
    }

    fn of(fields: &Fields, kind: SetKind, table: &[u8]) -> Option<Self> {
        let uuids = table.chunks_exact(16).filter_map(|bytes| Some(Uuid(bytes.try_into().ok()?)));
        let role = match fields.role {
            ROLE_DATA => Role::Data(fields.index.into()),
            ROLE_LOG => Role::Log,
            _ => return None,
        };
        let label = Self {
            features: fields.features,
            set: Uuid(fields.set),
            kind,
            role,
            members: uuids.take(fields.members.into()).collect(),
            log: Uuid(fields.log),
            member: Uuid(fields.member),
            sequence: fields.sequence,
            epoch: fields.epoch,
            next_epoch: fields.next_epoch,
            data_offset: fields.data_offset,
            data_bytes: fields.data_bytes,
            device_bytes: fields.device_bytes,
            chunk: fields.chunk,
            storage: u128::from_le_bytes(fields.storage),
        };
        let count = usize::from(fields.members);
        (label.is_possible() && label.members.len() == count).then_some(label)
    }

    /// Returns whether a label with these fields would be accepted on a device that has room for it.
    pub(crate) fn is_readable(&self) -> bool {
        let bytes =
            self.data_bytes.checked_add(AREA_BYTES).and_then(|end| end.checked_next_multiple_of(UNIT));
        bytes.is_some_and(|device_bytes| Self { device_bytes, ..self.clone() }.is_possible())
    }

    /// Returns whether a label can have these fields.
    fn is_possible(&self) -> bool {
        let end = self.data_offset.checked_add(self.data_bytes).and_then(|end| end.checked_add(AREA_BYTES));
        let is_chunk = match self.kind {
            SetKind::Stripe => self.chunk > 0 && self.chunk.is_multiple_of(UNIT),
            _ => self.chunk == 0,
        };
        end.is_some_and(|end| end <= self.device_bytes)
            && self.device_bytes <= DEVICE_MAX
            && self.device_bytes.is_multiple_of(UNIT)
            && self.data_offset == 0
            && self.data_bytes > 0
            && is_chunk
            && self.epoch <= COUNT_MAX
            && self.sequence <= COUNT_MAX
            && (self.next_epoch == 0 || self.next_epoch == self.epoch + 1)
            && (1..=MEMBERS_MAX).contains(&self.members.len())
            && !self.set.is_nil()
            && !self.member.is_nil()
            && self.expected(self.role) == Some(self.member)
            && self.kind.is_redundant() != self.log.is_nil()
    }

    /// Notes the UUID of a role in the list of the set.
    pub(crate) fn note(&mut self, role: Role, uuid: Uuid) {
        match role {
            Role::Data(index) => self.members.get_mut(index).into_iter().for_each(|member| *member = uuid),
            Role::Log => self.log = uuid,
        }
    }

    /// Returns the UUID that the set has for a role.
    pub fn expected(&self, role: Role) -> Option<Uuid> {
        match role {
            Role::Data(index) => self.members.get(index).copied(),
            Role::Log => Some(self.log).filter(|log| !log.is_nil()),
        }
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let (before, rest) = bytes.split_at(12);
    crc32c_append(crc32c(before), rest.get(4..).unwrap_or_default())
}
