//! Commands on their way, from the lock of their blocks to their end.

use super::cache::Load;
use super::format::{self, BLOCK, Sums, ZEROS};
use super::{BACK, Checksum, GO, UPDATE};
use sluice_nvme::Status;
use sluice_uif::{Call, Held, Io};
use std::collections::VecDeque;
use std::ops::Range;

/// Sectors of a step of zeros.
const STEP_SECTORS: u64 = 16;

/// Maximum number of waiting commands that one pass looks at.
const LOOKS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Sectors are being read.
    Load,
    /// Blocks are being read that may have either of two checksums.
    Settle,
    /// The checksums are being computed.
    Update,
    /// Sectors are being written.
    Store,
    /// Data is below.
    Data,
    Over,
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    blocks: Range<u64>,
    /// Blocks of the present step: all, but for zeros.
    pub(super) step: Range<u64>,
    pub(super) held: Held,
    stage: Stage,
    /// Blocks whose checksum is being settled.
    pub(super) left: usize,
    /// Count of changes of each sector that has to be durable.
    needs: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Ops {
    pub(super) list: Vec<Op>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    active: Vec<u32>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ops {
    /// Returns whether two commands must not be under way together.
    fn conflict(&self, one: u32, other: u32) -> bool {
        let (one, other) = (&self.list[one as usize], &self.list[other as usize]);
        let is_read = one.kind == Kind::Read && other.kind == Kind::Read;
        !is_read && overlap(&one.blocks, &other.blocks)
    }

    pub(super) fn are_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }
}

impl Checksum {
    /// Queues a command. Returns its number.
    pub(super) fn queue(&mut self, kind: Kind, blocks: Range<u64>, held: Held) -> u32 {
        let op =
            Op { kind, step: blocks.clone(), blocks, held, stage: Stage::Load, left: 0, needs: Vec::new() };
        let ops = &mut self.ops;
        let id = ops.free.pop().unwrap_or_else(|| {
            ops.list.push(op.clone());
            (ops.list.len() - 1) as u32
        });
        ops.list[id as usize] = op;
        ops.waiting.push_back(id);
        id
    }

    /// Moves all commands on, as far as they come.
    pub(super) fn run(&mut self, io: &mut Io<'_>) {
        loop {
            self.send_waiting(io);
            self.admit(io);
            let mut moved = false;
            for index in 0..self.ops.active.len() {
                moved |= self.advance(self.ops.active[index], io);
            }
            let list = &self.ops.list;
            let over = |id: &u32| list[*id as usize].stage == Stage::Over;
            let ended: Vec<u32> = self.ops.active.iter().copied().filter(over).collect();
            self.ops.active.retain(|id| !over(id));
            self.ops.free.extend(&ended);
            if !moved && ended.is_empty() {
                break;
            }
        }
        self.tick(io);
    }

    fn admit(&mut self, io: &mut Io<'_>) {
        let mut index = 0;
        while self.is_open && index < self.ops.waiting.len().min(LOOKS) {
            let id = self.ops.waiting[index];
            let earlier = self.ops.waiting.iter().take(index);
            if self.ops.active.iter().chain(earlier).any(|other| self.ops.conflict(id, *other)) {
                index += 1;
                continue;
            }
            self.ops.waiting.remove(index);
            self.ops.active.push(id);
            self.begin_step(id, io);
        }
    }

    /// Returns the sectors of a step.
    fn sectors(&self, id: u32) -> Range<u64> {
        let step = &self.ops.list[id as usize].step;
        self.layout.place(step.start).0..self.layout.place(step.end.max(1) - 1).0 + 1
    }

    fn begin_step(&mut self, id: u32, io: &mut Io<'_>) {
        let each = self.layout.per_sector();
        let op = &mut self.ops.list[id as usize];
        if op.kind == Kind::Zero {
            let end = (op.step.start / each + STEP_SECTORS) * each;
            op.step.end = op.blocks.end.min(end);
        }
        op.stage = Stage::Load;
        for number in self.sectors(id) {
            if self.cache.take(number) {
                self.read_sector(number, io);
            }
        }
    }

    /// Moves a command on. Returns whether it did.
    fn advance(&mut self, id: u32, io: &mut Io<'_>) -> bool {
        let sectors = self.sectors(id);
        let op = &self.ops.list[id as usize];
        let (kind, held, step) = (op.kind, op.held, op.step.clone());
        match op.stage {
            Stage::Load => {
                let loads: Vec<Load> =
                    sectors.filter_map(|number| self.cache.get(number).map(|sector| sector.load)).collect();
                if loads.contains(&Load::Reading) {
                    return false;
                }
                if loads.contains(&Load::Bad) {
                    self.end_op(id, Status::UNRECOVERED_READ_ERROR, io);
                    return true;
                }
                match kind {
                    Kind::Read => {
                        self.ops.list[id as usize].stage = Stage::Data;
                        io.resume(held, GO, Status::SUCCESS);
                    }
                    _ => self.settle(id, io),
                }
                true
            }
            Stage::Settle if op.left == 0 => {
                self.ops.list[id as usize].stage = Stage::Update;
                match kind {
                    Kind::Zero => self.update(id, &[]),
                    _ => io.resume(held, UPDATE, Status::SUCCESS),
                }
                true
            }
            Stage::Store => {
                let mut is_stored = true;
                for (index, number) in sectors.enumerate() {
                    let needed = self.ops.list[id as usize].needs.get(index).copied().unwrap_or_default();
                    is_stored &= self.store_sector(number, needed, io);
                }
                if is_stored {
                    self.ops.list[id as usize].stage = Stage::Data;
                    match kind {
                        Kind::Zero => self.write_zeroes(id, step.start * BLOCK, step.end * BLOCK, io),
                        _ => io.resume(held, GO, Status::SUCCESS),
                    }
                }
                is_stored
            }
            _ => false,
        }
    }

    /// Reads the blocks of a write that may have either of two checksums, because the power failed.
    fn settle(&mut self, id: u32, io: &mut Io<'_>) {
        let op = &mut self.ops.list[id as usize];
        (op.stage, op.left) = (Stage::Settle, 0);
        for block in op.step.clone() {
            let sums = self.cache.sums(self.layout, block).unwrap_or_default();
            if sums.new != sums.old {
                self.ops.list[id as usize].left += 1;
                self.read_block(id, block, io);
            }
        }
    }

    /// Sets the checksum of a block that had two: that of the data which is there. A write overwrites other
    /// data.
    pub(super) fn settled(&mut self, id: u32, block: u64, data: Option<&[u8]>) {
        let sums = self.cache.sums(self.layout, block).unwrap_or_default();
        let found = data.map(|data| format::sum(self.salt, block, data));
        let sum = if found == Some(sums.old) { sums.old } else { sums.new };
        self.cache.set_sums(self.layout, block, Sums { new: sum, old: sum });
        self.ops.list[id as usize].left -= 1;
    }

    /// Notes the new checksums of a command beside the old ones.
    pub(super) fn update(&mut self, id: u32, data: &[u8]) {
        let step = self.ops.list[id as usize].step.clone();
        let mut blocks = data.chunks(BLOCK as usize);
        for block in step {
            let new = blocks.next().map_or(ZEROS, |data| format::sum(self.salt, block, data));
            let old = self.cache.sums(self.layout, block).unwrap_or_default().new;
            self.cache.set_sums(self.layout, block, Sums { new, old });
        }
        let sectors = self.sectors(id);
        let op = &mut self.ops.list[id as usize];
        op.stage = Stage::Store;
        op.needs.clear();
        op.needs.extend(sectors.map(|number| self.cache.get(number).map_or(0, |sector| sector.made)));
    }

    /// Takes a command back from below. Returns its status for the host.
    pub(super) fn back(&mut self, id: u32, call: &mut Call<'_>) -> Status {
        debug_assert_eq!(call.stage, BACK);
        let mut status = call.status;
        let step = self.ops.list[id as usize].step.clone();
        if status.is_success() {
            match self.ops.list[id as usize].kind {
                Kind::Read => {
                    for (block, data) in step.clone().zip(call.data.chunks(BLOCK as usize)) {
                        let found = format::sum(self.salt, block, data);
                        let sums = self.cache.sums(self.layout, block);
                        if sums.is_none_or(|sums| found != sums.new && found != sums.old) {
                            self.mismatches += 1;
                            status = Status::UNRECOVERED_READ_ERROR;
                        }
                    }
                }
                _ => self.is_written(&step),
            }
        }
        self.give_sectors(id);
        self.ops.list[id as usize].stage = Stage::Over;
        status
    }

    /// Drops the old checksums of blocks whose new data is durable.
    fn is_written(&mut self, blocks: &Range<u64>) {
        for block in blocks.clone() {
            let Sums { new, .. } = self.cache.sums(self.layout, block).unwrap_or_default();
            self.cache.set_sums(self.layout, block, Sums { new, old: new });
        }
    }

    fn give_sectors(&mut self, id: u32) {
        for number in self.sectors(id) {
            self.cache.give(number);
        }
    }

    /// Ends a step of zeros, and begins the next one.
    pub(super) fn zeroed(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        let step = self.ops.list[id as usize].step.clone();
        if !status.is_success() {
            return self.end_op(id, status, io);
        }
        self.is_written(&step);
        let op = &self.ops.list[id as usize];
        if step.end >= op.blocks.end {
            return self.end_op(id, Status::SUCCESS, io);
        }
        self.give_sectors(id);
        let op = &mut self.ops.list[id as usize];
        op.step = step.end..op.blocks.end;
        self.begin_step(id, io);
    }

    /// Ends a command that is not below.
    pub(super) fn end_op(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        self.give_sectors(id);
        let op = &mut self.ops.list[id as usize];
        op.stage = Stage::Over;
        io.finish(op.held, status);
    }

    /// Fails the commands that wait for a sector to be stored.
    pub(super) fn store_failed(&mut self, number: u64, io: &mut Io<'_>) {
        for index in 0..self.ops.active.len() {
            let id = self.ops.active[index];
            let is_waiting = self.ops.list[id as usize].stage == Stage::Store;
            if is_waiting && self.sectors(id).contains(&number) {
                // The data is still the old one.
                let step = self.ops.list[id as usize].step.clone();
                for block in step {
                    let Sums { old, .. } = self.cache.sums(self.layout, block).unwrap_or_default();
                    self.cache.set_sums(self.layout, block, Sums { new: old, old });
                }
                self.end_op(id, Status::WRITE_FAULT, io);
            }
        }
    }
}
