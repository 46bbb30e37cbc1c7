//! Rings of 64-byte entries in memory that two processes share.
//!
//! The other side is not trusted: an entry is copied once, an impossible tail is an error, and the values of
//! this side's own page only decide whether to signal.

use crate::abi::{ENTRIES_MAX, ENTRY_BYTES, Header, MAGIC, index};
use sluice_memory::doorbell::{self, SharedWord};
use sluice_memory::{PAGE_SIZE, SharedRegion};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Offsets of the pages of indices, and of the first ring; see [`abi`](crate::abi).
const DAEMON: usize = PAGE_SIZE;
const FUNCTION: usize = 2 * PAGE_SIZE;
const SUBMISSIONS: usize = 3 * PAGE_SIZE;

const WORDS: usize = ENTRY_BYTES / size_of::<u64>();

/// Memory of both rings.
#[derive(Clone, Debug)]
pub struct Rings {
    region: Arc<SharedRegion>,
    entries: u16,
}

impl Rings {
    /// Returns the bytes of two rings of so many entries; none if the number is not possible.
    pub fn bytes(entries: u32) -> Option<usize> {
        let possible = entries.is_power_of_two() && entries <= ENTRIES_MAX.into();
        possible.then(|| SUBMISSIONS + 2 * ring_bytes(entries))
    }

    /// Opens the rings of this version in this memory; none if it holds none.
    pub fn open(region: SharedRegion, version: u32) -> Option<Self> {
        let mut header = Header::default();
        if region.len() < size_of::<Header>() {
            return None;
        }
        region.read(0, header.as_mut_bytes());
        let known = header.magic == MAGIC && header.version == version;
        let fit = known && region.len() >= Self::bytes(header.entries)?;
        fit.then(|| Self { region: Arc::new(region), entries: header.entries as u16 })
    }

    pub fn region(&self) -> &SharedRegion {
        &self.region
    }

    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Returns the daemon's ends: it sends submissions and receives replies.
    pub fn daemon(&self) -> (Sender, Receiver) {
        ends(self.submissions(), self.replies())
    }

    /// Returns the function's ends: it receives submissions and sends replies.
    pub fn function(&self) -> (Sender, Receiver) {
        ends(self.replies(), self.submissions())
    }

    fn submissions(&self) -> Ring {
        let region = Arc::clone(&self.region);
        Ring { region, entries_at: SUBMISSIONS, entries: self.entries, sender: DAEMON, receiver: FUNCTION }
    }

    fn replies(&self) -> Ring {
        let entries_at = SUBMISSIONS + ring_bytes(self.entries.into());
        Ring { entries_at, sender: FUNCTION, receiver: DAEMON, ..self.submissions() }
    }
}

fn ends(out: Ring, back: Ring) -> (Sender, Receiver) {
    (Sender { ring: out, next: 0, published: 0 }, Receiver { ring: back, head: 0 })
}

fn ring_bytes(entries: u32) -> usize {
    (entries as usize * ENTRY_BYTES).next_multiple_of(PAGE_SIZE)
}

/// Part of a ring that both its ends share.
#[derive(Debug)]
struct Ring {
    region: Arc<SharedRegion>,
    /// Offset of the entries.
    entries_at: usize,
    entries: u16,
    /// Offsets of the pages of indices: of the side that writes entries, and of the side that reads them.
    sender: usize,
    receiver: usize,
}

impl Ring {
    fn tail(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.sender + index::TAIL)
    }

    fn event(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.receiver + index::EVENT)
    }

    fn head(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.receiver + index::HEAD)
    }

    fn entry(&self, number: u16) -> &[AtomicU64; WORDS] {
        self.region.words(self.entries_at + usize::from(number & (self.entries - 1)) * ENTRY_BYTES)
    }
}

/// End that writes entries.
#[derive(Debug)]
pub struct Sender {
    ring: Ring,
    next: u16,
    published: u16,
}

impl Sender {
    /// Returns the number of free entries, by the head of the other side. Version 1 has no head: its sender
    /// counts the entries that are out.
    #[inline]
    pub fn room(&self) -> u16 {
        let untaken = self.next.wrapping_sub(self.ring.head().read() as u16);
        // Zero if the head is impossible.
        self.ring.entries.saturating_sub(untaken)
    }

    /// Writes an entry, for which there must be [`room`](Self::room). The other side sees it after the next
    /// [`publish`](Self::publish).
    #[inline]
    pub fn push<E: IntoBytes + Immutable>(&mut self, entry: &E) {
        const { assert!(size_of::<E>() == ENTRY_BYTES) };
        let words = entry.as_bytes().as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        self.ring.entry(self.next).iter().zip(words).for_each(|(place, word)| place.store(word, Relaxed));
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes the entries that were written. Returns true if the other side sleeps and must be signalled.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        doorbell::publish(&self.ring.tail(), &self.ring.event(), self.next)
    }
}

/// End that reads entries.
#[derive(Debug)]
pub struct Receiver {
    ring: Ring,
    head: u16,
}

/// Impossible tail of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Receiver {
    /// Returns the number of entries that wait. Shows the other side which entries are free again.
    #[inline]
    pub fn waiting(&self) -> Result<u16, Broken> {
        self.ring.head().write(self.head.into());
        // An index has 16 bits; the rest of the word is ignored.
        let waiting = (self.ring.tail().read() as u16).wrapping_sub(self.head);
        if waiting > self.ring.entries { Err(Broken) } else { Ok(waiting) }
    }

    /// Takes an entry that waits: a private copy, which the other side cannot change any more.
    #[inline]
    pub fn take<E: FromBytes>(&mut self) -> E {
        let words = self.ring.entry(self.head).each_ref().map(|place| place.load(Relaxed));
        self.head = self.head.wrapping_add(1);
        E::read_from_bytes(words.as_bytes()).expect("an entry has 64 bytes")
    }

    /// Requests a signal for the next entry, before a sleep. [`waiting`](Self::waiting) must then be called
    /// once more.
    pub fn request_wakeup(&self) {
        doorbell::request_rings([(self.ring.event(), u32::from(self.head))]);
    }

    /// Cancels the request for a signal, while this side is awake.
    pub fn cancel_wakeup(&self) {
        doorbell::suppress_rings(&self.ring.event(), u32::from(self.head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Reply, Submission, VERSION};

    fn rings(entries: u32) -> (Rings, Rings) {
        let region = SharedRegion::new("rings", Rings::bytes(entries).expect("a size")).expect("memory");
        let header = Header { magic: MAGIC, version: VERSION, entries, ..Header::default() };
        region.write(0, header.as_bytes());
        let fd = region.fd().try_clone_to_owned().expect("a descriptor");
        let theirs = SharedRegion::from_fd(fd, 0, region.len()).expect("memory");
        let [ours, theirs] = [region, theirs].map(|it| Rings::open(it, VERSION).expect("they are rings"));
        assert_eq!(u32::from(theirs.entries()), entries);
        (ours, theirs)
    }

    #[test]
    fn rings_follow_each_other() {
        assert_eq!(Rings::bytes(256), Some(3 * 4096 + 2 * 256 * 64));
        assert_eq!(rings(256).0.replies().entries_at, 3 * 4096 + 256 * 64);
        assert_eq!(Rings::bytes(1), Some(5 * 4096));
        assert!([0, 3, 1 << 16, 1 << 20, u32::MAX].iter().all(|entries| Rings::bytes(*entries).is_none()));
    }

    #[test]
    fn entries_arrive_in_order_across_every_wrap() {
        let (ours, theirs) = rings(4);
        let (mut out, mut back) = ours.daemon();
        let (mut reply, mut requests) = theirs.function();
        requests.cancel_wakeup();
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
        requests.cancel_wakeup();
        assert!(!send(2) && !send(0));
        for _ in 0..2 {
            let _: Submission = requests.take();
        }
        requests.request_wakeup();
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
            assert_eq!(out.room(), 0, "they were taken, and the head is not published");
            let left = requests.waiting().expect("they make sense");
            assert_eq!(out.room(), 4 - left);
            (0..left).for_each(|_| assert_eq!(requests.take::<Submission>().tag, 0));
            assert_eq!((requests.waiting(), out.room()), (Ok(0), 4));
        }
        let head = theirs.region().atomic_u32(FUNCTION + index::HEAD);
        for strange in [u32::MAX, 0x7fff, 1 << 31] {
            head.store(strange, Relaxed);
            assert!(out.room() <= 4);
        }
    }

    #[test]
    fn a_tail_that_cannot_be_is_told_from_one_that_can() {
        let (ours, theirs) = rings(16);
        let (_, back) = ours.daemon();
        let tail = theirs.region().atomic_u32(FUNCTION + index::TAIL);
        for (value, waiting) in [(16, Ok(16)), (17, Err(Broken)), (u32::MAX, Err(Broken)), (1 << 16, Ok(0))] {
            tail.store(value, Relaxed);
            assert_eq!(back.waiting(), waiting, "{value}");
        }
    }

    #[test]
    fn memory_without_rings_is_refused() {
        let region = SharedRegion::new("other", 1 << 16).expect("memory");
        let open = |length| {
            let fd = region.fd().try_clone_to_owned().expect("a descriptor");
            Rings::open(SharedRegion::from_fd(fd, 0, length).expect("memory"), VERSION).is_some()
        };
        assert!(!open(1 << 16) && !open(8));
        for (version, entries) in [(VERSION + 1, 8), (VERSION, 7), (VERSION, 0), (VERSION, 1 << 15)] {
            let header = Header { magic: MAGIC, version, entries, ..Header::default() };
            region.write(0, header.as_bytes());
            assert!(!open(1 << 16), "{header:?}");
        }
        let header = Header { magic: MAGIC, version: VERSION, entries: 8, ..Header::default() };
        region.write(0, header.as_bytes());
        assert!(open(1 << 16) && !open(4096));
    }
}
