//! Helpers that programs may call.
//!
//! The numbers of the map helpers and the clock are the kernel's, so that stock headers work; Sluice's own
//! begin at 1000. A helper gets numbers from an untrusted program: it reaches memory only through
//! [`Machine`], which checks.

use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Fault;
use crate::insn::Size;
use crate::layout::Region;
use crate::machine::Machine;
use crate::maps::{Key, Map, MapError, MapKind, Update};
use crate::trace::TRACE_BYTES;

/// Source of time for helpers; a simulation has its own.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Returns the monotonic clock, which is the kernel's `bpf_ktime_get_ns`.
pub fn monotonic_clock() -> Clock {
    Arc::new(|| {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    })
}

/// Type that a helper expects in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Any number.
    Number,
    /// A map.
    Map,
    /// Address of a key of the map in the argument before.
    Key,
    /// Address of a value of the map two arguments before.
    Value,
    /// Address of so many bytes that are read.
    Reads(u32),
    /// Address of so many bytes that are written.
    Writes(u32),
    /// Address of bytes that are read; the next argument is their number.
    ReadsSized,
}

impl Argument {
    /// Returns the expectation for a message: "must be ...".
    pub(crate) const fn expected(self) -> &'static str {
        match self {
            Self::Number => "initialised",
            Self::Map => "a map (&name of a map)",
            Self::Key => "the address of a key on the stack or in a map",
            Self::Value => "the address of a value on the stack or in a map",
            Self::Reads(_) | Self::ReadsSized => "an address that can be read",
            Self::Writes(_) => "an address that can be written",
        }
    }
}

/// Type that a helper returns in r0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    Number,
    /// Address of a value of the map in the first argument, or zero.
    ValueOrNull,
}

/// Code of a helper. It [charges](Machine::charge) the run for its work before it does it.
pub type HelperFn = fn(&mut Machine<'_>, [u64; 5]) -> Result<u64, Fault>;

/// Function that a program may call.
#[derive(Debug, Clone, Copy)]
pub struct Helper {
    pub number: u32,
    pub name: &'static str,
    /// Arguments, at most five.
    pub arguments: &'static [Argument],
    pub returns: Returns,
    pub function: HelperFn,
}

impl Helper {
    /// Returns whether the helper is the one of [`Helpers::standard`] with this number, not a replacement.
    pub(crate) fn is_standard(&self) -> bool {
        STANDARD.iter().any(|standard| {
            standard.number == self.number && std::ptr::fn_addr_eq(standard.function, self.function)
        })
    }
}

/// Helpers of a kind of program.
#[derive(Debug, Clone)]
pub struct Helpers(Vec<Helper>);

pub(crate) const MAP_LOOKUP: u32 = 1;
pub(crate) const COUNT: u32 = 1000;

impl Helpers {
    /// Returns the helpers for maps, the clock, counters and the trace.
    pub fn standard() -> Self {
        Self(STANDARD.to_vec())
    }

    /// Adds a helper; it replaces one of the same number.
    #[must_use]
    pub fn with(mut self, helper: Helper) -> Self {
        self.0.retain(|old| old.number != helper.number);
        self.0.push(helper);
        self
    }

    /// Returns all helpers.
    pub fn iter(&self) -> impl Iterator<Item = &Helper> {
        self.0.iter()
    }

    /// Returns the helper of this number.
    pub fn get(&self, number: u32) -> Option<&Helper> {
        self.0.iter().find(|helper| helper.number == number)
    }
}

impl Default for Helpers {
    fn default() -> Self {
        Self::standard()
    }
}

const STANDARD: [Helper; 8] = [
    Helper {
        number: MAP_LOOKUP,
        name: "bpf_map_lookup_elem",
        arguments: &[Argument::Map, Argument::Key],
        returns: Returns::ValueOrNull,
        function: map_lookup,
    },
    Helper {
        number: 2,
        name: "bpf_map_update_elem",
        arguments: &[Argument::Map, Argument::Key, Argument::Value, Argument::Number],
        returns: Returns::Number,
        function: map_update,
    },
    Helper {
        number: 3,
        name: "bpf_map_delete_elem",
        arguments: &[Argument::Map, Argument::Key],
        returns: Returns::Number,
        function: map_delete,
    },
    Helper {
        number: 5,
        name: "bpf_ktime_get_ns",
        arguments: &[],
        returns: Returns::Number,
        function: now_ns,
    },
    Helper {
        number: COUNT,
        name: "sluice_count",
        arguments: &[Argument::Number],
        returns: Returns::Number,
        function: count,
    },
    Helper {
        number: 1001,
        name: "sluice_trace",
        arguments: &[Argument::ReadsSized, Argument::Number],
        returns: Returns::Number,
        function: trace,
    },
    Helper {
        number: 1002,
        name: "sluice_translate",
        arguments: &[Argument::Map, Argument::Number, Argument::Writes(16)],
        returns: Returns::Number,
        function: translate,
    },
    Helper {
        number: 1003,
        name: "sluice_forget",
        arguments: &[Argument::Map, Argument::Number, Argument::Number],
        returns: Returns::Number,
        function: forget,
    },
];

/// Fuel that helpers take besides the call itself, in about as many nanoseconds.
mod cost {
    /// Lookup in a hash or in a translation cache.
    pub(super) const LOOKUP: u64 = 30;
    /// Step along a chain.
    pub(super) const LINK: u64 = 5;
    /// Change of an element, including an eviction.
    pub(super) const CHANGE: u64 = 150;
    /// Copy of a word.
    pub(super) const WORD: u64 = 6;
    /// Read of the clock.
    pub(super) const CLOCK: u64 = 40;
    /// Record of the trace.
    pub(super) const TRACE: u64 = 100;
    /// Search of a set of a translation cache.
    pub(super) const SET: u64 = 20;
}

/// Returns zero, or the negative error number of the kernel.
fn status(result: Result<(), MapError>) -> u64 {
    result.map_or_else(MapError::errno, |()| 0)
}

/// Implements `void *bpf_map_lookup_elem(map, key)`.
pub(crate) fn map_lookup(machine: &mut Machine<'_>, [handle, key, ..]: [u64; 5]) -> Result<u64, Fault> {
    let map = machine.map(handle)?;
    let key = machine.key(map, key)?;
    find(machine, map, handle as u32, &key)
}

/// Returns the address of a key's value in the map of this number, or zero. An array's value is found so
/// quickly that the call has paid for it.
#[inline]
pub(crate) fn find(machine: &mut Machine<'_>, map: &Map, number: u32, key: &Key) -> Result<u64, Fault> {
    let found = map.find(key).map_err(|_| Fault::NotAMap)?;
    if map.def().kind != MapKind::Array {
        machine.charge(cost::LOOKUP + found.links * cost::LINK)?;
    }
    Ok(found.at.map_or(0, |at| Region::Map(number).base() + at as u64))
}

/// Implements `long bpf_map_update_elem(map, key, value, flags)`.
fn map_update(machine: &mut Machine<'_>, [handle, key, value, flags, _]: [u64; 5]) -> Result<u64, Fault> {
    let map = machine.map(handle)?;
    let key = machine.key(map, key)?;
    let size = map.def().value_size as usize;
    machine.resolve(value, size, false)?;
    machine.charge(cost::CHANGE + size.div_ceil(8) as u64 * cost::WORD)?;
    if map.def().read_only() {
        return Err(Fault::Memory);
    }
    let Some(update) = Update::from_flags(flags) else { return Ok(MapError::Invalid.errno()) };
    // The whole value was resolved above, so every part of it can be read.
    let word = |word: usize| {
        let (at, left) = (value + word as u64 * 8, size.saturating_sub(word * 8));
        if left >= 8 {
            return machine.load(at, Size::B8).unwrap_or(0);
        }
        let mut bytes = [0; 8];
        let _ = machine.read(at, bytes.get_mut(..left).unwrap_or_default());
        u64::from_le_bytes(bytes)
    };
    let mut links = 0;
    let updated = map.update(&key, &word, update, &mut links);
    machine.charge(links * cost::LINK)?;
    Ok(status(updated))
}

/// Implements `long bpf_map_delete_elem(map, key)`.
fn map_delete(machine: &mut Machine<'_>, [handle, key, ..]: [u64; 5]) -> Result<u64, Fault> {
    let map = machine.map(handle)?;
    if map.def().read_only() {
        return Err(Fault::Memory);
    }
    let key = machine.key(map, key)?;
    machine.charge(cost::CHANGE)?;
    let mut links = 0;
    let deleted = map.delete(&key, &mut links);
    machine.charge(links * cost::LINK)?;
    Ok(status(deleted))
}

/// Implements `u64 bpf_ktime_get_ns(void)`.
fn now_ns(machine: &mut Machine<'_>, _: [u64; 5]) -> Result<u64, Fault> {
    machine.charge(cost::CLOCK)?;
    Ok(machine.step_ns())
}

/// Implements `long sluice_count(u64 index)`.
fn count(machine: &mut Machine<'_>, [index, ..]: [u64; 5]) -> Result<u64, Fault> {
    Ok(machine.counters().count(index).map_or(MapError::Invalid.errno(), |()| 0))
}

/// Implements `long sluice_trace(const void *text, u64 bytes)`.
fn trace(machine: &mut Machine<'_>, [text, len, ..]: [u64; 5]) -> Result<u64, Fault> {
    machine.charge(cost::TRACE)?;
    let mut bytes = [0; TRACE_BYTES];
    let len = len.min(TRACE_BYTES as u64) as usize;
    let bytes = bytes.get_mut(..len).unwrap_or_default();
    machine.read(text, bytes)?;
    machine.trace().push(machine.now_ns(), bytes);
    Ok(0)
}

/// Implements `long sluice_translate(map, u64 block, struct sluice_translation *out)`.
///
/// A miss writes zeros: the verifier takes all 16 bytes for written, whether or not the program checks the
/// result.
fn translate(machine: &mut Machine<'_>, [handle, block, out, ..]: [u64; 5]) -> Result<u64, Fault> {
    let cache = machine.map(handle)?.translations().ok_or(Fault::NotAMap)?;
    machine.charge(cost::LOOKUP + cost::SET)?;
    let found = cache.lookup(block);
    let mut bytes = [0; 16];
    if let Some(found) = &found {
        bytes[..8].copy_from_slice(&found.target.to_le_bytes());
        bytes[8..12].copy_from_slice(&found.count.to_le_bytes());
        bytes[12..].copy_from_slice(&found.flags.to_le_bytes());
    }
    machine.write(out, &bytes)?;
    Ok(found.map_or(MapError::NotFound.errno(), |_| 0))
}

/// Implements `long sluice_forget(map, u64 block, u64 count)`.
fn forget(machine: &mut Machine<'_>, [handle, block, count, ..]: [u64; 5]) -> Result<u64, Fault> {
    let cache = machine.map(handle)?.translations().ok_or(Fault::NotAMap)?;
    let blocks = block..block.saturating_add(count);
    machine.charge(cost::CHANGE.saturating_add(cache.sets_of(&blocks) * cost::SET))?;
    Ok(status(cache.invalidate(blocks)))
}
