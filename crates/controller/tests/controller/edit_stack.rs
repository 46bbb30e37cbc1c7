//! Layers that are inserted and taken out while a host uses the namespace.

use crate::host::{Host, PAGE, entry, io};
use crate::model::Model;
use sluice_command::{
    Characteristics, Command, Deallocated, Lane, Layer, NodeId, Opcodes, Passthrough, StackBuilder,
    StackError,
};
use sluice_controller::{EditStackError, Refusal};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Status, SubmissionEntry};

/// Dword 0 of the event: the attributes of a namespace have changed.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;

/// Layer that forwards all, with other characteristics than the layer below it.
#[derive(Clone)]
struct Over {
    /// Change of the characteristics below.
    change: fn(&mut Characteristics),
    /// Whether the layer can be taken out now.
    leaves: bool,
}

impl Layer for Over {
    fn name(&self) -> &'static str {
        "over"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let mut is = below[0].over();
        (self.change)(&mut is);
        is
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.forward(command);
    }

    fn leave(&mut self, _lane: &mut Lane<'_>) -> bool {
        self.leaves
    }
}

fn host_of(model: &Model) -> Host {
    let mut host = Host::enabled(vec![model.namespace_of_blocks(1, 512)]);
    host.create_pair(1, 16);
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    host
}

fn insert(host: &mut Host, nsid: u32, layer: &Over) -> Result<(), Refusal> {
    let layer = Box::new(layer.clone());
    let build = |under: NodeId, stack: &mut StackBuilder| stack.add(layer, &[under]);
    match host.controller.subsystem.insert_layer::<StackError>(nsid, 0, build) {
        Ok(()) => Ok(()),
        Err(EditStackError::Refused(why)) => Err(why),
        Err(EditStackError::Build(error)) => panic!("{error:?}"),
    }
}

fn take_out(host: &mut Host) -> Result<(), Refusal> {
    let now_ns = host.now_ns;
    host.controller.subsystem.take_out_layer(1, 0, now_ns)
}

/// Returns whether the host is notified of a change.
fn is_notified(host: &mut Host) -> bool {
    host.run();
    let event = host.reap(0).map(|completion| completion.dw0);
    assert!(event.is_none_or(|dw0| dw0 == NAMESPACE_CHANGED));
    event.is_some()
}

fn read(host: &mut Host) -> Status {
    let buffer = host.allocate(PAGE);
    host.io(io(opcode::READ, 0, 1, buffer))
}

/// Checks what a layer may change under a host, and what the host is notified of.
#[test]
fn a_layer_changes_nothing_that_a_host_relies_on() {
    type Change = fn(&mut Characteristics);
    let cases: [(Change, Result<bool, Refusal>); 11] = [
        (|_| (), Ok(false)),
        (|is| is.fan_out += 1, Ok(false)),
        (|is| is.requests += 1, Ok(false)),
        (|is| is.keeps_versions = true, Ok(false)),
        (|is| is.optimal_write *= 2, Ok(true)),
        (|is| is.block_size = 512, Ok(false)),
        (|is| is.block_size = 4096, Err(Refusal::BlockSize(4096))),
        (|is| is.size -= 512, Err(Refusal::Size)),
        (|is| is.size += 512, Err(Refusal::Size)),
        (|is| is.deallocated = Deallocated::Unsupported, Err(Refusal::Deallocate)),
        (|is| is.deallocated = Deallocated::Indeterminate, Ok(true)),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let model = Model::new(64);
        let mut host = host_of(&model);
        let result = insert(&mut host, 1, &Over { change, leaves: true });
        let notified = is_notified(&mut host);
        assert_eq!(result.map(|()| notified), expected, "case {number}");
        assert!(!notified || expected == Ok(true), "case {number}");
        assert_eq!(read(&mut host), Status::SUCCESS);
        if expected.is_ok() {
            host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
            host.log(sluice_nvme::LogId::CHANGED_NAMESPACE_LIST, PAGE).expect("a list");
            assert_eq!(take_out(&mut host), Ok(()), "case {number}");
            assert_eq!(is_notified(&mut host), expected == Ok(true), "case {number}");
            assert_eq!(read(&mut host), Status::SUCCESS);
        }
    }
}

#[test]
fn a_volatile_cache_may_go_and_may_not_come() {
    for cached in [false, true] {
        let model = Model::with(Characteristics { volatile_cache: cached, ..Model::new(64).disk().is });
        let mut host = host_of(&model);
        let expected = if cached { Ok(()) } else { Err(Refusal::VolatileCache) };
        let with_cache = Over { change: |is| is.volatile_cache = true, leaves: true };
        assert_eq!(insert(&mut host, 1, &with_cache), expected);
        let without = Over { change: |is| is.volatile_cache = false, leaves: true };
        assert_eq!(insert(&mut host, 1, &without), Ok(()));
    }
}

#[test]
fn layers_change_while_nothing_is_under_way() {
    let model = Model::new(64);
    let mut host = host_of(&model);
    let layer = Over { change: |_| (), leaves: true };
    assert_eq!(insert(&mut host, 2, &layer), Err(Refusal::NoSuchNamespace(2)));
    assert_eq!(host.controller.subsystem.can_do_without_layer(2, 0), Err(Refusal::NoSuchNamespace(2)));
    assert!(matches!(take_out(&mut host), Err(Refusal::Stack(StackError::NoSuchLayer(_)))));
    assert_eq!(insert(&mut host, 1, &layer), Ok(()));
    model.disk().hold = true;
    host.submit(1, SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) });
    host.run();
    assert_eq!(insert(&mut host, 1, &layer), Err(Refusal::NotQuiet));
    assert_eq!(take_out(&mut host), Err(Refusal::NotQuiet));
    host.answer(1, &model, 1);
    host.run();
    host.reap_all(1);
    host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
    host.run();
    assert_eq!(insert(&mut host, 1, &layer), Err(Refusal::Formatted));
    assert_eq!(take_out(&mut host), Err(Refusal::Formatted));
}

#[test]
fn a_layer_that_is_busy_stays() {
    let mut host = host_of(&Model::new(64));
    assert_eq!(insert(&mut host, 1, &Over { change: |_| (), leaves: false }), Ok(()));
    assert_eq!(host.controller.subsystem.can_do_without_layer(1, 0), Ok(()));
    assert_eq!(take_out(&mut host), Err(Refusal::Busy));
    assert_eq!(read(&mut host), Status::SUCCESS);
    let later = Over { change: |is| is.deallocated = Deallocated::Zeroes, leaves: true };
    assert_eq!(insert(&mut host, 1, &later), Ok(()));
    assert_eq!(take_out(&mut host), Ok(()));
    assert_eq!(take_out(&mut host), Err(Refusal::Busy));
}

/// Checks that no command goes past a layer to the device below as its host wrote it.
#[test]
fn commands_for_a_device_do_not_go_past_a_new_layer() {
    let io_opcodes = Opcodes::NONE.and(opcode::VERIFY);
    let passthrough = Passthrough { admin: Opcodes::NONE, io: io_opcodes };
    let device = Model::with(Characteristics { passthrough, ..Characteristics::target(64 << 10, 512) });
    let mut host = host_of(&device);
    let passes = |host: &mut Host| {
        assert_eq!(host.io(io(opcode::VERIFY, 0, 1, 0)), Status::SUCCESS);
        std::mem::take(&mut device.disk().passed).len()
    };
    assert_eq!(passes(&mut host), 1);
    let layer = Over { change: |is| is.passthrough = Passthrough::NONE, leaves: true };
    assert_eq!(insert(&mut host, 1, &layer), Ok(()));
    assert_eq!(passes(&mut host), 0);
    assert_eq!(take_out(&mut host), Ok(()));
    assert_eq!(passes(&mut host), 1);
}
