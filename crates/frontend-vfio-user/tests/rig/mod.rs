//! Endpoint on a real reactor, around a device with scripted behaviour, and a client that can send any
//! message.
#![allow(dead_code, reason = "each test file uses its part of it")]

mod device;
mod peer;

use device::{Script, Scripted};
pub(crate) use peer::{Peer, eventually};

use sluice_frontend_vfio_user::{Config, DoorbellPolicy, Endpoint, Listener, Status};
use sluice_reactor::{IdlePolicy, ReactorConfig, ReactorHandle, TaskHandle, TaskId};
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

/// Endpoint with a scripted device.
pub(crate) struct Drive {
    reactor: ReactorHandle,
    task: TaskId,
    script: Arc<Mutex<Script>>,
    pub(crate) directory: PathBuf,
}

impl Drive {
    /// Adds an endpoint to a reactor.
    pub(crate) fn add(reactor: &ReactorHandle, directory: PathBuf, doorbells: DoorbellPolicy) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let listener = Listener::bind(&directory, 0o600).expect("bound");
        let config = Config { name: "test".to_owned(), doorbells, ..Config::default() };
        let shared = Arc::clone(&script);
        let task = reactor
            .call(move |local| {
                local.add(|task, io| {
                    Box::new(Endpoint::new(task, io, listener, Scripted::new(shared), config))
                })
            })
            .expect("the reactor runs");
        Self { reactor: reactor.clone(), task, script, directory }
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

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        device::look(&self.script)
    }

    /// Changes the script of the device, and wakes the endpoint as a completion would.
    pub(crate) fn direct<R>(&self, change: impl FnOnce(&mut Script) -> R) -> R {
        let result = change(&mut self.script());
        let task = self.task;
        self.reactor.call(move |local| local.wake(task)).expect("the reactor runs");
        result
    }

    pub(crate) fn on_endpoint<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Endpoint<Scripted>, u64) -> R + Send + 'static,
    ) -> R {
        let task = self.task;
        let run = move |local: &mut sluice_reactor::Local| {
            let now_ns = local.now_ns();
            run(local.task_mut(task).expect("it is there"), now_ns)
        };
        self.reactor.call(run).expect("the reactor runs")
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
