//! A function at work: held commands, requests and orders, and a daemon that breaks the protocol.

#[path = "languages/exercise.rs"]
mod exercise;

use exercise::{ALARM_NS, Exercise};
use proptest::prelude::*;
use sluice_memory::{Buffers, SharedRegion};
use sluice_uif::abi::{REQUESTS_MAX, Reply, Submission, disposition, kind, operation};
use sluice_uif::{Options, Session};
use std::collections::{HashMap, HashSet};
use zerocopy::FromBytes;

const ARENA_BYTES: usize = 64 << 10;
/// Offset of the function's own memory.
const POOL_AT: usize = ARENA_BYTES - 8 * 4096;

struct Rig {
    session: Session,
    memory: Buffers,
}

impl Rig {
    fn new() -> Self {
        let function = Exercise::open(&Options::new([("byte".into(), "90".into())])).expect("it is right");
        let memory = Buffers::new(SharedRegion::new("arena", ARENA_BYTES).expect("memory"));
        Self { session: Session::new(function, ARENA_BYTES), memory }
    }

    fn exchange(&mut self, entry: &Submission) -> Vec<Reply> {
        self.session.take(entry, &mut self.memory, 7);
        self.session.expire(&mut self.memory, 7 + ALARM_NS);
        self.session.replies(usize::MAX).collect()
    }

    /// Sends a write of a block; [`Exercise`] chooses its case by the block's number.
    fn write(&mut self, tag: u64, block: u64) -> Vec<Reply> {
        let (operation, length) = (operation::WRITE, 512);
        let offset = 512 * block;
        self.exchange(&Submission {
            tag,
            operation,
            offset,
            length,
            data_length: 512,
            ..Submission::default()
        })
    }

    fn done(&mut self, tag: u64, status: u16) -> Vec<Reply> {
        self.exchange(&Submission { tag, kind: kind::DONE, status, ..Submission::default() })
    }

    fn send_order(&mut self, tag: u64, text: &str) -> Vec<(u64, String)> {
        self.memory.write(0, text.as_bytes());
        let data_length = text.len() as u32;
        let said =
            self.exchange(&Submission { tag, kind: kind::CONTROL, data_length, ..Submission::default() });
        let mut words = |length: u64| {
            let bytes = self.memory.bytes(0, length as usize).expect("inside");
            String::from_utf8(bytes.to_vec()).expect("text")
        };
        said.iter().map(|reply| (reply.tag, words(reply.length))).collect()
    }
}

#[test]
fn what_is_held_ends_with_its_request_and_once() {
    let mut rig = Rig::new();
    let asked = rig.write(100, 2);
    assert_eq!((asked.len(), asked[0].disposition, asked[0].layer), (1, disposition::REQUEST, 1));
    assert_eq!((asked[0].data_offset, asked[0].length), (0, 512), "the command's own data");
    assert!(rig.done(asked[0].tag + 1, 0).is_empty(), "there is no such request");
    let said = rig.done(asked[0].tag, 0x280);
    assert_eq!((said.len(), said[0].tag, said[0].status), (1, 100, 0x280));
    assert!(rig.done(asked[0].tag, 0).is_empty(), "it is done");
}

#[test]
fn requests_and_memory_have_an_end_and_come_back() {
    let mut rig = Rig::new();
    for _ in 0..3 {
        // Eight pages.
        let mut tags = Vec::new();
        for tag in 0..8 {
            let asked = rig.write(tag, 3);
            let at = asked[0].data_offset as usize;
            assert!((POOL_AT..ARENA_BYTES).contains(&at), "its own memory");
            tags.push(asked[0].tag);
        }
        assert_eq!(rig.write(8, 3)[0].disposition, disposition::FINISH, "no memory");
        // And as many requests as there may be.
        tags.extend((8..u64::from(REQUESTS_MAX)).map(|tag| rig.write(tag, 2)[0].tag));
        tags.sort_unstable();
        assert_eq!(tags, (0..u64::from(REQUESTS_MAX)).collect::<Vec<u64>>());
        assert_eq!(rig.write(64, 2)[0].disposition, disposition::FINISH, "no room");
        for tag in tags {
            assert_eq!(rig.done(tag, 0).len(), 1);
        }
    }
}

#[test]
fn a_command_may_end_or_return_while_it_is_looked_at() {
    let mut rig = Rig::new();
    let zeroes = Submission { tag: 5, operation: operation::WRITE_ZEROES, ..Submission::default() };
    let said = rig.exchange(&zeroes);
    let finished: Vec<&Reply> = said.iter().filter(|reply| reply.tag == 5).collect();
    assert_eq!((finished.len(), finished[0].disposition), (1, disposition::FINISH));
    let said = rig.exchange(&Submission { tag: 6, operation: operation::FLUSH, ..Submission::default() });
    assert_eq!((said.len(), said[0].tag, said[0].status), (1, 6, 0x280), "what it was resumed with");
    assert_eq!(said[0].cookie, [1, 1], "what was left in it before it was held");
}

#[test]
fn an_order_is_answered_to_whom_gave_it() {
    let mut rig = Rig::new();
    let one = |tag, words: &str| vec![(tag, words.to_owned())];
    assert_eq!(rig.send_order(1, "count"), one(1, "count 0"));
    assert_eq!(rig.send_order(2, "alarm"), one(2, "woken"));
    assert_eq!(rig.send_order(3, "later"), []);
    assert_eq!(rig.send_order(4, "count"), one(4, "it is still at work on the last order"));
    assert_eq!(rig.send_order(5, "metrics"), one(5, "commands_total 0\n"));
    let said = rig.exchange(&Submission { tag: 6, operation: operation::FLUSH, ..Submission::default() });
    assert!(said.iter().any(|reply| reply.tag == 3), "what was to come later");
    assert_eq!(rig.send_order(7, "count"), one(7, "count 1"));
}

#[test]
fn nothing_new_is_asked_after_the_end() {
    let mut rig = Rig::new();
    let asked = rig.write(1, 2);
    rig.exchange(&Submission { kind: kind::STOP, ..Submission::default() });
    assert_eq!(rig.write(2, 2)[0].disposition, disposition::FINISH);
    assert_eq!(rig.done(asked[0].tag, 0)[0].tag, 1, "what was asked before is still answered");
}

#[test]
fn what_does_not_fit_into_a_ring_stays_in_order() {
    let mut rig = Rig::new();
    for tag in 1..20 {
        let zeroes = Submission { tag, operation: operation::WRITE_ZEROES, ..Submission::default() };
        rig.session.take(&zeroes, &mut rig.memory, 0);
    }
    let mut said = Vec::new();
    while rig.session.has_more() {
        let before = said.len();
        said.extend(rig.session.replies(3));
        assert!(said.len() - before <= 3);
    }
    let finished: Vec<u64> = said.iter().map(|reply| reply.tag).filter(|tag| *tag > 0).collect();
    assert_eq!((said.len(), finished), (4 * 19, (1..20).collect()));
}

/// Returns 64 arbitrary bytes, or a nearly valid entry.
fn entries() -> impl Strategy<Value = Submission> {
    let anything = any::<[u8; 64]>().prop_map(|bytes| Submission::read_from_bytes(&bytes).expect("64 bytes"));
    let nearly = (0..8u64, 0..6u8, 0..8u8, 0..40u64, 0..POOL_AT as u32 + 4096, 0..9000u32);
    let nearly = nearly.prop_map(|(tag, operation, kind, block, data_offset, data_length)| Submission {
        tag,
        operation,
        kind,
        stage: operation,
        offset: 512 * block,
        length: data_length.into(),
        data_offset,
        data_length,
        ..Submission::default()
    });
    prop_oneof![1 => anything, 4 => nearly]
}

proptest! {
    /// Sends arbitrary entries: no panic, no two answers to one command, no more requests out than there may
    /// be.
    #[test]
    fn a_daemon_may_say_anything(said in prop::collection::vec(entries(), 1..60)) {
        let mut rig = Rig::new();
        let (mut asked, mut open) = (HashSet::new(), HashMap::<u64, i64>::new());
        for entry in said {
            // The function adds to byte counts; no layer has such an end.
            let entry = Submission { offset: entry.offset >> 1, ..entry };
            let entry = Submission { cookie: [0; 2], ..entry };
            if matches!(entry.kind, kind::COMMAND | kind::RETURNED | kind::CONTROL) {
                *open.entry(entry.tag).or_default() += 1;
            } else if entry.kind == kind::DONE {
                asked.remove(&entry.tag);
            }
            for reply in rig.exchange(&entry) {
                match reply.disposition {
                    disposition::REQUEST => prop_assert!(asked.insert(reply.tag), "a tag that is out"),
                    disposition::READY | disposition::TRANSLATE => {}
                    _ => *open.entry(reply.tag).or_default() -= 1,
                }
            }
            prop_assert!(asked.len() <= usize::from(REQUESTS_MAX));
            prop_assert!(open.values().all(|left| *left >= 0), "answered twice: {:?}", entry);
        }
    }
}
