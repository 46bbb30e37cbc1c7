//! Tests of the engine as a whole, on every engine there is.

mod bad;
mod differential;
mod fuel;
mod null;
mod opcodes;

use std::sync::Arc;

use crate::asm::Asm;
use crate::{ContextLayout, Engine, MapSpec, Object, Options, Program, Trap};

/// Engines that run a program.
pub(crate) const ENGINES: [Engine; 2] = [Engine::Interpreted, Engine::Compiled];

/// Bytes of the test programs' context: the first half may be read, the second written, too.
pub(crate) const CONTEXT: usize = 64;

/// Returns the options of tests: with a clock that stands still, so that runs can be compared.
pub(crate) fn options(engine: Engine) -> Options {
    let layout = ContextLayout::new(CONTEXT).read(0..32).write(32..CONTEXT);
    Options { engine, clock: Arc::new(|| 12_345), ..Options::new(layout) }
}

pub(crate) fn object(asm: Asm, maps: Vec<MapSpec>) -> Object {
    Object { slots: asm.finish(), maps, ..Object::default() }
}

/// Returns a context whose bytes count up.
pub(crate) fn context() -> [u8; CONTEXT] {
    std::array::from_fn(|i| i as u8 + 1)
}

/// Effects of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) result: Result<u64, Trap>,
    context: [u8; CONTEXT],
    stack: Vec<u8>,
    maps: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    counters: Vec<u64>,
    trace: Vec<crate::TraceRecord>,
}

/// Runs a program and returns its effects.
pub(crate) fn outcome(program: &mut Program, mut context: [u8; CONTEXT]) -> Outcome {
    let result = program.run(&mut context);
    let mut stack = vec![0; crate::layout::STACK_BYTES];
    program.stack().read(0, &mut stack).expect("the stack is that long");
    Outcome {
        result,
        context,
        stack,
        maps: program.maps().iter().map(|map| map.entries()).collect(),
        counters: program.counters().all(),
        trace: std::iter::from_fn(|| program.trace().pop()).collect(),
    }
}

/// Returns the result of a program that loads, the same from every engine, with proofs and without.
pub(crate) fn result(asm: Asm, maps: Vec<MapSpec>) -> Result<u64, Trap> {
    let object = object(asm, maps);
    let mut first = None;
    for engine in ENGINES {
        let options = options(engine);
        let verified = Program::load(&object, &options, &[]);
        let unproven = Program::assume_nothing(&object, &options);
        for program in [verified, unproven] {
            let mut program = program.unwrap_or_else(|error| panic!("{engine:?}: {error}"));
            let outcome = outcome(&mut program, context());
            let first = first.get_or_insert(outcome.result);
            assert_eq!(outcome.result, *first, "{engine:?}");
        }
    }
    first.expect("there are engines")
}
