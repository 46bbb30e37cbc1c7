//! Comparison of `sluice.h`, which programs are written against, with the layout here; clang compares them.

use crate::context::{Context, Facts, Steering};
use crate::{Leg, Legs, Verdict, Winner};
use sluice_nvme::opcode::io;
use sluice_nvme::{Status, SubmissionEntry};
use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/include");

/// Checks that all of these C expressions are true; returns clang's messages if not.
fn check(expressions: &[String]) -> Result<(), String> {
    let mut clang = Command::new("clang")
        .args([
            "-target",
            "bpf",
            "-std=gnu11",
            "-fsyntax-only",
            "-Wall",
            "-Werror",
            "-I",
            HEADERS,
            "-x",
            "c",
            "-",
        ])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("clang is there: scripts/setup.sh installs it");
    let asserts = expressions.iter().map(|expression| format!("_Static_assert({expression}, \"\");\n"));
    let source: String = ["#include \"sluice.h\"\n".to_owned()].into_iter().chain(asserts).collect();
    let mut input = clang.stdin.take().expect("it is piped");
    input.write_all(source.as_bytes()).expect("clang reads all of its input");
    drop(input);
    let output = clang.wait_with_output().expect("clang ends");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(message) }
}

fn agree(expressions: &[String]) {
    check(expressions).unwrap_or_else(|message| panic!("{message}"));
}

fn is(expression: &str, value: impl Into<u64>) -> String {
    format!("({expression}) == {:#x}ull", value.into())
}

#[test]
fn what_is_untrue_is_found() {
    let message = check(&[is("SLUICE_ABI", Context::VERSION), is("SLUICE_READ", 3u8)]).expect_err("it is 2");
    assert!(message.contains("SLUICE_READ"), "{message}");
}

/// Compares a member of the structure of the same name as the field, its offset and size.
macro_rules! members {
    ($c:literal, $base:expr, $rust:ty: $($field:ident),+) => {
        [$({
            fn size<T>(_: fn(&$rust) -> &T) -> usize {
                size_of::<T>()
            }
            let (at, bytes) = ($base + offset_of!($rust, $field), size(|all| &all.$field));
            [
                is(&format!("__builtin_offsetof({}, {})", $c, stringify!($field)), at as u64),
                is(&format!("sizeof((({} *)0)->{})", $c, stringify!($field)), bytes as u64),
            ]
        }),+].concat()
    };
}

#[test]
fn the_context_is_the_same_byte_for_byte() {
    const C: &str = "struct sluice_context";
    let steering = offset_of!(Context, steering);
    let mut expressions = vec![
        is("SLUICE_ABI", Context::VERSION),
        is("sizeof(struct sluice_context)", Context::SIZE as u64),
        is(
            "__builtin_offsetof(struct sluice_context, entry)",
            (Context::SIZE - SubmissionEntry::SIZE) as u64,
        ),
        is("sizeof(struct sluice_entry)", SubmissionEntry::SIZE as u64),
    ];
    expressions.extend(members!("struct sluice_context", 0, Facts:
        version, hook, leg, status, cookie, queue, opcode, in_flight, nsid, block_size, further_step, capacity));
    expressions.extend(
        members!("struct sluice_context", steering, Steering: slba, blocks, skip, hints, target, fua),
    );
    expressions.extend(members!("struct sluice_entry", 0, SubmissionEntry:
        opcode, flags, cid, nsid, cdw2, cdw3, mptr, dptr, cdw10, cdw11, cdw12, cdw13, cdw14, cdw15));
    let end = format!("__builtin_offsetof({C}, fua) + 1");
    expressions.push(is(&end, Context::WRITABLE.end as u64));
    agree(&expressions);
}

#[test]
fn names_have_the_same_values() {
    let opcodes = [
        ("FLUSH", io::FLUSH),
        ("WRITE", io::WRITE),
        ("READ", io::READ),
        ("WRITE_UNCORRECTABLE", io::WRITE_UNCORRECTABLE),
        ("COMPARE", io::COMPARE),
        ("WRITE_ZEROES", io::WRITE_ZEROES),
        ("DATASET_MANAGEMENT", io::DATASET_MANAGEMENT),
        ("VERIFY", io::VERIFY),
        ("COPY", io::COPY),
        ("HOOK_SUBMISSION", 0),
        ("HOOK_LEG_DONE", 1),
        ("HOOK_BEFORE_COMPLETION", 2),
        ("LEGS", Leg::COUNT as u8),
    ];
    let mut expressions: Vec<String> =
        opcodes.iter().map(|(name, value)| is(&format!("SLUICE_{name}"), *value)).collect();
    for (name, status) in Status::ALL {
        expressions.push(is(&format!("SLUICE_STATUS_{name}"), status.0));
        let good = format!("SLUICE_IS_SUCCESS(SLUICE_STATUS_{name})");
        expressions.push(is(&good, u64::from(status.is_success())));
    }
    expressions.push(is("SLUICE_STATUS_DNR", Status::DNR));
    agree(&expressions);
}

#[test]
fn verdicts_are_made_the_same_way() {
    let mut expressions = vec![is("SLUICE_HOLD", Verdict::hold().0)];
    for (_, status) in Status::ALL.iter().chain([&("", Status(0xffff))]) {
        expressions.push(is(&format!("SLUICE_COMPLETE({})", status.0), Verdict::complete(*status).0));
    }
    let legs: Vec<Leg> = (0..).map_while(Leg::new).collect();
    for leg in &legs {
        let number = leg.number();
        expressions.push(is(&format!("SLUICE_SEND({number})"), Verdict::send(*leg).0));
        expressions.push(is(&format!("SLUICE_FINISH_WITH({number})"), Verdict::finish_with(*leg).0));
        expressions.push(is(&format!("SLUICE_LEG({number})"), Legs::of(*leg).bits()));
    }
    let winners = legs.iter().map(|leg| (leg.number().to_string(), Winner::Leg(*leg)));
    for (name, winner) in winners.chain([("SLUICE_FIRST_ERROR".to_owned(), Winner::FirstError)]) {
        expressions.push(is(&format!("SLUICE_ALL({name})"), Verdict::all(winner).0));
        expressions.push(is(&format!("SLUICE_ANY_GOOD({name})"), Verdict::any_good(winner).0));
    }
    for bits in 0..1u8 << Leg::COUNT {
        let set = legs
            .iter()
            .filter(|leg| bits & 1 << leg.number() != 0)
            .fold(Legs::NONE, |set, leg| set.and(*leg));
        let cookie = u16::from(bits) * 509;
        let verdict = Verdict::hold().and_start(set).and_call_at(set).with_cookie(cookie);
        let parts =
            format!("SLUICE_HOLD | SLUICE_START({bits}) | SLUICE_CALL_AT({bits}) | SLUICE_COOKIE({cookie})");
        expressions.push(is(&parts, verdict.0));
        let called = format!("{parts} | SLUICE_CALL_BEFORE_COMPLETION");
        expressions.push(is(&called, verdict.and_call_before_completion().0));
    }
    agree(&expressions);
}
