//! Program before it is loaded: the content of an object file, unverified.

use std::ops::Range;

use crate::decode::{Slot, decode};
use crate::elf;
use crate::error::{LoadError, LoadErrorKind, SourceLine};
use crate::insn::{Insn, Wide};
use crate::maps::MapDef;

/// Limits of a load; a run is limited by its fuel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Slots of a program.
    pub slots: usize,
    /// Maps of a program, global data included.
    pub maps: usize,
    /// Bytes of all maps of a program.
    pub map_bytes: usize,
    /// Bytes of an object file.
    pub file_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots: 8192, maps: 64, map_bytes: 64 << 20, file_bytes: 1 << 20 }
    }
}

/// Map that an object requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapSpec {
    pub def: MapDef,
    /// Content of the one value of global data.
    pub data: Option<Vec<u8>>,
}

impl From<MapDef> for MapSpec {
    fn from(def: MapDef) -> Self {
        Self { def, data: None }
    }
}

/// Program with its maps, unverified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// Code of the program, followed by the functions that it calls.
    pub slots: Vec<Slot>,
    /// Slot at which the program starts.
    pub entry: usize,
    pub maps: Vec<MapSpec>,
    /// Version of `sluice.h` that the object was compiled with; none if it has no version.
    pub abi: Option<u32>,
    /// Source lines by the slot where they begin, in order.
    pub lines: Vec<(usize, SourceLine)>,
}

impl Object {
    /// Reads the program in a section of an ELF object, as clang makes it with `-target bpf`.
    pub fn from_elf(bytes: &[u8], section: &str, limits: &Limits) -> Result<Self, LoadError> {
        elf::load(bytes, section, limits)
    }

    /// Returns the source line of a slot.
    pub fn line(&self, slot: usize) -> Option<&SourceLine> {
        let after = self.lines.partition_point(|(first, _)| *first <= slot);
        self.lines.get(after.checked_sub(1)?).map(|(_, line)| line)
    }

    /// Adds the source line to an error that names an instruction.
    pub(crate) fn locate(&self, mut error: LoadError) -> LoadError {
        error.source = error.insn.and_then(|insn| self.line(insn)).cloned().map(Box::new);
        error
    }
}

/// Decoded program: every jump stays in its function, every function ends, every map exists.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) insns: Vec<Insn>,
    /// Functions in order; together they have all slots.
    pub(crate) functions: Vec<Range<usize>>,
    pub(crate) entry: usize,
    /// Cost of all instructions before each slot, and of all.
    costs: Vec<u64>,
}

impl Code {
    pub(crate) fn new(object: &Object, limits: &Limits) -> Result<Self, LoadError> {
        let slots = object.slots.len();
        if slots == 0 {
            return Err(LoadErrorKind::Empty.into());
        }
        if slots > limits.slots {
            return Err(LoadErrorKind::TooLong { slots, limit: limits.slots }.into());
        }
        let insns = decode(&object.slots)?;
        let functions = functions(&insns, object.entry)?;
        let costs = costs(&insns);
        let code = Self { insns, functions, entry: object.entry, costs };
        code.check_functions()?;
        code.check_maps(&object.maps)?;
        Ok(code)
    }

    /// Returns the instruction at a slot.
    pub(crate) fn insn(&self, at: usize) -> Option<&Insn> {
        self.insns.get(at)
    }

    /// Returns the function that a slot belongs to.
    pub(crate) fn function_of(&self, at: usize) -> Range<usize> {
        let after = self.functions.partition_point(|function| function.start <= at);
        after.checked_sub(1).and_then(|index| self.functions.get(index)).cloned().unwrap_or(0..0)
    }

    /// Returns the fuel of a call of the function at `target`: all its work without backward jumps.
    pub(crate) fn call_cost(&self, target: usize) -> u64 {
        self.cost(&self.function_of(target))
    }

    /// Returns the fuel of a jump: none forwards; backwards, all work between its target and itself. So the
    /// fuel bounds the work, and code without loops pays nothing.
    pub(crate) fn jump_cost(&self, at: usize, target: usize) -> u64 {
        if target <= at { self.cost(&(target..at + 1)) } else { 0 }
    }

    /// Returns the cost of these instructions, one after the other.
    fn cost(&self, slots: &Range<usize>) -> u64 {
        let before = |slot: usize| self.costs.get(slot).copied().unwrap_or(0);
        before(slots.end).saturating_sub(before(slots.start))
    }

    /// Returns whether a basic block begins at each slot.
    pub(crate) fn leaders(&self) -> Vec<bool> {
        let mut leaders = vec![false; self.insns.len()];
        let jumps = self.insns.iter().enumerate().flat_map(|(at, insn)| {
            let after = matches!(insn, Insn::Branch { .. }).then_some(at + 1);
            [insn.jump_target(), after]
        });
        for at in jumps.flatten().chain(self.functions.iter().map(|function| function.start)) {
            if let Some(leader) = leaders.get_mut(at) {
                *leader = true;
            }
        }
        leaders
    }

    fn check_functions(&self) -> Result<(), LoadError> {
        for function in &self.functions {
            for at in function.clone() {
                let target = self.insn(at).and_then(Insn::jump_target);
                if target.is_some_and(|target| !function.contains(&target)) {
                    return Err(LoadError::at(at, LoadErrorKind::JumpOutOfFunction));
                }
            }
            let last = function.clone().rev().find(|&at| self.insn(at) != Some(&Insn::Tail));
            if let Some(last) = last
                && self.insn(last).is_some_and(Insn::falls_through)
            {
                return Err(LoadError::at(last, LoadErrorKind::RunsOffTheEnd));
            }
        }
        Ok(())
    }

    fn check_maps(&self, maps: &[MapSpec]) -> Result<(), LoadError> {
        for (at, insn) in self.insns.iter().enumerate() {
            let Insn::LoadWide { value, .. } = insn else { continue };
            let kind = match *value {
                Wide::Map(map) if maps.get(map as usize).is_none() => LoadErrorKind::NoSuchMap { map },
                Wide::MapValue { map, offset } => match maps.get(map as usize) {
                    None => LoadErrorKind::NoSuchMap { map },
                    // One past the end is an address that C may form.
                    Some(spec) if offset > spec.def.value_size => LoadErrorKind::BadMapOffset { map, offset },
                    Some(_) => continue,
                },
                _ => continue,
            };
            return Err(LoadError::at(at, kind));
        }
        Ok(())
    }
}

/// Splits a program at the targets of its calls.
fn functions(insns: &[Insn], entry: usize) -> Result<Vec<Range<usize>>, LoadError> {
    if matches!(insns.get(entry), None | Some(Insn::Tail)) {
        return Err(LoadErrorKind::BadJump.into());
    }
    let called = insns.iter().filter_map(|insn| match insn {
        Insn::CallLocal { target } => Some(*target as usize),
        _ => None,
    });
    let mut starts: Vec<usize> = called.chain([0, entry]).collect();
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).copied().chain([insns.len()]);
    Ok(starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect())
}

/// Returns the running sums of the costs of instructions.
fn costs(insns: &[Insn]) -> Vec<u64> {
    let sum = |sum: &mut u64, insn: &Insn| {
        *sum += insn.cost();
        Some(*sum)
    };
    [0].into_iter().chain(insns.iter().scan(0, sum)).collect()
}
