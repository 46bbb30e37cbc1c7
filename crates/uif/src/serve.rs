//! Function process: one thread that serves any number of drives.

use crate::handshake::{Make, Served, accept};
use crate::ring::{Broken, Receiver, Sender};
use crate::{Failure, Session};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest time that an idle process polls before it sleeps.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// Sleep that was too short to be worth it: longer polling pays.
const SHORT_SLEEP: Duration = Duration::from_micros(200);

/// Busy turns between two looks at the sockets.
const TURNS_PER_LOOK: u32 = 4096;

/// Time until the next check of a full ring for room: there is no signal for that.
const FULL: Duration = Duration::from_millis(1);

/// Socket of the connections to daemons.
#[derive(Debug)]
pub enum Socket {
    /// Daemon that started this process with this socket. The process ends with it.
    Inherited(OwnedFd),
    /// Socket that accepts a connection for each drive.
    Listening(OwnedFd),
}

/// Serves until the only possible daemon is gone. `make` is called for every drive. `ready` is called once,
/// before the first command and after the files of an inherited socket's drive were opened, to confine the
/// process.
///
/// # Errors
/// The daemon that started the process cannot be served, or the kernel refuses to wait.
pub fn serve(on: Socket, make: &mut Make<'_>, ready: impl FnOnce() -> io::Result<()>) -> Result<(), Failure> {
    let spin = Spin { budget: SPIN_MAX, idle: None };
    let mut server = Server { clients: Vec::new(), listener: None, spin, clock: Instant::now() };
    match on {
        Socket::Inherited(socket) => server.clients.push(Client::begin(socket, make)?),
        Socket::Listening(listener) => server.listener = Some(listener),
    }
    ready()?;
    server.run(make)
}

struct Server {
    clients: Vec<Client>,
    listener: Option<OwnedFd>,
    spin: Spin,
    /// Origin of the functions' time.
    clock: Instant,
}

impl Server {
    fn run(&mut self, make: &mut Make<'_>) -> Result<(), Failure> {
        let mut turns = 0u32;
        while self.listener.is_some() || !self.clients.is_empty() {
            turns = turns.wrapping_add(1);
            if self.turn() > 0 {
                self.spin.idle = None;
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

    /// Looks at every drive's rings once. Returns the number of commands that were worked on.
    fn turn(&mut self) -> usize {
        let (mut work, now_ns) = (0, self.now_ns());
        self.clients.retain_mut(|client| {
            let done = client.turn(now_ns);
            work += usize::from(done.unwrap_or(0));
            // If the daemon's memory is malformed, there is nothing to do for it.
            done.is_ok()
        });
        work
    }

    fn sleep(&mut self, make: &mut Make<'_>) -> Result<(), Failure> {
        self.clients.iter().for_each(|client| client.requests.request_wakeup());
        let busy = |client: &Client| client.requests.waiting() != Ok(0);
        if !self.clients.iter().any(busy) {
            let began = Instant::now();
            self.look(self.alarm(), make)?;
            self.spin.slept(began.elapsed());
        }
        self.clients.iter().for_each(|client| client.requests.cancel_wakeup());
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Returns the time until the next timer of a function.
    fn alarm(&self) -> Option<Duration> {
        let alarms = self.clients.iter().filter_map(|client| client.session.alarm_ns());
        let alarm = alarms.min().map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(self.now_ns())));
        let full = self.clients.iter().any(|client| client.session.has_more());
        if full { Some(alarm.map_or(FULL, |alarm| alarm.min(FULL))) } else { alarm }
    }

    /// Waits for doorbells and sockets, and lets daemons in and out.
    fn look(&mut self, limit: Option<Duration>, make: &mut Make<'_>) -> Result<(), Failure> {
        let fds =
            self.clients.iter().flat_map(|client| [client.served.doorbell.as_fd(), client.socket.as_fd()]);
        let fds = fds.chain(self.listener.as_ref().map(AsFd::as_fd));
        let mut polled: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut polled, limit.and_then(|it| it.try_into().ok()).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::Socket(error.into())),
        }
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut each = ready.chunks_exact(2);
        // A daemon sends nothing after its Hello: the event is the end of the connection.
        self.clients.retain(|client| {
            let ready = each.next().unwrap_or(&[false, false]);
            if ready[0] {
                // So that it can be signalled again.
                let _ = rustix::io::read(&client.served.doorbell, &mut [0; 8]);
            }
            !ready[1]
        });
        let connecting = each.remainder().first() == Some(&true);
        if let (true, Some(listener)) = (connecting, &self.listener)
            && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
        {
            // A daemon that cannot be served has got the reason.
            self.clients.extend(Client::begin(socket, make).ok());
        }
        Ok(())
    }
}

/// Connection of one drive.
struct Client {
    socket: OwnedFd,
    served: Served,
    requests: Receiver,
    replies: Sender,
    session: Session,
}

impl Client {
    fn begin(socket: OwnedFd, make: &mut Make<'_>) -> Result<Self, Failure> {
        let (served, function) = accept(socket.as_fd(), make)?;
        let (replies, requests) = served.rings.function();
        requests.cancel_wakeup();
        let session = Session::new(function, served.arena.len());
        Ok(Self { socket, served, requests, replies, session })
    }

    /// Works on the entries of the daemon, and looks at the clock. Returns the number of entries.
    fn turn(&mut self, now_ns: u64) -> Result<u16, Broken> {
        let waiting = self.requests.waiting()?;
        for _ in 0..waiting {
            self.session.take(&self.requests.take(), &mut self.served.arena, now_ns);
        }
        self.session.expire(&mut self.served.arena, now_ns);
        let room = self.replies.room().into();
        self.session.replies(room).for_each(|reply| self.replies.push(&reply));
        if self.replies.publish() {
            // A full eventfd is signalled already.
            let _ = rustix::io::write(&self.served.bell, &1u64.to_ne_bytes());
        }
        Ok(waiting)
    }
}

/// Time to poll without work: longer while short sleeps show that work was about to come, shorter while long
/// ones show that polling was in vain.
struct Spin {
    budget: Duration,
    /// Beginning of the time without work.
    idle: Option<Instant>,
}

impl Spin {
    fn is_over(&mut self) -> bool {
        self.idle.get_or_insert_with(Instant::now).elapsed() >= self.budget
    }

    fn slept(&mut self, time: Duration) {
        self.idle = None;
        let budget = if time <= SHORT_SLEEP { self.budget * 2 } else { self.budget / 2 };
        self.budget = budget.clamp(SPIN_MAX / 16, SPIN_MAX);
    }
}
