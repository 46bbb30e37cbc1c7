//! Code for other machines than this one can at least be generated, and false proofs do not break out.

use cranelift_codegen::isa;
use proptest::prelude::*;

use super::*;
use crate::asm::{Asm, I, R};
use crate::insn::{AluOp, AtomicOp, Cond, Size, Width};
use crate::layout::Region;
use crate::tests::{CONTEXT, context, object, options, outcome};
use crate::verify::Verified;
use crate::{Engine, MapDef, Program};

/// Returns a program with every kind of access, a loop, a call, helpers.
fn everything() -> Asm {
    let asm =
        Asm::new().mov(6, R(1)).store(Size::B4, 10, -4, I(1)).map(1, 0).mov(2, R(10)).add(2, I(-4)).call(1);
    let asm = asm.branch(Cond::Eq, Width::W64, 0, I(0), "none").load(Size::B8, 7, 0, 0).add(7, I(1));
    let asm = asm.store(Size::B8, 0, 0, R(7)).mov(2, I(1)).atomic(AtomicOp::Add, true, Size::B8, 0, 0, 2);
    let asm = asm
        .label("none")
        .load(Size::B4, 2, 6, 4)
        .alu(AluOp::And, Width::W64, 2, I(7))
        .mov(3, R(6))
        .add(3, R(2));
    let asm = asm.load(Size::B1, 4, 3, 8).store(Size::B2, 6, 40, R(4)).mov(1, I(5)).call_local("double");
    let asm = asm.mov(8, R(0)).label("loop").add(8, I(-1)).branch(Cond::SGt, Width::W32, 8, I(0), "loop");
    let asm =
        asm.mov(1, I(2)).call(1000).load(Size::B8, 0, 10, -8).alu(AluOp::SDiv, Width::W32, 0, R(8)).exit();
    asm.label("double").store(Size::B8, 10, -8, R(1)).load(Size::B8, 0, 10, -8).add(0, R(0)).exit()
}

fn maps() -> Vec<crate::MapSpec> {
    vec![MapDef::array("a", 8, 4).into(), MapDef::hash("h", 4, 16, 4).into()]
}

#[test]
fn code_for_the_other_machine() {
    let object = object(everything(), maps());
    let options = options(Engine::Interpreted);
    let program = Program::load(&object, &options, &[]).expect("it is a good program");
    let code_len = program.code().insns.len();
    for triple in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let builder = isa::lookup_by_name(triple).expect("the tests have it compiled in");
        let isa = builder.finish(flags(code_len).expect("the settings exist")).expect("the settings fit");
        let (code, proofs) = (program.code(), program.proofs());
        let source = Source { code, helpers: program.helpers(), proofs, memory: program.memory() };
        let units = units(code);
        let functions: Box<[AtomicUsize]> = units.iter().map(|_| AtomicUsize::new(0)).collect();
        let lowering =
            Lowering { source: &source, helpers: source.helpers, functions: &functions, units: &units };
        let (code, starts) =
            generate(&lowering, isa.as_ref()).unwrap_or_else(|error| panic!("{triple}: {error}"));
        assert!(code.len() > 200 && starts.len() == 2, "{triple}");
    }
}

/// Lowest address of the host's stack that a program called [`look`] from.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);

fn look(_: &mut Machine<'_>, _: [u64; 5]) -> Result<u64, Fault> {
    let here = 0u8;
    LOWEST.fetch_min(std::ptr::from_ref(std::hint::black_box(&here)).addr(), Ordering::Relaxed);
    Ok(0)
}

/// Limits the host's stack. Every load's address stays the same in all rounds of the loop, so an optimiser
/// would keep a thousand of them, in each of as many frames as there can be.
#[test]
fn long_programs_take_little_of_the_hosts_stack() {
    let number = 2000;
    let helper =
        Helper { number, name: "look", arguments: &[], returns: crate::Returns::Number, function: look };
    let asm = Asm::new().load(Size::B8, 1, 1, 0).call_local("f").exit().label("f").mov(7, I(0)).mov(8, R(1));
    let asm = asm.alu(AluOp::And, Width::W64, 1, I(7)).map_value(6, 0, 16_000).add(6, R(1));
    let asm = asm.label("loop").call(number).mov(1, R(8)).call_local("f");
    let asm = (0..1000).fold(asm, |asm, i| asm.load(Size::B8, 0, 6, i * 8 - 8000));
    let asm = asm.add(7, I(1)).branch(Cond::Lt, Width::W64, 7, I(3), "loop").mov(0, R(7)).exit();
    let mut options = options(Engine::Compiled);
    options.helpers = options.helpers.with(helper);
    let object = object(asm, vec![MapDef::array("a", 32_000, 1).into()]);
    let mut program = Program::load(&object, &options, &[]).expect("it is a good program");
    let top = 0u8;
    let result = program.run(&mut [0; CONTEXT]);
    assert_eq!(result.map_err(|trap| trap.fault), Err(Fault::TooDeep));
    let used = std::ptr::from_ref(std::hint::black_box(&top)).addr() - LOWEST.load(Ordering::Relaxed);
    assert!(used < 64 << 10, "{used} bytes");
}

/// Returns the accesses of a program whose addresses are not clamped, before and after the code is optimised.
fn unclamped(program: &Program, guards: bool) -> Vec<String> {
    let (code, proofs) = (program.code(), program.proofs());
    let source = Source { code, helpers: program.helpers(), proofs, memory: program.memory() };
    let units = units(code);
    let functions: Box<[AtomicUsize]> = units.iter().map(|_| AtomicUsize::new(0)).collect();
    let lowering =
        Lowering { source: &source, helpers: source.helpers, functions: &functions, units: &units };
    let isa = host_isa(code.insns.len()).expect("this machine has code generated for it");
    let table = functions.as_ptr_range();
    let table = table.start.addr() as u64..table.end.addr() as u64;
    let mut found = Vec::new();
    for unit in &units {
        let mut context = Context::new();
        lowering.function(*unit, isa.as_ref(), &mut context.func, &mut FunctionBuilderContext::new());
        found.extend(super::clamped::unclamped(&context.func, program.memory(), table.clone(), guards));
        context.optimize(isa.as_ref(), &mut ControlPlane::default()).expect("it is good code");
        found.extend(super::clamped::unclamped(&context.func, program.memory(), table.clone(), guards));
    }
    found
}

/// Returns a program that reaches into every region by registers without any proof.
fn wild() -> Asm {
    let asm = Asm::new().load(Size::B8, 7, 1, 8).alu(AluOp::And, Width::W64, 7, I(31)).mov(6, R(1));
    let asm =
        asm.mov(8, R(1)).add(8, R(7)).load(Size::B1, 2, 8, 0).load(Size::B1, 3, 8, 5).load(Size::B2, 4, 8, 2);
    let asm = asm.map_value(8, 0, 0).add(8, R(7)).load(Size::B8, 3, 8, 0).store(Size::B4, 8, 4, R(3));
    let asm = asm.load(Size::B8, 3, 8, -4).mov(2, I(1)).mov(9, R(10)).alu(AluOp::Sub, Width::W64, 9, R(7));
    let asm = asm.store(Size::B1, 9, -40, R(3)).load(Size::B1, 0, 9, -40).mov(1, R(7)).call(1000);
    asm.map_value(8, 0, 0)
        .atomic(AtomicOp::Add, true, Size::B8, 8, 0, 7)
        .mov(1, R(7))
        .call_local("f")
        .exit()
        .label("f")
        .store(Size::B8, 10, -8, R(1))
        .load(Size::B8, 0, 10, -8)
        .exit()
}

/// Checks that a wrong speculation about a comparison reads only where the program may read.
#[test]
fn no_access_is_reached_with_an_address_that_is_not_clamped() {
    for asm in [everything(), wild()] {
        let object = object(asm, maps());
        let program =
            Program::load(&object, &options(Engine::Interpreted), &[]).expect("it is a good program");
        assert_eq!(unclamped(&program, true), Vec::<String>::new());
        assert!(!unclamped(&program, false).is_empty(), "it does without guards");
        let nothing =
            Program::assume_nothing(&object, &options(Engine::Interpreted)).expect("it has the form of one");
        assert_eq!(unclamped(&nothing, true), Vec::<String>::new());
    }
}

fn lie() -> impl Strategy<Value = Proof> {
    let region = prop_oneof![
        Just(Region::Context),
        Just(Region::Stack),
        (0u32..4).prop_map(Region::Map),
        Just(Region::Map(u32::MAX))
    ];
    let far = || prop_oneof![-600i64..600, any::<i64>()];
    let at = || prop_oneof![0usize..100, any::<usize>()];
    prop_oneof![
        Just(Proof::Nothing),
        at().prop_map(Proof::Context),
        far().prop_map(Proof::Frame),
        (region, at(), at()).prop_map(|(region, start, end)| Proof::Within(region, start..end)),
        (0u32..4, prop::option::of(far())).prop_map(|(map, key)| Proof::Map { map, key }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Runs programs with arbitrary proofs: they may damage only their own memory. Bytes of the context that
    /// are not writable stay, and so do the bytes around it.
    #[test]
    fn proofs_are_not_believed(proofs in prop::collection::vec(lie(), 64), wild in any::<u64>()) {
        let asm = Asm::new().number(6, wild).store(Size::B8, 6, 0, I(-1)).load(Size::B8, 7, 6, 8).store(Size::B8, 10, -16, R(7));
        let asm = asm.mov(2, I(1)).atomic(AtomicOp::Add, true, Size::B8, 6, 0, 2);
        let prefix = asm.clone().number(1, Region::Context.base());
        let mut slots = prefix.finish();
        slots.extend(everything().finish());
        let object = crate::Object { slots, maps: maps(), ..crate::Object::default() };
        let verified = Verified { proofs, notes: Vec::new(), reads_fresh_stack: true };
        let mut program = Program::believe(&object, &options(Engine::Compiled), verified).expect("it has the form of one");
        prop_assert_eq!(unclamped(&program, true), Vec::<String>::new());
        let mut around = [0xa5u8; 3 * CONTEXT];
        let _ = program.run(&mut around[CONTEXT..2 * CONTEXT]);
        prop_assert!(around[..CONTEXT + 32].iter().all(|&byte| byte == 0xa5));
        prop_assert!(around[2 * CONTEXT..].iter().all(|&byte| byte == 0xa5));
    }
}

/// Checks registers around a region with offsets to them: the comparison accepts exactly the positions that
/// are inside.
#[test]
fn registers_outside_of_a_region_may_reach_into_it_and_no_further() {
    for (region, write) in [(Region::Map(0), false), (Region::Context, false), (Region::Context, true)] {
        for bias in (-70i64..=70).chain([1 << 31, -(1 << 31), i64::MAX, i64::MIN]) {
            for offset in [-70, -33, -32, -8, -1, 0, 1, 7, 8, 31, 32, 33, 56, 57, 64, 70] {
                let asm = Asm::new().number(6, region.base().wrapping_add_signed(bias)).mov(0, I(7));
                let asm = match write {
                    false => asm.load(Size::B8, 0, 6, offset),
                    true => asm.store(Size::B8, 6, offset, R(0)),
                };
                let object = object(asm.exit(), vec![MapDef::array("a", 16, 4).into()]);
                let proofs = vec![Proof::Within(region, 0..CONTEXT); object.slots.len()];
                let verified = Verified { proofs, notes: Vec::new(), reads_fresh_stack: true };
                let compiled = Program::believe(&object, &options(Engine::Compiled), verified);
                let interpreted = Program::assume_nothing(&object, &options(Engine::Interpreted));
                let [first, second] = [compiled, interpreted]
                    .map(|program| outcome(&mut program.expect("it has the form of one"), context()));
                assert_eq!(first, second, "{region:?}, a write: {write}, {bias} and {offset}");
            }
        }
    }
}
