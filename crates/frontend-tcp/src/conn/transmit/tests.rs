//! Bytes of responses, and sends that end anywhere.

use super::super::capsule::Transfer;
use super::super::slots::Outcome;
use super::*;
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::crc32c;

/// Slots and memory of a queue, with its commands in slots.
struct Rig {
    slots: Slots,
    memory: QueueMemory,
    transmit: Transmit,
    agreed: Agreed,
}

fn rig(digests: Digests, sq_entries: Option<u32>) -> Rig {
    let memory = QueueMemory::new(1, 400).expect("memory");
    let agreed = Agreed { digests, alignment: 4, sq_entries };
    Rig { slots: Slots::new(400), memory, transmit: Transmit::default(), agreed }
}

impl Rig {
    /// Queues the response to a command with this data.
    fn answer(&mut self, cid: u16, direction: Direction, data: &[u8], outcome: Outcome) -> u16 {
        let entry = SubmissionEntry { cid, ..SubmissionEntry::default() };
        let number = self.slots.take(&entry).expect("a slot");
        let slot = self.slots.slot_mut(number);
        slot.transfer = Transfer { direction, length: data.len() as u32, offset: None };
        (slot.outcome, slot.stage) = (outcome, Stage::Answering);
        let at = self.slots.data(number, &self.memory);
        self.memory.write(at, data);
        self.transmit.push(Item::Answer(number));
        number
    }

    /// Sends everything, in sends of at most `most` bytes. Returns the bytes, and the items that were sent.
    fn send(&mut self, most: usize) -> (Vec<u8>, Vec<Item>) {
        let (mut bytes, mut done) = (Vec::new(), Vec::new());
        loop {
            let mut now = Vec::new();
            for segment in self.transmit.prepare(&self.slots, &self.memory, &self.agreed) {
                let mut part = vec![0; segment.len() as usize];
                segment.read(&mut part);
                now.extend(part);
            }
            if now.is_empty() {
                assert!(self.transmit.is_idle());
                return (bytes, done);
            }
            assert!(!self.transmit.is_idle());
            now.truncate(most);
            bytes.extend(&now);
            self.transmit.sent(now.len(), |item| done.push(item));
        }
    }
}

fn response(cid: u16, head: u16, outcome: Outcome, digests: Digests) -> Vec<u8> {
    let mut entry = CompletionEntry::new(outcome.dw0, head, 0, cid, outcome.status, false);
    entry.dw1 = outcome.dw1;
    encode::capsule_resp(&entry, digests).as_bytes().to_vec()
}

const ALL: [Digests; 4] = [
    Digests::NONE,
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests { header: true, data: true },
];

/// Compares the bytes of an R2T, of responses with data and without, and of failed ones, with the PDUs one by one.
#[test]
fn a_send_has_the_bytes_of_its_items() {
    let failed = Outcome::failed(Status::INVALID_FIELD);
    let valued = Outcome { status: Status::SUCCESS, dw0: 5, dw1: 6 };
    let data: Vec<u8> = (0..600).map(|at| at as u8).collect();
    for (digests, entries) in ALL.into_iter().flat_map(|digests| [(digests, Some(3)), (digests, None)]) {
        for most in [usize::MAX, 1000, 100, 24, 7, 1] {
            let mut rig = rig(digests, entries);
            let entry = SubmissionEntry { cid: 9, ..SubmissionEntry::default() };
            let requested = rig.slots.take(&entry).expect("a slot");
            rig.slots.slot_mut(requested).transfer =
                Transfer { direction: Direction::ToController, length: 4096, offset: None };
            rig.transmit.push(Item::R2t(requested));
            let r2t = R2t { cccid: 9, ttag: requested, offset: 0, length: 4096 };
            let mut expected = encode::r2t(r2t, digests).as_bytes().to_vec();
            let mut items = vec![Item::R2t(requested)];
            let mut head = 0;
            for (cid, direction, data, outcome) in [
                (10, Direction::ToHost, &data[..], Outcome::default()),
                (11, Direction::ToHost, &data[..64], failed),
                (12, Direction::ToHost, &data[..512], valued),
                (13, Direction::ToController, &data[..512], Outcome::default()),
                (14, Direction::None, &[], Outcome { dw0: 1, ..Outcome::default() }),
                (15, Direction::ToHost, &data[..4], Outcome { dw1: 1, ..Outcome::default() }),
            ] {
                items.push(Item::Answer(rig.answer(cid, direction, data, outcome)));
                let sends = direction == Direction::ToHost && outcome.status.is_success();
                let plain = (outcome.dw0, outcome.dw1) == (0, 0);
                let success = sends && plain && entries.is_none();
                if sends {
                    let length = data.len() as u32;
                    let of = Data { cccid: cid, ttag: 0, offset: 0, length, last: true, success };
                    expected.extend(encode::c2h_data(of, digests, 4).as_bytes());
                    expected.extend(data);
                    if digests.data {
                        expected.extend(crc32c(data).to_le_bytes());
                    }
                }
                head = entries.map_or(u16::MAX, |entries| (head + 1) % entries as u16);
                if !success {
                    expected.extend(response(cid, head, outcome, digests));
                }
            }
            let (bytes, done) = rig.send(most);
            assert!(bytes == expected, "{digests:?} {entries:?}, {most} bytes at a time");
            assert_eq!(done, items, "{most} bytes at a time");
            assert_eq!(rig.transmit.head(), entries.map_or(0, |_| u32::from(head)));
        }
    }
}

/// Checks that one send has a limited number of segments, and that the others follow.
#[test]
fn a_send_has_a_limited_number_of_segments() {
    let mut rig = rig(Digests::NONE, Some(400));
    for cid in 0..300 {
        rig.answer(cid, Direction::ToHost, &[cid as u8; 8], Outcome::default());
    }
    let count = rig.transmit.prepare(&rig.slots, &rig.memory, &rig.agreed).len();
    assert!((SEGMENTS_MAX - 2..=SEGMENTS_MAX).contains(&count), "{count}");
    let (bytes, done) = rig.send(usize::MAX);
    assert_eq!(done.len(), 300);
    assert_eq!(bytes.len(), 300 * (24 + 8 + 24));
}

/// Checks the end of a connection: the items being sent, then the last message, and nothing behind it.
#[test]
fn the_last_message_follows_what_is_being_sent() {
    let mut rig = rig(Digests::NONE, None);
    let first = rig.answer(1, Direction::None, &[], Outcome::default());
    rig.transmit.prepare(&rig.slots, &rig.memory, &rig.agreed);
    rig.transmit.sent(10, |item| panic!("{item:?} is not sent"));
    rig.answer(2, Direction::None, &[], Outcome::default());
    rig.memory.write(rig.memory.term_head(), &[7; 16]);
    rig.transmit.end(Some(rig.memory.segment(rig.memory.term_head(), 16)));
    rig.answer(3, Direction::None, &[], Outcome::default());
    let (bytes, done) = rig.send(usize::MAX);
    let expected = [&response(1, u16::MAX, Outcome::default(), Digests::NONE)[10..], &[7; 16]].concat();
    assert!(bytes == expected && done == [Item::Answer(first)]);
    let mut nothing = Transmit::resume_at(7);
    nothing.end(None);
    assert!(nothing.is_idle() && nothing.head() == 7);
}
