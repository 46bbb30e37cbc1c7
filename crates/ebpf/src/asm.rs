//! Small assembler: programs written in Rust, one instruction per call, with labels.
//!
//! For tests, fuzzing and examples, where a C compiler is not at hand or would not emit the needed
//! instructions.

use std::collections::HashMap;

use crate::decode::{Slot, pseudo};
use crate::insn::{AluOp, AtomicOp, Cond, Size, SwapKind, Width};

/// Name of a jump target.
pub type Label = &'static str;

/// Second operand of an instruction.
#[derive(Debug, Clone, Copy)]
pub enum Src {
    R(u8),
    I(i32),
}

pub use Src::{I, R};

/// Program under construction. Registers are numbers and are not checked: tests need wrong ones, too.
#[derive(Debug, Clone, Default)]
pub struct Asm {
    slots: Vec<Slot>,
    labels: HashMap<Label, usize>,
    /// Slots whose distance is filled in at the end, and whether it goes to the immediate.
    jumps: Vec<(usize, Label, bool)>,
}

impl Asm {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends any slot.
    #[must_use]
    pub fn slot(mut self, opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> Self {
        self.slots.push(Slot { opcode, dst, src, offset, imm });
        self
    }

    /// Puts `label` before the next instruction.
    #[must_use]
    pub fn label(mut self, label: Label) -> Self {
        self.labels.insert(label, self.slots.len());
        self
    }

    fn with_src(self, opcode: u8, dst: u8, src: Src, offset: i16) -> Self {
        match src {
            R(reg) => self.slot(opcode | 8, dst, reg, offset, 0),
            I(imm) => self.slot(opcode, dst, 0, offset, imm),
        }
    }

    #[must_use]
    pub fn alu(self, op: AluOp, width: Width, dst: u8, src: Src) -> Self {
        let (nibble, offset) = match op {
            AluOp::Add => (0x00, 0),
            AluOp::Sub => (0x10, 0),
            AluOp::Mul => (0x20, 0),
            AluOp::Div => (0x30, 0),
            AluOp::SDiv => (0x30, 1),
            AluOp::Or => (0x40, 0),
            AluOp::And => (0x50, 0),
            AluOp::Lsh => (0x60, 0),
            AluOp::Rsh => (0x70, 0),
            AluOp::Mod => (0x90, 0),
            AluOp::SMod => (0x90, 1),
            AluOp::Xor => (0xa0, 0),
            AluOp::Mov => (0xb0, 0),
            AluOp::Arsh => (0xc0, 0),
        };
        self.with_src(nibble | class(width), dst, src, offset)
    }

    #[must_use]
    pub fn mov(self, dst: u8, src: Src) -> Self {
        self.alu(AluOp::Mov, Width::W64, dst, src)
    }

    #[must_use]
    pub fn add(self, dst: u8, src: Src) -> Self {
        self.alu(AluOp::Add, Width::W64, dst, src)
    }

    #[must_use]
    pub fn neg(self, width: Width, dst: u8) -> Self {
        self.slot(0x80 | class(width), dst, 0, 0, 0)
    }

    #[must_use]
    pub fn mov_sx(self, width: Width, from: Size, dst: u8, src: u8) -> Self {
        self.slot(0xb8 | class(width), dst, src, from.bits() as i16, 0)
    }

    #[must_use]
    pub fn swap(self, kind: SwapKind, size: Size, dst: u8) -> Self {
        let opcode = match kind {
            SwapKind::ToLittle => 0xd4,
            SwapKind::ToBig => 0xdc,
            SwapKind::Always => 0xd7,
        };
        self.slot(opcode, dst, 0, 0, size.bits() as i32)
    }

    fn wide(self, dst: u8, pseudo: u8, low: i32, high: i32) -> Self {
        self.slot(0x18, dst, pseudo, 0, low).slot(0, 0, 0, 0, high)
    }

    /// Appends the load of a 64-bit number.
    #[must_use]
    pub fn number(self, dst: u8, value: u64) -> Self {
        self.wide(dst, pseudo::VALUE, value as i32, (value >> 32) as i32)
    }

    /// Appends the load of a map.
    #[must_use]
    pub fn map(self, dst: u8, map: u32) -> Self {
        self.wide(dst, pseudo::MAP, map as i32, 0)
    }

    /// Appends the load of the address of a byte of a map's first value.
    #[must_use]
    pub fn map_value(self, dst: u8, map: u32, offset: u32) -> Self {
        self.wide(dst, pseudo::MAP_VALUE, map as i32, offset as i32)
    }

    #[must_use]
    pub fn load(self, size: Size, dst: u8, base: u8, offset: i16) -> Self {
        self.slot(0x61 | size_bits(size), dst, base, offset, 0)
    }

    #[must_use]
    pub fn load_signed(self, size: Size, dst: u8, base: u8, offset: i16) -> Self {
        self.slot(0x81 | size_bits(size), dst, base, offset, 0)
    }

    #[must_use]
    pub fn store(self, size: Size, base: u8, offset: i16, src: Src) -> Self {
        match src {
            R(reg) => self.slot(0x63 | size_bits(size), base, reg, offset, 0),
            I(imm) => self.slot(0x62 | size_bits(size), base, 0, offset, imm),
        }
    }

    #[must_use]
    pub fn atomic(self, op: AtomicOp, fetch: bool, size: Size, base: u8, offset: i16, src: u8) -> Self {
        let imm = match op {
            AtomicOp::Add => 0x00,
            AtomicOp::Or => 0x40,
            AtomicOp::And => 0x50,
            AtomicOp::Xor => 0xa0,
            AtomicOp::Exchange => 0xe0,
            AtomicOp::CompareExchange => 0xf0,
        };
        self.slot(0xc3 | size_bits(size), base, src, offset, imm | i32::from(fetch))
    }

    #[must_use]
    pub fn jump(mut self, label: Label) -> Self {
        self.jumps.push((self.slots.len(), label, false));
        self.slot(0x05, 0, 0, 0, 0)
    }

    /// Appends a jump with a 32-bit distance.
    #[must_use]
    pub fn jump_far(mut self, label: Label) -> Self {
        self.jumps.push((self.slots.len(), label, true));
        self.slot(0x06, 0, 0, 0, 0)
    }

    #[must_use]
    pub fn branch(mut self, cond: Cond, width: Width, dst: u8, src: Src, label: Label) -> Self {
        self.jumps.push((self.slots.len(), label, false));
        self.with_src(cond_bits(cond) | if width == Width::W64 { 5 } else { 6 }, dst, src, 0)
    }

    #[must_use]
    pub fn call(self, helper: u32) -> Self {
        self.slot(0x85, 0, 0, 0, helper as i32)
    }

    #[must_use]
    pub fn call_local(mut self, label: Label) -> Self {
        self.jumps.push((self.slots.len(), label, true));
        self.slot(0x85, 0, pseudo::CALL_LOCAL, 0, 0)
    }

    #[must_use]
    pub fn exit(self) -> Self {
        self.slot(0x95, 0, 0, 0, 0)
    }

    /// Points the branch in slot `at` at slot `target` instead of its label.
    ///
    /// # Panics
    /// When there is no such slot.
    #[must_use]
    pub fn retarget(mut self, at: usize, target: usize) -> Self {
        self.jumps.retain(|(jump, ..)| *jump != at);
        self.slots[at].offset = (target as i64 - at as i64 - 1) as i16;
        self
    }

    /// Returns the number of slots so far.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether the program is empty.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the program.
    ///
    /// # Panics
    /// When a jump names a label that is nowhere.
    pub fn finish(mut self) -> Vec<Slot> {
        for (at, label, far) in self.jumps {
            let target = self.labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            let distance = *target as i64 - at as i64 - 1;
            let slot = &mut self.slots[at];
            if far {
                slot.imm = distance as i32;
            } else {
                slot.offset = distance as i16;
            }
        }
        self.slots
    }
}

fn class(width: Width) -> u8 {
    if width == Width::W64 { 7 } else { 4 }
}

fn size_bits(size: Size) -> u8 {
    match size {
        Size::B4 => 0x00,
        Size::B2 => 0x08,
        Size::B1 => 0x10,
        Size::B8 => 0x18,
    }
}

fn cond_bits(cond: Cond) -> u8 {
    match cond {
        Cond::Eq => 0x10,
        Cond::Gt => 0x20,
        Cond::Ge => 0x30,
        Cond::Set => 0x40,
        Cond::Ne => 0x50,
        Cond::SGt => 0x60,
        Cond::SGe => 0x70,
        Cond::Lt => 0xa0,
        Cond::Le => 0xb0,
        Cond::SLt => 0xc0,
        Cond::SLe => 0xd0,
    }
}
