//! The devices of this process: one connection for each, whoever wants a range of it.

use super::error::{NvmeError, Trouble};
use super::keeper::Keeper;
use super::port::{Link, Wanted, Order, Orders, Port};
use super::{Address, NvmeConfig, NvmeControl};
use crate::remote::Notifier;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an answer of the keeper may take beyond what the device may.
const GRACE: Duration = Duration::from_secs(30);

/// How long a range that is taken may be on its way back.
const TENANT_LEAVES: Duration = Duration::from_secs(1);

/// A device that somebody uses, or is about to.
#[derive(Debug)]
struct Device {
    orders: Orders,
}

/// A device, for as long as its keeper runs.
#[derive(Debug)]
struct Known {
    address: Address,
    device: Weak<Device>,
    keeper: JoinHandle<()>,
}

/// A server takes one client, so there must be one of each in the process; a tenancy keeps its own alive.
static DEVICES: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// A range of a device with its queue pair, from the moment it is opened. Dropping it gives all of it
/// back, without waiting for the device.
#[derive(Debug)]
pub(super) struct Tenancy {
    pub(super) port: Port,
    /// None while the device is gone.
    pub(super) link: Option<Box<Link>>,
    device: Arc<Device>,
}

impl Tenancy {
    pub(super) fn order(&self, order: Order) {
        // Without a keeper the process is about to end.
        let _ = self.device.orders.send(order);
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        let link = self.link.take();
        // The keeper may be about to tell something: it looks at what was not heard when it tells no more.
        let news = std::mem::replace(&mut self.port.news, channel().1);
        self.order(Order::Close { port: self.port.id, link, news });
    }
}

/// Opens a range.
pub(super) fn open(config: &NvmeConfig, control: &NvmeControl) -> Result<Tenancy, NvmeError> {
    let fail = |what| NvmeError { address: config.address.clone(), what };
    let device = find(&canonical(&config.address)).map_err(fail)?;
    let range = Wanted {
        namespace: config.namespace,
        first_block: config.first_block,
        blocks: config.blocks,
        timeout: config.timeout,
        control: control.clone(),
    };
    let deadline = Instant::now() + TENANT_LEAVES;
    loop {
        match ask(&device, range.clone()) {
            Ok((port, link)) => return Ok(Tenancy { port, link: Some(Box::new(link)), device }),
            // A drive that was just deleted may not be quite gone.
            Err(Trouble::Taken { .. }) if Instant::now() < deadline => std::thread::sleep(TENANT_LEAVES / 20),
            Err(trouble) => return Err(fail(trouble)),
        }
    }
}

/// Waits for the keeper to open a range.
fn ask(device: &Device, range: Wanted) -> Result<(Port, Link), Trouble> {
    let limit = range.timeout.saturating_mul(4) + GRACE;
    let (answer, answered) = sync_channel(1);
    device.orders.send(Order::Open { range, answer });
    answered.recv_timeout(limit).map_err(|_| Trouble::NoKeeper)?
}

/// The same socket has the same name, however it was written.
fn canonical(address: &Address) -> Address {
    match address {
        Address::VfioUser(path) => Address::VfioUser(path.canonicalize().unwrap_or_else(|_| path.clone())),
        Address::Pci(address) => Address::Pci(address.to_ascii_lowercase()),
    }
}

/// The device at an address: one that is used already, or a new one with its keeper.
fn find(address: &Address) -> Result<Arc<Device>, Trouble> {
    loop {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|known| known.device.strong_count() > 0 || !known.keeper.is_finished());
        let Some(index) = devices.iter().position(|known| known.address == *address) else {
            return start(address, &mut devices);
        };
        if let Some(device) = devices[index].device.upgrade() {
            return Ok(device);
        }
        // Its keeper is still taking leave of the server, which would turn another client away.
        let leaving = devices.swap_remove(index).keeper;
        drop(devices);
        let _ = leaving.join();
    }
}

/// A new device, whose keeper connects when a range of it is opened.
fn start(address: &Address, devices: &mut Vec<Known>) -> Result<Arc<Device>, Trouble> {
    let notifier = Arc::new(Notifier::new().map_err(|error| Trouble::Device(error.into()))?);
    let (sender, receiver) = channel();
    let orders = Orders::new(sender, Arc::clone(&notifier));
    let keeper = Keeper::new(address.clone(), receiver, notifier);
    let thread = std::thread::Builder::new().name("sluice-nvme".to_owned());
    let keeper = thread.spawn(move || keeper.run()).map_err(|error| {
        tracing::error!(%error, "the thread that drives an NVMe device cannot be started");
        Trouble::NoKeeper
    })?;
    let device = Arc::new(Device { orders });
    devices.push(Known { address: address.clone(), device: Arc::downgrade(&device), keeper });
    Ok(device)
}
