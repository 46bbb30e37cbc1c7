//! Programs from ELF objects, as stock clang makes them with `-target bpf`.
//!
//! The caller chooses the section of the program. Functions that it calls come from `.text`, maps from
//! `.maps`, where BTF describes them, and global data from `.rodata`, `.data` and `.bss`. Every byte may be
//! hostile.

mod btf;
mod lines;
mod maps;

use std::collections::HashMap;

use ::object::read::elf::ElfFile64;
use ::object::{
    Architecture, Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, SectionIndex, SectionKind, SymbolIndex, SymbolKind,
};

use crate::decode::{Slot, pseudo};
use crate::error::{LoadError, LoadErrorKind};
use crate::object::{Limits, MapSpec, Object};
use btf::Btf;

type File<'a> = ElfFile64<'a, Endianness>;

/// Relocation types of the BPF processor supplement.
const R_BPF_64_64: u32 = 1;
const R_BPF_64_32: u32 = 10;
const TEXT: &str = ".text";
/// Section in which `sluice.h` puts its version.
const ABI: &str = "sluice.abi";
/// Most sections of an object; clang makes a few dozen. A search for one compares all their names.
const SECTIONS_MAX: usize = 1024;
/// Sections or programs that a message names.
const NAMES_SHOWN: usize = 8;
/// Bytes of a name that are used. In a hostile object thousands of symbols share a name of a megabyte.
const NAME_BYTES_MAX: usize = 1024;

fn broken(why: impl Into<String>) -> LoadError {
    LoadErrorKind::Object(why.into()).into()
}

/// Reads the program in `section` of an object file.
pub(crate) fn load(bytes: &[u8], section: &str, limits: &Limits) -> Result<Object, LoadError> {
    if bytes.len() > limits.file_bytes {
        return Err(broken(format!(
            "it has {} bytes, more than the limit of {}",
            bytes.len(),
            limits.file_bytes
        )));
    }
    let file = File::parse(bytes).map_err(|why| broken(why.to_string()))?;
    if file.architecture() != Architecture::Bpf || !file.is_little_endian() {
        return Err(broken("it is not for little-endian BPF; compile it with clang -target bpf"));
    }
    if file.sections().count() > SECTIONS_MAX {
        return Err(broken(format!("it has more sections than the limit of {SECTIONS_MAX}")));
    }
    let btf = match section_data(&file, ".BTF")? {
        Some(bytes) => Some(Btf::parse(bytes)?),
        None => None,
    };
    let abi = abi(&file)?;
    let mut linker = Linker::new(&file, section, limits)?;
    linker.add_maps(btf.as_ref())?;
    linker.add_data()?;
    linker.relocate()?;
    let mut object = Object { abi, ..linker.object };
    if let (Some(btf), Some(ext)) = (&btf, section_data(&file, ".BTF.ext")?) {
        lines::read(ext, btf, &linker.placed, &mut object.lines)?;
    }
    Ok(object)
}

/// Returns the version of `sluice.h` of the object. Linked objects may have several.
fn abi(file: &File<'_>) -> Result<Option<u32>, LoadError> {
    let Some(bytes) = section_data(file, ABI)? else { return Ok(None) };
    let (words, []) = bytes.as_chunks::<4>() else {
        return Err(broken(format!("section {ABI} is not made of 32-bit numbers")));
    };
    let mut versions = words.iter().map(|word| u32::from_le_bytes(*word));
    let first = versions.next();
    match versions.find(|version| Some(*version) != first) {
        None => Ok(first),
        Some(other) => Err(broken(format!(
            "parts of it were compiled with version {} of sluice.h and parts with version {other}; compile all with one",
            first.unwrap_or_default()
        ))),
    }
}

/// Returns a name, cut to the bytes that are used.
fn cut(name: &[u8]) -> String {
    String::from_utf8_lossy(name.get(..NAME_BYTES_MAX).unwrap_or(name)).into_owned()
}

fn section_data<'a>(file: &File<'a>, name: &str) -> Result<Option<&'a [u8]>, LoadError> {
    let Some(section) = file.section_by_name(name) else { return Ok(None) };
    section.data().map(Some).map_err(|why| broken(format!("section {name}: {why}")))
}

/// Section of code and the slot where it was put.
struct Placed {
    name: String,
    index: SectionIndex,
    start: usize,
    slots: usize,
}

struct Linker<'f, 'a> {
    file: &'f File<'a>,
    object: Object,
    placed: Vec<Placed>,
    /// Sections of global data, and the number of each one's map.
    data: HashMap<SectionIndex, u32>,
    /// Symbols of `.maps`, by name.
    maps: HashMap<String, u32>,
    maps_max: usize,
}

impl<'f, 'a> Linker<'f, 'a> {
    fn new(file: &'f File<'a>, section: &str, limits: &Limits) -> Result<Self, LoadError> {
        let maps_max = limits.maps;
        let object = Object::default();
        let mut linker =
            Self { file, object, placed: Vec::new(), data: HashMap::new(), maps: HashMap::new(), maps_max };
        linker.place(section, limits)?;
        if section != TEXT && file.section_by_name(TEXT).is_some_and(|text| text.size() > 0) {
            linker.place(TEXT, limits)?;
        }
        linker.object.entry = linker.entry(section)?;
        Ok(linker)
    }

    /// Appends a section's code.
    fn place(&mut self, name: &str, limits: &Limits) -> Result<(), LoadError> {
        let Some(section) = self.file.section_by_name(name) else {
            let names = self.code_sections().join(", ");
            return Err(broken(format!("it has no section {name}; sections with code are: {names}")));
        };
        let bytes = section.data().map_err(|why| broken(format!("section {name}: {why}")))?;
        let (slots, []) = bytes.as_chunks::<{ Slot::SIZE }>() else {
            return Err(broken(format!("section {name} does not end with a whole instruction")));
        };
        let start = self.object.slots.len();
        if start + slots.len() > limits.slots {
            return Err(LoadErrorKind::TooLong { slots: start + slots.len(), limit: limits.slots }.into());
        }
        self.object.slots.extend(slots.iter().map(|slot| Slot::from_bytes(*slot)));
        self.placed.push(Placed { name: name.to_owned(), index: section.index(), start, slots: slots.len() });
        Ok(())
    }

    fn code_sections(&self) -> Vec<String> {
        let code =
            self.file.sections().filter(|section| section.kind() == SectionKind::Text && section.size() > 0);
        code.filter_map(|section| section.name_bytes().map(cut).ok()).take(NAMES_SHOWN).collect()
    }

    /// Returns the slot of the one global function in the program's section.
    fn entry(&self, section: &str) -> Result<usize, LoadError> {
        let Some(placed) = self.placed.first() else { return Ok(0) };
        let program = |symbol: &::object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
            symbol.section_index() == Some(placed.index)
                && symbol.is_global()
                && symbol.kind() == SymbolKind::Text
        };
        let entries: Vec<_> = self.file.symbols().filter(program).take(NAMES_SHOWN).collect();
        match entries.as_slice() {
            [] => Ok(0),
            [one] => slot_of(one.address(), placed)
                .ok_or_else(|| broken(format!("the program of section {section} begins outside of it"))),
            several => {
                let names: Vec<String> =
                    several.iter().map(|symbol| cut(symbol.name_bytes().unwrap_or(b"?"))).collect();
                Err(broken(format!(
                    "section {section} has several programs ({}); keep one",
                    names.join(", ")
                )))
            }
        }
    }

    fn add_map(&mut self, spec: MapSpec) -> Result<u32, LoadError> {
        if self.object.maps.len() >= self.maps_max {
            return Err(LoadErrorKind::TooManyMaps { limit: self.maps_max }.into());
        }
        self.object.maps.push(spec);
        Ok(self.object.maps.len() as u32 - 1)
    }

    fn add_maps(&mut self, btf: Option<&Btf<'_>>) -> Result<(), LoadError> {
        if self.file.section_by_name("maps").is_some() {
            return Err(broken("it defines maps in the old section \"maps\"; define them in SEC(\".maps\")"));
        }
        if self.file.section_by_name(".maps").is_none() {
            return Ok(());
        }
        let btf =
            btf.ok_or_else(|| broken("its maps are described by BTF, which it lacks; compile it with -g"))?;
        for def in maps::read(btf, self.maps_max)? {
            let name = def.name.clone();
            let number = self.add_map(def.into())?;
            self.maps.insert(name, number);
        }
        Ok(())
    }

    /// Adds each section of global data as an array with one element.
    fn add_data(&mut self) -> Result<(), LoadError> {
        for section in self.file.sections() {
            let Ok(name) = section.name_bytes().map(cut) else { continue };
            let is = |prefix: &str| {
                name == prefix || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
            };
            if section.size() == 0 || !(is(".rodata") || is(".data") || is(".bss")) {
                continue;
            }
            let read_only = is(".rodata");
            let index = section.index();
            let size =
                u32::try_from(section.size()).map_err(|_| broken(format!("section {name} is too large")))?;
            let data = section.data().map_err(|why| broken(format!("section {name}: {why}")))?;
            if section.relocations().next().is_some() {
                return Err(broken(format!(
                    "section {name} has addresses in it; global data cannot hold pointers"
                )));
            }
            let spec = maps::data(&name, size, data, read_only)?;
            let number = self.add_map(spec)?;
            self.data.insert(index, number);
        }
        Ok(())
    }

    fn relocate(&mut self) -> Result<(), LoadError> {
        let placed: Vec<(SectionIndex, usize)> =
            self.placed.iter().map(|placed| (placed.index, placed.start)).collect();
        for (index, start) in placed {
            let section = self.file.section_by_index(index).map_err(|why| broken(why.to_string()))?;
            // No slot needs more than one.
            for (offset, relocation) in section.relocations().take(self.object.slots.len()) {
                let at =
                    usize::try_from(offset / Slot::SIZE as u64).ok().and_then(|slot| start.checked_add(slot));
                let at = at.ok_or_else(|| broken("a relocation is outside its section"))?;
                let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
                let RelocationTarget::Symbol(symbol) = relocation.target() else {
                    return Err(broken("a relocation names no symbol"));
                };
                self.apply(at, r_type, symbol)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, at: usize, r_type: u32, symbol: SymbolIndex) -> Result<(), LoadError> {
        let error = |why: String| self.object.locate(LoadError::at(at, LoadErrorKind::Object(why)));
        let symbol = self.file.symbol_by_index(symbol).map_err(|why| error(why.to_string()))?;
        let name = cut(symbol.name_bytes().unwrap_or_default());
        let (address, section) = (symbol.address(), symbol.section_index());
        match r_type {
            R_BPF_64_64 => self.relocate_address(at, &name, address, section),
            R_BPF_64_32 => self.relocate_call(at, &name, address, section),
            other => Err(error(format!("relocation type {other} (of {name}) is not supported"))),
        }
    }

    /// Relocates a 64-bit immediate for a map or for global data.
    fn relocate_address(
        &mut self,
        at: usize,
        name: &str,
        address: u64,
        section: Option<SectionIndex>,
    ) -> Result<(), LoadError> {
        let data = section.and_then(|section| self.data.get(&section)).copied();
        let map = self.maps.get(name).copied();
        let [Some(low), Some(_)] = [at, at + 1].map(|slot| self.object.slots.get(slot).copied()) else {
            return Err(LoadError::at(at, LoadErrorKind::HalfLoad));
        };
        let (src, map, high_imm) = match (map, data) {
            (Some(map), _) => (pseudo::MAP, map, 0),
            // The address of global data is the symbol's plus the value in the instruction.
            (None, Some(map)) => (pseudo::MAP_VALUE, map, address.wrapping_add(low.imm as u64) as i32),
            (None, None) => {
                let why =
                    format!("{name} is neither a map in SEC(\".maps\") nor global data; is it defined?");
                return Err(LoadError::at(at, LoadErrorKind::Object(why)));
            }
        };
        self.patch(at, |slot| {
            slot.src = src;
            slot.imm = map as i32;
        });
        self.patch(at + 1, |slot| slot.imm = high_imm);
        Ok(())
    }

    /// Relocates a call of a function in a section that was placed.
    fn relocate_call(
        &mut self,
        at: usize,
        name: &str,
        address: u64,
        section: Option<SectionIndex>,
    ) -> Result<(), LoadError> {
        let missing = || {
            LoadError::at(
                at,
                LoadErrorKind::Object(format!("the called function {name} is not in this object")),
            )
        };
        let placed = self.placed.iter().find(|placed| Some(placed.index) == section).ok_or_else(missing)?;
        let imm = self.object.slots.get(at).ok_or_else(missing)?.imm;
        // The instruction holds the distance from the symbol, minus one as in every jump.
        let inside = i64::try_from(address / Slot::SIZE as u64)
            .ok()
            .and_then(|slot| slot.checked_add(i64::from(imm) + 1));
        let inside = inside.and_then(|slot| usize::try_from(slot).ok()).filter(|slot| *slot < placed.slots);
        let target = placed.start + inside.ok_or_else(missing)?;
        let distance = target as i64 - at as i64 - 1;
        self.patch(at, |slot| {
            slot.src = pseudo::CALL_LOCAL;
            slot.imm = distance as i32;
        });
        Ok(())
    }

    fn patch(&mut self, at: usize, change: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.object.slots.get_mut(at) {
            change(slot);
        }
    }
}

fn slot_of(address: u64, placed: &Placed) -> Option<usize> {
    let slot = usize::try_from(address / Slot::SIZE as u64).ok()?;
    (address.is_multiple_of(Slot::SIZE as u64) && slot < placed.slots).then_some(placed.start + slot)
}
