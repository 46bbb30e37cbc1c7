//! Keeps a function's process: starts it, notices its end, starts the next.

use super::deferred_close::DeferredClose;
use super::handshake::{Link, VERSIONS, connect, negotiate, pair};
use super::instance::InstanceSlot;
use super::messages::{LineLimit, Messages};
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
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// One that lasted so long has not failed at the start.
const STABLE: Duration = Duration::from_secs(10);

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
pub(super) struct Supervisor {
    instance: Arc<InstanceSlot>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the function, and the thread that keeps it. It has to be `like` the one before it.
    pub(super) fn start(
        launch: Launch,
        options: Options,
        instance: Arc<InstanceSlot>,
        like: Option<Properties>,
    ) -> Result<(Self, Properties), Failure> {
        let deferred_close = Arc::new(DeferredClose::default());
        let (process, link) = Process::start(&launch, &options, instance.drive(), &deferred_close)?;
        let properties = link.properties;
        if like.is_some_and(|like| like != properties) {
            return Err(Failure::Nonsense("it is not what the drive stands on"));
        }
        let (name, number) = (instance.drive().to_owned(), instance.number());
        let work = Worker {
            name,
            launch,
            options,
            properties,
            instance: Arc::clone(&instance),
            number,
            deferred_close,
        };
        work.announce(&process, link);
        let thread = std::thread::Builder::new().name("function-keeper".to_owned());
        let thread = thread.spawn(move || work.run(process))?;
        Ok((Self { instance, thread: Some(thread) }, properties))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.instance.stop();
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: that would have ended the process.
            let _ = thread.join();
        }
        self.instance.stopped();
    }
}

/// What a child writes to its standard error.
struct StandardError {
    messages: Messages,
    limit: LineLimit,
    drive: String,
}

impl StandardError {
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
        log_left_out(drive, limit.take_left_out());
    }
}

fn log_line(drive: &str, limit: &mut LineLimit, line: &str) {
    let Some(left_out) = limit.admit(Instant::now()) else { return };
    log_left_out(drive, left_out);
    tracing::warn!(drive, "a function's standard error: {line}");
}

fn log_left_out(drive: &str, lines: u64) {
    if lines > 0 {
        tracing::warn!(
            drive,
            "{lines} lines of a function's standard error were left out: it writes too many"
        );
    }
}

/// Waits until `socket` has a message or is closed, or until `deadline`. Logs meanwhile.
fn wait_for_reply(
    socket: BorrowedFd<'_>,
    stderr: &mut Option<StandardError>,
    deadline: Instant,
) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let pipe = stderr.as_ref().and_then(StandardError::pipe);
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
            Ok(_) | Err(Errno::INTR) => stderr.as_mut().map_or((), StandardError::log),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A function that is there.
struct Process {
    /// Until it is dropped.
    socket: Option<OwnedFd>,
    deferred_close: Arc<DeferredClose>,
    child: Option<Child>,
    messages: Option<StandardError>,
}

impl Process {
    fn start(
        launch: &Launch,
        options: &Options,
        drive: &str,
        deferred_close: &Arc<DeferredClose>,
    ) -> Result<(Self, Link), Failure> {
        if deferred_close.is_stuck() {
            return Err(Failure::Nonsense("file descriptors that it sent before are not closed yet"));
        }
        match Self::start_as(*VERSIONS.end(), launch, options, drive, deferred_close) {
            // One that was built earlier is asked again in its own words.
            Err(Failure::Version(theirs)) if VERSIONS.contains(&theirs) => {
                Self::start_as(theirs, launch, options, drive, deferred_close)
            }
            started => started,
        }
    }

    fn start_as(
        version: u32,
        launch: &Launch,
        options: &Options,
        drive: &str,
        deferred_close: &Arc<DeferredClose>,
    ) -> Result<(Self, Link), Failure> {
        let mut process = match launch {
            Launch::Program(program) => Self::spawn(program, drive, deferred_close)?,
            Launch::Socket(path, user) => {
                let (socket, deferred_close) = (Some(connect(path, *user)?), Arc::clone(deferred_close));
                Self { socket, deferred_close, child: None, messages: None }
            }
        };
        let arena_bytes = ARENA_BYTES as u64;
        let header = Header { version, entries: ENTRIES, arena_bytes, ..Header::default() };
        let Process { socket, messages, .. } = &mut process;
        let socket = socket.as_ref().ok_or(io::Error::from(io::ErrorKind::NotConnected))?;
        // A program may write more than a pipe holds before it answers.
        let wait = |socket: BorrowedFd<'_>, deadline| wait_for_reply(socket, messages, deadline);
        let link =
            negotiate(socket.as_fd(), header, options, Instant::now() + WELCOME_LIMIT, deferred_close, wait)?;
        Ok((process, link))
    }

    fn spawn(program: &Program, drive: &str, deferred_close: &Arc<DeferredClose>) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        command.stderr(Stdio::piped()).env_clear();
        command.envs(std::env::vars_os().filter(|(name, _)| is_handed_on(name)));
        command.envs(program.environment.iter().cloned());
        if let Some((user, group)) = program.user {
            command.gid(group).uid(user);
        }
        let (child, deferred_close) = (Some(command.spawn()?), Arc::clone(deferred_close));
        let mut process = Self { socket: Some(ours), deferred_close, child, messages: None };
        if let Some(pipe) = process.child.as_mut().and_then(|child| child.stderr.take()) {
            let limit = LineLimit::new(Instant::now());
            process.messages =
                Some(StandardError { messages: Messages::new(pipe.into())?, limit, drive: drive.to_owned() });
        }
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Killed, not asked: it may be stopped, or not listen. It has nothing that could be lost.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(stderr) = &mut self.messages {
            stderr.log_end();
        }
        if let Some(socket) = self.socket.take() {
            // The peer sees it now. Descriptors that it sent, and nobody read, are closed with the socket.
            let _ = shutdown(&socket, Shutdown::Both);
            self.deferred_close.close(vec![socket]);
        }
    }
}

/// Why a function ended.
#[derive(PartialEq, Eq)]
enum End {
    /// By itself, or because of what it did.
    Failed,
    /// The operator or the end of its drive wanted it.
    Requested,
}

struct Worker {
    name: String,
    launch: Launch,
    options: Options,
    /// What the first one said it is; the drive is built on it.
    properties: Properties,
    instance: Arc<InstanceSlot>,
    /// Of the present connection.
    number: u32,
    deferred_close: Arc<DeferredClose>,
}

impl Worker {
    fn run(mut self, first: Process) {
        let mut process = first;
        let mut backoff = BACKOFF[0];
        loop {
            let began = Instant::now();
            let end = self.watch(&mut process);
            self.instance.counts.up.store(false, Relaxed);
            self.instance.counts.process.store(0, Relaxed);
            // Before the layer hears of it, so that it no longer reads or writes what it shares.
            drop(process);
            self.instance.end(self.number);
            if began.elapsed() >= STABLE {
                backoff = BACKOFF[0];
            } else if end == End::Failed {
                // One that falls over its first command would be started without end.
                self.wait(&mut backoff);
            }
            process = match self.start_again(&mut backoff) {
                Some(next) => next,
                None => return,
            };
        }
    }

    /// Until the function is gone, or is to go.
    fn watch(&self, process: &mut Process) -> End {
        let (drive, mut requested) = (&self.name, None);
        while !self.instance.is_stopping() {
            if self.instance.is_killed(self.number) {
                tracing::warn!(drive, "a function broke the rules, or hangs: it is ended");
                return End::Failed;
            }
            let mut limit = None;
            if self.instance.restart_requested() {
                let requested = *requested.get_or_insert_with(Instant::now);
                let left = LEAVE_LIMIT.saturating_sub(requested.elapsed());
                if left.is_zero() || self.instance.has_quiesced(self.number) {
                    let _ = self.instance.take_restart();
                    tracing::info!(drive, "a function is restarted");
                    return End::Requested;
                }
                limit = Some(timespec(left));
            }
            let bell = self.instance.supervisor_eventfd();
            let Some(socket) = process.socket.as_ref().map(AsFd::as_fd) else { return End::Failed };
            let pipe = process.messages.as_ref().and_then(StandardError::pipe);
            let mut fds: Vec<_> = [Some(bell), Some(socket), pipe]
                .into_iter()
                .flatten()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, limit.as_ref()) {
                // A function says nothing after its first word: it can only be gone.
                Ok(_) if !fds[1].revents().is_empty() => {
                    tracing::warn!(drive, "a function is gone");
                    return End::Failed;
                }
                Ok(_) | Err(Errno::INTR) => {
                    self.instance.free_disposed();
                    if let Some(stderr) = &mut process.messages {
                        stderr.log();
                    }
                }
                Err(error) => {
                    tracing::error!(drive, %error, "a function is lost sight of");
                    return End::Failed;
                }
            }
        }
        End::Requested
    }

    /// Starts the next one, however often it takes; none if the drive ends meanwhile.
    fn start_again(&mut self, backoff: &mut Duration) -> Option<Process> {
        loop {
            if self.instance.is_stopping() {
                return None;
            }
            // This is the restart that was asked for while there was nothing to end.
            let _ = self.instance.take_restart();
            match Process::start(&self.launch, &self.options, &self.name, &self.deferred_close) {
                Ok((process, link)) if link.properties == self.properties => {
                    self.number = self.instance.number();
                    self.announce(&process, link);
                    return Some(process);
                }
                Ok(_) => {
                    tracing::error!(drive = self.name, "a function is not what it was: reopen the drive")
                }
                Err(error) => tracing::error!(drive = self.name, %error, "a function cannot be started"),
            }
            self.wait(backoff);
        }
    }

    fn announce(&self, process: &Process, link: Link) {
        if link.version < *VERSIONS.end() {
            tracing::info!(
                drive = self.name,
                version = link.version,
                "a function was built for earlier rings"
            );
        }
        let counts = &self.instance.counts;
        counts.starts.increment();
        counts.process.store(process.child.as_ref().map_or(0, Child::id), Relaxed);
        counts.up.store(true, Relaxed);
        self.instance.offer(self.number, link);
    }

    /// A while, which is longer the next time, or until there is news.
    fn wait(&self, backoff: &mut Duration) {
        let limit = timespec(*backoff);
        *backoff = (*backoff * 2).min(BACKOFF[1]);
        let bell = self.instance.supervisor_eventfd();
        let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&limit));
        self.instance.free_disposed();
    }
}
