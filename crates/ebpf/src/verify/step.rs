//! Effect of one instruction on a state.

use super::Proof;
use super::Subject;
use super::check::Access;
use super::span::{Span, negated};
use super::state::{Base, Pointer, State, Value};
use crate::error::LoadErrorKind;
use crate::helpers::{Argument, Helper, Returns};
use crate::insn::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, Wide, Width};

/// Instruction in a state, with its result.
pub(crate) struct Step<'a> {
    pub(super) subject: &'a Subject<'a>,
    pub(super) state: &'a mut State,
    /// Certain error.
    pub(crate) error: Option<LoadErrorKind>,
    pub(crate) proof: Proof,
    pub(crate) note: Option<&'static str>,
    pub(crate) reads_fresh_stack: bool,
}

impl<'a> Step<'a> {
    pub(crate) fn new(subject: &'a Subject<'a>, state: &'a mut State) -> Self {
        Self { subject, state, error: None, proof: Proof::Nothing, note: None, reads_fresh_stack: false }
    }

    pub(super) fn fail(&mut self, error: LoadErrorKind) {
        self.error.get_or_insert(error);
    }

    /// Returns a register's value; it must have one.
    pub(super) fn read(&mut self, reg: Reg) -> Value {
        match self.state.get(reg) {
            Value::Uninit => {
                self.fail(LoadErrorKind::Uninitialised { reg: reg.index() as u8 });
                Value::Unknown
            }
            value => value,
        }
    }

    fn operand(&mut self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.read(reg),
            Operand::Imm(_) => self.state.operand(operand),
        }
    }

    pub(crate) fn insn(&mut self, at: usize, insn: &Insn) {
        match *insn {
            Insn::Alu { op, width, dst, src } => {
                let b = self.operand(src);
                let a = if op == AluOp::Mov { b } else { self.read(dst) };
                self.state.set(dst, alu(op, width, a, b));
            }
            Insn::Neg { width, dst } => self.number(dst, dst, width),
            Insn::MovSx { width, dst, src, .. } => self.number(dst, src, width),
            Insn::Swap { size, dst, .. } => {
                self.read(dst);
                self.state.set(dst, Value::Number(Span::of(size)));
            }
            Insn::LoadWide { dst, value } => self.state.set(dst, wide(value)),
            Insn::Load { size, signed, dst, base, offset } => {
                let loaded = self.load(Access { base, offset, size, write: false });
                self.state.set(dst, if signed { Value::ANY_NUMBER } else { loaded });
            }
            Insn::Store { size, base, offset, src } => {
                let value = self.operand(src);
                self.store(Access { base, offset, size, write: true }, value);
            }
            Insn::Atomic { .. } => self.atomic(insn),
            Insn::Branch { dst, src, .. } => {
                self.read(dst);
                self.operand(src);
            }
            Insn::CallHelper { .. } => self.call(at),
            Insn::Exit => {
                self.read(Reg::RETURN);
            }
            Insn::CallLocal { .. } | Insn::Jump { .. } | Insn::Tail => {}
        }
    }

    /// Sets the register to any number of this width.
    fn number(&mut self, dst: Reg, src: Reg, width: Width) {
        self.read(src);
        let span = if width == Width::W32 { Span::of(Size::B4) } else { Span::FULL };
        self.state.set(dst, Value::Number(span));
    }

    fn atomic(&mut self, insn: &Insn) {
        let Insn::Atomic { op, fetch, size, base, offset, src } = *insn else { return };
        self.read(src);
        if op == AtomicOp::CompareExchange {
            self.read(Reg::RETURN);
        }
        let access = Access { base, offset, size, write: true };
        self.refuse_atomic_context(base);
        // It reads before it writes: a byte that was never written counts as read.
        let old = self.load(access);
        self.store(access, Value::Unknown);
        match (op, fetch) {
            (AtomicOp::CompareExchange, _) => self.state.set(Reg::RETURN, old),
            (_, true) => self.state.set(src, old),
            _ => {}
        }
    }

    fn call(&mut self, at: usize) {
        let Some(helper) = self.subject.helpers.get(at).copied().flatten() else { return };
        let mut map = None;
        for (index, argument) in helper.arguments.iter().enumerate() {
            let Some(reg) = Reg::arguments().get(index).copied() else { continue };
            let value = self.read(reg);
            if let Value::Map(number) = value {
                map = map.or(Some(number));
            }
            self.argument(&helper, index, *argument, value, map);
        }
        if let Some(map) = map {
            self.proof = Proof::Map { map, key: self.key_in_frame(&helper) };
        }
        self.state.set(Reg::RETURN, returned_value(&helper, map));
        for reg in Reg::arguments() {
            self.state.set(reg, Value::Uninit);
        }
    }

    /// Returns the position of a call's key, when it is certainly in the frame.
    fn key_in_frame(&self, helper: &Helper) -> Option<i64> {
        let index = helper.arguments.iter().position(|argument| *argument == Argument::Key)?;
        match self.state.get(*Reg::arguments().get(index)?) {
            Value::Pointer(Pointer { base: Base::Frame, low, high, nullable: false }) if low == high => {
                Some(low)
            }
            _ => None,
        }
    }

    fn argument(&mut self, helper: &Helper, index: usize, kind: Argument, value: Value, map: Option<u32>) {
        let def = map.and_then(|map| self.subject.maps.get(map as usize));
        let bytes = match kind {
            Argument::Number => return,
            Argument::Map => {
                if !matches!(value, Value::Map(_) | Value::Unknown) {
                    let (argument, expected) = (index + 1, kind.expected());
                    self.fail(LoadErrorKind::BadArgument { helper: helper.name, argument, expected });
                }
                return;
            }
            Argument::Key => def.map(|def| def.key_size),
            Argument::Value => def.map(|def| def.value_size),
            Argument::Reads(bytes) | Argument::Writes(bytes) => Some(bytes),
            Argument::ReadsSized => Reg::arguments()
                .get(index + 1)
                .and_then(|reg| self.state.get(*reg).number()?.value())
                .and_then(|bytes| u32::try_from(bytes).ok()),
        };
        self.memory_argument(helper, index, kind, value, bytes);
    }
}

/// Returns the value of a 64-bit immediate.
fn wide(value: Wide) -> Value {
    match value {
        Wide::Value(value) => Value::Number(Span::exactly(value)),
        Wide::Map(map) => Value::Map(map),
        Wide::MapValue { map, offset } => {
            let offset = offset.into();
            Value::Pointer(Pointer { base: Base::Map(map), low: offset, high: offset, nullable: false })
        }
    }
}

fn returned_value(helper: &Helper, map: Option<u32>) -> Value {
    match (helper.returns, map) {
        (Returns::Number, _) => Value::ANY_NUMBER,
        (Returns::ValueOrNull, Some(map)) => {
            Value::Pointer(Pointer { base: Base::Map(map), low: 0, high: 0, nullable: true })
        }
        (Returns::ValueOrNull, None) => Value::Unknown,
    }
}

/// Computes `a op b`.
fn alu(op: AluOp, width: Width, a: Value, b: Value) -> Value {
    let half = Value::Number(Span::of(Size::B4));
    match (op, width, a, b) {
        (AluOp::Mov, Width::W64, _, value) => value,
        (_, _, Value::Number(a), Value::Number(b)) => Value::Number(a.alu(op, width, b)),
        (_, Width::W32, _, _) => half,
        (AluOp::Add, _, Value::Pointer(pointer), Value::Number(by))
        | (AluOp::Add, _, Value::Number(by), Value::Pointer(pointer)) => pointer.moved(by, false),
        (AluOp::Sub, _, Value::Pointer(pointer), Value::Number(by)) => pointer.moved(by, true),
        // Masking and offsetting an unknown value may still give an address.
        (AluOp::Add | AluOp::Sub | AluOp::And | AluOp::Or, ..) => Value::Unknown,
        _ => Value::ANY_NUMBER,
    }
}

/// Returns the state on one side of a branch, if that side can be taken at all.
pub(crate) fn follow(state: &State, insn: &Insn, taken: bool) -> Option<State> {
    let Insn::Branch { cond, width, dst, src, .. } = *insn else { return Some(state.clone()) };
    let mut next = state.clone();
    let Some(cond) = (if taken { Some(cond) } else { negated(cond) }) else { return Some(next) };
    match (state.get(dst), state.operand(src)) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = a.refine(cond, width, b)?;
            next.set(dst, Value::Number(a));
            if let Operand::Reg(src) = src {
                next.set(src, Value::Number(b));
            }
        }
        (Value::Pointer(pointer), Value::Number(zero)) if zero.value() == Some(0) && width == Width::W64 => {
            next.set(dst, against_null(pointer, cond)?);
        }
        _ => {}
    }
    Some(next)
}

/// Returns a pointer after a comparison with null.
fn against_null(pointer: Pointer, cond: Cond) -> Option<Value> {
    match cond {
        Cond::Eq if !pointer.nullable => Some(Value::Pointer(pointer)),
        Cond::Eq => Some(Value::Number(Span::exactly(0))),
        Cond::Ne => Some(Value::Pointer(Pointer { nullable: false, ..pointer })),
        _ => Some(Value::Pointer(pointer)),
    }
}

/// Returns the arguments that a function gets from its caller. The caller's frame is not its own.
pub(crate) fn handed_on(state: &State) -> [Value; 5] {
    Reg::arguments().map(|reg| match state.get(reg) {
        Value::Pointer(Pointer { base: Base::Frame, nullable, .. }) => {
            Value::Pointer(Pointer { base: Base::Stack, low: 0, high: 0, nullable })
        }
        value => value,
    })
}

/// Updates the state after a function of the program returned: it may have written to any frame whose address
/// it had.
pub(crate) fn returned(state: &mut State) {
    state.set(Reg::RETURN, Value::Unknown);
    for reg in Reg::arguments() {
        state.set(reg, Value::Uninit);
    }
    state.disturb();
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
    fn arithmetic_on_addresses_is_followed_in_64_bits() {
        const HALF: u64 = u32::MAX as u64;
        let (context, moved) = (pointer(Base::Context, 4, 8, false), pointer(Base::Context, 5, 11, false));
        let (by, half, any) = (number(1, 3), number(0, HALF), Value::ANY_NUMBER);
        for (op, a, b, wide, narrow) in [
            (AluOp::Mov, context, context, context, half),
            (AluOp::Mov, Value::Map(1), Value::Map(1), Value::Map(1), half),
            (AluOp::Mov, by, by, by, by),
            (AluOp::Mov, number(5, HALF + 5), number(5, HALF + 5), number(5, HALF + 5), half),
            (
                AluOp::Mov,
                number(HALF + 2, HALF + 2),
                number(HALF + 2, HALF + 2),
                number(HALF + 2, HALF + 2),
                number(1, 1),
            ),
            (AluOp::Add, context, by, moved, half),
            (AluOp::Add, by, context, moved, half),
            (AluOp::Add, context, context, Value::Unknown, half),
            (AluOp::Sub, context, by, pointer(Base::Context, 1, 7, false), half),
            (AluOp::Sub, by, context, Value::Unknown, half),
            (AluOp::Sub, context, context, Value::Unknown, half),
            (AluOp::And, context, number(7, 7), Value::Unknown, half),
            (AluOp::Or, Value::Unknown, by, Value::Unknown, half),
            (AluOp::Add, Value::Unknown, by, Value::Unknown, half),
            (AluOp::Mul, context, by, any, half),
            (AluOp::Xor, Value::Unknown, by, any, half),
            (AluOp::Lsh, Value::Map(1), by, any, half),
            (AluOp::Add, number(2, 3), by, number(3, 6), number(3, 6)),
        ] {
            assert_eq!(alu(op, Width::W64, a, b), wide, "{a:?} {op:?} {b:?}");
            assert_eq!(alu(op, Width::W32, a, b), narrow, "{a:?} {op:?} {b:?} in 32 bits");
        }
    }

    /// Checks the ranges of two registers on both sides of each comparison.
    #[test]
    fn a_comparison_limits_registers_on_each_side() {
        let (dst, src) = (Reg::RETURN, Reg::arguments()[0]);
        let sides = |cond, width, a, b: Value, is_zero: bool| {
            let mut state = State::start([b, Value::Uninit, Value::Uninit, Value::Uninit, Value::Uninit]);
            state.set(dst, a);
            let operand = if is_zero { Operand::Imm(0) } else { Operand::Reg(src) };
            let insn = Insn::Branch { cond, width, dst, src: operand, target: 0 };
            [true, false].map(|taken| follow(&state, &insn, taken).map(|it| (it.get(dst), it.get(src))))
        };
        let wide = Width::W64;
        let (some, sure) = (pointer(Base::Map(0), 0, 0, true), pointer(Base::Map(0), 0, 0, false));
        let (null, five) = (number(0, 0), number(5, 5));
        let both = |a, b| [Some((a, b)); 2];
        // A pointer is compared with zero in 64 bits, and with nothing else.
        assert_eq!(sides(Cond::Eq, wide, some, five, true), [Some((null, five)), Some((sure, five))]);
        assert_eq!(sides(Cond::Ne, wide, some, five, true), [Some((sure, five)), Some((null, five))]);
        assert_eq!(sides(Cond::Eq, wide, some, null, false), [Some((null, null)), Some((sure, null))]);
        assert_eq!(sides(Cond::Eq, wide, sure, five, true), both(sure, five));
        assert_eq!(sides(Cond::Ne, wide, sure, five, true), both(sure, five));
        for cond in [Cond::Gt, Cond::Le, Cond::SLt, Cond::Set] {
            assert_eq!(sides(cond, wide, some, five, true), both(some, five), "{cond:?}");
        }
        assert_eq!(sides(Cond::Eq, Width::W32, some, five, true), both(some, five));
        assert_eq!(sides(Cond::Eq, wide, some, five, false), both(some, five));
        assert_eq!(sides(Cond::Eq, wide, some, number(0, 1), false), both(some, number(0, 1)));
        assert_eq!(sides(Cond::Eq, wide, Value::Map(0), five, true), both(Value::Map(0), five));
        // Numbers, with a register and with a constant.
        let (a, b) = (number(0, 9), number(5, 20));
        assert_eq!(sides(Cond::Lt, wide, b, a, false), [Some((number(5, 8), number(6, 9))), Some((b, a))]);
        assert_eq!(sides(Cond::Eq, wide, a, five, true), [Some((null, five)), Some((number(1, 9), five))]);
        assert_eq!(sides(Cond::Eq, wide, five, five, true), [None, Some((five, five))]);
        assert_eq!(sides(Cond::Eq, wide, null, five, true), [Some((null, five)), None]);
        assert_eq!(sides(Cond::Set, wide, a, b, false), both(a, b));
    }

    /// Checks the state of a called function, and the caller's behind the call.
    #[test]
    fn a_call_hands_on_its_arguments_and_leaves_none() {
        let frame = |nullable| pointer(Base::Frame, -16, -8, nullable);
        let given =
            [frame(false), frame(true), Value::Map(3), Value::Uninit, pointer(Base::Context, 1, 2, true)];
        let mut state = State::start(given);
        let stack = |nullable| pointer(Base::Stack, 0, 0, nullable);
        assert_eq!(handed_on(&state), [stack(false), stack(true), given[2], given[3], given[4]]);
        state.spill(-8, 8, Value::Map(1));
        returned(&mut state);
        assert_eq!(state.get(Reg::RETURN), Value::Unknown);
        assert!(Reg::arguments().iter().all(|reg| state.get(*reg) == Value::Uninit));
        assert_eq!(state.fill(-8, 8), (Value::Unknown, true));
    }
}
