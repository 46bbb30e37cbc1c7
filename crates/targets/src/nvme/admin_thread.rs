//! The thread that drives a device: all operations that wait for an answer of the device.
//!
//! The thread connects, creates a queue pair for each port, and maps memory for the device. When the device
//! is lost, or a target reports a timeout, the thread notifies all ports and reconnects with growing pauses.
//! Without work it sleeps.

mod maintenance;

use super::buffers::Buffers;
use super::confine::Partition;
use super::error::ErrorKind;
use super::iova_layout::{IovaLayout, Window};
use super::port::{Generation, Link, Port, RangeRequest, ThreadEvent, ThreadRequest};
use super::previous_peer::PreviousPeer;
use super::raw::{AdminRequest, brings_data};
use super::{Address, NvmeControl};
use crate::remote::orders::{Maintained, Order, PendingCommit, PendingReset};
use crate::remote::{EventRequests, Incompatible, LogLimit, NamespaceInfo, Notifier, Present, Retry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_host::{
    Controller, DmaAllocator, Error, Interrupt, Mode, PciTransport, QueueLayout, Settings, Vfio, VfioUser,
};
use sluice_memory::MemoryFile;
use sluice_nvme::{Cns, PAGE_SIZE, Status};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, TrySendError, channel};
use std::time::{Duration, Instant};

/// Queue pairs to request: as many as there are windows at most.
const PORTS_MAX: u32 = 126;

/// Entries of a queue, unless the device has fewer: commands of one target that the device has at once.
const QUEUE_ENTRIES: u32 = 256;

/// Time limit of the device for operations without a configured limit.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Duration after which a connection counts as useful, even without commands.
const LONG_LIFE: Duration = Duration::from_secs(30);

/// A device and its ports.
pub(super) struct AdminThread {
    pub(super) address: Address,
    requests: Receiver<ThreadRequest>,
    notifier: Arc<Notifier>,
    /// Ports by queue identifier less one.
    pub(super) ports: Vec<Option<PortState>>,
    pub(super) link: Option<Connection>,
    generation: Generation,
    retry: Retry,
    /// Set while a device that was given up may still write into mapped memory.
    reaches_memory: bool,
    /// Process of the device that was lost last.
    previous_peer: Option<PreviousPeer>,
    timeout: Duration,
    pub(super) logged: LogLimit,
    /// Orders of the control plane.
    orders: Receiver<Order>,
    /// Namespaces of the ports at the time at which their context was stored.
    saved: Vec<(u16, NamespaceInfo)>,
    /// Reset in progress.
    resetting: Option<PendingReset>,
    /// Firmware Commit in progress.
    committing: Option<PendingCommit>,
    /// Requests that wait for the end of the commit, since they have to wait for answers of the device.
    deferred: VecDeque<ThreadRequest>,
}

/// A connection to the device.
pub(super) struct Connection {
    pub(super) controller: Controller,
    pub(super) requests: EventRequests,
    /// Interrupt of the admin queue.
    interrupt: Interrupt,
    queues: u32,
    iova_layout: IovaLayout,
    since: Instant,
    /// Commands of the present ports that the device had completed before this connection.
    completed_before: u64,
    _present: Present,
}

/// The admin thread's part of a port.
pub(super) struct PortState {
    range: Partition,
    window: Window,
    info: NamespaceInfo,
    events: Sender<ThreadEvent>,
    notifier: Arc<Notifier>,
    pub(super) control: NvmeControl,
    /// Files that are mapped for the device in this generation.
    maps: Vec<MappedFile>,
}

struct MappedFile {
    iova: u64,
    bytes: u64,
    /// The file, which stays mapped in this process for as long as it is mapped for the device.
    _file: MemoryFile,
}

impl PortState {
    fn send(&self, event: ThreadEvent) {
        // A target that is about to go returns the receiver with its close request, so no event is lost.
        let _ = self.events.send(event);
        self.notifier.notify();
    }
}

impl AdminThread {
    pub(super) fn new(
        address: Address,
        requests: Receiver<ThreadRequest>,
        orders: Receiver<Order>,
        notifier: Arc<Notifier>,
    ) -> Self {
        Self {
            address,
            requests,
            notifier,
            ports: Vec::new(),
            link: None,
            generation: 0,
            retry: Retry::new(),
            reaches_memory: false,
            previous_peer: None,
            timeout: TIMEOUT,
            logged: LogLimit::new(),
            orders,
            saved: Vec::new(),
            resetting: None,
            committing: None,
            deferred: VecDeque::new(),
        }
    }

    /// Runs until all senders of requests are dropped.
    pub(super) fn run(mut self) {
        loop {
            self.notifier.clear();
            self.look_at_commit();
            loop {
                match self.next_request() {
                    Ok(request) => self.execute(request),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return self.shut_down(),
                }
            }
            while self.committing.is_none()
                && let Ok(order) = self.orders.try_recv()
            {
                self.execute_order(order);
            }
            if self.committing.is_none() {
                self.handle_async_events();
            }
            if self.link.is_none() && self.has_ports() && self.retry.is_due() {
                self.reconnect();
            }
            if self.sleep() {
                self.lose("it hung up");
            }
        }
    }

    fn has_ports(&self) -> bool {
        self.ports.iter().any(Option::is_some)
    }

    /// Sleeps until there is a request, or it is time to connect or to request an event. Returns whether the
    /// device has hung up.
    fn sleep(&self) -> bool {
        let wait = match &self.link {
            Some(link) => match &self.committing {
                Some(pending) => Some(pending.left()),
                None => link.requests.left(),
            },
            None if self.has_ports() => Some(self.retry.left()),
            None => None,
        };
        let wait =
            wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
        let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        let mut polled = vec![PollFd::new(&self.notifier, PollFlags::IN)];
        if let Some(link) = &self.link {
            polled.push(PollFd::new(&link.interrupt, PollFlags::IN));
            let presence = link.controller.transport().presence();
            polled.extend(presence.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)));
        }
        // After an interrupted poll the loop checks for requests once more.
        let looked = poll(&mut polled, wait.as_ref()).is_ok();
        let has_ended = polled.get(2).is_some_and(|polled| polled.revents().intersects(ended));
        if let Some(link) = &self.link {
            // The loop looks at the admin queue in any case, so the count does not matter.
            let _ = link.interrupt.take();
        }
        looked && has_ended
    }

    fn next_request(&mut self) -> Result<ThreadRequest, TryRecvError> {
        let next = self.deferred.iter().position(|request| !self.must_wait(request));
        match next.and_then(|at| self.deferred.remove(at)) {
            Some(request) => Ok(request),
            None => self.requests.try_recv(),
        }
    }

    /// Returns whether a request has to wait for the end of a commit. A device may stall its I/O during a commit, and a
    /// reset would interrupt the commit. After the limit for the commit the I/O has its time limits again.
    fn must_wait(&self, request: &ThreadRequest) -> bool {
        let Some(pending) = &self.committing else { return false };
        match request {
            ThreadRequest::Open { .. } | ThreadRequest::Admin { .. } => true,
            ThreadRequest::Close { .. } | ThreadRequest::TimedOut { .. } => !pending.is_answered(),
            _ => false,
        }
    }

    fn execute(&mut self, request: ThreadRequest) {
        match request {
            request if self.must_wait(&request) => self.deferred.push_back(request),
            ThreadRequest::Open { range, reply } => {
                let opened = self.open(&range);
                let unreceived = reply.try_send(opened).err();
                if let Some(TrySendError::Full(Ok(opened)) | TrySendError::Disconnected(Ok(opened))) =
                    unreceived
                {
                    // The requester has given up waiting; the range that was opened for it is closed.
                    self.close(opened.0.id, Some(Box::new(opened.1)), &opened.0.events);
                }
            }
            ThreadRequest::Map { port, generation, mapping, file, iova } if generation == self.generation => {
                self.map(port, mapping, file, iova);
            }
            ThreadRequest::Unmap { port, generation, mapping, bytes, iova }
                if generation == self.generation =>
            {
                self.unmap(port, mapping, bytes, iova);
            }
            ThreadRequest::Admin { port, generation, request } => self.send_admin(port, generation, request),
            ThreadRequest::TimedOut { port, generation } if generation == self.generation => {
                tracing::warn!(device = %self.address, port, "a command was not answered in time");
                self.lose("it does not answer");
            }
            ThreadRequest::LogLoss { port } => tracing::error!(
                device = %self.address, port,
                "an NVMe device may have lost power, and with it writes that were not flushed; the drive's hosts are told \
                 with their next Flush, and a mirror copies the member again"
            ),
            ThreadRequest::Close { port, link, events } => self.close(port, link, &events),
            // The end of an earlier generation has answered all of its requests.
            ThreadRequest::Map { .. } | ThreadRequest::Unmap { .. } | ThreadRequest::TimedOut { .. } => {}
            ThreadRequest::Discard(thing) => drop(thing),
        }
    }

    /// Connects, for the first time or again. All state of an earlier connection is dropped.
    fn connect(&mut self) -> Result<(), ErrorKind> {
        let transport: Arc<dyn PciTransport> = match &self.address {
            Address::VfioUser(path) => Arc::new(VfioUser::connect(path, Mode::Mapped, self.timeout)?),
            Address::Pci(address) => Arc::new(Vfio::open(address)?),
        };
        if self.reaches_memory
            && self
                .previous_peer
                .as_ref()
                .is_some_and(|previous_peer| previous_peer.is_replaced_by(&*transport))
        {
            return Err(ErrorKind::StillThere);
        }
        let settings = Settings { timeout: self.timeout, shadow_doorbells: false, ..Settings::default() };
        let mut controller = Controller::start(Arc::clone(&transport), settings)?;
        let granted = controller.set_queue_count(PORTS_MAX)?;
        let interrupt = controller.interrupt(0)?;
        controller.request_async_event()?;
        let requests = EventRequests::new();
        // Vector n belongs to queue pair n; the admin queue has vector 0.
        let vectors = transport.vectors().saturating_sub(1);
        let iova_layout = IovaLayout::of(transport.last_iova());
        let queues = granted.submission.min(granted.completion).min(vectors).min(iova_layout.windows());
        self.generation = self.generation.wrapping_add(1);
        let completed_before = self.completed();
        let (since, _present) = (Instant::now(), Present::new());
        self.link = Some(Connection {
            controller,
            requests,
            interrupt,
            queues,
            iova_layout,
            since,
            completed_before,
            _present,
        });
        Ok(())
    }

    /// Connects again, and sends each port a new link.
    fn reconnect(&mut self) {
        let began = Instant::now();
        self.resetting.iter_mut().for_each(PendingReset::attempt);
        let connected = self.connect();
        // A server accepts the next client when the commands of the last one have ended. If the process of
        // the last server still exists, this is the same server.
        if connected.as_ref().err().is_none_or(|error| self.is_over(error)) {
            self.release_memory();
        }
        let connected = connected.and_then(|()| self.restore());
        self.end_reset(began, connected.as_ref().err());
        if let Err(error) = connected {
            // A reset tries again and again.
            if self.resetting.is_none() || self.logged.admit().is_some() {
                tracing::warn!(device = %self.address, %error, "an NVMe device cannot be connected to again");
            }
            self.hang_up();
            self.retry.failed();
        } else {
            tracing::info!(device = %self.address, "an NVMe device is there again");
        }
    }

    /// Returns whether the process of the device has certainly ended. A missing socket is no proof: a server
    /// that shuts down removes it while commands are in flight.
    fn is_over(&self, error: &ErrorKind) -> bool {
        is_unreachable(error) && self.previous_peer.as_ref().is_none_or(PreviousPeer::has_ended)
    }

    /// Notifies all ports, once, that the device of the last generation does not reach memory any more.
    fn release_memory(&mut self) {
        if std::mem::take(&mut self.reaches_memory) {
            self.ports.iter().flatten().for_each(|port_state| port_state.send(ThreadEvent::MemoryReleased));
        }
    }

    /// Returns the number of commands that the device has completed for the present ports.
    fn completed(&self) -> u64 {
        self.ports.iter().flatten().map(|port_state| port_state.control.status().completed).sum()
    }

    /// Creates links for all ports. No port is notified before all have one: a device that lacks something is
    /// not used.
    fn restore(&mut self) -> Result<(), ErrorKind> {
        let mut links = Vec::new();
        for (id, port_state) in (1..).zip(&self.ports) {
            let (Some(port_state), Some(link)) = (port_state, &mut self.link) else { continue };
            let info = link.info(port_state.range.nsid)?;
            if !info.replaces(&port_state.info, port_state.range.blocks.end) {
                return Err(ErrorKind::Replaced);
            }
            links.push((id, link.create(id, port_state.window, self.generation, info)?));
        }
        for (id, link) in links {
            if let Some(port_state) = self.port_state(id) {
                port_state.control.set_connected(true);
                port_state.send(ThreadEvent::Up(Box::new(link)));
            }
        }
        Ok(())
    }

    fn port_state(&mut self, id: u16) -> Option<&mut PortState> {
        self.ports.get_mut(usize::from(id).checked_sub(1)?)?.as_mut()
    }

    fn open(&mut self, request: &RangeRequest) -> Result<(Port, Link), ErrorKind> {
        self.timeout = request.timeout.max(Duration::from_secs(1));
        if self.link.is_none() {
            if self.resetting.is_some() && self.has_ports() {
                // The next attempt to connect ends the reset.
                return Err(ErrorKind::Resetting);
            }
            self.connect().inspect_err(|_| self.hang_up())?;
            self.release_memory();
            if let Err(error) = self.restore() {
                self.hang_up();
                return Err(error);
            }
        }
        let opened = self.open_connected(request);
        if let Err(ErrorKind::Device(error)) = &opened
            && is_fatal(error)
        {
            self.lose("a range of it could not be opened");
        }
        opened
    }

    fn open_connected(&mut self, request: &RangeRequest) -> Result<(Port, Link), ErrorKind> {
        let generation = self.generation;
        let Some(link) = &mut self.link else { return Err(ErrorKind::NoThread) };
        let info = link.info(request.namespace)?;
        let range = Partition::of(&info, request.namespace, request.first_block, request.blocks)?;
        let held = self.ports.iter().flatten().find(|port_state| port_state.range.overlaps(&range));
        if let Some(PortState { range: held, .. }) = held {
            let blocks = held.blocks.end - held.blocks.start;
            return Err(ErrorKind::Taken { first: held.blocks.start, blocks });
        }
        let index = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if index >= link.queues as usize {
            return Err(ErrorKind::NoQueue { granted: link.queues });
        }
        let id = index as u16 + 1;
        let window = link.iova_layout.window(id);
        let made = link.create(id, window, generation, info.clone())?;
        let (events, listener) = channel();
        let notifier = Arc::new(Notifier::new().map_err(Error::from)?);
        let port_state = PortState {
            range: range.clone(),
            window,
            info: info.clone(),
            events,
            notifier: Arc::clone(&notifier),
            control: request.control.clone(),
            maps: Vec::new(),
        };
        if index == self.ports.len() {
            self.ports.push(None);
        }
        self.ports[index] = Some(port_state);
        let port = Port { id, window, range, info, events: listener, notifier };
        Ok((port, made))
    }

    fn map(&mut self, port: u16, mapping: usize, file: MemoryFile, iova: u64) {
        let Some(link) = &self.link else { return };
        let bytes = file.len();
        let mapped = link.controller.transport().map_file(&file, iova);
        let is_mapped = mapped.is_ok();
        if let Some(port_state) = self.port_state(port) {
            if is_mapped {
                port_state.maps.push(MappedFile { iova, bytes, _file: file });
            }
            port_state.send(ThreadEvent::Mapped { mapping, is_mapped });
        }
        if let Err(error) = mapped {
            tracing::warn!(device = %self.address, port, %error, "the device does not take a guest's memory; its data is copied");
            self.lose_if_fatal(&error);
        }
    }

    fn unmap(&mut self, port: u16, mapping: usize, bytes: u64, iova: u64) {
        let Some(link) = &self.link else { return };
        if let Err(error) = link.controller.transport().unmap(iova, bytes) {
            // Memory that the device may still reach must not be reported as unmapped.
            tracing::warn!(device = %self.address, port, %error, "the device does not give memory back");
            return self.lose("it does not give memory back");
        }
        if let Some(port_state) = self.port_state(port) {
            port_state.send(ThreadEvent::Unmapped { mapping });
            port_state.maps.retain(|held| held.iova != iova);
        }
    }

    /// Sends an admin command of a target's host.
    fn send_admin(&mut self, port: u16, generation: Generation, mut request: Box<AdminRequest>) {
        let sent = match &mut self.link {
            Some(link) if generation == self.generation => link.send_admin(&mut request),
            _ => Err(Error::Timeout("an answer of an earlier life of the device")),
        };
        let status = match &sent {
            Ok(()) => Status::SUCCESS,
            Err(error) => error.status().unwrap_or(Status::INTERNAL_PATH_ERROR),
        };
        if let Some(port_state) = self.port_state(port) {
            port_state.send(ThreadEvent::AdminDone { request, status });
        }
        if let Err(error) = sent
            && generation == self.generation
        {
            tracing::debug!(device = %self.address, port, %error, "an admin command that was handed on");
            self.lose_if_fatal(&error);
        }
    }

    /// Closes the port of a target that is gone: its queues, its memory, its range. The last link may still
    /// be among its unreceived events.
    fn close(&mut self, port: u16, link: Option<Box<Link>>, events: &Receiver<ThreadEvent>) {
        let unreceived = events.try_iter().filter_map(|event| match event {
            ThreadEvent::Up(link) => Some(link),
            _ => None,
        });
        let made = link.into_iter().chain(unreceived).find(|made| made.generation == self.generation);
        // The port's number may be another one's next.
        self.deferred.retain(|it| !matches!(it, ThreadRequest::Admin { port: of, .. } if *of == port));
        let index = usize::from(port).wrapping_sub(1);
        let Some(port_state) = self.ports.get_mut(index).and_then(Option::take) else { return };
        let Some(link) = &mut self.link else { return };
        let mut closed = Ok(());
        if let Some(made) = made {
            // The queue is deleted before its memory is unmapped: that ends all commands in flight.
            closed = link.controller.delete_queue_pair(made.queue).map(drop);
        }
        for mapping in &port_state.maps {
            let back = link.controller.transport().unmap(mapping.iova, mapping.bytes);
            closed = closed.and(back);
        }
        if let Err(error) = closed {
            tracing::warn!(device = %self.address, port, %error, "a queue pair could not be given back");
            self.lose("it does not give a queue pair back");
        }
    }

    pub(super) fn lose_if_fatal(&mut self, error: &Error) {
        if is_fatal(error) {
            self.lose("its connection failed");
        }
    }

    /// Gives up a device that is gone or does not answer, and notifies all ports. The loop reconnects.
    fn lose(&mut self, why: &str) {
        let Some(link) = &self.link else { return };
        let transport = Arc::clone(link.controller.transport());
        let was_of_use = self.completed() > link.completed_before || link.since.elapsed() > LONG_LIFE;
        tracing::warn!(device = %self.address, why, "an NVMe device is lost; connecting again");
        self.hang_up();
        let is_cut_off = transport.is_cut_off();
        self.previous_peer = PreviousPeer::of(&*transport);
        drop(transport);
        self.retry.lost(was_of_use);
        self.reaches_memory = true;
        for port_state in self.ports.iter_mut().flatten() {
            port_state.control.set_connected(false);
            port_state.send(ThreadEvent::Down);
            port_state.maps.clear();
        }
        if is_cut_off {
            self.release_memory();
        }
    }

    /// Ends the connection, if there is one.
    fn hang_up(&mut self) {
        if let Some(pending) = self.committing.take() {
            pending.failed("the device is lost");
        }
        if let Some(link) = self.link.take() {
            link.controller.transport().hang_up();
        }
        self.generation = self.generation.wrapping_add(1);
    }

    /// Shuts the device down, which no target needs any more.
    fn shut_down(mut self) {
        if let Some(link) = &mut self.link {
            if let Err(error) = link.controller.shutdown().and_then(|()| link.controller.disable()) {
                tracing::warn!(device = %self.address, %error, "an NVMe device was left without a shutdown");
            }
            link.controller.transport().hang_up();
        }
    }
}

impl Connection {
    fn info(&mut self, nsid: u32) -> Result<NamespaceInfo, ErrorKind> {
        let namespace = match self.controller.identify_namespace(nsid) {
            Err(error) if error.status().is_some() => return Err(Incompatible::NoNamespace(nsid).into()),
            other => other?,
        };
        let uuid = match self.controller.identify(Cns::NAMESPACE_DESCRIPTORS, nsid) {
            Ok(list) => sluice_host::identify::uuid(&list[..]),
            // Controllers before NVMe 1.3 have no such list.
            Err(error) if error.status().is_some() => None,
            Err(error) => return Err(error.into()),
        };
        let controller = self.controller.identity().ok_or(ErrorKind::NoThread)?;
        Ok(NamespaceInfo::of(nsid, controller, &namespace)?.with_uuid(uuid))
    }

    fn send_admin(&mut self, request: &mut AdminRequest) -> Result<(), Error> {
        let AdminRequest { entry, data, .. } = request;
        let done = match data.is_empty() {
            true => self.controller.admin(*entry),
            false if brings_data(entry.opcode) => self.controller.admin_read(*entry, data),
            false => self.controller.admin_write(*entry, data),
        };
        done.map(drop)
    }

    /// Creates a queue pair with its interrupt and buffers, all in the window of its identifier.
    fn create(
        &mut self,
        id: u16,
        window: Window,
        generation: Generation,
        info: NamespaceInfo,
    ) -> Result<Link, ErrorKind> {
        if u32::from(id) > self.queues {
            return Err(ErrorKind::NoQueue { granted: self.queues });
        }
        // A doorbell beyond the mapped page would need a message, which a reactor must not wait for.
        let stride = self.controller.capabilities().doorbell_stride();
        if (usize::from(id) * 2 + 1) * stride + size_of::<u32>() > PAGE_SIZE {
            return Err(Error::Unsupported("doorbells beyond the page that can be mapped").into());
        }
        let memory = DmaAllocator::above(Arc::clone(self.controller.transport()), window.own());
        let entries = QUEUE_ENTRIES.min(self.controller.capabilities().max_queue_entries());
        let layout = QueueLayout { entries, max_transfer: info.transfer_max };
        let interrupt = self.controller.interrupt(id)?;
        let buffers = Buffers::new(memory.allocate(Buffers::BYTES)?);
        let queue = self.controller.create_queue_pair_in(&memory, id, layout, Some(id))?;
        Ok(Link { generation, queue, interrupt, buffers, info })
    }
}

/// Returns whether an error means that no server listens at the address.
fn is_unreachable(error: &ErrorKind) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let ErrorKind::Device(Error::System(error)) = error else { return false };
    matches!(error.kind(), ConnectionRefused | NotFound)
}

/// Returns whether an error ends the connection. All do but the device's refusals.
fn is_fatal(error: &Error) -> bool {
    !matches!(error, Error::Status(_) | Error::Refused(..) | Error::Unsupported(_) | Error::Setup(_))
}

#[cfg(test)]
mod tests;
