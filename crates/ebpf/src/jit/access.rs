//! Memory accesses: the part that the safety of the host rests on.
//!
//! [`Lower::place`] turns an address of the program into one of the host. Each of its ways ends in an address
//! inside the program's own memory, for any proof and any contents of the registers.

use std::ops::Range;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlags, Value};

use super::alu::int;
use super::lower::{I64, Lower, trusted};
use super::runtime;
use crate::error::Fault;
use crate::insn::{AtomicOp, Insn, Reg, Size};
use crate::layout::{FRAME_BYTES, Region};
use crate::verify::Proof;

/// Access of the program.
#[derive(Debug, Clone, Copy)]
struct Access {
    base: Reg,
    offset: i16,
    size: Size,
    write: bool,
}

impl Access {
    /// Returns the access of an instruction through a register.
    fn of(insn: &Insn) -> Option<Self> {
        Some(match *insn {
            Insn::Load { size, base, offset, .. } => Self { base, offset, size, write: false },
            Insn::Store { size, base, offset, .. } | Insn::Atomic { size, base, offset, .. } => {
                Self { base, offset, size, write: true }
            }
            _ => return None,
        })
    }
}

/// Bounds of an access, relative to the position of its register in a region.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Offset from the register.
    offset: i32,
    /// Offset from the register, less the start of the window.
    beyond: i64,
    /// Last position in the window where the access has room.
    last: i64,
}

impl Bounds {
    fn new(access: &Access, window: &Range<usize>) -> Self {
        let beyond = i64::from(access.offset) - window.start as i64;
        let last = window.len() as i64 - i64::from(access.size.bytes());
        Self { offset: access.offset.into(), beyond, last }
    }

    /// Returns the farthest valid position of the register in the region, if the start of the region is
    /// valid, too.
    fn reach(&self) -> Option<i64> {
        (0..=self.last).contains(&self.beyond).then_some(self.last - self.beyond)
    }
}

/// Position of a register in a region, clamped so that every access up to here is inside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clamped {
    region: Region,
    reach: i64,
    place: Value,
}

/// Value in place of a clamped register that was not near enough for all accesses: no bound is so large. No
/// processor reads there even speculatively: it is no address, or, with the upper bits ignored, the start of
/// the region.
pub(super) const NOWHERE: u64 = 1 << 63;

/// Instructions that are searched for further accesses through a register.
const LOOK_AHEAD: usize = 64;

/// Address of the host, and an offset to it.
struct Location {
    address: Value,
    offset: i32,
}

impl Lower<'_, '_> {
    /// Emits the host's address of a permitted access; traps when it is not permitted.
    fn place(&mut self, access: Access) -> Location {
        let bytes = access.size.bytes() as usize;
        let memory = self.all.source.memory;
        match self.proof().clone() {
            Proof::Context(at) if memory.layout.permits(at, access.size, access.write) => {
                Location { address: self.context, offset: at as i32 }
            }
            Proof::Frame(offset) if in_frame(offset, bytes) => {
                Location { address: self.frame, offset: offset as i32 }
            }
            Proof::Within(region, window) => match self.bounds(region, window, access) {
                Some((host, window)) => self.compared(access, region, host, &window),
                None => self.searched(access),
            },
            _ => self.searched(access),
        }
    }

    /// Returns the bytes of a region that an access may touch within the proven window, and the host's
    /// address of the region; none if there are no such bytes.
    fn bounds(
        &mut self,
        region: Region,
        window: Range<usize>,
        access: Access,
    ) -> Option<(Value, Range<usize>)> {
        let memory = self.all.source.memory;
        let window = self.window(region, window, access)?;
        let host = match region {
            Region::Context => self.context,
            Region::Stack => self.number(memory.stack.base().addr() as u64),
            Region::Map(map) => {
                let values = memory.maps.get(map as usize)?.values()?;
                self.number(values.base().addr() as u64)
            }
        };
        Some((host, window))
    }

    /// Returns the bytes of a region that an access may touch within the proven window.
    fn window(&self, region: Region, window: Range<usize>, access: Access) -> Option<Range<usize>> {
        let memory = self.all.source.memory;
        let window = match region {
            Region::Context => memory.layout.window(&window, access.write)?,
            Region::Stack => 0..memory.stack.len(),
            Region::Map(map) => {
                let map = memory.maps.get(map as usize)?;
                0..map.values().filter(|_| !(access.write && map.def().read_only()))?.len()
            }
        };
        (window.len() >= access.size.bytes() as usize).then_some(window)
    }

    /// Compares the address with the bounds of a region.
    ///
    /// Programs reach several fields through one register, so the comparison is with that register's position
    /// in the region. An access at an offset that is not negative is inside if the register is far enough
    /// from the end. Another access may still be inside, and is checked exactly.
    ///
    /// A processor may speculate that the comparison holds, so the position is clamped, too. The first access
    /// through a register clamps it for all that follow in its block: it is compared with the strictest of
    /// their bounds.
    fn compared(&mut self, access: Access, region: Region, host: Value, window: &Range<usize>) -> Location {
        let base = self.get(access.base);
        let relative = self.b.ins().iadd_imm(base, (region.base() as i64).wrapping_neg());
        let bounds = Bounds::new(&access, window);
        let Some(reach) = bounds.reach() else {
            let place = self.exactly(relative, &bounds);
            return Location { address: self.b.ins().iadd(host, place), offset: bounds.offset };
        };
        let known = self.clamped.get(&access.base.index()).copied();
        let known = known.filter(|it| it.region == region && it.reach <= reach);
        let least = known.map_or_else(|| self.least_reach(access.base, region).min(reach), |_| reach);
        let tested = known.map_or(relative, |it| it.place);
        let (near, far, inside) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(far);
        let place = self.b.append_block_param(inside, I64);
        let is_near = self.b.ins().icmp_imm(IntCC::UnsignedLessThanOrEqual, tested, least);
        self.b.ins().brif(is_near, near, &[], far, &[]);
        self.b.switch_to_block(far);
        let exact = self.exactly(relative, &bounds);
        match known {
            Some(_) => {
                self.b.ins().jump(inside, &[exact.into()]);
                self.b.switch_to_block(near);
                self.b.ins().jump(inside, &[tested.into()]);
            }
            None => {
                let kept = self.b.append_block_param(inside, I64);
                let nowhere = self.number(NOWHERE);
                self.b.ins().jump(inside, &[exact.into(), nowhere.into()]);
                self.b.switch_to_block(near);
                let zero = self.number(0);
                let clamped = self.b.ins().select_spectre_guard(is_near, relative, zero);
                self.b.ins().jump(inside, &[clamped.into(), clamped.into()]);
                self.clamped.insert(access.base.index(), Clamped { region, reach: least, place: kept });
            }
        }
        self.b.switch_to_block(inside);
        Location { address: self.b.ins().iadd(host, place), offset: bounds.offset }
    }

    /// Emits the position of a register in its region whose access is inside its bounds; traps if it is not.
    fn exactly(&mut self, relative: Value, bounds: &Bounds) -> Value {
        let exact = self.b.ins().iadd_imm(relative, bounds.beyond);
        let outside = self.b.ins().icmp_imm(IntCC::UnsignedGreaterThan, exact, bounds.last);
        self.trap_if(outside, Fault::Memory);
        let zero = self.number(0);
        let clamped = self.b.ins().select_spectre_guard(outside, zero, exact);
        self.b.ins().iadd_imm(clamped, -bounds.beyond)
    }

    /// Returns the farthest position of a register in a region at which all its following accesses in this
    /// block are inside. Some may use another value of the register: then the bound is stricter than needed.
    fn least_reach(&self, base: Reg, region: Region) -> i64 {
        let code = self.all.source.code;
        let following = (self.at + 1..).take(LOOK_AHEAD).take_while(|at| !self.begins_block(*at));
        let reaches = following.filter_map(|at| {
            let access = Access::of(code.insn(at)?).filter(|access| access.base == base)?;
            match self.all.source.proofs.get(at)? {
                Proof::Within(its, window) if *its == region => {
                    let window = self.window(region, window.clone(), access)?;
                    Bounds::new(&access, &window).reach()
                }
                _ => None,
            }
        });
        reaches.min().unwrap_or(i64::MAX)
    }

    /// Emits a call of [`Machine::resolve`](crate::machine::Machine::resolve).
    fn searched(&mut self, access: Access) -> Location {
        let address = self.address(access);
        let what = u64::from(access.size.bytes()) | if access.write { runtime::WRITE } else { 0 };
        let what = self.number(what);
        let address =
            self.checked_call(runtime::resolve as *const () as usize, &[self.machine, address, what]);
        Location { address, offset: 0 }
    }

    fn address(&mut self, access: Access) -> Value {
        let base = self.get(access.base);
        self.b.ins().iadd_imm(base, i64::from(access.offset))
    }

    pub(super) fn load(&mut self, insn: &Insn) {
        let Insn::Load { size, signed, dst, base, offset } = *insn else { return };
        let Location { address, offset } = self.place(Access { base, offset, size, write: false });
        let flags = trusted();
        let value = match (size, signed) {
            (Size::B1, false) => self.b.ins().uload8(I64, flags, address, offset),
            (Size::B1, true) => self.b.ins().sload8(I64, flags, address, offset),
            (Size::B2, false) => self.b.ins().uload16(I64, flags, address, offset),
            (Size::B2, true) => self.b.ins().sload16(I64, flags, address, offset),
            (Size::B4, false) => self.b.ins().uload32(flags, address, offset),
            (Size::B4, true) => self.b.ins().sload32(flags, address, offset),
            (Size::B8, _) => self.b.ins().load(I64, flags, address, offset),
        };
        self.set(dst, value);
    }

    pub(super) fn store(&mut self, insn: &Insn) {
        let Insn::Store { size, base, offset, src } = *insn else { return };
        let value = self.operand(src);
        let Location { address, offset } = self.place(Access { base, offset, size, write: true });
        match size {
            Size::B1 => self.b.ins().istore8(trusted(), value, address, offset),
            Size::B2 => self.b.ins().istore16(trusted(), value, address, offset),
            Size::B4 => self.b.ins().istore32(trusted(), value, address, offset),
            Size::B8 => self.b.ins().store(trusted(), value, address, offset),
        };
    }

    pub(super) fn atomic(&mut self, insn: &Insn) {
        let Insn::Atomic { op, fetch, size, base, offset, src } = *insn else { return };
        let access = Access { base, offset, size, write: true };
        let (operand, expected) = (self.get(src), self.get(Reg::RETURN));
        let shared = match self.proof().clone() {
            // The context has no atomics, so only accesses that are certainly elsewhere are done here.
            Proof::Within(region @ (Region::Stack | Region::Map(_)), window) => {
                self.bounds(region, window, access).map(|bounds| (region, bounds))
            }
            _ => None,
        };
        let old = match shared {
            Some((region, (host, window))) => {
                self.check_aligned(access);
                let place = self.compared(access, region, host, &window);
                self.change(op, size, &place, operand, expected)
            }
            None => {
                let (what, address) = (self.number(runtime::atomic_code(op, size)), self.address(access));
                let arguments = [self.machine, what, address, operand, expected];
                self.checked_call(runtime::atomic as *const () as usize, &arguments)
            }
        };
        match (op, fetch) {
            (AtomicOp::CompareExchange, _) => self.set(Reg::RETURN, old),
            (_, true) => self.set(src, old),
            _ => {}
        }
    }

    fn check_aligned(&mut self, access: Access) {
        let address = self.address(access);
        let low = self.b.ins().band_imm(address, i64::from(access.size.bytes()) - 1);
        self.trap_if(low, Fault::Misaligned);
    }

    /// Emits an atomic operation. Regions begin at multiples of eight, for the program and for the host.
    fn change(
        &mut self,
        op: AtomicOp,
        size: Size,
        place: &Location,
        operand: Value,
        expected: Value,
    ) -> Value {
        let ty = int(size);
        let flags = MemFlags::trusted();
        let address = self.b.ins().iadd_imm(place.address, i64::from(place.offset));
        let narrow =
            |lower: &mut Self, value| if ty == I64 { value } else { lower.b.ins().ireduce(ty, value) };
        let operand = narrow(self, operand);
        let rmw = match op {
            AtomicOp::Add => AtomicRmwOp::Add,
            AtomicOp::Or => AtomicRmwOp::Or,
            AtomicOp::And => AtomicRmwOp::And,
            AtomicOp::Xor => AtomicRmwOp::Xor,
            AtomicOp::Exchange => AtomicRmwOp::Xchg,
            AtomicOp::CompareExchange => {
                let expected = narrow(self, expected);
                let old = self.b.ins().atomic_cas(flags, address, expected, operand);
                return if ty == I64 { old } else { self.b.ins().uextend(I64, old) };
            }
        };
        let old = self.b.ins().atomic_rmw(ty, flags, rmw, address, operand);
        if ty == I64 { old } else { self.b.ins().uextend(I64, old) }
    }
}

/// Returns whether so many bytes at an offset from the frame pointer are in the frame.
pub(super) fn in_frame(offset: i64, bytes: usize) -> bool {
    offset >= -(FRAME_BYTES as i64) && offset <= -(bytes as i64)
}
