//! How a function takes its rings from the daemon, and what it says to that.

use crate::abi::{Hello, MAGIC, OPTIONS_MAX, VERSION, WORDS_MAX, Welcome};
use crate::ring::Rings;
use crate::socket::{receive, send};
use crate::{Function, Interest, Properties};
use sluice_memory::{Buffers, SharedRegion};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

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

    /// As they go over the socket.
    pub fn to_text(&self) -> String {
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
