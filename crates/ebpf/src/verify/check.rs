//! Checks of accesses: their targets, and whether these can be valid.

use super::Proof;
use super::span::Span;
use super::state::{Base, Pointer, Value};
use super::step::Step;
use crate::error::LoadErrorKind;
use crate::helpers::{Argument, Helper};
use crate::insn::{Reg, Size};
use crate::layout::{FRAME_BYTES, Region, STACK_BYTES};
use crate::maps::MapDef;

/// Load or store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) base: Reg,
    pub(super) offset: i16,
    pub(super) size: Size,
    pub(super) write: bool,
}

/// Range of bytes relative to a base: its possible beginnings, and its length.
#[derive(Debug, Clone, Copy)]
struct Reach {
    low: i64,
    high: i64,
    bytes: i64,
    write: bool,
    nullable: bool,
}

impl Reach {
    /// Returns whether the target is certain, so that no check of the register is left. A pointer that may be
    /// null must be compared.
    fn certain(&self) -> bool {
        self.low == self.high && !self.nullable
    }

    /// Returns whether the range is certainly inside `from..to`.
    fn inside(&self, from: i64, to: i64) -> bool {
        self.low >= from && self.high + self.bytes <= to
    }

    /// Returns whether the range is certainly not inside.
    fn outside(&self, from: i64, to: i64) -> bool {
        self.high < from || self.low + self.bytes > to
    }
}

const MAY_BE_NULL: &str =
    "the pointer may be NULL here; it is checked when it is used (compare it with 0 first)";
const MAY_BE_OUTSIDE: &str = "the access may be out of bounds; it is checked when it happens";
const UNTRACKED: &str = "the address could not be followed; it is checked when it is used";

impl Step<'_> {
    pub(super) fn load(&mut self, access: Access) -> Value {
        let number = Value::Number(Span::of(access.size));
        let bytes = access.size.bytes() as usize;
        match self.access(access) {
            Some(pointer) => match pointer.base {
                Base::Frame if pointer.low == pointer.high => {
                    let (value, written) = self.state.fill(pointer.low, bytes);
                    self.reads_fresh_stack |= !written;
                    if access.size == Size::B8 { value } else { number }
                }
                Base::Frame | Base::Stack => {
                    self.reads_fresh_stack = true;
                    if access.size == Size::B8 { Value::Unknown } else { number }
                }
                Base::Context | Base::Map(_) => number,
            },
            None => {
                self.reads_fresh_stack = true;
                if access.size == Size::B8 { Value::Unknown } else { number }
            }
        }
    }

    pub(super) fn store(&mut self, access: Access, value: Value) {
        match self.access(access) {
            Some(pointer) => match pointer.base {
                Base::Frame if pointer.low == pointer.high => {
                    self.state.spill(pointer.low, access.size.bytes() as usize, value);
                }
                Base::Frame | Base::Stack => self.state.disturb(),
                Base::Context | Base::Map(_) => {}
            },
            None => self.state.disturb(),
        }
    }

    pub(super) fn refuse_atomic_context(&mut self, base: Reg) {
        if let Value::Pointer(Pointer { base: Base::Context, .. }) = self.state.get(base) {
            let what = "the context has no atomic operations; use a plain load and store".to_owned();
            self.fail(LoadErrorKind::OutOfBounds { what });
        }
    }

    /// Finds the target of an access: the pointer plus the access's offset, if it could be followed.
    fn access(&mut self, access: Access) -> Option<Pointer> {
        let value = self.read(access.base);
        let offset = i64::from(access.offset);
        let pointer = match value {
            Value::Pointer(pointer) => {
                Pointer { low: pointer.low + offset, high: pointer.high + offset, ..pointer }
            }
            Value::Number(_) | Value::Map(_) => {
                self.fail(LoadErrorKind::WildPointer { reg: access.base.index() as u8 });
                return None;
            }
            Value::Uninit | Value::Unknown => {
                self.note = Some(UNTRACKED);
                self.proof = Proof::Nothing;
                return None;
            }
        };
        self.proof = self.locate(pointer, access.size.bytes().into(), access.write);
        if pointer.nullable {
            self.note = Some(MAY_BE_NULL);
        }
        Some(pointer)
    }

    fn locate(&mut self, pointer: Pointer, bytes: i64, write: bool) -> Proof {
        let Pointer { low, high, nullable, .. } = pointer;
        let reach = Reach { low, high, bytes, write, nullable };
        match pointer.base {
            Base::Context => self.context(reach),
            Base::Frame => self.frame(reach),
            Base::Stack => Proof::Within(Region::Stack, 0..STACK_BYTES),
            Base::Map(map) => self.map_value(map, reach),
        }
    }

    fn context(&mut self, reach: Reach) -> Proof {
        let layout = self.subject.layout;
        let start = usize::try_from(reach.low).unwrap_or(usize::MAX);
        let end = usize::try_from(reach.high + reach.bytes).unwrap_or(0);
        let window = if start < end { layout.window(&(start..end), reach.write) } else { None };
        match window {
            Some(_) if reach.certain() => Proof::Context(start),
            Some(window) => Proof::Within(Region::Context, window),
            None if reach.low == reach.high || reach.outside(0, layout.size() as i64) => {
                let verb = if reach.write { "written" } else { "read" };
                let what = format!(
                    "bytes {} to {} of the context may not be {verb}; the context has {} bytes, see its structure in the header",
                    reach.low,
                    reach.high + reach.bytes - 1,
                    layout.size()
                );
                self.fail(LoadErrorKind::OutOfBounds { what });
                Proof::Nothing
            }
            None => {
                self.note = Some(MAY_BE_OUTSIDE);
                Proof::Nothing
            }
        }
    }

    fn frame(&mut self, reach: Reach) -> Proof {
        let bottom = -(FRAME_BYTES as i64);
        if reach.outside(bottom, 0) {
            let what = format!(
                "offset {} with {} bytes is outside the stack frame, which is r10-512 to r10-1; use a map for what is larger",
                reach.low, reach.bytes
            );
            self.fail(LoadErrorKind::OutOfBounds { what });
            return Proof::Nothing;
        }
        if reach.certain() {
            return Proof::Frame(reach.low);
        }
        if !reach.inside(bottom, 0) {
            self.note = Some(MAY_BE_OUTSIDE);
        }
        Proof::Within(Region::Stack, 0..STACK_BYTES)
    }

    fn map_value(&mut self, map: u32, reach: Reach) -> Proof {
        let Some(def) = self.subject.maps.get(map as usize) else { return Proof::Nothing };
        let size = i64::from(def.value_size);
        if reach.outside(0, size) {
            let what = format!(
                "offset {} with {} bytes is outside the value of map {}, which has {size} bytes",
                reach.low, reach.bytes, def.name
            );
            self.fail(LoadErrorKind::OutOfBounds { what });
        } else if reach.write && def.read_only() {
            self.fail(LoadErrorKind::OutOfBounds {
                what: format!("map {} is read-only for programs", def.name),
            });
        } else if !reach.inside(0, size) {
            self.note = Some(MAY_BE_OUTSIDE);
        }
        Proof::Within(Region::Map(map), 0..values_len(def))
    }

    /// Checks memory that is an argument of a helper.
    pub(super) fn memory_argument(
        &mut self,
        helper: &Helper,
        index: usize,
        kind: Argument,
        value: Value,
        bytes: Option<u32>,
    ) {
        let write = matches!(kind, Argument::Writes(_));
        let Value::Pointer(pointer) = value else {
            // A null pointer with no bytes behind it is C's form of "nothing".
            if matches!(value, Value::Number(_) | Value::Map(_)) && bytes != Some(0) {
                let (argument, expected) = (index + 1, kind.expected());
                self.fail(LoadErrorKind::BadArgument { helper: helper.name, argument, expected });
            }
            self.reads_fresh_stack = true;
            if write {
                self.state.disturb();
            }
            return;
        };
        if let Some(bytes) = bytes.filter(|&bytes| bytes > 0) {
            self.locate(pointer, bytes.into(), write);
        }
        match (pointer.base, bytes) {
            (Base::Frame, Some(bytes)) if pointer.low == pointer.high => {
                let bytes = bytes as usize;
                if write {
                    self.state.spill(pointer.low, bytes, Value::Unknown);
                } else {
                    self.reads_fresh_stack |= !self.state.fill(pointer.low, bytes).1;
                }
            }
            (Base::Frame | Base::Stack, _) if write => self.state.disturb(),
            (Base::Frame | Base::Stack, _) => self.reads_fresh_stack = true,
            _ => {}
        }
    }
}

/// Returns the bytes of a map's values.
fn values_len(def: &MapDef) -> usize {
    def.stride() * def.max_entries as usize
}
