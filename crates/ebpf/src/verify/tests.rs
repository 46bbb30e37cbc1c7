//! Results of the verifier against real runs, and its messages.

mod places;

use proptest::prelude::*;

use super::*;
use crate::asm::{Asm, I, R};
use crate::fuzz::{self, CONTEXT, Shape};
use crate::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
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

/// Returns the notes of a program, or none if it is refused.
fn judged(asm: Asm) -> Option<Vec<&'static str>> {
    let maps = vec![crate::MapDef::array("a", 8, 4).into()];
    let program =
        Program::load(&object(asm.mov(0, I(0)).exit(), maps), &options(Engine::Interpreted), &[]).ok()?;
    Some(program.notes().iter().map(|note| note.text).collect())
}

/// Checks each size at and beside each end of the frame, a map's value and the context.
#[test]
fn an_access_lies_inside_of_its_region() {
    for size in [Size::B1, Size::B2, Size::B4, Size::B8] {
        let bytes = size.bytes() as i16;
        for (offset, is_good) in
            [(-512, true), (-513, false), (-bytes, true), (1 - bytes, false), (0, false), (-520, false)]
        {
            let load = judged(Asm::new().load(size, 2, 10, offset));
            let store = judged(Asm::new().store(size, 10, offset, I(1)));
            assert_eq!(
                [load.is_some(), store.is_some()],
                [is_good; 2],
                "{bytes} bytes at {offset} of the frame"
            );
        }
        for (offset, is_good) in [(0, true), (-1, false), (8 - bytes, true), (9 - bytes, false), (8, false)] {
            let load = judged(Asm::new().map_value(2, 0, 0).load(size, 3, 2, offset));
            let store = judged(Asm::new().map_value(2, 0, 0).store(size, 2, offset, I(1)));
            assert_eq!(
                [load.is_some(), store.is_some()],
                [is_good; 2],
                "{bytes} bytes at {offset} of a value"
            );
        }
        // Bytes 0 to 31 of the context are read, and bytes 32 to 63 are written, too.
        for (offset, reads, writes) in [
            (0, true, false),
            (-1, false, false),
            (32 - bytes, true, false),
            (32, true, true),
            (64 - bytes, true, true),
            (65 - bytes, false, false),
            (64, false, false),
        ] {
            let load = judged(Asm::new().load(size, 2, 1, offset));
            let store = judged(Asm::new().store(size, 1, offset, I(1)));
            assert_eq!(
                (load.is_some(), store.is_some()),
                (reads, writes),
                "{bytes} bytes at {offset} of the context"
            );
        }
    }
}

/// Checks an address that is one of several: it is refused if none of them is inside, and noted if not all are.
#[test]
fn an_access_that_may_lie_outside_is_noted() {
    // Register 3 has one of the numbers up to `most`.
    let one_of = |most: i32| Asm::new().load(Size::B1, 3, 1, 0).alu(AluOp::And, Width::W64, 3, I(most));
    type Base = fn(Asm) -> Asm;
    let frame: Base = |asm| asm.mov(2, R(10)).add(2, R(3));
    let value: Base = |asm| asm.map_value(2, 0, 0).add(2, R(3));
    let context: Base = |asm| asm.mov(2, R(1)).add(2, R(3));
    for (name, base, most, offset, expected) in [
        ("frame", frame, 7, -512, Some(0)),
        ("frame", frame, 7, -15, Some(0)),
        ("frame", frame, 7, -14, Some(1)),
        ("frame", frame, 7, -8, Some(1)),
        ("frame", frame, 7, -513, Some(1)),
        ("frame", frame, 7, -7, None),
        ("frame", frame, 7, -520, None),
        ("value", value, 3, -3, Some(1)),
        ("value", value, 3, 0, Some(1)),
        ("value", value, 3, 1, None),
        ("value", value, 3, -4, None),
        ("context", context, 24, 0, Some(0)),
        ("context", context, 24, 32, Some(0)),
        ("context", context, 25, 32, Some(1)),
        ("context", context, 24, -1, Some(1)),
        ("context", context, 7, 57, None),
        ("context", context, 7, -8, None),
    ] {
        let found = judged(base(one_of(most)).load(Size::B8, 4, 2, offset));
        assert_eq!(found.map(|notes| notes.len()), expected, "{name}: 0 to {most} and {offset}");
    }
}

/// Checks that stack bytes are cleared before a run where a program may read one that it has not written.
#[test]
fn a_stack_that_may_be_read_fresh_is_cleared() {
    let is_fresh = |asm: Asm| {
        let object = object(asm.mov(0, I(0)).exit(), vec![crate::MapDef::array("a", 8, 4).into()]);
        let options = options(Engine::Interpreted);
        let program = Program::assume_nothing(&object, &options).expect("its form is good");
        let maps: Vec<_> = object.maps.iter().map(|spec| spec.def.clone()).collect();
        let subject = Subject {
            code: program.code(),
            helpers: program.helpers(),
            maps: &maps,
            layout: &options.layout,
        };
        verify(&subject).expect("it is accepted").reads_fresh_stack
    };
    let written = || Asm::new().store(Size::B8, 10, -8, I(1));
    for (name, asm, expected) in [
        ("nothing", Asm::new(), false),
        ("what was written", written().load(Size::B8, 2, 10, -8), false),
        ("a part of it", written().load(Size::B4, 2, 10, -4), false),
        ("more than that", written().load(Size::B8, 2, 10, -12), true),
        ("beside it", written().load(Size::B1, 2, 10, -9), true),
        (
            "written on one path",
            Asm::new()
                .load(Size::B1, 2, 1, 0)
                .branch(Cond::Eq, Width::W64, 2, I(0), "there")
                .store(Size::B8, 10, -8, I(1))
                .label("there")
                .load(Size::B8, 2, 10, -8),
            true,
        ),
        ("the context", Asm::new().load(Size::B8, 2, 1, 0), false),
        ("an atomic", Asm::new().mov(2, I(1)).atomic(AtomicOp::Add, false, Size::B8, 10, -8, 2), true),
        (
            "an atomic after a write",
            written().mov(2, I(1)).atomic(AtomicOp::Add, false, Size::B8, 10, -8, 2),
            false,
        ),
        ("a key", written().map(1, 0).mov(2, R(10)).add(2, I(-8)).call(1), false),
        ("a key that was not written", written().map(1, 0).mov(2, R(10)).add(2, I(-12)).call(1), true),
    ] {
        assert_eq!(is_fresh(asm), expected, "{name}");
    }
}
