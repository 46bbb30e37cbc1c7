//! Local cache: a fast device in front of a slow or remote drive.
//!
//! Layer 0 is the drive, and layer 1 is the cache's device. The device has *slots* of one *line* each, and a table of
//! the sectors in them that the drive does not have. A write in write-back mode goes into a slot. It is
//! acknowledged when the table on the device names its sectors, so no end of a process loses it. A flush of the
//! device makes both durable. Dirty data goes to the drive in the background, and is clean when the drive has
//! flushed it. In write-through mode the drive has each write before it is acknowledged.
//!
//! Only dirty sectors are named on the device. After a restart nothing else is in the cache, so no old copy is
//! ever read. A failure of the device sends writes to the drive.

mod back;
mod commit;
mod control;
mod dirty;
mod finish;
mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod open;
mod ops;
mod requests;
mod route;
mod settings;
mod slots;
mod table;

use crate::layers::cache::Streams;
use crate::services::service::{Changes, Farewell, Item, Metric, OnLoss, Service};
use back::Back;
use commit::Commit;
use control::{CacheOrder, CacheStatus};
use finish::Next;
use format::Geometry;
use open::{Identity, Opening};
use ops::{Kind, Ops, Stage};
use requests::Queues;
use route::Piece;
use settings::{Mode, Settings};
use slots::Slots;
use sluice_command::Operation;
use sluice_crypt::Given;
use sluice_nvme::Status;
use sluice_uif::abi::operation;
use sluice_uif::{Answer, Below, Call, Control, Done, Function, Interest, Io, Options, Properties};
use std::hash::{BuildHasher, RandomState};

/// Bytes of memory for data on its way to the cache and to the drive.
const POOL: u32 = 4 << 20;

/// Stages of a command: it begins; it comes back; its data goes into the cache.
const GO: u8 = 1;
const BACK: u8 = 2;
const FILL: u8 = 3;

/// Numbers of the layers below.
const DRIVE: u8 = 0;
const DEVICE: u8 = 1;

/// State of the function.
#[derive(Debug)]
enum Phase {
    /// The layers below are not known yet, or the cache cannot be used.
    Closed,
    /// Commands from before the cache was refused come back. It is opened then.
    Draining,
    Opening(Box<Opening>),
    Open,
    /// The device could not be read or written. It is tried again at this time.
    Failed {
        again_ns: u64,
    },
}

/// Use of the cache, as an operator chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attach {
    Attached,
    /// Dirty data goes to the drive, and no new one comes.
    Detaching,
    Detached,
}

/// Function with its cache.
#[derive(Debug)]
pub(super) struct LocalCache {
    settings: Settings,
    phase: Phase,
    /// Whether the daemon was sent whether the function serves.
    is_announced: bool,
    /// Reason for which the function does not serve.
    error: String,
    geometry: Geometry,
    drive: Below,
    device: Below,
    identity: Identity,
    slots: Slots,
    ops: Ops,
    /// Pieces of the command that is being planned.
    pieces: Vec<Piece>,
    queues: Queues,
    commit: Commit,
    back: Back,
    reads: Streams,
    writes: Streams,
    attach: Attach,
    /// Order that is answered later, and the time until which it waits.
    order: Option<(CacheOrder, u64)>,
    /// Whether an operator ordered that all dirty data is written, which is not over.
    is_ordered: bool,
    /// Whether the device failed a moment ago, and the end of that moment.
    is_failing: bool,
    failing_until_ns: u64,
    /// Whether writes to the drive, and into slots, were acknowledged since the last flush.
    drive_unflushed: bool,
    device_unflushed: bool,
    /// Whether acknowledged writes may be lost, and no Flush has failed for them.
    owes_flush: bool,
    /// Count of writes that have ended.
    acknowledged: u64,
    /// Bytes of data that is being written into the cache after reads.
    filling: usize,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    bypassed: u64,
    cached_writes: u64,
    direct_writes: u64,
    fallbacks: u64,
    fills: u64,
    written_back: u64,
    cycles: u64,
    device_errors: u64,
    back_errors: u64,
}

impl Service for LocalCache {
    const NAME: &'static str = "local-cache";
    const ABOUT: &'static str =
        "Keeps data of a slow drive on a fast device, with write-back or write-through.";
    const OPTIONS: &'static [Item] = &[
        Item {
            name: "mode",
            about: "`write-back` acknowledges a write when the cache has it, `write-through` when the drive \
                    has it. Needed.",
        },
        Item { name: "line", about: "Bytes of a line of a new cache: 16KiB, 32KiB, or `64KiB` by default." },
        Item {
            name: "sequential",
            about: "Bytes after which a sequence of reads or writes bypasses the cache, `4MiB` by default.",
        },
        Item { name: "dirty", about: "Part of the lines that may have dirty data, `75%` by default." },
        Item {
            name: "rate",
            about: "Bytes in a second that are written back while the host is active, `64MiB` by default.",
        },
    ];
    const ORDERS: &'static [Item] = &[
        Item { name: "status", about: "Returns the state of the cache, in JSON." },
        Item { name: "flush", about: "Writes all dirty data to the drive, and answers then." },
        Item {
            name: "detach",
            about: "Writes all dirty data to the drive, and stops caching: the drive is complete without it.",
        },
        Item { name: "attach", about: "Begins to cache again after `detach`." },
    ];
    const METRICS: &'static [Metric] = &[
        Metric { name: "hits_total", about: "Reads that the cache had all data of." },
        Metric { name: "misses_total", about: "Reads that needed the drive." },
        Metric { name: "bypassed_total", about: "Reads of long sequences that needed the drive." },
        Metric {
            name: "cached_writes_total",
            about: "Writes that went into the cache, in whole or in part.",
        },
        Metric { name: "direct_writes_total", about: "Writes that went to the drive, in whole or in part." },
        Metric {
            name: "fallbacks_total",
            about: "Writes that went to the drive because the cache's device failed.",
        },
        Metric { name: "fills_total", about: "Runs of sectors that were put into the cache after a read." },
        Metric { name: "written_back_bytes_total", about: "Bytes of dirty data written to the drive." },
        Metric { name: "table_cycles_total", about: "Flushes of the cache's device, each with its table." },
        Metric { name: "device_errors_total", about: "Failures of the cache's device." },
        Metric { name: "write_back_errors_total", about: "Failures to write dirty data to the drive." },
        Metric { name: "dirty_bytes", about: "Bytes of dirty data, which the drive does not have." },
        Metric { name: "lines", about: "Lines that the cache has room for." },
        Metric { name: "lines_used", about: "Lines in the cache." },
    ];
    const LAYERS: (usize, usize) = (1, 1);
    // Clean sectors that the drive has lost, and slots whose last write is lost, must not be read any more.
    const ON_LOSS: OnLoss = OnLoss::FailCommand;
    const ON_LOSS_IN: OnLoss = OnLoss::FailCommand;

    type Order = CacheOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Self::new(Settings::of(options)?)))
    }

    fn keeps_size(_: &Options) -> bool {
        true
    }

    fn changes() -> Changes {
        Changes {
            detached: Some(Farewell {
                order: CacheOrder::Detach.to_string(),
                undo: CacheOrder::Attach.to_string(),
                status: CacheOrder::Status.to_string(),
                is_given: |status| Ok(CacheStatus::parse(status)?.state == "detached"),
            }),
            ..Changes::default()
        }
    }
}

impl LocalCache {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            phase: Phase::Closed,
            is_announced: false,
            error: String::new(),
            geometry: Geometry::default(),
            drive: Below::default(),
            device: Below::default(),
            identity: Identity::default(),
            slots: Slots::default(),
            ops: Ops::default(),
            pieces: Vec::new(),
            queues: Queues::default(),
            commit: Commit::default(),
            back: Back::default(),
            reads: Streams::new(settings.sequential),
            writes: Streams::new(settings.sequential),
            attach: Attach::Attached,
            order: None,
            is_ordered: false,
            is_failing: false,
            failing_until_ns: 0,
            drive_unflushed: true,
            device_unflushed: true,
            owes_flush: false,
            acknowledged: 0,
            filling: 0,
            counts: Counts::default(),
        }
    }

    /// Returns the geometry of a new cache.
    fn new_geometry(&self) -> Geometry {
        let id = RandomState::new().hash_one("a new cache") | 1;
        Geometry::of(self.device.size, self.settings.line, id)
    }

    /// Stops for a reason that only an operator can remove.
    fn refuse(&mut self, why: &str, io: &mut Io<'_>) {
        tracing::error!("local-cache does not serve: {why}");
        why.clone_into(&mut self.error);
        self.phase = Phase::Closed;
        self.is_announced = true;
        self.fail_order(why, io);
        self.fail_waiting(io);
        // The layer returns the commands under way only to a function that is ready. `submit` fails later ones.
        let has_commands = self.ops.active.iter().any(|id| self.ops.list[*id as usize].held.is_some());
        io.ready(if has_commands { Status::SUCCESS } else { Status::NAMESPACE_NOT_READY });
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Returns whether writes go to the drive before they are acknowledged.
    fn is_through(&self) -> bool {
        self.settings.mode == Mode::WriteThrough || self.attach != Attach::Attached
    }

    /// Returns whether new lines are put into the cache.
    fn fills(&self) -> bool {
        self.attach == Attach::Attached && !self.is_failing
    }

    /// Returns the most slots with dirty data.
    fn dirty_limit(&self) -> u64 {
        (u64::from(self.geometry.slots) * self.settings.dirty / 100).max(1)
    }

    /// Continues all work that can go on.
    fn run(&mut self, io: &mut Io<'_>) {
        if self.is_failing && self.failing_until_ns <= io.now_ns() {
            self.is_failing = false;
            // The table may differ from the slots.
            self.commit.request();
            if self.is_open() {
                self.store_identity(io);
            }
        }
        match self.phase {
            Phase::Open => {
                self.admit(io);
                self.write_back(io);
                self.answer_order(io);
                self.begin_cycle(io);
            }
            Phase::Draining if self.is_drained() => self.begin_open(io),
            Phase::Closed | Phase::Draining => self.fail_held(io),
            Phase::Opening(_) | Phase::Failed { .. } => {}
        }
        self.send_waiting(io);
        self.set_alarm(io);
    }

    /// Returns whether nothing uses the slots any more.
    fn is_drained(&self) -> bool {
        let is_storing = self.commit.is_busy() || self.is_storing();
        self.ops.active.is_empty() && !is_storing && !self.back.is_busy()
    }

    fn set_alarm(&mut self, io: &mut Io<'_>) {
        let at_ns = match self.phase {
            Phase::Failed { again_ns } => Some(again_ns),
            Phase::Open => {
                let failing_ns = self.is_failing.then_some(self.failing_until_ns);
                let order_ns = self.order.map(|(_, until_ns)| until_ns);
                let times = [failing_ns, order_ns, self.back_alarm_ns(io.now_ns())];
                times.into_iter().flatten().min()
            }
            _ => None,
        };
        io.wake_at(at_ns);
    }

    /// Begins an active command.
    fn go(&mut self, id: u32, call: &mut Call<'_>) -> Answer {
        self.op(id).held = Some(call.hold());
        self.op(id).stage = Stage::Below;
        match self.op(id).kind {
            Kind::Flush => match self.begin_flush(id) {
                Some(status) => {
                    self.close(id);
                    Answer::Finish(status)
                }
                None => Answer::Hold,
            },
            Kind::Read | Kind::Write => self.begin_transfer(id, call),
            _ => {
                (self.op(id).left, self.op(id).sent, self.op(id).layer) = (1, 1, DRIVE);
                call.request = self.op(id).request;
                Answer::ForwardAndReturn(BACK)
            }
        }
    }

    /// Takes a command back from below.
    fn back(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let layer = self.op(id).layer;
        self.op(id).held = Some(call.hold());
        self.note_loss(layer, call.status, io);
        self.note_piece(id, layer, call.status);
        match self.settle(id, io) {
            Next::Finish(status) => {
                self.close(id);
                Answer::Finish(status)
            }
            Next::Wait => Answer::Hold,
            Next::Fill => self.fill_and_end(id, call, io),
        }
    }

    fn fill_and_end(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        self.fill(id, call.data, io);
        self.close(id);
        Answer::Finish(Status::SUCCESS)
    }
}

impl Function for LocalCache {
    fn properties(&self) -> Properties {
        Properties { pool: POOL, interests: [Interest::Before; operation::COUNT], ..Properties::NONE }
    }

    fn start(&mut self, io: &mut Io<'_>) {
        let (size, block_size) = (self.drive.size, self.drive.block_size);
        let layer = |number: usize| io.layers().get(number).copied().unwrap_or_default();
        (self.drive, self.device) = (layer(0), layer(1));
        let fit_blocks = self.device.block_size <= self.drive.block_size;
        match self.phase {
            _ if self.drive.block_size as usize > format::BLOCK => {
                self.refuse("the drive has blocks of more than 4096 bytes", io);
            }
            _ if !fit_blocks => self.refuse("the cache's device has larger blocks than the drive", io),
            _ if self.drive.size > format::DRIVE_MAX => {
                self.refuse("the drive is larger than 64 TiB, the most that a cache can have", io);
            }
            Phase::Open if self.is_other_drive() => self.refuse(open::OTHER_DRIVE, io),
            Phase::Open if !self.slots.has_whole_blocks(self.drive.block_size.into()) => {
                self.refuse(open::LARGER_BLOCKS, io);
            }
            Phase::Open if self.geometry.end() <= self.device.size => {
                self.slots.lines.grow(self.drive.size.div_ceil(self.geometry.line));
                if self.drive.size < size || self.drive.block_size != block_size {
                    self.slots.shrink(self.geometry.line, self.drive.size);
                    self.slots.drop_clean();
                    self.commit.request();
                }
                self.store_identity(io);
                io.ready(Status::SUCCESS);
            }
            Phase::Open => self.refuse("the cache's device has become smaller", io),
            Phase::Closed | Phase::Failed { .. } => self.phase = Phase::Draining,
            Phase::Draining | Phase::Opening(_) => self.is_announced = false,
        }
        self.run(io);
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let request = call.request;
        self.back.host_ns = io.now_ns();
        if !matches!(self.phase, Phase::Open | Phase::Opening(_) | Phase::Draining)
            || request.end() > self.drive.size
        {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        let (kind, is_sequential) = match request.operation {
            Operation::Read => (Kind::Read, self.reads.note(request.offset, request.length)),
            Operation::Write => (Kind::Write, self.writes.note(request.offset, request.length)),
            Operation::Flush => (Kind::Flush, false),
            Operation::WriteZeroes | Operation::Deallocate => (Kind::Zero, false),
        };
        let id = self.ops.open(kind, request, Some(call.hold()));
        self.op(id).is_sequential = is_sequential;
        call.cookie[0] = id.into();
        let answer = if self.can_begin(id) {
            self.ops.active.push(id);
            self.go(id, call)
        } else {
            self.ops.waiting.push_back(id);
            Answer::Hold
        };
        self.run(io);
        answer
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let id = call.cookie[0] as u32;
        let answer = match call.stage {
            GO => self.go(id, call),
            FILL => self.fill_and_end(id, call, io),
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
            self.phase = Phase::Draining;
        }
        self.run(io);
    }

    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        let answer = self.execute(text, io);
        self.run(io);
        answer
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        let counts = &self.counts;
        count("hits_total", counts.hits);
        count("misses_total", counts.misses);
        count("bypassed_total", counts.bypassed);
        count("cached_writes_total", counts.cached_writes);
        count("direct_writes_total", counts.direct_writes);
        count("fallbacks_total", counts.fallbacks);
        count("fills_total", counts.fills);
        count("written_back_bytes_total", counts.written_back);
        count("table_cycles_total", counts.cycles);
        count("device_errors_total", counts.device_errors);
        count("write_back_errors_total", counts.back_errors);
        count("dirty_bytes", self.slots.dirty().1 * format::SECTOR);
        count("lines", self.geometry.slots.into());
        count("lines_used", self.slots.used() as u64);
    }
}

#[cfg(test)]
mod tests;
