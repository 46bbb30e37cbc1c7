//! Authentication state of a connection whose host has a key. Before success only authentication commands are
//! served.

use super::worker::{AuthJob, AuthWorker};
use sluice_nvme::fabrics;
use sluice_nvme_auth::{Controller, Names, Terms, is_negotiate};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// Time that a host has to authenticate, in nanoseconds.
const LIMIT_NS: u64 = 30_000_000_000;

/// Time during which an unauthenticated host keeps its place, in nanoseconds. Authentication with the largest
/// group takes a fraction of it.
const GRACE_NS: u64 = 1_000_000_000;

/// Time that a host has to read why authentication failed, in nanoseconds.
const LINGER_NS: u64 = 5_000_000_000;

/// Transactions that a host may begin before it is authenticated: the first, and one retry.
const BEGINNINGS_MAX: u8 = 2;

/// Time without a new transaction after which an authenticated host may begin as many again, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct AuthState {
    /// Liveness token, dropped when the connection is closed. The worker skips messages of closed
    /// connections.
    liveness: Option<Arc<()>>,
    subnqn: Arc<str>,
    origin: IpAddr,
    worker: AuthWorker,
    /// Authentication session; None while the worker has it.
    session: Option<Box<Controller>>,
    /// Slot of the command that waits until the session is back.
    waiting: Option<u16>,
    /// Reply for the next Authentication Receive.
    reply: Option<Vec<u8>>,
    phase: Phase,
    /// Transactions that were begun, and when the last one was.
    begun: u8,
    begun_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not authenticated yet; closed at this time.
    Unauthenticated {
        until_ns: u64,
    },
    Authenticated,
    /// Authentication failed; closed at this time, if the host has not read the reply before.
    Failed {
        until_ns: u64,
    },
}

impl AuthState {
    /// Creates the state of a connection that comes from `origin`.
    pub(crate) fn new(names: Names, terms: Arc<Terms>, origin: IpAddr, worker: AuthWorker) -> Self {
        Self {
            liveness: Some(Arc::new(())),
            subnqn: names.subnqn.as_str().into(),
            origin,
            worker,
            session: Some(Box::new(Controller::new(names, terms))),
            waiting: None,
            reply: None,
            phase: Phase::Unauthenticated { until_ns: u64::MAX },
            begun: 0,
            begun_ns: 0,
        }
    }

    /// Creates the state of a connection whose host another process has authenticated. The host may authenticate
    /// again.
    pub(crate) fn authenticated(names: Names, terms: Arc<Terms>, origin: IpAddr, worker: AuthWorker) -> Self {
        Self { phase: Phase::Authenticated, ..Self::new(names, terms, origin, worker) }
    }

    /// Returns whether the host is authenticated, and no transaction is in progress.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.phase == Phase::Authenticated && self.session.is_some() && self.reply.is_none()
    }

    /// Returns whether `liveness` is the token of this state, and the connection is not closed.
    pub(crate) fn has_token(&self, liveness: &Weak<()>) -> bool {
        self.liveness.as_ref().is_some_and(|ours| Arc::as_ptr(ours) == liveness.as_ptr())
    }

    /// Drops the liveness token: the connection is closed, and results of the worker are no longer needed.
    pub(crate) fn abandon(&mut self) {
        self.liveness = None;
    }

    /// Starts the time limit. Returns AUTHREQ, for dword 0 of the completion of the Connect command.
    pub(crate) fn close(&mut self, now_ns: u64) -> u32 {
        self.phase = Phase::Unauthenticated { until_ns: now_ns.saturating_add(LIMIT_NS) };
        fabrics::AUTHENTICATION_REQUIRED
    }

    /// Returns why a host that disconnects now is unauthenticated. None if it passed, or failed and was
    /// logged.
    pub(crate) fn missing(&self, now_ns: u64) -> Option<&'static str> {
        match self.phase {
            Phase::Unauthenticated { until_ns } if until_ns <= now_ns => Some("the time for it was over"),
            Phase::Unauthenticated { .. } => Some("it went without a word, as one does that has no key"),
            Phase::Authenticated | Phase::Failed { .. } => None,
        }
    }

    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.phase != Phase::Authenticated
    }

    /// Returns when the connection is closed for lack of authentication. None once authenticated.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Unauthenticated { until_ns } | Phase::Failed { until_ns } => Some(until_ns),
            Phase::Authenticated => None,
        }
    }

    /// Returns the time from which another host may take the place. None once authenticated.
    pub(crate) fn evictable_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Unauthenticated { until_ns } => Some(until_ns - (LIMIT_NS - GRACE_NS)),
            Phase::Failed { .. } => Some(0),
            Phase::Authenticated => None,
        }
    }

    /// Returns whether the host may begin a transaction, and counts it if so.
    fn may_begin(&mut self, now_ns: u64) -> bool {
        let is_over = now_ns >= self.begun_ns.saturating_add(INTERVAL_NS);
        if self.phase == Phase::Authenticated && is_over {
            self.begun = 0;
        }
        let may = self.begun < BEGINNINGS_MAX;
        if may {
            (self.begun, self.begun_ns) = (self.begun + 1, now_ns);
        }
        may
    }

    /// Submits a message, brought by the command in `slot`, to the worker. The command is completed with the
    /// result.
    ///
    /// Returns false if it is not the host's turn, if the host begins too often, or if the worker cannot take
    /// it.
    pub(crate) fn submit(&mut self, slot: u16, message: Vec<u8>, now_ns: u64) -> bool {
        let Some(liveness) = self.liveness.as_ref().map(Arc::downgrade) else { return false };
        if matches!(self.phase, Phase::Failed { .. }) || self.session.is_none() {
            return false;
        }
        if is_negotiate(&message) && !self.may_begin(now_ns) {
            return false;
        }
        let Some(session) = self.session.take() else { return false };
        let job =
            AuthJob { subnqn: Arc::clone(&self.subnqn), origin: self.origin, liveness, session, message };
        match self.worker.take(job) {
            Ok(()) => {
                self.waiting = Some(slot);
                self.reply = None;
                true
            }
            Err(session) => {
                self.session = Some(session);
                false
            }
        }
    }

    /// Puts the session back. Returns the slot of the command that waited for it.
    pub(crate) fn resume(&mut self, session: Box<Controller>, reply: Option<Vec<u8>>) -> Option<u16> {
        self.session = Some(session);
        self.reply = reply;
        self.waiting.take()
    }

    pub(crate) fn pass(&mut self) {
        self.phase = Phase::Authenticated;
    }

    /// Marks authentication as failed, also for a host that was authenticated before. The connection ends
    /// with the reply.
    pub(crate) fn fail(&mut self, now_ns: u64) {
        self.phase = Phase::Failed { until_ns: now_ns.saturating_add(LINGER_NS) };
    }

    /// Returns whether authentication failed, and the host has read the reply.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Failed { .. }) && self.reply.is_none()
    }

    /// Takes the reply for the host, if it fits into `room` bytes.
    pub(crate) fn take_reply(&mut self, room: usize) -> Option<Vec<u8>> {
        self.reply.take_if(|reply| reply.len() <= room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_nvme_auth::{Key, Offer};
    use std::sync::mpsc::Receiver;

    const KEY: &str = "DHHC-1:00:TUxPTklIS0pFREdGQUBDQl1cX15ZWFtaVVRXVlFQU1J2NL99:";

    fn auth() -> (AuthState, Receiver<AuthJob>) {
        let names = Names { hostnqn: "nqn.host".to_owned(), subnqn: "nqn.drive".to_owned() };
        let host = Key::parse(KEY.as_bytes()).expect("a key");
        let terms = Arc::new(Terms { host, controller: None, offer: Offer::default() });
        let (worker, jobs) = AuthWorker::open();
        let mut auth = AuthState::new(names, terms, [10, 0, 0, 1].into(), worker);
        auth.close(0);
        (auth, jobs)
    }

    /// Submits a message and returns the session without progress. Returns false if the message is not taken.
    fn say(auth: &mut AuthState, jobs: &Receiver<AuthJob>, message: &[u8], now_ns: u64) -> bool {
        if !auth.submit(7, message.to_vec(), now_ns) {
            return false;
        }
        let job = jobs.try_recv().expect("it is with the worker");
        assert!(auth.has_token(&job.liveness));
        assert_eq!(auth.resume(job.session, None), Some(7));
        true
    }

    #[test]
    fn a_host_begins_anew_once_and_then_in_its_time() {
        let (mut auth, jobs) = auth();
        let say = |auth: &mut AuthState, message: &[u8], now_ns| say(auth, &jobs, message, now_ns);
        let (negotiate, reply) = ([0; 72], [1, 2, 0, 0, 0, 0]);
        assert!(say(&mut auth, &negotiate, 0) && say(&mut auth, &negotiate, 5));
        for now_ns in [5, INTERVAL_NS + 5, LIMIT_NS] {
            assert!(!say(&mut auth, &negotiate, now_ns));
        }
        assert!(say(&mut auth, &reply, 6), "what was begun goes on");
        auth.pass();
        assert!(!say(&mut auth, &negotiate, INTERVAL_NS + 4));
        for now_ns in [INTERVAL_NS + 5, 9 * INTERVAL_NS] {
            assert!(say(&mut auth, &negotiate, now_ns) && say(&mut auth, &negotiate, now_ns));
            assert!(!say(&mut auth, &negotiate, now_ns));
        }
    }

    #[test]
    fn nobody_waits_for_what_was_sent_on_a_connection_that_is_closed() {
        let (mut auth, jobs) = auth();
        assert!(auth.submit(7, vec![0; 72], 0));
        let job = jobs.try_recv().expect("it is with the worker");
        assert!(auth.has_token(&job.liveness));
        auth.abandon();
        assert_eq!(job.liveness.strong_count(), 0);
        assert!(!auth.has_token(&job.liveness) && !auth.submit(7, vec![0; 72], 0));
    }
}
