//! Messages between a daemon and its holder.

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use sluice_handover::{ChannelError, Message};
use std::io;
use std::os::fd::BorrowedFd;

/// Version of the messages, the first byte of each greeting.
pub(crate) const VERSION: u8 = 1;

/// Bytes of the name of a daemon or of a drive.
pub(crate) const NAME_MAX: usize = 4096;

/// Bytes of a drive's record.
pub(crate) const RECORD_MAX: u64 = 64 << 20;

/// Kinds of messages.
pub(crate) mod kind {
    /// Greeting of a daemon that sends the records of a drive: its name, a zero, the name of the drive.
    pub(crate) const KEEP: u16 = 100;
    /// Greeting of a daemon that begins, with its name: the records of its predecessor are sent.
    pub(crate) const TAKE: u16 = 101;
    /// Record of a drive: the first descriptor is a file with its bytes, and it names the others.
    pub(crate) const RECORD: u16 = 102;
    /// End of the records of a drive: it is deleted, or its daemon stops.
    pub(crate) const RELEASE: u16 = 103;
    /// End of the records that are sent to a daemon that begins.
    pub(crate) const END: u16 = 104;
    /// Refusal, in words.
    pub(crate) const REFUSED: u16 = 105;
}

/// Returns the payload of a greeting of this version.
///
/// # Errors
/// The other process has another version.
pub(crate) fn greeting(message: &Message) -> Result<&[u8], ChannelError> {
    match message.bytes.split_first() {
        Some((&VERSION, name)) if name.len() <= 2 * NAME_MAX => Ok(name),
        _ => Err(ChannelError::Malformed("a greeting of another version")),
    }
}

/// Returns the bytes of a greeting.
pub(crate) fn greet(name: &[u8]) -> Vec<u8> {
    [&[VERSION], name].concat()
}

/// Checks that the process at the other end has this process's user, or is root's.
///
/// # Errors
/// It is another user's.
pub(crate) fn check_peer(socket: BorrowedFd<'_>) -> io::Result<rustix::process::Pid> {
    let peer = socket_peercred(socket)?;
    let is_ours = peer.uid == rustix::process::geteuid() || peer.uid.is_root();
    if is_ours { Ok(peer.pid) } else { Err(Errno::PERM.into()) }
}
