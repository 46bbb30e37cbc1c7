//! Decoder from 64-bit slots to [`Insn`], with complete checks of their form.
//!
//! RFC 9669, section 3: opcode, register nibbles, 16-bit offset, 32-bit immediate. A field that an
//! instruction does not use must be zero, so that a program for a newer instruction set is refused instead of
//! misread.

use crate::error::{LoadError, LoadErrorKind};
use crate::insn::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, SwapKind, Wide, Width};

/// Slot of an object file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    pub opcode: u8,
    pub dst: u8,
    pub src: u8,
    pub offset: i16,
    pub imm: i32,
}

impl Slot {
    /// Bytes of a slot.
    pub const SIZE: usize = 8;

    /// Reads a slot in the byte order of the `bpfel` target.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [opcode, registers, o0, o1, imm @ ..] = bytes;
        Self {
            opcode,
            dst: registers & 15,
            src: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            imm: i32::from_le_bytes(imm),
        }
    }

    /// Returns the slot as bytes.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = self.opcode;
        bytes[1] = self.dst & 15 | self.src << 4;
        bytes[2..4].copy_from_slice(&self.offset.to_le_bytes());
        bytes[4..].copy_from_slice(&self.imm.to_le_bytes());
        bytes
    }
}

/// Pseudo source registers of the 64-bit immediate load (RFC 9669, 5.4).
pub mod pseudo {
    pub const VALUE: u8 = 0;
    /// The immediate is a number of the program's map table, not a file descriptor.
    pub const MAP: u8 = 1;
    pub const MAP_VALUE: u8 = 2;
    /// Call relative to the next slot.
    pub const CALL_LOCAL: u8 = 1;
}

const CLASS_LD: u8 = 0;
const CLASS_LDX: u8 = 1;
const CLASS_ST: u8 = 2;
const CLASS_STX: u8 = 3;
const CLASS_ALU: u8 = 4;
const CLASS_JMP: u8 = 5;
const CLASS_JMP32: u8 = 6;
const LOAD_WIDE: u8 = 0x18;
const FROM_REGISTER: u8 = 0x08;

/// Decodes a whole program. Every jump lands on an instruction; every instruction names registers that exist.
pub fn decode(slots: &[Slot]) -> Result<Vec<Insn>, LoadError> {
    let mut insns = Vec::with_capacity(slots.len());
    while insns.len() < slots.len() {
        let at = insns.len();
        let insn = Decoder { slots, at }.insn().map_err(|kind| LoadError::at(at, kind))?;
        insns.push(insn);
        if insn.slots() == 2 {
            insns.push(Insn::Tail);
        }
    }
    check_targets(&insns)?;
    Ok(insns)
}

fn check_targets(insns: &[Insn]) -> Result<(), LoadError> {
    for (at, insn) in insns.iter().enumerate() {
        let target = match insn {
            Insn::CallLocal { target } => Some(*target as usize),
            other => other.jump_target(),
        };
        if let Some(target) = target
            && matches!(insns.get(target), None | Some(Insn::Tail))
        {
            return Err(LoadError::at(at, LoadErrorKind::BadJump));
        }
    }
    Ok(())
}

struct Decoder<'a> {
    slots: &'a [Slot],
    at: usize,
}

impl Decoder<'_> {
    fn slot(&self) -> Slot {
        self.slots.get(self.at).copied().unwrap_or_default()
    }

    fn insn(&self) -> Result<Insn, LoadErrorKind> {
        match self.slot().opcode & 7 {
            CLASS_LD => self.load_wide(),
            CLASS_LDX => self.load(),
            CLASS_ST | CLASS_STX => self.store(),
            CLASS_JMP | CLASS_JMP32 => self.jump(),
            _ => self.alu(),
        }
    }

    fn unknown(&self) -> LoadErrorKind {
        LoadErrorKind::UnknownOpcode { opcode: self.slot().opcode }
    }

    /// Checks that unused fields are zero.
    fn zero(&self, fields: &[bool]) -> Result<(), LoadErrorKind> {
        if fields.iter().all(|&zero| zero) { Ok(()) } else { Err(LoadErrorKind::ReservedField) }
    }

    fn reg(number: u8) -> Result<Reg, LoadErrorKind> {
        Reg::new(number).ok_or(LoadErrorKind::NoSuchRegister { number })
    }

    fn writable(number: u8) -> Result<Reg, LoadErrorKind> {
        match Self::reg(number)? {
            Reg::FRAME => Err(LoadErrorKind::FramePointerWritten),
            reg => Ok(reg),
        }
    }

    /// Decodes the second operand of arithmetic and jumps.
    fn operand(&self) -> Result<Operand, LoadErrorKind> {
        let slot = self.slot();
        if slot.opcode & FROM_REGISTER != 0 {
            self.zero(&[slot.imm == 0])?;
            Ok(Operand::Reg(Self::reg(slot.src)?))
        } else {
            self.zero(&[slot.src == 0])?;
            Ok(Operand::Imm(slot.imm.into()))
        }
    }

    fn load_wide(&self) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        if slot.opcode != LOAD_WIDE {
            return Err(self.unknown());
        }
        let tail = self.slots.get(self.at + 1).copied().ok_or(LoadErrorKind::HalfLoad)?;
        if (tail.opcode, tail.dst, tail.src, tail.offset) != (0, 0, 0, 0) {
            return Err(LoadErrorKind::HalfLoad);
        }
        self.zero(&[slot.offset == 0])?;
        let (low, high) = (slot.imm as u32, tail.imm as u32);
        let value = match slot.src {
            pseudo::VALUE => Wide::Value(u64::from(high) << 32 | u64::from(low)),
            pseudo::MAP if high == 0 => Wide::Map(low),
            pseudo::MAP_VALUE => Wide::MapValue { map: low, offset: high },
            _ => return Err(LoadErrorKind::UnknownImmediate),
        };
        Ok(Insn::LoadWide { dst: Self::writable(slot.dst)?, value })
    }

    fn size(&self) -> Size {
        match self.slot().opcode & 0x18 {
            0x00 => Size::B4,
            0x08 => Size::B2,
            0x10 => Size::B1,
            _ => Size::B8,
        }
    }

    fn load(&self) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let signed = match (slot.opcode & 0xe0, self.size()) {
            (0x60, _) => false,
            (0x80, Size::B1 | Size::B2 | Size::B4) => true,
            _ => return Err(self.unknown()),
        };
        self.zero(&[slot.imm == 0])?;
        let (dst, base) = (Self::writable(slot.dst)?, Self::reg(slot.src)?);
        Ok(Insn::Load { size: self.size(), signed, dst, base, offset: slot.offset })
    }

    fn store(&self) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let base = Self::reg(slot.dst)?;
        let src = match (slot.opcode & 7, slot.opcode & 0xe0) {
            (CLASS_ST, 0x60) => {
                self.zero(&[slot.src == 0])?;
                Operand::Imm(slot.imm.into())
            }
            (CLASS_STX, 0x60) => {
                self.zero(&[slot.imm == 0])?;
                Operand::Reg(Self::reg(slot.src)?)
            }
            (CLASS_STX, 0xc0) => return self.atomic(base),
            _ => return Err(self.unknown()),
        };
        Ok(Insn::Store { size: self.size(), base, offset: slot.offset, src })
    }

    fn atomic(&self, base: Reg) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let (op, fetch) = match slot.imm {
            0x00 => (AtomicOp::Add, false),
            0x01 => (AtomicOp::Add, true),
            0x40 => (AtomicOp::Or, false),
            0x41 => (AtomicOp::Or, true),
            0x50 => (AtomicOp::And, false),
            0x51 => (AtomicOp::And, true),
            0xa0 => (AtomicOp::Xor, false),
            0xa1 => (AtomicOp::Xor, true),
            0xe1 => (AtomicOp::Exchange, true),
            0xf1 => (AtomicOp::CompareExchange, true),
            _ => return Err(LoadErrorKind::UnknownAtomic),
        };
        let size = self.size();
        if !matches!(size, Size::B4 | Size::B8) {
            return Err(LoadErrorKind::UnknownAtomic);
        }
        // A fetch writes its source register, except that compare-and-exchange writes r0.
        let src = if fetch && op != AtomicOp::CompareExchange {
            Self::writable(slot.src)?
        } else {
            Self::reg(slot.src)?
        };
        Ok(Insn::Atomic { op, fetch, size, base, offset: slot.offset, src })
    }

    fn target(&self, distance: i64) -> Result<u32, LoadErrorKind> {
        u32::try_from(self.at as i64 + 1 + distance).map_err(|_| LoadErrorKind::BadJump)
    }

    fn jump(&self) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let wide = slot.opcode & 7 == CLASS_JMP;
        match (slot.opcode, wide) {
            (0x05, _) => {
                self.zero(&[slot.imm == 0, slot.dst == 0, slot.src == 0])?;
                Ok(Insn::Jump { target: self.target(slot.offset.into())? })
            }
            (0x06, _) => {
                self.zero(&[slot.offset == 0, slot.dst == 0, slot.src == 0])?;
                Ok(Insn::Jump { target: self.target(slot.imm.into())? })
            }
            (0x85, _) => self.call(),
            (0x95, _) => {
                self.zero(&[slot.imm == 0, slot.dst == 0, slot.src == 0, slot.offset == 0])?;
                Ok(Insn::Exit)
            }
            _ => self.branch(if wide { Width::W64 } else { Width::W32 }),
        }
    }

    fn branch(&self, width: Width) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let cond = match slot.opcode & 0xf0 {
            0x10 => Cond::Eq,
            0x20 => Cond::Gt,
            0x30 => Cond::Ge,
            0x40 => Cond::Set,
            0x50 => Cond::Ne,
            0x60 => Cond::SGt,
            0x70 => Cond::SGe,
            0xa0 => Cond::Lt,
            0xb0 => Cond::Le,
            0xc0 => Cond::SLt,
            0xd0 => Cond::SLe,
            _ => return Err(self.unknown()),
        };
        let (dst, src) = (Self::reg(slot.dst)?, self.operand()?);
        Ok(Insn::Branch { cond, width, dst, src, target: self.target(slot.offset.into())? })
    }

    fn call(&self) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        self.zero(&[slot.dst == 0, slot.offset == 0])?;
        match slot.src {
            0 => Ok(Insn::CallHelper { number: slot.imm as u32 }),
            pseudo::CALL_LOCAL => Ok(Insn::CallLocal { target: self.target(slot.imm.into())? }),
            _ => Err(LoadErrorKind::UnknownCall),
        }
    }

    fn alu(&self) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let width = if slot.opcode & 7 == CLASS_ALU { Width::W32 } else { Width::W64 };
        let dst = Self::writable(slot.dst)?;
        let op = match slot.opcode & 0xf0 {
            0x80 => return self.neg(width, dst),
            0xd0 => return self.swap(width, dst),
            0xb0 if slot.offset != 0 => return self.mov_sx(width, dst),
            0x30 if slot.offset == 1 => AluOp::SDiv,
            0x90 if slot.offset == 1 => AluOp::SMod,
            nibble => {
                self.zero(&[slot.offset == 0])?;
                self.plain(nibble)?
            }
        };
        Ok(Insn::Alu { op, width, dst, src: self.operand()? })
    }

    fn plain(&self, nibble: u8) -> Result<AluOp, LoadErrorKind> {
        Ok(match nibble {
            0x00 => AluOp::Add,
            0x10 => AluOp::Sub,
            0x20 => AluOp::Mul,
            0x30 => AluOp::Div,
            0x40 => AluOp::Or,
            0x50 => AluOp::And,
            0x60 => AluOp::Lsh,
            0x70 => AluOp::Rsh,
            0x90 => AluOp::Mod,
            0xa0 => AluOp::Xor,
            0xb0 => AluOp::Mov,
            0xc0 => AluOp::Arsh,
            _ => return Err(self.unknown()),
        })
    }

    fn neg(&self, width: Width, dst: Reg) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        if slot.opcode & FROM_REGISTER != 0 {
            return Err(self.unknown());
        }
        self.zero(&[slot.imm == 0, slot.src == 0, slot.offset == 0])?;
        Ok(Insn::Neg { width, dst })
    }

    fn mov_sx(&self, width: Width, dst: Reg) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let from = match (slot.offset, width) {
            (8, _) => Size::B1,
            (16, _) => Size::B2,
            (32, Width::W64) => Size::B4,
            _ => return Err(LoadErrorKind::ReservedField),
        };
        self.zero(&[slot.opcode & FROM_REGISTER != 0, slot.imm == 0])?;
        Ok(Insn::MovSx { width, from, dst, src: Self::reg(slot.src)? })
    }

    fn swap(&self, width: Width, dst: Reg) -> Result<Insn, LoadErrorKind> {
        let slot = self.slot();
        let kind = match (width, slot.opcode & FROM_REGISTER != 0) {
            (Width::W32, false) => SwapKind::ToLittle,
            (Width::W32, true) => SwapKind::ToBig,
            (Width::W64, false) => SwapKind::Always,
            (Width::W64, true) => return Err(self.unknown()),
        };
        let size = match slot.imm {
            16 => Size::B2,
            32 => Size::B4,
            64 => Size::B8,
            _ => return Err(LoadErrorKind::ReservedField),
        };
        self.zero(&[slot.src == 0, slot.offset == 0])?;
        Ok(Insn::Swap { kind, size, dst })
    }
}
