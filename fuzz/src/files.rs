//! File descriptors of every kind that a client might send.

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use sluice_memory::SharedRegion;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Pages of the guest's memory.
pub const RAM_PAGES: usize = 32;
const PAGE: usize = sluice_memory::PAGE_SIZE;

/// Descriptors to send.
#[derive(Debug)]
pub struct Files {
    /// The guest's memory, of which a valid descriptor is.
    pub ram: SharedRegion,
    /// Memory that shrinks while it is in use.
    shrinking: OwnedFd,
    others: Vec<OwnedFd>,
}

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ram,
    Eventfd,
    Shrinking,
    /// Eventfd that is full; sealed, read-only, huge and empty memory; files that are neither memory nor
    /// eventfd.
    Other(usize),
}

impl Files {
    pub const OTHERS: usize = 14;

    pub fn new() -> Self {
        let ram = SharedRegion::new("fuzz-ram", RAM_PAGES * PAGE).expect("memory");
        let shrinking = memory(MemfdFlags::CLOEXEC, 8 * PAGE as u64).expect("memory");
        let others = others().expect("files of all kinds");
        assert_eq!(others.len(), Self::OTHERS);
        Self { ram, shrinking, others }
    }

    pub fn get(&self, kind: Kind) -> BorrowedFd<'_> {
        match kind {
            Kind::Ram => self.ram.fd(),
            Kind::Eventfd => self.others[0].as_fd(),
            Kind::Shrinking => self.shrinking.as_fd(),
            Kind::Other(number) => self.others[number % Self::OTHERS].as_fd(),
        }
    }

    /// Resizes a memory as its owner, while it is in use.
    pub fn resize_shrinking(&self, pages: u64) {
        ftruncate(&self.shrinking, pages * PAGE as u64).expect("it is ours");
    }
}

impl Default for Files {
    fn default() -> Self {
        Self::new()
    }
}

fn memory(flags: MemfdFlags, size: u64) -> Result<OwnedFd, Errno> {
    let fd = memfd_create("fuzz", flags)?;
    ftruncate(&fd, size)?;
    Ok(fd)
}

fn others() -> Result<Vec<OwnedFd>, Errno> {
    let sealed = memory(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING, 4 * PAGE as u64)?;
    fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::SHRINK)?;
    let plain = memory(MemfdFlags::CLOEXEC, 4 * PAGE as u64)?;
    let reopened = format!("/proc/self/fd/{}", plain.as_raw_fd());
    let reopen = |how| open(&reopened, how | OFlags::CLOEXEC, Mode::empty());
    let (reader, writer) = rustix::pipe::pipe()?;
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // With one more write a writer waits for ever.
    let full = eventfd(0, EventfdFlags::CLOEXEC)?;
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes())?;
    Ok(vec![
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        full,
        reopen(OFlags::RDONLY)?,
        reopen(OFlags::WRONLY)?,
        sealed,
        memory(MemfdFlags::CLOEXEC, 1 << 45)?,
        memory(MemfdFlags::CLOEXEC, 0)?,
        memory(MemfdFlags::CLOEXEC, 5 * PAGE as u64 + 100)?,
        reader,
        writer,
        open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?,
        rustix::fs::openat(
            CWD,
            "/proc",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?,
        epoll::create(epoll::CreateFlags::CLOEXEC)?,
        socket,
    ])
}
