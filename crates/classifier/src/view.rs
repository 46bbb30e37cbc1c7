//! What is seen of a program from outside while a reactor runs it.

use crate::tally::{Hooks, Tally};
use sluice_ebpf::{Counters, Map, Object, Program, Trace, TraceRecord};
use std::fmt;
use std::sync::Arc;

/// A program, seen from outside.
#[derive(Clone)]
pub struct View {
    object: Arc<Object>,
    is_compiled: bool,
    notes: Arc<[String]>,
    maps: Vec<Arc<Map>>,
    counters: Arc<Counters>,
    trace: Arc<Trace>,
    tally: Arc<Tally>,
}

impl View {
    pub(crate) fn new(object: Object, program: &Program, tally: Arc<Tally>) -> Self {
        Self {
            is_compiled: program.is_compiled(),
            notes: program.notes().iter().map(|note| place(&object, note.insn, &note.text)).collect(),
            maps: program.maps().to_vec(),
            counters: program.counters(),
            trace: program.trace(),
            tally,
            object: Arc::new(object),
        }
    }

    /// Instructions, as the object file counts them: a 64-bit immediate takes two.
    pub fn instructions(&self) -> usize {
        self.object.slots.len()
    }

    /// Whether it runs as machine code.
    pub fn is_compiled(&self) -> bool {
        self.is_compiled
    }

    /// What its author may want to know.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Its maps, global data included.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|map| map.def().name == name)
    }

    /// A counter that the program counts up itself, of [`COUNTERS`](sluice_ebpf::COUNTERS).
    pub fn counters(&self) -> Vec<u64> {
        self.counters.all()
    }

    /// Takes the oldest record of its trace.
    pub fn pop_trace(&self) -> Option<TraceRecord> {
        self.trace.pop()
    }

    /// Trace records that found no room.
    pub fn trace_dropped(&self) -> u64 {
        self.trace.dropped()
    }

    /// How often it was called.
    pub fn hooks(&self) -> Hooks {
        self.tally.hooks()
    }

    /// How often it ended without a verdict.
    pub fn traps(&self) -> u64 {
        self.tally.traps()
    }

    /// How it ended without a verdict last, with the line of its source.
    pub fn last_trap(&self) -> Option<String> {
        let trap = self.tally.last_trap()?;
        Some(place(&self.object, trap.insn as usize, &trap.fault))
    }
}

/// Words about an instruction.
fn place(object: &Object, insn: usize, words: &dyn fmt::Display) -> String {
    match object.line(insn) {
        Some(line) => format!("instruction {insn} ({line}): {words}"),
        None => format!("instruction {insn}: {words}"),
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("instructions", &self.instructions())
            .field("maps", &self.maps)
            .finish_non_exhaustive()
    }
}
