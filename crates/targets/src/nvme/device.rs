//! The devices of this process: one connection for each, whoever wants a range of it.

use super::admin_thread::AdminThread;
use super::error::{ErrorKind, NvmeError};
use super::port::{Link, Port, RangeRequest, RequestSender, ThreadRequest};
use super::{Address, NvmeConfig, NvmeControl};
use crate::remote::Notifier;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an answer of the keeper may take beyond what the device may.
const GRACE: Duration = Duration::from_secs(30);

/// How long a range that is taken may be on its way back.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// A device that somebody uses, or is about to.
#[derive(Debug)]
struct Device {
    requests: RequestSender,
}

/// A device, for as long as its keeper runs.
#[derive(Debug)]
struct DeviceEntry {
    address: Address,
    device: Weak<Device>,
    admin_thread: JoinHandle<()>,
}

/// A server takes one client, so there must be one of each in the process; a tenancy keeps its own alive.
static DEVICES: Mutex<Vec<DeviceEntry>> = Mutex::new(Vec::new());

/// A range of a device with its queue pair, from the moment it is opened. Dropping it gives all of it
/// back, without waiting for the device.
#[derive(Debug)]
pub(super) struct PortHandle {
    pub(super) port: Port,
    /// None while the device is gone.
    pub(super) link: Option<Box<Link>>,
    device: Arc<Device>,
}

impl PortHandle {
    pub(super) fn send(&self, order: ThreadRequest) {
        // Without a keeper the process is about to end.
        let _ = self.device.requests.send(order);
    }
}

impl Drop for PortHandle {
    fn drop(&mut self) {
        let link = self.link.take();
        // The keeper may be about to tell something: it looks at what was not heard when it tells no more.
        let events = std::mem::replace(&mut self.port.events, channel().1);
        self.send(ThreadRequest::Close { port: self.port.id, link, events });
    }
}

/// Opens a range.
pub(super) fn open(config: &NvmeConfig, control: &NvmeControl) -> Result<PortHandle, NvmeError> {
    let fail = |kind| NvmeError { address: config.address.clone(), kind };
    let device = find(&canonical(&config.address)).map_err(fail)?;
    let range = RangeRequest {
        namespace: config.namespace,
        first_block: config.first_block,
        blocks: config.blocks,
        timeout: config.timeout,
        control: control.clone(),
    };
    let deadline = Instant::now() + RELEASE_LIMIT;
    loop {
        match request_range(&device, range.clone()) {
            Ok((port, link)) => return Ok(PortHandle { port, link: Some(Box::new(link)), device }),
            // A drive that was just deleted may not be quite gone.
            Err(ErrorKind::Taken { .. }) if Instant::now() < deadline => {
                std::thread::sleep(RELEASE_LIMIT / 20)
            }
            Err(error) => return Err(fail(error)),
        }
    }
}

/// Waits for the keeper to open a range.
fn request_range(device: &Device, range: RangeRequest) -> Result<(Port, Link), ErrorKind> {
    let limit = range.timeout.saturating_mul(4) + GRACE;
    let (reply, replied) = sync_channel(1);
    device.requests.send(ThreadRequest::Open { range, reply });
    replied.recv_timeout(limit).map_err(|_| ErrorKind::NoThread)?
}

/// The same socket has the same name, however it was written.
fn canonical(address: &Address) -> Address {
    match address {
        Address::VfioUser(path) => Address::VfioUser(path.canonicalize().unwrap_or_else(|_| path.clone())),
        Address::Pci(address) => Address::Pci(address.to_ascii_lowercase()),
    }
}

/// The device at an address: one that is used already, or a new one with its keeper.
fn find(address: &Address) -> Result<Arc<Device>, ErrorKind> {
    loop {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|entry| entry.device.strong_count() > 0 || !entry.admin_thread.is_finished());
        let Some(index) = devices.iter().position(|entry| entry.address == *address) else {
            return start(address, &mut devices);
        };
        if let Some(device) = devices[index].device.upgrade() {
            return Ok(device);
        }
        // Its keeper is still taking leave of the server, which would turn another client away.
        let leaving = devices.swap_remove(index).admin_thread;
        drop(devices);
        let _ = leaving.join();
    }
}

/// A new device, whose keeper connects when a range of it is opened.
fn start(address: &Address, devices: &mut Vec<DeviceEntry>) -> Result<Arc<Device>, ErrorKind> {
    let notifier = Arc::new(Notifier::new().map_err(|error| ErrorKind::Device(error.into()))?);
    let (sender, receiver) = channel();
    let requests = RequestSender::new(sender, Arc::clone(&notifier));
    let admin_thread = AdminThread::new(address.clone(), receiver, notifier);
    let thread = std::thread::Builder::new().name("sluice-nvme".to_owned());
    let admin_thread = thread.spawn(move || admin_thread.run()).map_err(|error| {
        tracing::error!(%error, "the thread that drives an NVMe device cannot be started");
        ErrorKind::NoThread
    })?;
    let device = Arc::new(Device { requests });
    devices.push(DeviceEntry { address: address.clone(), device: Arc::downgrade(&device), admin_thread });
    Ok(device)
}
