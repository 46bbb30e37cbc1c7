//! Handshake: the daemon sends a function its rings, and receives its properties.

use super::deferred_close::DeferredClose;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg, socket_with, socketpair,
};
use rustix::process::geteuid;
use sluice_memory::{PAGE_SIZE, SharedRegion};
use sluice_uif::abi::{
    Header, Hello, MAGIC, OPTIONS_MAX, POOL_MAX, SCRATCH_MAX, VERSION, Welcome, operation,
};
use sluice_uif::ring::Rings;
use sluice_uif::socket::receive;
use sluice_uif::{Failure, Interest, Options, Properties};
use std::io::{self, IoSlice};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// Versions that are served. With an earlier version a function has the features of that version.
pub(super) const VERSIONS: std::ops::RangeInclusive<u32> = 1..=VERSION;

/// Bytes of a Welcome of version 1.
const WELCOME_1: usize = offset_of!(Welcome, size);

/// Creates both ends of a connection: one for the daemon, one for the process that it starts.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Connects to a function process that listens at `path`. The process must belong to root, to the daemon's
/// user or to `user`: a process of another user in its place would receive the drive's data.
pub(super) fn connect(path: &Path, user: Option<u32>) -> Result<OwnedFd, Failure> {
    // A listener that accepts no connection has a full backlog: that is an error at once, instead of an
    // endless wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = || -> io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    };
    let socket = connected()?;
    let peer = socket_peercred(&socket).map_err(io::Error::from)?.uid.as_raw();
    match peer == 0 || peer == geteuid().as_raw() || user == Some(peer) {
        true => Ok(socket),
        false => Err(Failure::Nonsense(
            "another user listens there than root, the daemon's and the function's `uid`",
        )),
    }
}

/// Connection to a function that serves.
#[derive(Debug)]
pub(super) struct Link {
    /// Version of the rings that the function supports.
    pub(super) version: u32,
    pub(super) rings: Rings,
    pub(super) arena: SharedRegion,
    /// Eventfd that wakes the function.
    pub(super) doorbell: OwnedFd,
    /// Eventfd that wakes the daemon. The function holds it, too, and can do anything with it: it may be
    /// full, and a read or write of it may block.
    pub(super) bell: OwnedFd,
    pub(super) properties: Properties,
}

/// Sends rings and an arena of these sizes for this version, and receives the Welcome. `wait` returns when
/// there is an answer, or at `deadline`.
pub(super) fn negotiate(
    socket: BorrowedFd<'_>,
    header: Header,
    options: &Options,
    deadline: Instant,
    deferred_close: &DeferredClose,
    wait: impl FnOnce(BorrowedFd<'_>, Instant) -> io::Result<()>,
) -> Result<Link, Failure> {
    let rings = make_rings(header)?;
    let length =
        usize::try_from(header.arena_bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let arena = SharedRegion::new("sluice-uif-arena", length)?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let (doorbell, bell) =
        (eventfd(0, flags).map_err(io::Error::from)?, eventfd(0, flags).map_err(io::Error::from)?);
    let text = options.to_text();
    let hello = Hello {
        magic: MAGIC,
        version: header.version,
        options: text.len() as u32,
        rings_bytes: rings.region().len() as u64,
        arena_bytes: header.arena_bytes,
    };
    if text.len() > OPTIONS_MAX {
        return Err(Failure::LongOptions);
    }
    let message = [hello.as_bytes(), text.as_bytes()].concat();
    let fds = [rings.region().fd(), arena.fd(), doorbell.as_fd(), bell.as_fd()];
    send(socket, &message, fds)?;
    wait(socket, deadline)?;
    let properties = recv_welcome(socket, header.version, deadline, deferred_close)?;
    Ok(Link { version: header.version, rings, arena, doorbell, bell, properties })
}

/// Creates rings of these sizes.
pub(super) fn make_rings(header: Header) -> io::Result<Rings> {
    let length = Rings::bytes(header.entries).ok_or(io::ErrorKind::InvalidInput)?;
    let region = SharedRegion::new("sluice-uif-rings", length)?;
    region.write(0, Header { magic: MAGIC, ..header }.as_bytes());
    Rings::open(region, header.version).ok_or(io::ErrorKind::InvalidInput.into())
}

/// Sends a message with these descriptors.
fn send(socket: BorrowedFd<'_>, message: &[u8], fds: [BorrowedFd<'_>; 4]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives the function's Welcome. It may be anything, with any descriptors.
pub(super) fn recv_welcome(
    socket: BorrowedFd<'_>,
    version: u32,
    deadline: Instant,
    deferred_close: &DeferredClose,
) -> Result<Properties, Failure> {
    let mut bytes = [0; size_of::<Welcome>()];
    let (length, fds) = receive(socket, &mut bytes, deadline)?;
    deferred_close.close(fds);
    let Ok(welcome) = Welcome::read_from_bytes(&bytes) else { return Err(Failure::Nonsense("its length")) };
    if length < WELCOME_1 || welcome.magic != MAGIC {
        return Err(Failure::Nonsense("it is no function of Sluice's"));
    }
    if welcome.version != version {
        return Err(Failure::Version(welcome.version));
    }
    if welcome.refused != 0 {
        let message = String::from_utf8_lossy(&welcome.words);
        let plain = message.trim_end_matches('\0').chars().filter(|c| !c.is_control()).collect();
        return Err(Failure::Refused(plain));
    }
    properties_of(&welcome)
}

fn properties_of(welcome: &Welcome) -> Result<Properties, Failure> {
    let mut interests = [Interest::Skip; operation::COUNT];
    for (interest, code) in interests.iter_mut().zip(welcome.interests) {
        *interest = match code {
            0 => Interest::Skip,
            1 => Interest::Before,
            2 => Interest::After,
            _ => return Err(Failure::Nonsense("an interest that there is not")),
        };
    }
    if ![512, 4096].contains(&welcome.block_size) {
        return Err(Failure::Nonsense("a block size that is neither 512 nor 4096"));
    }
    if welcome.scratch > SCRATCH_MAX || !welcome.scratch.is_multiple_of(welcome.block_size) {
        return Err(Failure::Nonsense("a scratch buffer that is too long, or not of whole blocks"));
    }
    let (pool, size) = match welcome.version {
        1 => (0, 0),
        _ => (welcome.pool, welcome.size),
    };
    if pool > POOL_MAX || !pool.is_multiple_of(PAGE_SIZE as u32) {
        return Err(Failure::Nonsense("memory of its own that is too much, or not of whole pages"));
    }
    if !size.is_multiple_of(welcome.block_size.into()) {
        return Err(Failure::Nonsense("a size that is not of whole blocks"));
    }
    let (block_size, scratch, transforms) = (welcome.block_size, welcome.scratch, welcome.transforms != 0);
    Ok(Properties { interests, block_size, scratch, pool, transforms, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    /// Checks the last value that each property may have, and the first that it may not.
    #[test]
    fn properties_have_limits() {
        type Change = fn(&mut Welcome, u64);
        let cases: [(&str, Change, &[u64], &[u64]); 6] = [
            ("interest", |welcome, code| welcome.interests[0] = code as u8, &[0, 2], &[3]),
            ("block size", |welcome, size| welcome.block_size = size as u32, &[512, 4096], &[0, 1024, 8192]),
            (
                "scratch",
                |welcome, size| welcome.scratch = size as u32,
                &[0, 1 << 20],
                &[511, (1 << 20) + 512],
            ),
            ("pool", |welcome, size| welcome.pool = size as u32, &[0, 4 << 20], &[4095, (4 << 20) + 4096]),
            ("size", |welcome, size| welcome.size = size, &[0, 512, (1 << 63) - 512], &[511, 513]),
            ("transforms", |welcome, flag| welcome.transforms = flag as u32, &[0, 1], &[]),
        ];
        for (what, change, taken, refused) in cases {
            let properties = |value: u64| {
                let mut welcome = Welcome::new_zeroed();
                (welcome.version, welcome.block_size) = (2, 512);
                change(&mut welcome, value);
                properties_of(&welcome)
            };
            for value in taken {
                assert!(properties(*value).is_ok(), "{what} {value}");
            }
            for value in refused {
                let refusal = properties(*value).expect_err("it is beyond the limit");
                assert!(matches!(refusal, Failure::Nonsense(_)), "{what} {value}: {refusal:?}");
            }
        }
    }

    #[test]
    fn options_of_4096_bytes_are_sent_and_no_more() {
        let outcome = |bytes: usize| {
            let (ours, _theirs) = pair().expect("sockets");
            let header = Header { version: 2, entries: 16, arena_bytes: 4096, ..Header::default() };
            // With the equals sign and the zero at the end.
            let options = Options::new([("key".to_owned(), "v".repeat(bytes - 5))]);
            assert_eq!(options.to_text().len(), bytes);
            let silent = |_: BorrowedFd<'_>, _| Err(io::ErrorKind::TimedOut.into());
            let closes = DeferredClose::default();
            negotiate(ours.as_fd(), header, &options, Instant::now(), &closes, silent).map(drop)
        };
        assert!(matches!(outcome(4096), Err(Failure::Silent)));
        assert!(matches!(outcome(4097), Err(Failure::LongOptions)));
    }
}
