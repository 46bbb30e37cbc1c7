//! The classifiers that are counted: two that do nothing, and two that do typical work. Of each pair one is
//! in Rust and one in eBPF.

use super::child::trouble;
use super::scenario::Classifier as Kind;
use sluice_classifier::{Clock, Loaded, MapDef, Object, Update};
use sluice_ebpf::asm::{Asm, I, R};
use sluice_ebpf::insn::{AluOp, Cond, Size, Width};
use sluice_nvme::{Status, SubmissionEntry, opcode::io};
use sluice_router::{Classifier, Context, Direct, Facts, Hook, Leg, Steering, Verdict};
use sluice_spec::error::ApiError;

/// Window of the one namespace: its beginning, its blocks, and a counter of requested blocks.
const WINDOW: [u64; 3] = [0, 1 << 15, 0];
const NSID: usize = 1;
/// Namespaces that can have a window.
const WINDOWS: usize = 16;

pub(super) fn make(kind: Kind) -> Result<Option<Box<dyn Classifier>>, ApiError> {
    Ok(match kind {
        Kind::None => None,
        Kind::Native => Some(Box::new(Direct)),
        Kind::Ebpf => Some(load(pass(), Vec::new())?.classifier),
        Kind::NativeWindow => Some(Box::new(native_window())),
        Kind::EbpfWindow => Some(ebpf_window()?),
    })
}

fn load(asm: Asm, maps: Vec<MapDef>) -> Result<Loaded, ApiError> {
    let maps = maps.into_iter().map(Into::into).collect();
    let object = Object { slots: asm.finish(), maps, ..Object::default() };
    sluice_classifier::load_object(object, Clock::Coarse, &[]).map_err(|error| trouble(&error))
}

/// Returns a program that sends all commands down the first path.
fn pass() -> Asm {
    Asm::new().number(0, Verdict::send(Leg::FIRST).0).exit()
}

pub(in super::super) fn ebpf_window() -> Result<Box<dyn Classifier>, ApiError> {
    let value: Vec<u8> = WINDOW.iter().flat_map(|word| word.to_le_bytes()).collect();
    let loaded = load(window(), vec![MapDef::array("windows", value.len() as u32, WINDOWS as u32)])?;
    let windows = loaded.view.map("windows").ok_or_else(|| ApiError::internal("the program has no map"))?;
    let key = (NSID as u32).to_le_bytes();
    windows.set(&key, &value, Update::Any).map_err(|error| trouble(&error))?;
    Ok(loaded.classifier)
}

const CONTEXT: u8 = 6;
const WORD: Width = Width::W64;
const MAP_LOOKUP: u32 = 1;
const COUNT: u32 = 1000;

/// Instructions of the program below, as an object file counts them.
pub(in super::super) const INSTRUCTIONS: usize = 56;

/// Returns a program of 56 instructions: a switch on the opcode, hints for the layers, a map lookup, a range
/// check, a moved SLBA, counters and the verdict.
fn window() -> Asm {
    let asm = Asm::new().mov(CONTEXT, R(1)).load(Size::B1, 2, CONTEXT, 2);
    let asm = asm.branch(Cond::Ne, WORD, 2, I(0), "outside").load(Size::B1, 2, CONTEXT, 10);
    let asm = asm.branch(Cond::Eq, WORD, 2, I(i32::from(io::FLUSH)), "flush");
    let asm = asm.branch(Cond::Eq, WORD, 2, I(i32::from(io::WRITE)), "write");
    let asm = asm.branch(Cond::Eq, WORD, 2, I(i32::from(io::READ)), "read");
    let asm = count(asm, 1).number(0, Verdict::complete(Status::INVALID_OPCODE).0).exit();
    let asm = asm.label("write").mov(7, I(1)).jump("hint").label("read").mov(7, I(2)).label("hint");
    find(hint(asm))
}

/// Appends the hints for the layers: for a command in a high queue, and for one with Force Unit Access.
fn hint(asm: Asm) -> Asm {
    let asm = asm.load(Size::B2, 2, CONTEXT, 8).branch(Cond::Le, WORD, 2, I(8), "low");
    let asm = asm.alu(AluOp::Or, WORD, 7, I(0x200)).label("low").load(Size::B1, 2, CONTEXT, 53);
    let asm = asm.branch(Cond::Eq, WORD, 2, I(0), "no fua").alu(AluOp::Or, WORD, 7, I(0x100));
    asm.label("no fua").store(Size::B4, CONTEXT, 48, R(7))
}

fn find(asm: Asm) -> Asm {
    let asm = asm.load(Size::B4, 2, CONTEXT, 12).store(Size::B4, 10, -4, R(2)).map(1, 0);
    let asm = asm.mov(2, R(10)).add(2, I(-4)).call(MAP_LOOKUP).branch(Cond::Eq, WORD, 0, I(0), "outside");
    let asm = asm.mov(7, R(0)).load(Size::B8, 8, CONTEXT, 32).load(Size::B4, 9, CONTEXT, 40);
    let asm = asm.load(Size::B8, 2, 7, 8).branch(Cond::Ge, WORD, 8, R(2), "outside");
    let asm = asm.alu(AluOp::Sub, WORD, 2, R(8)).branch(Cond::Gt, WORD, 9, R(2), "outside");
    let asm = asm.load(Size::B8, 3, 7, 0).add(8, R(3)).store(Size::B8, CONTEXT, 32, R(8));
    let asm = asm.load(Size::B8, 4, 7, 16).add(4, R(9)).store(Size::B8, 7, 16, R(4));
    let asm = count(asm, 2).number(0, Verdict::send(Leg::FIRST).0).exit();
    let asm = count(asm.label("flush"), 0).number(0, Verdict::send(Leg::FIRST).0).exit();
    asm.label("outside").number(0, Verdict::complete(Status::LBA_OUT_OF_RANGE).0).exit()
}

fn count(asm: Asm, index: i32) -> Asm {
    asm.mov(1, I(index)).call(COUNT)
}

/// State of the same classifier in Rust.
#[derive(Default)]
pub(in super::super) struct Windows {
    windows: [[u64; 3]; WINDOWS],
    counters: [u64; 3],
}

impl Windows {
    pub(in super::super) fn new() -> Self {
        let mut all = Self::default();
        all.windows[NSID] = WINDOW;
        all
    }
}

/// The same classifier in Rust.
pub(in super::super) type Native = fn(&mut Windows, &mut Context) -> Verdict;

fn native_window() -> impl FnMut(&mut Context) -> Verdict + Send {
    let mut windows = Windows::new();
    move |context| decide(&mut windows, context)
}

pub(in super::super) fn decide(state: &mut Windows, context: &mut Context) -> Verdict {
    let facts = *context.facts();
    if facts.hook != 0 {
        return Verdict::complete(Status::LBA_OUT_OF_RANGE);
    }
    let mut hint = match facts.opcode {
        io::FLUSH => {
            state.counters[0] += 1;
            return Verdict::send(Leg::FIRST);
        }
        io::WRITE => 1,
        io::READ => 2,
        _ => {
            state.counters[1] += 1;
            return Verdict::complete(Status::INVALID_OPCODE);
        }
    };
    hint |= if facts.queue > 8 { 0x200 } else { 0 };
    hint |= if context.steering.fua != 0 { 0x100 } else { 0 };
    context.steering.hints = hint;
    let (slba, blocks) = (context.steering.slba, u64::from(context.steering.blocks));
    let Some([first, length, seen]) = state.windows.get_mut(facts.nsid as usize) else {
        return Verdict::complete(Status::LBA_OUT_OF_RANGE);
    };
    if slba >= *length || blocks > *length - slba {
        return Verdict::complete(Status::LBA_OUT_OF_RANGE);
    }
    context.steering.slba = slba.wrapping_add(*first);
    *seen = seen.wrapping_add(blocks);
    state.counters[2] += 1;
    Verdict::send(Leg::FIRST)
}

/// Returns commands as a guest sends them: reads and writes, one with Force Unit Access, one in a high queue,
/// a Flush, one outside. The window begins at block 0, so that a call leaves them as they were.
pub(in super::super) fn commands() -> Vec<Context> {
    let command = |(opcode, queue, slba, fua): (u8, u16, u64, u8)| {
        let facts = Facts { opcode, queue, nsid: NSID as u32, ..Facts::default() };
        let blocks = if opcode == io::FLUSH { 0 } else { 8 };
        let steering = Steering { slba, blocks, fua, ..Steering::default() };
        Context::new(
            Hook::Submission,
            facts,
            steering,
            &SubmissionEntry { opcode, ..SubmissionEntry::default() },
        )
    };
    let all = [
        (io::READ, 1, 0, 0),
        (io::WRITE, 2, 800, 0),
        (io::READ, 3, 8008, 0),
        (io::WRITE, 1, 16, 1),
        (io::READ, 9, 32_760, 0),
        (io::FLUSH, 1, 0, 0),
        (io::READ, 2, 1 << 15, 0),
        (io::READ, 1, 1024, 0),
    ];
    all.map(command).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_the_size_it_is_said_to_have() {
        assert_eq!(window().len(), INSTRUCTIONS);
    }

    #[test]
    fn the_commands_are_the_same_after_a_call() {
        let (mut native, mut ebpf) = (native_window(), ebpf_window().expect("it loads"));
        let before = commands();
        let mut verdicts = Vec::new();
        let mut first = before.clone();
        first.iter_mut().for_each(|context| verdicts.push(native(context)));
        let mut second = first.clone();
        for (context, verdict) in second.iter_mut().zip(&verdicts) {
            assert_eq!(ebpf.classify(context), Ok(*verdict));
        }
        assert_eq!(first, second);
        let slba = |contexts: &[Context]| contexts.iter().map(|it| it.steering.slba).collect::<Vec<_>>();
        assert_eq!(slba(&before), slba(&first));
    }

    #[test]
    fn both_of_a_pair_say_the_same() {
        let mut native = native_window();
        let mut ebpf = ebpf_window().expect("it loads");
        for (opcode, nsid, slba, blocks) in [
            (0, 1, 0, 0),
            (1, 1, 5, 8),
            (2, 1, 32760, 8),
            (2, 1, 32761, 8),
            (2, 1, 1 << 40, 1),
            (2, 2, 0, 8),
            (9, 1, 0, 8),
        ] {
            let facts = Facts { opcode, nsid, queue: 1, ..Facts::default() };
            let steering = Steering { slba, blocks, ..Steering::default() };
            let context = || Context::new(Hook::Submission, facts, steering, &SubmissionEntry::default());
            let (mut first, mut second) = (context(), context());
            assert_eq!(Ok(native(&mut first)), ebpf.classify(&mut second), "{opcode} {slba}");
            assert_eq!(first, second);
        }
    }
}
