//! Slots, tickets and addresses, as a layer and a controller meet them.

use sluice_command::handover::{Commands, Queues, Segment};
use sluice_command::record::{Reader, RecordError};
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Frame, Insertion, Lane, Layer, Limits, NodeId, Operation,
    Origin, Request, Slab, SlotState, Stack, StackBuilder, StackError, Ticket,
};
use sluice_memory::SharedRegion;
use sluice_nvme::{Status, SubmissionEntry};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

fn admit(slab: &mut Slab, cid: u16, controller: u8) -> Command {
    let entry = SubmissionEntry { cdw15: cid.into(), ..SubmissionEntry::default() };
    slab.admit(&entry, Origin { cid, controller, ..Origin::default() }).expect("room")
}

fn range(offset: u64, length: u64) -> Request {
    Request { operation: Operation::Deallocate, offset, length, ..Request::default() }
}

#[test]
fn a_slab_reports_what_is_in_flight() {
    let mut slab = Slab::new(Limits::new(8, 0)).expect("memory");
    let mut commands: Vec<Command> = (0..3).map(|cid| admit(&mut slab, cid, 2)).collect();
    commands.push(admit(&mut slab, 3, 5));
    assert_eq!((slab.limit(), slab.room(), slab.in_flight()), (8, 4, 4));
    assert_eq!([2, 5, 0].map(|controller| slab.in_flight_of(controller)), [3, 1, 0]);
    for (cid, command) in commands.iter().enumerate() {
        let number = slab.number(command);
        let (by_command, by_number) = (slab.entry(command), slab.entry_of_number(number));
        assert_eq!((by_command.cdw15, by_number.cdw15), (cid as u32, cid as u32));
        assert_eq!(slab.used(number).map(|slot| slot.origin.cid), Some(cid as u16));
        assert!(!slab.slot(command).is_child());
        assert_eq!(slab.slot(command).state(), SlotState::Held);
        assert_eq!(format!("{command:?}"), format!("Command({number})"));
    }
    assert_eq!(slab.entry_of_number(usize::MAX), slab.entry_of_number(1023));
    let seen: Vec<u32> = slab.commands().map(|(_, _, entry)| entry.cdw15).collect();
    assert_eq!(seen, [0, 1, 2, 3]);
    let last = slab.number(&commands[3]);
    commands.into_iter().for_each(|command| slab.release(command));
    assert!(slab.used(last).is_none() && slab.used(7).is_none() && slab.used(8).is_none());
    assert_eq!(slab.in_flight_of(2), 0);
}

/// Checks commands whose slots have other numbers than zero, and tickets of the parks before the last.
#[test]
fn a_ticket_names_its_command_and_its_park() {
    let mut slab = Slab::new(Limits::new(4, 0)).expect("memory");
    let mut tickets: Vec<Ticket> = (0..3)
        .map(|cid| {
            let command = admit(&mut slab, cid, 0);
            slab.park(command)
        })
        .collect();
    let mut stale = Vec::new();
    for _ in 0..5 {
        for (cid, ticket) in (0..).zip(&mut tickets) {
            assert_eq!(slab.parked(*ticket).map(|slot| slot.origin.cid), Some(cid));
            assert_eq!(slab.parked_mut(*ticket).map(|slot| slot.origin.cid), Some(cid));
            stale.push(*ticket);
            let command = slab.unpark(*ticket).expect("it is parked");
            assert!(slab.parked(*ticket).is_none() && slab.parked_mut(*ticket).is_none(), "it is held");
            *ticket = slab.park(command);
        }
        assert!(stale.iter().all(|ticket| slab.parked(*ticket).is_none() && slab.unpark(*ticket).is_none()));
    }
    for ticket in tickets {
        let command = slab.unpark(ticket).expect("it is parked");
        slab.release(command);
    }
}

#[test]
fn slots_of_children_are_used_again() {
    let mut slab = Slab::new(Limits::with_reserve(2, 2, 3)).expect("memory");
    assert_eq!(Limits::with_reserve(2, 2, 3), Limits { commands: 2, children: 7 });
    let parent = admit(&mut slab, 9, 0);
    let number = slab.number(&parent);
    for _ in 0..20 {
        let leg = slab.leg(&parent, range(0, 512), 0);
        assert!(slab.slot(&leg).is_child() && slab.slot(&leg).request.length == 512);
        slab.release(leg);
    }
    let leg = slab.leg(&parent, range(0, 512), 0);
    slab.await_legs(parent);
    assert_eq!(slab.used(number).map(|slot| slot.state()), Some(SlotState::Forked));
    let parent = slab.join_leg(leg);
    assert_eq!((slab.number(&parent), slab.slot(&parent).state()), (number, SlotState::Held));
    slab.release(parent);
    assert_eq!(slab.live().count(), 0);
}

#[test]
fn a_request_lies_inside_and_has_its_data() {
    let region = SharedRegion::new("data", 4096).expect("memory");
    let mut slab = Slab::new(Limits::new(1, 0)).expect("memory");
    let command = admit(&mut slab, 0, 0);
    let slot = slab.slot_mut(&command);
    let mut check = |operation, offset, length, bytes: u32| {
        slot.request = Request { operation, ..range(offset, length) };
        slot.data.clear();
        if bytes > 0 {
            slot.data.push(region.segment(0, bytes)).expect("one segment");
        }
        slot.check(4096)
    };
    use Operation::{Deallocate, Flush, Read, Write, WriteZeroes};
    let (outside, wrong) = (Err(Status::LBA_OUT_OF_RANGE), Err(Status::INTERNAL_ERROR));
    for operation in [Read, Write] {
        assert_eq!(check(operation, 3584, 512, 512), Ok(()));
        assert_eq!(check(operation, 3584, 1024, 1024), outside);
        assert_eq!(check(operation, u64::MAX, 512, 512), outside);
        assert_eq!([check(operation, 0, 512, 511), check(operation, 0, 512, 513)], [wrong; 2]);
        assert_eq!(check(operation, 0, 512, 0), wrong);
    }
    for operation in [Flush, WriteZeroes, Deallocate] {
        assert_eq!(check(operation, 3584, 512, 0), Ok(()));
        assert_eq!(check(operation, 3585, 512, 0), outside);
        assert_eq!(check(operation, 0, 4096, 512), Ok(()), "it has no data");
    }
    slab.release(command);
}

#[test]
fn narrowed_data_is_restored() {
    let region = SharedRegion::new("data", 8192).expect("memory");
    let mut slab = Slab::new(Limits::new(1, 0)).expect("memory");
    let command = admit(&mut slab, 0, 0);
    let slot = slab.slot_mut(&command);
    slot.data.push(region.segment(0, 4096)).expect("one segment");
    for _ in 0..2 {
        slot.narrow(512, 1024);
        assert_eq!(slot.data.len_bytes(), 1024);
        assert_eq!(slot.segments().map(|segment| segment.len()).collect::<Vec<_>>(), [1024, 4096]);
        slot.widen();
        assert_eq!((slot.data.len_bytes(), slot.segments().count()), (4096, 1));
        slot.widen();
        assert_eq!(slot.data.len_bytes(), 4096, "it is whole already");
    }
    slab.release(command);
}

#[test]
fn a_command_that_is_dropped_ends_the_process() {
    let mut slab = Slab::new(Limits::new(1, 0)).expect("memory");
    let command = admit(&mut slab, 0, 0);
    let dropped = catch_unwind(std::panic::AssertUnwindSafe(|| drop(command)));
    assert!(dropped.is_err(), "its host would wait for ever");
}

#[test]
fn only_commands_of_layers_have_no_host() {
    assert!(Origin::default().is_host() && !Origin::LAYER.is_host());
    assert!(Origin { sq: Origin::INTERNAL_SQ, ..Origin::default() }.is_host());
}

#[test]
fn a_segment_of_another_kind_or_version_is_refused() {
    let refusal = |file: File| Segment::<Commands>::read(file.into()).map(drop).map_err(|error| error.kind());
    let segment = Segment::<Commands>::new().expect("memory");
    let file = || File::from(segment.fd().try_clone_to_owned().expect("a descriptor"));
    assert_eq!(refusal(file()), Ok(()));
    // Magic number, version and length.
    for at in [0, 7, 8, 11, 12, 15] {
        let mut byte = [0];
        file().read_exact_at(&mut byte, at).expect("it is there");
        file().write_all_at(&[byte[0] ^ 0x80], at).expect("it can be written");
        assert_eq!(refusal(file()), Err(io::ErrorKind::InvalidData), "byte {at}");
        file().write_all_at(&byte, at).expect("it can be written");
    }
    assert_eq!(refusal(file()), Ok(()));
    let other = Segment::<Queues>::new().expect("memory");
    let other = File::from(other.fd().try_clone_to_owned().expect("a descriptor"));
    assert!(refusal(other).is_err());
}

#[test]
fn a_reader_takes_arrays_and_the_rest() {
    let mut reader = Reader::new(&[1, 2, 3, 4, 5], 0);
    assert_eq!(reader.array::<2>(), Ok([1, 2]));
    assert_eq!((reader.rest(), reader.rest()), (&[3, 4, 5][..], &[][..]));
    assert_eq!(reader.array::<1>(), Err(RecordError::Short));
    let words = [
        (RecordError::Short, "ends too early"),
        (RecordError::UnknownPart(0x1f), "part 0x1f of a later version"),
        (RecordError::Missing(0x2f), "part 0x2f is missing"),
        (RecordError::Invalid("length"), "invalid length"),
    ];
    for (error, words) in words {
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// A target that finishes at once, with the place and the length of each request in a list.
struct Target {
    size: u64,
    seen: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Target {
    fn new(size: u64) -> Self {
        Self { size, seen: Arc::default() }
    }
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "target"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(self.size, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let Request { offset, length, .. } = lane.slot(&command).request;
        if !lane.slot(&command).origin.is_host() {
            // No host has sent it, so its entry is any.
            let _ = lane.entry(&command);
        }
        self.seen.lock().expect("not poisoned").push((offset, length));
        lane.finish(command, Status::SUCCESS);
    }

    fn resized(&mut self, size: u64) {
        self.size = size;
    }
}

/// A layer that moves requests up by `shift` bytes, and parks them before that if `keeps` is set.
struct Over {
    shift: u64,
    keeps: bool,
    requests: u32,
    kept: Arc<Mutex<Vec<Ticket>>>,
}

impl Over {
    fn new(shift: u64, keeps: bool) -> Self {
        Self { shift, keeps, requests: 0, kept: Arc::default() }
    }

    fn send(&self, command: Command, lane: &mut Lane<'_>) {
        lane.slot_mut(&command).request.offset += self.shift;
        lane.forward_with(0, command, 0, [0; 2]);
    }
}

impl Layer for Over {
    fn name(&self) -> &'static str {
        "over"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        Characteristics { requests: self.requests, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        match self.keeps {
            true => self.kept.lock().expect("not poisoned").push(lane.park(command)),
            false => self.send(command, lane),
        }
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        if result < 0 {
            return lane.originate(0, range(0, 4096), None, 3, [4, 5]);
        }
        if let Some(command) = lane.unpark(ticket) {
            self.send(command, lane);
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        if frame.stage == 3 {
            assert_eq!((frame.data, lane.slot(&command).status), ([4, 5], Status::SUCCESS));
            return lane.discard(command);
        }
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        let mut kept = self.kept.lock().expect("not poisoned").clone();
        kept.retain(|ticket| lane.is_of(of, *ticket));
        for ticket in kept {
            let cid = lane.parked(ticket).map(|slot| slot.origin.cid);
            assert_eq!(lane.parked_entry(ticket).map(|entry| entry.cdw15), cid.map(u32::from));
            lane.parked_mut(ticket).expect("it is parked").request.length = 0;
            let command = lane.unpark(ticket).expect("it is parked");
            assert!(lane.parked_entry(ticket).is_none() && lane.parked(ticket).is_none());
            assert!(lane.parked_mut(ticket).is_none());
            assert!(!lane.is_of(of, ticket));
            lane.finish(command, why);
        }
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        let mut kept = self.kept.lock().expect("not poisoned").clone();
        kept.retain(|ticket| lane.is_aborted(which, *ticket));
        for ticket in kept {
            let command = lane.unpark(ticket).expect("it is parked");
            lane.finish(command, why);
        }
    }

    fn leave(&mut self, _lane: &mut Lane<'_>) -> bool {
        true
    }
}

/// Returns the commands that are back, and releases them.
fn back(stack: &mut Stack, slab: &mut Slab) -> Vec<(u16, Status)> {
    let mut done = Vec::new();
    stack.run_completions(slab, 0, &mut done);
    done.into_iter()
        .map(|command| {
            let found = (slab.slot(&command).origin.cid, slab.slot(&command).status);
            slab.release(command);
            found
        })
        .collect()
}

/// Checks the last check of an address: a mistake above must not reach other data.
#[test]
fn a_forwarded_request_lies_inside_of_the_layer_below() {
    let mut builder = StackBuilder::new();
    let target = Target::new(1 << 20);
    let seen = Arc::clone(&target.seen);
    let target = builder.add(Box::new(target), &[]).expect("a target");
    builder.add(Box::new(Over::new(4096, false)), &[target]).expect("a layer");
    assert_eq!((builder.size_of(target), builder.size_of(NodeId(7))), (1 << 20, 0));
    let (mut stack, mut slab) = (builder.build(), Slab::new(Limits::new(8, 0)).expect("memory"));
    let end = (1 << 20) - 4096;
    for (offset, length, status) in [
        (0, 512, Status::SUCCESS),
        (end - 512, 512, Status::SUCCESS),
        (end - 512, 513, Status::LBA_OUT_OF_RANGE),
        (end, 512, Status::LBA_OUT_OF_RANGE),
        (0, u64::MAX, Status::LBA_OUT_OF_RANGE),
    ] {
        let command = admit(&mut slab, 1, 0);
        slab.slot_mut(&command).request = range(offset, length);
        stack.submit(stack.root(), command, &mut slab, 0);
        assert_eq!(back(&mut stack, &mut slab), [(1, status)], "{offset} {length}");
    }
    assert_eq!(*seen.lock().expect("not poisoned"), [(4096, 512), ((1 << 20) - 512, 512)]);
}

#[test]
fn a_layer_selects_the_commands_of_hosts_that_it_keeps() {
    let mut builder = StackBuilder::new();
    let target = Target::new(1 << 20);
    let seen = Arc::clone(&target.seen);
    let target = builder.add(Box::new(target), &[]).expect("a target");
    let over = Over { requests: 2, ..Over::new(0, true) };
    let over = builder.add(Box::new(over), &[target]).expect("a layer");
    let mut stack = builder.build();
    assert_eq!(stack.reserve(), 2, "no command that a layer makes is divided");
    // Their slots have numbers beyond the last one that has an entry.
    let mut slab = Slab::new(Limits::with_reserve(1024, 0, stack.reserve())).expect("memory");
    for (cid, controller) in [(1, 0), (2, 1), (3, 1), (4, 2)] {
        let command = admit(&mut slab, cid, controller);
        slab.slot_mut(&command).request = range(0, 512);
        stack.submit(over, command, &mut slab, 0);
    }
    assert_eq!(back(&mut stack, &mut slab), []);
    stack.end_waiting(Controllers::of_bits(0), Status::ABORT_REQUESTED, &mut slab, 0);
    stack.end_waiting(Controllers::of_bits(1 << 3), Status::ABORT_REQUESTED, &mut slab, 0);
    assert_eq!(back(&mut stack, &mut slab), []);
    let which = Aborted { cid: Some(2), ..Aborted::of(Controllers::of_bits(1 << 1)) };
    stack.abort(which, Status::ABORT_REQUESTED, &mut slab, 0);
    assert_eq!(back(&mut stack, &mut slab), [(2, Status::ABORT_REQUESTED)]);
    stack.end_waiting(Controllers::of_bits(1 << 1), Status::WRITE_FAULT, &mut slab, 0);
    assert_eq!(back(&mut stack, &mut slab), [(3, Status::WRITE_FAULT)]);
    // Commands of the layer itself come back to it alone, more of them than it has at a time.
    for _ in 0..10 {
        stack.event(over, Ticket(u32::MAX), -1, &mut slab, 0);
        assert_eq!(back(&mut stack, &mut slab), []);
    }
    assert_eq!(*seen.lock().expect("not poisoned"), [(0, 4096); 10]);
    assert_eq!(slab.live().count(), 2);
    stack.end_waiting(Controllers::of_bits(5), Status::WRITE_FAULT, &mut slab, 0);
    assert_eq!(back(&mut stack, &mut slab), [(1, Status::WRITE_FAULT), (4, Status::WRITE_FAULT)]);
}

/// Checks a layer that goes while a command is on its way to it.
#[test]
fn a_command_on_its_way_to_a_layer_that_goes_continues_below() {
    let mut builder = StackBuilder::new();
    let target = Target::new(1 << 20);
    let seen = Arc::clone(&target.seen);
    let target = builder.add(Box::new(target), &[]).expect("a target");
    let middle = builder.add(Box::new(Over::new(0, false)), &[target]).expect("a layer");
    let keeper = Over::new(0, true);
    let kept = Arc::clone(&keeper.kept);
    let top = builder.add(Box::new(keeper), &[middle]).expect("a layer");
    let (mut stack, mut slab) = (builder.build(), Slab::new(Limits::new(8, 0)).expect("memory"));
    let sizes = stack.insertion(1).map(|Insertion { under, layer }| (under.depth, layer.depth));
    assert_eq!((sizes, stack.insertion(2).is_none()), (Some((1, 2)), true));
    let command = admit(&mut slab, 1, 0);
    slab.slot_mut(&command).request = range(512, 512);
    stack.submit(top, command, &mut slab, 0);
    assert!(!stack.is_crossed(1, &slab), "it has not left the topmost layer");
    let ticket = kept.lock().expect("not poisoned")[0];
    stack.event(top, ticket, 0, &mut slab, 0);
    assert!(stack.is_crossed(1, &slab) && !stack.is_crossed(0, &slab));
    assert_eq!(stack.take_out(1, &mut slab, 0), Ok(target));
    assert_eq!(back(&mut stack, &mut slab), [(1, Status::SUCCESS)]);
    assert_eq!(*seen.lock().expect("not poisoned"), [(512, 512)]);
    assert!(stack.characteristics_at(middle).is_none() && stack.characteristics_at(top).is_some());
    // The rest is exchanged, and no layer of it stays.
    stack
        .exchange(0, |builder| builder.add(Box::new(Target::new(1 << 21)), &[]), |_| Ok::<_, StackError>(()))
        .expect("a stack");
    assert_eq!(
        (stack.names().count(), stack.layers().count(), stack.characteristics().size),
        (1, 1, 1 << 21)
    );
    // A command for a layer that has gone fails.
    let command = admit(&mut slab, 2, 0);
    stack.submit(top, command, &mut slab, 0);
    assert_eq!(back(&mut stack, &mut slab), [(2, Status::INTERNAL_ERROR)]);
}

/// Checks a target that keeps its size beside one that has the namespace's.
#[test]
fn a_fixed_target_keeps_its_size() {
    let mut builder = StackBuilder::new();
    let [main, aside] = [(); 2].map(|()| builder.add(Box::new(Target::new(1 << 20)), &[]).expect("a target"));
    builder.fix(aside);
    builder.add(Box::new(Over::new(0, false)), &[main, aside]).expect("a layer");
    let mut stack = builder.build();
    stack.resize(1 << 19);
    let size = |node| stack.characteristics_at(node).map(|it| it.size);
    assert_eq!(
        (size(main), size(aside), stack.characteristics().size),
        (Some(1 << 19), Some(1 << 20), 1 << 19)
    );
}

/// Checks a layer in the place of one that was to be flushed: no layer is to be flushed twice.
#[test]
fn a_layer_takes_over_the_flush_of_the_one_before() {
    let mut builder = StackBuilder::new();
    let target = builder.add(Box::new(Target::new(1 << 20)), &[]).expect("a target");
    let middle = builder.add(Box::new(Over::new(0, true)), &[target]).expect("a layer");
    let top = builder.add(Box::new(Over::new(0, true)), &[middle]).expect("a layer");
    let (mut stack, mut slab) = (builder.build(), Slab::new(Limits::new(8, 0)).expect("memory"));
    assert_eq!(format!("{stack:?}"), r#"["over", "over", "target"]"#);
    let enter = |stack: &mut Stack, slab: &mut Slab, node| {
        let command = admit(slab, 1, 0);
        slab.slot_mut(&command).request = range(0, 512);
        stack.submit(node, command, slab, 0);
    };
    [target, middle, top].into_iter().for_each(|node| enter(&mut stack, &mut slab, node));
    stack.unlink(1);
    let insert = |under, builder: &mut StackBuilder| builder.add(Box::new(Over::new(0, true)), &[under]);
    stack.insert(1, insert, |_| Ok::<_, StackError>(())).expect("a stack");
    assert_eq!(stack.chain(), [top, middle, target], "the number is used again");
    enter(&mut stack, &mut slab, middle);
    assert_eq!(back(&mut stack, &mut slab), [(1, Status::SUCCESS)]);
    for (error, words) in [
        (StackError::TooDeep { depth: 9 }, "9 layers deep"),
        (StackError::TooManyLayers, "more than 255 layers"),
        (StackError::NoSuchLayer(NodeId(4)), "layer 4 is used before"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}
