//! Programs written for NVMetro's published interface, as classifiers.
//!
//! Such a program is shown another context (92 bytes: the command itself, which it may change) and answers
//! with another word (32 bits). Every such word has an equivalent verdict. The program's device is the first
//! path and leg 0, its function the second path and leg 1. It may change the same fields as other programs:
//! SLBA, number of blocks downwards, FUA. Any other change is dropped and counted as overreach. Where that
//! interface leaves something open, these are the answers:
//!
//! | there | here |
//! |---|---|
//! | COMPLETE while legs are in flight | finished, and completed when they are back |
//! | PRE_VCQ | fires, when all legs are back; only a status may follow |
//! | WAIT_FOR_HOOK with nothing to wait for, WILL_COMPLETE of a leg never sent, unknown bits | an error of the program: the command fails with Internal Error, and it is counted |
//! | an earlier hook in a later word | the same error |
//! | hooks of an earlier word | dropped: each word replaces the one before |
//! | a leg of the function failed, and the command ends with the status of the device | the status of the device, when both are back |
//! | a change made at HOOK_VSQ | kept for the later hooks of the command |
//! | `iostate` | the SEND bits of the legs in flight |
//! | `aux` | zero |
//!
//! Dataset Management has no SLBA of its own: each of its ranges is shown as the command it came with, and
//! cannot be moved.

use crate::{Classifier, Context, Hook, Leg, Legs, Steering, Trapped, Verdict, Winner};
use sluice_nvme::{Status, SubmissionEntry, opcode::io};
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of such a program's context.
pub const NVMETRO_CONTEXT: usize = 92;
/// Bytes that such a program may write.
pub const NVMETRO_WRITABLE: std::ops::Range<usize> = 0..SubmissionEntry::SIZE;

/// Context of such a program.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct IoContext {
    command: [u8; SubmissionEntry::SIZE],
    sqid: u32,
    current_hook: u32,
    iostate: u32,
    data: u32,
    aux: [u32; 3],
}

const _: () = assert!(size_of::<IoContext>() == NVMETRO_CONTEXT);

/// Word that such a program answers with.
mod word {
    pub(super) const STATUS: u32 = 0x7fff;
    pub(super) const HOOK_VSQ: u32 = 1 << 16;
    pub(super) const HOOK_HCQ: u32 = 1 << 17;
    pub(super) const HOOK_NFD_WRITE: u32 = 1 << 18;
    pub(super) const HOOK_PRE_VCQ: u32 = 1 << 19;
    pub(super) const SEND_HQ: u32 = 1 << 22;
    pub(super) const SEND_FD: u32 = 1 << 23;
    pub(super) const KIND: u32 = 28;
    pub(super) const COMPLETE: u32 = 0;
    pub(super) const WILL_COMPLETE_HQ: u32 = 1;
    pub(super) const WILL_COMPLETE_FD: u32 = 2;
    pub(super) const WAIT_FOR_HOOK: u32 = 7;
    pub(super) const KNOWN: u32 =
        STATUS | HOOK_VSQ | HOOK_HCQ | HOOK_NFD_WRITE | HOOK_PRE_VCQ | SEND_HQ | SEND_FD | 7 << KIND;
}

const DEVICE: Leg = Leg::FIRST;
const FUNCTION: Leg = match Leg::new(1) {
    Some(leg) => leg,
    None => panic!("there are seven"),
};

/// Word that is no verdict: the router counts it and fails the command.
const IMPOSSIBLE: Verdict = Verdict(u64::MAX);

/// Returns the SEND bits, or any two bits for device and function, as legs.
fn legs(word: u32, device: u32, function: u32) -> Legs {
    let one = |bit: u32, leg: Leg| if word & bit != 0 { Legs::of(leg) } else { Legs::NONE };
    one(device, DEVICE).union(one(function, FUNCTION))
}

/// Returns the verdict of a word at a hook.
fn verdict(word: u32, hook: Hook) -> Verdict {
    let (kind, status) = (word >> word::KIND & 7, word & word::STATUS);
    let again = word & word::HOOK_VSQ != 0 && hook != Hook::Submission;
    if word & !word::KNOWN != 0 || again || (status != 0 && kind != word::COMPLETE) {
        return IMPOSSIBLE;
    }
    let rule = match kind {
        word::COMPLETE => Verdict::complete(Status(status as u16)),
        word::WILL_COMPLETE_HQ => Verdict::all(Winner::Leg(DEVICE)),
        word::WILL_COMPLETE_FD => Verdict::all(Winner::Leg(FUNCTION)),
        word::WAIT_FOR_HOOK => Verdict::hold(),
        _ => return IMPOSSIBLE,
    };
    let started = rule.and_start(legs(word, word::SEND_HQ, word::SEND_FD));
    let called = started.and_call_at(legs(word, word::HOOK_HCQ, word::HOOK_NFD_WRITE));
    if word & word::HOOK_PRE_VCQ != 0 { called.and_call_before_completion() } else { called }
}

/// Returns the hook's bit, and the status that goes with it.
fn hook_bit(hook: Hook) -> Option<(u32, Status)> {
    match hook {
        Hook::Submission => Some((word::HOOK_VSQ, Status::SUCCESS)),
        Hook::LegDone(DEVICE, status) => Some((word::HOOK_HCQ, status)),
        Hook::LegDone(FUNCTION, status) => Some((word::HOOK_NFD_WRITE, status)),
        Hook::LegDone(..) => None,
        Hook::BeforeCompletion(status) => Some((word::HOOK_PRE_VCQ, status)),
    }
}

/// Force Unit Access, in CDW12.
const FUA: u32 = 1 << 30;
/// Number of Logical Blocks, 0's-based, in CDW12.
const NLB: u32 = 0xffff;

/// Returns whether CDW10 to CDW12 are SLBA, number of blocks and FUA (NVM Command Set 3.2).
fn has_range(entry: &SubmissionEntry, steering: &Steering) -> bool {
    let ranged = [io::WRITE, io::READ, io::COMPARE, io::WRITE_ZEROES, io::WRITE_UNCORRECTABLE, io::VERIFY];
    ranged.contains(&entry.opcode) && (1..=NLB + 1).contains(&steering.blocks)
}

/// Returns the entry that a host would send for such a leg.
fn steered(entry: &SubmissionEntry, steering: &Steering) -> SubmissionEntry {
    let kept = entry.cdw12 & !(NLB | FUA);
    let fua = if steering.fua != 0 { FUA } else { 0 };
    SubmissionEntry {
        cdw10: steering.slba as u32,
        cdw11: (steering.slba >> 32) as u32,
        cdw12: kept | (steering.blocks - 1) & NLB | fua,
        ..*entry
    }
}

/// Changed target of a command's legs after its submission: all fields that a program may change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Change {
    slba: u64,
    blocks: u32,
    fua: u8,
}

impl Change {
    fn of(steering: &Steering) -> Self {
        Self { slba: steering.slba, blocks: steering.blocks, fua: steering.fua }
    }

    fn apply(self, steering: &mut Steering) {
        (steering.slba, steering.blocks, steering.fua) = (self.slba, self.blocks, self.fua);
    }
}

/// Changes of commands in flight that are to be kept. Reserved at once: the data path does not allocate.
#[derive(Debug)]
struct Changes {
    changes: Vec<Change>,
    free: Vec<u16>,
}

/// Capacity, larger than the number of a drive's commands.
const CHANGES: u16 = 2048;

impl Changes {
    fn new() -> Self {
        Self { changes: vec![Change::default(); CHANGES.into()], free: (0..CHANGES).rev().collect() }
    }

    fn keep(&mut self, change: Change) -> Option<u16> {
        let number = self.free.pop()?;
        *self.changes.get_mut(usize::from(number))? = change;
        Some(number)
    }

    /// Returns the change of this cookie, and frees it.
    fn give_back(&mut self, cookie: u16) -> Option<Change> {
        let number = (cookie & KEPT).checked_sub(1)?;
        let change = self.changes.get(usize::from(number)).copied()?;
        self.free.push(number);
        Some(change)
    }
}

/// Fields of a cookie: the number of the kept change, plus one, and whether the program itself requested the
/// last hook.
const KEPT: u16 = 0xfff;
const LAST_REQUESTED: u16 = 1 << 15;

/// Runs a program of NVMetro's interface.
pub struct Nvmetro<F> {
    run: F,
    changes: Changes,
}

impl<F> fmt::Debug for Nvmetro<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvmetro").finish_non_exhaustive()
    }
}

impl<F, E> Nvmetro<F>
where
    F: FnMut(&mut [u8; NVMETRO_CONTEXT]) -> Result<u64, E> + Send,
{
    /// Creates a classifier. `run` runs the program once; it records its errors itself. Only the lower half
    /// of its result counts: such programs return an `int`.
    pub fn new(run: F) -> Self {
        Self { run, changes: Changes::new() }
    }

    /// Runs the program on a context with the steering that it is to see. Permitted changes go to the
    /// steering; others are dropped, and mark the context, so that the router counts them.
    fn run_program(&mut self, context: &mut Context, hook: Hook) -> Result<u32, Trapped> {
        let (current_hook, status) = hook_bit(hook).ok_or(Trapped)?;
        let (entry, steering) = (*context.entry(), context.steering);
        let has_range = has_range(&entry, &steering);
        let shown = if has_range { steered(&entry, &steering) } else { entry };
        let in_flight = u32::from(context.facts().in_flight);
        let before = IoContext {
            command: zerocopy::transmute!(shown),
            sqid: context.facts().queue.into(),
            current_hook,
            iostate: (in_flight & 3) * word::SEND_HQ,
            data: status.0.into(),
            aux: [0; 3],
        };
        let mut bytes: [u8; NVMETRO_CONTEXT] = zerocopy::transmute!(before);
        let word = (self.run)(&mut bytes).map_err(|_| Trapped)? as u32;
        let after: IoContext = zerocopy::transmute!(bytes);
        if before.as_bytes() != after.as_bytes() {
            let changed: SubmissionEntry = zerocopy::transmute!(after.command);
            let beyond =
                before.as_bytes()[SubmissionEntry::SIZE..] != after.as_bytes()[SubmissionEntry::SIZE..];
            take_over(context, &shown, &changed, has_range, beyond);
        }
        Ok(word)
    }

    /// Keeps the change that was made at submission for later hooks, and requests the last hook to free it.
    fn keep(&mut self, change: Change, verdict: Verdict) -> Result<Verdict, Trapped> {
        let Ok(decision) = verdict.decode() else { return Ok(verdict) };
        if decision.events.is_empty() && !decision.before_completion {
            return Ok(verdict);
        }
        let number = self.changes.keep(change).ok_or(Trapped)?;
        let requested = if decision.before_completion { LAST_REQUESTED } else { 0 };
        Ok(verdict.and_call_before_completion().with_cookie((number + 1) | requested))
    }
}

/// Divides a program's changes into permitted ones and others.
fn take_over(
    context: &mut Context,
    shown: &SubmissionEntry,
    changed: &SubmissionEntry,
    has_range: bool,
    beyond: bool,
) {
    let mut rest = *changed;
    if has_range {
        context.steering.slba = changed.slba();
        context.steering.blocks = (changed.cdw12 & NLB) + 1;
        context.steering.fua = u8::from(changed.cdw12 & FUA != 0);
        (rest.cdw10, rest.cdw11) = (shown.cdw10, shown.cdw11);
        rest.cdw12 = changed.cdw12 & !(NLB | FUA) | shown.cdw12 & (NLB | FUA);
    }
    if beyond || rest != *shown {
        context.overreach();
    }
}

impl<F, E> Classifier for Nvmetro<F>
where
    F: FnMut(&mut [u8; NVMETRO_CONTEXT]) -> Result<u64, E> + Send,
{
    fn classify(&mut self, context: &mut Context) -> Result<Verdict, Trapped> {
        let hook = context.hook();
        let cookie = if hook == Hook::Submission { 0 } else { context.facts().cookie };
        let original = Change::of(&context.steering);
        let kept = self.changes.give_back(cookie);
        if let (Hook::BeforeCompletion(status), Some(_), 0) = (hook, kept, cookie & LAST_REQUESTED) {
            // The last hook was only requested to free the change.
            return Ok(Verdict::complete(status));
        }
        if let Some(change) = kept {
            change.apply(&mut context.steering);
        }
        let word = self.run_program(context, hook)?;
        let verdict = verdict(word, hook);
        let change = match hook {
            Hook::Submission => Some(Change::of(&context.steering)).filter(|change| *change != original),
            Hook::LegDone(..) => kept,
            Hook::BeforeCompletion(_) => None,
        };
        change.map_or(Ok(verdict), |change| self.keep(change, verdict))
    }

    fn refused(&mut self, verdict: Verdict) {
        // No change was kept for a word that does not decode.
        if let Ok(decision) = verdict.decode() {
            self.changes.give_back(decision.cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_behind_the_last_block_of_32_bits_is_shown_with_its_address() {
        let entry = SubmissionEntry { opcode: io::READ, cdw12: FUA | 7, ..SubmissionEntry::default() };
        for (fua, blocks) in [(0, 1), (1, 65_536)] {
            let steering = Steering { slba: 0x1_2345_6789_abcd, blocks, fua, ..Steering::default() };
            let shown = steered(&entry, &steering);
            assert_eq!((shown.slba(), shown.blocks(), shown.fua()), (steering.slba, blocks, fua == 1));
        }
    }
}
