//! Writing of records and checkpoints, one at a time.

use super::{BLOCK, Halves, IO_MAX, Position, Step};

/// Blocks, as their format writes them. A block is zeros at first.
pub trait Source {
    /// Writes the header of a checkpoint. The header is complete in the first sector of the block, which no
    /// power cut tears.
    fn header(&mut self, log: &Position, block: &mut [u8]);

    /// Writes blocks of the body, of which `number` is the first, into the buffer. Returns how many; 0 behind
    /// the end of the body.
    fn body(&mut self, log: &Position, number: u64, buffer: &mut [u8]) -> usize;

    /// Writes the next record.
    fn record(&mut self, log: &Position, block: &mut [u8]);
}

/// Rules of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether writes are durable after the next flush. Otherwise, each write is durable when it is done.
    pub flushes: bool,
    /// Whether each checkpoint writes zeros over the header of its half first, and over the other header last.
    /// Otherwise, it does so first if the failed checkpoint before it may have left a header, and last after
    /// damage.
    pub voids: bool,
}

/// Writer of one record or checkpoint at a time.
#[derive(Debug)]
pub struct Writer {
    halves: Halves,
    rules: Rules,
    log: Position,
    /// Blocks of the body before the log.
    body: u64,
    /// Beginning of the log after the next checkpoint.
    target: Position,
    /// Blocks of the next body that were written.
    written: u64,
    stage: Stage,
    /// Whether a checkpoint must come before the next record.
    stale: bool,
    /// Whether the other half counts as long as the next checkpoint has no header.
    fallback: bool,
    /// Whether the other half still has the header of before damage, over which zeros are not written yet.
    broken: bool,
    /// Whether the target may or may not have the header that was last written.
    doubtful: bool,
}

/// Action after the step in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing: no operation is in progress.
    Idle,
    /// Makes all that a record depends on durable.
    Append {
        durable: bool,
    },
    Record {
        durable: bool,
    },
    /// Makes a record durable.
    RecordWritten,
    RecordDone,
    Checkpoint,
    Void,
    Body,
    Header,
    HeaderWritten,
    HeaderDurable,
    OldVoid,
    CheckpointDone,
}

impl Writer {
    /// Creates a writer that begins with a checkpoint, at the target.
    pub fn new(halves: Halves, rules: Rules, target: Position) -> Self {
        Self {
            halves,
            rules,
            log: target,
            body: 0,
            target,
            written: 0,
            stage: Stage::Idle,
            stale: true,
            fallback: true,
            broken: false,
            doubtful: false,
        }
    }

    /// Creates a writer that continues a log behind a body of `body` blocks.
    pub fn at(halves: Halves, rules: Rules, log: Position, body: u64) -> Self {
        Self { log, body, stale: false, ..Self::new(halves, rules, log.after()) }
    }

    /// Drops the fallback of a log that is damaged: the other half may be older than the lost content. The first
    /// checkpoint writes zeros over its header last.
    pub fn after_damage(self) -> Self {
        Self { fallback: false, ..self }
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Returns whether a checkpoint must come before the next record, for a reason other than room.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Demands a checkpoint before the next record: records of the log may be lost.
    pub fn make_stale(&mut self) {
        self.stale = true;
    }

    /// Returns whether the next record can be written; if not, a checkpoint must come first.
    pub fn has_room(&self) -> bool {
        !self.stale && self.log.next < self.halves.room(self.body)
    }

    /// Begins a record. It is durable at its end, or with the next record if it need not be. There must be
    /// [room](Self::has_room), and no operation in progress.
    pub fn append(&mut self, durable: bool) {
        assert!(self.is_idle() && self.has_room(), "a record needs room and an idle writer");
        self.stage = Stage::Append { durable };
    }

    /// Begins a checkpoint. No operation may be in progress.
    pub fn checkpoint(&mut self) {
        assert!(self.is_idle(), "a checkpoint needs an idle writer");
        (self.stage, self.written) = (Stage::Checkpoint, 0);
    }

    /// Returns the next step of the operation, when the last one has succeeded. A write has its bytes in the
    /// buffer of [`IO_MAX`] bytes.
    pub fn next(&mut self, source: &mut impl Source, buffer: &mut [u8]) -> Step {
        loop {
            if let Some(step) = self.advance(source, buffer) {
                return step;
            }
        }
    }

    /// Ends the operation, because its last step failed. The effect of a failed write is unknown.
    pub fn failed(&mut self) {
        self.doubtful |= matches!(self.stage, Stage::HeaderWritten | Stage::HeaderDurable);
        // Without a record, an append that failed has no effect.
        self.stale |= !matches!(self.stage, Stage::Idle | Stage::Append { .. } | Stage::Record { .. });
        self.stage = Stage::Idle;
    }

    /// Advances by a stage. Returns none if the stage needs no step.
    fn advance(&mut self, source: &mut impl Source, buffer: &mut [u8]) -> Option<Step> {
        match self.stage {
            Stage::Idle => Some(Step::Done),
            Stage::Append { durable } => self.flush_then(Stage::Record { durable }),
            Stage::Record { durable } => {
                let Position { half, next, .. } = self.log;
                source.record(&self.log, zeroed(buffer));
                let then = if durable { Stage::RecordWritten } else { Stage::RecordDone };
                self.write_block(self.halves.record_at(half, self.body, next), then)
            }
            Stage::RecordWritten => self.flush_then(Stage::RecordDone),
            Stage::RecordDone => {
                self.log.next += 1;
                self.done()
            }
            // Without the zeros, a power cut before the new header could leave one whose body is another
            // state's. With them, the other half counts until this one is complete.
            Stage::Checkpoint if self.rules.voids || (self.doubtful || self.broken) && self.fallback => {
                zeroed(buffer);
                self.write_block(self.halves.header_at(self.target.half), Stage::Void)
            }
            Stage::Checkpoint => self.skip_to(Stage::Body),
            Stage::Void => {
                self.doubtful &= self.rules.flushes;
                self.flush_then(Stage::Body)
            }
            Stage::Body => self.body(source, buffer),
            Stage::Header => {
                source.header(&self.target, zeroed(buffer));
                self.write_block(self.halves.header_at(self.target.half), Stage::HeaderWritten)
            }
            Stage::HeaderWritten => self.flush_then(Stage::HeaderDurable),
            Stage::HeaderDurable => self.begin_log(buffer),
            Stage::OldVoid => self.flush_then(Stage::CheckpointDone),
            Stage::CheckpointDone => {
                (self.stale, self.broken) = (false, false);
                self.done()
            }
        }
    }

    fn body(&mut self, source: &mut impl Source, buffer: &mut [u8]) -> Option<Step> {
        let blocks = source.body(&self.target, self.written, &mut buffer[..IO_MAX]);
        if blocks == 0 {
            return self.flush_then(Stage::Header);
        }
        let at = self.halves.body_at(self.target.half, self.written);
        self.written += blocks as u64;
        Some(Step::Write { at, length: blocks * BLOCK })
    }

    /// Continues behind the header of a checkpoint. The checkpoint counts from now on, also after later failures.
    fn begin_log(&mut self, buffer: &mut [u8]) -> Option<Step> {
        let old = 1 - self.target.half;
        // After damage, the other header may be a broken one, and the next reader would stop there.
        let voids = self.rules.voids || !self.fallback;
        (self.log, self.body, self.target) = (self.target, self.written, self.target.after());
        (self.broken, self.fallback, self.doubtful) = (!self.fallback, true, false);
        if !voids {
            return self.skip_to(Stage::CheckpointDone);
        }
        // An older state is never taken for the present one.
        zeroed(buffer);
        self.write_block(self.halves.header_at(old), Stage::OldVoid)
    }

    fn write_block(&mut self, at: u64, then: Stage) -> Option<Step> {
        self.stage = then;
        Some(Step::Write { at, length: BLOCK })
    }

    fn flush_then(&mut self, then: Stage) -> Option<Step> {
        self.stage = then;
        self.rules.flushes.then_some(Step::Flush)
    }

    fn skip_to(&mut self, stage: Stage) -> Option<Step> {
        self.stage = stage;
        None
    }

    fn done(&mut self) -> Option<Step> {
        self.stage = Stage::Idle;
        Some(Step::Done)
    }
}

/// Returns the first block of a buffer, with zeros in it.
fn zeroed(buffer: &mut [u8]) -> &mut [u8] {
    let block = &mut buffer[..BLOCK];
    block.fill(0);
    block
}
