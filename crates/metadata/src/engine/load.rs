//! Reading of a checkpoint and its log. No byte is trusted: each block is checked by its format.

use super::{BLOCK, Halves, IO_MAX, Position, Step};

/// Blocks, as their format reads them.
pub trait Content {
    /// Record of a block whose checksum is right.
    type Record<'a>;
    /// Reason for which a load stops.
    type Stop;

    /// Takes the block of a half's header. Returns the generation of a valid header.
    fn header(&mut self, half: usize, block: &[u8]) -> Option<u64>;

    /// Returns the reason to stop where neither header is valid.
    fn no_header(&mut self) -> Self::Stop;

    /// Begins with the half that counts. Returns the blocks of its body.
    ///
    /// # Errors
    /// The header is impossible, or the other one contradicts it.
    fn begin(&mut self, log: &Position) -> Result<u64, Self::Stop>;

    /// Takes blocks of the body, of which `number` is the first.
    ///
    /// # Errors
    /// A block is damaged.
    fn body(&mut self, log: &Position, number: u64, blocks: &[u8]) -> Result<(), Self::Stop>;

    /// Takes the end of the body.
    ///
    /// # Errors
    /// The body is damaged.
    fn body_end(&mut self, log: &Position) -> Result<(), Self::Stop>;

    /// Returns the record in a block if it is the next one of this log.
    fn record<'a>(&self, log: &Position, block: &'a [u8]) -> Option<Self::Record<'a>>;

    /// Applies a record.
    ///
    /// # Errors
    /// The record contradicts the state.
    fn apply(&mut self, log: &Position, record: Self::Record<'_>) -> Result<(), Self::Stop>;

    /// Takes a record behind the end of the log: a record before it is lost.
    ///
    /// # Errors
    /// The log is damaged.
    fn behind_end(&mut self, end: &Position, number: u64, record: Self::Record<'_>)
    -> Result<(), Self::Stop>;
}

/// Rules of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Whether the whole half is searched for records behind the end of the log, or the rest of one read.
    pub to_end: bool,
    /// Whether records are written again: they may be in a cache that lost them on the way to the disk. So may
    /// be the later of two headers, which is written again, too, before the other half is used.
    pub rewrites: bool,
}

/// Loader of a checkpoint and its log.
#[derive(Debug)]
pub struct Loader {
    halves: Halves,
    reading: Reading,
    generations: [Option<u64>; 2],
    stage: Stage,
    log: Position,
    /// Blocks of the body.
    body: u64,
    /// Blocks of the body, and then of the log, that were read.
    read: u64,
    /// Whether the end of the log was seen.
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Header(usize),
    /// Reads the header that counts, writes it again, and makes it durable.
    ReadHeader,
    WriteHeader,
    FlushHeader,
    Body,
    Log,
    /// Writes records again: so many of the last read.
    Rewrite(u64),
    Done,
}

impl Loader {
    pub fn new(halves: Halves, reading: Reading) -> Self {
        Self {
            halves,
            reading,
            generations: [None; 2],
            stage: Stage::Header(0),
            log: Position::first(0, 0),
            body: 0,
            read: 0,
            ended: false,
        }
    }

    /// Returns the step to execute.
    pub fn step(&self) -> Step {
        let Position { half, .. } = self.log;
        let length = self.blocks() as usize * BLOCK;
        match self.stage {
            Stage::Header(half) => Step::Read { at: self.halves.header_at(half), length },
            Stage::ReadHeader => Step::Read { at: self.halves.header_at(half), length },
            Stage::WriteHeader => Step::Write { at: self.halves.header_at(half), length },
            Stage::FlushHeader => Step::Flush,
            Stage::Body => Step::Read { at: self.halves.body_at(half, self.read), length },
            Stage::Log => Step::Read { at: self.halves.record_at(half, self.body, self.read), length },
            Stage::Rewrite(good) => {
                let at = self.halves.record_at(half, self.body, self.read);
                Step::Write { at, length: good as usize * BLOCK }
            }
            Stage::Done => Step::Done,
        }
    }

    /// Returns the blocks of the read that is due, or that records are written again of.
    fn blocks(&self) -> u64 {
        let left = match self.stage {
            Stage::Header(_) | Stage::ReadHeader | Stage::WriteHeader | Stage::FlushHeader => 1,
            Stage::Body => self.body - self.read,
            Stage::Log | Stage::Rewrite(_) => self.halves.room(self.body) - self.read,
            Stage::Done => 0,
        };
        left.min((IO_MAX / BLOCK) as u64)
    }

    /// Returns the position at which the loaded log continues.
    pub fn position(&self) -> Position {
        self.log
    }

    /// Returns whether the step writes records. The state can be used although it fails.
    pub fn rewrites(&self) -> bool {
        matches!(self.stage, Stage::Rewrite(_))
    }

    /// Ends a step. A read has these bytes. A write may have failed.
    ///
    /// # Errors
    /// The load stops.
    pub fn done<C: Content>(&mut self, bytes: &[u8], content: &mut C) -> Result<(), C::Stop> {
        let taken = self.take(bytes, content);
        if taken.is_err() {
            self.stage = Stage::Done;
        }
        taken
    }

    fn take<C: Content>(&mut self, bytes: &[u8], content: &mut C) -> Result<(), C::Stop> {
        match self.stage {
            Stage::Header(half) => {
                self.generations[half] = content.header(half, bytes);
                if half == 0 {
                    self.stage = Stage::Header(1);
                    return Ok(());
                }
                self.log = self.newest().ok_or_else(|| content.no_header())?;
                self.body = content.begin(&self.log)?;
                if self.reading.rewrites && self.generations.iter().all(Option::is_some) {
                    self.stage = Stage::ReadHeader;
                    return Ok(());
                }
                self.begin_body(content)
            }
            Stage::ReadHeader => {
                self.stage = Stage::WriteHeader;
                Ok(())
            }
            Stage::WriteHeader => {
                self.stage = Stage::FlushHeader;
                Ok(())
            }
            Stage::FlushHeader => self.begin_body(content),
            Stage::Body => {
                content.body(&self.log, self.read, bytes)?;
                self.next_body(self.blocks(), content)
            }
            Stage::Log => self.records(bytes, content),
            Stage::Rewrite(_) => {
                self.next_log(self.blocks());
                Ok(())
            }
            Stage::Done => Ok(()),
        }
    }

    /// Returns the beginning of the log whose header has the highest generation. Both halves have one while a
    /// checkpoint is being finished, and the later one is complete.
    fn newest(&self) -> Option<Position> {
        let half = match self.generations {
            [Some(first), Some(second)] => usize::from(second > first),
            [first, _] => usize::from(first.is_none()),
        };
        self.generations[half].map(|generation| Position::first(half, generation))
    }

    fn begin_body<C: Content>(&mut self, content: &mut C) -> Result<(), C::Stop> {
        self.stage = Stage::Body;
        self.next_body(0, content)
    }

    /// Continues behind `got` blocks of the body; the log follows the body.
    fn next_body<C: Content>(&mut self, got: u64, content: &mut C) -> Result<(), C::Stop> {
        self.read += got;
        if self.read < self.body {
            return Ok(());
        }
        content.body_end(&self.log)?;
        self.read = 0;
        self.next_log(0);
        Ok(())
    }

    /// Continues behind `got` blocks of the log.
    fn next_log(&mut self, got: u64) {
        self.read += got;
        let is_read = self.read == self.halves.room(self.body) || self.ended && !self.reading.to_end;
        self.stage = if is_read { Stage::Done } else { Stage::Log };
    }

    /// Takes blocks of the log. The first block that is not the next record ends it.
    fn records<C: Content>(&mut self, bytes: &[u8], content: &mut C) -> Result<(), C::Stop> {
        for (block, number) in bytes.chunks_exact(BLOCK).zip(self.read..) {
            match content.record(&Position { next: number, ..self.log }, block) {
                None => self.ended = true,
                // A record is written when all records before it are durable.
                Some(record) if self.ended => content.behind_end(&self.log, number, record)?,
                Some(record) => {
                    content.apply(&self.log, record)?;
                    self.log.next += 1;
                }
            }
        }
        match self.log.next.saturating_sub(self.read) {
            good if good > 0 && self.reading.rewrites => self.stage = Stage::Rewrite(good),
            _ => self.next_log(self.blocks()),
        }
        Ok(())
    }
}
