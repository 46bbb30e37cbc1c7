//! Commands whose data only the client reaches, and private memory of commands.

use crate::state::chunk;
use crate::state::client_dma::bounce::{BouncedCommands, Outcome};
use crate::state::client_dma::pool::POOL_BYTES;
use crate::state::client_dma::{ClientDma, DMA_TIMEOUT_NS, DmaRequest, has};
use sluice_command::{Command, Limits, Operation, Origin, Slab, Slot};
use sluice_memory::{MAX_MISSING, MissingRange, Role};
use sluice_nvme::{Status, SubmissionEntry};

/// Time for the transfers of a command.
const LIMIT_NS: u64 = 2 * DMA_TIMEOUT_NS;

const MOST: usize = 1 << 20;

fn slab() -> Slab {
    Slab::new(Limits::new(64, 0)).expect("memory")
}

fn admit(slab: &mut Slab) -> (usize, Command) {
    let command = slab.admit(&SubmissionEntry::default(), Origin::LAYER).expect("room");
    (slab.number(&command), command)
}

fn range(role: Role, address: u64, length: u32) -> MissingRange {
    MissingRange { role, address, length }
}

fn fetch(dma: &mut ClientDma, number: usize, command: Command, wanted: &[MissingRange], now_ns: u64) {
    let ClientDma { bounced, transfers, .. } = dma;
    bounced.fetch(number, command, wanted, transfers, now_ns);
}

fn take(dma: &mut ClientDma, data: &mut Vec<u8>, now_ns: u64) -> Option<DmaRequest> {
    dma.take(MOST, data, now_ns)
}

/// Follows a command from its first missing range to the results at the client.
#[test]
fn data_goes_to_the_command_and_back_to_the_client() {
    let (mut dma, mut slab, mut data) = (ClientDma::default(), slab(), Vec::new());
    let (number, command) = admit(&mut slab);
    let source = range(Role::Source, 0x12345, 100);
    fetch(&mut dma, number, command, &[source], 7);
    assert!(!dma.bounced.has_ready() && !dma.bounced.has_results(number));
    assert_eq!(dma.bounced.deadline_ns(), Some(7 + LIMIT_NS));
    assert!(!dma.bounced.is_overdue(6 + LIMIT_NS) && dma.bounced.is_overdue(7 + LIMIT_NS));
    let request = take(&mut dma, &mut data, 8).expect("a transfer");
    assert_eq!((request.address, request.length, request.writes), (0x12345, 100, false));
    assert_eq!(dma.answer(request.id, Some(&[0x5a; 100])), None);
    assert!(dma.bounced.has_ready());
    assert_eq!((dma.bounced.take_ready(), dma.bounced.has_ready()), (vec![number], false));
    let Some((command, Outcome::Begin(buffers))) = dma.bounced.resume(number) else { panic!("it begins") };
    assert!(format!("{buffers:?}").len() > 20, "there is one");
    assert!(!dma.bounced.is_overdue(u64::MAX), "no transfer is open");
    assert_eq!(dma.bounced.deadline_ns(), None);
    assert!(dma.bounced.resume(number).is_none(), "the command is not here");
    // The second round finds that a destination is missing, too, which is zeroed and not fetched.
    let destination = range(Role::Destination, 0x40000, 4096);
    fetch(&mut dma, number, command, &[destination], 9);
    assert_eq!((dma.bounced.take_ready(), take(&mut dma, &mut data, 9)), (vec![number], None));
    assert!(dma.bounced.has_results(number));
    let Some((command, Outcome::Begin(_))) = dma.bounced.resume(number) else { panic!("it begins") };
    let ClientDma { bounced, transfers, .. } = &mut dma;
    bounced.store(number, command, 0xabcd, transfers, 50);
    assert_eq!(dma.bounced.deadline_ns(), Some(50 + LIMIT_NS));
    let request = take(&mut dma, &mut data, 51).expect("the results");
    assert_eq!((request.address, request.length, request.writes), (0x40000, 4096, true));
    assert!(data == [0; 4096] && take(&mut dma, &mut data, 51).is_none(), "the source does not go back");
    assert_eq!((dma.answer(request.id, Some(&[])), dma.bounced.take_ready()), (None, vec![number]));
    let Some((command, Outcome::Over(status, dw0))) = dma.bounced.resume(number) else { panic!("it ends") };
    assert_eq!((status, dw0), (Status::SUCCESS, 0xabcd));
    dma.bounced.put_back(number, command);
    let Some((command, _)) = dma.bounced.resume(number) else { panic!("it was put back") };
    dma.drop_command(number);
    assert!(!dma.bounced.has_results(number) && dma.bounced.resume(number).is_none());
    slab.release(command);
    // Memory that had data of a command is zeroed before a client may see it.
    let (number, command) = admit(&mut slab);
    fetch(&mut dma, number, command, &[range(Role::Source, 0x1000, 4096)], 60);
    let request = take(&mut dma, &mut data, 60).expect("a transfer");
    assert_eq!(dma.answer(request.id, Some(&[0x77; 4096])), None);
    let (command, _) = dma.bounced.resume(number).expect("it is here");
    dma.drop_command(number);
    fetch(&mut dma, number, command, &[range(Role::Destination, 0x1000, 4096)], 61);
    let (command, _) = dma.bounced.resume(number).expect("it is here");
    let ClientDma { bounced, transfers, .. } = &mut dma;
    bounced.store(number, command, 0, transfers, 62);
    take(&mut dma, &mut data, 62).expect("the results");
    assert!(data == [0; 4096]);
    dma.reset(&mut slab);
}

/// Checks that one failed transfer of several fails the command, after the last answer.
#[test]
fn a_command_fails_with_one_of_its_transfers() {
    for failed in 0..3 {
        let (mut dma, mut slab, mut data) = (ClientDma::default(), slab(), Vec::new());
        let (number, command) = admit(&mut slab);
        let wanted = [0x1000, 0x3000, 0x5000].map(|address| range(Role::List, address, 64));
        fetch(&mut dma, number, command, &wanted, 7);
        for round in 0..3 {
            let request = take(&mut dma, &mut data, 8).expect("a transfer");
            assert!(!dma.bounced.has_ready());
            assert_eq!(dma.answer(request.id, (round != failed).then_some(&[1; 64][..])), None);
        }
        assert_eq!(dma.bounced.take_ready(), [number]);
        let Some((command, Outcome::Over(status, dw0))) = dma.bounced.resume(number) else {
            panic!("it ends")
        };
        assert_eq!((status, dw0), (Status::DATA_TRANSFER_ERROR, 0));
        dma.drop_command(number);
        slab.release(command);
    }
}

/// Returns whether a command with so many ranges, after so many others, fails at once.
fn fails_at_once(first: usize, second: usize) -> bool {
    let (mut dma, mut slab) = (ClientDma::default(), slab());
    let (number, command) = admit(&mut slab);
    fetch(&mut dma, number, command, &vec![range(Role::Destination, 0x1000, 8); first], 7);
    let mut last = dma.bounced.resume(number).expect("it goes on");
    if second > 0 {
        fetch(&mut dma, number, last.0, &vec![range(Role::Destination, 0x1000, 8); second], 7);
        last = dma.bounced.resume(number).expect("it goes on");
    }
    let fails = matches!(last.1, Outcome::Over(Status::DATA_TRANSFER_ERROR, 0));
    dma.drop_command(number);
    slab.release(last.0);
    fails
}

#[test]
fn a_command_has_so_many_buffers_and_no_more() {
    let most = 2 * MAX_MISSING;
    assert!(!fails_at_once(most, 0) && fails_at_once(most + 1, 0));
    assert!(!fails_at_once(most - 5, 5) && fails_at_once(most - 5, 6));
}

/// Checks that a command without memory waits for another one, and fails if there is none.
#[test]
fn commands_wait_for_the_memory_of_others_in_order() {
    let (mut dma, mut slab) = (ClientDma::default(), slab());
    let half = [range(Role::Destination, 0x10000, POOL_BYTES as u32 / 2)];
    let three = [half[0], half[0], half[0]];
    let commands: Vec<_> = (0..4).map(|_| admit(&mut slab)).collect();
    let numbers: Vec<_> = commands.iter().map(|(number, _)| *number).collect();
    for (number, command) in commands {
        fetch(&mut dma, number, command, &half, 7);
    }
    assert_eq!(dma.bounced.take_ready(), numbers[..2], "two have memory");
    let (number, command) = admit(&mut slab);
    fetch(&mut dma, number, command, &three, 7);
    assert_eq!(dma.bounced.take_ready(), [], "it waits, since others hold memory");
    let mut over = Vec::new();
    let end = |dma: &mut ClientDma, number, over: &mut Vec<Command>| {
        over.push(dma.bounced.resume(number).expect("it is here").0);
        dma.drop_command(number);
    };
    end(&mut dma, numbers[0], &mut over);
    assert_eq!(dma.bounced.take_ready(), [numbers[2]], "the first that waits goes on");
    let (command, outcome) = dma.bounced.resume(numbers[2]).expect("it is here");
    assert!(matches!(outcome, Outcome::Begin(_)));
    fetch(&mut dma, numbers[2], command, &half, 8);
    assert_eq!(dma.bounced.take_ready(), [numbers[2]]);
    end(&mut dma, numbers[1], &mut over);
    end(&mut dma, numbers[2], &mut over);
    assert_eq!(dma.bounced.take_ready(), [numbers[3], number]);
    end(&mut dma, numbers[3], &mut over);
    // Now all memory is free, and is not enough.
    let (command, _) = dma.bounced.resume(number).expect("it is here");
    fetch(&mut dma, number, command, &three, 9);
    assert_eq!(dma.bounced.take_ready(), [number]);
    let (command, outcome) = dma.bounced.resume(number).expect("it is here");
    assert!(matches!(outcome, Outcome::Over(Status::DATA_TRANSFER_ERROR, 0)));
    dma.drop_command(number);
    over.push(command);
    over.into_iter().for_each(|command| slab.release(command));
    assert_eq!(slab.in_flight(), 0);
}

/// Checks that a reset releases the commands that are here, and keeps the buffers of others until they are back.
#[test]
fn a_reset_releases_commands_that_are_here() {
    let (mut dma, mut slab) = (ClientDma::default(), slab());
    let half = [range(Role::Destination, 0x10000, POOL_BYTES as u32 / 2)];
    let [one, other] = [admit(&mut slab), admit(&mut slab)];
    let numbers = [one.0, other.0];
    fetch(&mut dma, one.0, one.1, &half, 7);
    fetch(&mut dma, other.0, other.1, &half, 7);
    let (away, _) = dma.bounced.resume(numbers[0]).expect("it is here");
    dma.reset(&mut slab);
    assert_eq!((slab.in_flight(), dma.bounced.has_ready()), (1, false));
    assert!(dma.bounced.has_results(numbers[0]) && !dma.bounced.has_results(numbers[1]));
    let (number, command) = admit(&mut slab);
    fetch(&mut dma, number, command, &[half[0], half[0]], 8);
    assert!(!dma.bounced.has_ready(), "a half is still used");
    dma.drop_command(numbers[0]);
    assert_eq!(dma.bounced.take_ready(), [number]);
    slab.release(away);
    let (command, _) = dma.bounced.resume(number).expect("it is here");
    dma.bounced.put_back(number, command);
    dma.reset(&mut slab);
    assert_eq!(slab.in_flight(), 0);
    let mut bounced = BouncedCommands::default();
    let (number, command) = admit(&mut slab);
    bounced.put_back(number, command);
    bounced.abandon();
    assert!(bounced.resume(number).is_none());
}

/// Checks which commands wait for the client: carried ones that are in no layer.
#[test]
fn a_command_that_waits_for_the_client_has_no_data_yet() {
    for carried in [false, true] {
        for (operation, length, waits) in [
            (Operation::Read, 0, true),
            (Operation::Write, 4096, true),
            (Operation::Flush, 0, true),
            (Operation::Deallocate, 0, true),
            (Operation::Deallocate, 1, false),
        ] {
            let mut slot = Slot::default();
            slot.origin.carried = carried;
            (slot.request.operation, slot.request.length) = (operation, length);
            assert_eq!(has(&slot), carried && waits, "{operation:?}");
        }
    }
    let staging = chunk::staging().expect("memory");
    let mut slot = Slot::default();
    slot.origin.carried = true;
    chunk::read(&mut slot, 0, &staging, 0, 1).expect("room");
    assert!(!has(&slot), "it is in the layers");
}

/// Compares the private memory of several commands: no part belongs to two of them.
#[test]
fn private_memory_of_commands_does_not_overlap() {
    let staging = chunk::staging().expect("memory");
    let numbers = [0, 1, 2, 3, 500];
    let mut slots: Vec<_> = numbers.map(|number| (number, Slot::default())).into();
    for (number, slot) in &mut slots {
        let offset = *number as u64 * 7;
        chunk::read(slot, *number, &staging, offset, 1 << 20).expect("room");
        let request = slot.request;
        assert_eq!((request.operation, request.offset, request.length), (Operation::Read, offset, 16 << 10));
        slot.data.copy_from(0, &vec![*number as u8; 16 << 10]);
    }
    for (number, slot) in &slots {
        let mut data = vec![0xff; 16 << 10];
        assert_eq!(slot.data.copy_to(0, &mut data), 16 << 10);
        assert!(data.iter().all(|byte| *byte == *number as u8), "{number}");
        data.fill(0xff);
        staging.read(number * (16 << 10), &mut data);
        assert!(data.iter().all(|byte| *byte == *number as u8), "{number}");
    }
    let mut slot = Slot::default();
    chunk::read(&mut slot, 5, &staging, 9, 512).expect("room");
    chunk::read(&mut slot, 5, &staging, 9, 513).expect("room");
    assert_eq!((slot.request.length, slot.data.len_bytes()), (513, 513));
}
