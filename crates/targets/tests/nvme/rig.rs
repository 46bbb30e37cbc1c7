//! A drive whose data ends on another drive: both real, each on a reactor of its own, in one process.

use sluice_command::{Layer, Stack};
use sluice_controller::{Attached, Config as ControllerConfig, Identity, Namespace, NamespaceConfig};
use sluice_frontend_vfio_user::{Config, Endpoint, Listener};
use sluice_host::{Mode, QueueLayout, Settings, VfioUser};
use sluice_reactor::{Io, Local, ReactorConfig, ReactorHandle, TaskId};
use sluice_router::{Router, RouterBuilder};
use sluice_targets::{Address, FileConfig, NoSpace, NvmeConfig, NvmeControl, PreparedFile, PreparedNvme};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit of all operations before a test fails. The limit measures nothing: on busy processors a command
/// takes the milliseconds between two turns of each reactor on its way.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// Bytes of the device.
pub(crate) const SIZE: u64 = 16 << 20;

pub(crate) const BLOCK: usize = 512;

/// Waits until something is true.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_true() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A directory of one test, which is removed in the end.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sluice-nvme-{}-{number}", std::process::id()));
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

/// A drive of one namespace, served on a socket.
pub(crate) struct Drive {
    reactor: ReactorHandle,
    task: Option<TaskId>,
    directory: PathBuf,
}

impl Drive {
    /// Serves a drive on the target that `target` makes on the reactor's thread, with blocks of `block_size`
    /// bytes.
    pub(crate) fn serve(
        reactor: &ReactorHandle,
        directory: PathBuf,
        block_size: u32,
        target: impl FnOnce(TaskId, &Io) -> Box<dyn Layer> + Send + 'static,
    ) -> Self {
        Self::serve_router(reactor, directory, block_size, move |task, io| {
            RouterBuilder::new(Stack::of(target(task, io))).build()
        })
    }

    pub(crate) fn serve_router(
        reactor: &ReactorHandle,
        directory: PathBuf,
        block_size: u32,
        router: impl FnOnce(TaskId, &Io) -> Router + Send + 'static,
    ) -> Self {
        let listener = Listener::bind(&directory, 0o600).expect("bound");
        let serial = directory.file_name().expect("a name").to_string_lossy().into_owned();
        let make = move |local: &mut Local| {
            local.add(|task, io| {
                let controller = Attached::new(drive(serial, block_size, router(task, &io))).expect("memory");
                Box::new(Endpoint::new(task, io, listener, controller, Config::default()))
            })
        };
        let task = reactor.call(make).expect("the reactor runs");
        Self { reactor: reactor.clone(), task: Some(task), directory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("cntrl")
    }

    /// Ends the device like the death of its process: its socket and all commands in flight are gone.
    pub(crate) fn die(&mut self) {
        let Some(task) = self.task.take() else { return };
        self.reactor.call(move |local| drop(local.remove(task))).expect("the reactor runs");
        // The device removes its socket, perhaps after its last operation, and then the directory that it
        // made. If the directory of the next device existed by then, that would be removed.
        eventually("it is gone", || !self.directory.exists());
    }

    /// Returns a polling driver of the drive.
    pub(crate) fn guest(&self) -> sluice_host::Controller {
        self.connect(Mode::Mapped)
    }

    /// Returns a driver of the drive, with doorbells like those of a virtual machine.
    pub(crate) fn connect(&self, mode: Mode) -> sluice_host::Controller {
        let transport = VfioUser::connect(&self.socket(), mode, LIMIT).expect("connected");
        let settings = Settings { timeout: LIMIT, ..Settings::default() };
        let mut controller = sluice_host::Controller::start(Arc::new(transport), settings).expect("enabled");
        controller.set_queue_count(4).expect("queues");
        controller
    }

    pub(crate) fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Endpoint) -> R + Send + 'static,
    ) -> R {
        let task = self.task.expect("it is served");
        let ask = move |local: &mut Local| question(local.task_mut(task).expect("it is there"));
        self.reactor.call(ask).expect("the reactor runs")
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.die();
    }
}

/// Configures a drive with one namespace.
pub(crate) fn drive(serial: String, block_size: u32, router: Router) -> ControllerConfig {
    let identity = Identity {
        subnqn: format!("nqn.2026-11.example.sluice:{serial}"),
        serial,
        model: "test".to_owned(),
        firmware: "1".to_owned(),
    };
    let config = NamespaceConfig { nsid: 1, block_size, uuid: [7; 16] };
    let namespaces = vec![Namespace::new(config, router).expect("a namespace")];
    ControllerConfig { identity, namespaces }
}

pub(crate) fn start_reactor() -> ReactorHandle {
    ReactorHandle::start(ReactorConfig::default()).expect("io_uring works here")
}

/// A device on a file, and what stands on it.
pub(crate) struct Rig {
    pub(crate) scratch: Scratch,
    pub(crate) below: ReactorHandle,
    pub(crate) above: ReactorHandle,
    pub(crate) device: Drive,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let [below, above] = [start_reactor(), start_reactor()];
        let device = serve_file(&scratch, &below);
        Self { scratch, below, above, device }
    }

    /// Serves the same file again, on the same socket.
    pub(crate) fn revive(&mut self) {
        self.device.die();
        self.device = serve_file(&self.scratch, &self.below);
    }

    pub(crate) fn config(&self) -> NvmeConfig {
        NvmeConfig { timeout: LIMIT, ..NvmeConfig::new(Address::VfioUser(self.device.socket()), 1) }
    }

    /// Serves a drive with its data on the device.
    pub(crate) fn drive(&self, name: &str, config: &NvmeConfig) -> (Drive, NvmeControl) {
        let seed = PreparedNvme::open(config).expect("a device with room");
        let control = seed.control();
        let directory = self.scratch.path().join(name);
        let target =
            |task, io: &Io| -> Box<dyn Layer> { Box::new(seed.build(task, io, 0).expect("room for a file")) };
        (Drive::serve(&self.above, directory, 512, target), control)
    }

    /// Returns the present content of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.scratch.path().join("disk.img")).expect("the file")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.above.clone().stop();
        self.device.die();
        self.below.clone().stop();
    }
}

fn serve_file(scratch: &Scratch, reactor: &ReactorHandle) -> Drive {
    let path = scratch.path().join("disk.img");
    let config = FileConfig {
        path,
        size: Some(SIZE),
        no_space: NoSpace::Fail,
        block_size: 512,
        read_only: false,
        raw: false,
    };
    let mut seed = PreparedFile::open(&config);
    // The one before may not be quite gone.
    eventually("the file is free", || {
        if seed.is_err() {
            seed = PreparedFile::open(&config);
        }
        seed.is_ok()
    });
    let seed = seed.expect("just seen");
    Drive::serve(reactor, scratch.path().join("device"), 512, move |task, io| {
        Box::new(seed.build(task, io, 0).expect("room for a file"))
    })
}

/// Opens the namespace of a drive with a queue pair of its own.
pub(crate) fn open(guest: &mut sluice_host::Controller) -> sluice_host::Namespace {
    open_at(guest, 1)
}

/// Opens the namespace with the queue pair of that number.
pub(crate) fn open_at(guest: &mut sluice_host::Controller, queue: u16) -> sluice_host::Namespace {
    let queue = guest.create_queue_pair(queue, QueueLayout::default(), None).expect("a queue pair");
    sluice_host::Namespace::open(guest, 1, queue).expect("a namespace")
}

/// Returns bytes that are the same at no two offsets.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..length as u64 / 8).map(|i| (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    words.flat_map(u64::to_le_bytes).collect()
}
