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
            // A slot with bytes that may not be written has no value.
            [(_, slot, u8::MAX)] => self.slots[*slot].whole,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn number(min: u64, max: u64) -> Value {
        Value::Number(Span { min, max })
    }

    fn pointer(base: Base, low: i64, high: i64, nullable: bool) -> Value {
        Value::Pointer(Pointer { base, low, high, nullable })
    }

    #[test]
    fn two_values_are_joined_to_one_that_covers_both() {
        use Base::{Context, Frame, Map};
        let (zero, context) = (number(0, 0), pointer(Context, 4, 8, false));
        let nullable = pointer(Context, 4, 8, true);
        for (a, b, joined, widened) in [
            (context, context, context, context),
            (Value::Unknown, context, Value::Unknown, Value::Unknown),
            (Value::Map(1), Value::Map(1), Value::Map(1), Value::Map(1)),
            (Value::Map(1), Value::Map(2), Value::Unknown, Value::Unknown),
            (Value::Map(1), zero, Value::Unknown, Value::Unknown),
            (number(3, 5), number(4, 4), number(3, 5), number(3, 5)),
            (number(3, 5), number(4, 9), number(3, 9), Value::ANY_NUMBER),
            (number(3, 5), number(2, 4), number(2, 5), Value::ANY_NUMBER),
            (context, pointer(Context, 5, 6, false), context, context),
            (context, pointer(Context, 2, 6, false), pointer(Context, 2, 8, false), Value::Unknown),
            (context, pointer(Context, 5, 9, false), pointer(Context, 4, 9, false), Value::Unknown),
            (context, pointer(Context, 5, 6, true), nullable, nullable),
            (nullable, pointer(Context, 5, 6, false), nullable, nullable),
            (context, pointer(Frame, 4, 8, false), Value::Unknown, Value::Unknown),
            (pointer(Map(1), 0, 0, false), pointer(Map(2), 0, 0, false), Value::Unknown, Value::Unknown),
            (context, zero, nullable, nullable),
            (zero, context, nullable, nullable),
            (context, number(0, 1), Value::Unknown, Value::Unknown),
            (context, number(1, 1), Value::Unknown, Value::Unknown),
        ] {
            assert_eq!((a.join(b, false), a.join(b, true)), (joined, widened), "{a:?} and {b:?}");
            for value in [a, b] {
                assert_eq!(value.join(Value::Uninit, false), Value::Uninit);
                assert_eq!(Value::Uninit.join(value, true), Value::Uninit);
            }
        }
    }

    #[test]
    fn a_pointer_is_followed_within_its_limits() {
        let at = |low, high| Pointer { base: Base::Context, low, high, nullable: false };
        let far = OFFSET_MAX as u64;
        let down = |by: u64| Span::exactly(by.wrapping_neg());
        for (from, by, is_down, low, high) in [
            (at(4, 8), Span { min: 1, max: 3 }, false, 5, 11),
            (at(4, 8), Span { min: 1, max: 3 }, true, 1, 7),
            (at(4, 8), down(3), false, 1, 5),
            (at(4, 8), down(3), true, 7, 11),
            (at(0, 0), Span::exactly(far), false, OFFSET_MAX, OFFSET_MAX),
            (at(0, 0), Span::exactly(far), true, -OFFSET_MAX, -OFFSET_MAX),
            (at(0, 0), down(far), false, -OFFSET_MAX, -OFFSET_MAX),
        ] {
            assert_eq!(from.moved(by, is_down), pointer(Base::Context, low, high, false), "{from:?} {by:?}");
        }
        for (from, by, is_down) in [
            (at(0, 0), Span::exactly(far + 1), false),
            (at(0, 0), down(far + 1), false),
            (at(0, 1), Span::exactly(far), false),
            (at(-1, 0), Span::exactly(far), true),
            (at(0, 0), Span::FULL, false),
            (at(0, 0), Span { min: 0, max: far + 1 }, false),
            (at(1, 1), Span { min: 0, max: i64::MAX as u64 }, false),
            (at(-2, -2), Span { min: 0, max: i64::MAX as u64 }, true),
            (at(0, 0), Span::exactly(i64::MIN as u64), true),
            (at(-1, 0), Span::exactly(i64::MIN as u64), false),
            (Pointer { nullable: true, ..at(0, 0) }, Span::exactly(0), false),
        ] {
            assert_eq!(from.moved(by, is_down), Value::Unknown, "{from:?} {by:?}");
        }
    }

    /// Compares writes and reads of a frame with a list of the bytes that were written.
    #[test]
    fn a_frame_has_the_bytes_that_were_written() {
        let start = || State::start([Value::Uninit; 5]);
        let (seven, frame) = (number(7, 7), FRAME_BYTES as i64);
        for (offset, bytes) in
            [(-8, 8), (-frame, 8), (-4, 4), (-7, 2), (-12, 8), (-24, 16), (-3, 1), (-30, 17)]
        {
            let mut state = start();
            state.spill(offset, bytes, seven);
            let end = offset + bytes as i64;
            for (at, length) in (-frame..0).flat_map(|at| [1, 2, 4, 8].map(|length| (at, length))) {
                let (value, is_written) = state.fill(at, length);
                let inside = at >= offset && (at + length as i64).min(0) <= end;
                assert_eq!(is_written, inside, "{length} bytes at {at}, of {bytes} at {offset}");
                let is_whole = (at, length) == (offset, bytes) && bytes == 8 && offset % 8 == 0;
                assert_eq!(value, if is_whole { seven } else { Value::Unknown }, "{length} bytes at {at}");
            }
        }
        assert_eq!(start().fill(-frame - 1, 8), (Value::Unknown, true), "no slot of the frame");
        // A part that is written later is not the value any more.
        for (offset, bytes) in [(-8, 4), (-4, 4), (-5, 1), (-12, 8), (-16, 16)] {
            let mut state = start();
            state.spill(-8, 8, seven);
            state.spill(offset, bytes, number(1, 1));
            assert_eq!(state.fill(-8, 8), (Value::Unknown, true), "{bytes} bytes at {offset}");
        }
        let mut state = start();
        state.spill(-8, 8, seven);
        state.disturb();
        assert_eq!(state.fill(-8, 8), (Value::Unknown, true));
    }

    #[test]
    fn a_path_leaves_what_all_paths_have() {
        let with = |spills: &[(i64, usize)]| {
            let mut state = State::start([Value::Uninit; 5]);
            spills.iter().for_each(|(offset, bytes)| state.spill(*offset, *bytes, number(7, 7)));
            state
        };
        let (both, one) = (with(&[(-8, 8), (-16, 8)]), with(&[(-8, 8)]));
        let mut joined = both.clone();
        assert!(!joined.join(&both, false) && joined == both);
        assert!(joined.join(&one, false));
        assert_eq!(
            (joined.fill(-8, 8), joined.fill(-16, 8)),
            ((number(7, 7), true), (Value::Unknown, false))
        );
        assert!(!joined.join(&one, false) && !joined.join(&both, false), "nothing is left to lose");
        // The upper half alone is lost.
        let (mut low, whole) = (with(&[(-8, 4)]), with(&[(-8, 8)]));
        assert_eq!([low.join(&whole, false), low.fill(-8, 4).1, low.fill(-8, 8).1], [false, true, false]);
        let mut whole = whole;
        assert!(whole.join(&with(&[(-4, 4)]), false));
        assert_eq!([whole.fill(-4, 4).1, whole.fill(-8, 4).1], [true, false]);
        let mut registers = with(&[]);
        let mut other = registers.clone();
        registers.set(Reg::RETURN, number(1, 1));
        other.set(Reg::RETURN, number(2, 2));
        assert!(registers.join(&other, false) && registers.get(Reg::RETURN) == number(1, 2));
        assert_eq!(registers.operand(Operand::Imm(-1)), number(u64::MAX, u64::MAX));
        assert_eq!(registers.operand(Operand::Reg(Reg::RETURN)), number(1, 2));
        assert_eq!(registers.get(Reg::FRAME), pointer(Base::Frame, 0, 0, false));
    }
}
