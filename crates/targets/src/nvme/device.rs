//! The devices of this process: one connection for each, shared by all ranges of it.

use super::admin_thread::AdminThread;
use super::error::{ErrorKind, NvmeError};
use super::port::{Link, Port, RangeRequest, RequestSender, ThreadRequest};
use super::{Address, NvmeConfig, NvmeControl};
use crate::remote::orders::orders;
use crate::remote::{Maintenance, Notifier};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for an answer of the admin thread beyond the time of the device.
const GRACE: Duration = Duration::from_secs(30);

/// Time for a taken range to be released.
const RELEASE_LIMIT: Duration = Duration::from_secs(1);

/// A device that is in use, or about to be.
#[derive(Debug)]
struct Device {
    requests: RequestSender,
    maintenance: Maintenance,
}

/// A device, for as long as its admin thread runs.
#[derive(Debug)]
struct DeviceEntry {
    address: Address,
    device: Weak<Device>,
    admin_thread: JoinHandle<()>,
}

/// All devices. A server accepts one client, so the process must not connect twice; a port handle keeps its
/// device alive.
static DEVICES: Mutex<Vec<DeviceEntry>> = Mutex::new(Vec::new());

/// A range of a device with its queue pair, from the moment it is opened. Dropping it releases both, without
/// waiting for the device.
#[derive(Debug)]
pub(super) struct PortHandle {
    pub(super) port: Port,
    /// The link; none while the device is gone.
    pub(super) link: Option<Box<Link>>,
    device: Arc<Device>,
}

impl PortHandle {
    /// Returns a handle on the device, for the control plane.
    pub(super) fn maintenance(&self) -> Maintenance {
        self.device.maintenance.clone()
    }

    pub(super) fn send(&self, request: ThreadRequest) {
        // Without an admin thread the process is about to end.
        let _ = self.device.requests.send(request);
    }
}

impl Drop for PortHandle {
    fn drop(&mut self) {
        let link = self.link.take();
        // The admin thread may be about to send an event. The close request has the receiver, so that the
        // thread finds it.
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
            // A drive that was just deleted may not have released its range yet.
            Err(ErrorKind::Taken { .. }) if Instant::now() < deadline => {
                std::thread::sleep(RELEASE_LIMIT / 20)
            }
            Err(error) => return Err(fail(error)),
        }
    }
}

/// Waits for the admin thread to open a range.
fn request_range(device: &Device, range: RangeRequest) -> Result<(Port, Link), ErrorKind> {
    let limit = range.timeout.saturating_mul(4) + GRACE;
    let (reply, replied) = sync_channel(1);
    device.requests.send(ThreadRequest::Open { range, reply });
    replied.recv_timeout(limit).map_err(|_| ErrorKind::NoThread)?
}

/// Returns the canonical form of an address, which is the same for all paths to a socket.
fn canonical(address: &Address) -> Address {
    match address {
        Address::VfioUser(path) => Address::VfioUser(path.canonicalize().unwrap_or_else(|_| path.clone())),
        Address::Pci(address) => Address::Pci(address.to_ascii_lowercase()),
    }
}

/// Returns the device at an address: one that is in use, or a new one with its admin thread.
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
        // The admin thread is still disconnecting from the server, which would reject another client.
        let leaving = devices.swap_remove(index).admin_thread;
        drop(devices);
        let _ = leaving.join();
    }
}

/// Creates a device, whose admin thread connects when a range of it is opened.
fn start(address: &Address, devices: &mut Vec<DeviceEntry>) -> Result<Arc<Device>, ErrorKind> {
    let notifier = Arc::new(Notifier::new().map_err(|error| ErrorKind::Device(error.into()))?);
    let (sender, receiver) = channel();
    let requests = RequestSender::new(sender, Arc::clone(&notifier));
    let (maintenance, orders) = orders(&notifier);
    let admin_thread = AdminThread::new(address.clone(), receiver, orders, notifier);
    let thread = std::thread::Builder::new().name("sluice-nvme".to_owned());
    let admin_thread = thread.spawn(move || admin_thread.run()).map_err(|error| {
        tracing::error!(%error, "the thread that drives an NVMe device cannot be started");
        ErrorKind::NoThread
    })?;
    let device = Arc::new(Device { requests, maintenance });
    devices.push(DeviceEntry { address: address.clone(), device: Arc::downgrade(&device), admin_thread });
    Ok(device)
}
