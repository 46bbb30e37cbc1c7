//! A connection that a thread drives: initialization, and one command after the other, each with a time
//! limit.

use super::error::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sluice_nvme::{CompletionEntry, SglDescriptor, SubmissionEntry};
use sluice_nvme_tcp::{
    Decoder, Digests, Event, Fes, IcReq, IcResp, Limits, Pdu, Place, Role, Violation, crc32c, encode,
};
use sluice_tls::{Handshake, Psk, Session};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Alignment of received data.
pub(super) const ALIGNMENT: u8 = 4;

/// Bytes of data in a C2HData PDU at most: as many as a command of this host requests.
pub(super) const DATA_MAX: u32 = 1 << 20;

const LIMITS: Limits = Limits { in_capsule_max: 0, data_max: DATA_MAX, alignment: ALIGNMENT };

/// Data of a command on such a connection.
#[derive(Debug)]
pub(super) enum Data<'a> {
    None,
    /// Data in the capsule.
    Out(&'a [u8]),
    /// Room for data that is received completely.
    In(&'a mut [u8]),
}

/// An initialized connection.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    /// TLS session, if the connection is encrypted.
    tls: Option<Box<Session>>,
    decoder: Decoder,
    pub(super) response: IcResp,
    next_cid: u16,
    /// Commands whose answers may come at any time, by [`Kind`].
    awaited: [Awaited; 3],
    /// Another connection, whose end ends all waiting on this one.
    tied_to: Option<Arc<OwnedFd>>,
    /// CID of a command whose answer was abandoned, and may still come.
    abandoned: Option<u16>,
}

/// Kinds of commands whose answers may come at any time. One of each is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    EventRequest,
    /// Command that takes long, during which others are sent.
    Long,
    /// Keep Alive during a long command.
    KeepAlive,
}

/// CID of an outstanding command, and its response once it has come.
#[derive(Debug, Default)]
struct Awaited {
    cid: Option<u16>,
    response: Option<CompletionEntry>,
}

/// A limit of waiting.
#[derive(Debug)]
struct Until {
    deadline: Instant,
    /// Another connection, whose end ends the waiting.
    tied_to: Option<Arc<OwnedFd>>,
}

impl Until {
    fn after(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, tied_to: None }
    }
}

/// The negotiated parameters, and the decoder of a connection that is between two PDUs.
#[derive(Debug)]
pub(super) struct Negotiated {
    pub(super) socket: OwnedFd,
    pub(super) tls: Option<Box<Session>>,
    pub(super) decoder: Decoder,
    pub(super) response: IcResp,
}

impl Link {
    /// Initializes a connection.
    pub(super) fn open(
        socket: OwnedFd,
        tls: Option<Box<Session>>,
        digests: Digests,
        limit: Duration,
    ) -> Result<Self, ErrorKind> {
        let until = Until::after(limit);
        let response = IcResp { alignment: ALIGNMENT, digests: Digests::NONE, h2c_data_max: 0 };
        let decoder = Decoder::new(Role::Host, LIMITS);
        let (next_cid, awaited, tied_to, abandoned) = Default::default();
        let mut link = Self { socket, tls, decoder, response, next_cid, awaited, tied_to, abandoned };
        let request = IcReq { alignment: ALIGNMENT, digests, r2t_max: 1 };
        link.send(encode::ic_req(request).as_bytes(), &until)?;
        if link.tls.is_none() {
            is_nvme(&link.socket, &until)?;
        }
        let Pdu::IcResp(response) = link.next(&mut [], &until, "ICReq")? else {
            return Err(Violation::SEQUENCE.into());
        };
        if response.digests != digests {
            return Err(ErrorKind::Unsupported("other digests than were asked for"));
        }
        link.decoder.set_digests(digests);
        link.response = response;
        Ok(link)
    }

    /// Makes all waiting end with another connection; or with none.
    pub(super) fn tie(&mut self, to: Option<Arc<OwnedFd>>) {
        self.tied_to = to;
    }

    fn until(&self, limit: Duration) -> Until {
        Until { tied_to: self.tied_to.clone(), ..Until::after(limit) }
    }

    /// Sends a command and waits for its answer, which may be a failure.
    pub(super) fn command(
        &mut self,
        entry: SubmissionEntry,
        data: Data<'_>,
        limit: Duration,
        what: &'static str,
    ) -> Result<CompletionEntry, ErrorKind> {
        let cid = self.take_cid();
        let response = self.exchange(SubmissionEntry { cid, ..entry }, data, &self.until(limit), what);
        if let Err(ErrorKind::Abandoned) = response {
            self.abandoned = Some(cid);
        }
        response
    }

    fn exchange(
        &mut self,
        mut entry: SubmissionEntry,
        mut data: Data<'_>,
        until: &Until,
        what: &'static str,
    ) -> Result<CompletionEntry, ErrorKind> {
        const SGL: u8 = 1 << 6;
        entry.flags = SGL;
        let (pointer, payload) = match &data {
            Data::None => (SglDescriptor::apart(0), &[][..]),
            Data::Out(payload) => (SglDescriptor::in_capsule(payload.len() as u32), *payload),
            Data::In(room) => (SglDescriptor::apart(room.len() as u32), &[][..]),
        };
        entry.dptr = pointer.to_dptr();
        self.send(&self.capsule(&entry, payload), until)?;
        let mut nothing = [];
        let room: &mut [u8] = match &mut data {
            Data::In(room) => room,
            _ => &mut nothing,
        };
        let mut filled = 0;
        loop {
            match self.next(&mut room[filled..], until, what)? {
                Pdu::Response(response) if response.cid == entry.cid => {
                    if response.status().is_success() && filled < room.len() {
                        return Err(ErrorKind::Unsupported("answers without their data"));
                    }
                    return Ok(response);
                }
                Pdu::Response(response) if self.note(response) => {}
                Pdu::Response(response) if self.abandoned == Some(response.cid) => self.abandoned = None,
                Pdu::Data(chunk) if chunk.cccid == entry.cid && chunk.offset as usize == filled => {
                    filled += chunk.length as usize;
                    if chunk.success && chunk.last && filled == room.len() {
                        return Ok(CompletionEntry { cid: entry.cid, ..CompletionEntry::default() });
                    }
                }
                _ => return Err(Violation::SEQUENCE.into()),
            }
        }
    }

    /// Sends a command without data whose answer may come at any time, or never.
    pub(super) fn submit_async(
        &mut self,
        kind: Kind,
        mut entry: SubmissionEntry,
        limit: Duration,
    ) -> Result<(), ErrorKind> {
        const SGL: u8 = 1 << 6;
        entry.cid = self.take_cid();
        entry.flags = SGL;
        entry.dptr = SglDescriptor::apart(0).to_dptr();
        self.awaited[kind as usize] = Awaited { cid: Some(entry.cid), response: None };
        self.send(&self.capsule(&entry, &[]), &self.until(limit))
    }

    /// Returns whether a command of this kind has no answer yet.
    pub(super) fn is_outstanding(&self, kind: Kind) -> bool {
        self.awaited[kind as usize].cid.is_some()
    }

    /// Returns the answer to the command of this kind, if it has come. Call it when there is something to
    /// read.
    pub(super) fn poll_async(&mut self, kind: Kind) -> Result<Option<CompletionEntry>, ErrorKind> {
        while self.awaited[kind as usize].response.is_none() && self.has_arrived()? {
            let until = self.until(Duration::from_secs(1));
            match self.next(&mut [], &until, "a PDU that had begun")? {
                Pdu::Response(response) if self.note(response) => {}
                _ => return Err(Violation::SEQUENCE.into()),
            }
        }
        Ok(self.awaited[kind as usize].response.take())
    }

    /// Stores the answer to a command that is not waited for. Returns false if it is none.
    fn note(&mut self, response: CompletionEntry) -> bool {
        let Some(awaited) = self.awaited.iter_mut().find(|awaited| awaited.cid == Some(response.cid)) else {
            return false;
        };
        *awaited = Awaited { cid: None, response: Some(response) };
        true
    }

    /// Converts the link for a reactor. The controller has nothing to send on it at this time.
    pub(super) fn into_negotiated(self) -> Result<Negotiated, ErrorKind> {
        if self.tls.as_ref().is_some_and(|session| !session.content().is_empty()) {
            return Err(Violation::SEQUENCE.into());
        }
        Ok(Negotiated { socket: self.socket, tls: self.tls, decoder: self.decoder, response: self.response })
    }

    fn take_cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        while self.awaited.iter().any(|awaited| awaited.cid == Some(self.next_cid)) {
            self.next_cid = self.next_cid.wrapping_add(1);
        }
        self.next_cid
    }

    fn capsule(&self, entry: &SubmissionEntry, data: &[u8]) -> Vec<u8> {
        let IcResp { alignment, digests, .. } = self.response;
        let head = encode::capsule_cmd(entry, digests, alignment, data.len() as u32);
        let mut bytes = [head.as_bytes(), data].concat();
        if digests.data && !data.is_empty() {
            bytes.extend(crc32c(data).to_le_bytes());
        }
        bytes
    }

    fn send(&mut self, bytes: &[u8], until: &Until) -> Result<(), ErrorKind> {
        let Some(session) = &mut self.tls else { return send_all(&self.socket, bytes, until) };
        if let Some(record) = session.notice() {
            send_all(&self.socket, record, until)?;
        }
        for chunk in bytes.chunks(Session::CONTENT_MAX) {
            let record = session.seal(chunk.len(), |room| room.copy_from_slice(chunk));
            send_all(&self.socket, record, until)?;
        }
        Ok(())
    }

    /// Receives the next PDU, with its payload in `room`.
    fn next(&mut self, room: &mut [u8], until: &Until, what: &'static str) -> Result<Pdu, ErrorKind> {
        let (mut found, mut filled) = (None, 0);
        loop {
            let (place, to_room) = match self.decoder.place() {
                Place::Here(place) => (place, false),
                Place::Payload(left) => {
                    let end = filled + left as usize;
                    let place = room.get_mut(filled..end);
                    (place.ok_or(Violation { fes: Fes::DATA_OUT_OF_RANGE, fei: 0 })?, true)
                }
            };
            let count = match &mut self.tls {
                None => receive(&self.socket, place, until, what)?,
                Some(session) => receive_content(&self.socket, session, place, until, what)?,
            };
            filled += if to_room { count } else { 0 };
            match self.decoder.filled(count)? {
                Some(Event::Pdu(Pdu::Terminated(violation))) => return Err(ErrorKind::Terminated(violation)),
                Some(Event::Pdu(pdu)) if !matches!(self.decoder.place(), Place::Payload(_)) => {
                    return Ok(pdu);
                }
                Some(Event::Pdu(pdu)) => found = Some(pdu),
                Some(Event::End { digest }) => {
                    if digest.is_some_and(|digest| digest != crc32c(&room[..filled])) {
                        return Err(ErrorKind::Unsupported("wrong data digests"));
                    }
                    return found.ok_or(Violation::SEQUENCE.into());
                }
                None => {}
            }
        }
    }

    /// Returns whether part of a PDU has arrived. Records without content are processed meanwhile.
    fn has_arrived(&mut self) -> Result<bool, ErrorKind> {
        let Some(session) = &mut self.tls else {
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            return Ok(poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|count| count > 0));
        };
        while session.content().is_empty() {
            match recv(&self.socket, session.room(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(ErrorKind::Closed),
                Ok((_, count)) => session.filled(count).map_err(ErrorKind::Tls)?,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(ErrorKind::Socket(errno.into())),
            }
        }
        Ok(true)
    }
}

/// Peeks at the first byte from the controller, to distinguish NVMe/TCP from TLS.
fn is_nvme(socket: &OwnedFd, until: &Until) -> Result<(), ErrorKind> {
    let mut first = [0];
    loop {
        match recv(socket, &mut first[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Err(ErrorKind::Silent),
            Ok(_) if sluice_tls::is_tls(first[0]) => return Err(ErrorKind::Encrypted),
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN) => wait(socket, PollFlags::IN, until, "ICReq")?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ErrorKind::Socket(errno.into())),
        }
    }
}

fn send_all(socket: &OwnedFd, mut bytes: &[u8], until: &Until) -> Result<(), ErrorKind> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::AGAIN) => wait(socket, PollFlags::OUT, until, "what was sent")?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ErrorKind::Socket(errno.into())),
        }
    }
    Ok(())
}

/// Receives bytes from the network, at least one.
fn receive(
    socket: &OwnedFd,
    place: &mut [u8],
    until: &Until,
    what: &'static str,
) -> Result<usize, ErrorKind> {
    loop {
        match recv(socket, &mut *place, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(ErrorKind::Closed),
            Ok((_, count)) => return Ok(count),
            Err(Errno::AGAIN) => wait(socket, PollFlags::IN, until, what)?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ErrorKind::Socket(errno.into())),
        }
    }
}

/// Receives bytes out of the TLS records from the network, at least one.
fn receive_content(
    socket: &OwnedFd,
    session: &mut Session,
    place: &mut [u8],
    until: &Until,
    what: &'static str,
) -> Result<usize, ErrorKind> {
    while session.content().is_empty() {
        let count = receive(socket, session.room(), until, what)?;
        session.filled(count).map_err(|failure| {
            let farewell = session.farewell(Some(failure));
            let _ = send(socket, farewell, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            if failure.is_end() { ErrorKind::Closed } else { ErrorKind::Tls(failure) }
        })?;
    }
    let count = place.len().min(session.content().len());
    place[..count].copy_from_slice(&session.content()[..count]);
    session.take(count);
    Ok(count)
}

fn wait(socket: &OwnedFd, events: PollFlags, until: &Until, what: &'static str) -> Result<(), ErrorKind> {
    let left = until.deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::Timeout(what));
    }
    // Without any flags the poll waits for the end of the connection only.
    let tied_to = until.tied_to.as_deref().unwrap_or(socket);
    let mut polled = [PollFd::new(socket, events), PollFd::new(tied_to, PollFlags::empty())];
    match poll(&mut polled, Some(&timespec(left))) {
        Ok(0) => Err(ErrorKind::Timeout(what)),
        Ok(_) if until.tied_to.is_some() && polled[1].revents().contains(PollFlags::HUP) => {
            Err(ErrorKind::Abandoned)
        }
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(ErrorKind::Socket(errno.into())),
    }
}

/// Performs the TLS handshake on a new connection.
pub(super) fn shake_hands(socket: &OwnedFd, psk: &Psk, limit: Duration) -> Result<Box<Session>, ErrorKind> {
    let until = Until::after(limit);
    let mut handshake = Handshake::client(socket.as_fd(), psk).map_err(ErrorKind::Socket)?;
    loop {
        match handshake.advance() {
            Poll::Ready(negotiated) => return negotiated.map_err(ErrorKind::Handshake),
            Poll::Pending => wait(socket, PollFlags::IN, &until, "the TLS handshake")?,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}
