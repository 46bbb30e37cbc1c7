//! What a connection has to pass whose host has a key: until then nothing is served on it but authentication.

use super::auth_worker::{AuthJob, AuthWorker};
use sluice_nvme::fabrics;
use sluice_nvme_auth::{Controller, Names, Terms, is_negotiate};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// How long a host may take to prove who it is, in nanoseconds.
const PATIENCE_NS: u64 = 30_000_000_000;

/// How long the place that it has meanwhile is nobody else's. With the largest group it takes a fraction of that.
const GRACE_NS: u64 = 1_000_000_000;

/// How long one that did not may take to hear why, in nanoseconds.
const FAREWELL_NS: u64 = 5_000_000_000;

/// Transactions that a host may begin, until it is let in: it may begin anew once.
const BEGINNINGS_MAX: u8 = 2;

/// After how long without beginning one a host that is let in may begin as many again, in nanoseconds.
const INTERVAL_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct AuthState {
    /// Gone when its connection is closed: what was sent on it is not looked at then.
    life: Option<Arc<()>>,
    subnqn: Arc<str>,
    origin: IpAddr,
    worker: AuthWorker,
    /// None while it is with the notary.
    session: Option<Box<Controller>>,
    /// The command that waits until it is back.
    waiting: Option<u16>,
    /// What the host is to be told when it asks.
    reply: Option<Vec<u8>>,
    standing: Standing,
    /// Transactions that were begun, and when the last was.
    begun: u8,
    begun_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has to prove who it is until then.
    Unauthenticated {
        until_ns: u64,
    },
    Admitted,
    /// It could not, and is to hear so.
    Expelled {
        until_ns: u64,
    },
}

impl AuthState {
    /// For a host that comes from `origin`.
    pub(super) fn new(names: Names, terms: Arc<Terms>, origin: IpAddr, worker: AuthWorker) -> Self {
        Self {
            life: Some(Arc::new(())),
            subnqn: names.subnqn.as_str().into(),
            origin,
            worker,
            session: Some(Box::new(Controller::new(names, terms))),
            waiting: None,
            reply: None,
            standing: Standing::Unauthenticated { until_ns: u64::MAX },
            begun: 0,
            begun_ns: 0,
        }
    }

    /// What a case says of its life is of this gate, whose connection is not closed.
    pub(super) fn lives(&self, life: &Weak<()>) -> bool {
        self.life.as_ref().is_some_and(|ours| Arc::as_ptr(ours) == life.as_ptr())
    }

    /// Its connection is closed: nobody waits for what the notary finds.
    pub(super) fn abandon(&mut self) {
        self.life = None;
    }

    /// The host's time begins. Returns AUTHREQ, for dword 0 of its Connect command's completion.
    pub(super) fn close(&mut self, now_ns: u64) -> u32 {
        self.standing = Standing::Unauthenticated { until_ns: now_ns.saturating_add(PATIENCE_NS) };
        fabrics::AUTHENTICATION_REQUIRED
    }

    /// In what way a host that goes now has left out to prove who it is.
    pub(super) fn unproved(&self, now_ns: u64) -> Option<&'static str> {
        match self.standing {
            Standing::Unauthenticated { until_ns } if until_ns <= now_ns => Some("the time for it was over"),
            Standing::Unauthenticated { .. } => Some("it went without a word, as one does that has no key"),
            Standing::Admitted | Standing::Expelled { .. } => None,
        }
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        self.standing != Standing::Admitted
    }

    /// When the connection is over if nothing comes.
    pub(super) fn until_ns(&self) -> Option<u64> {
        match self.standing {
            Standing::Unauthenticated { until_ns } | Standing::Expelled { until_ns } => Some(until_ns),
            Standing::Admitted => None,
        }
    }

    /// When its place is for whoever wants it; never that of one that is let in.
    pub(super) fn gives_way_ns(&self) -> Option<u64> {
        match self.standing {
            Standing::Unauthenticated { until_ns } => Some(until_ns - (PATIENCE_NS - GRACE_NS)),
            Standing::Expelled { .. } => Some(0),
            Standing::Admitted => None,
        }
    }

    /// Whether the host may begin a transaction, which it does then.
    fn may_begin(&mut self, now_ns: u64) -> bool {
        let is_over = now_ns >= self.begun_ns.saturating_add(INTERVAL_NS);
        if self.standing == Standing::Admitted && is_over {
            self.begun = 0;
        }
        let may = self.begun < BEGINNINGS_MAX;
        if may {
            (self.begun, self.begun_ns) = (self.begun + 1, now_ns);
        }
        may
    }

    /// Has a message looked at that command `slot` brought, which is to be answered then. False if it is not
    /// the host's turn, if it begins too often, or there is nobody to look at it.
    pub(super) fn submit(&mut self, slot: u16, message: Vec<u8>, now_ns: u64) -> bool {
        let Some(life) = self.life.as_ref().map(Arc::downgrade) else { return false };
        if matches!(self.standing, Standing::Expelled { .. }) || self.session.is_none() {
            return false;
        }
        if is_negotiate(&message) && !self.may_begin(now_ns) {
            return false;
        }
        let Some(session) = self.session.take() else { return false };
        let job = AuthJob { subnqn: Arc::clone(&self.subnqn), origin: self.origin, life, session, message };
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

    /// The session is back. Returns the command that waited for it.
    pub(super) fn resume(&mut self, session: Box<Controller>, reply: Option<Vec<u8>>) -> Option<u16> {
        self.session = Some(session);
        self.reply = reply;
        self.waiting.take()
    }

    pub(super) fn admit(&mut self) {
        self.standing = Standing::Admitted;
    }

    /// The end, once the reply is delivered. Also of one that was let in before.
    pub(super) fn expel(&mut self, now_ns: u64) {
        self.standing = Standing::Expelled { until_ns: now_ns.saturating_add(FAREWELL_NS) };
    }

    /// Nothing is left to say to one that has to go.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.standing, Standing::Expelled { .. }) && self.reply.is_none()
    }

    /// What the host is to be told, if it is not longer than this.
    pub(super) fn take_reply(&mut self, room: usize) -> Option<Vec<u8>> {
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

    /// Submits a message, which comes to nothing. False if it is not taken.
    fn say(auth: &mut AuthState, jobs: &Receiver<AuthJob>, message: &[u8], now_ns: u64) -> bool {
        if !auth.submit(7, message.to_vec(), now_ns) {
            return false;
        }
        let job = jobs.try_recv().expect("it is with the worker");
        assert!(auth.lives(&job.life));
        assert_eq!(auth.resume(job.session, None), Some(7));
        true
    }

    #[test]
    fn a_host_begins_anew_once_and_then_in_its_time() {
        let (mut auth, jobs) = auth();
        let say = |auth: &mut AuthState, message: &[u8], now_ns| say(auth, &jobs, message, now_ns);
        let (negotiate, reply) = ([0; 72], [1, 2, 0, 0, 0, 0]);
        assert!(say(&mut auth, &negotiate, 0) && say(&mut auth, &negotiate, 5));
        for now_ns in [5, INTERVAL_NS + 5, PATIENCE_NS] {
            assert!(!say(&mut auth, &negotiate, now_ns));
        }
        assert!(say(&mut auth, &reply, 6), "what was begun goes on");
        auth.admit();
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
        assert!(auth.lives(&job.life));
        auth.abandon();
        assert_eq!(job.life.strong_count(), 0);
        assert!(!auth.lives(&job.life) && !auth.submit(7, vec![0; 72], 0));
    }
}
