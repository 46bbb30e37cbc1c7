//! Commands on their way, from the lock of their bytes to their end.

use super::{FILL, GO, LocalCache};
use sluice_command::Request;
use sluice_nvme::Status;
use sluice_uif::{Buffer, Held, Io};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of waiting commands that one pass looks at.
const LOOKS: usize = 64;

/// Slot of a part that has none.
pub(super) const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Read,
    Write,
    /// Write Zeroes or Deallocate.
    Zero,
    Flush,
    /// Write of data that was read from the drive into the cache.
    Fill,
    /// Write of dirty data to the drive.
    WriteBack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not in use.
    #[default]
    Over,
    /// The command waits for others on its bytes.
    Waiting,
    /// The command, or requests with its data, are below.
    Below,
    /// The command waits until the table on the disk names its sectors, at the earliest after this cycle.
    Tables(u64),
    /// The command waits for the flush of the drive with this number.
    Drive(u64),
    /// The command waits for the flush of the cache's device in this cycle, with so many changes of the table.
    Device(u64, u64),
}

/// Way of a part of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Cache,
    Direct,
    Both,
}

/// Part of a command in one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinePart {
    pub(super) slot: u32,
    /// Sectors of a write; sectors of a read that the cache does not have.
    pub(super) mask: u128,
    pub(super) route: Route,
}

#[derive(Debug, Default)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) request: Request,
    pub(super) bytes: Range<u64>,
    pub(super) held: Option<Held>,
    pub(super) stage: Stage,
    pub(super) parts: Vec<LinePart>,
    /// Requests that were sent, and those of them that are below.
    pub(super) sent: u32,
    pub(super) left: u32,
    /// First failures of the drive and of the cache's device.
    pub(super) failed: [Option<Status>; 2],
    /// Layer of a command that was forwarded.
    pub(super) layer: u8,
    /// Whether a write goes past the cache, because a write into it has failed.
    pub(super) is_direct: bool,
    /// Whether a read is part of a long sequence.
    pub(super) is_sequential: bool,
    pub(super) tries: u8,
    /// Acknowledged writes when a Flush began.
    pub(super) acknowledged: u64,
    /// Whether the drive lost writes meanwhile: a read does not fill the cache, and a write is sent again.
    pub(super) is_drive_lost: bool,
    pub(super) buffer: Option<Buffer>,
}

impl Op {
    /// Returns whether a read may take data from the cache.
    pub(super) fn is_cached_read(&self) -> bool {
        self.kind == Kind::Read && self.parts.iter().any(|part| part.slot != NO_SLOT)
    }

    /// Returns whether a write puts data into the cache.
    pub(super) fn is_cached_write(&self) -> bool {
        self.kind == Kind::Write && self.parts.iter().any(|part| part.route != Route::Direct)
    }
}

#[derive(Debug, Default)]
pub(super) struct Ops {
    pub(super) list: Vec<Op>,
    free: Vec<u32>,
    pub(super) waiting: VecDeque<u32>,
    pub(super) active: Vec<u32>,
}

impl Ops {
    pub(super) fn open(&mut self, kind: Kind, request: Request, held: Option<Held>) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.list.push(Op::default());
            (self.list.len() - 1) as u32
        });
        let op = &mut self.list[id as usize];
        let parts = std::mem::take(&mut op.parts);
        let bytes = if kind == Kind::Flush { 0..0 } else { request.offset..request.end() };
        *op = Op { kind, request, bytes, held, stage: Stage::Waiting, parts, ..Op::default() };
        id
    }

    /// Returns whether two operations must not be under way together.
    fn conflict(&self, one: u32, other: u32, is_through: bool) -> bool {
        let (one, other) = (&self.list[one as usize], &self.list[other as usize]);
        if one.bytes.start >= other.bytes.end || other.bytes.start >= one.bytes.end {
            return false;
        }
        let passes =
            |op: &Op| op.kind == Kind::Zero || op.kind == Kind::Write && (op.is_direct || is_through);
        match (one.kind, other.kind) {
            (Kind::WriteBack, _) => passes(other),
            (_, Kind::WriteBack) => passes(one),
            (Kind::Read | Kind::Fill, Kind::Read | Kind::Fill) => false,
            _ => true,
        }
    }

    /// Returns whether an operation has to wait for another one, of the first `ahead` waiting ones too.
    pub(super) fn is_blocked(&self, id: u32, ahead: usize, is_through: bool) -> bool {
        let earlier = self.waiting.iter().take(ahead);
        self.active.iter().chain(earlier).any(|other| *other != id && self.conflict(id, *other, is_through))
    }

    /// Returns whether no write into the cache alone is under way.
    pub(super) fn are_writes_over(&self) -> bool {
        let is_write =
            |op: &Op| op.kind == Kind::Write && op.parts.iter().any(|part| part.route == Route::Cache);
        !self.active.iter().any(|id| is_write(&self.list[*id as usize]))
    }

    pub(super) fn close(&mut self, id: u32) {
        let op = &mut self.list[id as usize];
        op.stage = Stage::Over;
        op.held = None;
        op.parts.clear();
        self.active.retain(|other| *other != id);
        self.free.push(id);
    }

    /// Has an active command wait again, in front of all others.
    fn wait_again(&mut self, id: u32) {
        let op = &mut self.list[id as usize];
        op.stage = Stage::Waiting;
        op.failed = [None; 2];
        op.is_drive_lost = false;
        self.active.retain(|other| *other != id);
        self.waiting.push_front(id);
    }
}

impl LocalCache {
    pub(super) fn op(&mut self, id: u32) -> &mut Op {
        &mut self.ops.list[id as usize]
    }

    /// Returns whether a command that was just submitted can begin.
    pub(super) fn can_begin(&self, id: u32) -> bool {
        let ahead = self.ops.waiting.len();
        self.is_open() && ahead < LOOKS && !self.ops.is_blocked(id, ahead, self.is_through())
    }

    /// Begins the waiting commands that can.
    pub(super) fn admit(&mut self, io: &mut Io<'_>) {
        let (mut index, mut looks) = (0, 0);
        while index < self.ops.waiting.len() && looks < LOOKS {
            looks += 1;
            let id = self.ops.waiting[index];
            let Some(held) = self.ops.list[id as usize].held else { break };
            if self.ops.is_blocked(id, index, self.is_through()) {
                index += 1;
                continue;
            }
            self.ops.waiting.remove(index);
            self.ops.active.push(id);
            self.op(id).stage = Stage::Below;
            io.resume(held, GO, Status::SUCCESS);
        }
    }

    /// Releases the slots of an operation.
    pub(super) fn unpin(&mut self, id: u32) {
        let (op, slots) = (&mut self.ops.list[id as usize], &mut self.slots);
        for part in op.parts.drain(..).filter(|part| part.slot != NO_SLOT) {
            let slot = slots.get_mut(part.slot);
            slot.pins -= 1;
            slot.writers -= u32::from(op.kind == Kind::Write);
        }
    }

    /// Has a command begin anew, when nothing of it is below.
    pub(super) fn begin_again(&mut self, id: u32) {
        self.unpin(id);
        self.ops.wait_again(id);
    }

    /// Ends an operation. Its command is finished by the caller.
    pub(super) fn close(&mut self, id: u32) {
        // A Flush that began before does not cover the write.
        self.acknowledged += u64::from(matches!(self.op(id).kind, Kind::Write | Kind::Zero));
        self.unpin(id);
        self.ops.close(id);
    }

    /// Ends a command that is not below.
    pub(super) fn finish(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        if let Some(held) = self.op(id).held.take() {
            io.finish(held, status);
        }
        self.close(id);
    }

    /// Fails all commands that wait.
    pub(super) fn fail_waiting(&mut self, io: &mut Io<'_>) {
        while let Some(id) = self.ops.waiting.pop_front() {
            self.finish(id, Status::NAMESPACE_NOT_READY, io);
        }
    }

    /// Fails the commands that wait for a flush or for the table of a cache that does not serve.
    pub(super) fn fail_held(&mut self, io: &mut Io<'_>) {
        self.fail_waiting(io);
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            if matches!(self.op(id).stage, Stage::Tables(_) | Stage::Drive(_) | Stage::Device(..)) {
                self.finish(id, Status::NAMESPACE_NOT_READY, io);
            }
        }
    }

    /// Has a read that is done copy its data for the cache.
    pub(super) fn fill_later(&mut self, id: u32, io: &mut Io<'_>) {
        if let Some(held) = self.op(id).held {
            io.resume(held, FILL, Status::SUCCESS);
        }
    }
}
