//! Real objects, made by clang from the sources in `tests/programs`.

use std::process::Command;
use std::sync::Arc;

use sluice_ebpf::{ContextLayout, Engine, Fault, Limits, LoadError, Map, Object, Options, Program, Update};

const CLASSIFY: &[u8] = include_bytes!("programs/classify.o");
const EVERYTHING: &[u8] = include_bytes!("programs/everything.o");
const OUT_OF_BOUNDS: &[u8] = include_bytes!("programs/out_of_bounds.o");
const HUGE_MAP: &[u8] = include_bytes!("programs/huge_map.o");

const ENGINES: [Engine; 2] = [Engine::Interpreted, Engine::Compiled];

fn options(layout: ContextLayout, engine: Engine) -> Options {
    Options { engine, clock: Arc::new(|| 1000), ..Options::new(layout) }
}

fn load(bytes: &[u8], section: &str, options: &Options, carry: &[Arc<Map>]) -> Result<Program, LoadError> {
    let object = Object::from_elf(bytes, section, &options.limits)?;
    Program::load(&object, options, carry)
}

fn classifier_layout() -> ContextLayout {
    ContextLayout::new(24).read(0..24).write(8..16).write(20..24)
}

/// The context of `classify.c`.
fn command(opcode: u8, nsid: u32, slba: u64, blocks: u32) -> [u8; 24] {
    let mut context = [0; 24];
    context[0] = opcode;
    context[4..8].copy_from_slice(&nsid.to_le_bytes());
    context[8..16].copy_from_slice(&slba.to_le_bytes());
    context[16..20].copy_from_slice(&blocks.to_le_bytes());
    context
}

fn window(first: u64, blocks: u64, shift: u64, seen: u64) -> Vec<u8> {
    [first, blocks, shift, seen].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_classifier_classifies() {
    for engine in ENGINES {
        let mut program =
            load(CLASSIFY, "classifier", &options(classifier_layout(), engine), &[]).expect("it loads");
        assert!(program.notes().is_empty(), "all of it is proven: {:?}", program.notes());
        let windows = Arc::clone(program.map("windows").expect("it has one"));
        windows
            .set(&3u32.to_le_bytes(), &window(1000, 64, 2, 0), Update::Any)
            .expect("there is such an element");

        let mut read = command(2, 3, 60, 4);
        assert_eq!(program.run(&mut read), Ok(2));
        assert_eq!(read[8..16], (60 + 1000 + 16u64).to_le_bytes());
        assert_eq!(read[20..], 2u32.to_le_bytes());
        assert_eq!(program.run(&mut command(1, 3, 61, 4)), Ok(0x82), "it ends outside the window");
        assert_eq!(program.run(&mut command(1, 16, 0, 1)), Ok(0x81), "there is no such window");
        assert_eq!(program.run(&mut command(0, 3, 0, 0)), Ok(3));
        assert_eq!(program.run(&mut command(9, 3, 0, 0)), Ok(0x80));
        assert_eq!(program.counters().all()[..3], [1, 1, 1]);
        assert_eq!(windows.get(&3u32.to_le_bytes()), Ok(window(1000, 64, 2, 4)));
    }
}

#[test]
fn everything_that_an_object_can_have() {
    let layout = ContextLayout::new(64).read(0..32).write(32..64);
    for engine in ENGINES {
        let mut program =
            load(EVERYTHING, "test/everything", &options(layout.clone(), engine), &[]).expect("it loads");
        let names: Vec<&str> = program.maps().iter().map(|map| map.def().name.as_str()).collect();
        for name in ["seen", "recent", "places", ".rodata", ".data", ".bss"] {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
        assert!(program.map("recent").expect("it has one").def().shared());
        let places = program.map("places").and_then(|map| map.translations()).expect("it is a cache");
        places.insert(64..80, 500, 1).expect("nobody else is here");
        let mut context = [0u8; 64];
        for (word, value) in [(0usize, 1u32), (1, 77), (2, 70), (5, 2)] {
            context[word * 4..][..4].copy_from_slice(&value.to_le_bytes());
        }
        // Weights from index 1 on: 1 * 77 + 4 * 70 + 9 * 2, times ten.
        for run in 1..=3u64 {
            assert_eq!(program.run(&mut context), Ok(run));
            assert_eq!(context[32..36], 3750u32.to_le_bytes());
            let fetched = [0, 5, 10][run as usize - 1];
            assert_eq!(context[36..40], u32::to_le_bytes(fetched));
            assert_eq!(context[40..44], 507u32.to_le_bytes());
        }
        let seen = program.map("seen").expect("it has one").entries();
        assert_eq!(seen, [(77u64.to_le_bytes().to_vec(), 15u64.to_le_bytes().to_vec())]);
        let key: Vec<u8> = [1u32, 2, 3].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(program.map("recent").expect("it has one").get(&key), Ok(375u32.to_le_bytes().to_vec()));
        let said = program.trace().pop().expect("it said something");
        assert_eq!((said.when_ns, said.text.as_slice()), (1000, b"weighed".as_slice()));
    }
}

#[test]
fn maps_are_carried_over() {
    let options = options(classifier_layout(), Engine::Compiled);
    let old = load(CLASSIFY, "classifier", &options, &[]).expect("it loads");
    let value = window(9, 9, 9, 9);
    old.map("windows")
        .expect("it has one")
        .set(&[0; 4], &value, Update::Any)
        .expect("there is such an element");
    let new = load(CLASSIFY, "classifier", &options, old.maps()).expect("it loads");
    let fresh = load(CLASSIFY, "classifier", &options, &[]).expect("it loads");
    drop(old);
    assert_eq!(new.map("windows").expect("it has one").get(&[0; 4]), Ok(value));
    assert_eq!(fresh.map("windows").expect("it has one").get(&[0; 4]), Ok(window(0, 0, 0, 0)));
}

#[test]
fn messages_name_the_line() {
    let layout = ContextLayout::new(16).read(0..8);
    let error =
        load(OUT_OF_BOUNDS, "classifier", &options(layout, Engine::Compiled), &[]).expect_err("it is wrong");
    let message = error.to_string();
    assert!(
        message.starts_with("instruction 0 (out_of_bounds.c:12: `return ctx->hidden != 0;`)"),
        "{message}"
    );
    assert!(message.contains("bytes 8 to 15 of the context may not be read"), "{message}");
}

#[test]
fn objects_that_are_refused() {
    let options = options(classifier_layout(), Engine::Compiled);
    let huge = load(HUGE_MAP, "classifier", &options, &[]).expect_err("nobody has that much").to_string();
    assert!(huge.starts_with("map huge would bring the program's maps to 1099511627776 bytes"), "{huge}");
    let missing = load(CLASSIFY, "nvme", &options, &[]).expect_err("there is no such section").to_string();
    assert!(missing.contains("no section nvme; sections with code are: classifier"), "{missing}");
    let text = load(b"#!/bin/sh", "classifier", &options, &[]).expect_err("not an object").to_string();
    assert!(text.starts_with("the object file cannot be used"), "{text}");
    let small = Options { limits: Limits { slots: 10, ..Limits::default() }, ..options };
    let long = load(CLASSIFY, "classifier", &small, &[]).expect_err("it is too long").to_string();
    assert!(long.contains("more than the limit of 10"), "{long}");
}

#[test]
fn fuel_ends_a_run() {
    let layout = ContextLayout::new(64).read(0..32).write(32..64);
    for engine in ENGINES {
        let options = Options { fuel: 40, ..options(layout.clone(), engine) };
        let mut program = load(EVERYTHING, "test/everything", &options, &[]).expect("it loads");
        let trap = program.run(&mut [0; 64]).expect_err("the loop takes more");
        assert_eq!(trap.fault, Fault::OutOfFuel);
    }
}

/// Every byte of real objects, wrong: a message or a program that ends, never a panic.
#[test]
fn damaged_objects() {
    let layout = ContextLayout::new(64).read(0..32).write(32..64);
    for (bytes, section) in [(CLASSIFY, "classifier"), (EVERYTHING, "test/everything")] {
        let options = options(layout.clone(), Engine::Interpreted);
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
            if let Ok(mut program) = load(&damaged, section, &options, &[]) {
                let _ = program.run(&mut [0; 64]);
            }
            if at % 16 == 0 {
                let _ = load(&bytes[..at], section, &options, &[]);
            }
        }
    }
}

#[test]
fn sources_still_compile() {
    if Command::new("clang").arg("--version").output().is_err() {
        eprintln!("skipped: clang is not installed, so the sources in tests/programs were not compiled");
        return;
    }
    let out = std::env::temp_dir().join(format!("sluice-ebpf-{}", std::process::id()));
    std::fs::create_dir_all(&out).expect("a folder for the objects");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/build.sh");
    let built = Command::new(script).arg(&out).output().expect("the script starts");
    let object = std::fs::read(out.join("classify.o"));
    std::fs::remove_dir_all(&out).expect("it was made above");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let options = options(classifier_layout(), Engine::Compiled);
    load(&object.expect("it was built"), "classifier", &options, &[]).expect("and it loads");
}
