//! Hand-over of a drive to another process, and its counterpart there.

use super::classifier::Attached;
use super::drive::{WiredDrive, in_words};
use super::function::FunctionControl;
use super::map_record::{MapRecord, read_maps};
use super::namespace::StackControl;
use super::target::TargetControl;
use sluice_command::record::{Need, Reader, RecordError, Writer};
use sluice_control::drives::{HandedOver, Running};
use sluice_controller::CannotHandOver;
use sluice_frontend::Drive;
use sluice_frontend::record::HandOverError;
use sluice_frontend_tcp::{Hosts, HostsRecord, IncomingHosts};
use sluice_frontend_vfio_user::{IncomingSocket, Socket, SocketRecord};
use sluice_spec::error::ApiError;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Time for the commands in flight to end. Hosts wait for that long.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// Interval between two checks whether commands are in flight.
const SETTLE_LOOK: Duration = Duration::from_micros(200);

/// Time after which a drive that has not settled goes on by itself.
const HOLD_LIMIT: Duration = Duration::from_secs(25);

/// Sockets of a drive, and bytes of a socket's record.
const SOCKETS_MAX: usize = 32;

const BYTES_MAX: usize = 32 << 20;

const LOSS: &str = "acknowledged writes were lost, and not all hosts may know";

mod part {
    pub(super) const DRIVE: u16 = 1;
    pub(super) const SUBSYSTEM: u16 = 2;
    pub(super) const SOCKETS: u16 = 3;
    pub(super) const HOSTS: u16 = 4;
    pub(super) const MAPS: u16 = 5;
}

/// Drive that another process hands over.
#[derive(Debug)]
pub(super) struct IncomingDrive {
    /// Record of the subsystem.
    pub(super) subsystem: Vec<u8>,
    pub(super) sockets: Vec<IncomingSocket>,
    /// Hosts on the network, if the drive admits them.
    pub(super) hosts: Option<IncomingHosts>,
    /// Contents of the classifier's maps.
    pub(super) maps: Vec<MapRecord>,
    /// Whether the other process has died.
    pub(super) is_left: bool,
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
        let HandedOver { bytes, fds, is_left } = drive;
        let (mut subsystem, mut sockets, mut hosts) = (None, Vec::new(), None);
        let mut maps = Vec::new();
        Reader::new(&bytes, 0).parts(|tag, mut part| {
            match tag {
                part::DRIVE => {}
                part::SUBSYSTEM => subsystem = Some(part.rest().to_vec()),
                part::SOCKETS => {
                    sockets = part.list(SOCKETS_MAX, |part| {
                        Ok((part.get::<u32>()? as usize, part.bytes(BYTES_MAX)?.to_vec()))
                    })?;
                }
                part::MAPS => maps = read_maps(&mut part)?,
                part::HOSTS => hosts = Some((part.get::<u32>()? as usize, part.rest().to_vec())),
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
        let hosts = hosts.map(|(count, bytes)| {
            IncomingHosts::new(HostsRecord { bytes, fds: fds.by_ref().take(count).collect() })
        });
        let subsystem = subsystem.ok_or(RecordError::Missing(part::SUBSYSTEM))?;
        Ok(Self { subsystem, sockets, hosts, maps, is_left })
    }
}

impl WiredDrive {
    /// Checks whether another process can take the drive over. Nothing is touched.
    pub(super) fn check_hand_over(&self) -> Result<(), ApiError> {
        let cannot = |why: &str| Err(ApiError::conflict(why.to_owned()));
        if !self.attached().as_ref().is_none_or(Attached::has_small_maps) {
            return cannot("the maps of its classifier are too large");
        }
        for stacks in &*self.stacks() {
            let [stack] = &stacks[..] else {
                return cannot("it has several paths with targets of their own");
            };
            stack.may_reopen().or_else(cannot)?;
        }
        let is_in_memory = self.creates_in_memory;
        let checked = self.query(move |drive| {
            if is_in_memory && drive.has_created() {
                return Err(CannotHandOver("hosts have created namespaces in the daemon's memory"));
            }
            drive.subsystem().may_hand_over()?;
            Socket::may_hand_over(drive)
        })?;
        checked.map_err(|why| in_words(&why))
    }

    /// Suspends the drive when the commands in flight have ended, and returns its record.
    pub(super) fn suspend(&self) -> Result<HandedOver, ApiError> {
        let limit_ns = HOLD_LIMIT.as_nanos() as u64;
        self.execute(move |drive, now_ns| drive.subsystem_mut().hold(now_ns + limit_ns))?;
        let suspended = self.suspend_held();
        if suspended.is_err() {
            self.continue_now()?;
        }
        suspended
    }

    fn suspend_held(&self) -> Result<HandedOver, ApiError> {
        let until = Instant::now() + SETTLE_LIMIT;
        let with_state: Vec<_> =
            self.uifs().into_iter().map(|(_, it)| it).filter(|it| it.keeps_state()).collect();
        let has_peers = self.stacks().iter().flatten().any(|stack| !stack.peers().is_empty());
        let has_created = self.query(Drive::has_created)?;
        // The other process connects to remote controllers anew, which may lose unflushed writes meanwhile. Functions
        // begin anew with what is in their layers. The losses of created namespaces show in a flush.
        if has_peers || has_created || !with_state.is_empty() {
            // An earlier attempt may have left a flush that took too long.
            self.when_settled(until, |drive, now_ns| {
                drive.subsystem().check_settled()?;
                Ok(drive.subsystem_mut().end_sync(now_ns))
            })?;
            let synced = self.sync(SETTLE_LIMIT, &AtomicBool::new(false));
            let is_durable = self.change(|drive, now_ns| drive.subsystem_mut().end_sync(now_ns))?;
            if !(synced?.is_durable && is_durable) {
                return Err(ApiError::conflict(
                    "a flush has failed: hosts are to be notified of lost writes first",
                ));
            }
        }
        // A function leaves before those below it, which have its last requests.
        for function in &with_state {
            function.leave_for_now()?;
            if function.has_lost() {
                return Err(ApiError::conflict(LOSS));
            }
        }
        let until = until.max(Instant::now() + SETTLE_LIMIT / 2);
        let parts = self.when_settled(until, record)?;
        Ok(parts.pack(self.reactor().unwrap_or(0), self.attached().as_ref()))
    }

    /// Lets the drive go on. Commands wait for functions that are not back yet.
    pub(super) fn continue_now(&self) -> Result<(), ApiError> {
        self.change(go_on)
    }

    /// Brings back the functions that have left. Blocks.
    pub(super) fn bring_functions_back(&self) {
        for (_, function) in self.uifs().into_iter().rev() {
            if let Err(problem) = function.come_back() {
                let (drive, why) = (&self.name, problem.in_one_line());
                tracing::error!(drive, why, "a function is not back: its commands wait");
                if let Err(error) = self.bring_back_later(&function, None) {
                    tracing::error!(drive, %error, "nor is that tried again: move it");
                }
            }
        }
    }

    /// Calls `look` until it succeeds.
    fn when_settled<T: Send + 'static>(
        &self,
        until: Instant,
        look: impl Fn(&mut Drive, u64) -> Result<T, HandOverError> + Copy + Send + 'static,
    ) -> Result<T, ApiError> {
        loop {
            let looked = self.change(move |drive, now_ns| {
                Socket::settle(drive);
                Hosts::settle(drive, now_ns);
                look(drive, now_ns)
            })?;
            match looked {
                Ok(settled) => return Ok(settled),
                Err(HandOverError::Cannot(_)) if Instant::now() < until => std::thread::sleep(SETTLE_LOOK),
                Err(error) => {
                    return Err(ApiError::conflict(error.to_string())
                        .hint("something below may be slow, or gone: try again"));
                }
            }
        }
    }
}

impl FunctionControl {
    /// Returns whether hosts may not have been notified of a loss that the function was notified of.
    fn has_lost(&self) -> bool {
        self.uif.owes_flush_error() || self.uif.has_unreported_loss()
    }
}

impl StackControl {
    /// Checks whether another process can open the stack while this one has it open, too.
    fn may_reopen(&self) -> Result<(), &'static str> {
        if self.paused {
            return Err("a target of it is paused");
        }
        if !self.restarts {
            return Err("it has layers that keep state in the daemon");
        }
        let remote_has_lost = matches!(&self.target, TargetControl::NvmeTcp(remote) if remote.has_lost());
        if self.functions.iter().any(|function| function.is_away()) {
            return Err("a function of it is not there");
        }
        let function_has_lost = self.functions.iter().any(|function| function.has_lost());
        if remote_has_lost || function_has_lost || self.target.has_lost() {
            return Err(LOSS);
        }
        match &self.target {
            TargetControl::Null | TargetControl::NvmeTcp(_) => {}
            TargetControl::File(file) if file.has_lease() => return Err("it has a lease"),
            TargetControl::File(_) => {}
            TargetControl::Nvme(..) => return Err("its device belongs to one process"),
            TargetControl::Thin(..) => {}
            TargetControl::Nothing => return Err("its data is in the daemon's memory"),
        }
        let below = self.functions.iter().flat_map(|function| &function.layers).chain(&self.layers);
        below.map(Self::may_reopen).fold(Ok(()), Result::and)
    }
}

/// Records of a drive's parts.
pub(super) struct Parts {
    subsystem: Vec<u8>,
    sockets: Vec<SocketRecord>,
    hosts: Option<HostsRecord>,
}

/// Suspends a drive that has settled.
fn record(drive: &mut Drive, now_ns: u64) -> Result<Parts, HandOverError> {
    let subsystem = drive.subsystem().record()?.encode(now_ns);
    let hosts = Hosts::hand_over(drive, now_ns)?;
    let sockets = Socket::hand_over(drive, now_ns)?;
    Ok(Parts { subsystem, sockets, hosts })
}

/// Lets all front-ends of a drive, and its subsystem, go on.
fn go_on(drive: &mut Drive, now_ns: u64) {
    Hosts::go_on(drive);
    Socket::go_on(drive, now_ns);
}

impl Parts {
    /// Records a drive at work, for a process that continues it if this one dies. Hosts on the network connect again.
    pub(super) fn of_kept(drive: &Drive, now_ns: u64) -> Result<Self, HandOverError> {
        let subsystem = drive.subsystem().record_at_work()?.encode(now_ns);
        Ok(Self { subsystem, sockets: Socket::records(drive, now_ns)?, hosts: None })
    }

    pub(super) fn pack(self, reactor: usize, classifier: Option<&Attached>) -> HandedOver {
        let Self { subsystem, sockets, hosts } = self;
        let mut writer = Writer::new(0);
        writer.part(part::DRIVE, Need::Required, |part| part.put(reactor as u32));
        writer.part(part::SUBSYSTEM, Need::Required, |part| part.raw(&subsystem));
        writer.part(part::SOCKETS, Need::Required, |part| {
            part.list(&sockets, |part, socket| {
                part.put(socket.fds.len() as u32);
                part.bytes(&socket.bytes);
            });
        });
        if let Some(attached) = classifier {
            writer.part(part::MAPS, Need::Required, |part| attached.put_maps(part));
        }
        if let Some(hosts) = &hosts {
            writer.part(part::HOSTS, Need::Required, |part| {
                part.put(hosts.fds.len() as u32);
                part.raw(&hosts.bytes);
            });
        }
        let of_sockets = sockets.into_iter().flat_map(|socket| socket.fds);
        let of_hosts = hosts.into_iter().flat_map(|hosts| hosts.fds);
        HandedOver { bytes: writer.finish(), fds: of_sockets.chain(of_hosts).collect(), is_left: false }
    }
}
