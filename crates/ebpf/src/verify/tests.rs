//! Results of the verifier against real runs, and its messages.

use proptest::prelude::*;

use super::*;
use crate::asm::{Asm, I, R};
use crate::fuzz::{self, CONTEXT, Shape};
use crate::insn::{Cond, Reg, Size, Width};
use crate::interpreter::{Observer, Registers};
use crate::layout::map_handle;
use crate::tests::{object, options};
use crate::{Engine, Object, Program};
use state::Pointer;

/// Observer that checks at every block that each register has the verifier's type.
struct Watch {
    states: Vec<Option<Box<State>>>,
    wrong: Option<String>,
}

impl Observer for Watch {
    fn step(&mut self, at: usize, registers: &Registers) {
        let Some(Some(state)) = self.states.get(at) else { return };
        let frame = registers[Reg::FRAME.index()];
        for number in 0..Reg::COUNT as u8 {
            let reg = Reg::new(number).expect("it exists");
            let (value, believed) = (registers[reg.index()], state.get(reg));
            if !covers(believed, value, frame) && self.wrong.is_none() {
                self.wrong = Some(format!("before {at}: {reg} is {value:#x}, believed to be {believed:?}"));
            }
        }
    }
}

fn covers(believed: Value, value: u64, frame: u64) -> bool {
    match believed {
        Value::Uninit | Value::Unknown => true,
        Value::Number(span) => span.min <= value && value <= span.max,
        Value::Map(map) => value == map_handle(map),
        Value::Pointer(Pointer { nullable: true, .. }) if value == 0 => true,
        Value::Pointer(Pointer { base, low, high, .. }) => {
            let away = |from: u64| value.wrapping_sub(from) as i64;
            match base {
                Base::Context => (low..=high).contains(&away(Region::Context.base())),
                Base::Frame => (low..=high).contains(&away(frame)),
                Base::Stack => Region::of(value).is_some_and(|(region, _)| region == Region::Stack),
                // Some value of the map: all maps here are small.
                Base::Map(map) => (low..=high + 1000).contains(&away(Region::Map(map).base())),
            }
        }
    }
}

fn believed(object: &Object) -> Vec<Option<Box<State>>> {
    let options = fuzz::options(Engine::Interpreted);
    let program = Program::assume_nothing(object, &options).expect("its form is good");
    let maps: Vec<_> = object.maps.iter().map(|spec| spec.def.clone()).collect();
    let subject =
        Subject { code: program.code(), helpers: program.helpers(), maps: &maps, layout: &options.layout };
    states(&subject).expect("it is simple enough")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Checks that the registers of any program are within the verifier's states.
    #[test]
    fn beliefs_hold(bytes in prop::collection::vec(any::<u8>(), 80..600)) {
        let object = fuzz::generate(&bytes, Shape::Everything);
        // A program that is refused has no states to check.
        if let Ok(program) = Program::load(&object, &fuzz::options(Engine::Interpreted), &[]) {
            prop_assert_eq!(wrong(program, &object, 0x5a), None);
        }
    }
}

/// Returns a difference between a run on a context full of this byte and the verifier's states.
fn wrong(mut program: Program, object: &Object, byte: u8) -> Option<String> {
    let mut watch = Watch { states: believed(object), wrong: None };
    let _ = program.observe(&mut [byte; CONTEXT], &mut watch);
    watch.wrong
}

/// Checks functions that get NULL instead of an address in their caller's frame.
#[test]
fn null_is_handed_on() {
    let asm = Asm::new().load(Size::B1, 2, 1, 0).mov(1, R(10)).add(1, I(-8));
    let asm = asm.branch(Cond::Ne, Width::W64, 2, I(0), "there").mov(1, I(0)).label("there");
    let asm = asm.call_local("function").exit().label("function").mov(0, I(0)).exit();
    let object = object(asm, vec![]);
    for byte in [0, 1] {
        let program = Program::load(&object, &fuzz::options(Engine::Interpreted), &[]).expect("it loads");
        assert_eq!(wrong(program, &object, byte), None);
    }
}

fn notes(asm: Asm) -> Vec<&'static str> {
    let maps = vec![crate::MapDef::array("a", 8, 4).into()];
    let program = Program::load(&object(asm.exit(), maps), &options(Engine::Interpreted), &[]);
    program.expect("it loads").notes().iter().map(|note| note.text).collect()
}

#[test]
fn notes_say_what_is_not_proven() {
    let lookup = || Asm::new().store(Size::B4, 10, -4, I(1)).map(1, 0).mov(2, R(10)).add(2, I(-4)).call(1);
    let unchecked = notes(lookup().load(Size::B8, 0, 0, 0));
    assert!(unchecked.len() == 1 && unchecked[0].contains("may be NULL"), "{unchecked:?}");
    let checked =
        lookup().branch(Cond::Eq, Width::W64, 0, I(0), "none").load(Size::B8, 0, 0, 0).label("none");
    assert!(notes(checked).is_empty());
    let index = |most| {
        let asm = Asm::new().load(Size::B4, 2, 1, 0).mov(0, I(0));
        asm.branch(Cond::Gt, Width::W64, 2, I(most), "out").add(1, R(2)).load(Size::B1, 0, 1, 8).label("out")
    };
    assert!(notes(index(55)).is_empty(), "the index was compared");
    assert!(notes(index(56))[0].contains("may be out of bounds"));
}

/// Checks a loop with an index that is compared each time: every access in it is proven.
#[test]
fn a_loop_over_the_context_is_proven() {
    let asm =
        Asm::new().mov(0, I(0)).mov(2, I(0)).label("loop").mov(3, R(1)).add(3, R(2)).load(Size::B1, 4, 3, 0);
    let asm = asm.add(0, R(4)).add(2, I(1)).branch(Cond::Lt, Width::W64, 2, I(64), "loop");
    let object = object(asm.exit(), vec![]);
    let mut program = Program::load(&object, &options(Engine::Compiled), &[]).expect("it loads");
    assert!(program.notes().is_empty());
    assert_eq!(program.proofs()[6], Proof::Nothing);
    assert_eq!(program.proofs()[4], Proof::Within(Region::Context, 0..CONTEXT));
    assert_eq!(program.run(&mut crate::tests::context()), Ok((1..=64).sum()));
}

/// Checks that only certain non-NULL pointers are proven, and the rest is compared.
#[test]
fn what_may_be_null_is_not_taken_for_granted() {
    let load = |base: Asm, checked: bool| {
        let asm = base.load(Size::B1, 2, 1, 0).branch(Cond::Ne, Width::W64, 2, I(0), "there").mov(6, I(0));
        let asm = asm.label("there");
        let asm = if checked { asm.branch(Cond::Eq, Width::W64, 6, I(0), "out") } else { asm };
        let at = asm.len();
        let asm = asm.load(Size::B4, 0, 6, 0).map(1, 0).mov(2, R(6)).call(1).label("out").mov(0, I(0)).exit();
        let maps = vec![crate::MapDef::array("a", 8, 4).into()];
        let program =
            Program::load(&object(asm, maps), &options(Engine::Interpreted), &[]).expect("it loads");
        (program.proofs()[at].clone(), program.proofs()[at + 4].clone())
    };
    let context = || Asm::new().mov(6, R(1)).add(6, I(8));
    let frame = || Asm::new().mov(6, R(10)).add(6, I(-8));
    let map = |key| Proof::Map { map: 0, key };
    assert_eq!(load(context(), true), (Proof::Context(8), map(None)));
    assert_eq!(load(context(), false), (Proof::Within(Region::Context, 0..CONTEXT), map(None)));
    assert_eq!(load(frame(), true), (Proof::Frame(-8), map(Some(-8))));
    let stack = 0..crate::layout::STACK_BYTES;
    assert_eq!(load(frame(), false), (Proof::Within(Region::Stack, stack), map(None)));
}

/// Checks that a pointer that leads to one of two regions is proven for neither of them.
#[test]
fn what_may_be_in_two_regions_is_compared() {
    type Base = fn(Asm) -> Asm;
    let context: Base = |asm| asm.mov(6, R(7)).add(6, I(8));
    let frame: Base = |asm| asm.mov(6, R(10)).add(6, I(-8));
    let value: Base = |asm| {
        let asm = asm.map(1, 0).mov(2, R(10)).add(2, I(-16)).call(1).mov(6, R(0));
        asm.branch(Cond::Eq, Width::W64, 6, I(0), "out")
    };
    let other: Base = |asm| {
        let asm = asm.map(1, 1).mov(2, R(10)).add(2, I(-16)).call(1).mov(6, R(0));
        asm.branch(Cond::Eq, Width::W64, 6, I(0), "out")
    };
    let maps = || vec![crate::MapDef::array("a", 8, 4).into(), crate::MapDef::array("b", 4, 4).into()];
    let bases = [context, frame, value, other];
    for (first, second) in (0..4).flat_map(|first| (0..4).map(move |second| (first, second))) {
        let asm = Asm::new().mov(7, R(1)).store(Size::B8, 10, -8, I(3)).store(Size::B8, 10, -16, I(1));
        let asm = asm.load(Size::B1, 8, 1, 0).branch(Cond::Ne, Width::W64, 8, I(0), "second");
        let asm = bases[second](bases[first](asm).jump("there").label("second")).label("there");
        let at = asm.len();
        let object = object(asm.load(Size::B4, 0, 6, 0).label("out").mov(0, I(0)).exit(), maps());
        let program = Program::load(&object, &options(Engine::Interpreted), &[]).expect("it loads");
        assert_eq!(program.proofs()[at] == Proof::Nothing, first != second, "{first} and {second}");
        for byte in [0, 1] {
            let program = Program::load(&object, &fuzz::options(Engine::Interpreted), &[]).expect("it loads");
            assert_eq!(wrong(program, &object, byte), None, "{first} and {second}");
        }
    }
}
