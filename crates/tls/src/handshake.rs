//! The handshake: both ends prove that they have the same key, and agree on new ones.
//!
//! It continues whenever the socket is ready, and never waits. The connection that s2n-tls has negotiated
//! becomes a [`Session`] of this crate. The traffic secrets are taken from the form in which s2n-tls passes a
//! connection to another process.

use crate::record::{Kind, Traffic};
use crate::{Hash, Identity, Psk, Session, derive, hello};
use errno::set_errno;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::Config;
use s2n_tls::connection::{Builder, Connection};
use s2n_tls::enums::{Mode, PskHmac, SerializationVersion};
use s2n_tls::error::{Error, ErrorType};
use s2n_tls::security::DEFAULT_TLS13;
use s2n_tls_tokio::{TlsAcceptor, TlsConnector, TlsStream};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zeroize::Zeroizing;

/// A source of the keys of connecting hosts.
pub trait Keyring: Send + Sync {
    /// Returns the keys that the identity may name.
    fn candidates(&self, identity: &Identity) -> Vec<Psk>;
}

/// Reason of the failure of a handshake.
#[derive(Debug)]
pub struct HandshakeError(ErrorKind);

#[derive(Debug)]
enum ErrorKind {
    Library(Error),
    /// The first bytes are no TLS record.
    NoTls,
    /// The received messages, or the negotiated parameters, are not acceptable.
    Other(&'static str),
}

impl HandshakeError {
    /// Returns whether the connection ended before a decision, so that another attempt may succeed.
    pub fn may_pass(&self) -> bool {
        match &self.0 {
            ErrorKind::Library(error) => {
                matches!(error.kind(), ErrorType::IOError | ErrorType::ConnectionClosed)
            }
            ErrorKind::NoTls | ErrorKind::Other(_) => false,
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ErrorKind::Library(error) => match error.kind() {
                // Some peers close the connection without an alert.
                ErrorType::Alert | ErrorType::ConnectionClosed => f.write_str(
                    "the other end refuses the TLS handshake: it has no key for this host and this subsystem, \
                     or another one",
                ),
                ErrorType::IOError => write!(f, "the connection was lost in the TLS handshake: {error}"),
                _ => match error.name() {
                    "S2N_ERR_BAD_PSK_BINDER" => f.write_str(
                        "the key that was offered in the TLS handshake is not the one that has its name here",
                    ),
                    // Without a key it would have to be a certificate.
                    "S2N_ERR_NO_VALID_SIGNATURE_SCHEME" => {
                        f.write_str("no key that was offered in the TLS handshake is known here")
                    }
                    name => write!(f, "the TLS handshake failed: {} ({name})", error.message()),
                },
            },
            ErrorKind::NoTls => f.write_str(
                "what came is no TLS: see that both ends mean an address where it is spoken, or neither does",
            ),
            ErrorKind::Other(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> Self {
        Self(ErrorKind::Library(error))
    }
}

type Negotiated = Result<TlsStream<Socket>, Error>;

/// A handshake in progress.
pub struct Handshake {
    mode: Mode,
    watch: Arc<Watch>,
    negotiation: Pin<Box<dyn Future<Output = Negotiated> + Send>>,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Handshake {
    /// Starts a handshake with a host that has connected; `keyring` has its key.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn server(socket: BorrowedFd<'_>, keyring: Arc<dyn Keyring>) -> io::Result<Self> {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        let (socket, watch) = Socket::of(socket)?;
        let config = once(&CONFIG, || config(Some(Choice)))?;
        let acceptor = TlsAcceptor::new(Server { config, keyring });
        let negotiation = Box::pin(async move { acceptor.accept(socket).await });
        Ok(Self { mode: Mode::Server, watch, negotiation })
    }

    /// Starts a handshake with a subsystem, after the connection to it.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub fn client(socket: BorrowedFd<'_>, psk: &Psk) -> io::Result<Self> {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        let (socket, watch) = Socket::of(socket)?;
        let config = once(&CONFIG, || config(None))?;
        let connector = TlsConnector::new(Client { config, psk: Arc::new(external(psk)?) });
        // No server name is sent: the key identifies the server.
        let negotiation = Box::pin(async move { connector.connect("", socket).await });
        Ok(Self { mode: Mode::Client, watch, negotiation })
    }

    /// Advances without waiting for the socket, and for a short time only: the next call processes the
    /// remaining bytes in the socket. Must not be called after it was ready.
    ///
    /// # Errors
    /// The handshake has failed. An alert with the reason was sent to the peer, if the socket took it.
    pub fn advance(&mut self) -> Poll<Result<Box<Session>, HandshakeError>> {
        let mut context = Context::from_waker(Waker::noop());
        self.watch.reads_left.store(READS_AT_ONCE, Relaxed);
        let negotiated = match self.negotiation.as_mut().poll(&mut context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(negotiated) => negotiated,
        };
        Poll::Ready(match negotiated {
            Ok(stream) => session(stream.as_ref(), self.mode).map(Box::new),
            Err(error) => Err(match self.watch.error() {
                Some(error) => HandshakeError(error),
                None => error.into(),
            }),
        })
    }
}

/// Receives of one [`advance`](Handshake::advance). The library reads on while messages have no effect, and a
/// peer may repeat some of them for ever.
const READS_AT_ONCE: u32 = 64;

/// Bytes of all messages of a handshake; several times what is ever needed.
const BYTES_MAX: u32 = 64 << 10;

const ENDLESS: &str = "more came than a TLS handshake has";

/// State of a socket beside the library.
#[derive(Debug)]
struct Watch {
    /// Set if the first bytes are no handshake record.
    is_strange: AtomicBool,
    reads_left: AtomicU32,
    bytes_left: AtomicU32,
}

impl Watch {
    fn error(&self) -> Option<ErrorKind> {
        match (self.is_strange.load(Relaxed), self.bytes_left.load(Relaxed)) {
            (true, _) => Some(ErrorKind::NoTls),
            (false, 0) => Some(ErrorKind::Other(ENDLESS)),
            (false, _) => None,
        }
    }
}

/// Returns the value, and makes it at the first call. Two concurrent calls make the same value.
fn once(cell: &OnceLock<Config>, make: impl FnOnce() -> Result<Config, Error>) -> Result<Config, Error> {
    match cell.get() {
        Some(config) => Ok(config.clone()),
        None => make().map(|made| cell.get_or_init(|| made).clone()),
    }
}

/// Builds the common configuration of all connections.
fn config(choice: Option<Choice>) -> Result<Config, Error> {
    let mut config = Config::builder();
    config.set_security_policy(&DEFAULT_TLS13)?;
    config.set_serialization_version(SerializationVersion::V1)?;
    // Waiting before a connection is closed hides how long a CBC cipher took, of which there is none.
    config.set_max_blinding_delay(0)?;
    // No certificates are used.
    config.with_system_certs(false)?;
    if let Some(choice) = choice {
        config.set_client_hello_callback(choice)?;
    }
    config.build()
}

/// Converts a key for the library.
fn external(psk: &Psk) -> Result<s2n_tls::psk::Psk, Error> {
    let mut builder = s2n_tls::psk::Psk::builder()?;
    builder.set_identity(psk.identity.as_str().as_bytes())?;
    builder.set_secret(&psk.secret)?;
    builder.set_hmac(match psk.identity.hash {
        Hash::Sha256 => PskHmac::SHA256,
        Hash::Sha384 => PskHmac::SHA384,
    })?;
    builder.build()
}

#[derive(Clone)]
struct Client {
    config: Config,
    psk: Arc<s2n_tls::psk::Psk>,
}

impl Builder for Client {
    type Output = Connection;

    fn build_connection(&self, mode: Mode) -> Result<Connection, Error> {
        let mut connection = self.config.build_connection(mode)?;
        connection.append_psk(&self.psk)?;
        Ok(connection)
    }
}

#[derive(Clone)]
struct Server {
    config: Config,
    keyring: Arc<dyn Keyring>,
}

impl Builder for Server {
    type Output = Connection;

    fn build_connection(&self, mode: Mode) -> Result<Connection, Error> {
        let mut connection = self.config.build_connection(mode)?;
        connection.set_application_context(Arc::clone(&self.keyring));
        Ok(connection)
    }
}

/// Offsets of the random bytes of a ClientHello.
const RANDOM: Range<usize> = 2..34;

/// Gives a connection the keys that its ClientHello names.
struct Choice;

impl ClientHelloCallback for Choice {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<Pin<Box<dyn ConnectionFuture>>>, Error> {
        let hello = connection.client_hello()?;
        let mut body = hello.raw_message()?;
        // The library took the random bytes out, and the binder covers them, too.
        if let Some(random) = body.get_mut(RANDOM) {
            random.copy_from_slice(&hello.random()?);
        }
        let Some(keyring) = connection.application_context::<Arc<dyn Keyring>>().map(Arc::clone) else {
            return Ok(None);
        };
        for psk in chosen(&body, &*keyring) {
            connection.append_psk(&external(&psk)?)?;
        }
        Ok(None)
    }
}

/// Returns the key for each known offer. If several keys have the same name, the one that binds the
/// ClientHello is returned. Without such a key the first is returned, and the library fails with it.
pub(crate) fn chosen(body: &[u8], keyring: &dyn Keyring) -> Vec<Psk> {
    const CLIENT_HELLO: u8 = 1;
    let Some(offers) = hello::offers(body) else { return Vec::new() };
    let [_, high, middle, low] = (body.len() as u32).to_be_bytes();
    let bound = [&[CLIENT_HELLO, high, middle, low][..], offers.bound];
    let mut chosen: Vec<Psk> = Vec::new();
    for (identity, binder) in offers.keys {
        let Some(identity) = str::from_utf8(identity).ok().and_then(Identity::parse) else { continue };
        if chosen.iter().any(|psk| psk.identity == identity) {
            continue;
        }
        let mut candidates = keyring.candidates(&identity);
        let fits = candidates.iter().position(|psk| derive::binds(psk, &bound, binder));
        if !candidates.is_empty() {
            chosen.push(candidates.swap_remove(fits.unwrap_or(0)));
        }
    }
    chosen
}

/// Takes the traffic secrets out of what s2n-tls has for another process, whose version 1 is: eight bytes of
/// version, protocol, cipher suite, sequence numbers of client and server, a record size, and the
/// application traffic secrets of client and server.
fn session(connection: &Connection, mode: Mode) -> Result<Session, HandshakeError> {
    const VERSION: u64 = 1;
    const FIXED: usize = 8 + 2 + 2 + 8 + 8 + 2;
    let strange = |what| HandshakeError(ErrorKind::Other(what));
    let mut identity = vec![0; connection.negotiated_psk_identity_length()?];
    if identity.is_empty() {
        return Err(strange("the handshake used no pre-shared key"));
    }
    connection.negotiated_psk_identity(&mut identity)?;
    let identity = str::from_utf8(&identity).ok().and_then(Identity::parse);
    let identity = identity.ok_or(strange("the handshake used a key with a strange name"))?;
    let mut bytes = Zeroizing::new(vec![0; connection.serialization_length()?]);
    connection.serialize(&mut bytes)?;
    let number = |at: usize, length: usize| {
        bytes[at..at + length].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    if bytes.len() < FIXED || number(0, 8) != VERSION || number(8, 2) != 0x0304 {
        return Err(strange("what was negotiated is not TLS 1.3"));
    }
    let hash = match number(10, 2) {
        0x1301 => Hash::Sha256,
        0x1302 => Hash::Sha384,
        _ => return Err(strange("the cipher suite that was negotiated is none for NVMe/TCP")),
    };
    let length = hash.length();
    let secrets = &bytes[FIXED..];
    if hash != identity.hash || secrets.len() < 2 * length {
        return Err(strange("the cipher suite that was negotiated does not go with the key"));
    }
    let client = Traffic::new(hash, &secrets[..length], number(12, 8));
    let server = Traffic::new(hash, &secrets[length..2 * length], number(20, 8));
    Ok(match mode {
        Mode::Client => Session::new(identity, hash, server, client),
        Mode::Server => Session::new(identity, hash, client, server),
    })
}

/// A socket that never waits. The caller of the handshake detects when it is ready.
struct Socket {
    socket: OwnedFd,
    /// Something came.
    is_heard: bool,
    watch: Arc<Watch>,
}

impl Socket {
    fn of(socket: BorrowedFd<'_>) -> io::Result<(Self, Arc<Watch>)> {
        let (is_strange, reads_left) = Default::default();
        let watch = Arc::new(Watch { is_strange, reads_left, bytes_left: AtomicU32::new(BYTES_MAX) });
        let socket = socket.try_clone_to_owned()?;
        Ok((Self { socket, is_heard: false, watch: Arc::clone(&watch) }, watch))
    }

    /// Receives as much as the limits still allow.
    fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let Watch { reads_left, bytes_left, .. } = &*self.watch;
        let most = room.len().min(bytes_left.load(Relaxed) as usize);
        if most == 0 {
            return Err(Errno::PROTO);
        }
        if reads_left.load(Relaxed) == 0 {
            return Err(Errno::AGAIN);
        }
        reads_left.fetch_sub(1, Relaxed);
        let (_, count) = recv(&self.socket, &mut room[..most], RecvFlags::DONTWAIT)?;
        bytes_left.fetch_sub(count as u32, Relaxed);
        Ok(count)
    }

    /// Looks at what came first before the library does, which would wait for as many bytes as something else
    /// means by its own.
    fn hear(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        const FIRST: [Kind; 2] = [Kind::HANDSHAKE, Kind::ALERT];
        let [first, ..] = bytes else { return Ok(()) };
        if !self.is_heard && !FIRST.contains(&Kind(*first)) {
            self.watch.is_strange.store(true, Relaxed);
            return Err(Errno::PROTO);
        }
        self.is_heard = true;
        Ok(())
    }
}

fn ready<T>(result: Result<T, Errno>, context: &Context<'_>) -> Poll<io::Result<T>> {
    match result {
        Ok(done) => Poll::Ready(Ok(done)),
        Err(Errno::AGAIN | Errno::INTR) => {
            // The caller polls the task again without a wake-up, and a wake-up does no harm.
            context.waker().wake_by_ref();
            Poll::Pending
        }
        Err(errno) => {
            // The library reads errno to detect an error, and whether to wait; rustix does not set it.
            set_errno(errno::Errno(errno.raw_os_error()));
            Poll::Ready(Err(errno.into()))
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let received = self.receive(room.initialize_unfilled());
        let heard = received.and_then(|count| {
            room.advance(count);
            self.hear(room.filled())
        });
        ready(heard, context)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready(send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL), context)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
