//! View of a program from outside while a reactor runs it.

use crate::tally::{Hooks, Tally};
use sluice_ebpf::{Counters, Map, Object, Program, Trace, TraceRecord};
use std::fmt;
use std::sync::Arc;

/// Program, seen from outside.
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

    /// Returns the number of instructions, as in the object file: a 64-bit immediate takes two.
    pub fn instructions(&self) -> usize {
        self.object.slots.len()
    }

    /// Returns whether the program runs as machine code.
    pub fn is_compiled(&self) -> bool {
        self.is_compiled
    }

    /// Returns notes for the program's author.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the maps, global data included.
    pub fn maps(&self) -> &[Arc<Map>] {
        &self.maps
    }

    pub fn map(&self, name: &str) -> Option<&Arc<Map>> {
        self.maps.iter().find(|map| map.def().name == name)
    }

    /// Returns the program's counters, [`COUNTERS`](sluice_ebpf::COUNTERS) of them.
    pub fn counters(&self) -> Vec<u64> {
        self.counters.all()
    }

    /// Takes the oldest record of the trace.
    pub fn pop_trace(&self) -> Option<TraceRecord> {
        self.trace.pop()
    }

    /// Returns the number of trace records that found no room.
    pub fn trace_dropped(&self) -> u64 {
        self.trace.dropped()
    }

    /// Returns the calls by hook.
    pub fn hooks(&self) -> Hooks {
        self.tally.hooks()
    }

    /// Returns the number of ends without a verdict.
    pub fn traps(&self) -> u64 {
        self.tally.traps()
    }

    /// Returns the last end without a verdict, with the line of its source.
    pub fn last_trap(&self) -> Option<String> {
        let trap = self.tally.last_trap()?;
        Some(place(&self.object, trap.insn as usize, &trap.fault))
    }
}

/// Returns a text about an instruction.
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
