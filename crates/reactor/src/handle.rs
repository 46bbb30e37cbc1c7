//! The control plane's handle of a reactor.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use std::{error, fmt, io, process};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::config::ReactorConfig;
use crate::counters::{CounterCells, Counters, Progress};
use crate::local::Local;
use crate::mailbox::{Mail, Mailbox, MailboxFull, Returned};
use crate::reactor::{Reactor, Shared};

/// The longest time that a [`ReactorHandle::call`] waits.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Time that a call waits before it tries a full mailbox again.
pub(crate) const MAILBOX_RETRY: Duration = Duration::from_millis(1);

/// Reason for which a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactorGone {
    /// The reactor has ended, and the call was not run.
    Ended,
    /// No answer within [`CALL_LIMIT`]; the call may still be run.
    Silent,
    /// A call from the reactor's own thread could never be answered, and was not made.
    OwnThread,
}

impl fmt::Display for ReactorGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the reactor has ended"),
            Self::Silent => write!(f, "the reactor did not answer within {} s", CALL_LIMIT.as_secs()),
            Self::OwnThread => f.write_str("a reactor cannot call itself"),
        }
    }
}

impl error::Error for ReactorGone {}

/// A handle of a reactor: cheap to clone, for any thread. The reactor ends with [`stop`](Self::stop), or when
/// the last handle is dropped.
#[derive(Clone)]
pub struct ReactorHandle(Arc<Owner>);

struct Owner {
    shared: Arc<Shared>,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for ReactorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReactorHandle").field("thread", &self.0.thread_id).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.mailbox.request_stop();
    }
}

impl ReactorHandle {
    /// Starts a reactor on a thread of its own.
    ///
    /// # Errors
    /// There is no such core, or io_uring cannot be used; the message contains the remedy.
    pub fn start(config: ReactorConfig) -> io::Result<Self> {
        let mailbox = Mailbox::new(config.max_mails)?;
        let shared = Arc::new(Shared { mailbox, counters: Arc::new(CounterCells::default()) });
        let (report, started) = mpsc::sync_channel(1);
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(config.name.clone())
            .spawn(move || thread_main(&config, of_thread, &report))?;
        let thread_id = thread.thread().id();
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the reactor's thread ended at once")))?;
        Ok(Self(Arc::new(Owner { shared, thread_id, thread: Mutex::new(Some(thread)) })))
    }

    /// Queues a closure for the reactor to run, and wakes it if it sleeps.
    ///
    /// # Errors
    /// The mailbox is full or the reactor has ended; the closure is dropped.
    pub fn mail(&self, f: impl FnOnce(&mut Local) + Send + 'static) -> Result<(), MailboxFull> {
        self.0.shared.mailbox.send(Box::new(f)).map_err(|_| MailboxFull)
    }

    /// Queues a closure even if the mailbox is full; for a sender that is a reactor and cannot wait for room.
    /// Returns false if the receiver has ended; the closure is dropped.
    pub fn mail_always(&self, f: impl FnOnce(&mut Local) + Send + 'static) -> bool {
        self.forward(Box::new(f)).is_ok()
    }

    /// Runs a closure on the reactor and waits for its answer, [`CALL_LIMIT`] at most. For control threads;
    /// it blocks.
    ///
    /// # Errors
    /// There is no answer; see [`ReactorGone`] for whether the closure may still run.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Local) -> R + Send + 'static,
    ) -> Result<R, ReactorGone> {
        // The receiver is gone if the call has timed out.
        self.call_later(move |local, reply| drop(reply.send(f(local))))
    }

    /// Runs a closure that sends the answer itself, and waits for it as [`call`](Self::call) does.
    pub(crate) fn call_later<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Local, SyncSender<R>) + Send + 'static,
    ) -> Result<R, ReactorGone> {
        if self.is_here() {
            return Err(ReactorGone::OwnThread);
        }
        let deadline = Instant::now() + CALL_LIMIT;
        let (reply, answer) = mpsc::sync_channel(1);
        self.send_until(Box::new(move |local| f(local, reply)), deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        answer.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => ReactorGone::Silent,
            RecvTimeoutError::Disconnected => ReactorGone::Ended,
        })
    }

    /// Queues a mail even if the mailbox is full; for a sender that is a reactor.
    ///
    /// # Errors
    /// The receiver has ended; the mail is returned.
    pub(crate) fn forward(&self, mail: Mail) -> Result<(), Mail> {
        self.0
            .shared
            .mailbox
            .send_always(mail)
            .map_err(|(Returned::Full(mail) | Returned::Closed(mail))| mail)
    }

    /// Returns whether this is the reactor of the calling thread.
    pub(crate) fn is_here(&self) -> bool {
        thread::current().id() == self.0.thread_id
    }

    /// Returns whether both are the same reactor.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn send_until(&self, mut mail: Mail, deadline: Instant) -> Result<(), ReactorGone> {
        loop {
            match self.0.shared.mailbox.send(mail) {
                Ok(()) => return Ok(()),
                Err(Returned::Closed(_)) => return Err(ReactorGone::Ended),
                Err(Returned::Full(_)) if Instant::now() >= deadline => return Err(ReactorGone::Silent),
                Err(Returned::Full(returned)) => mail = returned,
            }
            thread::sleep(MAILBOX_RETRY);
        }
    }

    /// Returns the reactor's counters since its start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.shared.counters.snapshot()
    }

    /// Returns the reactor's progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.0.shared.counters.progress()
    }

    /// Ends the reactor and waits for its thread. The tasks are dropped after their operations in flight; a
    /// task that must finish its work does so before.
    pub fn stop(self) {
        self.0.shared.mailbox.request_stop();
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // The thread cannot have panicked: that would have ended the process.
            let _ = thread.join();
        }
    }
}

/// Ends the process if the thread unwinds: the kernel may be writing to memory that is being freed.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

fn thread_main(config: &ReactorConfig, shared: Arc<Shared>, report: &SyncSender<io::Result<()>>) {
    let _guard = AbortOnPanic;
    match bind(config).and_then(|()| Reactor::new(config, shared)) {
        Ok(reactor) => {
            let _ = report.send(Ok(()));
            reactor.run();
        }
        Err(error) => {
            let _ = report.send(Err(error));
        }
    }
}

fn bind(config: &ReactorConfig) -> io::Result<()> {
    let Some(core) = config.core else { return Ok(()) };
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    if core >= CpuSet::MAX_CPU {
        return Err(refused(format!("there is no core {core}")));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores)
        .map_err(|error| refused(format!("the reactor cannot be bound to core {core}: {error}")))
}
