//! Keeps a function's process: starts it, notices its end, starts the next.

use super::closing::Closing;
use super::messages::{LineLimit, Messages};
use super::offer::{Link, VERSIONS, connect, offer, pair};
use super::seat::Seat;
use super::{ARENA_BYTES, ENTRIES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use sluice_uif::abi::Header;
use sluice_uif::{Failure, Options, Properties};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a function has to say what it is: it may have to derive a key first.
const WELCOME_LIMIT: Duration = Duration::from_secs(30);

/// Between two tries to start it: doubles from the first to the second.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// One that lasted so long has not failed at the start.
const LASTED: Duration = Duration::from_secs(10);

/// Where a function's process comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// The daemon starts it, and gives it its socket as standard input.
    Program(Program),
    /// Somebody else did, and it listens here, as this user or as one that is trusted anyhow.
    Socket(PathBuf, Option<u32>),
}

/// A program and how it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    /// User and group that it runs as, if the daemon may switch.
    pub user: Option<(u32, u32)>,
    /// Variables of its environment, besides the daemon's that are [handed on](is_handed_on).
    pub environment: Vec<(OsString, OsString)>,
}

/// True for a variable of the daemon's environment that says how to run a program. Others may be secrets, or where
/// they are.
fn is_handed_on(name: &OsStr) -> bool {
    const NAMES: [&str; 10] = [
        "PATH",
        "HOME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "RUST_BACKTRACE",
        "SLUICE_LOG",
        "LLVM_PROFILE_FILE",
    ];
    name.to_str().is_some_and(|name| NAMES.contains(&name) || name.starts_with("LC_"))
}

/// How long a function that is restarted has to finish what it is at: what it has not begins anew.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// The keeper's thread. Dropping it ends the function.
#[derive(Debug)]
pub(super) struct Keeper {
    seat: Arc<Seat>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the function, and the thread that keeps it. It has to be `like` the one before it.
    pub(super) fn start(
        launch: Launch,
        options: Options,
        seat: Arc<Seat>,
        like: Option<Properties>,
    ) -> Result<(Self, Properties), Failure> {
        let closing = Arc::new(Closing::default());
        let (kept, link) = Kept::start(&launch, &options, seat.drive(), &closing)?;
        let properties = link.properties;
        if like.is_some_and(|like| like != properties) {
            return Err(Failure::Nonsense("it is not what the drive stands on"));
        }
        let (name, number) = (seat.drive().to_owned(), seat.number());
        let work = Work { name, launch, options, properties, seat: Arc::clone(&seat), number, closing };
        work.announce(&kept, link);
        let thread = std::thread::Builder::new().name("function-keeper".to_owned());
        let thread = thread.spawn(move || work.run(kept))?;
        Ok((Self { seat, thread: Some(thread) }, properties))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.seat.stop();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: that would have ended the process.
            let _ = thread.join();
        }
        self.seat.stopped();
    }
}

/// What a child writes to its standard error.
struct Said {
    messages: Messages,
    limit: LineLimit,
    drive: String,
}

impl Said {
    /// The pipe to wait for, if there may be more.
    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.messages.pipe()
    }

    /// Logs what is there.
    fn log(&mut self) {
        let Self { messages, limit, drive } = self;
        messages.take(|line| log_line(drive, limit, line));
    }

    /// Logs the rest, at the end of the child.
    fn log_end(&mut self) {
        self.log();
        let Self { messages, limit, drive } = self;
        messages.end(|line| log_line(drive, limit, line));
        tell_of_left_out(drive, limit.take_left_out());
    }
}

fn log_line(drive: &str, limit: &mut LineLimit, line: &str) {
    let Some(left_out) = limit.admit(Instant::now()) else { return };
    tell_of_left_out(drive, left_out);
    tracing::warn!(drive, "a function's standard error: {line}");
}

fn tell_of_left_out(drive: &str, lines: u64) {
    if lines > 0 {
        tracing::warn!(
            drive,
            "{lines} lines of a function's standard error were left out: it writes too many"
        );
    }
}

/// Waits until `socket` has a message or is closed, or until `deadline`. Logs meanwhile.
fn wait_for_word(socket: BorrowedFd<'_>, said: &mut Option<Said>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let pipe = said.as_ref().and_then(Said::pipe);
        let mut fds: Vec<_> = [Some(socket), pipe]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return Ok(()),
            Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
            // A child that writes without a pause has no more time than another.
            _ if left.is_zero() => return Ok(()),
            Ok(_) | Err(Errno::INTR) => said.as_mut().map_or((), Said::log),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A function that is there.
struct Kept {
    /// Until it is dropped.
    socket: Option<OwnedFd>,
    closing: Arc<Closing>,
    child: Option<Child>,
    messages: Option<Said>,
}

impl Kept {
    fn start(
        launch: &Launch,
        options: &Options,
        drive: &str,
        closing: &Arc<Closing>,
    ) -> Result<(Self, Link), Failure> {
        if closing.is_stuck() {
            return Err(Failure::Nonsense("file descriptors that it sent before are not closed yet"));
        }
        match Self::start_as(*VERSIONS.end(), launch, options, drive, closing) {
            // One that was built earlier is asked again in its own words.
            Err(Failure::Version(theirs)) if VERSIONS.contains(&theirs) => {
                Self::start_as(theirs, launch, options, drive, closing)
            }
            started => started,
        }
    }

    fn start_as(
        version: u32,
        launch: &Launch,
        options: &Options,
        drive: &str,
        closing: &Arc<Closing>,
    ) -> Result<(Self, Link), Failure> {
        let mut kept = match launch {
            Launch::Program(program) => Self::spawn(program, drive, closing)?,
            Launch::Socket(path, user) => {
                let (socket, closing) = (Some(connect(path, *user)?), Arc::clone(closing));
                Self { socket, closing, child: None, messages: None }
            }
        };
        let arena_bytes = ARENA_BYTES as u64;
        let header = Header { version, entries: ENTRIES, arena_bytes, ..Header::default() };
        let Kept { socket, messages, .. } = &mut kept;
        let socket = socket.as_ref().ok_or(io::Error::from(io::ErrorKind::NotConnected))?;
        // A program may write more than a pipe holds before it answers.
        let wait = |socket: BorrowedFd<'_>, deadline| wait_for_word(socket, messages, deadline);
        let link = offer(socket.as_fd(), header, options, Instant::now() + WELCOME_LIMIT, closing, wait)?;
        Ok((kept, link))
    }

    fn spawn(program: &Program, drive: &str, closing: &Arc<Closing>) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        command.stderr(Stdio::piped()).env_clear();
        command.envs(std::env::vars_os().filter(|(name, _)| is_handed_on(name)));
        command.envs(program.environment.iter().cloned());
        if let Some((user, group)) = program.user {
            command.gid(group).uid(user);
        }
        let (child, closing) = (Some(command.spawn()?), Arc::clone(closing));
        let mut kept = Self { socket: Some(ours), closing, child, messages: None };
        if let Some(pipe) = kept.child.as_mut().and_then(|child| child.stderr.take()) {
            let limit = LineLimit::new(Instant::now());
            kept.messages =
                Some(Said { messages: Messages::new(pipe.into())?, limit, drive: drive.to_owned() });
        }
        Ok(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Killed, not asked: it may be stopped, or not listen. It has nothing that could be lost.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(said) = &mut self.messages {
            said.log_end();
        }
        if let Some(socket) = self.socket.take() {
            // The peer sees it now. Descriptors that it sent, and nobody read, are closed with the socket.
            let _ = shutdown(&socket, Shutdown::Both);
            self.closing.close(vec![socket]);
        }
    }
}

/// Why a function ended.
#[derive(PartialEq, Eq)]
enum End {
    /// By itself, or because of what it did.
    Fell,
    /// The operator or the end of its drive wanted it.
    Ordered,
}

struct Work {
    name: String,
    launch: Launch,
    options: Options,
    /// What the first one said it is; the drive is built on it.
    properties: Properties,
    seat: Arc<Seat>,
    /// Of the present connection.
    number: u32,
    closing: Arc<Closing>,
}

impl Work {
    fn run(mut self, first: Kept) {
        let mut kept = first;
        let mut pause = PAUSE[0];
        loop {
            let began = Instant::now();
            let end = self.watch(&mut kept);
            self.seat.counts.up.store(false, Relaxed);
            self.seat.counts.process.store(0, Relaxed);
            // Before the layer hears of it, so that it no longer reads or writes what it shares.
            drop(kept);
            self.seat.end(self.number);
            if began.elapsed() >= LASTED {
                pause = PAUSE[0];
            } else if end == End::Fell {
                // One that falls over its first command would be started without end.
                self.wait(&mut pause);
            }
            kept = match self.start_again(&mut pause) {
                Some(next) => next,
                None => return,
            };
        }
    }

    /// Until the function is gone, or is to go.
    fn watch(&self, kept: &mut Kept) -> End {
        let (drive, mut asked) = (&self.name, None);
        while !self.seat.is_stopping() {
            if self.seat.is_condemned(self.number) {
                tracing::warn!(drive, "a function broke the rules, or hangs: it is ended");
                return End::Fell;
            }
            let mut limit = None;
            if self.seat.wants_restart() {
                let asked = *asked.get_or_insert_with(Instant::now);
                let left = LEAVE_LIMIT.saturating_sub(asked.elapsed());
                if left.is_zero() || self.seat.has_left(self.number) {
                    let _ = self.seat.is_to_restart();
                    tracing::info!(drive, "a function is restarted");
                    return End::Ordered;
                }
                limit = Some(timespec(left));
            }
            let bell = self.seat.keeper_bell();
            let Some(socket) = kept.socket.as_ref().map(AsFd::as_fd) else { return End::Fell };
            let pipe = kept.messages.as_ref().and_then(Said::pipe);
            let mut fds: Vec<_> = [Some(bell), Some(socket), pipe]
                .into_iter()
                .flatten()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, limit.as_ref()) {
                // A function says nothing after its first word: it can only be gone.
                Ok(_) if !fds[1].revents().is_empty() => {
                    tracing::warn!(drive, "a function is gone");
                    return End::Fell;
                }
                Ok(_) | Err(Errno::INTR) => {
                    self.seat.quiet();
                    if let Some(said) = &mut kept.messages {
                        said.log();
                    }
                }
                Err(error) => {
                    tracing::error!(drive, %error, "a function is lost sight of");
                    return End::Fell;
                }
            }
        }
        End::Ordered
    }

    /// Starts the next one, however often it takes; none if the drive ends meanwhile.
    fn start_again(&mut self, pause: &mut Duration) -> Option<Kept> {
        loop {
            if self.seat.is_stopping() {
                return None;
            }
            // This is the restart that was asked for while there was nothing to end.
            let _ = self.seat.is_to_restart();
            match Kept::start(&self.launch, &self.options, &self.name, &self.closing) {
                Ok((kept, link)) if link.properties == self.properties => {
                    self.number = self.seat.number();
                    self.announce(&kept, link);
                    return Some(kept);
                }
                Ok(_) => {
                    tracing::error!(drive = self.name, "a function is not what it was: reopen the drive")
                }
                Err(error) => tracing::error!(drive = self.name, %error, "a function cannot be started"),
            }
            self.wait(pause);
        }
    }

    fn announce(&self, kept: &Kept, link: Link) {
        if link.version < *VERSIONS.end() {
            tracing::info!(
                drive = self.name,
                version = link.version,
                "a function was built for earlier rings"
            );
        }
        let counts = &self.seat.counts;
        counts.starts.increment();
        counts.process.store(kept.child.as_ref().map_or(0, Child::id), Relaxed);
        counts.up.store(true, Relaxed);
        self.seat.arrive(self.number, link);
    }

    /// A while, which is longer the next time, or until there is news.
    fn wait(&self, pause: &mut Duration) {
        let limit = timespec(*pause);
        *pause = (*pause * 2).min(PAUSE[1]);
        let bell = self.seat.keeper_bell();
        let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&limit));
        self.seat.quiet();
    }
}
