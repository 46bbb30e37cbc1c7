//! A drive whose data ends on another drive, over TCP: both real, each on a reactor of its own.

use crate::rig::{BLOCK, Drive, LIMIT, Scratch, drive, eventually, start_reactor};
use sluice_command::{Layer, Stack};
use sluice_controller::Subsystem;
use sluice_frontend_tcp::{Config, Directory, Entry, Hosts, KnownHost, Listener};
use sluice_reactor::{Io, ReactorHandle, TaskHandle, TaskId};
use sluice_router::{Router, RouterBuilder};
use sluice_targets::{Memory, NvmeTcpConfig, NvmeTcpControl, PreparedNvmeTcp};
use sluice_tls::Keys;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Bytes of the device.
pub(crate) const SIZE: u64 = 16 << 20;

pub(crate) const SUBNQN: &str = "nqn.2026-11.example.sluice:device";
pub(crate) const HOSTNQN: &str = "nqn.2026-11.example.sluice:host";

/// Returns the configuration of a test host.
pub(crate) fn config(address: SocketAddr) -> NvmeTcpConfig {
    let config = NvmeTcpConfig::new(&address.to_string(), SUBNQN, HOSTNQN, [3; 16]);
    // Other tests use the processors, too, so no limit is shorter than that of the test.
    NvmeTcpConfig { timeout: LIMIT, keep_alive: LIMIT, ctrl_loss: None, ..config }
}

/// A key for every host.
pub(crate) const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// Reads keys from a file with these lines.
pub(crate) fn keys(lines: &str) -> Arc<Keys> {
    let folder = Scratch::new();
    let path = folder.path().join("keys");
    std::fs::write(&path, lines).expect("room on the disk");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    Arc::new(Keys::read(&path).expect("keys"))
}

/// A device in memory, and what stands on it.
pub(crate) struct Rig {
    scratch: Scratch,
    below: ReactorHandle,
    above: ReactorHandle,
    device: TaskId,
    listener: Option<Listener>,
    pub(crate) address: SocketAddr,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::open(Vec::new(), None, 1)
    }

    /// Creates a server that accepts these hosts.
    pub(crate) fn for_hosts(hosts: Vec<KnownHost>) -> Self {
        Self::open(hosts, None, 1)
    }

    /// Creates a server with encrypted connections.
    pub(crate) fn encrypted() -> Self {
        Self::encrypted_for_hosts(Vec::new())
    }

    /// Creates a server with encrypted connections that accepts these hosts.
    pub(crate) fn encrypted_for_hosts(hosts: Vec<KnownHost>) -> Self {
        Self::open(hosts, Some(keys(KEY)), 1)
    }

    /// Creates a server with room for `hosts_max` hosts at a time.
    pub(crate) fn with_room(hosts_max: u8) -> Self {
        Self::open(Vec::new(), None, hosts_max)
    }

    fn open(hosts: Vec<KnownHost>, keys: Option<Arc<Keys>>, hosts_max: u8) -> Self {
        let [below, above] = [start_reactor(), start_reactor()];
        let directory = Arc::new(Directory::default());
        let device = below.call(move |local| {
            local.add(move |task, io| {
                let memory = Box::new(Memory::new(SIZE).expect("memory"));
                let router = RouterBuilder::new(Stack::of(memory)).build();
                let subsystem = Subsystem::new(drive("device".to_owned(), 512, router)).expect("memory");
                let mut drive = sluice_frontend::Drive::new(task, io, subsystem);
                let config = Config { name: SUBNQN.to_owned(), cntlid: 1, hosts_max, queues_max: 4 };
                Hosts::admit(&mut drive, config).expect("it has no other front-end");
                Box::new(drive)
            })
        });
        let device = device.expect("the reactor runs");
        let drive = TaskHandle::new(below.clone(), device);
        let entry = Entry { drive, hosts, keys: keys.clone() };
        assert!(directory.add(SUBNQN, entry));
        let any = "127.0.0.1:0".parse().expect("an address");
        let encrypted = if keys.is_some() { &[any][..] } else { &[] };
        let plain = if keys.is_some() { &[] } else { &[any][..] };
        let listener = Listener::start_with_tls(plain, encrypted, directory).expect("a listener");
        let address = listener.addresses()[0];
        Self { scratch: Scratch::new(), below, above, device, listener: Some(listener), address }
    }

    /// Serves a drive on the target that is made on the reactor's thread.
    pub(crate) fn drive_of(
        &self,
        name: &str,
        router: impl FnOnce(TaskId, &Io) -> Router + Send + 'static,
    ) -> Drive {
        Drive::serve_router(&self.above, self.scratch.path().join(name), 512, router)
    }

    /// Serves a drive with its data on the server.
    pub(crate) fn drive(&self, name: &str, config: &NvmeTcpConfig) -> (Drive, NvmeTcpControl) {
        serve(&self.scratch, &self.above, name, config)
    }
}

/// Serves a drive over TCP on a reactor.
pub(crate) fn serve(
    scratch: &Scratch,
    reactor: &ReactorHandle,
    name: &str,
    config: &NvmeTcpConfig,
) -> (Drive, NvmeTcpControl) {
    let mut opened = PreparedNvmeTcp::open(config);
    // The host before may not be quite gone.
    eventually("it lets us in", || {
        if let Err(error) = &opened {
            assert!(error.to_string().contains("has a host already"), "{error}");
            opened = PreparedNvmeTcp::open(config);
        }
        opened.is_ok()
    });
    let seed = opened.expect("just seen");
    let control = seed.control();
    let target =
        |task, io: &Io| -> Box<dyn Layer> { Box::new(seed.build(task, io, 0).expect("room for files")) };
    (Drive::serve(reactor, scratch.path().join(name), 512, target), control)
}

/// Runs `run` while another host reads a block again and again, with any result.
pub(crate) fn while_others_read<T>(other: &mut sluice_host::Namespace, does: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(SeqCst) {
                let _ = other.read(3, &mut [0; BLOCK]);
            }
        });
        let result = does();
        done.store(true, SeqCst);
        result
    })
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.above.clone().stop();
        drop(self.listener.take());
        let device = self.device;
        let _ = self.below.call(move |local| drop(local.remove(device)));
        self.below.clone().stop();
    }
}
