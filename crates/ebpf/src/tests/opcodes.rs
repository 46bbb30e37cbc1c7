//! Every opcode against a value computed by hand.

use super::{context, result};
use crate::asm::{Asm, I, R};
use crate::insn::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};
use crate::{Fault, MapDef, Trap};

const W32: Width = Width::W32;
const W64: Width = Width::W64;

#[test]
fn arithmetic() {
    use AluOp::*;
    let minus = |n: u64| n.wrapping_neg();
    let top = 1u64 << 63;
    for (op, width, a, b, expected) in [
        (Add, W64, u64::MAX, 2, 1),
        (Add, W32, 0xf_ffff_ffff, 2, 1),
        (Sub, W64, 1, 2, u64::MAX),
        (Sub, W32, 1, 2, 0xffff_ffff),
        (Mul, W64, 1 << 40, 1 << 30, 1 << 6 << 58 << 6),
        (Mul, W64, 3, minus(5), minus(15)),
        (Mul, W32, 0x1_0000_0003, 0x5000_0000, 0xf000_0000),
        (Div, W64, minus(1), 10, 1_844_674_407_370_955_161),
        (Div, W64, 7, 0, 0),
        (Div, W32, 0xf_0000_0064, 0x7_0000_000a, 10),
        (Div, W32, 0xf_0000_0064, 0x7_0000_0000, 0),
        (SDiv, W64, minus(7), 2, minus(3)),
        (SDiv, W64, 7, 0, 0),
        (SDiv, W64, top, minus(1), top),
        (SDiv, W32, minus(7), 2, 0xffff_fffd),
        (SDiv, W32, 1 << 31, 0xffff_ffff, 1 << 31),
        (Mod, W64, minus(1), 10, 5),
        (Mod, W64, minus(9), 0, minus(9)),
        (Mod, W32, 0xf_0000_0065, 0x7_0000_000a, 1),
        (Mod, W32, 0xf_0000_0065, 0x7_0000_0000, 0x65),
        (SMod, W64, minus(7), 2, minus(1)),
        (SMod, W64, minus(7), 0, minus(7)),
        (SMod, W64, top, minus(1), 0),
        (SMod, W32, minus(7), 2, 0xffff_ffff),
        (SMod, W32, 1 << 31, 0xffff_ffff, 0),
        (Or, W64, 0xf0 << 40, 0x0f, 0xf000_0000_000f),
        (Or, W32, 0xf_0000_00f0, 0x0f, 0xff),
        (And, W64, minus(1), 0xff00_0000_0000, 0xff00_0000_0000),
        (And, W32, minus(1), 0xff00_0000_00ff, 0xff),
        (Xor, W64, 0xff << 40, 0xf << 40, 0xf0 << 40),
        (Xor, W32, 0xf_0000_00ff, 0x0f, 0xf0),
        (Lsh, W64, 3, 63, top),
        (Lsh, W64, 3, 65, 6),
        (Lsh, W32, 3, 31, 1 << 31),
        (Lsh, W32, 3, 33, 6),
        (Rsh, W64, top, 63, 1),
        (Rsh, W64, 8, 66, 2),
        (Rsh, W32, 0xf_8000_0000, 31, 1),
        (Rsh, W32, 8, 34, 2),
        (Arsh, W64, top, 63, minus(1)),
        (Arsh, W64, minus(8), 65, minus(4)),
        (Arsh, W32, 0x8000_0000, 31, 0xffff_ffff),
        (Arsh, W32, 0x7_ffff_fff8, 33, 0xffff_fffc),
        (Mov, W64, 0, minus(5), minus(5)),
        (Mov, W32, 0, minus(5), 0xffff_fffb),
    ] {
        let program = Asm::new().number(0, a).number(1, b).alu(op, width, 0, R(1)).exit();
        assert_eq!(result(program, vec![]), Ok(expected), "{a:#x} {op:?} {width:?} {b:#x}");
        if let Ok(immediate) = i32::try_from(b as i64) {
            let program = Asm::new().number(0, a).alu(op, width, 0, I(immediate)).exit();
            assert_eq!(result(program, vec![]), Ok(expected), "{a:#x} {op:?} {width:?} {immediate:#x}");
        }
        let operands = Asm::new().load(Size::B8, 2, 1, 0).mov(3, R(2)).number(0, a).number(1, b);
        let program = operands.add(0, R(2)).alu(AluOp::Sub, W64, 0, R(3)).alu(op, width, 0, R(1)).exit();
        assert_eq!(result(program, vec![]), Ok(expected), "not known before: {a:#x} {op:?} {width:?} {b:#x}");
    }
}

#[test]
fn negation_extension_byte_order() {
    let one = |asm: Asm| result(asm.exit(), vec![]);
    let value = || Asm::new().number(0, 0x1122_3344_8596_a7b8);
    assert_eq!(one(value().neg(W64, 0)), Ok(0x1122_3344_8596_a7b8u64.wrapping_neg()));
    assert_eq!(one(value().neg(W32, 0)), Ok(0x7a69_5848));
    for (width, from, expected) in [
        (W64, Size::B1, 0xffff_ffff_ffff_ffb8),
        (W64, Size::B2, 0xffff_ffff_ffff_a7b8),
        (W64, Size::B4, 0xffff_ffff_8596_a7b8),
        (W32, Size::B1, 0xffff_ffb8),
        (W32, Size::B2, 0xffff_a7b8),
    ] {
        assert_eq!(one(value().mov(1, R(0)).mov_sx(width, from, 0, 1)), Ok(expected));
    }
    for (kind, size, expected) in [
        (SwapKind::ToLittle, Size::B2, 0xa7b8),
        (SwapKind::ToLittle, Size::B4, 0x8596_a7b8),
        (SwapKind::ToLittle, Size::B8, 0x1122_3344_8596_a7b8),
        (SwapKind::ToBig, Size::B2, 0xb8a7),
        (SwapKind::ToBig, Size::B4, 0xb8a7_9685),
        (SwapKind::ToBig, Size::B8, 0xb8a7_9685_4433_2211),
        (SwapKind::Always, Size::B2, 0xb8a7),
        (SwapKind::Always, Size::B4, 0xb8a7_9685),
        (SwapKind::Always, Size::B8, 0xb8a7_9685_4433_2211),
    ] {
        assert_eq!(one(value().swap(kind, size, 0)), Ok(expected), "{kind:?} {size:?}");
    }
}

#[test]
fn loads_and_stores() {
    let bytes = context();
    for (size, offset) in [(Size::B1, 3), (Size::B2, 5), (Size::B4, 9), (Size::B8, 13)] {
        let expected =
            bytes[offset..].iter().take(size.bytes() as usize).rev().fold(0, |v, b| v << 8 | u64::from(*b));
        let program = Asm::new().load(size, 0, 1, offset as i16).exit();
        assert_eq!(result(program, vec![]), Ok(expected));
        // The same through the stack, a register and an immediate.
        let program =
            Asm::new().number(2, u64::MAX).store(Size::B8, 10, -24, R(2)).store(Size::B8, 10, -16, R(2));
        let program =
            program.load(size, 3, 1, offset as i16).store(size, 10, -17, R(3)).load(size, 0, 10, -17).exit();
        assert_eq!(result(program, vec![]), Ok(expected));
        let program = Asm::new().store(size, 1, 40, I(-2)).load(size, 0, 1, 40).exit();
        assert_eq!(result(program, vec![]), Ok(-2i64 as u64 & size.max()));
    }
    for (size, value, expected) in [
        (Size::B1, 0x80, -128i64 as u64),
        (Size::B2, 0x8001, 0xffff_ffff_ffff_8001),
        (Size::B4, 0x8000_0001, 0xffff_ffff_8000_0001),
    ] {
        let program =
            Asm::new().number(2, value).store(Size::B8, 10, -8, R(2)).load_signed(size, 0, 10, -8).exit();
        assert_eq!(result(program, vec![]), Ok(expected));
    }
}

#[test]
fn atomics() {
    use AtomicOp::*;
    let cell = || vec![MapDef::array("cell", 8, 1).into()];
    let (start, operand) = (0xffff_ffff_0000_000cu64, 10u64);
    for (op, size, left, fetched) in [
        (Add, Size::B8, 0xffff_ffff_0000_0016u64, start),
        (Add, Size::B4, 0xffff_ffff_0000_0016, 12),
        (Or, Size::B8, 0xffff_ffff_0000_000e, start),
        (And, Size::B8, 8, start),
        (And, Size::B4, 0xffff_ffff_0000_0008, 12),
        (Xor, Size::B4, 0xffff_ffff_0000_0006, 12),
        (Exchange, Size::B8, 10, start),
        (Exchange, Size::B4, 0xffff_ffff_0000_000a, 12),
    ] {
        let begin = || {
            let begin =
                Asm::new().map_value(6, 0, 0).number(2, start).store(Size::B8, 6, 0, R(2)).number(2, operand);
            begin.atomic(op, true, size, 6, 0, 2)
        };
        assert_eq!(result(begin().mov(0, R(2)).exit(), cell()), Ok(fetched), "{op:?} {size:?}");
        assert_eq!(result(begin().load(Size::B8, 0, 6, 0).exit(), cell()), Ok(left), "{op:?} {size:?}");
    }
    for (expected, left) in [(12u64, 0xffff_ffff_0000_000au64), (13, start)] {
        let begin = || {
            let begin =
                Asm::new().map_value(6, 0, 0).number(2, start).store(Size::B8, 6, 0, R(2)).number(2, operand);
            begin.number(0, expected).atomic(CompareExchange, true, Size::B4, 6, 0, 2)
        };
        assert_eq!(result(begin().exit(), cell()), Ok(12));
        assert_eq!(result(begin().load(Size::B8, 0, 6, 0).exit(), cell()), Ok(left));
    }
    let on_stack = Asm::new().store(Size::B8, 10, -8, I(5)).mov(2, I(7));
    let on_stack = on_stack.atomic(Add, false, Size::B8, 10, -8, 2).load(Size::B8, 0, 10, -8).exit();
    assert_eq!(result(on_stack, vec![]), Ok(12));
    let misaligned = Asm::new().map_value(6, 0, 0).mov(2, I(7)).atomic(Add, false, Size::B4, 6, 2, 2);
    let expected = Err(Trap { insn: 3, fault: Fault::Misaligned });
    assert_eq!(result(misaligned.mov(0, I(0)).exit(), cell()), expected);
}

#[test]
fn comparisons() {
    use Cond::*;
    let minus = |n: u64| n.wrapping_neg();
    for (cond, width, a, b, expected) in [
        (Eq, W64, 5, 5, true),
        (Eq, W64, 5, 1 << 32 | 5, false),
        (Eq, W32, 5, 1 << 32 | 5, true),
        (Ne, W64, 5, 6, true),
        (Ne, W32, 5, 1 << 32 | 5, false),
        (Set, W64, 6, 4, true),
        (Set, W64, 6, 1, false),
        (Set, W32, 1 << 32 | 6, 1 << 32 | 1, false),
        (Gt, W64, minus(1), 5, true),
        (Gt, W64, 5, 5, false),
        (Gt, W32, 1 << 32, 5, false),
        (Ge, W64, 5, 5, true),
        (Ge, W32, 4, 1 << 32 | 5, false),
        (Lt, W64, 5, minus(1), true),
        (Lt, W32, 1 << 32, 5, true),
        (Le, W64, 5, 5, true),
        (Le, W64, 6, 5, false),
        (SGt, W64, minus(1), 5, false),
        (SGt, W32, 0xffff_ffff, 5, false),
        (SGt, W64, 0xffff_ffff, 5, true),
        (SGe, W64, minus(5), minus(5), true),
        (SLt, W64, minus(1), 5, true),
        (SLt, W32, 0xffff_ffff, 5, true),
        (SLt, W64, 0xffff_ffff, 5, false),
        (SLe, W64, minus(6), minus(5), true),
        (SLe, W32, 5, 0xffff_ffff, false),
    ] {
        let end = |asm: Asm| asm.mov(0, I(0)).exit().label("yes").mov(0, I(1)).exit();
        let program = end(Asm::new().number(2, a).number(3, b).branch(cond, width, 2, R(3), "yes"));
        assert_eq!(result(program, vec![]), Ok(expected.into()), "{a:#x} {cond:?} {width:?} {b:#x}");
        if let Ok(immediate) = i32::try_from(b as i64) {
            let program = end(Asm::new().number(2, a).branch(cond, width, 2, I(immediate), "yes"));
            assert_eq!(
                result(program, vec![]),
                Ok(expected.into()),
                "{a:#x} {cond:?} {width:?} {immediate:#x}"
            );
        }
    }
}

#[test]
fn jumps_and_calls() {
    let near = Asm::new().mov(0, I(1)).jump("end").mov(0, I(2)).label("end").exit();
    assert_eq!(result(near, vec![]), Ok(1));
    let far = Asm::new().mov(0, I(1)).jump_far("end").mov(0, I(2)).label("end").exit();
    assert_eq!(result(far, vec![]), Ok(1));
    // 10 + 9 + ... + 1, with a loop.
    let sum = Asm::new().mov(0, I(0)).mov(1, I(10)).label("loop").add(0, R(1)).add(1, I(-1));
    let sum = sum.branch(Cond::Ne, W64, 1, I(0), "loop").exit();
    assert_eq!(result(sum, vec![]), Ok(55));
    // The same by recursion: a call preserves its registers on every level.
    let sum = Asm::new().mov(1, I(6)).call_local("sum").exit();
    let sum = sum.label("sum").mov(6, R(1)).store(Size::B8, 10, -8, R(1)).mov(0, I(0));
    let sum = sum.branch(Cond::Eq, W64, 1, I(0), "end").add(1, I(-1)).call_local("sum");
    let sum = sum.add(0, R(6)).load(Size::B8, 1, 10, -8).add(0, R(1)).label("end").exit();
    assert_eq!(result(sum, vec![]), Ok(42));
    // A frame of the caller, written by the function.
    let given = Asm::new().store(Size::B8, 10, -8, I(1)).mov(1, R(10)).add(1, I(-8)).call_local("set");
    let given = given.load(Size::B8, 0, 10, -8).exit();
    let given = given.label("set").store(Size::B8, 1, 0, I(77)).mov(0, I(0)).exit();
    assert_eq!(result(given, vec![]), Ok(77));
}

/// Checks that a program can be sent to another thread: the control thread loads it for a reactor.
#[test]
fn programs_may_move_to_another_thread() {
    fn sendable<T: Send>(_: &T) {}
    let object = super::object(Asm::new().mov(0, I(7)).exit(), vec![]);
    for engine in super::ENGINES {
        let mut program = crate::Program::load(&object, &super::options(engine), &[]).expect("it loads");
        sendable(&program);
        let result = std::thread::spawn(move || program.run(&mut context())).join();
        assert_eq!(result.expect("it does not panic"), Ok(7));
    }
}

#[test]
fn wide_immediates() {
    assert_eq!(result(Asm::new().number(0, 0x1234_5678_9abc_def0).exit(), vec![]), Ok(0x1234_5678_9abc_def0));
    let data = crate::MapSpec { def: MapDef::array(".data", 16, 1), data: Some((0..16).collect()) };
    let program = Asm::new().map_value(1, 0, 4).load(Size::B4, 0, 1, 2).exit();
    assert_eq!(result(program, vec![data]), Ok(0x0908_0706));
}

#[test]
fn helpers_of_maps() {
    let maps = || vec![MapDef::hash("h", 4, 8, 4).into()];
    let key = |asm: Asm| asm.store(Size::B4, 10, -4, I(9)).map(1, 0).mov(2, R(10)).add(2, I(-4));
    let missing = key(Asm::new()).call(1).exit();
    assert_eq!(result(missing, maps()), Ok(0));
    let set = |asm: Asm, flags| {
        let asm = key(asm.store(Size::B8, 10, -16, I(55))).mov(3, R(10)).add(3, I(-16));
        asm.mov(4, I(flags)).call(2)
    };
    assert_eq!(result(set(Asm::new(), 2).exit(), maps()), Ok(-2i64 as u64));
    assert_eq!(result(set(set(Asm::new(), 0), 1).exit(), maps()), Ok(-17i64 as u64));
    assert_eq!(result(set(Asm::new(), 7).exit(), maps()), Ok(-22i64 as u64));
    let get = key(set(Asm::new(), 0)).call(1).branch(Cond::Eq, W64, 0, I(0), "none").load(Size::B8, 0, 0, 0);
    assert_eq!(result(get.label("none").exit(), maps()), Ok(55));
    let gone = key(key(set(Asm::new(), 0)).call(3)).call(1).exit();
    assert_eq!(result(gone, maps()), Ok(0));
    assert_eq!(result(key(Asm::new()).call(3).exit(), maps()), Ok(-2i64 as u64));
}

#[test]
fn other_helpers() {
    assert_eq!(result(Asm::new().call(5).exit(), vec![]), Ok(12_345));
    assert_eq!(result(Asm::new().mov(1, I(3)).call(1000).exit(), vec![]), Ok(0));
    assert_eq!(result(Asm::new().mov(1, I(64)).call(1000).exit(), vec![]), Ok(-22i64 as u64));
    let trace = Asm::new().store(Size::B4, 10, -4, I(0x21_6968)).mov(1, R(10)).add(1, I(-4)).mov(2, I(3));
    assert_eq!(result(trace.call(1001).exit(), vec![]), Ok(0));
    assert_eq!(result(Asm::new().mov(1, I(0)).mov(2, I(0)).call(1001).exit(), vec![]), Ok(0), "says nothing");
    let cache = || vec![MapDef::translation("t", 64, 4).into()];
    let ask = |asm: Asm| asm.map(1, 0).mov(2, I(100)).mov(3, R(10)).add(3, I(-16)).call(1002);
    assert_eq!(result(ask(Asm::new()).exit(), cache()), Ok(-2i64 as u64));
    let dirty = Asm::new().store(Size::B8, 10, -16, I(1)).store(Size::B8, 10, -8, I(2));
    let both = |asm: Asm| {
        asm.load(Size::B8, 0, 10, -16).load(Size::B8, 1, 10, -8).alu(AluOp::Or, W64, 0, R(1)).exit()
    };
    assert_eq!(result(both(ask(dirty)), cache()), Ok(0), "what was there before is gone");
    let forget = Asm::new().map(1, 0).mov(2, I(100)).mov(3, I(1)).call(1003).exit();
    assert_eq!(result(forget, cache()), Ok(0));
}
