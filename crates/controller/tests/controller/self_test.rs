//! Device Self-test: its reads, and its log page.

use crate::host::{Host, MS, entry, io};
use crate::model::Model;
use crate::shared::Pair;
use sluice_command::{Characteristics, Command, Lane, Layer, Stack};
use sluice_controller::{COMMANDS_MAX, Namespace, NamespaceConfig};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{LogId, NSID_ALL, Status, SubmissionEntry};
use sluice_router::RouterBuilder;
use std::sync::{Arc, Mutex};

const SHORT: u32 = 1;
const EXTENDED: u32 = 2;
const ABORT: u32 = 0xf;

/// Blocks of which a short test reads all: 64 chunks of 16 KiB.
const BLOCKS: usize = 2048;

fn begin(host: &mut Host, nsid: u32, code: u32) -> Result<u32, Status> {
    host.dw0(SubmissionEntry { nsid, cdw10: code, ..entry(admin::DEVICE_SELF_TEST) })
}

fn log(host: &mut Host) -> Vec<u8> {
    host.log(LogId::SELF_TEST, 564).expect("a page")
}

fn reset(host: &mut Host) {
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    host.enable();
}

/// Advances the time, a millisecond at a time.
fn wait(host: &mut Host, milliseconds: u64) {
    for _ in 0..milliseconds {
        host.now_ns += MS;
        host.run();
    }
}

/// Conformance: Base 5.9, a self-test runs in the background, and its result is in the log (5.16.1.7).
#[test]
fn a_short_test_reads_places_of_every_namespace_and_is_in_the_log() {
    let (small, large) = (Model::new(100), Model::new(BLOCKS * 8));
    let mut host = Host::enabled(vec![small.namespace(1), large.namespace(5)]);
    assert_eq!(log(&mut host)[..5], [0, 0, 0, 0, 0xf], "there was none");
    assert_eq!(begin(&mut host, NSID_ALL, SHORT), Ok(0));
    assert_eq!(begin(&mut host, NSID_ALL, SHORT), Err(Status::SELF_TEST_IN_PROGRESS));
    wait(&mut host, 20);
    let page = log(&mut host);
    assert_eq!(page[0], 1);
    assert!((51..99).contains(&page[1]), "{} percent, one of two is done", page[1]);
    let earlier = page[1];
    wait(&mut host, 20);
    let later = log(&mut host)[1];
    assert!((earlier + 5..99).contains(&later), "{later} percent after {earlier}");
    wait(&mut host, 80);
    let read = |model: &Model| model.take_seen().iter().map(|r| r.offset / 16_384).collect::<Vec<_>>();
    assert_eq!(read(&small), [0, 1, 2, 3], "all of it");
    assert_eq!(read(&large), (0..64).map(|place| place * 8).collect::<Vec<_>>());
    let page = log(&mut host);
    assert_eq!(page[..4], [0; 4]);
    assert_eq!((page[4], page[6], page[32]), (0x10, 1, 0xf), "well, NSID valid, and no other");
    assert_eq!(page[16..20], NSID_ALL.to_le_bytes());
}

/// Conformance: Base 5.16.1.7, a self-test that failed names segment, namespace and LBA.
#[test]
fn what_cannot_be_read_is_named() {
    let model = Model::new(BLOCKS);
    let mut host = Host::enabled(vec![model.namespace(3)]);
    assert_eq!(begin(&mut host, 3, EXTENDED), Ok(0));
    wait(&mut host, 10);
    model.disk().fails_with = Some(Status::UNRECOVERED_READ_ERROR);
    let good = model.take_seen().len() as u64;
    wait(&mut host, 10);
    assert_eq!(model.take_seen().len(), 1, "it ends there");
    let page = log(&mut host);
    assert_eq!(page[4..8], [0x27, 1, 0xf, 0], "extended, failed, in the first segment");
    assert_eq!(page[16..20], 3u32.to_le_bytes());
    assert_eq!(page[20..28], (good * 32).to_le_bytes(), "the first block of the piece");
    assert_eq!(page[28..30], [2, 0x81]);
}

/// Conformance: Base 5.9, a self-test is aborted by command, and a short one by a controller reset.
#[test]
fn a_test_is_aborted_by_command_and_a_short_one_by_a_reset() {
    let model = Model::new(BLOCKS);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(begin(&mut host, 0, ABORT), Ok(0), "there is none");
    model.disk().hold = true;
    for (code, aborted) in [(SHORT, 0x11), (EXTENDED, 0x21)] {
        assert_eq!(begin(&mut host, 1, code), Ok(0));
        wait(&mut host, 3);
        assert_eq!(begin(&mut host, 1, ABORT), Ok(0));
        assert_eq!(log(&mut host)[4], aborted);
    }
    // Reads of tests that are over end late, and have no effect.
    assert_eq!(begin(&mut host, 1, SHORT), Ok(0));
    host.answer(1, &model, 3);
    model.disk().hold = false;
    wait(&mut host, 3);
    assert_eq!(log(&mut host)[0], 1);
    reset(&mut host);
    let page = log(&mut host);
    assert_eq!((page[0], page[4]), (0, 0x12), "aborted by the reset");
    assert_eq!(begin(&mut host, 1, EXTENDED), Ok(0));
    wait(&mut host, 3);
    reset(&mut host);
    assert_eq!(log(&mut host)[0], 2, "it goes on");
    wait(&mut host, 80);
    assert_eq!(log(&mut host)[..5], [0, 0, 0, 0, 0x20]);
}

#[test]
fn a_test_of_the_controller_alone_reads_nothing() {
    let model = Model::new(BLOCKS);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(begin(&mut host, 0, SHORT), Ok(0));
    wait(&mut host, 2);
    let page = log(&mut host);
    assert_eq!((page[4], page[6]), (0x10, 0));
    assert!(model.take_seen().is_empty());
    for nsid in [2, 129, 0xffff_fffe] {
        assert_eq!(begin(&mut host, nsid, SHORT), Err(Status::INVALID_NAMESPACE));
    }
    for code in [0, 3, 4, 0xe] {
        assert_eq!(begin(&mut host, 0, code), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn a_namespace_that_shrinks_meanwhile_is_done_sooner() {
    let model = Model::new(BLOCKS);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(begin(&mut host, 1, EXTENDED), Ok(0));
    wait(&mut host, 40);
    assert!(host.controller.subsystem.resize(1, 16 * 512));
    wait(&mut host, 40);
    let page = log(&mut host);
    assert_eq!((page[0], page[4]), (0, 0x20));
    assert!(model.take_seen().iter().all(|request| request.end() <= BLOCKS as u64 * 512));
}

#[test]
fn a_test_wakes_nobody_while_its_controller_is_disabled() {
    let model = Model::new(BLOCKS);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(begin(&mut host, 1, EXTENDED), Ok(0));
    wait(&mut host, 3);
    assert!(host.controller.deadline_ns().is_some());
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    assert_eq!(host.controller.deadline_ns(), None);
    host.enable();
    wait(&mut host, 100);
    assert_eq!(log(&mut host)[4], 0x20);
}

/// Disk of 8 TiB without contents, which notes the offsets of reads. Reads at an offset fail.
struct Huge {
    reads: Arc<Mutex<Vec<u64>>>,
    fails_at: u64,
}

const TIB: u64 = 1 << 40;

impl Layer for Huge {
    fn name(&self) -> &'static str {
        "huge"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(8 * TIB, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let offset = lane.slot(&command).request.offset;
        self.reads.lock().expect("not poisoned").push(offset);
        let is_bad = offset == self.fails_at;
        lane.finish(command, if is_bad { Status::UNRECOVERED_READ_ERROR } else { Status::SUCCESS });
    }
}

/// Conformance: Base 5.16.1.7, the failing LBA of a self-test has 64 bits.
#[test]
fn blocks_whose_addresses_have_more_than_32_bits_are_tested() {
    let reads = Arc::<Mutex<Vec<u64>>>::default();
    let last = 63 * TIB / 8;
    let huge = Huge { reads: Arc::clone(&reads), fails_at: last };
    let config = NamespaceConfig { nsid: 1, block_size: 512, uuid: [1; 16] };
    let router = RouterBuilder::new(Stack::of(Box::new(huge))).build();
    let mut host = Host::enabled(vec![Namespace::new(config, router).expect("a namespace that is possible")]);
    assert_eq!(begin(&mut host, 1, SHORT), Ok(0));
    wait(&mut host, 80);
    let places: Vec<_> = (0..64).map(|place| place * TIB / 8).collect();
    assert_eq!(*reads.lock().expect("not poisoned"), places);
    let page = log(&mut host);
    assert_eq!(page[4..7], [0x17, 1, 0xf], "short, and failed in the first segment");
    assert_eq!(page[20..28], (last / 512).to_le_bytes());
}

/// Checks that each controller has tests of its own, which do not end with those of another.
#[test]
fn a_second_controller_is_tested() {
    let mut pair = Pair::enabled(&Model::new(BLOCKS));
    assert_eq!(begin(pair.host(1), NSID_ALL, EXTENDED), Ok(0));
    assert_eq!(begin(pair.host(0), 1, SHORT), Ok(0));
    assert_eq!(begin(pair.host(0), 0, ABORT), Ok(0));
    for _ in 0..2 * BLOCKS {
        pair.hosts_wait(2 * MS);
    }
    assert_eq!(log(pair.host(0))[..5], [0, 0, 0, 0, 0x11]);
    assert_eq!(log(pair.host(1))[..5], [0, 0, 0, 0, 0x20]);
}

/// Checks that a test has one read in flight, and none while the drive is held or has no room for it.
#[test]
fn a_test_has_one_read_at_a_time() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    assert_eq!(begin(&mut host, 1, EXTENDED), Ok(0));
    wait(&mut host, 10);
    host.now_ns += 6_000 * MS;
    wait(&mut host, 10);
    assert_eq!(model.take_seen().len(), 1);
    host.controller.subsystem.hold(u64::MAX);
    host.answer(1, &model, 1);
    wait(&mut host, 10);
    assert_eq!(model.take_seen().len(), 0);
    host.controller.subsystem.resume();
    wait(&mut host, 10);
    assert_eq!(model.take_seen().len(), 1);
    // Commands of the host in all slots but that of the test.
    (2..5).for_each(|queue| host.create_pair(queue, 1024));
    let buffer = host.allocate(4096);
    for queue in 2..5 {
        let read = io(opcode::READ, 0, 1, buffer);
        (0..1000).for_each(|_| _ = host.put(queue, read));
        host.ring(queue);
    }
    host.run();
    model.take_seen();
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.controller.in_flight(), COMMANDS_MAX);
    assert!(!host.controller.arm(), "nothing can be done until a command ends");
    host.controller.disarm();
    wait(&mut host, 10);
    assert!(model.take_seen().iter().all(|request| request.length == 512));
    model.disk().hold = false;
    let waiting = model.disk().parked.len();
    host.answer(1, &model, waiting);
    wait(&mut host, 2 * BLOCKS as u64);
    (2..5).for_each(|queue| _ = host.reap_all(queue));
    wait(&mut host, 2 * BLOCKS as u64);
    assert_eq!(log(&mut host)[..5], [0, 0, 0, 0, 0x20]);
}
