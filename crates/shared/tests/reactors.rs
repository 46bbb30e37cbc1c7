//! Users of a shared object on two reactors, while the users and the object move and the reactors stall.

use sluice_reactor::{Arm, FileSlot, Io, Local, ReactorConfig, ReactorHandle, Task, TaskHandle, TaskId};
use sluice_shared::{Object, Port, PortNumber, Refused, SharedObject, Unit};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const UNITS: usize = 300;
const USERS: usize = 8;
const MOVE_LIMIT: Duration = Duration::from_secs(10);

/// Units with their owners, on the home reactor.
struct Units(Vec<Option<PortNumber>>);

impl Object for Units {
    fn take(&mut self, port: PortNumber) -> Option<Unit> {
        let unit = self.0.iter().position(Option::is_none)?;
        self.0[unit] = Some(port);
        Some(unit as Unit)
    }

    fn give_back(&mut self, port: PortNumber, unit: Unit) {
        assert_eq!(self.0[unit as usize].take(), Some(port));
    }

    fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool {
        self.0.iter_mut().filter(|owner| **owner == Some(port)).take(limit).for_each(|owner| *owner = None);
        self.0.iter().all(|owner| *owner != Some(port))
    }
}

/// State that all users reach.
struct Common {
    in_use: Vec<AtomicBool>,
    done: AtomicU64,
    refused: AtomicU64,
    stops: AtomicBool,
}

/// A user that takes up to 40 units, command after command, and gives them back.
struct User {
    port: Port,
    common: Arc<Common>,
    used: Vec<Unit>,
    round: usize,
    stopped: bool,
    _notifier: FileSlot,
}

impl User {
    fn add(local: &mut Local, port: Port, common: Arc<Common>, round: usize) -> TaskId {
        local.add(|task: TaskId, io: Io| {
            let eventfd = port.as_fd().try_clone_to_owned().expect("a descriptor");
            let notifier = io.register_file(eventfd).expect("a place");
            io.watch(&notifier, task, 0);
            Box::new(Self { port, common, used: Vec::new(), round, stopped: false, _notifier: notifier })
        })
    }

    fn need(&self) -> usize {
        1 + self.round * 7 % 20
    }

    fn take(&mut self) {
        for _ in 0..self.need() {
            let unit = self.port.take().expect("credit");
            assert!(!self.common.in_use[unit as usize].swap(true, SeqCst), "unit {unit} has two users");
            self.used.push(unit);
        }
        self.common.done.fetch_add(1, SeqCst);
        self.round += 1;
    }

    fn give_back(&mut self, keep: usize) -> usize {
        let before = self.used.len();
        while self.used.len() > keep
            && let Some(unit) = self.used.pop()
        {
            self.common.in_use[unit as usize].store(false, SeqCst);
            if self.port.give_back(unit).is_err() {
                self.common.in_use[unit as usize].store(true, SeqCst);
                self.used.push(unit);
                break;
            }
        }
        before - self.used.len()
    }
}

impl Task for User {
    fn turn(&mut self, _now_ns: u64) -> usize {
        let received = self.port.receive();
        let mut work = received.messages;
        if received.refused {
            self.common.refused.fetch_add(1, SeqCst);
            work += self.give_back(self.round % 9);
            self.round += 1;
        }
        if self.common.stops.load(SeqCst) {
            work += self.give_back(0);
            if self.used.is_empty() && !self.port.is_requesting() {
                self.port.give_back_credit();
                self.stopped = true;
            }
        } else if self.need() <= self.port.credit() {
            self.take();
            self.port.refill();
            work += 1 + if self.used.len() > 40 { self.give_back(4) } else { 0 };
        } else {
            self.port.request(self.need());
        }
        self.port.finish();
        work
    }

    fn event(&mut self, _token: u64, _result: i32, _more: bool, _now_ns: u64) {}

    fn arm(&mut self, _now_ns: u64) -> Arm {
        let waits = !self.port.is_requesting() && !self.stopped;
        if waits || self.port.arm() { Arm::Busy } else { Arm::Asleep { until: None } }
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // The port is closed after this, and the home then reclaims the units.
        self.used.iter().for_each(|unit| self.common.in_use[*unit as usize].store(false, SeqCst));
    }
}

fn start(name: &str) -> ReactorHandle {
    ReactorHandle::start(ReactorConfig { name: name.to_owned(), ..ReactorConfig::default() })
        .expect("a reactor")
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen within a minute");
}

#[test]
fn users_move_between_reactors_and_nothing_is_lost() {
    let reactors = [start("first"), start("second")];
    let object = SharedObject::start(&reactors[0], Units(vec![None; UNITS])).expect("an object");
    let common = Arc::new(Common {
        in_use: (0..UNITS).map(|_| AtomicBool::new(false)).collect(),
        done: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        stops: AtomicBool::new(false),
    });
    let add = |number: usize| {
        let (port, common) = (object.connect().expect("a port"), Arc::clone(&common));
        let reactor = &reactors[number % 2];
        let task = reactor.call(move |local| User::add(local, port, common, number)).expect("a user");
        TaskHandle::new(reactor.clone(), task)
    };
    let users: Vec<_> = (0..USERS).map(add).collect();

    for step in 0..400 {
        let user = &users[step * 5 % USERS];
        let other = usize::from(user.reactor().is(&reactors[0]));
        user.move_to(&reactors[other], MOVE_LIMIT).expect("the user moves");
        if step % 100 == 50 {
            object.move_to(&reactors[step / 100 % 2], MOVE_LIMIT).expect("the object moves");
        }
        if step % 150 == 75 {
            reactors[step % 2].mail(|_| thread::sleep(Duration::from_millis(300))).expect("room");
        }
    }
    let done = common.done.load(SeqCst);
    wait_for("further work", || common.done.load(SeqCst) > done + 1_000);
    assert!(common.refused.load(SeqCst) > 0, "the object never was too small");
    assert!(matches!(object.remove(), Err(Refused::InUse(USERS))));

    // Half of the users end with units in use, and the others give all back.
    let (ending, stopping) = users.split_at(USERS / 2);
    for user in ending {
        let id = user.id();
        user.call(move |local| drop(local.remove(id))).expect("the user ends");
    }
    wait_for("the end of ports", || object.ports() == USERS / 2);
    common.stops.store(true, SeqCst);
    for user in stopping {
        let id = user.id();
        user.call(move |local| local.wake(id)).expect("the user wakes");
    }
    let free =
        || object.read(|units| units.0.iter().filter(|owner| owner.is_none()).count()).expect("an answer");
    wait_for("the return of all units", || free() == UNITS);
    for user in stopping {
        let id = user.id();
        user.call(move |local| drop(local.remove(id))).expect("the user ends");
    }
    wait_for("the end of ports", || object.ports() == 0);
    object.remove().expect("nothing uses the object");
    assert!(matches!(object.connect(), Err(Refused::Gone)));
}
