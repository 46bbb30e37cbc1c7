//! Ways of reads and writes: to the cache, to the drive, or in parts to both.

use super::format::{self, mask};
use super::ops::{Kind, LinePart, NO_SLOT, Route, Stage};
use super::requests::{Job, Source, request};
use super::{Attach, BACK, DEVICE, DRIVE, LocalCache};
use sluice_command::Operation;
use sluice_uif::{Answer, Call};
use std::ops::Range;

/// Part of a command that is one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    layer: u8,
    offset: u64,
    length: u64,
    /// First byte in the data of the command.
    at: u64,
}

/// Parts of a line beyond which a read without dirty sectors takes the whole line from the drive.
const RUNS_MAX: u32 = 2;

impl LocalCache {
    /// Returns the lines of a range, each with its sectors.
    pub(super) fn lines(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, u128)> + use<> {
        let (line, bytes) = (self.geometry.line, bytes.clone());
        (bytes.start / line..bytes.end.div_ceil(line)).map(move |number| {
            let first = number * line;
            let (from, to) = (bytes.start.max(first) - first, bytes.end.min(first + line) - first);
            (number, mask(from, to))
        })
    }

    /// Adds a piece, or makes the last one longer.
    fn add_piece(&mut self, layer: u8, offset: u64, length: u64, at: u64) {
        if let Some(last) = self.pieces.last_mut()
            && (last.layer, last.offset + last.length, last.at + last.length) == (layer, offset, at)
        {
            last.length += length;
            return;
        }
        self.pieces.push(Piece { layer, offset, length, at });
    }

    /// Begins an active read or write.
    pub(super) fn begin_transfer(&mut self, id: u32, call: &mut Call<'_>) -> Answer {
        let (kind, bytes) = (self.op(id).kind, self.op(id).bytes.clone());
        self.pieces.clear();
        for (line, sectors) in self.lines(&bytes) {
            let part = match kind {
                Kind::Read => self.plan_read(line, sectors, &bytes),
                _ => self.plan_write(id, line, sectors, &bytes),
            };
            if part.slot != NO_SLOT {
                let slot = self.slots.get_mut(part.slot);
                slot.pins += 1;
                slot.writers += u32::from(kind == Kind::Write);
            }
            self.op(id).parts.push(part);
        }
        self.send_pieces(id, call)
    }

    fn plan_read(&mut self, line: u64, sectors: u128, bytes: &Range<u64>) -> LinePart {
        let first = line * self.geometry.line;
        let slot = self.slots.of_line(line);
        let (valid, dirty) = slot.map_or((0, 0), |slot| {
            let it = self.slots.get(slot);
            (it.valid & sectors, it.dirty)
        });
        let missing = sectors & !valid;
        let runs = |mask: u128| (mask & !(mask << 1)).count_ones();
        let is_mixed = runs(valid) + runs(missing) > RUNS_MAX && valid & dirty == 0;
        let from_cache = if is_mixed { 0 } else { valid };
        let mut rest = sectors;
        while rest != 0 {
            let is_cached = from_cache >> rest.trailing_zeros() & 1 != 0;
            let same = if is_cached { from_cache } else { !from_cache };
            let Some(run) = format::runs(rest & same).next() else { break };
            let (offset, length) = (first + run.start, run.end - run.start);
            let at = offset - bytes.start;
            match slot {
                Some(slot) if is_cached => {
                    self.add_piece(DEVICE, self.geometry.slot_at(slot) + run.start, length, at);
                }
                _ => self.add_piece(DRIVE, offset, length, at),
            }
            rest &= !mask(run.start, run.end);
        }
        if let Some(slot) = slot.filter(|_| from_cache != 0) {
            self.slots.touch(slot);
        }
        LinePart { slot: slot.unwrap_or(NO_SLOT), mask: missing & !dirty, route: Route::Cache }
    }

    fn plan_write(&mut self, id: u32, line: u64, sectors: u128, bytes: &Range<u64>) -> LinePart {
        let (slot, route) = self.route(id, line, sectors);
        let first = line * self.geometry.line;
        for run in format::runs(sectors) {
            let (offset, length) = (first + run.start, run.end - run.start);
            let at = offset - bytes.start;
            if route != Route::Direct {
                self.add_piece(DEVICE, self.geometry.slot_at(slot) + run.start, length, at);
            }
            if route != Route::Cache {
                self.add_piece(DRIVE, offset, length, at);
            }
        }
        LinePart { slot, mask: sectors, route }
    }

    /// Chooses the way of a part of a write, and its slot.
    fn route(&mut self, id: u32, line: u64, sectors: u128) -> (u32, Route) {
        let (is_direct, is_sequential) = (self.op(id).is_direct, self.op(id).is_sequential);
        let is_through = self.is_through();
        let is_full = self.slots.dirty().0 >= self.dirty_limit() && !is_through;
        let Some(slot) = self.slots.of_line(line) else {
            if is_direct || is_sequential || is_full || !self.fills() {
                return (NO_SLOT, Route::Direct);
            }
            return match self.slots.allocate(line) {
                Some(slot) => self.route_to(slot, sectors, is_through),
                None => (NO_SLOT, Route::Direct),
            };
        };
        if is_direct || self.attach == Attach::Detached {
            return (slot, Route::Direct);
        }
        if is_full && self.slots.is_clean(slot) {
            self.slots.remove(slot);
            return (NO_SLOT, Route::Direct);
        }
        self.slots.touch(slot);
        self.route_to(slot, sectors, is_through)
    }

    fn route_to(&mut self, slot: u32, sectors: u128, is_through: bool) -> (u32, Route) {
        // A flush of the drive that is under way does not cover this write.
        self.slots.unpend(slot, sectors & self.slots.get(slot).valid);
        self.back.forget(slot, sectors);
        (slot, if is_through { Route::Both } else { Route::Cache })
    }

    /// Sends the pieces of a command: one by forwarding it, several as requests with its data.
    fn send_pieces(&mut self, id: u32, call: &mut Call<'_>) -> Answer {
        let op = &mut self.ops.list[id as usize];
        (op.stage, op.left) = (Stage::Below, self.pieces.len() as u32);
        op.sent = op.left;
        let Operation::Read = op.request.operation else {
            self.counts.direct_writes += u64::from(self.pieces.iter().any(|piece| piece.layer == DRIVE));
            self.counts.cached_writes += u64::from(self.pieces.iter().any(|piece| piece.layer == DEVICE));
            return self.send_each(id, call);
        };
        let is_hit = self.pieces.iter().all(|piece| piece.layer == DEVICE);
        match (is_hit, op.is_sequential) {
            (true, _) => self.counts.hits += 1,
            (false, true) => self.counts.bypassed += 1,
            (false, false) => self.counts.misses += 1,
        }
        self.send_each(id, call)
    }

    fn send_each(&mut self, id: u32, call: &mut Call<'_>) -> Answer {
        let op = &mut self.ops.list[id as usize];
        if let [Piece { layer, offset, length, .. }] = self.pieces[..] {
            op.layer = layer;
            call.layer = layer;
            let fua = op.request.fua && layer == DRIVE;
            call.request = request(op.request.operation, offset, length, fua);
            return Answer::ForwardAndReturn(BACK);
        }
        let held = call.hold();
        for piece in self.pieces.drain(..) {
            let Piece { layer, offset, length, at } = piece;
            let fua = op.request.fua && layer == DRIVE;
            let request = request(op.request.operation, offset, length, fua);
            self.queues.push(layer, request, Source::Of(held, at as usize), Job::Piece(id, layer));
        }
        Answer::Hold
    }
}
