//! One socket of a controller, and the client that is served on it.

mod records;

use super::accept::Acceptor;
use super::client::Context;
use super::deferred_close::{Backlog, DeferredClose};
use super::drain::Drain;
use super::populate::Populator;
use super::rejected::{LOOK_NS, Rejected};
use super::reset::{FinalReset, Waiting};
use super::session::{Ended, Session};
use super::set_up::SetUp;
use super::token::{Kind, Token};
use super::{Counters, DoorbellPolicy, Listener, PciIdentity};
use rustix::io::Errno;
use sluice_controller::{CannotMigrate, Controller, DoorbellMode, Subsystem};
use sluice_frontend::{LogLimit, limited};
use sluice_memory::Space;
use sluice_nvme::register::{self, Cc};
use sluice_reactor::{Arm, Io, PollFlags, TaskId};
use sluice_vfio_user::{Connection, Error};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Configuration of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Name of the drive, for the log.
    pub name: String,
    pub doorbells: DoorbellPolicy,
    pub identity: PciIdentity,
    /// Interrupt pin instead of MSI-X.
    pub by_pin: bool,
    /// Limit of the memory that a client may share, in bytes.
    pub memory_max: Option<u64>,
    /// Population of the memory that a client shares.
    pub populate: bool,
}

/// Status of an endpoint for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Presence of a client.
    pub connected: bool,
    /// Mode of the client's doorbells, which is set when the client first requests the regions.
    pub doorbells: Option<DoorbellMode>,
    /// Regions of memory that the client has shared.
    pub regions: usize,
    /// File descriptors that clients sent and that are not closed yet. Some descriptors may stay open for
    /// ever.
    pub unclosed: usize,
    pub counters: Counters,
}

/// Reason to admit no client.
const UNCLOSABLE: &str = "file descriptors that earlier ones sent are not closed yet";

/// Reason to reject a client while another is connected. A migration within a host fails like this.
const TAKEN: &str =
    "there is one already, and a virtual machine that is migrated cannot take its drive along";

/// Explanation for a guest that leaves its controller unused.
const LOST: &str = "if it was migrated here, or restored, it has lost the drive";

/// State of a port's client.
#[derive(Debug)]
enum ClientState {
    None,
    Connected(Box<Session>),
    /// Client that is gone while its commands are in flight. The next client waits in the listener's queue.
    Leaving(FinalReset),
}

/// Socket of a controller, for at most one client at a time, and others after it. Each call borrows the
/// controller.
#[derive(Debug)]
pub(crate) struct Port {
    config: Config,
    /// Number of the port among those of its task, which its events carry.
    number: u8,
    task: TaskId,
    io: Io,
    acceptor: Acceptor,
    space: Space,
    state: ClientState,
    /// Drain that has begun: the present client is the last one.
    drain: Option<Drain>,
    deferred_close: DeferredClose,
    populator: Option<Populator>,
    /// Clients that connected while this one was connected.
    rejected: Rejected,
    /// Count of clients, which distinguishes their events.
    epoch: u32,
    /// Poll for room in the client's socket.
    awaits_room: bool,
    counters: Counters,
    set_up: SetUp,
    connects: LogLimit,
    warnings: LogLimit,
    /// Whether a [record](super::record) is on its way to another process.
    is_suspended: bool,
    /// State of a port whose record is kept, in case that this process dies.
    kept: Option<Kept>,
}

/// State of a port whose record is kept.
#[derive(Debug, Default)]
struct Kept {
    /// Whether a client has come or gone since the last record.
    has_changed: bool,
}

impl Port {
    /// Makes a port. `files` keeps the files of the client's memory, for a layer that gives a device access
    /// to it.
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
            connects: LogLimit::default(),
            warnings: LogLimit::default(),
            is_suspended: false,
            kept: None,
        }
    }

    /// Returns the name of the drive.
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

    /// Returns a copy of the eventfd of an interrupt vector, for another reactor to signal. Returns `None`
    /// for a queue without a vector.
    ///
    /// # Errors
    /// No client is connected, or the client waits for all of its queues, or the interrupt has no eventfd to
    /// be signalled elsewhere.
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

    /// Starts to drain the port, before a drive is deleted or the daemon stops. The socket is closed and no
    /// client is let in. No more commands are taken, and those in flight finish. The client is disconnected
    /// when it has got their completions. Remove the task when it [`is_drained`](Self::is_drained).
    pub(crate) fn drain(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
        self.close_acceptor();
        if self.drain.is_none() && self.session().is_some() {
            limited!(info, self.connects, now_ns, drive = self.config.name, "no more commands are taken");
        }
        self.drain.get_or_insert_default();
        // The controller pauses now and not only in the next turn, so that all later completions belong to the
        // drain.
        controller.pause(subsystem);
    }

    fn close_acceptor(&mut self) {
        self.rejected.end(&mut self.deferred_close);
        for socket in self.acceptor.close(&self.io, self.task) {
            self.deferred_close.end(Connection::new(socket));
        }
    }

    /// Returns whether no client is connected or can connect, and no command is in flight.
    pub(crate) fn is_drained(&self) -> bool {
        self.acceptor.is_closed() && matches!(self.state, ClientState::None)
    }

    /// Returns a token for an event of the present client.
    fn token(&self, kind: Kind) -> u64 {
        Token { port: self.number, kind, epoch: self.epoch }.raw()
    }

    /// Accepts the next client, if one waits, and continues with rejected clients. Returns the work done.
    #[cold]
    fn accept_clients(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) -> usize {
        self.rejected.advance(now_ns, &mut self.deferred_close);
        let work = self.accept_next(controller, subsystem, now_ns);
        if !self.rejected.is_empty() {
            self.acceptor.look_again(LOOK_NS, now_ns);
        }
        work
    }

    fn accept_next(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        self.acceptor.watch(&self.io, self.task);
        match &self.state {
            // The next client is admitted when the commands of the last one have ended.
            ClientState::Leaving(_) => return 0,
            // The client may be gone although the end of its connection was not read yet.
            ClientState::Connected(session) if !session.is_alive() => {
                self.disconnect(controller, subsystem, Ended::Connection(Error::Closed), now_ns);
                return 1;
            }
            _ => {}
        }
        let backlog = self.deferred_close.backlog(now_ns);
        if matches!(backlog, Backlog::Busy | Backlog::Overfull) {
            let (drive, unclosed) = (&self.config.name, self.deferred_close.unclosed());
            limited!(warn, self.warnings, now_ns, drive, unclosed, "clients have to wait: {UNCLOSABLE}");
            self.acceptor.hold(now_ns);
            return 0;
        }
        if let Some(socket) = self.acceptor.accept(&self.config.name, now_ns) {
            match (&self.state, backlog) {
                (ClientState::None, Backlog::Small) => self.connect(controller, socket, now_ns),
                (ClientState::None, _) => {
                    self.count_rejected(UNCLOSABLE, now_ns);
                    self.deferred_close.end(Connection::new(socket));
                }
                // The connected client has gone since the check above, and the new client may have waited for
                // that.
                (ClientState::Connected(session), _) if !session.is_alive() => {
                    self.acceptor.put_back(socket);
                    self.disconnect(controller, subsystem, Ended::Connection(Error::Closed), now_ns);
                }
                _ => {
                    self.count_rejected(TAKEN, now_ns);
                    self.rejected.add(socket, now_ns, &mut self.deferred_close);
                }
            }
        }
        1
    }

    fn connect(&mut self, controller: &mut Controller, socket: UnixStream, now_ns: u64) {
        limited!(info, self.connects, now_ns, drive = self.config.name, "a client connected");
        self.counters.clients += 1;
        self.epoch = self.epoch.wrapping_add(1);
        controller.set_doorbell_mode(DoorbellMode::Trapped);
        self.io.poll(socket.as_fd(), PollFlags::IN, self.task, self.token(Kind::Message));
        let session = Session::new(socket, self.new_client(controller));
        self.state = ClientState::Connected(Box::new(session));
        self.keep_session(now_ns);
    }

    fn count_rejected(&mut self, why: &str, now_ns: u64) {
        let (drive, unclosed) = (&self.config.name, self.deferred_close.unclosed());
        limited!(warn, self.connects, now_ns, drive, unclosed, "turned a client away: {why}");
        self.counters.turned_away += 1;
    }

    /// Disconnects the client. Its connection ends now, and its memory is released when no command in flight
    /// needs it.
    #[cold]
    fn disconnect(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        why: Ended,
        now_ns: u64,
    ) {
        let session = match std::mem::replace(&mut self.state, ClientState::None) {
            ClientState::Connected(session) => session,
            other => return self.state = other,
        };
        let drive = &self.config.name;
        match why {
            Ended::Connection(Error::Closed) | Ended::ByServer => {
                limited!(info, self.connects, now_ns, drive, reason = %why, "a client is gone");
            }
            _ => limited!(warn, self.warnings, now_ns, drive, reason = %why, "disconnected a client"),
        }
        self.io.cancel(self.task, self.token(Kind::Message));
        self.stop_awaiting_room();
        let unmapped = session.end(&mut self.deferred_close);
        self.kept.iter_mut().for_each(|kept| kept.has_changed = true);
        self.state = ClientState::Leaving(FinalReset::begin(controller, subsystem, unmapped, now_ns));
    }

    /// Runs a turn with a client: messages, the device, interrupts, a deferred answer.
    #[inline]
    fn serve(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let mut work = 0;
        if self.session().is_some_and(Session::is_ready) {
            work += self.converse(controller, subsystem, now_ns, Session::turn);
        }
        if self.drain.is_some() {
            controller.pause(subsystem);
        }
        work += controller.turn(subsystem, &self.space, now_ns);
        if let ClientState::Connected(session) = &mut self.state {
            self.counters.interrupts += session.client.function.interrupt(controller);
        }
        if controller.has_dma_requests() {
            work += self.converse(controller, subsystem, now_ns, Session::send_dma_requests);
        }
        if self.waiting().is_some() {
            work += self.converse(controller, subsystem, now_ns, Session::settle);
        }
        if self.drain.is_some() {
            work += self.finish_drain(controller, subsystem, now_ns);
        }
        if work > 0 {
            self.watch_room();
        }
        work
    }

    /// Disconnects the client if nothing is left to be sent to it. Returns the work done.
    #[cold]
    fn finish_drain(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let (Some(drain), ClientState::Connected(session)) = (&mut self.drain, &self.state) else { return 0 };
        if !drain.is_over(controller, subsystem, &session.client.function.interrupts, now_ns) {
            return 0;
        }
        self.disconnect(controller, subsystem, Ended::ByServer, now_ns);
        1
    }

    /// Runs a step of the client's session. Returns the work that the step reports. A session that comes to
    /// its end is disconnected.
    fn converse(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        now_ns: u64,
        run: impl FnOnce(&mut Session, &mut Context<'_>) -> Result<usize, Ended>,
    ) -> usize {
        let ClientState::Connected(session) = &mut self.state else { return 0 };
        let mut context = Context {
            name: &self.config.name,
            controller,
            subsystem,
            space: &mut self.space,
            counters: &mut self.counters,
            deferred_close: &mut self.deferred_close,
            populator: self.populator.as_ref(),
            warnings: &mut self.warnings,
            now_ns,
        };
        match run(session, &mut context) {
            Ok(work) => work,
            Err(why) => {
                self.disconnect(controller, subsystem, why, now_ns);
                1
            }
        }
    }

    /// Runs a turn without a client, while commands of the last one are in flight.
    #[cold]
    fn finish_leaving(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) -> usize {
        let work = controller.turn(subsystem, &self.space, now_ns);
        let ClientState::Leaving(reset) = &mut self.state else { return work };
        if !reset.is_over(controller, subsystem, &self.config.name, now_ns) {
            return work;
        }
        if let ClientState::Leaving(reset) = std::mem::replace(&mut self.state, ClientState::None) {
            reset.finish(&mut self.space);
        }
        work + 1
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        match &self.state {
            ClientState::Connected(session) => Some(session),
            _ => None,
        }
    }

    /// Returns the wait of the present client, or that of the reset after the last one.
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

    pub(crate) fn own_event(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        token: Token,
        result: i32,
        more: bool,
        now_ns: u64,
    ) {
        match (token.kind, &mut self.state) {
            (Kind::Listener, _) => self.acceptor.event(result, more, now_ns),
            (Kind::Message, ClientState::Connected(session)) if token.epoch == self.epoch => {
                if result < 0 && !self.is_suspended {
                    let errno = Errno::from_raw_os_error(-result);
                    return self.disconnect(
                        controller,
                        subsystem,
                        Ended::Connection(Error::Socket(errno)),
                        now_ns,
                    );
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
                if self.is_suspended {
                    return;
                }
                self.converse(controller, subsystem, now_ns, |session, _| session.flush());
                self.watch_room();
            }
            (Kind::Unmask, ClientState::Connected(session)) => {
                session.client.function.interrupts.unmask_event(token.epoch);
            }
            (Kind::Signal, ClientState::Connected(session)) => {
                session.client.function.interrupts.sent(token.epoch);
            }
            // The event belongs to a client that is gone.
            _ => {}
        }
    }

    fn is_enabled(controller: &Controller) -> bool {
        let mut cc = [0; 4];
        controller.read_register(register::CC, &mut cc);
        Cc(u32::from_le_bytes(cc)).enabled()
    }

    /// Returns the time of the next turn that needs no event.
    fn deadline_ns(
        &self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) -> Option<u64> {
        let warning = self.waiting().and_then(Waiting::deadline_ns);
        let drain = self.drain.as_ref().filter(|_| self.session().is_some()).and_then(Drain::deadline_ns);
        let set_up = self.set_up.deadline_ns();
        let device = (controller.deadline_ns(subsystem), subsystem.deadline_ns());
        [device.0, device.1, self.acceptor.retry_ns(now_ns), warning, drain, set_up]
            .into_iter()
            .flatten()
            .min()
    }

    /// Logs a warning if a client leaves its controller unused, as a guest does that believes the controller
    /// to be enabled.
    fn check_set_up(&mut self, controller: &Controller, now_ns: u64) {
        let generation = self.counters.clients + self.counters.resets;
        let is_there = self.session().is_some() && !self.space.is_empty();
        if self.set_up.is_overdue(is_there.then_some(generation), || Self::is_enabled(controller), now_ns) {
            let drive = &self.config.name;
            limited!(
                warn,
                self.warnings,
                now_ns,
                drive,
                "a client's guest has not set its controller up for a minute: {LOST}"
            );
        }
    }
}

/// Drop of a port that was not drained, with all of its clients.
impl Drop for Port {
    fn drop(&mut self) {
        // The other process has the same sockets, and their shutdown would be its shutdown.
        if self.is_suspended {
            return;
        }
        self.close_acceptor();
        if let ClientState::Connected(session) = std::mem::replace(&mut self.state, ClientState::None) {
            drop(session.end(&mut self.deferred_close));
        }
    }
}

/// Calls of the [`Task`](sluice_reactor::Task) that has the port.
impl Port {
    /// Returns whether no client is connected and no command of one is in flight: the device has nothing to
    /// do.
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(self.state, ClientState::None)
    }

    #[inline]
    pub(crate) fn turn(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) -> usize {
        if self.is_suspended {
            return 0;
        }
        let mut work = 0;
        if self.acceptor.is_pending(now_ns) {
            work += self.accept_clients(controller, subsystem, now_ns);
        }
        work + match self.state {
            ClientState::Connected(_) => self.serve(controller, subsystem, now_ns),
            ClientState::None => 0,
            ClientState::Leaving(_) => self.finish_leaving(controller, subsystem, now_ns),
        }
    }

    pub(crate) fn arm(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) -> Arm {
        if self.is_vacant() {
            let needs_record = self.kept.is_some() && self.needs_record(controller);
            return if needs_record {
                Arm::Busy
            } else {
                Arm::Asleep { until: self.acceptor.retry_ns(now_ns) }
            };
        }
        if self.session().is_some_and(Session::is_ready) || controller.arm(subsystem) {
            return Arm::Busy;
        }
        if self.kept.is_some() && self.needs_record(controller) {
            return Arm::Busy;
        }
        // Stores to mapped doorbells cause no event.
        let mode = self.session().and_then(|session| session.client.doorbell_mode());
        self.check_set_up(controller, now_ns);
        let rings_unheard = mode == Some(DoorbellMode::Mapped) && Self::is_enabled(controller);
        let until = self.deadline_ns(controller, subsystem, now_ns);
        if rings_unheard { Arm::Timed { until } } else { Arm::Asleep { until } }
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }
}
