//! New connection: the TLS handshake, if there is one, then ICReq up to the Connect command.

use super::connect::{AcceptedConnect, Host, Refusal, response};
use super::psk_lookup::PskLookup;
use super::wire::Wire;
use crate::LIMITS;
use crate::conn::{Agreed, QueueMemory};
use crate::ic_resp;
use rustix::io::Errno;
use rustix::net::sockopt;
use sluice_controller::{CAPSULES_MAX, IO_QUEUES_MAX};
use sluice_nvme::fabrics::{self, Connect, ConnectData, Fctype, InvalidParameter};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::{Decoder, Digests, Event, IcReq, Pdu, Place, Role, Violation, crc32c, encode};
use sluice_tls::{Handshake, Session};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use zerocopy::FromBytes;

/// Idle time of a connection before the kernel sends TCP keep-alive probes.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Result of advancing a new connection.
#[derive(Debug)]
pub(super) enum Step {
    /// More bytes are needed.
    Wait,
    /// The connection is over, and the host still has to read the last message.
    Linger,
    /// The host is gone.
    Gone,
    /// A Connect command is complete.
    Connect(ConnectCommand),
}

/// Complete Connect command.
#[derive(Debug)]
pub(crate) struct ConnectCommand {
    pub(crate) entry: SubmissionEntry,
    pub(crate) connect: Connect,
    pub(crate) cntlid: u16,
    pub(crate) subnqn: String,
    pub(crate) host: Host,
    pub(crate) request: IcReq,
}

#[derive(Debug)]
pub(super) struct NewConnection {
    pub(crate) wire: Wire,
    /// TLS handshake that must complete before the first PDU.
    handshake: Option<Handshake>,
    /// Source of the keys of the handshake.
    psk_lookup: Option<Arc<PskLookup>>,
    pub(crate) peer: SocketAddr,
    decoder: Decoder,
    request: Option<IcReq>,
    entry: Option<SubmissionEntry>,
    data: Vec<u8>,
    filled: usize,
}

impl NewConnection {
    /// Creates an unencrypted connection. The stream must be non-blocking.
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr) -> Self {
        let decoder = Decoder::new(Role::Controller, LIMITS);
        let (handshake, psk_lookup, request, entry, data, filled) = Default::default();
        Self { wire: Wire::new(stream), handshake, psk_lookup, peer, decoder, request, entry, data, filled }
    }

    /// Creates a connection that begins with a TLS handshake, with the keys of `psk_lookup`.
    ///
    /// # Errors
    /// There is no memory, or no descriptor.
    pub(crate) fn encrypted(
        stream: TcpStream,
        peer: SocketAddr,
        psk_lookup: PskLookup,
    ) -> std::io::Result<Self> {
        let psk_lookup = Arc::new(psk_lookup);
        let handshake = Handshake::server(stream.as_fd(), Arc::clone(&psk_lookup) as _)?;
        Ok(Self { handshake: Some(handshake), psk_lookup: Some(psk_lookup), ..Self::new(stream, peer) })
    }

    /// Returns the TLS session, if the connection is encrypted.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.wire.tls.as_deref()
    }

    /// Returns whether the key of the TLS handshake is still valid. True without TLS.
    pub(super) fn has_valid_key(&self) -> bool {
        match (self.session(), &self.psk_lookup) {
            (Some(session), Some(psk_lookup)) => psk_lookup.is_valid(session.identity()),
            _ => true,
        }
    }

    /// Advances the TLS handshake, if it is not over.
    fn advance_handshake(&mut self) -> Step {
        let Some(handshake) = &mut self.handshake else { return Step::Wait };
        match handshake.advance() {
            Poll::Pending => Step::Wait,
            Poll::Ready(Ok(session)) => {
                (self.handshake, self.wire.tls) = (None, Some(session));
                Step::Wait
            }
            Poll::Ready(Err(error)) => {
                tracing::info!(peer = %self.peer, "a connection ends before it began: {error}");
                Step::Linger
            }
        }
    }

    /// Processes received bytes, but none after the Connect command: they are for the drive.
    pub(crate) fn advance(&mut self) -> Step {
        if let Step::Linger = self.advance_handshake() {
            return Step::Linger;
        }
        if self.handshake.is_some() {
            return Step::Wait;
        }
        loop {
            let (place, to_data) = match self.decoder.place() {
                Place::Here(room) => (room, false),
                Place::Payload(left) => {
                    let end = self.filled + left as usize;
                    self.data.resize(end, 0);
                    (&mut self.data[self.filled..end], true)
                }
            };
            let count = match self.wire.receive(place) {
                Ok(0) => return Step::Gone,
                Ok(count) => count,
                Err(Errno::AGAIN) => return Step::Wait,
                Err(Errno::INTR) => continue,
                Err(Errno::PROTO) => return Step::Linger,
                Err(_) => return Step::Gone,
            };
            if to_data {
                self.filled += count;
            }
            match self
                .decoder
                .filled(count)
                .and_then(|event| event.map_or(Ok(None), |event| self.handle(event)))
            {
                Ok(None) => {}
                Ok(Some(step)) => return step,
                Err(violation) => return self.terminate(violation),
            }
        }
    }

    fn handle(&mut self, event: Event) -> Result<Option<Step>, Violation> {
        match event {
            Event::Pdu(Pdu::IcReq(request)) => {
                self.wire.put(encode::ic_resp(ic_resp(request.digests)).as_bytes());
                self.decoder.set_digests(request.digests);
                self.request = Some(request);
                // The socket always has space for the first response.
                let sent = self.wire.flush().is_ok() && self.wire.unsent() == 0;
                Ok((!sent).then_some(Step::Gone))
            }
            Event::Pdu(Pdu::Command(entry, length)) => {
                self.entry = Some(entry);
                Ok((length == 0).then(|| self.fail(&NO_DATA)))
            }
            Event::Pdu(Pdu::Terminated(_)) => Ok(Some(Step::Gone)),
            Event::Pdu(_) => Err(Violation::SEQUENCE),
            Event::End { digest } => Ok(Some(self.connect_command(digest))),
        }
    }

    /// Handles the complete capsule, which must be a Connect command.
    fn connect_command(&mut self, digest: Option<u32>) -> Step {
        let (Some(entry), Some(request)) = (self.entry, self.request) else { return Step::Gone };
        if entry.opcode != fabrics::OPCODE || Fctype::of(&entry) != Fctype::CONNECT {
            return self.fail(&NOT_CONNECT);
        }
        if digest.is_some_and(|digest| digest != crc32c(&self.data)) {
            return self.fail(&Refusal::new(Status::TRANSIENT_TRANSPORT_ERROR, "a data digest is wrong"));
        }
        match read(&entry, &self.data, request) {
            Ok(command) => Step::Connect(command),
            Err(refusal) => self.fail(&refusal),
        }
    }

    /// Fails the command. The connection is over then.
    pub(super) fn fail(&mut self, refusal: &Refusal) -> Step {
        tracing::info!(peer = %self.peer, "a Connect command failed: {}", refusal.why);
        let cid = self.entry.map_or(0, |entry| entry.cid);
        let digests = self.request.map_or(Digests::NONE, |request| request.digests);
        self.wire.put(response(cid, refusal, digests).as_bytes());
        Step::Linger
    }

    #[cold]
    fn terminate(&mut self, violation: Violation) -> Step {
        tracing::info!(peer = %self.peer, "a connection ends before it began: {violation}");
        self.wire.put(encode::c2h_term(violation, self.decoder.header()).as_bytes());
        Step::Linger
    }

    /// Prepares the connection for the reactor of the drive. The socket becomes blocking, since the kernel
    /// waits on it there.
    pub(super) fn into_accepted(self, command: ConnectCommand) -> Result<AcceptedConnect, std::io::Error> {
        let Wire { stream, tls, .. } = self.wire;
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        set_keep_alive(&stream)?;
        let connect = command.connect;
        let sq_entries = (!connect.disables_flow_control()).then_some(connect.entries);
        let agreed =
            Agreed { digests: command.request.digests, alignment: command.request.alignment, sq_entries };
        let local = stream.local_addr()?;
        Ok(AcceptedConnect {
            port: SocketAddr::new(local.ip().to_canonical(), local.port()),
            memory: QueueMemory::new(connect.qid, connect.entries as u16)?,
            socket: stream.into(),
            tls,
            peer: self.peer,
            host: command.host,
            cntlid: command.cntlid,
            connect,
            agreed,
            entry: command.entry,
            auth: None,
        })
    }
}

/// Sets TCP keep-alive and user timeout. They detect a host whose machine is gone, and one that no longer
/// receives: a host may have no keep-alive timeout of NVMe.
fn set_keep_alive(stream: &TcpStream) -> Result<(), Errno> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE_MAX / 6)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32 * 2)
}

impl AsFd for NewConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

const NO_DATA: Refusal =
    Refusal::new(Status::INVALID_FIELD, "the data of the Connect command is not in its capsule");

const NOT_CONNECT: Refusal = Refusal::new(Status::COMMAND_SEQUENCE_ERROR, "the first command was another");

/// Reads a Connect command, and checks all that does not depend on the drive.
fn read(entry: &SubmissionEntry, data: &[u8], request: IcReq) -> Result<ConnectCommand, Refusal> {
    let connect = Connect::of(entry);
    if connect.recfmt != 0 {
        return Err(Refusal::new(Status::CONNECT_INCOMPATIBLE_FORMAT, "its record format is another"));
    }
    let (data, _) = ConnectData::read_from_prefix(data)
        .map_err(|_| Refusal::new(Status::SGL_DATA_LENGTH_INVALID, "its data is too short"))?;
    if connect.qid > IO_QUEUES_MAX {
        return Err(Refusal::parameter(InvalidParameter::QID, "there are not so many queues"));
    }
    if !(2..=u32::from(CAPSULES_MAX)).contains(&connect.entries) {
        return Err(Refusal::parameter(InvalidParameter::SQSIZE, "its queue is too small, or too large"));
    }
    let subnqn = data.subnqn();
    let subnqn = subnqn.ok_or(Refusal::parameter(InvalidParameter::SUBNQN, "no name of a subsystem"))?;
    let hostnqn = data.hostnqn();
    let hostnqn = hostnqn.ok_or(Refusal::parameter(InvalidParameter::HOSTNQN, "no name of a host"))?;
    Ok(ConnectCommand {
        entry: *entry,
        connect,
        cntlid: data.cntlid,
        subnqn: subnqn.to_owned(),
        host: Host { nqn: hostnqn.to_owned(), id: data.hostid },
        request,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use zerocopy::IntoBytes;

    const REQUEST: IcReq = IcReq { alignment: 4, digests: Digests::NONE, r2t_max: 1 };

    fn connect(recfmt: u16, qid: u16, entries: u32) -> SubmissionEntry {
        SubmissionEntry { cid: 3, ..Connect { recfmt, qid, entries, cattr: 0, kato_ms: 0 }.entry() }
    }

    /// Conformance: Base 6.3, the parameters of Connect, and the place that a refusal names.
    #[test]
    fn parameters_of_connect_have_limits() {
        let data = ConnectData::new([7; 16], 5, "nqn.a", "nqn.b");
        let refused = |entry: &SubmissionEntry| {
            let refusal = read(entry, data.as_bytes(), REQUEST).err()?;
            Some((refusal.status, refusal.dw0))
        };
        let invalid = |dw0| Some((Status::CONNECT_INVALID_PARAMETERS, dw0));
        for (entry, expected) in [
            (connect(0, 0, 2), None),
            (connect(0, IO_QUEUES_MAX, CAPSULES_MAX.into()), None),
            (connect(1, 0, 2), Some((Status::CONNECT_INCOMPATIBLE_FORMAT, 0))),
            (connect(0, IO_QUEUES_MAX + 1, 2), invalid(42)),
            (connect(0, 0, 1), invalid(44)),
            (connect(0, 0, u32::from(CAPSULES_MAX) + 1), invalid(44)),
            (connect(0, 0, 65_536), invalid(44)),
        ] {
            assert_eq!(refused(&entry), expected, "{entry:?}");
        }
        let good = read(&connect(0, 2, 32), data.as_bytes(), REQUEST).expect("it is valid");
        assert_eq!((good.entry.cid, good.connect.qid, good.connect.entries), (3, 2, 32));
        assert_eq!((good.cntlid, good.subnqn.as_str(), good.host.nqn.as_str()), (5, "nqn.a", "nqn.b"));
        assert_eq!((good.host.id, good.request), ([7; 16], REQUEST));
        let short = read(&connect(0, 0, 32), &data.as_bytes()[..ConnectData::SIZE - 1], REQUEST);
        assert_eq!(short.err().map(|it| it.status), Some(Status::SGL_DATA_LENGTH_INVALID));
        for (names, dw0) in [(("", "nqn.b"), 256 | 1 << 16), (("nqn.a", "\u{7}"), 512 | 1 << 16)] {
            let data = ConnectData::new([0; 16], 0, names.0, names.1);
            let refusal = read(&connect(0, 0, 32), data.as_bytes(), REQUEST).expect_err("no name");
            assert_eq!((refusal.status, refusal.dw0), (Status::CONNECT_INVALID_PARAMETERS, dw0));
        }
    }

    /// Checks the options of the socket: without them a host whose machine is gone is never detected.
    #[test]
    fn a_socket_detects_that_its_host_is_gone() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let _far = TcpStream::connect(address).expect("it listens");
        let (near, peer) = listener.accept().expect("a connection");
        near.set_nonblocking(true).expect("a socket");
        let data = ConnectData::new([7; 16], 5, "nqn.a", "nqn.b");
        for (cattr, sq_entries) in [(0, Some(32)), (Connect::DISABLE_SQ_FLOW_CONTROL, None)] {
            let connect = Connect { recfmt: 0, qid: 1, entries: 32, cattr, kato_ms: 0 };
            let request = IcReq { alignment: 64, digests: Digests { header: true, data: false }, r2t_max: 1 };
            let command = read(&connect.entry(), data.as_bytes(), request).expect("it is valid");
            let stream = near.try_clone().expect("a socket");
            let accepted = NewConnection::new(stream, peer).into_accepted(command).expect("memory");
            assert_eq!((accepted.peer, accepted.port, accepted.cntlid), (peer, address, 5));
            assert_eq!((accepted.memory.entries(), accepted.agreed.sq_entries), (33, sq_entries));
            assert_eq!((accepted.agreed.alignment, accepted.agreed.digests), (64, request.digests));
            let socket = &accepted.socket;
            assert!(!rustix::fs::fcntl_getfl(socket).expect("flags").contains(rustix::fs::OFlags::NONBLOCK));
            assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
            assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
            assert_eq!(sockopt::tcp_keepidle(socket), Ok(Duration::from_secs(60)));
            assert_eq!(sockopt::tcp_keepintvl(socket), Ok(Duration::from_secs(10)));
            assert_eq!(sockopt::tcp_user_timeout(socket), Ok(120_000));
        }
    }

    /// Returns the bytes of a new connection: ICReq, and a capsule with this data.
    fn greeting(entry: &SubmissionEntry, data: &[u8], digests: Digests) -> Vec<u8> {
        let request = encode::ic_req(IcReq { digests, ..REQUEST });
        let capsule = encode::capsule_cmd(entry, digests, 4, data.len() as u32);
        let digest = crc32c(data).to_le_bytes();
        let digest = if digests.data && !data.is_empty() { &digest[..] } else { &[] };
        [request.as_bytes(), capsule.as_bytes(), data, digest].concat()
    }

    /// Sends bytes in pieces to a new connection. Returns the step that ended it, and the responses of the listener.
    fn advanced(bytes: &[u8], piece: usize) -> (Step, Vec<u8>) {
        // Bytes are there as soon as they are sent, other than over TCP.
        let (near, mut far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let near = TcpStream::from(std::os::fd::OwnedFd::from(near));
        near.set_nonblocking(true).expect("a socket");
        let mut connection = NewConnection::new(near, "127.0.0.1:1".parse().expect("an address"));
        assert!(connection.has_valid_key() && connection.session().is_none());
        let mut step = Step::Wait;
        for piece in bytes.chunks(piece) {
            assert!(matches!(step, Step::Wait), "{step:?}");
            far.write_all(piece).expect("room");
            step = connection.advance();
        }
        // Sends the last message, and drops bytes that are not read.
        connection.wire.linger();
        drop(connection);
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).expect("the end");
        (step, heard)
    }

    #[test]
    fn a_connect_command_comes_in_pieces_of_any_length() {
        let data = ConnectData::new([7; 16], 5, "nqn.2024-01.org.example:a", "nqn.2024-01.org.example:b");
        for digests in [Digests::NONE, Digests { header: true, data: true }] {
            let bytes = greeting(&connect(0, 2, 32), data.as_bytes(), digests);
            for piece in [1, 100, 700, bytes.len()] {
                let (step, heard) = advanced(&bytes, piece);
                let Step::Connect(command) = step else { panic!("{step:?}") };
                let names = (command.subnqn.as_str(), command.host.nqn.as_str());
                assert_eq!(names, ("nqn.2024-01.org.example:a", "nqn.2024-01.org.example:b"));
                assert_eq!((command.cntlid, command.host.id, command.connect.qid), (5, [7; 16], 2));
                assert_eq!(heard, encode::ic_resp(ic_resp(digests)).as_bytes(), "nothing but the ICResp");
            }
        }
    }

    #[test]
    fn another_first_command_is_refused() {
        let data = ConnectData::new([7; 16], 5, "nqn.a", "nqn.b");
        let good = connect(0, 0, 32);
        let digests = Digests { header: false, data: true };
        let mut broken = greeting(&good, data.as_bytes(), digests);
        *broken.last_mut().expect("a digest") ^= 1;
        let other = |entry| greeting(&entry, data.as_bytes(), digests);
        for (bytes, status) in [
            (other(SubmissionEntry { opcode: 1, ..good }), Status::COMMAND_SEQUENCE_ERROR),
            (other(SubmissionEntry { nsid: 4, ..good }), Status::COMMAND_SEQUENCE_ERROR),
            (greeting(&good, &[], digests), Status::INVALID_FIELD),
            (greeting(&good, &[0; 1000], digests), Status::SGL_DATA_LENGTH_INVALID),
            (other(connect(0, 0, 1)), Status::CONNECT_INVALID_PARAMETERS),
            (broken, Status::TRANSIENT_TRANSPORT_ERROR),
        ] {
            let (step, heard) = advanced(&bytes, usize::MAX);
            assert!(matches!(step, Step::Linger), "{step:?}");
            let expected = encode::ic_resp(ic_resp(digests));
            let response = &heard[expected.as_bytes().len()..];
            let entry = sluice_nvme::CompletionEntry::read_from_bytes(&response[8..]).expect("a capsule");
            assert_eq!((entry.cid, entry.status()), (3, status));
        }
        // Bytes that are no PDU are answered with a termination request.
        let request = encode::ic_req(REQUEST);
        let (step, heard) = advanced(&[request.as_bytes(), &[0xff; 24]].concat(), usize::MAX);
        assert!(matches!(step, Step::Linger));
        assert_eq!(heard[encode::ic_resp(ic_resp(Digests::NONE)).as_bytes().len()], 3, "C2HTermReq");
        let (step, _) = advanced(encode::h2c_term(Violation::SEQUENCE, &[]).as_bytes(), usize::MAX);
        assert!(matches!(step, Step::Linger | Step::Gone));
    }
}
