//! Loaded program: verified, compiled where that is possible, with its maps.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{LoadError, LoadErrorKind, Trap};
use crate::helpers::{Clock, Helper, Helpers, monotonic_clock};
use crate::insn::Insn;
use crate::interpreter::{Interpreted, Observer};
use crate::jit::{Compiled, Source};
use crate::layout::{ContextLayout, FRAME_BYTES, STACK_BYTES};
use crate::machine::{Machine, Memory};
use crate::maps::{Map, MapDef, Update};
use crate::object::{Code, Limits, MapSpec, Object};
use crate::trace::{Counters, Trace};
use crate::verify::{self, Note, Proof, Subject, Verified};
use crate::words::Words;

/// Engine that runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// Machine code where that can be generated, otherwise the interpreter.
    #[default]
    Best,
    /// Machine code; without it, loading fails.
    Compiled,
    Interpreted,
}

/// Environment of a program.
#[derive(Clone)]
pub struct Options {
    pub layout: ContextLayout,
    pub helpers: Helpers,
    /// Versions of `sluice.h` that objects may have been compiled with; none for programs that do not use it.
    pub abi: Option<RangeInclusive<u32>>,
    pub limits: Limits,
    pub engine: Engine,
    /// Work that one run may do, in units of about a nanosecond. An instruction takes one to ten, a helper as
    /// many as its work.
    pub fuel: u64,
    pub clock: Clock,
    /// Step of the time that a program reads, in nanoseconds; 0 and 1 leave the clock as it is. A short step
    /// lets a program measure caches.
    pub clock_step_ns: u64,
}

/// Usual fuel: enough for a long loop over a small map. It lasts a tenth of a millisecond of machine code,
/// and several of an interpreted program.
pub const FUEL: u64 = 100_000;

impl Options {
    /// Returns the usual options for programs with this context.
    pub fn new(layout: ContextLayout) -> Self {
        Self {
            layout,
            helpers: Helpers::standard(),
            abi: None,
            limits: Limits::default(),
            engine: Engine::default(),
            fuel: FUEL,
            clock: monotonic_clock(),
            clock_step_ns: 1,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("engine", &self.engine)
            .field("fuel", &self.fuel)
            .finish_non_exhaustive()
    }
}

/// Program that can be run, by one thread at a time.
pub struct Program {
    compiled: Option<Compiled>,
    code: Code,
    helpers: Vec<Option<Helper>>,
    verified: Verified,
    memory: Arc<Memory>,
    fuel: u64,
    /// Whether the stack must be cleared before a run.
    stale_stack: bool,
}

impl Program {
    /// Verifies a program and makes it ready to run.
    ///
    /// A map of equal name and shape in `carry` takes the place of the program's own, with its content. A
    /// replacement is given all maps of the program before it, or none to start afresh. The program of
    /// another reactor gets only the [shared](MapDef::shared) ones. Global data is never carried over: its
    /// layout and its first values belong to the program.
    pub fn load(object: &Object, options: &Options, carry: &[Arc<Map>]) -> Result<Self, LoadError> {
        Self::build(object, options, carry, Trust::Verified).map_err(|error| object.locate(error))
    }

    /// Loads a program without verification of its accesses: all checks are left to a run. For tests that
    /// containment does not depend on the verifier.
    pub fn assume_nothing(object: &Object, options: &Options) -> Result<Self, LoadError> {
        Self::build(object, options, &[], Trust::Nothing).map_err(|error| object.locate(error))
    }

    /// Loads a program with made-up proofs, as from a broken verifier.
    #[cfg(test)]
    pub(crate) fn believe(object: &Object, options: &Options, verified: Verified) -> Result<Self, LoadError> {
        Self::build(object, options, &[], Trust::Claimed(verified))
    }

    fn build(
        object: &Object,
        options: &Options,
        carry: &[Arc<Map>],
        trust: Trust,
    ) -> Result<Self, LoadError> {
        check_abi(object.abi, options.abi.as_ref())?;
        let code = Code::new(object, &options.limits)?;
        let helpers = resolve_helpers(&code, &options.helpers)?;
        check_maps(&object.maps, &options.limits)?;
        let defs: Vec<MapDef> = object.maps.iter().map(|spec| spec.def.clone()).collect();
        let subject = Subject { code: &code, helpers: &helpers, maps: &defs, layout: &options.layout };
        let verified = match trust {
            Trust::Verified => verify::verify(&subject)?,
            Trust::Nothing => assume_nothing(&code),
            Trust::Claimed(verified) => verified,
        };
        let memory = Arc::new(Memory {
            layout: options.layout.clone(),
            stack: Words::new(STACK_BYTES),
            maps: object.maps.iter().map(|spec| make_map(spec, carry)).collect::<Result<_, _>>()?,
            counters: Arc::default(),
            trace: Arc::default(),
            clock: Arc::clone(&options.clock),
            clock_step_ns: options.clock_step_ns.max(1),
        });
        let source = Source { code: &code, helpers: &helpers, proofs: &verified.proofs, memory: &memory };
        let compiled = match options.engine {
            Engine::Interpreted => None,
            Engine::Compiled => Some(Compiled::new(&source)?),
            Engine::Best => Compiled::new(&source).ok(),
        };
        let stale_stack = verified.reads_fresh_stack;
        Ok(Self { compiled, code, helpers, verified, memory, fuel: options.fuel, stale_stack })
    }

    /// Runs the program on a context.
    ///
    /// # Panics
    /// When the context has not the size that the program was loaded for.
    #[inline]
    pub fn run(&mut self, context: &mut [u8]) -> Result<u64, Trap> {
        if self.stale_stack {
            self.clear_stack();
        }
        match &self.compiled {
            Some(compiled) => compiled.run(context, self.fuel),
            None => self.interpret(context, &mut ()),
        }
    }

    // Separate, so that programs which need no clearing do not carry it.
    #[inline(never)]
    fn clear_stack(&self) {
        let bytes = if self.code.functions.len() == 1 { FRAME_BYTES } else { STACK_BYTES };
        self.memory.stack.clear(bytes);
    }

    // Separate for the same reason.
    #[inline(never)]
    fn interpret(&self, context: &mut [u8], observer: &mut impl Observer) -> Result<u64, Trap> {
        let mut machine = Machine::new(&self.memory, context, self.fuel);
        Interpreted { code: &self.code, helpers: &self.helpers }.run(&mut machine, observer)
    }

    /// Interprets the program with an observer.
    #[cfg(test)]
    pub(crate) fn observe(&mut self, context: &mut [u8], observer: &mut impl Observer) -> Result<u64, Trap> {
        if self.stale_stack {
            self.clear_stack();
        }
        self.interpret(context, observer)
    }

    /// Returns whether the program runs as machine code.
    pub fn is_compiled(&self) -> bool {
        self.compiled.is_some()
    }

    /// Returns the maps, global data included. They may be read and changed while the program runs.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.memory.maps
    }

    /// Returns the map of this name.
    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.memory.maps.iter().find(|map| map.def().name == name)
    }

    /// Returns the counters.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.memory.counters)
    }

    /// Returns the trace.
    pub fn trace(&self) -> Arc<Trace> {
        Arc::clone(&self.memory.trace)
    }

    /// Returns notes for the program's author.
    pub fn notes(&self) -> &[Note] {
        &self.verified.notes
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> &Code {
        &self.code
    }

    #[cfg(test)]
    pub(crate) fn proofs(&self) -> &[Proof] {
        &self.verified.proofs
    }

    #[cfg(test)]
    pub(crate) fn helpers(&self) -> &[Option<Helper>] {
        &self.helpers
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the stack as a run left it.
    #[cfg(test)]
    pub(crate) fn stack(&self) -> &Words {
        &self.memory.stack
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("instructions", &self.code.insns.len())
            .field("compiled", &self.is_compiled())
            .field("maps", &self.memory.maps)
            .finish_non_exhaustive()
    }
}

/// Trust in a program's accesses.
enum Trust {
    Verified,
    Nothing,
    #[cfg_attr(not(test), allow(dead_code))]
    Claimed(Verified),
}

fn assume_nothing(code: &Code) -> Verified {
    let proofs = vec![Proof::Nothing; code.insns.len()];
    Verified { proofs, notes: Vec::new(), reads_fresh_stack: true }
}

/// Checks that context, verdicts and helpers have a version that the program was compiled for.
fn check_abi(abi: Option<u32>, supported: Option<&RangeInclusive<u32>>) -> Result<(), LoadErrorKind> {
    match (abi, supported) {
        (_, None) => Ok(()),
        (Some(version), Some(supported)) if supported.contains(&version) => Ok(()),
        (version, Some(supported)) => Err(LoadErrorKind::Abi { version, supported: supported.clone() }),
    }
}

/// Returns the helper of each call.
fn resolve_helpers(code: &Code, helpers: &Helpers) -> Result<Vec<Option<Helper>>, LoadError> {
    let resolve = |(at, insn): (usize, &Insn)| match insn {
        Insn::CallHelper { number } => match helpers.get(*number) {
            Some(helper) => Ok(Some(*helper)),
            None => Err(LoadError::at(at, LoadErrorKind::NoSuchHelper { number: *number })),
        },
        _ => Ok(None),
    };
    code.insns.iter().enumerate().map(resolve).collect()
}

/// Checks all maps before any memory is reserved.
fn check_maps(maps: &[MapSpec], limits: &Limits) -> Result<(), LoadErrorKind> {
    if maps.len() > limits.maps {
        return Err(LoadErrorKind::TooManyMaps { limit: limits.maps });
    }
    let mut bytes = 0u128;
    for MapSpec { def, .. } in maps {
        def.check()?;
        bytes += def.bytes();
        if bytes > limits.map_bytes as u128 {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            return Err(LoadErrorKind::MapsTooLarge {
                name: def.name.clone(),
                bytes,
                limit: limits.map_bytes,
            });
        }
        def.check_region()?;
    }
    Ok(())
}

/// Returns a map of the program: global data is its own, others may be carried over.
fn make_map(spec: &MapSpec, carry: &[Arc<Map>]) -> Result<Arc<Map>, LoadErrorKind> {
    let Some(data) = &spec.data else {
        let old = carry.iter().find(|map| map.matches(&spec.def));
        return Ok(old.map_or_else(|| Arc::new(Map::new(spec.def.clone())), Arc::clone));
    };
    let map = Map::new(spec.def.clone());
    map.set(&[0; 4], data, Update::Any)
        .map_err(|why| LoadErrorKind::BadMap { name: spec.def.name.clone(), why: why.to_string() })?;
    Ok(Arc::new(map))
}
