//! Orders of an operator for a function: their way to the function, and the answer.

use super::arena::Buffer;
use super::entry;
use super::layer::Uif;
use super::local::Notice;
use super::peer::Peer;
use super::start::{Leaving, Readiness};
use sluice_command::Lane;
use sluice_uif::abi::{CONTROL_BYTES, Reply, Submission, disposition, flag, kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::SyncSender;

/// Low half of the tag of an order; a command has the number of its slot there.
pub(super) const ORDER: u32 = u32::MAX;

/// Answer, or the reason why there is none.
pub(super) type OrderResult = Result<String, String>;

/// Order on its way to the layer.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) text: String,
    /// Time from now in nanoseconds for which the drive is quiet, at most; it is quiet until the answer.
    pub(super) quiet_ns: Option<u64>,
    pub(super) stage: Arc<OrderState>,
    /// Channel with room for one answer, so that the reactor does not wait.
    pub(super) answer: SyncSender<OrderResult>,
}

/// Claim on an order. The first claimant decides: the layer, which sends the order, or the operator, whose
/// wait has timed out.
#[derive(Debug, Default)]
pub(super) struct OrderState(AtomicBool);

impl OrderState {
    /// Returns true for the first caller.
    pub(super) fn decide(&self) -> bool {
        !self.0.swap(true, SeqCst)
    }
}

/// Order that the function has.
#[derive(Debug)]
pub(super) struct ActiveOrder {
    tag: u64,
    /// Buffer for order and answer; none for a function in this process.
    buffer: Option<Buffer>,
    /// Time by which the function must have answered, because the drive is quiet no longer.
    until_ns: Option<u64>,
    answer: SyncSender<OrderResult>,
}

impl Uif {
    /// Sends the function the next order, if it can take one.
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
        match self.peer {
            Peer::Local(_) => self.give_local_order(),
            _ => self.send_order(lane),
        }
    }

    /// Takes the next order whose operator waits.
    fn next_order(&self) -> Option<Order> {
        let wanted = |order: &Order| !self.peer.is_first_version() && order.stage.decide();
        std::iter::from_fn(|| self.instance.take_order()).find(wanted)
    }

    /// Has a function in this process called with the next order. It cannot be killed, and its work for the
    /// order is right only while the drive is quiet. So it keeps the order until it answers, and the operator
    /// waits longer. The drive's own limit is the last: the function has to check whether the drive is still
    /// quiet then.
    fn give_local_order(&mut self) {
        let Some(order) = self.next_order() else { return };
        self.unsent.push_back(Notice::Order(order.text, order.quiet_ns.is_some()));
        self.active_order = Some(ActiveOrder { tag: 0, buffer: None, until_ns: None, answer: order.answer });
    }

    fn send_order(&mut self, lane: &Lane<'_>) {
        let Some(buffer) = self.arena.as_mut().and_then(|arena| arena.take(CONTROL_BYTES)) else { return };
        let (Some(order), Some(arena)) = (self.next_order(), &self.arena) else {
            return self.give_back(buffer);
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
        let until_ns = order.quiet_ns.map(|quiet_ns| lane.now_ns().saturating_add(quiet_ns));
        let buffer = Some(buffer);
        self.active_order = Some(ActiveOrder { tag, buffer, until_ns, answer: order.answer });
        if let Peer::External(external) = &mut self.peer {
            external.sender.push(&entry);
        }
    }

    /// Takes the answer of a function in this process.
    pub(super) fn order_done(&mut self, answer: OrderResult) {
        match self.active_order.take() {
            Some(given) => self.end_order(given, answer),
            None => self.instance.counts.stray.increment(),
        }
    }

    /// Takes the function's answer to an order. It may be anything.
    pub(super) fn order_answered(&mut self, reply: &Reply) {
        let expected = |given: &mut ActiveOrder| given.tag == reply.tag;
        let Some(given) = self.active_order.take_if(expected) else {
            return self.instance.counts.stray.increment();
        };
        let text = match (&self.arena, &given.buffer, reply.disposition) {
            (Some(arena), Some(buffer), disposition::FINISH) if reply.length <= CONTROL_BYTES as u64 => {
                Some(arena.read(buffer, reply.length as usize))
            }
            _ => None,
        };
        let answer = match text {
            Some(text) if entry::status(reply).is_success() => Ok(text),
            Some(text) => Err(text),
            None => {
                self.instance.counts.invalid.increment();
                Err("its answer is malformed".to_owned())
            }
        };
        self.end_order(given, answer);
    }

    /// Ends the order of a function that is gone.
    pub(super) fn order_lost(&mut self) {
        if let Some(given) = self.active_order.take() {
            self.end_order(given, Err("it went before it had answered".to_owned()));
        }
    }

    fn end_order(&mut self, given: ActiveOrder, answer: OrderResult) {
        given.buffer.into_iter().for_each(|buffer| self.give_back(buffer));
        // An operator whose wait has timed out has dropped the receiver.
        let _ = given.answer.try_send(answer);
    }

    /// Returns the time by which an order for a quiet drive must have been answered.
    pub(super) fn quiet_until_ns(&self) -> Option<u64> {
        self.active_order.as_ref()?.until_ns
    }

    /// Kills a function that has not answered such an order in time: its work must be over when the drive
    /// goes on.
    pub(super) fn check_quiet(&mut self, lane: &mut Lane<'_>) {
        if self.quiet_until_ns().is_some_and(|until_ns| lane.now_ns() >= until_ns) {
            self.kill("it did not answer an order while the drive was quiet", lane);
        }
    }
}
