//! What a drive's layer and the keeper of its function share: the layer is on its reactor, the keeper on
//! a thread that may block.

use super::Translations;
use super::arena::Arena;
use super::control::Order;
use super::peer::Incoming;
use crate::counter::Counter;
use rustix::event::{EventfdFlags, eventfd};
use sluice_uif::Session;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Where a function is seated, and another after it.
#[derive(Debug)]
pub(super) struct InstanceSlot {
    /// For the log.
    drive: String,
    /// Who comes to the layer, with the number of the connection. Locked for a moment, by the layer only when
    /// it was told to look, and never waited for there.
    incoming: Mutex<Option<(u32, Incoming)>>,
    /// Connections that were numbered, from one.
    last_number: AtomicU32,
    /// The connection that the layer took last.
    connected_number: AtomicU32,
    /// Connections up to this one are over: by the keeper.
    ended: AtomicU32,
    /// Connections up to this one are to be ended: by the layer.
    killed: AtomicU32,
    /// The operator wants the function restarted: for the keeper.
    restart: AtomicBool,
    /// The same, for the layer: nothing fails of it, until the next connection.
    planned: AtomicBool,
    /// The function of this connection has nothing under way any more, and gets nothing: by the layer.
    quiesced: AtomicU32,
    /// The operator wants the seat empty: who is there leaves, and nobody else is taken.
    unloading: AtomicBool,
    /// Nobody will sit here any more, and nobody is to wait: by the operator.
    abandoned: AtomicBool,
    /// One of the two who decide whether a function in this process leaves was first: the layer, which tells
    /// it to stop, or the operator, who does not wait any longer.
    decided: AtomicBool,
    /// The seat is empty, and stays so: by the layer.
    empty: AtomicBool,
    /// What connections leave that are over, for the keeper: to give it back takes its time. Locked as the
    /// connection is.
    disposed: Mutex<Disposed>,
    /// Of operators, in the order they came. Locked as the connection is.
    orders: Mutex<VecDeque<Order>>,
    ordered: AtomicU32,
    /// The cache of the classifier, if there is news of it. Locked as the connection is.
    translations: Mutex<Option<Option<Box<dyn Translations>>>>,
    stop: AtomicBool,
    /// Tells the layer to look here.
    layer_eventfd: OwnedFd,
    /// Tells the keeper.
    supervisor_eventfd: OwnedFd,
    pub(super) counts: Counts,
}

/// Memory, and functions that were in this process.
#[derive(Debug, Default)]
struct Disposed {
    arenas: Vec<Arena>,
    sessions: Vec<Session>,
}

/// Written by the layer, but for the first three.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) starts: Counter,
    /// Of the process that was started; zero if none was.
    pub(super) process: AtomicU32,
    pub(super) up: AtomicBool,
    pub(super) ready: AtomicBool,
    /// Zero for none.
    pub(super) refusal: AtomicU16,
    /// The next Flush of a host fails for a loss that a function before this one was told of.
    pub(super) owes: AtomicBool,
    /// The same, or the function was told of a loss, and no host yet.
    pub(super) unreported_loss: AtomicBool,
    pub(super) sent: Counter,
    pub(super) replies: Counter,
    pub(super) requests: Counter,
    pub(super) stray: Counter,
    pub(super) invalid: Counter,
    pub(super) deaths: Counter,
    pub(super) timeouts: Counter,
    pub(super) failed: Counter,
    pub(super) waits: Counter,
    pub(super) rings: Counter,
    pub(super) waiting: Counter,
}

impl InstanceSlot {
    /// Of a function of this drive.
    pub(super) fn new(drive: &str) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            drive: drive.to_owned(),
            incoming: Mutex::default(),
            last_number: AtomicU32::new(0),
            connected_number: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            killed: AtomicU32::new(0),
            restart: AtomicBool::new(false),
            planned: AtomicBool::new(false),
            quiesced: AtomicU32::new(0),
            unloading: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            decided: AtomicBool::new(false),
            empty: AtomicBool::new(false),
            disposed: Mutex::default(),
            orders: Mutex::default(),
            ordered: AtomicU32::new(0),
            translations: Mutex::default(),
            stop: AtomicBool::new(false),
            layer_eventfd: eventfd(0, flags)?,
            supervisor_eventfd: eventfd(0, flags)?,
            counts: Counts::default(),
        })
    }

    pub(super) fn drive(&self) -> &str {
        &self.drive
    }

    /// A number for the next connection.
    pub(super) fn number(&self) -> u32 {
        self.last_number.fetch_add(1, SeqCst) + 1
    }

    /// Who comes next.
    pub(super) fn offer(&self, number: u32, incoming: impl Into<Incoming>) {
        *self.incoming.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, incoming.into()));
        signal(&self.layer_eventfd);
    }

    /// Layer: who comes next, if anybody does. One who is just being put here is announced again.
    pub(super) fn take(&self) -> Option<(u32, Incoming)> {
        self.incoming.try_lock().ok()?.take()
    }

    /// Operator: whoever is to come does not. Nobody does while the seat is to be empty.
    pub(super) fn withdraw(&self) {
        drop(self.incoming.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Supervisor: a connection is over.
    pub(super) fn end(&self, number: u32) {
        self.ended.store(number, SeqCst);
        signal(&self.layer_eventfd);
    }

    pub(super) fn has_ended(&self, number: u32) -> bool {
        self.ended.load(SeqCst) >= number
    }

    /// Layer: the function does not keep to the rules, or does not answer.
    pub(super) fn kill(&self, number: u32) {
        self.killed.store(number, SeqCst);
        signal(&self.supervisor_eventfd);
    }

    pub(super) fn is_killed(&self, number: u32) -> bool {
        self.killed.load(SeqCst) >= number
    }

    /// Operator: end the function and start it again.
    pub(super) fn request_restart(&self) {
        // In this order: a connection that begins meanwhile is planned to end, or is the one that was wanted.
        self.restart.store(true, SeqCst);
        self.planned.store(true, SeqCst);
        signal(&self.layer_eventfd);
        signal(&self.supervisor_eventfd);
    }

    /// A restart was asked for, and is yet to come.
    pub(super) fn restart_requested(&self) -> bool {
        self.restart.load(SeqCst)
    }

    /// Layer: the function can be ended, and nobody notices.
    pub(super) fn set_quiesced(&self, number: u32) {
        self.quiesced.store(number, SeqCst);
        signal(&self.supervisor_eventfd);
    }

    pub(super) fn has_quiesced(&self, number: u32) -> bool {
        self.quiesced.load(SeqCst) >= number
    }

    /// Layer: nobody needs this memory any more.
    pub(super) fn dispose(&self, arena: Arena) {
        if let Ok(mut disposed) = self.disposed.try_lock() {
            disposed.arenas.push(arena);
        }
        signal(&self.supervisor_eventfd);
    }

    /// Layer: nobody needs this function any more.
    pub(super) fn dispose_session(&self, session: Session) {
        if let Ok(mut disposed) = self.disposed.try_lock() {
            disposed.sessions.push(session);
        }
    }

    /// Operator: the seat is to be empty.
    pub(super) fn unload(&self) {
        self.decided.store(false, SeqCst);
        self.empty.store(false, SeqCst);
        self.unloading.store(true, SeqCst);
        signal(&self.layer_eventfd);
    }

    /// Operator: commands pass from now on.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        signal(&self.layer_eventfd);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(SeqCst)
    }

    pub(super) fn is_unloading(&self) -> bool {
        self.unloading.load(SeqCst)
    }

    /// True for the first of the two who decide whether a function in this process leaves.
    pub(super) fn decide(&self) -> bool {
        !self.decided.swap(true, SeqCst)
    }

    /// Layer: nobody is there any more.
    pub(super) fn set_empty(&self) {
        self.empty.store(true, SeqCst);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.empty.load(SeqCst)
    }

    /// Operator: somebody may be there. Until then, what waits does so as when a restart was planned.
    pub(super) fn load(&self) {
        // In this order, of which `is_planned` makes use.
        if self.is_empty() {
            self.planned.store(true, SeqCst);
        }
        self.unloading.store(false, SeqCst);
        signal(&self.layer_eventfd);
    }

    /// True if the function that the layer took last has nothing under way, or is gone.
    pub(super) fn is_quiesced(&self) -> bool {
        let connected_number = self.connected_number();
        self.is_empty() || self.has_quiesced(connected_number) || self.has_ended(connected_number)
    }

    /// Supervisor: true once for every time that a restart was asked for.
    pub(super) fn take_restart(&self) -> bool {
        self.restart.swap(false, SeqCst)
    }

    /// Layer: the end of the function is planned.
    pub(super) fn is_planned(&self) -> bool {
        // In this order: an operator's welcome plans first, and then no longer has the seat vacated. Seen the
        // other way round, between the two, neither would be so.
        self.is_unloading() || self.planned.load(SeqCst)
    }

    /// The connection that the layer took last.
    pub(super) fn connected_number(&self) -> u32 {
        self.connected_number.load(SeqCst)
    }

    /// Layer: it is there again. One that was on its way when a restart was asked for ends as planned.
    pub(super) fn connected(&self, number: u32) {
        self.connected_number.store(number, SeqCst);
        // In this order: what an operator plans between the two is not lost, for the restart is wanted first.
        self.planned.store(false, SeqCst);
        if self.restart_requested() {
            self.planned.store(true, SeqCst);
        }
    }

    /// Operator: an order for the function.
    pub(super) fn order(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
        self.ordered.fetch_add(1, SeqCst);
        signal(&self.layer_eventfd);
    }

    /// Layer: there are orders that nobody has taken.
    pub(super) fn has_orders(&self) -> bool {
        self.ordered.load(SeqCst) > 0
    }

    /// Layer: the next one. One that is just being put here is announced again.
    pub(super) fn take_order(&self) -> Option<Order> {
        let order = self.orders.try_lock().ok()?.pop_front()?;
        self.ordered.fetch_sub(1, SeqCst);
        Some(order)
    }

    /// Operator: the classifier's cache, or that there is none any more.
    pub(super) fn set_translations(&self, translations: Option<Box<dyn Translations>>) {
        *self.translations.lock().unwrap_or_else(PoisonError::into_inner) = Some(translations);
        signal(&self.layer_eventfd);
    }

    /// Layer: the same, if it is news.
    pub(super) fn take_translations(&self) -> Option<Option<Box<dyn Translations>>> {
        self.translations.try_lock().ok()?.take()
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
        signal(&self.supervisor_eventfd);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// The keeper has stopped; another may come.
    pub(super) fn stopped(&self) {
        self.stop.store(false, SeqCst);
        self.restart.store(false, SeqCst);
    }

    /// What rings when the layer is to look here.
    pub(super) fn layer_eventfd(&self) -> BorrowedFd<'_> {
        self.layer_eventfd.as_fd()
    }

    /// What rings when the keeper is to look here.
    pub(super) fn supervisor_eventfd(&self) -> BorrowedFd<'_> {
        self.supervisor_eventfd.as_fd()
    }

    /// Supervisor, or an operator where there is none: takes the ring off the keeper's bell, and gives memory back.
    pub(super) fn free_disposed(&self) {
        drop(std::mem::take(&mut *self.disposed.lock().unwrap_or_else(PoisonError::into_inner)));
        let _ = rustix::io::read(&self.supervisor_eventfd, &mut [0; 8]);
    }
}

/// Both bells are ours alone and do not block; one that is full has been rung.
fn signal(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
