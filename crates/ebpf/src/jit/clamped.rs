//! Whether generated code reaches memory only at addresses that are clamped, or that no program chose.

use std::collections::HashMap;

use cranelift_codegen::ir::{Function, Inst, InstructionData, Opcode, Value, ValueDef};

use super::runtime;

/// The accesses of a function whose address a program may have chosen, with the address.
///
/// `guards` says whether a guard against speculation clamps. Without, every access that needs one is found.
pub(super) fn unclamped(func: &Function, guards: bool) -> Vec<String> {
    let mut look = Look { func, guards, known: HashMap::new() };
    let instructions = func.layout.blocks().flat_map(|block| func.layout.block_insts(block));
    let accesses = instructions.filter_map(|inst| Some((inst, address(func, inst)?)));
    let wild = accesses.filter(|(_, address)| !look.is_clamped(*address));
    wild.map(|(inst, _)| func.dfg.display_inst(inst).to_string()).collect()
}

/// The address of a load, a store or an atomic instruction.
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

struct Look<'a> {
    func: &'a Function,
    guards: bool,
    /// A value that is being looked at is taken for clamped: it is, unless something else that it may be is not.
    known: HashMap<Value, bool>,
}

impl Look<'_> {
    fn is_clamped(&mut self, value: Value) -> bool {
        let value = self.func.dfg.resolve_aliases(value);
        if let Some(&known) = self.known.get(&value) {
            return known;
        }
        self.known.insert(value, true);
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

    /// What a parameter of a block may be.
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
        match &dfg.insts[inst] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, .. } => true,
            data => match data.opcode() {
                Opcode::SelectSpectreGuard => self.guards && self.compares_what_it_clamps(&arguments),
                Opcode::Iadd | Opcode::IaddImm | Opcode::IshlImm | Opcode::Ishl | Opcode::Isub => {
                    arguments.into_iter().all(|argument| self.is_clamped(argument))
                }
                // A field of the machine: where the context is.
                Opcode::Load => self.is_parameter(arguments[0], 0),
                Opcode::CallIndirect => self.calls_resolve(arguments[0]),
                _ => false,
            },
        }
    }

    /// A guard between zero and a value clamps, if its condition is about that value.
    fn compares_what_it_clamps(&mut self, arguments: &[Value]) -> bool {
        let &[condition, yes, no] = arguments else { return false };
        let guarded = match (self.is_number(yes), self.is_number(no)) {
            (true, true) => return true,
            (true, false) => no,
            (false, true) => yes,
            (false, false) => return false,
        };
        let dfg = &self.func.dfg;
        let Some(inst) = dfg.value_def(dfg.resolve_aliases(condition)).inst() else { return false };
        let is_comparison = matches!(dfg.insts[inst].opcode(), Opcode::Icmp | Opcode::IcmpImm);
        let guarded = dfg.resolve_aliases(guarded);
        is_comparison && dfg.inst_args(inst).iter().any(|it| dfg.resolve_aliases(*it) == guarded)
    }

    fn is_number(&self, value: Value) -> bool {
        let dfg = &self.func.dfg;
        let inst = dfg.value_def(dfg.resolve_aliases(value)).inst();
        inst.is_some_and(|inst| dfg.insts[inst].opcode() == Opcode::Iconst)
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

    /// The machine finds addresses itself, and clamps them.
    fn calls_resolve(&self, callee: Value) -> bool {
        let dfg = &self.func.dfg;
        let Some(inst) = dfg.value_def(dfg.resolve_aliases(callee)).inst() else { return false };
        let resolve = runtime::resolve as *const () as usize as i64;
        matches!(dfg.insts[inst], InstructionData::UnaryImm { imm, .. } if imm.bits() == resolve)
    }
}
