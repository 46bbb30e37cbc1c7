//! What an operator wants of a function: a text on its way there, and the answer.

use super::arena::Buffer;
use super::entry;
use super::layer::Uif;
use super::peer::Peer;
use super::start::{Leaving, Readiness};
use sluice_command::Lane;
use sluice_uif::abi::{CONTROL_BYTES, Reply, Submission, disposition, flag, kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::SyncSender;

/// The low half of the tag of an order, where a command has the number of its slot.
pub(super) const ORDER: u32 = u32::MAX;

/// The answer, or in words why there is none.
pub(super) type OrderResult = Result<String, String>;

/// An order on its way to the layer.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) text: String,
    /// The drive is quiet until it is answered, or until so many nanoseconds from now have passed.
    pub(super) quiet_ns: Option<u64>,
    pub(super) stage: Arc<OrderState>,
    /// Has room for one answer: a reactor waits for nobody.
    pub(super) answer: SyncSender<OrderResult>,
}

/// Who decides what becomes of an order: the layer that gives it to the function, or the operator who does not
/// wait any longer. Whoever is first.
#[derive(Debug, Default)]
pub(super) struct OrderState(AtomicBool);

impl OrderState {
    /// True for the first.
    pub(super) fn decide(&self) -> bool {
        !self.0.swap(true, SeqCst)
    }
}

/// An order that the function has.
#[derive(Debug)]
pub(super) struct ActiveOrder {
    tag: u64,
    buffer: Buffer,
    /// When it must have answered, because the drive is quiet no longer.
    until_ns: Option<u64>,
    answer: SyncSender<OrderResult>,
}

impl Uif {
    /// Gives the function the next order, if it can take one.
    pub(super) fn give_order(&mut self, lane: &mut Lane<'_>) {
        let can_take = !matches!(self.readiness, Readiness::Starting { .. });
        if self.active_order.is_some()
            || !can_take
            || self.leaving != Leaving::No
            || matches!(self.peer, Peer::Absent)
            || !self.instance.has_orders()
        {
            return;
        }
        let Some(arena) = &mut self.arena else { return };
        let Some(buffer) = arena.take(CONTROL_BYTES) else { return };
        let wanted = |order: &Order| !self.peer.is_first_version() && order.stage.decide();
        let Some(order) = std::iter::from_fn(|| self.instance.take_order()).find(wanted) else {
            return arena.scrub(buffer);
        };
        arena.write(&buffer, order.text.as_bytes());
        self.orders = self.orders.wrapping_add(1);
        let tag = u64::from(self.orders) << 32 | u64::from(ORDER);
        let entry = Submission {
            tag,
            kind: kind::CONTROL,
            flags: if order.quiet_ns.is_some() { flag::QUIET } else { 0 },
            data_offset: buffer.offset() as u32,
            data_length: order.text.len().min(CONTROL_BYTES) as u32,
            ..Submission::default()
        };
        // A function in this process cannot be ended, and what it does is right only while the drive is
        // quiet: it keeps the order, and its buffer, until it answers. Who asked waits longer for it, and the
        // drive's own limit is the last: whether it is still quiet then, the function has to see.
        let quiet_ns = order.quiet_ns.filter(|_| matches!(self.peer, Peer::External(_)));
        let until_ns = quiet_ns.map(|quiet_ns| lane.now_ns().saturating_add(quiet_ns));
        self.active_order = Some(ActiveOrder { tag, buffer, until_ns, answer: order.answer });
        self.send_entry(entry);
    }

    /// The function answers an order. It may be anything.
    pub(super) fn order_answered(&mut self, reply: &Reply) {
        let expected = |given: &mut ActiveOrder| given.tag == reply.tag;
        let Some(given) = self.active_order.take_if(expected) else {
            return self.instance.counts.stray.increment();
        };
        let text = match (&self.arena, reply.disposition) {
            (Some(arena), disposition::FINISH) if reply.length <= CONTROL_BYTES as u64 => {
                Some(arena.read(&given.buffer, reply.length as usize))
            }
            _ => None,
        };
        let answer = match text {
            Some(text) if entry::status(reply).is_success() => Ok(text),
            Some(text) => Err(text),
            None => {
                self.instance.counts.invalid.increment();
                Err("its answer makes no sense".to_owned())
            }
        };
        self.end_order(given, answer);
    }

    /// The function is gone.
    pub(super) fn order_lost(&mut self) {
        if let Some(given) = self.active_order.take() {
            self.end_order(given, Err("it went before it had answered".to_owned()));
        }
    }

    fn end_order(&mut self, given: ActiveOrder, answer: OrderResult) {
        self.give_back(given.buffer);
        // Whoever does not wait any more does not want to know.
        let _ = given.answer.try_send(answer);
    }

    /// When a function that was told while the drive is quiet must have answered.
    pub(super) fn quiet_until_ns(&self) -> Option<u64> {
        self.active_order.as_ref()?.until_ns
    }

    /// What the function does when the drive is quiet must be over when it is not.
    pub(super) fn check_quiet(&mut self, lane: &mut Lane<'_>) {
        if self.quiet_until_ns().is_some_and(|until_ns| lane.now_ns() >= until_ns) {
            self.kill("it did not answer an order while the drive was quiet", lane);
        }
    }
}
