//! eBPF programs: the engines agree on the result of each, with the verifier's proofs and without, and with a
//! foreign interpreter where both define the same.

use crate::Input;
use sluice_ebpf::fuzz::{self, CONTEXT, Shape};
use sluice_ebpf::{Engine, Program};

/// Runs an input; its first byte selects the meaning of the others.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.below(4);
    let rest = input.bytes(usize::MAX);
    match kind {
        0 | 1 => fuzz::fuzz_differential(rest),
        2 => common(rest),
        _ => fuzz::fuzz_load(rest),
    }
}

/// Runs a program that stays in bounds and uses nothing that rbpf lacks.
fn common(bytes: &[u8]) {
    let object = fuzz::generate(bytes, Shape::Common);
    fuzz::compare(&object);
    let code: Vec<u8> = object.slots.iter().flat_map(|slot| slot.to_bytes()).collect();
    // rbpf refuses some immediates that it would have to treat specially.
    let Ok(vm) = rbpf::EbpfVmRaw::new(Some(&code)) else { return };
    let mut theirs: [u8; CONTEXT] = std::array::from_fn(|i| i as u8 * 3);
    let mut ours = theirs;
    let expected = vm.execute_program(&mut theirs).expect("in bounds, and it ends");
    let program = Program::load(&object, &fuzz::options(Engine::Compiled), &[]);
    let result = program.expect("common programs are in order").run(&mut ours);
    assert_eq!((result, ours), (Ok(expected), theirs), "{:x?}", object.slots);
}
