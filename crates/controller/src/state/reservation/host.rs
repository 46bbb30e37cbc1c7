//! Identifiers of hosts.

use sluice_command::record::{Reader, RecordError, Writer};

/// Host Identifier (Base 5.27, feature 81h): controllers with the same identifier belong to the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostId {
    /// No identifier (the value is zero): the host has only this controller. Nothing of it outlives a reset
    /// of the controller.
    Unnamed(u8),
    /// 64 bits, as they stand in memory.
    Short([u8; 8]),
    /// 128 bits, as they stand in memory.
    Extended([u8; 16]),
}

impl HostId {
    /// Returns the identifier of 64 bits that a host over a memory-based transport has set.
    pub(crate) fn short(bytes: [u8; 8], number: u8) -> Self {
        if bytes == [0; 8] { Self::Unnamed(number) } else { Self::Short(bytes) }
    }

    /// Returns the identifier of 128 bits that a host has set.
    pub fn extended(bytes: [u8; 16], number: u8) -> Self {
        if bytes == [0; 16] { Self::Unnamed(number) } else { Self::Extended(bytes) }
    }

    /// Returns whether the host has an identifier.
    pub(crate) fn is_named(self) -> bool {
        !matches!(self, Self::Unnamed(_))
    }

    /// Returns the identifier in 128 bits; one of 64 bits stands in the first of them.
    pub(crate) fn bytes(self) -> [u8; 16] {
        match self {
            Self::Unnamed(_) => [0; 16],
            Self::Short(short) => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&short);
                bytes
            }
            Self::Extended(bytes) => bytes,
        }
    }

    /// Returns false for two identifiers of different width, which may not be used at the same time.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        !matches!((self, other), (Self::Short(_), Self::Extended(_)) | (Self::Extended(_), Self::Short(_)))
    }
}

/// Identifiers in a record: the number of bytes, and these bytes.
impl HostId {
    pub(crate) fn put(self, part: &mut Writer) {
        match self {
            Self::Unnamed(number) => part.bytes(&[number]),
            Self::Short(bytes) => part.bytes(&bytes),
            Self::Extended(bytes) => part.bytes(&bytes),
        }
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let bytes = part.bytes(size_of::<[u8; 16]>())?;
        if let [number] = bytes {
            return Ok(Self::Unnamed(*number));
        }
        let short = bytes.try_into().map(Self::Short);
        let found = short.or_else(|_| bytes.try_into().map(Self::Extended));
        found.map_err(|_| RecordError::Invalid("host identifier"))
    }
}
