//! Requests of the function's own: their tokens, and the queues in which they wait for room.

use super::LocalCache;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Data, Done, Held, Io, Part};
use std::collections::VecDeque;

/// Most requests to one layer at a time. So a layer that does not answer leaves room for the other one.
const IN_FLIGHT: u32 = 30;

/// Purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Part of the command with this number, to a layer.
    Piece(u32, u8),
    /// Write of data that was read from the drive.
    Fill(u32),
    /// Flush of the cache's device, and write of the image with this number.
    DeviceFlush,
    Table(u32),
    /// Flush of the drive.
    DriveFlush,
    /// Read of a part of the batch with this number, and the write of the whole batch.
    BatchRead(u32),
    BatchWrite(u32),
    /// Next request of an opening.
    Open,
    /// Write of the superblock with the number of other storage.
    Identity,
}

impl Job {
    fn token(self) -> u64 {
        let (kind, layer, id) = match self {
            Self::Piece(id, layer) => (1, layer, id),
            Self::Fill(id) => (2, 0, id),
            Self::DeviceFlush => (3, 0, 0),
            Self::Table(id) => (4, 0, id),
            Self::DriveFlush => (5, 0, 0),
            Self::BatchRead(id) => (6, 0, id),
            Self::BatchWrite(id) => (7, 0, id),
            Self::Open => (8, 0, 0),
            Self::Identity => (9, 0, 0),
        };
        kind << 40 | u64::from(layer) << 32 | u64::from(id)
    }

    fn of_token(token: u64) -> Self {
        let (layer, id) = ((token >> 32) as u8, token as u32);
        match token >> 40 {
            1 => Self::Piece(id, layer),
            2 => Self::Fill(id),
            3 => Self::DeviceFlush,
            4 => Self::Table(id),
            5 => Self::DriveFlush,
            6 => Self::BatchRead(id),
            7 => Self::BatchWrite(id),
            8 => Self::Open,
            _ => Self::Identity,
        }
    }
}

/// Data of a request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    None,
    /// Data of a command, from this byte on.
    Of(Held, usize),
    Part(Part),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Unsent {
    pub(super) request: Request,
    pub(super) data: Source,
    pub(super) job: Job,
}

/// Requests to the two layers.
#[derive(Debug, Default)]
pub(super) struct Queues {
    unsent: [VecDeque<Unsent>; 2],
    in_flight: [u32; 2],
}

impl Queues {
    pub(super) fn push(&mut self, layer: u8, request: Request, data: Source, job: Job) {
        self.unsent[usize::from(layer)].push_back(Unsent { request, data, job });
    }
}

pub(super) fn request(operation: Operation, offset: u64, length: u64, fua: bool) -> Request {
    Request { operation, fua, deallocate: false, offset, length }
}

impl LocalCache {
    /// Sends the requests that wait for room.
    pub(super) fn send_waiting(&mut self, io: &mut Io<'_>) {
        for layer in [super::DEVICE, super::DRIVE] {
            let index = usize::from(layer);
            while io.has_room()
                && self.queues.in_flight[index] < IN_FLIGHT
                && let Some(Unsent { request, data, job }) = self.queues.unsent[index].pop_front()
            {
                let data = match data {
                    Source::None => Data::None,
                    Source::Of(held, at) => Data::Of(held, at),
                    Source::Part(part) => Data::Part(part),
                };
                self.queues.in_flight[index] += 1;
                if io.request(layer, request, data, job.token() | u64::from(layer) << 48).is_err() {
                    let token = job.token() | u64::from(layer) << 48;
                    self.request_done(Done { token, status: Status::INTERNAL_ERROR, buffer: None }, io);
                }
            }
        }
    }

    /// Handles a status that reports a loss of acknowledged writes to a layer.
    pub(super) fn note_loss(&mut self, layer: u8, status: Status, io: &mut Io<'_>) {
        match (status.same_code(Status::WRITES_LOST), layer) {
            (true, super::DRIVE) => self.drive_reports_loss(io),
            (true, _) => self.device_lost(io),
            (false, _) => {}
        }
    }

    /// Takes a request back.
    pub(super) fn request_done(&mut self, done: Done, io: &mut Io<'_>) {
        let layer = (done.token >> 48) as usize & 1;
        self.queues.in_flight[layer] -= 1;
        let status = done.status;
        let job = Job::of_token(done.token & ((1 << 48) - 1));
        // The ends of flushes and of an opening handle a loss themselves.
        if !matches!(job, Job::DeviceFlush | Job::DriveFlush | Job::Open) {
            self.note_loss(layer as u8, status, io);
        }
        match job {
            Job::Piece(id, layer) => self.piece_done(id, layer, status, io),
            Job::Fill(id) => self.fill_done(id, status, io),
            Job::DeviceFlush => self.device_flushed(status, io),
            Job::Table(id) => self.table_written(id, status, io),
            Job::DriveFlush => self.drive_flushed(status, io),
            Job::BatchRead(id) => self.batch_read(id, status, io),
            Job::BatchWrite(id) => self.batch_written(id, status, io),
            Job::Open => self.open_done(status, io),
            Job::Identity => self.identity_stored(status, io),
        }
    }
}
