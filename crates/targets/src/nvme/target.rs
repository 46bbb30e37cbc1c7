//! The target itself: commands of a drive to a queue pair of the device, and back.

mod thread_events;

use super::chunk::{Chunk, Scratch};
use super::confine::Passes;
use super::device::PortHandle;
use super::dma_maps::DmaMaps;
use super::in_flight::{InFlight, InFlightTable, Remaining};
use super::port::{Generation, ThreadRequest};
use super::raw;
use super::{NvmeConfig, NvmeControl, OnLoss};
use crate::remote::{NamespaceInfo, PowerId, Unflushed, end_some, finish};
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Lane, Layer, Operation, Passthrough, Slot, Ticket,
};
use sluice_memory::{Removed, SegmentList, Space};
use sluice_nvme::{PAGE_SIZE, Status};
use sluice_reactor::{FileSlot, Io, PollFlags, TaskId};
use std::io;
use std::os::fd::AsFd;

/// Commands that can wait without further allocation: as many as a drive has.
const WAITING: usize = sluice_command::handover::COMMANDS_MAX;

/// Tokens that belong to no command: the device's interrupt, and events of the admin thread.
const INTERRUPT: Ticket = Ticket(u32::MAX);
const EVENTS: Ticket = Ticket(u32::MAX - 1);

/// Reactor of a target, with the target's task on it.
#[derive(Debug)]
pub(super) struct ReactorHandle {
    pub(super) io: Io,
    pub(super) task: TaskId,
    pub(super) token_prefix: u64,
}

impl ReactorHandle {
    fn token(&self, ticket: Ticket) -> u64 {
        self.token_prefix | u64::from(ticket.0)
    }
}

/// A range of an NVMe device as a target.
#[derive(Debug)]
pub struct Target {
    reactor: ReactorHandle,
    /// Notifier, watched so that events of the admin thread wake the drive.
    _notifier: FileSlot,
    /// Queue pair and range, which are released when the target is dropped.
    pub(super) handle: PortHandle,
    on_loss: OnLoss,
    passes: Passes,
    pub(super) passthrough: Passthrough,
    timeout_ns: u64,
    /// Bytes, at most as many as the range has.
    pub(super) size: u64,
    in_flight: InFlightTable,
    maps: DmaMaps,
    /// Commands of a lost device that may still write into their memory.
    held: Vec<Remaining>,
    unflushed: Unflushed,
    /// Power identifier of the device that has acknowledged the unflushed writes.
    power: Option<PowerId>,
    /// Controllers whose host is gone or resets: none of their commands may wait.
    ending: Controllers,
    /// Set while the interrupt is polled.
    armed: bool,
    /// Time of the next check for a timeout of the oldest command on the device.
    check_at_ns: Option<u64>,
    /// Generation of the device that was given up after a timeout.
    given_up: Option<Generation>,
    control: NvmeControl,
    /// Scratch, kept for its memory.
    reaped: Vec<(u16, Status)>,
    pages: Vec<u64>,
    part: SegmentList,
}

impl Target {
    pub(super) fn new(
        handle: PortHandle,
        config: &NvmeConfig,
        reactor: ReactorHandle,
        control: NvmeControl,
    ) -> io::Result<Self> {
        let notifier = reactor.io.register_file(handle.port.notifier.as_fd().try_clone_to_owned()?)?;
        reactor.io.watch(&notifier, reactor.task, reactor.token(EVENTS));
        let mut in_flight = InFlightTable::new(WAITING);
        let depth = handle.link.as_ref().map_or(0, |link| link.queue.depth());
        in_flight.set_depth(depth);
        let unflushed = Unflushed::new(config.loss_notice, config.previous_session);
        let mut power = config.previous_session.and_then(|previous_session| previous_session.power);
        if let Some(link) = &handle.link {
            unflushed.on_connect(&link.info, &mut power);
        }
        Ok(Self {
            on_loss: config.on_loss,
            passes: config.passes,
            passthrough: config.passthrough,
            timeout_ns: u64::try_from(config.timeout.as_nanos()).unwrap_or(u64::MAX),
            size: handle.port.range.bytes(),
            in_flight,
            maps: DmaMaps::new(handle.port.window),
            held: Vec::new(),
            unflushed,
            power,
            ending: Controllers::default(),
            armed: false,
            check_at_ns: None,
            given_up: None,
            control,
            reaped: Vec::with_capacity(depth as usize),
            pages: Vec::with_capacity(handle.port.info.transfer_max / PAGE_SIZE + 1),
            part: SegmentList::new(),
            reactor,
            _notifier: notifier,
            handle,
        })
    }

    fn info(&self) -> &NamespaceInfo {
        &self.handle.port.info
    }

    /// Checks a request before anything is done.
    fn check(&self, slot: &Slot) -> Result<(), Status> {
        self.passes.check(&slot.request)?;
        slot.check(self.size)
    }

    /// Starts a command or the next chunk of it, or queues it behind the waiting commands.
    fn start_or_wait(&mut self, remaining: Remaining, lane: &mut Lane<'_>) {
        if !self.in_flight.waiting.is_empty() {
            return self.in_flight.waiting.push_back(remaining);
        }
        if !self.start(remaining, lane) {
            self.wait(remaining, lane);
        }
    }

    /// Queues or ends a command that cannot be submitted now, for lack of room on the device or of a device.
    fn wait(&mut self, remaining: Remaining, lane: &mut Lane<'_>) {
        if self.handle.link.is_some() {
            self.in_flight.waiting.push_back(remaining);
        } else if lane.is_of(self.ending, remaining.ticket) {
            finish(remaining.ticket, Status::ABORTED_SQ_DELETION, lane);
        } else if self.on_loss == OnLoss::Fail {
            finish(remaining.ticket, Status::INTERNAL_PATH_ERROR, lane);
        } else {
            self.in_flight.waiting.push_back(remaining);
        }
    }

    /// Starts waiting commands, as far as there is room. Returns how many.
    fn start_waiting(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut started = 0;
        while let Some(&remaining) = self.in_flight.waiting.front()
            && self.start(remaining, lane)
        {
            self.in_flight.waiting.pop_front();
            started += 1;
        }
        started
    }

    /// Submits the next chunk of a command, or ends the command if that fails. Returns false if there is no
    /// room on the device, no buffer, or no device.
    fn start(&mut self, remaining: Remaining, lane: &mut Lane<'_>) -> bool {
        let Self { handle, maps, pages, part, in_flight, .. } = self;
        let Some(link) = &mut handle.link else { return false };
        if link.queue.in_flight() == link.queue.depth() {
            return false;
        }
        let Some(slot) = lane.parked(remaining.ticket) else { return true };
        if self.unflushed.is_lost()
            && let Some(status) = self.unflushed.take_loss(&raw::effect(slot), &slot.origin)
        {
            finish(remaining.ticket, status, lane);
            return true;
        }
        let port = &handle.port;
        let scratch = Scratch { pages, part };
        let sent = match slot.origin.raw {
            false => {
                // The drive may have become smaller while the command waited.
                let chunk = Chunk::next(&slot.request, remaining.done, &port.info, &port.range, self.size);
                chunk.map(|chunk| chunk.send(slot, remaining, link, maps, scratch))
            }
            true => {
                let Some(entry) = lane.parked_entry(remaining.ticket) else { return true };
                raw::send((slot, entry), remaining, (&port.info, &port.range), link, maps, scratch)
            }
        };
        let sent = match sent {
            Ok(Some(sent)) => sent,
            Ok(None) => return false,
            Err(status) => {
                finish(remaining.ticket, status, lane);
                return true;
            }
        };
        maps.begin(sent.flight.maps);
        self.control.count_sent(sent.flight.buffer.is_some());
        in_flight.begin(
            sent.cid,
            InFlight { since_ns: lane.now_ns(), mark: self.unflushed.mark(), ..sent.flight },
        );
        self.check_at_ns.get_or_insert(lane.now_ns().saturating_add(self.timeout_ns));
        true
    }

    /// Reaps completions of the device. Returns how many.
    fn reap(&mut self, lane: &mut Lane<'_>) -> usize {
        let Some(link) = &mut self.handle.link else { return 0 };
        let reaped = &mut self.reaped;
        let count =
            link.queue.reap(|completion| reaped.push((completion.cid, completion.status().of_peer())));
        for index in 0..self.reaped.len() {
            let (cid, status) = self.reaped[index];
            self.completed(cid, status, lane);
        }
        if count > 0 {
            self.control.count_completed(count as u64);
        }
        self.reaped.clear();
        count
    }

    /// Handles the completion of a chunk by the device.
    fn completed(&mut self, cid: u16, status: Status, lane: &mut Lane<'_>) {
        let Some(flight) = self.in_flight.end(cid) else { return };
        let InFlight { remaining, bytes, maps, buffer, mark, .. } = flight;
        self.maps.end(maps);
        let slot = lane.parked(remaining.ticket);
        if let (Some(buffer), Some(link)) = (buffer, &mut self.handle.link) {
            let read = slot.filter(|slot| reads(slot) && status.is_success());
            if let Some(slot) = read {
                link.buffers.scatter(&buffer, bytes as usize, &slot.data, remaining.done as usize);
            }
            link.buffers.give_back(buffer);
        }
        let Some(slot) = slot else { return };
        if status.is_success() {
            self.unflushed.succeeded(&raw::effect(slot), mark);
        }
        let done = remaining.done + bytes;
        if !status.is_success() || done >= slot.request.length {
            return finish(remaining.ticket, status, lane);
        }
        // The command is older than all that wait.
        self.in_flight.waiting.push_front(Remaining { done, ..remaining });
    }

    /// Ends waiting commands of hosts that are gone.
    fn end_waiting(&mut self, lane: &mut Lane<'_>) -> usize {
        let ending = self.ending;
        self.end_some(|ticket, lane| lane.is_of(ending, ticket), Status::ABORTED_SQ_DELETION, lane)
    }

    /// Ends some waiting commands. The device has nothing of them.
    fn end_some(
        &mut self,
        ends: impl Fn(Ticket, &Lane<'_>) -> bool,
        why: Status,
        lane: &mut Lane<'_>,
    ) -> usize {
        end_some(&mut self.in_flight.waiting, |it| it.ticket, ends, why, lane)
    }

    fn ring(&mut self) {
        let Some(link) = &mut self.handle.link else { return };
        if link.queue.ring().is_err() {
            // Mapped doorbells cannot fail; others fail with their connection.
            self.give_up();
        }
    }
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "nvme"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        let given = self.info().characteristics(&self.handle.port.range.blocks);
        let passthrough = self.passthrough;
        self.passes.limit(Characteristics { size: self.size, passthrough, ..given })
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        if let Err(status) = self.check(slot) {
            return lane.finish(command, status);
        }
        if self.info().is_done(&slot.request) {
            return lane.finish(command, Status::SUCCESS);
        }
        let ticket = lane.park(command);
        self.start_or_wait(Remaining { ticket, done: 0 }, lane);
    }

    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        if let Err(status) = raw::check(slot, &self.passthrough, self.size) {
            return lane.finish(command, status);
        }
        if slot.origin.sq == 0 {
            return self.send_admin(command, lane);
        }
        let ticket = lane.park(command);
        self.start_or_wait(Remaining { ticket, done: 0 }, lane);
    }

    fn flush(&mut self, _lane: &mut Lane<'_>) {
        self.ring();
    }

    fn event(&mut self, _ticket: Ticket, _result: i32, _lane: &mut Lane<'_>) {
        // The interrupt or the notifier: the turn that follows handles all completions and events.
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.check_at_ns
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.check_at_ns.is_none_or(|at| at > lane.now_ns()) {
            return;
        }
        // After a long pause of this reactor the completions may already be there.
        if self.reap(lane) > 0 {
            self.ring();
        }
        let due = self.in_flight.oldest_ns().map(|since| since.saturating_add(self.timeout_ns));
        self.check_at_ns = due.filter(|due| *due > lane.now_ns());
        if due.is_some() && self.check_at_ns.is_none() {
            self.give_up();
        }
    }

    fn resized(&mut self, size: u64) {
        self.size = size.min(self.handle.port.range.bytes());
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, controller: u8, space: &Space, lane: &mut Lane<'_>) -> usize {
        let mut work = self.handle_thread_events(lane) + self.reap(lane);
        if !self.ending.is_empty() {
            work += self.end_waiting(lane);
        }
        if !self.in_flight.waiting.is_empty() {
            work += self.start_waiting(lane);
        }
        self.send_map_requests(controller, space);
        if work > 0 {
            self.ring();
        }
        work
    }

    fn follow_memory(&mut self, controller: u8, space: &Space) {
        self.send_map_requests(controller, space);
    }

    fn arm(&mut self) -> bool {
        let Some(link) = &mut self.handle.link else { return false };
        if self.in_flight.count() == 0 {
            return false;
        }
        // The queue is checked after this, so earlier interrupts do not matter.
        let _ = link.interrupt.take();
        self.reactor.io.poll(
            link.interrupt.as_fd(),
            PollFlags::IN,
            self.reactor.task,
            self.reactor.token(INTERRUPT),
        );
        self.armed = true;
        link.queue.has_completions()
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.reactor.io.cancel(self.reactor.task, self.reactor.token(INTERRUPT));
        }
    }

    fn forget_memory(&mut self, removed: &Removed) {
        self.maps.forget(removed);
    }

    fn still_maps(&self, removed: &Removed) -> bool {
        self.maps.still_maps(removed)
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_some(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.in_flight.count() == 0 && self.in_flight.waiting.is_empty()
    }

    fn revoke(&mut self, controller: u8) {
        self.ending.insert(controller);
        self.maps.revoke(controller);
    }

    fn is_revoked(&self, controller: u8) -> bool {
        !self.maps.has_some_of(controller)
    }

    fn renew(&mut self, controller: u8) {
        self.ending.remove(controller);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The last drop of a large memory takes time.
        let files = self.maps.drop_all();
        if !files.is_empty() {
            self.handle.send(ThreadRequest::Discard(Box::new(files)));
        }
    }
}

/// Returns whether the device writes a command's data.
fn reads(slot: &Slot) -> bool {
    match slot.origin.raw {
        false => slot.request.operation == Operation::Read,
        true => raw::brings_data(slot.origin.opcode),
    }
}
