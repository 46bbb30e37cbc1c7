//! Weighted round robin: the order of commands of different queues, and their proportions.

use crate::host::{CC_ENABLED, Host, create_sq, io as io_entry};
use crate::model::Model;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{FeatureId, Status, SubmissionEntry};

const WEIGHTED: u32 = 1 << 11;

/// Priority classes.
const URGENT: u32 = 0;
const HIGH: u32 = 1;
const MEDIUM: u32 = 2;
const LOW: u32 = 3;

/// Returns a host whose queues have these classes, by index from 1 on. Each queue reads blocks from 100 times
/// its identifier on, so that the target can identify the queue of a command.
fn host(model: &Model, classes: &[u32]) -> Host {
    let mut host = Host::new(vec![model.namespace(1)]);
    host.configure_admin_queues();
    host.write_register(register::CC, CC_ENABLED | WEIGHTED);
    host.turn();
    assert_eq!(host.csts(), csts::RDY);
    for (id, class) in (1..).zip(classes) {
        assert_eq!(host.create_cq(id, 64), Status::SUCCESS);
        let address = host.lay_out_sq(id, 64, id);
        let create = create_sq(id, 64, id, address);
        let create = SubmissionEntry { cdw11: create.cdw11 | class << 1, ..create };
        assert_eq!(create.opcode, admin::CREATE_IO_SQ);
        assert_eq!(host.admin(create).status(), Status::SUCCESS);
    }
    host
}

/// Puts this number of reads on every queue, and returns the queues of the commands taken, in order.
fn order(host: &mut Host, model: &Model, queues: u16, each: u64) -> Vec<u16> {
    let buffer = host.allocate(4096);
    for id in 1..=queues {
        (0..each).for_each(|n| _ = host.put(id, io_entry(io::READ, u64::from(id) * 100 + n, 1, buffer)));
    }
    (1..=queues).for_each(|id| host.ring(id));
    model.take_seen();
    host.run();
    model.take_seen().iter().map(|request| (request.offset / 512 / 100) as u16).collect()
}

fn set_arbitration(host: &mut Host, burst: u32, low: u32, medium: u32, high: u32) {
    let value = burst | (low - 1) << 8 | (medium - 1) << 16 | (high - 1) << 24;
    assert!(host.set_feature(FeatureId::ARBITRATION, value).is_ok());
}

/// Conformance: Base 3.4.4, weighted round robin: urgent commands come first, and the other classes share by their weights.
#[test]
fn urgent_commands_come_first_and_the_others_in_proportion() {
    let model = Model::new(1024);
    let mut host = host(&model, &[LOW, MEDIUM, HIGH, URGENT]);
    set_arbitration(&mut host, 0, 1, 2, 4);
    let order = order(&mut host, &model, 4, 24);
    assert_eq!(order.len(), 4 * 24, "everybody's in the end");
    assert!(order[..24].iter().all(|&queue| queue == 4), "urgent ones");
    let round = [3, 3, 3, 3, 2, 2, 1];
    assert_eq!(order[24..24 + 6 * 7], round.repeat(6));
    // The high class is finished: the others share the rest.
    assert_eq!(order[24 + 42..24 + 42 + 6], [2, 2, 1, 2, 2, 1]);
}

/// Conformance: Base 3.4.4, no more commands are taken from a queue at a time than Arbitration Burst says.
#[test]
fn queues_of_a_class_take_turns_with_bursts() {
    let model = Model::new(1024);
    let mut host = host(&model, &[HIGH, HIGH, LOW]);
    set_arbitration(&mut host, 1, 1, 1, 6);
    let order = order(&mut host, &model, 3, 8);
    let of_class: Vec<u16> = order.iter().copied().filter(|&queue| queue != 3).collect();
    assert!(of_class.chunks(2).all(|pair| pair[0] == pair[1]), "bursts of two: {of_class:?}");
    assert_ne!(of_class[0], of_class[2], "then it is the other's turn");
    assert_eq!(order[6], 3, "six of the class, then one of the low");
}

#[test]
fn a_class_alone_is_not_held_back_by_its_weight() {
    let model = Model::new(1024);
    let mut host = host(&model, &[LOW]);
    set_arbitration(&mut host, 0, 1, 256, 256);
    assert_eq!(order(&mut host, &model, 1, 60).len(), 60);
}

/// Tests that a class gets its part of a round however much the classes before it have, since a turn may end
/// before that part.
#[test]
fn a_class_with_much_weight_keeps_no_other_from_its_part() {
    let model = Model::new(1024);
    let mut host = host(&model, &[HIGH, HIGH, HIGH, HIGH, HIGH, LOW, MEDIUM]);
    let buffer = host.allocate(4096);
    let mut room = [63; 5];
    // One fills turns by the number of its commands, the other by their cost.
    for slba in [0, 1 << 20] {
        set_arbitration(&mut host, 7, 1, 1, 256);
        let rest = [6, 7].map(|id| host.put(id, io_entry(io::READ, 0, 1, buffer)));
        assert_ne!(rest[0], rest[1]);
        (6..=7).for_each(|id| host.ring(id));
        let (mut done, mut turns) = (0, 0);
        while done < 2 {
            for id in 1..=5 {
                let free = std::mem::take(&mut room[usize::from(id) - 1]) + host.reap_all(id).len();
                (0..free).for_each(|_| _ = host.put(id, io_entry(io::READ, slba, 1, buffer)));
                host.ring(id);
            }
            host.turn();
            done += [6, 7].map(|id| host.reap_all(id).len()).iter().sum::<usize>();
            turns += 1;
            assert!(turns < 20, "the others have {done} of 2 after {turns} turns");
        }
    }
}

/// Conformance: Base 3.4.4, the priority of a queue means nothing while weighted round robin is not selected.
#[test]
fn without_it_classes_mean_nothing() {
    let model = Model::new(1024);
    let mut host = host(&model, &[LOW, URGENT]);
    host.controller.reset();
    host.run();
    host.enable();
    host.create_pair(1, 64);
    host.create_pair(2, 64);
    let order = order(&mut host, &model, 2, 4);
    assert_eq!(order.len(), 8);
    let mut unsupported = Host::new(vec![model.namespace(1)]);
    unsupported.configure_admin_queues();
    unsupported.write_register(register::CC, CC_ENABLED | 2 << 11);
    unsupported.turn();
    assert_ne!(unsupported.csts() & csts::CFS, 0, "there is no such mechanism");
}
