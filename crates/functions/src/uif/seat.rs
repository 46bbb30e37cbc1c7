//! What a drive's layer and the keeper of its function share: the layer is on its reactor, the keeper on
//! a thread that may block.

use super::Translations;
use super::arena::Arena;
use super::control::Order;
use super::peer::Comer;
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
pub(super) struct Seat {
    /// For the log.
    drive: String,
    /// Who comes to the layer, with the number of the connection. Locked for a moment, by the layer only when
    /// it was told to look, and never waited for there.
    arriving: Mutex<Option<(u32, Comer)>>,
    /// Connections that were numbered, from one.
    numbered: AtomicU32,
    /// The connection that the layer took last.
    seated: AtomicU32,
    /// Connections up to this one are over: by the keeper.
    over: AtomicU32,
    /// Connections up to this one are to be ended: by the layer.
    condemned: AtomicU32,
    /// The operator wants the function restarted: for the keeper.
    restart: AtomicBool,
    /// The same, for the layer: nothing fails of it, until the next connection.
    planned: AtomicBool,
    /// The function of this connection has nothing under way any more, and gets nothing: by the layer.
    left: AtomicU32,
    /// The operator wants the seat empty: who is there leaves, and nobody else is taken.
    vacating: AtomicBool,
    /// Nobody will sit here any more, and nobody is to wait: by the operator.
    abandoned: AtomicBool,
    /// One of the two who decide whether a function in this process leaves was first: the layer, which tells
    /// it to stop, or the operator, who does not wait any longer.
    decided: AtomicBool,
    /// The seat is empty, and stays so: by the layer.
    vacant: AtomicBool,
    /// What connections leave that are over, for the keeper: to give it back takes its time. Locked as the
    /// connection is.
    graves: Mutex<Graves>,
    /// Of operators, in the order they came. Locked as the connection is.
    orders: Mutex<VecDeque<Order>>,
    ordered: AtomicU32,
    /// The cache of the classifier, if there is news of it. Locked as the connection is.
    translations: Mutex<Option<Option<Box<dyn Translations>>>>,
    stop: AtomicBool,
    /// Tells the layer to look here.
    to_layer: OwnedFd,
    /// Tells the keeper.
    to_keeper: OwnedFd,
    pub(super) counts: Counts,
}

/// Memory, and functions that were in this process.
#[derive(Debug, Default)]
struct Graves {
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
    pub(super) doubtful: AtomicBool,
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

impl Seat {
    /// Of a function of this drive.
    pub(super) fn new(drive: &str) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            drive: drive.to_owned(),
            arriving: Mutex::default(),
            numbered: AtomicU32::new(0),
            seated: AtomicU32::new(0),
            over: AtomicU32::new(0),
            condemned: AtomicU32::new(0),
            restart: AtomicBool::new(false),
            planned: AtomicBool::new(false),
            left: AtomicU32::new(0),
            vacating: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            decided: AtomicBool::new(false),
            vacant: AtomicBool::new(false),
            graves: Mutex::default(),
            orders: Mutex::default(),
            ordered: AtomicU32::new(0),
            translations: Mutex::default(),
            stop: AtomicBool::new(false),
            to_layer: eventfd(0, flags)?,
            to_keeper: eventfd(0, flags)?,
            counts: Counts::default(),
        })
    }

    pub(super) fn drive(&self) -> &str {
        &self.drive
    }

    /// A number for the next connection.
    pub(super) fn number(&self) -> u32 {
        self.numbered.fetch_add(1, SeqCst) + 1
    }

    /// Who comes next.
    pub(super) fn arrive(&self, number: u32, comer: impl Into<Comer>) {
        *self.arriving.lock().unwrap_or_else(PoisonError::into_inner) = Some((number, comer.into()));
        ring(&self.to_layer);
    }

    /// Layer: who comes next, if anybody does. One who is just being put here is announced again.
    pub(super) fn take(&self) -> Option<(u32, Comer)> {
        self.arriving.try_lock().ok()?.take()
    }

    /// Operator: whoever is to come does not. Nobody does while the seat is to be empty.
    pub(super) fn turn_away(&self) {
        drop(self.arriving.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Keeper: a connection is over.
    pub(super) fn end(&self, number: u32) {
        self.over.store(number, SeqCst);
        ring(&self.to_layer);
    }

    pub(super) fn is_over(&self, number: u32) -> bool {
        self.over.load(SeqCst) >= number
    }

    /// Layer: the function does not keep to the rules, or does not answer.
    pub(super) fn condemn(&self, number: u32) {
        self.condemned.store(number, SeqCst);
        ring(&self.to_keeper);
    }

    pub(super) fn is_condemned(&self, number: u32) -> bool {
        self.condemned.load(SeqCst) >= number
    }

    /// Operator: end the function and start it again.
    pub(super) fn ask_for_restart(&self) {
        // In this order: a connection that begins meanwhile is planned to end, or is the one that was wanted.
        self.restart.store(true, SeqCst);
        self.planned.store(true, SeqCst);
        ring(&self.to_layer);
        ring(&self.to_keeper);
    }

    /// A restart was asked for, and is yet to come.
    pub(super) fn wants_restart(&self) -> bool {
        self.restart.load(SeqCst)
    }

    /// Layer: the function can be ended, and nobody notices.
    pub(super) fn leave(&self, number: u32) {
        self.left.store(number, SeqCst);
        ring(&self.to_keeper);
    }

    pub(super) fn has_left(&self, number: u32) -> bool {
        self.left.load(SeqCst) >= number
    }

    /// Layer: nobody needs this memory any more.
    pub(super) fn bury(&self, arena: Arena) {
        if let Ok(mut graves) = self.graves.try_lock() {
            graves.arenas.push(arena);
        }
        ring(&self.to_keeper);
    }

    /// Layer: nobody needs this function any more.
    pub(super) fn bury_session(&self, session: Session) {
        if let Ok(mut graves) = self.graves.try_lock() {
            graves.sessions.push(session);
        }
    }

    /// Operator: the seat is to be empty.
    pub(super) fn vacate(&self) {
        self.decided.store(false, SeqCst);
        self.vacant.store(false, SeqCst);
        self.vacating.store(true, SeqCst);
        ring(&self.to_layer);
    }

    /// Operator: commands pass from now on.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, SeqCst);
        ring(&self.to_layer);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(SeqCst)
    }

    pub(super) fn is_vacating(&self) -> bool {
        self.vacating.load(SeqCst)
    }

    /// True for the first of the two who decide whether a function in this process leaves.
    pub(super) fn decide(&self) -> bool {
        !self.decided.swap(true, SeqCst)
    }

    /// Layer: nobody is there any more.
    pub(super) fn vacated(&self) {
        self.vacant.store(true, SeqCst);
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.vacant.load(SeqCst)
    }

    /// Operator: somebody may be there. Until then, what waits does so as when a restart was planned.
    pub(super) fn welcome(&self) {
        // In this order, of which `is_planned` makes use.
        if self.is_vacant() {
            self.planned.store(true, SeqCst);
        }
        self.vacating.store(false, SeqCst);
        ring(&self.to_layer);
    }

    /// True if the function that the layer took last has nothing under way, or is gone.
    pub(super) fn has_none_at_work(&self) -> bool {
        let seated = self.seated();
        self.is_vacant() || self.has_left(seated) || self.is_over(seated)
    }

    /// Keeper: true once for every time that a restart was asked for.
    pub(super) fn is_to_restart(&self) -> bool {
        self.restart.swap(false, SeqCst)
    }

    /// Layer: the end of the function is planned.
    pub(super) fn is_planned(&self) -> bool {
        // In this order: an operator's welcome plans first, and then no longer has the seat vacated. Seen the
        // other way round, between the two, neither would be so.
        self.is_vacating() || self.planned.load(SeqCst)
    }

    /// The connection that the layer took last.
    pub(super) fn seated(&self) -> u32 {
        self.seated.load(SeqCst)
    }

    /// Layer: it is there again. One that was on its way when a restart was asked for ends as planned.
    pub(super) fn connected(&self, number: u32) {
        self.seated.store(number, SeqCst);
        // In this order: what an operator plans between the two is not lost, for the restart is wanted first.
        self.planned.store(false, SeqCst);
        if self.wants_restart() {
            self.planned.store(true, SeqCst);
        }
    }

    /// Operator: an order for the function.
    pub(super) fn order(&self, order: Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push_back(order);
        self.ordered.fetch_add(1, SeqCst);
        ring(&self.to_layer);
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
    pub(super) fn bring_translations(&self, translations: Option<Box<dyn Translations>>) {
        *self.translations.lock().unwrap_or_else(PoisonError::into_inner) = Some(translations);
        ring(&self.to_layer);
    }

    /// Layer: the same, if it is news.
    pub(super) fn take_translations(&self) -> Option<Option<Box<dyn Translations>>> {
        self.translations.try_lock().ok()?.take()
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
        ring(&self.to_keeper);
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
    pub(super) fn layer_bell(&self) -> BorrowedFd<'_> {
        self.to_layer.as_fd()
    }

    /// What rings when the keeper is to look here.
    pub(super) fn keeper_bell(&self) -> BorrowedFd<'_> {
        self.to_keeper.as_fd()
    }

    /// Keeper, or an operator where there is none: takes the ring off the keeper's bell, and gives memory back.
    pub(super) fn quiet(&self) {
        drop(std::mem::take(&mut *self.graves.lock().unwrap_or_else(PoisonError::into_inner)));
        let _ = rustix::io::read(&self.to_keeper, &mut [0; 8]);
    }
}

/// Both bells are ours alone and do not block; one that is full has been rung.
fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
