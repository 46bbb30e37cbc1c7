//! Asynchronous side of the simulated storage: the order of answers.

use sluice_command::{NodeId, Ticket};
use sluice_functions::Random;
use std::sync::{Arc, Mutex};

/// Tickets that targets parked, answered in random order, as io_uring does for a file target.
///
/// The driver of the stack takes [`answer`](SimEngine::answer)s and delivers them to
/// [`Stack::event`](sluice_command::Stack::event). A command may take several answers until it is done, so
/// that others run between its parts and a power cut can happen there.
#[derive(Clone, Debug)]
pub struct SimEngine(Arc<Mutex<Engine>>);

#[derive(Debug)]
struct Engine {
    pending: Vec<Pending>,
    /// Latest finished tickets, to be answered again by mistake.
    stale: Vec<(NodeId, Ticket)>,
    random: Random,
}

#[derive(Debug)]
struct Pending {
    node: NodeId,
    ticket: Ticket,
    /// Bytes of the request that were moved.
    done: u64,
}

/// Number of [`stale`](SimEngine::stale) tickets that are kept.
const STALE_MAX: usize = 32;

impl SimEngine {
    pub fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(Engine { pending: Vec::new(), stale: Vec::new(), random })))
    }

    /// Starts a command that a target parked: it is to be answered.
    pub fn start(&self, node: NodeId, ticket: Ticket) {
        self.0.lock().expect("not poisoned").pending.push(Pending { node, ticket, done: 0 });
    }

    /// Returns the bytes that were moved for this ticket; none if no answer is pending.
    pub(crate) fn done(&self, ticket: Ticket) -> Option<u64> {
        let engine = self.0.lock().expect("not poisoned");
        engine.pending.iter().find(|pending| pending.ticket == ticket).map(|pending| pending.done)
    }

    pub(crate) fn advance(&self, ticket: Ticket, bytes: u64) {
        let mut engine = self.0.lock().expect("not poisoned");
        if let Some(pending) = engine.pending.iter_mut().find(|pending| pending.ticket == ticket) {
            pending.done += bytes;
        }
    }

    /// Ends a command: it is not answered again, except by mistake.
    pub fn finish(&self, ticket: Ticket) {
        let engine = &mut *self.0.lock().expect("not poisoned");
        let Some(index) = engine.pending.iter().position(|pending| pending.ticket == ticket) else { return };
        let pending = engine.pending.swap_remove(index);
        if engine.stale.len() == STALE_MAX {
            engine.stale.remove(0);
        }
        engine.stale.push((pending.node, pending.ticket));
    }

    /// Returns any of the pending tickets, as an event of its node.
    pub fn answer(&self) -> Option<(NodeId, Ticket)> {
        let engine = &mut *self.0.lock().expect("not poisoned");
        let index = engine.random.below(engine.pending.len() as u64) as usize;
        engine.pending.get(index).map(|pending| (pending.node, pending.ticket))
    }

    /// Returns a ticket that was answered for the last time some while ago.
    pub fn stale(&self) -> Option<(NodeId, Ticket)> {
        let engine = &mut *self.0.lock().expect("not poisoned");
        let index = engine.random.below(engine.stale.len() as u64) as usize;
        engine.stale.get(index).copied()
    }

    pub fn pending(&self) -> usize {
        self.0.lock().expect("not poisoned").pending.len()
    }

    /// Drops all pending tickets, after a power cut or the end of the process.
    pub fn forget(&self) {
        let engine = &mut *self.0.lock().expect("not poisoned");
        engine.pending.clear();
        engine.stale.clear();
    }
}
