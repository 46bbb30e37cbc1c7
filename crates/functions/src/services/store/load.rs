//! Reading of a store's metadata. None of it is trusted: contradictions are refused with a message.

use super::block::{BLOCK, Kind, Label, open};
use super::layout::{DELETIONS, Header, Layout, MAPPINGS_PER_BLOCK, Shape, VERSIONS_PER_BLOCK};
use super::left_out::{LeftOut, TO_LAST_DURABLE_POINT};
use super::metadata_op::{BUFFER, Entry, Log, Step};
use super::table::{Mapping, Table, Version};

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
    pub(crate) log: Log,
    /// Number of deletions that readers of old versions see.
    pub(crate) deletions: u64,
    /// Whether the log could not be written again, or blocks after its end are left out.
    pub(crate) unwritten: bool,
    /// Blocks that were left out after the last durable point.
    pub(crate) left_out: LeftOut,
}

impl Loaded {
    /// Returns a store that was just made.
    pub(crate) fn made(layout: Layout) -> Self {
        let table = Table::new(layout.logical, layout.physical, layout.mappings_max);
        let log = Log { area: 0, generation: 1, sequence: 1 };
        Self { layout, table, log, deletions: 0, unwritten: false, left_out: LeftOut::default() }
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
    stage: Stage,
    headers: [Option<Header>; 2],
    loaded: Option<Box<Loaded>>,
    /// Blocks of the body or the log that were read, and their total.
    read: u64,
    blocks: u64,
    /// Blocks of versions.
    versions: u64,
    /// Whether the log's end was seen.
    ended: bool,
    /// Whether blocks after the end are left out, by order of the operator.
    leaves_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Front,
    Superblocks,
    Header(usize),
    Body,
    Log,
    /// Writing blocks of the log again, of so many that were read.
    Again(u64),
    Done,
}

impl Load {
    pub(crate) fn new(shape: Shape, store: u64) -> Self {
        Self {
            shape,
            store,
            only_reads: false,
            stage: Stage::Front,
            headers: [None; 2],
            loaded: None,
            read: 0,
            blocks: 0,
            versions: 0,
            ended: false,
            leaves_out: false,
        }
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
        self.loaded.map_or(Found::Empty, Found::Store)
    }

    /// Checks the data of the last step, and returns the next.
    ///
    /// # Errors
    /// The damage of the store.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Step, String> {
        match self.stage {
            Stage::Front => {
                self.stage = Stage::Superblocks;
                let length = BUFFER.min(usize::try_from(self.store).unwrap_or(BUFFER)).min(4 * BLOCK);
                if length < 4 * BLOCK {
                    return Err("the store is too small to be one".to_owned());
                }
                Ok(Step::Read { at: 0, length })
            }
            Stage::Superblocks => self.superblocks(bytes),
            Stage::Header(area) => self.header(area, bytes),
            Stage::Body => self.body(bytes),
            Stage::Log => self.log(bytes),
            Stage::Again(got) => {
                self.stage = Stage::Log;
                self.read_log(got)
            }
            Stage::Done => Ok(Step::Done),
        }
    }

    fn superblocks(&mut self, bytes: &[u8]) -> Result<Step, String> {
        let blocks = [&bytes[..BLOCK], &bytes[BLOCK..2 * BLOCK]];
        if blocks.iter().all(|block| block.iter().all(|byte| *byte == 0)) {
            self.stage = Stage::Done;
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
        let table = if self.only_reads { table.only_read() } else { table };
        let (log, deletions) = (Log { area: 0, generation: 0, sequence: 1 }, announced.sequence);
        let (unwritten, left_out) = (false, LeftOut::default());
        self.loaded = Some(Box::new(Loaded { layout, table, log, deletions, unwritten, left_out }));
        self.stage = Stage::Header(0);
        Ok(Step::Read { at: layout.header_at(0), length: BLOCK })
    }

    fn header(&mut self, area: usize, bytes: &[u8]) -> Result<Step, String> {
        let loaded = self.loaded.as_mut().ok_or("no superblock")?;
        let layout = loaded.layout;
        self.headers[area] = Header::open(&bytes[..BLOCK], layout.salt);
        if area == 0 {
            self.stage = Stage::Header(1);
            return Ok(Step::Read { at: layout.header_at(1), length: BLOCK });
        }
        // Both are there while a checkpoint is being finished: the later one is complete, or it would not
        // exist.
        let generation = |area: &usize| self.headers[*area].map(|header| header.generation);
        let area = (0..2).max_by_key(generation).unwrap_or(0);
        let header = self.headers[area].ok_or_else(|| damaged("both headers"))?;
        let (versions, mappings) = header.blocks();
        let sane = 1..u64::MAX / 2;
        if !sane.contains(&header.generation) || header.deletions > sane.end {
            return Err(damaged("a header"));
        }
        if header.mappings > layout.mappings_max || header.versions > super::table::VERSIONS_MAX as u64 {
            return Err(damaged("a header, which counts more than fits"));
        }
        loaded.table.begin(header.epoch, header.deletions).map_err(|what| damaged(&what))?;
        loaded.log = Log { area, generation: header.generation, sequence: 1 };
        self.headers = [Some(header), None];
        (self.blocks, self.versions) = (versions + mappings, versions);
        self.stage = Stage::Body;
        self.read_body(0)
    }

    /// Reads further; the log follows the body.
    fn read_body(&mut self, got: u64) -> Result<Step, String> {
        self.read += got;
        let loaded = self.loaded.as_ref().ok_or("no header")?;
        let count = (self.blocks - self.read).min((BUFFER / BLOCK) as u64);
        if count > 0 {
            let at = loaded.layout.body_at(loaded.log.area, self.read);
            return Ok(Step::Read { at, length: count as usize * BLOCK });
        }
        loaded.table.verify().map_err(|what| damaged(&what))?;
        if Some(loaded.table.count()) != self.headers[0].map(|header| header.mappings) {
            return Err(damaged("a checkpoint, which counts otherwise"));
        }
        (self.stage, self.read, self.blocks) = (Stage::Log, 0, loaded.layout.log);
        self.read_log(0)
    }

    fn body(&mut self, bytes: &[u8]) -> Result<Step, String> {
        let got = (self.blocks - self.read).min((BUFFER / BLOCK) as u64);
        let loaded = self.loaded.as_mut().ok_or("no header")?;
        for (block, number) in bytes.chunks_exact(BLOCK).zip(self.read..self.read + got) {
            let block = open(block, loaded.layout.salt);
            let mine = |label: &Label| label.generation == loaded.log.generation && label.sequence == number;
            let (label, payload) = block
                .filter(|(label, _)| mine(label))
                .ok_or_else(|| damaged(&format!("block {number} of the checkpoint")))?;
            load_block(&mut loaded.table, label, payload, number < self.versions)
                .map_err(|what| damaged(&format!("block {number} of the checkpoint: {what}")))?;
        }
        self.read_body(got)
    }

    fn read_log(&mut self, got: u64) -> Result<Step, String> {
        self.read += got;
        let loaded = self.loaded.as_ref().ok_or("no header")?;
        let count = (self.blocks - self.read).min((BUFFER / BLOCK) as u64);
        if count == 0 {
            self.stage = Stage::Done;
            return Ok(Step::Done);
        }
        let at = loaded.layout.log_at(loaded.log.area, self.read + 1);
        Ok(Step::Read { at, length: count as usize * BLOCK })
    }

    fn log(&mut self, bytes: &[u8]) -> Result<Step, String> {
        let got = (self.blocks - self.read).min((BUFFER / BLOCK) as u64);
        let loaded = self.loaded.as_mut().ok_or("no header")?;
        for (bytes, sequence) in bytes.chunks_exact(BLOCK).zip(self.read + 1..=self.read + got) {
            let block = open(bytes, loaded.layout.salt);
            let mine =
                |label: &Label| (label.generation, label.sequence) == (loaded.log.generation, sequence);
            let Some((label, payload)) = block.filter(|(label, _)| mine(label)) else {
                // The first block that is missing or torn ends the log.
                self.ended = true;
                continue;
            };
            if self.ended && !self.leaves_out {
                // A block is written when the ones before it are durable.
                return Err(has_lost_its_tail(&format!("the log before block {sequence}")));
            }
            let entry = Entry::open(label, payload);
            if self.ended {
                loaded.left_out.add(loaded.log.sequence, sequence, entry);
                loaded.unwritten = true;
                continue;
            }
            let entry = entry.ok_or_else(|| damaged("a block of the log"))?;
            replay(&mut loaded.table, &entry)
                .map_err(|what| damaged(&format!("block {sequence} of the log: {what}")))?;
            loaded.log.sequence = sequence + 1;
        }
        let good = (loaded.log.sequence - 1).saturating_sub(self.read) as usize;
        if good == 0 || self.only_reads {
            return self.read_log(got);
        }
        // The blocks may be from a cache that a failed flush did not write, and that no later flush writes.
        self.stage = Stage::Again(got);
        Ok(Step::Write { at: loaded.layout.log_at(loaded.log.area, self.read + 1), length: good * BLOCK })
    }

    /// Returns whether a step that fails now is a write: the store can be read nevertheless.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.stage, Stage::Again(_))
    }

    pub(crate) fn unwritten(mut self: Box<Self>) -> Box<Self> {
        self.loaded.iter_mut().for_each(|loaded| loaded.unwritten = true);
        self
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
