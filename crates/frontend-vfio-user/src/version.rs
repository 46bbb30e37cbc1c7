//! VERSION: the agreement of client and server.

use sluice_vfio_user::Errno;
use sluice_vfio_user::version::{self, Capabilities, Version};
use zerocopy::IntoBytes;

/// Capabilities that a client sent. A host that polls sends no capabilities at all, which distinguishes it
/// from a virtual machine monitor.
pub(super) type ClientCapabilities = Option<Capabilities>;

/// Answers a VERSION message with the server's capabilities, and the older of the two minor versions.
///
/// # Errors
/// EINVAL for a payload that makes no sense, ENOTSUP for another major version.
pub(super) fn negotiate(payload: &[u8], reply: &mut Vec<u8>) -> Result<ClientCapabilities, Errno> {
    let (version, capabilities) = version::parse(payload).map_err(|_| Errno::INVAL)?;
    if version.major != Version::OURS.major {
        return Err(Errno::NOTSUP);
    }
    let minor = version.minor.min(Version::OURS.minor);
    reply.extend_from_slice(Version { minor, ..version }.as_bytes());
    reply.extend_from_slice(&ours().to_json());
    Ok(capabilities)
}

/// Returns the server's capabilities. REGION_WRITE_MULTI is supported but not offered. QEMU (10.1 to 11.1),
/// if it is offered, sets a flag of another meaning with it and sends every message through a queue.
fn ours() -> Capabilities {
    Capabilities {
        max_dma_maps: sluice_memory::MAX_REGIONS as u64,
        write_multiple: false,
        ..Capabilities::ours()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(major: u16, minor: u16, text: &[u8]) -> Result<(Version, ClientCapabilities), Errno> {
        let mut reply = Vec::new();
        let payload = [Version { major, minor }.as_bytes(), text].concat();
        let theirs = negotiate(&payload, &mut reply)?;
        let (version, capabilities) = version::parse(&reply).expect("what we send is valid");
        assert_eq!(capabilities, Some(ours()));
        Ok((version, theirs))
    }

    #[test]
    fn the_older_minor_version_counts() {
        assert_eq!(answer(0, 0, b""), Ok((Version { major: 0, minor: 0 }, None)));
        let (version, theirs) = answer(0, 9, b"{}\0").expect("the same major version");
        assert_eq!(version, Version::OURS);
        assert_eq!(theirs, Some(Capabilities::default()));
    }

    #[test]
    fn refusals() {
        assert_eq!(answer(1, 0, b""), Err(Errno::NOTSUP));
        assert_eq!(answer(0, 0, b"{"), Err(Errno::INVAL));
        assert_eq!(negotiate(&[0; 3], &mut Vec::new()), Err(Errno::INVAL));
    }
}
