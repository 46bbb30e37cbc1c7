//! How the daemon hands a function its rings, and what the function says to that.

use crate::abi::{Header, MAGIC, VERSION, VERSION_MIN, operation};
use crate::ring::Rings;
use crate::socket::{receive, send};
use crate::{Function, Interest, Properties};
use rustix::event::{EventfdFlags, eventfd};
use sluice_memory::{Buffers, PAGE_SIZE, SharedRegion};
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes that all options together may have.
pub const OPTIONS_MAX: usize = 4096;

/// Bytes of the words with which a function refuses.
const WORDS_MAX: usize = 192;

/// Bytes of the largest buffer of a Write Zeroes.
pub const SCRATCH_MAX: u32 = 1 << 20;

/// Bytes of the most memory that a function has for requests of its own.
pub const POOL_MAX: u32 = 4 << 20;

/// Daemon to function. The first 12 bytes are the same in every version. With it come the descriptors of
/// the rings, the arena, the eventfd that wakes the function, and the one that wakes the daemon.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Hello {
    magic: u64,
    version: u32,
    /// Bytes of text that follow.
    options: u32,
    rings_bytes: u64,
    arena_bytes: u64,
}

/// Function to daemon. The first three fields and the words are the same in every version.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Welcome {
    magic: u64,
    version: u32,
    /// Zero if it serves; else the words say why not.
    refused: u32,
    words: [u8; WORDS_MAX],
    /// By operation: 0 skip, 1 before, 2 after.
    interests: [u8; 8],
    block_size: u32,
    scratch: u32,
    transforms: u32,
    /// Since version 2.
    pool: u32,
    size: u64,
}

/// Bytes of version 1 of it.
const WELCOME_1: usize = offset_of!(Welcome, size);

/// What a user configured a function with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(String, String)>);

impl Options {
    pub fn new(options: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(options.into_iter().collect())
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// The first that is none of `known`: the user meant something by it.
    pub fn stranger(&self, known: &[&str]) -> Option<&str> {
        self.0.iter().map(|(key, _)| key.as_str()).find(|key| !known.contains(key))
    }

    fn to_text(&self) -> String {
        self.0.iter().flat_map(|(key, value)| [key, "=", value, "\0"]).collect()
    }

    fn from_text(text: &str) -> Self {
        let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self(text.split('\0').filter_map(pair).collect())
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum Failure {
    Socket(io::Error),
    /// The other side did not answer in time.
    Silent,
    /// The other side is gone.
    Gone,
    /// What it said makes no sense, in words.
    Nonsense(&'static str),
    /// It speaks another version.
    Version(u32),
    /// The function refused, with these words.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(error) => write!(f, "the connection does not work: {error}"),
            Self::Silent => f.write_str("it did not answer in time"),
            Self::Gone => f.write_str("it ended without an answer"),
            Self::Nonsense(what) => write!(f, "its answer makes no sense: {what}"),
            Self::Version(theirs) => {
                write!(
                    f,
                    "it speaks version {theirs} of the rings, and this is version {VERSION}: rebuild it"
                )
            }
            Self::Refused(words) => write!(f, "it says: {words}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Gone,
            _ => Self::Socket(error),
        }
    }
}

/// What the daemon has of a function that serves.
#[derive(Debug)]
pub struct Link {
    pub rings: Rings,
    pub arena: SharedRegion,
    /// Wakes the function.
    pub doorbell: OwnedFd,
    /// Wakes the daemon. The function has it too, and may do with it what it likes: it may be full, and
    /// a read or write of it may block.
    pub bell: OwnedFd,
    pub properties: Properties,
}

/// Daemon: hands over rings and an arena of these sizes, and waits until `deadline` for the answer.
pub fn offer(
    socket: BorrowedFd<'_>,
    header: Header,
    options: &Options,
    deadline: Instant,
) -> Result<Link, Failure> {
    let rings = Rings::new(header)?;
    let length =
        usize::try_from(header.arena_bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let arena = SharedRegion::new("sluice-uif-arena", length)?;
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let (doorbell, bell) =
        (eventfd(0, flags).map_err(io::Error::from)?, eventfd(0, flags).map_err(io::Error::from)?);
    let text = options.to_text();
    let hello = Hello {
        magic: MAGIC,
        version: VERSION,
        options: text.len() as u32,
        rings_bytes: rings.region().len() as u64,
        arena_bytes: header.arena_bytes,
    };
    if text.len() > OPTIONS_MAX {
        return Err(Failure::Nonsense("its options are longer than 4096 bytes"));
    }
    let message = [hello.as_bytes(), text.as_bytes()].concat();
    let fds = [rings.region().fd(), arena.fd(), doorbell.as_fd(), bell.as_fd()];
    send(socket, &message, &fds)?;
    let properties = hear(socket, deadline)?;
    Ok(Link { rings, arena, doorbell, bell, properties })
}

/// What the function answers. It may be anything.
fn hear(socket: BorrowedFd<'_>, deadline: Instant) -> Result<Properties, Failure> {
    let mut bytes = [0; size_of::<Welcome>()];
    let (length, _) = receive(socket, &mut bytes, deadline)?;
    let Ok(welcome) = Welcome::read_from_bytes(&bytes) else { return Err(Failure::Nonsense("its length")) };
    if length == 0 {
        return Err(Failure::Gone);
    }
    if length < WELCOME_1 || welcome.magic != MAGIC {
        return Err(Failure::Nonsense("it is no function of Sluice's"));
    }
    if welcome.refused != 0 {
        let words = String::from_utf8_lossy(&welcome.words);
        let plain = words.trim_end_matches('\0').chars().filter(|c| !c.is_control()).collect();
        return Err(Failure::Refused(plain));
    }
    if !(VERSION_MIN..=VERSION).contains(&welcome.version) {
        return Err(Failure::Version(welcome.version));
    }
    properties_of(&welcome)
}

fn properties_of(welcome: &Welcome) -> Result<Properties, Failure> {
    let mut interests = [Interest::Skip; operation::COUNT];
    for (interest, code) in interests.iter_mut().zip(welcome.interests) {
        *interest = match code {
            0 => Interest::Skip,
            1 => Interest::Before,
            2 => Interest::After,
            _ => return Err(Failure::Nonsense("an interest that there is not")),
        };
    }
    if ![512, 4096].contains(&welcome.block_size) {
        return Err(Failure::Nonsense("a block size that is neither 512 nor 4096"));
    }
    if welcome.scratch > SCRATCH_MAX || !welcome.scratch.is_multiple_of(welcome.block_size) {
        return Err(Failure::Nonsense("a scratch buffer that is too long, or not of whole blocks"));
    }
    let (pool, size) = match welcome.version {
        1 => (0, 0),
        _ => (welcome.pool, welcome.size),
    };
    if pool > POOL_MAX || !pool.is_multiple_of(PAGE_SIZE as u32) {
        return Err(Failure::Nonsense("memory of its own that is too much, or not of whole pages"));
    }
    if !size.is_multiple_of(welcome.block_size.into()) {
        return Err(Failure::Nonsense("a size that is not of whole blocks"));
    }
    let (block_size, scratch, transforms) = (welcome.block_size, welcome.scratch, welcome.transforms != 0);
    Ok(Properties { interests, block_size, scratch, pool, transforms, size })
}

/// What a function process has of a daemon that it serves.
#[derive(Debug)]
pub struct Served {
    pub rings: Rings,
    pub arena: Buffers,
    pub doorbell: OwnedFd,
    pub bell: OwnedFd,
}

/// Makes a function for what the user configured, or says why there is none.
pub type Make<'a> = dyn FnMut(&Options) -> Result<Box<dyn Function>, String> + 'a;

/// Function: takes what the daemon offers until `deadline`, and answers.
pub fn accept(
    socket: BorrowedFd<'_>,
    make: &mut Make<'_>,
    deadline: Instant,
) -> Result<(Served, Box<dyn Function>), Failure> {
    let mut bytes = vec![0; size_of::<Hello>() + OPTIONS_MAX];
    let (length, fds) = receive(socket, &mut bytes, deadline)?;
    if length == 0 {
        return Err(Failure::Gone);
    }
    let outcome = take(&bytes[..length], fds).and_then(|(served, options)| match make(&options) {
        Ok(function) => Ok((served, function)),
        Err(words) => Err(Failure::Refused(words)),
    });
    let welcome = match &outcome {
        Ok((_, function)) => welcome(&function.properties()),
        Err(Failure::Refused(words)) => refusal(words),
        Err(failure) => refusal(&failure.to_string()),
    };
    send(socket, welcome.as_bytes(), &[])?;
    outcome
}

fn take(message: &[u8], fds: Vec<OwnedFd>) -> Result<(Served, Options), Failure> {
    let (hello, text) = Hello::read_from_prefix(message).map_err(|_| Failure::Nonsense("its length"))?;
    if hello.magic != MAGIC {
        return Err(Failure::Nonsense("it is no daemon of Sluice's"));
    }
    if hello.version != VERSION {
        return Err(Failure::Version(hello.version));
    }
    let Ok([rings, arena, doorbell, bell]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(Failure::Nonsense("it brought too few descriptors"));
    };
    let length = |bytes: u64| usize::try_from(bytes).map_err(|_| Failure::Nonsense("too much memory"));
    let (rings, _) = Rings::open(rings, length(hello.rings_bytes)?)
        .map_err(|_| Failure::Nonsense("the memory it brought holds no rings"))?;
    let arena = Buffers::new(SharedRegion::from_fd(arena, 0, length(hello.arena_bytes)?)?);
    let options = text.get(..hello.options as usize).map(String::from_utf8_lossy);
    let options = options.ok_or(Failure::Nonsense("its options end too soon"))?;
    Ok((Served { rings, arena, doorbell, bell }, Options::from_text(&options)))
}

fn welcome(properties: &Properties) -> Welcome {
    let mut interests = [0; 8];
    for (code, interest) in interests.iter_mut().zip(properties.interests) {
        *code = match interest {
            Interest::Skip => 0,
            Interest::Before => 1,
            Interest::After => 2,
        };
    }
    Welcome {
        magic: MAGIC,
        version: VERSION,
        refused: 0,
        words: [0; WORDS_MAX],
        interests,
        block_size: properties.block_size,
        scratch: properties.scratch,
        transforms: u32::from(properties.transforms),
        pool: properties.pool,
        size: properties.size,
    }
}

fn refusal(why: &str) -> Welcome {
    let mut answer = Welcome { refused: 1, ..welcome(&Properties::NONE) };
    // What is cut in the middle of a character is shown as such.
    let words = &why.as_bytes()[..why.len().min(WORDS_MAX)];
    answer.words[..words.len()].copy_from_slice(words);
    answer
}
