//! Memory that a running program can reach, and the containment of its accesses.
//!
//! Every access of the interpreter goes through [`Machine`]. So does every access of generated code that was
//! not resolved to a region when it was compiled, and every access of a helper on a program's behalf.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use crate::alu;
use crate::error::Fault;
use crate::helpers::Clock;
use crate::insn::{AtomicOp, Size};
use crate::layout::{ContextLayout, Region, map_of_handle};
use crate::maps::{Key, Map};
use crate::speculation::clamp;
use crate::trace::{Counters, Trace};
use crate::words::Words;

/// Memory of a loaded program that outlives a run.
pub(crate) struct Memory {
    pub(crate) layout: ContextLayout,
    pub(crate) stack: Words,
    pub(crate) maps: Vec<Arc<Map>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) clock: Clock,
    /// Step of the time that the program reads; at least 1.
    pub(crate) clock_step_ns: u64,
}

/// Run of a program.
pub struct Machine<'a> {
    /// Work that may still be done; generated code takes from it.
    pub(crate) fuel: u64,
    /// Address of the context, for generated code.
    pub(crate) context_at: *const u8,
    context: &'a [Cell<u8>],
    memory: &'a Memory,
}

/// Memory that was found to belong to a program.
pub(crate) enum Location<'a> {
    Context(&'a [Cell<u8>]),
    Words(&'a Words, usize),
}

impl<'a> Machine<'a> {
    /// Begins a run.
    ///
    /// # Panics
    /// When the context has not the size of the layout.
    #[inline]
    pub(crate) fn new(memory: &'a Memory, context: &'a mut [u8], fuel: u64) -> Self {
        assert_eq!(context.len(), memory.layout.size(), "the context has another size than announced");
        let context = Cell::from_mut(context).as_slice_of_cells();
        Self { fuel, context_at: context.as_ptr().cast(), context, memory }
    }

    /// Copies bytes of the program's memory out.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.resolve(address, bytes.len(), false)? {
            Location::Context(cells) => {
                for (byte, cell) in bytes.iter_mut().zip(cells) {
                    *byte = cell.get();
                }
                Ok(())
            }
            Location::Words(words, at) => words.read(at, bytes).ok_or(Fault::Memory),
        }
    }

    /// Copies bytes into the program's memory.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        match self.resolve(address, bytes.len(), true)? {
            Location::Context(cells) => {
                for (byte, cell) in bytes.iter().zip(cells) {
                    cell.set(*byte);
                }
                Ok(())
            }
            Location::Words(words, at) => words.write(at, bytes).ok_or(Fault::Memory),
        }
    }

    /// Returns the map that a handle names.
    pub fn map(&self, handle: u64) -> Result<&'a Map, Fault> {
        let number = map_of_handle(handle).ok_or(Fault::NotAMap)?;
        let maps = &self.memory.maps;
        if number as usize >= maps.len() {
            return Err(Fault::NotAMap);
        }
        maps.get(clamp(number as usize, maps.len())).map(Arc::as_ref).ok_or(Fault::NotAMap)
    }

    /// Takes work from the run's fuel: about as many units as it takes nanoseconds.
    pub fn charge(&mut self, work: u64) -> Result<(), Fault> {
        self.fuel = self.fuel.checked_sub(work).ok_or(Fault::OutOfFuel)?;
        Ok(())
    }

    /// Returns the clock's time.
    pub fn now_ns(&self) -> u64 {
        (self.memory.clock)()
    }

    /// Returns the clock's time as the program may read it: the start of the current step.
    pub fn step_ns(&self) -> u64 {
        let now = self.now_ns();
        now - now.checked_rem(self.memory.clock_step_ns).unwrap_or_default()
    }

    /// Returns the program's counters.
    pub fn counters(&self) -> &Counters {
        &self.memory.counters
    }

    /// Returns the program's trace.
    pub fn trace(&self) -> &Trace {
        &self.memory.trace
    }

    /// Reads a key of `map` from the program's memory.
    pub(crate) fn key(&self, map: &Map, address: u64) -> Result<Key, Fault> {
        let size = map.def().key_size as usize;
        if size == 4 {
            return Ok(Key::of_word(self.load(address, Size::B4)?));
        }
        if size == 8 {
            return Ok(Key::of_word(self.load(address, Size::B8)?));
        }
        let mut bytes = [0; crate::maps::KEY_BYTES_MAX];
        let bytes = bytes.get_mut(..size).ok_or(Fault::Argument)?;
        self.read(address, bytes)?;
        Key::new(bytes).ok_or(Fault::Argument)
    }

    /// Finds the memory behind an address; the only place that decides which memory a program may access.
    #[inline]
    pub(crate) fn resolve(&self, address: u64, len: usize, write: bool) -> Result<Location<'a>, Fault> {
        let (region, at) = Region::of(address).ok_or(Fault::Memory)?;
        let end = at.checked_add(len).ok_or(Fault::Memory)?;
        self.place(region, at..end, write).ok_or(Fault::Memory)
    }

    fn place(&self, region: Region, bytes: Range<usize>, write: bool) -> Option<Location<'a>> {
        let words = match region {
            Region::Context => {
                let window = self.memory.layout.window(&bytes, write)?;
                let at = clamp(bytes.start, window.end + 1 - bytes.len());
                return self.context.get(at..at + bytes.len()).map(Location::Context);
            }
            Region::Stack => &self.memory.stack,
            Region::Map(number) => {
                let (number, maps) = (number as usize, &self.memory.maps);
                if number >= maps.len() {
                    return None;
                }
                let map = maps.get(clamp(number, maps.len()))?;
                if write && map.def().read_only() {
                    return None;
                }
                map.values()?
            }
        };
        let room = (words.len() + 1).checked_sub(bytes.len())?;
        (bytes.start < room).then(|| Location::Words(words, clamp(bytes.start, room)))
    }

    #[inline]
    pub(crate) fn load(&self, address: u64, size: Size) -> Result<u64, Fault> {
        match self.resolve(address, size.bytes() as usize, false)? {
            Location::Context(cells) => {
                Ok(cells.iter().rev().fold(0, |value, cell| value << 8 | u64::from(cell.get())))
            }
            Location::Words(words, at) => words.load(at, size).ok_or(Fault::Memory),
        }
    }

    #[inline]
    pub(crate) fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Fault> {
        match self.resolve(address, size.bytes() as usize, true)? {
            Location::Context(cells) => {
                for (i, cell) in cells.iter().enumerate() {
                    cell.set((value >> (8 * i)) as u8);
                }
                Ok(())
            }
            Location::Words(words, at) => words.store(at, size, value).ok_or(Fault::Memory),
        }
    }

    /// Changes memory in one step; returns the value before. The context is private to a run and has no
    /// atomics, as in the kernel.
    pub(crate) fn atomic(&mut self, access: Atomic, address: u64) -> Result<u64, Fault> {
        let Atomic { op, size, operand, expected } = access;
        if !address.is_multiple_of(size.bytes().into()) {
            return Err(Fault::Misaligned);
        }
        match self.resolve(address, size.bytes() as usize, true)? {
            Location::Context(_) => Err(Fault::Memory),
            Location::Words(words, at) => words
                .update(at, size, |old| alu::atomic(op, size, old, operand, expected))
                .ok_or(Fault::Memory),
        }
    }
}

/// Operation of an atomic instruction, with its operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) op: AtomicOp,
    pub(crate) size: Size,
    pub(crate) operand: u64,
    pub(crate) expected: u64,
}

impl std::fmt::Debug for Machine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("fuel", &self.fuel).finish_non_exhaustive()
    }
}
