//! DMA_READ and DMA_WRITE: requests to the client for memory that only the client reaches.

use super::session::Ended;
use sluice_controller::{Controller, DmaRequest};
use sluice_vfio_user::dma::DmaAccess;
use sluice_vfio_user::{Command, Connection, Header};
use zerocopy::{FromBytes, IntoBytes};

/// DMA requests that a client has not answered, and the numbering of their messages.
///
/// The controller limits the number of requests. A request that the controller has dropped stays here until it
/// is answered. The controller then ignores the answer.
#[derive(Debug, Default)]
pub(super) struct ClientDma {
    /// Requests with the identifiers of their messages.
    sent: Vec<(u16, DmaRequest)>,
    last_message: u16,
    /// Data of a DMA_WRITE. The next request reuses the buffer.
    data: Vec<u8>,
}

/// Messages that a client may leave unanswered, those of earlier resets included.
const SENT_MAX: usize = 256;

/// Bytes of one request, whatever limit the client announces. Linux takes this much into a socket at once or
/// not at all. QEMU (11.1, `vfio_user_send_one`) counts a reply as sent even if the socket took only a part.
/// QEMU's next bytes would then be read as the rest of that reply.
const DMA_REQUEST_MAX: usize = 16 << 10;

impl ClientDma {
    /// Returns whether the client has answered all requests.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Sends the requests of the controller, of at most `most` bytes and [`DMA_REQUEST_MAX`] each, while the
    /// client reads them. Returns the number of requests sent.
    ///
    /// # Errors
    /// An error of the socket, or [`SENT_MAX`] unanswered messages.
    pub(super) fn send(
        &mut self,
        connection: &mut Connection,
        most: usize,
        controller: &mut Controller,
        now_ns: u64,
    ) -> Result<usize, Ended> {
        // A multiple of 16 bytes keeps completion entries whole.
        let most = (most.min(DMA_REQUEST_MAX) & !15).max(16);
        let mut count = 0;
        while !connection.has_unsent()
            && let Some(request) = controller.take_dma_request(most, &mut self.data, now_ns)
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

    /// Returns an identifier that no unanswered message has.
    fn next_message(&mut self) -> u16 {
        loop {
            self.last_message = self.last_message.wrapping_add(1);
            if self.sent.iter().all(|(message, _)| *message != self.last_message) {
                return self.last_message;
            }
        }
    }

    /// Takes an answer of the client and passes it to the controller.
    ///
    /// # Errors
    /// The answer belongs to no request, or has other bytes than were requested.
    pub(super) fn answered(
        &mut self,
        header: &Header,
        payload: &[u8],
        controller: &mut Controller,
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
            controller.complete_dma_request(request.id, None);
            return Ok(());
        }
        let asked = DmaAccess { address: request.address, count: request.length as u64 };
        match DmaAccess::read_from_prefix(payload) {
            Ok((access, data)) if access == asked && (request.writes || data.len() == request.length) => {
                controller.complete_dma_request(request.id, Some(data));
                Ok(())
            }
            _ => Err(Ended::Violation("a reply with other bytes than it was asked for")),
        }
    }
}
