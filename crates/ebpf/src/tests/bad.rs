//! Bad programs: each is refused with a message, or ends in a trap on both engines, with proofs and without.

use super::{CONTEXT, ENGINES, context, object, options, outcome};
use crate::asm::{Asm, I, R};
use crate::insn::{AluOp, AtomicOp, Cond, Size, Width};
use crate::layout::Region;
use crate::{Fault, Limits, MapDef, MapKind, MapSpec, Options, Program};

/// Result of verifying a bad program.
enum Fate {
    /// Refused at an instruction, with this text in the message.
    Refused(&'static str),
    /// Loaded; a run ends in this trap.
    Trapped(Fault),
    /// Loaded, and harmless after all.
    Runs(u64),
}

use Fate::{Refused, Runs, Trapped};

struct Bad {
    name: &'static str,
    asm: Asm,
    fate: Fate,
    /// Result of a run without verification; none if the program's form is refused.
    unverified: Option<Result<u64, Fault>>,
}

fn maps() -> Vec<MapSpec> {
    let read_only = MapDef { flags: crate::flags::READ_ONLY, ..MapDef::array("constants", 8, 1) };
    vec![
        MapDef::array("array", 8, 2).into(),
        MapDef::hash("hash", 8, 8, 2).into(),
        read_only.into(),
        MapDef::translation("places", 8, 0).into(),
    ]
}

fn bad(name: &'static str, asm: Asm, fate: Fate, unverified: Option<Result<u64, Fault>>) -> Bad {
    Bad { name, asm, fate, unverified }
}

/// Appends r0 = 0 and an exit.
fn end(asm: Asm) -> Asm {
    asm.mov(0, I(0)).exit()
}

/// Loads a value of the array into r7; the rest is skipped if there is none.
fn value(asm: Asm) -> Asm {
    let asm = asm.store(Size::B4, 10, -4, I(1)).map(1, 0).mov(2, R(10)).add(2, I(-4)).call(1);
    asm.branch(Cond::Eq, Width::W64, 0, I(0), "out").mov(7, R(0))
}

/// Loads an unknown number below 2^32 into r8.
fn unknown(asm: Asm) -> Asm {
    asm.load(Size::B4, 8, 1, 0)
}

fn memory(asm: Asm, words: &'static str) -> (Asm, Fate, Option<Result<u64, Fault>>) {
    (end(asm), Refused(words), Some(Err(Fault::Memory)))
}

fn accesses() -> Vec<Bad> {
    let new = Asm::new;
    let scalar = "number here, not an address";
    let cases = [
        ("reads past the context", memory(new().load(Size::B8, 0, 1, 60), "may not be read")),
        ("reads before the context", memory(new().load(Size::B8, 0, 1, -8), "may not be read")),
        ("writes the context's facts", memory(new().store(Size::B8, 1, 8, I(0)), "may not be written")),
        ("writes past the context", memory(new().store(Size::B8, 1, 64, I(0)), "may not be written")),
        ("writes half of it outside", memory(new().store(Size::B8, 1, 28, I(0)), "may not be written")),
        ("stores above the stack", memory(new().store(Size::B8, 10, 3584, I(0)), "outside the stack frame")),
        ("reads below the stack", memory(new().load(Size::B8, 0, 10, -520), "outside the stack frame")),
        ("stores below the stack", memory(new().store(Size::B8, 10, -520, I(0)), "outside the stack frame")),
        ("wild pointer", memory(new().number(2, 0x7fff_dead_0000).load(Size::B8, 0, 2, 0), scalar)),
        ("null pointer", memory(new().mov(2, I(0)).store(Size::B8, 2, 0, I(1)), scalar)),
        ("number out of the context", memory(new().load(Size::B8, 2, 1, 0).load(Size::B1, 0, 2, 0), scalar)),
        ("map as memory", memory(new().map(2, 0).load(Size::B8, 0, 2, 0), scalar)),
        ("jumps over the region", memory(new().load(Size::B8, 2, 1, i16::MAX), "may not be read")),
        ("writes constants", memory(new().map_value(2, 2, 0).store(Size::B1, 2, 0, I(1)), "read-only")),
        (
            "past a map",
            memory(new().map_value(2, 0, 8).load(Size::B8, 0, 2, 8), "outside the value of map array"),
        ),
        (
            "writes past a map",
            memory(new().map_value(2, 0, 8).store(Size::B8, 2, 8, I(0)), "outside the value of map array"),
        ),
        (
            "before a map",
            memory(new().map_value(2, 0, 0).load(Size::B8, 0, 2, -8), "outside the value of map array"),
        ),
    ];
    cases.into_iter().map(|(name, (asm, fate, unverified))| bad(name, asm, fate, unverified)).collect()
}

fn unprovable() -> Vec<Bad> {
    let trap = Some(Err(Fault::Memory));
    let trapped = || Trapped(Fault::Memory);
    let far = |asm: Asm| unknown(asm).alu(AluOp::Lsh, Width::W64, 8, I(8));
    let context = end(far(Asm::new()).add(1, R(8)).load(Size::B1, 0, 1, 0));
    let written = end(far(Asm::new()).add(1, R(8)).store(Size::B1, 1, 0, I(0)));
    let window = unknown(Asm::new()).alu(AluOp::And, Width::W64, 8, I(63)).add(1, R(8));
    let stack =
        far(Asm::new()).mov(2, R(10)).alu(AluOp::Sub, Width::W64, 2, R(8)).store(Size::B8, 2, 0, I(0));
    let in_map = value(far(Asm::new())).add(7, R(8)).store(Size::B8, 7, 0, I(0)).label("out");
    let null = Asm::new().store(Size::B8, 10, -8, I(9)).map(1, 1).mov(2, R(10)).add(2, I(-8)).call(1);
    let null = end(null.load(Size::B8, 0, 0, 0));
    // An address that goes through memory is not followed, and need not be.
    let through = value(Asm::new()).store(Size::B8, 10, -17, R(7)).load(Size::B8, 3, 10, -17).store(
        Size::B8,
        3,
        0,
        I(7),
    );
    let through = through.load(Size::B8, 0, 7, 0).label("out").exit();
    vec![
        bad("reads the context with an unknown index", context, trapped(), trap),
        bad("writes the context with an unknown index", written, trapped(), trap),
        bad("writes a fact with a small index", end(window.store(Size::B1, 1, 0, I(0))), trapped(), trap),
        bad("writes the stack with an unknown index", end(stack), trapped(), trap),
        bad("writes a map with an unknown index", end(in_map), trapped(), trap),
        bad("uses a value that is not there", null, trapped(), trap),
        bad("follows an address through memory", through, Runs(7), Some(Ok(7))),
        bad("forges the stack", forged(Region::Stack, 1 << 20), trapped(), trap),
        bad("forges a map", forged(Region::Map(1), 0x7fff_ffff), trapped(), trap),
        bad("forges a map that has no memory", forged(Region::Map(3), 0), trapped(), trap),
        bad("forges a map that is not there", forged(Region::Map(77), 0), trapped(), trap),
    ]
}

/// Builds an address so that it is not certain to be only a number.
fn forged(region: Region, offset: u64) -> Asm {
    let asm =
        Asm::new().store(Size::B8, 10, -8, R(10)).store(Size::B1, 10, -8, I(0)).load(Size::B8, 2, 10, -8);
    end(asm.number(3, region.base() + offset).alu(AluOp::And, Width::W64, 2, I(0)).add(2, R(3)).store(
        Size::B8,
        2,
        0,
        I(1),
    ))
}

fn calls() -> Vec<Bad> {
    let new = Asm::new;
    let key = |asm: Asm| asm.store(Size::B8, 10, -8, I(9)).mov(2, R(10)).add(2, I(-8));
    let not_a_map = end(key(new().mov(1, I(5))).call(1));
    let wrong_map = end(key(new().map(1, 3)).call(1));
    let bad_key = end(new().map(1, 1).mov(2, I(64)).call(1));
    let short_key = end(new().store(Size::B8, 10, -8, I(0)).map(1, 1).mov(2, R(10)).add(2, I(-4)).call(1));
    let locked = key(new()).mov(3, R(10)).add(3, I(-8)).map(1, 2).mov(4, I(0)).call(2);
    let cache = end(new().map(1, 0).mov(2, I(0)).mov(3, R(10)).add(3, I(-16)).call(1002));
    let out = end(new().mov(3, R(1)).map(1, 3).mov(2, I(0)).call(1002));
    let long = end(new().mov(1, R(10)).add(1, I(-8)).mov(2, I(48)).call(1001));
    vec![
        bad("a number for a map", not_a_map, Refused("must be a map"), Some(Err(Fault::NotAMap))),
        bad("a map of the wrong kind", wrong_map, Trapped(Fault::NotAMap), Some(Err(Fault::NotAMap))),
        bad("a number for a key", bad_key, Refused("must be the address of a key"), Some(Err(Fault::Memory))),
        bad("a key that ends outside", short_key, Refused("outside the stack"), Some(Ok(0))),
        bad("changes constants", end(locked), Trapped(Fault::Memory), Some(Err(Fault::Memory))),
        bad("asks an array for a translation", cache, Trapped(Fault::NotAMap), Some(Err(Fault::NotAMap))),
        bad("a miss writes, too", out, Refused("may not be written"), Some(Err(Fault::Memory))),
        bad("traces more than the frame", long, Refused("outside the stack"), Some(Ok(0))),
        bad("bad helper", end(new().call(4711)), Refused("no helper 4711"), None),
        bad("kernel function", end(new().slot(0x85, 0, 2, 0, 1)), Refused("kind of call"), None),
    ]
}

fn control() -> Vec<Bad> {
    let new = Asm::new;
    let endless = new().label("again").jump("again");
    let inside = new().label("again").add(1, I(1)).add(1, I(-1)).jump("again");
    let deep = new().call_local("deeper").exit().label("deeper").call_local("deeper").exit();
    let out_of_fuel = || Some(Err(Fault::OutOfFuel));
    let misaligned = new().mov(2, I(1)).atomic(AtomicOp::Add, false, Size::B8, 10, -12, 2);
    let on_context = new().mov(2, I(1)).atomic(AtomicOp::Add, false, Size::B8, 1, 32, 2);
    let crossing = new().call_local("f").jump_far("f").label("f").mov(0, I(0)).exit();
    let remainder = new().mov(0, I(77)).mov(2, I(0)).alu(AluOp::Mod, Width::W64, 0, R(2)).exit();
    let zero = new().load(Size::B8, 0, 1, 0).mov(2, I(0)).alu(AluOp::Div, Width::W64, 0, R(2)).exit();
    vec![
        bad("endless loop", endless, Trapped(Fault::OutOfFuel), out_of_fuel()),
        bad("endless loop that does something", inside, Trapped(Fault::OutOfFuel), out_of_fuel()),
        bad("endless recursion", deep, Trapped(Fault::TooDeep), Some(Err(Fault::TooDeep))),
        bad("division by zero", zero, Runs(0), Some(Ok(0))),
        bad("remainder by zero", remainder, Runs(77), Some(Ok(77))),
        bad("misaligned atomic", end(misaligned), Trapped(Fault::Misaligned), Some(Err(Fault::Misaligned))),
        bad(
            "atomic on the context",
            end(on_context),
            Refused("no atomic operations"),
            Some(Err(Fault::Memory)),
        ),
        bad(
            "uninitialised register",
            new().mov(0, R(3)).exit(),
            Refused("r3 may be read before"),
            Some(Ok(0)),
        ),
        bad("no result", new().exit(), Refused("r0 may be read before"), Some(Ok(0))),
        bad(
            "argument after a call",
            new().call(5).mov(0, R(1)).exit(),
            Refused("r1 may be read"),
            Some(Ok(0)),
        ),
        bad("only on one path", one_path(), Refused("r3 may be read before"), Some(Ok(0))),
        bad("jump out of the program", new().slot(0x05, 0, 0, 7, 0).exit(), Refused("leads outside"), None),
        bad("jump before the program", new().slot(0x05, 0, 0, -7, 0).exit(), Refused("leads outside"), None),
        bad(
            "jump into an immediate",
            end(new().slot(0x05, 0, 0, 1, 0).number(1, 1)),
            Refused("leads outside"),
            None,
        ),
        bad(
            "call out of the program",
            end(new().slot(0x85, 0, 1, 0, i32::MAX)),
            Refused("leads outside"),
            None,
        ),
        bad("jump into another function", crossing, Refused("leaves its function"), None),
        bad("no end", new().mov(0, I(0)), Refused("must end with an exit"), None),
        bad("nothing", new(), Refused("no instructions"), None),
        bad("writes the frame pointer", end(new().mov(10, I(0))), Refused("cannot be written"), None),
        bad("no such register", end(new().mov(11, I(0))), Refused("no register r11"), None),
        bad("half an immediate", new().slot(0x18, 0, 0, 0, 0), Refused("second half"), None),
        bad("no such map", end(new().map(1, 9)), Refused("no map number 9"), None),
        bad("far into a map", end(new().map_value(1, 0, 4096)), Refused("outside the value"), None),
        bad("unknown opcode", end(new().slot(0xff, 0, 0, 0, 0)), Refused("opcode 0xff is unknown"), None),
        bad("old packet access", end(new().slot(0x30, 0, 0, 0, 0)), Refused("opcode 0x30 is unknown"), None),
        bad("reserved field", end(new().slot(0xb7, 0, 3, 0, 0)), Refused("does not use"), None),
    ]
}

fn one_path() -> Asm {
    let asm = Asm::new().load(Size::B1, 2, 1, 1).branch(Cond::Eq, Width::W64, 2, I(2), "end").mov(3, I(0));
    asm.label("end").mov(0, R(3)).alu(AluOp::And, Width::W64, 0, I(0)).exit()
}

#[test]
fn bad_programs_do_no_harm() {
    let table = [accesses(), unprovable(), calls(), control()];
    for Bad { name, asm, fate, unverified } in table.into_iter().flatten() {
        let object = object(asm, maps());
        for engine in ENGINES {
            let options = options(engine);
            match (Program::load(&object, &options, &[]), &fate) {
                (Err(error), Refused(words)) => {
                    assert!(error.to_string().contains(words), "{name}: {error}");
                }
                (Ok(mut program), Trapped(fault)) => {
                    let result = outcome(&mut program, context()).result;
                    assert_eq!(result.map_err(|trap| trap.fault), Err(*fault), "{name} on {engine:?}");
                }
                (Ok(mut program), Runs(value)) => {
                    assert_eq!(outcome(&mut program, context()).result, Ok(*value), "{name} on {engine:?}");
                }
                (loaded, _) => panic!("{name} on {engine:?}: {:?}", loaded.map(|_| "loaded")),
            }
            let unproven = Program::assume_nothing(&object, &options);
            let result = unproven.ok().map(|mut program| contained(&mut program));
            assert_eq!(result, unverified, "{name} on {engine:?}, unverified");
        }
    }
}

/// Runs a program in the middle of a buffer: the bytes around it, and the bytes that it may not write, must
/// stay.
fn contained(program: &mut Program) -> Result<u64, Fault> {
    let mut around = [0u8; 3 * CONTEXT];
    around[CONTEXT..2 * CONTEXT].copy_from_slice(&context());
    let before = around;
    let result = program.run(&mut around[CONTEXT..2 * CONTEXT]);
    assert_eq!(around[..CONTEXT + 32], before[..CONTEXT + 32]);
    assert_eq!(around[2 * CONTEXT..], before[2 * CONTEXT..]);
    result.map_err(|trap| trap.fault)
}

#[test]
fn too_large() {
    let options = |limits| Options { limits, ..options(ENGINES[0]) };
    let long = end((0..100).fold(Asm::new(), |asm, _| asm.mov(0, I(1))));
    let limits = Limits { slots: 101, ..Limits::default() };
    let error = Program::load(&object(long, vec![]), &options(limits), &[]).expect_err("it is too long");
    assert!(error.to_string().contains("102 instructions, more than the limit of 101"), "{error}");
    let tebibyte = MapDef::array("huge", 1 << 20, 1 << 20);
    let error =
        Program::load(&object(end(Asm::new()), vec![tebibyte.into()]), &options(Limits::default()), &[]);
    let error = error.expect_err("no machine has that much memory");
    assert!(
        error.to_string().contains("map huge would bring the program's maps to 1099511627776 bytes"),
        "{error}"
    );
    let many: Vec<MapSpec> = (0..65).map(|i| MapDef::array(&format!("m{i}"), 8, 1).into()).collect();
    let error = Program::load(&object(end(Asm::new()), many), &options(Limits::default()), &[]);
    assert!(error.expect_err("too many").to_string().contains("more than 64 maps"));
}

/// Checks the largest keys and values that each kind of map may have, and those of one byte more.
#[test]
fn sizes_of_maps_have_limits() {
    let load = |def: MapDef| {
        let object = object(end(Asm::new()), vec![def.into()]);
        Program::load(&object, &options(ENGINES[0]), &[]).map(drop).map_err(|error| error.to_string())
    };
    let lru = |key| MapDef { kind: MapKind::LruHash, ..MapDef::hash("m", key, 8, 4) };
    let key = |bytes| MapDef { key_size: bytes, ..MapDef::array("m", 8, 4) };
    let granule = |shift| MapDef { extra: u64::from(shift), ..MapDef::translation("m", 64, 0) };
    type Def<'a> = &'a dyn Fn(u32) -> MapDef;
    let cases: [(Def<'_>, &[u32], &[u32], &str); 7] = [
        (&|bytes| MapDef::hash("m", bytes, 8, 4), &[1, 64], &[0, 65], "the key must have 1 to 64 bytes"),
        (&lru, &[1, 64], &[0, 65], "the key must have 1 to 64 bytes"),
        (&key, &[4], &[0, 3, 5, 8], "the key of an array must have 4 bytes"),
        (&|bytes| MapDef::array("m", bytes, 1), &[1, 1 << 20], &[0, (1 << 20) + 1], "1 to 1048576 bytes"),
        (&|bytes| MapDef::hash("m", 8, bytes, 1), &[1, 1 << 20], &[0, (1 << 20) + 1], "1 to 1048576 bytes"),
        (&|entries| MapDef::array("m", 8, entries), &[1], &[0], "max_entries is zero"),
        (&granule, &[0, 32], &[33], "at most 2^32 blocks"),
    ];
    for (number, (def, taken, refused, why)) in cases.into_iter().enumerate() {
        for value in taken {
            assert_eq!(load(def(*value)), Ok(()), "case {number}: {value}");
        }
        for value in refused {
            let error = load(def(*value)).expect_err("it is beyond the limit");
            assert!(error.contains(why), "case {number}: {value}: {error}");
        }
    }
}

/// Checks that verification of a program with too many paths to follow them all ends soon.
#[test]
fn many_branches_are_no_explosion() {
    let mut asm = Asm::new().load(Size::B8, 2, 1, 0).mov(0, I(0));
    for _ in 0..2500 {
        let at = asm.len();
        asm = asm.label("here").branch(Cond::Set, Width::W64, 2, I(1), "here").retarget(at, at + 2);
        asm = asm.alu(AluOp::Xor, Width::W64, 0, R(2)).alu(AluOp::Rsh, Width::W64, 2, I(1));
    }
    let program = Program::load(&object(asm.exit(), vec![]), &options(ENGINES[1]), &[]);
    assert!(program.is_ok_and(|mut program| program.run(&mut context()).is_ok()));
}
