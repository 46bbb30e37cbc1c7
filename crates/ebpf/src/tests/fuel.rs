//! Fuel bounds the work of a run, of instructions and of helpers.

use crate::asm::{Asm, I, R};
use crate::insn::{AluOp, Size, Width};
use crate::tests::{CONTEXT, ENGINES, context, object, options};
use crate::{FUEL, Fault, MapDef, MapKind, MapSpec, Program};

fn maps() -> Vec<MapSpec> {
    let maps = [
        MapDef::array("array", 8, 4),
        MapDef::hash("hash", 8, 8, 4),
        MapDef { kind: MapKind::LruHash, ..MapDef::hash("lru", 8, 8, 4) },
        MapDef::array("large", 8192, 2),
        MapDef::translation("cache", 8000, 0),
    ];
    maps.map(MapSpec::from).to_vec()
}

/// Returns how often a program does something before its fuel is spent, the same on every engine.
fn rounds(what: impl Fn(Asm) -> Asm) -> u64 {
    let start = Asm::new().mov(6, R(1)).mov(7, I(0)).store(Size::B8, 10, -8, I(1)).label("again");
    let round = what(start.add(7, I(1)).store(Size::B8, 6, 32, R(7)));
    let object = object(round.jump("again"), maps());
    let mut seen = None;
    for engine in ENGINES {
        for unproven in [false, true] {
            let options = options(engine);
            let program = match unproven {
                true => Program::assume_nothing(&object, &options),
                false => Program::load(&object, &options, &[]),
            };
            let mut context: [u8; CONTEXT] = context();
            let trap = program.expect("it loads").run(&mut context).expect_err("it has no end");
            assert_eq!(trap.fault, Fault::OutOfFuel);
            let rounds = context[32..40].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            assert_eq!(*seen.get_or_insert(rounds), rounds, "{engine:?}, unproven: {unproven}");
        }
    }
    seen.expect("there are engines")
}

/// Calls a helper with a map, the address of its key, and two numbers.
fn call(map: u32, helper: u32) -> impl Fn(Asm) -> Asm {
    move |asm| asm.map(1, map).mov(2, R(10)).add(2, I(-8)).mov(4, I(0)).call(helper)
}

#[test]
fn helpers_take_as_much_as_they_do() {
    let update = |map: u32| move |asm: Asm| call(map, 2)(asm.mov(3, R(10)).add(3, I(-8)));
    let large = |asm: Asm| {
        let asm = asm.map(1, 3).mov(2, R(10)).add(2, I(-8)).call(1).branch(
            crate::insn::Cond::Eq,
            Width::W64,
            0,
            I(0),
            "again",
        );
        asm.mov(3, R(0)).map(1, 3).mov(2, R(10)).add(2, I(-8)).mov(4, I(0)).call(2)
    };
    let forget = |blocks: i32| move |asm: Asm| asm.map(1, 4).mov(2, I(0)).mov(3, I(blocks)).call(1003);
    // Operations, and the most nanoseconds of each.
    let most = [
        ("array lookup", rounds(call(0, 1)), 10),
        ("hash lookup", rounds(call(1, 1)), 40),
        ("hash update", rounds(update(1)), 160),
        ("LRU update", rounds(update(2)), 160),
        ("delete", rounds(call(1, 3)), 150),
        ("8 KiB update", rounds(large), 6000),
        ("clock", rounds(|asm| asm.call(5)), 45),
        ("count", rounds(|asm| asm.mov(1, I(3)).call(1000)), 10),
        ("trace", rounds(|asm| asm.mov(1, R(10)).add(1, I(-8)).mov(2, I(8)).call(1001)), 110),
        ("translate", rounds(|asm| asm.map(1, 4).mov(2, I(5)).mov(3, R(10)).add(3, I(-32)).call(1002)), 55),
        ("forget a block", rounds(forget(1)), 160),
        ("forget everything", rounds(forget(i32::MAX)), 20_000),
        ("division", rounds(|asm| asm.alu(AluOp::Div, Width::W64, 7, R(7))), 10),
        ("load", rounds(|asm| asm.load(Size::B8, 0, 6, 0)), 10),
    ];
    for (what, rounds, ns) in most {
        assert!(rounds * ns <= FUEL, "{what}: {rounds} times");
        assert!(rounds > 1, "{what}: {rounds} times");
    }
}

/// Checks that each link that is followed in a map is paid for. An array has none.
#[test]
fn links_of_a_map_take_fuel() {
    let update = |map: u32| move |asm: Asm| call(map, 2)(asm.mov(3, R(10)).add(3, I(-8)));
    let replace = |map: u32| move |asm: Asm| call(map, 3)(update(map)(asm));
    let find = |map: u32| move |asm: Asm| call(map, 1)(update(1)(asm));
    // The first of each pair follows a link less than the second.
    for (what, less, more) in [
        ("update", rounds(update(0)), rounds(update(1))),
        ("delete", rounds(replace(0)), rounds(replace(1))),
        ("lookup", rounds(find(2)), rounds(find(1))),
    ] {
        assert!(less > more, "{what}: {less} and {more} times");
    }
}

/// Checks a program without a loop that still does too much.
#[test]
fn a_long_way_without_a_loop() {
    let asm = (0..4000).fold(Asm::new(), |asm, _| asm.call(5)).exit();
    for engine in ENGINES {
        let mut program =
            Program::load(&object(asm.clone(), Vec::new()), &options(engine), &[]).expect("it loads");
        let trap = program.run(&mut context()).expect_err("the clock takes its time");
        assert_eq!(trap.fault, Fault::OutOfFuel);
    }
}
