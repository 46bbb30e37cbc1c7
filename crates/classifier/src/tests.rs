use crate::{COARSE_STEP, Clock, Hooks, Loaded, Map, load_object};
use sluice_ebpf::asm::{Asm, I, R};
use sluice_ebpf::insn::Size;
use sluice_ebpf::{MapDef, MapSpec, Object, SourceLine, Update};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_router::{Context, Facts, Hook, Leg, Legs, Steering, Trapped, Verdict};
use std::sync::Arc;

fn object(asm: Asm, maps: Vec<MapDef>) -> Object {
    let maps = maps.into_iter().map(MapSpec::from).collect();
    let line = SourceLine { file: "p.c".into(), line: 7, text: "for (;;)".into() };
    Object { slots: asm.finish(), maps, lines: vec![(0, line)], ..Object::default() }
}

fn load(asm: Asm) -> Result<Loaded, crate::LoadError> {
    load_object(object(asm, Vec::new()), Clock::Coarse, &[])
}

/// Returns the context of a read of 8 blocks at block 100.
fn context(hook: Hook) -> Context {
    let entry = SubmissionEntry { opcode: 2, nsid: 1, ..SubmissionEntry::default() };
    let facts = Facts { opcode: 2, nsid: 1, cookie: 77, ..Facts::default() };
    Context::new(hook, facts, Steering { slba: 100, blocks: 8, ..Steering::default() }, &entry)
}

/// Appends the verdict that sends a command down the first path.
fn send(asm: Asm) -> Asm {
    asm.number(0, Verdict::send(Leg::FIRST).0).exit()
}

#[test]
fn a_program_reads_facts_and_writes_steering() {
    // slba += cookie; blocks = opcode
    let asm = Asm::new().load(Size::B2, 2, 1, 6).load(Size::B8, 3, 1, 32).add(3, R(2));
    let asm = asm.store(Size::B8, 1, 32, R(3)).load(Size::B1, 4, 1, 64).store(Size::B4, 1, 40, R(4));
    let mut loaded = load(send(asm)).expect("nothing is wrong with it");
    let mut context = context(Hook::Submission);
    assert_eq!(loaded.classifier.classify(&mut context), Ok(Verdict::send(Leg::FIRST)));
    assert_eq!((context.steering.slba, context.steering.blocks), (177, 2));
}

#[test]
fn the_clock_goes_in_steps_unless_the_operator_says_otherwise() {
    let program = || send(Asm::new().mov(6, R(1)).call(5).store(Size::B8, 6, 32, R(0)));
    let rests = |clock| {
        let mut loaded =
            load_object(object(program(), Vec::new()), clock, &[]).expect("nothing is wrong with it");
        let mut rest = || {
            let mut context = context(Hook::Submission);
            assert_eq!(loaded.classifier.classify(&mut context), Ok(Verdict::send(Leg::FIRST)));
            u128::from(context.steering.slba) % COARSE_STEP.as_nanos()
        };
        [(); 20].map(|()| rest())
    };
    assert_eq!(rests(Clock::Coarse), [0; 20]);
    assert_ne!(rests(Clock::Precise), [0; 20]);
}

#[test]
fn a_program_that_writes_anything_else_is_refused() {
    for at in [0, 12, 31, 54, 63, 64, 127] {
        let error = load(send(Asm::new().store(Size::B1, 1, at, I(1)))).expect_err("not its own");
        assert_eq!(error.insn, Some(0), "byte {at}");
        assert!(error.to_string().starts_with("instruction 0 (p.c:7: `for (;;)`): "), "{error}");
    }
    for at in [32, 53] {
        load(send(Asm::new().store(Size::B1, 1, at, I(1)))).expect("it may");
    }
    load(send(Asm::new().load(Size::B8, 2, 1, 121))).expect_err("beyond the context");
}

#[test]
fn calls_are_counted_by_hook_and_ends_without_a_verdict_with_their_place() {
    let mut loaded = load(Asm::new().label("again").jump("again")).expect("it may be tried");
    assert_eq!(loaded.view.last_trap(), None);
    let done = Hook::LegDone(Leg::FIRST, Status::SUCCESS);
    let last = Hook::BeforeCompletion(Status::SUCCESS);
    for hook in [Hook::Submission, Hook::Submission, done, last, last, last] {
        assert_eq!(loaded.classifier.classify(&mut context(hook)), Err(Trapped));
    }
    assert_eq!(loaded.view.hooks(), Hooks { submission: 2, leg_done: 1, before_completion: 3 });
    assert_eq!(loaded.view.traps(), 6);
    let words = loaded.view.last_trap().expect("it ended that way");
    assert_eq!(words, "instruction 0 (p.c:7: `for (;;)`): the program ran for too long");
}

/// Runs a program like NVMetro's encryptor on a read of 8 blocks at block 100: it goes to the device, and to
/// the function after.
#[test]
fn a_program_of_nvmetros_is_known_by_its_section() {
    const ENCRYPT: &[u8] = include_bytes!("tests/nvmetro_encrypt.o");
    let Loaded { mut classifier, view } =
        crate::load(ENCRYPT, "nvme_mdev", Clock::Coarse, &[]).expect("it is one");
    let mut first = context(Hook::Submission);
    let asked = Legs::of(Leg::FIRST);
    let kept = classifier.classify(&mut first).expect("it ends").decode().expect("it says something");
    assert_eq!((kept.start, kept.events, first.steering.slba), (asked, asked, 200));
    let second = Leg::new(1).expect("there are seven");
    let done = context(Hook::LegDone(Leg::FIRST, Status::SUCCESS));
    let facts = Facts { cookie: kept.cookie, ..*done.facts() };
    let mut next = Context::new(done.hook(), facts, done.steering, done.entry());
    let last = classifier.classify(&mut next).expect("it ends").decode().expect("it says something");
    assert_eq!((last.start, next.steering.slba), (Legs::of(second), 200));
    assert_eq!(view.hooks(), Hooks { submission: 1, leg_done: 1, before_completion: 0 });
    let error = crate::load(ENCRYPT, "classifier", Clock::Coarse, &[])
        .expect_err("it has no such section")
        .to_string();
    assert!(error.contains("sections with code are: nvme_mdev"), "{error}");
}

#[test]
fn maps_of_equal_name_and_shape_are_carried_over() {
    let load = |defs: &[MapDef], carry: &[Arc<Map>]| {
        let object = object(send(Asm::new()), defs.to_vec());
        load_object(object, Clock::Coarse, carry).expect("nothing is wrong with it").view
    };
    let (seen, other) = (MapDef::array("seen", 8, 4), MapDef::hash("other", 4, 8, 4));
    let first = load(&[seen.clone(), other.clone()], &[]);
    let set = |name: &str| {
        let map = first.map(name).expect("it has one");
        map.set(&[1, 0, 0, 0], &[9; 8], Update::Any).expect("there is room");
    };
    set("seen");
    set("other");
    let larger = MapDef { max_entries: 8, ..other };
    let second = load(&[seen.clone(), larger], first.maps());
    assert_eq!(second.map("seen").expect("it has one").get(&[1, 0, 0, 0]), Ok(vec![9; 8]));
    assert!(second.map("other").expect("it has one").entries().is_empty());
    let fresh = load(&[seen], &[]);
    assert_eq!(fresh.map("seen").expect("it has one").get(&[1, 0, 0, 0]), Ok(vec![0; 8]));
}
