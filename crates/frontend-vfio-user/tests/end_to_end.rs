//! Sluice's own host against a real controller, through the socket.

mod rig;

use rig::{Scratch, controller, eventually, start_reactor};
use sluice_command::StackBuilder;
use sluice_controller::Attached;
use sluice_frontend_vfio_user::{Config, DoorbellPolicy, Endpoint, Listener, Status};
use sluice_functions::{Delay, DelayConfig};
use sluice_host::{Deadline, Mode, QueueLayout, Settings, VfioUser, entry, pci};
use sluice_reactor::{Local, ReactorHandle, TaskId};
use sluice_targets::Memory;
use sluice_vfio_user::Command;
use sluice_vfio_user::dma::DmaUnmap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Time limit of each operation, after which the test fails.
const LIMIT: Duration = Duration::from_secs(60);

const SIZE: u64 = 16 << 20;

/// Drive with one namespace in memory, whose reads can be delayed.
struct Drive {
    reactor: ReactorHandle,
    task: TaskId,
    socket: PathBuf,
}

impl Drive {
    fn add(reactor: &ReactorHandle, directory: PathBuf, read_ns: u64) -> Self {
        let listener = Listener::bind(&directory, 0o600).expect("bound");
        let socket = listener.path().to_owned();
        let task = reactor
            .call(move |local| {
                local.add(|task, io| {
                    let config = Config { name: "test".to_owned(), ..Config::default() };
                    Box::new(Endpoint::new(task, io, listener, delayed(read_ns), config))
                })
            })
            .expect("the reactor runs");
        Self { reactor: reactor.clone(), task, socket }
    }

    fn transport(&self, mode: Mode) -> Arc<VfioUser> {
        Arc::new(VfioUser::connect(&self.socket, mode, LIMIT).expect("connected"))
    }

    fn start(&self, mode: Mode, shadow_doorbells: bool) -> sluice_host::Controller {
        let settings = Settings { timeout: LIMIT, shadow_doorbells, ..Settings::default() };
        sluice_host::Controller::start(self.transport(mode), settings).expect("enabled")
    }

    fn ask<R: Send + 'static>(&self, question: fn(&Endpoint) -> R) -> R {
        let task = self.task;
        let ask = move |local: &mut Local| question(local.task(task).expect("it is there"));
        self.reactor.call(ask).expect("the reactor runs")
    }

    fn status(&self) -> Status {
        self.ask(Endpoint::status)
    }

    fn wait_for_commands(&self, count: u32) {
        // On a busy machine the first command may have completed before the last is seen.
        let taken = |endpoint: &Endpoint| {
            let controller = endpoint.device();
            u64::from(controller.in_flight()) + controller.subsystem.statistics().commands
        };
        eventually("the commands are taken", || self.ask(taken) >= u64::from(count));
    }
}

/// Makes a controller over memory whose reads take `read_ns`.
fn delayed(read_ns: u64) -> Attached {
    let mut stack = StackBuilder::new();
    let memory = stack.add(Box::new(Memory::new(SIZE).expect("memory")), &[]).expect("one layer");
    let delay = DelayConfig { read_ns, write_ns: 0, flush_ns: 0, held_max: 1024 };
    stack.add(Box::new(Delay::new(delay)), &[memory]).expect("two layers");
    controller(stack.build())
}

struct Rig {
    reactor: ReactorHandle,
    drive: Drive,
    scratch: Scratch,
}

impl Rig {
    fn new(read_ns: u64) -> Self {
        let scratch = Scratch::new();
        let reactor = start_reactor();
        let drive = Drive::add(&reactor, scratch.path().join("first"), read_ns);
        Self { reactor, drive, scratch }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.reactor.clone().stop();
    }
}

/// Returns bytes that differ at each place.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..length as u64 / 8).map(|i| (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes and reads back, in transfers from one block to many pages.
fn exercise(controller: &mut sluice_host::Controller) {
    let layout = QueueLayout { entries: 64, max_transfer: 128 << 10 };
    controller.set_queue_count(4).expect("granted");
    let queue = controller.create_queue_pair(1, layout, None).expect("created");
    assert_eq!(controller.active_namespaces().expect("a list"), [1]);
    let mut namespace = sluice_host::Namespace::open(controller, 1, queue).expect("opened");
    assert_eq!(namespace.block_size(), 512);
    for (slba, length) in [(0, 512), (1, 4096), (100, 8192), (1000, 128 << 10), (9000, 1 << 20)] {
        let written = pattern(slba, length);
        namespace.write(slba, &written).expect("written");
        let mut read = vec![0; length];
        namespace.read(slba, &mut read).expect("read");
        assert!(read == written, "{length} bytes at {slba}");
    }
    controller.delete_queue_pair(namespace.into_queue()).expect("deleted");
}

#[test]
fn mapped_doorbells() {
    let rig = Rig::new(0);
    exercise(&mut rig.drive.start(Mode::Mapped, false));
    assert_eq!(rig.drive.status().counters.doorbells, 0);
}

#[test]
fn trapped_doorbells() {
    let rig = Rig::new(0);
    exercise(&mut rig.drive.start(Mode::Trapped, false));
    assert!(rig.drive.status().counters.doorbells > 0);
}

#[test]
fn shadow_doorbells() {
    let rig = Rig::new(0);
    let mut controller = rig.drive.start(Mode::Trapped, true);
    assert!(controller.has_shadow_doorbells());
    exercise(&mut controller);
}

#[test]
fn a_sleeping_server_is_woken_every_time() {
    let rig = Rig::new(0);
    for shadow_doorbells in [true, false] {
        let mut controller = rig.drive.start(Mode::Trapped, shadow_doorbells);
        let queue = controller.create_queue_pair(1, QueueLayout::default(), None).expect("created");
        let mut namespace = sluice_host::Namespace::open(&mut controller, 1, queue).expect("opened");
        let mut block = [0; 512];
        for _ in 0..200 {
            // This is longer than the reactor spins, now and then.
            std::thread::sleep(Duration::from_micros(200));
            namespace.read(0, &mut block).expect("read");
        }
    }
}

/// Conformance: PCIe 3.5, each completion queue interrupts by its MSI-X vector.
#[test]
fn completions_interrupt() {
    let rig = Rig::new(0);
    let mut controller = rig.drive.start(Mode::Trapped, true);
    let interrupt = controller.interrupt(3).expect("wired");
    let mut queue = controller.create_queue_pair(1, QueueLayout::default(), Some(3)).expect("created");
    let buffer = controller.memory().allocate(4096).expect("memory");
    for slba in 0..200 {
        let cid = queue.submit_prp(entry::read(1, slba, 8), buffer.range(0, 4096)).expect("room");
        queue.ring().expect("rung");
        let deadline = Deadline::after(LIMIT, "an interrupt");
        let completion = queue.wait_for_interrupt(cid, &interrupt, &deadline, |_| ()).expect("completed");
        assert!(completion.status().is_success());
    }
}

/// Starts a controller whose reads take long, with a hundred of them in flight.
fn with_reads_in_flight(rig: &Rig) -> (sluice_host::Controller, sluice_host::QueuePair) {
    let mut controller = rig.drive.start(Mode::Trapped, false);
    let mut queue = controller.create_queue_pair(1, QueueLayout::default(), None).expect("created");
    let buffer = controller.memory().allocate(4096).expect("memory");
    for _ in 0..100 {
        queue.submit_prp(entry::read(1, 0, 8), buffer.range(0, 4096)).expect("room");
    }
    queue.ring().expect("rung");
    rig.drive.wait_for_commands(100);
    (controller, queue)
}

/// Delay long enough for a reset to arrive before the reads are done, and short enough to wait for.
const SLOW_NS: u64 = 50_000_000;

#[test]
fn a_device_reset_under_load() {
    let rig = Rig::new(SLOW_NS);
    let (mut controller, _queue) = with_reads_in_flight(&rig);
    controller.transport().reset().expect("reset");
    assert_eq!(controller.read32(sluice_nvme::register::CSTS).expect("a register"), 0);
    assert_eq!(controller.read32(sluice_nvme::register::CC).expect("a register"), 0);
    controller.enable().expect("enabled again");
    exercise(&mut controller);
}

/// Conformance: Base 3.7.2, a function level reset under load leaves nothing behind.
#[test]
fn a_function_level_reset_under_load() {
    let rig = Rig::new(SLOW_NS);
    let (mut controller, _queue) = with_reads_in_flight(&rig);
    pci::function_level_reset(&**controller.transport()).expect("reset");
    controller.enable().expect("enabled again");
    exercise(&mut controller);
}

/// Conformance: Base 3.7.2, a controller reset under load leaves nothing behind.
#[test]
fn a_controller_reset_under_load() {
    let rig = Rig::new(SLOW_NS);
    let (mut controller, _queue) = with_reads_in_flight(&rig);
    controller.enable().expect("disabled and enabled again");
    exercise(&mut controller);
}

#[test]
fn a_client_that_dies_under_load_and_the_next_one() {
    let rig = Rig::new(SLOW_NS);
    let neighbour = Drive::add(&rig.reactor, rig.scratch.path().join("second"), 0);
    for _ in 0..3 {
        let (controller, queue) = with_reads_in_flight(&rig);
        drop((controller, queue));
        exercise(&mut neighbour.start(Mode::Mapped, false));
    }
    exercise(&mut rig.drive.start(Mode::Mapped, false));
    eventually("all memory is returned", || rig.drive.status().regions == 0);
}

#[test]
fn an_unmap_under_load_waits_for_the_reads_into_it() {
    let rig = Rig::new(SLOW_NS);
    let mut controller = rig.drive.start(Mode::Trapped, false);
    let mut queue = controller.create_queue_pair(1, QueueLayout::default(), None).expect("created");
    let buffer = controller.memory().allocate(4096).expect("memory");
    let cid = queue.submit_prp(entry::read(1, 0, 8), buffer.range(0, 4096)).expect("room");
    queue.ring().expect("rung");
    rig.drive.wait_for_commands(1);
    controller.transport().unmap(buffer.iova(), 4096).expect("unmapped");
    // The read has completed by now, with success; the test need not wait for it.
    let mut done = Vec::new();
    queue.reap(|completion| done.push((completion.cid, completion.status().is_success())));
    assert_eq!(done, [(cid, true)]);
}

#[test]
fn queues_whose_memory_is_unmapped_are_dead_and_hurt_nobody() {
    let rig = Rig::new(0);
    let neighbour = Drive::add(&rig.reactor, rig.scratch.path().join("second"), 0);
    let transport = rig.drive.transport(Mode::Trapped);
    // Commands without an answer time out soon.
    let settings = Settings { timeout: Duration::from_millis(200), ..Settings::default() };
    let mut controller = sluice_host::Controller::start(transport.clone(), settings).expect("enabled");
    let all = DmaUnmap { argsz: 24, flags: DmaUnmap::ALL, address: 0, size: 0 };
    transport.client().call(Command::DMA_UNMAP, all.as_bytes(), &[], &[]).expect("unmapped");
    assert!(controller.identify_namespace(1).is_err());
    let status = || controller.read32(sluice_nvme::register::CSTS).expect("a register");
    eventually("the controller is in fatal status", || status() & sluice_nvme::register::csts::CFS != 0);
    exercise(&mut neighbour.start(Mode::Trapped, true));
}

#[test]
fn every_policy_serves_an_independent_client() {
    let scratch = Scratch::new();
    let reactor = start_reactor();
    for (number, doorbells) in
        [DoorbellPolicy::Auto, DoorbellPolicy::Trapped, DoorbellPolicy::Mapped].into_iter().enumerate()
    {
        let listener = Listener::bind(&scratch.path().join(number.to_string()), 0o600).expect("bound");
        let socket = listener.path().to_owned();
        let add = move |local: &mut Local| {
            local.add(|task, io| {
                let config = Config { doorbells, ..Config::default() };
                Box::new(Endpoint::new(task, io, listener, delayed(0), config))
            })
        };
        reactor.call(add).expect("the reactor runs");
        let mut client = vfio_user::Client::new(&socket).expect("connected");
        let mut version = [0; 4];
        client.region_read(0, 8, &mut version).expect("VS");
        assert_eq!(version, 0x0002_0000u32.to_le_bytes());
        assert_eq!(client.region(0).is_some_and(|bar| !bar.sparse_areas.is_empty()), number == 2);
    }
    reactor.stop();
}
