//! A bounded ring from one thread to another, without locks and without `unsafe`.
//!
//! The entries are atomic words, so that a mistake in the order of accesses is a wrong value and no undefined
//! behaviour. The sender publishes a batch of entries with one store, and the receiver frees a batch with another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A message.
pub(crate) type Words = [u64; 2];

/// A value on cache lines of its own: the other side writes the neighbouring lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

#[derive(Debug)]
struct Ring {
    entries: Box<[[AtomicU64; 2]]>,
    /// Number of entries that were published; written by the sender.
    tail: Apart,
    /// Number of entries that were freed; written by the receiver.
    head: Apart,
}

impl Ring {
    fn entry(&self, number: u64) -> &[AtomicU64; 2] {
        &self.entries[number as usize & (self.entries.len() - 1)]
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    ring: Arc<Ring>,
    /// Number of entries that were written.
    tail: u64,
    published: u64,
    /// The receiver's head when it was last read.
    head: u64,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Receiver {
    ring: Arc<Ring>,
    head: u64,
    freed: u64,
    /// The sender's tail when it was last read.
    tail: u64,
}

/// Creates a ring of `entries`, rounded up to a power of two.
pub(crate) fn ring(entries: usize) -> (Sender, Receiver) {
    let entries = (0..entries.next_power_of_two()).map(|_| Default::default()).collect();
    let ring = Arc::new(Ring { entries, tail: Apart::default(), head: Apart::default() });
    let sender = Sender { ring: Arc::clone(&ring), tail: 0, published: 0, head: 0 };
    (sender, Receiver { ring, head: 0, freed: 0, tail: 0 })
}

impl Sender {
    /// Writes an entry; returns false if the ring is full. The receiver sees the entry after the next
    /// [`publish`](Self::publish).
    #[must_use]
    pub(crate) fn push(&mut self, words: Words) -> bool {
        let entries = self.ring.entries.len() as u64;
        if self.tail - self.head == entries {
            // Pairs with the store in `free`: the receiver has read the entry.
            self.head = self.ring.head.0.load(Ordering::Acquire);
            if self.tail - self.head == entries {
                return false;
            }
        }
        let entry = self.ring.entry(self.tail);
        entry.iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
        self.tail += 1;
        true
    }

    /// Publishes all entries; returns whether there were new ones.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let some = self.tail != self.published;
        if some {
            // Pairs with the load in `pop`: the entries were written before.
            self.ring.tail.0.store(self.tail, Ordering::Release);
            self.published = self.tail;
        }
        some
    }
}

impl Receiver {
    /// Returns whether an entry waits.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.head != self.tail || self.ring.tail.0.load(Ordering::Acquire) != self.head
    }

    /// Takes the next entry, whose place is free after the next [`free`](Self::free).
    pub(crate) fn pop(&mut self) -> Option<Words> {
        if self.head == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
            if self.head == self.tail {
                return None;
            }
        }
        let words = self.ring.entry(self.head).each_ref().map(|cell| cell.load(Ordering::Relaxed));
        self.head += 1;
        Some(words)
    }

    /// Gives the places of all taken entries to the sender.
    pub(crate) fn free(&mut self) {
        if self.freed != self.head {
            self.ring.head.0.store(self.head, Ordering::Release);
            self.freed = self.head;
        }
    }
}
