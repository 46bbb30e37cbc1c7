//! Context of a program: shown fields, permitted changes, and the fate of other changes.

use super::{BLOCK, BLOCKS, COUNT, NSID, Rig, leg, legs};
use crate::{Context, Leg, ProgramError, Unconfined, Verdict};
use sluice_command::{Operation, Request, Route};
use sluice_nvme::{Status, SubmissionEntry};
use std::convert::Infallible;
use zerocopy::{FromBytes, IntoBytes};

const GOOD: Status = Status::SUCCESS;

/// Returns a drive whose program does this at every hook.
fn steered(paths: usize, room: u32, program: impl FnMut(&mut Context) -> Verdict + Send + 'static) -> Rig {
    Rig::new(paths, room, |builder| builder.classifier(Box::new(program)))
}

fn read() -> Request {
    Request { operation: Operation::Read, offset: 16 * BLOCK, length: COUNT * BLOCK, ..Request::default() }
}

#[test]
fn the_context_is_what_the_command_is() {
    let (mut rig, script) = Rig::scripted(1, 1, [Verdict::send(Leg::FIRST)]);
    rig.submit(9, Request { fua: true, ..read() });
    let context = super::lock(&script.contexts)[0];
    let bytes = context.as_bytes();
    assert_eq!(bytes[..8], [1, 0, 0, 0, 0, 0, 0, 0], "version 1, hook 0");
    assert_eq!(bytes[8..12], [1, 0, 2, 0], "queue 1, a read");
    assert_eq!(bytes[12..16], NSID.to_ne_bytes());
    assert_eq!(bytes[16..20], 512u32.to_ne_bytes());
    assert_eq!(bytes[24..32], BLOCKS.to_ne_bytes());
    assert_eq!(bytes[32..40], 16u64.to_ne_bytes());
    assert_eq!(bytes[40..44], 8u32.to_ne_bytes());
    assert_eq!(bytes[44..64], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let entry = SubmissionEntry { opcode: 2, cid: 9, nsid: NSID, ..SubmissionEntry::default() };
    assert_eq!(&bytes[64..], entry.as_bytes());
}

#[test]
fn a_flush_of_our_own_is_shown_as_a_hosts() {
    let (mut rig, script) = Rig::scripted(1, 1, [Verdict::send(Leg::FIRST)]);
    let command = rig.admit(1, Request { operation: Operation::Flush, ..Request::default() });
    rig.slab.slot_mut(&command).origin.sq = 0;
    rig.router.submit(command, &mut rig.slab, 0);
    rig.answer(1, 0, GOOD);
    let context = super::lock(&script.contexts)[0];
    assert_eq!((context.facts().opcode, context.facts().nsid, context.steering.blocks), (0, NSID, 0));
    assert_eq!(context.entry(), &SubmissionEntry { nsid: NSID, ..SubmissionEntry::default() });
}

#[test]
fn a_program_moves_a_command_and_sets_hints_for_the_layers() {
    let mut rig = steered(1, 1, |context| {
        context.steering.slba += 100;
        context.steering.fua = 1;
        context.steering.target = 3;
        context.steering.hints = 0xabcd;
        Verdict::send(Leg::FIRST)
    });
    rig.submit(1, read());
    let leg = rig.leg(1, 0);
    assert_eq!(leg.request, Request { fua: true, offset: 116 * BLOCK, ..read() });
    assert_eq!((leg.route.target, leg.route.hints), (3, 0xabcd));
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
    assert_eq!(rig.router.counters().overreached, 0);
}

#[test]
fn the_original_is_back_at_the_next_hook() {
    let mut rig = steered(2, 1, |context| match context.hook() {
        crate::Hook::Submission => {
            context.steering.slba = 500;
            context.steering.blocks = 1;
            Verdict::hold().and_start(legs(&[1])).and_call_at(legs(&[1]))
        }
        _ => Verdict::send(Leg::FIRST),
    });
    rig.submit(1, read());
    let leg = rig.leg(1, 1);
    assert_eq!((leg.request.offset, leg.request.length, leg.data), (500 * BLOCK, BLOCK, vec![0]));
    rig.answer(1, 1, GOOD);
    let leg = rig.leg(1, 0);
    assert_eq!((leg.request, leg.data.len()), (read(), 8));
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(GOOD));
}

/// Sends chunks of three, three and two blocks, each to an address of its own.
fn in_pieces(context: &mut Context) -> Verdict {
    let skip = context.facts().cookie;
    let last = skip == 6;
    context.steering.slba = 100 * (1 + u64::from(skip));
    context.steering.skip = skip.into();
    context.steering.blocks = if last { 8 } else { 3 };
    match last {
        true => Verdict::send(Leg::FIRST),
        false => Verdict::hold().and_start(legs(&[0])).and_call_at(legs(&[0])).with_cookie(skip + 3),
    }
}

#[test]
fn a_command_can_be_transferred_piece_by_piece() {
    let mut rig = steered(1, 1, in_pieces);
    rig.submit(1, read());
    for (block, data) in [(100, &[0, 1, 2][..]), (400, &[3, 4, 5]), (700, &[6, 7])] {
        let leg = rig.leg(1, 0);
        assert_eq!((leg.request.offset, &leg.data[..]), (block * BLOCK, data));
        assert_eq!(leg.request.length, data.len() as u64 * BLOCK);
        let held: u64 = rig.slab.live().flat_map(|slot| slot.segments()).map(|s| u64::from(s.len())).sum();
        assert!(held >= COUNT * BLOCK, "an unmap has to see the memory of the chunks to come");
        rig.answer(1, 0, GOOD);
    }
    assert_eq!(rig.status(1), Some(GOOD));
    assert_eq!(rig.router.counters().overreached, 0, "the rest is what is left");
}

#[test]
fn a_command_of_which_a_piece_is_missing_is_no_success() {
    for (skip, blocks) in [(0, 7), (1, 7), (4, 4)] {
        let mut rig = steered(2, 2, move |context| {
            context.steering.skip = skip;
            context.steering.blocks = blocks;
            Verdict::any_good(crate::Winner::FirstError).and_start(legs(&[0, 1]))
        });
        rig.submit(1, read());
        assert_eq!(rig.leg(1, 0).data.len(), blocks as usize);
        assert_eq!(rig.leg(1, 1).data, rig.leg(1, 0).data);
        rig.answer(1, 1, GOOD);
        rig.answer(1, 0, GOOD);
        assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR));
        assert_eq!(rig.router.counters().of(ProgramError::NotTransferred), 1);
    }
}

#[test]
fn a_leg_outside_of_the_namespace_does_not_start() {
    for slba in [BLOCKS - COUNT + 1, BLOCKS, 1 << 55, u64::MAX] {
        let mut rig = steered(2, 2, move |context| {
            context.steering.slba = slba;
            Verdict::all(crate::Winner::FirstError).and_start(legs(&[0, 1]))
        });
        rig.submit(1, read());
        assert_eq!(rig.status(1), Some(Status::LBA_OUT_OF_RANGE));
        assert_eq!((rig.router.counters().overreached, rig.router.counters().errors()), (1, 0));
    }
}

#[test]
fn a_namespace_that_shrank_is_small_for_later_legs_too() {
    let first = Verdict::hold().and_start(legs(&[0])).and_call_at(legs(&[0]));
    let (mut rig, _) = Rig::scripted(1, 1, [first, Verdict::send(leg(0))]);
    rig.submit(1, read());
    rig.router.format = rig.router.format.with_size(16 * BLOCK, 16 * BLOCK);
    rig.router.path_bounds[0].size = 16 * BLOCK;
    rig.answer(1, 0, GOOD);
    assert_eq!(rig.status(1), Some(Status::LBA_OUT_OF_RANGE));
}

#[test]
fn what_a_program_has_no_right_to_is_dropped_and_counted() {
    type Change = fn(&mut Context);
    let changes: [(Change, Request); 6] = [
        (|context| context.steering.blocks = 9, read()),
        (|context| context.steering.blocks = 0, read()),
        (|context| context.steering.fua = 0, Request { fua: true, ..read() }),
        (|context| context.steering.slba = 1, Request { operation: Operation::Flush, ..Request::default() }),
        (|context| context.as_mut_bytes()[14] ^= 1, read()),
        (|context| context.as_mut_bytes()[127] ^= 1, read()),
    ];
    for (number, (change, request)) in changes.into_iter().enumerate() {
        // Code of the daemon has no method for the last two, unlike a program of bytes.
        let program = move |bytes: &mut [u8; Context::SIZE]| {
            change(Context::mut_from_bytes(bytes).expect("the bytes of a context"));
            Ok::<_, Infallible>(Verdict::send(Leg::FIRST).0)
        };
        let mut rig = Rig::new(1, 1, |builder| builder.classifier(Box::new(Unconfined::new(program))));
        rig.submit(1, request);
        assert_eq!(rig.leg(1, 0).request, request, "change {number}");
        rig.answer(1, 0, GOOD);
        assert_eq!(rig.status(1), Some(GOOD), "change {number}");
        assert_eq!(rig.router.counters().overreached, 1, "change {number}");
    }
}

#[test]
fn a_program_that_skips_all_of_a_command_made_an_error() {
    let mut rig = steered(1, 1, |context| {
        context.steering.skip = 8;
        Verdict::send(Leg::FIRST)
    });
    rig.submit(1, read());
    assert_eq!(rig.status(1), Some(Status::INTERNAL_ERROR));
    assert_eq!(rig.router.counters().of(ProgramError::SkipsTooMuch), 1);
}

#[test]
fn a_program_of_bytes_has_the_same_rights_and_may_trap() {
    let program = |bytes: &mut [u8; Context::SIZE]| -> Result<u64, &'static str> {
        bytes[32] += 1;
        if bytes[32] == 18 { Err("trapped") } else { Ok(0x0002_0000_0000_0001) }
    };
    let mut rig = Rig::new(1, 1, |builder| builder.classifier(Box::new(Unconfined::new(program))));
    rig.submit(1, read());
    assert_eq!(rig.leg(1, 0).request.offset, 17 * BLOCK);
    rig.submit(2, Request { offset: 17 * BLOCK, ..read() });
    assert_eq!(rig.status(2), Some(Status::INTERNAL_ERROR));
    assert_eq!(rig.router.counters().of(ProgramError::Trapped), 1);
}

/// Checks a command of several steps, such as a Dataset Management: the program runs for each of them.
#[test]
fn a_verdict_on_one_step_does_not_apply_to_the_next() {
    let program = |context: &mut Context| {
        context.steering.hints = if context.facts().further_step == 0 { 7 } else { 0 };
        Verdict::send(Leg::FIRST)
    };
    let mut rig = Rig::new(1, 1, |builder| builder.classifier(Box::new(program)));
    let request = Request { length: COUNT * BLOCK, ..Request::default() };
    let command = rig.admit(1, request);
    rig.router.submit(command, &mut rig.slab, 0);
    assert_eq!(rig.leg(1, 0).route.hints, 7);
    rig.answer_nth(0, GOOD);
    let mut done = Vec::new();
    rig.router.run_completions(&mut rig.slab, 0, &mut done);
    let command = done.pop().expect("its first step is done");
    rig.router.resubmit(command, &mut rig.slab, 0);
    assert_eq!(rig.leg(1, 0).route, Route::default());
    rig.answer(1, 0, Status::SUCCESS);
    assert_eq!(rig.status(1), Some(Status::SUCCESS));
}
