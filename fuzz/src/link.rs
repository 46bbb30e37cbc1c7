//! A host's end of an NVMe/TCP connection.

use crate::Input;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sluice_nvme::fabrics::{self, Connect, Fctype};
use sluice_nvme::opcode::admin;
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use sluice_nvme_tcp::{Data, Decoder, Digests, Event, IcReq, Limits, Pdu, Place, R2t, Role, crc32c, encode};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};

const ALIGNMENT: u8 = 4;

/// Bytes that a command of this host moves at most.
pub const TRANSFER_MAX: u32 = 64 << 10;

#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    decoder: Decoder,
    digests: Digests,
    /// Commands without a response, by their CID.
    unanswered: HashMap<u16, SubmissionEntry>,
    last_cid: u16,
    /// Data that the controller is ready for.
    requested: Vec<R2t>,
    /// A PDU whose payload is not complete, and the received part of that.
    begun: Option<(Pdu, Vec<u8>)>,
    /// Flag that the controller sees exactly the commands that were sent.
    is_in_step: bool,
    pub is_open: bool,
    pub is_initialized: bool,
    /// Queue identifier of the Connect command that succeeded, with its CNTLID.
    pub queue: Option<(u16, u16)>,
}

impl Link {
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("somebody listens");
        stream.set_nodelay(true).expect("a socket");
        let limits = Limits { in_capsule_max: 0, data_max: 1 << 20, alignment: ALIGNMENT };
        Self {
            stream,
            decoder: Decoder::new(Role::Host, limits),
            digests: Digests::NONE,
            unanswered: HashMap::new(),
            last_cid: 0,
            requested: Vec::new(),
            begun: None,
            is_in_step: true,
            is_open: true,
            is_initialized: false,
            queue: None,
        }
    }

    /// Sends ICReq. A second one is an error.
    pub fn initialize(&mut self, digests: Digests, r2t_max: u64) {
        self.is_in_step &= !self.is_initialized;
        (self.is_initialized, self.digests) = (true, digests);
        self.send_bytes(encode::ic_req(IcReq { alignment: ALIGNMENT, digests, r2t_max }).as_bytes());
    }

    /// Sends a command with data in its capsule; returns its CID.
    pub fn command(&mut self, mut entry: SubmissionEntry, data: &[u8]) -> u16 {
        self.last_cid = self.last_cid.wrapping_add(1);
        entry.cid = self.last_cid;
        self.unanswered.insert(entry.cid, entry);
        let head = encode::capsule_cmd(&entry, self.digests, ALIGNMENT, data.len() as u32);
        let bytes = self.with_data(head.as_bytes(), data);
        self.send_bytes(&bytes);
        entry.cid
    }

    /// Sends bytes that are no PDU, or one that is not permitted now.
    pub fn send_invalid(&mut self, bytes: &[u8]) {
        self.is_in_step &= bytes.is_empty();
        self.send_bytes(bytes);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
        // A peer that does not read has no room any more, and a connection that is gone none at all.
        if send(&self.stream, bytes, FLAGS) != Ok(bytes.len()) {
            self.end();
        }
    }

    fn with_data(&self, head: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = [head, data].concat();
        if self.digests.data && !data.is_empty() {
            bytes.extend(crc32c(data).to_le_bytes());
        }
        bytes
    }

    pub fn end(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.is_open = false;
    }

    // Replies

    /// Takes all PDUs that have arrived, and answers an R2T.
    pub fn receive(&mut self, input: &mut Input<'_>) {
        while self.is_open && self.take() {}
        if let Some(r2t) = self.requested.pop() {
            self.give(r2t, input);
        }
    }

    /// Waits until every command is answered that need not wait for an event.
    pub fn wait_for_answers(&mut self) {
        while self.is_open && self.is_in_step && self.unanswered.values().any(is_answered) {
            self.receive(&mut Input::new(&[]));
            if self.requested.is_empty() && self.unanswered.values().any(is_answered) {
                self.wait();
            }
        }
    }

    /// Returns the answer to the latest command; none if the connection ends before.
    pub fn answer(&mut self, cid: u16) -> Option<CompletionEntry> {
        loop {
            while let Some(found) = self.next() {
                let answer = match found.0 {
                    Pdu::Response(entry) if entry.cid == cid => Some(entry),
                    _ => None,
                };
                self.handle(found);
                if answer.is_some() {
                    return answer;
                }
            }
            if !self.is_open {
                return None;
            }
            self.wait();
        }
    }

    /// Waits until there is something to read. If nothing ever arrives, libFuzzer's limit reports it.
    fn wait(&self) {
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&limit));
    }

    /// Takes one PDU; returns false if there is none yet.
    fn take(&mut self) -> bool {
        let found = self.next();
        found.map(|found| self.handle(found)).is_some()
    }

    fn next(&mut self) -> Option<(Pdu, Vec<u8>)> {
        while self.is_open {
            let mut payload = [0; 4096];
            let (room, is_payload) = match self.decoder.place() {
                Place::Here(room) => (room, false),
                Place::Payload(left) => (&mut payload[..4096.min(left as usize)], true),
            };
            let (count, _) = match recv(&self.stream, &mut *room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.is_open = false;
                    return None;
                }
                Ok(received) => received,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return None,
                Err(_) => {
                    self.is_open = false;
                    return None;
                }
            };
            if is_payload {
                self.begun.as_mut().expect("a header came first").1.extend(&payload[..count]);
            }
            match self.decoder.filled(count).expect("a controller keeps to the protocol") {
                Some(Event::Pdu(pdu)) => {
                    self.begun = Some((pdu, Vec::new()));
                    if !matches!(self.decoder.place(), Place::Payload(_)) {
                        return self.begun.take();
                    }
                }
                Some(Event::End { digest }) => {
                    let found = self.begun.take().expect("a header came first");
                    assert!(digest.is_none_or(|digest| digest == crc32c(&found.1)), "a wrong data digest");
                    return Some(found);
                }
                None => {}
            }
        }
        None
    }

    fn handle(&mut self, (pdu, payload): (Pdu, Vec<u8>)) {
        match pdu {
            Pdu::IcResp(response) => {
                assert!(!self.is_in_step || response.digests == self.digests, "other digests than requested");
                self.decoder.set_digests(response.digests);
            }
            Pdu::Terminated(_) => self.is_open = false,
            _ if !self.is_in_step => {}
            Pdu::Response(response) => self.answered(&response),
            Pdu::Data(data) => {
                let Some(entry) = self.unanswered.get(&data.cccid) else {
                    panic!("data for nothing: {data:?}")
                };
                assert!(
                    data.length as usize == payload.len() && data.offset + data.length <= TRANSFER_MAX,
                    "{entry:?}"
                );
                if data.success && data.last {
                    self.unanswered.remove(&data.cccid);
                }
            }
            Pdu::R2t(r2t) => {
                assert!(self.unanswered.contains_key(&r2t.cccid), "{r2t:?} for nothing");
                assert!(r2t.length > 0 && r2t.offset + r2t.length <= TRANSFER_MAX, "{r2t:?}");
                self.requested.push(r2t);
            }
            other => panic!("a controller does not send {other:?}"),
        }
    }

    fn answered(&mut self, response: &CompletionEntry) {
        let Some(entry) = self.unanswered.remove(&response.cid) else {
            panic!("an answer to nothing: {response:?}")
        };
        let status = response.status();
        assert!(status.name().is_some() && status != Status::INTERNAL_ERROR, "{status:?} for {entry:x?}");
        if status.is_success() && entry.opcode == fabrics::OPCODE && Fctype::of(&entry) == Fctype::CONNECT {
            assert!(self.queue.is_none(), "a queue is connected twice");
            self.queue = Some((Connect::of(&entry).qid, response.dw0 as u16));
        }
    }

    /// Sends the requested data, or something else.
    fn give(&mut self, r2t: R2t, input: &mut Input<'_>) {
        let R2t { cccid, ttag, offset, length } = r2t;
        let mut data = Data { cccid, ttag, offset, length, last: true, success: false };
        let mut payload = vec![input.byte(); length as usize];
        match input.below(16) {
            10 => data.ttag = data.ttag.wrapping_add(1 + u16::from(input.byte())),
            11 => data.cccid = data.cccid.wrapping_add(1 + u16::from(input.byte())),
            12 => data.offset = input.dword(),
            13 => data.last = false,
            14 => {
                data.length = input.dword() % (2 * TRANSFER_MAX);
                payload.resize(data.length as usize, 0);
            }
            15 => {
                // The command waits for ever.
                self.is_in_step = false;
                return;
            }
            _ => {}
        }
        self.is_in_step &= data == Data { cccid, ttag, offset, length, last: true, success: false };
        let head = encode::h2c_data(data, self.digests, ALIGNMENT);
        let bytes = self.with_data(head.as_bytes(), &payload);
        self.send_bytes(&bytes);
    }
}

/// Returns whether a command ends by itself, and soon.
fn is_answered(entry: &SubmissionEntry) -> bool {
    let waits = [
        admin::ASYNC_EVENT_REQUEST,
        admin::FORMAT_NVM,
        admin::SANITIZE,
        admin::NAMESPACE_MANAGEMENT,
        admin::NAMESPACE_ATTACHMENT,
    ];
    // The first half of a fused operation waits for the next entry of its queue, which Fabrics commands do
    // not enter.
    !waits.contains(&entry.opcode) && entry.fuse() != 1
}
