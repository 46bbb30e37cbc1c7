//! A target on a reactor as storage of a simulated drive. Its answers are delivered in the order of the seed
//! all the same.
//!
//! The target is in a stack of its own. A [`Remote`] in the controller's stack hands it every command at
//! once, so that it has as many at a time as the controller. When the simulation's engine answers one of
//! them, the remote waits until the target has.

use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Origin, Request, Slab, Stack, Ticket,
};
use sluice_memory::{Segment, Space};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_reactor::{Arm, Io, Local, ReactorHandle, Task, TaskId};
use sluice_sim::SimEngine;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time after which a command or the reactor is considered dead. Far too long for both: the process may be
/// stopped meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A command on its way to the target, identified by its ticket in the controller's stack.
struct Order {
    ticket: Ticket,
    request: Request,
    data: Vec<Segment>,
}

/// A target on its reactor, from the outside.
pub(crate) struct Service {
    reactor: ReactorHandle,
    task: TaskId,
    characteristics: Characteristics,
    answers: Receiver<(Ticket, Status)>,
    /// Commands that are not sent yet, in order: the batch ends with the layer's flush.
    held: VecDeque<Order>,
    /// Commands that the target has.
    waiting: BTreeMap<u32, Request>,
    /// Answers that were not taken yet.
    answered: BTreeMap<u32, Status>,
}

impl Service {
    pub(crate) fn open(
        reactor: &ReactorHandle,
        build: impl FnOnce(TaskId, &Io) -> Box<dyn Layer> + Send + 'static,
    ) -> Self {
        let (answer, answers) = channel();
        let make = move |local: &mut Local| {
            let mut characteristics = None;
            let task = local.add(|task, io: Io| {
                let host = Host::new(build(task, &io), answer);
                characteristics = Some(host.stack.characteristics());
                Box::new(host)
            });
            (task, characteristics.expect("it was made"))
        };
        let (task, characteristics) = on(reactor, make);
        Self {
            reactor: reactor.clone(),
            task,
            characteristics,
            answers,
            held: VecDeque::new(),
            waiting: BTreeMap::new(),
            answered: BTreeMap::new(),
        }
    }

    fn send(&mut self) {
        let batch = mem::take(&mut self.held);
        if batch.is_empty() {
            return;
        }
        self.waiting.extend(batch.iter().map(|order| (order.ticket.0, order.request)));
        let task = self.task;
        let submit = move |local: &mut Local| {
            let now_ns = local.now_ns();
            let host = local.task_mut::<Host>(task).expect("it is there until it is closed");
            batch.into_iter().for_each(|order| host.submit(order, now_ns));
        };
        self.reactor.mail(submit).expect("few mails wait");
    }

    /// Returns the result of a command.
    fn answer(&mut self, ticket: Ticket) -> Status {
        loop {
            if let Some(status) = self.answered.remove(&ticket.0) {
                return status;
            }
            self.send();
            assert!(self.receive(), "the target never answers {ticket:?}");
        }
    }

    /// Waits for the next answer.
    fn receive(&mut self) -> bool {
        let Ok((ticket, status)) = self.answers.recv_timeout(PATIENCE) else { return false };
        let was_waiting = self.waiting.remove(&ticket.0).is_some();
        assert!(was_waiting, "the target answers {ticket:?}, which it does not have");
        self.answered.insert(ticket.0, status);
        true
    }

    /// Waits until the kernel does not use any memory of commands.
    fn settle(&mut self) {
        self.held.clear();
        while !self.waiting.is_empty() && self.receive() {}
    }

    /// Ends the target. Returns true if no operation of it was in flight, not even a poll.
    pub(crate) fn close(&mut self) -> bool {
        self.settle();
        let task = self.task;
        on(&self.reactor, move |local: &mut Local| local.remove(task).is_some())
    }
}

/// Runs a closure on the reactor.
fn on<T: Send + 'static>(reactor: &ReactorHandle, f: impl FnOnce(&mut Local) -> T + Send + 'static) -> T {
    let (reply, answer) = channel();
    reactor.mail(move |local| reply.send(f(local)).expect("somebody waits")).expect("few mails wait");
    answer.recv_timeout(PATIENCE).expect("an answer")
}

/// Layer in the controller's stack that represents the target.
pub(crate) struct Remote {
    service: Arc<Mutex<Service>>,
    characteristics: Characteristics,
    engine: SimEngine,
    node: NodeId,
}

impl Remote {
    pub(crate) fn stack(service: Arc<Mutex<Service>>, engine: &SimEngine) -> Stack {
        let node = sluice_command::StackBuilder::new().next_id();
        let characteristics = service.lock().expect("not poisoned").characteristics;
        Stack::of(Box::new(Self { service, characteristics, engine: engine.clone(), node }))
    }
}

impl Layer for Remote {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        self.characteristics
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let (request, data) = (slot.request, slot.data.as_slice().to_vec());
        let ticket = lane.park(command);
        self.engine.start(self.node, ticket);
        self.service.lock().expect("not poisoned").held.push_back(Order { ticket, request, data });
    }

    fn flush(&mut self, _lane: &mut Lane<'_>) {
        self.service.lock().expect("not poisoned").send();
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        // A ticket that was answered before has no command.
        let Some(command) = lane.unpark(ticket) else { return };
        self.engine.finish(ticket);
        let status = self.service.lock().expect("not poisoned").answer(ticket);
        lane.finish(command, status);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The guest's memory is dropped after the controller's.
        self.service.lock().expect("not poisoned").settle();
    }
}

/// The part of a controller around a stack that the target needs.
struct Host {
    slab: Slab,
    stack: Stack,
    done: Vec<Command>,
    answer: Sender<(Ticket, Status)>,
}

impl Host {
    fn new(target: Box<dyn Layer>, answer: Sender<(Ticket, Status)>) -> Self {
        let slab = Slab::new(Limits::new(sluice_controller::COMMANDS_MAX, 0)).expect("memory");
        Self { slab, stack: Stack::of(target), done: Vec::new(), answer }
    }

    fn submit(&mut self, order: Order, now_ns: u64) {
        // The entry has no meaning for a target: it carries the ticket.
        let entry = SubmissionEntry { cdw10: order.ticket.0, ..SubmissionEntry::default() };
        let command = self.slab.admit(&entry, Origin::default()).expect("as much room as the controller's");
        let slot = self.slab.slot_mut(&command);
        slot.request = order.request;
        order.data.into_iter().for_each(|segment| slot.data.push(segment).expect("as many as there were"));
        self.stack.submit(self.stack.root(), command, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn settle(&mut self, now_ns: u64) {
        self.stack.run_completions(&mut self.slab, now_ns, &mut self.done);
        for command in self.done.drain(..) {
            let ticket = Ticket(self.slab.entry(&command).cdw10);
            let status = self.slab.slot(&command).status;
            self.slab.release(command);
            // The receiver is gone if a test has failed.
            let _ = self.answer.send((ticket, status));
        }
    }
}

impl Task for Host {
    fn turn(&mut self, now_ns: u64) -> usize {
        // The memory of the host must not be mapped for a device here.
        let work = self.stack.poll(0, &Space::new(), &mut self.slab, now_ns);
        self.stack.expire(&mut self.slab, now_ns);
        self.settle(now_ns);
        work
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        self.stack.event(NodeId(0), Ticket(token as u32), result, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        match self.stack.arm() {
            true => {
                self.stack.disarm();
                Arm::Busy
            }
            false => Arm::Asleep { until: self.stack.deadline_ns() },
        }
    }

    fn disarm(&mut self) {
        self.stack.disarm();
    }
}
