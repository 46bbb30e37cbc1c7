//! Handshake of a function: it takes its rings from the daemon, and answers.

use crate::abi::{Hello, MAGIC, OPTIONS_MAX, VERSION, WORDS_MAX, Welcome};
use crate::ring::Rings;
use crate::socket::receive;
use crate::{Function, Properties};
use rustix::net::{SendFlags, send};
use sluice_memory::{Buffers, SharedRegion};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Time that a daemon has to send its Hello, once it has connected.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Options that a user configured for a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(String, String)>);

impl Options {
    pub fn new(options: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(options.into_iter().collect())
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Returns the first key that is none of `known`: a mistake of the user.
    pub fn unknown_key(&self, known: &[&str]) -> Option<&str> {
        self.0.iter().map(|(key, _)| key.as_str()).find(|key| !known.contains(key))
    }

    /// Returns the options as text for the socket.
    pub fn to_text(&self) -> String {
        self.0.iter().flat_map(|(key, value)| [key, "=", value, "\0"]).collect()
    }

    fn from_text(text: &str) -> Self {
        let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self(text.split('\0').filter_map(pair).collect())
    }
}

/// Failed connection.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the connection does not work: {0}")]
    Socket(#[source] io::Error),
    #[error("it did not answer in time")]
    Silent,
    #[error("it ended without an answer")]
    Gone,
    /// Options that no message can hold.
    #[error("its options have more than {OPTIONS_MAX} bytes together: shorten them")]
    LongOptions,
    /// Malformed message, with the reason.
    #[error("its answer is malformed: {0}")]
    Nonsense(&'static str),
    #[error("it speaks version {0} of the rings, and this is version {VERSION}: rebuild it")]
    Version(u32),
    /// Refusal of the function, with its text.
    #[error("it says: {0}")]
    Refused(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Gone,
            _ => Self::Socket(error),
        }
    }
}

/// Connection of a function process to a daemon that it serves.
#[derive(Debug)]
pub struct Served {
    pub rings: Rings,
    pub arena: Buffers,
    pub doorbell: OwnedFd,
    pub bell: OwnedFd,
}

/// Constructor of a function from the user's options, or the reason why there is none.
pub type Make<'a> = dyn FnMut(&Options) -> Result<Box<dyn Function>, String> + 'a;

/// Takes the Hello of a daemon that has connected, and answers it.
pub fn accept(socket: BorrowedFd<'_>, make: &mut Make<'_>) -> Result<(Served, Box<dyn Function>), Failure> {
    let mut bytes = vec![0; size_of::<Hello>() + OPTIONS_MAX];
    let (length, fds) = receive(socket, &mut bytes, Instant::now() + HELLO_LIMIT)?;
    let outcome = take(&bytes[..length], fds)
        .and_then(|(served, options)| Ok((served, make(&options).map_err(Failure::Refused)?)));
    let welcome = match &outcome {
        Ok((_, function)) => welcome(&function.properties()),
        Err(Failure::Refused(words)) => refusal(words),
        Err(failure) => refusal(&failure.to_string()),
    };
    send(socket, welcome.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map_err(io::Error::from)?;
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
    let map = |fd, bytes| SharedRegion::from_fd(fd, 0, usize::try_from(bytes).unwrap_or(usize::MAX));
    let rings = map(rings, hello.rings_bytes).ok().and_then(|region| Rings::open(region, VERSION));
    let rings = rings.ok_or(Failure::Nonsense("the memory it brought holds no rings"))?;
    let arena = Buffers::new(map(arena, hello.arena_bytes)?);
    let options = text.get(..hello.options as usize).map(String::from_utf8_lossy);
    let options = options.ok_or(Failure::Nonsense("its options end too soon"))?;
    Ok((Served { rings, arena, doorbell, bell }, Options::from_text(&options)))
}

fn welcome(properties: &Properties) -> Welcome {
    let Properties { interests, block_size, scratch, pool, transforms, size } = *properties;
    let mut known = [0; 8];
    known.iter_mut().zip(interests).for_each(|(code, interest)| *code = interest as u8);
    let (words, interests, transforms) = ([0; WORDS_MAX], known, transforms.into());
    let (magic, version, refused) = (MAGIC, VERSION, 0);
    Welcome { magic, version, refused, words, interests, block_size, scratch, transforms, pool, size }
}

fn refusal(why: &str) -> Welcome {
    let mut answer = Welcome { refused: 1, ..welcome(&Properties::NONE) };
    // A character that is cut in the middle is shown as such.
    let words = &why.as_bytes()[..why.len().min(WORDS_MAX)];
    answer.words[..words.len()].copy_from_slice(words);
    answer
}
