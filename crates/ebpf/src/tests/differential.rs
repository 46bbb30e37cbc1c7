//! Engines against each other, against the verifier's proofs, and against another project's interpreter.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::edges;
use crate::fuzz::{self, CONTEXT, Shape};
use crate::{Engine, Program};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 80..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn engines_agree(bytes in bytes()) {
        fuzz::fuzz_differential(&bytes);
    }

    #[test]
    fn engines_agree_on_common_programs(bytes in bytes()) {
        fuzz::compare(&fuzz::generate(&bytes, Shape::Common));
    }

    #[test]
    fn any_slots_load_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::fuzz_load(&bytes);
    }

    /// Compares common programs with rbpf. It has real addresses, but common programs do not look at them.
    #[test]
    fn rbpf_agrees(bytes in bytes()) {
        let object = fuzz::generate(&bytes, Shape::Common);
        let code: Vec<u8> = object.slots.iter().flat_map(|slot| slot.to_bytes()).collect();
        let mut theirs: [u8; CONTEXT] = std::array::from_fn(|i| i as u8 * 3);
        let mut ours = theirs;
        let vm = rbpf::EbpfVmRaw::new(Some(&code));
        // rbpf refuses some immediates that would need a special case.
        prop_assume!(vm.is_ok());
        let expected = vm.expect("just seen").execute_program(&mut theirs).expect("in bounds, and it ends");
        let program = Program::load(&object, &fuzz::options(Engine::Compiled), &[]);
        let result = program.expect("common programs are in order").run(&mut ours);
        prop_assert_eq!((result, ours), (Ok(expected), theirs), "{:x?}", object.slots);
    }
}

/// Least number of programs to run; `SLUICE_PROGRAMS` sets another.
const EDGES: usize = 4000;

/// Checks proofs: machine code that relies on them has the same effects as the interpreter, which checks
/// every access.
#[test]
fn what_the_verifier_barely_accepts_is_right() {
    let wanted = std::env::var("SLUICE_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(EDGES);
    let mut runner = TestRunner::deterministic();
    if wanted != EDGES {
        runner = TestRunner::default();
    }
    let (mut accepted, mut refused, mut finished) = (0usize, 0usize, 0usize);
    while accepted < wanted {
        let bytes = bytes().new_tree(&mut runner).expect("there is always one").current();
        let object = edges::generate(&bytes);
        match Program::load(&object, &fuzz::options(Engine::Compiled), &[]) {
            Ok(mut program) => {
                accepted += 1;
                finished += usize::from(program.run(&mut fuzz::context()).is_ok());
                fuzz::compare(&object);
            }
            Err(_) => refused += 1,
        }
        assert!(refused < 40 * (accepted + 100), "nearly all are refused");
    }
    assert!(refused > accepted / 20, "only {refused} are refused: these are not the edges");
    assert!(finished > accepted / 2, "only {finished} of {accepted} finish");
}

/// Checks that most generated programs are worth running, or the tests above would show little.
#[test]
fn generated_programs_are_worth_it() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut loaded, mut finished) = (0, 0);
    for _ in 0..200 {
        let bytes = bytes().new_tree(&mut runner).expect("there is always one").current();
        let object = fuzz::generate(&bytes, Shape::Everything);
        if let Ok(mut program) = Program::load(&object, &fuzz::options(Engine::Compiled), &[]) {
            loaded += 1;
            finished += i32::from(program.run(&mut [0; CONTEXT]).is_ok());
        }
    }
    assert!(loaded > 60, "only {loaded} of 200 load");
    assert!(finished > 30, "only {finished} of 200 finish");
}
