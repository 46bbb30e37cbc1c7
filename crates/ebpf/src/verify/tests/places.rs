//! Tests of accesses, helpers and atomics with uncertain addresses, and of the state behind them.

use super::*;

/// Instructions that are appended to others.
type Part = fn(Asm) -> Asm;

/// Returns the proof of a load through an address that was stored in the frame before `between`, and whether fresh
/// bytes of the stack may be read. Register 6 is the context's address, and register 2 is one of the bytes from the
/// stored address to 8 bytes behind it.
fn reloaded(between: Part) -> (Proof, bool) {
    let asm = Asm::new().mov(6, R(1)).store(Size::B8, 10, -16, R(6)).store(Size::B8, 10, -8, R(6));
    let asm = asm.load(Size::B1, 3, 1, 0).alu(AluOp::And, Width::W64, 3, I(8));
    let asm = asm.mov(2, R(10)).add(2, I(-16)).add(2, R(3));
    let asm = between(asm).load(Size::B8, 4, 10, -16);
    let at = asm.len();
    let asm = asm.load(Size::B1, 5, 4, 0).mov(0, I(0)).exit();
    let asm = asm.label("function").mov(0, I(0)).exit();
    let cache = crate::MapDef::translation("t", 16, 12);
    let maps = vec![crate::MapDef::array("a", 8, 4).into(), cache.into()];
    let object = object(asm, maps);
    let program = Program::load(&object, &options(Engine::Interpreted), &[]).expect("it loads");
    let proof = program.proofs()[at].clone();
    let defs: Vec<_> = object.maps.iter().map(|spec| spec.def.clone()).collect();
    let layout = options(Engine::Interpreted).layout;
    let subject = Subject { code: program.code(), helpers: program.helpers(), maps: &defs, layout: &layout };
    let is_fresh = verify(&subject).expect("it is accepted").reads_fresh_stack;
    for byte in [0, 0xff] {
        let program = Program::load(&object, &fuzz::options(Engine::Interpreted), &[]).expect("it loads");
        assert_eq!(wrong(program, &object, byte), None);
    }
    (proof, is_fresh)
}

/// Checks writes that may hit an address in the frame: it is not followed any more. Other writes leave it. A load
/// through an address that is not followed may be of the stack.
#[test]
fn an_address_that_may_be_overwritten_is_not_followed() {
    let (kept, lost) = (Proof::Context(0), Proof::Nothing);
    fn translate(asm: Asm) -> Asm {
        asm.mov(3, R(2)).map(1, 1).mov(2, I(0)).call(1002)
    }
    let cases: [(&str, Part, &Proof, bool); 21] = [
        ("nothing", |asm| asm, &kept, false),
        ("a store to it", |asm| asm.store(Size::B1, 10, -16, I(1)), &lost, true),
        ("a store to its end", |asm| asm.store(Size::B1, 10, -9, I(1)), &lost, true),
        ("a store beside it", |asm| asm.store(Size::B8, 10, -8, I(1)), &kept, false),
        ("a store below it", |asm| asm.store(Size::B1, 10, -17, I(1)), &kept, false),
        ("a store that may hit it", |asm| asm.store(Size::B8, 2, 0, I(1)), &lost, true),
        ("a store to the context", |asm| asm.store(Size::B8, 6, 32, I(1)), &kept, false),
        ("a load that may be of it", |asm| asm.load(Size::B8, 5, 2, 0), &kept, true),
        (
            "an atomic on it",
            |asm| asm.mov(5, I(1)).atomic(AtomicOp::Add, false, Size::B8, 10, -16, 5),
            &lost,
            true,
        ),
        ("a function that has its address", |asm| asm.mov(1, R(2)).call_local("function"), &lost, true),
        ("a function that has not", |asm| asm.mov(1, I(0)).call_local("function"), &lost, true),
        ("a helper that may write to it", |asm| translate(asm.add(2, I(-8))), &lost, true),
        ("a helper that writes to it", |asm| translate(asm.mov(2, R(10)).add(2, I(-16))), &lost, true),
        ("a helper that writes below it", |asm| translate(asm.mov(2, R(10)).add(2, I(-32))), &kept, false),
        ("a helper that may read it", |asm| asm.map(1, 0).call(1), &kept, true),
        ("a helper that reads it", |asm| asm.map(1, 0).mov(2, R(10)).add(2, I(-16)).call(1), &kept, false),
        (
            "a helper that reads below it",
            |asm| asm.map(1, 0).mov(2, R(10)).add(2, I(-20)).call(1),
            &kept,
            true,
        ),
        ("a trace of it", |asm| asm.mov(1, R(10)).add(1, I(-16)).mov(2, I(16)).call(1001), &kept, false),
        ("a trace of more", |asm| asm.mov(1, R(10)).add(1, I(-20)).mov(2, I(16)).call(1001), &kept, true),
        ("a trace of nothing", |asm| asm.mov(1, R(10)).add(1, I(-20)).mov(2, I(0)).call(1001), &kept, false),
        (
            "a trace of some bytes",
            |asm| asm.mov(1, R(10)).add(1, I(-16)).mov(2, R(3)).call(1001),
            &kept,
            true,
        ),
    ];
    for (name, between, proof, is_fresh) in cases {
        assert_eq!(reloaded(between), (proof.clone(), is_fresh), "{name}");
    }
}

/// Checks values from places that are not followed: eight bytes may be an address, and fewer are a number.
#[test]
fn an_unknown_place_may_have_an_address() {
    let good = |asm: Asm, function: Part| {
        let asm = asm.mov(0, I(0)).exit().label("function");
        let asm = function(asm).mov(0, I(0)).exit();
        Program::load(&object(asm, Vec::new()), &options(Engine::Interpreted), &[]).is_ok()
    };
    let nothing: Part = |asm| asm;
    let functions: [Part; 3] = [
        |asm| asm.load(Size::B8, 2, 1, -8).load(Size::B1, 3, 2, 0),
        |asm| asm.load(Size::B4, 2, 1, -8).load(Size::B1, 3, 2, 0),
        |asm| asm.load(Size::B1, 2, 1, -8).load(Size::B1, 3, 2, 0),
    ];
    let sizes = [(Size::B8, true), (Size::B4, false), (Size::B1, false)];
    for ((size, expected), function) in sizes.into_iter().zip(functions) {
        // One of two slots of the frame.
        let frame = Asm::new().store(Size::B8, 10, -16, R(1)).store(Size::B8, 10, -8, R(1));
        let frame = frame.load(Size::B1, 3, 1, 0).alu(AluOp::And, Width::W64, 3, I(8)).mov(2, R(10));
        let frame = frame.add(2, I(-16)).add(2, R(3)).load(size, 4, 2, 0).load(Size::B1, 5, 4, 0);
        assert_eq!(good(frame, nothing), expected, "{size:?} of the frame");
        // A slot of the caller's frame.
        let call = Asm::new().store(Size::B8, 10, -8, R(1)).mov(1, R(10)).call_local("function");
        assert_eq!(good(call, function), expected, "{size:?} of the caller's frame");
        // A place behind an address that itself is unknown.
        let unknown = Asm::new().load(Size::B8, 2, 1, 0).alu(AluOp::And, Width::W64, 2, I(-8)).mov(3, R(10));
        let unknown = unknown.add(3, R(2)).load(size, 4, 3, 0).load(Size::B1, 5, 4, 0);
        assert_eq!(good(unknown, nothing), expected, "{size:?} behind an unknown address");
        let whole = Asm::new().store(Size::B8, 10, -8, R(1)).load(size, 4, 10, -8).load(Size::B1, 5, 4, 0);
        assert_eq!(good(whole, nothing), expected, "{size:?} of a whole slot");
        let number = Asm::new().load(size, 4, 1, 0).load(Size::B1, 5, 4, 0);
        assert!(!good(number, nothing), "the context has numbers");
    }
}

/// Checks the bytes in which an access through an address of a map's value is proven to be.
#[test]
fn a_value_of_a_map_is_within_the_values_of_its_map() {
    let maps = || vec![crate::MapDef::array("a", 8, 4).into(), crate::MapDef::array("b", 12, 5).into()];
    for (map, bytes) in [(0, 0..32), (1, 0..80)] {
        let asm = Asm::new().store(Size::B4, 10, -4, I(1)).map(1, map).mov(2, R(10)).add(2, I(-4)).call(1);
        let asm = asm.branch(Cond::Eq, Width::W64, 0, I(0), "none");
        let at = asm.len();
        let object = object(asm.load(Size::B8, 3, 0, 0).label("none").mov(0, I(0)).exit(), maps());
        let program = Program::load(&object, &options(Engine::Interpreted), &[]).expect("it loads");
        assert_eq!(program.proofs()[at], Proof::Within(Region::Map(map), bytes), "map {map}");
    }
}

#[test]
fn a_wrong_argument_is_named_by_its_number() {
    let key = || Asm::new().store(Size::B8, 10, -8, I(1)).mov(2, R(10)).add(2, I(-8));
    for (name, asm, expected) in [
        ("a number for a map", key().mov(1, I(5)).call(1), 1),
        ("a number for a key", key().map(1, 0).mov(2, I(5)).call(1), 2),
        ("a map for a key", key().map(1, 0).map(2, 0).call(1), 2),
        ("a number for a value", key().map(1, 0).mov(3, I(5)).mov(4, I(0)).call(2), 3),
        ("a number for a place", key().map(1, 1).mov(2, I(0)).mov(3, I(5)).call(1002), 3),
        ("NULL for a place", key().map(1, 1).mov(2, I(0)).mov(3, I(0)).call(1002), 3),
        ("a number for bytes", key().mov(1, I(5)).mov(2, I(8)).call(1001), 1),
    ] {
        let maps =
            vec![crate::MapDef::array("a", 8, 4).into(), crate::MapDef::translation("t", 16, 12).into()];
        let object = object(asm.mov(0, I(0)).exit(), maps);
        let error = Program::load(&object, &options(Engine::Interpreted), &[]).expect_err(name);
        let LoadErrorKind::BadArgument { argument, .. } = error.kind else { panic!("{name}: {error}") };
        assert_eq!(argument, expected, "{name}");
    }
}

/// Checks which register of an atomic has the old value, and that the others keep theirs.
#[test]
fn an_atomic_returns_the_old_value_in_one_register() {
    use AtomicOp::*;
    for (op, fetch, returns, fetches) in [
        (Add, false, false, false),
        (Add, true, false, true),
        (Exchange, true, false, true),
        (CompareExchange, true, true, false),
    ] {
        // The value in the frame is no number that the registers have.
        let asm = Asm::new().load(Size::B8, 3, 1, 0).store(Size::B8, 10, -8, R(3)).mov(0, I(5)).mov(2, I(6));
        let asm = asm.atomic(op, fetch, Size::B8, 10, -8, 2).branch(Cond::Eq, Width::W64, 3, I(1), "there");
        let at = asm.len();
        let object = object(asm.label("there").mov(0, I(0)).exit(), vec![]);
        let states = believed(&object);
        let state = states[at].as_ref().expect("a block");
        let exact = |reg: u8| state.get(Reg::new(reg).expect("it exists")).number().and_then(|it| it.value());
        assert_eq!(exact(0), (!returns).then_some(5), "{op:?} {fetch}");
        assert_eq!(exact(2), (!fetches).then_some(6), "{op:?} {fetch}");
        for byte in [0, 0x5a] {
            let program = Program::load(&object, &fuzz::options(Engine::Interpreted), &[]).expect("it loads");
            assert_eq!(wrong(program, &object, byte), None);
        }
    }
}

/// Checks that generated code reads a key from its place in the frame only if that is certain.
#[test]
fn a_key_of_two_places_has_no_proof() {
    for (mask, expected) in [(0, Some(-16)), (8, None)] {
        let asm = Asm::new().store(Size::B8, 10, -16, I(1)).store(Size::B8, 10, -8, I(2));
        let asm = asm.load(Size::B1, 3, 1, 0).alu(AluOp::And, Width::W64, 3, I(mask));
        let asm = asm.map(1, 0).mov(2, R(10)).add(2, I(-16)).add(2, R(3));
        let at = asm.len();
        let maps = vec![crate::MapDef::array("a", 8, 4).into()];
        let object = object(asm.call(1).mov(0, I(0)).exit(), maps);
        let program = Program::load(&object, &options(Engine::Interpreted), &[]).expect("it loads");
        assert_eq!(program.proofs()[at], Proof::Map { map: 0, key: expected });
    }
}
