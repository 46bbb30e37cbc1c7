//! VERSION: the first message of a connection.
//!
//! The payload is four bytes and, optionally, a JSON text that ends in NUL. A client without the text gets
//! the defaults of the specification, which are those of [`Capabilities::default`].

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

    /// Version of this crate. A server answers with the same major and at most the client's minor version.
    pub const OURS: Version = Version { major: 0, minor: 1 };
}

const _: () = assert!(size_of::<Version>() == Version::SIZE);

/// Capabilities of one end. Unknown names are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    /// Most file descriptors that the sender accepts with one message.
    pub max_msg_fds: u32,
    /// Most bytes of data that the sender accepts in one region or DMA access.
    pub max_data_xfer_size: u64,
    /// Page sizes of DMA maps that the sender supports, as a bit mask in bytes.
    pub pgsizes: u64,
    /// Most DMA maps that the sender can hold at a time.
    pub max_dma_maps: u64,
    /// Support of REGION_WRITE_MULTI by the sender.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    /// Returns the capabilities of a peer that announces none.
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
    /// Returns the capabilities of this crate's [`crate::Connection`].
    pub fn ours() -> Self {
        Self {
            max_msg_fds: crate::MAX_MESSAGE_FDS as u32,
            max_data_xfer_size: crate::MAX_DATA_TRANSFER as u64,
            ..Self::default()
        }
    }

    /// Returns the JSON text of a message, with its NUL.
    pub fn to_json(&self) -> Vec<u8> {
        let text = serde_json::json!({ "capabilities": self }).to_string();
        text.into_bytes().into_iter().chain([0]).collect()
    }
}

/// JSON text around the capabilities.
#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionData {
    capabilities: Capabilities,
}

/// Error of an invalid VERSION payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionError {
    /// Payload shorter than [`Version::SIZE`].
    Short,
    /// Text that is not the required JSON.
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

/// Parses a VERSION payload. `None` stands for a peer that sent no JSON text at all. The absence
/// distinguishes a host that polls from a virtual machine monitor.
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
