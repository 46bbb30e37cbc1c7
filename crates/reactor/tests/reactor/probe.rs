//! A task that a test controls and that records its events.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sluice_reactor::{Arm, Io, Local, ReactorConfig, ReactorHandle, Task, TaskId};

/// Time limit for a machine that is busy otherwise; nothing here is about speed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Record of a probe, for the test's thread to read.
#[derive(Default)]
pub(crate) struct Memory {
    pub turns: AtomicU64,
    pub arms: AtomicU64,
    pub disarms: AtomicU64,
    /// Work to be found by the next turns.
    pub work: AtomicU64,
    pub events: Mutex<Vec<(u64, i32, bool)>>,
    /// Set when the task is dropped.
    pub dropped: AtomicU64,
}

impl Memory {
    pub(crate) fn event(&self, token: u64) -> Option<i32> {
        let events = self.events.lock().expect("not poisoned");
        events.iter().find(|event| event.0 == token).map(|event| event.1)
    }

    pub(crate) fn count(&self, token: u64) -> usize {
        let events = self.events.lock().expect("not poisoned");
        events.iter().filter(|event| event.0 == token).count()
    }
}

pub(crate) struct Probe {
    pub id: TaskId,
    pub io: Io,
    pub memory: Arc<Memory>,
    pub sleep: Arm,
    /// Objects that must live as long as the task.
    pub holds: Vec<Box<dyn std::any::Any + Send>>,
}

impl Task for Probe {
    fn turn(&mut self, _now_ns: u64) -> usize {
        self.memory.turns.fetch_add(1, SeqCst);
        self.memory.work.swap(0, SeqCst) as usize
    }

    fn event(&mut self, token: u64, result: i32, more: bool, _now_ns: u64) {
        self.memory.events.lock().expect("not poisoned").push((token, result, more));
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        self.memory.arms.fetch_add(1, SeqCst);
        if self.memory.work.load(SeqCst) > 0 { Arm::Busy } else { self.sleep }
    }

    fn disarm(&mut self) {
        self.memory.disarms.fetch_add(1, SeqCst);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.memory.dropped.fetch_add(1, SeqCst);
    }
}

pub(crate) const ASLEEP: Arm = Arm::Asleep { until: None };

pub(crate) fn reactor() -> ReactorHandle {
    ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here")
}

/// Adds a probe that goes to sleep with `sleep` as its result.
pub(crate) fn add(reactor: &ReactorHandle, sleep: Arm) -> (TaskId, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    let of_task = Arc::clone(&memory);
    let make = move |id, io| -> Box<dyn Task> {
        Box::new(Probe { id, io, memory: of_task, sleep, holds: Vec::new() })
    };
    let id = reactor.call(move |local| local.add(make)).expect("an answer");
    (id, memory)
}

/// Runs a closure with a probe and the ring, on the reactor.
pub(crate) fn with<R: Send + 'static>(
    reactor: &ReactorHandle,
    id: TaskId,
    f: impl FnOnce(&mut Probe) -> R + Send + 'static,
) -> R {
    let run = move |local: &mut Local| f(local.task_mut::<Probe>(id).expect("the probe is there"));
    reactor.call(run).expect("an answer")
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the reactor's thread sleeps, and has slept for a while.
#[track_caller]
pub(crate) fn asleep(reactor: &ReactorHandle) {
    let mut before = reactor.counters().turns;
    eventually("the reactor sleeps", || {
        thread::sleep(Duration::from_millis(20));
        let now = reactor.counters().turns;
        std::mem::replace(&mut before, now) == now
    });
}

/// Returns connected stream sockets.
pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a pair")
}

pub(crate) fn new_eventfd(flags: EventfdFlags) -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | flags).expect("an eventfd")
}
