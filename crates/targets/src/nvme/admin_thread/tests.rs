//! A test of an admin thread with a device that always has another event.

use super::*;
use crate::nvme::port::RequestSender;
use crate::remote::orders::orders;
use crate::remote::{Activation, CommitLimits, Maintenance, MaintenanceFault};
use sluice_host::Region;
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::admin;
use sluice_nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS, csts};
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};
use zerocopy::{FromBytes, FromZeros};

/// A device with an admin queue that is processed when its doorbell is written. Every command succeeds, and
/// none does anything.
#[derive(Debug)]
struct EventfulDevice(Mutex<State>);

#[derive(Debug)]
struct State {
    maps: Vec<(u64, SharedRegion)>,
    registers: Vec<u8>,
    head: u32,
    completed: u32,
    /// Asynchronous Event Requests, all of which were completed at once.
    events: u32,
    /// Identifier of a Firmware Commit, which the test completes.
    commit: Option<u16>,
}

impl EventfulDevice {
    fn new() -> Self {
        let mut registers = vec![0; 0x1000];
        // 1024 entries, half a second until ready.
        registers[CAP as usize..][..8].copy_from_slice(&(1023_u64 | 1 << 24).to_le_bytes());
        Self(Mutex::new(State {
            maps: Vec::new(),
            registers,
            head: 0,
            completed: 0,
            events: 0,
            commit: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test goes on after a panic")
    }
}

impl State {
    fn register(&self, offset: u32, size: usize) -> u64 {
        self.registers[offset as usize..][..size]
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    /// Returns the region of an address, and the offset in it.
    fn find(&self, iova: u64) -> (&SharedRegion, usize) {
        let inside = |(start, region): &&(u64, SharedRegion)| iova.wrapping_sub(*start) < region.len() as u64;
        let (start, region) = self.maps.iter().find(inside).expect("an address that is mapped");
        (region, (iova - start) as usize)
    }

    /// Applies CC at once: ready, or shut down.
    fn configure(&mut self) {
        let cc = self.register(CC, 4);
        let shut_down = if cc >> 14 & 3 == 0 { 0 } else { csts::SHST_COMPLETE };
        let ready = if cc & 1 == 0 { 0 } else { csts::RDY };
        let status = ready | shut_down;
        self.registers[CSTS as usize..][..4].copy_from_slice(&status.to_le_bytes());
        if cc & 1 == 0 {
            (self.head, self.completed) = (0, 0);
        }
    }

    fn work(&mut self, tail: u32) {
        let entries = (self.register(AQA, 4) as u32 & 0xfff) + 1;
        while self.head != tail {
            let mut bytes = [0; SubmissionEntry::SIZE];
            let (region, offset) = self.find(self.register(ASQ, 8) + u64::from(self.head) * 64);
            region.read(offset, &mut bytes);
            let entry = SubmissionEntry::read_from_bytes(&bytes).expect("64 bytes");
            self.head = (self.head + 1) % entries;
            self.events += u32::from(entry.opcode == admin::ASYNC_EVENT_REQUEST);
            match entry.opcode {
                admin::FIRMWARE_COMMIT => self.commit = Some(entry.cid),
                _ => self.complete(entry.cid),
            }
        }
    }

    fn complete(&mut self, cid: u16) {
        let entries = (self.register(AQA, 4) as u32 & 0xfff) + 1;
        let phase = (self.completed / entries).is_multiple_of(2);
        let completion = CompletionEntry::new(0, self.head as u16, 0, cid, Status::SUCCESS, phase);
        let [low, high]: [u64; 2] = zerocopy::transmute!(completion);
        let (region, offset) = self.find(self.register(ACQ, 8) + u64::from(self.completed % entries) * 16);
        region.atomic_u64(offset).store(low, Ordering::Relaxed);
        region.atomic_u64(offset + 8).store(high, Ordering::Release);
        self.completed += 1;
    }
}

impl PciTransport for EventfulDevice {
    fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        match region {
            Region::BAR0 => data.copy_from_slice(&self.state().registers[offset as usize..][..data.len()]),
            _ => data.fill(0),
        }
        Ok(())
    }

    fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), Error> {
        if region == Region::BAR0 {
            let mut state = self.state();
            state.registers[offset as usize..][..data.len()].copy_from_slice(data);
            state.configure();
        }
        Ok(())
    }

    fn post(&self, offset: u64, value: u32) -> Result<(), Error> {
        if offset == u64::from(DOORBELLS) {
            self.state().work(value);
        }
        Ok(())
    }

    fn doorbell_page(&self) -> Option<&Arc<SharedRegion>> {
        None
    }

    fn map(&self, memory: &SharedRegion, iova: u64) -> Result<(), Error> {
        let copy = SharedRegion::from_fd(memory.fd().try_clone_to_owned()?, 0, memory.len())?;
        self.state().maps.push((iova, copy));
        Ok(())
    }

    fn unmap(&self, iova: u64, _size: u64) -> Result<(), Error> {
        self.state().maps.retain(|(start, _)| *start != iova);
        Ok(())
    }

    fn vectors(&self) -> u32 {
        1
    }

    fn set_interrupt(&self, _vector: u32, _eventfd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        Ok(())
    }

    fn disable_interrupts(&self) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Creates an admin thread that has connected to a device.
fn admin_thread(device: &Arc<EventfulDevice>) -> (AdminThread, RequestSender, Maintenance) {
    let notifier = Arc::new(Notifier::new().expect("an eventfd"));
    let (sender, receiver) = channel();
    let requests = RequestSender::new(sender, Arc::clone(&notifier));
    let (maintenance, orders) = orders(&notifier);
    let mut admin_thread = AdminThread::new(Address::Pci("eventful".to_owned()), receiver, orders, notifier);
    let settings = Settings { timeout: Duration::from_secs(600), ..Settings::default() };
    let transport: Arc<dyn PciTransport> = device.clone();
    let mut controller = Controller::start(transport, settings).expect("enabled");
    controller.request_async_event().expect("requested");
    admin_thread.link = Some(Connection {
        controller,
        requests: EventRequests::new(),
        interrupt: Interrupt::new().expect("an eventfd"),
        queues: 1,
        iova_layout: IovaLayout::of(u64::MAX),
        since: Instant::now(),
        completed_before: 0,
        _present: Present::new(),
    });
    (admin_thread, requests, maintenance)
}

#[test]
fn a_device_that_always_has_an_event_does_not_delay_requests() {
    let device = Arc::new(EventfulDevice::new());
    let (admin_thread, requests, _) = admin_thread(&device);
    let began = Instant::now();
    let (sender, ended) = std::sync::mpsc::sync_channel(1);
    let run = std::thread::spawn(move || {
        admin_thread.run();
        sender.send(()).expect("the test waits");
    });
    while device.state().events < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(requests);
    ended.recv_timeout(Duration::from_secs(60)).expect("the thread ends without senders");
    run.join().expect("no panic");
    let (events, most) = (device.state().events, began.elapsed().as_millis() / 100 + 2);
    assert!(u128::from(events) <= most, "{events} events, at most {most} in that time");
}

/// Adds a port with the first window, and returns its events.
fn add_port(admin_thread: &mut AdminThread) -> Receiver<ThreadEvent> {
    let mut namespace = sluice_nvme::identify::IdentifyNamespace::new_zeroed();
    (namespace.nsze, namespace.lbaf[0].lbads) = (1000, 9);
    let controller = sluice_nvme::identify::IdentifyController::new_zeroed();
    let info = NamespaceInfo::of(1, &controller, &namespace).expect("a namespace");
    let (events, listener) = channel();
    admin_thread.ports.push(Some(PortState {
        range: Partition { nsid: 1, blocks: 0..1000, block_shift: 9 },
        window: IovaLayout::of(u64::MAX).window(1),
        info,
        events,
        notifier: Arc::new(Notifier::new().expect("an eventfd")),
        control: NvmeControl::default(),
        maps: Vec::new(),
    }));
    listener
}

/// Serves a port while a Firmware Commit is in progress.
#[test]
fn a_long_commit_delays_no_unmap() {
    let device = Arc::new(EventfulDevice::new());
    let (mut admin_thread, requests, maintenance) = admin_thread(&device);
    let (generation, events) = (admin_thread.generation, add_port(&mut admin_thread));
    let minute = Duration::from_secs(60);
    let limits = CommitLimits { answer: minute * 60, busy: minute * 60 };
    let run = std::thread::spawn(move || admin_thread.run());
    let commit = start_commit(&device, maintenance, limits);
    let entry = SubmissionEntry { opcode: admin::GET_LOG_PAGE, ..SubmissionEntry::default() };
    let request = Box::new(AdminRequest { ticket: sluice_command::Ticket(0), entry, data: Vec::new() });
    requests.send(ThreadRequest::Admin { port: 1, generation, request });
    requests.send(ThreadRequest::Unmap { port: 1, generation, mapping: 3, bytes: 4096, iova: 0 });
    let event = events.recv_timeout(minute).expect("the thread serves its port");
    assert!(matches!(event, ThreadEvent::Unmapped { mapping: 3 }), "{event:?}");
    assert!(!commit.is_finished(), "the device has not completed it");
    let mut state = device.state();
    let cid = state.commit.take().expect("it came");
    state.complete(cid);
    drop(state);
    // The device of the test has no interrupts.
    requests.send(ThreadRequest::Discard(Box::new(())));
    assert_eq!(commit.join().expect("no panic"), Ok(Activation::Ready));
    let event = events.recv_timeout(minute).expect("the command was deferred");
    assert!(matches!(event, ThreadEvent::AdminDone { status: Status::SUCCESS, .. }), "{event:?}");
    drop(requests);
    run.join().expect("no panic");
}

/// Starts a Firmware Commit with these limits, and waits until the device has it. Returns its result.
fn start_commit(
    device: &EventfulDevice,
    maintenance: Maintenance,
    limits: CommitLimits,
) -> std::thread::JoinHandle<Result<Activation, MaintenanceFault>> {
    let commit = std::thread::spawn(move || maintenance.commit(1, 3, limits));
    while device.state().commit.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    commit
}

#[test]
fn a_device_that_hangs_in_a_commit_is_lost_at_the_time_out_of_a_command() {
    let device = Arc::new(EventfulDevice::new());
    let (mut admin_thread, requests, maintenance) = admin_thread(&device);
    let (generation, events) = (admin_thread.generation, add_port(&mut admin_thread));
    let minute = Duration::from_secs(60);
    let limits = CommitLimits { answer: Duration::from_millis(100), busy: minute * 60 };
    let run = std::thread::spawn(move || admin_thread.run());
    let commit = start_commit(&device, maintenance, limits);
    // Deferred until the commit was answered, unless it came later.
    requests.send(ThreadRequest::TimedOut { port: 1, generation });
    let fault = commit.join().expect("no panic").expect_err("there is no completion");
    assert!(fault.to_string().contains("may still be in progress"), "{fault}");
    let event = events.recv_timeout(minute).expect("the device is lost");
    assert!(matches!(event, ThreadEvent::Down), "{event:?}");
    drop(requests);
    run.join().expect("no panic");
}

#[test]
fn a_port_is_closed_after_the_limit_of_a_commit_that_goes_on() {
    let device = Arc::new(EventfulDevice::new());
    let (mut admin_thread, requests, maintenance) = admin_thread(&device);
    let (generation, events) = (admin_thread.generation, add_port(&mut admin_thread));
    let minute = Duration::from_secs(60);
    let limits = CommitLimits { answer: Duration::from_millis(100), busy: minute * 60 };
    let run = std::thread::spawn(move || admin_thread.run());
    let commit = start_commit(&device, maintenance, limits);
    let request = Box::new(AdminRequest {
        ticket: sluice_command::Ticket(0),
        entry: SubmissionEntry { opcode: admin::GET_LOG_PAGE, ..SubmissionEntry::default() },
        data: Vec::new(),
    });
    requests.send(ThreadRequest::Admin { port: 1, generation, request });
    requests.send(ThreadRequest::Close { port: 1, link: None, events: channel().1 });
    commit.join().expect("no panic").expect_err("there is no completion");
    let closed = events.recv_timeout(minute);
    assert_eq!(closed.err(), Some(std::sync::mpsc::RecvTimeoutError::Disconnected), "its command is dropped");
    drop(requests);
    run.join().expect("no panic");
}

#[test]
fn a_fatal_status_during_a_commit_loses_the_device() {
    let device = Arc::new(EventfulDevice::new());
    let (mut admin_thread, requests, maintenance) = admin_thread(&device);
    let events = add_port(&mut admin_thread);
    let minute = Duration::from_secs(60);
    let limits = CommitLimits { answer: minute * 60, busy: minute * 60 };
    let run = std::thread::spawn(move || admin_thread.run());
    let commit = start_commit(&device, maintenance, limits);
    device.state().registers[CSTS as usize] |= csts::CFS as u8;
    // A request wakes the thread.
    requests.send(ThreadRequest::Discard(Box::new(())));
    let event = events.recv_timeout(minute).expect("the device is lost");
    assert!(matches!(event, ThreadEvent::Down), "{event:?}");
    let fault = commit.join().expect("no panic").expect_err("there is no completion");
    assert!(fault.to_string().contains("the device is lost"), "{fault}");
    drop(requests);
    run.join().expect("no panic");
}
