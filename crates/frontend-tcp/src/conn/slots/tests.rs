//! Slots, their rooms and their record.

use super::super::memory::POOL;
use super::*;
use sluice_controller::TRANSFER_MAX;

const COUNT: u16 = 8;

/// Returns a slot with a command whose data has this length and is sent apart.
fn take(slots: &mut Slots, cid: u16, direction: Direction, length: u32) -> u16 {
    let entry = SubmissionEntry { cid, flags: 0x80, mptr: 5, cdw10: 7, ..SubmissionEntry::default() };
    let number = slots.take(&entry).expect("a free slot");
    slots.slot_mut(number).transfer = Transfer { direction, length, offset: None };
    number
}

/// Returns a slot whose command has room and is with the controller.
fn submitted(slots: &mut Slots, cid: u16, length: u32) -> u16 {
    let number = take(slots, cid, Direction::ToController, length);
    assert!(slots.find_room(number));
    (slots.slot_mut(number).stage, slots.slot_mut(number).received) = (Stage::Submitted, length);
    number
}

#[test]
fn commands_wait_for_room_in_their_order() {
    let mut slots = Slots::new(COUNT);
    assert!(slots.are_free() && slots.has_free() && slots.get(COUNT).is_none());
    let holders: Vec<u16> = (0..POOL as u32 / TRANSFER_MAX)
        .map(|cid| submitted(&mut slots, 100 + cid as u16, TRANSFER_MAX))
        .collect();
    assert_eq!(holders, [0, 1, 2, 3]);
    assert!(!slots.are_free() && slots.submitted(102) == Some(2) && slots.submitted(2).is_none());
    // A command without data, and one with its data inline, need no room.
    for (direction, length) in [(Direction::None, TRANSFER_MAX), (Direction::ToHost, INLINE as u32)] {
        let number = take(&mut slots, 1, direction, length);
        assert!(slots.find_room(number) && slots.slot(number).stage == Stage::Arriving);
        slots.release(number);
    }
    let large = take(&mut slots, 2, Direction::ToHost, 2 * INLINE as u32);
    let small = take(&mut slots, 3, Direction::ToController, INLINE as u32 + 1);
    assert!(!slots.find_room(large) && slots.next_with_room().is_none());
    slots.release(holders[0]);
    // There is room, but for the one that came first.
    assert!(!slots.find_room(small));
    assert_eq!([large, small].map(|number| slots.slot(number).stage), [Stage::Waiting; 2]);
    assert_eq!(
        (slots.next_with_room(), slots.next_with_room(), slots.next_with_room()),
        (Some(large), Some(small), None)
    );
    let memory = QueueMemory::new(1, COUNT).expect("memory");
    let places = [large, small, holders[1], holders[2], holders[3]]
        .map(|number| slots.data(number, &memory) - memory.pool());
    let mib = 1 << 20;
    assert_eq!(places, [0, 2 * INLINE, mib, 2 * mib, 3 * mib]);
    for number in [large, small, holders[1], holders[2], holders[3]] {
        slots.release(number);
    }
    assert!(slots.are_free());
    (0..COUNT).for_each(|cid| assert!(take(&mut slots, cid, Direction::None, 0) < COUNT));
    assert!(!slots.has_free() && slots.take(&SubmissionEntry::default()).is_none());
}

/// Checks the entry that the controller reads: its number is the slot's, and its data is in the memory of the queue.
#[test]
fn an_entry_for_the_controller_names_the_slot_and_its_memory() {
    let (mut slots, memory) = (Slots::new(COUNT), QueueMemory::new(3, COUNT).expect("memory"));
    let long = submitted(&mut slots, 9, 2 * INLINE as u32);
    let short = take(&mut slots, 10, Direction::ToController, 512);
    slots.slot_mut(short).transfer.offset = Some(1024);
    for (number, place, length) in
        [(long, memory.pool(), 2 * INLINE as u32), (short, memory.inline(short) + 1024, 512)]
    {
        let entry = slots.entry_for_controller(number, &memory);
        let sgl = SglDescriptor::from_dptr(entry.dptr);
        assert_eq!((entry.cid, entry.flags, entry.mptr, entry.cdw10), (number, 0x40, 0, 7));
        assert_eq!(
            (sgl.kind(), sgl.address, sgl.length),
            (SglType::DATA_BLOCK, memory.address(place), length)
        );
    }
}

fn recorded(slots: &Slots) -> Vec<u8> {
    let mut part = Writer::new(0);
    slots.put(&mut part);
    part.finish()
}

#[test]
fn outstanding_commands_come_back_from_a_record() {
    let mut slots = Slots::new(COUNT);
    for cid in 0..3 {
        submitted(&mut slots, cid, TRANSFER_MAX);
    }
    let requested = take(&mut slots, 3, Direction::ToController, 3 * INLINE as u32);
    assert!(slots.find_room(requested));
    (slots.slot_mut(requested).stage, slots.slot_mut(requested).received) = (Stage::Requested, 4096);
    let inline = submitted(&mut slots, 4, 512);
    let waiting = [5, 6].map(|cid| take(&mut slots, cid, Direction::ToHost, TRANSFER_MAX));
    waiting.into_iter().for_each(|number| assert!(!slots.find_room(number)));
    slots.slot_mut(inline).refused = Some(Status::INVALID_FIELD);
    let arriving = take(&mut slots, 7, Direction::ToController, 4 * INLINE as u32);
    assert!(slots.may_be_handed_over());
    let mut read = Slots::read(COUNT, &mut Reader::new(&recorded(&slots), 0)).expect("it is valid");
    assert_eq!(format!("{read:?}"), format!("{slots:?}"));
    read.release(0);
    assert_eq!((read.next_with_room(), read.next_with_room()), (Some(waiting[0]), None));
    for stage in [Stage::Answering, Stage::Authenticating] {
        slots.slot_mut(arriving).stage = stage;
        assert!(!slots.may_be_handed_over(), "{stage:?}");
    }
    slots.release(arriving);
    assert!(slots.may_be_handed_over());
    let none = Slots::new(COUNT);
    let read = Slots::read(COUNT, &mut Reader::new(&recorded(&none), 0)).expect("it is valid");
    assert_eq!(format!("{read:?}"), format!("{none:?}"));
}

/// A command in a record: its slot, its stage, the length of its data, the place of its room and the received bytes.
type Command = (u16, u8, u32, Option<u64>, u32);

fn record(commands: &[Command], waiting: &[u16]) -> Vec<u8> {
    let mut part = Writer::new(0);
    part.list(commands, |part, (number, stage, length, place, received)| {
        part.put(*number);
        part.put(*stage);
        part.raw(SubmissionEntry::default().as_bytes());
        Transfer { direction: Direction::ToController, length: *length, offset: None }.put(part);
        part.option(*place, Writer::put);
        part.put(*received);
        part.option(None::<u16>, Writer::put);
    });
    part.list(waiting, |part, number| part.put(*number));
    part.finish()
}

/// Checks records that no daemon has written: no two commands share a slot or a room, and each has what its stage needs.
#[test]
fn commands_that_cannot_be_are_refused() {
    let (short, long, page) = (INLINE as u32, INLINE as u32 + 1, 4096);
    const ARRIVING: u8 = 1;
    const WAITING: u8 = 2;
    const REQUESTED: u8 = 3;
    const SUBMITTED: u8 = 4;
    let is_good = |commands: &[Command], waiting: &[u16]| {
        let bytes = record(commands, waiting);
        let is_whole = Slots::read(COUNT, &mut Reader::new(&bytes, 0)).is_ok();
        assert!((0..bytes.len()).all(|end| Slots::read(COUNT, &mut Reader::new(&bytes[..end], 0)).is_err()));
        is_whole
    };
    for (commands, waiting, expected) in [
        (&[(0, SUBMITTED, short, None, 0), (1, SUBMITTED, short, None, short)][..], &[][..], true),
        (&[(0, SUBMITTED, short, None, 0), (0, SUBMITTED, short, None, 0)], &[], false),
        (&[(7, ARRIVING, long, None, 0)], &[], true),
        (&[(8, ARRIVING, long, None, 0)], &[], false),
        (&[(0, 0, short, None, 0)], &[], false),
        (&[(0, 5, short, None, 0)], &[], false),
        (&[(0, SUBMITTED, short, None, short + 1)], &[], false),
        (&[(0, SUBMITTED, TRANSFER_MAX, Some(0), TRANSFER_MAX)], &[], true),
        (&[(0, SUBMITTED, TRANSFER_MAX + 1, Some(0), 0)], &[], false),
        (&[(0, SUBMITTED, long, None, 0)], &[], false),
        (&[(0, REQUESTED, long, None, 0)], &[], false),
        (&[(0, REQUESTED, long, Some(page), 0)], &[], true),
        (&[(0, ARRIVING, long, Some(page), 0)], &[], false),
        (&[(0, SUBMITTED, short, Some(page), 0)], &[], false),
        (&[(0, REQUESTED, long, Some(page + 1), 0)], &[], false),
        (&[(0, REQUESTED, long, Some(POOL as u64 - page), 0)], &[], false),
        (&[(0, REQUESTED, long, Some(u64::MAX), 0)], &[], false),
        (&[(0, REQUESTED, long, Some(0), 0), (1, SUBMITTED, long, Some(3 * page), 0)], &[], true),
        (&[(0, REQUESTED, long, Some(0), 0), (1, SUBMITTED, long, Some(2 * page), 0)], &[], false),
        (&[(0, WAITING, long, None, 0), (1, WAITING, long, None, 0)], &[1, 0], true),
        (&[(0, WAITING, long, None, 0), (1, WAITING, long, None, 0)], &[1], false),
        (&[(0, WAITING, long, None, 0), (1, WAITING, long, None, 0)], &[1, 1], false),
        (&[(0, WAITING, long, None, 0), (1, ARRIVING, long, None, 0)], &[0, 1], false),
        (&[(0, WAITING, long, None, 0)], &[0, 0], false),
        (&[(0, WAITING, long, None, 0)], &[8], false),
        (&[(0, WAITING, long, Some(0), 0)], &[0], false),
        (&[(0, WAITING, short, None, 0)], &[0], false),
        (&[(0, SUBMITTED, short, None, 0)], &[0], false),
    ] {
        assert_eq!(is_good(commands, waiting), expected, "{commands:?} {waiting:?}");
    }
}
