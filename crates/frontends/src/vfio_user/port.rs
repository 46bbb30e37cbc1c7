//! One socket, and the client that is served on it: what a controller is at work for.

use super::accept::Acceptor;
use super::client::{Client, Context};
use super::deferred_close::{Backlog, DeferredClose};
use super::device::Device;
use super::drain::Drain;
use super::interrupts::Interrupts;
use super::populate::Populator;
use super::region::Function;
use super::rejected::{LOOK_NS, Rejected};
use super::reset::{FinalReset, Waiting};
use super::session::{Ended, Session};
use super::set_up::SetUp;
use super::token::{Kind, Token};
use super::{Counters, DoorbellPolicy, Listener, PciIdentity};
use crate::log_limit::{LogLimit, limited};
use rustix::io::Errno;
use sluice_controller::{CannotMigrate, DoorbellMode};
use sluice_memory::Space;
use sluice_nvme::register::{self, Cc};
use sluice_reactor::{Arm, Io, PollFlags, TaskId};
use sluice_vfio_user::{Connection, Error};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// What an operator says of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The drive's, for the log.
    pub name: String,
    pub doorbells: DoorbellPolicy,
    pub identity: PciIdentity,
    /// The function has its interrupt pin and no MSI-X.
    pub by_pin: bool,
    /// Bytes of memory that a client may lend, if there is a limit.
    pub memory_max: Option<u64>,
    /// Memory that a client lends is populated.
    pub populate: bool,
}

/// What an operator sees of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// A client is there.
    pub connected: bool,
    /// How its doorbells reach us, once it has asked for the regions.
    pub doorbells: Option<DoorbellMode>,
    /// Regions of memory it has lent.
    pub regions: usize,
    /// File descriptors that clients sent and that are not closed yet; some never may be.
    pub unclosed: usize,
    pub counters: Counters,
}

/// Why nobody is let in.
const UNCLOSABLE: &str = "file descriptors that earlier ones sent are not closed yet";

/// The same while a client is there: how a migration within a host ends.
const TAKEN: &str =
    "there is one already, and a virtual machine that is migrated cannot take its drive along";

/// What may have happened to a guest that leaves its controller unused.
const LOST: &str = "if it was migrated here, or restored, it has lost the drive";

/// Who is there.
#[derive(Debug)]
enum ClientState {
    None,
    Connected(Box<Session>),
    /// Gone, and commands of it are in flight. The next one waits in the listener's queue.
    Leaving(FinalReset),
}

/// A socket for a controller: at most one client at a time, and another after it. The controller is lent to it for
/// each call.
#[derive(Debug)]
pub(crate) struct Port {
    config: Config,
    /// Tells its events from those of the other ports of its task.
    number: u8,
    task: TaskId,
    io: Io,
    acceptor: Acceptor,
    space: Space,
    state: ClientState,
    /// The client that is there is to be the last.
    drain: Option<Drain>,
    deferred_close: DeferredClose,
    populator: Option<Populator>,
    /// Clients that came while this one was there.
    rejected: Rejected,
    /// Counts clients, to tell their events apart.
    epoch: u32,
    /// The client's socket is polled for room.
    awaits_room: bool,
    counters: Counters,
    set_up: SetUp,
    visits: LogLimit,
    complaints: LogLimit,
}

impl Port {
    /// `files` says that somebody may want to show the client's memory to another.
    pub(crate) fn new(
        number: u8,
        task: TaskId,
        io: Io,
        listener: Listener,
        files: bool,
        config: Config,
    ) -> Self {
        let mut acceptor = Acceptor::new(listener, number);
        acceptor.watch(&io, task);
        let mut space = if files { Space::with_files() } else { Space::new() };
        let populator = config.populate.then(|| Populator::new(&config.name));
        config.memory_max.into_iter().for_each(|bytes| space.set_memory_limit(bytes));
        Self {
            config,
            number,
            task,
            io,
            acceptor,
            space,
            state: ClientState::None,
            drain: None,
            deferred_close: DeferredClose::default(),
            populator,
            rejected: Rejected::default(),
            epoch: 0,
            awaits_room: false,
            counters: Counters::default(),
            set_up: SetUp::default(),
            visits: LogLimit::default(),
            complaints: LogLimit::default(),
        }
    }

    /// The name of its drive.
    pub(crate) fn drive(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn status(&self) -> Status {
        let doorbells = match &self.state {
            ClientState::Connected(session) => session.client.doorbell_mode(),
            _ => None,
        };
        Status {
            connected: matches!(self.state, ClientState::Connected(_)),
            doorbells,
            regions: self.space.len(),
            unclosed: self.deferred_close.unclosed(),
            counters: self.counters,
        }
    }

    /// The eventfd of a queue's interrupts, for whoever is to signal it as well; none if it has no vector.
    ///
    /// # Errors
    /// Nothing can be told of this queue's interrupts elsewhere.
    pub(crate) fn interrupt_of(&self, vector: Option<u16>) -> Result<Option<OwnedFd>, CannotMigrate> {
        let session = self.session().ok_or(CannotMigrate("no host is at work with the drive"))?;
        if session.waiting().is_some() {
            return Err(CannotMigrate("the host waits for something that takes all of its queues"));
        }
        vector.map(|vector| session.client.function.eventfd(vector)).transpose()
    }

    pub(crate) fn count_interrupts(&mut self, interrupts: u64) {
        self.counters.interrupts += interrupts;
    }

    /// The end, for a drive that is deleted or a daemon that stops: the socket goes and nobody else is let
    /// in; no more commands are taken, those in flight finish, and when the client has been told of them
    /// it is disconnected. Remove the task when it [`is_drained`](Self::is_drained).
    pub(crate) fn drain<D: Device>(&mut self, device: &mut D, now_ns: u64) {
        self.close_acceptor();
        if self.drain.is_none() && self.session().is_some() {
            limited!(info, self.visits, now_ns, drive = self.config.name, "no more commands are taken");
        }
        self.drain.get_or_insert_default();
        // Now, and not only with the next turn: what a client is told after this was told during the drain.
        device.pause();
    }

    fn close_acceptor(&mut self) {
        self.rejected.end(&mut self.deferred_close);
        for socket in self.acceptor.close(&self.io, self.task) {
            self.deferred_close.end(Connection::new(socket));
        }
    }

    /// Nobody is there, nobody can come, and nothing is in flight.
    pub(crate) fn is_drained(&self) -> bool {
        self.acceptor.is_closed() && matches!(self.state, ClientState::None)
    }

    /// A token for an event of the client that is there now.
    fn token(&self, kind: Kind) -> u64 {
        Token { port: self.number, kind, epoch: self.epoch }.raw()
    }

    /// Somebody may be at the door. Returns the work done.
    #[cold]
    fn accept_clients<D: Device>(&mut self, device: &mut D, now_ns: u64) -> usize {
        self.rejected.advance(now_ns, &mut self.deferred_close);
        let work = self.accept_next(device, now_ns);
        if !self.rejected.is_empty() {
            self.acceptor.look_again(LOOK_NS, now_ns);
        }
        work
    }

    fn accept_next<D: Device>(&mut self, device: &mut D, now_ns: u64) -> usize {
        self.acceptor.watch(&self.io, self.task);
        match &self.state {
            // The next one is let in when this one's commands are done.
            ClientState::Leaving(_) => return 0,
            // It may be gone without our having got as far as reading that.
            ClientState::Connected(session) if !session.is_alive() => {
                self.disconnect(device, Ended::Connection(Error::Closed), now_ns);
                return 1;
            }
            _ => {}
        }
        let backlog = self.deferred_close.backlog(now_ns);
        if matches!(backlog, Backlog::Busy | Backlog::Overfull) {
            let (drive, unclosed) = (&self.config.name, self.deferred_close.unclosed());
            limited!(warn, self.complaints, now_ns, drive, unclosed, "clients have to wait: {UNCLOSABLE}");
            self.acceptor.hold(now_ns);
            return 0;
        }
        if let Some(socket) = self.acceptor.accept(&self.config.name, now_ns) {
            match (&self.state, backlog) {
                (ClientState::None, Backlog::Small) => self.connect(device, socket, now_ns),
                (ClientState::None, _) => {
                    self.count_rejected(UNCLOSABLE, now_ns);
                    self.deferred_close.end(Connection::new(socket));
                }
                // Gone since the look above: this one may have waited for that.
                (ClientState::Connected(session), _) if !session.is_alive() => {
                    self.acceptor.put_back(socket);
                    self.disconnect(device, Ended::Connection(Error::Closed), now_ns);
                }
                _ => {
                    self.count_rejected(TAKEN, now_ns);
                    self.rejected.add(socket, now_ns, &mut self.deferred_close);
                }
            }
        }
        1
    }

    fn connect<D: Device>(&mut self, device: &mut D, socket: UnixStream, now_ns: u64) {
        limited!(info, self.visits, now_ns, drive = self.config.name, "a client connected");
        self.counters.clients += 1;
        self.epoch = self.epoch.wrapping_add(1);
        let vectors = if self.config.by_pin { 0 } else { device.vectors() };
        let interrupts = Interrupts::new(self.io.clone(), self.task, self.number, vectors);
        let function = Function::new(&self.config.identity, interrupts);
        device.set_doorbell_mode(DoorbellMode::Trapped);
        self.io.poll(socket.as_fd(), PollFlags::IN, self.task, self.token(Kind::Message));
        let session = Session::new(socket, Client::new(self.config.doorbells, function));
        self.state = ClientState::Connected(Box::new(session));
    }

    fn count_rejected(&mut self, why: &str, now_ns: u64) {
        let (drive, unclosed) = (&self.config.name, self.deferred_close.unclosed());
        limited!(warn, self.visits, now_ns, drive, unclosed, "turned a client away: {why}");
        self.counters.turned_away += 1;
    }

    /// The client goes: its connection now, its memory when nothing in flight needs it.
    #[cold]
    fn disconnect<D: Device>(&mut self, device: &mut D, why: Ended, now_ns: u64) {
        let session = match std::mem::replace(&mut self.state, ClientState::None) {
            ClientState::Connected(session) => session,
            other => return self.state = other,
        };
        let drive = &self.config.name;
        match why {
            Ended::Connection(Error::Closed) | Ended::ByServer => {
                limited!(info, self.visits, now_ns, drive, reason = %why, "a client is gone");
            }
            _ => limited!(warn, self.complaints, now_ns, drive, reason = %why, "disconnected a client"),
        }
        self.io.cancel(self.task, self.token(Kind::Message));
        self.stop_awaiting_room();
        let unmapped = session.end(&mut self.deferred_close);
        self.state = ClientState::Leaving(FinalReset::begin(device, unmapped, now_ns));
    }

    /// A turn with a client: messages, the device, interrupts, an answer that waited.
    #[inline]
    fn serve<D: Device>(&mut self, device: &mut D, now_ns: u64) -> usize {
        let mut work = 0;
        if self.session().is_some_and(Session::is_ready) {
            work += self.converse(device, now_ns, Session::turn);
        }
        if self.drain.is_some() {
            device.pause();
        }
        work += device.turn(&self.space, now_ns);
        if let ClientState::Connected(session) = &mut self.state {
            self.counters.interrupts += session.client.function.interrupt(device);
        }
        if device.has_dma_requests() {
            work += self.converse(device, now_ns, Session::send_dma_requests);
        }
        if self.waiting().is_some() {
            work += self.converse(device, now_ns, Session::settle);
        }
        if self.drain.is_some() {
            work += self.finish_drain(device, now_ns);
        }
        if work > 0 {
            self.watch_room();
        }
        work
    }

    /// Disconnects the client if there is nothing left to tell it. Returns the work done.
    #[cold]
    fn finish_drain<D: Device>(&mut self, device: &mut D, now_ns: u64) -> usize {
        let (Some(drain), ClientState::Connected(session)) = (&mut self.drain, &self.state) else { return 0 };
        if !drain.is_over(device, &session.client.function.interrupts, now_ns) {
            return 0;
        }
        self.disconnect(device, Ended::ByServer, now_ns);
        1
    }

    /// Lets the client's session do something. Returns the work it says it did; a session that comes to
    /// its end is disconnected.
    fn converse<D: Device>(
        &mut self,
        device: &mut D,
        now_ns: u64,
        run: impl FnOnce(&mut Session, &mut Context<'_>) -> Result<usize, Ended>,
    ) -> usize {
        let ClientState::Connected(session) = &mut self.state else { return 0 };
        let mut context = Context {
            name: &self.config.name,
            device,
            space: &mut self.space,
            counters: &mut self.counters,
            deferred_close: &mut self.deferred_close,
            populator: self.populator.as_ref(),
            complaints: &mut self.complaints,
            now_ns,
        };
        match run(session, &mut context) {
            Ok(work) => work,
            Err(why) => {
                self.disconnect(device, why, now_ns);
                1
            }
        }
    }

    /// A turn without a client, while commands of the last one are in flight.
    #[cold]
    fn finish_leaving<D: Device>(&mut self, device: &mut D, now_ns: u64) -> usize {
        let work = device.turn(&self.space, now_ns);
        let ClientState::Leaving(reset) = &mut self.state else { return work };
        if !reset.is_over(device, &self.config.name, now_ns) {
            return work;
        }
        if let ClientState::Leaving(reset) = std::mem::replace(&mut self.state, ClientState::None) {
            reset.finish(&mut self.space);
        }
        work + 1
    }

    fn session(&self) -> Option<&Session> {
        match &self.state {
            ClientState::Connected(session) => Some(session),
            _ => None,
        }
    }

    /// What somebody waits for at the moment.
    fn waiting(&self) -> Option<&Waiting> {
        match &self.state {
            ClientState::None => None,
            ClientState::Connected(session) => session.waiting(),
            ClientState::Leaving(reset) => Some(reset.waiting()),
        }
    }

    /// Polls for room in the client's socket while answers wait for it.
    fn watch_room(&mut self) {
        let ClientState::Connected(session) = &self.state else { return };
        match session.has_unsent() {
            true if !self.awaits_room => {
                self.awaits_room = true;
                self.io.poll(session.as_fd(), PollFlags::OUT, self.task, self.token(Kind::Room));
            }
            false => self.stop_awaiting_room(),
            true => {}
        }
    }

    fn stop_awaiting_room(&mut self) {
        if std::mem::take(&mut self.awaits_room) {
            self.io.cancel(self.task, self.token(Kind::Room));
        }
    }

    pub(crate) fn own_event<D: Device>(
        &mut self,
        device: &mut D,
        token: Token,
        result: i32,
        more: bool,
        now_ns: u64,
    ) {
        match (token.kind, &mut self.state) {
            (Kind::Listener, _) => self.acceptor.event(result, more, now_ns),
            (Kind::Message, ClientState::Connected(session)) if token.epoch == self.epoch => {
                if result < 0 {
                    let errno = Errno::from_raw_os_error(-result);
                    return self.disconnect(device, Ended::Connection(Error::Socket(errno)), now_ns);
                }
                session.set_readable();
                if !more {
                    self.io.poll(session.as_fd(), PollFlags::IN, self.task, token.raw());
                }
            }
            (Kind::Room, ClientState::Connected(_))
                if token.epoch == self.epoch && self.awaits_room && result >= 0 =>
            {
                self.awaits_room = more;
                self.converse(device, now_ns, |session, _| session.flush());
                self.watch_room();
            }
            (Kind::Unmask, ClientState::Connected(session)) => {
                session.client.function.interrupts.unmask_event(token.epoch);
            }
            (Kind::Signal, ClientState::Connected(session)) => {
                session.client.function.interrupts.sent(token.epoch);
            }
            // This was for a client that is gone.
            _ => {}
        }
    }

    fn is_enabled(device: &impl Device) -> bool {
        let mut cc = [0; 4];
        device.read_register(register::CC, &mut cc);
        Cc(u32::from_le_bytes(cc)).enabled()
    }

    /// When to look although nothing happened.
    fn deadline_ns(&self, device: &mut impl Device, now_ns: u64) -> Option<u64> {
        let complaint = self.waiting().and_then(Waiting::deadline_ns);
        let drain = self.drain.as_ref().filter(|_| self.session().is_some()).and_then(Drain::deadline_ns);
        let set_up = self.set_up.deadline_ns();
        [device.deadline_ns(), self.acceptor.retry_ns(now_ns), complaint, drain, set_up]
            .into_iter()
            .flatten()
            .min()
    }

    /// Says so if a client leaves its controller unused, which a guest does that believes to be at work with it.
    fn look_at_set_up<D: Device>(&mut self, device: &D, now_ns: u64) {
        let lives = self.counters.clients + self.counters.resets;
        let is_there = self.session().is_some() && !self.space.is_empty();
        if self.set_up.is_overdue(is_there.then_some(lives), || Self::is_enabled(device), now_ns) {
            let drive = &self.config.name;
            limited!(
                warn,
                self.complaints,
                now_ns,
                drive,
                "a client's guest has not set its controller up for a minute: {LOST}"
            );
        }
    }
}

/// One that was not drained goes with everybody who is there.
impl Drop for Port {
    fn drop(&mut self) {
        self.close_acceptor();
        if let ClientState::Connected(session) = std::mem::replace(&mut self.state, ClientState::None) {
            drop(session.end(&mut self.deferred_close));
        }
    }
}

/// As of a [`Task`](sluice_reactor::Task).
impl Port {
    /// Nobody is there, and nothing of anybody in flight: the device has nothing to do.
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.state, ClientState::None)
    }

    pub(crate) fn turn<D: Device>(&mut self, device: &mut D, now_ns: u64) -> usize {
        let mut work = 0;
        if self.acceptor.is_pending(now_ns) {
            work += self.accept_clients(device, now_ns);
        }
        work + match self.state {
            ClientState::Connected(_) => self.serve(device, now_ns),
            ClientState::None => 0,
            ClientState::Leaving(_) => self.finish_leaving(device, now_ns),
        }
    }

    pub(crate) fn arm<D: Device>(&mut self, device: &mut D, now_ns: u64) -> Arm {
        if self.is_vacant() {
            return Arm::Asleep { until: self.acceptor.retry_ns(now_ns) };
        }
        if self.session().is_some_and(Session::is_ready) || device.arm() {
            return Arm::Busy;
        }
        // A client that maps its doorbells is not heard when it rings them.
        let mode = self.session().and_then(|session| session.client.doorbell_mode());
        self.look_at_set_up(device, now_ns);
        let rings_unheard = mode == Some(DoorbellMode::Mapped) && Self::is_enabled(device);
        let until = self.deadline_ns(device, now_ns);
        if rings_unheard { Arm::Timed { until } } else { Arm::Asleep { until } }
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }
}
