//! Drives in memory behind a listener.

use sluice_command::StackBuilder;
use sluice_controller::{
    Attachment, Config as ControllerConfig, Identity, KnownAs, Namespace, NamespaceConfig, Subsystem,
};
use sluice_frontend::Drive;
use sluice_frontend_tcp::{Config, Directory, Entry, Hosts, KnownHost, Listener, Status};
use sluice_functions::{Delay, DelayConfig};
use sluice_reactor::{ReactorConfig, ReactorHandle, TaskHandle, TaskId};
use sluice_router::RouterBuilder;
use sluice_targets::Memory;
use sluice_tls::Keys;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::host::{HOSTNQN, LIMIT};

pub(crate) const SIZE: u64 = 16 << 20;

/// NQNs of the two drives. Reads of the second are delayed.
pub(crate) const DISK: &str = "nqn.2024-01.org.example:disk";
pub(crate) const SLOW: &str = "nqn.2024-01.org.example:slow";

/// Default delay of reads of the second drive.
const READ: Duration = Duration::from_millis(20);

/// Hosts that a drive serves at a time.
pub(crate) const HOSTS: u8 = 2;

/// I/O queues of each host.
pub(crate) const QUEUES: u16 = 8;

pub(crate) struct Rig {
    pub(crate) address: SocketAddr,
    pub(crate) directory: Arc<Directory>,
    listener: Option<Listener>,
    reactor: ReactorHandle,
    disk: TaskId,
    slow: TaskId,
}

/// Options of the drives.
#[derive(Clone)]
struct Plan {
    keys: Option<Arc<Keys>>,
    /// Delays of reads and writes of the second drive.
    read: Duration,
    write: Duration,
    /// Adds a second namespace to each drive, which is private and attached to the host of the tests.
    private: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { keys: None, read: READ, write: Duration::ZERO, private: false }
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::open(Plan::default())
    }

    /// Opens drives, with this delay of reads of the second.
    pub(crate) fn with_reads_of(read: Duration) -> Self {
        Self::open(Plan { read, ..Plan::default() })
    }

    /// Opens drives, with this delay of writes of the second.
    pub(crate) fn with_writes_of(write: Duration) -> Self {
        Self::open(Plan { write, ..Plan::default() })
    }

    /// Opens drives with a second namespace, which is private and attached to the host of the tests.
    pub(crate) fn with_a_private_namespace() -> Self {
        Self::open(Plan { private: true, ..Plan::default() })
    }

    /// Opens drives that require TLS with these keys.
    pub(crate) fn encrypted(keys: Arc<Keys>) -> Self {
        Self::open(Plan { keys: Some(keys), ..Plan::default() })
    }

    /// Opens drives that require TLS with these keys, with this delay of writes of the second.
    pub(crate) fn encrypted_with_writes_of(keys: Arc<Keys>, write: Duration) -> Self {
        Self::open(Plan { keys: Some(keys), write, ..Plan::default() })
    }

    fn open(plan: Plan) -> Self {
        let reactor = ReactorHandle::start(ReactorConfig::default()).expect("a reactor");
        let directory = Arc::new(Directory::default());
        let at_once = Plan { read: Duration::ZERO, write: Duration::ZERO, ..plan.clone() };
        let disk = add(&reactor, &directory, DISK, at_once);
        let slow = add(&reactor, &directory, SLOW, plan.clone());
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = match plan.keys {
            None => Listener::start(&[any], Arc::clone(&directory)),
            Some(_) => Listener::start_with_tls(&[], &[any], Arc::clone(&directory)),
        };
        let listener = listener.expect("a listener");
        let address = listener.addresses()[0];
        Self { address, directory, listener: Some(listener), reactor, disk, slow }
    }

    fn task(&self, subnqn: &str) -> TaskId {
        if subnqn == DISK { self.disk } else { self.slow }
    }

    /// Adds a second name of the first drive, for these hosts.
    pub(crate) fn list(&self, subnqn: &str, hosts: &[&str]) {
        self.list_known(subnqn, hosts.iter().map(|host| KnownHost { nqn: host.to_string(), terms: None }));
    }

    /// Adds a second name of the first drive, for hosts that may have to authenticate.
    pub(crate) fn list_known(&self, subnqn: &str, hosts: impl IntoIterator<Item = KnownHost>) {
        self.list_entry(subnqn, hosts.into_iter().collect(), None);
    }

    /// Adds a second name of the first drive, for all hosts with a key.
    pub(crate) fn list_with_keys(&self, subnqn: &str, keys: Arc<Keys>) {
        self.list_entry(subnqn, Vec::new(), Some(keys));
    }

    /// Replaces the keys of the first drive.
    pub(crate) fn change_keys(&self, keys: Arc<Keys>) {
        self.directory.remove(DISK);
        self.list_with_keys(DISK, keys);
    }

    fn list_entry(&self, subnqn: &str, hosts: Vec<KnownHost>, keys: Option<Arc<Keys>>) {
        let entry = Entry { drive: TaskHandle::new(self.reactor.clone(), self.disk), hosts, keys };
        assert!(self.directory.add(subnqn, entry));
    }

    pub(crate) fn ask<R: Send + 'static>(
        &self,
        subnqn: &str,
        question: impl FnOnce(&mut Drive) -> R + Send + 'static,
    ) -> R {
        let task = self.task(subnqn);
        let ask =
            move |local: &mut sluice_reactor::Local| question(local.task_mut(task).expect("it is there"));
        self.reactor.call(ask).expect("the reactor runs")
    }

    pub(crate) fn status(&self) -> Status {
        self.ask(DISK, |drive| Hosts::status_of(drive).expect("hosts may come"))
    }

    /// Waits until no host is connected to the first drive.
    pub(crate) fn wait_for_nobody(&self) {
        eventually("the host is gone", || self.status().hosts.is_empty());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.listener.take());
        for task in [self.disk, self.slow] {
            let _ = self.reactor.call(move |local| drop(local.remove(task)));
        }
        self.reactor.clone().stop();
    }
}

fn add(reactor: &ReactorHandle, directory: &Directory, subnqn: &'static str, plan: Plan) -> TaskId {
    let keys = plan.keys.clone();
    let task = reactor.call(move |local| {
        local.add(|task, io| {
            let mut drive = Drive::new(task, io, subsystem(subnqn, &plan));
            let name = subnqn.to_owned();
            let config = Config { name, cntlid: 1, hosts_max: HOSTS, queues_max: QUEUES };
            Hosts::admit(&mut drive, config).expect("it has no other front-end");
            Box::new(drive)
        })
    });
    let task = task.expect("the reactor runs");
    let drive = TaskHandle::new(reactor.clone(), task);
    let entry = Entry { drive, hosts: Vec::new(), keys };
    assert!(directory.add(subnqn, entry));
    task
}

fn subsystem(subnqn: &str, plan: &Plan) -> Subsystem {
    let identity = Identity {
        subnqn: subnqn.to_owned(),
        serial: "1".to_owned(),
        model: "test".to_owned(),
        firmware: "1".to_owned(),
    };
    let mut stack = StackBuilder::new();
    let memory = stack.add(Box::new(Memory::new(SIZE).expect("memory")), &[]).expect("one layer");
    let [read_ns, write_ns] = [plan.read, plan.write].map(|time| time.as_nanos() as u64);
    let delay = DelayConfig { read_ns, write_ns, flush_ns: 0, held_max: 1024 };
    stack.add(Box::new(Delay::new(delay)), &[memory]).expect("two layers");
    let config = NamespaceConfig { nsid: 1, block_size: 512, uuid: [7; 16] };
    let router = RouterBuilder::new(stack.build()).build();
    let mut namespaces = vec![Namespace::new(config, router).expect("a namespace")];
    if plan.private {
        let mut stack = StackBuilder::new();
        stack.add(Box::new(Memory::new(1 << 20).expect("memory")), &[]).expect("one layer");
        let config = NamespaceConfig { nsid: 2, block_size: 512, uuid: [8; 16] };
        let router = RouterBuilder::new(stack.build()).build();
        let namespace = Namespace::new(config, router).expect("a namespace");
        let attachment = Attachment { to_others: false, listed: vec![KnownAs::Nqn(HOSTNQN.into())] };
        namespaces.push(namespace.created(false).attached_to(attachment));
    }
    Subsystem::new(ControllerConfig { identity, namespaces }).expect("memory")
}

/// Waits until a condition is true. Fails after [`LIMIT`].
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
        std::thread::sleep(Duration::from_millis(1));
    }
}
