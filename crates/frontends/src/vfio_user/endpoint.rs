//! One controller with its socket, as a task of a reactor.

use super::client::{Client, Context};
use super::device::Device;
use super::interrupts::Interrupts;
use super::region::Function;
use super::reset::{Farewell, Waiting};
use super::session::{Ended, Session};
use super::token::{Kind, Token};
use super::{Counters, DoorbellPolicy, Listener, PciIdentity};
use crate::log_limit::{LogLimit, limited};
use rustix::io::Errno;
use sluice_controller::{Controller, DoorbellMode};
use sluice_memory::Space;
use sluice_nvme::register::{self, Cc};
use sluice_reactor::{Arm, Io, PollFlags, Task, TaskId};
use sluice_vfio_user::Error;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// How long to wait after accept(2) failed for want of something, in nanoseconds.
const ACCEPT_RETRY_NS: u64 = 100_000_000;

/// What an operator says of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The drive's, for the log.
    pub name: String,
    pub doorbells: DoorbellPolicy,
    pub identity: PciIdentity,
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
    pub counters: Counters,
}

/// Who is there.
#[derive(Debug)]
enum Guest {
    Nobody,
    Here(Box<Session>),
    /// Gone, and commands of it are in flight. The next one waits in the listener's queue.
    Leaving(Farewell),
}

/// One controller and the socket it is served on: at most one client at a time, and another after it.
#[derive(Debug)]
pub struct Endpoint<D: Device = Controller> {
    config: Config,
    task: TaskId,
    io: Io,
    /// `None` once drained.
    listener: Option<Listener>,
    device: D,
    space: Space,
    guest: Guest,
    /// Counts clients, to tell their events apart.
    epoch: u32,
    listener_polled: bool,
    /// Somebody may want to connect.
    accept_due: bool,
    /// Not before this time.
    accept_after_ns: u64,
    /// The client's socket is polled for room.
    awaits_room: bool,
    counters: Counters,
    visits: LogLimit,
    troubles: LogLimit,
}

impl<D: Device> Endpoint<D> {
    /// For `Local::add`, whose closure gets `task` and `io`.
    pub fn new(task: TaskId, io: Io, listener: Listener, device: D, config: Config) -> Self {
        let mut endpoint = Self {
            config,
            task,
            io,
            listener: Some(listener),
            device,
            space: Space::new(),
            guest: Guest::Nobody,
            epoch: 0,
            listener_polled: false,
            accept_due: true,
            accept_after_ns: 0,
            awaits_room: false,
            counters: Counters::default(),
            visits: LogLimit::default(),
            troubles: LogLimit::default(),
        };
        endpoint.poll_listener();
        endpoint
    }

    pub fn device(&self) -> &D {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    pub fn status(&self) -> Status {
        let doorbells = match &self.guest {
            Guest::Here(session) => session.client.doorbell_mode(),
            _ => None,
        };
        Status {
            connected: matches!(self.guest, Guest::Here(_)),
            doorbells,
            regions: self.space.len(),
            counters: self.counters,
        }
    }

    /// The end, for a drive that is deleted or a daemon that stops: the socket goes and the client with
    /// it, nothing new begins, and commands in flight finish. Remove the task when it
    /// [`is_drained`](Self::is_drained).
    pub fn drain(&mut self, now_ns: u64) {
        if let Some(listener) = self.listener.take() {
            self.io.cancel(self.task, LISTENER.raw());
            drop(listener);
        }
        self.disconnect(Ended::ByServer, now_ns);
    }

    /// Nobody is there, nobody can come, and nothing is in flight.
    pub fn is_drained(&self) -> bool {
        self.listener.is_none() && matches!(self.guest, Guest::Nobody)
    }

    fn poll_listener(&mut self) {
        if let Some(listener) = self.listener.as_ref().filter(|_| !self.listener_polled) {
            self.listener_polled = true;
            self.io.poll(listener.as_fd(), PollFlags::IN, self.task, LISTENER.raw());
        }
    }

    /// A token for an event of the client that is there now.
    fn token(&self, kind: Kind) -> u64 {
        Token { kind, epoch: self.epoch }.raw()
    }

    /// Lets a client in, if one waits and there is room. Returns the work done.
    #[cold]
    fn accept(&mut self, now_ns: u64) -> usize {
        self.poll_listener();
        match &self.guest {
            Guest::Leaving(_) => return 0,
            // It may be gone without our having got as far as reading that.
            Guest::Here(session) if !session.is_alive() => {
                self.disconnect(Ended::Connection(Error::Closed), now_ns);
                return 1;
            }
            _ => {}
        }
        let Some(listener) = &self.listener else {
            self.accept_due = false;
            return 0;
        };
        match listener.accept() {
            Ok(Some(socket)) => self.welcome(socket, now_ns),
            Ok(None) => self.accept_due = false,
            // The client went away again.
            Err(Errno::CONNABORTED) => {}
            Err(errno) => {
                limited!(warn, self.troubles, now_ns, drive = self.config.name, %errno, "cannot accept a client");
                self.accept_after_ns = now_ns.saturating_add(ACCEPT_RETRY_NS);
            }
        }
        1
    }

    fn welcome(&mut self, socket: UnixStream, now_ns: u64) {
        if !matches!(self.guest, Guest::Nobody) {
            self.counters.turned_away += 1;
            limited!(
                warn,
                self.visits,
                now_ns,
                drive = self.config.name,
                "turned a client away: there is one already"
            );
            return super::release::perhaps_never(socket);
        }
        self.counters.clients += 1;
        self.epoch = self.epoch.wrapping_add(1);
        self.awaits_room = false;
        let vectors = self.device.vectors();
        let interrupts = Interrupts::new(self.io.clone(), self.task, vectors);
        let function = Function::new(&self.config.identity, vectors, interrupts);
        self.device.set_doorbell_mode(DoorbellMode::Trapped);
        self.io.poll(socket.as_fd(), PollFlags::IN, self.task, self.token(Kind::Message));
        let session = Session::new(socket, Client::new(self.config.doorbells, function));
        self.guest = Guest::Here(Box::new(session));
        limited!(info, self.visits, now_ns, drive = self.config.name, "a client connected");
    }

    /// The client goes: its connection now, its memory when nothing in flight needs it.
    #[cold]
    fn disconnect(&mut self, why: Ended, now_ns: u64) {
        let session = match std::mem::replace(&mut self.guest, Guest::Nobody) {
            Guest::Here(session) => session,
            other => return self.guest = other,
        };
        match why {
            Ended::Connection(Error::Closed) | Ended::ByServer => {
                limited!(info, self.visits, now_ns, drive = self.config.name, reason = %why, "a client is gone");
            }
            _ => {
                limited!(warn, self.troubles, now_ns, drive = self.config.name, reason = %why, "disconnected a client")
            }
        }
        self.io.cancel(self.task, self.token(Kind::Message));
        self.stop_awaiting_room();
        let unmapped = session.end();
        self.guest = Guest::Leaving(Farewell::begin(&mut self.device, unmapped, now_ns));
    }

    /// Polls for room in the client's socket while answers wait for it.
    fn watch_room(&mut self) {
        let Guest::Here(session) = &self.guest else { return };
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

    /// A turn with a client: messages, the device, interrupts, answers that waited.
    fn serve(&mut self, now_ns: u64) -> usize {
        let Guest::Here(session) = &mut self.guest else { return 0 };
        let mut context = Context {
            name: &self.config.name,
            device: &mut self.device,
            space: &mut self.space,
            counters: &mut self.counters,
            now_ns,
        };
        let handled = match session.turn(&mut context) {
            Ok(handled) => handled,
            Err(why) => {
                self.disconnect(why, now_ns);
                return 1;
            }
        };
        let mut work = handled + context.device.turn(context.space, now_ns);
        session.client.function.interrupt(context.device);
        context.counters.interrupts += session.client.function.interrupts.take_signalled();
        match session.settle(&mut context) {
            Ok(settled) => work += usize::from(settled),
            Err(why) => self.disconnect(why, now_ns),
        }
        if work > 0 {
            self.watch_room();
        }
        work
    }

    /// A turn without a client, while commands of the last one are in flight.
    #[cold]
    fn see_off(&mut self, now_ns: u64) -> usize {
        let work = self.device.turn(&self.space, now_ns);
        let Guest::Leaving(farewell) = &mut self.guest else { return work };
        if !farewell.is_over(&self.device, &self.config.name, now_ns) {
            return work;
        }
        if let Guest::Leaving(farewell) = std::mem::replace(&mut self.guest, Guest::Nobody) {
            farewell.finish(&mut self.space);
        }
        work + 1
    }

    /// What somebody waits for at the moment.
    fn waiting(&self) -> Option<&Waiting> {
        match &self.guest {
            Guest::Nobody => None,
            Guest::Here(session) => session.waiting(),
            Guest::Leaving(farewell) => Some(farewell.waiting()),
        }
    }

    fn is_enabled(&self) -> bool {
        let mut cc = [0; 4];
        self.device.read_register(register::CC, &mut cc);
        Cc(u32::from_le_bytes(cc)).enabled()
    }

    /// When to look although nothing happened.
    fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let retry = Some(self.accept_after_ns).filter(|&at| self.accept_due && at > now_ns);
        let complaint = self.waiting().and_then(|waiting| waiting.deadline_ns());
        [self.device.deadline_ns(), retry, complaint].into_iter().flatten().min()
    }

    fn own_event(&mut self, token: Token, result: i32, more: bool, now_ns: u64) {
        match token.kind {
            Kind::Listener => self.listener_event(result, more, now_ns),
            Kind::Message | Kind::Room if token.epoch == self.epoch => {
                self.client_event(token, result, more, now_ns);
            }
            Kind::Unmask => {
                if let Guest::Here(session) = &mut self.guest {
                    session.client.function.interrupts.unmask_event(token.epoch);
                }
            }
            // A signal has gone out, or a client is gone for whom this was.
            _ => {}
        }
    }

    fn listener_event(&mut self, result: i32, more: bool, now_ns: u64) {
        self.accept_due = true;
        self.listener_polled = more;
        if result < 0 {
            self.accept_after_ns = now_ns.saturating_add(ACCEPT_RETRY_NS);
        }
    }

    fn client_event(&mut self, token: Token, result: i32, more: bool, now_ns: u64) {
        let Guest::Here(session) = &mut self.guest else { return };
        if result < 0 {
            // Not by us: what was cancelled is of an earlier client, or not awaited any more.
            if token.kind == Kind::Message {
                let errno = Errno::from_raw_os_error(-result);
                self.disconnect(Ended::Connection(Error::Socket(errno)), now_ns);
            }
            return;
        }
        if token.kind == Kind::Message {
            session.set_readable();
            if !more {
                self.io.poll(session.as_fd(), PollFlags::IN, self.task, token.raw());
            }
        } else if self.awaits_room {
            self.awaits_room = more;
            match session.flush() {
                Ok(()) => self.watch_room(),
                Err(why) => self.disconnect(why, now_ns),
            }
        }
    }
}

impl<D: Device> Task for Endpoint<D> {
    fn turn(&mut self, now_ns: u64) -> usize {
        let mut work = 0;
        if self.accept_due && now_ns >= self.accept_after_ns {
            work += self.accept(now_ns);
        }
        work + match self.guest {
            Guest::Nobody => 0,
            Guest::Here(_) => self.serve(now_ns),
            Guest::Leaving(_) => self.see_off(now_ns),
        }
    }

    fn event(&mut self, token: u64, result: i32, more: bool, now_ns: u64) {
        match Token::of(token) {
            None => self.device.event(token, result, now_ns),
            Some(token) => self.own_event(token, result, more, now_ns),
        }
    }

    fn arm(&mut self, now_ns: u64) -> Arm {
        let mapped = match &self.guest {
            Guest::Here(session) if session.is_ready() => return Arm::Busy,
            Guest::Here(session) => session.client.doorbell_mode() == Some(DoorbellMode::Mapped),
            _ => false,
        };
        if self.device.arm() {
            self.device.disarm();
            return Arm::Busy;
        }
        match mapped && self.is_enabled() {
            true => Arm::Timed,
            false => Arm::Asleep { until: self.deadline_ns(now_ns) },
        }
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }
}

const LISTENER: Token = Token { kind: Kind::Listener, epoch: 0 };
