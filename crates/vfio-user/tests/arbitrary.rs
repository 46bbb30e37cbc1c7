//! Arbitrary bytes make no reader panic, and written structures are read back unchanged.

use proptest::prelude::*;
use sluice_vfio_user::device::{MmapArea, RegionInfo, SparseMmap, sparse_areas};
use sluice_vfio_user::region::{RegionAccess, WriteMulti};
use sluice_vfio_user::{Command, Connection, Header, version};
use std::io::Write;
use std::os::unix::net::UnixStream;
use zerocopy::IntoBytes;

/// Returns bytes that often begin like a message.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let framed = (any::<u16>(), 0u16..20, 0u32..96, any::<u32>(), prop::collection::vec(any::<u8>(), 0..80));
    let framed = framed.prop_map(|(id, command, size, flags, payload)| {
        let header = Header { id, command: Command(command), size, flags, error: 0 };
        [header.as_bytes(), &payload].concat()
    });
    let piece = prop_oneof![framed, prop::collection::vec(any::<u8>(), 0..40)];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_stream_of_bytes_is_messages_or_an_error(bytes in stream()) {
        let (ours, mut peer) = UnixStream::pair().expect("a socket pair");
        let mut connection = Connection::new(ours);
        peer.write_all(&bytes).expect("it fits the socket");
        drop(peer);
        // The peer is gone, so this ends with an error at the latest when all bytes are read.
        let mut handed_out = 0;
        while let Ok(message) = connection.receive() {
            let message = message.expect("a closed socket is never merely empty");
            prop_assert_eq!(message.payload.len() + Header::SIZE, message.header.size as usize);
            let from = handed_out + Header::SIZE;
            prop_assert_eq!(message.payload, &bytes[from..from + message.payload.len()]);
            handed_out += message.header.size as usize;
        }
    }

    #[test]
    fn payload_readers_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = version::parse(&bytes);
        let _ = sparse_areas(&bytes);
        if let Some((access, data)) = RegionAccess::parse_write(&bytes) {
            prop_assert_eq!(access.count as usize, data.len());
        }
        for write in WriteMulti::parse(&bytes).unwrap_or_default() {
            prop_assert!(write.data().is_none_or(|data| data.len() == write.access().count as usize));
        }
    }

    #[test]
    fn capability_chains_take_any_bytes(
        cap_offset in 0u32..128,
        rest in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(32), any::<u8>()], 0..96),
    ) {
        let info = RegionInfo { flags: RegionInfo::CAPS, cap_offset, ..RegionInfo::default() };
        let _ = sparse_areas(&[info.as_bytes(), &rest].concat());
    }

    #[test]
    fn a_sparse_area_is_read_as_written(offset: u64, size: u64, gap in 0usize..40) {
        let area = MmapArea { offset, size };
        let cap_offset = (RegionInfo::SIZE + gap) as u32;
        let info = RegionInfo { flags: RegionInfo::CAPS, cap_offset, ..RegionInfo::default() };
        let payload = [info.as_bytes(), &vec![0xee; gap], SparseMmap::new(area).as_bytes()].concat();
        prop_assert_eq!(sparse_areas(&payload), Some(vec![area]));
    }
}
