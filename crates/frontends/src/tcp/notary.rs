//! The thread that looks at what hosts send to prove who they are: numbers of thousands of digits, for which no
//! reactor has the time.

use super::connection::Connection;
use super::directory::Directory;
use sluice_nvme_auth::{Controller, Entropy, Progress};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};

/// Messages that wait. A connection has one at a time, so that nobody fills it alone.
const CASES_MAX: usize = 1024;

/// A message, and who is to look at it.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) subnqn: Arc<str>,
    /// Of the connection's gate.
    pub(super) number: u64,
    pub(super) session: Box<Controller>,
    pub(super) message: Vec<u8>,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) number: u64,
    pub(super) session: Box<Controller>,
    pub(super) progress: Progress,
}

impl Finding {
    /// It is of this connection.
    pub(super) fn is_of(&self, connection: &Connection) -> bool {
        connection.gate.as_ref().is_some_and(|gate| gate.is(self.number))
    }
}

/// A way to the thread, which ends when there is none any more.
#[derive(Clone, Debug)]
pub(super) struct Notary(SyncSender<Case>);

impl Notary {
    /// One that sends what it finds through `directory`.
    pub(super) fn start(directory: Weak<Directory>) -> io::Result<Self> {
        let (sender, cases) = sync_channel(CASES_MAX);
        std::thread::Builder::new().name("nvme-auth".to_owned()).spawn(move || run(&cases, &directory))?;
        Ok(Self(sender))
    }

    /// Takes a message, without waiting. Gives the session back if it cannot.
    pub(super) fn take(&self, case: Case) -> Result<(), Box<Controller>> {
        self.0.try_send(case).map_err(|error| match error {
            TrySendError::Full(case) | TrySendError::Disconnected(case) => case.session,
        })
    }
}

fn run(cases: &Receiver<Case>, directory: &Weak<Directory>) {
    for Case { subnqn, number, mut session, message } in cases {
        let entropy = match Entropy::draw() {
            Ok(entropy) => entropy,
            Err(error) => {
                tracing::error!(%error, "no host can prove who it is: there are no random numbers");
                continue;
            }
        };
        let progress = session.take(&message, entropy);
        let Some(directory) = directory.upgrade() else { return };
        directory.report(&subnqn, Finding { number, session, progress });
    }
}
