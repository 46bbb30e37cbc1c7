//! Priority: drives share a device by the cost of their commands.
//!
//! Each layer has a line. Its *tag* is its virtual time: the cost of its commands so far, divided by its weight. A command
//! starts if the line is not ahead of the others of its class, and the [window](window) of the device has room. A line
//! is tried again when a command of its own ends, and after a time.

mod device;
mod options;
mod window;

pub use device::{Device, Devices};
pub use options::{PriorityClass, PriorityOptions};

use device::Place;
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Frame, Lane, Layer, TURN_BYTES, Ticket,
};
use sluice_nvme::Status;
use std::collections::VecDeque;
use std::sync::Arc;
use window::{cost, kind};

/// Pauses of a line with commands on the device: their ends are tries, too.
const PAUSES_IN_FLIGHT: u64 = 8;

/// Virtual time of a byte of cost, for a drive with a weight of one: small enough for years.
const TIME_OF_COST: [u64; 2] = [100, 16];

/// Share of a drive on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub class: PriorityClass,
    pub weight: u32,
}

/// Layer that starts commands in an order that is fair to the other drives of its device.
#[derive(Debug)]
pub struct Priority {
    place: Place,
    weight: u64,
    /// Virtual time of the next command.
    tag: u64,
    waiting: VecDeque<Waiting>,
    in_flight: usize,
    deadline_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: u32,
    cost: u64,
    bytes: u64,
}

impl Priority {
    /// Creates a layer with room for this many waiting commands. There may be more if a layer above divides commands.
    #[must_use]
    pub fn new(device: Arc<Device>, share: Share, held_max: usize) -> Self {
        Self {
            place: Place::new(device, share.class),
            weight: u64::from(share.weight.max(1)),
            tag: 0,
            waiting: VecDeque::with_capacity(held_max),
            in_flight: 0,
            deadline_ns: None,
        }
    }

    /// Starts a command if it may; returns whether it is started.
    fn start(&mut self, cost: u64, now_ns: u64) -> bool {
        let starts = self.place.start(self.tag, cost, now_ns);
        if starts {
            let [time, of_cost] = TIME_OF_COST;
            self.tag = self.tag.saturating_add(cost * time / (of_cost * self.weight));
            self.in_flight += 1;
        }
        starts
    }

    /// Forwards a command that is started.
    fn send(command: Command, cost: u64, lane: &mut Lane<'_>) {
        let kind = kind(&lane.slot(&command).request).unwrap_or(u8::MAX);
        let now_ns = lane.now_ns();
        lane.forward_with(0, command, kind, [cost, now_ns]);
    }

    /// Starts waiting commands as far as they may.
    fn try_waiting(&mut self, lane: &mut Lane<'_>) {
        let now_ns = lane.now_ns();
        let mut bytes = 0;
        while bytes < TURN_BYTES
            && let Some(&Waiting { ticket, cost, bytes: more }) = self.waiting.front()
            && self.start(cost, now_ns)
        {
            self.waiting.pop_front();
            bytes += more;
            self.publish();
            lane.unpark(Ticket(ticket)).into_iter().for_each(|command| Self::send(command, cost, lane));
        }
        self.plan(now_ns);
    }

    fn publish(&mut self) {
        let tag = (!self.waiting.is_empty()).then_some(self.tag);
        self.place.publish(tag);
    }

    fn plan(&mut self, now_ns: u64) {
        let pauses = if self.in_flight > 0 { PAUSES_IN_FLIGHT } else { 1 };
        let pause_ns = pauses * self.place.device().pause_ns();
        self.deadline_ns = (!self.waiting.is_empty()).then(|| now_ns.saturating_add(pause_ns));
    }

    /// Ends waiting commands that are chosen by their tickets.
    fn end(&mut self, why: Status, lane: &mut Lane<'_>, is_chosen: impl Fn(&Lane<'_>, Ticket) -> bool) {
        self.waiting.retain(|waiting| {
            let ticket = Ticket(waiting.ticket);
            let command = if is_chosen(lane, ticket) { lane.unpark(ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        });
        self.publish();
        self.plan(lane.now_ns());
    }
}

impl Layer for Priority {
    fn name(&self) -> &'static str {
        "priority"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        below[0].over()
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = &lane.slot(&command).request;
        let (cost, bytes) = (cost(request), request.length);
        let now_ns = lane.now_ns();
        if self.waiting.is_empty() {
            self.tag = self.place.begin(self.tag);
            if self.start(cost, now_ns) {
                return Self::send(command, cost, lane);
            }
        }
        let Ticket(ticket) = lane.park(command);
        self.waiting.push_back(Waiting { ticket, cost, bytes });
        if self.waiting.len() == 1 {
            self.publish();
            self.plan(now_ns);
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let [cost, since_ns] = frame.data;
        let now_ns = lane.now_ns();
        let kind = (frame.stage != u8::MAX).then_some(frame.stage);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.place.end(kind, cost, now_ns.saturating_sub(since_ns), now_ns);
        let status = lane.slot(&command).status;
        lane.finish(command, status);
        self.try_waiting(lane);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.end(why, lane, |lane, ticket| lane.is_of(of, ticket));
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end(why, lane, |lane, ticket| lane.is_aborted(which, ticket));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        self.try_waiting(lane);
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        if self.in_flight > 0 {
            return false;
        }
        for waiting in self.waiting.drain(..) {
            lane.unpark(Ticket(waiting.ticket)).into_iter().for_each(|command| lane.forward(command));
        }
        self.publish();
        self.deadline_ns = None;
        true
    }
}

#[cfg(test)]
mod tests;
