//! Interpreter: the semantics of a program, one instruction after the other, every access checked.
//!
//! It is the reference for generated code, and runs where none can be generated.

use crate::alu;
use crate::error::{Fault, Trap};
use crate::helpers::Helper;
use crate::insn::{AtomicOp, Insn, Operand, Reg, Wide};
use crate::layout::{FRAME_BYTES, FRAMES_MAX, Region, map_handle};
use crate::machine::{Atomic, Machine};
use crate::object::Code;

/// Registers of a frame.
pub(crate) type Registers = [u64; Reg::COUNT];

/// Observer that is called before every step; tests compare the step with the verifier's results.
pub(crate) trait Observer {
    fn step(&mut self, at: usize, registers: &Registers);
}

impl Observer for () {
    fn step(&mut self, _: usize, _: &Registers) {}
}

/// Decoded program with the helpers that its calls name, by slot.
pub(crate) struct Interpreted<'a> {
    pub(crate) code: &'a Code,
    pub(crate) helpers: &'a [Option<Helper>],
}

/// State that is restored after a call.
#[derive(Clone, Copy, Default)]
struct Frame {
    return_to: usize,
    preserved: [u64; 4],
}

struct Run<'m, 'a, 'o, O> {
    program: &'m Interpreted<'m>,
    machine: &'m mut Machine<'a>,
    observer: &'o mut O,
    registers: Registers,
    frames: [Frame; FRAMES_MAX],
    depth: usize,
}

enum Step {
    Next,
    To(usize),
    Done(u64),
}

impl Interpreted<'_> {
    pub(crate) fn run(&self, machine: &mut Machine<'_>, observer: &mut impl Observer) -> Result<u64, Trap> {
        let mut registers = [0; Reg::COUNT];
        registers[1] = Region::Context.base();
        registers[Reg::FRAME.index()] = frame_pointer(0);
        let frames = [Frame::default(); FRAMES_MAX];
        let mut run = Run { program: self, machine, observer, registers, frames, depth: 0 };
        let mut at = self.code.entry;
        loop {
            run.observer.step(at, &run.registers);
            let trap = |fault| Trap { insn: at as u32, fault };
            let insn = self.code.insn(at).ok_or(trap(Fault::NoInstruction))?;
            match run.execute(at, insn).map_err(trap)? {
                Step::Next => at += insn.slots(),
                Step::To(target) => at = target,
                Step::Done(value) => return Ok(value),
            }
        }
    }
}

/// Returns the frame pointer at a depth of calls.
pub(crate) const fn frame_pointer(depth: usize) -> u64 {
    Region::Stack.base() + ((depth + 1) * FRAME_BYTES) as u64
}

impl<O: Observer> Run<'_, '_, '_, O> {
    fn get(&self, reg: Reg) -> u64 {
        self.registers[reg.index()]
    }

    fn set(&mut self, reg: Reg, value: u64) {
        self.registers[reg.index()] = value;
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(value) => value as u64,
        }
    }

    fn address(&self, base: Reg, offset: i16) -> u64 {
        self.get(base).wrapping_add_signed(offset.into())
    }

    fn execute(&mut self, at: usize, insn: &Insn) -> Result<Step, Fault> {
        match *insn {
            Insn::Alu { op, width, dst, src } => {
                self.set(dst, alu::alu(op, width, self.get(dst), self.operand(src)));
            }
            Insn::Neg { width, dst } => self.set(dst, alu::neg(width, self.get(dst))),
            Insn::MovSx { width, from, dst, src } => self.set(dst, alu::mov_sx(width, from, self.get(src))),
            Insn::Swap { kind, size, dst } => self.set(dst, alu::swap(kind, size, self.get(dst))),
            Insn::LoadWide { dst, value } => self.set(dst, wide(value)),
            Insn::Tail => return Err(Fault::NoInstruction),
            Insn::Load { size, signed, dst, base, offset } => {
                let value = self.machine.load(self.address(base, offset), size)?;
                self.set(dst, if signed { alu::sign_extend(size, value) } else { value });
            }
            Insn::Store { size, base, offset, src } => {
                self.machine.store(self.address(base, offset), size, self.operand(src))?;
            }
            Insn::Atomic { .. } => self.atomic(insn)?,
            Insn::Jump { target } => return self.jump(at, target as usize),
            Insn::Branch { cond, width, dst, src, target } => {
                if alu::compare(cond, width, self.get(dst), self.operand(src)) {
                    return self.jump(at, target as usize);
                }
            }
            Insn::CallHelper { .. } => self.call_helper(at)?,
            Insn::CallLocal { target } => return self.call_local(at, target as usize),
            Insn::Exit => return Ok(self.exit()),
        }
        Ok(Step::Next)
    }

    fn atomic(&mut self, insn: &Insn) -> Result<(), Fault> {
        let Insn::Atomic { op, fetch, size, base, offset, src } = *insn else { return Ok(()) };
        let (operand, expected) = (self.get(src), self.get(Reg::RETURN));
        let old = self.machine.atomic(Atomic { op, size, operand, expected }, self.address(base, offset))?;
        match (op, fetch) {
            (AtomicOp::CompareExchange, _) => self.set(Reg::RETURN, old),
            (_, true) => self.set(src, old),
            _ => {}
        }
        Ok(())
    }

    fn jump(&mut self, at: usize, target: usize) -> Result<Step, Fault> {
        self.machine.charge(self.program.code.jump_cost(at, target))?;
        Ok(Step::To(target))
    }

    fn clear_arguments(&mut self) {
        for reg in Reg::arguments() {
            self.set(reg, 0);
        }
    }

    fn call_helper(&mut self, at: usize) -> Result<(), Fault> {
        let helper = self.program.helpers.get(at).copied().flatten().ok_or(Fault::NoInstruction)?;
        let result = (helper.function)(self.machine, Reg::arguments().map(|reg| self.get(reg)))?;
        self.set(Reg::RETURN, result);
        self.clear_arguments();
        Ok(())
    }

    fn call_local(&mut self, at: usize, target: usize) -> Result<Step, Fault> {
        self.machine.charge(self.program.code.call_cost(target))?;
        // The frame that is left needs a place, and so does the one that is entered.
        if self.depth + 1 >= FRAMES_MAX {
            return Err(Fault::TooDeep);
        }
        if let Some(frame) = self.frames.get_mut(self.depth) {
            *frame = Frame {
                return_to: at + 1,
                preserved: Reg::preserved().map(|reg| self.registers[reg.index()]),
            };
        }
        self.depth += 1;
        for reg in Reg::preserved() {
            self.set(reg, 0);
        }
        self.set(Reg::RETURN, 0);
        self.set(Reg::FRAME, frame_pointer(self.depth));
        Ok(Step::To(target))
    }

    fn exit(&mut self) -> Step {
        let value = self.get(Reg::RETURN);
        let Some(depth) = self.depth.checked_sub(1) else { return Step::Done(value) };
        let frame = self.frames.get(depth).copied().unwrap_or_default();
        self.depth = depth;
        for (reg, value) in Reg::preserved().into_iter().zip(frame.preserved) {
            self.set(reg, value);
        }
        self.clear_arguments();
        self.set(Reg::FRAME, frame_pointer(depth));
        Step::To(frame.return_to)
    }
}

/// Returns the number that a 64-bit immediate puts into its register.
pub(crate) const fn wide(value: Wide) -> u64 {
    match value {
        Wide::Value(value) => value,
        Wide::Map(map) => map_handle(map),
        Wide::MapValue { map, offset } => Region::Map(map).base() + offset as u64,
    }
}
