//! Rings of 64-byte entries in memory that two processes share.
//!
//! Nothing here trusts the other side: an entry is copied once, a tail that cannot be is an error, and
//! what is read of our own page is only ever used to decide whether to ring.

use crate::abi::{ENTRY_BYTES, Header, Indices, Layout, MAGIC, VERSION};
use sluice_memory::SharedRegion;
use sluice_memory::doorbell::{self, SharedWord};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

const WORDS: usize = ENTRY_BYTES / size_of::<u64>();

/// The memory of both rings.
#[derive(Clone, Debug)]
pub struct Rings {
    region: Arc<SharedRegion>,
    layout: Layout,
}

/// The memory is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the memory that was handed over holds no rings of version {VERSION}")
    }
}

impl std::error::Error for Foreign {}

impl Rings {
    /// The daemon's: makes them, with this header's sizes.
    pub fn new(header: Header) -> io::Result<Self> {
        let layout = Layout::new(header.entries).ok_or(io::ErrorKind::InvalidInput)?;
        let region = SharedRegion::new("sluice-uif-rings", layout.bytes())?;
        region.write(0, Header { magic: MAGIC, ..header }.as_bytes());
        Ok(Self { region: Arc::new(region), layout })
    }

    /// The function's: takes those that it was handed.
    pub fn open(fd: OwnedFd, length: usize) -> Result<(Self, Header), Foreign> {
        let region = SharedRegion::from_fd(fd, 0, length).map_err(|_| Foreign)?;
        let mut header = Header::default();
        if region.len() < size_of::<Header>() {
            return Err(Foreign);
        }
        region.read(0, header.as_mut_bytes());
        let layout = Layout::new(header.entries).ok_or(Foreign)?;
        if header.magic != MAGIC || header.version != VERSION || region.len() < layout.bytes() {
            return Err(Foreign);
        }
        Ok((Self { region: Arc::new(region), layout }, header))
    }

    pub fn region(&self) -> &SharedRegion {
        &self.region
    }

    pub fn entries(&self) -> u16 {
        self.layout.entries()
    }

    /// The daemon's ends: it sends submissions and receives replies.
    pub fn daemon(&self) -> (Sender, Receiver) {
        let pages = (Layout::DAEMON, Layout::FUNCTION);
        self.ends(pages, Layout::SUBMISSIONS, self.layout.replies())
    }

    /// The function's ends: it receives submissions and sends replies.
    pub fn function(&self) -> (Sender, Receiver) {
        let pages = (Layout::FUNCTION, Layout::DAEMON);
        self.ends(pages, self.layout.replies(), Layout::SUBMISSIONS)
    }

    fn ends(&self, (ours, theirs): (usize, usize), out: usize, in_: usize) -> (Sender, Receiver) {
        let half = |ring, sender, receiver| Half {
            region: Arc::clone(&self.region),
            ring,
            mask: self.layout.entries() - 1,
            sender,
            receiver,
        };
        let sender = Sender { half: half(out, ours, theirs), next: 0, published: 0 };
        (sender, Receiver { half: half(in_, theirs, ours), head: 0 })
    }
}

/// What both ends of a ring know of it.
#[derive(Debug)]
struct Half {
    region: Arc<SharedRegion>,
    ring: usize,
    mask: u16,
    /// The pages of indices of who writes entries, and of who reads them.
    sender: usize,
    receiver: usize,
}

impl Half {
    #[inline]
    fn entries(&self) -> u16 {
        self.mask + 1
    }

    #[inline]
    fn tail(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.sender + Indices::TAIL)
    }

    #[inline]
    fn event(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.receiver + Indices::EVENT)
    }

    #[inline]
    fn head(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.receiver + Indices::HEAD)
    }

    #[inline]
    fn entry(&self, number: u16) -> &[std::sync::atomic::AtomicU64; WORDS] {
        self.region.words(self.ring + usize::from(number & self.mask) * ENTRY_BYTES)
    }
}

/// The end that writes entries.
#[derive(Debug)]
pub struct Sender {
    half: Half,
    next: u16,
    published: u16,
}

impl Sender {
    /// How many entries there are places for, by what the other side says it has taken. One of version 1
    /// does not say: who sends to it counts what is out.
    #[inline]
    pub fn room(&self) -> u16 {
        let untaken = self.next.wrapping_sub(self.half.head().read() as u16);
        // None, if that cannot be.
        self.half.entries().saturating_sub(untaken)
    }

    /// Writes an entry, for which there is [`room`](Self::room). The other side sees it with the next
    /// [`publish`](Self::publish).
    #[inline]
    pub fn push(&mut self, entry: &impl Entry) {
        let words = entry.words();
        let places = self.half.entry(self.next);
        (0..WORDS).for_each(|n| places[n].store(words[n], Relaxed));
        self.next = self.next.wrapping_add(1);
    }

    /// Shows what was written. True if the other side sleeps and has to be rung for.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        doorbell::publish(&self.half.tail(), &self.half.event(), self.next)
    }
}

/// The end that reads entries.
#[derive(Debug)]
pub struct Receiver {
    half: Half,
    head: u16,
}

/// The other side's tail is where it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Receiver {
    /// How many entries wait. Shows the other side which places are free again.
    #[inline]
    pub fn waiting(&self) -> Result<u16, Broken> {
        self.half.head().write(self.head.into());
        // An index has 16 bits; what else is in the word is nobody's business.
        let waiting = (self.half.tail().read() as u16).wrapping_sub(self.head);
        if waiting > self.half.entries() { Err(Broken) } else { Ok(waiting) }
    }

    /// Takes an entry that waits: a copy, which nobody can change any more.
    #[inline]
    pub fn take<E: Entry>(&mut self) -> E {
        let places = self.half.entry(self.head);
        self.head = self.head.wrapping_add(1);
        E::from_words(std::array::from_fn(|n| places[n].load(Relaxed)))
    }

    /// About to sleep: asks to be rung for the next entry. [`waiting`](Self::waiting) must then be asked
    /// once more.
    pub fn ask(&self) {
        doorbell::ask([(self.half.event(), u32::from(self.head))]);
    }

    /// Awake: nobody need ring.
    pub fn excuse(&self) {
        doorbell::excuse(&self.half.event(), u32::from(self.head));
    }
}

/// 64 bytes that go through a ring.
pub trait Entry: FromBytes + IntoBytes + zerocopy::Immutable {
    fn words(&self) -> [u64; WORDS];
    fn from_words(words: [u64; WORDS]) -> Self;
}

impl Entry for crate::abi::Submission {
    #[inline]
    fn words(&self) -> [u64; WORDS] {
        zerocopy::transmute!(*self)
    }

    #[inline]
    fn from_words(words: [u64; WORDS]) -> Self {
        zerocopy::transmute!(words)
    }
}

impl Entry for crate::abi::Reply {
    #[inline]
    fn words(&self) -> [u64; WORDS] {
        zerocopy::transmute!(*self)
    }

    #[inline]
    fn from_words(words: [u64; WORDS]) -> Self {
        zerocopy::transmute!(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Reply, Submission};

    fn rings(entries: u32) -> (Rings, Rings) {
        let ours = Rings::new(Header { version: VERSION, entries, ..Header::default() }).expect("memory");
        let fd = ours.region().fd().try_clone_to_owned().expect("a descriptor");
        let (theirs, header) = Rings::open(fd, ours.region().len()).expect("they are rings");
        assert_eq!((header.magic, header.entries), (MAGIC, entries));
        (ours, theirs)
    }

    #[test]
    fn entries_arrive_in_order_across_every_wrap() {
        let (ours, theirs) = rings(4);
        let (mut out, mut back) = ours.daemon();
        let (mut reply, mut requests) = theirs.function();
        requests.excuse();
        // Further than a 16-bit tail counts.
        for tag in 0..70_000u64 {
            out.push(&Submission { tag, length: 3 * tag, ..Submission::default() });
            let _ = out.publish();
            assert_eq!(requests.waiting(), Ok(1));
            let entry: Submission = requests.take();
            assert_eq!((entry.tag, entry.length), (tag, 3 * tag));
            reply.push(&Reply { tag, ..Reply::default() });
            let _ = reply.publish();
            assert_eq!(back.waiting(), Ok(1));
            assert_eq!(back.take::<Reply>().tag, tag);
        }
        assert_eq!((requests.waiting(), back.waiting()), (Ok(0), Ok(0)));
    }

    #[test]
    fn who_sleeps_is_rung_for_once_and_who_is_awake_is_not() {
        let (ours, theirs) = rings(8);
        let (mut out, _) = ours.daemon();
        let (_, mut requests) = theirs.function();
        let mut send = |count: usize| {
            (0..count).for_each(|_| out.push(&Submission::default()));
            out.publish()
        };
        requests.excuse();
        assert!(!send(2) && !send(0));
        for _ in 0..2 {
            let _: Submission = requests.take();
        }
        requests.ask();
        assert_eq!(requests.waiting(), Ok(0));
        assert!(send(3), "it sleeps");
        assert!(!send(1), "it was rung for already");
        assert_eq!(requests.waiting(), Ok(4));
    }

    #[test]
    fn nobody_writes_over_what_was_not_taken() {
        let (ours, theirs) = rings(4);
        let ((mut out, _), (_, mut requests)) = (ours.daemon(), theirs.function());
        for round in 0..40_000u64 {
            for left in (0..4).rev() {
                out.push(&Submission::default());
                assert_eq!(out.room(), left);
            }
            let _ = out.publish();
            assert_eq!(requests.waiting(), Ok(4));
            let mut take = |count| (0..count).for_each(|_| assert_eq!(requests.take::<Submission>().tag, 0));
            take(round % 4 + 1);
            assert_eq!(out.room(), 0, "they were taken, and nobody said so");
            let left = requests.waiting().expect("they make sense");
            assert_eq!(out.room(), 4 - left);
            (0..left).for_each(|_| assert_eq!(requests.take::<Submission>().tag, 0));
            assert_eq!((requests.waiting(), out.room()), (Ok(0), 4));
        }
        let head = theirs.region().atomic_u32(Layout::FUNCTION + Indices::HEAD);
        for strange in [u32::MAX, 0x7fff, 1 << 31] {
            head.store(strange, Relaxed);
            assert!(out.room() <= 4);
        }
    }

    #[test]
    fn a_tail_that_cannot_be_is_told_from_one_that_can() {
        let (ours, theirs) = rings(16);
        let (_, back) = ours.daemon();
        let tail = theirs.region().atomic_u32(Layout::FUNCTION + Indices::TAIL);
        for (value, waiting) in [(16, Ok(16)), (17, Err(Broken)), (u32::MAX, Err(Broken)), (1 << 16, Ok(0))] {
            tail.store(value, Relaxed);
            assert_eq!(back.waiting(), waiting, "{value}");
        }
    }

    #[test]
    fn memory_without_rings_is_refused() {
        let region = SharedRegion::new("other", 1 << 16).expect("memory");
        let open =
            |length| Rings::open(region.fd().try_clone_to_owned().expect("a descriptor"), length).err();
        assert_eq!(open(1 << 16), Some(Foreign));
        for (version, entries) in [(VERSION + 1, 8), (VERSION, 7), (VERSION, 0), (VERSION, 1 << 15)] {
            let header = Header { magic: MAGIC, version, entries, ..Header::default() };
            region.write(0, header.as_bytes());
            assert_eq!(open(1 << 16), Some(Foreign), "{header:?}");
        }
        region
            .write(0, Header { magic: MAGIC, version: VERSION, entries: 8, ..Header::default() }.as_bytes());
        assert_eq!((open(1 << 16), open(4096), open(1 << 17)), (None, Some(Foreign), Some(Foreign)));
    }
}
