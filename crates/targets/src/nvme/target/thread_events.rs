//! A target and its device's admin thread: events of the thread, and requests to it.

use super::super::dma_maps::MapRequest;
use super::super::in_flight::Remaining;
use super::super::port::{Link, ThreadEvent, ThreadRequest};
use super::super::raw;
use super::{Target, finish};
use sluice_command::{Lane, Layer};
use sluice_memory::Space;
use sluice_nvme::Status;

impl Target {
    /// Handles the events of the admin thread. Returns how many.
    pub(super) fn handle_thread_events(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut count = 0;
        while let Ok(event) = self.handle.port.events.try_recv() {
            count += 1;
            match event {
                ThreadEvent::Up(link) => self.on_connected(link),
                ThreadEvent::Durable => self.unflushed.was_shut_down(0),
                ThreadEvent::Down => self.on_lost(lane),
                ThreadEvent::MemoryReleased => self.release_held(lane),
                ThreadEvent::AdminDone { request, status } => self.admin_done(&request, status, lane),
                ThreadEvent::Mapped { mapping, is_mapped } => self.maps.mapped(mapping, is_mapped),
                ThreadEvent::Unmapped { mapping } => {
                    if let Some(file) = self.maps.unmapped(mapping) {
                        self.handle.send(ThreadRequest::Discard(Box::new(file)));
                    }
                }
            }
        }
        count
    }

    fn on_connected(&mut self, link: Box<Link>) {
        self.in_flight.set_depth(link.queue.depth());
        if self.unflushed.on_connect(&link.info, &mut self.power) {
            self.handle.send(ThreadRequest::LogLoss { port: self.handle.port.id });
        }
        self.handle.link = Some(link);
    }

    /// Handles the loss of the device: its commands wait or fail, like all that come until it is back.
    fn on_lost(&mut self, lane: &mut Lane<'_>) {
        self.disarm();
        let link = self.handle.link.take();
        let strays = link.as_ref().map_or(0, |link| link.queue.strays());
        self.control.count_interrupted(self.in_flight.count() as u64, strays);
        self.handle.send(ThreadRequest::Discard(Box::new((link, self.maps.drop_all()))));
        self.check_at_ns = None;
        let before = self.in_flight.waiting.len();
        while let Some(flight) = self.in_flight.end_any() {
            match flight.maps {
                0 => self.requeue(flight.remaining, lane),
                // The device may still write into the memory of the command, so the command must not end yet.
                _ => self.held.push(flight.remaining),
            }
        }
        // Commands that were on the device are older than the waiting ones.
        self.in_flight.waiting.rotate_left(before);
        self.wait_all(lane);
    }

    /// Releases the held commands, once the device of the last generation reaches no memory any more.
    fn release_held(&mut self, lane: &mut Lane<'_>) {
        let before = self.in_flight.waiting.len();
        for remaining in std::mem::take(&mut self.held) {
            self.requeue(remaining, lane);
        }
        self.in_flight.waiting.rotate_left(before);
        self.wait_all(lane);
    }

    /// Requeues a command that was on the device. None of the remaining part was acknowledged to its host.
    fn requeue(&mut self, remaining: Remaining, lane: &mut Lane<'_>) {
        match lane.parked(remaining.ticket).is_none_or(raw::may_be_repeated) {
            true => self.in_flight.waiting.push_back(remaining),
            false => finish(remaining.ticket, Status::INTERNAL_PATH_ERROR, lane),
        }
    }

    /// Decides anew for all waiting commands whether they wait longer or end.
    fn wait_all(&mut self, lane: &mut Lane<'_>) {
        for _ in 0..self.in_flight.waiting.len() {
            if let Some(remaining) = self.in_flight.waiting.pop_front() {
                self.wait(remaining, lane);
            }
        }
    }

    /// Sends the admin thread requests to map and unmap memory of the host.
    pub(super) fn send_map_requests(&mut self, controller: u8, space: &Space) {
        let Self { maps, handle, .. } = self;
        let port = handle.port.id;
        let generation = handle.link.as_ref().map(|link| link.generation);
        maps.requests(controller, space, generation.is_some(), |request| {
            let generation = generation.unwrap_or_default();
            handle.send(match request {
                MapRequest::Map { mapping, file, iova } => {
                    ThreadRequest::Map { port, generation, mapping, file, iova }
                }
                MapRequest::Unmap { mapping, bytes, iova } => {
                    ThreadRequest::Unmap { port, generation, mapping, bytes, iova }
                }
                MapRequest::Discard(file) => ThreadRequest::Discard(Box::new(file)),
            });
        });
    }

    /// Requests that the admin thread give up this generation of the device.
    #[cold]
    pub(super) fn give_up(&mut self) {
        let Some(generation) = self.handle.link.as_ref().map(|link| link.generation) else { return };
        if self.given_up != Some(generation) {
            self.given_up = Some(generation);
            self.handle.send(ThreadRequest::TimedOut { port: self.handle.port.id, generation });
        }
    }
}
