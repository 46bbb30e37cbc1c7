//! A controller and its host in one process, with nothing between them.
//!
//! The controller stays on the thread that created it. The setup waits for the controller. So a second thread
//! does the setup, and its accesses come here as orders. Afterwards no thread waits, and one thread has both.

use sluice_controller::{Attached, DoorbellMode};
use sluice_host::{Error, PciTransport, Region};
use sluice_memory::{Backing, Permissions, SharedRegion, Space};
use sluice_nvme::PAGE_SIZE;
use sluice_nvme::register::DOORBELLS;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::{self, JoinHandle};

/// Constant time of a controller that no thread waits for.
const NOW_NS: u64 = 1;

type Order = Box<dyn FnOnce(&mut Device) + Send>;

/// A controller with its client's memory.
#[derive(Debug)]
pub(super) struct Device {
    controller: Attached,
    space: Space,
}

/// Channel from the host's thread to the device's.
#[derive(Debug)]
pub(super) struct Loopback {
    orders: Sender<Order>,
    doorbells: Arc<SharedRegion>,
}

impl Device {
    /// Returns the device, the host's transport to it, and the orders that come out of the transport.
    pub(super) fn new(mut controller: Attached) -> std::io::Result<(Self, Arc<Loopback>, Receiver<Order>)> {
        controller.controller.set_doorbell_mode(DoorbellMode::Mapped);
        let page = controller.controller.doorbells().fd().try_clone_to_owned()?;
        let doorbells = Arc::new(SharedRegion::from_fd(page, DOORBELLS.into(), PAGE_SIZE)?);
        let (sender, orders) = channel();
        let device = Self { controller, space: Space::new() };
        Ok((device, Arc::new(Loopback { orders: sender, doorbells }), orders))
    }

    pub(super) fn turn(&mut self) {
        self.controller.turn(&self.space, NOW_NS);
    }

    /// Executes orders until the host's thread has ended. Then the receiver is dropped, so that further
    /// orders of the host fail.
    pub(super) fn obey<T>(&mut self, orders: Receiver<Order>, host: JoinHandle<T>) -> thread::Result<T> {
        while !host.is_finished() {
            match orders.try_recv() {
                Ok(order) => order(self),
                Err(_) => thread::yield_now(),
            }
            self.turn();
        }
        host.join()
    }
}

impl Loopback {
    fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Device) -> T + Send + 'static,
    ) -> Result<T, Error> {
        const GONE: Error = Error::Unsupported("a device that has ended");
        let (reply, answer) = sync_channel(1);
        let order: Order = Box::new(move |device| drop(reply.send(order(device))));
        self.orders.send(order).map_err(|_| GONE)?;
        answer.recv().map_err(|_| GONE)
    }
}

impl PciTransport for Loopback {
    /// Reads registers. There is no configuration space behind this: it reads as zeros.
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        data.fill(0);
        if region != Region::BAR0 {
            return Ok(());
        }
        let mut bytes = vec![0; data.len()];
        data.copy_from_slice(&self.ask(move |device| {
            device.controller.controller.read_register(offset as u32, &mut bytes);
            bytes
        })?);
        Ok(())
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error> {
        if region != Region::BAR0 {
            return Ok(());
        }
        let bytes = data.to_vec();
        self.ask(move |device| {
            device.controller.write_register(offset as u32, &bytes, &device.space, NOW_NS);
        })
    }

    fn post(&self, offset: u64, value: u32) -> Result<(), Error> {
        self.ask(move |device| {
            device.controller.controller.ring((offset as u32).wrapping_sub(DOORBELLS), value)
        })
    }

    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>> {
        Some(&self.doorbells)
    }

    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error> {
        let backing = Backing::File { fd: memory.fd().try_clone_to_owned()?, offset: 0 };
        let length = memory.len() as u64;
        self.ask(move |device| device.space.map(iova, length, Permissions::READ_WRITE, backing))?
            .map_err(|_| Error::Unsupported("memory that cannot be mapped"))
    }

    /// Unmaps memory. The device has nothing in flight when a buffer of the host goes.
    fn unmap(&self, iova: u64, size: u64) -> Result<(), Error> {
        self.ask(move |device| drop(device.space.unmap(iova, size)))
    }

    fn vectors(&self) -> u32 {
        0
    }

    fn set_interrupt(&self, _vector: u32, _eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        Err(Error::Unsupported("interrupts"))
    }

    fn disable_interrupts(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        Err(Error::Unsupported("resets"))
    }
}
