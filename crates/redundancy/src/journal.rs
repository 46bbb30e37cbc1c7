//! Changes of the set on their way into the log.

use crate::log::{Loader, Magic, Outcome, Piece, Writer};
use crate::mirror::{Mirror, Step};
use crate::set::{CHANGES_MAX, Change, REGIONS_MAX, Set};
use crate::{Members, log};
use std::ops::Range;

/// Attempts to read or write the log before a failure is an error.
const TRIES: u32 = 3;

/// Delay between two attempts, nanoseconds.
const RETRY_NS: u64 = 500_000_000;

/// Changes that belong into the log, and their progress.
#[derive(Debug)]
pub(crate) struct Journal {
    stage: Stage,
    /// Changes that are not issued yet. They are issued together, in one record or in a checkpoint, so all or
    /// none of them become durable.
    pending: Vec<Change>,
    issued: Vec<Change>,
    /// Whether a checkpoint is due; `whole_issued`: whether one is in flight.
    whole: bool,
    whole_issued: bool,
    /// Numbers of changes: made, in flight, durable.
    made: u64,
    issuing: u64,
    safe: u64,
    /// Number of changes that must be durable before a write is acknowledged.
    barrier: u64,
    failures: u32,
    pub(crate) retry_ns: Option<u64>,
}

#[derive(Debug)]
enum Stage {
    Load {
        loader: Box<Loader>,
        set: Option<Set>,
        asked: bool,
    },
    Run(Writer),
    /// Waits for an operator to choose the right member: the log does not show it, or belongs to other
    /// storage.
    Asks(Writer),
    Refused,
}

impl Journal {
    pub(crate) fn new(log_bytes: u64) -> Self {
        Self {
            stage: Stage::Load {
                loader: Box::new(Loader::new(Magic::MIRROR, log_bytes)),
                set: None,
                asked: false,
            },
            pending: Vec::with_capacity(CHANGES_MAX),
            issued: Vec::with_capacity(CHANGES_MAX),
            whole: false,
            whole_issued: false,
            made: 0,
            issuing: 0,
            safe: 0,
            barrier: 0,
            failures: 0,
            retry_ns: None,
        }
    }

    fn make(&mut self, change: Change) {
        self.made += 1;
        if !self.pending.last_mut().is_some_and(|last| last.join(&change)) {
            self.pending.push(change);
        }
    }

    /// Requests a checkpoint of the whole set.
    pub(crate) fn make_whole(&mut self) {
        self.made += 1;
        self.whole = true;
        self.pending.clear();
    }

    /// Holds all acknowledgements until the changes made so far are durable.
    pub(crate) fn make_barrier(&mut self) {
        self.barrier = self.made;
    }

    /// Returns whether all changes that an acknowledgement depends on are durable.
    pub(crate) fn is_past_barrier(&self) -> bool {
        self.safe >= self.barrier
    }

    /// Returns whether the log cannot be written.
    pub(crate) fn is_broken(&self) -> bool {
        self.failures >= TRIES || matches!(self.stage, Stage::Refused)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if let Stage::Run(writer) = &self.stage { writer.bytes() } else { &[] }
    }
}

impl Mirror {
    /// Sets the mask of these regions, in memory and in the log.
    pub(crate) fn mark(&mut self, regions: Range<usize>, members: Members) {
        self.set.regions.mark(regions.clone(), members);
        self.journal.make(Change::mark(regions, members));
    }

    /// Maps the mask of every region; a run of equal masks becomes one change.
    pub(crate) fn mark_each(&mut self, mask: impl Fn(Members) -> Members) {
        let count = self.set.regions.list.len();
        let mut first = 0;
        while first < count {
            let old = self.set.regions.list[first].wanted;
            let same =
                self.set.regions.list[first..].iter().take_while(|region| region.wanted == old).count();
            if mask(old) != old {
                self.mark(first..first + same, mask(old));
            }
            first += same;
        }
    }

    /// Records a member's generation and whether it is out in the log.
    pub(crate) fn note_member(&mut self, member: usize) {
        let (generation, out) = (self.set.generations[member], self.set.out.contains(member));
        self.journal.make(Change::member(member, generation, out));
    }

    /// Returns the next read or write of the log, if there is one.
    pub(crate) fn journal_step(&mut self, now_ns: u64) -> Option<Step> {
        if let Stage::Load { loader, asked, .. } = &mut self.journal.stage {
            let (offset, length) = loader.next().filter(|_| !*asked)?;
            *asked = true;
            return Some(Step::ReadLog { offset, length });
        }
        self.issue(now_ns);
        let Stage::Run(writer) = &mut self.journal.stage else { return None };
        writer.next().map(|offset| Step::WriteLog { offset })
    }

    fn issue(&mut self, now_ns: u64) {
        let journal = &mut self.journal;
        let Stage::Run(writer) = &mut journal.stage else { return };
        if !writer.is_idle() || !journal.whole && journal.pending.is_empty() {
            return;
        }
        if journal.retry_ns.is_some_and(|retry_ns| now_ns < retry_ns) {
            return;
        }
        (journal.retry_ns, journal.issuing) = (None, journal.made);
        journal.whole |= !writer.has_room() || journal.pending.len() > CHANGES_MAX;
        // Until this write has ended, the log may have the new masks or the old ones.
        if std::mem::take(&mut journal.whole) {
            journal.whole_issued = true;
            journal.pending.clear();
            writer.checkpoint(|state| self.set.write(state));
            let regions = &mut self.set.regions.list;
            regions.iter_mut().for_each(|region| region.durable = region.durable.and(region.wanted));
            return;
        }
        std::mem::swap(&mut journal.pending, &mut journal.issued);
        let regions = &mut self.set.regions.list;
        for (range, _) in journal.issued.iter().filter_map(Change::marks) {
            regions[range].iter_mut().for_each(|region| region.durable = region.durable.and(region.wanted));
        }
        writer.append(Set::bytes_of(&journal.issued));
    }

    /// Ends a [`Step::ReadLog`] with its bytes; `None` if they cannot be read.
    pub fn log_read(&mut self, bytes: Option<&[u8]>) {
        let Stage::Load { loader, set, asked } = &mut self.journal.stage else { return };
        *asked = false;
        let Some(bytes) = bytes else {
            self.journal.failures += 1;
            if self.journal.failures >= TRIES {
                self.refuse("the log cannot be read".into());
            }
            return;
        };
        loader.read(bytes, &mut |piece| match piece {
            Piece::State(state) => {
                *set = Set::read(state);
                set.is_some()
            }
            Piece::Record(record) => set.as_mut().is_some_and(|set| set.replay(record)),
        });
        if let Some(outcome) = loader.outcome().cloned() {
            let set = set.take();
            self.loaded(outcome, set);
        }
    }

    fn loaded(&mut self, outcome: Outcome, set: Option<Set>) {
        let (log_bytes, new) = (self.config.log_bytes, self.config.id);
        let (writer, set) = match (outcome, set) {
            (Outcome::Refused(words), _) => return self.refuse(format!("the log is refused: {words}")),
            (Outcome::Loaded { id, epoch, half }, Some(set)) => {
                (Writer::new(Magic::MIRROR, log_bytes, id, epoch, half), Some(set))
            }
            (Outcome::Damaged { epoch, half }, _) => {
                self.damaged = true;
                (Writer::new(Magic::MIRROR, log_bytes, new, epoch, half).after_damage(), None)
            }
            _ => (Writer::new(Magic::MIRROR, log_bytes, new, 1, 0), None),
        };
        let others = self.set.members.without(Members::one(0));
        if self.damaged {
            return self.ask(writer, "the log is damaged".into());
        }
        if set.is_none() && !self.config.new.covers(others) {
            let used = others.without(self.config.new);
            return self.ask(writer, format!("the log is blank, and members {used:?} are not new"));
        }
        if let Some(set) = set {
            if set.members != self.set.members {
                let (theirs, ours) = (set.members.iter().count(), self.config.members);
                return self
                    .refuse(format!("the log is of a set of {theirs} members, and this one has {ours}"));
            }
            let replaced = set.replaced(&self.config.storage);
            self.set = set;
            if let Err(words) = self.lose_replaced(replaced) {
                return self.ask(writer, words);
            }
        }
        self.begin_with(writer);
    }

    fn begin_with(&mut self, writer: Writer) {
        self.set.note_storage(&self.config.storage);
        if let Err(words) = self.open(self.config.size) {
            return self.refuse(words);
        }
        self.journal.stage = Stage::Run(writer);
        // Failures of reading the log are no evidence about writing it.
        self.journal.failures = 0;
        self.journal.make_whole();
        self.journal.make_barrier();
    }

    /// Stops all reads, writes and copies until an operator has [chosen the right member](Self::copy_from).
    fn ask(&mut self, writer: Writer, why: String) {
        self.journal.stage = Stage::Asks(writer);
        self.steps.push_back(Step::Ready(Err(format!(
            "{why}: nothing says which member has the data, and nothing is overwritten. Mount or connect what is \
             missing and open the drive again, or say `copy from N`: member N is right, and is copied to all others"
        ))));
    }

    /// Returns whether an operator has to [choose the right member](Self::copy_from).
    pub fn asks(&self) -> bool {
        matches!(self.journal.stage, Stage::Asks(_))
    }

    /// Declares a member right, by an operator's order: everything is copied from it to the others.
    ///
    /// # Errors
    /// Returns a message if no choice is due, or if this member cannot be chosen.
    pub fn copy_from(&mut self, member: usize) -> Result<(), String> {
        if !self.set.members.contains(member) {
            return Err(format!("there is no member {member}; they are {:?}", self.set.members));
        }
        if !self.config.promotes && member != 0 {
            return Err(
                "the host reads member 0, the primary: to copy from the other, name that as the primary"
                    .into(),
            );
        }
        let asks = std::mem::replace(&mut self.journal.stage, Stage::Refused);
        let Stage::Asks(writer) = asks else {
            self.journal.stage = asks;
            return Err("the log says which members are right; `resync all` copies everything".into());
        };
        let region_bytes = self.config.region_bytes;
        self.set = Set::new(self.config.members, self.config.size, region_bytes, member);
        self.begin_with(writer);
        Ok(())
    }

    pub(crate) fn refuse(&mut self, words: String) {
        self.journal.stage = Stage::Refused;
        self.steps.push_back(Step::Ready(Err(words)));
    }

    /// Ends a [`Step::WriteLog`]: `good` if it is durable.
    pub fn log_written(&mut self, good: bool, now_ns: u64) {
        let Stage::Run(writer) = &mut self.journal.stage else { return };
        let Some(good) = writer.wrote(good) else { return };
        if good {
            self.log_is_safe()
        } else {
            self.log_has_failed(now_ns)
        }
        self.look_at_waiting();
    }

    fn log_is_safe(&mut self) {
        let journal = &mut self.journal;
        let Stage::Run(writer) = &journal.stage else { return };
        let regions = &mut self.set.regions.list;
        if std::mem::take(&mut journal.whole_issued) {
            // A region that was added since is not in the checkpoint.
            let masks = Set::masks(writer.state());
            regions.iter_mut().zip(masks).for_each(|(region, mask)| region.durable = Members(*mask));
        }
        for (range, mask) in journal.issued.iter().filter_map(Change::marks) {
            // The regions may have been removed since.
            let regions = regions.get_mut(range).unwrap_or_default();
            regions.iter_mut().for_each(|region| region.durable = mask);
        }
        journal.issued.clear();
        (journal.safe, journal.failures) = (journal.issuing, 0);
        if !std::mem::replace(&mut self.ready, true) {
            self.steps.push_back(Step::Ready(Ok(())));
        }
    }

    fn log_has_failed(&mut self, now_ns: u64) {
        let journal = &mut self.journal;
        // The part of the failed write that reached the log is unknown.
        (journal.whole, journal.whole_issued) = (true, false);
        journal.issued.clear();
        journal.failures += 1;
        journal.retry_ns = Some(now_ns + if journal.is_broken() { RETRY_NS } else { 0 });
        if journal.is_broken() && !self.ready {
            self.refuse("the log cannot be written".into());
        }
    }

    /// Checks that the regions of a drive fit into the log.
    pub(crate) fn check_shape(&self, size: u64, region_bytes: u64) -> Result<(), String> {
        let regions = size.div_ceil(region_bytes);
        if regions > REGIONS_MAX || Set::state_bytes(regions) > log::state_max(self.config.log_bytes) {
            return Err(format!("the log is too small for {regions} regions of {region_bytes} bytes"));
        }
        Ok(())
    }
}
