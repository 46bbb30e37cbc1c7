//! A set at work: what it wants done, and what it is told.

use crate::background::Background;
use crate::journal::Journal;
use crate::set::{REGION_MIN, Set};
use crate::standing::Standing;
use crate::writes::{WriteId, Writes};
use crate::{LOG_MIN, MEMBERS_MAX, Members};
use std::collections::VecDeque;

/// Regions that a drive is divided into, unless they become smaller than [`REGION_USUAL`].
const REGIONS_USUAL: u64 = 1 << 16;

/// Bytes of a region at least, unless somebody says otherwise.
const REGION_USUAL: u64 = 1 << 20;

/// Nanoseconds between two looks at which regions are clean again.
const TICK_NS: u64 = 1_000_000_000;

/// Bytes of a region of a drive of so many bytes, as it is usual.
pub fn region_bytes(size: u64) -> u64 {
    (size / REGIONS_USUAL).max(REGION_USUAL).next_power_of_two()
}

/// The shape of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// 1 to [`MEMBERS_MAX`](crate::MEMBERS_MAX).
    pub members: usize,
    /// Bytes of the drive, and of each member.
    pub size: u64,
    /// Bytes of a region of a set that is new: a power of two. See [`region_bytes`].
    pub region_bytes: u64,
    /// Bytes of the log's storage, at least [`LOG_MIN`].
    pub log_bytes: u64,
    /// Bytes that are copied at once, at most.
    pub piece_bytes: u64,
    /// Bytes a second that are copied while the host writes.
    pub rate: u64,
    /// True if another member takes the source's place when it fails. False if the source is what the host
    /// reads, come what may: its failure is the write's.
    pub promotes: bool,
    /// What tells a new log from any other: random.
    pub id: u64,
    /// Tells the storage of each member from any other's, and outlives restarts; zero if there is no such number, and
    /// [`UNSEEN`](crate::UNSEEN) if it is not known yet.
    pub storage: [u128; MEMBERS_MAX],
    /// Members that nothing was ever written to.
    pub new: Members,
}

/// What is to be done now. Each is asked for once, and its end is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The log was read: writes may come; or there cannot be a set, in words.
    Ready(Result<(), String>),
    /// Read of the log's storage: [`Mirror::log_read`].
    ReadLog { offset: u64, length: usize },
    /// Write [`Mirror::log_bytes`] there, done when it is durable (Force Unit Access):
    /// [`Mirror::log_written`].
    WriteLog { offset: u64 },
    /// Flush a member: [`Mirror::flushed`].
    Flush { member: usize },
    /// Copy from a member to others: [`Mirror::copied`].
    Copy { from: usize, to: Members, offset: u64, length: u64 },
    /// Compare what these have: [`Mirror::compared`].
    Compare { members: Members, offset: u64, length: u64 },
    /// A write that waited goes to these now: [`Mirror::end`].
    Go { write: WriteId, to: Members },
    /// A write that waited for the log is over: acknowledge it, or fail it.
    Over { write: WriteId, good: bool },
}

/// A set of members with the same contents.
#[derive(Debug)]
pub struct Mirror {
    pub(crate) config: Config,
    pub(crate) set: Set,
    pub(crate) standing: Standing,
    pub(crate) journal: Journal,
    pub(crate) writes: Writes,
    pub(crate) background: Background,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) ready: bool,
    pub(crate) damaged: bool,
    tick_ns: Option<u64>,
}

impl Mirror {
    /// A set whose log has to be read first.
    ///
    /// # Errors
    /// In words: there cannot be such a set.
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
            standing: Standing::default(),
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

    /// What is to be done next; none until something is told, or [`alarm_ns`](Self::alarm_ns) has come.
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

    /// When to ask again at the latest.
    pub fn alarm_ns(&self) -> Option<u64> {
        let alarms = [self.tick_ns, self.rejoin_ns(), self.piece_ns(), self.journal.retry_ns];
        alarms.into_iter().flatten().min()
    }

    /// What [`Step::WriteLog`] is to write.
    pub fn log_bytes(&self) -> &[u8] {
        self.journal.bytes()
    }

    /// Looks now and then at which regions are clean again: no write was there for a while, so what was
    /// written is flushed, and then the log may forget it.
    fn tick(&mut self, now_ns: u64) {
        let settling = self.set.regions.are_settling() || !self.standing.arriving(self).is_empty();
        if !settling || self.standing.is_flushing() {
            self.tick_ns = None;
            return;
        }
        if self.tick_ns.get_or_insert(now_ns + TICK_NS) > &mut { now_ns } {
            return;
        }
        // Also if there is no more to do: who asks only when this says so would else never ask again.
        self.tick_ns = Some(now_ns + TICK_NS);
        self.set.regions.tick();
        self.begin_flush();
    }

    /// The drive, and so each member, has another size. What comes to it is copied from the source.
    ///
    /// # Errors
    /// In words: the log has no room for so many regions. Nothing has changed then.
    pub fn resize(&mut self, size: u64) -> Result<(), String> {
        self.check_shape(size, self.set.regions.region_bytes())?;
        self.config.size = size;
        let others = self.set.members.without(Members::one(self.standing.source));
        self.set.regions.resize(size, others);
        self.journal.make_whole();
        self.restart_copy();
        self.is_resized(size);
        Ok(())
    }

    pub fn size(&self) -> u64 {
        self.config.size
    }

    /// True if what [`take_out`](Self::take_out) has changed is durable: none of it comes back after a restart.
    pub fn is_noted(&self) -> bool {
        self.journal.is_past_barrier()
    }
}
