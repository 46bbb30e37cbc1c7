//! Tests of encoder and decoder: PDUs survive any division of the stream, and invalid PDUs are violations.

use proptest::prelude::*;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use sluice_nvme_tcp::{
    Data, Decoder, Digests, Event, Fes, IcReq, IcResp, Limits, Pdu, Place, R2t, Role, UnfinishedPdu,
    Violation, crc32c, encode,
};

const LIMITS: Limits = Limits { in_capsule_max: 8192, data_max: 1 << 17, alignment: 4 };

/// A PDU of either direction, with its payload.
#[derive(Clone, Debug)]
enum Sent {
    Command(SubmissionEntry, Vec<u8>),
    H2cData(Data, Vec<u8>),
    Response(CompletionEntry),
    C2hData(Data, Vec<u8>),
    R2t(R2t),
}

impl Sent {
    fn bytes(&self, digests: Digests, alignment: u8) -> Vec<u8> {
        let (head, payload) = match self {
            Sent::Command(entry, payload) => {
                (encode::capsule_cmd(entry, digests, alignment, payload.len() as u32), payload.as_slice())
            }
            Sent::H2cData(data, payload) => (encode::h2c_data(*data, digests, alignment), payload.as_slice()),
            Sent::C2hData(data, payload) => (encode::c2h_data(*data, digests, alignment), payload.as_slice()),
            Sent::Response(entry) => (encode::capsule_resp(entry, digests), &[][..]),
            Sent::R2t(r2t) => (encode::r2t(*r2t, digests), &[][..]),
        };
        let mut bytes = [head.as_bytes(), payload].concat();
        if digests.data && !payload.is_empty() {
            bytes.extend(crc32c(payload).to_le_bytes());
        }
        bytes
    }

    fn expected(&self) -> (Pdu, &[u8]) {
        match self {
            Sent::Command(entry, payload) => (Pdu::Command(*entry, payload.len() as u32), payload),
            Sent::H2cData(data, payload) | Sent::C2hData(data, payload) => (Pdu::Data(*data), payload),
            Sent::Response(entry) => (Pdu::Response(*entry), &[]),
            Sent::R2t(r2t) => (Pdu::R2t(*r2t), &[]),
        }
    }
}

fn payload(least: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), least..40),
        (least..8192).prop_map(|length| vec![0x5a; length])
    ]
}

fn data(to_host: bool) -> impl Strategy<Value = (Data, Vec<u8>)> {
    (any::<(u16, u16, u32, bool, bool)>(), payload(1)).prop_map(move |(fields, payload)| {
        let (cccid, ttag, offset, last, success) = fields;
        let length = payload.len() as u32;
        let data = Data {
            cccid,
            ttag: if to_host { 0 } else { ttag },
            offset,
            length,
            last,
            success: success && to_host,
        };
        (data, payload)
    })
}

fn to_controller() -> impl Strategy<Value = Sent> {
    let entry = (any::<u8>(), any::<u16>(), any::<[u64; 2]>())
        .prop_map(|(opcode, cid, dptr)| SubmissionEntry { opcode, cid, dptr, ..SubmissionEntry::default() });
    prop_oneof![
        (entry, payload(0)).prop_map(|(entry, payload)| Sent::Command(entry, payload)),
        data(false).prop_map(|(data, payload)| Sent::H2cData(data, payload)),
    ]
}

fn to_host() -> impl Strategy<Value = Sent> {
    prop_oneof![
        any::<(u32, u32, u16, u16)>().prop_map(|(dw0, dw1, cid, status_phase)| {
            Sent::Response(CompletionEntry { dw0, dw1, cid, status_phase, ..CompletionEntry::default() })
        }),
        data(true).prop_map(|(data, payload)| Sent::C2hData(data, payload)),
        any::<(u16, u16, u32, u32)>().prop_map(|(cccid, ttag, offset, length)| Sent::R2t(R2t {
            cccid,
            ttag,
            offset,
            length
        })),
    ]
}

fn digests() -> impl Strategy<Value = Digests> {
    any::<(bool, bool)>().prop_map(|(header, data)| Digests { header, data })
}

/// Decoded PDUs with their payload, and whether its digest was right.
type Received = Vec<(Pdu, Vec<u8>, bool)>;

/// Feeds bytes in parts of these lengths, repeated.
fn feed(decoder: &mut Decoder, bytes: &[u8], cuts: &[usize]) -> Result<Received, Violation> {
    let mut received = Vec::new();
    feed_into(decoder, bytes, cuts, &mut received).map(|()| received)
}

fn feed_into(
    decoder: &mut Decoder,
    mut bytes: &[u8],
    cuts: &[usize],
    received: &mut Received,
) -> Result<(), Violation> {
    for cut in cuts.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let count;
        let event = match decoder.place() {
            Place::Here(room) => {
                count = room.len().min(bytes.len()).min(*cut);
                room[..count].copy_from_slice(&bytes[..count]);
                decoder.filled(count)?
            }
            Place::Payload(left) => {
                count = bytes.len().min(left as usize).min(*cut);
                received.last_mut().expect("a header came first").1.extend(&bytes[..count]);
                decoder.filled(count)?
            }
        };
        bytes = &bytes[count..];
        match event {
            Some(Event::Pdu(pdu)) => received.push((pdu, Vec::new(), true)),
            Some(Event::End { digest }) => {
                let (_, payload, is_right) = received.last_mut().expect("a header came first");
                *is_right = digest.is_none_or(|digest| digest == crc32c(payload));
            }
            None => {}
        }
    }
    Ok(())
}

/// Creates an initialized decoder with these digests.
fn ready(role: Role, digests: Digests) -> Decoder {
    let mut decoder = Decoder::new(role, LIMITS);
    let head = match role {
        Role::Controller => encode::ic_req(IcReq { alignment: 4, digests, r2t_max: 1 }),
        Role::Host => encode::ic_resp(IcResp { alignment: 4, digests, h2c_data_max: 1 << 17 }),
    };
    feed(&mut decoder, head.as_bytes(), &[usize::MAX]).expect("a valid initialization");
    decoder.set_digests(digests);
    decoder
}

fn check_stream(
    role: Role,
    sent: &[Sent],
    digests: Digests,
    alignment: u8,
    cuts: &[usize],
) -> Result<(), TestCaseError> {
    let bytes: Vec<u8> = sent.iter().flat_map(|pdu| pdu.bytes(digests, alignment)).collect();
    let received = feed(&mut ready(role, digests), &bytes, cuts).expect("all of it is valid");
    prop_assert_eq!(received.len(), sent.len());
    for ((pdu, payload, digest_is_right), sent) in received.iter().zip(sent) {
        prop_assert_eq!((pdu, payload.as_slice()), (&sent.expected().0, sent.expected().1));
        prop_assert!(digest_is_right);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_controller_gets_what_a_host_sent(
        sent in proptest::collection::vec(to_controller(), 1..8),
        digests in digests(),
        alignment in (1u8..=32).prop_map(|dwords| dwords * 4),
        cuts in proptest::collection::vec(1usize..300, 1..10),
    ) {
        check_stream(Role::Controller, &sent, digests, alignment, &cuts)?;
    }

    /// Replaces the decoder by another after every few bytes.
    #[test]
    fn another_decoder_continues_between_any_two_bytes(
        sent in proptest::collection::vec(to_controller(), 1..5),
        digests in digests(),
        cut in 1usize..300,
    ) {
        let bytes: Vec<u8> = sent.iter().flat_map(|pdu| pdu.bytes(digests, 4)).collect();
        let (mut decoder, mut received): (_, Received) = (ready(Role::Controller, digests), Vec::new());
        for bytes in bytes.chunks(cut) {
            let unfinished = decoder.unfinished();
            decoder = Decoder::continued(LIMITS, digests, &unfinished).expect("a state of a decoder");
            prop_assert_eq!(decoder.unfinished(), unfinished);
            feed_into(&mut decoder, bytes, &[usize::MAX], &mut received).expect("all of it is valid");
        }
        prop_assert_eq!(received.len(), sent.len());
        for ((pdu, payload, is_right), sent) in received.iter().zip(&sent) {
            prop_assert_eq!((pdu, payload.as_slice()), (&sent.expected().0, sent.expected().1));
            prop_assert!(is_right);
        }
    }

    /// Decodes any state. It is refused, or has room for further bytes.
    #[test]
    fn any_state_is_refused_or_goes_on(
        step in 0u8..5,
        head in proptest::collection::vec(any::<u8>(), 0..300),
        payload in prop_oneof![Just(0), any::<u32>(), 1u32..9000],
        digests in digests(),
    ) {
        let pdu = UnfinishedPdu { step, head, payload };
        if let Some(mut decoder) = Decoder::continued(LIMITS, digests, &pdu) {
            prop_assert_eq!(decoder.unfinished(), pdu);
            let has_room = match decoder.place() {
                Place::Here(room) => !room.is_empty(),
                Place::Payload(left) => left > 0,
            };
            prop_assert!(has_room);
        }
    }

    #[test]
    fn a_host_gets_what_a_controller_sent(
        sent in proptest::collection::vec(to_host(), 1..8),
        digests in digests(),
        alignment in (1u8..=32).prop_map(|dwords| dwords * 4),
        cuts in proptest::collection::vec(1usize..300, 1..10),
    ) {
        check_stream(Role::Host, &sent, digests, alignment, &cuts)?;
    }

    /// Flips one bit, which digests detect in header and data.
    #[test]
    fn a_flipped_bit_is_found(sent in to_controller(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let digests = Digests { header: true, data: true };
        let mut bytes = sent.bytes(digests, 4);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let outcome = feed(&mut ready(Role::Controller, digests), &bytes, &[usize::MAX]);
        // A longer PLEN leaves the PDU incomplete, which is not taken for anything either.
        let complete = outcome.map(|received| received.iter().all(|(_, payload, is_right)| {
            *is_right && payload.len() == sent.expected().1.len()
        }) && received.len() == 1);
        prop_assert_ne!(complete, Ok(true));
    }

    /// Decodes random bytes: payload is never longer than agreed, and there is always a place for the next
    /// byte.
    #[test]
    fn anything_at_all_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600), digests in digests()) {
        for role in [Role::Controller, Role::Host] {
            let mut decoder = ready(role, digests);
            for byte in &bytes {
                let outcome = match decoder.place() {
                    Place::Here(room) => {
                        prop_assert!(!room.is_empty());
                        room[0] = *byte;
                        decoder.filled(1)
                    }
                    Place::Payload(left) => {
                        prop_assert!((1..=LIMITS.data_max).contains(&left));
                        decoder.filled(1)
                    }
                };
                if outcome.is_err() {
                    prop_assert!(decoder.header().len() <= 128);
                    break;
                }
            }
        }
    }
}

/// Decodes a host's capsule in which one field of the common header is changed.
fn wrong(at: usize, value: u8, digests: Digests) -> Result<Received, Violation> {
    let mut bytes = Sent::Command(SubmissionEntry::default(), vec![1; 512]).bytes(digests, 4);
    bytes[at] = value;
    feed(&mut ready(Role::Controller, digests), &bytes, &[usize::MAX])
}

/// Conformance: TCP 3.6, each field of each PDU's header is checked.
#[test]
fn each_field_of_a_header_is_checked() {
    let none = Digests::NONE;
    let field = |offset| Violation { fes: Fes::INVALID_HEADER_FIELD, fei: offset };
    assert!(wrong(0, 4, none).is_ok());
    for kind in [1, 3, 5, 7, 8, 9, 10, 255] {
        assert_eq!(wrong(0, kind, none), Err(field(0)), "type {kind}");
    }
    assert_eq!(wrong(0, 0, none), Err(Violation::SEQUENCE));
    for flags in [1, 2, 3] {
        assert_eq!(wrong(1, flags, none), Err(field(1)), "flags {flags}");
    }
    assert_eq!(wrong(2, 24, none), Err(field(2)));
    for pdo in [68, 74, 255] {
        assert_eq!(wrong(3, pdo, none), Err(field(3)), "PDO {pdo}");
    }
    assert_eq!(wrong(5, 0, none), Err(field(4)), "a PLEN before the data");
    assert_eq!(wrong(6, 1, none).map_err(|violation| violation.fes), Err(Fes::DATA_LIMIT_EXCEEDED));
    let header = Digests { header: true, data: false };
    assert_eq!(wrong(1, 0, header), Err(field(1)));
    assert_eq!(wrong(20, 1, header).map_err(|violation| violation.fes), Err(Fes::HEADER_DIGEST));
    let both = Digests { header: true, data: true };
    assert_eq!(wrong(1, 1, both), Err(field(1)));
}

/// Conformance: TCP 3.1, ICReq comes first, and once.
#[test]
fn initialization_comes_first_and_once() {
    let mut decoder = Decoder::new(Role::Controller, LIMITS);
    let command = Sent::Command(SubmissionEntry::default(), Vec::new()).bytes(Digests::NONE, 4);
    assert_eq!(feed(&mut decoder, &command, &[usize::MAX]), Err(Violation::SEQUENCE));
    let again = encode::ic_req(IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 });
    let mut decoder = ready(Role::Controller, Digests::NONE);
    assert_eq!(feed(&mut decoder, again.as_bytes(), &[usize::MAX]), Err(Violation::SEQUENCE));
}

/// Conformance: TCP 3.1, an ICReq with parameters that cannot be is refused.
#[test]
fn parameters_of_an_initialization_are_checked() {
    let attempt = |at: usize, value: u8| {
        let request = IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 };
        let mut bytes = encode::ic_req(request).as_bytes().to_vec();
        bytes[at] = value;
        feed(&mut Decoder::new(Role::Controller, LIMITS), &bytes, &[usize::MAX])
    };
    assert_eq!(attempt(8, 1), Err(Violation { fes: Fes::UNSUPPORTED_PARAMETER, fei: 8 }));
    assert_eq!(attempt(10, 32), Err(Violation { fes: Fes::INVALID_HEADER_FIELD, fei: 10 }));
    let received = attempt(10, 31).expect("the largest alignment");
    assert!(matches!(received[0].0, Pdu::IcReq(request) if request.alignment == 128));
    let received = attempt(11, 3).expect("both digests");
    let both = Digests { header: true, data: true };
    assert!(matches!(received[0].0, Pdu::IcReq(request) if request.digests == both));
}

#[test]
fn a_termination_request_carries_what_was_wrong() {
    let violation = Violation { fes: Fes::INVALID_HEADER_FIELD, fei: 3 };
    let offender = [7; 72];
    let head = encode::c2h_term(violation, &offender);
    assert_eq!(head.as_bytes().len(), 24 + 72);
    assert_eq!(&head.as_bytes()[24..], offender);
    let mut decoder = ready(Role::Host, Digests { header: true, data: true });
    let received = feed(&mut decoder, head.as_bytes(), &[usize::MAX]).expect("it is valid");
    assert_eq!(received[0].0, Pdu::Terminated(violation));
}

/// Checks the header that a termination request carries.
#[test]
fn the_header_of_a_refused_initialization_is_kept() {
    let request = IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 };
    let mut bytes = encode::ic_req(request).as_bytes().to_vec();
    bytes[8] = 1;
    let mut decoder = Decoder::new(Role::Controller, LIMITS);
    assert!(feed(&mut decoder, &bytes, &[usize::MAX]).is_err());
    assert_eq!(decoder.header(), bytes);
}

/// Checks the last length that is accepted, and the first that is not.
#[test]
fn the_largest_payload_is_accepted() {
    let check = |role, largest: u32, sent: &dyn Fn(u32, Vec<u8>) -> Sent| {
        for (length, is_accepted) in [(largest, true), (largest + 1, false)] {
            let bytes = sent(length, vec![1; length as usize]).bytes(Digests::NONE, 4);
            let received = feed(&mut ready(role, Digests::NONE), &bytes, &[usize::MAX]);
            let length = received.map(|pdus| pdus[0].1.len() as u32).map_err(|violation| violation.fes);
            let expected = if is_accepted { Ok(largest) } else { Err(Fes::DATA_LIMIT_EXCEEDED) };
            assert_eq!(length, expected, "{role:?}");
        }
    };
    let data = |length| Data { cccid: 1, ttag: 0, offset: 0, length, last: true, success: false };
    let in_capsule = |_, payload| Sent::Command(SubmissionEntry::default(), payload);
    check(Role::Controller, LIMITS.in_capsule_max, &in_capsule);
    check(Role::Controller, LIMITS.data_max, &|length, payload| Sent::H2cData(data(length), payload));
    check(Role::Host, LIMITS.data_max, &|length, payload| Sent::C2hData(data(length), payload));
}
