//! A cell of a grid, the unit of measurement.

use clap::ValueEnum;
use serde::Serialize;
use sluice_spec::size::Size;
use sluice_spec::{FunctionSpec, LayerSpec, NamespaceSpec, Place, TargetKind, UifSpec};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Storage behind the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Null(Size),
    Memory(Size),
    /// An existing file or block device.
    File(PathBuf),
    /// Null or memory, under a function.
    Through(Above, Place, Box<Target>),
    /// A drive of a daemon that runs already, by its socket.
    Daemon(PathBuf),
}

/// A function that can be put over a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// Function that does nothing.
    Pass,
    Encrypt,
    /// Mirror of two members like the target, with a log in memory.
    Mirror,
    /// Copy of all writes on a second target of the kind, with a log in memory.
    Replicate,
}

impl Above {
    fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Encrypt => "encrypt",
            Self::Mirror => "mirror",
            Self::Replicate => "replicate",
        }
    }

    /// Describes the function over `below`. `key` is a file with a key.
    fn spec(self, place: Place, below: &NamespaceSpec, key: &Path) -> UifSpec {
        let mut spec = UifSpec { function: Some(self.name().to_owned()), place, ..UifSpec::default() };
        if self == Self::Encrypt {
            spec.options.insert("key_file".to_owned(), key.display().to_string());
        }
        if matches!(self, Self::Mirror | Self::Replicate) {
            spec.layers = vec![layer(below.target, below.size), layer(TargetKind::Memory, Some(LOG_SIZE))];
        }
        spec
    }
}

fn layer(target: TargetKind, size: Option<Size>) -> LayerSpec {
    LayerSpec {
        target,
        size,
        path: None,
        on_full: None,
        format: None,
        lease: None,
        nvme: None,
        nvme_tcp: None,
        block_size: 512,
        functions: Vec::new(),
    }
}

/// Bytes of a null target unless given.
const NULL_SIZE: Size = Size(64 << 30);
/// Bytes of a memory target unless given: more than fits a processor's caches.
const MEMORY_SIZE: Size = Size(512 << 20);
/// Bytes of a mirror's log.
const LOG_SIZE: Size = Size(1 << 20);

impl Target {
    /// Returns the namespace for a drive of this process; `None` for another daemon's. `key` is a file with a
    /// key.
    pub fn namespace(&self, key: &Path) -> Option<NamespaceSpec> {
        let (target, size, path) = match self {
            Self::Null(size) => (TargetKind::Null, Some(*size), None),
            Self::Memory(size) => (TargetKind::Memory, Some(*size), None),
            Self::File(path) => (TargetKind::File, None, Some(path.clone())),
            Self::Through(above, place, below) => {
                let mut namespace = below.namespace(key)?;
                let function = above.spec(*place, &namespace, key);
                namespace.functions.push(FunctionSpec::Uif(function));
                return Some(namespace);
            }
            Self::Daemon(_) => return None,
        };
        let functions = Vec::new();
        Some(NamespaceSpec {
            target,
            size,
            path,
            on_full: None,
            format: None,
            lease: None,
            read_only: false,
            nvme: None,
            nvme_tcp: None,
            shared: None,
            volume: None,
            block_size: 512,
            ana_group: None,
            functions,
            paths: Vec::new(),
        })
    }

    /// Returns whether a write destroys data that may be worth keeping.
    pub fn is_precious(&self) -> bool {
        matches!(self, Self::File(_) | Self::Daemon(_))
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
        let size = |usual| rest.map_or(Ok(usual), str::parse);
        match (kind, rest) {
            ("null", _) => size(NULL_SIZE).map(Self::Null),
            ("memory", _) => size(MEMORY_SIZE).map(Self::Memory),
            ("pass@daemon", below) => through(Above::Pass, Place::Daemon, below),
            ("pass@process", below) => through(Above::Pass, Place::Process, below),
            ("encrypt@daemon", below) => through(Above::Encrypt, Place::Daemon, below),
            ("encrypt@process", below) => through(Above::Encrypt, Place::Process, below),
            ("mirror@daemon", below) => through(Above::Mirror, Place::Daemon, below),
            ("mirror@process", below) => through(Above::Mirror, Place::Process, below),
            ("replicate@daemon", below) => through(Above::Replicate, Place::Daemon, below),
            ("replicate@process", below) => through(Above::Replicate, Place::Process, below),
            ("file", Some(path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(format!(
                "`{text}` is not a target: use null, memory, memory:SIZE, file:PATH, or one of the first \
                 two under pass@daemon:, pass@process:, or the same with encrypt, mirror or replicate"
            )),
        }
    }
}

/// Reads a null or memory target under a function.
fn through(above: Above, place: Place, below: Option<&str>) -> Result<Target, String> {
    match below.unwrap_or("null").parse()? {
        below @ (Target::Null(_) | Target::Memory(_)) => Ok(Target::Through(above, place, Box::new(below))),
        other => Err(format!("`{other}` cannot be measured under a function: use null or memory")),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null(_) => f.write_str("null"),
            Self::Memory(size) => write!(f, "memory:{size}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Through(above, Place::Daemon, below) => write!(f, "{}@daemon:{below}", above.name()),
            Self::Through(above, Place::Process, below) => write!(f, "{}@process:{below}", above.name()),
            Self::Daemon(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Commands of a cell, and their number at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Bytes of one command.
    pub block_size: BlockSize,
    /// Commands in flight in each queue.
    pub queue_depth: QueueDepth,
    /// Queue pairs of each drive.
    pub queues: Queues,
    pub pattern: Pattern,
    pub mix: Mix,
    /// Drives, all on one reactor.
    pub drives: Drives,
}

impl Shape {
    /// Writes to all of a drive, one after the other, which allocate the storage of a target.
    pub const FILL: Shape = Shape {
        block_size: BlockSize(128 << 10),
        queue_depth: QueueDepth(8),
        queues: Queues(1),
        pattern: Pattern::Sequential,
        mix: Mix::WRITE,
        drives: Drives(1),
    };
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block_size, queue_depth, queues, pattern, mix, drives } = self;
        write!(f, "{} {mix} {block_size}, QD {queue_depth}", pattern.word())?;
        if queues.0 > 1 {
            write!(f, ", {queues} queues")?;
        }
        if drives.0 > 1 {
            write!(f, ", {drives} drives")?;
        }
        Ok(())
    }
}

/// Order of the commands' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    Random,
    Sequential,
}

impl Pattern {
    pub fn word(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
}

/// Reads among the commands, in percent; the others are writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix(pub u8);

impl Mix {
    pub const READ: Mix = Mix(100);
    pub const WRITE: Mix = Mix(0);

    pub fn writes(self) -> bool {
        self.0 < 100
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.trim_end_matches("read").trim_end().strip_suffix('%').map(str::parse);
        match (text, share) {
            ("read", _) => Ok(Self::READ),
            ("write", _) => Ok(Self::WRITE),
            (_, Some(Ok(share @ 0..=100))) => Ok(Self(share)),
            _ => Err(format!("`{text}` is not a mix: use read, write, or a share of reads such as 70%")),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::READ => f.write_str("read"),
            Self::WRITE => f.write_str("write"),
            Self(share) => write!(f, "{share}% read"),
        }
    }
}

impl Serialize for Mix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Numbers with limits, each a type of its own so that none is taken for another.
macro_rules! limited {
    ($($(#[$doc:meta])* $name:ident: $range:expr, $what:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub struct $name(pub u32);

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let range = $range;
                match text.parse() {
                    Ok(number) if range.contains(&number) => Ok(Self(number)),
                    _ => Err(format!("`{text}` is not {}: use {} to {}", $what, range.start(), range.end())),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )+};
}

limited! {
    /// Commands in flight in one queue.
    QueueDepth: 1..=1023, "a queue depth";
    /// Queue pairs of a drive.
    Queues: 1..=128, "a number of queues";
    /// Drives on one reactor.
    Drives: 1..=1024, "a number of drives";
}

/// Bytes of a command: a multiple of 512, up to 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockSize(pub u32);

impl FromStr for BlockSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse()? {
            Size(size @ 512..=0x10_0000) if size.is_multiple_of(512) => Ok(Self(size as u32)),
            _ => Err(format!("`{text}` is not a block size: use a multiple of 512, up to 1MiB")),
        }
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Size(self.0.into()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        for text in [
            "null",
            "memory:512MiB",
            "memory:1GiB",
            "file:/dev/loop0",
            "encrypt@process:memory:1GiB",
            "mirror@daemon:null",
            "replicate@daemon:null",
        ] {
            assert_eq!(text.parse::<Target>().map(|target| target.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("memory".parse(), Ok(Target::Memory(MEMORY_SIZE)));
        for text in ["", "nul", "file", "file:", "memory:", "memory:much", "pass@daemon:file:/x"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn mixes_are_read_in_three_ways() {
        let mix = |text: &str| text.parse::<Mix>();
        assert_eq!((mix("read"), mix("write")), (Ok(Mix(100)), Ok(Mix(0))));
        assert_eq!((mix("70%"), mix("70% read"), mix("0%")), (Ok(Mix(70)), Ok(Mix(70)), Ok(Mix(0))));
        for text in ["", "70", "101%", "% read", "reads", "-1%"] {
            assert!(mix(text).is_err(), "{text}");
        }
        assert_eq!(Mix(70).to_string(), "70% read");
    }

    #[test]
    fn numbers_keep_their_limits() {
        assert_eq!("4KiB".parse(), Ok(BlockSize(4096)));
        assert!(["511", "513", "2MiB", "0", "x"].iter().all(|text| text.parse::<BlockSize>().is_err()));
        assert_eq!("256".parse(), Ok(QueueDepth(256)));
        let refused = "0".parse::<QueueDepth>();
        assert_eq!(refused, Err("`0` is not a queue depth: use 1 to 1023".to_owned()));
    }

    #[test]
    fn a_cell_is_named_in_a_few_words() {
        let shape = Shape {
            block_size: BlockSize(4096),
            queue_depth: QueueDepth(32),
            queues: Queues(1),
            pattern: Pattern::Random,
            mix: Mix::READ,
            drives: Drives(1),
        };
        assert_eq!(shape.to_string(), "random read 4KiB, QD 32");
        let shape = Shape { queues: Queues(4), drives: Drives(8), mix: Mix(50), ..shape };
        assert_eq!(shape.to_string(), "random 50% read 4KiB, QD 32, 4 queues, 8 drives");
    }
}
