//! Hand-over of a drive to another process, and its counterpart there.

use super::drive::{WiredDrive, in_words};
use super::target::TargetControl;
use sluice_command::record::{Need, Reader, RecordError, Writer};
use sluice_control::drives::{HandedOver, Running};
use sluice_controller::CannotHandOver;
use sluice_frontend::Drive;
use sluice_frontend_vfio_user::{HandOverError, IncomingSocket, Socket, SocketRecord};
use sluice_spec::error::ApiError;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time for the commands in flight to end. Hosts wait for that long.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// Interval between two checks whether commands are in flight.
const SETTLE_LOOK: Duration = Duration::from_micros(200);

/// Time after which a drive goes on by itself, whatever became of its upgrade.
const HOLD_LIMIT: Duration = Duration::from_secs(25);

/// Sockets of a drive, and bytes of a socket's record.
const SOCKETS_MAX: usize = 32;

const BYTES_MAX: usize = 32 << 20;

mod part {
    pub(super) const DRIVE: u16 = 1;
    pub(super) const SUBSYSTEM: u16 = 2;
    pub(super) const SOCKETS: u16 = 3;
}

/// Drive that another process hands over.
#[derive(Debug)]
pub(super) struct IncomingDrive {
    /// Record of the subsystem.
    pub(super) subsystem: Vec<u8>,
    pub(super) sockets: Vec<IncomingSocket>,
}

/// Returns the reactor that a drive was on.
///
/// # Errors
/// The bytes are no record of a drive.
pub fn reactor_of_record(bytes: &[u8]) -> Result<usize, RecordError> {
    let mut reactor = None;
    Reader::new(bytes, 0).parts(|tag, mut part| {
        if tag == part::DRIVE {
            reactor = Some(part.get::<u32>()? as usize);
        }
        Ok(true)
    })?;
    reactor.ok_or(RecordError::Missing(part::DRIVE))
}

impl IncomingDrive {
    /// Reads a record.
    pub(super) fn read(drive: HandedOver) -> Result<Self, HandOverError> {
        let HandedOver { bytes, fds } = drive;
        let (mut subsystem, mut sockets) = (None, Vec::new());
        Reader::new(&bytes, 0).parts(|tag, mut part| {
            match tag {
                part::DRIVE => {}
                part::SUBSYSTEM => subsystem = Some(part.rest().to_vec()),
                part::SOCKETS => {
                    sockets = part.list(SOCKETS_MAX, |part| {
                        Ok((part.get::<u32>()? as usize, part.bytes(BYTES_MAX)?.to_vec()))
                    })?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let mut fds = fds.into_iter();
        let read = |(count, bytes): (usize, Vec<u8>)| {
            let fds: Vec<OwnedFd> = fds.by_ref().take(count).collect();
            IncomingSocket::read(SocketRecord { bytes, fds })
        };
        let sockets = sockets.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { subsystem: subsystem.ok_or(RecordError::Missing(part::SUBSYSTEM))?, sockets })
    }
}

impl WiredDrive {
    /// Checks whether another process can take the drive over. Nothing is touched.
    pub(super) fn check_hand_over(&self) -> Result<(), ApiError> {
        let cannot = |why: &str| Err(ApiError::conflict(why.to_owned()));
        if self.is_listed() {
            return cannot("hosts on the network may connect to it");
        }
        if self.attached().is_some() {
            return cannot("it has a classifier");
        }
        for stacks in &*self.stacks() {
            let [stack] = &stacks[..] else {
                return cannot("it has several paths with targets of their own");
            };
            let is_bare = stack.functions.is_empty()
                && stack.layers.is_empty()
                && stack.stateless.is_empty()
                && stack.labelled.is_empty();
            if !is_bare {
                return cannot("it has functions");
            }
            match &stack.target {
                TargetControl::Null => {}
                TargetControl::File(file) if file.is_plain() => {}
                TargetControl::File(_) => return cannot("it is on a block device, or has a lease"),
                _ => return cannot("its target keeps its data, or its connection, in the daemon"),
            }
        }
        let checked = self.query(|drive| {
            if drive.subsystem().namespaces().any(|namespace| namespace.is_created()) {
                return Err(CannotHandOver("hosts have created namespaces"));
            }
            drive.subsystem().may_hand_over()?;
            Socket::may_hand_over(drive)
        })?;
        checked.map_err(|why| in_words(&why))
    }

    /// Suspends the drive when the commands in flight have ended, and returns its record.
    pub(super) fn suspend(&self) -> Result<HandedOver, ApiError> {
        let reactor = self.reactor().unwrap_or(0);
        let limit_ns = HOLD_LIMIT.as_nanos() as u64;
        self.execute(move |drive, now_ns| drive.subsystem_mut().hold(now_ns + limit_ns))?;
        let began = Instant::now();
        loop {
            let record = self.change(record)?;
            match record {
                Ok((subsystem, sockets)) => return Ok(pack(reactor, &subsystem, sockets)),
                Err(HandOverError::Cannot(_)) if began.elapsed() < SETTLE_LIMIT => {
                    std::thread::sleep(SETTLE_LOOK);
                }
                Err(error) => {
                    self.change(|drive, _| Socket::go_on(drive))?;
                    return Err(ApiError::conflict(error.to_string())
                        .hint("something below may be slow, or gone: try again"));
                }
            }
        }
    }

    /// Lets the drive go on.
    pub(super) fn continue_now(&self) -> Result<(), ApiError> {
        self.change(|drive, _| Socket::go_on(drive))
    }
}

/// Suspends a drive that has settled.
fn record(drive: &mut Drive, now_ns: u64) -> Result<(Vec<u8>, Vec<SocketRecord>), HandOverError> {
    Socket::settle(drive);
    let subsystem = drive.subsystem().record()?.encode(now_ns);
    Ok((subsystem, Socket::hand_over(drive, now_ns)?))
}

fn pack(reactor: usize, subsystem: &[u8], sockets: Vec<SocketRecord>) -> HandedOver {
    let mut writer = Writer::new(0);
    writer.part(part::DRIVE, Need::Required, |part| part.put(reactor as u32));
    writer.part(part::SUBSYSTEM, Need::Required, |part| part.raw(subsystem));
    writer.part(part::SOCKETS, Need::Required, |part| {
        part.list(&sockets, |part, socket| {
            part.put(socket.fds.len() as u32);
            part.bytes(&socket.bytes);
        });
    });
    HandedOver { bytes: writer.finish(), fds: sockets.into_iter().flat_map(|socket| socket.fds).collect() }
}
