//! Classifiers in eBPF: the link between the engine, which is independent of NVMe, and the router, which is
//! independent of eBPF.
//!
//! [`load`] makes a program out of an object file: it is read, verified and compiled. This takes long and is
//! done outside of every reactor. The result has two parts. The [`Classifier`] goes to the router of a
//! namespace, and one thread runs it. The [`View`] stays with the caller, and shows any thread the program's
//! maps, counters and trace, its calls and its traps.
#![forbid(unsafe_code)]

mod nvmetro;
mod tally;
mod view;

#[cfg(test)]
mod tests;

pub use sluice_ebpf::{
    LoadError, Map, MapDef, MapError, MapKind, Object, TraceRecord, Translation, Trap, Update,
};
pub use tally::Hooks;
pub use view::View;

use sluice_ebpf::{ContextLayout, Options, Program};
use sluice_router::{Bytecode, Classifier, Context};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tally::Tally;

/// Section of the program, unless another is named.
pub const SECTION: &str = "classifier";

/// Versions of `sluice.h` whose programs are run: their context is still the front of the current one.
const ABI: std::ops::RangeInclusive<u32> = 1..=Context::VERSION as u32;

/// Clock that a program reads with `bpf_ktime_get_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// A clock in steps of [`COARSE_STEP`]. One run ends long before a step, so a program cannot measure caches.
    Coarse,
    /// The machine's clock as it is.
    Precise,
}

/// Step of the coarse clock.
pub const COARSE_STEP: Duration = Duration::from_millis(4);

impl Clock {
    const fn step_ns(self) -> u64 {
        match self {
            Self::Coarse => COARSE_STEP.as_nanos() as u64,
            Self::Precise => 1,
        }
    }
}

/// Program for one namespace.
pub struct Loaded {
    /// Program for the router.
    pub classifier: Box<dyn Classifier>,
    pub view: View,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("view", &self.view).finish_non_exhaustive()
    }
}

/// Loads the program in `section` of an object file, as `clang -target bpf` makes it. A program in a section
/// `nvme_mdev` was written for NVMetro's interface and is run as such (see
/// [`Nvmetro`](sluice_router::Nvmetro)).
///
/// A map in `carry` with the name and the shape of one of the program's takes its place, with its content. It
/// comes from the program before, or from the same program in the drive's first namespace.
///
/// # Errors
/// The error of the object or the program, with the instruction and its source line if it has one.
pub fn load(object: &[u8], section: &str, clock: Clock, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    if section == nvmetro::SECTION {
        return nvmetro::load(object, clock, carry);
    }
    let options = Options { abi: Some(ABI), clock_step_ns: clock.step_ns(), ..options() };
    load_with(Object::from_elf(object, section, &options.limits)?, &options, carry)
}

/// Returns the context and the helpers of a program.
fn options() -> Options {
    let layout = ContextLayout::new(Context::SIZE).read(0..Context::SIZE).write(Context::WRITABLE);
    Options::new(layout)
}

/// Loads an object that was read or written by other means.
///
/// # Errors
/// As with [`load`].
pub fn load_object(object: Object, clock: Clock, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    load_with(object, &Options { clock_step_ns: clock.step_ns(), ..options() }, carry)
}

fn load_with(object: Object, options: &Options, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    let mut program = Program::load(&object, options, carry)?;
    let tally = Arc::new(Tally::default());
    let view = View::new(object, &program, Arc::clone(&tally));
    let run = move |context: &mut [u8; Context::SIZE]| {
        tally.called(context[HOOK]);
        program.run(context).inspect_err(|trap| tally.trapped(*trap))
    };
    Ok(Loaded { classifier: Box::new(Bytecode::new(run)), view })
}

/// Byte of the context that has the hook.
const HOOK: usize = 2;
