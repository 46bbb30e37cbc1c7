//! Layers with timers.

use crate::host::{Host, entry, identity};
use sluice_command::{Characteristics, Command, Lane, Layer, NodeId, Stack, Ticket};
use sluice_controller::{Config, Controller, Namespace, NamespaceConfig, Subsystem};
use sluice_memory::Space;
use sluice_nvme::Status;
use sluice_nvme::opcode::admin;
use sluice_router::RouterBuilder;
use std::sync::{Arc, Mutex};

/// Returns a namespace whose stack is one layer.
fn namespace(nsid: u32, layer: Box<dyn Layer>) -> Namespace {
    let config = NamespaceConfig { nsid, block_size: 512, uuid: [nsid as u8; 16] };
    let router = RouterBuilder::new(Stack::of(layer)).build();
    Namespace::new(config, router).expect("a namespace that is possible")
}

/// Layer that always has more work, and counts its calls.
struct Busy {
    nsid: u32,
    expired: Arc<Mutex<Vec<u32>>>,
}

impl Layer for Busy {
    fn name(&self) -> &'static str {
        "busy"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn deadline_ns(&self) -> Option<u64> {
        Some(0)
    }

    fn expire(&mut self, _lane: &mut Lane<'_>) {
        self.expired.lock().expect("not poisoned").push(self.nsid);
    }
}

/// Tests that the work of namespaces is spread over turns, since others wait for each turn.
#[test]
fn namespaces_take_turns_when_their_time_has_come() {
    const NAMESPACES: u32 = 10;
    let expired = Arc::<Mutex<Vec<u32>>>::default();
    let busy = |nsid| namespace(nsid, Box::new(Busy { nsid, expired: Arc::clone(&expired) }));
    let mut host = Host::enabled((1..=NAMESPACES).map(busy).collect());
    // Timers are checked when something has moved.
    host.submit(0, entry(admin::KEEP_ALIVE));
    host.turn();
    let mut all = Vec::new();
    for _ in 0..100 {
        expired.lock().expect("not poisoned").clear();
        host.turn();
        let now = std::mem::take(&mut *expired.lock().expect("not poisoned"));
        assert!((1..=4).contains(&now.len()), "{now:?}");
        all.extend(now);
    }
    let next = |nsid: u32| nsid % NAMESPACES + 1;
    assert!(all.windows(2).all(|pair| pair[1] == next(pair[0])), "one after the other: {all:?}");
}

/// Cause that sets the timer of an alarm layer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Winds {
    /// Event, as of an engine that answers.
    Event,
    /// Poll, as of a function's ring or a device.
    Look,
    /// Call from outside, as by an operator.
    Outside,
}

#[derive(Default)]
struct Alarms {
    /// Time of the timer, once it is set.
    next_ns: Option<u64>,
    /// Whether the next poll sets the timer.
    wanted_ns: Option<u64>,
    /// Times of its calls.
    rang_ns: Vec<u64>,
}

/// Layer that sets a timer and never reports work.
struct AlarmClock(Arc<Mutex<Alarms>>);

impl Layer for AlarmClock {
    fn name(&self) -> &'static str {
        "alarm clock"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn event(&mut self, _ticket: Ticket, result: i32, _lane: &mut Lane<'_>) {
        self.0.lock().expect("not poisoned").next_ns = Some(result as u64);
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, _lane: &mut Lane<'_>) -> usize {
        let mut alarms = self.0.lock().expect("not poisoned");
        if let Some(at_ns) = alarms.wanted_ns.take() {
            alarms.next_ns = Some(at_ns);
        }
        0
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.0.lock().expect("not poisoned").next_ns
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        let mut alarms = self.0.lock().expect("not poisoned");
        alarms.next_ns = None;
        alarms.rang_ns.push(lane.now_ns());
    }
}

/// Behaves like a task of a reactor: takes turns, sleeps until its deadline, and takes turns again. Work that
/// is due then must be done then, or the task would be woken for the same time forever.
fn sleep_and_wake(alarms: &Mutex<Alarms>, mut turn: impl FnMut(u64, Option<u64>) -> Option<u64>) {
    let mut now_ns = 1000;
    for (round, winds) in [Winds::Event, Winds::Look, Winds::Outside].into_iter().cycle().take(12).enumerate()
    {
        // An idle turn leaves no work from before.
        assert_eq!(turn(now_ns, None), None, "{winds:?}");
        let due_ns = now_ns + 500;
        let event = match winds {
            Winds::Event => Some(due_ns),
            Winds::Look => {
                alarms.lock().expect("not poisoned").wanted_ns = Some(due_ns);
                None
            }
            Winds::Outside => {
                alarms.lock().expect("not poisoned").next_ns = Some(due_ns);
                None
            }
        };
        let armed_ns = turn(now_ns, event);
        assert_eq!(armed_ns, Some(due_ns), "{winds:?}");
        now_ns = due_ns;
        assert_eq!(turn(now_ns, None), None, "{winds:?}: it is woken for what is over");
        let rang_ns = alarms.lock().expect("not poisoned").rang_ns.clone();
        assert_eq!((rang_ns.len(), rang_ns.last()), (round + 1, Some(&due_ns)), "{winds:?}");
        now_ns += 1000;
    }
}

fn token() -> u64 {
    Subsystem::token_prefix(1, NodeId(0))
}

#[test]
fn a_drive_without_a_host_does_at_a_time_what_it_was_to_be_woken_for() {
    let alarms = Arc::<Mutex<Alarms>>::default();
    let namespaces = vec![namespace(1, Box::new(AlarmClock(Arc::clone(&alarms))))];
    let mut subsystem = Subsystem::new(Config { identity: identity(), namespaces }).expect("a subsystem");
    let nowhere = Space::new();
    sleep_and_wake(&alarms, |now_ns, event| {
        if let Some(result) = event {
            subsystem.event(token(), result as i32, now_ns);
        }
        subsystem.turn(&nowhere, now_ns);
        subsystem.deadline_ns()
    });
}

#[test]
fn a_drive_whose_host_idles_does_at_a_time_what_it_was_to_be_woken_for() {
    for enabled in [true, false] {
        let alarms = Arc::<Mutex<Alarms>>::default();
        let namespaces = vec![namespace(1, Box::new(AlarmClock(Arc::clone(&alarms))))];
        let mut host = if enabled { Host::enabled(namespaces) } else { Host::new(namespaces) };
        sleep_and_wake(&alarms, |now_ns, event| {
            if let Some(result) = event {
                host.controller.subsystem.event(token(), result as i32, now_ns);
            }
            host.controller.turn(&host.space, now_ns);
            host.controller.deadline_ns()
        });
    }
}

/// Call of a layer, with the controller of it.
#[derive(Debug, PartialEq)]
enum Call {
    Poll(u8),
    FollowMemory(u8),
}

/// Layer that records its polls.
struct Polled(Arc<Mutex<Vec<Call>>>);

impl Polled {
    fn record(&self, call: Call) {
        self.0.lock().expect("not poisoned").push(call);
    }
}

impl Layer for Polled {
    fn name(&self) -> &'static str {
        "polled"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(1 << 20, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::SUCCESS);
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, controller: u8, _space: &Space, _lane: &mut Lane<'_>) -> usize {
        self.record(Call::Poll(controller));
        0
    }

    fn follow_memory(&mut self, controller: u8, _space: &Space) {
        self.record(Call::FollowMemory(controller));
    }
}

#[test]
fn a_layer_is_polled_once_in_a_turn_of_all_controllers() {
    let calls = Arc::<Mutex<Vec<Call>>>::default();
    let namespaces = vec![namespace(1, Box::new(Polled(Arc::clone(&calls))))];
    let mut subsystem = Subsystem::new(Config { identity: identity(), namespaces }).expect("a subsystem");
    let mut controllers: Vec<Controller> = Vec::new();
    let turn = |subsystem: &mut Subsystem, controllers: &mut [Controller], now_ns: u64| {
        let space = Space::new();
        controllers.iter_mut().for_each(|it| _ = it.turn(subsystem, &space, now_ns));
        std::mem::take(&mut *calls.lock().expect("not poisoned"))
    };
    let add = |subsystem: &mut Subsystem, controllers: &mut Vec<Controller>| {
        let cntlid = controllers.len() as u16 + 1;
        controllers.push(Controller::new(subsystem, cntlid).expect("a controller"));
    };
    add(&mut subsystem, &mut controllers);
    for now_ns in [1000, 1000, 2000] {
        assert_eq!(turn(&mut subsystem, &mut controllers, now_ns), [Call::Poll(0)]);
    }
    add(&mut subsystem, &mut controllers);
    add(&mut subsystem, &mut controllers);
    // The clock may stand still.
    for now_ns in [3000, 4000, 4000] {
        let found = turn(&mut subsystem, &mut controllers, now_ns);
        assert_eq!(found, [Call::Poll(0), Call::FollowMemory(1), Call::FollowMemory(2)]);
    }
    // The first one has no host any more, and no turn.
    for now_ns in [5000, 6000] {
        let found = turn(&mut subsystem, &mut controllers[1..], now_ns);
        assert_eq!(found, [Call::Poll(1), Call::FollowMemory(2)]);
    }
    // A controller that leaves takes no poll with it.
    while controllers.len() > 1 {
        controllers.pop().expect("a controller").leave(&mut subsystem);
    }
    for now_ns in [7000, 7000] {
        assert_eq!(turn(&mut subsystem, &mut controllers, now_ns), [Call::Poll(0)]);
    }
}
