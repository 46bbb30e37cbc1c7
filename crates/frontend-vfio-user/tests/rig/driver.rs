//! Driver of a guest, over the messages of its client.

use super::Peer;
use super::rings::Rings;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{CompletionEntry, SubmissionEntry, register};

/// Address of the driver's memory, above the memory that tests map.
const BASE: u64 = 1 << 40;

/// Bytes of the driver's memory: queues for each vector, and the data.
const MEMORY: usize = 2 << 20;

/// Address of a page for data in the driver's memory.
pub(crate) const DATA: u64 = BASE;

/// Enabled controller with its queue pairs. The completion queue of pair n has vector n.
pub(crate) struct Driver {
    pub(crate) rings: Rings,
}

impl Driver {
    /// Enables the controller and creates I/O queue pairs.
    pub(crate) fn start(guest: &mut Peer, queues: &[u16]) -> Self {
        let mut rings = Rings::new(BASE, MEMORY);
        guest.map(BASE, MEMORY as u64, Some(rings.memory.fd())).expect("mapped");
        assert_eq!(rings.allocate(4096), DATA);
        for (offset, value) in rings.enabling() {
            guest.write(0, offset.into(), &value).expect("a register");
        }
        assert!(is_ready(guest), "not enabled");
        let mut driver = Self { rings };
        for id in queues {
            for entry in driver.rings.creating(*id, Some(*id)) {
                driver.submit(guest, 0, entry);
                assert!(driver.wait(guest, 0).status().is_success(), "queue {id} was not created");
                driver.acknowledge(guest, 0);
            }
        }
        driver
    }

    /// Submits a command, and rings over the socket.
    pub(crate) fn submit(&mut self, guest: &mut Peer, queue: u16, entry: SubmissionEntry) {
        let tail = self.rings.push(queue, entry);
        guest.post_write(0, 0x1000 + u64::from(queue) * 8, &tail.to_le_bytes());
    }

    /// Waits for the next completion of a queue, and until the turn that posted it is over.
    pub(crate) fn wait(&mut self, guest: &mut Peer, queue: u16) -> CompletionEntry {
        loop {
            let completion = self.rings.pop(queue);
            guest.ping();
            if let Some(completion) = completion {
                return completion;
            }
        }
    }

    /// Releases the completions of a queue that were waited for.
    pub(crate) fn acknowledge(&self, guest: &mut Peer, queue: u16) {
        let head = self.rings.head(queue);
        guest.post_write(0, 0x1004 + u64::from(queue) * 8, &head.to_le_bytes());
        guest.ping();
    }

    /// Completes a command on each of these queues. Their interrupts have been passed to the ring when this
    /// returns.
    pub(crate) fn complete(&mut self, guest: &mut Peer, queues: &[u16]) {
        self.complete_unseen(guest, queues);
        queues.iter().for_each(|queue| self.acknowledge(guest, *queue));
    }

    /// Completes a command on each of these queues, and leaves the completions in the queues: the pin stays
    /// asserted.
    pub(crate) fn complete_unseen(&mut self, guest: &mut Peer, queues: &[u16]) {
        for queue in queues {
            let (opcode, nsid) = if *queue == 0 { (admin::KEEP_ALIVE, 0) } else { (io::FLUSH, 1) };
            self.submit(guest, *queue, SubmissionEntry { opcode, nsid, ..SubmissionEntry::default() });
        }
        for queue in queues {
            self.wait(guest, *queue);
        }
    }

    /// Submits a read of one block into the memory at `address`.
    pub(crate) fn submit_read(&mut self, guest: &mut Peer, queue: u16, address: u64) {
        let entry = SubmissionEntry { opcode: io::READ, nsid: 1, dptr: [address, 0], ..Default::default() };
        self.submit(guest, queue, entry);
    }
}

/// Returns CSTS.RDY.
pub(crate) fn is_ready(guest: &mut Peer) -> bool {
    let csts = guest.read(0, register::CSTS.into(), 4).expect("a register");
    csts[0] & register::csts::RDY as u8 != 0
}
