//! The target: commands of a drive to the kernel, and back.

use super::super::chunk::{Chunk, DataKind};
use super::super::confine::Passes;
use super::super::in_flight::{InFlight, InFlightTable, Remaining};
use super::super::raw;
use super::PreparedGeneric;
use super::device::RangeHandle;
use super::memory::Memory;
use super::outcome::Outcome;
use crate::NvmeControl;
use crate::remote::{NamespaceInfo, Unflushed, finish};
use sluice_command::{Characteristics, Command, Lane, Layer, Passthrough, Slot, Ticket};
use sluice_memory::SegmentList;
use sluice_nvme::{Status, SubmissionEntry};
use sluice_reactor::{CommandFile, Io, NvmeCommand, NvmeQueue, TaskId};
use std::io;
use std::path::PathBuf;

/// Commands that can wait without further allocation: as many as a drive has.
const WAITING: usize = sluice_command::handover::COMMANDS_MAX;
/// Number of times that a command is sent again after the kernel returned it.
const REPEATS_MAX: u8 = 5;

/// A range of a namespace that the kernel drives, as a target.
#[derive(Debug)]
pub struct Target {
    io: Io,
    task: TaskId,
    token_prefix: u64,
    path: PathBuf,
    device: CommandFile,
    controller: Option<CommandFile>,
    handle: RangeHandle,
    passes: Passes,
    passthrough: Passthrough,
    timeout_ms: u32,
    /// Bytes, at most as many as the range has.
    size: u64,
    in_flight: InFlightTable,
    /// Numbers that no command on the device has.
    free: Vec<u16>,
    /// Times that the command of each number was sent again.
    repeats: Vec<u8>,
    memory: Memory,
    control: NvmeControl,
    unflushed: Unflushed,
    /// Set while the device is there.
    connected: bool,
    refusal_logged: bool,
    /// Scratch, kept for its memory.
    data: SegmentList,
    part: SegmentList,
}

impl Target {
    pub(super) fn new(
        prepared: PreparedGeneric,
        task: TaskId,
        io: &Io,
        token_prefix: u64,
    ) -> io::Result<Self> {
        let PreparedGeneric { mut handle, config, control } = prepared;
        let device = io.register_nvme(handle.file().try_clone_to_owned()?)?;
        let controller = handle.controller.take().map(|file| io.register_nvme(file.into())).transpose()?;
        let depth = handle.depth;
        let mut in_flight = InFlightTable::new(WAITING);
        in_flight.set_depth(depth as u32);
        let unflushed = Unflushed::new(config.loss_notice, config.previous_session);
        if config
            .previous_session
            .is_some_and(|previous_session| handle.info.has_changed_power(previous_session.power))
        {
            unflushed.reconnected();
        }
        Ok(Self {
            io: io.clone(),
            task,
            token_prefix,
            path: config.path,
            device,
            controller,
            passes: config.passes,
            passthrough: config.passthrough,
            timeout_ms: u32::try_from(config.timeout.as_millis()).unwrap_or(u32::MAX),
            size: handle.range.bytes(),
            in_flight,
            free: (0..depth as u16).rev().collect(),
            repeats: vec![0; depth],
            memory: Memory::new(depth)?,
            control,
            unflushed,
            connected: true,
            refusal_logged: false,
            data: SegmentList::new(),
            part: SegmentList::new(),
            handle,
        })
    }

    fn info(&self) -> &NamespaceInfo {
        &self.handle.info
    }

    /// Starts a command, or queues it behind the waiting commands.
    fn start_or_wait(&mut self, remaining: Remaining, lane: &mut Lane<'_>) {
        match self.in_flight.waiting.is_empty().then(|| self.free.pop()).flatten() {
            Some(number) => self.start(remaining, number, lane),
            None => self.in_flight.waiting.push_back(remaining),
        }
    }

    /// Starts waiting commands, as far as there is room.
    fn start_waiting(&mut self, lane: &mut Lane<'_>) {
        while !self.in_flight.waiting.is_empty()
            && let Some(number) = self.free.pop()
            && let Some(remaining) = self.in_flight.waiting.pop_front()
        {
            self.start(remaining, number, lane);
        }
    }

    /// Sends the next chunk of a command as command `number`, or ends the command if that fails.
    fn start(&mut self, remaining: Remaining, number: u16, lane: &mut Lane<'_>) {
        self.repeats[usize::from(number)] = 0;
        self.send(remaining, number, lane);
    }

    fn send(&mut self, remaining: Remaining, number: u16, lane: &mut Lane<'_>) {
        let sent = match (lane.parked(remaining.ticket), lane.parked_entry(remaining.ticket)) {
            (Some(slot), Some(entry)) => match self.loss_status(slot) {
                Some(status) => Err(status),
                None => self.make(slot, entry, remaining, number),
            },
            _ => return self.free.push(number),
        };
        match sent {
            Ok((entry, queue, bytes)) => {
                let mark = self.unflushed.mark();
                self.in_flight
                    .begin(number, InFlight { remaining, bytes, maps: 0, buffer: None, since_ns: 0, mark });
                self.push(&entry, queue, number);
            }
            Err(status) => {
                self.free.push(number);
                finish(remaining.ticket, status, lane);
            }
        }
    }

    /// Returns the status with which a command reports an earlier loss of acknowledged writes.
    fn loss_status(&self, slot: &Slot) -> Option<Status> {
        match self.unflushed.is_lost() {
            true => self.unflushed.take_loss(&raw::effect(slot), &slot.origin),
            false => None,
        }
    }

    /// Returns the entry of the next chunk, its queue, and its bytes; its data is put in `data`.
    fn make(
        &mut self,
        slot: &Slot,
        entry: &SubmissionEntry,
        remaining: Remaining,
        number: u16,
    ) -> Result<(SubmissionEntry, NvmeQueue, u64), Status> {
        self.data.clear();
        if slot.origin.raw {
            return self.make_raw(slot, entry, remaining);
        }
        let RangeHandle { info, range, .. } = &self.handle;
        // The drive may have become smaller while the command waited.
        let chunk = Chunk::next(&slot.request, remaining.done, info, range, self.size)?;
        let bytes = chunk.bytes();
        match chunk.data_kind {
            DataKind::None => Ok(()),
            DataKind::Zeros => self.memory.zeros(bytes, &mut self.data),
            DataKind::Deallocate => self.data.push(self.memory.deallocate(number, &chunk.deallocated())),
            DataKind::Data => {
                let data = if bytes == slot.data.len_bytes() as u64 {
                    &slot.data
                } else {
                    let cut = slot.data.slice(remaining.done as usize, bytes as usize, &mut self.part);
                    cut.expect("a piece lies in its command");
                    &self.part
                };
                self.memory.without_buckets(data, &mut self.data)
            }
        }
        .map_err(|_| Status::INTERNAL_ERROR)?;
        Ok((chunk.entry(), NvmeQueue::Io, bytes))
    }

    fn make_raw(
        &mut self,
        slot: &Slot,
        entry: &SubmissionEntry,
        remaining: Remaining,
    ) -> Result<(SubmissionEntry, NvmeQueue, u64), Status> {
        let RangeHandle { info, range, .. } = &self.handle;
        self.memory.without_buckets(&slot.data, &mut self.data).map_err(|_| Status::INTERNAL_ERROR)?;
        if slot.origin.sq == 0 {
            return Ok((raw::admin(entry, range.nsid)?, NvmeQueue::Admin, 0));
        }
        let (entry, bytes) = raw::made(entry, &slot.request, remaining.done, info, range)?;
        Ok((entry, NvmeQueue::Io, bytes))
    }

    fn push(&mut self, entry: &SubmissionEntry, queue: NvmeQueue, number: u16) {
        let command = NvmeCommand {
            opcode: entry.opcode,
            nsid: entry.nsid,
            cdw2_3: [entry.cdw2, entry.cdw3],
            cdw10_15: [entry.cdw10, entry.cdw11, entry.cdw12, entry.cdw13, entry.cdw14, entry.cdw15],
            timeout_ms: self.timeout_ms,
        };
        let device = match (queue, &self.controller) {
            (NvmeQueue::Admin, Some(controller)) => controller,
            _ => &self.device,
        };
        let token = self.token_prefix | u64::from(number);
        self.control.count_sent(false);
        self.io.nvme((device, queue), &command, self.data.as_slice(), self.task, token);
    }

    /// Handles the kernel's result of a command on the device.
    fn completed(&mut self, number: u16, result: i32, lane: &mut Lane<'_>) {
        let Some(flight) = self.in_flight.end(number) else { return };
        self.control.count_completed(1);
        let outcome = Outcome::of(result);
        self.note_path(outcome);
        let status = match outcome {
            Outcome::Device(status) => {
                self.note_connected(true);
                status
            }
            Outcome::Retry(_) if self.may_repeat(flight.remaining.ticket, number, lane) => {
                return self.send(flight.remaining, number, lane);
            }
            Outcome::Gone => {
                self.note_connected(false);
                Status::INTERNAL_PATH_ERROR
            }
            Outcome::Retry(status) => status,
            Outcome::Refused(status) => {
                self.log_refusal(result);
                status
            }
        };
        self.free.push(number);
        let Some(slot) = lane.parked(flight.remaining.ticket) else { return };
        if status.is_success() {
            self.unflushed.succeeded(&raw::effect(slot), flight.mark);
        }
        let done = flight.remaining.done + flight.bytes;
        if !status.is_success() || done >= slot.request.length {
            return finish(flight.remaining.ticket, status, lane);
        }
        // The command is older than all that wait.
        self.in_flight.waiting.push_front(Remaining { done, ..flight.remaining });
    }

    /// Records a lost path. The kernel reconnects to a controller on the network by itself, and that may have
    /// lost its power meanwhile.
    fn note_path(&mut self, outcome: Outcome) {
        let RangeHandle { info, is_on_fabric, .. } = &self.handle;
        let may_lose = *is_on_fabric && !info.has_kept_power(None);
        if may_lose && outcome.is_of_path() && self.unflushed.reconnected() {
            let path = self.path.display();
            tracing::error!(%path, "the connection was lost: acknowledged writes that were not flushed may be, too");
        }
    }

    fn may_repeat(&mut self, ticket: Ticket, number: u16, lane: &Lane<'_>) -> bool {
        let repeats = &mut self.repeats[usize::from(number)];
        *repeats += 1;
        *repeats <= REPEATS_MAX && lane.parked(ticket).is_none_or(raw::may_be_repeated)
    }

    /// Logs a refusal once, since a host can cause any number of them.
    fn log_refusal(&mut self, result: i32) {
        if !std::mem::replace(&mut self.refusal_logged, true) {
            let error = io::Error::from_raw_os_error(-result);
            tracing::warn!(path = %self.path.display(), %error, "the kernel refuses an NVMe command");
        }
    }

    fn note_connected(&mut self, connected: bool) {
        if self.connected != connected {
            self.connected = connected;
            self.control.set_connected(connected);
            let path = self.path.display();
            match connected {
                true => tracing::info!(%path, "the NVMe device is there again"),
                false => tracing::error!(%path, "the NVMe device is gone: its commands fail"),
            }
        }
    }
}

impl Layer for Target {
    fn name(&self) -> &'static str {
        "nvme"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        let given = self.info().characteristics(&self.handle.range.blocks);
        let passthrough = self.passthrough;
        self.passes.limit(Characteristics { size: self.size, passthrough, ..given })
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        if let Err(status) = self.passes.check(&slot.request).and_then(|()| slot.check(self.size)) {
            return lane.finish(command, status);
        }
        if self.info().is_done(&slot.request) {
            return lane.finish(command, Status::SUCCESS);
        }
        let ticket = lane.park(command);
        self.start_or_wait(Remaining { ticket, done: 0 }, lane);
    }

    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        if let Err(status) = raw::check(lane.slot(&command), &self.passthrough, self.size) {
            return lane.finish(command, status);
        }
        let ticket = lane.park(command);
        self.start_or_wait(Remaining { ticket, done: 0 }, lane);
    }

    fn is_idle(&self) -> bool {
        self.in_flight.count() == 0 && self.in_flight.waiting.is_empty()
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        if let Ok(number) = u16::try_from(ticket.0) {
            self.completed(number, result, lane);
            self.start_waiting(lane);
        }
    }

    fn resized(&mut self, size: u64) {
        self.size = size.min(self.handle.range.bytes());
    }
}
