//! NVMe/TCP streams, for both ends: their meaning does not depend on how they are cut, and payload is never
//! more than was agreed.

use crate::Input;
use sluice_nvme_tcp::{
    Decoder, Digests, Event, IcReq, IcResp, Limits, Pdu, Place, Role, Violation, crc32c, encode,
};

const LIMITS: Limits = Limits { in_capsule_max: 8192, data_max: 1 << 20, alignment: 4 };

/// Result of a stream.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    events: Vec<Event>,
    payload: Vec<u8>,
    violation: Option<Violation>,
    /// Incomplete header at the end of the stream.
    header: Vec<u8>,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let role = input.pick(&[Role::Controller, Role::Host]);
    let digests = Digests { header: input.one_in(2), data: input.one_in(2) };
    let initialized = !input.one_in(8);
    let cut = 1 + usize::from(input.byte());
    let mends = input.one_in(2);
    let mut stream = input.bytes(usize::MAX).to_vec();
    if mends && digests.header {
        mend(&mut stream, role);
    }
    let receive = |cut| {
        let mut reader = Reader::new(role, digests, initialized);
        reader.receive(&stream, cut);
        reader.outcome
    };
    let whole = receive(usize::MAX);
    assert_eq!(receive(cut), whole, "in pieces of {cut}");
    check(&whole, digests);
}

/// Receiving end.
pub(crate) struct Reader {
    decoder: Decoder,
    pub(crate) outcome: Outcome,
}

impl Reader {
    pub(crate) fn new(role: Role, digests: Digests, initialized: bool) -> Self {
        Self { decoder: begin(role, digests, initialized), outcome: Outcome::default() }
    }

    /// Receives more of the stream, in parts of `cut` bytes; nothing of it after an error.
    pub(crate) fn receive(&mut self, mut stream: &[u8], cut: usize) {
        let Self { decoder, outcome } = self;
        while !stream.is_empty() && outcome.violation.is_none() {
            let count = match decoder.place() {
                Place::Here(room) => {
                    assert!(!room.is_empty(), "there is always a next byte");
                    let count = room.len().min(stream.len()).min(cut);
                    room[..count].copy_from_slice(&stream[..count]);
                    count
                }
                Place::Payload(left) => {
                    assert!(left > 0 && left <= LIMITS.data_max);
                    let count = stream.len().min(left as usize).min(cut);
                    outcome.payload.extend_from_slice(&stream[..count]);
                    count
                }
            };
            stream = &stream[count..];
            match decoder.filled(count) {
                Ok(event) => outcome.events.extend(event),
                Err(violation) => {
                    outcome.violation = Some(violation);
                    outcome.header = decoder.header().to_vec();
                }
            }
        }
    }
}

fn begin(role: Role, digests: Digests, initialized: bool) -> Decoder {
    let mut decoder = Decoder::new(role, LIMITS);
    if initialized {
        let head = match role {
            Role::Controller => encode::ic_req(IcReq { alignment: 4, digests, r2t_max: 1 }),
            Role::Host => encode::ic_resp(IcResp { alignment: 4, digests, h2c_data_max: LIMITS.data_max }),
        };
        let mut bytes = head.as_bytes();
        while let Place::Here(room) = decoder.place()
            && !bytes.is_empty()
        {
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            decoder.filled(count).expect("a valid initialization");
        }
        decoder.set_digests(digests);
    }
    decoder
}

/// Corrects the first header's digest: hardly any input would get past it otherwise.
fn mend(stream: &mut [u8], role: Role) {
    let hlen = match role {
        Role::Controller => [72, 24],
        Role::Host => [24, 24],
    };
    let hlen = usize::from(*hlen.iter().find(|hlen| stream.get(2) == Some(*hlen)).unwrap_or(&24));
    if stream.len() >= hlen + 4 {
        let digest = crc32c(&stream[..hlen]);
        stream[hlen..hlen + 4].copy_from_slice(&digest.to_le_bytes());
    }
}

/// Checks that payload follows only PDUs that have some, and ends before the next PDU.
fn check(outcome: &Outcome, digests: Digests) {
    let mut announced = 0;
    let mut expects_end = false;
    for event in &outcome.events {
        match event {
            Event::Pdu(pdu) => {
                assert!(!expects_end, "a PDU amid the payload of another");
                let length = match pdu {
                    Pdu::Command(_, length) => {
                        assert!(*length <= LIMITS.in_capsule_max);
                        *length
                    }
                    Pdu::Data(data) => {
                        assert!(data.length > 0);
                        data.length
                    }
                    _ => 0,
                };
                announced += length as usize;
                expects_end = length > 0;
            }
            Event::End { digest } => {
                assert!(digest.is_none() || digests.data);
                expects_end = false;
            }
        }
    }
    let terminated = outcome.events.iter().any(|event| matches!(event, Event::Pdu(Pdu::Terminated(_))));
    assert!(terminated || outcome.payload.len() <= announced, "payload that nobody announced");
    assert!(outcome.header.len() <= sluice_nvme_tcp::HEADER_MAX);
}
