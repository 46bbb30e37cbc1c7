//! The client's end of the socket, one message at a time.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_vfio_user::device::RegionInfo;
use sluice_vfio_user::dma::{DmaMap, DmaUnmap};
use sluice_vfio_user::irq::IrqSet;
use sluice_vfio_user::region::RegionAccess;
use sluice_vfio_user::version::{Capabilities, Version};
use sluice_vfio_user::{Command, Connection, Errno, Error, Header, version};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Time limit of each operation, after which the test fails. No test measures time.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a condition is true.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_true() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reply: its payload and its descriptors, or the error that it reports.
pub(crate) type Reply = Result<(Vec<u8>, Vec<OwnedFd>), Errno>;

pub(crate) struct Peer {
    pub(crate) connection: Connection,
    next_id: u16,
}

impl Peer {
    /// Connects to the socket in a directory.
    pub(crate) fn connect(directory: &Path) -> Self {
        let socket = UnixStream::connect(directory.join("cntrl")).expect("somebody listens");
        Self { connection: Connection::new(socket), next_id: 0 }
    }

    fn header(&mut self, command: Command) -> Header {
        self.next_id = self.next_id.wrapping_add(1);
        Header::command(self.next_id, command)
    }

    /// Sends a command and returns its identifier.
    pub(crate) fn send(&mut self, command: Command, payload: &[u8], fds: &[BorrowedFd<'_>]) -> u16 {
        let header = self.header(command);
        self.connection.send(header, payload, &[], fds).expect("the server is there");
        header.id
    }

    /// Sends a command with the flag for no reply.
    pub(crate) fn post(&mut self, command: Command, payload: &[u8]) {
        let header = self.header(command).without_reply();
        self.connection.send(header, payload, &[], &[]).expect("the server is there");
    }

    /// Returns the next reply, which must be that to `id`.
    pub(crate) fn reply_to(&mut self, id: u16) -> Reply {
        let (header, payload, fds) = self.receive().expect("the server is there");
        assert!(header.is_reply() && header.id == id, "{header:?} instead of the reply to {id}");
        header.failure().map_or(Ok((payload, fds)), Err)
    }

    /// Waits for a message.
    pub(crate) fn receive(&mut self) -> Result<(Header, Vec<u8>, Vec<OwnedFd>), Error> {
        loop {
            if let Some(message) = self.connection.receive()? {
                return Ok((message.header, message.payload.to_vec(), message.fds));
            }
            assert!(self.wait(LIMIT), "the server says nothing");
        }
    }

    /// Returns whether the socket has something to read within `limit`.
    fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        poll(&mut [PollFd::new(&self.connection, PollFlags::IN)], Some(&limit)).expect("poll") > 0
    }

    /// Returns whether no reply has come. Meaningful once another exchange has shown that the server has had
    /// its turns.
    pub(crate) fn is_waiting(&mut self) -> bool {
        self.connection.receive().expect("the server is there").is_none()
    }

    /// Waits until the server has ended the connection. Messages before that are ignored.
    pub(crate) fn assert_disconnected(&mut self) {
        while self.receive().is_ok() {}
    }

    pub(crate) fn call_with(&mut self, command: Command, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        let id = self.send(command, payload, fds);
        self.reply_to(id)
    }

    pub(crate) fn call(&mut self, command: Command, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        self.call_with(command, payload, &[]).map(|(payload, _)| payload)
    }

    /// Sends VERSION; `text` is JSON with its NUL, or nothing.
    pub(crate) fn negotiate(&mut self, text: &[u8]) -> Capabilities {
        let payload = [Version { major: 0, minor: 0 }.as_bytes(), text].concat();
        let reply = self.call(Command::VERSION, &payload).expect("agreed");
        version::parse(&reply).expect("a valid version").1.expect("with capabilities")
    }

    pub(crate) fn region_info(&mut self, index: u32, argsz: u32) -> (RegionInfo, Vec<u8>, Vec<OwnedFd>) {
        let question = RegionInfo { argsz, index, ..RegionInfo::default() };
        let (payload, fds) = self
            .call_with(Command::DEVICE_GET_REGION_INFO, question.as_bytes(), &[])
            .expect("there is such a region");
        (RegionInfo::read_from_prefix(&payload).expect("long enough").0, payload, fds)
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let access = RegionAccess { offset, region, count };
        let reply = self.call(Command::REGION_READ, access.as_bytes())?;
        let (echo, data) = RegionAccess::read_from_prefix(&reply).expect("long enough");
        assert_eq!((echo, data.len()), (access, count as usize));
        Ok(data.to_vec())
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let reply = self.call(Command::REGION_WRITE, &write_payload(region, offset, data))?;
        assert_eq!(reply.len(), RegionAccess::SIZE);
        Ok(())
    }

    pub(crate) fn post_write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.post(Command::REGION_WRITE, &write_payload(region, offset, data));
    }

    /// Reads a register, to check that all earlier messages have been handled.
    pub(crate) fn ping(&mut self) {
        self.read(0, 0, 4).expect("registers can always be read");
    }

    pub(crate) fn map(&mut self, address: u64, size: u64, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        self.map_at(address, size, 0, fd)
    }

    /// Maps memory from an offset of the file.
    pub(crate) fn map_at(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let map = DmaMap { argsz: 32, flags: 3, offset, address, size };
        let fds: Vec<_> = fd.into_iter().collect();
        self.call_with(Command::DMA_MAP, map.as_bytes(), &fds).map(|_| ())
    }

    pub(crate) fn unmap(&mut self, address: u64, size: u64) -> Result<(), Errno> {
        let reply = self.call(Command::DMA_UNMAP, unmap_payload(address, size).as_bytes())?;
        assert_eq!(reply, unmap_payload(address, size).as_bytes());
        Ok(())
    }

    pub(crate) fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        range: std::ops::Range<u32>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let count = range.end - range.start;
        let set = IrqSet { argsz: 20, flags, index, start: range.start, count };
        self.call_with(Command::DEVICE_SET_IRQS, set.as_bytes(), fds).map(|_| ())
    }
}

pub(crate) fn write_payload(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = RegionAccess { offset, region, count: data.len() as u32 };
    [access.as_bytes(), data].concat()
}

pub(crate) fn unmap_payload(address: u64, size: u64) -> DmaUnmap {
    DmaUnmap { argsz: 24, flags: 0, address, size }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
