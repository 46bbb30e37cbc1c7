//! Check that generated code reaches memory only at addresses that are clamped, or that no program chose.

use std::collections::HashMap;
use std::ops::Range;

use cranelift_codegen::ir::condcodes::{CondCode, IntCC};
use cranelift_codegen::ir::{Function, Inst, InstructionData, Opcode, Value, ValueDef};

use super::access::NOWHERE;
use super::runtime;
use crate::layout::REGION_BYTES_MAX;
use crate::machine::{Machine, Memory};
use crate::trace::COUNTERS;

/// Returns the accesses of a function whose address a program may have chosen, with the address.
///
/// `guards` decides whether a guard against speculation counts as a clamp. Without, every access that needs
/// one is found.
pub(super) fn unclamped(func: &Function, memory: &Memory, tables: Range<u64>, guards: bool) -> Vec<String> {
    let mut checker = Checker { func, guards, addresses: addresses(memory, tables), known: HashMap::new() };
    let instructions = func.layout.blocks().flat_map(|block| func.layout.block_insts(block));
    let accesses = instructions.filter_map(|inst| Some((inst, address(func, inst)?)));
    let wild = accesses.filter(|(_, address)| !checker.is_clamped(*address));
    wild.map(|(inst, _)| func.dfg.display_inst(inst).to_string()).collect()
}

/// Largest distance from an address in the code that the offset of an instruction can reach.
const NEAR: u64 = 1 << 16;

/// Returns the addresses that code may contain: of memory, of the table of functions, and near them.
fn addresses(memory: &Memory, tables: Range<u64>) -> Vec<Range<u64>> {
    let maps = memory.maps.iter().filter_map(|map| map.values());
    let words = maps.chain([&memory.stack]).map(|words| (words.base().addr(), words.len()));
    let regions = words.chain([(memory.counters.base().addr(), COUNTERS * 8)]);
    let regions = regions.map(|(base, len)| base as u64..(base + len) as u64);
    regions.chain([tables]).map(|it| it.start - NEAR..it.end + NEAR).collect()
}

/// Returns the address of a load, a store or an atomic instruction.
fn address(func: &Function, inst: Inst) -> Option<Value> {
    let data = &func.dfg.insts[inst];
    let arguments = func.dfg.inst_args(inst);
    match data.opcode() {
        opcode if opcode.can_load() && !opcode.can_store() && !opcode.is_call() => arguments.first().copied(),
        Opcode::AtomicRmw | Opcode::AtomicCas => arguments.first().copied(),
        opcode if opcode.can_store() && !opcode.is_call() => arguments.get(1).copied(),
        _ => None,
    }
}

struct Checker<'a> {
    func: &'a Function,
    guards: bool,
    /// Addresses that code may contain.
    addresses: Vec<Range<u64>>,
    /// Values that were examined. A value under examination counts as not clamped: a loop may advance it in
    /// each round.
    known: HashMap<Value, bool>,
}

impl Checker<'_> {
    fn is_clamped(&mut self, value: Value) -> bool {
        let value = self.func.dfg.resolve_aliases(value);
        if let Some(&known) = self.known.get(&value) {
            return known;
        }
        self.known.insert(value, false);
        let clamped = match self.func.dfg.value_def(value) {
            ValueDef::Result(inst, _) => self.computes_clamped(inst),
            ValueDef::Param(block, number) if Some(block) == self.func.layout.entry_block() => {
                // The machine and the end of the frame; the others are the program's.
                number < 2
            }
            ValueDef::Param(block, number) => {
                let incoming = self.incoming(block, number);
                incoming.into_iter().all(|value| self.is_clamped(value))
            }
            ValueDef::Union(one, other) => self.is_clamped(one) && self.is_clamped(other),
        };
        self.known.insert(value, clamped);
        clamped
    }

    /// Returns the possible values of a parameter of a block.
    fn incoming(&self, block: cranelift_codegen::ir::Block, number: usize) -> Vec<Value> {
        let dfg = &self.func.dfg;
        let instructions = self.func.layout.blocks().flat_map(|block| self.func.layout.block_insts(block));
        let branches = instructions.flat_map(|inst| {
            dfg.insts[inst].branch_destination(&dfg.jump_tables, &dfg.exception_tables).iter()
        });
        let to_block = branches.filter(|call| call.block(&dfg.value_lists) == block);
        let arguments = to_block.map(|call| call.args(&dfg.value_lists).nth(number));
        arguments.map(|argument| argument.and_then(|it| it.as_value()).expect("a value")).collect()
    }

    fn computes_clamped(&mut self, inst: Inst) -> bool {
        let dfg = &self.func.dfg;
        let arguments = dfg.inst_args(inst).to_vec();
        match dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => self.is_constant_of_code(imm.bits()),
            InstructionData::BinaryImm64 { opcode: Opcode::IaddImm, imm, .. } => {
                self.is_constant_of_code(imm.bits()) && self.is_clamped(arguments[0])
            }
            // A field of the machine: the address of the context.
            InstructionData::Load { opcode: Opcode::Load, offset, .. } => {
                i64::from(offset) == std::mem::offset_of!(Machine<'static>, context_at) as i64
                    && self.is_parameter(arguments[0], 0)
            }
            data => match data.opcode() {
                Opcode::SelectSpectreGuard => self.guards && self.compares_the_clamped_value(&arguments),
                Opcode::Iadd => arguments.into_iter().all(|argument| self.is_clamped(argument)),
                Opcode::IshlImm => self.is_clamped(arguments[0]),
                Opcode::Ishl => self.number(arguments[1]).is_some() && self.is_clamped(arguments[0]),
                Opcode::CallIndirect => self.calls_resolve(arguments[0]),
                _ => false,
            },
        }
    }

    /// Returns whether a constant is an offset or an address of the code, not one that a program contains.
    fn is_constant_of_code(&self, constant: i64) -> bool {
        let is_offset = constant.unsigned_abs() < REGION_BYTES_MAX as u64;
        let is_address = self.addresses.iter().any(|range| range.contains(&(constant as u64)));
        is_offset || is_address || constant as u64 == NOWHERE
    }

    /// Returns whether a guard between zero and a value clamps: its condition must bound the value by a
    /// constant.
    fn compares_the_clamped_value(&self, arguments: &[Value]) -> bool {
        let &[condition, yes, no] = arguments else { return false };
        let (guarded, if_true) = match (self.number(yes), self.number(no)) {
            (Some(0), Some(0)) => return true,
            (_, Some(0)) => (yes, true),
            (Some(0), _) => (no, false),
            _ => return false,
        };
        let Some((code, compared, bound)) = self.comparison(condition) else { return false };
        let code = if if_true { code } else { code.complement() };
        let bounds = matches!(code, IntCC::UnsignedLessThan | IntCC::UnsignedLessThanOrEqual | IntCC::Equal);
        bounds && (0..REGION_BYTES_MAX as i64).contains(&bound) && self.is_same(compared, guarded)
    }

    /// Returns a comparison with a constant.
    fn comparison(&self, value: Value) -> Option<(IntCC, Value, i64)> {
        let inst = self.inst(value)?;
        match self.func.dfg.insts[inst] {
            InstructionData::IntCompareImm { cond, arg, imm, .. } => Some((cond, arg, imm.bits())),
            InstructionData::IntCompare { cond, args: [one, other], .. } => match self.number(other) {
                Some(number) => Some((cond, one, number)),
                None => Some((cond.swap_args(), other, self.number(one)?)),
            },
            _ => None,
        }
    }

    /// Returns whether two values are the same number. The optimiser computes a sum again where it is used,
    /// as another value.
    fn is_same(&self, one: Value, other: Value) -> bool {
        let dfg = &self.func.dfg;
        let (one, other) = (dfg.resolve_aliases(one), dfg.resolve_aliases(other));
        if one == other {
            return true;
        }
        let (Some(first), Some(second)) = (self.inst(one), self.inst(other)) else { return false };
        match (dfg.insts[first], dfg.insts[second]) {
            (
                InstructionData::UnaryImm { opcode: Opcode::Iconst, imm: a },
                InstructionData::UnaryImm { opcode: Opcode::Iconst, imm: b },
            ) => a == b && dfg.value_type(one) == dfg.value_type(other),
            (
                InstructionData::Binary { opcode: a, args: [w, x] },
                InstructionData::Binary { opcode: b, args: [y, z] },
            ) => a == b && is_computed(a) && self.is_same(w, y) && self.is_same(x, z),
            (
                InstructionData::BinaryImm64 { opcode: a, arg: w, imm: x },
                InstructionData::BinaryImm64 { opcode: b, arg: y, imm: z },
            ) => a == b && is_computed(a) && x == z && self.is_same(w, y),
            _ => false,
        }
    }

    fn inst(&self, value: Value) -> Option<Inst> {
        let dfg = &self.func.dfg;
        dfg.value_def(dfg.resolve_aliases(value)).inst()
    }

    fn number(&self, value: Value) -> Option<i64> {
        match self.func.dfg.insts[self.inst(value)?] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits()),
            _ => None,
        }
    }

    fn is_parameter(&self, value: Value, wanted: usize) -> bool {
        let dfg = &self.func.dfg;
        match dfg.value_def(dfg.resolve_aliases(value)) {
            ValueDef::Param(block, number) => {
                Some(block) == self.func.layout.entry_block() && number == wanted
            }
            _ => false,
        }
    }

    /// Returns whether a call is one of `resolve`, which finds addresses in the machine, and clamps them.
    fn calls_resolve(&self, callee: Value) -> bool {
        self.number(callee) == Some(runtime::resolve as *const () as usize as i64)
    }
}

/// Returns whether the result depends on nothing but the operands.
fn is_computed(opcode: Opcode) -> bool {
    !opcode.can_load() && !opcode.can_store() && !opcode.is_call() && !opcode.other_side_effects()
}
