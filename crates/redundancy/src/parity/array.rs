//! The state machine of an array: its steps, and the order in which work is looked for.

use super::background::Background;
use super::commands::{CommandId, Commands};
use super::flush::Flushes;
use super::member::MemberState;
use super::mode::Mode;
use super::notes::Notes;
use super::open::Opening;
use super::ops::Ops;
use super::ring::Ring;
use super::state::{ARRAY_MAX, REGIONS_MAX, State};
use super::write::Batches;
use super::{ARRAY_LOG_MIN, Geometry, OpId};
use crate::set::REGION_MIN;
use crate::{MEMBERS_MAX, Members};
use std::collections::VecDeque;

/// Usual number of regions of a member, and their usual size.
const REGIONS_USUAL: u64 = 1 << 16;
const REGION_USUAL: u64 = 1 << 20;

/// Returns the default size of a region of members with `size` bytes.
pub fn array_region_bytes(size: u64) -> u64 {
    (size / REGIONS_USUAL).max(REGION_USUAL).next_power_of_two()
}

/// Shape of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayConfig {
    /// Shape that the array was made with. A second parity that it was given later is in its log.
    pub geometry: Geometry,
    /// Number of members behind those of the shape, for [`Parity::set_parities`].
    pub spares: usize,
    /// Bytes of each member that are used: a multiple of the chunk.
    pub size: u64,
    /// Bytes of a region in a new array, a power of two. See [`array_region_bytes`].
    pub region_bytes: u64,
    /// Bytes of the log's storage, at least [`ARRAY_LOG_MIN`].
    pub log_bytes: u64,
    /// Rate of background work while the host works, bytes per second.
    pub rate: u64,
    /// Whether each read is compared with the parities.
    pub safe_read: bool,
    /// Random identifier of a new log.
    pub id: u64,
    /// Identifier of each member's storage; zero for storage that has none, and [`UNSEEN`](crate::UNSEEN) if
    /// it is not available yet.
    pub storage: [u128; MEMBERS_MAX],
    /// Members that were never written to, and read as zeros.
    pub new: Members,
}

/// Kind of access to a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Write, durable when it is done if the flag is set.
    Write {
        fua: bool,
    },
}

/// Failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The data at this place cannot be read, or is wrong. The member works otherwise.
    Media,
    /// The member does not work.
    Device,
    /// The member may have lost acknowledged writes.
    LostWrites,
    /// The host gave its command up.
    GivenUp,
}

/// Result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Good,
    /// The data cannot be read or recovered.
    ReadFailed,
    /// The change was not done, or not by all members that are needed.
    WriteFailed,
    /// The host gave the command up.
    GivenUp,
}

/// Request of the array. Each is issued once, and its result must be returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The array was opened, or why it cannot be.
    Ready(Result<(), String>),
    /// Read of the log: [`Parity::log_read`].
    ReadLog { offset: u64, length: usize },
    /// Write of [`Parity::log_bytes`] to the log, done when durable: [`Parity::log_written`].
    WriteLog { offset: u64 },
    /// Read of the log into the batch memory: [`Parity::batch_read`].
    ReadBatch { offset: u64, length: usize },
    /// Write of the batch memory to the log, done when durable: [`Parity::batch_written`]. Its content is
    /// [`Parity::batch_head`] and [`Parity::batch_parts`].
    WriteBatch { offset: u64, length: usize },
    /// Write of a member from the batch memory, or of zeros if there is no place: [`Parity::restored`].
    Restore { member: usize, offset: u64, length: u64, at: Option<usize> },
    /// Request for memory of so many bytes, which the operation keeps until [`Step::Free`]:
    /// [`Parity::has_memory`].
    Memory { op: OpId, length: usize },
    /// Call of [`Parity::compute`], with the data of a command if there is one.
    Compute { op: OpId, command: Option<CommandId> },
    /// Access of a member, with data at `at` in the memory of the operation: [`Parity::cell_done`].
    Cell { op: OpId, role: usize, member: usize, offset: u64, length: u64, at: usize, access: Access },
    /// Write of zeros: [`Parity::cell_done`].
    Zero { op: OpId, role: usize, member: usize, offset: u64, length: u64, fua: bool },
    /// End of an operation: its memory is free.
    Free { op: OpId },
    /// Read into the data of a command, from byte `at` on: [`Parity::direct_done`].
    Direct { command: CommandId, member: usize, offset: u64, length: u64, at: u64 },
    /// Flush of a member: [`Parity::flushed`].
    Flush { member: usize },
    /// End of a command.
    Over { command: CommandId, end: End },
    /// More members failed than there are parities. All commands have failed. When no request is in flight, the
    /// array must be opened anew.
    Halt(String),
}

/// Array of members with parities.
#[derive(Debug)]
pub struct Parity {
    pub(super) config: ArrayConfig,
    pub(super) state: State,
    pub(super) notes: Notes,
    pub(super) opening: Opening,
    /// Number of members, spares included.
    pub(super) available: usize,
    pub(super) mode: Mode,
    pub(super) ring: Ring,
    pub(super) batches: Batches,
    pub(super) member_state: MemberState,
    pub(super) flushes: Flushes,
    pub(super) commands: Commands,
    pub(super) ops: Ops,
    pub(super) background: Background,
    pub(super) steps: VecDeque<Step>,
    pub(super) ready: bool,
    pub(super) halted: bool,
}

impl Parity {
    /// Creates an array whose log has to be read first.
    ///
    /// # Errors
    /// Returns a message if there cannot be such an array.
    pub fn new(config: ArrayConfig) -> Result<Self, String> {
        let ArrayConfig { geometry, spares, size, region_bytes, log_bytes, .. } = config;
        if log_bytes < ARRAY_LOG_MIN {
            return Err(format!("the log has {log_bytes} bytes, and needs {ARRAY_LOG_MIN}"));
        }
        let available = geometry.members.saturating_add(spares);
        if available > ARRAY_MAX {
            return Err(format!("{available} members are more than {ARRAY_MAX}"));
        }
        if size == 0 || !size.is_multiple_of(geometry.chunk) {
            return Err("a member is smaller than a chunk".to_owned());
        }
        if !region_bytes.is_power_of_two()
            || region_bytes < REGION_MIN
            || size.div_ceil(region_bytes) > REGIONS_MAX
        {
            return Err(format!("members of {size} bytes cannot have regions of {region_bytes}"));
        }
        Ok(Self {
            config,
            state: State::new(geometry, size, region_bytes, 0, Members::NONE),
            notes: Notes::default(),
            opening: Opening::load(),
            available,
            mode: Mode::default(),
            ring: Ring::new(0, Default::default()),
            batches: Batches::default(),
            member_state: MemberState::default(),
            flushes: Flushes::default(),
            commands: Commands::default(),
            ops: Ops::default(),
            background: Background::default(),
            steps: VecDeque::with_capacity(64),
            ready: false,
            halted: false,
        })
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.config.geometry
    }

    /// Returns the bytes of the drive.
    pub fn size(&self) -> u64 {
        self.geometry().drive_bytes(self.config.size)
    }

    /// Returns the next step; none until a result arrives, or [`alarm_ns`](Self::alarm_ns) has come.
    pub fn next(&mut self, now_ns: u64) -> Option<Step> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                if let Step::Over { command, .. } = step {
                    self.commands.close(command);
                }
                return Some(step);
            }
            if self.halted {
                return None;
            }
            if let Some(step) = self.log_step(now_ns) {
                return Some(step);
            }
            if self.opening.is_over() {
                self.run_commands();
                self.admit();
            }
            if self.ready {
                if self.change_mode() {
                    continue;
                }
                self.begin_batch();
                self.tick(now_ns);
                self.rejoin_lost(now_ns);
                self.begin_background(now_ns);
                self.admit();
            }
            if self.steps.is_empty() {
                return None;
            }
        }
    }

    /// Returns the latest time for the next call of [`next`](Self::next).
    pub fn alarm_ns(&self) -> Option<u64> {
        if self.halted {
            return None;
        }
        let alarms =
            [self.flushes.tick_ns, self.member_state.rejoin_ns, self.background_ns(), self.notes.retry_ns];
        alarms.into_iter().flatten().min()
    }

    /// Stops for good. The ends of commands that are over go out first.
    pub(super) fn halt(&mut self, why: String) {
        if !std::mem::replace(&mut self.halted, true) {
            self.steps.retain(|step| matches!(step, Step::Over { .. }));
            self.steps.push_back(Step::Halt(why));
        }
    }

    /// Returns whether the array has stopped.
    pub fn is_halted(&self) -> bool {
        self.halted
    }
}
