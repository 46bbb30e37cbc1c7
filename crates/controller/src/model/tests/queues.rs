//! Order of queues by priority, and the controller that has a private namespace.

use super::{namespace, shared, small, subsystem};
use crate::model::Controller;
use crate::model::queues::delete_pair;
use crate::state::client_dma::shadow_queue::ShadowQueue;
use crate::state::management::Attachment;
use crate::state::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::state::reservation::KnownAs;
use sluice_command::{Characteristics, Origin};
use sluice_memory::ShadowMemory;
use sluice_nvme::opcode::admin;
use sluice_nvme::{CompletionEntry, SubmissionEntry, register};

/// Installs queues of these classes, from identifier 1 on.
fn with_classes(controller: &mut Controller, classes: &[u8]) {
    let memory = ShadowMemory::new(4096).expect("memory");
    for (id, class) in (0..).zip([0].iter().chain(classes)) {
        controller.install_cq(CompletionQueue::new(id, 0, memory.pages(), 8, Some(id)));
        let mut queue = SubmissionQueue::new(id, id, 1, 0, memory.pages(), 8);
        queue.class = *class;
        controller.install_sq(queue);
    }
}

/// Gives a turn, in which each queue has this many commands, and returns the looks: queue and commands.
fn turn(controller: &mut Controller, mut waiting: Vec<u32>) -> Vec<(u16, u32)> {
    controller.begin_priorities();
    let (mut taken, mut looks) = (0, Vec::new());
    while let Some((id, most)) = controller.next_by_priority(taken) {
        taken = waiting[usize::from(id)].min(most);
        waiting[usize::from(id)] -= taken;
        looks.push((id, taken));
        assert!(looks.len() < 1000, "a turn has an end");
    }
    controller.end_priorities(taken);
    looks
}

/// Conformance: Base 3.4.4.2, queues of a class take turns, with a burst of each, until all of them are empty.
#[test]
fn each_queue_of_a_class_has_its_turn() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    with_classes(&mut controller, &[0, 1, 1, 1, 3]);
    // Bursts of two; five commands of the high class in a round, and three of the low one.
    controller.features.arbitration = 4 << 24 | 2 << 8 | 1;
    // The admin queue comes first; an urgent queue is looked at until it is empty.
    let looks = turn(&mut controller, vec![1, 3, 0, 4, 0, 5]);
    let expected = [
        [(0, 1), (1, 2), (1, 1), (1, 0), (2, 0), (3, 2), (4, 0), (2, 0)].as_slice(),
        &[(3, 2), (4, 0), (2, 0), (3, 0), (5, 2), (5, 1)],
        &[(1, 0), (4, 0), (2, 0), (3, 0), (5, 2), (5, 0)],
        &[(1, 0), (4, 0), (2, 0), (3, 0), (5, 0)],
    ];
    assert_eq!(looks, expected.concat());
    // The next turn begins behind the queue that was last.
    let looks = turn(&mut controller, vec![0, 0, 9, 9, 9, 0]);
    assert_eq!(looks[..6], [(0, 0), (1, 0), (4, 2), (2, 2), (3, 1), (5, 0)]);
    let served = |id: u16| looks.iter().filter(|look| look.0 == id).map(|look| look.1).sum::<u32>();
    assert_eq!([2, 3, 4].map(served), [9, 9, 9]);
    controller.leave(&mut drive);
}

/// Checks the segment from which a successor of this process continues.
#[test]
fn a_successor_finds_registers_and_queues() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    with_classes(&mut controller, &[0, 0]);
    controller.registers.write(register::AQA, 0x0012_0034);
    controller.record_registers();
    let expected = controller.registers.record(&controller.doorbells);
    assert_eq!((controller.handover.get_mut().registers, expected.aqa), (expected, 0x0012_0034));
    controller.record_shadow([0x5000, 0x6000]);
    assert_eq!(controller.handover.get_mut().registers.shadow, [0x5000, 0x6000]);
    controller.sqs[2].iter_mut().for_each(|sq| sq.head = 5);
    controller.note_head(2);
    for id in [1, 2] {
        let Some(cq) = &mut controller.cqs[id] else { panic!("a queue") };
        cq.reserve(1);
        cq.post(CompletionEntry::default());
        controller.note_queue(id as u16);
    }
    let index = |controller: &mut Controller, id: usize| controller.handover.get_mut().cqs[id].index;
    const PHASE: u32 = 1 << 31;
    assert_eq!((index(&mut controller, 1), index(&mut controller, 2)), (PHASE | 1, PHASE));
    controller.note_posted();
    assert_eq!(index(&mut controller, 2), PHASE | 1);
    let sizes = |controller: &mut Controller| {
        let queues = controller.handover.get_mut();
        (
            [0, 1, 2].map(|id| queues.sqs[id].size),
            [0, 1, 2].map(|id| queues.cqs[id].size),
            queues.sqs[2].index,
        )
    };
    assert_eq!(sizes(&mut controller), ([8; 3], [8; 3], 5));
    delete_pair(&mut controller, 1);
    assert_eq!(sizes(&mut controller), ([8, 0, 8], [8, 0, 8], 5));
    let group = controller.take_group(2, &[2]).expect("a group");
    assert_eq!(sizes(&mut controller), ([8, 0, 0], [8, 0, 0], 5));
    controller.install_group(group.0, group.1);
    assert_eq!(sizes(&mut controller), ([8, 0, 8], [8, 0, 8], 5));
    controller.remove_all_queues();
    assert_eq!(sizes(&mut controller), ([0; 3], [0; 3], 0));
    controller.leave(&mut drive);
}

/// Checks that the end of a queue completes its own deletion alone.
#[test]
fn a_deletion_ends_with_its_queue() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    with_classes(&mut controller, &[0, 0]);
    for (opcode, cdw10) in [(admin::DELETE_IO_CQ, 1), (admin::DELETE_IO_SQ, 2)] {
        let entry = SubmissionEntry { opcode, cdw10, ..SubmissionEntry::default() };
        let command = drive.slab_mut().admit(&entry, Origin::default()).expect("room");
        controller.await_deletion(command);
    }
    assert!(controller.end_sq(drive.slab(), 1).is_none());
    let command = controller.end_sq(drive.slab(), 2).expect("its deletion");
    assert_eq!((controller.deletions.len(), controller.served()), (1, 1));
    drive.slab_mut().release(command);
    let [command] = controller.end_cqs(drive.slab()).try_into().expect("one deletion");
    assert!(controller.cqs[1].is_none() && controller.cqs[2].is_some());
    drive.slab_mut().release(command);
    // Queues that only the client reaches.
    assert!(!controller.has_shadow_queues() && !controller.interrupts_by_shadow_queue(2));
    let shadow = |id| ShadowQueue::new(id, 0, 16, 8, ShadowMemory::new(4096).expect("memory"));
    let queues = &mut controller.client_dma.get_or_insert_default().shadow_queues;
    queues.cqs.extend([(shadow(1), None), (shadow(2), Some(9))]);
    assert!(!controller.has_shadow_queues());
    assert_eq!([0, 1, 2, 3].map(|cq| controller.interrupts_by_shadow_queue(cq)), [false, false, true, false]);
    controller.client_dma.get_or_insert_default().shadow_queues.sqs.push((shadow(1), 0));
    assert!(controller.has_shadow_queues());
    controller.leave(&mut drive);
}

/// Checks that results and interrupts that are held back are not lost.
#[test]
fn results_and_interrupts_that_wait_are_released() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    with_classes(&mut controller, &[0]);
    let vectors = |controller: &mut Controller| {
        let mut found = Vec::new();
        controller.take_vectors(|vector| found.push(vector));
        found
    };
    controller.set_interrupt_coalescing(0xffff_0502, 0);
    assert_eq!(controller.features.interrupt_coalescing, 0x0502);
    controller.signal(1);
    assert_eq!(vectors(&mut controller), []);
    controller.release_interrupts();
    assert_eq!(vectors(&mut controller), [1]);
    let service = |controller: &Controller| controller.cqs[0].as_ref().map(|cq| cq.service);
    controller.keep();
    assert_eq!((service(&controller), controller.has_results()), (Some(Service::Kept), false));
    controller.cqs[0].iter_mut().for_each(|cq| cq.reserve(1));
    controller.hold_result(CompletionEntry { cid: 77, ..CompletionEntry::default() });
    assert_eq!((controller.has_results(), controller.results()[0].cid), (true, 77));
    controller.stop_keeping();
    assert_eq!((service(&controller), controller.results().len()), (Some(Service::On), 0));
    assert_eq!((controller.cqs[0].as_ref().map(|cq| cq.tail), vectors(&mut controller)), (Some(1), vec![0]));
    assert!(controller.kept.is_none());
    controller.leave(&mut drive);
}

/// Checks that a private namespace stays where it is, and goes to the controller that the command names.
#[test]
fn a_private_namespace_has_one_controller() {
    let (mut drive, controllers) = shared(vec![small(1)], 4);
    let private = || small(2).created(false).attached_to(Attachment::ALL);
    for (before, first, after) in [
        (0, None, 1 << 0),
        (1 << 2, None, 1 << 2),
        (1 << 2, Some(3), 1 << 3),
        (1 << 2, Some(2), 1 << 2),
        (0, Some(1), 1 << 1),
    ] {
        let mut namespace = private();
        namespace.attach(before, &[0, 1, 2, 3]);
        drive.attach_present(&mut namespace, first);
        assert_eq!(namespace.attached(), after, "{before:b}, {first:?}");
        assert!(namespace.is_guarded(), "others do not have it");
        // A shared one is for all.
        let mut namespace = small(2);
        namespace.attach(before, &[0, 1, 2, 3]);
        drive.attach_present(&mut namespace, first);
        assert_eq!((namespace.attached(), namespace.is_guarded()), (0b1111, false));
    }
    // Controllers are known by their sockets, and one that no host sees has none.
    let listed = vec![KnownAs::Socket(2), KnownAs::Socket(4)];
    let mut namespace = small(2).created(true).attached_to(Attachment { to_others: false, listed });
    drive.attach_present(&mut namespace, None);
    assert_eq!(namespace.attached(), 0b1010);
    controllers[3].set_present(&mut drive, false);
    drive.attach_present(&mut namespace, None);
    assert_eq!(namespace.attached(), 0b0010);
    controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
}

/// Checks that layers which would make more commands than a drive can have are found before they are used.
#[test]
fn a_drive_has_room_for_the_commands_of_its_layers() {
    let is = Characteristics { fan_out: 1 << 20, ..Characteristics::target(64 << 10, 512) };
    let mut drive = subsystem(vec![small(1)]);
    assert!(drive.make_room_for(&small(2)) && drive.update_stacks());
    assert!(!drive.make_room_for(&namespace(2, 512, is)));
    drive.put(namespace(2, 512, is));
    assert!(!drive.update_stacks());
    drive.take(2);
    assert!(drive.update_stacks());
}

/// Checks what a drive keeps of a namespace that goes.
#[test]
fn a_namespace_that_goes_takes_only_its_own() {
    let mut drive = subsystem((1..=3).map(small).collect());
    drive.touched.extend([0, 1, 2]);
    drive.each_namespace(|namespace| namespace.touched = true);
    for nsid in [1, 2, 3] {
        let job = crate::BackgroundJob { nsid, report: sluice_jobs::Report::default() };
        drive.jobs.ended.push(job);
    }
    assert_eq!(drive.take(2).map(|it| it.nsid()), Some(2));
    assert!(drive.take(2).is_none() && drive.take(0).is_none() && drive.take(200).is_none());
    assert_eq!(drive.touched, [0, 2]);
    assert!(drive.jobs.ended.iter().map(|it| it.nsid).eq([1, 3]));
    assert!(drive.iter().map(|it| it.nsid()).eq([1, 3]));
    assert!(drive.router_mut(2).is_none() && drive.router_mut(3).is_some());
}
