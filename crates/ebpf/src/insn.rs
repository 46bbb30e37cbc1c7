//! Decoded instruction set: RFC 9669 with versions 1 to 4 of clang's `-mcpu`.
//!
//! [`decode`](crate::decode::decode) makes these from 64-bit slots and checks their form. Every register that
//! is named here exists, and every target lies inside its function; later stages do not check that again.

use std::fmt;

/// Register r0 to r10.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reg(u8);

impl Reg {
    /// Registers of a frame, the frame pointer included.
    pub const COUNT: usize = 11;
    /// Read-only frame pointer.
    pub const FRAME: Self = Self(10);
    /// Return value of a function and of a helper.
    pub const RETURN: Self = Self(0);

    /// Returns register `number`, if it exists.
    pub const fn new(number: u8) -> Option<Self> {
        if (number as usize) < Self::COUNT { Some(Self(number)) } else { None }
    }

    /// Returns the registers that carry arguments: r1 to r5.
    pub fn arguments() -> [Self; 5] {
        [1, 2, 3, 4, 5].map(Self)
    }

    /// Returns the registers that survive a call: r6 to r9.
    pub fn preserved() -> [Self; 4] {
        [6, 7, 8, 9].map(Self)
    }

    /// Returns the number, as an index of an array of [`COUNT`](Self::COUNT).
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Part of a register that an arithmetic or jump instruction uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// Lower half; a result is zero-extended.
    W32,
    /// Whole register.
    W64,
}

/// Second operand: a register, or an immediate already sign-extended to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Reg(Reg),
    Imm(i64),
}

/// Arithmetic of two operands; `dst = dst op src`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    /// Unsigned; by zero gives 0.
    Div,
    /// Signed, rounded towards zero; by zero gives 0, the one overflow wraps.
    SDiv,
    /// Unsigned; by zero leaves the dividend.
    Mod,
    /// Signed, with the sign of the dividend; by zero leaves it.
    SMod,
    Or,
    And,
    Xor,
    /// Shift counts are taken modulo the width.
    Lsh,
    Rsh,
    Arsh,
    Mov,
}

/// Effect of an `END` instruction on the lower bits of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapKind {
    ToLittle,
    ToBig,
    Always,
}

/// Comparison of a conditional jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cond {
    Eq,
    Ne,
    /// Any of the bits is set.
    Set,
    Gt,
    Ge,
    Lt,
    Le,
    SGt,
    SGe,
    SLt,
    SLe,
}

/// Bytes that a load or store moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    B1,
    B2,
    B4,
    B8,
}

impl Size {
    /// Returns 1, 2, 4 or 8.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }

    /// Returns 8, 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }

    /// Returns the largest unsigned value that fits.
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

/// Effect of an atomic instruction on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    Add,
    Or,
    And,
    Xor,
    /// Store the source, fetch the old value into it.
    Exchange,
    /// Store the source if memory equals r0; r0 gets the old value.
    CompareExchange,
}

/// Meaning of a 64-bit immediate. Maps are numbers of the program's map table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wide {
    Value(u64),
    /// Map itself, as an argument of a helper.
    Map(u32),
    /// Address of a byte of a map's first value: `.rodata`, `.data`, `.bss`.
    MapValue {
        map: u32,
        offset: u32,
    },
}

/// Instruction. `target` is a slot number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insn {
    Alu {
        op: AluOp,
        width: Width,
        dst: Reg,
        src: Operand,
    },
    Neg {
        width: Width,
        dst: Reg,
    },
    /// Move that sign-extends the lower `from` of the source.
    MovSx {
        width: Width,
        from: Size,
        dst: Reg,
        src: Reg,
    },
    /// Byte order of the lower `size`; the rest becomes zero.
    Swap {
        kind: SwapKind,
        size: Size,
        dst: Reg,
    },
    LoadWide {
        dst: Reg,
        value: Wide,
    },
    /// Second slot of [`LoadWide`](Self::LoadWide); never executed, never a target.
    Tail,
    Load {
        size: Size,
        signed: bool,
        dst: Reg,
        base: Reg,
        offset: i16,
    },
    Store {
        size: Size,
        base: Reg,
        offset: i16,
        src: Operand,
    },
    /// Atomic operation: `size` is 4 or 8, and the address must be a multiple of it.
    Atomic {
        op: AtomicOp,
        fetch: bool,
        size: Size,
        base: Reg,
        offset: i16,
        src: Reg,
    },
    Jump {
        target: u32,
    },
    Branch {
        cond: Cond,
        width: Width,
        dst: Reg,
        src: Operand,
        target: u32,
    },
    CallHelper {
        number: u32,
    },
    CallLocal {
        target: u32,
    },
    Exit,
}

impl Insn {
    /// Returns the number of slots.
    pub const fn slots(&self) -> usize {
        if matches!(self, Self::LoadWide { .. }) { 2 } else { 1 }
    }

    /// Returns the jump target inside the function.
    pub const fn jump_target(&self) -> Option<usize> {
        match self {
            Self::Jump { target } | Self::Branch { target, .. } => Some(*target as usize),
            _ => None,
        }
    }

    /// Returns the fuel of the instruction: about as many nanoseconds as it can take as machine code, even
    /// without a proof. Helpers charge their own work themselves.
    pub const fn cost(&self) -> u64 {
        match self {
            Self::Alu { op: AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod, .. } => 8,
            Self::Load { .. } | Self::Store { .. } => 6,
            Self::Atomic { .. } => 10,
            Self::CallHelper { .. } => 8,
            _ => 1,
        }
    }

    /// Returns whether the next slot can follow the instruction.
    pub const fn falls_through(&self) -> bool {
        !matches!(self, Self::Jump { .. } | Self::Exit)
    }
}
