//! Greeting: both processes send the versions that they speak.

use crate::channel::{Channel, ChannelError};
use crate::kind;
use std::time::Instant;

/// First bytes of a greeting.
const MAGIC: [u8; 8] = *b"sluice\0u";

/// Versions of the conversation and of the records in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Version that the process sends.
    pub own: u32,
    /// Oldest version that the process reads.
    pub oldest: u32,
}

impl Version {
    /// Versions of this build.
    pub const CURRENT: Self = Self { own: 1, oldest: 1 };

    /// Returns the version that both speak: the older one, if the other process reads it.
    fn agreed(self, other: Self) -> Option<u32> {
        let common = self.own.min(other.own);
        (common >= self.oldest && common >= other.oldest).then_some(common)
    }

    fn encode(self) -> Vec<u8> {
        [&MAGIC[..], &self.own.to_le_bytes(), &self.oldest.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (own, rest) = bytes.strip_prefix(&MAGIC)?.split_first_chunk()?;
        let oldest = rest.first_chunk()?;
        Some(Self { own: u32::from_le_bytes(*own), oldest: u32::from_le_bytes(*oldest) })
    }
}

/// Outcome of a greeting.
pub(crate) enum Greeting {
    /// Version that both processes speak.
    Agreed,
    /// The other process speaks other versions.
    Foreign(Version),
}

/// Sends a greeting and receives that of the other process.
pub(crate) fn greet(channel: &Channel, own: Version, until: Instant) -> Result<Greeting, ChannelError> {
    channel.send(kind::HELLO, &own.encode(), &[], until)?;
    let message = channel.receive(until)?;
    let other = Version::decode(&message.bytes).filter(|_| message.kind == kind::HELLO);
    let other = other.ok_or(ChannelError::Malformed("no greeting"))?;
    Ok(own.agreed(other).map_or(Greeting::Foreign(other), |_| Greeting::Agreed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_agree_on_the_older_version() {
        let version = |own, oldest| Version { own, oldest };
        assert_eq!(version(2, 1).agreed(version(2, 1)), Some(2));
        assert_eq!(version(2, 1).agreed(version(3, 2)), Some(2));
        assert_eq!(version(3, 2).agreed(version(2, 1)), Some(2));
        assert_eq!(version(4, 3).agreed(version(2, 1)), None);
        assert_eq!(version(2, 1).agreed(version(4, 3)), None);
    }

    #[test]
    fn greetings_come_back() {
        let version = Version { own: 7, oldest: 6 };
        assert_eq!(Version::decode(&version.encode()), Some(version));
        assert_eq!(Version::decode(&version.encode()[..15]), None);
        assert_eq!(Version::decode(b"hello, world, how are you"), None);
        let longer = [version.encode(), vec![1, 2]].concat();
        assert_eq!(Version::decode(&longer), Some(version), "a later version may add fields");
    }
}
