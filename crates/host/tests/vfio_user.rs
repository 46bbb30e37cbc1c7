//! The vfio-user transport against a server that follows a script.

use sluice_host::{Error, Interrupt, Mode, PciTransport, Region, VfioUser};
use sluice_memory::SharedRegion;
use sluice_vfio_user::device::{DeviceInfo, MmapArea, RegionInfo, SparseMmap, region};
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use sluice_vfio_user::irq::{IrqInfo, IrqSet};
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::version::{self, Capabilities, Version};
use sluice_vfio_user::{Command, Connection, Errno, Header};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A message that a server was sent.
struct Received {
    header: Header,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Received {
    fn parse<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.payload).unwrap_or_else(|_| panic!("a shorter payload")).0
    }
}

/// The server's end of the socket, which waits for what it is sent.
struct Server(Connection);

impl Server {
    fn expect(&mut self, command: Command) -> Received {
        loop {
            if let Some(message) = self.0.receive().expect("a client") {
                let received =
                    Received { header: message.header, payload: message.payload.to_vec(), fds: message.fds };
                assert_eq!(received.header.command, command);
                return received;
            }
            let mut poll = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut poll, None).expect("polled");
        }
    }

    fn reply(&mut self, to: &Received, payload: impl IntoBytes + zerocopy::Immutable) {
        self.0.reply(&to.header, payload.as_bytes(), &[]).expect("a client");
    }

    /// Answers VERSION and DEVICE_GET_INFO.
    fn greet(&mut self) -> Option<Capabilities> {
        let hello = self.expect(Command::VERSION);
        let (version, capabilities) = version::parse(&hello.payload).expect("a version");
        self.reply(&hello, version);
        let question = self.expect(Command::DEVICE_GET_INFO);
        self.reply(&question, device(DeviceInfo::PCI));
        capabilities
    }

    /// Answers DEVICE_GET_IRQ_INFO: nine vectors.
    fn describe_interrupts(&mut self) {
        let question = self.expect(Command::DEVICE_GET_IRQ_INFO);
        let info = IrqInfo { flags: IrqInfo::EVENTFD, count: 9, ..question.parse() };
        self.reply(&question, info);
    }

    /// Answers DEVICE_GET_REGION_INFO for a BAR 0 whose doorbell page is a part of a file, as far as the
    /// client has room for that.
    fn describe_bar0(&mut self, file: &SharedRegion, area: MmapArea) -> u32 {
        let question = self.expect(Command::DEVICE_GET_REGION_INFO);
        let asked: RegionInfo = question.parse();
        assert_eq!(asked.index, region::BAR0);
        let full = (RegionInfo::SIZE + SparseMmap::SIZE) as u32;
        let mut info = RegionInfo { argsz: full, size: 0x4000, offset: 0x1000, ..asked };
        info.flags = RegionInfo::READ | RegionInfo::WRITE | RegionInfo::MMAP;
        let sparse = SparseMmap::new(area);
        let mut capabilities: &[u8] = &[];
        if asked.argsz >= full {
            (info.flags, info.cap_offset) = (info.flags | RegionInfo::CAPS, RegionInfo::SIZE as u32);
            capabilities = sparse.as_bytes();
        }
        self.0
            .reply_with_fds(&question.header, info.as_bytes(), capabilities, &[file.fd()])
            .expect("a client");
        asked.argsz
    }
}

fn device(flags: u32) -> DeviceInfo {
    DeviceInfo { argsz: DeviceInfo::SIZE as u32, flags, num_regions: 9, num_irqs: 5 }
}

/// Runs a script as the server of a new socket pair.
fn serve<T: Send + 'static>(
    script: impl FnOnce(&mut Server) -> T + Send + 'static,
) -> (UnixStream, JoinHandle<T>) {
    let (client, server) = UnixStream::pair().expect("a socket pair");
    (client, std::thread::spawn(move || script(&mut Server(Connection::new(server)))))
}

/// Creates a transport in trapped mode, and a server that runs a script.
fn trapped<T: Send + 'static>(
    script: impl FnOnce(&mut Server) -> T + Send + 'static,
) -> (VfioUser, JoinHandle<T>) {
    let (client, server) = serve(|server| {
        assert!(server.greet().is_some_and(|capabilities| capabilities.max_msg_fds == 16));
        server.describe_interrupts();
        script(server)
    });
    (VfioUser::over(client, Mode::Trapped, TIMEOUT).expect("set up"), server)
}

#[test]
fn mapped_mode_finds_the_doorbell_page() {
    let file = SharedRegion::new("bar0", 0x5000).expect("memory");
    let copy =
        SharedRegion::from_fd(file.fd().try_clone_to_owned().expect("a copy"), 0, 0x5000).expect("mapped");
    let (client, server) = serve(move |server| {
        assert_eq!(server.greet(), None);
        // Three pages in the middle of the BAR, of which the doorbells are the second.
        let area = MmapArea { offset: 0, size: 0x3000 };
        assert_eq!(server.describe_bar0(&copy, area), RegionInfo::SIZE as u32);
        assert_eq!(server.describe_bar0(&copy, area), (RegionInfo::SIZE + SparseMmap::SIZE) as u32);
        server.describe_interrupts();
    });
    let transport = VfioUser::over(client, Mode::Mapped, TIMEOUT).expect("set up");
    server.join().expect("the script was followed");
    assert_eq!(transport.vectors(), 9);
    let page = transport.doorbell_page().expect("mapped");
    page.atomic_u32(8).store(0x1234, Ordering::Relaxed);
    // The file has BAR 0 from 0x1000 on, and BAR 0 has doorbells from 0x1000 on.
    assert_eq!(file.atomic_u32(0x2008).load(Ordering::Relaxed), 0x1234);
}

#[test]
fn mapped_mode_needs_all_of_the_page() {
    let file = SharedRegion::new("bar0", 0x5000).expect("memory");
    let (client, _server) = serve(move |server| {
        server.greet();
        let area = MmapArea { offset: 0x1000, size: 0x800 };
        server.describe_bar0(&file, area);
        server.describe_bar0(&file, area);
    });
    let error = VfioUser::over(client, Mode::Mapped, TIMEOUT).expect_err("half a page");
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}

#[test]
fn a_file_shorter_than_the_page_is_an_error() {
    let file = SharedRegion::new("bar0", 0x1000).expect("memory");
    let (client, _server) = serve(move |server| {
        server.greet();
        let area = MmapArea { offset: 0x1000, size: 0x1000 };
        server.describe_bar0(&file, area);
        server.describe_bar0(&file, area);
    });
    let error = VfioUser::over(client, Mode::Mapped, TIMEOUT).expect_err("too short");
    assert!(matches!(error, Error::System(_)), "{error}");
}

#[test]
fn registers() {
    let (transport, server) = trapped(|server| {
        let read = server.expect(Command::REGION_READ);
        let access: RegionAccess = read.parse();
        assert_eq!(access, RegionAccess { offset: 0x1c, region: 0, count: 4 });
        server.0.reply(&read.header, access.as_bytes(), &[1, 2, 3, 4]).expect("a client");
        let write = server.expect(Command::REGION_WRITE);
        assert_eq!(write.parse::<RegionAccess>(), RegionAccess { offset: 0x28, region: 0, count: 8 });
        assert_eq!(write.payload[16..], 0x1_0000_1000u64.to_le_bytes());
        server.reply(&write, write.parse::<RegionAccess>());
        let doorbell = server.expect(Command::REGION_WRITE);
        assert!(doorbell.header.no_reply());
        assert_eq!(doorbell.payload[16..], 7u32.to_le_bytes());
        let config = server.expect(Command::REGION_READ);
        assert_eq!(config.parse::<RegionAccess>().region, 7);
        server.0.reply_error(&config.header, Errno::INVAL).expect("a client");
    });
    assert_eq!(transport.read32(Region::BAR0, 0x1c).expect("read"), 0x0403_0201);
    transport.write64(Region::BAR0, 0x28, 0x1_0000_1000).expect("written");
    transport.post(0x1008, 7).expect("posted");
    let error = transport.read32(Region::CONFIG, 0).expect_err("refused");
    assert!(matches!(error, Error::Refused(Command::REGION_READ, Errno::INVAL)), "{error}");
    server.join().expect("the script was followed");
}

#[test]
fn memory_goes_with_its_descriptor() {
    let memory = SharedRegion::new("memory", 0x2000).expect("memory");
    let (transport, server) = trapped(|server| {
        let map = server.expect(Command::DMA_MAP);
        let (structure, fd) = (map.parse::<DmaMap>(), map.fds.first().expect("a descriptor"));
        assert_eq!((structure.argsz, structure.flags, structure.offset), (32, 3, 0));
        assert_eq!((structure.address, structure.size), (0x10_0000, 0x2000));
        let fd = fd.try_clone().expect("a copy");
        let seen = SharedRegion::from_fd(fd, structure.offset, structure.size as usize).expect("mapped");
        server.reply(&map, [0u8; 0]);
        let unmap = server.expect(Command::DMA_UNMAP);
        assert_eq!(
            unmap.parse::<DmaUnmap>(),
            DmaUnmap { argsz: 24, flags: 0, address: 0x10_0000, size: 0x2000 }
        );
        server.reply(&unmap, unmap.parse::<DmaUnmap>());
        seen.atomic_u32(0x1ffc).load(Ordering::Relaxed)
    });
    memory.atomic_u32(0x1ffc).store(99, Ordering::Relaxed);
    transport.map(&memory, 0x10_0000).expect("mapped");
    transport.unmap(0x10_0000, 0x2000).expect("unmapped");
    assert_eq!(server.join().expect("the script was followed"), 99);
}

#[test]
fn interrupts() {
    let (transport, server) = trapped(|server| {
        let set = server.expect(Command::DEVICE_SET_IRQS);
        let structure: IrqSet = set.parse();
        assert_eq!((structure.data(), structure.action()), (IrqSet::DATA_EVENTFD, IrqSet::ACTION_TRIGGER));
        assert_eq!((structure.index, structure.start, structure.count), (2, 3, 1));
        server.reply(&set, [0u8; 0]);
        rustix::io::write(&set.fds[0], &1u64.to_le_bytes()).expect("signalled");
        let clear = server.expect(Command::DEVICE_SET_IRQS);
        assert!(clear.fds.is_empty());
        assert_eq!((clear.parse::<IrqSet>().start, clear.parse::<IrqSet>().count), (3, 1));
        server.reply(&clear, [0u8; 0]);
        let off = server.expect(Command::DEVICE_SET_IRQS);
        assert_eq!((off.parse::<IrqSet>().data(), off.parse::<IrqSet>().count), (IrqSet::DATA_NONE, 0));
        server.reply(&off, [0u8; 0]);
    });
    let interrupt = Interrupt::new().expect("an eventfd");
    assert_eq!(interrupt.take().expect("read"), 0);
    transport.set_interrupt(3, Some(interrupt.as_fd())).expect("set");
    let deadline = sluice_host::Deadline::after(TIMEOUT, "the interrupt");
    assert_eq!(interrupt.wait(&deadline).expect("signalled"), 1);
    transport.set_interrupt(3, None).expect("cleared");
    transport.disable_interrupts().expect("off");
    server.join().expect("the script was followed");
}

#[test]
fn stray_messages_do_not_confuse_a_call() {
    let (transport, server) = trapped(|server| {
        let reset = server.expect(Command::DEVICE_RESET);
        let late = Header { id: reset.header.id.wrapping_sub(1), ..reset.header.reply() };
        server.0.send(late, &[1, 2, 3], &[], &[]).expect("a client");
        server.0.send(Header::command(77, Command::DMA_READ), &[0; 16], &[], &[]).expect("a client");
        let refused = server.expect(Command::DMA_READ);
        assert_eq!((refused.header.id, refused.header.failure()), (77, Some(Errno::OPNOTSUPP)));
        server.reply(&reset, [0u8; 0]);
    });
    transport.reset().expect("reset");
    server.join().expect("the script was followed");
}

#[test]
fn answers_that_break_the_rules() {
    let (transport, _server) = trapped(|server| {
        let read = server.expect(Command::REGION_READ);
        server.0.reply(&read.header, read.parse::<RegionAccess>().as_bytes(), &[0; 3]).expect("a client");
        let reset = server.expect(Command::DEVICE_RESET);
        let wrong = Header { command: Command::VERSION, ..reset.header.reply() };
        server.0.send(wrong, &[], &[], &[]).expect("a client");
    });
    assert!(matches!(transport.read32(Region::BAR0, 0), Err(Error::Protocol(_))));
    assert!(matches!(transport.reset(), Err(Error::Protocol(_))));
    assert!(matches!(transport.reset(), Err(Error::Connection(_))));
}

#[test]
fn servers_that_cannot_be_driven() {
    let refusing: [fn(&mut Server); 3] = [
        |server| {
            let hello = server.expect(Command::VERSION);
            server.reply(&hello, Version { major: 1, minor: 0 });
        },
        |server| {
            let hello = server.expect(Command::VERSION);
            server.reply(&hello, [0u8; 3]);
        },
        |server| {
            let hello = server.expect(Command::VERSION);
            server.reply(&hello, Version::OURS);
            let question = server.expect(Command::DEVICE_GET_INFO);
            server.reply(&question, device(0));
        },
    ];
    for script in refusing {
        let (client, _server) = serve(script);
        let error = VfioUser::over(client, Mode::Trapped, TIMEOUT).expect_err("refused");
        assert!(matches!(error, Error::Protocol(_) | Error::Unsupported(_)), "{error}");
    }
}

#[test]
fn a_silent_server_is_a_timeout_in_words() {
    let (client, _server) = UnixStream::pair().expect("a socket pair");
    let error = VfioUser::over(client, Mode::Trapped, Duration::ZERO).expect_err("silence");
    assert_eq!(error.to_string(), "the reply of the vfio-user server did not happen in time");
}

/// Sends replies to no request, faster than they are read; the time limit still counts.
#[test]
fn a_server_that_talks_without_end_is_a_timeout() {
    let (client, server) = serve(|server| {
        let hello = server.expect(Command::VERSION);
        let late = Header { id: hello.header.id.wrapping_sub(1), ..hello.header.reply() };
        while server.0.flush().is_ok_and(|all| !all || server.0.send(late, &[], &[], &[]).is_ok()) {}
    });
    let error = VfioUser::over(client, Mode::Trapped, Duration::from_millis(50)).expect_err("no answer");
    assert!(matches!(error, Error::Timeout(_)), "{error}");
    server.join().expect("it saw us go");
}
