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
    ContextLayout::new(128).read(0..128).write(32..54)
}

/// Returns the part of a `struct sluice_context` that `classify.c` reads.
fn command(opcode: u8, nsid: u32, slba: u64, blocks: u32) -> [u8; 128] {
    let mut context = [0; 128];
    context[10] = opcode;
    context[12..16].copy_from_slice(&nsid.to_le_bytes());
    context[32..40].copy_from_slice(&slba.to_le_bytes());
    context[40..44].copy_from_slice(&blocks.to_le_bytes());
    context
}

/// Returns the verdict that completes with a status, as in `sluice.h`.
fn complete(status: u64) -> u64 {
    1 << 48 | status << 32
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
        assert_eq!(program.run(&mut read), Ok(2 << 48 | 2 << 16 | 1), "leg 0, and the opcode as its cookie");
        assert_eq!(read[32..40], (60 + 1000 + 16u64).to_le_bytes());
        assert_eq!(read[48..52], 2u32.to_le_bytes());
        assert_eq!(
            program.run(&mut command(1, 3, 61, 4)),
            Ok(complete(0x4080)),
            "it ends outside the window"
        );
        assert_eq!(program.run(&mut command(1, 16, 0, 1)), Ok(complete(0x400b)), "there is no such window");
        assert_eq!(
            program.run(&mut command(0, 3, 0, 0)),
            Ok(3 << 48 | 15 << 52 | 3),
            "both legs, first error"
        );
        assert_eq!(program.run(&mut command(9, 3, 0, 0)), Ok(complete(0x4001)));
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
        places.insert(64..80, 500, 1).expect("no other change is under way");
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
            assert_eq!(context[44..48], (3 * 375u32 + 1).to_le_bytes());
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

/// Checks a function that is not the first of its section, and follows the main function in the program.
#[test]
fn lines_belong_to_their_instructions() {
    let object = Object::from_elf(EVERYTHING, "test/everything", &Limits::default()).expect("it can be read");
    let slots: Vec<usize> = object.lines.iter().map(|(slot, _)| *slot).collect();
    assert!(slots.is_sorted_by(|one, next| one < next), "one line for an instruction: {slots:?}");
    // The section of the functions follows the main program, which has 57 instructions. Before this function are 22.
    let function = 57 + 22..57 + 26;
    let of_function = object.lines.iter().filter(|(_, line)| line.text == "return value * 3 + 1;");
    let slots: Vec<usize> = of_function.map(|(slot, _)| *slot).collect();
    assert!(!slots.is_empty() && slots.iter().all(|slot| function.contains(slot)), "{slots:?}");
}

/// Checks instructions at line 0, which clang assigns to code of its own, such as an instruction that several
/// lines share.
#[test]
fn no_instruction_is_in_a_line_that_there_is_not() {
    for (bytes, section) in [(CLASSIFY, "classifier"), (EVERYTHING, "test/everything")] {
        let object = Object::from_elf(bytes, section, &Limits::default()).expect("it can be read");
        assert!(!object.lines.is_empty());
        for (slot, line) in &object.lines {
            assert!(line.line > 0 && !line.text.is_empty(), "instruction {slot}: {line}");
        }
    }
}

#[test]
fn objects_that_are_refused() {
    let options = options(classifier_layout(), Engine::Compiled);
    let huge = load(HUGE_MAP, "classifier", &options, &[]).expect_err("no machine has that much").to_string();
    assert!(huge.starts_with("map huge would bring the program's maps to 1099511627776 bytes"), "{huge}");
    let unlimited = Options { limits: Limits { map_bytes: usize::MAX, ..options.limits }, ..options.clone() };
    let huge = load(HUGE_MAP, "classifier", &unlimited, &[]).expect_err("no region is that long").to_string();
    assert!(huge.starts_with("map huge: all its values together must have less than 2 GiB"), "{huge}");
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

/// Returns `classify.o` with this version of the header.
fn with_abi(version: u32) -> Vec<u8> {
    use object::{Object as _, ObjectSection as _};
    let mut bytes = CLASSIFY.to_vec();
    let file = object::File::parse(CLASSIFY).expect("it is an object");
    let section = file.section_by_name("sluice.abi").expect("the header puts it there");
    let (at, 4) = section.file_range().expect("it has bytes") else { panic!("one version") };
    bytes[at as usize..][..4].copy_from_slice(&version.to_le_bytes());
    bytes
}

#[test]
fn objects_say_which_header_they_know() {
    let options = Options { abi: Some(1..=2), ..options(classifier_layout(), Engine::Compiled) };
    for version in [1, 2] {
        load(&with_abi(version), "classifier", &options, &[]).expect("versions up to our own are run");
    }
    for version in [0, 3, u32::MAX] {
        let error = load(&with_abi(version), "classifier", &options, &[]).expect_err("unknown");
        let expected =
            format!("the object was compiled with version {version} of sluice.h, and versions 1 to 2");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    let mut silent = Object::from_elf(CLASSIFY, "classifier", &options.limits).expect("it is an object");
    assert_eq!(silent.abi, Some(1));
    silent.abi = None;
    let error = Program::load(&silent, &options, &[]).expect_err("its version is unknown").to_string();
    assert!(error.contains("include sluice.h"), "{error}");
}

/// Changes every byte of real objects: the result is a message or a program that ends, never a panic.
#[test]
fn damaged_objects() {
    let layout = ContextLayout::new(64).read(0..32).write(32..64);
    for (bytes, section, layout) in
        [(CLASSIFY, "classifier", classifier_layout()), (EVERYTHING, "test/everything", layout)]
    {
        let options = options(layout, Engine::Interpreted);
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
            if let Ok(mut program) = load(&damaged, section, &options, &[]) {
                let _ = program.run(&mut vec![0; options.layout.size()]);
            }
            if at % 16 == 0 {
                let _ = load(&bytes[..at], section, &options, &[]);
            }
        }
    }
}

#[test]
fn sources_still_compile() {
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
