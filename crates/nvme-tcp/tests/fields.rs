//! Tests of single fields: initialization byte by byte, lengths of PDUs without data, and states of a decoder.

use sluice_nvme::CompletionEntry;
use sluice_nvme_tcp::{
    Data, Decoder, Digests, Event, Fes, IcReq, IcResp, Kind, Limits, Pdu, Place, R2t, Role, UnfinishedPdu,
    Violation, encode,
};

const LIMITS: Limits = Limits { in_capsule_max: 8192, data_max: 1 << 17, alignment: 4 };

/// Feeds a PDU without payload.
fn feed(decoder: &mut Decoder, mut bytes: &[u8]) -> Result<Option<Event>, Violation> {
    let mut last = None;
    while !bytes.is_empty() {
        let Place::Here(room) = decoder.place() else { panic!("there is no payload") };
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        last = decoder.filled(count)?;
        bytes = &bytes[count..];
    }
    Ok(last)
}

/// Conformance: TCP 3.6.2.1, each field of ICReq and ICResp has its place.
#[test]
fn an_initialization_has_each_field_in_its_place() {
    for (number, digests) in
        [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        let digests = Digests { header: digests.0, data: digests.1 };
        for dwords in [1u8, 2, 31, 32] {
            let alignment = dwords * 4;
            let wire = |kind: u8, limit: u32| {
                let mut bytes = [0; 128];
                (bytes[0], bytes[2], bytes[4]) = (kind, 128, 128);
                (bytes[10], bytes[11]) = (dwords - 1, number as u8);
                bytes[12..16].copy_from_slice(&limit.to_le_bytes());
                bytes
            };
            for (r2t_max, limit) in [(1, 0), (2, 1), (1 << 32, u32::MAX)] {
                let request = IcReq { alignment, digests, r2t_max };
                assert_eq!(encode::ic_req(request).as_bytes(), wire(0, limit));
                let event = feed(&mut Decoder::new(Role::Controller, LIMITS), &wire(0, limit));
                assert_eq!(event, Ok(Some(Event::Pdu(Pdu::IcReq(request)))));
            }
            for h2c_data_max in [4096, 4100, u32::MAX - 3] {
                let response = IcResp { alignment, digests, h2c_data_max };
                assert_eq!(encode::ic_resp(response).as_bytes(), wire(1, h2c_data_max));
                let event = feed(&mut Decoder::new(Role::Host, LIMITS), &wire(1, h2c_data_max));
                assert_eq!(event, Ok(Some(Event::Pdu(Pdu::IcResp(response)))));
            }
        }
    }
    assert_eq!(
        encode::ic_req(IcReq { alignment: 0, digests: Digests::NONE, r2t_max: 0 }).as_bytes()[10..16],
        [0; 6]
    );
}

/// Conformance: TCP 3.6.2.2, MAXH2CDATA is at least 4096 and a multiple of dwords.
#[test]
fn a_response_with_too_small_or_odd_transfers_is_refused() {
    for h2c_data_max in [0, 4, 4092, 4095, 4097, 4098, u32::MAX] {
        let head = encode::ic_resp(IcResp { alignment: 4, digests: Digests::NONE, h2c_data_max });
        let refused = feed(&mut Decoder::new(Role::Host, LIMITS), head.as_bytes());
        assert_eq!(refused, Err(Violation::field(12)), "{h2c_data_max}");
    }
}

/// Conformance: TCP 3.6, PDUs without data have neither PDO nor bytes behind their header.
#[test]
fn what_carries_no_data_has_no_data() {
    let response = encode::capsule_resp(&CompletionEntry::default(), Digests::NONE);
    let r2t = encode::r2t(R2t { cccid: 1, ttag: 2, offset: 0, length: 512 }, Digests::NONE);
    for head in [response, r2t] {
        let attempt = |pdo: u8, more: u8| {
            let mut bytes = head.as_bytes().to_vec();
            (bytes[3], bytes[4]) = (pdo, bytes[4] + more);
            let mut decoder = Decoder::new(Role::Host, LIMITS);
            let first = encode::ic_resp(IcResp { alignment: 4, digests: Digests::NONE, h2c_data_max: 4096 });
            feed(&mut decoder, first.as_bytes()).expect("a valid initialization");
            feed(&mut decoder, &bytes)
        };
        assert!(attempt(0, 0).is_ok());
        assert_eq!(attempt(0, 4), Err(Violation::field(4)));
        assert_eq!(attempt(head.as_bytes().len() as u8, 0), Err(Violation::field(3)));
        assert_eq!(attempt(head.as_bytes().len() as u8, 4), Err(Violation::field(3)));
    }
    let with_data = (0..=255).map(Kind).filter(|kind| kind.carries_data());
    assert!(with_data.eq([2, 3, 4, 6, 7].map(Kind)));
    let with_digests = (0..=9).map(Kind).filter(|kind| kind.has_digests());
    assert!(with_digests.eq([4, 5, 6, 7, 8, 9].map(Kind)));
}

/// Continues in the digest of data, which only a connection with digests of data can be in.
#[test]
fn a_decoder_continues_in_a_digest_that_is_in_use_and_not_complete() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        for length in 0..=5 {
            for payload in [0, 1] {
                let pdu = UnfinishedPdu { step: 3, head: vec![9; length], payload };
                let decoder = Decoder::continued(LIMITS, Digests { header, data }, &pdu);
                assert_eq!(decoder.is_some(), data && length < 4 && payload == 0, "{pdu:?} {data}");
                let Some(mut decoder) = decoder else { continue };
                assert_eq!(decoder.unfinished(), pdu);
                let end = feed(&mut decoder, &vec![9; 4 - length]);
                assert_eq!(end, Ok(Some(Event::End { digest: Some(0x0909_0909) })));
            }
        }
    }
}

#[test]
fn a_violation_names_its_cause_and_its_place() {
    let all = [1, 2, 3, 4, 5, 6, 0x20].map(|fes| Fes(fes).to_string());
    for (number, words) in all.iter().enumerate() {
        assert!(!words.is_empty() && !all[..number].contains(words), "{words}");
    }
    assert!(all[6].contains("0x20"));
    assert_eq!(Violation::field(3).to_string(), format!("{} (at byte 3)", all[0]));
    assert_eq!(Violation::parameter(8).to_string(), format!("{} (at byte 8)", all[5]));
    assert_eq!(Violation::SEQUENCE.to_string(), all[1]);
}

/// Compares the flags of the last PDU of a transfer, and of its success.
#[test]
fn data_has_its_flags() {
    for (last, success) in [(false, false), (true, false), (false, true), (true, true)] {
        let data = Data { cccid: 1, ttag: 0, offset: 0, length: 4, last, success };
        let flags = u8::from(last) << 2 | u8::from(success) << 3;
        assert_eq!(encode::c2h_data(data, Digests::NONE, 4).as_bytes()[1], flags);
        assert_eq!(encode::c2h_data(data, Digests { header: true, data: true }, 4).as_bytes()[1], flags | 3);
    }
}
