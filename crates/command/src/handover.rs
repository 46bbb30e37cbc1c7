//! The hand-over segment: the state that another process needs to continue where this one stopped.
//!
//! There is a memfd for the commands in flight of each drive, and one for the queues and the registers of
//! each of its controllers. The segments are written while the drive runs, in a layout with a version of its
//! own. To this process a segment is ordinary memory and costs a few stores. A successor that receives the
//! descriptors finds all state that is neither in the host's memory nor on disk.

use sluice_memory::{SharedRecord, SharedRegion};
use sluice_nvme::SubmissionEntry;
use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Commands of hosts that a segment has records for.
pub const COMMANDS_MAX: usize = 1024;

/// Queue pairs that a segment has records for, the admin queue pair included.
pub const QUEUE_PAIRS_MAX: usize = 129;

/// "sluice" and two zeros, as bytes in memory.
const MAGIC: u64 = u64::from_le_bytes(*b"sluice\0\0");

/// Version of the layouts below, which changes with every change of one.
const VERSION: u32 = 2;

/// A command in flight: the entry as the host submitted it, and its queue and controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct CommandRecord {
    pub entry: SubmissionEntry,
    /// Submission queue identifier.
    pub sq: u16,
    /// Value 1 if the command is in flight.
    pub live: u16,
    /// Number of the controller in the drive.
    pub controller: u32,
}

/// A queue in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct QueueRecord {
    /// Guest address of the queue's memory.
    pub address: u64,
    /// Entries; zero if there is no such queue.
    pub size: u32,
    /// Head of a submission queue; tail of a completion queue, with its phase in bit 31.
    pub index: u32,
    /// Completion queue of a submission queue; interrupt vector of a completion queue, or 0xffff.
    pub peer: u16,
    pub reserved: [u8; 6],
}

/// Registers that are not derived from any other state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct RegisterRecord {
    pub cc: u32,
    pub csts: u32,
    pub aqa: u32,
    pub reserved: u32,
    pub asq: u64,
    pub acq: u64,
    /// Guest addresses of the shadow doorbell and event index pages; zero for none.
    pub shadow: [u64; 2],
}

/// Begin of every segment.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Header {
    magic: u64,
    version: u32,
    /// Bytes of the segment.
    length: u32,
}

/// The segment of a drive.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Commands {
    header: Header,
    pub commands: [CommandRecord; COMMANDS_MAX],
}

/// The segment of a controller.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Queues {
    header: Header,
    /// Number of the controller in its commands' records.
    pub controller: u64,
    pub registers: RegisterRecord,
    pub sqs: [QueueRecord; QUEUE_PAIRS_MAX],
    pub cqs: [QueueRecord; QUEUE_PAIRS_MAX],
}

/// Contents that a segment can have.
pub trait Content: FromBytes + IntoBytes + Immutable + KnownLayout {
    fn header(&self) -> &Header;
    fn header_mut(&mut self) -> &mut Header;

    /// Returns whether this process can read the layout of another process.
    fn is_known(&self) -> bool {
        let Header { magic, version, length } = self.header();
        *magic == MAGIC && *version == VERSION && *length as usize == size_of_val(self)
    }
}

impl Content for Commands {
    fn header(&self) -> &Header {
        &self.header
    }

    fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }
}

impl Content for Queues {
    fn header(&self) -> &Header {
        &self.header
    }

    fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }
}

/// A segment in memory that this process alone writes.
#[derive(Debug)]
pub struct Segment<T>(SharedRecord<T>);

impl<T: Content> Segment<T> {
    /// # Errors
    /// The operating system has no memory or descriptor for it.
    pub fn new() -> io::Result<Self> {
        let region = SharedRegion::new("sluice-hand-over", size_of::<T>())?;
        let mut segment = Self(region.into_record()?);
        let length = size_of::<T>() as u32;
        *segment.get_mut().header_mut() = Header { magic: MAGIC, version: VERSION, length };
        Ok(segment)
    }

    /// Reads the segment of a process that has ended.
    ///
    /// # Errors
    /// InvalidData if the process had another layout; else the file cannot be read.
    pub fn read(fd: OwnedFd) -> io::Result<Box<T>> {
        let mut content = T::new_box_zeroed().map_err(|_| io::ErrorKind::OutOfMemory)?;
        File::from(fd).read_exact_at(content.as_mut_bytes(), 0)?;
        if content.is_known() { Ok(content) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Returns the descriptor, for a successor of this process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    #[inline]
    pub fn get(&self) -> &T {
        &self.0
    }

    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
