//! The function process: one thread that serves any number of drives.

use crate::handshake::{Make, Served, accept};
use crate::ring::{Broken, Receiver, Sender};
use crate::socket::timespec;
use crate::{Failure, Session};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use sluice_memory::Buffers;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a daemon may take to say what it wants, once it has connected.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// How long an idle process polls before it sleeps, at most.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// A sleep not longer than this was not worth it: it pays to poll longer.
const SHORT_SLEEP: Duration = Duration::from_micros(200);

/// Busy turns between two looks at the sockets.
const TURNS_PER_LOOK: u32 = 4096;

/// When to see again if a full ring has room: nobody rings for that.
const FULL: Duration = Duration::from_millis(1);

/// Where the daemons are.
#[derive(Debug)]
pub enum Door {
    /// One daemon, which started this process and gave it this socket. When it is gone the process ends.
    Inherited(OwnedFd),
    /// Whoever connects, one connection for each drive.
    Listening(OwnedFd),
}

/// Serves until the only daemon there can be is gone. `make` is called for every drive; `ready` once,
/// before the first command and after what an inherited socket's drive needed was opened: the time to
/// give up what the process may do no more.
///
/// # Errors
/// The daemon that started the process cannot be served, or the kernel refuses to wait.
pub fn serve(door: Door, make: &mut Make<'_>, ready: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
    let mut server = Server { clients: Vec::new(), door: None, spin: Spin::default(), clock: Instant::now() };
    match door {
        Door::Inherited(socket) => server.clients.push(Client::begin(socket, make)?),
        Door::Listening(listener) => server.door = Some(listener),
    }
    ready()?;
    server.run(make)
}

#[derive(Debug)]
struct Server {
    clients: Vec<Client>,
    door: Option<OwnedFd>,
    spin: Spin,
    /// What functions count their time from.
    clock: Instant,
}

impl Server {
    fn run(&mut self, make: &mut Make<'_>) -> Result<(), Failure> {
        let mut turns = 0u32;
        while self.door.is_some() || !self.clients.is_empty() {
            turns = turns.wrapping_add(1);
            if self.turn() > 0 {
                self.spin.worked();
                if turns.is_multiple_of(TURNS_PER_LOOK) {
                    self.look(Some(Duration::ZERO), make)?;
                }
            } else if self.spin.is_over() {
                self.sleep(make)?;
            } else {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// One look at every drive's rings; the commands that were worked on.
    fn turn(&mut self) -> usize {
        let (mut work, now_ns) = (0, self.now_ns());
        self.clients.retain_mut(|client| match client.turn(now_ns) {
            Ok(done) => {
                work += done;
                true
            }
            // The daemon's memory is not what it should be: without it there is nothing to do for it.
            Err(Broken) => false,
        });
        work
    }

    fn sleep(&mut self, make: &mut Make<'_>) -> Result<(), Failure> {
        self.clients.iter().for_each(|client| client.requests.ask());
        let busy = |client: &Client| client.requests.waiting() != Ok(0);
        if !self.clients.iter().any(busy) {
            let began = Instant::now();
            self.look(self.alarm(), make)?;
            self.spin.slept(began.elapsed());
        }
        self.clients.iter().for_each(|client| client.requests.excuse());
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long until a function wants to be woken.
    fn alarm(&self) -> Option<Duration> {
        let alarms = self.clients.iter().filter_map(|client| client.session.alarm_ns());
        let alarm = alarms.min().map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
        let full = self.clients.iter().any(|client| client.session.has_more());
        if full { Some(alarm.map_or(FULL, |alarm| alarm.min(FULL))) } else { alarm }
    }

    /// Waits for doorbells and sockets, and lets daemons in and out.
    fn look(&mut self, limit: Option<Duration>, make: &mut Make<'_>) -> Result<(), Failure> {
        let fds = self.clients.iter().flat_map(|client| [client.doorbell.as_fd(), client.socket.as_fd()]);
        let fds: Vec<BorrowedFd<'_>> = fds.chain(self.door.as_ref().map(AsFd::as_fd)).collect();
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match poll(&mut polled, limit.map(timespec).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(Failure::Socket(error.into())),
        }
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut each = ready.chunks_exact(2);
        self.clients.retain(|client| match each.next() {
            // A daemon says nothing after its first word: it can only be gone.
            Some([_, true]) => false,
            Some([rung, false]) => {
                client.quiet(*rung);
                true
            }
            _ => true,
        });
        let knocked = each.remainder().first() == Some(&true);
        if let (true, Some(door)) = (knocked, &self.door)
            && let Ok(socket) = accept_with(door, SocketFlags::CLOEXEC)
        {
            // One that cannot be served was told why.
            self.clients.extend(Client::begin(socket, make).ok());
        }
        Ok(())
    }
}

/// One drive.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    doorbell: OwnedFd,
    bell: OwnedFd,
    requests: Receiver,
    replies: Sender,
    arena: Buffers,
    session: Session,
}

impl Client {
    fn begin(socket: OwnedFd, make: &mut Make<'_>) -> Result<Self, Failure> {
        let deadline = Instant::now() + HANDSHAKE_LIMIT;
        let (served, function) = accept(socket.as_fd(), make, deadline)?;
        let Served { rings, arena, doorbell, bell } = served;
        let (replies, requests) = rings.function();
        requests.excuse();
        let session = Session::new(function, arena.len());
        Ok(Self { socket, doorbell, bell, requests, replies, arena, session })
    }

    /// What the daemon has said, and what time it is. Returns how much there was.
    fn turn(&mut self, now_ns: u64) -> Result<usize, Broken> {
        let waiting = self.requests.waiting()?;
        for _ in 0..waiting {
            let entry = self.requests.take();
            self.session.take(&entry, &mut self.arena, now_ns);
        }
        self.session.expire(&mut self.arena, now_ns);
        let room = self.replies.room().into();
        self.session.replies(room).for_each(|reply| self.replies.push(&reply));
        if self.replies.publish() {
            // A bell that is full has been rung.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        Ok(usize::from(waiting))
    }

    /// Takes the ring off a doorbell, so that it can be heard again.
    fn quiet(&self, rung: bool) {
        if rung {
            let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        }
    }
}

/// How long to poll without work: longer while short sleeps show that work was about to come, shorter
/// while long ones show that polling was in vain.
#[derive(Debug)]
struct Spin {
    budget: Duration,
    /// Since when there was no work.
    idle: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Self {
        Self { budget: SPIN_MAX, idle: None }
    }
}

impl Spin {
    fn worked(&mut self) {
        self.idle = None;
    }

    fn is_over(&mut self) -> bool {
        self.idle.get_or_insert_with(Instant::now).elapsed() >= self.budget
    }

    fn slept(&mut self, time: Duration) {
        self.idle = None;
        self.budget = match time <= SHORT_SLEEP {
            true => (self.budget * 2).clamp(SPIN_MAX / 16, SPIN_MAX),
            false => (self.budget / 2).max(SPIN_MAX / 16),
        };
    }
}
