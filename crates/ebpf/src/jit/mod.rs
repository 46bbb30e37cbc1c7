//! Machine code, by way of Cranelift.
//!
//! The safety of the host rests on few rules, and each is kept in one place:
//!
//! - Generated code touches memory of a program only at an address from [`access`]. The address is compared with the bounds
//!   of a region on the spot, or is a constant that was compared when the code was made, or comes from
//!   [`Machine::resolve`]. Proofs choose between these; none of them is trusted. A compared address is clamped, too, so
//!   that it holds under speculation.
//! - It calls only functions of [`runtime`], and functions that were generated with it.
//! - Every backward jump and every call takes fuel; calls nest no deeper than the stack has frames.
//! - No instruction of it can raise a signal: divisors are made harmless first, addresses are valid.
#![allow(unsafe_code)] // starts generated code

mod access;
mod alu;
mod calls;
#[cfg(test)]
mod clamped;
mod lower;
mod mapping;
mod runtime;
#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::FunctionBuilderContext;

use crate::error::{Fault, LoadError, LoadErrorKind, Trap};
use crate::helpers::Helper;
use crate::insn::Insn;
use crate::machine::{Machine, Memory};
use crate::object::Code;
use crate::verify::Proof;
use lower::{Lowering, Unit};
use mapping::Mapping;
use runtime::Returned;

/// Input of code generation.
pub(crate) struct Source<'a> {
    pub(crate) code: &'a Code,
    pub(crate) helpers: &'a [Option<Helper>],
    pub(crate) proofs: &'a [Proof],
    pub(crate) memory: &'a Arc<Memory>,
}

/// Program as machine code.
pub(crate) struct Compiled {
    entry: Start,
    _mapping: Mapping,
    /// Addresses of the functions that programs call; the code has the table's address in it.
    _functions: Box<[AtomicUsize]>,
    /// Helpers whose addresses are in the code.
    _helpers: Box<[Option<Helper>]>,
    memory: Arc<Memory>,
}

/// Start of the program, in the mapping beside it.
struct Start(*const u8);

// SAFETY: it points into a mapping, which is `Send`, and which no thread writes to.
unsafe impl Send for Start {}
// SAFETY: as above; threads only execute the code.
unsafe impl Sync for Start {}

type Entry<'a> = unsafe extern "C" fn(*mut Machine<'a>) -> Returned;

impl Compiled {
    pub(crate) fn new(source: &Source<'_>) -> Result<Self, LoadError> {
        let isa = host_isa(source.code.insns.len())?;
        let helpers: Box<[Option<Helper>]> = source.helpers.into();
        let units = units(source.code);
        let functions: Box<[AtomicUsize]> = units.iter().map(|_| AtomicUsize::new(0)).collect();
        let lowering = Lowering { source, helpers: &helpers, functions: &functions, units: &units };
        let (code, starts) = generate(&lowering, isa.as_ref())?;
        let mapping = Mapping::new(&code).map_err(|why| LoadErrorKind::CodeGeneration(why.to_string()))?;
        for (function, start) in functions.iter().zip(&starts) {
            function.store(mapping.at(*start).addr(), Ordering::Release);
        }
        let entry = Start(mapping.at(starts.first().copied().unwrap_or(0)));
        Ok(Self {
            entry,
            _mapping: mapping,
            _functions: functions,
            _helpers: helpers,
            memory: Arc::clone(source.memory),
        })
    }

    /// Runs the program on a context of the layout's length.
    #[inline]
    pub(crate) fn run(&self, context: &mut [u8], fuel: u64) -> Result<u64, Trap> {
        let mut machine = Machine::new(&self.memory, context, fuel);
        // SAFETY: the mapping holds, at this address, a function of this type that was generated just for it.
        let entry: Entry<'_> = unsafe { mem::transmute(self.entry.0) };
        // SAFETY: the code works on this machine alone; its context has the layout's length, and its memory
        // is the one whose addresses are in the code. `self` keeps both alive.
        let returned = unsafe { entry(&mut machine) };
        match returned.fault {
            0 => Ok(returned.value),
            packed => Err(unpack(packed)),
        }
    }
}

/// Returns a trap as one number: the instruction above the fault.
fn pack(insn: usize, fault: Fault) -> i64 {
    (insn as i64) << 8 | fault as i64
}

#[cold]
#[inline(never)]
fn unpack(packed: u64) -> Trap {
    Trap { insn: (packed >> 8) as u32, fault: Fault::from_code(packed & 0xff) }
}

/// Returns the functions to generate: the program itself first, then each function that is called, once.
fn units(code: &Code) -> Vec<Unit> {
    let called = |start: usize| {
        code.insns.iter().any(|insn| matches!(insn, Insn::CallLocal { target } if *target as usize == start))
    };
    let starts = code.functions.iter().map(|function| function.start);
    let functions = starts.filter(|start| called(*start)).map(Unit::Function);
    [Unit::Program(code.entry)].into_iter().chain(functions).collect()
}

fn generation_failed(why: impl ToString) -> LoadError {
    LoadErrorKind::CodeGeneration(why.to_string()).into()
}

fn host_isa(slots: usize) -> Result<OwnedTargetIsa, LoadError> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(generation_failed(
            "this machine is neither x86_64 nor aarch64; programs are interpreted",
        ));
    }
    let builder = cranelift_native::builder().map_err(generation_failed)?;
    builder.finish(flags(slots)?).map_err(generation_failed)
}

/// Most slots of a program that is optimised. Optimisation keeps values that are computed again (or in every
/// round of a loop). A hostile program has thousands: each takes eight bytes of the host's stack in every
/// frame, and register allocation for them takes minutes. Few honest programs are as long as this, which
/// takes under a second at worst.
const OPTIMISED_SLOTS_MAX: usize = 512;

fn flags(slots: usize) -> Result<settings::Flags, LoadError> {
    let mut flags = settings::builder();
    let wanted = [
        ("opt_level", if slots <= OPTIMISED_SLOTS_MAX { "speed" } else { "none" }),
        ("is_pic", "false"),
        ("unwind_info", "false"),
        // A large frame touches every page on its way down, so that it cannot step over the guard page.
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
    ];
    for (name, value) in wanted {
        flags.set(name, value).map_err(generation_failed)?;
    }
    Ok(settings::Flags::new(flags))
}

/// Generates all functions, one after the other. Returns the code and the offset of each function.
fn generate(lowering: &Lowering<'_>, isa: &dyn TargetIsa) -> Result<(Vec<u8>, Vec<usize>), LoadError> {
    const ALIGNMENT: usize = 64;
    let mut code = Vec::new();
    let mut starts = Vec::new();
    let mut frontend = FunctionBuilderContext::new();
    for unit in lowering.units {
        let mut context = Context::new();
        lowering.function(*unit, isa, &mut context.func, &mut frontend);
        let compiled = context
            .compile(isa, &mut ControlPlane::default())
            .map_err(|error| generation_failed(format!("{:?}", error.inner)))?;
        // All addresses are numbers in the code, so that no linking is left to do.
        if !compiled.buffer.relocs().is_empty() {
            return Err(generation_failed("the code generator calls a function that does not exist"));
        }
        code.resize(code.len().next_multiple_of(ALIGNMENT), 0);
        starts.push(code.len());
        code.extend_from_slice(compiled.code_buffer());
    }
    Ok((code, starts))
}
