//! Endpoint on a real reactor, over a target whose commands a test holds, and a client that can send any
//! message.
#![allow(dead_code, reason = "each test file uses its part of it")]

pub(crate) mod driver;
mod peer;
pub(crate) mod rings;
mod target;

use driver::Driver;
pub(crate) use peer::{Peer, eventually};
use target::{Gate, GatedTarget};

use sluice_command::Stack;
use sluice_controller::{
    Attached, Config as ControllerConfig, DoorbellMode, Identity, Namespace, NamespaceConfig, SubsystemRecord,
};
use sluice_frontend_vfio_user::{
    Config, DoorbellPolicy, Endpoint, IncomingSocket, Listener, SocketRecord, Status,
};
use sluice_nvme::register::DOORBELLS;
use sluice_reactor::{IdlePolicy, ReactorConfig, ReactorHandle, TaskHandle, TaskId};
use sluice_router::RouterBuilder;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Directory of the test, removed in the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-frontend-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn start_reactor() -> ReactorHandle {
    let idle = IdlePolicy { poll_interval_max_ns: 1_000_000, ..IdlePolicy::default() };
    ReactorHandle::start(ReactorConfig { idle, ..ReactorConfig::default() }).expect("io_uring works here")
}

/// Makes a controller with one namespace on a stack.
pub(crate) fn controller(stack: Stack) -> Attached {
    let identity = Identity {
        subnqn: "nqn.2026-11.example.sluice:test".to_owned(),
        serial: "S-1".to_owned(),
        model: "test".to_owned(),
        firmware: "1".to_owned(),
    };
    let config = NamespaceConfig { nsid: 1, block_size: 512, uuid: [7; 16] };
    let namespace = Namespace::new(config, RouterBuilder::new(stack).build()).expect("a namespace");
    Attached::new(ControllerConfig { identity, namespaces: vec![namespace] }).expect("memory")
}

/// Endpoint over a target with a gate.
pub(crate) struct Drive {
    reactor: ReactorHandle,
    task: TaskId,
    gate: Arc<Mutex<Gate>>,
    pub(crate) directory: PathBuf,
}

impl Drive {
    /// Adds an endpoint to a reactor.
    pub(crate) fn add(reactor: &ReactorHandle, directory: PathBuf, doorbells: DoorbellPolicy) -> Self {
        let gate = Arc::new(Mutex::new(Gate::default()));
        let listener = Listener::bind(&directory, 0o600).expect("bound");
        let config = Config { name: "test".to_owned(), doorbells, ..Config::default() };
        let target = GatedTarget::new(Arc::clone(&gate));
        let task = reactor
            .call(move |local| {
                local.add(|task, io| {
                    let device = controller(Stack::of(Box::new(target)));
                    Box::new(Endpoint::new(task, io, listener, device, config))
                })
            })
            .expect("the reactor runs");
        Self { reactor: reactor.clone(), task, gate, directory }
    }

    /// Connects, and sends nothing.
    pub(crate) fn connect(&self) -> Peer {
        Peer::connect(&self.directory)
    }

    /// Connects as a virtual machine monitor does.
    pub(crate) fn guest(&self) -> Peer {
        let mut peer = self.connect();
        peer.negotiate(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
        peer
    }

    pub(crate) fn gate(&self) -> MutexGuard<'_, Gate> {
        target::lock(&self.gate)
    }

    /// Wakes the endpoint as a completion would.
    pub(crate) fn wake(&self) {
        let task = self.task;
        self.reactor.call(move |local| local.wake(task)).expect("the reactor runs");
    }

    /// Enables the guest's controller, with queue pair 1, and submits a read into the memory at `address`. The
    /// read stays in flight until [`release`](Self::release).
    pub(crate) fn hold_read(&self, guest: &mut Peer, address: u64) -> Driver {
        let mut driver = Driver::start(guest, &[1]);
        self.gate().is_closed = true;
        driver.submit_read(guest, 1, address);
        eventually("the read is taken", || self.gate().taken > 0);
        driver
    }

    /// Completes the held commands.
    pub(crate) fn release(&self) {
        self.gate().is_closed = false;
        self.wake();
    }

    /// Returns the mode of the controller's doorbells.
    pub(crate) fn mode(&self) -> DoorbellMode {
        self.on_endpoint(|endpoint, _| endpoint.device().controller.doorbell_mode())
    }

    /// Returns the value of a doorbell. `offset` is in bytes from the first doorbell.
    pub(crate) fn doorbell(&self, offset: usize) -> u32 {
        self.on_endpoint(move |endpoint, _| {
            let page = endpoint.device().controller.doorbells();
            page.atomic_u32(DOORBELLS as usize + offset).load(Ordering::Acquire)
        })
    }

    /// Reads registers at the controller, and not over the socket.
    pub(crate) fn registers(&self, offset: u32, count: usize) -> Vec<u8> {
        self.on_endpoint(move |endpoint, _| {
            let mut registers = vec![0; count];
            endpoint.device().controller.read_register(offset, &mut registers);
            registers
        })
    }

    pub(crate) fn on_endpoint<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Endpoint, u64) -> R + Send + 'static,
    ) -> R {
        let task = self.task;
        let run = move |local: &mut sluice_reactor::Local| {
            let now_ns = local.now_ns();
            run(local.task_mut(task).expect("it is there"), now_ns)
        };
        self.reactor.call(run).expect("the reactor runs")
    }

    /// Suspends the endpoint when nothing is in flight, and returns its records: that of the subsystem, and that
    /// of the socket.
    pub(crate) fn hand_over(&self) -> (SubsystemRecord, SocketRecord) {
        self.on_endpoint(|endpoint, _| endpoint.device_mut().subsystem.hold(u64::MAX));
        let mut records = None;
        eventually("the endpoint is settled", || {
            records = self.on_endpoint(|endpoint, now_ns| {
                let subsystem = endpoint.device().subsystem.record().ok()?;
                Some((subsystem, endpoint.hand_over(now_ns).ok()?))
            });
            records.is_some()
        });
        records.expect("just made")
    }

    /// Tries to continue the endpoint. Returns the error.
    pub(crate) fn fail_to_take_over(&self, socket: SocketRecord) -> String {
        let target = GatedTarget::new(Arc::clone(&self.gate));
        let socket = IncomingSocket::read(socket).expect("a valid record");
        let task = self.task;
        let take_over = move |local: &mut sluice_reactor::Local| {
            let device = controller(Stack::of(Box::new(target)));
            let now_ns = local.now_ns();
            let taken = Endpoint::take_over(task, local.io(task), socket, device, Config::default(), now_ns);
            taken.map(drop).expect_err("it does not fit").to_string()
        };
        self.reactor.call(take_over).expect("the reactor runs")
    }

    /// Goes on after a hand-over, successful or not.
    pub(crate) fn go_on(&self) {
        self.on_endpoint(|endpoint, _| endpoint.go_on());
    }

    /// Continues the endpoint on another reactor, as another process would. The first one stays suspended.
    pub(crate) fn take_over(
        &mut self,
        reactor: &ReactorHandle,
        (subsystem, socket): (SubsystemRecord, SocketRecord),
    ) {
        let target = GatedTarget::new(Arc::clone(&self.gate));
        let socket = IncomingSocket::read(socket).expect("a valid record");
        let bytes = subsystem.encode(0);
        let take_over = move |local: &mut sluice_reactor::Local| {
            let now_ns = local.now_ns();
            local.add(|task, io| {
                let mut device = controller(Stack::of(Box::new(target)));
                let record = SubsystemRecord::decode(&bytes, 0).expect("a valid record");
                device.subsystem.take_over(record, false, now_ns).expect("the same namespaces");
                let config = Config { name: "test".to_owned(), ..Config::default() };
                Box::new(Endpoint::take_over(task, io, socket, device, config, now_ns).expect("it fits"))
            })
        };
        self.task = reactor.call(take_over).expect("the reactor runs");
        self.reactor = reactor.clone();
        self.go_on();
    }

    /// Returns a handle of the endpoint that follows its moves. The other methods reach its first reactor
    /// only.
    pub(crate) fn handle(&self) -> TaskHandle {
        TaskHandle::new(self.reactor.clone(), self.task)
    }

    pub(crate) fn status(&self) -> Status {
        self.on_endpoint(|endpoint, _| endpoint.status())
    }

    pub(crate) fn remove(&self) {
        let task = self.task;
        self.reactor.call(move |local| drop(local.remove(task))).expect("the reactor runs");
    }
}

/// Reactor with one drive, as most tests need it.
pub(crate) struct Rig {
    pub(crate) reactor: ReactorHandle,
    pub(crate) drive: Drive,
    pub(crate) scratch: Scratch,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_doorbells(DoorbellPolicy::Auto)
    }

    pub(crate) fn with_doorbells(doorbells: DoorbellPolicy) -> Self {
        let scratch = Scratch::new();
        let reactor = start_reactor();
        let drive = Drive::add(&reactor, scratch.path().join("first"), doorbells);
        Self { reactor, drive, scratch }
    }

    /// Adds another drive to the same reactor.
    pub(crate) fn neighbour(&self) -> Drive {
        Drive::add(&self.reactor, self.scratch.path().join("second"), DoorbellPolicy::Auto)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.reactor.clone().stop();
    }
}
