//! Atomic: a write up to a limit is done as a whole or not at all, over any layers.
//!
//! Layer 0 is the data, and layer 1 is the log. A write that the data's layer could tear is stored in a slot of
//! the log first, durable, and then goes to its place. It is acknowledged when it is there. When the function is
//! opened it writes all entries of the log to their places again that may not be durable there, in the order
//! of their sequence numbers. An entry that is torn itself is dropped: its write was not begun.
//!
//! Commands on the same bytes are executed one after the other, so no read sees a part of a write. After a failed
//! write, or a loss of writes below, commands wait until the log was written to the places again.

mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod log;
mod ops;
mod recover;
mod requests;

use crate::services::service::{Changes, Item, Metric, NoOrder, OnLoss, Service, check_options};
use crate::services::store::parse_bytes;
use format::Geometry;
use log::Log;
use ops::{Kind, Ops};
use recover::Recovery;
use requests::{Checkpoint, Job};
use sluice_command::Operation;
use sluice_crypt::Given;
use sluice_nvme::Status;
use sluice_uif::abi::operation;
use sluice_uif::{Answer, Below, Call, Done, Function, Interest, Io, Options, Properties};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Bytes of memory for entries on their way.
const POOL: u32 = 4 << 20;

/// Bytes of the largest atomic write, unless an option sets others.
const LIMIT: u64 = 64 << 10;

/// Stages of a command: its data is copied into its entry; it goes below; it comes back.
const FILL: u8 = 1;
const GO: u8 = 2;
const BACK: u8 = 3;

/// Numbers of the layers below.
const DATA: u8 = 0;
const LOG: u8 = 1;

/// State of the function.
#[derive(Debug)]
enum Phase {
    /// The layers below are not known yet, or the log cannot be used.
    Closed,
    /// A write failed, or writes below are lost: the requests under way come back.
    Draining,
    /// The log is being read and written to the places.
    Recovering(Recovery),
    Open,
    /// The log could not be read or written to the places. It is tried again at this time.
    Failed {
        again_ns: u64,
    },
}

/// Function with its log.
#[derive(Debug)]
pub(super) struct Atomic {
    limit: u64,
    phase: Phase,
    /// Whether the daemon was sent that the function serves.
    is_announced: bool,
    /// Time at which the last recovery began.
    began_ns: u64,
    geometry: Geometry,
    data: Below,
    log_layer: Below,
    log: Log,
    ops: Ops,
    checkpoint: Checkpoint,
    /// Number of the copy of the superblock that was written last.
    newest_copy: u8,
    /// Storage of the data that this copy has, and that of the copy that is being written.
    stored_id: u128,
    storing_id: u128,
    /// Time at which the present entries are retired.
    tick_ns: Option<u64>,
    /// Time until which no superblock is written, after a failure.
    refused_until_ns: Option<u64>,
    /// Whether writes below were lost, and no Flush has failed for them.
    owes_flush: bool,
    /// Number of such losses.
    losses: u64,
    /// Requests that wait for room.
    unsent: VecDeque<Job>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    logged: u64,
    straight: u64,
    replayed: u64,
    dropped: u64,
    checkpoints: u64,
    waits: u64,
}

/// Parses the options. Returns the limit in bytes.
fn limit_of(options: &Options) -> Result<u64, String> {
    check_options::<Atomic>(options)?;
    let limit = options.get("limit").map_or(Some(LIMIT), parse_bytes);
    let is_possible = |limit: &u64| {
        (format::LIMIT_MIN..=format::LIMIT_MAX).contains(limit) && limit.is_multiple_of(format::LIMIT_MIN)
    };
    limit.filter(is_possible).ok_or_else(|| "limit is a multiple of 4KiB, from 4KiB to 1020KiB".to_owned())
}

impl Service for Atomic {
    const NAME: &'static str = "atomic";
    const ABOUT: &'static str =
        "Makes each write up to a limit whole: after any crash it is there or it is not.";
    const OPTIONS: &'static [Item] =
        &[Item { name: "limit", about: "Bytes of the largest atomic write, `64KiB` by default." }];
    const METRICS: &'static [Metric] = &[
        Metric { name: "logged_total", about: "Writes that went through the log." },
        Metric { name: "straight_total", about: "Writes that needed no log." },
        Metric {
            name: "replayed_total",
            about: "Entries of the log that were written to their places again.",
        },
        Metric { name: "dropped_total", about: "Entries of the log that were torn, and dropped." },
        Metric { name: "checkpoints_total", about: "Flushes of the data that freed slots of the log." },
        Metric { name: "waits_total", about: "Commands that waited for the log." },
        Metric { name: "slots", about: "Slots of the log." },
        Metric { name: "slots_used", about: "Slots whose entries may not be durable at their places." },
    ];
    const LAYERS: (usize, usize) = (1, 1);
    const ON_LOSS: OnLoss = OnLoss::FailCommand;

    type Order = NoOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Self::new(limit_of(options)?)))
    }

    fn keeps_size(_: &Options) -> bool {
        true
    }

    fn atomic_write(options: &Options) -> Option<u32> {
        limit_of(options).ok().map(|limit| limit as u32)
    }

    fn changes() -> Changes {
        Changes { stays: Some("its log may have writes that are not durable yet"), ..Changes::default() }
    }
}

impl Atomic {
    fn new(limit: u64) -> Self {
        Self {
            limit,
            phase: Phase::Closed,
            is_announced: false,
            began_ns: 0,
            geometry: Geometry::default(),
            data: Below::default(),
            log_layer: Below::default(),
            log: Log::default(),
            ops: Ops::default(),
            checkpoint: Checkpoint::Idle,
            newest_copy: 1,
            stored_id: 0,
            storing_id: 0,
            tick_ns: None,
            refused_until_ns: None,
            owes_flush: false,
            losses: 0,
            unsent: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the geometry of a new log.
    fn new_geometry(&self) -> Geometry {
        let id = RandomState::new().hash_one("a new log") | 1;
        Geometry::of(self.log_layer.size, self.limit, id)
    }

    /// Stops for a reason that only an operator can remove.
    fn refuse(&mut self, why: &str, io: &mut Io<'_>) {
        tracing::error!("atomic does not serve: {why}");
        self.phase = Phase::Closed;
        self.is_announced = false;
        self.fail_waiting(io);
        io.ready(Status::NAMESPACE_NOT_READY);
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Moves everything on, as far as it comes.
    fn run(&mut self, io: &mut Io<'_>) {
        self.begin_recovery_if_drained(io);
        if self.is_open() {
            self.admit(io);
            self.begin_checkpoint(io);
        }
        self.send_waiting(io);
        self.begin_recovery_if_drained(io);
        self.set_alarm(io);
    }
}

impl Function for Atomic {
    fn properties(&self) -> Properties {
        Properties { pool: POOL, interests: [Interest::Before; operation::COUNT], ..Properties::NONE }
    }

    fn start(&mut self, io: &mut Io<'_>) {
        let layer = |number: usize| io.layers().get(number).copied().unwrap_or_default();
        (self.data, self.log_layer) = (layer(0), layer(1));
        let fit_blocks = self.data.block_size.max(self.log_layer.block_size) as usize <= format::BLOCK;
        let slots = u64::from(self.new_geometry().slots);
        match self.phase {
            _ if !fit_blocks => self.refuse("a layer below has blocks of more than 4096 bytes", io),
            _ if slots < format::SLOTS_MIN => {
                let least = format::SUPERBLOCKS as u64 + format::SLOTS_MIN * (self.limit + 4096);
                self.refuse(&format!("the log needs {least} bytes at least"), io);
            }
            Phase::Open if self.geometry.fits(self.log_layer.size) => io.ready(Status::SUCCESS),
            Phase::Open => self.refuse("the log has become smaller", io),
            Phase::Closed | Phase::Failed { .. } => self.begin_recovery(io),
            // The commands of the drive wait here, and not in the layer: it would have none back before the answer.
            Phase::Draining | Phase::Recovering(_) if self.is_announced => io.ready(Status::SUCCESS),
            // It is announced at the end of the recovery.
            Phase::Draining | Phase::Recovering(_) => self.is_announced = false,
        }
        self.run(io);
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let request = call.request;
        let is_possible = matches!(self.phase, Phase::Open | Phase::Draining | Phase::Recovering(_));
        if !is_possible || request.end() > self.data.size {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        let bytes = request.offset..request.end();
        let (kind, bytes) = match request.operation {
            Operation::Read => (Kind::Read, bytes),
            Operation::Write => (Kind::Write, bytes),
            Operation::Flush => (Kind::Flush, 0..0),
            Operation::WriteZeroes | Operation::Deallocate => (Kind::Zero, bytes),
        };
        let id = self.ops.open(kind, bytes, self.losses, call.hold());
        call.cookie[0] = id.into();
        let answer = self.begin(id, call, io);
        self.run(io);
        answer
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let id = call.cookie[0] as u32;
        let answer = match call.stage {
            FILL => self.fill(id, call, io),
            GO => self.go(id, call),
            _ => self.back(id, call, io),
        };
        self.run(io);
        answer
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        self.request_done(done, io);
        self.run(io);
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        if let Phase::Failed { again_ns } = self.phase
            && again_ns <= io.now_ns()
        {
            self.begin_recovery(io);
        }
        self.run(io);
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        let Counts { logged, straight, replayed, dropped, checkpoints, waits } = self.counts;
        count("logged_total", logged);
        count("straight_total", straight);
        count("replayed_total", replayed);
        count("dropped_total", dropped);
        count("checkpoints_total", checkpoints);
        count("waits_total", waits);
        count("slots", self.geometry.slots.into());
        count("slots_used", self.log.used() as u64);
    }
}

#[cfg(test)]
mod tests;
