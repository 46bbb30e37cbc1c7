//! Shadow doorbells (Doorbell Buffer Config) and the mapped doorbell page.

use crate::host::{Host, PAGE, entry};
use crate::model::Model;
use sluice_controller::DoorbellMode;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{Status, SubmissionEntry};

fn flush() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }
}

/// Two pages of a host with shadow doorbells.
struct Shadow {
    doorbells: u64,
    event_index: u64,
}

impl Shadow {
    fn configure(host: &mut Host) -> Self {
        let (doorbells, event_index) = (host.allocate(PAGE), host.allocate(PAGE));
        let dptr = [doorbells, event_index];
        let config = SubmissionEntry { dptr, ..entry(admin::DOORBELL_BUFFER_CONFIG) };
        assert_eq!(host.admin(config).status(), Status::SUCCESS);
        Self { doorbells, event_index }
    }

    /// Moves a doorbell as a host does. Returns whether the host has to ring (Base, Annex B.5).
    fn write(&self, host: &Host, offset: u64, new: u16) -> bool {
        let old = self.read(host, self.doorbells + offset);
        host.write(self.doorbells + offset, &u32::from(new).to_le_bytes());
        let event_index = self.read(host, self.event_index + offset);
        new.wrapping_sub(event_index).wrapping_sub(1) < new.wrapping_sub(old)
    }

    fn read(&self, host: &Host, address: u64) -> u16 {
        let bytes = host.read(address, 4);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

fn sq(id: u64) -> u64 {
    id * 8
}

fn cq(id: u64) -> u64 {
    id * 8 + 4
}

/// Conformance: Base 5.8, event indexes say when a shadow doorbell has to be followed by a real one.
#[test]
fn a_busy_controller_is_not_rung_and_a_sleeping_one_is() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let shadow = Shadow::configure(&mut host);
    let (mut tail, mut heads_rung) = (0, 0);
    for _ in 0..200 {
        host.put(1, flush());
        tail = (tail + 1) % 64;
        assert!(!shadow.write(&host, sq(1), tail), "it looks by itself");
        host.run();
        let completion = host.take(1).expect("a completion");
        heads_rung += u32::from(shadow.write(&host, cq(1), completion.sq_head));
    }
    assert!(heads_rung <= 200 / 64 + 1, "a head is rung once a round, not {heads_rung} times in three");
    assert!(!host.controller.arm());
    host.put(1, flush());
    tail = (tail + 1) % 64;
    assert!(shadow.write(&host, sq(1), tail), "it sleeps");
    assert!(host.controller.arm(), "a look at the tail after arming finds it");
    host.controller.disarm();
    host.run();
    assert!(host.take(1).is_some());
}

#[test]
fn a_full_completion_queue_asks_for_its_head() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    let shadow = Shadow::configure(&mut host);
    assert_eq!(host.create_cq(1, 3), Status::SUCCESS);
    assert_eq!(host.create_sq(1, 8, 1), Status::SUCCESS);
    for _ in 0..3 {
        host.put(1, flush());
    }
    shadow.write(&host, sq(1), 3);
    host.run();
    assert_eq!(model.take_seen().len(), 2);
    assert!(!host.controller.arm(), "there is no slot for the third");
    while host.take(1).is_some() {}
    assert!(shadow.write(&host, cq(1), 2), "it sleeps until there is");
    assert!(host.controller.arm());
    host.controller.disarm();
    host.run();
    assert_eq!(model.take_seen().len(), 1);
}

/// Conformance: Base 5.8, the admin queue's doorbells are always real.
#[test]
fn the_admin_queue_has_no_shadow() {
    let mut host = Host::with_io(&Model::new(64));
    let shadow = Shadow::configure(&mut host);
    host.put(0, entry(admin::KEEP_ALIVE));
    shadow.write(&host, sq(0), 31);
    host.run();
    assert_eq!(host.take(0), None);
    host.ring(0);
    host.run();
    assert!(host.reap(0).is_some());
}

/// Conformance: Base 5.8, queues that are there when the buffers are configured go on in them.
#[test]
fn queues_of_before_carry_on_in_the_shadow() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    for _ in 0..5 {
        assert!(host.io(flush()).is_success());
    }
    let shadow = Shadow::configure(&mut host);
    assert_eq!(shadow.read(&host, shadow.doorbells + sq(1)), 5);
    assert_eq!(shadow.read(&host, shadow.doorbells + cq(1)), 5);
    host.run();
    assert_eq!(model.take_seen().len(), 5, "nothing is taken twice");
    host.put(1, flush());
    shadow.write(&host, sq(1), 6);
    host.run();
    assert!(host.take(1).is_some());
}

#[test]
fn an_impossible_tail_in_the_shadow_breaks_its_queue() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 8);
    let shadow = Shadow::configure(&mut host);
    shadow.write(&host, sq(1), 64);
    host.put(2, flush());
    shadow.write(&host, sq(2), 1);
    host.run();
    assert!(host.take(2).is_some());
    assert_eq!(host.controller.overview().error_log_entries, 1);
    assert!(!host.controller.arm(), "a broken queue is no work");
}

/// Conformance: Base 5.8, buffers that are not pages of memory are refused.
#[test]
fn buffers_that_cannot_be_are_refused() {
    let mut host = Host::with_io(&Model::new(64));
    let (page, nowhere) = (host.allocate(PAGE), host.nowhere());
    for (dptr, status) in [
        ([page + 64, page], Status::INVALID_FIELD),
        ([page, page + 4], Status::INVALID_FIELD),
        ([nowhere, page], Status::DATA_TRANSFER_ERROR),
        ([page, nowhere & !0xfff], Status::DATA_TRANSFER_ERROR),
    ] {
        let config = SubmissionEntry { dptr, ..entry(admin::DOORBELL_BUFFER_CONFIG) };
        assert_eq!(host.admin(config).status(), status);
    }
    assert!(!host.controller.overview().shadow_doorbells);
    let shadow = Shadow::configure(&mut host);
    assert!(host.controller.overview().shadow_doorbells);
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    assert!(!host.controller.overview().shadow_doorbells, "a reset forgets them");
    host.enable();
    host.create_pair(1, 8);
    shadow.write(&host, sq(1), 7);
    assert!(host.io(flush()).is_success(), "and what is in them");
}

#[test]
fn a_mapped_page_is_looked_at_and_offers_no_shadow() {
    let mut host = Host::new(vec![Model::new(64).namespace(1)]);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
    host.enable();
    host.create_pair(1, 8);
    for _ in 0..20 {
        assert!(host.io(flush()).is_success());
    }
    let dptr = [host.allocate(PAGE), host.allocate(PAGE)];
    let config = SubmissionEntry { dptr, ..entry(admin::DOORBELL_BUFFER_CONFIG) };
    assert_eq!(host.admin(config).status(), Status::INVALID_OPCODE);
}

#[test]
fn shadow_doorbells_leave_every_queue_where_it_was() {
    let model = Model::new(64);
    let mut host = Host::new(vec![model.namespace(1)]);
    host.enable();
    assert_eq!(host.create_cq(1, 16), Status::SUCCESS);
    // The identifier belongs to a submission queue, but to no completion queue.
    assert_eq!(host.create_sq(2, 16, 1), Status::SUCCESS);
    for _ in 0..3 {
        host.submit(2, flush());
    }
    host.run();
    assert_eq!(host.reap_all(1).len(), 3);
    Shadow::configure(&mut host);
    host.run();
    assert_eq!(host.reap_all(1), [], "old entries are not taken again");
}

/// Tests for a bug that fuzzing found: with a second configuration, the page had older values than the
/// buffers.
#[test]
fn new_shadow_buffers_take_over_from_those_of_before() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let first = Shadow::configure(&mut host);
    host.put(1, flush());
    first.write(&host, sq(1), 1);
    host.run();
    assert!(host.take(1).is_some_and(|completion| completion.status().is_success()));
    first.write(&host, cq(1), 1);
    let second = Shadow::configure(&mut host);
    assert_eq!(second.read(&host, second.doorbells + sq(1)), 1);
    assert_eq!(second.read(&host, second.doorbells + cq(1)), 1);
    host.run();
    assert_eq!(host.take(1), None, "nothing was submitted");
    host.put(1, flush());
    second.write(&host, sq(1), 2);
    host.run();
    assert!(host.take(1).is_some_and(|completion| completion.status().is_success()));
}
