//! The file target as storage of a simulated drive: real files, a real ring, and the order of the answers
//! decided by the seed all the same.
//!
//! The target is on a reactor, in a stack of its own. A [`Remote`] in the controller's stack hands it every
//! command at once, so that the kernel has as many at a time as the controller. When the simulation's
//! engine answers one of them, the remote waits until the file has.

use sluice_command::{
    Characteristics, Command, Lane, Layer, Limits, NodeId, Origin, Request, Slab, Stack, Ticket,
};
use sluice_memory::Segment;
use sluice_nvme::{Status, SubmissionEntry};
use sluice_reactor::{Arm, Io, Local, ReactorHandle, Task, TaskId};
use sluice_sim::SimEngine;
use sluice_targets::{File, FileConfig, FileSeed};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{fs, mem};

/// When a command or the reactor will not answer any more. Far too long for both: the process may be
/// stopped meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(parent: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-sim-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = parent.join(name);
        fs::create_dir(&path).expect("a temporary folder can be written");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left shows which test it was.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file that outlives the controllers over it, as disks do.
pub(crate) struct FileDisk {
    reactor: ReactorHandle,
    config: FileConfig,
    service: RefCell<Option<Rc<RefCell<Service>>>>,
}

impl FileDisk {
    pub(crate) fn new(reactor: ReactorHandle, config: FileConfig) -> Self {
        Self { reactor, config, service: RefCell::new(None) }
    }

    /// Opens the file anew: whoever had it open is gone, with what was in flight done or failed.
    pub(crate) fn stack(&self, engine: &SimEngine) -> Stack {
        if let Some(before) = self.service.take() {
            before.borrow_mut().close();
        }
        let seed = FileSeed::open(&self.config).expect("nobody else has the file");
        let service = Rc::new(RefCell::new(Service::open(&self.reactor, seed)));
        *self.service.borrow_mut() = Some(Rc::clone(&service));
        let node = sluice_command::StackBuilder::new().next_id();
        let characteristics = service.borrow().characteristics;
        Stack::of(Box::new(Remote { service, characteristics, engine: engine.clone(), node }))
    }
}

/// A command on its way to the target, named by the ticket it has with the controller.
struct Order {
    ticket: Ticket,
    request: Request,
    data: Vec<Segment>,
}

/// A file target on its reactor, from the outside.
struct Service {
    reactor: ReactorHandle,
    task: TaskId,
    characteristics: Characteristics,
    answers: Receiver<(Ticket, Status)>,
    /// Not sent yet, in their order: the batch ends with the layer's flush.
    held: VecDeque<Order>,
    /// What the target has.
    waiting: BTreeMap<u32, Request>,
    /// Answers that were not asked for yet.
    answered: BTreeMap<u32, Status>,
}

impl Service {
    fn open(reactor: &ReactorHandle, seed: FileSeed) -> Self {
        let (answer, answers) = channel();
        let make = move |local: &mut Local| {
            let mut characteristics = None;
            let task = local.add(|task, io: Io| {
                let host = Host::new(seed.build(task, &io, 0).expect("room for two files"), answer);
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

    /// What came of a command.
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

    /// Until the kernel does not use anybody's memory any more.
    fn settle(&mut self) {
        self.held.clear();
        while !self.waiting.is_empty() && self.receive() {}
    }

    fn close(&mut self) {
        self.settle();
        let task = self.task;
        let closed = on(&self.reactor, move |local: &mut Local| local.remove(task).is_some());
        assert!(closed, "nothing is in flight");
    }
}

/// Runs something on the reactor.
fn on<T: Send + 'static>(reactor: &ReactorHandle, f: impl FnOnce(&mut Local) -> T + Send + 'static) -> T {
    let (reply, answer) = channel();
    reactor.mail(move |local| reply.send(f(local)).expect("somebody waits")).expect("few mails wait");
    answer.recv_timeout(PATIENCE).expect("an answer")
}

/// The target's place in the controller's stack.
struct Remote {
    service: Rc<RefCell<Service>>,
    characteristics: Characteristics,
    engine: SimEngine,
    node: NodeId,
}

impl Layer for Remote {
    fn name(&self) -> &'static str {
        "file"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        self.characteristics
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        let (request, data) = (slot.request, slot.data.as_slice().to_vec());
        let ticket = lane.park(command);
        self.engine.start(self.node, ticket);
        self.service.borrow_mut().held.push_back(Order { ticket, request, data });
    }

    fn flush(&mut self, _lane: &mut Lane<'_>) {
        self.service.borrow_mut().send();
    }

    fn event(&mut self, ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        // A ticket that was answered before is good for nothing.
        let Some(command) = lane.unpark(ticket) else { return };
        self.engine.finish(ticket);
        let status = self.service.borrow_mut().answer(ticket);
        lane.finish(command, status);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The guest's memory goes after the controller's.
        self.service.borrow_mut().settle();
    }
}

/// What a controller does around a stack, and no more.
struct Host {
    slab: Slab,
    stack: Stack,
    done: Vec<Command>,
    answer: Sender<(Ticket, Status)>,
}

impl Host {
    fn new(target: File, answer: Sender<(Ticket, Status)>) -> Self {
        let slab = Slab::new(Limits::new(sluice_controller::COMMANDS_MAX, 0)).expect("memory");
        Self { slab, stack: Stack::of(Box::new(target)), done: Vec::new(), answer }
    }

    fn submit(&mut self, order: Order, now_ns: u64) {
        // The entry means nothing to a target: it carries the name.
        let entry = SubmissionEntry { cdw10: order.ticket.0, ..SubmissionEntry::default() };
        let command = self.slab.admit(&entry, Origin::default()).expect("as much room as the controller's");
        let slot = self.slab.slot_mut(&command);
        slot.request = order.request;
        order.data.into_iter().for_each(|segment| slot.data.push(segment).expect("as many as there were"));
        self.stack.submit(self.stack.root(), command, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn settle(&mut self, now_ns: u64) {
        self.stack.settle(&mut self.slab, now_ns, &mut self.done);
        for command in self.done.drain(..) {
            let ticket = Ticket(self.slab.entry(&command).cdw10);
            let status = self.slab.slot(&command).status;
            self.slab.release(command);
            // Nobody listens any more when a test has failed.
            let _ = self.answer.send((ticket, status));
        }
    }
}

impl Task for Host {
    fn turn(&mut self, now_ns: u64) -> usize {
        self.stack.expire(&mut self.slab, now_ns);
        self.settle(now_ns);
        0
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        self.stack.event(NodeId(0), Ticket(token as u32), result, &mut self.slab, now_ns);
        self.settle(now_ns);
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Asleep { until: self.stack.deadline_ns() }
    }
}
