//! Thread that processes authentication messages. They contain numbers of thousands of digits, for which no
//! reactor has the time.
//!
//! Its work is in proportion to the open connections, and shared by address. Messages of closed connections
//! are skipped.

use super::fair_queue::FairQueue;
use crate::directory::Directory;
use sluice_nvme_auth::{Controller, Entropy, Progress};
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};

/// Capacity of the channel to the thread. The listener cannot deliver as many connections within a tenth of a
/// second, so no host can fill it.
const ARRIVING_MAX: usize = 4096;

/// Authentication message, with the session that processes it.
#[derive(Debug)]
pub(super) struct AuthJob {
    pub(super) subnqn: Arc<str>,
    /// Address that the connection comes from.
    pub(super) origin: IpAddr,
    /// Liveness token of the connection's [`AuthState`](super::state::AuthState); dead when the
    /// connection is closed.
    pub(super) liveness: Weak<()>,
    pub(super) session: Box<Controller>,
    pub(super) message: Vec<u8>,
}

/// Result of a message.
#[derive(Debug)]
pub(crate) struct AuthResult {
    pub(crate) liveness: Weak<()>,
    pub(crate) session: Box<Controller>,
    /// Progress of the transaction; None if the message was dropped unprocessed.
    pub(crate) progress: Option<Progress>,
}

/// Sending end of the channel to the thread. The thread ends with the last one.
#[derive(Clone, Debug)]
pub(crate) struct AuthWorker(SyncSender<AuthJob>);

impl AuthWorker {
    /// Starts the thread, which sends its results through `directory`.
    pub(crate) fn start(directory: Weak<Directory>) -> io::Result<Self> {
        let (worker, jobs) = Self::open();
        std::thread::Builder::new().name("nvme-auth".to_owned()).spawn(move || run(&jobs, &directory))?;
        Ok(worker)
    }

    /// Creates both ends of the channel.
    pub(super) fn open() -> (Self, Receiver<AuthJob>) {
        let (sender, jobs) = sync_channel(ARRIVING_MAX);
        (Self(sender), jobs)
    }

    /// Takes a message without blocking. Returns the session if the channel is full or closed.
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
            queue.put(job.origin, job.liveness.clone(), job);
        }
        // Bounded, since queued jobs wait meanwhile.
        for job in jobs.try_iter().take(ARRIVING_MAX) {
            if let Some(job) = queue.put(job.origin, job.liveness.clone(), job) {
                tracing::warn!(peer = %job.origin, "too many queues are to be authenticated at once");
                report(job, |_, _| None, directory);
            }
        }
        if let Some(job) = queue.next() {
            report(job, look, directory);
        }
    }
}

/// Processes a message. Returns None if there are no random numbers.
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
    let AuthJob { subnqn, liveness, mut session, message, .. } = job;
    let progress = look(&mut session, &message);
    if let Some(directory) = directory.upgrade() {
        directory.report(&subnqn, AuthResult { liveness, session, progress });
    }
}
