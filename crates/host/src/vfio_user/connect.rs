//! Connections to a socket, with a time limit.

use crate::wait::Backoff;
use crate::{Deadline, Error};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_to, socket_with,
};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connects to the socket at `path`. If the backlog of a server that does not accept is full, a plain connect
/// would wait for ever.
pub(super) fn connect(path: &Path, timeout: Duration) -> Result<UnixStream, Error> {
    let deadline = Deadline::after(timeout, "the vfio-user server accepting a connection");
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mut backoff = Backoff::default();
    loop {
        match connect_to(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::AGAIN | Errno::INTR) => deadline.check()?,
            Err(errno) => return Err(errno.into()),
        }
        backoff.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};

    /// Checks a socket whose server does not accept, and whose backlog is full.
    #[test]
    fn a_server_that_accepts_nobody_is_not_waited_for_for_ever() {
        let path = std::env::temp_dir().join(format!("sluice-connect-{}", std::process::id()));
        let server = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        bind(&server, &SocketAddrUnix::new(&path).expect("a short path")).expect("bound");
        listen(&server, 0).expect("listening");
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path, Duration::from_millis(20)) {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the queue has an end");
        };
        assert!(matches!(full, Error::Timeout(_)), "{full}");
        std::fs::remove_file(&path).expect("our own socket");
        assert!(connect(&path, Duration::from_secs(1)).is_err());
    }
}
