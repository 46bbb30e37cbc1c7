//! Programs of NVMetro's interface: two compiled from C, and every possible word.

use super::{BLOCK, COUNT, NSID, Rig, lock};
use crate::{NVMETRO_CONTEXT, NVMETRO_WRITABLE, Nvmetro, ProgramError};
use proptest::prelude::*;
use sluice_command::{Operation, Request};
use sluice_ebpf::{ContextLayout, Engine, Object, Options, Program};
use sluice_nvme::Status;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const GOOD: Status = Status::SUCCESS;
const BAD: Status = Status::UNRECOVERED_READ_ERROR;

const HOOK_VSQ: u32 = 1 << 16;
const HOOK_HCQ: u32 = 1 << 17;
const HOOK_NFD_WRITE: u32 = 1 << 18;
const HOOK_PRE_VCQ: u32 = 1 << 19;
const SEND_HQ: u32 = 1 << 22;
const SEND_FD: u32 = 1 << 23;
const WILL_COMPLETE_HQ: u32 = 1 << 28;
const WILL_COMPLETE_FD: u32 = 2 << 28;
const WAIT_FOR_HOOK: u32 = 7 << 28;

/// Returns a drive with a device and a function, and a program from `tests/nvmetro`.
fn compiled(name: &str) -> Rig {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/nvmetro");
    // Tests run at the same time, and two compile the same program.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let number = COMPILED.fetch_add(1, Relaxed);
    let out = std::env::temp_dir().join(format!("sluice-nvmetro-{}-{number}.o", std::process::id()));
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-Wall", "-Werror", "-c"]);
    let status = clang.arg(format!("{sources}/{name}.c")).arg("-o").arg(&out).status();
    assert!(status.expect("clang is there: scripts/setup.sh installs it").success());
    let bytes = std::fs::read(&out).expect("it was made just now");
    std::fs::remove_file(&out).expect("it was made just now");
    let layout = ContextLayout::new(NVMETRO_CONTEXT).read(0..NVMETRO_CONTEXT).write(NVMETRO_WRITABLE);
    let options = Options { engine: Engine::Best, ..Options::new(layout) };
    let object = Object::from_elf(&bytes, "nvme_mdev", &options.limits).expect("clang made it");
    let mut program = Program::load(&object, &options, &[]).expect("nothing is wrong with it");
    drive(move |context| program.run(context))
}

fn drive<E>(run: impl FnMut(&mut [u8; NVMETRO_CONTEXT]) -> Result<u64, E> + Send + 'static) -> Rig
where
    E: 'static,
{
    Rig::new(2, 2, |builder| builder.classifier(Box::new(Nvmetro::new(run))))
}

/// Contexts of a program, hook by hook.
type Shown = Arc<Mutex<Vec<[u8; NVMETRO_CONTEXT]>>>;

/// Returns a drive whose program answers with these words, one at each hook, after it has changed its
/// context.
fn rig_of(
    words: &[u32],
    mut change: impl FnMut(&mut [u8; NVMETRO_CONTEXT]) + Send + 'static,
) -> (Rig, Shown) {
    let words: Vec<u32> = words.into();
    let mut words = words.into_iter();
    let shown = Shown::default();
    let seen = Arc::clone(&shown);
    let rig = drive(move |context| {
        lock(&seen).push(*context);
        change(context);
        words.next().map(u64::from).ok_or("there is a verdict for each hook")
    });
    (rig, shown)
}

fn request(operation: Operation) -> Request {
    let length = if operation == Operation::Flush { 0 } else { COUNT * BLOCK };
    Request { operation, offset: 16 * BLOCK, length, ..Request::default() }
}

fn read() -> Request {
    request(Operation::Read)
}

/// Returns a word of the context.
fn field(context: &[u8; NVMETRO_CONTEXT], at: usize) -> u32 {
    u32::from_ne_bytes([context[at], context[at + 1], context[at + 2], context[at + 3]])
}

#[test]
fn an_encryptor_reads_from_the_device_and_then_calls_the_function() {
    let mut rig = compiled("encrypt");
    rig.submit(1, read());
    assert_eq!(rig.legs_of(1), [0]);
    assert_eq!(rig.leg(1, 0).request.offset, 116 * BLOCK);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.legs_of(1), [1]);
    assert_eq!(rig.leg(1, 1).request.offset, 116 * BLOCK, "a change at submission is kept");
    assert_eq!(rig.status(1), None);
    rig.answer(1, 1, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
    rig.submit(2, read());
    rig.answer(2, 0, BAD);
    assert_eq!(rig.status(2), Some(BAD), "what was not read is not decrypted");
    assert_eq!(rig.router.counters().errors() + rig.router.counters().overreached, 0);
}

#[test]
fn an_encryptor_gives_writes_to_the_function_and_all_else_to_the_device() {
    let mut rig = compiled("encrypt");
    rig.submit(1, request(Operation::Write));
    assert_eq!((rig.legs_of(1), rig.leg(1, 1).request.offset), (vec![1], 116 * BLOCK));
    rig.answer(1, 1, Status::WRITE_FAULT);
    assert_eq!(rig.status(1), Some(Status::WRITE_FAULT));
    rig.submit(2, request(Operation::Flush));
    assert_eq!(rig.legs_of(2), [0]);
    rig.answer(2, 0, GOOD);
    assert_eq!(rig.status(2), Some(GOOD));
}

#[test]
fn a_replicator_writes_to_both_and_waits_for_both() {
    let mut rig = compiled("replicate");
    rig.submit(1, read());
    assert_eq!(rig.legs_of(1), [0]);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
    for (cid, ends, first) in
        [(2, [GOOD, GOOD], 0), (3, [GOOD, BAD], 1), (4, [BAD, GOOD], 0), (5, [BAD, BAD], 1)]
    {
        rig.submit(cid, request(Operation::Write));
        assert_eq!(rig.legs_of(cid), [0, 1]);
        rig.answer(cid, first, ends[first]);
        assert_eq!(rig.status(cid), None, "one leg is still out");
        rig.answer(cid, 1 - first, ends[1 - first]);
        assert_eq!(rig.status(cid), Some(ends[0]), "the device's status");
    }
    assert_eq!(rig.router.counters().errors(), 0);
}

#[test]
fn the_context_is_as_published() {
    let (mut rig, shown) = rig_of(
        &[
            SEND_HQ | SEND_FD | HOOK_HCQ | HOOK_NFD_WRITE | WAIT_FOR_HOOK,
            HOOK_NFD_WRITE | WAIT_FOR_HOOK,
            WILL_COMPLETE_HQ | HOOK_PRE_VCQ,
            0,
        ],
        |_| (),
    );
    rig.submit(9, Request { fua: true, ..read() });
    rig.answer(9, 0, GOOD);
    rig.answer(9, 1, BAD);
    let shown = lock(&shown);
    let first = &shown[0];
    assert_eq!(first[..8], [2, 0, 9, 0, NSID as u8, 0, 0, 0]);
    assert_eq!((field(first, 40), field(first, 44)), (16, 0), "SLBA");
    assert_eq!(field(first, 48), (COUNT as u32 - 1) | 1 << 30, "blocks, 0's-based, and FUA");
    let rest = |context| [64, 68, 72, 76, 80, 84, 88].map(|at| field(context, at));
    assert_eq!(rest(first), [1, HOOK_VSQ, 0, 0, 0, 0, 0]);
    assert_eq!(rest(&shown[1]), [1, HOOK_HCQ, SEND_FD, 0, 0, 0, 0]);
    assert_eq!(rest(&shown[2]), [1, HOOK_NFD_WRITE, 0, BAD.0.into(), 0, 0, 0]);
    assert_eq!(rest(&shown[3]), [1, HOOK_PRE_VCQ, 0, 0, 0, 0, 0]);
    assert_eq!(rig.done.get(&9), Some(&GOOD));
}

#[test]
fn a_command_completed_with_legs_out_waits_for_them() {
    let (mut rig, _) = rig_of(&[SEND_HQ | u32::from(BAD.0)], |_| ());
    rig.submit(1, read());
    assert_eq!(rig.status(1), None);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(BAD));
}

#[test]
fn the_last_hook_fires_and_may_change_the_status() {
    let (mut rig, shown) =
        rig_of(&[SEND_HQ | WILL_COMPLETE_HQ | HOOK_PRE_VCQ, u32::from(Status::WRITE_FAULT.0)], |_| ());
    rig.submit(1, read());
    rig.answer(1, 0, BAD);
    assert_eq!(field(&lock(&shown)[1], 76), u32::from(BAD.0));
    assert_eq!(rig.status(1), Some(Status::WRITE_FAULT));
}

#[test]
fn impossible_words_fail_their_command_and_are_counted() {
    let unknown = [20, 21, 24, 25, 26, 27, 31, 15].map(|bit| SEND_HQ | WILL_COMPLETE_HQ | 1u32 << bit);
    let kinds = [3, 4, 5, 6].map(|kind| SEND_HQ | kind << 28);
    let other = [SEND_HQ | WILL_COMPLETE_HQ | 6];
    let mut cases: Vec<(u32, ProgramError)> =
        unknown.iter().chain(&kinds).chain(&other).map(|word| (*word, ProgramError::UnknownBits)).collect();
    cases.extend([
        (WAIT_FOR_HOOK, ProgramError::NothingToWaitFor),
        (WAIT_FOR_HOOK | SEND_HQ, ProgramError::NothingToWaitFor),
        (WAIT_FOR_HOOK | SEND_HQ | HOOK_NFD_WRITE, ProgramError::NothingToWaitFor),
        (WILL_COMPLETE_HQ, ProgramError::NeverStarted),
        (WILL_COMPLETE_FD | SEND_HQ, ProgramError::NeverStarted),
        (0, ProgramError::NotTransferred),
    ]);
    for (word, error) in cases {
        let (mut rig, _) = rig_of(&[word], |_| ());
        rig.submit(1, read());
        assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR), "{word:#x}");
        assert_eq!((rig.router.counters().of(error), rig.router.counters().errors()), (1, 1), "{word:#x}");
    }
}

#[test]
fn a_later_hook_may_not_request_an_earlier_one() {
    let again = SEND_FD | WILL_COMPLETE_FD | HOOK_VSQ;
    let (mut rig, _) = rig_of(&[SEND_HQ | HOOK_HCQ | WAIT_FOR_HOOK, again], |_| ());
    rig.submit(1, read());
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR));
    assert_eq!(rig.router.counters().of(ProgramError::UnknownBits), 1);
    let (mut rig, _) =
        rig_of(&[SEND_HQ | WILL_COMPLETE_HQ | HOOK_PRE_VCQ, SEND_HQ | WILL_COMPLETE_HQ], |_| ());
    rig.submit(1, read());
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR));
    assert_eq!(rig.router.counters().of(ProgramError::TooLate), 1);
}

/// Checks that a change at submission is kept, and one at a later hook lasts until the next.
#[test]
fn changes_last_as_published() {
    let words = [
        SEND_HQ | HOOK_HCQ | WAIT_FOR_HOOK,
        SEND_FD | HOOK_NFD_WRITE | WAIT_FOR_HOOK,
        SEND_HQ | WILL_COMPLETE_HQ,
    ];
    let mut slba = [100u32, 200].into_iter();
    let (mut rig, shown) = rig_of(&words, move |context| {
        if let Some(slba) = slba.next() {
            context[40..44].copy_from_slice(&slba.to_ne_bytes());
        }
    });
    rig.submit(1, read());
    assert_eq!(rig.leg(1, 0).request.offset, 100 * BLOCK);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.leg(1, 1).request.offset, 200 * BLOCK);
    rig.answer(1, 1, GOOD);
    assert_eq!(rig.leg(1, 0).request.offset, 100 * BLOCK);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
    assert_eq!([0, 1, 2].map(|hook| field(&lock(&shown)[hook], 40)), [16, 100, 100]);
    assert_eq!(rig.router.counters().overreached, 0);
}

/// Checks that the change of a command is freed with it, however it ends.
#[test]
fn kept_changes_are_given_back() {
    let mut rig = drive(|context: &mut [u8; NVMETRO_CONTEXT]| {
        context[40] = 50;
        match field(context, 68) {
            HOOK_VSQ => Ok(u64::from(SEND_HQ | SEND_FD | HOOK_HCQ | WILL_COMPLETE_HQ)),
            _ if context[2].is_multiple_of(3) => Err(()),
            _ => Ok(u64::from(WILL_COMPLETE_HQ)),
        }
    });
    for cid in 0..5000u16 {
        rig.submit(cid, read());
        assert_eq!(rig.leg(cid, 0).request.offset, 50 * BLOCK, "command {cid}");
        let first = usize::from(cid.is_multiple_of(2));
        rig.answer(cid, first, GOOD);
        rig.answer(cid, 1 - first, GOOD);
        assert!(rig.status(cid).is_some());
    }
    assert_eq!(rig.slots(), 0);
}

/// Checks that the change of a refused answer is freed: with more answers than there is room for changes.
#[test]
fn changes_of_refused_answers_are_given_back() {
    let mut rig = drive(|context: &mut [u8; NVMETRO_CONTEXT]| {
        context[40] = 50;
        match (context[2].is_multiple_of(2), field(context, 68)) {
            (true, _) => Ok::<_, ()>(u64::from(SEND_HQ | HOOK_HCQ | HOOK_NFD_WRITE | WAIT_FOR_HOOK)),
            (false, HOOK_VSQ) => Ok(u64::from(SEND_HQ | HOOK_HCQ | WAIT_FOR_HOOK)),
            (false, _) => Ok(u64::from(HOOK_HCQ | WAIT_FOR_HOOK)),
        }
    });
    for cid in 0..5000u16 {
        rig.submit(cid, read());
        if cid % 2 == 1 {
            assert_eq!(rig.leg(cid, 0).request.offset, 50 * BLOCK, "command {cid}");
            rig.answer(cid, 0, GOOD);
        }
        assert_eq!(rig.status(cid), Some(Status::INTERNAL_ERROR));
    }
    let counters = rig.router.counters();
    assert_eq!((counters.of(ProgramError::NothingToWaitFor), counters.errors()), (5000, 5000));
}

#[test]
fn what_a_program_may_not_change_is_dropped_and_counted() {
    // Opcode, CID, NSID, PRPs, CDW13, another bit of CDW12, the queue, the hook, the last word.
    for at in [0, 2, 4, 24, 39, 52, 51, 64, 70, 91] {
        let (mut rig, _) = rig_of(&[SEND_HQ | WILL_COMPLETE_HQ], move |context| context[at] ^= 0x20);
        rig.submit(1, read());
        assert_eq!(rig.leg(1, 0).request, read(), "byte {at}");
        rig.answer(1, 0, GOOD);
        assert_eq!((rig.status(1), rig.router.counters().overreached), (Some(GOOD), 1), "byte {at}");
    }
}

#[test]
fn fewer_blocks_are_no_success_and_more_are_dropped() {
    let blocks =
        |blocks: u8| rig_of(&[SEND_HQ | WILL_COMPLETE_HQ], move |context| context[48] = blocks - 1).0;
    let mut rig = blocks(3);
    rig.submit(1, read());
    assert_eq!(rig.leg(1, 0).request.length, 3 * BLOCK);
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.router.counters().of(ProgramError::NotTransferred), 1);
    let mut rig = blocks(9);
    rig.submit(1, read());
    assert_eq!(rig.leg(1, 0).request, read());
    assert_eq!(rig.router.counters().overreached, 1);
}

proptest! {
    /// Checks that a command comes back once for all words and changes of a program, and nothing is left of
    /// it.
    #[test]
    fn any_words(words in prop::collection::vec(any_word(), 1..6), at in 0..NVMETRO_CONTEXT, bits: u8, order: u8) {
        let mut all = words.into_iter().cycle();
        let mut rig = drive(move |context: &mut [u8; NVMETRO_CONTEXT]| {
            context[at] ^= bits;
            Ok::<_, ()>(u64::from(all.next().unwrap_or(0)))
        });
        for (cid, operation) in [Operation::Read, Operation::Write, Operation::Flush].into_iter().enumerate() {
            rig.submit(cid as u16, request(operation));
        }
        for step in 0.. {
            let legs = rig.floor.lock().expect("not poisoned").len();
            if legs == 0 {
                break;
            }
            let status = if order >> (step % 8) & 1 != 0 { GOOD } else { BAD };
            rig.answer_nth(usize::from(order) % legs, status);
            rig.run_completions();
        }
        prop_assert_eq!((rig.done.len(), rig.slots()), (3, 0));
    }
}

/// Returns a word; most are possible.
fn any_word() -> impl Strategy<Value = u32> {
    let likely = (0u32..16, 0u32..4, 0u32..3, any::<bool>()).prop_map(|(hooks, sends, kind, waits)| {
        hooks << 16 | sends << 22 | if waits { WAIT_FOR_HOOK } else { kind << 28 }
    });
    prop_oneof![6 => likely, 1 => any::<u32>()]
}
