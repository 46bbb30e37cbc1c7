//! Part of BTF that map definitions need (Linux `Documentation/bpf/btf.rst`).

use super::broken;
use crate::error::LoadError;

const MAGIC: u16 = 0xeb9f;
/// Most types of one object; each takes at least 12 bytes of a bounded file.
const TYPES_MAX: usize = 1 << 20;

/// Bytes of a string; a longer one reads as empty.
const STRING_BYTES_MAX: usize = 1024;

/// Kind of a type, with the type that it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Void,
    Pointer(u32),
    Array {
        element: u32,
        count: u32,
    },
    /// Struct or union: start of its members in [`Btf::members`], and their number.
    Struct {
        first: usize,
        count: usize,
    },
    /// Typedef, const, volatile, restrict, type tag: another name for the same type.
    Alias(u32),
    Variable(u32),
    /// Section of variables, laid out like a struct.
    Section {
        first: usize,
        count: usize,
    },
    /// Type with a size and no relevant parts: integers, enums, floats.
    Scalar,
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Type {
    pub(super) name: u32,
    pub(super) kind: Kind,
    pub(super) size: u32,
}

/// Member of a struct, or variable of a section.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) name: u32,
    pub(super) kind: u32,
}

pub(super) struct Btf<'a> {
    strings: &'a [u8],
    types: Vec<Type>,
    members: Vec<Member>,
}

/// Reader of little-endian numbers from the front of bytes.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_le_bytes(*word))
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    /// Returns the part of `bytes` that a header names.
    pub(super) fn part(bytes: &'a [u8], start: usize, len: u32) -> Option<&'a [u8]> {
        bytes.get(start..)?.get(..len as usize)
    }
}

impl<'a> Btf<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, LoadError> {
        Self::sections(bytes)
            .and_then(|(types, strings)| {
                let mut btf = Self { strings, types: Vec::new(), members: Vec::new() };
                btf.types.push(Type { name: 0, kind: Kind::Void, size: 0 });
                let mut reader = Reader(types);
                while !reader.0.is_empty() && btf.types.len() < TYPES_MAX {
                    btf.read_type(&mut reader)?;
                }
                Some(btf)
            })
            .ok_or_else(|| broken("its BTF is malformed"))
    }

    /// Returns the parts with the types and the strings.
    fn sections(bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let mut header = Reader(bytes);
        if header.u16()? != MAGIC {
            return None;
        }
        header.skip(2)?;
        let start = header.u32()? as usize;
        let [type_at, type_len, string_at, string_len] =
            [header.u32()?, header.u32()?, header.u32()?, header.u32()?];
        let types = Reader::part(bytes, start.checked_add(type_at as usize)?, type_len)?;
        let strings = Reader::part(bytes, start.checked_add(string_at as usize)?, string_len)?;
        Some((types, strings))
    }

    fn read_type(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let (name, info, size) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let count = (info & 0xffff) as usize;
        let first = self.members.len();
        let kind = match info >> 24 & 0x1f {
            1 => reader.skip(4).map(|()| Kind::Scalar)?,
            2 => Kind::Pointer(size),
            3 => {
                let (element, _, count) = (reader.u32()?, reader.u32()?, reader.u32()?);
                Kind::Array { element, count }
            }
            4 | 5 => {
                self.read_members(reader, count, false)?;
                Kind::Struct { first, count }
            }
            6 => reader.skip(count * 8).map(|()| Kind::Scalar)?,
            8..=11 | 18 => Kind::Alias(size),
            13 => reader.skip(count * 8).map(|()| Kind::Other)?,
            14 => reader.skip(4).map(|()| Kind::Variable(size))?,
            15 => {
                self.read_members(reader, count, true)?;
                Kind::Section { first, count }
            }
            16 => Kind::Scalar,
            17 => reader.skip(4).map(|()| Kind::Other)?,
            19 => reader.skip(count * 12).map(|()| Kind::Scalar)?,
            7 | 12 => Kind::Other,
            _ => return None,
        };
        self.types.push(Type { name, kind, size });
        Some(())
    }

    /// Reads members (name, type, offset), or variables of a section (type, offset, size).
    fn read_members(&mut self, reader: &mut Reader<'_>, count: usize, section: bool) -> Option<()> {
        for _ in 0..count {
            let (a, b, _) = (reader.u32()?, reader.u32()?, reader.u32()?);
            self.members.push(if section {
                Member { name: 0, kind: a }
            } else {
                Member { name: a, kind: b }
            });
        }
        Some(())
    }

    /// Returns a name or a line of source. Very long strings read as empty: a hostile object could name a
    /// megabyte a million times.
    pub(super) fn string(&self, offset: u32) -> &'a str {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        let end = rest.iter().take(STRING_BYTES_MAX).position(|&byte| byte == 0).unwrap_or(0);
        std::str::from_utf8(rest.get(..end).unwrap_or_default()).unwrap_or("?")
    }

    /// Returns a type, looking through its other names.
    pub(super) fn get(&self, mut number: u32) -> Option<Type> {
        // Names may form a cycle in a hostile object.
        for _ in 0..32 {
            let found = self.types.get(number as usize).copied()?;
            match found.kind {
                Kind::Alias(to) => number = to,
                _ => return Some(found),
            }
        }
        None
    }

    pub(super) fn members(&self, first: usize, count: usize) -> &[Member] {
        self.members.get(first..first + count).unwrap_or_default()
    }

    pub(super) fn types(&self) -> &[Type] {
        &self.types
    }

    /// Returns the bytes of a value of this type.
    pub(super) fn size(&self, number: u32) -> Option<u32> {
        let mut count = 1u32;
        let mut number = number;
        for _ in 0..32 {
            let found = self.get(number)?;
            match found.kind {
                Kind::Array { element, count: times } => {
                    count = count.checked_mul(times)?;
                    number = element;
                }
                Kind::Pointer(_) => return count.checked_mul(8),
                Kind::Struct { .. } | Kind::Scalar => return count.checked_mul(found.size),
                _ => return None,
            }
        }
        None
    }
}
