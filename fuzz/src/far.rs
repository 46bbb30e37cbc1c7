//! Memory that a client mapped without a descriptor: the server reads and writes it by DMA messages.

use crate::Input;
use sluice_vfio_user::dma::DmaAccess;
use sluice_vfio_user::{Command, Header};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that are read or written by one message at most.
const ACCESS_MAX: u64 = 64 << 10;

#[derive(Debug)]
pub struct Far {
    /// First address for the device.
    at: u64,
    bytes: Vec<u8>,
    /// Requests without an answer, the oldest first.
    requests: VecDeque<(Header, DmaAccess)>,
    /// Flag that every answer so far was a valid one.
    pub is_valid: bool,
}

impl Far {
    pub fn new(at: u64, size: usize) -> Self {
        Self { at, bytes: vec![0; size], requests: VecDeque::new(), is_valid: true }
    }

    pub fn poke(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Drops all requests for a new connection.
    pub fn forget(&mut self) {
        self.requests.clear();
        self.is_valid = true;
    }

    /// Handles a request of the server.
    pub fn requested(&mut self, header: Header, payload: &[u8]) {
        let (access, data) = DmaAccess::read_from_prefix(payload).expect("an access");
        assert!(!header.no_reply() && (1..=ACCESS_MAX).contains(&access.count), "{header:?} {access:?}");
        assert!(
            self.requests.iter().all(|(other, _)| other.id != header.id),
            "two requests with one identifier"
        );
        match header.command {
            Command::DMA_READ => assert!(data.is_empty(), "a read has no data"),
            Command::DMA_WRITE => {
                assert_eq!(data.len() as u64, access.count);
                for (address, byte) in addresses(&access).zip(data) {
                    if let Some(place) = self.place(address) {
                        self.bytes[place] = *byte;
                    }
                }
            }
            _ => panic!("a server does not send {header:?}"),
        }
        self.requests.push_back((header, access));
    }

    /// Returns the answer to the oldest request, or something else.
    pub fn answer(&mut self, input: &mut Input<'_>) -> Option<(Header, Vec<u8>)> {
        let (request, access) = self.requests.pop_front()?;
        let (mut header, mut payload) = (request.reply(), access.as_bytes().to_vec());
        if request.command == Command::DMA_READ {
            let there = |address| self.place(address).map_or(0, |place| self.bytes[place]);
            payload.extend(addresses(&access).map(there));
        }
        let whole = payload.len();
        match input.below(16) {
            12 => (header, payload) = (request.error_reply(rustix::io::Errno::FAULT), Vec::new()),
            13 => payload.truncate(input.below(40)),
            14 => header.id = header.id.wrapping_add(1 + u16::from(input.byte())),
            15 => payload[input.below(DmaAccess::SIZE)] ^= 1 << input.below(8),
            _ => {}
        }
        let is_right =
            header.id == request.id && payload.len() == whole && payload.starts_with(access.as_bytes());
        self.is_valid &= is_right || header.failure().is_some();
        Some((header, payload))
    }

    fn place(&self, address: u64) -> Option<usize> {
        let place = usize::try_from(address.checked_sub(self.at)?).ok()?;
        (place < self.bytes.len()).then_some(place)
    }
}

fn addresses(access: &DmaAccess) -> impl Iterator<Item = u64> + use<> {
    let at = access.address;
    (0..access.count).map(move |offset| at.wrapping_add(offset))
}
