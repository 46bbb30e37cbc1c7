//! The target itself: commands of a drive to the controller, and back.

use super::admin_thread::{Connected, NamespaceHandle, ThreadEvent};
use super::chunk::Chunk;
use super::fail_timer::{FailTimer, RECHECK_NS};
use super::in_flight::Remaining;
use super::queue::{CloseReason, EVENTS, Outcome, Queue, RECEIVED, ReactorHandle, SENT};
use super::quiesce::{self, Quiescing};
use super::{NvmeTcpConfig, NvmeTcpControl};
use crate::remote::{PowerId, Unflushed, end_some, finish};
use rustix::io::Errno;
use sluice_command::{Aborted, Characteristics, Command, Controllers, Lane, Layer, Ticket};
use sluice_memory::Space;
use sluice_nvme::AnaState;
use sluice_nvme::Status;
use sluice_reactor::FileSlot;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Commands that can wait without further allocation: as many as a drive has.
const WAITING: usize = sluice_command::handover::COMMANDS_MAX;

/// A namespace of a remote subsystem as a target.
#[derive(Debug)]
pub struct Target {
    reactor: ReactorHandle,
    /// Notifier, watched so that events of the admin thread wake the drive.
    _notifier: FileSlot,
    nsid: u32,
    timeout_ns: u64,
    /// Characteristics for the layers above, which do not change with a reconnection.
    characteristics: Characteristics,
    /// Bytes, at most as many as the characteristics have.
    size: u64,
    /// The queue; none while there is no connection, and none that is ending.
    queue: Option<Box<Queue>>,
    /// A connection that was made while the one before was still ending.
    next: Option<Box<Connected>>,
    /// Waiting commands, in the order of their start.
    waiting: VecDeque<Remaining>,
    fail_timer: FailTimer,
    unflushed: Arc<Unflushed>,
    /// Power identifier of the controller that has acknowledged the unflushed writes.
    power: Option<PowerId>,
    /// Set if the controller was shut down in order, and is not connected again.
    was_shut_down: bool,
    /// Set if no layer above has another path: commands that are refused for the access state wait until it
    /// changes.
    is_alone: bool,
    /// Time of the next check of the access state after a refusal. No command is sent before.
    recheck_at_ns: Option<u64>,
    /// Changes that an earlier controller may still execute.
    quiescing: Quiescing,
    keep_alive: Duration,
    /// Set if the layer above has copies, and continues without this target while changes are quiescing.
    goes_on: bool,
    /// Set if the connection was lost because the kernel got no answer.
    is_cut: bool,
    /// Set while the lost connection is not reset: its commands may still arrive.
    is_resetting: bool,
    /// Controllers whose host is gone or resets: none of their commands may wait.
    ending: Controllers,
    /// Time of the next check for a timeout of the oldest command.
    check_at_ns: Option<u64>,
    /// Time up to which sent commands were found late once, and got more time.
    spared_ns: u64,
    control: NvmeTcpControl,
    /// Scratch, kept for its memory.
    outcomes: Vec<Outcome>,
    /// The namespace, which is disconnected when the target is dropped. Last, so that the queue is dropped
    /// first.
    handle: NamespaceHandle,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Target {
    pub(super) fn new(
        mut handle: NamespaceHandle,
        config: &NvmeTcpConfig,
        is_path: bool,
        reactor: ReactorHandle,
        control: NvmeTcpControl,
    ) -> io::Result<Self> {
        let notifier = reactor.io.register_file(handle.notifier.as_fd().try_clone_to_owned()?)?;
        reactor.io.watch(&notifier, reactor.task, reactor.token(EVENTS));
        let first = handle.first.take();
        let (unflushed, mut power) =
            (Arc::clone(&handle.unflushed), config.previous_session.and_then(|it| it.power));
        if let Some(first) = &first
            && unflushed.on_connect_along(handle.path, false, &first.info, &mut power)
        {
            handle.log_loss();
        }
        let queue = first.map(|first| Queue::new(*first, reactor.clone()).map(Box::new)).transpose()?;
        control.set_open(queue.is_some());
        // The shorter of the two limits counts.
        let limit = [config.fast_io_fail, config.ctrl_loss].into_iter().flatten().min();
        let info = config.assumed().unwrap_or_else(|| handle.info.clone());
        let storage = handle.info.storage(&(0..info.blocks));
        Ok(Self {
            nsid: config.nsid,
            timeout_ns: nanoseconds(config.timeout),
            // The target has the expected properties, and the storage that was found.
            characteristics: Characteristics { storage, ..info.characteristics(&(0..info.blocks)) },
            size: info.bytes(),
            queue,
            next: None,
            waiting: VecDeque::with_capacity(WAITING),
            fail_timer: FailTimer::new(limit.map(nanoseconds)),
            unflushed,
            power,
            was_shut_down: false,
            is_alone: limit != Some(Duration::ZERO),
            recheck_at_ns: None,
            quiescing: Quiescing::default(),
            keep_alive: config.keep_alive,
            goes_on: !is_path && handle.unflushed.has_copies(),
            is_cut: false,
            is_resetting: false,
            ending: Controllers::default(),
            check_at_ns: None,
            spared_ns: 0,
            control,
            outcomes: Vec::new(),
            reactor,
            _notifier: notifier,
            handle,
        })
    }

    /// Queues or ends a command that cannot be sent now, for lack of room or of a usable connection.
    fn wait(&mut self, remaining: Remaining, lane: &mut Lane<'_>) {
        if self.is_connected() && self.recheck_at_ns.is_none() {
            return self.waiting.push_back(remaining);
        }
        // If there was no connection yet, it is missing from now on.
        self.fail_timer.start(lane.now_ns());
        let is_over = self.fail_timer.is_expired() && !self.is_resetting;
        // A command may still arrive as long as the connection is not reset, so it must not end before.
        if lane.is_of(self.ending, remaining.ticket) && !self.is_resetting {
            finish(remaining.ticket, Status::ABORTED_SQ_DELETION, lane);
        } else if is_over || self.is_late(&remaining, lane.now_ns()) {
            finish(remaining.ticket, Status::INTERNAL_PATH_ERROR, lane);
        } else {
            self.waiting.push_back(remaining);
        }
    }

    fn is_connected(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.is_open())
    }

    /// Returns whether a command was interrupted or refused too long ago. The layers above then treat it as
    /// if there had been no connection since, even if other commands succeeded meanwhile.
    fn is_late(&self, remaining: &Remaining, now_ns: u64) -> bool {
        let is_exceeded = |since_ns| self.fail_timer.is_exceeded(since_ns, now_ns);
        remaining.since_ns.is_some_and(is_exceeded) && !self.is_resetting
    }

    /// Sends the next chunk of a command, or ends the command if that fails. Returns false if there is no
    /// room, or no connection.
    fn start(&mut self, remaining: Remaining, lane: &mut Lane<'_>) -> bool {
        if self.is_late(&remaining, lane.now_ns()) {
            finish(remaining.ticket, Status::INTERNAL_PATH_ERROR, lane);
            return true;
        }
        let has_room = |queue: &&mut Box<Queue>| queue.is_open() && queue.in_flight.has_room();
        let Some(queue) = self.queue.as_mut().filter(has_room) else { return false };
        if self.recheck_at_ns.is_some() {
            return false;
        }
        let Some(slot) = lane.parked(remaining.ticket) else { return true };
        if self.unflushed.is_lost()
            && let Some(status) = self.unflushed.take_loss(&slot.request, &slot.origin)
        {
            finish(remaining.ticket, status, lane);
            return true;
        }
        // The drive may have become smaller while the command waited.
        let limits = (self.nsid, self.size, queue.in_capsule_max);
        match Chunk::next(&slot.request, remaining.done, &self.handle.info, limits) {
            Ok(chunk) => {
                queue.submit(remaining, &chunk, lane.now_ns(), self.unflushed.mark());
                self.check_at_ns.get_or_insert(lane.now_ns().saturating_add(self.timeout_ns));
            }
            Err(status) => finish(remaining.ticket, status, lane),
        }
        true
    }

    /// Starts waiting commands, as far as there is room. Returns how many.
    fn start_waiting(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut started = 0;
        while let Some(&remaining) = self.waiting.front()
            && self.start(remaining, lane)
        {
            self.waiting.pop_front();
            started += 1;
        }
        started
    }

    /// Advances the target after an event on the connection: completed commands continue, and waiting ones
    /// start.
    fn advance(&mut self, lane: &mut Lane<'_>) {
        let Some(queue) = &mut self.queue else { return };
        std::mem::swap(&mut self.outcomes, &mut queue.outcomes);
        queue.tally.completed += self.outcomes.len() as u64;
        for index in 0..self.outcomes.len() {
            let Outcome { remaining, bytes, status, mark } = self.outcomes[index];
            let Some(slot) = lane.parked(remaining.ticket) else { continue };
            let done = remaining.done + bytes;
            if status.is_success() {
                self.unflushed.succeeded_along(self.handle.path, &slot.request, mark);
            }
            if let Some(state) = AnaState::of_refusal(status) {
                if self.control.set_ana(Some(state)) {
                    self.handle.check_ana();
                }
                let may_repeat = status.0 & Status::DNR == 0;
                if self.is_alone && may_repeat && may_pass(state) && !self.fail_timer.is_expired() {
                    self.wait_again(remaining, lane.now_ns());
                    continue;
                }
            } else if status.same_code(Status::COMMAND_INTERRUPTED) {
                // The other end waits for storage of its own, and has not carried the command out.
                if !self.fail_timer.is_expired() {
                    self.wait_again(remaining, lane.now_ns());
                    continue;
                }
                finish(remaining.ticket, Status::INTERNAL_ERROR, lane);
                continue;
            } else if self.recheck_at_ns.is_none() {
                // A refusal does not stop the timer: commands after one that took too long must not wait as
                // long again. A command that was sent before a refusal does not stop it either, while the
                // refused one waits.
                self.fail_timer.stop();
            }
            if !status.is_success() || done >= slot.request.length {
                finish(remaining.ticket, status, lane);
            } else {
                // The command is older than all that wait.
                self.waiting.push_front(Remaining { done, since_ns: None, ..remaining });
            }
        }
        self.outcomes.clear();
        if !self.waiting.is_empty() {
            self.start_waiting(lane);
        }
        self.send(lane);
    }

    /// Queues a command again that the other end did not carry out.
    #[cold]
    fn wait_again(&mut self, remaining: Remaining, now_ns: u64) {
        self.waiting.push_front(Remaining { since_ns: remaining.since_ns.or(Some(now_ns)), ..remaining });
        self.recheck_at_ns.get_or_insert(now_ns + RECHECK_NS);
        self.fail_timer.start(now_ns);
    }

    /// Rechecks the access state for refused commands. The commands continue if the state has changed, and
    /// fail if that took too long.
    #[cold]
    fn recheck_ana(&mut self, lane: &mut Lane<'_>) {
        let is_closed = self.control.path().is_some_and(may_pass);
        if is_closed && self.fail_timer.is_expired() {
            self.wait_all(lane);
        }
        // The next command is sent as a probe.
        let goes_on = !is_closed || self.waiting.is_empty();
        self.recheck_at_ns = (!goes_on).then(|| lane.now_ns() + RECHECK_NS);
        self.advance(lane);
    }

    /// Starts sends and receives, and updates the counters.
    fn send(&mut self, lane: &mut Lane<'_>) {
        self.report_under_way();
        let Some(queue) = &mut self.queue else { return };
        queue.start(lane);
        queue.tally.bytes_copied += std::mem::take(&mut queue.transmit.copied);
        self.control.add_tally(&mut queue.tally);
    }

    fn report_under_way(&self) {
        let on_connection = self.queue.as_ref().map_or(0, |queue| queue.in_flight.len());
        self.control.set_under_way(on_connection + self.waiting.len() + self.quiescing.len());
    }

    /// Handles the events of the admin thread. Returns how many.
    fn handle_thread_events(&mut self, lane: &mut Lane<'_>) -> usize {
        let mut count = 0;
        while let Ok(event) = self.handle.events.try_recv() {
            count += 1;
            match event {
                ThreadEvent::Up(connected) => {
                    self.next = Some(connected);
                    self.take_next(lane);
                }
                ThreadEvent::Durable => {
                    self.unflushed.was_shut_down(self.handle.path);
                    self.was_shut_down = true;
                }
                ThreadEvent::Reset { has_ended } => {
                    self.is_resetting = false;
                    self.reset(has_ended, lane);
                    self.wait_all(lane);
                }
                ThreadEvent::Down(generation)
                    if self.queue.as_ref().is_some_and(|queue| queue.generation == generation) =>
                {
                    self.lose(CloseReason::ByAdminThread, lane);
                }
                // The new connection was lost before it was needed.
                ThreadEvent::Down(_) => self.next = None,
            }
        }
        count
    }

    /// Continues with a new connection, if there is one, and the one before is over.
    fn take_next(&mut self, lane: &mut Lane<'_>) {
        if self.queue.is_some() || self.quiescing.blocks_connection() {
            return;
        }
        let Some(next) = self.next.take() else { return };
        let generation = next.generation;
        let was_shut_down = std::mem::take(&mut self.was_shut_down);
        let path = self.handle.path;
        if self.unflushed.on_connect_along(path, was_shut_down, &next.info, &mut self.power) {
            self.handle.log_loss();
        }
        self.handle.info = next.info.clone();
        match Queue::new(*next, self.reactor.clone()) {
            Ok(queue) => {
                self.queue = Some(Box::new(queue));
                self.control.set_open(true);
                self.fail_timer.stop();
                self.advance(lane);
            }
            Err(error) => {
                self.unflushed.disconnected(path);
                self.handle.lost(generation, format!("the reactor cannot take a connection: {error}"))
            }
        }
    }

    /// Gives the connection up. The admin thread resets it and makes another.
    #[cold]
    fn lose(&mut self, why: CloseReason, lane: &mut Lane<'_>) {
        self.fail_timer.start(lane.now_ns());
        self.recheck_at_ns = None;
        let Some(queue) = &mut self.queue else { return };
        if queue.is_open() {
            self.is_resetting = true;
            // NOTCONN comes from the reset by the admin thread, which has seen the end or not.
            const NO_CUT: [Errno; 3] = [Errno::CONNRESET, Errno::PIPE, Errno::NOTCONN];
            self.is_cut = matches!(why, CloseReason::Socket(errno) if !NO_CUT.contains(&errno));
            self.quiescing.lost();
        }
        self.control.set_open(false);
        self.unflushed.disconnected(self.handle.path);
        queue.close(why);
        self.handle.lost(queue.generation, why.to_string());
        self.requeue_if_closed(lane);
    }

    /// Requeues the commands of a lost connection, once the kernel has no operation on it any more.
    fn requeue_if_closed(&mut self, lane: &mut Lane<'_>) {
        let Some(mut queue) = self.queue.take_if(|queue| queue.is_over()) else { return };
        self.check_at_ns = None;
        self.control.add_tally(&mut queue.tally);
        // Commands that were completed before are over.
        let answered = std::mem::take(&mut queue.outcomes);
        let mut requeued: Vec<Remaining> = Vec::new();
        for Outcome { remaining, bytes, status, mark } in answered {
            let request = lane.parked(remaining.ticket).map(|slot| slot.request);
            if let Some(request) = request.filter(|_| status.is_success()) {
                self.unflushed.succeeded_along(self.handle.path, &request, mark);
            }
            let length = request.map_or(0, |request| request.length);
            match remaining.done + bytes {
                done if status.is_success() && done < length => {
                    requeued.push(Remaining { done, since_ns: None, ..remaining });
                }
                _ => finish(remaining.ticket, status, lane),
            }
        }
        let interrupted = queue.take_interrupted(lane.now_ns());
        self.control.count_interrupted(interrupted.len() as u64);
        for (remaining, may_change) in interrupted {
            if may_change {
                self.quiescing.add((!self.goes_on).then_some(remaining));
            }
            if self.goes_on || !may_change {
                requeued.push(remaining);
            }
        }
        self.requeue_quiesced(lane);
        // Commands of the lost connection are older than the waiting commands.
        requeued.into_iter().rev().for_each(|remaining| self.waiting.push_front(remaining));
        self.wait_all(lane);
        self.take_next(lane);
    }

    /// Handles the reset of the lost connection.
    #[cold]
    fn reset(&mut self, has_ended: bool, lane: &mut Lane<'_>) {
        let timeout = Duration::from_nanos(self.timeout_ns);
        let delay = quiesce::delay(&self.handle.info, self.keep_alive, timeout, has_ended && !self.is_cut);
        self.quiescing.reset(lane.now_ns().saturating_add(nanoseconds(delay)));
        if self.quiescing.len() > 0 && !delay.is_zero() {
            self.handle.log_quiescing(self.quiescing.len(), delay);
        }
        self.requeue_quiesced(lane);
    }

    /// Requeues changes that no controller can execute any more.
    #[cold]
    fn requeue_quiesced(&mut self, lane: &mut Lane<'_>) {
        let settled = self.quiescing.take_quiesced(lane.now_ns());
        settled.into_iter().rev().for_each(|remaining| self.waiting.push_front(remaining));
    }

    /// Decides anew for all waiting commands whether they wait longer or end.
    fn wait_all(&mut self, lane: &mut Lane<'_>) {
        for _ in 0..self.waiting.len() {
            if let Some(remaining) = self.waiting.pop_front() {
                self.wait(remaining, lane);
            }
        }
        self.report_under_way();
    }

    /// Ends waiting commands of hosts that are gone.
    fn end_waiting(&mut self, lane: &mut Lane<'_>) -> usize {
        let ending = self.ending;
        self.end_some(|ticket, lane| lane.is_of(ending, ticket), Status::ABORTED_SQ_DELETION, lane)
    }

    /// Ends some waiting commands. None ends while the other end may still carry it out.
    fn end_some(
        &mut self,
        ends: impl Fn(Ticket, &Lane<'_>) -> bool,
        why: Status,
        lane: &mut Lane<'_>,
    ) -> usize {
        if self.is_resetting {
            return 0;
        }
        end_some(&mut self.waiting, |it| it.ticket, ends, why, lane)
    }

    /// Checks the oldest command for a timeout.
    fn check_oldest(&mut self, lane: &mut Lane<'_>) {
        let now_ns = lane.now_ns();
        let Some(at_ns) = self.check_at_ns.filter(|at| *at <= now_ns) else { return };
        let oldest = self.queue.as_ref().and_then(|queue| queue.in_flight.oldest_ns());
        let due = oldest.map(|since| since.saturating_add(self.timeout_ns));
        self.check_at_ns = due.filter(|due| *due > now_ns);
        let (Some(since_ns), None, true) = (oldest, self.check_at_ns, self.is_connected()) else { return };
        if since_ns <= self.spared_ns {
            return self.lose(CloseReason::TimedOut, lane);
        }
        // After a long pause of this reactor the completions may already be there, but not all in one
        // receive. So the target waits for as long as it was delayed, within the timeout.
        let more_ns = (now_ns - at_ns).min(self.timeout_ns).max(RECHECK_NS);
        (self.spared_ns, self.check_at_ns) = (now_ns, Some(now_ns.saturating_add(more_ns)));
    }
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "nvme-tcp"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics { size: self.size, ..self.characteristics }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        if let Err(status) = slot.check(self.size) {
            return lane.finish(command, status);
        }
        if self.handle.info.is_done(&slot.request) {
            return lane.finish(command, Status::SUCCESS);
        }
        let remaining = Remaining { ticket: lane.park(command), done: 0, since_ns: None };
        if !self.waiting.is_empty() {
            self.waiting.push_back(remaining);
        } else if !self.start(remaining, lane) {
            self.wait(remaining, lane);
        }
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        self.send(lane);
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        // A notification: the turn that follows handles the events.
        let Some(queue) = self.queue.as_mut().filter(|_| ticket == RECEIVED || ticket == SENT) else {
            return;
        };
        let done = match ticket == SENT {
            true => queue.sent(result),
            false => queue.received(result, lane),
        };
        if queue.is_open() {
            match done {
                Ok(()) => self.advance(lane),
                Err(why) => self.lose(why, lane),
            }
        } else {
            self.requeue_if_closed(lane);
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        let all = [
            self.check_at_ns,
            self.recheck_at_ns,
            self.fail_timer.deadline_ns(),
            self.quiescing.deadline_ns(),
        ];
        // Called in each turn: a minimum without branches takes a third of the instructions.
        let least = all.into_iter().fold(u64::MAX, |least, at| least.min(at.unwrap_or(u64::MAX)));
        (least != u64::MAX).then_some(least)
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        self.check_oldest(lane);
        if self.recheck_at_ns.is_some_and(|at| at <= lane.now_ns()) {
            self.recheck_ana(lane);
        }
        if self.fail_timer.deadline_ns().is_some_and(|at| at <= lane.now_ns()) {
            self.fail_timer.expire();
            self.wait_all(lane);
        }
        if self.quiescing.deadline_ns().is_some_and(|at| at <= lane.now_ns()) {
            self.requeue_quiesced(lane);
            self.wait_all(lane);
            self.take_next(lane);
            self.advance(lane);
        }
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_some(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn is_idle(&self) -> bool {
        let is_sent = self.queue.as_ref().is_some_and(|queue| queue.in_flight.len() > 0);
        self.waiting.is_empty() && self.quiescing.len() == 0 && !is_sent && !self.is_resetting
    }

    fn resized(&mut self, size: u64) {
        self.size = size.min(self.characteristics.size);
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        let mut work = self.handle_thread_events(lane);
        if !self.ending.is_empty() {
            work += self.end_waiting(lane);
        }
        if self.queue.as_ref().is_some_and(|queue| queue.is_new()) {
            self.advance(lane);
        }
        work
    }

    fn revoke(&mut self, controller: u8) {
        self.ending.insert(controller);
    }

    fn renew(&mut self, controller: u8) {
        self.ending.remove(controller);
    }
}

/// Returns whether a controller that refuses commands in this state may accept them later.
fn may_pass(state: AnaState) -> bool {
    matches!(state, AnaState::Inaccessible | AnaState::Change)
}
