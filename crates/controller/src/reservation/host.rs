//! Who a host is.

/// Host Identifier (Base 5.27, feature 81h): controllers with the same one are the same host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostId {
    /// It did not say (the value is zero): a host with this controller and no other. Nothing of it outlives a reset
    /// of the controller.
    Unnamed(u8),
    /// 64 bits, as they stand in memory.
    Short([u8; 8]),
    /// 128 bits, as they stand in memory.
    Extended([u8; 16]),
}

impl HostId {
    /// What a host over a memory-based transport says of itself in 64 bits.
    pub(crate) fn short(bytes: [u8; 8], number: u8) -> Self {
        if bytes == [0; 8] { Self::Unnamed(number) } else { Self::Short(bytes) }
    }

    /// What a host says of itself in 128 bits.
    pub fn extended(bytes: [u8; 16], number: u8) -> Self {
        if bytes == [0; 16] { Self::Unnamed(number) } else { Self::Extended(bytes) }
    }

    /// True unless it is the host of one controller, until that is reset.
    pub(crate) fn is_named(self) -> bool {
        !matches!(self, Self::Unnamed(_))
    }

    /// In 128 bits; one of 64 bits stands in the first of them.
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

    /// False for two that may not be used at the same time: they are of different width.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        !matches!((self, other), (Self::Short(_), Self::Extended(_)) | (Self::Extended(_), Self::Short(_)))
    }
}
