//! Memory that only the host's client reaches: its contents, and its failures.

use crate::client::Mood;
use crate::host::{CC_ENABLED, Host, PAGE, entry, io as io_entry, prps};
use crate::management::wanted;
use crate::model::Model;
use sluice_controller::{DMA_TIMEOUT_NS, Pool};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, SglDescriptor, SglType, Status, SubmissionEntry};
use std::collections::BTreeSet;
use std::time::Duration;
use zerocopy::IntoBytes;

const BLOCKS: usize = 8192;
const BLOCK: usize = 512;
const SGL: u8 = 1 << 6;

/// Chunks of memory that are shared.
const MIXES: [fn(u64) -> bool; 3] = [|_| false, |chunk| chunk % 2 == 0, |chunk| chunk % 2 == 1];

/// Returns data pointer and flags of `length` bytes, page by page in any order, or as an SGL.
fn scatter(host: &mut Host, length: usize) -> (Vec<(u64, usize)>, [u64; 2], u8) {
    let offset = host.client.any(1024) as usize * 4;
    let as_sgl = host.client.any(2) == 0;
    let count = (offset + length).div_ceil(PAGE);
    let mut pages: Vec<u64> = (0..count).map(|_| host.allocate(PAGE)).collect();
    for n in (1..count).rev() {
        pages.swap(n, host.client.any(n as u64 + 1) as usize);
    }
    let mut pieces = Vec::new();
    let (mut at, mut left) = (offset, length);
    for &page in &pages {
        let bytes = (PAGE - at).min(left);
        pieces.push((page + at as u64, bytes));
        (at, left) = (0, left - bytes);
    }
    if as_sgl {
        let describe =
            |&(at, bytes): &(u64, usize)| SglDescriptor::new(SglType::DATA_BLOCK, at, bytes as u32);
        let descriptors: Vec<SglDescriptor> = pieces.iter().map(describe).collect();
        let list = host.allocate(descriptors.len() * SglDescriptor::SIZE);
        host.write(list, descriptors.as_bytes());
        let bytes = (descriptors.len() * SglDescriptor::SIZE) as u32;
        return (pieces, SglDescriptor::new(SglType::LAST_SEGMENT, list, bytes).to_dptr(), SGL);
    }
    let second = match pages.len() {
        1 => 0,
        2 => pages[1],
        _ => {
            // The end of a list depends on its begin, since a list does not cross a page.
            let list = host.allocate(2 * PAGE);
            let begin = list + host.client.any(512) * 8;
            let room = ((list + PAGE as u64 - begin) / 8) as usize;
            let rest = &pages[1..];
            if rest.len() <= room {
                host.write(begin, rest.as_bytes());
            } else {
                let further = list + PAGE as u64;
                host.write(begin, [&rest[..room - 1], &[further]].concat().as_bytes());
                host.write(further, rest[room - 1..].as_bytes());
            }
            begin
        }
    };
    (pieces, [pages[0] + offset as u64, second], 0)
}

fn put(host: &Host, pieces: &[(u64, usize)], data: &[u8]) {
    let mut at = 0;
    for &(address, bytes) in pieces {
        host.write(address, &data[at..at + bytes]);
        at += bytes;
    }
}

fn get(host: &Host, pieces: &[(u64, usize)]) -> Vec<u8> {
    pieces.iter().flat_map(|&(address, bytes)| host.read(address, bytes)).collect()
}

#[test]
fn a_random_load_reads_what_was_written_and_not_a_byte_more() {
    for (seed, mix) in (1..=12).zip(MIXES.iter().cycle()) {
        let model = Model::new(BLOCKS);
        let mut host = Host::with_client(&model, seed, mix);
        let mut expected = vec![0; BLOCKS * BLOCK];
        for round in 0..40_u64 {
            host.reuse_memory();
            let blocks = 1 + match host.client.any(4) {
                0 => host.client.any(2048),
                _ => host.client.any(40),
            } as usize;
            let slba = host.client.any((BLOCKS - blocks) as u64) as usize;
            let (pieces, dptr, flags) = scatter(&mut host, blocks * BLOCK);
            let range = slba * BLOCK..(slba + blocks) * BLOCK;
            let data: Vec<u8> =
                (0..blocks * BLOCK).map(|at| (at as u64 * 7 + at as u64 / 251 + round) as u8).collect();
            let of =
                |opcode| SubmissionEntry { dptr, flags, ..io_entry(opcode, slba as u64, blocks as u32, 0) };
            match host.client.any(3) {
                0 => {
                    put(&host, &pieces, &data);
                    assert_eq!(host.io(of(io::WRITE)), Status::SUCCESS, "seed {seed}, round {round}");
                    expected[range].copy_from_slice(&data);
                }
                1 => {
                    assert_eq!(host.io(of(io::READ)), Status::SUCCESS, "seed {seed}, round {round}");
                    assert!(get(&host, &pieces) == expected[range], "seed {seed}, round {round}");
                }
                _ => {
                    put(&host, &pieces, &expected[range]);
                    assert_eq!(host.io(of(io::COMPARE)), Status::SUCCESS, "seed {seed}, round {round}");
                }
            }
        }
        assert!(model.disk().bytes == expected, "seed {seed}");
        assert!(host.client.requests > 0);
        assert_eq!(host.controller.in_flight(), 0);
    }
}

#[test]
fn commands_with_ranges_and_admin_commands_have_their_data_brought() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 3, |_| false);
    model.disk().bytes[..4 * BLOCK].fill(7);
    let list = host.allocate(PAGE);
    let range: [u64; 2] = [2 << 32, 1];
    host.write(list, range.as_bytes());
    let deallocate = SubmissionEntry { nsid: 1, dptr: [list, 0], cdw11: 4, ..entry(io::DATASET_MANAGEMENT) };
    assert_eq!(host.io(deallocate), Status::SUCCESS);
    let is: Vec<u8> = (0..4).map(|block| model.disk().bytes[block * BLOCK]).collect();
    assert_eq!(is, [7, 0, 0, 7]);
    // Copy: SLBA in dword 2 of the range, its blocks, 0's based, in dword 4.
    let mut source = [0_u64; 4];
    (source[1], source[2]) = (3, 0);
    host.write(list, source.as_bytes());
    let copy = SubmissionEntry { nsid: 1, dptr: [list, 0], cdw10: 9, cdw12: 0, ..entry(io::COPY) };
    assert_eq!(host.io(copy), Status::SUCCESS);
    assert_eq!(model.disk().bytes[9 * BLOCK], 7);
    let page = host.identify(Cns::CONTROLLER, 0).expect("identify");
    assert_eq!(&page[4..7], b"S-1");
    let across = host.allocate(2 * PAGE) + 2048;
    let identify = SubmissionEntry {
        dptr: [across, across - 2048 + PAGE as u64],
        cdw10: u32::from(Cns::CONTROLLER.0),
        ..entry(admin::IDENTIFY)
    };
    assert_eq!(host.admin(identify).status(), Status::SUCCESS);
    assert!(host.read(across, PAGE) == page);
}

#[test]
fn more_than_there_is_memory_for_waits_its_turn() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 5, |_| false);
    model.disk().bytes.fill(0x5a);
    host.client.most = 1 << 20;
    let buffer = host.allocate(1 << 20);
    let pages: Vec<u64> = (1..256).map(|page| buffer + page * PAGE as u64).collect();
    let list = host.allocate(PAGE);
    host.write(list, pages.as_bytes());
    let read = SubmissionEntry { dptr: [buffer, list], ..io_entry(io::READ, 0, 2048, 0) };
    for _ in 0..60 {
        host.put(1, read);
    }
    host.ring(1);
    host.run();
    let completions = host.reap_all(1);
    assert_eq!(completions.len(), 60);
    assert!(completions.iter().all(|completion| completion.status() == Status::SUCCESS));
    assert!(host.read(buffer, 1 << 20).iter().all(|&byte| byte == 0x5a));
}

#[test]
fn a_reset_at_any_time_forgets_what_the_client_has_still_to_do() {
    for seed in 1..60 {
        let model = Model::new(BLOCKS);
        let mut host = Host::with_client(&model, seed, MIXES[seed as usize % 2]);
        for n in 0..8 {
            host.reuse_memory();
            let (_, dptr, flags) = scatter(&mut host, 64 << 10);
            let opcode = if n % 2 == 0 { io::READ } else { io::WRITE };
            host.put(1, SubmissionEntry { dptr, flags, ..io_entry(opcode, 0, 128, 0) });
        }
        host.ring(1);
        for _ in 0..host.client.any(30) {
            host.turn();
        }
        host.client.mood = Mood::Silent;
        host.write_register(register::CC, 0);
        host.run();
        // Memory must belong to the host again only after RDY is cleared and the client has finished its
        // accesses.
        let is_ready = u32::from(host.client.is_to_write());
        assert_eq!((host.csts() & csts::RDY, host.controller.in_flight()), (is_ready, 0), "seed {seed}");
        if seed % 2 == 0 {
            host.client.mood = Mood::Willing;
        } else {
            host.now_ns += DMA_TIMEOUT_NS;
        }
        host.run();
        assert_eq!(host.csts(), 0, "seed {seed}");
        // The client answers its last request now at the latest, when no controller waits for it.
        host.client.mood = Mood::Willing;
        host.run();
        host.reuse_memory();
        host.align(64 << 10);
        host.enable_with(CC_ENABLED);
        assert_eq!(&host.identify(Cns::CONTROLLER, 0).expect("identify")[4..7], b"S-1", "seed {seed}");
    }
}

/// Tests that the next command in the slot of a command that a reset took does not use the fetched data of
/// the first.
#[test]
fn what_was_brought_for_a_command_that_a_reset_took_is_not_the_next_ones() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 13, |_| false);
    host.controller.subsystem.on_persist(|_| {});
    host.controller.subsystem.set_pool(Pool { size: 1 << 20, volatile_cache: false });
    let first = host.allocate(3 * PAGE);
    let second = first + PAGE as u64;
    host.write(second, wanted(64).as_bytes());
    host.submit(0, SubmissionEntry { dptr: prps(second, PAGE), ..entry(admin::NAMESPACE_MANAGEMENT) });
    host.run();
    // Its data is here, and no record is acknowledged.
    assert_eq!((host.controller.in_flight(), host.take(0)), (1, None));
    host.write_register(register::CC, 0);
    host.run();
    assert_eq!((host.csts(), host.controller.in_flight()), (0, 0));
    host.enable();
    host.create_pair(1, 64);
    let data: Vec<u8> = (0..3 * PAGE).map(|at| (at / 16 % 255 + 1) as u8).collect();
    host.write(first, &data);
    let list = host.allocate(PAGE);
    host.write(list, [second, second + PAGE as u64].as_bytes());
    let write = SubmissionEntry { dptr: [first, list], ..io_entry(io::WRITE, 0, 24, 0) };
    assert_eq!(host.io(write), Status::SUCCESS);
    assert!(model.disk().bytes[..3 * PAGE] == data);
}

/// Conformance: Base 5.6, a completion queue is deleted when nothing is written to its memory any more.
#[test]
fn a_completion_queue_is_deleted_when_the_client_has_let_go_of_it() {
    for seed in 1..20 {
        let model = Model::new(BLOCKS);
        // The admin queues are shared, and the others are not.
        let mut host = Host::with_client(&model, seed, |chunk| chunk < 1);
        host.align(64 << 10);
        host.create_pair(2, 8);
        model.disk().hold = true;
        for _ in 0..5 {
            host.put(2, io_entry(io::FLUSH, 0, 1, 0));
        }
        host.ring(2);
        host.run();
        host.client.mood = Mood::Silent;
        host.answer(1, &model, 5);
        host.run();
        assert!(host.client.is_to_write() && host.controller.controller.is_delivering());
        assert_eq!(host.delete_sq(2), Status::SUCCESS, "seed {seed}");
        let delete = SubmissionEntry { cdw10: 2, ..entry(admin::DELETE_IO_CQ) };
        host.submit(0, delete);
        host.run();
        assert_eq!(host.take(0), None, "seed {seed}");
        // The queue is being deleted, and cannot be created again before the end.
        assert_eq!(host.create_sq(3, 8, 2), Status::COMPLETION_QUEUE_INVALID);
        assert_eq!(host.create_cq(2, 8), Status::INVALID_QUEUE_IDENTIFIER);
        assert_eq!(host.delete_cq(2), Status::INVALID_QUEUE_IDENTIFIER);
        host.client.mood = Mood::Willing;
        host.run();
        assert!(!host.client.is_to_write() && !host.controller.controller.is_delivering());
        assert_eq!(host.reap(0).map(|it| it.status()), Some(Status::SUCCESS), "seed {seed}");
        host.create_pair(2, 8);
        assert_eq!(host.controller.in_flight(), 0);
    }
}

/// Checks that a command that a reset took writes nothing to the client when its layer ends it.
#[test]
fn a_read_that_ends_after_a_reset_leaves_the_clients_memory_alone() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 21, |_| false);
    model.disk().bytes.fill(0x5a);
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    host.submit(1, io_entry(io::READ, 0, 8, buffer));
    host.run();
    assert_eq!(model.disk().parked.len(), 1);
    host.controller.reset();
    host.answer(1, &model, 1);
    let requests = host.client.requests;
    host.run();
    assert!(host.controller.is_quiescent());
    assert_eq!((host.client.requests, host.read(buffer, PAGE)), (requests, vec![0; PAGE]));
}

/// Checks that a read that fails is reported as failed, and that its data stays here.
#[test]
fn a_read_that_fails_writes_nothing_to_the_client() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 22, |_| false);
    let buffer = host.allocate(PAGE);
    model.disk().fails_with = Some(Status::UNRECOVERED_READ_ERROR);
    host.write(buffer, &[0xee; PAGE]);
    assert_eq!(host.io(io_entry(io::READ, 0, 8, buffer)), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(host.read(buffer, PAGE), vec![0xee; PAGE]);
}

/// Checks that an interrupt of a queue that the client writes follows its entries.
#[test]
fn an_interrupt_follows_the_entries_that_the_client_writes() {
    let model = Model::new(BLOCKS);
    for seed in 1..10 {
        let mut host = Host::with_client(&model, seed, |_| false);
        host.controller.controller.take_vectors(|_| ());
        host.submit(1, io_entry(io::FLUSH, 0, 1, 0));
        let mut signals = 0;
        while host.turn() > 0 {
            let mut vectors = Vec::new();
            host.controller.controller.take_vectors(|vector| vectors.push(vector));
            assert!(vectors.is_empty() || host.take(1).is_some(), "seed {seed}");
            assert!(vectors.iter().all(|vector| *vector == 1));
            signals += vectors.len();
        }
        host.controller.controller.take_vectors(|_| signals += 1);
        assert_eq!(signals, 1, "seed {seed}");
    }
}

#[test]
fn a_client_that_cannot_reach_data_fails_the_command() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 8, |_| false);
    let buffer = host.allocate(PAGE);
    host.client.mood = Mood::Refuses;
    assert_eq!(host.io(io_entry(io::WRITE, 0, 8, buffer)), Status::DATA_TRANSFER_ERROR);
    assert_eq!(host.io(io_entry(io::READ, 0, 8, buffer)), Status::DATA_TRANSFER_ERROR);
    host.client.mood = Mood::Willing;
    assert_eq!(host.io(io_entry(io::READ, 0, 8, buffer)), Status::SUCCESS);
}

#[test]
fn a_client_that_cannot_reach_a_queue_has_a_controller_in_fatal_status() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 9, |_| false);
    host.client.mood = Mood::RefusesAll;
    host.submit(1, io_entry(io::FLUSH, 0, 1, 0));
    host.run();
    assert!(host.csts() & csts::CFS != 0);
}

#[test]
fn a_client_that_takes_too_long_for_a_command_in_pieces_has_a_controller_in_fatal_status() {
    let model = Model::new(BLOCKS);
    for (most, ends) in [(1, false), (4096, true)] {
        let mut host = Host::with_client(&model, 11, |chunk| chunk < 16);
        host.align(1 << 20);
        let buffer = host.allocate(1 << 20);
        host.client.most = most;
        host.submit(1, io_entry(io::WRITE, 0, 8, buffer + (512 << 10)));
        // The client answers each request in time.
        for _ in 0..200 {
            host.now_ns += DMA_TIMEOUT_NS / 64;
            host.turn();
        }
        assert_eq!(host.csts() & csts::CFS == 0, ends, "{most}");
        assert_eq!(host.controller.in_flight(), 0);
        assert_eq!(host.reap(1).is_some(), ends);
    }
}

/// Commands that wait for client DMA block no other work: they find the new state of their namespace when
/// they go on.
#[test]
fn an_erasure_does_not_wait_for_a_client() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 12, |chunk| chunk < 16);
    model.disk().bytes.fill(0x5a);
    host.align(1 << 20);
    let buffer = host.allocate(1 << 20);
    host.client.mood = Mood::Silent;
    host.submit(1, io_entry(io::WRITE, 0, 8, buffer + (512 << 10)));
    host.run();
    let block_erase = SubmissionEntry { cdw10: 2, ..entry(admin::SANITIZE) };
    assert_eq!(host.admin(block_erase).status(), Status::SUCCESS);
    host.run();
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    host.write(buffer + (512 << 10), &[0xa5; 4096]);
    host.client.mood = Mood::Willing;
    host.run();
    assert_eq!(host.reap(1).map(|it| it.status()), Some(Status::SUCCESS), "it came after");
    assert!(model.disk().bytes[..4096].iter().all(|&byte| byte == 0xa5));
}

#[test]
fn a_client_that_does_not_answer_has_a_controller_in_fatal_status() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_client(&model, 10, |chunk| chunk < 16);
    host.controller.subsystem.set_host_timeout(Duration::ZERO);
    host.align(1 << 20);
    let buffer = host.allocate(1 << 20);
    host.client.mood = Mood::Silent;
    host.submit(1, io_entry(io::WRITE, 0, 8, buffer + (512 << 10)));
    host.run();
    assert_eq!((host.csts() & csts::CFS, host.controller.in_flight()), (0, 1));
    host.now_ns = host.controller.deadline_ns().expect("it does not wait for ever");
    assert!(host.now_ns <= 1 + DMA_TIMEOUT_NS);
    host.run();
    assert!(host.csts() & csts::CFS != 0);
    assert_eq!(host.controller.in_flight(), 0);
}

/// Checks that entries that come in several requests are complete before they are fetched.
#[test]
fn entries_that_come_in_parts_are_not_fetched_early() {
    const COUNT: usize = 40;
    for seed in 1..8 {
        let model = Model::new(64);
        let mut host = Host::with_client(&model, seed, |_| false);
        host.client.most = 100;
        let content = |block: usize| [block as u8 + 1; BLOCK];
        let write = |block| {
            let buffer = host.allocate(PAGE);
            host.write(buffer, &content(block));
            host.put(1, io_entry(io::WRITE, block as u64, 1, buffer))
        };
        let sent: BTreeSet<u16> = (0..COUNT).map(write).collect();
        host.ring(1);
        host.run();
        let completions = host.reap_all(1);
        assert!(completions.iter().all(|it| it.status() == Status::SUCCESS), "seed {seed}: {completions:?}");
        assert_eq!(completions.iter().map(|it| it.cid).collect::<BTreeSet<_>>(), sent, "seed {seed}");
        for (block, bytes) in model.disk().bytes.chunks(BLOCK).take(COUNT).enumerate() {
            assert_eq!(bytes, content(block), "seed {seed}, block {block}");
        }
    }
}
