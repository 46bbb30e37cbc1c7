//! Cost of a call of a program next to a native function: nanoseconds, as a ratio within one run.
//!
//! Instructions: run `valgrind --tool=callgrind` on this example with an argument. It then runs one kind of
//! call only ("native", "compiled" or "interpreted") and prints how often; divide callgrind's number by it.

use std::hint::black_box;
use std::time::Instant;

use sluice_ebpf::{ContextLayout, Engine, Limits, Object, Options, Program, Update};

const CLASSIFY: &[u8] = include_bytes!("../tests/programs/classify.o");

/// Bytes of a `struct sluice_context`.
const CONTEXT: usize = 128;
type Context = [u8; CONTEXT];

/// Verdict of `classify.c` for the measured command: leg 0, and its opcode as the cookie.
const VERDICT: u64 = 2 << 48 | 2 << 16 | 1;

/// `classify.c`, as a Rust function behind a pointer.
type Native = fn(&mut State, &mut Context) -> u64;

struct State {
    windows: [[u64; 4]; 16],
    counters: [u64; 64],
}

fn native(state: &mut State, context: &mut Context) -> u64 {
    let opcode = context[10];
    let mut hints: u32 = match opcode {
        0 => {
            state.counters[0] += 1;
            return 0x00f3_0000_0000_0003;
        }
        1 => 1,
        2 => 2,
        _ => {
            state.counters[1] += 1;
            return complete(0x4001);
        }
    };
    if context[65] & 0x40 != 0 {
        hints |= 0x100;
    }
    if word(context, 8) as u16 > 8 {
        hints |= 0x200;
    }
    context[48..52].copy_from_slice(&hints.to_le_bytes());
    let (nsid, slba, blocks) = (word(context, 12) as u32, word(context, 32), word(context, 40) as u32);
    let Some([first, length, shift, seen]) = state.windows.get_mut(nsid as usize) else {
        return complete(0x400b);
    };
    if slba >= *length || u64::from(blocks) > *length - slba {
        return complete(0x4080);
    }
    let moved = slba.wrapping_add(*first).wrapping_add(*shift << 3);
    context[32..40].copy_from_slice(&moved.to_le_bytes());
    *seen = seen.wrapping_add(blocks.into());
    state.counters[2] += 1;
    VERDICT & !(0xff << 16) | u64::from(opcode) << 16
}

/// Returns the eight bytes at an offset.
fn word(context: &Context, at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| context[at + i]))
}

fn complete(status: u64) -> u64 {
    1 << 48 | status << 32
}

fn context() -> Context {
    let mut context = [0; CONTEXT];
    context[10] = 2;
    context[12] = 3;
    context[32] = 60;
    context[40] = 4;
    context
}

/// Restores the context: a call changes its SLBA.
fn again(context: &mut Context) -> &mut Context {
    context[32..40].copy_from_slice(&60u64.to_le_bytes());
    context
}

fn program(engine: Engine) -> Program {
    let layout = ContextLayout::new(CONTEXT).read(0..CONTEXT).write(32..54);
    let options = Options { engine, ..Options::new(layout) };
    let object =
        Object::from_elf(CLASSIFY, "classifier", &Limits::default()).expect("the fixture is an object");
    let program = Program::load(&object, &options, &[]).expect("the fixture loads");
    let window: Vec<u8> = [1000u64, 64, 2, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let windows = program.map("windows").expect("the fixture has this map");
    windows.set(&3u32.to_le_bytes(), &window, Update::Any).expect("an array has all its elements");
    program
}

const CALLS: u32 = 1_000_000;

/// Returns the fastest of several rounds, in nanoseconds a call.
fn measure(mut call: impl FnMut() -> u64, rounds: u32) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..CALLS {
            assert_eq!(black_box(call()), VERDICT);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    best
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let rounds = if only.is_some() { 1 } else { 20 };
    let mut state = State { windows: [[0; 4]; 16], counters: [0; 64] };
    state.windows[3] = [1000, 64, 2, 0];
    let function: Native = black_box(native);
    let mut baseline = None;
    if wanted("native") {
        let mut context = context();
        let ns = measure(|| function(&mut state, black_box(again(&mut context))), rounds);
        println!("native       {ns:7.2} ns");
        baseline = Some(ns);
    }
    for (name, engine) in [("compiled", Engine::Compiled), ("interpreted", Engine::Interpreted)] {
        if wanted(name) {
            let mut program = program(engine);
            let mut context = context();
            let ns = measure(|| program.run(black_box(again(&mut context))).unwrap_or(0), rounds);
            let ratio = baseline.map_or(String::new(), |baseline| format!("  {:.2} x native", ns / baseline));
            println!("{name:12} {ns:7.2} ns{ratio}");
        }
    }
    if only.is_some() {
        println!("{CALLS} calls");
    }
}
