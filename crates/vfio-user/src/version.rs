//! VERSION: the first message of a connection.
//!
//! The payload is four bytes and, optionally, a JSON text that ends in NUL. A client that leaves the
//! text out gets the defaults of the specification, which are what [`Capabilities::default`] holds.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major and minor version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

impl Version {
    pub const SIZE: usize = 4;

    /// What this crate speaks. A server answers with the same major and at most the client's minor.
    pub const OURS: Version = Version { major: 0, minor: 1 };
}

const _: () = assert!(size_of::<Version>() == Version::SIZE);

/// What one end can do. Names that are not known are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Most file descriptors the sender takes with one message.
    pub max_msg_fds: u32,
    /// Most bytes of data the sender takes in one region or DMA access.
    pub max_data_xfer_size: u64,
    /// Page sizes of DMA maps the sender can do, as a bit mask in bytes.
    pub pgsizes: u64,
    /// Most DMA maps the sender can hold at a time.
    pub max_dma_maps: u64,
    /// Whether the sender knows REGION_WRITE_MULTI.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    /// What a peer that says nothing is taken to be able to do.
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            pgsizes: 4096,
            max_dma_maps: 65535,
            write_multiple: false,
        }
    }
}

impl Capabilities {
    /// What this crate's [`crate::Connection`] can carry.
    pub fn ours() -> Self {
        Self {
            max_msg_fds: crate::MAX_MESSAGE_FDS as u32,
            max_data_xfer_size: crate::MAX_DATA_TRANSFER as u64,
            ..Self::default()
        }
    }

    /// The JSON text as it stands in a message, with its NUL.
    pub fn to_json(&self) -> Vec<u8> {
        let text = serde_json::json!({ "capabilities": self }).to_string();
        text.into_bytes().into_iter().chain([0]).collect()
    }
}

/// The JSON text around the capabilities.
#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionData {
    capabilities: Capabilities,
}

/// A VERSION payload that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionError {
    /// Shorter than [`Version::SIZE`].
    Short,
    /// The text is not the JSON that it should be.
    Json,
}

impl std::fmt::Display for VersionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            VersionError::Short => "a VERSION message without a version",
            VersionError::Json => "a VERSION message whose capabilities are not valid JSON",
        })
    }
}

impl std::error::Error for VersionError {}

/// Takes a VERSION payload apart. `None` stands for a peer that sent no JSON text at all, which is how
/// a host that polls tells itself from a virtual machine monitor.
pub fn parse(payload: &[u8]) -> Result<(Version, Option<Capabilities>), VersionError> {
    let (version, text) = Version::read_from_prefix(payload).map_err(|_| VersionError::Short)?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let text = &text[..end];
    if text.is_empty() {
        return Ok((version, None));
    }
    let data: VersionData = serde_json::from_slice(text).map_err(|_| VersionError::Json)?;
    Ok((version, Some(data.capabilities)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &[u8]) -> Vec<u8> {
        [Version { major: 0, minor: 1 }.as_bytes(), text].concat()
    }

    #[test]
    fn what_a_virtual_machine_monitor_sends() {
        let text = br#"{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,
            "max_data_xfer_size":1048576,"migration":{"pgsize":4096},"write_multiple":true}}"#;
        let (version, capabilities) = parse(&payload(&[&text[..], &[0]].concat())).expect("valid");
        assert_eq!(version, Version { major: 0, minor: 1 });
        let expected = Capabilities { max_msg_fds: 16, write_multiple: true, ..Capabilities::default() };
        assert_eq!(capabilities, Some(expected));
    }

    #[test]
    fn no_text_is_not_the_same_as_an_empty_object() {
        assert_eq!(parse(&payload(b"")).expect("valid").1, None);
        assert_eq!(parse(&payload(b"\0")).expect("valid").1, None);
        assert_eq!(parse(&payload(b"{}\0")).expect("valid").1, Some(Capabilities::default()));
    }

    #[test]
    fn ours_survives_the_wire() {
        let (_, capabilities) = parse(&payload(&Capabilities::ours().to_json())).expect("valid");
        assert_eq!(capabilities, Some(Capabilities::ours()));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert_eq!(parse(&[0, 0, 1]), Err(VersionError::Short));
        for text in [&b"{"[..], b"\xff", b"7", b"{\"capabilities\":{\"max_msg_fds\":-1}}"] {
            assert_eq!(parse(&payload(text)), Err(VersionError::Json), "{text:?}");
        }
        assert_eq!(parse(&payload(&[b'['; 10_000])), Err(VersionError::Json));
    }
}
