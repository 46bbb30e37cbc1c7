//! Requests of the function's own: the superblock, sectors, blocks to settle, and zeros.

use super::Checksum;
use super::cache::Load;
use super::format::{self, BLOCK, Found, SECTOR, SUPERBLOCK};
use crate::services::service::send;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Data, Done, Io};

/// Purposes of requests, in the highest byte of a token.
const SUPER_READ: u64 = 1;
const SUPER_WRITE: u64 = 2;
/// Sector; its number is in the rest of the token.
const SECTOR_READ: u64 = 3;
const SECTOR_WRITE: u64 = 4;
/// Block of a command: its number is in the low half, and that of the block in the step above it.
const SETTLE: u64 = 5;
const ZERO: u64 = 6;

const NUMBER: u64 = (1 << 56) - 1;

/// Nanoseconds after which old checksums are dropped on the disk, too.
const TICK_NS: u64 = 2_000_000_000;

fn request(operation: Operation, offset: u64, length: u64) -> Request {
    let fua = operation != Operation::Read;
    Request { operation, fua, deallocate: operation == Operation::WriteZeroes, offset, length }
}

impl Checksum {
    /// Sends a request with a buffer, which `fill` fills. A request that cannot be sent ends with an error.
    fn send(&mut self, request: Request, token: u64, fill: impl FnOnce(&mut [u8]), io: &mut Io<'_>) {
        let data = match request.has_data() {
            true => io.buffer(request.length as usize).map_or(Data::None, |buffer| {
                fill(io.bytes(&buffer));
                Data::Own(buffer)
            }),
            false => Data::None,
        };
        if !send(io, 0, request, data, token) {
            self.request_done(Done { token, status: Status::INTERNAL_ERROR, buffer: None }, io);
        }
    }

    /// Sends a request when there is room.
    fn send_later(&mut self, request: Request, token: u64, io: &mut Io<'_>) {
        self.unsent.push_back((request, token));
        self.send_waiting(io);
    }

    /// Sends the requests that wait for room.
    pub(super) fn send_waiting(&mut self, io: &mut Io<'_>) {
        while io.has_room()
            && let Some((request, token)) = self.unsent.pop_front()
        {
            self.send(request, token, |_| {}, io);
        }
    }

    pub(super) fn read_superblock(&mut self, io: &mut Io<'_>) {
        self.send_later(request(Operation::Read, 0, SUPERBLOCK as u64), SUPER_READ << 56, io);
    }

    fn opened(&mut self, bytes: &[u8], io: &mut Io<'_>) {
        match format::read_superblock(bytes) {
            Found::Good { salt, layout } if layout.sectors <= self.layout.sectors => {
                (self.salt, self.layout, self.is_open) = (salt, layout, true);
                io.ready(Status::SUCCESS);
            }
            Found::Good { .. } => self.refuse("the layer below has become smaller", io),
            Found::Blank if self.is_new => {
                let (salt, layout) = (self.salt, self.layout);
                let write = request(Operation::Write, 0, SUPERBLOCK as u64);
                let fill = |bytes: &mut [u8]| format::write_superblock(bytes, salt, layout);
                self.send(write, SUPER_WRITE << 56, fill, io);
            }
            Found::Blank => self.refuse("the layer below was written to, and has no checksums", io),
            Found::Other => self.refuse("the layer below holds something else", io),
        }
    }

    pub(super) fn read_sector(&mut self, number: u64, io: &mut Io<'_>) {
        let read = request(Operation::Read, self.layout.sector_at(number), 2 * SECTOR as u64);
        self.send_later(read, SECTOR_READ << 56 | number, io);
    }

    /// Writes a sector if it has changes. Returns whether the change with this count is durable.
    pub(super) fn store_sector(&mut self, number: u64, needed: u64, io: &mut Io<'_>) -> bool {
        let (salt, at) = (self.salt, self.layout.sector_at(number));
        let Some(sector) = self.cache.get(number) else { return true };
        if sector.stored >= needed && needed > 0 || sector.made == sector.stored {
            return true;
        }
        if sector.issued.is_some() || !io.has_room() {
            return false;
        }
        sector.issued = Some(sector.made);
        sector.sequence += 1;
        format::seal(&mut sector.bytes, salt, number, sector.sequence);
        let at = at + sector.sequence % 2 * SECTOR as u64;
        let bytes = sector.bytes.clone();
        let write = request(Operation::Write, at, bytes.len() as u64);
        self.send(write, SECTOR_WRITE << 56 | number, |to| to.copy_from_slice(&bytes), io);
        false
    }

    pub(super) fn read_block(&mut self, id: u32, block: u64, io: &mut Io<'_>) {
        let read = request(Operation::Read, self.layout.data_at() + block * BLOCK, BLOCK);
        let within = block - self.ops.list[id as usize].step.start;
        self.send_later(read, SETTLE << 56 | within << 32 | u64::from(id), io);
    }

    pub(super) fn write_zeroes(&mut self, id: u32, from: u64, to: u64, io: &mut Io<'_>) {
        let write = request(Operation::WriteZeroes, self.layout.data_at() + from, to - from);
        self.send_later(write, ZERO << 56 | u64::from(id), io);
    }

    /// Takes a request back.
    pub(super) fn request_done(&mut self, done: Done, io: &mut Io<'_>) {
        let good = done.status.is_success();
        let number = done.token & NUMBER;
        let id = done.token as u32;
        let bytes = done.buffer.as_ref().filter(|_| good).map(|buffer| io.bytes(buffer).to_vec());
        done.buffer.into_iter().for_each(|buffer| io.release(buffer));
        match (done.token >> 56, bytes) {
            (SUPER_READ, Some(bytes)) => self.opened(&bytes, io),
            (SUPER_WRITE, _) if good => {
                self.is_open = true;
                io.ready(Status::SUCCESS);
            }
            (SUPER_READ | SUPER_WRITE, _) => self.refuse("the superblock cannot be read or written", io),
            (SECTOR_READ, bytes) => {
                let salt = self.salt;
                let found = bytes.as_ref().and_then(|bytes| format::latest(bytes, salt, number));
                self.bad_sectors += u64::from(found.is_none());
                if let Some(sector) = self.cache.get(number) {
                    sector.load = if found.is_some() { Load::Good } else { Load::Bad };
                    let (sequence, bytes) = found.unwrap_or_default();
                    (sector.sequence, sector.bytes) = (sequence, bytes.to_vec());
                }
            }
            (SECTOR_WRITE, _) => self.sector_written(number, good, io),
            (SETTLE, bytes) => {
                let block = self.ops.list[id as usize].step.start + (number >> 32);
                self.settled(id, block, bytes.as_deref());
            }
            (_, _) => self.zeroed(id, done.status, io),
        }
    }

    fn sector_written(&mut self, number: u64, good: bool, io: &mut Io<'_>) {
        if let Some(sector) = self.cache.get(number) {
            let issued = sector.issued.take().unwrap_or_default();
            if good {
                sector.stored = issued;
            }
        }
        if !good {
            self.store_failed(number, io);
        }
    }

    /// Stores sectors without old checksums when they are not in use.
    pub(super) fn tick(&mut self, io: &mut Io<'_>) {
        if !self.is_open {
            return;
        }
        let unstored = self.cache.unstored();
        if unstored.is_empty() {
            self.tick_ns = None;
        } else if *self.tick_ns.get_or_insert(io.now_ns() + TICK_NS) <= io.now_ns() {
            self.tick_ns = Some(io.now_ns() + TICK_NS);
            for number in unstored {
                self.store_sector(number, 0, io);
            }
        }
        let retry_ns = (!self.ops.are_idle()).then(|| io.now_ns() + TICK_NS);
        io.wake_at([self.tick_ns, retry_ns].into_iter().flatten().min());
    }
}
