//! Threads that accept connections and read their Connect commands. TLS handshakes take a millisecond each,
//! and so have their own thread.
//!
//! A thread never blocks on a host. A host that sends no Connect command in time is disconnected. Above a
//! limit, the oldest connection of the address with the most is dropped. Addresses take turns. So a flood
//! from one address does not keep out hosts with other addresses.

use super::connect::{AcceptedConnect, Refusal};
use super::connection_set::ConnectionSet;
use super::icreq::{ConnectCommand, NewConnection, Step};
use super::linger::Lingering;
use super::psk_lookup::PskLookup;
use crate::auth::{AuthState, AuthWorker};
use crate::directory::Directory;
use crate::discovery::{Context, End, Session};
use crate::origin::origin;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use sluice_frontend::descriptors::{Fill, fill};
use sluice_nvme::Status;
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, DISCOVERY_NQN, InvalidParameter};
use sluice_nvme_auth::{Names, Terms};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections of a thread before their Connect command, and those of one address.
const NEW_MAX: usize = 256;
const NEW_OF_ONE_MAX: usize = 128;

/// Time limit of a connection up to its Connect command.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of a connection that begins with a TLS handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Hosts of a thread that use the discovery service at once, and those of one address.
const SESSIONS_MAX: usize = 256;
const SESSIONS_OF_ONE_MAX: usize = 64;

/// Interval of checks for changed drives, while hosts wait for change notices.
const WATCH: Duration = Duration::from_secs(1);

/// Connections accepted from one socket before existing ones are served.
const ACCEPTED_MAX: usize = 64;

/// Interval of attempts to bind an address that could not be bound.
const BIND_AGAIN: Duration = Duration::from_secs(1);

/// Time limit of a turn of one kind of connections.
const PASS: Duration = Duration::from_millis(5);

/// Time limit of accepting from one socket, which delays each message of existing hosts.
const ACCEPTING: Duration = Duration::from_micros(500);

/// Length of the kernel's accept queue. A host retries a connection beyond it only after a second. Accepting
/// a full queue takes a tenth of that.
const BACKLOG: i32 = 4096;

/// Pause of accepting when there are no descriptors, or no memory, for another connection.
const RETRY: Duration = Duration::from_millis(100);

/// Threads, and the sockets that they listen on. Dropping it closes them.
#[derive(Debug)]
pub struct Listener {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    /// Copies of the sockets that were bound at the start.
    sockets: Vec<TcpListener>,
}

impl Listener {
    /// Listens on all of `addresses`.
    ///
    /// # Errors
    /// As those of [`start_with_tls`](Self::start_with_tls).
    pub fn start(addresses: &[SocketAddr], directory: Arc<Directory>) -> io::Result<Self> {
        Self::start_with_tls(addresses, &[], directory)
    }

    /// Listens on `plain`, and on `encrypted`, where connections begin with a TLS handshake. Encrypted ones
    /// are for drives that have keys, and for the discovery service if it has keys. An address that cannot be
    /// bound is retried until it can: its interface may come up after the daemon.
    ///
    /// # Errors
    /// There is no descriptor or no thread to be had.
    pub fn start_with_tls(
        plain: &[SocketAddr],
        encrypted: &[SocketAddr],
        directory: Arc<Directory>,
    ) -> io::Result<Self> {
        Self::resume(Vec::new(), plain, encrypted, directory)
    }

    /// Listens like [`start_with_tls`](Self::start_with_tls), on sockets of another listener where it has had the
    /// address. Hosts that have connected to these meanwhile are waiting there.
    ///
    /// # Errors
    /// As those of [`start_with_tls`](Self::start_with_tls).
    pub fn resume(
        mut former: Vec<TcpListener>,
        plain: &[SocketAddr],
        encrypted: &[SocketAddr],
        directory: Arc<Directory>,
    ) -> io::Result<Self> {
        let plain = ("nvme-tcp", bind_all(plain, false, &mut former));
        let encrypted = ("nvme-tls", bind_all(encrypted, true, &mut former));
        drop(former);
        let bound = || [&plain, &encrypted].into_iter().flat_map(|(_, (bound, _))| bound);
        let addresses: Vec<Address> = bound().map(|socket| socket.address).collect();
        let copies = bound().map(|socket| socket.socket.try_clone()).collect::<io::Result<_>>()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let sockets = addresses.iter().map(|it| it.socket).collect();
        let shared = Shared { addresses: Mutex::new(addresses), worker: Mutex::default(), directory };
        let shared = Arc::new(shared);
        let mut listener =
            Self { stop: Arc::clone(&stop), threads: Vec::new(), addresses: sockets, sockets: copies };
        for (name, (bound, unbound)) in [plain, encrypted] {
            if bound.is_empty() && unbound.addresses.is_empty() {
                continue;
            }
            let thread_state = AcceptThread::new(bound, unbound, Arc::clone(&shared));
            let stop_event = Arc::clone(&stop);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || thread_state.run(&stop_event))?;
            listener.threads.push(thread);
        }
        Ok(listener)
    }

    /// Returns copies of the sockets bound at the start. Hosts can connect to them while no one accepts.
    ///
    /// # Errors
    /// There are no descriptors for them.
    pub fn sockets(&self) -> io::Result<Vec<TcpListener>> {
        self.sockets.iter().map(TcpListener::try_clone).collect()
    }

    /// Returns the addresses bound at the start, encrypted ones last. Port 0 is replaced by the port that the
    /// kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Address that hosts can connect to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) socket: SocketAddr,
    pub(crate) encrypted: bool,
}

#[derive(Debug)]
struct BoundSocket {
    socket: TcpListener,
    address: Address,
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn bind(address: Address) -> io::Result<BoundSocket> {
    listen(TcpListener::bind(address.socket)?, address)
}

fn listen(bound: TcpListener, address: Address) -> io::Result<BoundSocket> {
    bound.set_nonblocking(true)?;
    rustix::net::listen(&bound, BACKLOG)?;
    let address = Address { socket: bound.local_addr()?, ..address };
    Ok(BoundSocket { socket: bound, address })
}

/// Returns whether a socket listens at an address, in which port 0 is any port.
fn is_at(socket: &TcpListener, address: SocketAddr) -> bool {
    let is_same = |at: SocketAddr| at.ip() == address.ip() && [at.port(), 0].contains(&address.port());
    socket.local_addr().is_ok_and(is_same)
}

/// Binds all addresses without a socket in `former`, and returns the addresses that failed apart.
fn bind_all(
    sockets: &[SocketAddr],
    encrypted: bool,
    former: &mut Vec<TcpListener>,
) -> (Vec<BoundSocket>, UnboundAddresses) {
    let (mut bound, mut unbound) = (Vec::new(), UnboundAddresses::default());
    for socket in sockets {
        let address = Address { socket: *socket, encrypted };
        let kept = former.iter().position(|former| is_at(former, *socket)).map(|at| former.remove(at));
        match kept.map_or_else(|| bind(address), |kept| listen(kept, address)) {
            Ok(socket) => bound.push(socket),
            Err(error) => unbound.add(address, &error),
        }
    }
    (bound, unbound)
}

/// Addresses that could not be bound yet.
#[derive(Debug, Default)]
struct UnboundAddresses {
    addresses: Vec<Address>,
    /// Time of the next attempt.
    next: Option<Instant>,
}

impl UnboundAddresses {
    fn add(&mut self, address: Address, error: &io::Error) {
        let why = match error.kind() {
            io::ErrorKind::AddrNotAvailable => "no interface has this address",
            io::ErrorKind::AddrInUse => "another process listens there",
            _ => "see the error",
        };
        tracing::error!(%error, "cannot listen on {}: {why}; hosts are not let in there until that is mended", address.socket);
        self.addresses.push(address);
        self.next = Some(Instant::now() + BIND_AGAIN);
    }

    /// Retries all addresses when it is time. Returns the newly bound ones.
    fn retry(&mut self, now: Instant) -> Vec<BoundSocket> {
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let mut newly_bound = Vec::new();
        self.addresses.retain(|address| match bind(*address) {
            Ok(socket) => {
                tracing::info!("hosts may connect to {}, too", socket.address.socket);
                newly_bound.push(socket);
                false
            }
            Err(_) => true,
        });
        self.next = (!self.addresses.is_empty()).then_some(now + BIND_AGAIN);
        newly_bound
    }
}

/// Creates the state of an accepted socket. Returns it with its time limit.
fn new_connection(
    stream: TcpStream,
    peer: SocketAddr,
    socket: &BoundSocket,
    directory: &Arc<Directory>,
) -> io::Result<(NewConnection, Duration)> {
    match socket.address.encrypted {
        true => Ok((
            NewConnection::encrypted(stream, peer, PskLookup::new(Arc::clone(directory)))?,
            HANDSHAKE_LIMIT,
        )),
        false => Ok((NewConnection::new(stream, peer), CONNECT_LIMIT)),
    }
}

/// Advances a session. Returns None if it is over.
fn advance_session(
    origin: IpAddr,
    mut session: Session,
    at: &Context<'_>,
    lingering: &mut Lingering,
) -> Option<Session> {
    match session.advance(at) {
        Ok(()) => return Some(session),
        Err(End::Linger) => lingering.add(origin, session.into_wire(), at.now),
        Err(End::Gone) => {}
    }
    None
}

const WITHDRAWN: Refusal = Refusal::new(
    Status::CONNECT_INVALID_HOST,
    "the key of its TLS handshake was withdrawn before the handshake was over",
);

/// Checks a Connect command for the discovery service: only an admin queue, with a dynamic controller ID.
fn check_discovery(command: &ConnectCommand) -> Result<(), Refusal> {
    if command.connect.qid != 0 {
        return Err(Refusal::parameter(InvalidParameter::QID, "a discovery controller has no I/O queues"));
    }
    if command.cntlid != CNTLID_DYNAMIC {
        return Err(Refusal::parameter(InvalidParameter::CNTLID, "there is no such controller"));
    }
    Ok(())
}

/// State of all threads of a listener.
#[derive(Debug)]
struct Shared {
    directory: Arc<Directory>,
    /// Addresses in the Discovery log page. Addresses that are bound later are added then.
    addresses: Mutex<Vec<Address>>,
    /// Authentication worker, started for the first host that must authenticate.
    worker: Mutex<Option<AuthWorker>>,
}

impl Shared {
    fn addresses(&self) -> MutexGuard<'_, Vec<Address>> {
        // A panic ends the process, so the mutex is never poisoned.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of one thread: its sockets, and its connections with their time limits.
struct AcceptThread {
    bound: Vec<BoundSocket>,
    unbound: UnboundAddresses,
    shared: Arc<Shared>,
    connections: ConnectionSet<(NewConnection, Instant)>,
    /// Sessions of the discovery service.
    sessions: ConnectionSet<Session>,
    lingering: Lingering,
    /// Time before which no connection is accepted.
    not_before: Option<Instant>,
}

/// Returns a function that is true once `limit` has passed.
fn pass(limit: Duration) -> impl FnMut() -> bool {
    let until = Instant::now() + limit;
    move || Instant::now() >= until
}

impl AcceptThread {
    fn new(bound: Vec<BoundSocket>, unbound: UnboundAddresses, shared: Arc<Shared>) -> Self {
        let connections = ConnectionSet::new(NEW_MAX, NEW_OF_ONE_MAX);
        let sessions = ConnectionSet::new(SESSIONS_MAX, SESSIONS_OF_ONE_MAX);
        Self { bound, unbound, shared, connections, sessions, lingering: Lingering::new(), not_before: None }
    }

    fn run(mut self, stop: &OwnedFd) {
        loop {
            let (stopped, can_accept, ready) = self.wait(stop);
            if stopped {
                return;
            }
            let now = Instant::now();
            // Newly bound sockets are polled from the next wait on.
            let newly_bound = self.unbound.retry(now);
            let (connections, ready) = ready.split_at(self.connections.len().min(ready.len()));
            let (sessions, lingering) = ready.split_at(self.sessions.len().min(ready.len()));
            self.lingering.advance(lingering, now);
            self.advance_sessions(sessions, now);
            self.advance_connections(connections, now);
            if can_accept {
                self.accept(now);
            }
            if !newly_bound.is_empty() {
                self.shared.addresses().extend(newly_bound.iter().map(|socket| socket.address));
                self.bound.extend(newly_bound);
            }
        }
    }

    /// Waits for events. Returns whether to stop, whether to accept, and which new, discovery and lingering
    /// connections are ready.
    fn wait(&self, stop: &OwnedFd) -> (bool, bool, Vec<bool>) {
        let sockets: &[BoundSocket] = if self.not_before.is_some() { &[] } else { &self.bound };
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        polled.extend(
            self.connections.iter().map(|(it, _)| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN)),
        );
        polled.extend(self.sessions.iter().map(|it| {
            let flags = if it.wants_to_send() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(it.as_fd(), flags)
        }));
        polled.extend(self.lingering.polled());
        let timeout = self.timeout();
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                // No host can cause this. The pause avoids a busy loop.
                tracing::error!(%errno, "cannot wait for hosts");
                std::thread::sleep(RETRY);
            }
        }
        let mut events = polled.iter().map(|polled| !polled.revents().is_empty());
        let stopped = events.next().unwrap_or(false);
        let can_accept = events.by_ref().take(sockets.len()).fold(false, |any, event| any | event);
        (stopped, can_accept || self.not_before.is_some(), events.collect())
    }

    fn timeout(&self) -> Option<Timespec> {
        if self.sessions.iter().any(Session::has_more) {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let now = Instant::now();
        let connection = self.connections.iter().map(|(_, until)| *until).min();
        let session = self.sessions.iter().map(Session::until).min();
        let watch = self.sessions.iter().any(Session::is_watching).then(|| now + WATCH);
        let until = [connection, session, self.lingering.until(), watch, self.not_before, self.unbound.next];
        let until = until.into_iter().flatten().min()?;
        let left = until.saturating_duration_since(now) + Duration::from_millis(1);
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) })
    }

    /// Advances the ready sessions of the discovery service, and closes sessions that timed out.
    fn advance_sessions(&mut self, ready: &[bool], now: Instant) {
        let Self { sessions, lingering, shared, .. } = self;
        if sessions.len() == 0 {
            return;
        }
        let addresses = shared.addresses().clone();
        let at = Context { directory: &shared.directory, addresses: &addresses, now };
        sessions.take_turns(
            |index, session| {
                let is_ready = ready.get(index).copied().unwrap_or(false);
                is_ready || session.has_more() || session.is_watching()
            },
            |origin, session| advance_session(origin, session, &at, lingering),
            pass(PASS),
        );
        sessions.retain(|session| now < session.until());
    }

    /// Advances the ready new connections, and closes connections that timed out.
    fn advance_connections(&mut self, ready: &[bool], now: Instant) {
        let mut connections = std::mem::replace(&mut self.connections, ConnectionSet::new(0, 0));
        connections.take_turns(
            |index, _| ready.get(index).copied().unwrap_or(false),
            |origin, (mut connection, until)| {
                match connection.advance() {
                    Step::Wait => return Some((connection, until)),
                    Step::Linger => self.lingering.add(origin, connection.wire, now),
                    Step::Gone => {}
                    Step::Connect(command) => self.connect(connection, command, now),
                }
                None
            },
            pass(PASS),
        );
        connections.retain(|(_, until)| now < *until);
        self.connections = connections;
    }

    /// Passes a connection to its drive or to the discovery service.
    fn connect(&mut self, mut connection: NewConnection, command: ConnectCommand, now: Instant) {
        if command.subnqn == DISCOVERY_NQN {
            return self.discover(connection, command, now);
        }
        let terms = match self.check_access(&connection, &command) {
            Ok(terms) => terms,
            Err(refusal) => {
                tracing::warn!(peer = %connection.peer, host = command.host.nqn, subnqn = command.subnqn,
                    "turned a host away: {}", refusal.why);
                connection.fail(&refusal);
                return self.lingering.add(origin(connection.peer), connection.wire, now);
            }
        };
        let names = Names { hostnqn: command.host.nqn.clone(), subnqn: command.subnqn.clone() };
        let subnqn = command.subnqn.clone();
        let auth = terms.map(|terms| self.auth(names, terms, origin(connection.peer))).transpose();
        match auth.and_then(|auth| Ok(AcceptedConnect { auth, ..connection.into_accepted(command)? })) {
            Ok(accepted) => self.shared.directory.deliver(&subnqn, accepted),
            Err(error) => tracing::warn!(subnqn, %error, "a host was turned away: there is no memory for it"),
        }
    }

    /// Checks that the host may use the drive. Returns the keys that it must authenticate with, if any.
    fn check_access(
        &self,
        connection: &NewConnection,
        command: &ConnectCommand,
    ) -> Result<Option<Arc<Terms>>, Refusal> {
        let terms = self.shared.directory.check(
            &command.subnqn,
            &command.host.nqn,
            connection.peer,
            connection.session(),
        )?;
        if connection.has_valid_key() { Ok(terms) } else { Err(WITHDRAWN) }
    }

    /// Creates the authentication state of a host that has a key. Starts the worker for the first one.
    fn auth(&self, names: Names, terms: Arc<Terms>, origin: IpAddr) -> io::Result<Box<AuthState>> {
        let mut started = self.shared.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = match &mut *started {
            Some(worker) => worker,
            none => none.insert(AuthWorker::start(Arc::downgrade(&self.shared.directory))?),
        };
        Ok(Box::new(AuthState::new(names, terms, origin, worker.clone())))
    }

    /// Starts a session of the discovery service. Every host may use it; the log page lists only drives that
    /// the host may use.
    fn discover(&mut self, mut connection: NewConnection, command: ConnectCommand, now: Instant) {
        let names = Directory::check_names(DISCOVERY_NQN, &command.host.nqn, connection.session());
        let has_valid_key = if connection.has_valid_key() { Ok(()) } else { Err(WITHDRAWN) };
        if let Err(refusal) = names.and(has_valid_key).and_then(|()| check_discovery(&command)) {
            connection.fail(&refusal);
            return self.lingering.add(origin(connection.peer), connection.wire, now);
        }
        let NewConnection { wire, peer, .. } = connection;
        let shared = Arc::clone(&self.shared);
        let addresses = shared.addresses().clone();
        let at = Context { directory: &shared.directory, addresses: &addresses, now };
        let session = Session::new(wire, peer, command, now);
        if let Some(session) = advance_session(origin(peer), session, &at, &mut self.lingering) {
            self.sessions.add(origin(peer), session);
        }
    }

    fn accept(&mut self, now: Instant) {
        self.not_before = None;
        for listening in &self.bound {
            let mut is_over = pass(ACCEPTING);
            for _ in 0..ACCEPTED_MAX {
                if is_over() {
                    break;
                }
                match listening.socket.accept() {
                    Ok((stream, _)) if fill(&stream) == Fill::Full => {
                        tracing::warn!(
                            "no host is let in for a moment: hardly any descriptors are left; raise the limit of open files \
                             (LimitNOFILE=, ulimit -n)"
                        );
                        self.not_before = Some(now + RETRY);
                        break;
                    }
                    Ok((stream, peer)) => {
                        if stream.set_nonblocking(true).is_err() {
                            continue;
                        }
                        match new_connection(stream, peer, listening, &self.shared.directory) {
                            Ok((connection, limit)) => {
                                self.connections.add(origin(peer), (connection, now + limit));
                            }
                            Err(error) => tracing::warn!(%error, "cannot begin with a host"),
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The host has closed the connection already.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a host");
                        self.not_before = Some(now + RETRY);
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
