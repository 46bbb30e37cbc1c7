//! Queues, doorbells and groups of queues.

use crate::state::client_dma::shadow_queue::{ShadowQueue, ShadowQueues};
use crate::state::client_dma::{ClientDma, DMA_REQUESTS_MAX, DMA_TIMEOUT_NS, QueueEvent, TransferKind};
use crate::state::doorbells::{Doorbells, Shadow};
use crate::state::events::Event;
use crate::state::queue::{CompletionQueue, HeadError, Service, SubmissionQueue};
use crate::state::remote_queues::cause::RecallCause;
use crate::state::remote_queues::groups::{RemoteGroup, RemoteGroups};
use crate::state::unmapped_queues::UnmappedQueues;
use sluice_command::handover::QueueRecord;
use sluice_command::{Limits, Slab};
use sluice_memory::ShadowMemory;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::collections::VecDeque;

fn memory(bytes: usize) -> ShadowMemory {
    ShadowMemory::new(bytes).expect("memory")
}

fn completions(size: u32) -> CompletionQueue {
    let pages = memory(size as usize * CompletionEntry::SIZE).pages();
    CompletionQueue::new(3, 0x1000, pages, size, Some(7))
}

/// Posts and releases entries of queues of all small sizes, and compares with counts.
#[test]
fn a_completion_queue_has_room_for_all_but_one_entry() {
    let doorbells = Doorbells::new().expect("memory");
    for size in 2..9_u32 {
        let memory = memory(size as usize * CompletionEntry::SIZE);
        let mut queue = CompletionQueue::new(3, 0x1000, memory.pages(), size, None);
        doorbells.ring(3 * 8 + 4, 0);
        let (mut posted, mut released) = (0_u32, 0_u32);
        for round in 0..60 {
            let room = size - 1 - (posted - released);
            assert_eq!(queue.room(u32::MAX, &doorbells), room);
            queue.reserve(room);
            assert_eq!((queue.room(1, &doorbells), queue.is_promised()), (0, posted == released));
            let count = room.min(1 + round % 3);
            queue.give_back(room - count);
            queue.unreserve(count);
            queue.reserve(count);
            for _ in 0..count {
                assert_eq!(queue.position(), (posted % size) | (u32::from(posted / size % 2 == 0) << 31));
                queue.post(CompletionEntry { dw0: posted, ..CompletionEntry::default() });
                let mut entry = [0; CompletionEntry::SIZE];
                memory.read((posted % size) as usize * CompletionEntry::SIZE, &mut entry);
                assert_eq!(entry[..4], posted.to_le_bytes());
                assert_eq!(entry[14] & 1, u8::from(posted / size % 2 == 0), "the phase of {posted}");
                posted += 1;
            }
            assert_eq!(queue.has_unseen(&doorbells), posted != released);
            // The host releases some of them, and now and then writes a head that cannot be.
            let beyond = posted % size + 1;
            if round % 7 == 0 && posted - released < size - 1 && beyond < size {
                doorbells.ring(3 * 8 + 4, beyond);
                queue.refresh(&doorbells);
                assert_eq!(queue.head_error, HeadError::Seen);
                queue.head_error = HeadError::None;
            }
            doorbells.ring(3 * 8 + 4, size);
            queue.refresh(&doorbells);
            assert_eq!(queue.head_error, HeadError::Seen, "a head outside of the queue");
            queue.head_error = HeadError::Reported;
            queue.refresh(&doorbells);
            assert_eq!((queue.head_error, queue.head), (HeadError::Reported, released % size));
            queue.head_error = HeadError::None;
            released += (posted - released).min(1 + round % 2);
            doorbells.ring(3 * 8 + 4, released % size);
            queue.refresh(&doorbells);
            assert_eq!((queue.head, queue.head_error), (released % size, HeadError::None));
        }
    }
}

#[test]
fn queues_are_continued_from_their_records() {
    let mut queue = completions(8);
    queue.resume_at(5, false);
    let record = QueueRecord { address: 0x1000, size: 8, index: 5, peer: 7, reserved: [0; 6] };
    assert_eq!(queue.record(), record);
    queue.resume_at(6, true);
    queue.vector = None;
    assert_eq!(queue.record(), QueueRecord { index: 6 | 1 << 31, peer: u16::MAX, ..record });
    let pages = memory(8 * SubmissionEntry::SIZE).pages();
    let mut queue = SubmissionQueue::new(4, 3, 9, 0x2000, pages, 8);
    queue.controller = 2;
    let entry = SubmissionEntry { cid: 77, opcode: 2, ..SubmissionEntry::default() };
    let origin = queue.origin(&entry);
    assert_eq!((origin.sq, origin.cid, origin.controller, origin.opcode, origin.epoch), (4, 77, 2, 2, 9));
    assert_eq!(queue.record(), QueueRecord { address: 0x2000, size: 8, index: 0, peer: 3, reserved: [0; 6] });
    assert_eq!(
        [Service::On, Service::Kept, Service::Unmapped, Service::Over].map(Service::takes),
        [true, true, false, false]
    );
}

/// Takes entries of queues of all small sizes, and puts some back.
#[test]
fn entries_are_taken_in_order_around_the_end() {
    for size in 2..7_u32 {
        let memory = memory(size as usize * SubmissionEntry::SIZE);
        for index in 0..size {
            memory.write(index as usize * SubmissionEntry::SIZE, &index.to_le_bytes());
        }
        let mut queue = SubmissionQueue::new(1, 1, 0, 0, memory.pages(), size);
        for number in 0..3 * size {
            assert_eq!(queue.take()[0] as u32, number % size);
            queue.put_back();
            assert_eq!((queue.head, queue.record().index), (number % size, number % size));
            for tail in 0..size {
                assert_eq!(queue.waiting(tail), (tail + size - number % size) % size);
            }
            assert_eq!(queue.take()[0] as u32, number % size);
        }
    }
}

/// Checks each doorbell of each queue: its word, its shadow and its event index are its own.
#[test]
fn each_doorbell_has_its_own_words() {
    let mut doorbells = Doorbells::new().expect("memory");
    for id in 0..=128_u16 {
        doorbells.ring(usize::from(id) * 8, 1000 + u32::from(id));
        doorbells.ring(usize::from(id) * 8 + 4, 2000 + u32::from(id));
    }
    let is_as_rung = |doorbells: &Doorbells| {
        (0..=128_u16).all(|id| {
            (doorbells.sq_tail(id), doorbells.cq_head(id)) == (1000 + u32::from(id), 2000 + u32::from(id))
        })
    };
    assert!(is_as_rung(&doorbells));
    let (values, events) = (memory(4096), memory(4096));
    let shadow =
        Shadow { addresses: [0x5000, 0x6000], doorbells: values.pages(), event_index: events.pages() };
    doorbells.use_shadow(shadow);
    assert!(doorbells.has_shadow() && is_as_rung(&doorbells), "the shadow continues");
    assert!(is_as_rung(&doorbells.share().expect("memory")));
    let word = |memory: &ShadowMemory, at: usize| {
        let mut bytes = [0; 4];
        memory.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    for id in 1..=128_usize {
        for (at, value) in [(id * 8, 1000 + id), (id * 8 + 4, 2000 + id)] {
            assert_eq!((word(&values, at), word(&events, at)), (value as u32, value as u32));
        }
    }
    assert_eq!((word(&values, 0), word(&events, 4)), (0, 0), "the admin queues have none");
    for (at, value) in [(5 * 8, 51_u32), (5 * 8 + 4, 52), (0, 53)] {
        values.write(at, &value.to_le_bytes());
    }
    assert_eq!((doorbells.sq_tail(5), doorbells.cq_head(5), doorbells.sq_tail(0)), (51, 52, 1000));
    doorbells.put_event_index_behind(5, 51);
    doorbells.put_event_index_behind(0, 51);
    doorbells.request_head_ring(6, 61);
    doorbells.request_rings([(7, 71), (0, 1)].into_iter(), [(8, 81)].into_iter());
    let written =
        [(5 * 8, 50), (6 * 8 + 4, 61), (7 * 8, 71), (8 * 8 + 4, 81), (0, 0), (8, 1001), (8 * 8, 1008)];
    written.into_iter().for_each(|(at, value)| assert_eq!(word(&events, at), value, "at {at}"));
    doorbells.clear_sq(5);
    doorbells.clear_cq(6);
    for at in [5 * 8, 6 * 8 + 4] {
        assert_eq!((word(&values, at), word(&events, at)), (0, 0));
    }
    assert_eq!((doorbells.cq_head(5), doorbells.sq_tail(6)), (52, 1006), "others stay");
    assert_eq!(
        doorbells.share().expect("memory").take_shadow().map(|it| it.addresses),
        Some([0x5000, 0x6000])
    );
    doorbells.drop_shadow();
    assert!(doorbells.take_shadow().is_none());
    assert_eq!((doorbells.sq_tail(5), doorbells.cq_head(6)), (0, 0), "the page was cleared, too");
    assert_eq!((doorbells.sq_tail(7), doorbells.cq_head(5)), (1007, 2005));
    doorbells.reset();
    assert!((0..=128).all(|id| (doorbells.sq_tail(id), doorbells.cq_head(id)) == (0, 0)));
}

/// Checks that a host that had the page cannot ring for the next one.
#[test]
fn a_page_that_was_mapped_is_replaced() {
    let mut doorbells = Doorbells::new().expect("memory");
    let share = |doorbells: &Doorbells| doorbells.share().expect("memory");
    let before = share(&doorbells);
    doorbells.make_private().expect("memory");
    doorbells.make_mappable().expect("memory");
    before.ring(8, 5);
    assert_eq!((doorbells.sq_tail(1), doorbells.is_mapped()), (5, true));
    let of_host = share(&doorbells);
    assert!(of_host.is_mapped());
    doorbells.make_mappable().expect("memory");
    of_host.ring(8, 6);
    assert_eq!((doorbells.sq_tail(1), doorbells.is_mapped()), (0, true));
    let of_host = share(&doorbells);
    doorbells.make_private().expect("memory");
    of_host.ring(8, 7);
    assert_eq!((doorbells.sq_tail(1), doorbells.is_mapped()), (0, false));
}

fn groups() -> RemoteGroups {
    let group = |cq, sqs: &[(u16, u32)]| RemoteGroup { cq, sqs: sqs.to_vec(), generation: 0, rung: false };
    let groups = vec![group((1, 16), &[(1, 32), (2, 64)]), group((3, 128), &[(3, 256)])];
    let mut all = RemoteGroups::default();
    all.groups = groups;
    all
}

#[test]
fn a_doorbell_wakes_the_group_of_its_queue() {
    let rings = [
        (1, false, Some(32), [true, false]),
        (2, false, Some(64), [true, false]),
        (3, false, Some(256), [false, true]),
        (1, true, Some(16), [true, false]),
        (3, true, Some(128), [false, true]),
        (2, true, None, [false, false]),
        (4, false, None, [false, false]),
    ];
    for (id, is_cq, size, rung) in rings {
        let mut groups = groups();
        assert_eq!(groups.ring(id, is_cq), size, "{id}");
        assert_eq!((groups.groups[0].rung, groups.groups[1].rung), rung.into());
        assert_eq!((groups.rung, groups.count()), (size.is_some(), 2));
    }
}

#[test]
fn groups_are_recalled_for_the_first_cause() {
    let mut none = RemoteGroups::default();
    assert!(!none.is_split() && !none.recall(RecallCause::Reset) && !none.waits() && !none.delays_reset());
    assert!(!none.take_stale() && !none.defer_doorbell_error(1, Event::INVALID_DOORBELL_VALUE));
    assert_eq!((none.recall_cause, none.doorbell_errors.len()), (None, 0));
    let mut owner = groups();
    assert!(owner.is_split() && !owner.waits());
    assert!(owner.recall(RecallCause::Memory) && owner.waits());
    assert!(owner.delays_reset());
    assert_eq!(owner.recall_cause, Some(RecallCause::Memory));
    assert!(owner.take_stale() && !owner.take_stale());
    assert!(!owner.defer_doorbell_error(1, Event::INVALID_DOORBELL_VALUE));
    assert_eq!(owner.doorbell_errors, []);
    let mut remote = RemoteGroups::default();
    remote.is_remote = true;
    assert!(remote.is_split() && remote.defer_doorbell_error(9, Event::INVALID_DOORBELL_VALUE));
    assert_eq!(remote.doorbell_errors, [(9, Event::INVALID_DOORBELL_VALUE)]);
    assert_eq!(remote.recall_cause, Some(RecallCause::Doorbell));
    assert!(!remote.waits(), "it has no groups of others");
    owner.groups.clear();
    assert!(!owner.waits() && !owner.delays_reset());
}

#[test]
fn completions_of_an_unmapped_queue_wait_for_it() {
    let mut unmapped = UnmappedQueues::default();
    assert_eq!((unmapped.deadline_ns(), unmapped.held()), (None, 0));
    unmapped.begin();
    assert_eq!(unmapped.deadline_ns(), Some(0));
    unmapped.check_ns = Some(5);
    unmapped.begin();
    assert_eq!(unmapped.deadline_ns(), Some(5));
    [1, 2, 1].into_iter().for_each(|cq| unmapped.hold(cq, CompletionEntry::default()));
    assert_eq!(unmapped.held(), 3);
    unmapped.forget(1);
    assert_eq!((unmapped.held(), unmapped.entries[0].0), (1, 2));
}

/// Returns a client with queues of four entries each, whose memory it alone reaches.
fn client() -> (ClientDma, ShadowMemory) {
    let mut dma = ClientDma::default();
    let entries = |id, address, entry: usize| ShadowQueue::new(id, address, entry, 4, memory(4 * entry));
    dma.shadow_queues = ShadowQueues {
        sqs: vec![(entries(1, 0x1000, 64), 0), (entries(2, 0x3000, 64), 0)],
        cqs: vec![(entries(1, 0x5000, 16), Some(9)), (entries(2, 0x6000, 16), None)],
    };
    (dma, memory(64))
}

/// Checks that entries arrive in the order of the queue, also around its end and in pieces.
#[test]
fn entries_of_a_queue_are_fetched_in_pieces_around_its_end() {
    let (mut dma, _) = client();
    let mut data = vec![1; 3];
    let ring = |dma: &mut ClientDma, id, tail| dma.shadow_queues.rung(id, tail, &mut dma.transfers);
    assert!(!ring(&mut dma, 3, 1), "a queue without a shadow");
    assert!(ring(&mut dma, 1, 3) && ring(&mut dma, 1, 1), "the second one waits for the first transfer");
    let mut ids = Vec::new();
    for (address, length) in [(0x1000, 100), (0x1064, 92)] {
        let request = dma.take(100, &mut data, 5).expect("a transfer");
        assert_eq!((request.address, request.length, request.writes), (address, length, false));
        assert!(data.is_empty());
        ids.push((request.id, length));
    }
    assert_eq!((dma.take(100, &mut data, 5), ids[1].0 - ids[0].0), (None, 1));
    assert_eq!(dma.deadline_ns(), Some(5 + DMA_TIMEOUT_NS));
    assert!(!dma.is_overdue(4 + DMA_TIMEOUT_NS) && dma.is_overdue(5 + DMA_TIMEOUT_NS));
    assert_eq!(dma.answer(ids[1].0, Some(&vec![2; ids[1].1])), None, "a piece is not here yet");
    assert_eq!(dma.answer(ids[1].0, Some(&vec![2; ids[1].1])), None, "the second answer to a request");
    let event = dma.answer(ids[0].0, Some(&vec![1; ids[0].1]));
    assert_eq!(event, Some(QueueEvent::Tail { sq: 1, tail: 3 }));
    let mut found = [0; 192];
    dma.shadow_queues.read(TransferKind::Entries(1), 0, &mut found);
    assert_eq!((found[99], found[100]), (1, 2));
    // On to the end of the queue, and then from its start.
    for (address, tail) in [(0x10c0, 0), (0x1000, 1)] {
        let request = dma.take(usize::MAX, &mut data, 6).expect("a transfer");
        assert_eq!((request.address, request.length), (address, 64));
        assert_eq!(dma.answer(request.id, Some(&[0; 64])), Some(QueueEvent::Tail { sq: 1, tail }));
    }
    assert_eq!((dma.take(64, &mut data, 6), dma.deadline_ns(), dma.is_broken), (None, None, false));
    // A failed answer, and one of the wrong length.
    for answer in [None, Some(&[0; 63][..]), Some(&[0; 65][..])] {
        let (mut dma, _) = client();
        dma.shadow_queues.rung(2, 1, &mut dma.transfers);
        let request = dma.take(64, &mut data, 6).expect("a transfer");
        assert_eq!((dma.answer(request.id, answer), dma.is_broken), (None, true));
        dma.shadow_queues.rung(1, 1, &mut dma.transfers);
        let request = dma.take(64, &mut data, 6).expect("a transfer");
        dma.is_broken = false;
        dma.forget_sq(1);
        assert_eq!((dma.answer(request.id, None), dma.is_broken), (None, false), "the queue is gone");
        let has = |kind| dma.shadow_queues.has(kind);
        assert!(!has(TransferKind::Entries(1)) && has(TransferKind::Entries(2)));
        assert!(has(TransferKind::Completions(1)) && !has(TransferKind::Fetch(1)));
    }
}

#[test]
fn a_client_has_sixteen_requests_at_most_and_each_has_bytes() {
    let (mut dma, _) = client();
    let mut data = Vec::new();
    dma.shadow_queues.rung(1, 3, &mut dma.transfers);
    for number in 0..DMA_REQUESTS_MAX {
        let request = dma.take(0, &mut data, 5).expect("a transfer");
        assert_eq!((request.address, request.length), (0x1000 + number as u64, 1));
    }
    assert_eq!(dma.take(1, &mut data, 5), None);
    assert_eq!(dma.answer(1, Some(&[0])), None);
    assert!(dma.take(1, &mut data, 5).is_some());
    dma.forget_sq(1);
    assert_eq!((dma.take(1, &mut data, 5), dma.deadline_ns()), (None, None));
}

#[test]
fn completions_go_to_the_client_before_the_interrupt() {
    let (mut dma, _) = client();
    let queue = |tail| {
        let mut queue = completions(4);
        queue.tail = tail;
        Some(queue)
    };
    let (mut data, mut cqs) = (Vec::new(), vec![None, queue(2), queue(0)]);
    assert!(dma.shadow_queues.are_behind(&cqs) && !dma.shadow_queues.are_posting());
    dma.shadow_queues.write(TransferKind::Completions(1), 0, &[7; 32]);
    dma.shadow_queues.post(&cqs, &mut dma.transfers);
    assert!(!dma.shadow_queues.are_behind(&cqs) && dma.shadow_queues.are_posting());
    let request = dma.take(1 << 20, &mut data, 5).expect("a transfer");
    assert_eq!(
        (request.address, request.length, request.writes, &data[..]),
        (0x5000, 32, true, &[7; 32][..])
    );
    assert!(dma.is_writing(1) && !dma.is_writing(2));
    assert_eq!(dma.answer(request.id, Some(&[])), Some(QueueEvent::Posted { vector: Some(9) }));
    assert!(!dma.shadow_queues.are_posting() && !dma.is_writing(1));
    cqs[2] = queue(1);
    dma.shadow_queues.post(&cqs, &mut dma.transfers);
    let request = dma.take(1 << 20, &mut data, 6).expect("a transfer");
    // A reset waits for the write, however late it is answered, but not for longer than a request may take.
    assert!(!dma.awaits_writes());
    dma.await_writes();
    dma.reset(&mut Slab::new(Limits::new(1, 0)).expect("memory"));
    assert!(dma.awaits_writes() && !dma.is_writing(2));
    assert_eq!(dma.deadline_ns(), Some(6 + DMA_TIMEOUT_NS));
    assert!(!dma.is_overdue(5 + DMA_TIMEOUT_NS) && dma.awaits_writes());
    assert_eq!((dma.answer(request.id, Some(&[])), dma.awaits_writes()), (None, false));
    // Two pieces of one transfer.
    let (mut pieces, _) = client();
    pieces.shadow_queues.post(&[None, queue(2), None], &mut pieces.transfers);
    let [first, second] = [20, 20].map(|most| pieces.take(most, &mut data, 5).expect("a piece"));
    assert_eq!(
        [(first.address, first.length), (second.address, second.length)],
        [(0x5000, 20), (0x5014, 12)]
    );
    assert_eq!(pieces.answer(second.id, Some(&[])), None);
    assert_eq!(pieces.answer(first.id, Some(&[])), Some(QueueEvent::Posted { vector: Some(9) }));
    for ends in [false, true] {
        let (mut dma, _) = client();
        dma.shadow_queues.post(&cqs, &mut dma.transfers);
        dma.take(1, &mut data, 6).expect("a transfer");
        dma.await_writes();
        match ends {
            true => dma.drop_writes(),
            false => {
                dma.reset(&mut Slab::new(Limits::new(1, 0)).expect("memory"));
                assert!(!dma.is_overdue(6 + DMA_TIMEOUT_NS), "no request is left");
            }
        }
        assert!(!dma.awaits_writes());
    }
    let mut transfers = VecDeque::new();
    dma.shadow_queues.post(&cqs, &mut transfers);
    assert!(transfers.is_empty(), "a reset has no queues");
    let (mut dma, _) = client();
    dma.shadow_queues.post(&cqs, &mut dma.transfers);
    dma.forget_cq(1);
    let has = |id| dma.shadow_queues.has(TransferKind::Completions(id));
    assert!(!has(1) && has(2));
    let request = dma.take(1 << 20, &mut data, 6).expect("a transfer");
    assert_eq!((request.address, dma.take(1, &mut data, 6)), (0x6000, None));
    dma.forget_cq(2);
    assert!(dma.is_writing(2), "the client may still write there");
    assert!(![1, 2].iter().any(|id| dma.shadow_queues.has(TransferKind::Completions(*id))));
    assert_eq!((dma.answer(request.id, None), dma.is_broken), (None, false));
}
