//! Slots and tickets, without layers.

use sluice_command::{Command, Limits, Operation, Origin, Request, Slab};
use sluice_nvme::SubmissionEntry;

fn admit(slab: &mut Slab) -> Command {
    slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room for one")
}

#[test]
fn a_ticket_is_good_for_one_park() {
    let mut slab = Slab::new(Limits::new(4, 0)).expect("memory");
    let command = admit(&mut slab);
    let first = slab.park(command);
    let command = slab.unpark(first).expect("the first answer");
    assert!(slab.unpark(first).is_none(), "a second answer while the command is held");
    let second = slab.park(command);
    assert!(slab.unpark(first).is_none(), "a second answer while the command is parked elsewhere");
    assert!(slab.parked(first).is_none() && slab.parked_mut(first).is_none());
    let command = slab.unpark(second).expect("the ticket of this park");
    slab.release(command);
    assert!(slab.unpark(second).is_none(), "an answer after the command's end");

    let next = admit(&mut slab);
    let third = slab.park(next);
    assert!(slab.unpark(second).is_none(), "an answer for the slot's earlier command");
    let next = slab.unpark(third).expect("the ticket of this park");
    slab.release(next);
}

#[test]
fn limits_leave_room_for_the_children_of_every_command() {
    const SLOTS: u64 = 1 << 20;
    for fan_out in [0, 1, 2, 7, 1000, u32::MAX] {
        for commands in [1, 64, 1 << 16, SLOTS as u32, u32::MAX] {
            let limits = Limits::new(commands, fan_out);
            assert!(limits.commands <= commands);
            assert_eq!(u64::from(limits.children), u64::from(limits.commands) * u64::from(fan_out));
            assert!(u64::from(limits.commands) + u64::from(limits.children) <= SLOTS);
        }
    }
    assert_eq!(Limits::new(1024, 3), Limits { commands: 1024, children: 3072 });
}

#[test]
fn room_for_children_is_made_while_commands_are_in_flight() {
    let request = Request { operation: Operation::Deallocate, length: 512, ..Request::default() };
    for (before, fan_out) in [(0, 2), (0, 0), (1, 2), (3, 2)] {
        let mut slab = Slab::new(Limits::new(8, before)).expect("memory");
        let mut held: Vec<Command> = (0..3).map(|_| admit(&mut slab)).collect();
        assert!(slab.make_room(fan_out, 5));
        held.extend((3..8).map(|_| admit(&mut slab)));
        assert_eq!((slab.room(), slab.in_flight()), (0, 8));
        let legs = before.max(fan_out);
        let children: Vec<Command> = (0..legs)
            .flat_map(|_| held.iter().map(|parent| slab.leg(parent, request, 0)).collect::<Vec<_>>())
            .collect();
        let mut numbers: Vec<usize> =
            held.iter().chain(&children).map(|command| slab.number(command)).collect();
        assert!(
            numbers[..8].iter().all(|number| *number < 8) && numbers[8..].iter().all(|number| *number >= 8)
        );
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 8 + 8 * legs as usize, "each has a slot of its own");
        children.into_iter().chain(held).for_each(|command| slab.release(command));
        assert_eq!((slab.live().count(), slab.in_flight()), (0, 0));
    }
    // There is room for children without a reserve for the layers.
    let mut slab = Slab::new(Limits::new(2, 0)).expect("memory");
    assert!(slab.make_room(3, 0));
    let parent = admit(&mut slab);
    let legs: Vec<Command> = (0..6).map(|_| slab.leg(&parent, request, 0)).collect();
    legs.into_iter().chain([parent]).for_each(|command| slab.release(command));
    let mut slab = Slab::new(Limits::new(1024, 0)).expect("memory");
    assert!(!slab.make_room(1024, 0), "more than a ticket can name");
    assert!(slab.make_room(2, 3), "far fewer than that");
    let command = admit(&mut slab);
    slab.release(command);
}

#[test]
fn a_full_slab_refuses_commands_until_a_release() {
    let mut slab = Slab::new(Limits::new(2, 0)).expect("memory");
    let held = [admit(&mut slab), admit(&mut slab)];
    assert_eq!(slab.room(), 0);
    assert!(slab.admit(&SubmissionEntry::default(), Origin::default()).is_none());
    for command in held {
        slab.release(command);
    }
    assert_eq!(slab.in_flight(), 0);
    let command = admit(&mut slab);
    slab.release(command);
}
