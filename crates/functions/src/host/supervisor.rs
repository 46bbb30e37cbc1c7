//! Supervisor of a function's process: starts it, notices its exit, starts the next.

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

/// Time that a function has to send its Welcome: it may have to derive a key first.
const WELCOME_LIMIT: Duration = Duration::from_secs(30);

/// First and longest pause between two attempts to start a function; the pause doubles.
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Lifetime from which an exit does not count as a failed start.
const STABLE: Duration = Duration::from_secs(10);

/// Pauses between attempts to start a function.
#[derive(Debug)]
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { next: BACKOFF[0] }
    }

    /// Returns the pause after a failed attempt.
    fn after_failure(&mut self) -> Duration {
        let longer = (self.next * 2).min(BACKOFF[1]);
        std::mem::replace(&mut self.next, longer)
    }

    /// Returns the pause after a process that ended after this time; none if the next one starts at once. A
    /// function that exits at its first command would be restarted without end.
    fn after_end(&mut self, end: &End, lived: Duration) -> Option<Duration> {
        if lived >= STABLE {
            *self = Self::new();
            return None;
        }
        (*end == End::Failed).then(|| self.after_failure())
    }
}

/// Origin of a function's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// The daemon starts the program, with a socket as its standard input.
    Program(Program),
    /// The process listens on this socket. It belongs to this user or to a trusted one.
    Socket(PathBuf, Option<u32>),
}

/// Program, and options of its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    /// User and group that the program runs as, if the daemon may switch.
    pub user: Option<(u32, u32)>,
    /// Variables of the program's environment, besides those of the daemon (`is_handed_on`).
    pub environment: Vec<(OsString, OsString)>,
}

/// Returns whether a variable of the daemon's environment configures how programs run. Other variables may be
/// secrets or paths of secrets.
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

/// Time that a function which is restarted has to finish its commands; unfinished ones begin anew.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Handle of the supervisor's thread. Dropping it ends the function.
#[derive(Debug)]
pub(super) struct Supervisor {
    instance: Arc<InstanceSlot>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts the function and the thread that supervises it. With `like`, the function must have these
    /// properties.
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
            // The thread cannot have panicked: that would have ended the process.
            let _ = thread.join();
        }
        self.instance.stopped();
    }
}

/// Standard error of a child.
struct StandardError {
    messages: Messages,
    limit: LineLimit,
    drive: String,
}

impl StandardError {
    /// Returns the pipe to wait for, if it may have more.
    fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.messages.pipe()
    }

    /// Logs the lines that are in the pipe.
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

/// Connected function process.
struct Process {
    /// Always set until the drop.
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
            // A function that was built earlier gets its own version.
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
            // Killed without a request to stop: the child may be stopped or not read its socket. It has
            // nothing to lose.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(stderr) = &mut self.messages {
            stderr.log_end();
        }
        if let Some(socket) = self.socket.take() {
            // The peer sees the end now. Unread descriptors that the peer sent are closed with the socket.
            let _ = shutdown(&socket, Shutdown::Both);
            self.deferred_close.close(vec![socket]);
        }
    }
}

/// Cause of a function's end.
#[derive(PartialEq, Eq)]
enum End {
    /// An exit, or a kill after a violation.
    Failed,
    /// A request of the operator, or the end of the drive.
    Requested,
}

struct Worker {
    name: String,
    launch: Launch,
    options: Options,
    /// Properties of the first instance; the drive is built on them.
    properties: Properties,
    instance: Arc<InstanceSlot>,
    /// Number of the present connection.
    number: u32,
    deferred_close: Arc<DeferredClose>,
}

impl Worker {
    fn run(mut self, first: Process) {
        let mut process = first;
        let mut backoff = Backoff::new();
        loop {
            let began = Instant::now();
            let end = self.watch(&mut process);
            self.instance.counts.up.store(false, Relaxed);
            self.instance.counts.process.store(0, Relaxed);
            // Before the layer is notified, so that the process no longer reads or writes the shared memory.
            drop(process);
            self.instance.end(self.number);
            if let Some(pause) = backoff.after_end(&end, began.elapsed()) {
                self.wait(pause);
            }
            process = match self.start_again(&mut backoff) {
                Some(next) => next,
                None => return,
            };
        }
    }

    /// Watches the function until it is gone or is to go.
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
                // A function sends nothing after its Welcome: the event is the end of the connection.
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

    /// Starts the next process, in as many attempts as it takes. Returns none if the drive ends meanwhile.
    fn start_again(&mut self, backoff: &mut Backoff) -> Option<Process> {
        loop {
            if self.instance.is_stopping() {
                return None;
            }
            // This start is the restart, if one was requested while there was no process.
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
            self.wait(backoff.after_failure());
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

    /// Waits for this time, or until the supervisor is signalled.
    fn wait(&self, pause: Duration) {
        let limit = timespec(pause);
        let bell = self.instance.supervisor_eventfd();
        let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&limit));
        self.instance.free_disposed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_process_lives_long_enough() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new();
        let short = STABLE - ms(1);
        for pause in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(backoff.after_end(&End::Failed, short), Some(ms(pause)));
        }
        assert_eq!(backoff.after_end(&End::Requested, short), None, "a restart by the operator");
        assert_eq!(backoff.after_end(&End::Failed, short), Some(ms(5000)));
        assert_eq!(backoff.after_end(&End::Failed, STABLE), None);
        assert_eq!(backoff.after_failure(), ms(50));
        assert_eq!(backoff.after_end(&End::Failed, Duration::ZERO), Some(ms(100)));
    }
}
