//! The file target: a file or block device through io_uring.
//!
//! I/O is direct where the kernel reports its requirements and the data meets them. It goes through staging
//! buffers where the data does not meet them, and through the page cache where there is no direct I/O. A
//! short transfer continues with the rest, and is an error if it cannot: it is never success.
//!
//! A command is parked for as long as it is here. Its [`Work`] holds its next stage. Each stage is one
//! operation in flight, under the command's ticket.

mod abort;
mod alignment;
mod chunks;
mod conflicts;
mod control;
mod device;
mod engine;
mod error;
mod failure_log;
mod format;
mod lease;
mod open;
mod outcome;
mod probe;
mod shared_sync;
mod shorten;
mod staging;
mod storage;
mod sync;
mod ways;
mod work;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Deallocated, Lane, Layer, Operation, Request, Slot,
    Storage, Ticket,
};
use sluice_memory::{Segment, SegmentList};
use sluice_nvme::Status;
use sluice_reactor::{FallocateFlags, FileSlot, Io, TaskId, WriteFlags};

use alignment::Alignment;
use chunks::ChunkQueue;
use conflicts::Conflicts;
pub use control::FileControl;
pub use error::FileError;
use failure_log::FailureLog;
use open::{DeviceProperties, Kind, Lock};
pub use open::{FileConfig, NoSpace, PreparedFile, probe_lease};
use outcome::{Outcome, may_be_a_flush, media_error};
pub use probe::{FileIdentity, FileProbe};
use staging::{BUFFER_BYTES, Staging};
pub use storage::storage_at;
use sync::Syncs;
use work::{SYNC_TICKET, Stage, Work, WorkTable};

/// Interval between retries of writes that found the file system full, ns.
const SPACE_RETRY_NS: u64 = 1_000_000_000;
/// Bytes of a Deallocate that ends soon. Hosts send a thousand at a time, one for each entry of a queue, with
/// a timeout of 30 s each. A thousand take 4 s on ext4 with an extent for every 8 KiB, at 60 us each. On a
/// busy machine they take a third of the timeout.
const DEALLOCATE_LIMIT: u64 = 512 << 10;
/// Maximum number of immediate retries of an operation on which the kernel did nothing.
const REPEATS_MAX: u8 = 16;

/// A file or block device as a target.
#[derive(Debug)]
pub struct File {
    opened: Opened,
    io: Io,
    task: TaskId,
    /// Bits of this layer's tokens beside the 32 bits of a ticket.
    token_prefix: u64,
    size: u64,
    /// Block size of the namespace, bytes.
    block_size: u32,
    works: WorkTable,
    conflicts: Conflicts,
    chunks: ChunkQueue,
    syncs: Syncs,
    /// Times in a row that an fdatasync had to be retried.
    sync_repeats: u8,
    /// Time at which the next fdatasync may begin, if not now.
    sync_ns: Option<u64>,
    staging: Staging,
    /// Commands that found the file system full; `space_retry_ns`: time of their next attempt.
    without_space: Vec<Ticket>,
    space_retry_ns: Option<u64>,
    /// Whether the file system supports `FALLOC_FL_ZERO_RANGE`, and hole punching, as far as it has not
    /// refused them.
    zeroes_ranges: bool,
    punches: bool,
    /// Whether a write beyond the limit of file sizes was logged.
    told_too_long: bool,
    failure_log: FailureLog,
    /// Scratch lists, kept for their memory.
    rest: SegmentList,
    answered: Vec<Ticket>,
}

/// Properties of an open file that stay the same while it is open.
#[derive(Debug)]
struct Opened {
    data: FileSlot,
    sync: FileSlot,
    lock: Arc<Lock>,
    control: FileControl,
    path: std::path::PathBuf,
    direct: Option<Alignment>,
    kind: Kind,
    no_space: NoSpace,
    optimal_write: u32,
    /// Whether holes can be punched, and read as zeros.
    punches: bool,
    read_only: bool,
    storage: Storage,
    properties: DeviceProperties,
    reach: Option<u64>,
}

impl PreparedFile {
    /// Builds the target, on its reactor's thread. `token_prefix` holds the bits of this layer's tokens
    /// beside their low 32 bits, which are the ticket.
    ///
    /// # Errors
    /// Fails if the reactor has no room for two more files, or the system has no memory for the buffers.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<File> {
        let (size, syncs) = (self.size(), Syncs::new(Arc::clone(&self.control.syncs)));
        let block_size = self.control.block_size.load(Relaxed);
        let opened = Opened {
            data: io.register_file(self.data)?,
            sync: io.register_file(self.sync)?,
            lock: self.lock,
            control: self.control,
            path: self.path,
            direct: self.direct,
            kind: self.kind,
            no_space: self.no_space,
            optimal_write: self.optimal_write,
            punches: self.punches,
            read_only: self.read_only,
            storage: self.storage,
            properties: self.properties,
            reach: self.reach,
        };
        io.report(&opened.sync, syncs.results());
        Ok(File {
            opened,
            io: io.clone(),
            task,
            token_prefix,
            size,
            block_size,
            works: WorkTable::default(),
            conflicts: Conflicts::default(),
            chunks: ChunkQueue::new(self.kind),
            syncs,
            sync_repeats: 0,
            sync_ns: None,
            staging: Staging::new()?,
            without_space: Vec::new(),
            space_retry_ns: None,
            zeroes_ranges: true,
            punches: self.punches,
            told_too_long: false,
            failure_log: FailureLog::default(),
            rest: SegmentList::new(),
            answered: Vec::new(),
        })
    }
}

impl Opened {
    /// Returns the unit of offsets and lengths, bytes.
    fn unit(&self) -> u64 {
        self.direct.map_or(1, |alignment| u64::from(alignment.unit))
    }
}

impl File {
    /// Returns the effect of Deallocate, as it was announced when the file was opened.
    fn deallocated(&self) -> Deallocated {
        match (self.opened.kind, self.opened.punches) {
            (Kind::Regular, true) => Deallocated::Zeroes,
            // A device without support reports that only on the first attempt, and then old data stays.
            (Kind::BlockDevice, _) => Deallocated::Indeterminate,
            (Kind::Regular, false) => Deallocated::Unsupported,
        }
    }

    /// Checks a command before it goes to the kernel: it must lie in the drive, and the lease must be held.
    fn admit(&self, slot: &Slot, now_ns: u64) -> Result<(), Status> {
        if let Some(lease) = self.opened.lock.lease()
            && !lease.is_held(now_ns)
        {
            lease.report_lost();
            // Another daemon may have the storage now, and be another path of the host.
            return Err(Status::INTERNAL_PATH_ERROR);
        }
        self.check(slot)
    }

    /// Checks that a command lies in the drive. A file that other targets use, too, may have grown.
    #[inline]
    fn check(&self, slot: &Slot) -> Result<(), Status> {
        match slot.check(self.size) {
            Err(_) if self.opened.reach.is_some() => slot.check(self.opened.control.size.load(Relaxed)),
            checked => checked,
        }
    }

    /// Returns whether neither the kernel nor the device orders commands that overlap in a block.
    fn orders(&self) -> bool {
        self.opened.direct.is_none_or(|it| it.unit.max(self.opened.properties.atomic) < self.block_size)
    }

    /// Adds a command to the conflicts, where nothing else orders overlapping ones. Returns whether it must
    /// wait.
    fn must_wait(&mut self, ticket: Ticket, request: &Request) -> bool {
        request.operation != Operation::Flush && self.orders() && self.conflicts.enter(ticket, request)
    }
}

impl Layer for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        let block_size = self.opened.unit().max(512) as u32;
        let optimal = self.opened.optimal_write;
        let usable = optimal.is_power_of_two() && optimal > block_size;
        Characteristics {
            optimal_write: if usable { optimal } else { block_size },
            volatile_cache: self.opened.properties.volatile_cache,
            deallocated: self.deallocated(),
            deallocate_limit: DEALLOCATE_LIMIT,
            read_only: self.opened.read_only,
            storage: self.opened.storage,
            ..Characteristics::target(self.opened.reach.unwrap_or(self.size), block_size)
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        if let Err(status) = self.check(slot) {
            return lane.finish(command, status);
        }
        if self.opened.read_only && slot.request.operation.modifies() {
            return lane.finish(command, Status::NAMESPACE_WRITE_PROTECTED);
        }
        let Some(stage) = self.first_stage(slot) else {
            return lane.finish(command, Status::SUCCESS);
        };
        let request = slot.request;
        let ticket = lane.park(command);
        *self.works.of(ticket) = Work { stage, ticket: Some(ticket), ..Work::default() };
        if !self.must_wait(ticket, &request) {
            self.start(ticket, lane);
            self.start_ready(lane);
        }
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        match ticket {
            SYNC_TICKET => self.sync_answer(result, lane),
            _ => self.answer(ticket, result, lane),
        }
        self.start_ready(lane);
    }

    fn deadline_ns(&self) -> Option<u64> {
        [self.space_retry_ns, self.sync_ns].into_iter().flatten().min()
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.space_retry_ns.is_some_and(|retry_ns| retry_ns <= lane.now_ns()) {
            self.retry_without_space(lane);
        }
        if self.sync_ns.is_some_and(|sync_ns| sync_ns <= lane.now_ns()) {
            self.sync_ns = None;
            self.begin_sync(lane);
        }
        self.start_ready(lane);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.fail_without_space(of, why, lane);
        self.start_ready(lane);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_early(which, why, lane);
        self.start_ready(lane);
    }

    fn is_idle(&self) -> bool {
        self.works.tickets().next().is_none() && self.syncs.is_idle()
    }

    fn resized(&mut self, size: u64) {
        self.size = size.min(self.opened.control.size.load(Relaxed));
        self.works.await_beyond(self.size, &self.opened.control.beyond);
    }

    fn formatted(&mut self, block_size: u32) {
        self.block_size = block_size;
        self.opened.control.block_size.store(block_size, Relaxed);
    }
}
