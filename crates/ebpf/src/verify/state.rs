//! State of the verifier at one place of a program: the types of registers and stack slots.

use super::span::Span;
use crate::insn::{Operand, Reg};
use crate::layout::FRAME_BYTES;

/// Base of a pointer, as seen by its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// Context; offsets count from its first byte.
    Context,
    /// Frame of this function; offsets count from the frame pointer and are negative.
    Frame,
    /// Some frame of a caller, at an unknown offset.
    Stack,
    /// Some value of this map; offsets count from that value.
    Map(u32),
}

/// Largest distance from its base at which a pointer is followed; see
/// [`REGION_BYTES_MAX`](crate::layout::REGION_BYTES_MAX).
const OFFSET_MAX: i64 = 1 << 30;

/// Pointer with the bounds of its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) base: Base,
    pub(crate) low: i64,
    pub(crate) high: i64,
    /// Whether the pointer may be zero instead.
    pub(crate) nullable: bool,
}

/// Value of a register or slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// No value yet, on some path.
    Uninit,
    Number(Span),
    Pointer(Pointer),
    /// Handle of a map.
    Map(u32),
    /// Any value, perhaps an address: accesses through it are checked when they happen.
    Unknown,
}

impl Value {
    pub(crate) const ANY_NUMBER: Self = Self::Number(Span::FULL);

    pub(crate) const fn pointer(base: Base) -> Self {
        Self::Pointer(Pointer { base, low: 0, high: 0, nullable: false })
    }

    pub(crate) fn number(self) -> Option<Span> {
        if let Self::Number(span) = self { Some(span) } else { None }
    }

    fn is_zero(self) -> bool {
        self == Self::Number(Span::exactly(0))
    }

    /// Returns a value that covers both. With `widen` a bound that grows becomes unlimited, so that loops
    /// come to an end.
    fn join(self, other: Self, widen: bool) -> Self {
        match (self, other) {
            _ if self == other => self,
            (Self::Uninit, _) | (_, Self::Uninit) => Self::Uninit,
            (Self::Number(a), Self::Number(b)) => {
                let both = a.join(b);
                Self::Number(if widen && both != a { Span::FULL } else { both })
            }
            (Self::Pointer(a), Self::Pointer(b)) => a.join(b, widen).map_or(Self::Unknown, Self::Pointer),
            (Self::Pointer(pointer), zero) | (zero, Self::Pointer(pointer)) if zero.is_zero() => {
                Self::Pointer(Pointer { nullable: true, ..pointer })
            }
            _ => Self::Unknown,
        }
    }
}

impl Pointer {
    fn join(self, other: Self, widen: bool) -> Option<Self> {
        let both = Self {
            base: self.base,
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            nullable: self.nullable || other.nullable,
        };
        let grew = (both.low, both.high) != (self.low, self.high);
        (self.base == other.base && !(widen && grew)).then_some(both)
    }

    /// Returns the pointer plus (or minus) a number, while it can be followed. Null plus a number is not
    /// null, so a pointer that may be null is not followed at all.
    pub(crate) fn moved(self, by: Span, down: bool) -> Value {
        let by = by.signed().filter(|(low, high)| *low >= -OFFSET_MAX && *high <= OFFSET_MAX);
        let Some((low, high)) = by else { return Value::Unknown };
        let (low, high) = if down { (-high, -low) } else { (low, high) };
        let moved = Self { low: self.low + low, high: self.high + high, ..self };
        if moved.low < -OFFSET_MAX || moved.high > OFFSET_MAX || self.nullable {
            return Value::Unknown;
        }
        Value::Pointer(moved)
    }
}

/// Eight bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Bit for each byte that was written on every path.
    written: u8,
    /// Value of the eight bytes together.
    whole: Value,
}

const SLOTS: usize = FRAME_BYTES / 8;

/// Registers and frame at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    registers: [Value; Reg::COUNT],
    slots: [Slot; SLOTS],
}

impl State {
    /// Returns the state at the start of a function with these arguments.
    pub(crate) fn start(arguments: [Value; 5]) -> Self {
        let mut registers = [Value::Uninit; Reg::COUNT];
        for (reg, value) in Reg::arguments().into_iter().zip(arguments) {
            registers[reg.index()] = value;
        }
        registers[Reg::FRAME.index()] = Value::pointer(Base::Frame);
        Self { registers, slots: [Slot { written: 0, whole: Value::Uninit }; SLOTS] }
    }

    pub(crate) fn get(&self, reg: Reg) -> Value {
        self.registers[reg.index()]
    }

    pub(crate) fn set(&mut self, reg: Reg, value: Value) {
        self.registers[reg.index()] = value;
    }

    pub(crate) fn operand(&self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.get(reg),
            Operand::Imm(value) => Value::Number(Span::exactly(value as u64)),
        }
    }

    /// Joins the state of another path. Returns whether anything changed.
    pub(crate) fn join(&mut self, other: &Self, widen: bool) -> bool {
        let mut changed = false;
        let mut take = |mine: &mut Value, theirs: Value| {
            let both = mine.join(theirs, widen);
            changed |= both != *mine;
            *mine = both;
        };
        for (mine, theirs) in self.registers.iter_mut().zip(other.registers) {
            take(mine, theirs);
        }
        for (mine, theirs) in self.slots.iter_mut().zip(other.slots) {
            take(&mut mine.whole, theirs.whole);
        }
        for (mine, theirs) in self.slots.iter_mut().zip(other.slots) {
            changed |= mine.written & theirs.written != mine.written;
            mine.written &= theirs.written;
        }
        changed
    }

    /// Stores `bytes` bytes below the frame pointer; only a whole slot keeps its value.
    pub(crate) fn spill(&mut self, offset: i64, bytes: usize, value: Value) {
        for (at, slot, mask) in self.touched(offset, bytes) {
            let slot = &mut self.slots[slot];
            slot.written |= mask;
            slot.whole = if mask == u8::MAX && bytes == 8 && at == 0 { value } else { Value::Unknown };
        }
    }

    /// Loads from below the frame pointer: the value, and whether all of it was written before.
    pub(crate) fn fill(&self, offset: i64, bytes: usize) -> (Value, bool) {
        let touched = self.touched(offset, bytes);
        let written = touched.iter().all(|(_, slot, mask)| self.slots[*slot].written & mask == *mask);
        let value = match touched.as_slice() {
            [(_, slot, u8::MAX)] if written => self.slots[*slot].whole,
            _ => Value::Unknown,
        };
        (if value == Value::Uninit { Value::Unknown } else { value }, written)
    }

    /// Notes that any byte of the frame may have been written.
    pub(crate) fn disturb(&mut self) {
        for slot in &mut self.slots {
            slot.whole = Value::Unknown;
        }
    }

    /// Returns the slots under a range of the frame, each with its position in the range and its bytes of the
    /// range.
    fn touched(&self, offset: i64, bytes: usize) -> Vec<(usize, usize, u8)> {
        let Ok(start) = usize::try_from(offset + FRAME_BYTES as i64) else { return Vec::new() };
        let end = (start + bytes).min(FRAME_BYTES);
        (start / 8..end.div_ceil(8))
            .map(|slot| {
                let (first, last) = (start.max(slot * 8), end.min(slot * 8 + 8));
                let mask = (0xffu32 >> (8 - (last - first))) << (first - slot * 8);
                (first - start, slot, mask as u8)
            })
            .collect()
    }
}
