//! The thread that looks at what hosts send to prove who they are: numbers of thousands of digits, for which no
//! reactor has the time.
//!
//! What it takes is in proportion to the connections that are there, and shared by address: what was sent on a
//! connection that is closed is not looked at.

use super::connection::Connection;
use super::directory::Directory;
use super::fair_queue::FairQueue;
use sluice_nvme_auth::{Controller, Entropy, Progress};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};

/// Messages that come while one is looked at: more than the thread that lets hosts in can bring connections in a
/// tenth of a second, so that nobody fills it.
const ARRIVING_MAX: usize = 4096;

/// A message, and who is to look at it.
#[derive(Debug)]
pub(super) struct AuthJob {
    pub(super) subnqn: Arc<str>,
    /// Where the connection comes from.
    pub(super) origin: IpAddr,
    /// Of the connection's gate: gone when nobody waits any more.
    pub(super) life: Weak<()>,
    pub(super) session: Box<Controller>,
    pub(super) message: Vec<u8>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct AuthResult {
    pub(super) life: Weak<()>,
    pub(super) session: Box<Controller>,
    /// None if it was not looked at, and will not be.
    pub(super) progress: Option<Progress>,
}

impl AuthResult {
    /// It is of this connection.
    pub(super) fn is_of(&self, connection: &Connection) -> bool {
        connection.auth.as_ref().is_some_and(|auth| auth.lives(&self.life))
    }
}

/// A way to the thread, which ends when there is none any more.
#[derive(Clone, Debug)]
pub(super) struct AuthWorker(SyncSender<AuthJob>);

impl AuthWorker {
    /// One that sends what it finds through `directory`.
    pub(super) fn start(directory: Weak<Directory>) -> io::Result<Self> {
        let (worker, jobs) = Self::open();
        std::thread::Builder::new().name("nvme-auth".to_owned()).spawn(move || run(&jobs, &directory))?;
        Ok(worker)
    }

    /// The way, and its end.
    pub(super) fn open() -> (Self, Receiver<AuthJob>) {
        let (sender, jobs) = sync_channel(ARRIVING_MAX);
        (Self(sender), jobs)
    }

    /// Takes a message, without waiting. Gives the session back if it cannot.
    pub(super) fn take(&self, job: AuthJob) -> Result<(), Box<Controller>> {
        self.0.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job.session,
        })
    }
}

fn run(jobs: &Receiver<AuthJob>, directory: &Weak<Directory>) {
    let mut queue = FairQueue::new();
    loop {
        if queue.is_empty() {
            let Ok(job) = jobs.recv() else { return };
            queue.put(job.origin, job.life.clone(), job);
        }
        // Not for ever: somebody waits.
        for job in jobs.try_iter().take(ARRIVING_MAX) {
            if let Some(job) = queue.put(job.origin, job.life.clone(), job) {
                tracing::warn!(peer = %job.origin, "too many queues are to be authenticated at once");
                report(job, |_, _| None, directory);
            }
        }
        if let Some(job) = queue.next() {
            report(job, look, directory);
        }
    }
}

/// None if it cannot be looked at.
fn look(session: &mut Controller, message: &[u8]) -> Option<Progress> {
    match Entropy::draw() {
        Ok(entropy) => Some(session.take(message, entropy)),
        Err(error) => {
            tracing::error!(%error, "no host can prove who it is: there are no random numbers");
            None
        }
    }
}

fn report(
    job: AuthJob,
    look: impl FnOnce(&mut Controller, &[u8]) -> Option<Progress>,
    directory: &Weak<Directory>,
) {
    let AuthJob { subnqn, life, mut session, message, .. } = job;
    let progress = look(&mut session, &message);
    if let Some(directory) = directory.upgrade() {
        directory.report(&subnqn, AuthResult { life, session, progress });
    }
}
