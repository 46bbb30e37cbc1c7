//! State shared by a drive's layer and the supervisor of its function: the layer is on its reactor, the
//! supervisor on a thread that may block.

use super::Translations;
use super::arena::Arena;
use super::control::Order;
use super::peer::Incoming;
use crate::counter::Counter;
use rustix::event::{EventfdFlags, eventfd};
use sluice_uif::Direct;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Slot for the running instance of a function, and for the next one.
#[derive(Debug)]
pub(super) struct InstanceSlot {
    /// Name of the drive, for the log.
    drive: String,
    /// Next instance for the layer, with the number of its connection. Each lock is held for a moment; the
    /// layer locks only after a signal, and with `try_lock`.
    incoming: Mutex<Option<(u32, Incoming)>>,
    /// Number of the last connection, counted from one.
    last_number: AtomicU32,
    /// Number of the connection that the layer took last.
    connected_number: AtomicU32,
    /// Connections up to this number have ended; written by the supervisor.
    ended: AtomicU32,
    /// Connections up to this number are to be killed; written by the layer.
    killed: AtomicU32,
    /// Restart request of the operator, for the supervisor.
    restart: AtomicBool,
    /// Restart request of the operator, for the layer: until the next connection commands wait instead of
    /// failing.
    planned: AtomicBool,
    /// Connections up to this number have nothing in flight and get no more commands; written by the layer.
    quiesced: AtomicU32,
    /// Unload request of the operator: the running instance leaves, and no other is taken.
    unloading: AtomicBool,
    /// Set by the operator when no instance will come: commands pass the layer by.
    abandoned: AtomicBool,
    /// Decision whether a function in this process leaves. The first of two sets it: the layer, which sends
    /// STOP, or the operator, whose wait has timed out.
    decided: AtomicBool,
    /// Whether the slot is empty and stays so; written by the layer.
    empty: AtomicBool,
    /// Remains of connections that have ended, for the supervisor, because freeing them takes time. Locked
    /// like `incoming`.
    disposed: Mutex<Disposed>,
    /// Orders of operators, in the order of their arrival. Locked like `incoming`.
    orders: Mutex<VecDeque<Order>>,
    ordered: AtomicU32,
    /// New cache of the classifier, if it was replaced. Locked like `incoming`.
    translations: Mutex<Option<Option<Box<dyn Translations>>>>,
    stop: AtomicBool,
    /// Eventfd that has the layer look at the slot.
    layer_eventfd: OwnedFd,
    /// Eventfd that has the supervisor look at the slot.
    supervisor_eventfd: OwnedFd,
    pub(super) counts: Counts,
}

/// Arenas, and functions that were in this process.
#[derive(Debug, Default)]
struct Disposed {
    arenas: Vec<Arena>,
    functions: Vec<Direct>,
}

/// Counters; the first three are written by the control side, all others by the layer.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) starts: Counter,
    /// Process that was started; zero if none was.
    pub(super) process: AtomicU32,
    pub(super) up: AtomicBool,
    pub(super) ready: AtomicBool,
    /// Status with which the function refused; zero for none.
    pub(super) refusal: AtomicU16,
    /// Whether the next Flush of a host fails for a loss that was reported to an earlier instance only.
    pub(super) owes: AtomicBool,
    /// Whether `owes` is set, or a loss was reported to the function and to no host yet.
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
    /// Creates an empty slot for a function of this drive.
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

    /// Returns the number for the next connection.
    pub(super) fn number(&self) -> u32 {
        self.last_number.fetch_add(1, SeqCst) + 1
    }

    /// Offers the next instance to the layer.
    pub(super) fn offer(&self, number: u32, incoming: impl Into<Incoming>) {
        *self.incoming.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, incoming.into()));
        signal(&self.layer_eventfd);
    }

    /// Takes the next instance, if there is one. An instance that is just being offered is signalled once
    /// more. Called by the layer.
    pub(super) fn take(&self) -> Option<(u32, Incoming)> {
        self.incoming.try_lock().ok()?.take()
    }

    /// Withdraws the instance that was offered. The layer takes none while the slot is being unloaded. Called
    /// by an operator.
    pub(super) fn withdraw(&self) {
        drop(self.incoming.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Notes that a connection has ended. Called by the supervisor.
    pub(super) fn end(&self, number: u32) {
        self.ended.store(number, SeqCst);
        signal(&self.layer_eventfd);
    }

    pub(super) fn has_ended(&self, number: u32) -> bool {
        self.ended.load(SeqCst) >= number
    }

    /// Requests the end of a function that breaks the protocol or does not answer. Called by the layer.
    pub(super) fn kill(&self, number: u32) {
        self.killed.store(number, SeqCst);
        signal(&self.supervisor_eventfd);
    }

    pub(super) fn is_killed(&self, number: u32) -> bool {
        self.killed.load(SeqCst) >= number
    }

    /// Requests that the function is ended and started again. Called by an operator.
    pub(super) fn request_restart(&self) {
        // In this order: a connection that begins meanwhile is planned to end, or is the requested one.
        self.restart.store(true, SeqCst);
        self.planned.store(true, SeqCst);
        signal(&self.layer_eventfd);
        signal(&self.supervisor_eventfd);
    }

    /// Returns whether a restart was requested and has not come yet.
    pub(super) fn restart_requested(&self) -> bool {
        self.restart.load(SeqCst)
    }

    /// Notes that the function has nothing in flight and can be ended without an error. Called by the layer.
    pub(super) fn set_quiesced(&self, number: u32) {
        self.quiesced.store(number, SeqCst);
        signal(&self.supervisor_eventfd);
    }

    pub(super) fn has_quiesced(&self, number: u32) -> bool {
        self.quiesced.load(SeqCst) >= number
    }

    /// Hands over memory that is not used any more. Called by the layer.
    pub(super) fn dispose(&self, arena: Arena) {
        if let Ok(mut disposed) = self.disposed.try_lock() {
            disposed.arenas.push(arena);
        }
        signal(&self.supervisor_eventfd);
    }

    /// Hands over a function that is not used any more. Called by the layer.
    pub(super) fn dispose_function(&self, function: Direct) {
        if let Ok(mut disposed) = self.disposed.try_lock() {
            disposed.functions.push(function);
        }
    }

    /// Requests an empty slot. Called by an operator.
    pub(super) fn unload(&self) {
        self.decided.store(false, SeqCst);
        self.empty.store(false, SeqCst);
        self.unloading.store(true, SeqCst);
        signal(&self.layer_eventfd);
    }

    /// Has commands pass the layer from now on. Called by an operator.
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

    /// Returns true for the first of the two sides that decide whether a function in this process leaves.
    pub(super) fn decide(&self) -> bool {
        !self.decided.swap(true, SeqCst)
    }

    /// Notes that the slot is empty. Called by the layer.
    pub(super) fn set_empty(&self) {
        self.empty.store(true, SeqCst);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.empty.load(SeqCst)
    }

    /// Lets the layer take an instance. Until one is taken, commands wait as for a planned restart. Called by
    /// an operator.
    pub(super) fn load(&self) {
        // In this order, on which `is_planned` relies.
        if self.is_empty() {
            self.planned.store(true, SeqCst);
        }
        self.unloading.store(false, SeqCst);
        signal(&self.layer_eventfd);
    }

    /// Returns whether the instance that the layer took last has nothing in flight, or is gone.
    pub(super) fn is_quiesced(&self) -> bool {
        let connected_number = self.connected_number();
        self.is_empty() || self.has_quiesced(connected_number) || self.has_ended(connected_number)
    }

    /// Takes a restart request; returns true once for each. Called by the supervisor.
    pub(super) fn take_restart(&self) -> bool {
        self.restart.swap(false, SeqCst)
    }

    /// Returns whether the end of the function is planned. Called by the layer.
    pub(super) fn is_planned(&self) -> bool {
        // In this order: `load` sets `planned` first and clears `unloading` afterwards. Read in the other
        // order, a reader between the two stores would find neither set.
        self.is_unloading() || self.planned.load(SeqCst)
    }

    /// Returns the number of the connection that the layer took last.
    pub(super) fn connected_number(&self) -> u32 {
        self.connected_number.load(SeqCst)
    }

    /// Notes a new connection. An instance that was on its way when a restart was requested ends as planned.
    /// Called by the layer.
    pub(super) fn connected(&self, number: u32) {
        self.connected_number.store(number, SeqCst);
        // In this order: a request between the two stores is not lost, because `restart` is set first.
        self.planned.store(false, SeqCst);
        if self.restart_requested() {
            self.planned.store(true, SeqCst);
        }
    }

    /// Queues an order for the function. Called by an operator.
    pub(super) fn order(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
        self.ordered.fetch_add(1, SeqCst);
        signal(&self.layer_eventfd);
    }

    /// Returns whether orders are queued. Called by the layer.
    pub(super) fn has_orders(&self) -> bool {
        self.ordered.load(SeqCst) > 0
    }

    /// Takes the next order. An order that is just being queued is signalled once more. Called by the layer.
    pub(super) fn take_order(&self) -> Option<Order> {
        let order = self.orders.try_lock().ok()?.pop_front()?;
        self.ordered.fetch_sub(1, SeqCst);
        Some(order)
    }

    /// Replaces the classifier's cache, or takes it away. Called by an operator.
    pub(super) fn set_translations(&self, translations: Option<Box<dyn Translations>>) {
        *self.translations.lock().unwrap_or_else(PoisonError::into_inner) = Some(translations);
        signal(&self.layer_eventfd);
    }

    /// Takes the new cache, if it was replaced. Called by the layer.
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

    /// Prepares the slot for another supervisor after one has stopped.
    pub(super) fn stopped(&self) {
        self.stop.store(false, SeqCst);
        self.restart.store(false, SeqCst);
    }

    /// Returns the eventfd that is signalled when the layer is to look at the slot.
    pub(super) fn layer_eventfd(&self) -> BorrowedFd<'_> {
        self.layer_eventfd.as_fd()
    }

    /// Returns the eventfd that is signalled when the supervisor is to look at the slot.
    pub(super) fn supervisor_eventfd(&self) -> BorrowedFd<'_> {
        self.supervisor_eventfd.as_fd()
    }

    /// Resets the supervisor's eventfd, and frees what was handed over. Called by the supervisor, or by an
    /// operator where there is none.
    pub(super) fn free_disposed(&self) {
        drop(std::mem::take(&mut *self.disposed.lock().unwrap_or_else(PoisonError::into_inner)));
        let _ = rustix::io::read(&self.supervisor_eventfd, &mut [0; 8]);
    }
}

/// Signals an eventfd. Both eventfds are private to the daemon and do not block; a full one is signalled
/// already.
fn signal(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
