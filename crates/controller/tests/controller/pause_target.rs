//! Targets that are paused and replaced while commands are in flight.

use crate::host::{Host, MS, PAGE, io};
use crate::model::Model;
use sluice_command::{
    Aborted, Characteristics, Command, Deallocated, Lane, Layer, NodeId, StackBuilder, StackError, Ticket,
};
use sluice_controller::{EditStackError, Refusal};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Cns, Status};

/// A layer that parks commands until it is taken out.
#[derive(Default)]
struct Parking(Vec<Ticket>);

impl Layer for Parking {
    fn name(&self) -> &'static str {
        "parking"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.0.push(lane.park(command));
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        for ticket in self.0.extract_if(.., |it| lane.is_aborted(which, *it)).collect::<Vec<_>>() {
            if let Some(command) = lane.unpark(ticket) {
                lane.finish(command, why);
            }
        }
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        for ticket in self.0.drain(..) {
            if let Some(command) = lane.unpark(ticket) {
                lane.forward(command);
            }
        }
        true
    }
}

fn pause(host: &mut Host) {
    let build = |target: NodeId, stack: &mut StackBuilder| stack.add(Box::<Parking>::default(), &[target]);
    host.controller.subsystem.pause_target::<StackError>(1, 0, build).expect("there is room");
}

fn resume(host: &mut Host) {
    let now_ns = host.now_ns;
    host.controller.subsystem.resume_target(1, 0, now_ns).expect("it only waits");
    host.run();
}

fn replace(host: &mut Host, model: &Model) -> Result<(), EditStackError<StackError>> {
    let target = Box::new(model.clone());
    let build = |stack: &mut StackBuilder| stack.add(target, &[]);
    host.controller.subsystem.replace_target(1, 1, build, |_| Ok(()))
}

/// Returns the reason of a refusal.
fn refused(host: &mut Host, model: &Model) -> Refusal {
    match replace(host, model) {
        Err(EditStackError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn write(host: &mut Host, slba: u64, byte: u8) {
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[byte; 512]);
    host.submit(1, io(opcode::WRITE, slba, 1, buffer));
    host.run();
}

fn statuses(host: &mut Host) -> Vec<Status> {
    host.reap_all(1).iter().map(|it| it.status()).collect()
}

#[test]
fn commands_wait_over_a_paused_target_and_those_in_it_end() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    write(&mut host, 1, 1);
    pause(&mut host);
    write(&mut host, 2, 2);
    assert_eq!(model.take_seen().len(), 1, "the second is parked");
    assert!(!host.controller.subsystem.is_target_idle(1, 1));
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(statuses(&mut host), [Status::SUCCESS]);
    assert!(host.controller.subsystem.is_target_idle(1, 1));
    model.disk().hold = false;
    resume(&mut host);
    assert_eq!(statuses(&mut host), [Status::SUCCESS]);
    assert_eq!([1, 2].map(|block| model.disk().bytes[block * 512]), [1, 2]);
}

#[test]
fn a_parked_command_comes_back_before_its_host_gives_it_up() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    pause(&mut host);
    write(&mut host, 1, 1);
    for _ in 0..60 {
        host.now_ns += 500 * MS;
        host.run();
    }
    assert_eq!(statuses(&mut host), [Status::COMMAND_INTERRUPTED]);
    resume(&mut host);
    assert_eq!(statuses(&mut host), []);
}

#[test]
fn commands_go_on_at_another_target() {
    let (old, new) = (Model::new(64), Model::new(64));
    let mut host = Host::with_io(&old);
    let before = host.identify(Cns::NAMESPACE_DESCRIPTORS, 1);
    (old.disk().hold, old.disk().aborts) = (true, true);
    write(&mut host, 1, 1);
    pause(&mut host);
    write(&mut host, 2, 2);
    assert_eq!(refused(&mut host, &new), Refusal::Busy, "a command is in it");
    let now_ns = host.now_ns;
    assert!(host.controller.subsystem.clear_target(1, 1, now_ns));
    host.run();
    assert_eq!(statuses(&mut host), [Status::COMMAND_INTERRUPTED]);
    replace(&mut host, &new).expect("nothing is in it");
    resume(&mut host);
    assert_eq!(statuses(&mut host), [Status::SUCCESS]);
    write(&mut host, 3, 3);
    assert_eq!(statuses(&mut host), [Status::SUCCESS]);
    let bytes = [1, 2, 3].map(|block| new.disk().bytes[block * 512]);
    assert_eq!((bytes, old.disk().bytes[1024]), ([0, 2, 3], 0));
    assert_eq!(host.identify(Cns::NAMESPACE_DESCRIPTORS, 1), before);
}

#[test]
fn a_command_that_cannot_be_ended_keeps_its_target() {
    let (old, new) = (Model::new(64), Model::new(64));
    let mut host = Host::with_io(&old);
    old.disk().hold = true;
    write(&mut host, 1, 1);
    pause(&mut host);
    let now_ns = host.now_ns;
    assert!(!host.controller.subsystem.clear_target(1, 1, now_ns));
    assert_eq!(refused(&mut host, &new), Refusal::Busy);
    host.answer(1, &old, 1);
    host.run();
    assert_eq!(statuses(&mut host), [Status::SUCCESS]);
    replace(&mut host, &new).expect("nothing is in it");
}

#[test]
fn a_target_that_is_less_than_the_one_before_is_refused() {
    let old = Model::new(64);
    let mut host = Host::with_io(&old);
    let is = old.disk().is;
    let namespace_size = is.size;
    pause(&mut host);
    let of = |is: Characteristics| Model::with(is);
    let small = of(Characteristics { size: namespace_size / 2, ..is });
    assert_eq!(
        refused(&mut host, &small),
        Refusal::Smaller { has: namespace_size / 2, needs: namespace_size }
    );
    assert_eq!(refused(&mut host, &of(Characteristics { block_size: 4096, ..is })), Refusal::BlockSize(4096));
    let plain = of(Characteristics { deallocated: Deallocated::Unsupported, ..is });
    assert_eq!(refused(&mut host, &plain), Refusal::Deallocate);
    assert_eq!(refused(&mut host, &of(Characteristics { read_only: true, ..is })), Refusal::ReadOnly);
    // The host still has the target of before.
    resume(&mut host);
    write(&mut host, 1, 9);
    assert_eq!((statuses(&mut host), old.disk().bytes[512]), (vec![Status::SUCCESS], 9));
}

#[test]
fn a_larger_target_makes_the_namespace_larger() {
    let (old, new) = (Model::new(64), Model::new(128));
    let mut host = Host::with_io(&old);
    pause(&mut host);
    replace(&mut host, &new).expect("nothing is in it");
    resume(&mut host);
    let page = host.identify(Cns::NAMESPACE, 1).expect("a page");
    assert_eq!(u64::from_le_bytes(page[..8].try_into().expect("8 bytes")), 128);
    write(&mut host, 127, 5);
    assert_eq!((statuses(&mut host), new.disk().bytes[127 * 512]), (vec![Status::SUCCESS], 5));
}

#[test]
fn a_host_that_has_no_volatile_cache_gets_none() {
    let old = Model::with(Characteristics { volatile_cache: false, ..Model::new(64).disk().is });
    let mut host = Host::with_io(&old);
    pause(&mut host);
    assert_eq!(refused(&mut host, &Model::new(64)), Refusal::VolatileCache);
}
