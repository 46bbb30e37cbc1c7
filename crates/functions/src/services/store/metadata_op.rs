//! Operations on the metadata: one step after the other, each a request to the store.
//!
//! An operation does not send requests itself. Its user requests the next step, executes it, and requests the
//! next one; a failed step ends the operation. Data of a step is in the one buffer that all operations share.
//! [`sluice_metadata::engine`] has the order of the steps of a checkpoint and of a block of the log.

use super::block::{BLOCK, Kind, Label, number, seal};
use super::layout::{DELETIONS, Header, Layout, MAPPINGS_PER_BLOCK, VERSIONS_PER_BLOCK};
use super::load::Load;
use super::table::{Mapping, Table, Version};
use sluice_metadata::engine::{Position, Rules, Source, Step, Writer};

/// Rules of writing: a flush makes writes durable, and an older state is never taken for the present.
pub(crate) const RULES: Rules = Rules { flushes: true, voids: true };

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
    fn seal(&self, block: &mut [u8], salt: u64, log: &Position) {
        let named = |name: &String| Version { name: name.clone(), created: 0, epoch: 0 };
        let (kind, version) = match self {
            Self::Changes(_) => (Kind::Changes, None),
            Self::Create(version) => (Kind::Create, Some(version.clone())),
            Self::Delete(name) => (Kind::Delete, Some(named(name))),
            Self::Rollback(name) => (Kind::Rollback, Some(named(name))),
        };
        seal(block, salt, Label::new(kind, log.generation, log.next + 1), |payload| {
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
    /// Writes a checkpoint or a block of the log.
    Write(Write),
    /// Makes all earlier writes durable.
    Sync(bool),
}

impl MetadataOp {
    pub(crate) fn is_checkpoint(&self) -> bool {
        matches!(self, Self::Write(Write { entry: None, .. }))
    }
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
                layout.halves.header_at(1)
            }
            3 => {
                Header { generation: 1, epoch: 1, ..Header::default() }.seal(block, layout.salt);
                layout.halves.header_at(0)
            }
            5 | 7 => {
                layout.seal_superblock(block);
                if *stage == 5 { 0 } else { BLOCK as u64 }
            }
            4 | 6 | 8 => return Step::Flush,
            _ => return Step::Done,
        };
        Step::Write { at, length: BLOCK }
    }
}

/// Writes one block of the log, or a checkpoint into the other area.
#[derive(Debug)]
pub(crate) struct Write {
    /// Content of the block; none for a checkpoint.
    pub(crate) entry: Option<Entry>,
    body: Body,
    /// Whether the number of deletions was written.
    announced: bool,
}

impl Write {
    /// Begins a block of the log. An order is durable when it is answered; changes are with the next flush, as
    /// their data is.
    pub(crate) fn append(entry: Entry, writer: &mut Writer) -> Self {
        writer.append(!matches!(entry, Entry::Changes(_)));
        Self { entry: Some(entry), body: Body::default(), announced: false }
    }

    pub(crate) fn checkpoint(table: &Table, writer: &mut Writer) -> Self {
        writer.checkpoint();
        let body = Body { place: 0, mappings: table.count_seen() };
        Self { entry: None, body, announced: false }
    }

    /// Returns the next step. Block 2 comes before a checkpoint, and after a deletion: readers of old versions
    /// are notified before the chunks are used again.
    pub(crate) fn next(
        &mut self,
        layout: &Layout,
        writer: &mut Writer,
        table: &Table,
        bytes: &mut [u8],
    ) -> Step {
        let salt = layout.salt;
        if self.entry.is_none() && !self.announced {
            return self.announce(table.deletions(), salt, bytes);
        }
        let Self { entry, body, announced } = self;
        match writer.next(&mut Blocks { salt, table, entry: entry.as_ref(), body }, bytes) {
            Step::Done if !*announced && matches!(entry, Some(Entry::Delete(_))) => {
                self.announce(table.deletions() + 1, salt, bytes)
            }
            step => step,
        }
    }

    fn announce(&mut self, deletions: u64, salt: u64, bytes: &mut [u8]) -> Step {
        self.announced = true;
        seal(&mut bytes[..BLOCK], salt, Label::new(Kind::Deletions, 0, deletions), |_| 0);
        Step::Write { at: DELETIONS, length: BLOCK }
    }

    /// Ends the operation, because its last step failed. Returns the entry, and whether the log has it
    /// durably: then only the readers of old versions were not notified.
    pub(crate) fn failed(self, writer: &mut Writer) -> (Option<Entry>, bool) {
        let is_durable = writer.is_idle();
        match is_durable {
            true => writer.make_stale(),
            false => writer.failed(),
        }
        (self.entry, is_durable)
    }
}

/// Progress of the body of a checkpoint.
#[derive(Debug, Default)]
struct Body {
    /// Position of the next mapping in the table's order.
    place: usize,
    /// Mappings of the checkpoint.
    mappings: u64,
}

/// Content of the blocks that the engine writes.
struct Blocks<'a> {
    salt: u64,
    table: &'a Table,
    entry: Option<&'a Entry>,
    body: &'a mut Body,
}

impl Source for Blocks<'_> {
    fn header(&mut self, log: &Position, block: &mut [u8]) {
        self.header_of(log).seal(block, self.salt);
    }

    fn body(&mut self, log: &Position, number: u64, buffer: &mut [u8]) -> usize {
        let (versions, mappings) = self.header_of(log).blocks();
        let blocks = buffer.chunks_exact_mut(BLOCK).zip(number..versions + mappings);
        blocks
            .map(|(block, number)| match number < versions {
                true => self.versions(block, Label::new(Kind::Versions, log.generation, number)),
                false => self.mappings(block, Label::new(Kind::Mappings, log.generation, number)),
            })
            .count()
    }

    fn record(&mut self, log: &Position, block: &mut [u8]) {
        self.entry.into_iter().for_each(|entry| entry.seal(block, self.salt, log));
    }
}

impl Blocks<'_> {
    fn header_of(&self, log: &Position) -> Header {
        Header {
            generation: log.generation,
            epoch: self.table.epoch().into(),
            deletions: self.table.deletions(),
            versions: self.table.versions().len() as u64,
            mappings: self.body.mappings,
        }
    }

    fn versions(&self, block: &mut [u8], label: Label) {
        let from = label.sequence as usize * VERSIONS_PER_BLOCK;
        seal(block, self.salt, label, |payload| {
            let versions = self.table.versions()[from..].iter().take(VERSIONS_PER_BLOCK);
            let places = payload.chunks_exact_mut(Version::BYTES);
            places.zip(versions).map(|(bytes, version)| version.put(bytes)).count()
        });
    }

    fn mappings(&mut self, block: &mut [u8], label: Label) {
        let place = &mut self.body.place;
        seal(block, self.salt, label, |payload| {
            let mappings = self.table.mappings(*place).take(MAPPINGS_PER_BLOCK);
            let mut count = 0;
            for (bytes, (next, mapping)) in payload.chunks_exact_mut(Mapping::BYTES).zip(mappings) {
                mapping.put(bytes);
                (*place, count) = (next, count + 1);
            }
            count
        });
    }
}
