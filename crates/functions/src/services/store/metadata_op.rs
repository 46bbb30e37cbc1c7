//! Operations on the metadata: one step after the other, each a request to the store.
//!
//! An operation does not send requests itself. Its user requests the next step, executes it, and requests the
//! next one; a failed step ends the operation. Data of a step is in the one buffer that all operations share.

use super::block::{BLOCK, Kind, Label, number, seal};
use super::layout::{DELETIONS, Header, Layout, MAPPINGS_PER_BLOCK, VERSIONS_PER_BLOCK};
use super::load::Load;
use super::table::{Mapping, Table, Version};

/// Bytes of the operations' buffer.
pub(crate) const BUFFER: usize = 16 * BLOCK;

/// Step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read {
        at: u64,
        length: usize,
    },
    Write {
        at: u64,
        length: usize,
    },
    /// Flush: all earlier writes are durable after it.
    Flush,
    /// End of the operation.
    Done,
}

impl Step {
    fn write(at: u64, length: usize) -> Self {
        Self::Write { at, length }
    }
}

/// Position at which the log continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) area: usize,
    pub(crate) generation: u64,
    /// Number of the next block.
    pub(crate) sequence: u64,
}

/// Chunk of the drive, with its new chunk of the store, or zeros.
pub(crate) type Change = (u32, Option<u32>);

/// Changes in a block.
pub(crate) const CHANGES_MAX: usize = super::block::PAYLOAD / 8;

/// Content of a block of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Changes(Vec<Change>),
    Create(Version),
    Delete(String),
    Rollback(String),
}

impl Entry {
    /// Writes the block with this entry at the end of the log.
    fn seal(&self, block: &mut [u8], salt: u64, log: &Log) {
        let named = |name: &String| Version { name: name.clone(), created: 0, epoch: 0 };
        let (kind, version) = match self {
            Self::Changes(_) => (Kind::Changes, None),
            Self::Create(version) => (Kind::Create, Some(version.clone())),
            Self::Delete(name) => (Kind::Delete, Some(named(name))),
            Self::Rollback(name) => (Kind::Rollback, Some(named(name))),
        };
        seal(block, salt, Label::new(kind, log.generation, log.sequence), |payload| {
            if let Some(version) = version {
                version.put(payload);
            }
            let Self::Changes(changes) = self else { return 1 };
            for (bytes, (logical, physical)) in payload.chunks_exact_mut(8).zip(changes) {
                bytes[..4].copy_from_slice(&logical.to_le_bytes());
                bytes[4..].copy_from_slice(&physical.map_or(0, |physical| physical + 1).to_le_bytes());
            }
            changes.len()
        });
    }

    /// Returns the entry of a block; none if it is no block of a log.
    pub(crate) fn open(label: Label, payload: &[u8]) -> Option<Self> {
        let version = || Version::get(payload.get(..Version::BYTES)?);
        Some(match label.kind {
            Kind::Changes => {
                let changes = payload.chunks_exact(8).take(label.count.into());
                let change =
                    |bytes| (number(bytes, 0) as u32, ((number(bytes, 0) >> 32) as u32).checked_sub(1));
                Self::Changes(changes.map(change).collect())
            }
            Kind::Create => Self::Create(version()?),
            Kind::Delete => Self::Delete(version()?.name),
            Kind::Rollback => Self::Rollback(version()?.name),
            _ => return None,
        })
    }

    /// Applies the entry to the table. Chunks of changes were [allocated](Table::allocate).
    pub(crate) fn apply(&self, table: &mut Table) -> Result<(), String> {
        match self {
            Self::Changes(changes) => {
                changes.iter().for_each(|(logical, physical)| table.put(*logical, *physical))
            }
            Self::Create(version) => table.create(&version.name, version.created)?,
            Self::Delete(name) => table.delete(name)?,
            Self::Rollback(name) => table.roll_back(name)?,
        }
        Ok(())
    }
}

/// Operation on the metadata, with its progress.
#[derive(Debug)]
pub(crate) enum MetadataOp {
    Load(Box<Load>),
    /// Makes a store.
    Format(Format),
    /// Writes a new checkpoint into the other area.
    Checkpoint(Checkpoint),
    /// Writes a block of the log.
    Append(Append),
    /// Makes all earlier writes durable.
    Sync(bool),
}

/// Makes a store: its superblocks come last.
#[derive(Debug)]
pub(crate) struct Format {
    pub(crate) layout: Layout,
    pub(crate) stage: u8,
}

impl Format {
    pub(crate) fn next(&mut self, bytes: &mut [u8]) -> Step {
        let Self { layout, stage } = self;
        let block = &mut bytes[..BLOCK];
        *stage += 1;
        let at = match *stage {
            1 => {
                seal(block, layout.salt, Label::new(Kind::Deletions, 0, 0), |_| 0);
                DELETIONS
            }
            2 => {
                block.fill(0);
                layout.header_at(1)
            }
            3 => {
                Header { generation: 1, epoch: 1, ..Header::default() }.seal(block, layout.salt);
                layout.header_at(0)
            }
            5 | 7 => {
                layout.seal_superblock(block);
                if *stage == 5 { 0 } else { BLOCK as u64 }
            }
            4 | 6 | 8 => return Step::Flush,
            _ => return Step::Done,
        };
        Step::write(at, BLOCK)
    }
}

/// Writes one block of the log.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) entry: Entry,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Begin,
    /// All writes that the entry depends on are durable, and so is every block before it.
    Flushed,
    Written,
    /// The entry is durable.
    Durable,
    Announced,
}

impl Append {
    pub(crate) fn new(entry: Entry) -> Self {
        Self { entry, stage: Stage::Begin }
    }

    /// Returns whether the block may or may not exist when the operation ends now.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.stage > Stage::Flushed
    }

    /// Returns whether the block certainly exists, whatever fails now.
    pub(crate) fn is_durable(&self) -> bool {
        self.stage > Stage::Durable
    }

    /// Returns the next step. An order is durable when it is answered; changes are with the next flush, as
    /// their data is.
    pub(crate) fn next(&mut self, layout: &Layout, log: &Log, table: &Table, bytes: &mut [u8]) -> Step {
        let is_order = !matches!(self.entry, Entry::Changes(_));
        let (stage, step) = match self.stage {
            Stage::Begin => (Stage::Flushed, Step::Flush),
            Stage::Flushed => {
                self.entry.seal(&mut bytes[..BLOCK], layout.salt, log);
                (Stage::Written, Step::write(layout.log_at(log.area, log.sequence), BLOCK))
            }
            Stage::Written if is_order => (Stage::Durable, Step::Flush),
            // Readers of old versions are notified before the chunks are used again.
            Stage::Durable if matches!(self.entry, Entry::Delete(_)) => {
                seal_deletions(&mut bytes[..BLOCK], layout.salt, table.deletions() + 1);
                (Stage::Announced, Step::write(DELETIONS, BLOCK))
            }
            done => (done, Step::Done),
        };
        self.stage = stage;
        step
    }
}

fn seal_deletions(block: &mut [u8], salt: u64, deletions: u64) {
    seal(block, salt, Label::new(Kind::Deletions, 0, deletions), |_| 0);
}

/// Writes the table into the other area. The old area is valid until the new one is complete, and void from
/// then on: an older state is never taken for the present.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    stage: u8,
    /// Blocks of versions and mappings that were written.
    written: u64,
    /// Position of the next mapping in the table's order.
    place: usize,
    /// Mappings of the checkpoint.
    mappings: u64,
}

impl Checkpoint {
    pub(crate) fn new() -> Self {
        Self { stage: 0, written: 0, place: 0, mappings: 0 }
    }

    /// Returns the log that begins with the checkpoint, after the old one.
    pub(crate) fn log(before: &Log) -> Log {
        Log { area: 1 - before.area, generation: before.generation + 1, sequence: 1 }
    }

    /// Returns whether the checkpoint's own header is durable: the old area may be void then, whatever fails
    /// now. Before that the old area is valid as well, because a store whose checkpoint failed is not
    /// written.
    pub(crate) fn counts(&self) -> bool {
        self.stage > 6
    }

    pub(crate) fn next(&mut self, layout: &Layout, before: &Log, table: &Table, bytes: &mut [u8]) -> Step {
        let log = Self::log(before);
        let block = &mut bytes[..BLOCK];
        let head = layout.header_at(log.area);
        match self.stage {
            0 => {
                self.mappings = table.count_seen();
                seal_deletions(block, layout.salt, table.deletions());
                self.then(1, Step::write(DELETIONS, BLOCK))
            }
            1 => {
                block.fill(0);
                self.then(2, Step::write(head, BLOCK))
            }
            2 => self.then(3, Step::Flush),
            3 => match self.body(layout, &log, table, bytes) {
                Some(step) => step,
                None => self.then(4, Step::Flush),
            },
            4 => {
                self.header(&log, table).seal(block, layout.salt);
                self.then(5, Step::write(head, BLOCK))
            }
            5 => self.then(6, Step::Flush),
            6 => {
                block.fill(0);
                self.then(7, Step::write(layout.header_at(before.area), BLOCK))
            }
            7 => self.then(8, Step::Flush),
            _ => Step::Done,
        }
    }

    fn then(&mut self, stage: u8, step: Step) -> Step {
        self.stage = stage;
        step
    }

    /// Writes as many blocks as fit into the buffer. Returns none if there are no more.
    fn body(&mut self, layout: &Layout, log: &Log, table: &Table, bytes: &mut [u8]) -> Option<Step> {
        let header = self.header(log, table);
        let (versions, mappings) = header.blocks();
        let first = self.written;
        for block in bytes.chunks_exact_mut(BLOCK) {
            if self.written == versions + mappings {
                break;
            }
            match self.written < versions {
                true => self.versions(block, layout.salt, log, table),
                false => self.mappings(block, layout.salt, log, table),
            }
            self.written += 1;
        }
        let length = (self.written - first) as usize * BLOCK;
        (length > 0).then(|| Step::write(layout.body_at(log.area, first), length))
    }

    fn versions(&mut self, block: &mut [u8], salt: u64, log: &Log, table: &Table) {
        let from = self.written as usize * VERSIONS_PER_BLOCK;
        seal(block, salt, Label::new(Kind::Versions, log.generation, self.written), |payload| {
            let versions = table.versions()[from..].iter().take(VERSIONS_PER_BLOCK);
            let places = payload.chunks_exact_mut(Version::BYTES);
            places.zip(versions).map(|(bytes, version)| version.put(bytes)).count()
        });
    }

    fn mappings(&mut self, block: &mut [u8], salt: u64, log: &Log, table: &Table) {
        let place = &mut self.place;
        seal(block, salt, Label::new(Kind::Mappings, log.generation, self.written), |payload| {
            let mappings = table.mappings(*place).take(MAPPINGS_PER_BLOCK);
            let mut count = 0;
            for (bytes, (next, mapping)) in payload.chunks_exact_mut(Mapping::BYTES).zip(mappings) {
                mapping.put(bytes);
                (*place, count) = (next, count + 1);
            }
            count
        });
    }

    fn header(&self, log: &Log, table: &Table) -> Header {
        Header {
            generation: log.generation,
            epoch: table.epoch().into(),
            deletions: table.deletions(),
            versions: table.versions().len() as u64,
            mappings: self.mappings,
        }
    }
}
