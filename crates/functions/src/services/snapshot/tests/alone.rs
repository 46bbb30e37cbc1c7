//! The function alone, over a store in memory. The test decides when the store completes the host's flushes.

use super::super::{CHUNK, make};
use crate::host::entry;
use crate::store::layout::DELETIONS;
use sluice_command::{Operation, Request};
use sluice_memory::{Buffers, SharedRegion};
use sluice_nvme::Status;
use sluice_uif::abi::{Reply, Submission, disposition, flag, kind};
use sluice_uif::{Options, Session};
use std::collections::VecDeque;

const ARENA: usize = 4 << 20;
const STORE: u64 = 8 << 20;

/// Tag of an order.
const ORDER: u64 = u64::MAX;

pub(super) struct Rig {
    session: Session,
    memory: Buffers,
    pub(super) store: Vec<u8>,
    replies: VecDeque<Reply>,
    /// Flushes of the host that the store has.
    flushes: VecDeque<Reply>,
    /// Offset of a request of the function's that the store does not complete, and that request.
    holds: Option<u64>,
    held: Option<Reply>,
    finished: Vec<(u64, Status)>,
    answered: Option<Reply>,
    /// Result of the function's start.
    pub(super) ready: Option<Status>,
    pub(super) now_ns: u64,
    /// Bytes of a chunk.
    pub(super) chunk: u64,
    /// Whether the drive is not quiet at an order.
    pub(super) is_busy: bool,
    /// Whether requests of the function that write fail.
    pub(super) fails: bool,
}

impl Rig {
    pub(super) fn new() -> Self {
        let rig = Self::over(vec![0; STORE as usize], &[("size", "1MiB")]);
        assert_eq!(rig.ready, Some(Status::SUCCESS));
        rig
    }

    /// Starts a function over this store.
    pub(super) fn over(store: Vec<u8>, options: &[(&str, &str)]) -> Self {
        let options =
            Options::new(options.iter().map(|(key, words)| ((*key).to_owned(), (*words).to_owned())));
        let function = make(&options).expect("they are good ones");
        let mut rig = Self {
            session: Session::new(function, ARENA),
            memory: Buffers::new(SharedRegion::new("arena", ARENA).expect("memory")),
            store,
            replies: VecDeque::new(),
            flushes: VecDeque::new(),
            holds: None,
            held: None,
            finished: Vec::new(),
            answered: None,
            ready: None,
            now_ns: 0,
            chunk: CHUNK,
            is_busy: false,
            fails: false,
        };
        let below = Submission {
            kind: kind::BELOW,
            offset: STORE,
            length: 512,
            flags: flag::NEW,
            ..Default::default()
        };
        rig.show(&below);
        rig.show(&Submission { kind: kind::START, ..Default::default() });
        rig
    }

    /// Sends the function an entry, and does all of its requests except the flushes of the host.
    fn show(&mut self, entry: &Submission) {
        self.session.take(entry, &mut self.memory, self.now_ns);
        self.replies.extend(self.session.replies(usize::MAX));
        self.work_off();
    }

    fn work_off(&mut self) {
        while let Some(reply) = self.replies.pop_front() {
            self.obey(&reply);
            self.now_ns += 1_000_000;
            self.session.expire(&mut self.memory, self.now_ns);
            self.replies.extend(self.session.replies(usize::MAX));
        }
    }

    fn obey(&mut self, reply: &Reply) {
        match reply.disposition {
            disposition::READY => self.ready = Some(Status(reply.status)),
            disposition::FINISH if reply.tag == ORDER => self.answered = Some(*reply),
            disposition::FINISH => self.finished.push((reply.tag, Status(reply.status))),
            disposition::REQUEST if self.holds.is_some_and(|at| at == reply.offset) => {
                self.held = Some(*reply)
            }
            disposition::REQUEST => self.apply(reply, kind::DONE),
            disposition::FORWARD_AND_RETURN if operation(reply) == Operation::Flush => {
                self.flushes.push_back(*reply);
            }
            disposition::FORWARD_AND_RETURN => self.apply(reply, kind::RETURNED),
            disposition::FORWARD => {
                self.apply(reply, kind::DONE);
                self.finished.push((reply.tag, Status::SUCCESS));
            }
            disposition::TRANSLATE => {}
            other => panic!("disposition {other}"),
        }
    }

    /// Executes a request on the store, and completes it.
    fn apply(&mut self, reply: &Reply, kind: u8) {
        let request = entry::request(reply).expect("it makes sense");
        if self.fails && request.operation != Operation::Read && reply.disposition != disposition::FORWARD {
            return self.answer(reply, kind, Status::WRITE_FAULT);
        }
        if request.has_data() {
            let data = self.memory.bytes(reply.data_offset as usize, request.length as usize);
            let (data, at) = (data.expect("it is there"), request.offset as usize..request.end() as usize);
            match request.operation {
                Operation::Read => data.copy_from_slice(&self.store[at]),
                _ => self.store[at].copy_from_slice(data),
            }
        }
        if reply.disposition != disposition::FORWARD {
            self.answer(reply, kind, Status::SUCCESS);
        }
    }

    fn answer(&mut self, reply: &Reply, kind: u8, status: Status) {
        let about = entry::about(&entry::request(reply).expect("it makes sense"));
        let Reply { tag, stage, cookie, .. } = *reply;
        let stage = if kind == kind::RETURNED { stage } else { 0 };
        let entry = Submission { kind, tag, stage, cookie, status: status.0, ..about };
        self.session.take(&entry, &mut self.memory, self.now_ns);
        self.replies.extend(self.session.replies(usize::MAX));
    }

    /// Sends an order, and returns the answer.
    pub(super) fn order(&mut self, text: &str) -> Result<String, String> {
        const WORDS: usize = 1 << 20;
        self.memory.write(WORDS, text.as_bytes());
        let (data_offset, data_length) = (WORDS as u32, text.len() as u32);
        let flags = if self.is_busy { 0 } else { flag::QUIET };
        let entry = Submission { kind: kind::CONTROL, flags, data_offset, data_length, ..Default::default() };
        self.answered = None;
        self.show(&Submission { tag: ORDER, ..entry });
        let Reply { status, length, .. } = self.answered.expect("it is answered");
        let words = self.memory.bytes(WORDS, length as usize).expect("it is there").to_vec();
        let words = String::from_utf8(words).expect("text");
        if Status(status).is_success() { Ok(words) } else { Err(words) }
    }

    /// Lets time pass.
    pub(super) fn let_pass(&mut self, time_ns: u64) {
        self.now_ns += time_ns;
        self.session.expire(&mut self.memory, self.now_ns);
        self.replies.extend(self.session.replies(usize::MAX));
        self.work_off();
    }

    pub(super) fn flush(&mut self, tag: u64) {
        let flush = Request { operation: Operation::Flush, ..Request::default() };
        self.show(&Submission { tag, ..entry::about(&flush) });
    }

    /// Submits a write, and returns its status.
    pub(super) fn write(&mut self, tag: u64) -> Status {
        self.submit_write(tag, 0);
        self.ended(tag).expect("the store does what it is asked for")
    }

    /// Submits a write to a chunk.
    pub(super) fn submit_write(&mut self, tag: u64, chunk: u64) {
        let (operation, offset) = (Operation::Write, chunk * self.chunk);
        let request = Request { operation, offset, length: 4096, ..Request::default() };
        let entry = Submission { tag, data_offset: 0, data_length: 4096, ..entry::about(&request) };
        self.show(&entry);
    }

    /// Completes the request that the store held.
    fn end_held(&mut self) {
        let reply = self.held.take().expect("it has one");
        self.holds = None;
        self.apply(&reply, kind::DONE);
        self.work_off();
    }

    /// Completes the store's first flush.
    pub(super) fn end_flush(&mut self, status: Status) {
        let reply = self.flushes.pop_front().expect("it has one");
        self.answer(&reply, kind::RETURNED, status);
        self.work_off();
    }

    pub(super) fn ended(&self, tag: u64) -> Option<Status> {
        self.finished.iter().find(|(ended, _)| *ended == tag).map(|(_, status)| *status)
    }
}

fn operation(reply: &Reply) -> Operation {
    entry::request(reply).expect("it makes sense").operation
}

/// Checks a store that loses power during the first Flush: a write came later, and the Flush does not cover
/// it.
#[test]
fn a_flush_that_fails_does_not_cover_writes_that_were_acknowledged_meanwhile() {
    let mut rig = Rig::new();
    assert_eq!(rig.write(1), Status::SUCCESS);
    rig.flush(2);
    assert_eq!(rig.write(3), Status::SUCCESS);
    // Another Flush is in flight when the first fails.
    rig.flush(4);
    rig.end_flush(Status::WRITE_FAULT);
    assert_eq!(rig.ended(2), Some(Status::WRITE_FAULT));
    rig.end_flush(Status::SUCCESS);
    assert_eq!(rig.ended(4), Some(Status::WRITE_FAULT), "the write may be lost");
    for (tag, expected) in [(5, Status::WRITE_FAULT), (6, Status::SUCCESS)] {
        rig.flush(tag);
        rig.end_flush(Status::SUCCESS);
        assert_eq!(rig.ended(tag), Some(expected), "Flush {tag}");
    }
}

/// Holds a checkpoint that follows a full log: nothing failed, so writes in place and flushes do not wait.
#[test]
fn a_checkpoint_of_a_full_log_delays_only_writes_that_need_a_chunk() {
    let mut rig = Rig::new();
    rig.holds = Some(DELETIONS);
    let filled = (0..16).take_while(|chunk| {
        rig.submit_write(100 + chunk, *chunk);
        rig.held.is_none()
    });
    let last = filled.count() as u64;
    assert!((1..15).contains(&last), "the log is full after {last} writes");
    assert_eq!(rig.ended(100 + last), None, "it waits for the checkpoint");
    assert_eq!(rig.write(1), Status::SUCCESS, "in place");
    rig.flush(2);
    rig.end_flush(Status::SUCCESS);
    assert_eq!(rig.ended(2), Some(Status::SUCCESS));
    rig.end_held();
    assert_eq!(rig.ended(100 + last), Some(Status::SUCCESS));
}

/// Waits for the timer of a function that reads a store again.
fn pause(rig: &mut Rig) {
    assert_eq!(rig.ready, None);
    rig.let_pass(20_000_000);
}

/// Checks a store that its drive does not finish writing, and one that it finishes just in time.
#[test]
fn an_old_version_of_a_store_that_stays_inconsistent_fails_after_fifty_more_attempts() {
    let version = [("size", "1MiB"), ("version", "old")];
    let mut rig = Rig::over(vec![0xff; STORE as usize], &version);
    (0..50).for_each(|_| pause(&mut rig));
    assert_eq!(rig.ready, Some(Status::NAMESPACE_NOT_READY));

    let mut source = Rig::new();
    source.order("create old").expect("it can");
    let mut rig = Rig::over(vec![0xff; STORE as usize], &version);
    (0..49).for_each(|_| pause(&mut rig));
    rig.store = source.store;
    pause(&mut rig);
    assert_eq!(rig.ready, Some(Status::SUCCESS));
}
