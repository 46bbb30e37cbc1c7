//! Lowering of instructions to Cranelift's: functions, blocks, jumps.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, Function, InstBuilder, InstructionData, MemFlags, Opcode, Signature, Type, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetIsa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::access::Clamped;
use super::{Source, pack};
use crate::error::Fault;
use crate::helpers::Helper;
use crate::insn::{Cond, Insn, Operand, Reg, Width};
use crate::interpreter::wide;
use crate::layout::{FRAME_BYTES, Region};
use crate::machine::Machine;
use crate::object::Code;
use crate::verify::Proof;

/// Function to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Whole program, called from outside: takes the machine.
    Program(usize),
    /// Function, called by the program: takes the machine, the end of its frame and r1 to r5.
    Function(usize),
}

impl Unit {
    fn start(self) -> usize {
        match self {
            Self::Program(start) | Self::Function(start) => start,
        }
    }
}

/// Common input of the generation of all functions of a program.
pub(super) struct Lowering<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) helpers: &'a [Option<Helper>],
    pub(super) functions: &'a [AtomicUsize],
    pub(super) units: &'a [Unit],
}

/// Function while it is being generated.
pub(super) struct Lower<'l, 'b> {
    pub(super) all: &'l Lowering<'l>,
    pub(super) b: FunctionBuilder<'b>,
    pub(super) call_conv: CallConv,
    /// Slot of the current instruction.
    pub(super) at: usize,
    /// Address of the machine.
    pub(super) machine: Value,
    /// Distance of the end of this function's frame from the start of the stack.
    pub(super) frame_end: Value,
    /// Host's address of that end.
    pub(super) frame: Value,
    /// Host's address of the context.
    pub(super) context: Value,
    registers: [Variable; Reg::COUNT],
    blocks: HashMap<usize, Block>,
    /// Last element of an array that was looked up, and whether it exists.
    pub(super) found: Option<(Value, Value)>,
    /// Registers with a clamped position, by number, until they change or the block ends.
    pub(super) clamped: HashMap<usize, Clamped>,
    /// Destination of every fault, with the trap as its argument.
    trap: Block,
}

pub(super) const I64: Type = types::I64;

/// Returns the flags of accesses to memory that certainly exists.
pub(super) fn trusted() -> MemFlags {
    MemFlags::new().with_notrap().with_endianness(cranelift_codegen::ir::Endianness::Little)
}

impl Lowering<'_> {
    /// Generates one function.
    pub(super) fn function(
        &self,
        unit: Unit,
        isa: &dyn TargetIsa,
        function: &mut Function,
        frontend: &mut FunctionBuilderContext,
    ) {
        let call_conv = isa.default_call_conv();
        function.signature = signature(call_conv, if matches!(unit, Unit::Program(_)) { 1 } else { 7 });
        let mut b = FunctionBuilder::new(function, frontend);
        let first = b.create_block();
        b.append_block_params_for_function_params(first);
        b.switch_to_block(first);
        let parameters = b.block_params(first).to_vec();
        let registers = std::array::from_fn(|_| b.declare_var(I64));
        let range = self.source.code.function_of(unit.start());
        let blocks = blocks(self.source.code, &range, &mut b);
        let trap = b.create_block();
        b.append_block_param(trap, I64);
        b.set_cold_block(trap);
        let machine = parameters[0];
        let frame_end = match parameters.get(1) {
            Some(frame_end) => *frame_end,
            None => b.ins().iconst(I64, FRAME_BYTES as i64),
        };
        let stack = b.ins().iconst(I64, self.source.memory.stack.base().addr() as i64);
        let frame = b.ins().iadd(stack, frame_end);
        let context = b.ins().load(
            I64,
            trusted(),
            machine,
            mem_offset(std::mem::offset_of!(Machine<'static>, context_at)),
        );
        let at = unit.start();
        let mut lower = Lower {
            all: self,
            b,
            call_conv,
            at,
            machine,
            frame_end,
            frame,
            context,
            registers,
            blocks,
            found: None,
            clamped: HashMap::new(),
            trap,
        };
        lower.prologue(parameters.get(2..).unwrap_or_default());
        lower.body(&range);
        lower.trap_exit();
        lower.b.seal_all_blocks();
        lower.b.finalize();
    }
}

/// Returns the signature of a function of so many numbers that returns a number and a trap.
pub(super) fn signature(call_conv: CallConv, parameters: usize) -> Signature {
    let mut signature = Signature::new(call_conv);
    signature.params.extend(std::iter::repeat_n(AbiParam::new(I64), parameters));
    signature.returns.extend([AbiParam::new(I64), AbiParam::new(I64)]);
    signature
}

/// Returns the offset of a field in an instruction's type.
pub(super) fn mem_offset(offset: usize) -> i32 {
    i32::try_from(offset).expect("a field of a small structure")
}

fn blocks(code: &Code, range: &Range<usize>, b: &mut FunctionBuilder<'_>) -> HashMap<usize, Block> {
    let leaders = code.leaders();
    range.clone().filter(|at| leaders.get(*at) == Some(&true)).map(|at| (at, b.create_block())).collect()
}

impl Lower<'_, '_> {
    pub(super) fn get(&mut self, reg: Reg) -> Value {
        self.b.use_var(self.registers[reg.index()])
    }

    pub(super) fn set(&mut self, reg: Reg, value: Value) {
        self.clamped.remove(&reg.index());
        self.b.def_var(self.registers[reg.index()], value);
    }

    pub(super) fn number(&mut self, value: u64) -> Value {
        self.b.ins().iconst(I64, value as i64)
    }

    /// Returns the number of a constant value.
    pub(super) fn constant(&self, value: Value) -> Option<u64> {
        let of = self.b.func.dfg.value_def(value).inst()?;
        match self.b.func.dfg.insts[of] {
            InstructionData::UnaryImm { opcode: Opcode::Iconst, imm } => Some(imm.bits() as u64),
            _ => None,
        }
    }

    pub(super) fn operand(&mut self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(value) => self.number(value as u64),
        }
    }

    pub(super) fn proof(&self) -> &Proof {
        self.all.source.proofs.get(self.at).unwrap_or(&Proof::Nothing)
    }

    /// Emits the registers at the start of a function: those without a value are zero.
    fn prologue(&mut self, arguments: &[Value]) {
        let zero = self.number(0);
        for variable in self.registers {
            self.b.def_var(variable, zero);
        }
        for (reg, value) in Reg::arguments().into_iter().zip(arguments) {
            self.set(reg, *value);
        }
        if arguments.is_empty() {
            let context = self.number(Region::Context.base());
            self.set(Reg::arguments()[0], context);
        }
        let frame_pointer = self.b.ins().iadd_imm(self.frame_end, Region::Stack.base() as i64);
        self.set(Reg::FRAME, frame_pointer);
        let start = self.block(self.at);
        self.b.ins().jump(start, &[]);
    }

    pub(super) fn begins_block(&self, at: usize) -> bool {
        self.blocks.contains_key(&at)
    }

    fn block(&self, at: usize) -> Block {
        // Code has been checked: every jump target begins a block of this function.
        self.blocks[&at]
    }

    fn body(&mut self, range: &Range<usize>) {
        let code = self.all.source.code;
        // Whether the instruction before can go on to this one.
        let mut open = false;
        for at in range.clone() {
            self.at = at;
            let Some(insn) = code.insn(at) else { return };
            if let Some(&block) = self.blocks.get(&at) {
                if open {
                    self.b.ins().jump(block, &[]);
                }
                self.b.switch_to_block(block);
                self.clamped.clear();
                open = true;
            }
            if open && *insn != Insn::Tail {
                self.insn(insn);
                // A branch has gone to the next block itself.
                open = insn.falls_through() && insn.jump_target().is_none();
            }
        }
    }

    fn insn(&mut self, insn: &Insn) {
        match *insn {
            Insn::Alu { op, width, dst, src } => {
                let (a, b) = (self.get(dst), self.operand(src));
                let result = self.alu(op, width, a, b);
                self.set(dst, result);
            }
            Insn::Neg { .. } | Insn::MovSx { .. } | Insn::Swap { .. } => self.unary(insn),
            Insn::LoadWide { dst, value } => {
                let value = self.number(wide(value));
                self.set(dst, value);
            }
            Insn::Tail => {}
            Insn::Load { .. } => self.load(insn),
            Insn::Store { .. } => self.store(insn),
            Insn::Atomic { .. } => self.atomic(insn),
            Insn::Jump { target } => self.jump(target as usize),
            Insn::Branch { cond, width, dst, src, target } => {
                let (a, b) = (self.get(dst), self.operand(src));
                let holds = self.compare(cond, width, a, b);
                self.branch(holds, target as usize);
            }
            Insn::CallHelper { number } => self.call_helper(number),
            Insn::CallLocal { target } => self.call_local(target as usize),
            Insn::Exit => {
                let (value, fine) = (self.get(Reg::RETURN), self.number(0));
                self.b.ins().return_(&[value, fine]);
            }
        }
    }

    fn compare(&mut self, cond: Cond, width: Width, a: Value, b: Value) -> Value {
        if width == Width::W64
            && let Some((element, exists)) = self.found
            && a == element
            && self.constant(b) == Some(0)
        {
            match cond {
                Cond::Eq => return self.b.ins().icmp_imm(IntCC::Equal, exists, 0),
                Cond::Ne => return exists,
                _ => {}
            }
        }
        let (a, b) = match width {
            Width::W64 => (a, b),
            Width::W32 => (self.b.ins().ireduce(types::I32, a), self.b.ins().ireduce(types::I32, b)),
        };
        let code = match cond {
            Cond::Set => {
                let both = self.b.ins().band(a, b);
                return self.b.ins().icmp_imm(IntCC::NotEqual, both, 0);
            }
            Cond::Eq => IntCC::Equal,
            Cond::Ne => IntCC::NotEqual,
            Cond::Gt => IntCC::UnsignedGreaterThan,
            Cond::Ge => IntCC::UnsignedGreaterThanOrEqual,
            Cond::Lt => IntCC::UnsignedLessThan,
            Cond::Le => IntCC::UnsignedLessThanOrEqual,
            Cond::SGt => IntCC::SignedGreaterThan,
            Cond::SGe => IntCC::SignedGreaterThanOrEqual,
            Cond::SLt => IntCC::SignedLessThan,
            Cond::SLe => IntCC::SignedLessThanOrEqual,
        };
        self.b.ins().icmp(code, a, b)
    }

    fn jump(&mut self, target: usize) {
        self.charge(self.all.source.code.jump_cost(self.at, target));
        let target = self.block(target);
        self.b.ins().jump(target, &[]);
    }

    fn branch(&mut self, holds: Value, target: usize) {
        let (taken, next) = (self.b.create_block(), self.block(self.at + 1));
        self.b.ins().brif(holds, taken, &[], next, &[]);
        self.b.switch_to_block(taken);
        self.jump(target);
    }

    /// Emits the use of fuel, with a trap at its end.
    pub(super) fn charge(&mut self, cost: u64) {
        if cost == 0 {
            return;
        }
        let offset = mem_offset(std::mem::offset_of!(Machine<'static>, fuel));
        let fuel = self.b.ins().load(I64, trusted(), self.machine, offset);
        let short = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, fuel, cost as i64);
        self.trap_if(short, Fault::OutOfFuel);
        let left = self.b.ins().iadd_imm(fuel, (cost as i64).wrapping_neg());
        self.b.ins().store(trusted(), left, self.machine, offset);
    }

    /// Emits an exit with a fault of this instruction when `condition` is not zero. The fault is loaded on
    /// the way out, so that code that stays does not pay for it.
    pub(super) fn trap_if(&mut self, condition: Value, fault: Fault) {
        let (out, next) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(out);
        self.b.ins().brif(condition, out, &[], next, &[]);
        self.b.switch_to_block(out);
        let trap = self.number(pack(self.at, fault) as u64);
        self.b.ins().jump(self.trap, &[trap.into()]);
        self.b.switch_to_block(next);
    }

    /// Emits an exit with a trap when `condition` is not zero.
    pub(super) fn leave_if(&mut self, condition: Value, trap: Value) {
        let next = self.b.create_block();
        self.b.ins().brif(condition, self.trap, &[trap.into()], next, &[]);
        self.b.switch_to_block(next);
    }

    fn trap_exit(&mut self) {
        self.b.switch_to_block(self.trap);
        let trap = self.b.block_params(self.trap)[0];
        let nothing = self.number(0);
        self.b.ins().return_(&[nothing, trap]);
    }
}
