//! Tests of the engine with a small format, over a disk that loses power.

use super::{BLOCK, Content, Halves, IO_MAX, Loader, Position, Reading, Rules, Source, Step, Writer};
use crc32c::crc32c;
use proptest::prelude::*;

mod order;

/// Bytes of a sector, which no power cut tears.
const SECTOR: usize = 512;

/// Blocks before the first half, which the engine does not touch.
const FRONT: usize = 3;

/// State of the model: the numbers of its records.
type State = Vec<u32>;

/// Kind of formats: its halves and rules.
#[derive(Clone, Copy, Debug)]
struct Kind {
    halves: Halves,
    rules: Rules,
    reading: Reading,
}

/// Returns the format of writes with Force Unit Access, with records directly behind the body.
fn fua() -> Kind {
    Kind {
        halves: Halves { at: (FRONT * BLOCK) as u64, blocks: 28, reserved: 0 },
        rules: Rules { flushes: false, voids: false },
        reading: Reading { to_end: false, rewrites: false },
    }
}

/// Returns the format of writes and flushes, with room for the largest body.
fn flushed() -> Kind {
    Kind {
        halves: Halves { at: (FRONT * BLOCK) as u64, blocks: 28, reserved: 20 },
        rules: Rules { flushes: true, voids: true },
        reading: Reading { to_end: true, rewrites: true },
    }
}

/// Writes a block: checksum, kind, generation, number, then the words of its content and their number.
fn seal(block: &mut [u8], kind: u32, generation: u64, number: u64, words: &[u32]) {
    let head = [kind, generation as u32, number as u32, words.len() as u32];
    for (bytes, word) in block[4..].chunks_exact_mut(4).zip(head.iter().chain(words)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let sum = crc32c(&block[4..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Returns generation, number and words of a valid block of that kind.
fn open(block: &[u8], kind: u32) -> Option<(u64, u64, Vec<u32>)> {
    let word = |at: usize| u32::from_le_bytes(block[4 * at..][..4].try_into().expect("four bytes"));
    if word(0) != crc32c(&block[4..]) || word(1) != kind {
        return None;
    }
    Some((word(2).into(), word(3).into(), (5..5 + word(4) as usize).map(word).collect()))
}

const HEADER: u32 = 1;
const BODY: u32 = 2;
const RECORD: u32 = 3;

/// Words in a block of a body: the whole block, so that it can be torn.
const WORDS: usize = BLOCK / 4 - 5;

/// Returns the blocks of a body.
fn body_blocks(state: &[u32]) -> usize {
    1 + state.len() % 19
}

struct Writing<'a> {
    state: &'a State,
    record: u32,
}

impl Source for Writing<'_> {
    fn header(&mut self, log: &Position, block: &mut [u8]) {
        seal(block, HEADER, log.generation, 0, &[body_blocks(self.state) as u32, self.state.len() as u32]);
    }

    fn body(&mut self, log: &Position, number: u64, buffer: &mut [u8]) -> usize {
        let left = body_blocks(self.state) - number as usize;
        let numbers = number..number + left as u64;
        let blocks = buffer.chunks_exact_mut(BLOCK).zip(numbers);
        blocks
            .map(|(block, number)| {
                let count = self.state.len();
                let words: Vec<u32> =
                    (0..WORDS).map(|at| self.state.get(at % count.max(1)).map_or(0, |it| *it)).collect();
                seal(block, BODY, log.generation, number, &words);
            })
            .count()
    }

    fn record(&mut self, log: &Position, block: &mut [u8]) {
        seal(block, RECORD, log.generation, log.next, &[self.record; WORDS]);
    }
}

#[derive(Debug, Default)]
struct Reader {
    headers: [Option<(u64, Vec<u32>)>; 2],
    length: usize,
    state: State,
}

impl Content for Reader {
    type Record<'a> = u32;
    type Stop = String;

    fn header(&mut self, half: usize, block: &[u8]) -> Option<u64> {
        let (generation, _, words) = open(block, HEADER)?;
        self.headers[half] = Some((generation, words));
        Some(generation)
    }

    fn no_header(&mut self) -> String {
        "no header".into()
    }

    fn begin(&mut self, log: &Position) -> Result<u64, String> {
        let (generation, words) = self.headers[log.half].as_ref().ok_or("no header")?;
        assert_eq!(*generation, log.generation);
        self.length = words[1] as usize;
        Ok(words[0].into())
    }

    fn body(&mut self, log: &Position, number: u64, blocks: &[u8]) -> Result<(), String> {
        for (block, number) in blocks.chunks_exact(BLOCK).zip(number..) {
            let found = open(block, BODY).filter(|found| (found.0, found.1) == (log.generation, number));
            let (_, _, words) = found.ok_or(format!("block {number} of the body"))?;
            self.state = words[..self.length].to_vec();
        }
        Ok(())
    }

    fn body_end(&mut self, _: &Position) -> Result<(), String> {
        Ok(())
    }

    fn record(&self, log: &Position, block: &[u8]) -> Option<u32> {
        let (generation, number, words) = open(block, RECORD)?;
        ((generation, number) == (log.generation, log.next)).then(|| words[0])
    }

    fn apply(&mut self, _: &Position, record: u32) -> Result<(), String> {
        self.state.push(record);
        Ok(())
    }

    fn behind_end(&mut self, end: &Position, number: u64, _: u32) -> Result<(), String> {
        Err(format!("record {} is lost, and {number} is there", end.next))
    }
}

/// Random numbers of a run, from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // The generator SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}

/// Disk with a volatile cache: writes that are not flushed yet, in order.
struct Disk {
    durable: Vec<u8>,
    cache: Vec<(usize, Vec<u8>)>,
}

impl Disk {
    fn flush(&mut self) {
        for (at, bytes) in std::mem::take(&mut self.cache) {
            self.durable[at..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Loses any writes of the cache.
    fn lose_some(&mut self, random: &mut Random) {
        self.cache.retain(|_| !random.one_in(2));
    }

    /// Returns the content after a power cut, which leaves any sectors of the writes in the cache.
    fn cut(&self, random: &mut Random) -> Vec<u8> {
        let mut after = self.durable.clone();
        for (at, bytes) in &self.cache {
            let share = 1 + random.next() % 4;
            for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
                if random.one_in(share) {
                    after[at + sector * SECTOR..][..bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        after
    }
}

/// Loads a disk. Returns its state and its loader.
fn load(disk: &[u8], kind: Kind) -> Result<(State, Loader), String> {
    let (mut loader, mut reader) = (Loader::new(kind.halves, kind.reading), Reader::default());
    let mut bytes = vec![0; IO_MAX];
    loop {
        match loader.step() {
            Step::Read { at, length } => {
                bytes.copy_from_slice(&[0xaa; IO_MAX]);
                bytes[..length].copy_from_slice(&disk[at as usize..][..length]);
                loader.done(&bytes[..length], &mut reader)?;
            }
            // The records are on the disk already, so neither a success nor a failure changes anything.
            Step::Write { at, length } => {
                assert!(kind.reading.rewrites);
                assert_eq!(&bytes[..length], &disk[at as usize..][..length], "the same bytes again");
                loader.done(&[], &mut reader)?;
            }
            Step::Flush => {
                assert!(kind.reading.rewrites, "nothing is to be flushed");
                loader.done(&[], &mut reader)?;
            }
            Step::Done => return Ok((reader.state, loader)),
        }
    }
}

/// Run of a writer, with the states that a power cut may reveal now.
struct Run {
    kind: Kind,
    random: Random,
    disk: Disk,
    writer: Writer,
    buffer: Vec<u8>,
    current: State,
    allowed: Vec<State>,
    records: u32,
}

impl Run {
    /// Begins with a blank disk and its first checkpoint.
    fn new(kind: Kind, seed: u64) -> Self {
        let bytes = (FRONT + 2 * kind.halves.blocks as usize) * BLOCK;
        let mut run = Self {
            kind,
            random: Random(seed),
            disk: Disk { durable: vec![0; bytes], cache: Vec::new() },
            writer: Writer::new(kind.halves, kind.rules, Position::first(0, 1)),
            buffer: vec![0; IO_MAX],
            current: State::new(),
            allowed: Vec::new(),
            records: 0,
        };
        assert!(!run.writer.has_room(), "a checkpoint comes first");
        while !run.checkpoint(None) {}
        run
    }

    /// Runs the operation in progress to its end. Returns whether it succeeded; each step fails once in
    /// `failing`.
    fn finish(&mut self, record: u32, failing: Option<u64>) -> bool {
        let state = self.current.clone();
        loop {
            let mut source = Writing { state: &state, record };
            let step = self.writer.next(&mut source, &mut self.buffer);
            let fails = failing.is_some_and(|count| self.random.one_in(count));
            match step {
                Step::Done => return true,
                Step::Read { .. } => panic!("a writer reads nothing"),
                Step::Write { at, length } => {
                    assert!(at as usize >= FRONT * BLOCK && (1..=IO_MAX).contains(&length));
                    let bytes = self.buffer[..length].to_vec();
                    self.disk.cache.push((at as usize, bytes));
                    self.cut();
                    if fails {
                        self.disk.durable = self.disk.cut(&mut self.random);
                        self.disk.cache.clear();
                    }
                }
                Step::Flush => {
                    assert!(self.kind.rules.flushes);
                    if fails {
                        self.disk.lose_some(&mut self.random);
                        self.writer.make_stale();
                    }
                }
            }
            if fails {
                self.writer.failed();
                return false;
            }
            if step == Step::Flush || !self.kind.rules.flushes {
                self.disk.flush();
            }
            self.cut();
        }
    }

    /// Cuts the power here, and checks that the disk has one of the allowed states.
    fn cut(&mut self) {
        if self.allowed.is_empty() {
            return;
        }
        let after = self.disk.cut(&mut self.random);
        let (state, _) = load(&after, self.kind).expect("a power cut is no damage");
        assert!(self.allowed.contains(&state), "{state:?} is none of {:?}", self.allowed);
    }

    /// Changes the state in memory. The change is in the next checkpoint, and in no record.
    fn change(&mut self) {
        self.records += 1;
        self.current.push(self.records);
        self.allowed.push(self.current.clone());
    }

    fn checkpoint(&mut self, failing: Option<u64>) -> bool {
        let was_stale = self.writer.is_stale();
        self.writer.checkpoint();
        assert_eq!(self.writer.is_stale(), was_stale, "only a failure makes the log stale");
        let good = self.finish(0, failing);
        assert_eq!(good, !self.writer.is_stale());
        if good {
            assert!(self.writer.has_room());
            self.allowed = vec![self.current.clone()];
        }
        good
    }

    fn append(&mut self, durable: bool, failing: Option<u64>) -> bool {
        self.records += 1;
        let after: State = self.current.iter().copied().chain([self.records]).collect();
        self.allowed.push(after.clone());
        self.writer.append(durable);
        if !self.finish(self.records, failing) {
            return false;
        }
        self.current = after;
        // The record before this one is durable, if not this one.
        let sure = durable || !self.kind.rules.flushes;
        let first = self.allowed.len() - if sure { 1 } else { self.allowed.len().min(2) };
        self.allowed.drain(..first);
        true
    }

    /// Restarts after a power cut.
    fn restart(&mut self) {
        self.disk.durable = self.disk.cut(&mut self.random);
        self.disk.cache.clear();
        let (state, loader) = load(&self.disk.durable, self.kind).expect("no damage");
        assert!(self.allowed.contains(&state));
        (self.current, self.allowed) = (state.clone(), vec![state]);
        let (log, Kind { halves, rules, .. }) = (loader.position(), self.kind);
        self.writer = match rules.flushes {
            true => Writer::at(halves, rules, log, 0),
            false => Writer::new(halves, rules, log.after()),
        };
    }
}

/// Executes an operation for each byte. One of `failing` writes and flushes fails.
fn live(kind: Kind, seed: u64, orders: &[u8], failing: Option<u64>) {
    let mut run = Run::new(kind, seed);
    for order in orders {
        match order % 8 {
            0 => run.restart(),
            _ if run.writer.has_room() && order % 8 != 1 => drop(run.append(order & 8 != 0, failing)),
            _ => {
                run.change();
                run.checkpoint(failing);
            }
        }
    }
    run.restart();
    assert!(run.disk.durable[..FRONT * BLOCK].iter().all(|byte| *byte == 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_power_cut_leaves_the_state_before_an_operation_or_after_it(
        seed: u64,
        orders in prop::collection::vec(any::<u8>(), 1..40),
        is_flushed: bool,
        fails: bool,
    ) {
        let kind = if is_flushed { flushed() } else { fua() };
        live(kind, seed, &orders, fails.then_some(5));
    }
}

/// Fills both halves several times without a failure, so that each append finds its room.
#[test]
fn a_full_half_is_followed_by_the_other() {
    for kind in [fua(), flushed()] {
        let mut run = Run::new(kind, 1);
        for _ in 0..6 {
            let mut appended = 0;
            while run.writer.has_room() {
                assert!(run.append(appended % 2 == 0, None));
                appended += 1;
            }
            let body = body_blocks(&run.current[..run.current.len() - appended]);
            assert_eq!(appended as u64, kind.halves.room(body as u64));
            assert!(run.checkpoint(None));
        }
        run.restart();
        assert_eq!(run.current.len() as u32, run.records);
    }
}

/// Spoils a record before the last one: it was durable, so no power cut explains its loss.
#[test]
fn a_record_behind_a_lost_one_is_damage() {
    for (kind, spoilt) in [(fua(), 2), (flushed(), 0)] {
        let mut run = Run::new(kind, 2);
        for _ in 0..5 {
            assert!(run.append(true, None));
        }
        let body = body_blocks(&[]) as u64;
        let at = kind.halves.record_at(0, body, spoilt) as usize;
        run.disk.durable[at + 100] ^= 1;
        let words = load(&run.disk.durable, kind).map(|found| found.0).expect_err("a gap");
        assert!(words.contains(&format!("record {spoilt} is lost")), "{words}");
    }
}

/// Restores the header of the old half, as it is before the end of a checkpoint. A cache may have lost the new
/// header in a failed flush, so it is durable again before the other half is used.
#[test]
fn the_later_of_two_headers_is_written_again() {
    for (kind, has_both) in [(fua(), true), (flushed(), true), (flushed(), false)] {
        let mut run = Run::new(kind, 3);
        let old = run.disk.durable[kind.halves.header_at(0) as usize..][..BLOCK].to_vec();
        assert!(run.checkpoint(None));
        if has_both {
            run.disk.durable[kind.halves.header_at(0) as usize..][..BLOCK].copy_from_slice(&old);
        }
        let (mut loader, mut reader) = (Loader::new(kind.halves, kind.reading), Reader::default());
        let mut steps = Vec::new();
        while loader.step() != Step::Done {
            steps.push(loader.step());
            let Step::Read { at, length } = loader.step() else {
                loader.done(&[], &mut reader).expect("no damage");
                continue;
            };
            loader.done(&run.disk.durable[at as usize..][..length], &mut reader).expect("no damage");
        }
        let (at, length) = (kind.halves.header_at(1), BLOCK);
        let again = [Step::Read { at, length }, Step::Write { at, length }, Step::Flush];
        assert_eq!(steps[2..].starts_with(&again), has_both && kind.reading.rewrites, "{steps:?}");
        assert_eq!(loader.position(), Position::first(1, 2));
    }
}
