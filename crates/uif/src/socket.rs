//! UNIX sockets that keep messages apart and carry descriptors (SOCK_SEQPACKET).

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, bind, recvmsg, socket_with,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// Descriptors of one message.
const FDS_MAX: usize = 4;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Listens at `path`, which must not exist yet.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Waits until `deadline` for a message. Returns its length, and its descriptors.
///
/// # Errors
/// `TimedOut`, or `ConnectionReset` at the end of the connection.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let left = || deadline.saturating_duration_since(Instant::now()).try_into().ok();
    if retry_on_intr(|| poll(&mut [PollFd::new(&socket, PollFlags::IN)], left().as_ref()))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((received.bytes, fds.flatten().collect()))
}
