//! Functions that generated code calls.
//!
//! Every function here gets the machine that the code was started with, and numbers that a program chose.
//! Memory is reached only as far as [`Machine`] permits.
#![allow(unsafe_code)] // turns the machine's address back into a reference

use crate::error::Fault;
use crate::helpers::{self, Helper};
use crate::insn::{AtomicOp, Size};
use crate::machine::{Atomic, Location, Machine};
use crate::maps::{Key, Map};

/// Value, and the number of a fault or zero. Both come back in registers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Returned {
    pub(super) value: u64,
    pub(super) fault: u64,
}

impl From<Result<u64, Fault>> for Returned {
    fn from(result: Result<u64, Fault>) -> Self {
        match result {
            Ok(value) => Self { value, fault: 0 },
            Err(fault) => Self { value: 0, fault: fault as u64 },
        }
    }
}

/// Calls a helper.
///
/// # Safety
/// `machine` must be the one that the calling code was started with, and `helper` one that outlives the code.
pub(super) unsafe extern "C" fn call_helper(
    machine: *mut Machine<'_>,
    helper: *const Helper,
    r1: u64,
    r2: u64,
    r3: u64,
    r4: u64,
    r5: u64,
) -> Returned {
    // SAFETY: the code that calls holds the only pointer to the machine and does not use it meanwhile.
    let machine = unsafe { &mut *machine };
    // SAFETY: the helper is owned by the compiled program that calls.
    let helper = unsafe { &*helper };
    (helper.function)(machine, [r1, r2, r3, r4, r5]).into()
}

/// Calls `bpf_map_lookup_elem`, the most frequent helper.
///
/// # Safety
/// `machine` must be the one that the calling code was started with.
pub(super) unsafe extern "C" fn map_lookup(machine: *mut Machine<'_>, handle: u64, key: u64) -> Returned {
    // SAFETY: as in `call_helper`.
    let machine = unsafe { &mut *machine };
    helpers::map_lookup(machine, [handle, key, 0, 0, 0]).into()
}

/// Looks up a key of 4 or 8 bytes in a hash that was known when the code was generated.
///
/// # Safety
/// `machine` must be the one that the calling code was started with, and `map` one that outlives the code.
pub(super) unsafe extern "C" fn hash_lookup(
    machine: *mut Machine<'_>,
    map: *const Map,
    number: u64,
    key: u64,
) -> Returned {
    // SAFETY: as in `call_helper`.
    let machine = unsafe { &mut *machine };
    // SAFETY: the map is owned by the memory that the compiled program holds.
    let map = unsafe { &*map };
    helpers::find(machine, map, number as u32, &Key::of_word(key)).into()
}

/// Finds the host's address of memory that a program may access. `access` is its size, plus [`WRITE`].
///
/// # Safety
/// `machine` must be the one that the calling code was started with.
pub(super) unsafe extern "C" fn resolve(machine: *const Machine<'_>, address: u64, access: u64) -> Returned {
    // SAFETY: as in `call_helper`; and it is only read.
    let machine = unsafe { &*machine };
    let place = machine.resolve(address, (access & !WRITE) as usize, access & WRITE != 0);
    let host = place.map(|place| match place {
        Location::Context(cells) => cells.as_ptr().expose_provenance() as u64,
        Location::Words(words, at) => words.base().wrapping_add(at).expose_provenance() as u64,
    });
    host.into()
}

/// Bit of the `access` of [`resolve`]: the access writes.
pub(super) const WRITE: u64 = 1 << 32;

/// Runs an atomic instruction at an address without a proof.
///
/// # Safety
/// `machine` must be the one that the calling code was started with.
pub(super) unsafe extern "C" fn atomic(
    machine: *mut Machine<'_>,
    what: u64,
    address: u64,
    operand: u64,
    expected: u64,
) -> Returned {
    // SAFETY: as in `call_helper`.
    let machine = unsafe { &mut *machine };
    let size = if what & 8 != 0 { Size::B8 } else { Size::B4 };
    let Some((op, _)) = ATOMIC_OPS.iter().find(|(_, code)| *code == what & !8) else {
        return Err(Fault::NoInstruction).into();
    };
    machine.atomic(Atomic { op: *op, size, operand, expected }, address).into()
}

const ATOMIC_OPS: [(AtomicOp, u64); 6] = [
    (AtomicOp::Add, 0x10),
    (AtomicOp::Or, 0x20),
    (AtomicOp::And, 0x30),
    (AtomicOp::Xor, 0x40),
    (AtomicOp::Exchange, 0x50),
    (AtomicOp::CompareExchange, 0x60),
];

/// Returns the code of an operation for [`atomic`].
pub(super) fn atomic_code(op: AtomicOp, size: Size) -> u64 {
    let code = ATOMIC_OPS.iter().find(|(known, _)| *known == op).map_or(0, |(_, code)| *code);
    code | if size == Size::B8 { 8 } else { 0 }
}
