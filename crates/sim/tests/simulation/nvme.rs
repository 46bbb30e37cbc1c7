//! The NVMe target as storage of a simulated drive: the device is a drive in memory behind a real socket,
//! which outlives the controllers over it.

use crate::remote::{PATIENCE, Remote, Service};
use sluice_command::{Layer, Stack};
use sluice_controller::{Attached, Config, Identity, Namespace, NamespaceConfig};
use sluice_frontend_vfio_user::{Config as EndpointConfig, Endpoint, Listener};
use sluice_reactor::{Io, ReactorHandle};
use sluice_router::RouterBuilder;
use sluice_sim::SimEngine;
use sluice_targets::{Address, Memory, NvmeConfig, PreparedNvme};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A range of a device that outlives the controllers over it.
pub(crate) struct NvmeDisk {
    reactor: ReactorHandle,
    config: NvmeConfig,
    service: RefCell<Option<Arc<Mutex<Service>>>>,
}

impl NvmeDisk {
    /// Serves a device on `below`, in this folder. The range of it that begins after `before` blocks and has
    /// as many behind it is served on `above`.
    pub(crate) fn new(
        [below, above]: &[ReactorHandle; 2],
        folder: PathBuf,
        block_size: u32,
        blocks: u64,
        before: u64,
    ) -> Self {
        let address = Address::VfioUser(folder.join("cntrl"));
        serve(below, folder, block_size, blocks + 2 * before);
        let config = NvmeConfig {
            first_block: before,
            blocks: Some(blocks),
            timeout: PATIENCE,
            ..NvmeConfig::new(address, 1)
        };
        Self { reactor: above.clone(), config, service: RefCell::new(None) }
    }

    /// Opens the range anew: its previous user is gone.
    pub(crate) fn stack(&self, engine: &SimEngine) -> Stack {
        if let Some(before) = self.service.take() {
            before.lock().expect("not poisoned").close();
        }
        let seed = PreparedNvme::open(&self.config).expect("nobody else has the range");
        let build = move |task, io: &Io| -> Box<dyn Layer> {
            Box::new(seed.build(task, io, 0).expect("room for a file"))
        };
        let service = Arc::new(Mutex::new(Service::open(&self.reactor, build)));
        *self.service.borrow_mut() = Some(Arc::clone(&service));
        Remote::stack(service, engine)
    }
}

/// Serves a drive in memory.
fn serve(reactor: &ReactorHandle, folder: PathBuf, block_size: u32, blocks: u64) {
    let listener = Listener::bind(&folder, 0o600).expect("bound");
    let make = move |task, io| {
        let memory = Memory::new(blocks * u64::from(block_size)).expect("memory");
        let router = RouterBuilder::new(Stack::of(Box::new(memory))).build();
        let config = NamespaceConfig { nsid: 1, block_size, uuid: [1; 16] };
        let identity = Identity {
            subnqn: "nqn.2026-11.org.example:device".into(),
            serial: "DEVICE".into(),
            model: "Sluice".into(),
            firmware: "1".into(),
        };
        let namespaces = vec![Namespace::new(config, router).expect("a namespace within its limits")];
        let controller = Attached::new(Config { identity, namespaces }).expect("memory");
        Endpoint::new(task, io, listener, controller, EndpointConfig::default())
    };
    reactor.call(move |local| local.add(|task, io| Box::new(make(task, io)))).expect("it runs");
}
