//! Entries for fuzzers, and their generator of programs out of bytes.
//!
//! A generated program has a form but no purpose: it computes, loads, stores, jumps, calls. All engines must
//! agree on its effects.

use std::sync::Arc;

use crate::asm::{Asm, I, R, Src};
use crate::decode::Slot;
use crate::insn::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};
use crate::{ContextLayout, Engine, Fault, Limits, MapDef, MapKind, MapSpec, Object, Options, Program, Trap};

/// Bytes of the context: the first half may be read, the second written, too.
pub const CONTEXT: usize = 64;

/// Loads arbitrary bytes: the result is a program or a message, and a program ends.
pub fn fuzz_load(bytes: &[u8]) {
    let from_elf = Object::from_elf(bytes, "classifier", &Limits::default());
    let slots = bytes.as_chunks().0.iter().map(|slot| Slot::from_bytes(*slot)).collect();
    let raw = Object { slots, maps: maps(), ..Object::default() };
    for object in from_elf.ok().into_iter().chain([raw]) {
        compare(&object);
    }
}

/// Makes a program out of the bytes and compares the engines on it.
pub fn fuzz_differential(bytes: &[u8]) {
    compare(&generate(bytes, Shape::Everything));
}

/// Compares the engines on a program that the verifier barely accepts.
pub fn fuzz_edges(bytes: &[u8]) {
    compare(&crate::edges::generate(bytes));
}

/// Content of a generated program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All instructions, now and then with invented addresses.
    Everything,
    /// Arithmetic, forward jumps, and accesses in bounds, as in every engine: nothing newer than version 3.
    /// It avoids the three differences of rbpf 0.4 from RFC 9669: a 32-bit remainder by zero (it keeps the
    /// upper half), the negation of the smallest number (it panics), and unsigned comparison with a negative
    /// immediate (it does not sign-extend).
    Common,
}

/// Returns the options of generated programs.
pub fn options(engine: Engine) -> Options {
    let layout = ContextLayout::new(CONTEXT).read(0..32).write(32..CONTEXT);
    let limits = Limits { map_bytes: 1 << 20, ..Limits::default() };
    Options { engine, limits, fuel: 3000, clock: Arc::new(|| 12_345), ..Options::new(layout) }
}

/// Effects of a run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    result: Result<u64, Trap>,
    context: [u8; CONTEXT],
    maps: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    counters: Vec<u64>,
}

/// Returns the context of every run.
pub(crate) fn context() -> [u8; CONTEXT] {
    std::array::from_fn(|i| (i * 37) as u8)
}

fn outcome(program: &mut Program) -> Outcome {
    let mut context = context();
    let result = program.run(&mut context);
    let maps = program.maps().iter().map(|map| map.entries()).collect();
    Outcome { result, context, maps, counters: program.counters().all() }
}

/// Runs an object on both engines, with proofs and without; all that load must agree.
///
/// # Panics
/// When they do not agree.
pub fn compare(object: &Object) {
    let mut reference = None;
    for engine in [Engine::Interpreted, Engine::Compiled] {
        let options = options(engine);
        let loaded = [Program::assume_nothing(object, &options), Program::load(object, &options, &[])];
        for (mut program, proven) in
            loaded.into_iter().zip([false, true]).filter_map(|(p, proven)| Some((p.ok()?, proven)))
        {
            let outcome = outcome(&mut program);
            let reference = reference.get_or_insert_with(|| outcome_of(object));
            if !is_luck(object, [reference, &outcome]) {
                assert_eq!(*reference, outcome, "{engine:?}, proven: {proven}, {:?}", object.slots);
            }
        }
    }
}

/// Returns whether the fuel of a program with helper calls ended. The length of a hash chain, and so the cost
/// of a lookup, depends on the map's secret.
fn is_luck(object: &Object, outcomes: [&Outcome; 2]) -> bool {
    const CALL: u8 = 0x85;
    let ended = |outcome: &&Outcome| outcome.result.is_err_and(|trap| trap.fault == Fault::OutOfFuel);
    outcomes.iter().any(ended) && object.slots.iter().any(|slot| slot.opcode == CALL && slot.src == 0)
}

/// Returns the interpreter's outcome.
fn outcome_of(object: &Object) -> Outcome {
    let mut program =
        Program::assume_nothing(object, &options(Engine::Interpreted)).expect("it loaded before");
    outcome(&mut program)
}

pub(crate) fn maps() -> Vec<MapSpec> {
    let hash = MapDef::hash("hash", 4, 8, 4);
    // The order in which an LRU evicts depends only on its operations.
    let lru = MapDef { kind: MapKind::LruHash, ..MapDef::hash("lru", 8, 16, 4) };
    [MapDef::array("array", 24, 3), hash, lru].map(MapSpec::from).to_vec()
}

/// Makes a program out of bytes.
pub fn generate(bytes: &[u8], shape: Shape) -> Object {
    let mut generator =
        Generator { bytes: bytes.iter(), shape, asm: Asm::new(), starts: Vec::new(), jumps: Vec::new() };
    generator.program();
    let slots = generator.finish();
    Object { slots, maps: maps(), ..Object::default() }
}

/// Register with the context's address, and no other value ever.
const CONTEXT_REG: u8 = 6;
/// Register with a value of a map, or zero.
const VALUE_REG: u8 = 7;
/// Registers with numbers.
const NUMBERS: [u8; 8] = [0, 1, 2, 3, 4, 5, 8, 9];

struct Generator<'a> {
    bytes: std::slice::Iter<'a, u8>,
    shape: Shape,
    asm: Asm,
    /// Slots of possible jump targets, and slots of jumps with their choices.
    starts: Vec<usize>,
    jumps: Vec<(usize, u8)>,
}

impl Generator<'_> {
    /// Returns the next choice; zero after the last.
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    fn pick<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.byte() as usize % N]
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn with(&mut self, add: impl FnOnce(Asm) -> Asm) {
        self.asm = add(std::mem::take(&mut self.asm));
    }

    fn number(&mut self) -> u8 {
        self.pick(NUMBERS)
    }

    fn width(&mut self) -> Width {
        self.pick([Width::W64, Width::W32])
    }

    fn size(&mut self) -> Size {
        self.pick([Size::B1, Size::B2, Size::B4, Size::B8])
    }

    fn source(&mut self) -> Src {
        if self.byte().is_multiple_of(2) { R(self.number()) } else { I(self.interesting()) }
    }

    fn interesting(&mut self) -> i32 {
        match self.byte() % 8 {
            0 => 0,
            1 => -1,
            2 => i32::MIN,
            3 => i32::from(self.byte() % 70),
            4 => 1,
            _ => self.word() as i32,
        }
    }

    /// Returns a register with an address, and an offset that mostly fits it.
    fn place(&mut self, write: bool) -> (u8, i16) {
        let byte = self.byte();
        if self.shape == Shape::Everything {
            match byte % 64 {
                0 => return (self.number(), i16::from(self.byte())),
                1 => return (CONTEXT_REG, i16::from(self.byte() as i8)),
                2 => return (10, -i16::from(self.byte()) * 5),
                3..=16 => return (VALUE_REG, i16::from(self.byte() % 26) - 1),
                _ => {}
            }
        }
        match byte % 2 {
            0 if write => (CONTEXT_REG, 32 + i16::from(self.byte() % 25)),
            0 => (CONTEXT_REG, i16::from(self.byte() % 57)),
            _ => (10, -8 - i16::from(self.byte() % 24)),
        }
    }

    fn program(&mut self) {
        self.with(|asm| asm.mov(CONTEXT_REG, R(1)));
        self.begin();
        let steps = 4 + self.byte() % 40;
        for _ in 0..steps {
            self.step();
        }
        self.end();
        let calls = self.shape == Shape::Everything;
        if calls {
            // Jumps of the function stay in it.
            self.settle();
            self.with(|asm| asm.label("function"));
            self.with(|asm| asm.mov(CONTEXT_REG, R(1)));
            self.begin();
            for _ in 0..self.byte() % 8 {
                self.step();
            }
            self.end();
        }
        self.settle();
    }

    fn begin(&mut self) {
        for reg in NUMBERS {
            let value = self.word();
            self.with(|asm| asm.number(reg, value));
        }
        self.with(|asm| asm.mov(VALUE_REG, I(0)));
        for at in [-8, -16, -24, -32] {
            self.with(|asm| asm.store(Size::B8, 10, at, R(0)));
        }
    }

    /// Adds all registers to the result.
    fn end(&mut self) {
        self.starts.push(self.asm.len());
        for reg in [1, 2, 3, 4, 5, 8, 9] {
            self.with(|asm| asm.alu(AluOp::Mul, Width::W64, 0, I(31)).add(0, R(reg)));
        }
        self.with(Asm::exit);
    }

    fn step(&mut self) {
        self.starts.push(self.asm.len());
        let kinds = if self.shape == Shape::Everything { 16 } else { 11 };
        match self.byte() % kinds {
            0..=3 => self.alu(),
            4 => self.swap(),
            5 | 6 => self.load(),
            7 | 8 => self.store(),
            9 | 10 => self.branch(),
            11 => self.extend(),
            12 => self.atomic(),
            13 | 14 => self.helper(),
            _ => self.call(),
        }
    }

    fn alu(&mut self) {
        use AluOp::*;
        let op = match self.shape {
            Shape::Common => self.pick([Add, Sub, Mul, Div, Mod, Or, And, Xor, Lsh, Rsh, Arsh, Mov]),
            Shape::Everything => {
                self.pick([Add, Sub, Mul, Div, Mod, Or, And, Xor, Lsh, Rsh, Arsh, Mov, SDiv, SMod])
            }
        };
        let (width, dst, src) = (self.width(), self.number(), self.source());
        let common = self.shape == Shape::Common;
        let width = if common && op == AluOp::Mod { Width::W64 } else { width };
        match self.byte() % 12 {
            0 if common => self.with(|asm| asm.neg(Width::W32, dst)),
            0 => self.with(|asm| asm.neg(width, dst)),
            _ => self.with(|asm| asm.alu(op, width, dst, src)),
        }
    }

    fn swap(&mut self) {
        let kind = match self.shape {
            Shape::Common => self.pick([SwapKind::ToLittle, SwapKind::ToBig]),
            Shape::Everything => self.pick([SwapKind::ToLittle, SwapKind::ToBig, SwapKind::Always]),
        };
        let (size, dst) = (self.pick([Size::B2, Size::B4, Size::B8]), self.number());
        self.with(|asm| asm.swap(kind, size, dst));
    }

    fn load(&mut self) {
        let (base, offset) = self.place(false);
        let (size, dst) = (self.size(), self.number());
        let signed = self.shape == Shape::Everything && size != Size::B8 && self.byte().is_multiple_of(2);
        self.with(|asm| {
            if signed { asm.load_signed(size, dst, base, offset) } else { asm.load(size, dst, base, offset) }
        });
    }

    fn store(&mut self) {
        let (base, offset) = self.place(true);
        let (size, src) = (self.size(), self.source());
        self.with(|asm| asm.store(size, base, offset, src));
    }

    fn branch(&mut self) {
        use Cond::*;
        let (width, dst, src) = (self.width(), self.number(), self.source());
        let src = match src {
            I(imm) if self.shape == Shape::Common => I(imm & i32::MAX),
            other => other,
        };
        let cond = self.pick([Eq, Ne, Set, Gt, Ge, Lt, Le, SGt, SGe, SLt, SLe]);
        let choice = self.byte();
        self.jumps.push((self.asm.len(), choice));
        // The distance comes when all instructions are there.
        self.with(|asm| asm.label("here").branch(cond, width, dst, src, "here"));
    }

    fn extend(&mut self) {
        let (width, dst, src) = (self.width(), self.number(), self.number());
        let from = if width == Width::W64 { self.pick([Size::B1, Size::B2, Size::B4]) } else { Size::B2 };
        self.with(|asm| asm.mov_sx(width, from, dst, src));
    }

    fn atomic(&mut self) {
        use AtomicOp::*;
        let (op, fetch) =
            (self.pick([Add, Or, And, Xor, Exchange, CompareExchange]), self.byte().is_multiple_of(2));
        let fetch = fetch || matches!(op, Exchange | CompareExchange);
        let (size, src) = (self.pick([Size::B4, Size::B8]), self.number());
        let (base, offset) = match self.byte() % 4 {
            0 => self.place(true),
            1 => (10, -16),
            _ => (VALUE_REG, 0),
        };
        self.with(|asm| asm.atomic(op, fetch, size, base, offset, src));
    }

    fn helper(&mut self) {
        let (map, key) = (u32::from(self.byte() % 3), i32::from(self.byte() % 6));
        let what = self.byte() % 8;
        self.with(|asm| asm.store(Size::B8, 10, -40, I(key)).map(1, map).mov(2, R(10)).add(2, I(-40)));
        match what {
            0..=3 => self.with(|asm| asm.call(1).mov(VALUE_REG, R(0)).mov(0, I(3))),
            4 | 5 => self.with(|asm| asm.mov(3, R(CONTEXT_REG)).mov(4, I(0)).call(2)),
            6 => self.with(|asm| asm.call(3)),
            _ => self.with(|asm| asm.mov(1, I(key * 16)).call(1000)),
        }
        self.arguments();
    }

    fn call(&mut self) {
        self.with(|asm| asm.mov(1, R(CONTEXT_REG)).call_local("function"));
        self.arguments();
    }

    /// Sets r1 to r5, in which a call leaves nothing.
    fn arguments(&mut self) {
        for reg in 1..=5 {
            self.with(|asm| asm.mov(reg, I(i32::from(reg))));
        }
    }

    /// Points the jumps so far at targets so far.
    fn settle(&mut self) {
        let jumps = std::mem::take(&mut self.jumps);
        let starts = std::mem::take(&mut self.starts);
        for (at, choice) in jumps {
            let forward: Vec<usize> = starts.iter().copied().filter(|start| *start > at).collect();
            let back = self.shape == Shape::Everything && choice >= 200;
            let targets = if back { &starts } else { &forward };
            let target = targets[choice as usize % targets.len()];
            self.with(|asm| asm.retarget(at, target));
        }
    }

    fn finish(self) -> Vec<Slot> {
        self.asm.finish()
    }
}
