//! What a connection has to pass whose host has a key: until then nothing is served on it but authentication.

use super::notary::{Case, Notary};
use sluice_nvme::fabrics;
use sluice_nvme_auth::{Controller, Names, Terms};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long a host may take to prove who it is, in nanoseconds.
const PATIENCE_NS: u64 = 30_000_000_000;

/// How long the place that it has meanwhile is nobody else's. With the largest group it takes a fraction of that.
const GRACE_NS: u64 = 1_000_000_000;

/// How long one that did not may take to hear why, in nanoseconds.
const FAREWELL_NS: u64 = 5_000_000_000;

#[derive(Debug)]
pub(super) struct Gate {
    /// Another one for each connection that there ever was.
    number: u64,
    subnqn: Arc<str>,
    notary: Notary,
    /// None while it is with the notary.
    session: Option<Box<Controller>>,
    /// The command that waits until it is back.
    waiting: Option<u16>,
    /// What the host is to be told when it asks.
    reply: Option<Vec<u8>>,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It has to prove who it is until then.
    Barred {
        until_ns: u64,
    },
    Admitted,
    /// It could not, and is to hear so.
    Expelled {
        until_ns: u64,
    },
}

impl Gate {
    pub(super) fn new(names: Names, terms: Arc<Terms>, notary: Notary) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBERS.fetch_add(1, Relaxed),
            subnqn: names.subnqn.as_str().into(),
            notary,
            session: Some(Box::new(Controller::new(names, terms))),
            waiting: None,
            reply: None,
            standing: Standing::Barred { until_ns: u64::MAX },
        }
    }

    pub(super) fn is(&self, number: u64) -> bool {
        self.number == number
    }

    /// The host's time begins. Returns AUTHREQ, for dword 0 of its Connect command's completion.
    pub(super) fn close(&mut self, now_ns: u64) -> u32 {
        self.standing = Standing::Barred { until_ns: now_ns.saturating_add(PATIENCE_NS) };
        fabrics::AUTHENTICATION_REQUIRED
    }

    pub(super) fn is_barred(&self) -> bool {
        self.standing != Standing::Admitted
    }

    /// When the connection is over if nothing comes.
    pub(super) fn until_ns(&self) -> Option<u64> {
        match self.standing {
            Standing::Barred { until_ns } | Standing::Expelled { until_ns } => Some(until_ns),
            Standing::Admitted => None,
        }
    }

    /// When its place is for whoever wants it; never that of one that is let in.
    pub(super) fn gives_way_ns(&self) -> Option<u64> {
        match self.standing {
            Standing::Barred { until_ns } => Some(until_ns - (PATIENCE_NS - GRACE_NS)),
            Standing::Expelled { .. } => Some(0),
            Standing::Admitted => None,
        }
    }

    /// Has a message looked at that command `slot` brought, which is to be answered then. False if it is not
    /// the host's turn, or there is nobody to look at it.
    pub(super) fn submit(&mut self, slot: u16, message: Vec<u8>) -> bool {
        if matches!(self.standing, Standing::Expelled { .. }) {
            return false;
        }
        let Some(session) = self.session.take() else { return false };
        let case = Case { subnqn: Arc::clone(&self.subnqn), number: self.number, session, message };
        match self.notary.take(case) {
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
