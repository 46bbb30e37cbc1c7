//! What a call of a program costs next to a native function: nanoseconds, as a ratio within one run.
//!
//! Instructions: `valgrind --tool=callgrind` on this example with an argument, which makes it run one
//! kind of call only ("native", "compiled" or "interpreted") and say how often; divide what callgrind
//! says by it.

use std::hint::black_box;
use std::time::Instant;

use sluice_ebpf::{ContextLayout, Engine, Limits, Object, Options, Program, Update};

const CLASSIFY: &[u8] = include_bytes!("../tests/programs/classify.o");

/// `classify.c`, as a Rust function behind a pointer.
type Native = fn(&mut State, &mut [u8; 24]) -> u64;

struct State {
    windows: [[u64; 4]; 16],
    counters: [u64; 64],
}

fn native(state: &mut State, context: &mut [u8; 24]) -> u64 {
    let opcode = context[0];
    let mut hint: u32 = match opcode {
        0 => {
            state.counters[0] += 1;
            return 3;
        }
        1 => 1,
        2 => 2,
        _ => {
            state.counters[1] += 1;
            return 0x80;
        }
    };
    if context[1] & 0x40 != 0 {
        hint |= 0x100;
    }
    if u16::from_le_bytes([context[2], context[3]]) > 8 {
        hint |= 0x200;
    }
    context[20..24].copy_from_slice(&hint.to_le_bytes());
    let c = &*context;
    let nsid = u32::from_le_bytes([c[4], c[5], c[6], c[7]]);
    let slba = u64::from_le_bytes([c[8], c[9], c[10], c[11], c[12], c[13], c[14], c[15]]);
    let blocks = u64::from(u32::from_le_bytes([c[16], c[17], c[18], c[19]]));
    let Some([first, length, shift, seen]) = state.windows.get_mut(nsid as usize) else { return 0x81 };
    if slba >= *length || blocks > *length - slba {
        return 0x82;
    }
    let moved = slba.wrapping_add(*first).wrapping_add(*shift << 3);
    context[8..16].copy_from_slice(&moved.to_le_bytes());
    *seen = seen.wrapping_add(blocks);
    state.counters[2] += 1;
    opcode.into()
}

fn context() -> [u8; 24] {
    let mut context = [0; 24];
    context[0] = 2;
    context[4] = 3;
    context[8] = 60;
    context[16] = 4;
    context
}

/// The context as it was: a call changes its SLBA.
fn again(context: &mut [u8; 24]) -> &mut [u8; 24] {
    context[8..16].copy_from_slice(&60u64.to_le_bytes());
    context
}

fn program(engine: Engine) -> Program {
    let layout = ContextLayout::new(24).read(0..24).write(8..16).write(20..24);
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

/// The fastest of several rounds, in nanoseconds a call.
fn measure(mut call: impl FnMut() -> u64, rounds: u32) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..CALLS {
            assert_eq!(black_box(call()), 2);
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
