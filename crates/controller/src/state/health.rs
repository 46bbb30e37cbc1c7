//! Counters and errors for the health and error logs (Base 5.16.1.2, 5.16.1.3).
//!
//! They live as long as the controller. Only the counters of [`power`](crate::state::power) survive a restart of the
//! daemon.

use crate::state::limits::TRANSFER_MAX;
use crate::state::power::PowerCounts;
use crate::state::remote_queues::tally::{Tallies, Tally};
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_command::{Operation, Origin, Request};
use sluice_nvme::log::{ErrorInformation, SmartHealth};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::{FromZeros, IntoBytes, transmute};

/// Entries of the Error Information log; Identify's ELPE is one less.
pub(crate) const ERROR_ENTRIES: usize = 64;

/// Constant temperature in kelvins (40 degrees Celsius), since there is nothing to measure.
pub(crate) const COMPOSITE_TEMPERATURE: u16 = 313;

/// Identify's WCTEMP, kelvins.
pub(crate) const WARNING_TEMPERATURE: u16 = 343;

/// Identify's CCTEMP, kelvins.
pub(crate) const CRITICAL_TEMPERATURE: u16 = 353;

/// Effort of a command, of a segment of its data, and of a list that is walked in vain. The unit is bytes
/// that are moved in about the same time.
const COMMAND_EFFORT: u64 = 4 << 10;

const SEGMENT_EFFORT: u64 = 128;

const LIST_EFFORT: u64 = 64 << 10;

/// Operations that a record may count.
const OPERATIONS_MAX: usize = 64;

const NS_PER_MINUTE: u64 = 60_000_000_000;

const NS_PER_MS: u64 = 1_000_000;

/// Last errors of one controller.
#[derive(Clone, Debug)]
pub(crate) struct ErrorLog {
    /// Entries, the newest first.
    errors: VecDeque<ErrorInformation>,
    /// Errors ever recorded.
    count: u64,
}

/// Counters of a subsystem.
#[derive(Debug)]
pub(crate) struct Health {
    /// Counters of the queues that are here.
    here: Counts,
    /// Further effort of a turn in bytes: steps of commands with several steps, and work that takes time and
    /// moves little.
    effort: u64,
    power: Power,
    busy: Busy,
    /// Counters of remote queues.
    pub(crate) remote: Tallies,
}

/// Results of I/O commands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Successful commands and their bytes, by operation.
    pub(crate) succeeded: [Moved; Self::OPERATIONS],
    pub(crate) failed: u64,
    pub(crate) media_errors: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) commands: u64,
    pub(crate) bytes: u64,
}

/// Power state. A drive is switched on by the first enable after a reset from outside. That stands for a new
/// client, or for a machine that was switched on.
#[derive(Clone, Copy, Debug, Default)]
struct Power {
    /// Controllers that are on.
    on: u32,
    /// Time at which the drive was first switched on.
    since_ns: Option<u64>,
    cycles: u64,
    unsafe_shutdowns: u64,
}

/// Controller busy time in whole minutes: a minute counts if an I/O command was taken in it. The
/// specification's definition, the time with a command outstanding, would cost two clock readings for each
/// command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) minutes: u64,
    pub(crate) minute_ends_ns: u64,
}

impl ErrorLog {
    pub(crate) fn new() -> Self {
        Self { errors: VecDeque::with_capacity(ERROR_ENTRIES), count: 0 }
    }

    /// Adds an entry for a failed command to the Error Information log.
    #[cold]
    pub(crate) fn command(&mut self, entry: &SubmissionEntry, origin: &Origin, status: Status) {
        let mut error = ErrorInformation::new(status);
        error.sq_id = origin.sq;
        error.cid = origin.cid;
        error.nsid = entry.nsid;
        error.opcode = entry.opcode;
        error.lba = if origin.sq != 0 { first_lba(entry) } else { 0 };
        error.parameter_location = parameter_location(status);
        self.record(error);
    }

    /// Adds an entry for an invalid doorbell write, which is no command's error.
    pub(crate) fn doorbell(&mut self, queue: u16) {
        tracing::debug!(queue, "invalid doorbell write");
        self.record(ErrorInformation::new(Status::INVALID_QUEUE_IDENTIFIER));
    }

    /// Adds an entry for an expired Keep Alive Timer.
    pub(crate) fn keep_alive(&mut self) {
        self.record(ErrorInformation::new(Status::KEEP_ALIVE_TIMEOUT_EXPIRED));
    }

    fn record(&mut self, mut error: ErrorInformation) {
        self.count += 1;
        error.error_count = self.count;
        self.errors.truncate(ERROR_ENTRIES - 1);
        self.errors.push_front(error);
    }

    /// Adds entries that were recorded by another controller, as if they were new.
    pub(crate) fn append(&mut self, other: Self) {
        self.count += other.count - other.errors.len() as u64;
        other.errors.into_iter().rev().for_each(|error| self.record(error));
    }

    /// Returns the number of errors ever recorded.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the Error Information log, the newest entry first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &ErrorInformation> {
        self.errors.iter()
    }
}

impl Counts {
    /// Number of operations.
    pub(crate) const OPERATIONS: usize = Operation::Deallocate as usize + 1;

    pub(crate) fn add(&mut self, other: &Self) {
        for (moved, more) in self.succeeded.iter_mut().zip(&other.succeeded) {
            moved.commands += more.commands;
            moved.bytes = moved.bytes.wrapping_add(more.bytes);
        }
        self.failed += other.failed;
        self.media_errors += other.media_errors;
    }

    fn of(&self, operation: Operation) -> Moved {
        self.succeeded[operation as usize]
    }
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            here: Counts::default(),
            effort: 0,
            power: Power::default(),
            busy: Busy::default(),
            remote: Tallies::default(),
        }
    }

    /// Returns the health of a remote controller, with this busy time of its drive.
    pub(crate) fn of_remote(busy: Busy) -> Self {
        Self { busy, ..Self::new() }
    }

    /// Counts a step of a command with several steps. A target does no more at once than the largest
    /// transfer.
    pub(crate) fn step(&mut self, request: &Request) {
        self.add_effort(request.length.clamp(COMMAND_EFFORT, TRANSFER_MAX.into()));
    }

    /// Counts commands that were taken.
    #[inline]
    pub(crate) fn count_taken(&mut self, commands: u32) {
        self.add_effort(u64::from(commands) * COMMAND_EFFORT);
    }

    /// Counts segments that are to be moved.
    #[inline]
    pub(crate) fn count_segments(&mut self, segments: usize) {
        self.add_effort(segments as u64 * SEGMENT_EFFORT);
    }

    /// Counts work that took as long as the walk of a list.
    pub(crate) fn note_effort(&mut self) {
        self.add_effort(LIST_EFFORT);
    }

    #[inline]
    fn add_effort(&mut self, bytes: u64) {
        self.effort = self.effort.wrapping_add(bytes);
    }

    /// Counts a finished I/O command.
    #[inline]
    pub(crate) fn completed(&mut self, request: &Request, status: Status) {
        if status.is_success() {
            let moved = &mut self.here.succeeded[request.operation as usize];
            moved.commands += 1;
            // A host can deallocate 16 TiB in a microsecond, as often as it likes, so this may wrap.
            moved.bytes = moved.bytes.wrapping_add(request.length);
        } else {
            self.here.failed += 1;
            self.here.media_errors += u64::from(is_media_error(status));
        }
    }

    /// Counts finished I/O commands of one operation that succeeded.
    #[inline]
    pub(crate) fn succeeded(&mut self, operation: Operation, commands: u64, bytes: u64) {
        let moved = &mut self.here.succeeded[operation as usize];
        moved.commands += commands;
        moved.bytes = moved.bytes.wrapping_add(bytes);
    }

    /// Adds the counters of a group that is back, since [`busy_time`](Self::busy_time) was handed over.
    pub(crate) fn take_back(&mut self, tally: &Arc<Tally>) {
        let (counts, busy) = self.remote.end(tally);
        self.here.add(&counts);
        // A minute in which both were busy counts once.
        self.busy.minutes = self.busy.minutes.max(busy.minutes);
        self.busy.minute_ends_ns = self.busy.minute_ends_ns.max(busy.minute_ends_ns);
    }

    pub(crate) fn busy_time(&self) -> Busy {
        self.busy
    }

    /// Returns the counters of the queues that are here.
    pub(crate) fn here(&self) -> &Counts {
        &self.here
    }

    /// Returns the counters of all queues, remote ones included.
    fn counts(&self) -> Counts {
        let mut counts = self.here;
        self.remote.add_to(&mut counts);
        counts
    }

    /// Returns the bytes that commands of queues here have moved, zeroed or deallocated, with further effort
    /// in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.here.succeeded.iter().fold(self.effort, |sum, moved| sum.wrapping_add(moved.bytes))
    }

    /// Returns the number of commands that may have changed stored data, failed ones included.
    pub(crate) fn modifications(&self) -> u64 {
        let changing = [Operation::Write, Operation::WriteZeroes, Operation::Deallocate];
        let counts = self.counts();
        counts.failed + changing.iter().map(|it| counts.of(*it).commands).sum::<u64>()
    }

    /// Counts a minute as busy, since I/O commands were taken.
    #[inline]
    pub(crate) fn busy(&mut self, now_ns: u64) {
        if now_ns >= self.busy.minute_ends_ns {
            self.another_busy_minute(now_ns);
        }
    }

    #[cold]
    fn another_busy_minute(&mut self, now_ns: u64) {
        self.busy =
            Busy { minutes: self.busy.minutes + 1, minute_ends_ns: now_ns.saturating_add(NS_PER_MINUTE) };
    }

    /// Counts a controller as on when it becomes ready for the first time since a reset from outside.
    pub(crate) fn switched_on(&mut self, now_ns: u64) {
        self.power.since_ns.get_or_insert(now_ns);
        self.power.cycles += u64::from(self.power.on == 0);
        self.power.on += 1;
    }

    /// Returns a copy of the counters, for a process that continues without remote queues.
    pub(crate) fn copy(&self) -> Self {
        Self { here: self.counts(), power: self.power, busy: self.busy, ..Self::new() }
    }

    /// Counts a controller as on that was on in another process.
    pub(crate) fn resume_on(&mut self) {
        self.power.on += 1;
    }

    /// Counts a reset from outside, which is as near to a power loss as this drive gets. `prepared` is
    /// whether the host had shut the controller down, or disabled it.
    pub(crate) fn power_lost(&mut self, prepared: bool) {
        self.power.on -= 1;
        self.power.unsafe_shutdowns += u64::from(!prepared);
    }

    /// Returns the SMART / Health Information log.
    pub(crate) fn smart(&self, critical_warning: u8, errors: &ErrorLog, now_ns: u64) -> SmartHealth {
        let counts = self.counts();
        let [read, written] = [Operation::Read, Operation::Write].map(|operation| counts.of(operation));
        let mut page = SmartHealth::new_zeroed();
        page.critical_warning = critical_warning;
        page.composite_temperature = COMPOSITE_TEMPERATURE.to_le_bytes();
        page.available_spare = 100;
        page.available_spare_threshold = 10;
        page.data_units_read = wide(data_units(read.bytes));
        page.data_units_written = wide(data_units(written.bytes));
        page.host_read_commands = wide(read.commands);
        page.host_write_commands = wide(written.commands);
        page.controller_busy_time = wide(self.remote.busy_minutes(self.busy.minutes));
        page.power_cycles = wide(self.power.cycles);
        page.power_on_hours = wide(self.power_on_hours(now_ns));
        page.unsafe_shutdowns = wide(self.power.unsafe_shutdowns);
        page.media_errors = wide(counts.media_errors);
        page.error_log_entries = wide(errors.count + self.remote.logged());
        page
    }

    /// Returns the hours since the drive was first switched on.
    pub(crate) fn power_on_hours(&self, now_ns: u64) -> u64 {
        self.power_on_ms(now_ns) / (60 * NS_PER_MINUTE / NS_PER_MS)
    }

    pub(crate) fn power_on_ms(&self, now_ns: u64) -> u64 {
        self.power.since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns)) / NS_PER_MS
    }

    /// Restores the counts of an earlier daemon.
    pub(crate) fn resume_power(&mut self, counts: PowerCounts) {
        (self.power.cycles, self.power.unsafe_shutdowns) = (counts.cycles, counts.unsafe_shutdowns);
    }

    pub(crate) fn power_counts(&self) -> PowerCounts {
        let Power { cycles, unsafe_shutdowns, .. } = self.power;
        PowerCounts { cycles, unsafe_shutdowns }
    }

    pub(crate) fn power_cycles(&self) -> u64 {
        self.power.cycles
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let counts = self.counts();
        Statistics {
            commands: counts.succeeded.iter().map(|moved| moved.commands).sum::<u64>() + counts.failed,
            errors: counts.failed,
            bytes_read: counts.of(Operation::Read).bytes,
            bytes_written: counts.of(Operation::Write).bytes,
        }
    }
}

/// Returns a counter of 128 bits.
fn wide(value: u64) -> [u64; 2] {
    [value, 0]
}

/// Returns thousands of 512 bytes, rounded up.
fn data_units(bytes: u64) -> u64 {
    bytes.div_ceil(512 * 1000)
}

/// Returns the address of an I/O command that has one.
fn first_lba(entry: &SubmissionEntry) -> u64 {
    match entry.opcode {
        opcode::READ | opcode::WRITE | opcode::COMPARE | opcode::WRITE_ZEROES | opcode::VERIFY => {
            entry.slba()
        }
        _ => 0,
    }
}

/// Returns whether a status is a media error that lost data; a Compare that found a difference is none (Base
/// 5.16.1.3).
fn is_media_error(status: Status) -> bool {
    status.same_code(Status::WRITE_FAULT) || status.same_code(Status::UNRECOVERED_READ_ERROR)
}

/// Returns the byte of the submission queue entry that caused a status, if there is just one.
fn parameter_location(status: Status) -> u16 {
    const OPCODE: u16 = 0;
    const NSID: u16 = 4;
    const DPTR: u16 = 24;
    const CDW10: u16 = 40;
    const QUEUE_SIZE: u16 = 42;
    const INTERRUPT_VECTOR: u16 = 46;
    match Status(status.0 & 0x7ff | Status::DNR) {
        Status::INVALID_OPCODE => OPCODE,
        Status::INVALID_NAMESPACE => NSID,
        Status::PRP_OFFSET_INVALID | Status::SGL_TYPE_INVALID | Status::INVALID_SGL_SEGMENT => DPTR,
        Status::LBA_OUT_OF_RANGE | Status::INVALID_LOG_PAGE | Status::INVALID_QUEUE_IDENTIFIER => CDW10,
        Status::INVALID_QUEUE_SIZE => QUEUE_SIZE,
        Status::INVALID_INTERRUPT_VECTOR => INTERRUPT_VECTOR,
        _ => ErrorInformation::NOT_APPLICABLE,
    }
}

/// Counters of a drive since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// I/O commands completed.
    pub commands: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Error Information log in a record.
impl ErrorLog {
    pub(crate) fn put(&self, part: &mut Writer) {
        part.put(self.count);
        part.list(&self.errors, |part, error| part.raw(error.as_bytes()));
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let count = part.get()?;
        let errors = part.list(ERROR_ENTRIES, |part| {
            let bytes = part.array::<{ size_of::<ErrorInformation>() }>()?;
            Ok(transmute!(bytes))
        })?;
        Ok(Self { errors: errors.into(), count })
    }
}

/// Counters in a record.
impl Health {
    pub(crate) fn put(&self, part: &mut Writer) {
        part.list(self.here.succeeded, |part, moved| {
            part.put(moved.commands);
            part.put(moved.bytes);
        });
        part.put(self.here.failed);
        part.put(self.here.media_errors);
        part.option(self.power.since_ns, Writer::time);
        part.put(self.power.cycles);
        part.put(self.power.unsafe_shutdowns);
        part.put(self.busy.minutes);
        part.time(self.busy.minute_ends_ns);
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let mut health = Self::new();
        // A later version may count further operations, which come behind these.
        let counted =
            part.list(OPERATIONS_MAX, |part| Ok(Moved { commands: part.get()?, bytes: part.get()? }))?;
        health.here.succeeded.iter_mut().zip(counted).for_each(|(own, moved)| *own = moved);
        health.here.failed = part.get()?;
        health.here.media_errors = part.get()?;
        health.power.since_ns = part.option(Reader::time)?;
        health.power.cycles = part.get()?;
        health.power.unsafe_shutdowns = part.get()?;
        health.busy = Busy { minutes: part.get()?, minute_ends_ns: part.time()? };
        Ok(health)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters with known values, for golden records.
    impl Health {
        pub(crate) fn golden() -> Self {
            let mut health = Self::new();
            health.here.succeeded[0] = Moved { commands: 10, bytes: 40960 };
            health.power.since_ns = Some(1_000_000_000);
            (health.power.cycles, health.power.unsafe_shutdowns) = (6, 2);
            health
        }

        /// Checks the known values. `since_ns` is the time of the power on for this process.
        pub(crate) fn check_golden(&self, since_ns: u64) {
            let moved = self.here.succeeded[0];
            assert_eq!((moved.commands, moved.bytes), (10, 40960));
            assert_eq!(self.power.since_ns, Some(since_ns));
            assert_eq!((self.power.cycles, self.power.unsafe_shutdowns), (6, 2));
        }
    }

    #[test]
    fn data_units_are_rounded_up() {
        assert_eq!([0, 1, 512_000, 512_001].map(data_units), [0, 1, 1, 2]);
    }

    #[test]
    fn no_number_of_bytes_is_too_many() {
        let mut health = Health::new();
        let request = Request { operation: Operation::Deallocate, length: u64::MAX, ..Request::default() };
        for _ in 0..3 {
            health.completed(&request, Status::SUCCESS);
        }
        assert_eq!(health.statistics().commands, 3);
        assert_eq!(health.bytes(), u64::MAX.wrapping_mul(3));
    }

    #[test]
    fn all_errors_of_an_appended_log_are_counted() {
        let (mut log, mut other) = (ErrorLog::new(), ErrorLog::new());
        log.doorbell(1);
        (0..100).for_each(|queue| other.doorbell(queue));
        log.append(other);
        assert_eq!(log.count(), 101);
        assert_eq!(log.entries().next().map(|error| error.error_count), Some(101));
    }

    #[test]
    fn the_error_log_keeps_the_newest_and_counts_all() {
        let mut log = ErrorLog::new();
        for queue in 0..100 {
            log.doorbell(queue);
        }
        assert_eq!(log.entries().count(), ERROR_ENTRIES);
        assert!(log.entries().map(|error| error.error_count).eq((37..=100).rev()));
        assert_eq!(Health::new().smart(0, &log, 0).error_log_entries, [100, 0]);
    }

    #[test]
    fn a_minute_with_commands_is_busy_once() {
        let mut health = Health::new();
        for now_ns in [5, 6, NS_PER_MINUTE, NS_PER_MINUTE + 5, 10 * NS_PER_MINUTE] {
            health.busy(now_ns);
        }
        assert_eq!(health.smart(0, &ErrorLog::new(), 0).controller_busy_time, [3, 0]);
    }

    #[test]
    fn power_goes_with_a_reset_and_comes_with_the_next_enable() {
        const HOUR: u64 = 60 * NS_PER_MINUTE;
        let mut health = Health::new();
        health.switched_on(2 * HOUR);
        // Another controller of the same drive.
        health.switched_on(3 * HOUR);
        health.power_lost(false);
        health.power_lost(true);
        health.switched_on(10 * HOUR);
        health.power_lost(true);
        let smart = health.smart(0, &ErrorLog::new(), 25 * HOUR);
        assert_eq!((smart.power_cycles[0], smart.power_on_hours[0], smart.unsafe_shutdowns[0]), (2, 23, 1));
    }
}
