//! A pool's metadata on its device: opened, made, and changed record by record.

use crate::block::{
    BLOCK, Content as Found, Kind, Label, PAYLOAD, generation, number, number_32, open, seal,
};
use crate::book::{Book, Change, MAPPING_BYTES, VOLUME_BYTES, get_volume, put_volume};
use crate::layout::{Layout, body_blocks, per_block};
use crate::storage::{ReadOnly, Storage};
use sluice_metadata::engine::{Content, IO_MAX, Loader, Position, Reading, Rules, Source, Step, Writer};
use std::io;

/// Rules of writing. An earlier checkpoint is never taken for the present one: a damaged header is damage.
const RULES: Rules = Rules { flushes: true, voids: true };

/// Rules of reading. The later header is written again before the other half is used, and an opening begins with a
/// checkpoint.
const READING: Reading = Reading { to_end: true, rewrites: true };

/// Blocks at the beginning of a device that are zeros before a pool is made on it, 1 MiB. File systems begin later than at
/// byte 0: btrfs at 64 KiB, UFS at up to 256 KiB.
const BLANK: usize = 256;

/// Reason for which the metadata cannot be used.
#[derive(Debug)]
pub(crate) enum StoreError {
    Io(io::Error),
    /// Reason in words.
    Refused(String),
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for StoreError {
    fn from(words: String) -> Self {
        Self::Refused(words)
    }
}

/// The metadata of an open pool.
#[derive(Debug)]
pub(crate) struct Store<S> {
    storage: S,
    layout: Layout,
    writer: Writer,
    buffer: Vec<u8>,
    /// Bytes of the device, if nothing was written since the opening.
    unwritten: Option<u64>,
}

impl<S: Storage> Store<S> {
    /// Opens the pool on a device of `size` bytes, and makes one on a device of zeros. `id` is that of a new pool.
    pub(crate) fn open(mut storage: S, size: u64, id: u64) -> Result<(Self, Book), StoreError> {
        let Some(layout) = front(&mut storage, size)? else {
            return Self::make(storage, Layout::plan(id, size)?, size);
        };
        let (book, position) = load(&mut storage, layout, size)?;
        let writer = Writer::new(layout.halves(), RULES, position.after());
        let mut store = Self { storage, layout, writer, buffer: vec![0; IO_MAX], unwritten: None };
        store.checkpoint(&book)?;
        Ok((store, book))
    }

    /// Opens a pool that is open in another process, which writes nothing meanwhile. Nothing is written before the first
    /// [`commit`](Self::commit): if there is none, the other process may go on. From the first one on, it must not.
    pub(crate) fn open_lent(mut storage: S, size: u64) -> Result<(Self, Book), StoreError> {
        let mut lent = ReadOnly(|at, bytes: &mut [u8]| storage.read(at, bytes));
        let layout = front(&mut lent, size)?.ok_or_else(|| damaged("there is no pool"))?;
        let (book, position) = load(&mut lent, layout, size)?;
        let writer = Writer::new(layout.halves(), RULES, position.after());
        Ok((Self { storage, layout, writer, buffer: vec![0; IO_MAX], unwritten: Some(size) }, book))
    }

    /// Takes the pool over from another process, which is gone. `book` is the state, and nothing has changed it.
    fn take_over(&mut self, size: u64, book: &Book) -> Result<(), StoreError> {
        let layout = front(&mut self.storage, size)?.ok_or_else(|| damaged("the pool is gone"))?;
        let (_, position) = load(&mut self.storage, layout, size)?;
        self.writer = Writer::new(layout.halves(), RULES, position.after());
        self.checkpoint(book)
    }

    /// Makes a pool. The superblocks come last.
    fn make(storage: S, layout: Layout, size: u64) -> Result<(Self, Book), StoreError> {
        let book = Book::new(layout.extents(size)?);
        let writer = Writer::new(layout.halves(), RULES, Position::first(0, 1));
        let mut store = Self { storage, layout, writer, buffer: vec![0; IO_MAX], unwritten: None };
        // A pool that was made before, and of which the superblocks alone were zeroed, must not come back.
        store.storage.reserve(layout.data_at())?;
        store.storage.write(layout.halves().header_at(1), &[0; BLOCK])?;
        store.storage.flush()?;
        store.checkpoint(&book)?;
        let mut block = vec![0; BLOCK];
        layout.seal(&mut block);
        for at in [0, BLOCK as u64] {
            store.storage.write(at, &block)?;
            store.storage.flush()?;
        }
        Ok((store, book))
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Writes changes that were not applied to the state yet. They are durable when this returns. Returns how many of
    /// them, from the first on, have room in one record.
    pub(crate) fn commit(&mut self, book: &Book, changes: &[Change]) -> Result<usize, StoreError> {
        let mut bytes = 0;
        let fit = changes.iter().take_while(|change| {
            bytes += change.bytes();
            bytes <= PAYLOAD
        });
        let count = fit.count();
        if let Some(size) = self.unwritten {
            self.take_over(size, book)?;
            self.unwritten = None;
        }
        if !self.writer.has_room() {
            self.checkpoint(book)?;
        }
        self.writer.append(true);
        self.run(book, &changes[..count])?;
        Ok(count)
    }

    /// Makes all earlier writes to the device durable, also those of volumes.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        Ok(self.storage.flush()?)
    }

    fn checkpoint(&mut self, book: &Book) -> Result<(), StoreError> {
        self.writer.checkpoint();
        self.run(book, &[])
    }

    fn run(&mut self, book: &Book, changes: &[Change]) -> Result<(), StoreError> {
        let mut source = Pages { id: self.layout.id, book, changes, next: None };
        loop {
            let done = match self.writer.next(&mut source, &mut self.buffer) {
                Step::Done => return Ok(()),
                Step::Write { at, length } => self.storage.write(at, &self.buffer[..length]),
                Step::Flush => self.storage.flush(),
                Step::Read { .. } => Ok(()),
            };
            if let Err(error) = done {
                self.writer.failed();
                return Err(error.into());
            }
        }
    }
}

/// Returns the layout of the pool on a device of `size` bytes; none on a device of zeros, where a pool can be made. Writes
/// a superblock again that a power cut tore.
fn front(storage: &mut impl Storage, size: u64) -> Result<Option<Layout>, StoreError> {
    let mut front = vec![0; BLANK * BLOCK];
    if size < front.len() as u64 {
        // No pool is so small, and the plan refuses it with the least size.
        Layout::plan(0, size)?;
    }
    storage.read(0, &mut front)?;
    let (first, second) = (&front[..BLOCK], &front[BLOCK..2 * BLOCK]);
    let layout = match Layout::open(first).or_else(|| Layout::open(second)) {
        Some(layout) => layout?,
        None if is_blank(&front) => {
            Layout::plan(0, size)?;
            return Ok(None);
        }
        None => {
            let words = "it holds something else than a pool: a new pool needs a file or device that begins with \
                         1 MiB of zeros";
            return Err(words.to_owned().into());
        }
    };
    layout.extents(size)?;
    for (at, block, other) in [(0, first, second), (BLOCK as u64, second, first)] {
        if Layout::open(block).is_none() {
            storage.write(at, other)?;
            storage.flush()?;
        }
    }
    Ok(Some(layout))
}

/// Loads the state of a pool, and returns it with the end of its log.
fn load(storage: &mut impl Storage, layout: Layout, size: u64) -> Result<(Book, Position), StoreError> {
    let mut blocks = Blocks { layout, book: Book::new(layout.extents(size)?), headers: [None; 2], taken: 0 };
    let mut buffer = vec![0; IO_MAX];
    let mut loader = Loader::new(layout.halves(), READING);
    loop {
        let length = match loader.step() {
            Step::Done => return Ok((blocks.book, loader.position())),
            Step::Read { at, length } => {
                storage.read(at, &mut buffer[..length])?;
                length
            }
            Step::Write { at, length } => {
                storage.write(at, &buffer[..length])?;
                length
            }
            Step::Flush => {
                storage.flush()?;
                0
            }
        };
        loader.done(&buffer[..length], &mut blocks)?;
    }
}

/// Checks what is on a device that has, or will have, `size` bytes: a pool, or zeros. With `loads`, all of its metadata.
/// Returns whether it is a pool.
pub(crate) fn examine(storage: &mut impl Storage, size: u64, loads: bool) -> Result<bool, StoreError> {
    let layout = front(storage, size)?;
    if let Some(layout) = layout
        && loads
    {
        load(storage, layout, size)?;
    }
    Ok(layout.is_some())
}

/// Returns whether the first blocks of a device are zeros, or what a power cut leaves of a pool that is being made.
fn is_blank(front: &[u8]) -> bool {
    let zeros = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut blocks = front.chunks_exact(BLOCK);
    let superblocks = [blocks.next(), blocks.next()];
    let first_header = blocks.next().unwrap_or_default();
    let is_begun =
        zeros(first_header) || generation(first_header, crate::block::id_of(first_header)) == Some(1);
    superblocks.into_iter().flatten().all(zeros) && is_begun && blocks.all(zeros)
}

/// Blocks that are written.
struct Pages<'a> {
    id: u64,
    book: &'a Book,
    changes: &'a [Change],
    /// Volume and extent of the next mapping of the body.
    next: Option<(u32, u32)>,
}

impl Pages<'_> {
    fn label(kind: Kind, log: &Position, sequence: u64) -> Label {
        Label { kind, generation: log.generation, sequence }
    }

    fn volumes(&self, block: &mut [u8], label: Label) {
        let count = per_block(VOLUME_BYTES) as usize;
        seal(block, self.id, label, |payload| {
            let volumes = self.book.volumes().skip(label.sequence as usize * count);
            let places = payload.chunks_exact_mut(VOLUME_BYTES);
            places.zip(volumes).map(|(bytes, (id, it))| put_volume(bytes, id, &it.name, it.size)).count()
        });
    }

    fn mappings(&mut self, block: &mut [u8], label: Label) {
        let (book, id) = (self.book, self.id);
        seal(block, id, label, |payload| {
            let mut count = 0;
            for bytes in payload.chunks_exact_mut(MAPPING_BYTES) {
                let Some((volume, logical, physical)) = self.next_mapping(book) else { break };
                for (bytes, word) in bytes.chunks_exact_mut(4).zip([volume, logical, physical]) {
                    bytes.copy_from_slice(&word.to_le_bytes());
                }
                count += 1;
            }
            count
        });
    }

    fn next_mapping(&mut self, book: &Book) -> Option<(u32, u32, u32)> {
        let (from, mut at) = self.next.unwrap_or_default();
        for (number, volume) in book.volumes_from(from) {
            if number != from {
                at = 0;
            }
            if let Some((logical, word)) = volume.map.next(at) {
                self.next = Some((number, logical + 1));
                return Some((number, logical, word - 1));
            }
        }
        None
    }
}

impl Source for Pages<'_> {
    fn header(&mut self, log: &Position, block: &mut [u8]) {
        seal(block, self.id, Self::label(Kind::Header, log, 0), |payload| {
            let words = [self.book.volumes().len() as u64, self.book.mappings()];
            for (bytes, word) in payload.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            0
        });
    }

    fn body(&mut self, log: &Position, number: u64, buffer: &mut [u8]) -> usize {
        let volumes = self.book.volumes().len() as u64;
        let (before, all) = (body_blocks(volumes, 0), body_blocks(volumes, self.book.mappings()));
        let blocks = buffer.chunks_exact_mut(BLOCK).zip(number..all);
        blocks
            .map(|(block, number)| match number < before {
                true => self.volumes(block, Self::label(Kind::Volumes, log, number)),
                false => self.mappings(block, Self::label(Kind::Mappings, log, number)),
            })
            .count()
    }

    fn record(&mut self, log: &Position, block: &mut [u8]) {
        seal(block, self.id, Self::label(Kind::Changes, log, log.next), |payload| {
            let mut at = 0;
            for change in self.changes {
                change.put(&mut payload[at..]);
                at += change.bytes();
            }
            self.changes.len()
        });
    }
}

/// Blocks that are read.
struct Blocks {
    layout: Layout,
    book: Book,
    /// Numbers of volumes and mappings of each half.
    headers: [Option<(u64, u64)>; 2],
    /// Mappings that were taken.
    taken: u64,
}

fn damaged(what: &str) -> StoreError {
    StoreError::Refused(format!("the metadata of the pool is damaged: {what}"))
}

impl Content for Blocks {
    type Record<'a> = (u32, &'a [u8]);
    type Stop = StoreError;

    fn header(&mut self, half: usize, block: &[u8]) -> Option<u64> {
        let generation = generation(block, self.layout.id)?;
        let label = Label { kind: Kind::Header, generation, sequence: 0 };
        let Found::Valid(_, payload) = open(block, self.layout.id, label) else { return None };
        self.headers[half] = Some((number(payload, 0), number(payload, 8)));
        // No program counts so far.
        (generation < u64::MAX / 2).then_some(generation)
    }

    fn no_header(&mut self) -> StoreError {
        damaged("no checkpoint is complete")
    }

    fn begin(&mut self, log: &Position) -> Result<u64, StoreError> {
        let (volumes, mappings) = self.headers[log.half].unwrap_or_default();
        if volumes > crate::VOLUMES_MAX as u64 || mappings > self.layout.mappings_max {
            return Err(damaged("its header has impossible numbers"));
        }
        Ok(body_blocks(volumes, mappings))
    }

    fn body(&mut self, log: &Position, number: u64, blocks: &[u8]) -> Result<(), StoreError> {
        let (volumes, mappings) = self.headers[log.half].unwrap_or_default();
        for (block, number) in blocks.chunks_exact(BLOCK).zip(number..) {
            let kind = if number < body_blocks(volumes, 0) { Kind::Volumes } else { Kind::Mappings };
            let label = Label { kind, generation: log.generation, sequence: number };
            let Found::Valid(count, payload) = open(block, self.layout.id, label) else {
                return Err(damaged("a block of its checkpoint has another checksum"));
            };
            let size = if kind == Kind::Volumes { VOLUME_BYTES } else { MAPPING_BYTES };
            for item in payload.chunks_exact(size).take(count as usize) {
                match kind {
                    Kind::Volumes => {
                        let (volume, name, size) = get_volume(item).ok_or_else(|| damaged("a name"))?;
                        self.book.restore(volume, &name, size)?;
                    }
                    _ => {
                        let [volume, logical, physical] = [0, 4, 8].map(|at| number_32(item, at));
                        self.taken += 1;
                        if self.taken > mappings {
                            return Err(damaged("it has more mappings than its header says"));
                        }
                        self.book.restore_mapping(volume, logical, physical)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn body_end(&mut self, log: &Position) -> Result<(), StoreError> {
        let expected = self.headers[log.half].unwrap_or_default();
        match (self.book.volumes().len() as u64, self.book.mappings()) == expected {
            true => Ok(()),
            false => Err(damaged("its checkpoint is not complete")),
        }
    }

    fn record<'a>(&self, log: &Position, block: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let label = Label { kind: Kind::Changes, generation: log.generation, sequence: log.next };
        match open(block, self.layout.id, label) {
            Found::Valid(count, payload) => Some((count, payload)),
            _ => None,
        }
    }

    fn apply(&mut self, _: &Position, (count, payload): (u32, &[u8])) -> Result<(), StoreError> {
        let mut rest = payload;
        for _ in 0..count {
            let change = Change::get(rest).ok_or_else(|| damaged("a change of its log"))?;
            self.book.apply(&change, |_| {})?;
            if self.book.mappings() > self.layout.mappings_max {
                return Err(damaged("its log has too many mappings"));
            }
            rest = &rest[change.bytes()..];
        }
        Ok(())
    }

    fn behind_end(&mut self, _: &Position, _: u64, _: (u32, &[u8])) -> Result<(), StoreError> {
        Err(damaged("a record before the end of its log is lost"))
    }
}
