//! The state machine of a set: the steps that it issues, and their results.

use crate::background::Background;
use crate::journal::Journal;
use crate::member_state::MemberState;
use crate::set::{REGION_MIN, Set};
use crate::writes::{WriteId, Writes};
use crate::{LOG_MIN, MEMBERS_MAX, Members};
use std::collections::VecDeque;

/// Usual number of regions of a drive, unless they become smaller than [`REGION_USUAL`].
const REGIONS_USUAL: u64 = 1 << 16;

/// Minimum size of a region by default, bytes.
const REGION_USUAL: u64 = 1 << 20;

/// Nanoseconds between two checks for regions that are clean again.
const TICK_NS: u64 = 1_000_000_000;

/// Returns the default size of a region on a drive of `size` bytes.
pub fn region_bytes(size: u64) -> u64 {
    (size / REGIONS_USUAL).max(REGION_USUAL).next_power_of_two()
}

/// Shape of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of members, 1 to [`MEMBERS_MAX`](crate::MEMBERS_MAX).
    pub members: usize,
    /// Bytes of the drive, and of each member.
    pub size: u64,
    /// Bytes of a region in a new set: a power of two. See [`region_bytes`].
    pub region_bytes: u64,
    /// Bytes of the log's storage, at least [`LOG_MIN`].
    pub log_bytes: u64,
    /// Maximum size of one copy, bytes.
    pub piece_bytes: u64,
    /// Copy rate while the host writes, bytes per second.
    pub rate: u64,
    /// Whether another member takes the source's place when the source fails. If not, the host always reads
    /// the source, and a write fails when it fails on the source.
    pub promotes: bool,
    /// Random identifier of a new log.
    pub id: u64,
    /// Identifier of each member's storage, unique and stable across restarts; zero for storage that has
    /// none, and [`UNSEEN`](crate::UNSEEN) if it is not available yet.
    pub storage: [u128; MEMBERS_MAX],
    /// Members that were never written to.
    pub new: Members,
}

/// Request of the set. Each is issued once, and its result must be returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The log was read: writes may arrive. An error message if there cannot be such a set.
    Ready(Result<(), String>),
    /// Read of the log's storage: [`Mirror::log_read`].
    ReadLog { offset: u64, length: usize },
    /// Write of [`Mirror::log_bytes`] to the log's storage, done when durable (Force Unit Access):
    /// [`Mirror::log_written`].
    WriteLog { offset: u64 },
    /// Flush of a member: [`Mirror::flushed`].
    Flush { member: usize },
    /// Copy from one member to others: [`Mirror::copied`].
    Copy { from: usize, to: Members, offset: u64, length: u64 },
    /// Comparison of the contents of these members: [`Mirror::compared`].
    Compare { members: Members, offset: u64, length: u64 },
    /// Start of a write that waited, to these members: [`Mirror::end`].
    Go { write: WriteId, to: Members },
    /// End of a write that waited for the log: acknowledge it, or fail it.
    Over { write: WriteId, good: bool },
}

/// Set of members with the same contents.
#[derive(Debug)]
pub struct Mirror {
    pub(crate) config: Config,
    pub(crate) set: Set,
    pub(crate) member_state: MemberState,
    pub(crate) journal: Journal,
    pub(crate) writes: Writes,
    pub(crate) background: Background,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) ready: bool,
    pub(crate) damaged: bool,
    tick_ns: Option<u64>,
}

impl Mirror {
    /// Creates a set whose log has to be read first.
    ///
    /// # Errors
    /// Returns a message if there cannot be such a set.
    pub fn new(config: Config) -> Result<Self, String> {
        let Config { members, size, region_bytes, log_bytes, piece_bytes, .. } = config;
        if log_bytes < LOG_MIN {
            return Err(format!("the log has {log_bytes} bytes, and needs {LOG_MIN}"));
        }
        assert!(members > 0 && members <= crate::MEMBERS_MAX && piece_bytes > 0);
        assert!(region_bytes >= REGION_MIN && region_bytes.is_power_of_two());
        let mirror = Self {
            config,
            set: Set::new(members, size, region_bytes, 0),
            member_state: MemberState::default(),
            journal: Journal::new(log_bytes),
            writes: Writes::default(),
            background: Background::default(),
            steps: VecDeque::with_capacity(64),
            ready: false,
            damaged: false,
            tick_ns: None,
        };
        mirror.check_shape(size, region_bytes)?;
        Ok(mirror)
    }

    /// Returns the next step; none until a result arrives, or [`alarm_ns`](Self::alarm_ns) has come.
    pub fn next(&mut self, now_ns: u64) -> Option<Step> {
        if self.steps.is_empty() {
            if let Some(step) = self.journal_step(now_ns) {
                return Some(step);
            }
            if self.ready {
                self.tick(now_ns);
                self.rejoin_lost(now_ns);
                self.begin_piece(now_ns);
            }
        }
        let step = self.steps.pop_front()?;
        if let Step::Over { write, good } = step {
            self.is_over(write, good);
        }
        Some(step)
    }

    /// Returns the latest time for the next call of [`next`](Self::next).
    pub fn alarm_ns(&self) -> Option<u64> {
        let alarms = [self.tick_ns, self.rejoin_ns(), self.piece_ns(), self.journal.retry_ns];
        // Called several times a write: a minimum without branches takes a third of the instructions.
        let least = alarms.into_iter().fold(u64::MAX, |least, at| least.min(at.unwrap_or(u64::MAX)));
        (least != u64::MAX).then_some(least)
    }

    /// Returns the bytes for a [`Step::WriteLog`].
    pub fn log_bytes(&self) -> &[u8] {
        self.journal.bytes()
    }

    /// Searches periodically for regions that are clean again. A region without a recent write is flushed,
    /// and then its mark in the log is cleared.
    fn tick(&mut self, now_ns: u64) {
        let settling = self.set.regions.are_settling() || !self.member_state.arriving(self).is_empty();
        if !settling || self.member_state.is_flushing() {
            self.tick_ns = None;
            return;
        }
        if self.tick_ns.get_or_insert(now_ns + TICK_NS) > &mut { now_ns } {
            return;
        }
        // The alarm is set even if nothing is left to do: a caller that polls only at alarms would otherwise
        // stop.
        self.tick_ns = Some(now_ns + TICK_NS);
        self.set.regions.tick();
        self.begin_flush();
    }

    /// Changes the size of the drive, and so of each member. Added bytes are copied from the source.
    ///
    /// # Errors
    /// Returns a message if the log has no room for so many regions. Nothing has changed then.
    pub fn resize(&mut self, size: u64) -> Result<(), String> {
        self.check_shape(size, self.set.regions.region_bytes())?;
        self.config.size = size;
        let others = self.set.members.without(Members::one(self.member_state.source));
        self.set.regions.resize(size, others);
        self.journal.make_whole();
        self.restart_copy();
        self.is_resized(size);
        Ok(())
    }

    pub fn size(&self) -> u64 {
        self.config.size
    }

    /// Returns whether the changes of [`take_out`](Self::take_out) are durable, so that a restart does not
    /// undo them.
    pub fn is_noted(&self) -> bool {
        self.journal.is_past_barrier()
    }
}
