//! Checksum: each block of the drive has a CRC-32C of its data and its place, which is compared when it is read.
//!
//! The checksums lie in front of the data, many in a sector. A write first stores the new checksum beside the
//! old one, durable, and then the data, durable, too. So after a power cut a block has one of both. A block
//! that has neither was torn, misdirected, or has changed by itself: it is read with an error, and a mirror or
//! parity above takes the data from elsewhere.

mod cache;
mod format;
mod ops;
mod requests;

use crate::services::service::{Changes, Item, Metric, NoOrder, OnLoss, Service, SizeOf, check_options};
use cache::Cache;
use format::Layout;
use ops::{Kind, Ops};
use sluice_command::{Operation, Request};
use sluice_crypt::Given;
use sluice_nvme::Status;
use sluice_uif::abi::operation;
use sluice_uif::{Answer, Call, Done, Function, Interest, Io, Options, Properties};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Bytes of memory for sectors on their way.
const POOL: u32 = 1 << 20;

/// Stages of a command: its checksums are computed; it goes below; it comes back.
const UPDATE: u8 = 1;
const GO: u8 = 2;
const BACK: u8 = 3;

/// Function with its checksums.
#[derive(Debug)]
pub(super) struct Checksum {
    layout: Layout,
    /// Number that all checksums begin with. A new one, until the superblock was read.
    salt: u64,
    is_open: bool,
    is_new: bool,
    cache: Cache,
    ops: Ops,
    /// Blocks that were read and had other checksums.
    mismatches: u64,
    /// Sectors that could not be relied on.
    bad_sectors: u64,
    tick_ns: Option<u64>,
    /// Requests without data of their own that wait for room, with their tokens.
    unsent: VecDeque<(Request, u64)>,
}

impl Service for Checksum {
    const NAME: &'static str = "checksum";
    const ABOUT: &'static str =
        "Keeps a checksum of each block, and fails reads of blocks that have changed.";
    const OPTIONS: &'static [Item] = &[];
    const METRICS: &'static [Metric] = &[
        Metric { name: "mismatches_total", about: "Blocks that were read and had another checksum." },
        Metric { name: "bad_sectors_total", about: "Sectors of checksums that could not be relied on." },
    ];
    const ON_LOSS: OnLoss = OnLoss::Through;

    type Order = NoOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        check_options::<Self>(options)?;
        Ok(Box::new(Self::new()))
    }

    fn size(_: &Options) -> Option<SizeOf> {
        Some(SizeOf::new(|sizes| Layout::of(sizes.first().copied().unwrap_or_default()).drive_bytes()))
    }

    fn changes() -> Changes {
        Changes { stays: Some("the data lies behind the checksums"), ..Changes::default() }
    }

    fn data(_: &Options) -> Option<String> {
        Some("checksum".to_owned())
    }
}

impl Checksum {
    fn new() -> Self {
        Self {
            layout: Layout::default(),
            salt: RandomState::new().hash_one("checksums") | 1,
            is_open: false,
            is_new: false,
            cache: Cache::default(),
            ops: Ops::default(),
            mismatches: 0,
            bad_sectors: 0,
            tick_ns: None,
            unsent: VecDeque::new(),
        }
    }

    fn refuse(&mut self, why: &str, io: &mut Io<'_>) {
        tracing::error!("checksum does not serve: {why}");
        io.ready(Status::NAMESPACE_NOT_READY);
    }
}

impl Function for Checksum {
    fn properties(&self) -> Properties {
        let interests = [Interest::Before; operation::COUNT];
        Properties { interests, pool: POOL, block_size: format::BLOCK as u32, ..Properties::NONE }
    }

    fn start(&mut self, io: &mut Io<'_>) {
        let layer = io.layers().first().copied().unwrap_or_default();
        let layout = Layout::of(layer.size);
        if self.is_open {
            let fits = layout.sectors >= self.layout.sectors;
            return io.ready(if fits { Status::SUCCESS } else { Status::NAMESPACE_NOT_READY });
        }
        (self.layout, self.is_new) = (layout, layer.is_new);
        match layout.sectors {
            0 => self.refuse("the layer below is too small", io),
            _ => self.read_superblock(io),
        }
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let request = call.request;
        let blocks = request.offset / format::BLOCK..request.end().div_ceil(format::BLOCK);
        if !self.is_open || blocks.end * format::BLOCK > self.layout.drive_bytes() {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        let kind = match request.operation {
            Operation::Read => Kind::Read,
            Operation::Write => Kind::Write,
            // Its own writes are durable when they are done. Earlier ones may have ended with a process.
            Operation::Flush => return Answer::Forward,
            _ => Kind::Zero,
        };
        call.cookie[0] = self.queue(kind, blocks, call.hold()).into();
        self.run(io);
        Answer::Hold
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let id = call.cookie[0] as u32;
        let answer = match call.stage {
            UPDATE => {
                self.update(id, call.data);
                Answer::Hold
            }
            GO => {
                call.request.offset += self.layout.data_at();
                call.request.fua |= call.request.operation == Operation::Write;
                Answer::ForwardAndReturn(BACK)
            }
            _ => Answer::Finish(self.back(id, call)),
        };
        self.run(io);
        answer
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        self.request_done(done, io);
        self.run(io);
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        self.run(io);
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        count("mismatches_total", self.mismatches);
        count("bad_sectors_total", self.bad_sectors);
    }
}

#[cfg(test)]
mod tests;
