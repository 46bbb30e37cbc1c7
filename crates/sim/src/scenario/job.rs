//! Commands in flight, and their expected results.

use super::Scenario;
use super::draft::{Draft, Kind};
use crate::buffer::Direction;
use crate::host::Completion;
use crate::{Action, Buffer, FlightId, Tag, Violation, read_tag};
use sluice_nvme::Status;

/// A command that the controller has.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) namespace: usize,
    pub(super) direction: Direction,
    pub(super) buffer: Buffer,
    pub(super) expected: Expected,
}

/// Expected result of a command.
#[derive(Debug)]
pub(super) enum Expected {
    /// Refusal of a spoiled command with this status, without an effect.
    Refused(Status),
    /// Success, with this many blocks in the buffer.
    Read { flight: FlightId, blocks: u64 },
    /// Success or Compare Failure.
    Compare { flight: FlightId, tags: Vec<Tag> },
    /// Success of a change.
    Changed(Vec<FlightId>),
}

impl Scenario<'_> {
    /// Drafts a command, spoils it perhaps, and puts it into the queue if that has room.
    pub(super) fn submit_any(&mut self, sq: u16) {
        let mut draft = self.draft_any();
        let spoiled = self.random.one_in(self.effort.flawed_one_in).then(|| self.spoil(&mut draft));
        self.submit(sq, draft, spoiled);
    }

    /// Submits a Copy with nothing else in flight: the copied contents are certain then.
    pub(super) fn copy_alone(&mut self) {
        let namespace = self.random.below(self.drive.namespaces.len() as u64) as usize;
        if !self.drive.namespaces[namespace].keeps_data || self.host.sqs.len() < 2 {
            return;
        }
        self.drain();
        let Some(draft) = self.draft_copy(namespace) else { return };
        let queues: Vec<u16> = self.host.sqs.keys().copied().filter(|&sq| sq != 0).collect();
        let sq = *self.random.pick(&queues);
        if self.submit(sq, draft, None) {
            let before = self.tally.succeeded;
            self.drain();
            self.tally.copied += self.tally.succeeded - before;
        }
    }

    /// Submits a read of these blocks to some queue; returns false if it has no room.
    pub(super) fn submit_read(&mut self, namespace: usize, first: u64, blocks: u64) -> bool {
        let queues: Vec<u16> = self.host.sqs.keys().copied().filter(|&sq| sq != 0).collect();
        let sq = *self.random.pick(&queues);
        let draft = self.draft_read(namespace, first, blocks);
        let submitted = self.submit(sq, draft, None);
        self.host.ring(sq);
        submitted
    }

    fn submit(&mut self, sq: u16, draft: Draft, refused: Option<Status>) -> bool {
        let direction = draft.direction();
        let Draft { namespace, mut entry, kind, mut buffer } = draft;
        if refused.is_none() {
            buffer.describe(&mut entry);
        }
        buffer.seal(&self.host.guest);
        let Some(cid) = self.host.push(sq, entry) else {
            buffer.check_and_release(&mut self.host.guest, Direction::FromHost);
            return false;
        };
        let expected = refused.map_or_else(|| self.expected(namespace, kind), Expected::Refused);
        self.jobs.insert((sq, cid), Job { namespace, direction, buffer, expected });
        true
    }

    fn expected(&mut self, namespace: usize, kind: Kind) -> Expected {
        let model = &mut self.models[namespace];
        match kind {
            Kind::Read { first, blocks } => {
                Expected::Read { flight: model.begin(Action::Read { first, blocks }), blocks }
            }
            Kind::Compare { first, tags } => {
                let flight = model.begin(Action::Read { first, blocks: tags.len() as u64 });
                Expected::Compare { flight, tags }
            }
            Kind::Change(actions) => {
                Expected::Changed(actions.into_iter().map(|action| model.begin(action)).collect())
            }
        }
    }

    /// Checks the result of a command that came back.
    pub(super) fn complete(&mut self, completion: Completion) {
        let Completion { sq, cid, status, .. } = completion;
        self.note_error(&completion);
        if sq == 0 {
            return self.complete_request(completion);
        }
        let job = self.jobs.remove(&(sq, cid));
        let job = job.unwrap_or_else(|| panic!("CID {cid} of SQ {sq} came back and was not sent"));
        let is_refused = matches!(job.expected, Expected::Refused(_));
        if let Expected::Refused(expected) = job.expected {
            assert_eq!(status, expected, "{job:?}");
            self.tally.refused += 1;
        } else if self.drive.faults.contains(&status) || self.is_given_up(sq, status) {
            self.fail(&job);
            self.tally.failed += 1;
        } else {
            self.succeed(&job, status);
            self.tally.succeeded += 1;
        }
        let direction = if is_refused { Direction::FromHost } else { job.direction };
        job.buffer.check_and_release(&mut self.host.guest, direction);
    }

    /// Returns whether a command of a queue that is deleted may end early with this status.
    fn is_given_up(&self, sq: u16, status: Status) -> bool {
        self.deleting == Some(sq) && status == Status::ABORTED_SQ_DELETION
    }

    /// Handles a legal command that failed, or was never answered.
    pub(super) fn fail(&mut self, job: &Job) {
        let model = &mut self.models[job.namespace];
        match &job.expected {
            Expected::Read { flight, .. } | Expected::Compare { flight, .. } => model.end(*flight, false),
            Expected::Changed(flights) => flights.iter().for_each(|&flight| model.end(flight, false)),
            Expected::Refused(_) => {}
        }
    }

    /// Handles the success of a legal command; a Compare may also have found a difference.
    fn succeed(&mut self, job: &Job, status: Status) {
        let differs = status == Status::COMPARE_FAILURE && matches!(job.expected, Expected::Compare { .. });
        assert!(status.is_success() || differs, "{status:?} for a legal command: {job:?}");
        if let Expected::Changed(flights) = &job.expected {
            return flights.iter().for_each(|&flight| self.models[job.namespace].end(flight, true));
        }
        if !self.drive.namespaces[job.namespace].keeps_data {
            return self.fail(job);
        }
        if let Err(violation) = self.check_data(job, differs) {
            panic!("namespace {}: {violation}: {job:?}", job.namespace);
        }
    }

    /// Checks that the data of a Read, or the result of a Compare, is permitted by the model.
    fn check_data(&mut self, job: &Job, differs: bool) -> Result<(), Violation> {
        match &job.expected {
            Expected::Read { flight, blocks } => {
                let found = self.tags(job, *blocks);
                self.models[job.namespace].end_read(*flight, &found)
            }
            Expected::Compare { flight, tags } if differs => {
                self.models[job.namespace].end_unequal(*flight, tags)
            }
            Expected::Compare { flight, tags } => {
                let found: Vec<_> = tags.iter().copied().map(Some).collect();
                self.models[job.namespace].end_read(*flight, &found)
            }
            Expected::Changed(_) | Expected::Refused(_) => Ok(()),
        }
    }

    /// Returns the tags of a read; none for blocks that went into a bit bucket in part.
    fn tags(&self, job: &Job, blocks: u64) -> Vec<Option<Tag>> {
        let mut block = vec![0; self.drive.namespaces[job.namespace].block_size as usize];
        let tag = |number: u64| {
            let is_whole = job.buffer.read(&self.host.guest, number as usize * block.len(), &mut block);
            is_whole
                .then(|| read_tag(&block).unwrap_or_else(|torn| panic!("block {number}: {torn}: {job:?}")))
        };
        (0..blocks).map(tag).collect()
    }
}
