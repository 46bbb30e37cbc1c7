//! A target and its device's keeper: what it hears of lives of the device, and what it has done.

use super::super::flights::Rest;
use super::super::loans::Errand;
use super::super::port::{Link, News, Order};
use super::super::raw;
use super::{Target, finish};
use sluice_command::{Lane, Layer};
use sluice_memory::Space;
use sluice_nvme::Status;

impl Target {
    /// What the keeper has to say. Returns how much that was.
    pub(super) fn hear(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut heard = 0;
        while let Ok(news) = self.tenancy.port.news.try_recv() {
            heard += 1;
            match news {
                News::Up(link) => self.up(link),
                News::Down => self.down(lane),
                News::Free => self.free(lane),
                News::Answered { errand, status } => self.answered(&errand, status, lane),
                News::Lent { loan, seen } => self.loans.lent(loan, seen),
                News::Returned { loan } => {
                    if let Some(file) = self.loans.returned(loan) {
                        self.tenancy.order(Order::Discard(Box::new(file)));
                    }
                }
            }
        }
        heard
    }

    fn up(&mut self, link: Box<Link>) {
        self.flights.set_depth(link.queue.depth());
        if self.unflushed.on_connect(&link.info, &mut self.power) {
            self.tenancy.order(Order::SayLost { port: self.tenancy.port.id });
        }
        self.tenancy.link = Some(link);
    }

    /// The device is gone: what it had waits or fails, as everything that comes until it is back.
    fn down(&mut self, lane: &mut Lane<'_>) {
        self.disarm();
        let link = self.tenancy.link.take();
        let strays = link.as_ref().map_or(0, |link| link.queue.strays());
        self.control.count_interrupted(self.flights.count() as u64, strays);
        self.tenancy.order(Order::Discard(Box::new((link, self.loans.drop_all()))));
        self.check_at_ns = None;
        let before = self.flights.waiting.len();
        while let Some(flight) = self.flights.end_any() {
            match flight.loans {
                0 => self.again(flight.rest, lane),
                // Its data is where the device may still write: nobody may be told that it is over.
                _ => self.held.push(flight.rest),
            }
        }
        // Those that were on the device are older than those that were not.
        self.flights.waiting.rotate_left(before);
        self.wait_all(lane);
    }

    /// The device of the last life reaches no memory any more, and so the commands are free that named it.
    fn free(&mut self, lane: &mut Lane<'_>) {
        let before = self.flights.waiting.len();
        for rest in std::mem::take(&mut self.held) {
            self.again(rest, lane);
        }
        self.flights.waiting.rotate_left(before);
        self.wait_all(lane);
    }

    /// What was on the device is done once more from where it was: none of it has been answered for.
    fn again(&mut self, rest: Rest, lane: &mut Lane<'_>) {
        match lane.parked(rest.ticket).is_none_or(raw::may_be_repeated) {
            true => self.flights.waiting.push_back(rest),
            false => finish(rest.ticket, Status::INTERNAL_PATH_ERROR, lane),
        }
    }

    /// All that wait: for longer, or not any more.
    fn wait_all(&mut self, lane: &mut Lane<'_>) {
        for _ in 0..self.flights.waiting.len() {
            if let Some(rest) = self.flights.waiting.pop_front() {
                self.wait(rest, lane);
            }
        }
    }

    /// Has the keeper show memory to the device, and take it back.
    pub(super) fn run_errands(&mut self, controller: u8, space: &Space) {
        let Self { loans, tenancy, .. } = self;
        let port = tenancy.port.id;
        let life = tenancy.link.as_ref().map(|link| link.life);
        loans.errands(controller, space, life.is_some(), |errand| {
            let life = life.unwrap_or_default();
            tenancy.order(match errand {
                Errand::Lend { loan, file, iova } => Order::Lend { port, life, loan, file, iova },
                Errand::TakeBack { loan, bytes, iova } => Order::TakeBack { port, life, loan, bytes, iova },
                Errand::Discard(file) => Order::Discard(Box::new(file)),
            });
        });
    }

    /// Has the keeper end this life of the device.
    #[cold]
    pub(super) fn give_up(&mut self) {
        let Some(life) = self.tenancy.link.as_ref().map(|link| link.life) else { return };
        if self.given_up != Some(life) {
            self.given_up = Some(life);
            self.tenancy.order(Order::Silent { port: self.tenancy.port.id, life });
        }
    }
}
