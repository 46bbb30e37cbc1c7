//! Death of a process whose records are kept: the next process repeats the commands in flight, and loses none.

use crate::host::{Host, delete, entry, identity, io};
use crate::model::Model;
use proptest::prelude::*;
use sluice_command::handover::{Commands, Queues, Segment};
use sluice_controller::{Attached, Config, ControllerRecord, Remains, SubsystemRecord};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{CompletionEntry, FeatureId, Status, SubmissionEntry};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

const BLOCKS: usize = 64;

/// Last record of a drive that was kept.
struct Kept {
    subsystem: Vec<u8>,
    controller: Vec<u8>,
    results: Vec<CompletionEntry>,
    page: OwnedFd,
    queues: OwnedFd,
    commands: OwnedFd,
}

impl Kept {
    fn of(host: &Host) -> Self {
        let Attached { controller, subsystem } = &host.controller;
        let now_ns = host.now_ns;
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        Self {
            subsystem: subsystem.record_at_work().expect("it can be recorded").encode(now_ns),
            controller: controller.record(subsystem).expect("it can be recorded").encode(now_ns),
            results: controller.results().to_vec(),
            page: copy(controller.doorbells().fd()),
            queues: copy(controller.handover_fd()),
            commands: copy(subsystem.handover_fd()),
        }
    }

    fn queues(&self) -> Box<Queues> {
        Segment::<Queues>::read(self.queues.try_clone().expect("a descriptor")).expect("its layout")
    }

    fn commands(&self) -> Box<Commands> {
        Segment::<Commands>::read(self.commands.try_clone().expect("a descriptor")).expect("its layout")
    }
}

/// Host beside a drive whose record is kept at each change.
struct Rig {
    host: Host,
    model: Model,
    kept: Kept,
}

impl Rig {
    fn new() -> Self {
        let model = Model::new(BLOCKS);
        let mut host = Host::with_io(&model);
        host.controller.controller.keep();
        let kept = Kept::of(&host);
        Self { host, model, kept }
    }

    /// Gives turns until there is no work, and keeps a record when results wait for one.
    fn run(&mut self) {
        let Attached { controller, subsystem } = &mut self.host.controller;
        controller.repeat(subsystem, &self.host.space, self.host.now_ns);
        loop {
            self.host.run();
            if !self.host.controller.controller.has_results() {
                return;
            }
            self.kept = Kept::of(&self.host);
            self.host.controller.controller.release_results();
        }
    }

    /// Replaces the process, which has died with these queues in its segment.
    fn die(&mut self, queues: Box<Queues>) {
        let commands = self.kept.commands();
        self.die_with(queues, commands);
    }

    /// Replaces the process, which has died with these queues and commands in its segments.
    fn die_with(&mut self, queues: Box<Queues>, commands: Box<Commands>) {
        let host = &mut self.host;
        let (now_ns, kept) = (host.now_ns, &self.kept);
        let remains = Remains { queues, commands, results: kept.results.clone() };
        let page = kept.page.try_clone().expect("a descriptor");
        let length = host.controller.controller.doorbells().len();
        let page = SharedRegion::from_fd(page, 0, length).expect("mapped");
        // The I/O of the dead process has ended.
        self.model.disk().parked.clear();
        let namespaces = vec![self.model.namespace(1)];
        let mut next = Attached::new(Config { identity: identity(), namespaces }).expect("memory");
        let Attached { controller, subsystem } = &mut next;
        let record = SubsystemRecord::decode(&kept.subsystem, now_ns).expect("a record");
        subsystem.take_over(record, true, now_ns).expect("the same namespaces");
        let record = ControllerRecord::decode(&kept.controller, now_ns).expect("a record");
        controller.recover(subsystem, record, page, remains, &host.space, now_ns).expect("recovered");
        controller.keep();
        subsystem.resume();
        host.controller = next;
        self.kept = Kept::of(host);
    }
}

#[test]
fn commands_in_flight_are_repeated_once() {
    let mut rig = Rig::new();
    rig.model.disk().hold = true;
    let buffer = rig.host.allocate(4096);
    rig.host.write(buffer, &[7; 512]);
    let cids: Vec<u16> =
        (0..5).map(|block| rig.host.submit(1, io(opcode::WRITE, block, 1, buffer))).collect();
    rig.run();
    assert_eq!(rig.model.take_seen().len(), 5);
    for _ in 0..3 {
        let queues = rig.kept.queues();
        rig.die(queues);
        rig.run();
        assert_eq!(rig.model.take_seen().len(), 5, "each is repeated");
    }
    rig.model.disk().hold = false;
    rig.host.answer(1, &rig.model.clone(), 5);
    rig.run();
    let done: Vec<u16> = rig.host.reap_all(1).iter().map(|completion| completion.cid).collect();
    assert_eq!(done, cids);
    assert!(rig.model.disk().bytes[..5 * 512].iter().all(|byte| *byte == 7));
}

/// Loses the notes of entries that were taken and of completions that were posted, for many turns of the queues.
#[test]
fn what_a_process_did_before_it_noted_it_is_done_once() {
    let mut rig = Rig::new();
    let buffer = rig.host.allocate(4096);
    for round in 0..70_u64 {
        rig.model.disk().hold = true;
        let before = rig.kept.queues();
        let write = |rig: &mut Rig, block| rig.host.submit(1, io(opcode::WRITE, block, 1, buffer));
        let cids: Vec<u16> = (0..=round % 3).map(|block| write(&mut rig, block)).collect();
        rig.host.turn();
        assert_eq!(rig.model.take_seen().len(), cids.len());
        // The entries were taken, and the head was not noted.
        rig.die(before);
        rig.run();
        assert_eq!(rig.model.take_seen().len(), cids.len(), "round {round}: each is repeated once");
        let (queues, commands) = (rig.kept.queues(), rig.kept.commands());
        rig.model.disk().hold = false;
        rig.host.answer(1, &rig.model.clone(), cids.len());
        rig.host.turn();
        // The completions were posted, and neither the tail nor the end of the commands was noted.
        rig.die_with(queues, commands);
        rig.run();
        assert_eq!(rig.model.take_seen().len(), 0, "round {round}: none is repeated");
        let done: Vec<u16> = rig.host.reap_all(1).iter().map(|completion| completion.cid).collect();
        assert_eq!(done, cids, "round {round}");
        assert_eq!(rig.host.controller.in_flight(), 0);
    }
}

#[test]
fn commands_that_a_process_has_not_begun_to_repeat_are_not_lost_with_it() {
    let mut rig = Rig::new();
    rig.model.disk().hold = true;
    let buffer = rig.host.allocate(4096);
    let cid = rig.host.submit(1, io(opcode::READ, 0, 1, buffer));
    rig.run();
    for _ in 0..2 {
        let queues = rig.kept.queues();
        rig.die(queues);
    }
    rig.model.disk().hold = false;
    rig.run();
    assert_eq!(rig.host.reap(1).map(|completion| completion.cid), Some(cid));
}

#[test]
fn a_pair_that_may_have_been_executed_fails() {
    let mut rig = Rig::new();
    rig.model.disk().hold = true;
    let buffer = rig.host.allocate(4096);
    let fused = |opcode, fuse: u8| {
        let entry = io(opcode, 0, 1, buffer);
        SubmissionEntry { flags: entry.flags | fuse, ..entry }
    };
    rig.host.put(1, fused(opcode::COMPARE, 1));
    rig.host.submit(1, fused(opcode::WRITE, 2));
    rig.run();
    let queues = rig.kept.queues();
    rig.die(queues);
    rig.model.disk().hold = false;
    rig.run();
    let statuses: Vec<Status> = rig.host.reap_all(1).iter().map(CompletionEntry::status).collect();
    assert_eq!(statuses, [Status::INTERNAL_ERROR; 2]);
    assert_eq!(rig.host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS, "the queue goes on");
}

/// Checks that an admin command whose effect was not recorded is executed by the next process, and one whose result
/// was recorded is not.
#[test]
fn an_admin_command_is_executed_once() {
    for is_recorded in [false, true] {
        let mut rig = Rig::new();
        let set = SubmissionEntry {
            cdw10: FeatureId::INTERRUPT_COALESCING.0.into(),
            cdw11: 0x0203,
            ..entry(admin::SET_FEATURES)
        };
        let cid = rig.host.submit(0, set);
        rig.host.run();
        assert!(rig.host.take(0).is_none(), "the result waits for a record");
        if is_recorded {
            rig.kept = Kept::of(&rig.host);
        }
        let queues = rig.kept.queues();
        rig.die(queues);
        rig.run();
        let done: Vec<u16> = rig.host.reap_all(0).iter().map(|completion| completion.cid).collect();
        assert_eq!(done, [cid]);
        let get =
            SubmissionEntry { cdw10: FeatureId::INTERRUPT_COALESCING.0.into(), ..entry(admin::GET_FEATURES) };
        let cid = rig.host.submit(0, get);
        rig.run();
        let result = rig.host.reap(0).expect("a result");
        assert_eq!((result.cid, result.dw0), (cid, 0x0203));
    }
}

#[test]
fn requests_for_events_outlive_their_process() {
    let mut rig = Rig::new();
    let cid = rig.host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    rig.run();
    for _ in 0..3 {
        let queues = rig.kept.queues();
        rig.die(queues);
        rig.run();
        assert!(rig.host.take(0).is_none());
    }
    rig.host.controller.controller.ring(8 * 77, 1);
    rig.run();
    assert_eq!(rig.host.reap(0).map(|completion| completion.cid), Some(cid));
}

/// Step of a host, of its disk, or of time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(u8),
    Answer,
    Hold(bool),
    Feature(u8),
    Pair(bool),
    /// A turn, after which the process dies. It may not have noted the heads or tails of the turn.
    Die {
        notes_heads: bool,
        notes_tails: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..BLOCKS as u8).prop_map(Step::Write),
        4 => Just(Step::Answer),
        2 => any::<bool>().prop_map(Step::Hold),
        1 => any::<u8>().prop_map(Step::Feature),
        1 => any::<bool>().prop_map(Step::Pair),
        3 => any::<(bool, bool)>()
            .prop_map(|(notes_heads, notes_tails)| Step::Die { notes_heads, notes_tails }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Checks that each command of any history is completed once, and that the disk has the data of each.
    #[test]
    fn no_command_is_lost_or_completed_twice(steps in prop::collection::vec(step(), 1..80)) {
        let mut rig = Rig::new();
        // Commands in flight, with the block and the byte that they write.
        let mut writes: BTreeMap<u16, (u8, u8)> = BTreeMap::new();
        let (mut written, mut byte, mut admin_cids) = (BTreeMap::new(), 0u8, Vec::new());
        let buffers: Vec<u64> = (0..BLOCKS).map(|_| rig.host.allocate(512)).collect();
        for step in steps.into_iter().chain([Step::Hold(false)]) {
            match step {
                Step::Write(block) if writes.len() < 6 && writes.values().all(|(its, _)| *its != block) => {
                    byte = byte.wrapping_add(1);
                    let buffer = buffers[usize::from(block)];
                    rig.host.write(buffer, &[byte; 512]);
                    let cid = rig.host.submit(1, io(opcode::WRITE, block.into(), 1, buffer));
                    writes.insert(cid, (block, byte));
                }
                Step::Write(_) => {}
                Step::Answer if !rig.model.disk().parked.is_empty() => {
                    rig.host.answer(1, &rig.model.clone(), 1);
                }
                Step::Answer => {}
                Step::Hold(hold) => {
                    rig.model.disk().hold = hold;
                    let parked = rig.model.disk().parked.len();
                    rig.host.answer(1, &rig.model.clone(), if hold { 0 } else { parked });
                }
                Step::Feature(value) => {
                    let cdw10 = FeatureId::INTERRUPT_COALESCING.0.into();
                    let set = SubmissionEntry { cdw10, cdw11: value.into(), ..entry(admin::SET_FEATURES) };
                    admin_cids.push(rig.host.submit(0, set));
                }
                Step::Pair(true) => admin_cids.push(rig.host.submit(0, delete(admin::DELETE_IO_SQ, 2))),
                Step::Pair(false) => admin_cids.push(rig.host.submit(0, entry(admin::IDENTIFY))),
                Step::Die { notes_heads, notes_tails } => {
                    let before = rig.kept.queues();
                    rig.host.turn();
                    let mut queues = rig.kept.queues();
                    // A head is noted before a command behind it is completed.
                    if !notes_heads && rig.model.disk().hold {
                        queues.sqs = before.sqs;
                    }
                    if !notes_tails {
                        queues.cqs = before.cqs;
                    }
                    rig.die(queues);
                }
            }
            if !matches!(step, Step::Die { .. }) {
                rig.run();
            }
            for completion in rig.host.reap_all(1) {
                prop_assert_eq!(completion.status(), Status::SUCCESS);
                let (block, byte) = writes.remove(&completion.cid).expect("in flight, and not completed before");
                written.insert(block, byte);
            }
            for completion in rig.host.reap_all(0) {
                let at = admin_cids.iter().position(|cid| *cid == completion.cid);
                admin_cids.remove(at.expect("in flight, and not completed before"));
            }
        }
        rig.run();
        for completion in rig.host.reap_all(1) {
            let (block, byte) = writes.remove(&completion.cid).expect("in flight, and not completed before");
            written.insert(block, byte);
        }
        rig.host.reap_all(0).iter().for_each(|completion| admin_cids.retain(|cid| *cid != completion.cid));
        prop_assert!(writes.is_empty() && admin_cids.is_empty(), "{writes:?} {admin_cids:?}");
        for (block, byte) in written {
            let at = usize::from(block) * 512;
            prop_assert!(rig.model.disk().bytes[at..at + 512] == [byte; 512], "block {block}");
        }
    }
}
