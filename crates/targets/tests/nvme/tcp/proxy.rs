//! A network that can be cut, or swallow what it is given.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two checks of the proxy's mode.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct State {
    swallows: AtomicBool,
    spoils: AtomicBool,
    refuses: AtomicBool,
    ends: AtomicBool,
    connections: AtomicU32,
    open: Mutex<Vec<TcpStream>>,
}

/// Passes connections on to an address.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || serve(&listener, target, &shared));
        Self { address, state, thread: Some(thread) }
    }

    /// Ends all connections that there are.
    pub(crate) fn cut(&self) {
        for stream in self.state.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes everything and passes nothing on, or does again.
    pub(crate) fn swallow(&self, swallows: bool) {
        self.state.swallows.store(swallows, SeqCst);
    }

    /// Flips a bit of the next bytes that pass.
    pub(crate) fn spoil(&self) {
        self.state.spoils.store(true, SeqCst);
    }

    /// Ends new connections at once, or does not any more.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.state.refuses.store(refuses, SeqCst);
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> u32 {
        self.state.connections.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ends.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        self.cut();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(listener: &TcpListener, target: SocketAddr, state: &Arc<State>) {
    let mut pumps = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        if state.ends.load(SeqCst) {
            break;
        }
        state.connections.fetch_add(1, SeqCst);
        if state.refuses.load(SeqCst) {
            continue;
        }
        let Ok(server) = TcpStream::connect(target) else { continue };
        let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        state.open.lock().expect("no panic").extend([clone(&client), clone(&server)]);
        let ways = [(clone(&client), clone(&server)), (server, client)];
        for (from, to) in ways {
            let state = Arc::clone(state);
            pumps.push(std::thread::spawn(move || pump(from, to, &state)));
        }
    }
    pumps.into_iter().for_each(|pump| drop(pump.join()));
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut bytes = vec![0; 64 << 10];
    from.set_read_timeout(Some(LOOK)).expect("a timeout");
    to.set_nodelay(true).expect("no delay");
    while !state.ends.load(SeqCst) {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(_) if state.swallows.load(SeqCst) => {}
            Ok(count) => {
                if state.spoils.swap(false, SeqCst) {
                    bytes[count - 1] ^= 1;
                }
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
