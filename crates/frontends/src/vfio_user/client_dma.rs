//! DMA_READ and DMA_WRITE: what the device has the client do in memory that only the client reaches.

use super::device::Device;
use super::session::Ended;
use sluice_controller::DmaRequest;
use sluice_vfio_user::dma::DmaAccess;
use sluice_vfio_user::{Command, Connection, Header};
use zerocopy::{FromBytes, IntoBytes};

/// ClientDma that a client has not answered, and how they are numbered.
///
/// The device limits how many there are. One that the device has forgotten stays here until it is answered, and its
/// answer is dropped there.
#[derive(Debug, Default)]
pub(super) struct ClientDma {
    /// With the identifier of its message.
    sent: Vec<(u16, DmaRequest)>,
    last_message: u16,
    /// What an errand writes; kept for the next.
    data: Vec<u8>,
}

/// Messages that a client may leave unanswered, those of earlier resets among them.
const SENT_MAX: usize = 256;

/// Bytes of one errand, whatever the client says it takes: Linux takes this much into a socket at once or not at all.
/// QEMU (11.1, `vfio_user_send_one`) counts a reply as sent of which the socket took a part, and what it sends after
/// that is read as the rest.
const DMA_REQUEST_MAX: usize = 16 << 10;

impl ClientDma {
    /// Sends what the device has, of at most `most` bytes and [`DMA_REQUEST_MAX`] each, while the client reads it. Returns how many.
    ///
    /// # Errors
    /// The socket's, or [`SENT_MAX`].
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        most: usize,
        device: &mut dyn Device,
        now_ns: u64,
    ) -> Result<usize, Ended> {
        // Completion entries are whole.
        let most = (most.min(DMA_REQUEST_MAX) & !15).max(16);
        let mut count = 0;
        while !connection.has_unsent()
            && let Some(request) = device.take_dma_request(most, &mut self.data, now_ns)
        {
            if self.sent.len() == SENT_MAX {
                return Err(Ended::Violation("hundreds of questions that it left unanswered"));
            }
            let command = if request.writes { Command::DMA_WRITE } else { Command::DMA_READ };
            let access = DmaAccess { address: request.address, count: request.length as u64 };
            let message = self.next_message();
            let data = if request.writes { &self.data[..] } else { &[] };
            connection.send(Header::command(message, command), access.as_bytes(), data, &[])?;
            self.sent.push((message, request));
            count += 1;
        }
        Ok(count)
    }

    /// An identifier that no message has which is not answered.
    fn next_message(&mut self) -> u16 {
        loop {
            self.last_message = self.last_message.wrapping_add(1);
            if self.sent.iter().all(|(message, _)| *message != self.last_message) {
                return self.last_message;
            }
        }
    }

    /// The client has answered.
    ///
    /// # Errors
    /// It answered what it was not asked, or with bytes that it was not asked for.
    pub(super) fn answered(
        &mut self,
        header: &Header,
        payload: &[u8],
        device: &mut dyn Device,
    ) -> Result<(), Ended> {
        let Some(index) = self.sent.iter().position(|(message, _)| *message == header.id) else {
            return Err(Ended::Violation("a reply to nothing that it was asked"));
        };
        let (_, request) = self.sent.swap_remove(index);
        let command = if request.writes { Command::DMA_WRITE } else { Command::DMA_READ };
        if header.command != command {
            return Err(Ended::Violation("a reply to something else than it was asked"));
        }
        if header.failure().is_some() {
            device.complete_dma_request(request.id, None);
            return Ok(());
        }
        let asked = DmaAccess { address: request.address, count: request.length as u64 };
        match DmaAccess::read_from_prefix(payload) {
            Ok((access, data)) if access == asked && (request.writes || data.len() == request.length) => {
                device.complete_dma_request(request.id, Some(data));
                Ok(())
            }
            _ => Err(Ended::Violation("a reply with other bytes than it was asked for")),
        }
    }
}
