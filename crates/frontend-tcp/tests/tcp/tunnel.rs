//! TLS for a test host that has none: the handshake, and a thread that encrypts.

use rustix::event::{PollFd, PollFlags, poll};
use sluice_tls::{Handshake, Keys, Psk, Session};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::task::Poll;

/// Key for every host.
pub(crate) const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// Returns the keys of a file with these lines.
pub(crate) fn keys(lines: &str) -> Arc<Keys> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys");
    std::fs::write(&path, lines).expect("room on the disk");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    Arc::new(Keys::read(&path).expect("keys"))
}

/// Runs the handshake on a new connection. Returns None if the other end rejects the key.
pub(crate) fn shake_hands(stream: &TcpStream, psk: &Psk) -> Option<Box<Session>> {
    let mut handshake = Handshake::client(stream.as_fd(), psk).expect("a handshake");
    loop {
        match handshake.advance() {
            Poll::Ready(session) => return session.ok(),
            Poll::Pending => drop(poll(&mut [PollFd::new(stream, PollFlags::IN)], None)),
        }
    }
}

/// Listens on a new address, and forwards its connections to `to`, encrypted. Returns the new address.
pub(crate) fn tunnel(to: SocketAddr, psk: Psk) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    // The thread ends with the process.
    std::thread::spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let far = TcpStream::connect(to).expect("somebody listens");
            let mut session = shake_hands(&far, &psk).expect("the key is right");
            std::thread::spawn(move || {
                let _ = pump(&near, &far, &mut session);
                let _ = (&far).write_all(session.farewell(None));
                let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
            });
        }
    });
    address
}

/// Forwards bytes in both directions until one side ends.
pub(crate) fn pump(mut near: &TcpStream, mut far: &TcpStream, session: &mut Session) -> std::io::Result<()> {
    loop {
        let mut polled = [PollFd::new(near, PollFlags::IN), PollFd::new(far, PollFlags::IN)];
        poll(&mut polled, None)?;
        let [from_near, from_far] = polled.map(|polled| !polled.revents().is_empty());
        if from_near {
            let mut bytes = [0; 5000];
            let count = near.read(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            far.write_all(session.seal(count, |room| room.copy_from_slice(&bytes[..count])))?;
        }
        if from_far {
            let count = far.read(session.room())?;
            if count == 0 || session.filled(count).is_err() {
                return Ok(());
            }
            near.write_all(session.content())?;
            session.take(session.content().len());
        }
    }
}
