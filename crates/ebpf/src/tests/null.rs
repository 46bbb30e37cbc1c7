//! Pointers that are NULL on one path: the engines agree on their use, on every path.

use super::{ENGINES, context, object, options, outcome};
use crate::asm::{Asm, I, R};
use crate::insn::{AtomicOp, Cond, Size, Width};
use crate::{Engine, Fault, MapDef, MapKind, MapSpec, Program, Update};

fn maps() -> Vec<MapSpec> {
    let maps = [
        MapDef::array("array", 8, 4),
        MapDef::hash("hash", 8, 8, 4),
        MapDef { kind: MapKind::LruHash, ..MapDef::hash("words", 4, 8, 4) },
        MapDef::hash("long", 12, 8, 4),
        MapDef::translation("places", 64, 0),
    ];
    maps.map(MapSpec::from).to_vec()
}

/// Stores a value under the key 1, and the position of block 1.
fn fill(program: &Program) {
    for map in program.maps() {
        match map.translations() {
            Some(places) => places.insert(1..2, 7, 0).expect("there is room"),
            None => {
                let mut key = [0; 12];
                key[0] = 1;
                let key = &key[..map.def().key_size as usize];
                map.set(key, &[0x77; 8], Update::Any).expect("there is room");
            }
        }
    }
}

/// Target of the pointer when it is not NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Context,
    Frame,
}

type Use = fn(Asm) -> Asm;

/// Uses of the pointer in r6; true if the use needs existing memory.
const USES: [(&str, Use, bool); 18] = [
    ("load", |asm| asm.load(Size::B8, 0, 6, 0), true),
    ("load of a part", |asm| asm.load_signed(Size::B2, 0, 6, 10), true),
    ("store", |asm| asm.mov(2, I(-2)).store(Size::B8, 6, 0, R(2)), true),
    ("store of a part", |asm| asm.store(Size::B1, 6, 9, I(-1)), true),
    ("addition", |asm| atomic(asm, AtomicOp::Add, Size::B8), true),
    ("exchange", |asm| atomic(asm, AtomicOp::Exchange, Size::B4), true),
    ("comparison", |asm| atomic(asm, AtomicOp::CompareExchange, Size::B8), true),
    ("key of an array", |asm| asm.map(1, 0).mov(2, R(6)).call(1), true),
    ("key of a hash", |asm| asm.map(1, 1).mov(2, R(6)).call(1), true),
    ("key of an LRU", |asm| asm.map(1, 2).mov(2, R(6)).call(1), true),
    ("long key", |asm| asm.map(1, 3).mov(2, R(6)).call(1), true),
    ("key to update", |asm| update(asm.map(1, 1).mov(2, R(6)).mov(3, R(10)).add(3, I(-64))), true),
    ("value", |asm| update(asm.map(1, 0).mov(2, R(10)).add(2, I(-64)).mov(3, R(6))), true),
    ("key to delete", |asm| asm.map(1, 1).mov(2, R(6)).call(3), true),
    ("text", |asm| asm.mov(1, R(6)).mov(2, I(16)).call(1001), true),
    ("no text", |asm| asm.mov(1, R(6)).mov(2, I(0)).call(1001), false),
    ("place of a hit", |asm| asm.map(1, 4).mov(2, I(1)).mov(3, R(6)).call(1002), true),
    ("place of a miss", |asm| asm.map(1, 4).mov(2, I(2)).mov(3, R(6)).call(1002), true),
];

fn atomic(asm: Asm, op: AtomicOp, size: Size) -> Asm {
    asm.mov(0, I(1)).mov(2, I(5)).atomic(op, true, size, 6, 0, 2)
}

fn update(asm: Asm) -> Asm {
    asm.store(Size::B8, 10, -64, I(2)).mov(4, I(0)).call(2)
}

/// Returns a program that uses an address in r6, which is NULL if the context begins with zero. The use is in
/// a function if the address is handed on.
fn program(target: Target, handed_on: bool, used: Use) -> Asm {
    let asm = match target {
        Target::Context => Asm::new().mov(6, R(1)).add(6, I(40)),
        Target::Frame => Asm::new().mov(6, R(10)).add(6, I(-32)),
    };
    let asm = asm.store(Size::B8, 6, 0, I(1)).store(Size::B8, 6, 8, I(0));
    let asm = asm.load(Size::B1, 2, 1, 0).branch(Cond::Ne, Width::W64, 2, I(0), "there").mov(6, I(0));
    let asm = asm.label("there");
    let asm = match handed_on {
        true => asm.mov(1, R(6)).call_local("function").exit().label("function").mov(6, R(1)),
        false => asm,
    };
    used(asm.mov(0, I(0))).exit()
}

#[test]
fn what_may_be_null_is_used_alike() {
    let mut different = Vec::new();
    for (name, used, takes_memory) in USES {
        for target in [Target::Context, Target::Frame] {
            for handed_on in [false, true] {
                let object = object(program(target, handed_on, used), maps());
                for first in [0, 1] {
                    let mut context = context();
                    context[0] = first;
                    let run = |program: &mut Program| {
                        fill(program);
                        outcome(program, context)
                    };
                    let unproven = |engine| Program::assume_nothing(&object, &options(engine));
                    let reference = run(&mut unproven(Engine::Interpreted).expect("it has the form of one"));
                    let case = format!("{name}, {target:?}, handed on: {handed_on}, first: {first}");
                    // The context has no atomics, NULL or not.
                    let refused =
                        target == Target::Context && used(Asm::new()).finish().iter().any(is_atomic);
                    let expected =
                        if refused || first == 0 && takes_memory { Err(Fault::Memory) } else { Ok(()) };
                    assert_eq!(reference.result.map(drop).map_err(|trap| trap.fault), expected, "{case}");
                    for engine in ENGINES {
                        let mut same = |how, mut program: Program| {
                            if run(&mut program) != reference {
                                different.push(format!("{case}, {engine:?}, {how}"));
                            }
                        };
                        same("unproven", unproven(engine).expect("it has the form of one"));
                        match Program::load(&object, &options(engine), &[]) {
                            Ok(program) => same("proven", program),
                            Err(error) => assert!(refused, "{case}: {error}"),
                        }
                    }
                }
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

fn is_atomic(slot: &crate::decode::Slot) -> bool {
    matches!(slot.opcode, 0xc3 | 0xdb)
}
