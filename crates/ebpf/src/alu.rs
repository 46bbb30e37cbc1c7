//! Semantics of arithmetic and comparisons (RFC 9669, 4.1 to 4.3). The interpreter runs this; the code
//! generator must agree with it.

use crate::insn::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};

/// Computes `a op b`.
#[inline]
pub fn alu(op: AluOp, width: Width, a: u64, b: u64) -> u64 {
    match width {
        Width::W32 => alu32(op, a as u32, b as u32).into(),
        Width::W64 => alu64(op, a, b),
    }
}

fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::SDiv if b == 0 => 0,
        AluOp::SDiv => (a as i32).wrapping_div(b as i32) as u32,
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SMod if b == 0 => a,
        AluOp::SMod => (a as i32).wrapping_rem(b as i32) as u32,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a.wrapping_shl(b),
        AluOp::Rsh => a.wrapping_shr(b),
        AluOp::Arsh => (a as i32).wrapping_shr(b) as u32,
        AluOp::Mov => b,
    }
}

fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::SDiv if b == 0 => 0,
        AluOp::SDiv => (a as i64).wrapping_div(b as i64) as u64,
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SMod if b == 0 => a,
        AluOp::SMod => (a as i64).wrapping_rem(b as i64) as u64,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a.wrapping_shl(b as u32),
        AluOp::Rsh => a.wrapping_shr(b as u32),
        AluOp::Arsh => (a as i64).wrapping_shr(b as u32) as u64,
        AluOp::Mov => b,
    }
}

/// Computes `-a`.
pub fn neg(width: Width, a: u64) -> u64 {
    match width {
        Width::W32 => (a as u32).wrapping_neg().into(),
        Width::W64 => a.wrapping_neg(),
    }
}

/// Returns the lower bits of `a`, sign-extended to 64.
pub fn sign_extend(from: Size, a: u64) -> u64 {
    let unused = 64 - from.bits();
    ((a << unused) as i64 >> unused) as u64
}

/// Computes a sign-extending move to a register of `width`.
pub fn mov_sx(width: Width, from: Size, a: u64) -> u64 {
    let wide = sign_extend(from, a);
    if width == Width::W32 { wide & u64::from(u32::MAX) } else { wide }
}

/// Converts the byte order. Programs run little-endian on every host.
pub fn swap(kind: SwapKind, size: Size, a: u64) -> u64 {
    match kind {
        SwapKind::ToLittle => a & size.max(),
        SwapKind::ToBig | SwapKind::Always => a.swap_bytes() >> (64 - size.bits()),
    }
}

/// Returns whether `a cond b`.
#[inline]
pub fn compare(cond: Cond, width: Width, a: u64, b: u64) -> bool {
    let (a, b, sa, sb) = match width {
        Width::W32 => (a & 0xffff_ffff, b & 0xffff_ffff, i64::from(a as i32), i64::from(b as i32)),
        Width::W64 => (a, b, a as i64, b as i64),
    };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Set => a & b != 0,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::SGt => sa > sb,
        Cond::SGe => sa >= sb,
        Cond::SLt => sa < sb,
        Cond::SLe => sa <= sb,
    }
}

/// Returns the result of an atomic instruction for memory that held `old`.
pub fn atomic(op: AtomicOp, size: Size, old: u64, operand: u64, expected: u64) -> u64 {
    let new = match op {
        AtomicOp::Add => old.wrapping_add(operand),
        AtomicOp::Or => old | operand,
        AtomicOp::And => old & operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Exchange => operand,
        AtomicOp::CompareExchange if old == expected & size.max() => operand,
        AtomicOp::CompareExchange => old,
    };
    new & size.max()
}
