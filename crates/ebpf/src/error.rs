//! Errors of loading a program, and causes of the early end of a run.

use std::fmt;
use std::ops::RangeInclusive;

/// Line of the program's source, from the object's line information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLine {
    pub file: String,
    pub line: u32,
    pub text: String,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`", self.file, self.line, self.text.trim())
    }
}

/// Refusal of a program, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// Slot number, as `llvm-objdump -d` counts.
    pub insn: Option<usize>,
    pub source: Option<Box<SourceLine>>,
    pub kind: LoadErrorKind,
}

impl LoadError {
    pub(crate) fn at(insn: usize, kind: LoadErrorKind) -> Self {
        Self { insn: Some(insn), source: None, kind }
    }
}

impl From<LoadErrorKind> for LoadError {
    fn from(kind: LoadErrorKind) -> Self {
        Self { insn: None, source: None, kind }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(insn) = self.insn {
            write!(f, "instruction {insn}")?;
            if let Some(source) = &self.source {
                write!(f, " ({source})")?;
            }
            f.write_str(": ")?;
        }
        self.kind.fmt(f)
    }
}

impl std::error::Error for LoadError {}

/// Kind of an error in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadErrorKind {
    // The form of an instruction.
    UnknownOpcode {
        opcode: u8,
    },
    NoSuchRegister {
        number: u8,
    },
    FramePointerWritten,
    ReservedField,
    HalfLoad,
    UnknownImmediate,
    UnknownAtomic,
    UnknownCall,
    BadJump,
    // The form of a program.
    Empty,
    TooLong {
        slots: usize,
        limit: usize,
    },
    JumpOutOfFunction,
    RunsOffTheEnd,
    NoSuchHelper {
        number: u32,
    },
    NoSuchMap {
        map: u32,
    },
    BadMapOffset {
        map: u32,
        offset: u32,
    },
    // Findings of the verifier.
    Uninitialised {
        reg: u8,
    },
    WildPointer {
        reg: u8,
    },
    OutOfBounds {
        what: String,
    },
    BadArgument {
        helper: &'static str,
        argument: usize,
        expected: &'static str,
    },
    TooComplex,
    // Maps.
    TooManyMaps {
        limit: usize,
    },
    BadMap {
        name: String,
        why: String,
    },
    MapsTooLarge {
        name: String,
        bytes: u64,
        limit: usize,
    },
    // The object file.
    Object(String),
    /// Version of `sluice.h` of the object, and the versions that can be run.
    Abi {
        version: Option<u32>,
        supported: RangeInclusive<u32>,
    },
    // Code generation.
    CodeGeneration(String),
}

impl fmt::Display for LoadErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOpcode { opcode } => {
                write!(f, "opcode {opcode:#04x} is unknown; compile with -mcpu=v1 to v4")
            }
            Self::NoSuchRegister { number } => write!(f, "there is no register r{number}, only r0 to r10"),
            Self::FramePointerWritten => f.write_str("r10 is the frame pointer and cannot be written"),
            Self::ReservedField => {
                f.write_str("a field that this instruction does not use is not zero; compile with -mcpu=v1 to v4")
            }
            Self::HalfLoad => f.write_str("the second half of a 64-bit immediate load is missing or malformed"),
            Self::UnknownImmediate => {
                f.write_str("this kind of 64-bit immediate is not supported; use plain values, maps and global data")
            }
            Self::UnknownAtomic => f.write_str(
                "this atomic operation is unknown; use add, or, and, xor, exchange or compare-and-exchange on 4 or 8 bytes",
            ),
            Self::UnknownCall => {
                f.write_str("this kind of call is not supported; call a helper by its number or a function of the program")
            }
            Self::BadJump => f.write_str("the jump or call leads outside the program or into a 64-bit immediate"),
            other => other.fmt_meaning(f),
        }
    }
}

impl LoadErrorKind {
    fn fmt_meaning(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the program has no instructions"),
            Self::TooLong { slots, limit } => {
                write!(
                    f,
                    "the program has {slots} instructions, more than the limit of {limit}; make it smaller"
                )
            }
            Self::JumpOutOfFunction => f.write_str("the jump leaves its function; use a call"),
            Self::RunsOffTheEnd => {
                f.write_str("a function must end with an exit or a jump, not run into what follows")
            }
            Self::NoSuchHelper { number } => {
                write!(f, "there is no helper {number}; use those that the header declares")
            }
            Self::NoSuchMap { map } => write!(f, "there is no map number {map} in this program"),
            Self::BadMapOffset { map, offset } => {
                write!(f, "offset {offset} is outside the value of map number {map}")
            }
            Self::Uninitialised { reg } => write!(
                f,
                "r{reg} may be read before it was given a value; initialise it on every path (calls clear r1 to r5)"
            ),
            Self::WildPointer { reg } => write!(
                f,
                "r{reg} is a number here, not an address; only the context, the stack, map values and global data have addresses"
            ),
            Self::OutOfBounds { what } => f.write_str(what),
            Self::BadArgument { helper, argument, expected } => {
                write!(f, "argument {argument} of {helper} must be {expected}")
            }
            Self::TooComplex => f.write_str(
                "the program is too complex to verify; use fewer branches or split it into functions",
            ),
            other => other.fmt_outside(f),
        }
    }

    fn fmt_outside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyMaps { limit } => write!(f, "the program has more than {limit} maps; merge some"),
            Self::BadMap { name, why } => write!(f, "map {name}: {why}"),
            Self::MapsTooLarge { name, bytes, limit } => write!(
                f,
                "map {name} would bring the program's maps to {bytes} bytes, more than the limit of {limit}; lower its max_entries"
            ),
            Self::Object(why) => write!(f, "the object file cannot be used: {why}"),
            Self::Abi { version: None, .. } => f.write_str(
                "the object does not say which version of sluice.h it was compiled with; include sluice.h and compile it again",
            ),
            Self::Abi { version: Some(version), supported } => write!(
                f,
                "the object was compiled with version {version} of sluice.h, and versions {} to {} can be run; compile it again with the sluice.h of this release",
                supported.start(),
                supported.end()
            ),
            Self::CodeGeneration(why) => write!(f, "no machine code could be made: {why}"),
            _ => Ok(()),
        }
    }
}

/// Cause of the early end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// Access outside the context's permitted bytes, the stack, the maps.
    Memory = 1,
    /// Atomic access whose address is not a multiple of its size.
    Misaligned,
    /// More work than a run may do.
    OutOfFuel,
    /// More frames than the stack has.
    TooDeep,
    /// Helper argument that is not a map, or is a map of the wrong kind.
    NotAMap,
    /// Other helper argument that is not valid.
    Argument,
    /// Jump to a place without an instruction. Verified programs cannot do this.
    NoInstruction,
}

impl Fault {
    /// All faults, to convert a number back.
    const ALL: [Self; 7] = [
        Self::Memory,
        Self::Misaligned,
        Self::OutOfFuel,
        Self::TooDeep,
        Self::NotAMap,
        Self::Argument,
        Self::NoInstruction,
    ];

    /// Returns the fault with this number.
    pub(crate) fn from_code(code: u64) -> Self {
        Self::ALL.into_iter().find(|fault| *fault as u64 == code).unwrap_or(Self::NoInstruction)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "an access outside the program's memory",
            Self::Misaligned => "an atomic access at a misaligned address",
            Self::OutOfFuel => "the program ran for too long",
            Self::TooDeep => "too many nested calls",
            Self::NotAMap => "a helper was given something that is not a map of the right kind",
            Self::Argument => "an argument of a helper is not valid",
            Self::NoInstruction => "control left the program",
        })
    }
}

/// Early end of a run: its command gets no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trap {
    /// Slot number of the instruction.
    pub insn: u32,
    pub fault: Fault,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.insn, self.fault)
    }
}

impl std::error::Error for Trap {}
