//! Map definitions: structs in `.maps` whose members are pointers that encode values by their type.
//!
//! `__uint(name, N)` is a pointer to an array of N; `__type(name, T)` is a pointer to T.

use super::broken;
use super::btf::{Btf, Kind, Member};
use crate::error::{LoadError, LoadErrorKind};
use crate::maps::{MapDef, MapKind, flags};
use crate::object::MapSpec;

/// Most members of a map's definition; nine have a meaning.
const MEMBERS_MAX: usize = 64;

/// Reads all maps that an object defines. In a hostile object tens of thousands of maps share one long
/// definition, so both are counted before anything is read.
pub(super) fn read(btf: &Btf<'_>, maps_max: usize) -> Result<Vec<MapDef>, LoadError> {
    let section = btf.types().iter().find_map(|found| match found.kind {
        Kind::Section { first, count } if btf.string(found.name) == ".maps" => {
            Some(btf.members(first, count))
        }
        _ => None,
    });
    let variables = section.unwrap_or_default();
    if variables.len() > maps_max {
        return Err(LoadErrorKind::TooManyMaps { limit: maps_max }.into());
    }
    variables.iter().map(|variable| read_variable(btf, variable)).collect()
}

fn read_variable(btf: &Btf<'_>, variable: &Member) -> Result<MapDef, LoadError> {
    let found = btf.get(variable.kind).ok_or_else(|| broken("a map has no type"))?;
    let Kind::Variable(kind) = found.kind else {
        return Err(broken("there is something else in .maps than maps"));
    };
    let name = btf.string(found.name);
    let bad = |why: &str| LoadErrorKind::BadMap { name: name.to_owned(), why: why.to_owned() };
    match btf.get(kind).map(|found| found.kind) {
        Some(Kind::Struct { first, count }) => read_struct(btf, name, btf.members(first, count)),
        _ => Err(bad("it is not a struct; define it with __uint and __type").into()),
    }
}

fn read_struct(btf: &Btf<'_>, name: &str, members: &[Member]) -> Result<MapDef, LoadError> {
    let bad = |why: String| LoadError::from(LoadErrorKind::BadMap { name: name.to_owned(), why });
    if members.len() > MEMBERS_MAX {
        return Err(bad(format!("its definition has {} members", members.len())));
    }
    let mut def = MapDef { key_size: 0, ..MapDef::array(name, 0, 0) };
    let mut kind = None;
    for member in members {
        let what = btf.string(member.name);
        let number =
            || uint(btf, member.kind).ok_or_else(|| bad(format!("{what} must be given with __uint")));
        let size =
            || type_size(btf, member.kind).ok_or_else(|| bad(format!("the type of its {what} has no size")));
        match what {
            "type" => kind = Some(number()?),
            "max_entries" => def.max_entries = number()?,
            "map_flags" => def.flags = number()?,
            "map_extra" => def.extra = number()?.into(),
            "key_size" => def.key_size = number()?,
            "value_size" => def.value_size = number()?,
            "key" => def.key_size = size()?,
            "value" => def.value_size = size()?,
            // A place in the kernel's file system, which does not exist here.
            "pinning" => {}
            other => return Err(bad(format!("{other} is not supported"))),
        }
    }
    let kind = kind.ok_or_else(|| bad("it has no type".to_owned()))?;
    def.kind = MapKind::from_number(kind).ok_or_else(|| {
        bad(format!("type {kind} is not supported; use an array, a hash, an LRU hash or a translation cache"))
    })?;
    Ok(def)
}

/// Returns N of a pointer to an array of N.
fn uint(btf: &Btf<'_>, kind: u32) -> Option<u32> {
    let Kind::Pointer(to) = btf.get(kind)?.kind else { return None };
    match btf.get(to)?.kind {
        Kind::Array { count, .. } => Some(count),
        _ => None,
    }
}

/// Returns the size of the type that a pointer points to.
fn type_size(btf: &Btf<'_>, kind: u32) -> Option<u32> {
    let Kind::Pointer(to) = btf.get(kind)?.kind else { return None };
    btf.size(to)
}

/// Returns global data as a map with one element.
pub(super) fn data(name: &str, size: u32, bytes: &[u8], read_only: bool) -> Result<MapSpec, LoadError> {
    let mut def = MapDef::array(name, size, 1);
    def.flags = if read_only { flags::READ_ONLY } else { 0 };
    def.check()?;
    // `.bss` has no bytes in the file.
    let mut data = bytes.to_vec();
    data.resize(size as usize, 0);
    Ok(MapSpec { def, data: Some(data) })
}
