//! The life cycle of a controller (Base 3.5), and its admin queue.

use crate::doorbell::{Doorbells, ShadowPages};
use crate::events::AsyncEvents;
use crate::wait::Backoff;
use crate::{
    Deadline, DmaAllocator, DmaBuffer, DmaRange, Error, Interrupt, PciTransport, QueueLayout, QueuePair,
    Region, entry, identify, pci,
};
use sluice_nvme::identify::IdentifyController;
use sluice_nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS, csts};
use sluice_nvme::{Cns, CompletionEntry, PAGE_SIZE, SubmissionEntry};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Settings of a driver for its controller.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time limit of a command, and of all steps that CAP.TO does not limit.
    pub timeout: Duration,
    /// Entries of the admin queues, 2 to 4096.
    pub admin_entries: u32,
    /// Use shadow doorbells where doorbells are messages and the controller offers them.
    pub shadow_doorbells: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), admin_entries: 32, shadow_doorbells: true }
    }
}

/// Controller Capabilities (Base 3.1.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Returns the most entries of an I/O queue (MQES).
    pub fn max_queue_entries(self) -> u32 {
        (self.0 as u32 & 0xffff) + 1
    }

    /// Returns the time within which CSTS.RDY follows CC.EN (TO).
    pub fn ready_timeout(self) -> Duration {
        Duration::from_millis(500) * u32::from((self.0 >> 24) as u8)
    }

    /// Returns the bytes from one doorbell to the next (DSTRD).
    pub fn doorbell_stride(self) -> usize {
        4 << (self.0 >> 32 & 0xf)
    }
}

/// CC.EN, and the entry sizes of I/O queues: 64 and 16 bytes as powers of two.
const CC_ENABLE: u32 = 1;
const CC_ENTRY_SIZES: u32 = 4 << 20 | 6 << 16;
/// CC.SHN: a normal shutdown.
const CC_SHUTDOWN: u32 = 1 << 14;

/// An NVMe controller and its driver.
///
/// Methods that send a command wait for it, for [`Settings::timeout`] at most. I/O queues are values of their
/// own, for any thread; a reset makes them useless.
#[derive(Debug)]
pub struct Controller {
    transport: Arc<dyn PciTransport>,
    memory: Arc<DmaAllocator>,
    settings: Settings,
    capabilities: Capabilities,
    doorbells: Doorbells,
    pub(crate) admin: QueuePair,
    /// Data of admin commands, one page.
    page: DmaBuffer,
    identity: Option<Box<IdentifyController>>,
    /// Time in which the controller became ready.
    ready_time: Duration,
    pub(crate) events: AsyncEvents,
}

impl Controller {
    /// Takes over a controller in whatever state it is: resets it, enables it, identifies it.
    pub fn start(transport: Arc<dyn PciTransport>, settings: Settings) -> Result<Self, Error> {
        let mut controller = Self::attach(transport, settings)?;
        controller.enable()?;
        Ok(controller)
    }

    /// Prepares to drive a controller, without touching its registers other than to read CAP.
    pub fn attach(transport: Arc<dyn PciTransport>, settings: Settings) -> Result<Self, Error> {
        let capabilities = Capabilities(transport.read64(Region::BAR0, CAP.into())?);
        let memory = Arc::new(DmaAllocator::new(transport.clone()));
        let stride = capabilities.doorbell_stride();
        let doorbells = Doorbells { transport: transport.clone(), stride, shadow: None };
        Ok(Self {
            admin: admin_queue(settings, &memory, &doorbells)?,
            page: memory.allocate(PAGE_SIZE)?,
            transport,
            memory,
            settings,
            capabilities,
            doorbells,
            identity: None,
            ready_time: Duration::ZERO,
            events: AsyncEvents::default(),
        })
    }

    /// Brings the controller from any state to ready, with a new admin queue. Also a controller reset:
    /// every I/O queue is gone afterwards.
    pub fn enable(&mut self) -> Result<(), Error> {
        pci::enable_bus_master(&*self.transport)?;
        self.disable()?;
        self.doorbells.shadow = None;
        self.admin = admin_queue(self.settings, &self.memory, &self.doorbells)?;
        self.events = AsyncEvents::default();
        self.set_admin_queue()?;
        let began = Instant::now();
        self.write32(CC, CC_ENTRY_SIZES | CC_ENABLE)?;
        self.wait_ready(true)?;
        self.ready_time = began.elapsed();
        let identity: IdentifyController = zerocopy::transmute!(*self.identify(Cns::CONTROLLER, 0)?);
        let shadow = self.settings.shadow_doorbells && self.transport.doorbell_page().is_none();
        if shadow && identify::has_doorbell_buffer_config(&identity) {
            self.configure_doorbell_buffers()?;
        }
        self.identity = Some(Box::new(identity));
        Ok(())
    }

    /// Clears CC.EN and waits until the controller has stopped.
    pub fn disable(&mut self) -> Result<(), Error> {
        let cc = self.read32(CC)?;
        // CC.EN must not be cleared while a controller is still becoming ready (Base 3.1.4.5, EN).
        if cc & CC_ENABLE != 0 {
            self.wait_ready(true).or_else(|error| match error {
                Error::ControllerFatal => Ok(()),
                error => Err(error),
            })?;
        }
        self.write32(CC, cc & !CC_ENABLE)?;
        self.wait_ready(false)
    }

    /// Announces a normal shutdown and waits until it is complete (Base 3.6).
    pub fn shutdown(&mut self) -> Result<(), Error> {
        let cc = self.read32(CC)?;
        self.write32(CC, cc | CC_SHUTDOWN)?;
        self.wait_status(csts::SHST_MASK, csts::SHST_COMPLETE, self.settings.timeout, "shutdown")
    }

    /// Writes AQA, ASQ and ACQ (Base 3.1.4.8 to 10).
    fn set_admin_queue(&mut self) -> Result<(), Error> {
        let last = self.settings.admin_entries - 1;
        let (asq, acq) = (self.admin.submission().iova(), self.admin.completion().iova());
        self.write32(AQA, last << 16 | last)?;
        self.transport.write64(Region::BAR0, ASQ.into(), asq)?;
        self.transport.write64(Region::BAR0, ACQ.into(), acq)
    }

    fn configure_doorbell_buffers(&mut self) -> Result<(), Error> {
        let [values, events] = [self.memory.allocate(PAGE_SIZE)?, self.memory.allocate(PAGE_SIZE)?];
        self.admin(entry::doorbell_buffer_config(values.iova(), events.iova()))?;
        self.doorbells.shadow = Some(Arc::new(ShadowPages { values, events }));
        Ok(())
    }

    fn wait_ready(&self, ready: bool) -> Result<(), Error> {
        let limit = self.capabilities.ready_timeout().max(self.settings.timeout);
        let (value, what) = if ready { (csts::RDY, "CSTS.RDY = 1") } else { (0, "CSTS.RDY = 0") };
        // The fatal bit is of interest only to one who waits for the controller to work.
        if ready {
            self.wait_status(csts::RDY, value, limit, what)
        } else {
            self.wait_register(csts::RDY, value, limit, what, 0)
        }
    }

    fn wait_status(&self, mask: u32, value: u32, limit: Duration, what: &'static str) -> Result<(), Error> {
        self.wait_register(mask, value, limit, what, csts::CFS)
    }

    /// Waits until some bits of CSTS have a value, or any bit of `fatal` is set.
    fn wait_register(
        &self,
        mask: u32,
        value: u32,
        limit: Duration,
        what: &'static str,
        fatal: u32,
    ) -> Result<(), Error> {
        let deadline = Deadline::after(limit, what);
        let mut backoff = Backoff::default();
        loop {
            let status = self.read32(CSTS)?;
            if status & fatal != 0 {
                return Err(Error::ControllerFatal);
            }
            if status & mask == value {
                return Ok(());
            }
            deadline.check()?;
            backoff.pause();
        }
    }

    /// Returns whether the controller reports a fatal status (CSTS.CFS), or is gone.
    pub fn has_failed(&self) -> Result<bool, Error> {
        Ok(self.read32(CSTS)? & csts::CFS != 0)
    }

    /// Sends an admin command as it is and waits for it, whatever its status.
    pub fn command(&mut self, entry: SubmissionEntry) -> Result<CompletionEntry, Error> {
        let cid = self.submit(entry)?;
        self.wait(cid)
    }

    /// Sends an admin command that may take long, and does not wait for it. Others can be sent meanwhile.
    ///
    /// # Errors
    /// The device is gone, or an earlier such command is not complete.
    pub fn begin_long(&mut self, entry: SubmissionEntry) -> Result<(), Error> {
        if self.events.has_long() {
            return Err(Error::Unsupported("a second long command"));
        }
        let cid = self.submit(entry)?;
        self.events.begin_long(cid);
        Ok(())
    }

    /// Returns the completion of the long command, of any status, if it has come. Does not wait.
    pub fn poll_long(&mut self) -> Result<Option<CompletionEntry>, Error> {
        self.admin.reap(|completion| self.events.keep(completion));
        self.admin.ring()?;
        Ok(self.events.take_long())
    }

    /// Sends an admin command as it is. An error if its status is not success.
    pub fn admin(&mut self, entry: SubmissionEntry) -> Result<CompletionEntry, Error> {
        success(self.command(entry)?)
    }

    /// Sends an admin command whose data is somewhere in memory that the device sees.
    pub fn admin_with_data(
        &mut self,
        entry: SubmissionEntry,
        data: DmaRange,
    ) -> Result<CompletionEntry, Error> {
        let cid = self.admin.submit_prp(entry, data).ok_or(Error::QueueFull)?;
        success(self.wait(cid)?)
    }

    /// Sends an admin command with at most a page of data to the device.
    pub fn admin_write(&mut self, entry: SubmissionEntry, data: &[u8]) -> Result<CompletionEntry, Error> {
        self.page.region().write(0, data);
        self.admin_with_data(entry, self.page.range(0, data.len() as u32))
    }

    /// Sends an admin command with at most a page of data from the device.
    pub fn admin_read(&mut self, entry: SubmissionEntry, data: &mut [u8]) -> Result<CompletionEntry, Error> {
        let completion = self.admin_with_data(entry, self.page.range(0, data.len() as u32))?;
        self.page.region().read(0, data);
        Ok(completion)
    }

    /// Sends an admin command and does not wait for it.
    pub(crate) fn submit(&mut self, entry: SubmissionEntry) -> Result<u16, Error> {
        let cid = self.admin.submit(entry).ok_or(Error::QueueFull)?;
        self.admin.ring()?;
        Ok(cid)
    }

    fn wait(&mut self, cid: u16) -> Result<CompletionEntry, Error> {
        let deadline = Deadline::after(self.settings.timeout, "the completion of an admin command");
        self.admin.wait(cid, &deadline, |other| self.events.keep(other))
    }

    /// Takes the memory for an I/O queue pair and shows it to the device.
    pub(crate) fn lay_out_queue(&self, id: u16, layout: QueueLayout) -> Result<QueuePair, Error> {
        QueuePair::new(id, layout, &self.memory, &self.doorbells)
    }

    pub(crate) fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// Creates an eventfd for an MSI-X vector, and enables the vector.
    pub fn interrupt(&self, vector: u16) -> Result<Interrupt, Error> {
        use std::os::fd::AsFd;
        let interrupt = Interrupt::new()?;
        self.transport.set_interrupt(vector.into(), Some(interrupt.as_fd()))?;
        pci::enable_msix(&*self.transport)?;
        Ok(interrupt)
    }

    /// Returns the allocator of memory that is mapped for the device.
    pub fn memory(&self) -> &Arc<DmaAllocator> {
        &self.memory
    }

    /// Returns the transport, for operations that a driver does not do.
    pub fn transport(&self) -> &Arc<dyn PciTransport> {
        &self.transport
    }

    /// Returns the admin queue, for operations that a driver does not do. [`Controller::poll_async_event`]
    /// does not see completions of Asynchronous Event Requests that are reaped here.
    pub fn admin_queue(&mut self) -> &mut QueuePair {
        &mut self.admin
    }

    /// Returns the time in which the controller became ready when it was enabled.
    pub fn ready_time(&self) -> Duration {
        self.ready_time
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns the controller's Identify data from the time it was enabled; `None` before that.
    pub fn identity(&self) -> Option<&IdentifyController> {
        self.identity.as_deref()
    }

    /// Returns whether doorbells are in shared memory, and messages are sent only at the controller's event
    /// indexes.
    pub fn has_shadow_doorbells(&self) -> bool {
        self.doorbells.shadow.is_some()
    }

    /// Reads a controller property of four bytes.
    pub fn read32(&self, offset: u32) -> Result<u32, Error> {
        self.transport.read32(Region::BAR0, offset.into())
    }

    /// Writes a controller property of four bytes.
    pub fn write32(&self, offset: u32, value: u32) -> Result<(), Error> {
        self.transport.write32(Region::BAR0, offset.into(), value)
    }

    /// Writes any value to any doorbell as a register access: 2n is the tail of submission queue n,
    /// 2n + 1 the head of completion queue n.
    pub fn write_doorbell(&self, index: u32, value: u32) -> Result<(), Error> {
        let offset = index as usize * self.capabilities.doorbell_stride();
        self.transport.write32(Region::BAR0, u64::from(DOORBELLS) + offset as u64, value)
    }
}

/// Creates the admin queue. Its list pages are needed only for data that is longer than a log page.
fn admin_queue(settings: Settings, memory: &DmaAllocator, doorbells: &Doorbells) -> Result<QueuePair, Error> {
    if !(2..=4096).contains(&settings.admin_entries) {
        return Err(Error::Unsupported("admin queues of fewer than 2 or more than 4096 entries"));
    }
    let layout = QueueLayout { entries: settings.admin_entries, max_transfer: 64 << 10 };
    QueuePair::new(0, layout, memory, doorbells)
}

/// Returns the completion, if its status is success.
pub(crate) fn success(completion: CompletionEntry) -> Result<CompletionEntry, Error> {
    if completion.status().is_success() { Ok(completion) } else { Err(Error::Status(completion)) }
}
