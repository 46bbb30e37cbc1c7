//! Commands in progress: each stage starts one operation, whose result decides the next stage.

use super::*;

impl File {
    /// Returns the first stage of a new command; `None` if there is nothing to do.
    pub(super) fn first_stage(&self, slot: &Slot) -> Option<Stage> {
        let request = &slot.request;
        let empty = request.length == 0 && request.operation != Operation::Flush;
        let stage = match request.operation {
            _ if empty => return None,
            Operation::Read if request.fua => Stage::SyncThenRead,
            Operation::Read | Operation::Write => self.transfer_stage(slot),
            Operation::Flush => Stage::Sync,
            Operation::WriteZeroes => self.zeroing_stage(request.deallocate),
            Operation::Deallocate if self.punches => Stage::PunchHole,
            Operation::Deallocate if self.deallocated() == Deallocated::Zeroes => Stage::Zeroes,
            Operation::Deallocate => return None,
        };
        Some(stage)
    }

    fn transfer_stage(&self, slot: &Slot) -> Stage {
        let fits = match self.opened.direct {
            Some(alignment) => alignment.fits(&slot.data),
            None => !slot.data.has_bit_bucket(),
        };
        if fits { Stage::Direct } else { Stage::Staged }
    }

    /// Returns the best way to write zeros that the file system has not refused yet.
    fn zeroing_stage(&self, deallocate: bool) -> Stage {
        match (self.zeroes_ranges, self.punches) {
            (_, true) if deallocate => Stage::PunchHole,
            (true, _) => Stage::ZeroRange,
            (false, true) => Stage::PunchHole,
            (false, false) => Stage::Zeroes,
        }
    }

    fn token(&self, ticket: Ticket) -> u64 {
        self.token_prefix | u64::from(ticket.0)
    }

    /// Starts the operation of the command's stage.
    pub(super) fn start(&mut self, ticket: Ticket, lane: &mut Lane<'_>) {
        let Some(slot) = lane.parked(ticket) else { return };
        let work = self.works.of(ticket);
        // A command that is retried without FUA must go on, to show whether the flush was at fault.
        if let (Some(status), None) = (work.aborted, &work.plain) {
            return self.finish(ticket, status, lane);
        }
        // The drive may have shrunk while the command waited, for a buffer or for space.
        if let Err(status) = self.admit(slot, lane.now_ns()) {
            return self.finish(ticket, status, lane);
        }
        match self.works.of(ticket).stage {
            Stage::Direct => self.transfer(ticket, slot),
            Stage::Staged | Stage::Zeroes => self.transfer_staged(ticket, slot),
            Stage::ZeroRange | Stage::PunchHole => self.chunks.join(ticket),
            Stage::Sync | Stage::SyncThenRead => {
                self.syncs.join(ticket);
                if self.sync_ns.is_none() {
                    self.begin_sync(lane);
                }
            }
        }
    }

    /// Moves the rest of a command's data between the file and the host's memory.
    fn transfer(&mut self, ticket: Ticket, slot: &Slot) {
        let token = self.token(ticket);
        let &mut Work { done, plain, .. } = self.works.of(ticket);
        let left = slot.request.length - done;
        let data = match done {
            0 => &slot.data,
            _ => {
                let cut = slot.data.slice(done as usize, left as usize, &mut self.rest);
                cut.expect("what is left of the data lies in it");
                &self.rest
            }
        };
        self.push(&slot.request, data.as_slice(), done, plain.is_some(), token);
        self.works.of(ticket).is_under_way = true;
        self.works.of(ticket).writes_to = written_to(&slot.request, slot.request.length);
    }

    /// Moves data by way of a staging buffer, at most the size of the buffer. Waits if none is free.
    fn transfer_staged(&mut self, ticket: Ticket, slot: &Slot) {
        let token = self.token(ticket);
        let work = self.works.of(ticket);
        if work.buffer.is_none() {
            work.buffer = self.staging.acquire(ticket);
        }
        let Some(buffer) = &work.buffer else { return };
        let (stage, done, plain) = (work.stage, work.done, work.plain);
        let length = (slot.request.length - done).min(BUFFER_BYTES as u64) as usize;
        if stage == Stage::Zeroes {
            self.staging.clear(buffer, length);
        } else if slot.request.operation == Operation::Write {
            self.staging.gather(&slot.data, done as usize, buffer, length);
        }
        let segment = self.staging.segment(buffer, length);
        self.push(&slot.request, &[segment], done, plain.is_some(), token);
        self.works.of(ticket).is_under_way = true;
        self.works.of(ticket).writes_to = written_to(&slot.request, done + length as u64);
    }

    fn push(&self, request: &Request, data: &[Segment], done: u64, plain: bool, token: u64) {
        let offset = request.offset + done;
        if request.operation == Operation::Read {
            self.io.read(&self.opened.data, data, offset, self.task, token);
        } else {
            let flags = WriteFlags { dsync: request.fua && !plain };
            self.io.write(&self.opened.data, data, offset, flags, self.task, token);
        }
    }

    /// Starts the next chunk of a range, if none is with the kernel.
    pub(super) fn begin_chunks(&mut self, lane: &mut Lane<'_>) {
        while let Some(ticket) = self.chunks.next() {
            // The command may have ended since, or the drive may have shrunk.
            let Some(slot) = lane.parked(ticket) else { continue };
            let request = slot.request;
            match self.admit(slot, lane.now_ns()) {
                Ok(()) => self.fallocate(ticket, &request, lane),
                Err(status) => self.finish(ticket, status, lane),
            }
        }
    }

    fn fallocate(&mut self, ticket: Ticket, request: &Request, lane: &mut Lane<'_>) {
        let token = self.token(ticket);
        let work = self.works.of(ticket);
        (work.is_under_way, work.writes_to) = (true, 0);
        let how = match work.stage {
            Stage::ZeroRange => FallocateFlags::ZERO_RANGE,
            _ => FallocateFlags::PUNCH_HOLE,
        };
        let (stage, offset, left) = (work.stage, request.offset + work.done, request.length - work.done);
        let mut bytes = self.chunks.begin(ticket, offset, left, lane.now_ns());
        if bytes == left {
            bytes += self.join_chunks(stage, offset + bytes, lane);
        }
        let mode = FallocateFlags::KEEP_SIZE | how;
        self.io.fallocate(&self.opened.data, mode, offset, bytes, self.task, token);
    }

    /// Adds commands of the same stage to the chunk that ends at `end`. Returns the number of added bytes.
    fn join_chunks(&mut self, stage: Stage, end: u64, lane: &Lane<'_>) -> u64 {
        let mut more = 0;
        while let Some((ticket, room)) = self.chunks.candidate() {
            let Some(slot) = lane.parked(ticket).filter(|slot| self.check(slot).is_ok()) else { break };
            let work = self.works.of(ticket);
            let left = slot.request.length - work.done;
            let goes_on = slot.request.offset + work.done == end + more;
            if !goes_on || left > room || work.stage != stage || work.aborted.is_some() {
                break;
            }
            (work.is_under_way, work.writes_to) = (true, 0);
            self.chunks.extend(left);
            more += left;
        }
        more
    }

    /// Ends a chunk that included other commands. They are done with these bytes, or are retried one by one.
    fn answer_joined(&mut self, succeeded: bool, lane: &mut Lane<'_>) {
        let joined = self.chunks.joined();
        for (ticket, bytes) in &joined {
            self.works.of(*ticket).returned();
            match succeeded {
                true => self.moved(*ticket, *bytes, lane),
                false => self.start(*ticket, lane),
            }
        }
        self.chunks.recycle(joined);
    }

    fn fdatasync(&self) {
        self.io.fdatasync(&self.opened.sync, self.task, self.token(SYNC_TICKET));
    }

    /// Handles the kernel's result for a command.
    pub(super) fn answer(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        let Some(slot) = lane.parked(ticket) else { return };
        let request = slot.request;
        let Request { operation, fua, .. } = request;
        let chunk = self.chunks.end(ticket, lane.now_ns());
        let work = self.works.of(ticket);
        work.returned();
        let (stage, is_alone) = (work.stage, work.plain.is_some());
        let outcome = Outcome::of(result, operation);
        if chunk.is_some() {
            self.answer_joined(matches!(outcome, Outcome::Moved(_)), lane);
        }
        let parks = self.opened.no_space == NoSpace::Park && !is_alone;
        if matches!(outcome, Outcome::Failed(_)) || outcome == Outcome::Full && !parks {
            let path = &self.opened.path;
            self.failure_log.failed(path, &request, -result, lane.now_ns());
        }
        match outcome {
            Outcome::Again if self.may_repeat(ticket) => self.start(ticket, lane),
            Outcome::Again => self.finish(ticket, Status::INTERNAL_ERROR, lane),
            Outcome::Moved(bytes) => self.moved(ticket, chunk.unwrap_or(u64::from(bytes)), lane),
            // The flush of RWF_DSYNC may have failed, and with it data of earlier writes. The write is
            // retried without a flush: if it succeeds, the flush had failed. If it fails, too, the failure is
            // taken for the write's own.
            Outcome::Failed(status) if fua && stage.writes() && may_be_a_flush(status) => {
                match self.works.of(ticket).plain.take() {
                    None => {
                        self.works.of(ticket).plain = Some(self.syncs.doubt());
                        self.start(ticket, lane);
                    }
                    Some(doubt) => {
                        self.syncs.settle(doubt, false);
                        self.finish(ticket, status, lane);
                    }
                }
            }
            Outcome::Full if is_alone => {
                self.finish(ticket, Status::WRITE_FAULT, lane);
            }
            Outcome::Full => self.full(ticket, lane),
            Outcome::Misaligned => self.misaligned(ticket, stage, operation, lane),
            Outcome::Unsupported => self.unsupported(ticket, lane),
            Outcome::Failed(status) => {
                if result == -libc::EFBIG {
                    self.tell_too_long();
                }
                self.finish(ticket, status, lane);
            }
        }
    }

    fn may_repeat(&mut self, ticket: Ticket) -> bool {
        let work = self.works.of(ticket);
        work.repeats += 1;
        work.repeats <= REPEATS_MAX
    }

    fn go_on(&mut self, ticket: Ticket, stage: Stage, lane: &mut Lane<'_>) {
        self.works.of(ticket).stage = stage;
        self.start(ticket, lane);
    }

    /// Accounts for bytes that were moved, or for a range of the file that was changed.
    fn moved(&mut self, ticket: Ticket, bytes: u64, lane: &mut Lane<'_>) {
        let Some(slot) = lane.parked(ticket) else { return };
        let request = slot.request;
        let work = self.works.of(ticket);
        // The write failed with FUA and succeeds without: its flush had failed. The rest could fail for
        // another reason.
        if work.plain.is_some() {
            return self.finish(ticket, Status::WRITE_FAULT, lane);
        }
        if let (Some(buffer), Operation::Read) = (&work.buffer, request.operation) {
            self.staging.scatter(buffer, bytes as usize, &slot.data, work.done as usize);
        }
        let mut done = work.done + bytes;
        if done >= request.length {
            let by_the_file_system = matches!(work.stage, Stage::ZeroRange | Stage::PunchHole);
            return match by_the_file_system && request.operation == Operation::WriteZeroes && request.fua {
                true => self.go_on(ticket, Stage::Sync, lane),
                false => self.finish(ticket, Status::SUCCESS, lane),
            };
        }
        // The rest begins at a multiple of the unit of direct I/O. Without progress, the file has ended here.
        done -= done % self.opened.unit();
        if done <= work.done {
            return self.finish(ticket, media_error(request.operation), lane);
        }
        (work.done, work.repeats) = (done, 0);
        self.start(ticket, lane);
    }

    /// Handles an operation whose offset, length or memory the kernel does not accept.
    fn misaligned(&mut self, ticket: Ticket, stage: Stage, operation: Operation, lane: &mut Lane<'_>) {
        match (stage, operation) {
            (Stage::Direct, _) => self.go_on(ticket, Stage::Staged, lane),
            // The device has larger blocks than the drive.
            (Stage::ZeroRange | Stage::PunchHole, Operation::WriteZeroes) => {
                self.go_on(ticket, Stage::Zeroes, lane);
            }
            // Partial blocks of the device may keep their data.
            (Stage::PunchHole, Operation::Deallocate) if self.deallocated() != Deallocated::Zeroes => {
                self.finish(ticket, Status::SUCCESS, lane);
            }
            (Stage::PunchHole, Operation::Deallocate) => self.go_on(ticket, Stage::Zeroes, lane),
            _ => self.finish(ticket, Status::INTERNAL_ERROR, lane),
        }
    }

    /// Begins an fdatasync for all waiting commands. Checks again later if another target's runs, or is due
    /// first.
    pub(super) fn begin_sync(&mut self, lane: &mut Lane<'_>) {
        let mut answered = std::mem::take(&mut self.answered);
        let durable = self.syncs.conclude(&mut answered);
        self.answer_syncs(answered, durable, lane);
        let mut answered = std::mem::take(&mut self.answered);
        if self.syncs.begin(lane.now_ns(), &mut answered) {
            self.sync_repeats = 0;
            self.fdatasync();
        } else if self.syncs.is_due() {
            self.sync_ns = Some(self.syncs.look_again_ns(lane.now_ns()));
        }
        self.answer_syncs(answered, false, lane);
    }

    /// Handles the kernel's result for an fdatasync.
    pub(super) fn sync_answer(&mut self, result: i32, lane: &mut Lane<'_>) {
        let again = Outcome::of(result, Operation::Flush) == Outcome::Again;
        if again && self.sync_repeats < REPEATS_MAX {
            self.sync_repeats += 1;
            self.syncs.repeat();
            return self.fdatasync();
        }
        self.synced(result, lane);
    }

    /// Ends an fdatasync for all commands that waited for it.
    fn synced(&mut self, result: i32, lane: &mut Lane<'_>) {
        let succeeded = result >= 0;
        if !succeeded {
            let error = io::Error::from_raw_os_error(-result);
            let path = self.opened.path.display();
            tracing::error!(%path, %error, "data may be lost: no Flush succeeds until the drive is reopened");
        }
        let mut answered = std::mem::take(&mut self.answered);
        let durable = self.syncs.done(succeeded, lane.now_ns(), &mut answered);
        self.answer_syncs(answered, durable, lane);
        self.begin_sync(lane);
    }

    fn answer_syncs(&mut self, mut answered: Vec<Ticket>, succeeded: bool, lane: &mut Lane<'_>) {
        for ticket in answered.drain(..) {
            self.after_sync(ticket, succeeded, lane);
        }
        self.answered = answered;
    }

    fn after_sync(&mut self, ticket: Ticket, succeeded: bool, lane: &mut Lane<'_>) {
        let Some(slot) = lane.parked(ticket) else { return };
        let reads = self.works.of(ticket).stage == Stage::SyncThenRead;
        match (succeeded, reads) {
            (false, _) => self.finish(ticket, media_error(slot.request.operation), lane),
            (true, true) => self.go_on(ticket, self.transfer_stage(slot), lane),
            (true, false) => self.finish(ticket, Status::SUCCESS, lane),
        }
    }

    /// Reports once for each opening that the file cannot grow as far as commands need.
    fn tell_too_long(&mut self) {
        if !std::mem::replace(&mut self.told_too_long, true) {
            let path = self.opened.path.display();
            tracing::warn!(
                %path,
                "a write lies beyond the limit of file sizes (RLIMIT_FSIZE, `ulimit -f`) or of the file system: \
                 such commands fail with Capacity Exceeded"
            );
        }
    }

    /// Handles a full file system.
    fn full(&mut self, ticket: Ticket, lane: &mut Lane<'_>) {
        if self.opened.no_space == NoSpace::Fail {
            return self.finish(ticket, Status::CAPACITY_EXCEEDED, lane);
        }
        if self.without_space.is_empty() {
            let path = self.opened.path.display();
            tracing::warn!(%path, "the file system is full: writes wait until there is room");
        }
        self.without_space.push(ticket);
        let work = self.works.of(ticket);
        if work.stage.writes() {
            // Other commands may write the same block meanwhile. A write that resumed inside of it would mix
            // the two.
            work.done = 0;
        }
        // Other commands need not wait for space.
        self.conflicts.leave(ticket);
        self.space_retry_ns.get_or_insert(lane.now_ns().saturating_add(SPACE_RETRY_NS));
        // The buffer goes to a command that can proceed.
        self.give_back(ticket, lane);
    }

    /// Retries the commands that found the file system full.
    pub(super) fn retry_without_space(&mut self, lane: &mut Lane<'_>) {
        self.space_retry_ns = None;
        for ticket in std::mem::take(&mut self.without_space) {
            let Some(slot) = lane.parked(ticket) else { continue };
            let request = slot.request;
            if !self.must_wait(ticket, &request) {
                self.start(ticket, lane);
            }
        }
    }

    /// Ends the commands of these controllers that wait for space.
    pub(super) fn fail_without_space(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        for ticket in self.without_space.extract_if(.., |it| lane.is_of(of, *it)).collect::<Vec<_>>() {
            self.finish(ticket, why, lane);
        }
        self.space_retry_ns.take_if(|_| self.without_space.is_empty());
    }

    /// Handles an operation that the file system does not support. The next best one is used, now and from
    /// now on.
    fn unsupported(&mut self, ticket: Ticket, lane: &mut Lane<'_>) {
        let Some(slot) = lane.parked(ticket) else { return };
        match self.works.of(ticket).stage {
            Stage::ZeroRange => self.zeroes_ranges = false,
            Stage::PunchHole => self.punches = false,
            _ => return self.finish(ticket, media_error(slot.request.operation), lane),
        }
        match self.first_stage(slot) {
            Some(stage) => self.go_on(ticket, stage, lane),
            None => self.finish(ticket, Status::SUCCESS, lane),
        }
    }

    pub(super) fn finish(&mut self, ticket: Ticket, status: Status, lane: &mut Lane<'_>) {
        // The command ends before its retry has shown the cause. So data that its flush was to make durable
        // may be lost, of this and of other writes.
        if let Some(doubt) = self.works.of(ticket).plain.take() {
            self.syncs.settle(doubt, true);
            let path = self.opened.path.display();
            tracing::error!(%path, "a flush failed, data may be lost: no Flush succeeds until the drive is reopened");
        }
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, status);
        }
        self.works.of(ticket).ticket = None;
        self.conflicts.leave(ticket);
        self.give_back(ticket, lane);
    }

    /// Starts the commands that waited for others which have ended.
    pub(super) fn start_ready(&mut self, lane: &mut Lane<'_>) {
        while let Some(ticket) = self.conflicts.next() {
            self.start(ticket, lane);
        }
        self.begin_chunks(lane);
    }

    /// Releases a command's buffer, if it has one, to the next waiting command. If that one ends without a
    /// buffer, the next follows.
    fn give_back(&mut self, ticket: Ticket, lane: &mut Lane<'_>) {
        let Some(buffer) = self.works.of(ticket).buffer.take() else { return };
        self.staging.release(buffer);
        while let Some(next) = self.staging.next() {
            self.start(next, lane);
        }
    }
}

/// Returns the end in the file of a write that has come to `done` bytes. Zero for a read, which extends no
/// file.
fn written_to(request: &Request, done: u64) -> u64 {
    if request.operation == Operation::Read { 0 } else { request.offset + done }
}
