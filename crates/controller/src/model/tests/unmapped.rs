//! Queues in memory that the host unmaps and maps again.

use super::{shared, small};
use crate::model::{Controller, Subsystem};
use crate::state::doorbells::{DoorbellMode, Shadow};
use crate::state::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::state::unmapped_queues::{CHECK_NS, FATAL_AFTER_NS};
use sluice_memory::{Access, Backing, Permissions, SharedRegion, Space};
use sluice_nvme::{CompletionEntry, Status};

const PAGE: u64 = 4096;

/// Addresses of the submission queue, of the completion queue, and of the two pages of shadow doorbells.
const ADDRESSES: [u64; 4] = [0x10_0000, 0x20_0000, 0x30_0000, 0x40_0000];

struct Host {
    drive: Subsystem,
    controller: Controller,
    space: Space,
    memory: SharedRegion,
}

impl Host {
    /// Returns a host with queue pair 1 of eight entries and shadow doorbells, each in a region of its own.
    fn new() -> Self {
        let (drive, mut controllers) = shared(vec![small(1)], 1);
        let controller = controllers.pop().expect("one");
        let memory = SharedRegion::new("host", 4 * PAGE as usize).expect("memory");
        let mut host = Self { drive, controller, space: Space::new(), memory };
        (0..4).for_each(|region| host.map(region));
        let [sq, cq, doorbells, event_index] = ADDRESSES;
        let pages = |address, access| host.space.queue(address, 512, access).expect("memory");
        let page = |address| host.space.queue(address, PAGE as usize, Access::Write).expect("memory");
        let queue = CompletionQueue::new(1, cq, pages(cq, Access::Write), 8, Some(1));
        host.controller.install_cq(queue);
        let queue = SubmissionQueue::new(1, 1, 1, sq, pages(sq, Access::Read), 8);
        host.controller.install_sq(queue);
        let (doorbells, event_index) = (page(doorbells), page(event_index));
        let addresses = [ADDRESSES[2], ADDRESSES[3]];
        host.controller.doorbells.use_shadow(Shadow { addresses, doorbells, event_index });
        host.controller.set_ready();
        host
    }

    fn map(&mut self, region: usize) {
        let fd = self.memory.fd().try_clone_to_owned().expect("a descriptor");
        let backing = Backing::File { fd, offset: region as u64 * PAGE };
        self.space.map(ADDRESSES[region], PAGE, Permissions::READ_WRITE, backing).expect("a map");
    }

    fn unmap(&mut self, region: usize) {
        let removed = self.space.unmap(ADDRESSES[region], PAGE).expect("it is mapped");
        self.controller.forget_memory(&mut self.drive, &removed);
    }

    /// Returns the service of both queues.
    fn services(&self) -> [Service; 2] {
        let sq = self.controller.sqs[1].as_ref().expect("a queue").service;
        [sq, self.controller.cqs[1].as_ref().expect("a queue").service]
    }

    fn find(&mut self) -> usize {
        self.controller.find_queues(&self.space).len()
    }

    fn end(self) {
        let Self { mut drive, controller, .. } = self;
        controller.leave(&mut drive);
    }
}

#[test]
fn queues_are_found_again_each_in_its_region() {
    use Service::{On, Unmapped};
    for [first, second] in [[0, 1], [1, 0]] {
        let mut host = Host::new();
        assert_eq!((host.find(), host.services(), host.controller.unmapped.check_ns), (0, [On; 2], None));
        host.unmap(first);
        let one = if first == 0 { [Unmapped, On] } else { [On, Unmapped] };
        assert_eq!((host.services(), host.controller.unmapped.check_ns), (one, Some(0)));
        host.unmap(second);
        assert_eq!(host.services(), [Unmapped; 2]);
        [1, 1, 2].into_iter().for_each(|cq| host.controller.hold_completion(cq, CompletionEntry::default()));
        assert_eq!(host.controller.held_completions(), 3);
        host.controller.drop_held_completions(2);
        assert_eq!((host.controller.held_completions(), host.controller.unfinished(&host.drive)), (2, 2));
        host.map(first);
        assert_eq!(host.find(), 2, "held completions are tried again");
        let other = if first == 0 { [On, Unmapped] } else { [Unmapped, On] };
        assert_eq!((host.services(), host.controller.unmapped.check_ns), (other, Some(0)));
        host.map(second);
        host.find();
        assert_eq!((host.services(), host.controller.unmapped.check_ns), ([On; 2], None));
        // The queue is where the host writes now.
        host.memory.write(0, &[0x5a; 64]);
        let entry = host.controller.sqs[1].as_mut().expect("a queue").take();
        assert_eq!((entry, host.controller.is_fatal()), ([0x5a5a_5a5a_5a5a_5a5a; 8], false));
        host.end();
    }
}

#[test]
fn a_queue_group_that_returns_is_looked_for() {
    for unmapped in 0..4 {
        let mut host = Host::new();
        let (mut cq, mut sqs) = host.controller.take_group(1, &[1]).expect("a group");
        if unmapped & 1 != 0 {
            drop(host.space.unmap(ADDRESSES[0], PAGE));
        }
        if unmapped & 2 != 0 {
            drop(host.space.unmap(ADDRESSES[1], PAGE));
        }
        host.controller.find_group(&mut cq, &mut sqs, &host.space);
        let service = |bit| if unmapped & bit != 0 { Service::Unmapped } else { Service::On };
        assert_eq!((sqs[0].service, cq.service), (service(1), service(2)));
        assert_eq!(host.controller.unmapped.check_ns, (unmapped > 0).then_some(0));
        host.controller.unmapped.check_ns = None;
        // A queue whose service has ended stays so.
        (sqs[0].service, cq.service) = (Service::Over, Service::Over);
        host.controller.find_group(&mut cq, &mut sqs, &host.space);
        assert_eq!((sqs[0].service, cq.service), (Service::Over, Service::Over));
        assert_eq!(host.controller.unmapped.check_ns, None);
        host.controller.install_group(cq, sqs);
        host.end();
    }
}

/// Checks that a queue that only the client reaches needs doorbells that trap.
#[test]
fn a_queue_of_a_client_needs_doorbell_writes_that_trap() {
    let mut host = Host::new();
    host.space.map(0x90_0000, PAGE, Permissions::READ_WRITE, Backing::Remote).expect("a map");
    let shadow = |host: &Host, address| {
        let memory = host.controller.queue_memory(&host.space, address, 512, Access::Read);
        memory.map(|memory| memory.shadow.is_some())
    };
    assert_eq!(shadow(&host, ADDRESSES[0]), Ok(false));
    assert_eq!(shadow(&host, 0x90_0000), Err(Status::DATA_TRANSFER_ERROR), "the host has shadow doorbells");
    host.controller.doorbells.drop_shadow();
    assert_eq!(
        (shadow(&host, 0x90_0000), shadow(&host, 0xa0_0000)),
        (Ok(true), Err(Status::DATA_TRANSFER_ERROR))
    );
    host.controller.set_doorbell_mode(DoorbellMode::Mapped);
    assert_eq!(shadow(&host, 0x90_0000), Err(Status::DATA_TRANSFER_ERROR));
    host.end();
}

/// Checks that shadow doorbells, which are memory of the host, can be taken out of a controller.
#[test]
fn shadow_doorbells_are_given_up() {
    let mut host = Host::new();
    let mut state = host.controller.share_host_state().expect("memory");
    assert!(state.take_shadow().is_some() && state.take_shadow().is_none());
    assert!(host.controller.doorbells.has_shadow(), "the copy was of another reactor");
    assert!(host.controller.take_shadow().is_some() && host.controller.take_shadow().is_none());
    host.end();
}

/// Checks that the event index follows a queue in steps of more than a quarter of its size.
#[test]
fn the_event_index_moves_in_steps() {
    let mut host = Host::new();
    for (head, index) in
        [(1, 7), (2, 7), (3, 2), (5, 2), (6, 5), (0, 5), (1, 0), (3, 0), (4, 3), (7, 6), (2, 1)]
    {
        // Without a step the word stays as the host finds it.
        host.controller.sqs[1].iter_mut().for_each(|sq| sq.head = head);
        if (head, index) == (1, 7) {
            host.memory.write(3 * PAGE as usize + 8, &7_u32.to_le_bytes());
        }
        host.controller.publish_head(1);
        let mut word = [0; 4];
        host.memory.read(3 * PAGE as usize + 8, &mut word);
        assert_eq!((u32::from_le_bytes(word), head), (index, head));
        assert_eq!(host.controller.handover.get_mut().sqs[1].index, head);
    }
    host.end();
}

#[test]
fn shadow_doorbells_do_not_come_back() {
    for region in 0..4 {
        let mut host = Host::new();
        host.unmap(region);
        let is_shadow = region >= 2;
        assert_eq!(
            (host.controller.is_fatal(), host.controller.doorbells.has_shadow()),
            (is_shadow, !is_shadow)
        );
        host.end();
    }
}

/// Checks that a controller is fatal a second after the host began to wait for an unmapped queue, and no sooner.
#[test]
fn a_host_waits_for_an_unmapped_queue_for_a_second() {
    for (region, rings, holds) in [(0, true, false), (1, true, false), (1, false, true), (0, false, false)] {
        let mut host = Host::new();
        host.unmap(region);
        let waits = rings || holds;
        let mut now_ns = 500;
        let mut check = |host: &mut Host, after| {
            now_ns += after;
            host.controller.check_unmapped_queues(now_ns);
            host.controller.is_fatal()
        };
        // The host does not wait yet.
        assert!(
            !check(&mut host, 0) && !check(&mut host, FATAL_AFTER_NS) && !check(&mut host, FATAL_AFTER_NS)
        );
        assert_eq!(host.controller.unmapped.wanted_ns, None);
        if rings {
            host.memory.write(2 * PAGE as usize + 8, &5_u32.to_le_bytes());
        }
        if holds {
            host.controller.hold_completion(1, CompletionEntry::default());
        }
        assert!(!check(&mut host, CHECK_NS - 1), "it is not time for a look");
        assert_eq!(host.controller.unmapped.wanted_ns, None);
        assert!(!check(&mut host, 1));
        assert_eq!(host.controller.unmapped.wanted_ns.is_some(), waits);
        assert!(!check(&mut host, FATAL_AFTER_NS - 1));
        assert_eq!(check(&mut host, CHECK_NS), waits);
        let gone = if waits { Service::Over } else { Service::Unmapped };
        assert_eq!(host.services()[region], gone);
        assert_eq!(host.services()[1 - region], Service::On);
        assert_eq!(host.controller.unmapped.check_ns.is_none(), waits);
        host.end();
    }
}

/// Checks that the wait of a host that got its queue in between begins anew.
#[test]
fn a_host_that_waits_no_more_is_given_another_second() {
    let mut host = Host::new();
    host.unmap(0);
    let at = 2 * PAGE as usize + 8;
    for (now_ns, tail, wanted) in
        [(1, 5_u32, true), (FATAL_AFTER_NS / 2, 0, false), (FATAL_AFTER_NS + 1, 5, true)]
    {
        host.memory.write(at, &tail.to_le_bytes());
        host.controller.check_unmapped_queues(now_ns);
        assert_eq!(host.controller.unmapped.wanted_ns, wanted.then_some(now_ns));
    }
    host.controller.check_unmapped_queues(2 * FATAL_AFTER_NS);
    assert!(!host.controller.is_fatal());
    host.controller.check_unmapped_queues(2 * FATAL_AFTER_NS + CHECK_NS);
    assert!(host.controller.is_fatal());
    host.end();
}
