//! Reading of a store's metadata. None of it is trusted: contradictions are refused with a message.

use super::block::{BLOCK, Kind, Label, open};
use super::layout::{DELETIONS, Header, Layout, MAPPINGS_PER_BLOCK, Shape, VERSIONS_PER_BLOCK};
use super::left_out::{LeftOut, TO_LAST_DURABLE_POINT};
use super::metadata_op::{Entry, RULES};
use super::table::{Mapping, Table, VERSIONS_MAX, Version};
use sluice_metadata::engine::{Content, Loader, Position, Reading, Step, Writer};

/// Result of loading a store.
#[derive(Debug)]
pub(crate) enum Found {
    /// Store without any content yet.
    Empty,
    Store(Box<Loaded>),
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) layout: Layout,
    pub(crate) table: Table,
    /// Writer that continues the log. It is stale if the log could not be written again, if blocks after its
    /// end are left out, or if readers of old versions were not notified of a deletion.
    pub(crate) writer: Writer,
    /// Number of deletions that readers of old versions see.
    pub(crate) deletions: u64,
    /// Blocks that were left out after the last durable point.
    pub(crate) left_out: LeftOut,
}

impl Loaded {
    /// Returns a store that was just made.
    pub(crate) fn made(layout: Layout) -> Self {
        let table = Table::new(layout.logical, layout.physical, layout.mappings_max);
        let writer = Writer::at(layout.halves, RULES, Position::first(0, 1), 0);
        Self { layout, table, writer, deletions: 0, left_out: LeftOut::default() }
    }
}

/// Operation that loads a store.
#[derive(Debug)]
pub(crate) struct Load {
    shape: Shape,
    /// Bytes of the store.
    store: u64,
    /// Whether another function writes the store, and may use more bytes.
    only_reads: bool,
    /// Whether blocks after the end are left out, by order of the operator.
    leaves_out: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Front,
    Superblocks,
    Halves(Loader, Box<Blocks>),
    Empty,
}

/// Blocks of the store that were read.
#[derive(Debug)]
struct Blocks {
    layout: Layout,
    table: Table,
    headers: [Option<Header>; 2],
    /// Header that counts.
    header: Header,
    /// Number of deletions that readers of old versions see.
    deletions: u64,
    leaves_out: bool,
    left_out: LeftOut,
    /// Whether the log could not be written again.
    unwritten: bool,
}

impl Load {
    pub(crate) fn new(shape: Shape, store: u64) -> Self {
        Self { shape, store, only_reads: false, leaves_out: false, stage: Stage::Front }
    }

    /// Loads a store. With `leaves_out` blocks of the log behind the first that is lost are left out.
    pub(crate) fn up_to(shape: Shape, store: u64, leaves_out: bool) -> Self {
        Self { leaves_out, ..Self::new(shape, store) }
    }

    /// Loads a store that belongs to another function.
    pub(crate) fn to_read(shape: Shape, store: u64) -> Self {
        Self { only_reads: true, ..Self::new(shape, store) }
    }

    pub(crate) fn found(self) -> Found {
        let Stage::Halves(loader, blocks) = self.stage else { return Found::Empty };
        let Blocks { layout, table, deletions, left_out, unwritten, .. } = *blocks;
        let mut writer = Writer::at(layout.halves, RULES, loader.position(), 0);
        if unwritten || left_out.is_some() || deletions != table.deletions() {
            writer.make_stale();
        }
        Found::Store(Box::new(Loaded { layout, table, writer, deletions, left_out }))
    }

    /// Checks the data of the last step, and returns the next.
    ///
    /// # Errors
    /// The damage of the store.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Step, String> {
        match &mut self.stage {
            Stage::Front => {
                self.stage = Stage::Superblocks;
                let length = 4 * BLOCK;
                if self.store < length as u64 {
                    return Err("the store is too small to be one".to_owned());
                }
                Ok(Step::Read { at: 0, length })
            }
            Stage::Superblocks => self.superblocks(bytes),
            Stage::Halves(loader, blocks) => {
                let length = if let Step::Read { length, .. } = loader.step() { length } else { 0 };
                loader.done(&bytes[..length], &mut **blocks)?;
                Ok(loader.step())
            }
            Stage::Empty => Ok(Step::Done),
        }
    }

    fn superblocks(&mut self, bytes: &[u8]) -> Result<Step, String> {
        let blocks = [&bytes[..BLOCK], &bytes[BLOCK..2 * BLOCK]];
        if blocks.iter().all(|block| block.iter().all(|byte| *byte == 0)) {
            self.stage = Stage::Empty;
            return Ok(Step::Done);
        }
        let found = blocks.iter().find_map(|block| Layout::open_superblock(block, self.shape, self.store));
        let layout = found.ok_or(
            "the store holds something else: its first 8192 bytes are neither zeros nor a snapshot store's",
        )??;
        let announced = open(&bytes[DELETIONS as usize..][..BLOCK], layout.salt);
        let announced = announced.filter(|(label, _)| label.kind == Kind::Deletions);
        let (announced, _) = announced.ok_or_else(|| damaged("block 2"))?;
        let table = Table::new(layout.logical, layout.physical, layout.mappings_max);
        let blocks = Blocks {
            layout,
            table: if self.only_reads { table.only_read() } else { table },
            headers: [None; 2],
            header: Header::default(),
            deletions: announced.sequence,
            leaves_out: self.leaves_out,
            left_out: LeftOut::default(),
            unwritten: false,
        };
        // The blocks may be from a cache that a failed flush did not write, and that no later flush writes.
        let reading = Reading { to_end: true, rewrites: !self.only_reads };
        let loader = Loader::new(layout.halves, reading);
        let step = loader.step();
        self.stage = Stage::Halves(loader, Box::new(blocks));
        Ok(step)
    }

    /// Returns whether a step that fails now is a write: the store can be read nevertheless.
    pub(crate) fn writes(&self) -> bool {
        matches!(&self.stage, Stage::Halves(loader, _) if loader.rewrites())
    }

    pub(crate) fn unwritten(mut self: Box<Self>) -> Box<Self> {
        if let Stage::Halves(_, blocks) = &mut self.stage {
            blocks.unwritten = true;
        }
        self
    }
}

impl Content for Blocks {
    /// Entry of a block; none if the block has something else.
    type Record<'a> = Option<Entry>;
    type Stop = String;

    fn header(&mut self, half: usize, block: &[u8]) -> Option<u64> {
        self.headers[half] = Header::open(block, self.layout.salt);
        self.headers[half].map(|header| header.generation)
    }

    fn no_header(&mut self) -> String {
        damaged("both headers")
    }

    fn begin(&mut self, log: &Position) -> Result<u64, String> {
        let header = self.headers[log.half].ok_or_else(|| self.no_header())?;
        let sane = 1..u64::MAX / 2;
        if !sane.contains(&header.generation) || header.deletions > sane.end {
            return Err(damaged("a header"));
        }
        if header.mappings > self.layout.mappings_max || header.versions > VERSIONS_MAX as u64 {
            return Err(damaged("a header, which counts more than fits"));
        }
        self.table.begin(header.epoch, header.deletions).map_err(|what| damaged(&what))?;
        self.header = header;
        let (versions, mappings) = header.blocks();
        Ok(versions + mappings)
    }

    fn body(&mut self, log: &Position, number: u64, blocks: &[u8]) -> Result<(), String> {
        let (versions, _) = self.header.blocks();
        for (block, number) in blocks.chunks_exact(BLOCK).zip(number..) {
            let mine = |label: &Label| (label.generation, label.sequence) == (log.generation, number);
            let (label, payload) = open(block, self.layout.salt)
                .filter(|(label, _)| mine(label))
                .ok_or_else(|| damaged(&format!("block {number} of the checkpoint")))?;
            load_block(&mut self.table, label, payload, number < versions)
                .map_err(|what| damaged(&format!("block {number} of the checkpoint: {what}")))?;
        }
        Ok(())
    }

    fn body_end(&mut self, _: &Position) -> Result<(), String> {
        self.table.verify().map_err(|what| damaged(&what))?;
        match self.table.count() == self.header.mappings {
            true => Ok(()),
            false => Err(damaged("a checkpoint, which counts otherwise")),
        }
    }

    fn record(&self, log: &Position, block: &[u8]) -> Option<Option<Entry>> {
        let mine = |label: &Label| (label.generation, label.sequence) == (log.generation, log.next + 1);
        let (label, payload) = open(block, self.layout.salt).filter(|(label, _)| mine(label))?;
        Some(Entry::open(label, payload))
    }

    fn apply(&mut self, log: &Position, entry: Option<Entry>) -> Result<(), String> {
        let entry = entry.ok_or_else(|| damaged("a block of the log"))?;
        replay(&mut self.table, &entry)
            .map_err(|what| damaged(&format!("block {} of the log: {what}", log.next + 1)))
    }

    fn behind_end(&mut self, end: &Position, number: u64, entry: Option<Entry>) -> Result<(), String> {
        if !self.leaves_out {
            return Err(has_lost_its_tail(&format!("the log before block {}", number + 1)));
        }
        self.left_out.add(end.next + 1, number + 1, entry);
        Ok(())
    }
}

fn damaged(what: &str) -> String {
    format!("the store is damaged: {what}")
}

/// Returns the message for lost blocks. The store has all that was durable before them, and the order opens
/// it there.
fn has_lost_its_tail(what: &str) -> String {
    format!("{}: `{TO_LAST_DURABLE_POINT}` opens it without what came after", damaged(what))
}

fn load_block(table: &mut Table, label: Label, payload: &[u8], versions: bool) -> Result<(), String> {
    let (kind, most) = match versions {
        true => (Kind::Versions, VERSIONS_PER_BLOCK),
        false => (Kind::Mappings, MAPPINGS_PER_BLOCK),
    };
    if label.kind != kind || usize::from(label.count) > most {
        return Err("it is something else".to_owned());
    }
    if versions {
        return payload
            .chunks_exact(Version::BYTES)
            .take(label.count.into())
            .try_for_each(|it| table.load_version(it));
    }
    let mappings = payload.chunks_exact(Mapping::BYTES).take(label.count.into()).map(Mapping::get);
    mappings.into_iter().try_for_each(|mapping| table.load_mapping(mapping))
}

fn replay(table: &mut Table, entry: &Entry) -> Result<(), String> {
    match entry {
        Entry::Changes(changes) => {
            changes.iter().try_for_each(|(logical, physical)| table.replay(*logical, *physical))
        }
        order => order.apply(table),
    }
}
