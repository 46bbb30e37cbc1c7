//! Classifiers in eBPF: where the engine, which knows nothing of NVMe, and the router, which knows
//! nothing of eBPF, meet.
//!
//! [`load`] makes a program out of an object file: it is read, verified and compiled, which takes its
//! time and is done away from every reactor. What comes out goes two ways. The [`Classifier`] goes to the
//! router of a namespace, and is run there by one thread. The [`View`] stays with whoever loaded it, and
//! sees from any thread what the program does: its maps, its counters, its trace, how often it was called
//! and what it died of.
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
use tally::Tally;

/// The section that a program is in, unless another is named.
pub const SECTION: &str = "classifier";

/// The versions of `sluice.h` whose programs are run: their context is still the front of ours.
const ABI: std::ops::RangeInclusive<u32> = 1..=Context::VERSION as u32;

/// A program for one namespace.
pub struct Loaded {
    /// To be given to the router.
    pub classifier: Box<dyn Classifier>,
    pub view: View,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("view", &self.view).finish_non_exhaustive()
    }
}

/// Loads the program in `section` of an object file, as `clang -target bpf` makes it. One in a section
/// `nvme_mdev` was written for NVMetro's interface and is run as such (see [`Nvmetro`](sluice_router::Nvmetro)).
///
/// Maps in `carry` that have the name and the shape of one of the program's take its place, with what is
/// in them: those of the program before it, or of the same program in the drive's first namespace.
///
/// # Errors
/// What is wrong with the object or the program, with the instruction and its source line if it has one.
pub fn load(object: &[u8], section: &str, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    if section == nvmetro::SECTION {
        return nvmetro::load(object, carry);
    }
    let options = Options { abi: Some(ABI), ..options() };
    load_with(Object::from_elf(object, section, &options.limits)?, &options, carry)
}

/// What a program may touch and call.
fn options() -> Options {
    let layout = ContextLayout::new(Context::SIZE).read(0..Context::SIZE).write(Context::WRITABLE);
    Options::new(layout)
}

/// The same, of an object that was read or written by other means.
///
/// # Errors
/// As with [`load`].
pub fn load_object(object: Object, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    load_with(object, &options(), carry)
}

fn load_with(object: Object, options: &Options, carry: &[Arc<Map>]) -> Result<Loaded, LoadError> {
    let mut program = Program::load(&object, options, carry)?;
    let tally = Arc::new(Tally::default());
    let view = View::new(object, &program, Arc::clone(&tally));
    let run = move |context: &mut [u8; Context::SIZE]| {
        tally.called(context[HOOK]);
        program.run(context).inspect_err(|trap| tally.trapped(*trap))
    };
    Ok(Loaded { classifier: Box::new(Bytecode::confined(run)), view })
}

/// The byte of the context that says which hook it is.
const HOOK: usize = 2;
