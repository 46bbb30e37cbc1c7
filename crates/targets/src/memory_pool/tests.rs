//! Drives in a pool of memory, on reactors.

use super::*;
use sluice_command::{Command, Limits, NodeId, Operation, Origin, Request, Slab, Stack, Ticket};
use sluice_memory::{SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_reactor::{Arm, Local, ReactorConfig, Task, TaskHandle};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

mod load;
mod rules;

const MOVE_LIMIT: Duration = Duration::from_secs(20);

/// The part of a controller that a stack needs around it, with memory of a host.
struct Host {
    stack: Stack,
    slab: Slab,
    memory: Arc<SharedRegion>,
    space: Space,
    done: Vec<Command>,
    /// Statuses of the commands that are done, with their tags.
    ended: Vec<(usize, Status)>,
    load: Option<load::Load>,
    is_armed: bool,
}

impl Host {
    fn submit(&mut self, tag: usize, request: Request, at: usize) {
        let origin = Origin { cid: tag as u16, ..Origin::default() };
        let command = self.slab.admit(&SubmissionEntry::default(), origin).expect("room");
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        if request.has_data() {
            slot.data.push(self.memory.segment(at, request.length as u32)).expect("one segment");
        }
        self.stack.submit(self.stack.root(), command, &mut self.slab, sluice_reactor::now_ns());
    }

    fn settle(&mut self, now_ns: u64) -> usize {
        self.stack.run_completions(&mut self.slab, now_ns, &mut self.done);
        let count = self.done.len();
        for command in self.done.drain(..) {
            let slot = self.slab.slot(&command);
            self.ended.push((slot.origin.cid.into(), slot.status));
            self.slab.release(command);
        }
        count
    }
}

impl Task for Host {
    fn turn(&mut self, now_ns: u64) -> usize {
        let mut work = self.stack.poll(0, &self.space, &mut self.slab, now_ns);
        if self.stack.deadline_ns().is_some_and(|at| at <= now_ns) {
            self.stack.expire(&mut self.slab, now_ns);
            work += 1;
        }
        work += self.settle(now_ns);
        if let Some(mut load) = self.load.take() {
            work += load.turn(self);
            self.load = Some(load);
            work += self.settle(now_ns);
        }
        work
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        self.stack.event(NodeId(0), Ticket(token as u32), result, &mut self.slab, now_ns);
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        self.is_armed = true;
        let busy = self.stack.arm() || self.load.as_ref().is_some_and(load::Load::has_work);
        if busy { Arm::Busy } else { Arm::Asleep { until: self.stack.deadline_ns() } }
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.stack.disarm();
        }
    }
}

/// A drive on a reactor, seen from the test.
struct Drive {
    task: TaskHandle,
    memory: Arc<SharedRegion>,
}

fn reactor(name: &str) -> ReactorHandle {
    let config = ReactorConfig { name: name.to_owned(), ..ReactorConfig::default() };
    ReactorHandle::start(config).expect("io_uring works here")
}

impl Drive {
    fn new(pool: &MemoryPool, reactor: &ReactorHandle, size: u64, load: Option<load::Load>) -> Self {
        let port = pool.connect().expect("a port");
        let memory = Arc::new(SharedRegion::new("host", 4 << 20).expect("memory"));
        let of_task = Arc::clone(&memory);
        let task = reactor.call(move |local| {
            local.add(|task, io| {
                let target = port.build(size, task, &io, 0).expect("a place");
                let stack = Stack::of(Box::new(target));
                let slab = Slab::new(Limits::new(64, 0)).expect("memory");
                let (memory, space) = (of_task, Space::new());
                let (done, ended, is_armed) = (Vec::new(), Vec::new(), false);
                Box::new(Host { stack, slab, memory, space, done, ended, load, is_armed })
            })
        });
        Self { task: TaskHandle::new(reactor.clone(), task.expect("an answer")), memory }
    }

    fn call<R: Send + 'static>(&self, f: impl FnOnce(&mut Host) -> R + Send + 'static) -> R {
        let id = self.task.id();
        let call = move |local: &mut Local| f(local.task_mut::<Host>(id).expect("the drive is there"));
        self.task.call(call).expect("an answer")
    }

    fn start(&self, operation: Operation, offset: u64, length: u64) {
        let request = Request { operation, offset, length, ..Request::default() };
        self.call(move |host| host.submit(0, request, 0));
    }

    fn end(&self) -> Status {
        let mut status = None;
        wait_for("the end of a command", || {
            status = self.call(|host| host.ended.pop());
            status.is_some()
        });
        status.expect("it has ended").1
    }

    fn run(&self, operation: Operation, offset: u64, length: u64) -> Status {
        self.start(operation, offset, length);
        self.end()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Status {
        self.memory.write(0, data);
        self.run(Operation::Write, offset, data.len() as u64)
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        self.memory.fill(0, length, 0xee);
        assert_eq!(self.run(Operation::Read, offset, length as u64), Status::SUCCESS);
        let mut data = vec![0; length];
        self.memory.read(0, &mut data);
        data
    }

    fn delete(self) {
        let id = self.task.id();
        self.task.call(move |local| drop(local.remove(id))).expect("an answer");
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: not within a minute");
}

fn free(pool: &MemoryPool) -> u64 {
    pool.status().expect("an answer").free / EXTENT
}
