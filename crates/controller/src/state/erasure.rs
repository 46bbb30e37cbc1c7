//! State of an erasure.

use crate::state::limits::TRANSFER_MAX;
use crate::state::reservation::HostId;
use crate::state::sanitize::SanitizeRecord;
use sluice_command::{Command, Operation, Request};
use sluice_jobs::Scheduler;
use sluice_nvme::Status;

/// Number of the only job of an erasure in its scheduler.
pub(crate) const ERASE: usize = 0;

/// Bytes zeroed in one step. With more, other namespaces of the drive would wait for it.
const ZEROED_AT_ONCE: u64 = 32 << 20;

/// The largest block of a target, bytes: chunks end at a multiple of it.
const BLOCK_MAX: u64 = 4096;

/// Time until another attempt to persist a state that could not be persisted.
const RETRY_NS: u64 = 1_000_000_000;

/// Contents that one pass writes to all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Zeroes {
        /// Whether the target may deallocate the blocks.
        deallocate: bool,
    },
    /// Overwrite with this pattern.
    Pattern(u32),
    /// Flush that makes everything durable.
    Flush,
}

/// Purpose of an erasure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Format, after which the namespace has this block size.
    Format { nsid: u32, block_size: u32 },
    /// Sanitize operation that begins or runs.
    Sanitize(SanitizeRecord),
}

/// Progress of an erasure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErasureStage {
    /// First state: the begin is not persisted yet. After that, a later daemon finishes an erasure that this
    /// one leaves.
    New,
    /// Drain of the commands in flight.
    Waiting,
    /// Chunk after chunk, unless the operator has paused that.
    Erasing,
    /// Persisting of the outcome.
    Persisting,
    /// Failed persisting of the outcome, to be tried again.
    Unpersisted,
}

/// Namespaces that are being erased. A subsystem has at most one erasure at a time.
#[derive(Debug)]
pub(crate) struct Erasure {
    pub(crate) purpose: Purpose,
    pub(crate) stage: ErasureStage,
    /// Time until which commands in flight may drain.
    pub(crate) until_ns: u64,
    pub(crate) nsids: Vec<u32>,
    passes: Vec<Pass>,
    /// Number of finished passes, of finished namespaces in the next pass, and of finished bytes in the next
    /// namespace.
    pass: usize,
    namespace: usize,
    pub(crate) offset: u64,
    pub(crate) in_flight: bool,
    pub(crate) next_ns: u64,
    /// Whether it pauses until the end of a reset.
    paused: bool,
    /// Pace and progress, and whether the operator has paused the erasure.
    pub(crate) jobs: Scheduler<1>,
    pub(crate) failure: Option<Status>,
    /// Command that waits for the end, unless a reset took it.
    command: Option<Command>,
    /// Host that requested it; none if an earlier daemon left it.
    host: Option<HostId>,
    /// Whether the host lost its right to a format by a Preempt and Abort. The format ends unless it has
    /// begun, and the preempting command waits for its end.
    pub(crate) preempted: bool,
    /// Whether this daemon or an earlier one may have overwritten data.
    pub(crate) is_touched: bool,
}

impl Erasure {
    pub(crate) fn new(
        purpose: Purpose,
        nsids: Vec<u32>,
        passes: Vec<Pass>,
        now_ns: u64,
        until_ns: u64,
    ) -> Self {
        let (pass, namespace, offset) = (0, 0, 0);
        let mut jobs = Scheduler::with_steps(ZEROED_AT_ONCE);
        jobs.go_on(ERASE);
        Self {
            purpose,
            stage: ErasureStage::New,
            until_ns,
            nsids,
            passes,
            pass,
            namespace,
            offset,
            in_flight: false,
            next_ns: now_ns,
            paused: false,
            jobs,
            failure: None,
            command: None,
            host: None,
            preempted: false,
            is_touched: false,
        }
    }

    /// Starts to drain commands, since the begin is persisted.
    pub(crate) fn begin(&mut self) {
        self.stage = ErasureStage::Waiting;
    }

    /// Resumes an erasure of an earlier daemon, which may have written something.
    pub(crate) fn begin_again(&mut self) {
        self.is_touched = true;
        self.begin();
    }

    /// Returns whether nothing was written yet.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.is_touched
    }

    /// Schedules another attempt to persist the outcome. The stored record has the erasure as running, so it
    /// counts as running until then.
    pub(crate) fn retry(&mut self, now_ns: u64) {
        (self.stage, self.next_ns) = (ErasureStage::Unpersisted, now_ns.saturating_add(RETRY_NS));
    }

    /// Returns the reason of a failure.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.failure
    }

    /// Returns the status for commands that would erase data meanwhile.
    pub(crate) fn status(&self) -> Status {
        match self.purpose {
            Purpose::Format { .. } => Status::FORMAT_IN_PROGRESS,
            Purpose::Sanitize(_) => Status::SANITIZE_IN_PROGRESS,
        }
    }

    /// Returns the number of finished overwrite passes.
    pub(crate) fn patterns_done(&self) -> usize {
        self.passes[..self.pass].iter().filter(|pass| matches!(pass, Pass::Pattern(_))).count()
    }

    /// Stores the host's command until the end.
    pub(crate) fn wait(&mut self, command: Command, host: HostId) {
        (self.command, self.host) = (Some(command), Some(host));
    }

    /// Applies a Preempt and Abort with these victims. Returns whether this is a format of one of them.
    pub(crate) fn preempt(&mut self, nsid: u32, victims: &[HostId]) -> bool {
        let is_format_of = matches!(self.purpose, Purpose::Format { nsid: of, .. } if of == nsid);
        self.preempted |= is_format_of && self.host.is_some_and(|host| victims.contains(&host));
        self.preempted
    }

    pub(crate) fn is_preempted(&self) -> bool {
        self.preempted
    }

    /// Takes the waiting command, to be finished now.
    pub(crate) fn take_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    /// Takes the waiting command if it is the one that is meant.
    pub(crate) fn take_command_if(&mut self, is_meant: impl FnOnce(&Command) -> bool) -> Option<Command> {
        self.command.take_if(|command| is_meant(command))
    }

    pub(crate) fn command(&self) -> Option<&Command> {
        self.command.as_ref()
    }

    /// Returns the pattern of the current pass, if it has one.
    pub(crate) fn pattern(&self) -> Option<u32> {
        match self.passes.get(self.pass) {
            Some(Pass::Pattern(pattern)) => Some(*pattern),
            _ => None,
        }
    }

    pub(crate) fn concerns(&self, nsid: u32) -> bool {
        self.nsids.contains(&nsid)
    }

    /// Returns whether a Preempt and Abort ends the erasure: it has erased nothing.
    pub(crate) fn ends_preempted(&self) -> bool {
        let has_begun = matches!(self.stage, ErasureStage::Waiting | ErasureStage::Erasing);
        self.preempted && has_begun && self.is_untouched()
    }

    /// Returns the time of the next chunk, or of the next look at obstacles. An erasure that the operator has
    /// paused has none, once its namespaces are quiet.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        if !self.may_advance() {
            return None;
        }
        if self.stage != ErasureStage::Erasing || self.ends_preempted() {
            return Some(self.next_ns);
        }
        self.jobs.alarm_ns(|_| true).map(|due_ns| due_ns.max(self.next_ns))
    }

    fn may_advance(&self) -> bool {
        // A format that is preempted before it erases only ends, even during a pause, since the preempting
        // command waits.
        let begins = matches!(self.stage, ErasureStage::New | ErasureStage::Unpersisted);
        let paused = self.paused && !(self.preempted && (begins || self.ends_preempted()));
        !self.in_flight && !paused && self.stage != ErasureStage::Persisting
    }

    /// Starts or ends a pause: no chunk starts during a reset.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Returns namespace and request of the next chunk, which has at most `most` bytes, or none if all passes
    /// are done.
    pub(crate) fn next_chunk(&mut self, most: u64, bytes_of: impl Fn(u32) -> u64) -> Option<(u32, Request)> {
        let most = most - most % BLOCK_MAX;
        loop {
            let pass = *self.passes.get(self.pass)?;
            let Some(&nsid) = self.nsids.get(self.namespace) else {
                (self.pass, self.namespace, self.offset) = (self.pass + 1, 0, 0);
                continue;
            };
            let left = bytes_of(nsid).saturating_sub(self.offset);
            let (offset, request) = (self.offset, Request::default());
            let request = match pass {
                Pass::Flush if offset == 0 => Request { operation: Operation::Flush, ..request },
                Pass::Zeroes { deallocate } if left > 0 => {
                    let length = left.min(most);
                    Request { operation: Operation::WriteZeroes, deallocate, offset, length, ..request }
                }
                Pass::Pattern(_) if left > 0 => {
                    let length = left.min(most).min(TRANSFER_MAX.into());
                    Request { operation: Operation::Write, offset, length, ..request }
                }
                _ => {
                    (self.namespace, self.offset) = (self.namespace + 1, 0);
                    continue;
                }
            };
            return Some((nsid, request));
        }
    }

    /// Returns the bytes done and in total, of all passes over all namespaces. Their number may exceed 64
    /// bits.
    pub(crate) fn progress(&self, bytes_of: impl Fn(u32) -> u64) -> (u128, u128) {
        let writes = |passes: &[Pass]| passes.iter().filter(|pass| **pass != Pass::Flush).count() as u128;
        let bytes = |nsids: &[u32]| nsids.iter().map(|nsid| u128::from(bytes_of(*nsid))).sum::<u128>();
        let (each, before) = (bytes(&self.nsids), bytes(&self.nsids[..self.namespace.min(self.nsids.len())]));
        let is_write = self.passes.get(self.pass).is_some_and(|pass| *pass != Pass::Flush);
        let within = if is_write { before + u128::from(self.offset) } else { 0 };
        (each * writes(&self.passes[..self.pass]) + within, each * writes(&self.passes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_of_the_largest_drives_does_not_overflow() {
        const PASSES: u128 = 16;
        let purpose = Purpose::Format { nsid: 1, block_size: 512 };
        let mut erasure =
            Erasure::new(purpose, vec![1, 2], vec![Pass::Pattern(0); PASSES as usize], 0, u64::MAX);
        (erasure.pass, erasure.namespace, erasure.offset) = (15, 1, 512);
        let each = 2 * u128::from(u64::MAX);
        let done = 15 * each + u128::from(u64::MAX) + 512;
        assert_eq!(erasure.progress(|_| u64::MAX), (done, PASSES * each));
    }

    fn format() -> Purpose {
        Purpose::Format { nsid: 1, block_size: 512 }
    }

    /// Operation, whether it deallocates, namespace, offset and length.
    type Chunk = (Operation, bool, u32, u64, u64);

    /// Checks that each pass covers each namespace once and without a gap, in chunks that end at whole blocks.
    #[test]
    fn every_byte_is_in_one_chunk_of_each_pass() {
        let passes = vec![
            Pass::Pattern(7),
            Pass::Flush,
            Pass::Zeroes { deallocate: true },
            Pass::Zeroes { deallocate: false },
        ];
        for (most, sizes) in [
            (u64::from(TRANSFER_MAX) * 4 + 512, [3 * u64::from(TRANSFER_MAX) + 4096, 512]),
            (8191, [10_240, 0]),
            (u64::MAX, [u64::from(TRANSFER_MAX), 4096]),
        ] {
            let bytes_of = |nsid: u32| sizes[nsid as usize - 1];
            let mut erasure = Erasure::new(format(), vec![1, 2], passes.clone(), 0, 0);
            let total: u64 = sizes.iter().sum();
            let (mut done, mut found) = (0u128, Vec::<Chunk>::new());
            while let Some((nsid, request)) = erasure.next_chunk(most, bytes_of) {
                assert_eq!(erasure.next_chunk(most, bytes_of), Some((nsid, request)), "until it is done");
                assert_eq!(erasure.progress(bytes_of), (done, 3 * u128::from(total)));
                assert_eq!(erasure.pattern(), (request.operation == Operation::Write).then_some(7));
                assert_eq!(erasure.patterns_done(), usize::from(request.operation != Operation::Write));
                found.push((request.operation, request.deallocate, nsid, request.offset, request.length));
                // The caller adds the bytes of a chunk that is done, and one for a flush.
                erasure.offset += request.length.max(1);
                done += u128::from(request.length);
                let limit = match request.operation {
                    Operation::Write => (most - most % 4096).min(TRANSFER_MAX.into()),
                    _ => most - most % 4096,
                };
                assert!(request.length <= limit, "{request:?}");
                assert!(request.operation == Operation::Flush || request.length > 0);
                assert!(request.end().is_multiple_of(4096) || request.end() == bytes_of(nsid), "{request:?}");
            }
            assert_eq!((done, erasure.patterns_done(), erasure.pattern()), (3 * u128::from(total), 1, None));
            assert_eq!(erasure.progress(bytes_of), (done, done));
            let mut expected = Vec::new();
            for pass in &passes {
                for (nsid, size) in (1..).zip(sizes) {
                    let of_pass = |it: &&Chunk| {
                        let (operation, deallocate) = match pass {
                            Pass::Pattern(_) => (Operation::Write, false),
                            Pass::Flush => (Operation::Flush, false),
                            Pass::Zeroes { deallocate } => (Operation::WriteZeroes, *deallocate),
                        };
                        (it.0, it.1, it.2) == (operation, deallocate, nsid)
                    };
                    let chunks: Vec<_> = found.iter().filter(of_pass).copied().collect();
                    let end = chunks.iter().fold(0, |end, (_, _, _, offset, length)| {
                        assert_eq!(*offset, end, "{pass:?} of {nsid}");
                        offset + length
                    });
                    match pass {
                        Pass::Flush => assert_eq!(chunks.len(), 1),
                        _ => assert_eq!(end, size, "{pass:?} of {nsid}"),
                    }
                    expected.extend(chunks);
                }
            }
            assert_eq!(found, expected, "one pass after the other, one namespace after the other");
        }
    }

    /// Checks when an erasure goes on, in each stage, paused by a reset or not, and preempted or not.
    #[test]
    fn an_erasure_goes_on_when_nothing_holds_it() {
        use ErasureStage::{Erasing, New, Persisting, Unpersisted, Waiting};
        for stage in [New, Waiting, Erasing, Persisting, Unpersisted] {
            for bits in 0..16 {
                let [paused, preempted, touched, in_flight] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
                let mut erasure = Erasure::new(format(), vec![1], vec![Pass::Flush], 5, 0);
                erasure.set_paused(paused);
                (erasure.stage, erasure.in_flight) = (stage, in_flight);
                (erasure.preempted, erasure.is_touched) = (preempted, touched);
                let ends = preempted && !touched && matches!(stage, Waiting | Erasing);
                assert_eq!(erasure.ends_preempted(), ends, "{erasure:?}");
                let goes_on_paused = preempted && (ends || matches!(stage, New | Unpersisted));
                let goes_on = !in_flight && stage != Persisting && (!paused || goes_on_paused);
                assert_eq!(erasure.deadline_ns().is_some(), goes_on, "{erasure:?}");
                assert_eq!((erasure.is_untouched(), erasure.is_preempted()), (!touched, preempted));
            }
        }
        let mut erasure = Erasure::new(format(), vec![1, 3], vec![], 5, 0);
        erasure.retry(7);
        assert_eq!((erasure.stage, erasure.next_ns), (Unpersisted, 7 + RETRY_NS));
        assert_eq!(erasure.deadline_ns(), Some(7 + RETRY_NS));
        erasure.begin_again();
        assert!(erasure.stage == Waiting && !erasure.is_untouched());
        assert!(erasure.concerns(1) && erasure.concerns(3) && !erasure.concerns(2));
        assert_eq!((erasure.status(), erasure.failure()), (Status::FORMAT_IN_PROGRESS, None));
    }

    /// Checks that a Preempt and Abort ends the format of one of its victims, and nothing else.
    #[test]
    fn a_format_is_preempted_with_its_host() {
        let host = |number| HostId::Extended([number; 16]);
        let with = |host| Erasure { host, ..Erasure::new(format(), vec![1], vec![], 0, 0) };
        for (of, nsid, victims, expected) in [
            (Some(host(1)), 1, &[host(2), host(1)][..], true),
            (Some(host(1)), 2, &[host(1)], false),
            (Some(host(1)), 1, &[host(2)], false),
            (Some(host(1)), 1, &[], false),
            (None, 1, &[host(1)], false),
        ] {
            let mut erasure = with(of);
            assert_eq!((erasure.preempt(nsid, victims), erasure.is_preempted()), (expected, expected));
        }
        let mut erasure = with(Some(host(1)));
        assert!(erasure.preempt(1, &[host(1)]) && erasure.preempt(1, &[host(2)]), "it stays so");
    }
}
