//! Arithmetic; it must agree with [`crate::alu`].

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};

use super::lower::{I64, Lower};
use crate::insn::{AluOp, Insn, Size, SwapKind, Width};

impl Lower<'_, '_> {
    pub(super) fn alu(&mut self, op: AluOp, width: Width, a: Value, b: Value) -> Value {
        match width {
            Width::W64 => self.binary(op, a, b),
            Width::W32 => {
                let (a, b) = (self.narrow(types::I32, a), self.narrow(types::I32, b));
                let result = self.binary(op, a, b);
                self.widen(result)
            }
        }
    }

    fn narrow(&mut self, to: Type, value: Value) -> Value {
        if to == I64 { value } else { self.b.ins().ireduce(to, value) }
    }

    fn widen(&mut self, value: Value) -> Value {
        if self.b.func.dfg.value_type(value) == I64 { value } else { self.b.ins().uextend(I64, value) }
    }

    /// Emits an operation. Cranelift's shifts take their count modulo the width, as eBPF's do.
    fn binary(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        match op {
            AluOp::Add => self.b.ins().iadd(a, b),
            AluOp::Sub => self.b.ins().isub(a, b),
            AluOp::Mul => self.b.ins().imul(a, b),
            AluOp::Or => self.b.ins().bor(a, b),
            AluOp::And => self.b.ins().band(a, b),
            AluOp::Xor => self.b.ins().bxor(a, b),
            AluOp::Lsh => self.b.ins().ishl(a, b),
            AluOp::Rsh => self.b.ins().ushr(a, b),
            AluOp::Arsh => self.b.ins().sshr(a, b),
            AluOp::Mov => b,
            AluOp::Div | AluOp::Mod => self.divide_unsigned(op, a, b),
            AluOp::SDiv | AluOp::SMod => self.divide_signed(op, a, b),
        }
    }

    /// Emits an unsigned division. Zero would raise a signal: the divisor becomes one, and the result is
    /// replaced.
    fn divide_unsigned(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        let zero = self.b.ins().icmp_imm(IntCC::Equal, b, 0);
        let divisor = self.one_if(zero, b);
        if op == AluOp::Div {
            let quotient = self.b.ins().udiv(a, divisor);
            self.zero_if(zero, quotient)
        } else {
            let remainder = self.b.ins().urem(a, divisor);
            self.b.ins().select(zero, a, remainder)
        }
    }

    /// Emits a signed division. A divisor of -1 is replaced as well: the one overflow would raise a signal,
    /// too.
    fn divide_signed(&mut self, op: AluOp, a: Value, b: Value) -> Value {
        let zero = self.b.ins().icmp_imm(IntCC::Equal, b, 0);
        let minus = self.b.ins().icmp_imm(IntCC::Equal, b, -1);
        let special = self.b.ins().bor(zero, minus);
        let divisor = self.one_if(special, b);
        if op == AluOp::SDiv {
            let quotient = self.b.ins().sdiv(a, divisor);
            let negated = self.b.ins().ineg(a);
            let quotient = self.b.ins().select(minus, negated, quotient);
            self.zero_if(zero, quotient)
        } else {
            let remainder = self.b.ins().srem(a, divisor);
            let remainder = self.zero_if(minus, remainder);
            self.b.ins().select(zero, a, remainder)
        }
    }

    fn one_if(&mut self, condition: Value, value: Value) -> Value {
        let ty = self.b.func.dfg.value_type(value);
        let one = self.b.ins().iconst(ty, 1);
        self.b.ins().select(condition, one, value)
    }

    fn zero_if(&mut self, condition: Value, value: Value) -> Value {
        let ty = self.b.func.dfg.value_type(value);
        let zero = self.b.ins().iconst(ty, 0);
        self.b.ins().select(condition, zero, value)
    }

    /// Emits negation, sign extension or a change of byte order.
    pub(super) fn unary(&mut self, insn: &Insn) {
        match *insn {
            Insn::Neg { width, dst } => {
                let value = self.get(dst);
                let value = self.narrow(if width == Width::W32 { types::I32 } else { I64 }, value);
                let result = self.b.ins().ineg(value);
                let result = self.widen(result);
                self.set(dst, result);
            }
            Insn::MovSx { width, from, dst, src } => {
                let value = self.get(src);
                let value = self.narrow(int(from), value);
                let to = if width == Width::W32 { types::I32 } else { I64 };
                let result = self.b.ins().sextend(to, value);
                let result = self.widen(result);
                self.set(dst, result);
            }
            Insn::Swap { kind, size, dst } => {
                let value = self.get(dst);
                let value = self.narrow(int(size), value);
                let swapped = if kind == SwapKind::ToLittle { value } else { self.b.ins().bswap(value) };
                let result = self.widen(swapped);
                self.set(dst, result);
            }
            _ => {}
        }
    }
}

/// Returns Cranelift's type of so many bytes.
pub(super) fn int(size: Size) -> Type {
    match size {
        Size::B1 => types::I8,
        Size::B2 => types::I16,
        Size::B4 => types::I32,
        Size::B8 => I64,
    }
}
