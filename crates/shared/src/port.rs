//! A user's end of a shared object.

use crate::Unit;
use crate::message::{Answer, Request};
use crate::ports::{HomeSide, PortNumber, PortSide};
use crate::ring::{Receiver, Sender};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most units that one [request](Port::request) is for.
pub const NEED_MAX: usize = 64;

/// Units that a port takes in advance.
const CREDIT: usize = 32;

/// Messages of a port that wait for the home.
pub(crate) const REQUESTS: usize = 256;

/// Messages of the home that wait for a port. At most one request is under way, so its whole answer has room.
pub(crate) const ANSWERS: usize = 128;

const _: () = assert!(NEED_MAX + CREDIT < ANSWERS);

/// Request of a port that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    None,
    /// Credit in advance alone.
    Credit,
    /// Units for waiting commands.
    Need,
}

/// A user's end of a shared object: its rings, and units taken in advance. The port is used by one thread at a time
/// and moves with its drive. Dropping the port closes it.
#[derive(Debug)]
pub struct Port {
    number: PortNumber,
    outgoing: Sender,
    incoming: Receiver,
    side: Arc<PortSide>,
    home: Arc<HomeSide>,
    credit: Vec<Unit>,
    /// Units that the port takes in advance. More are requested when a quarter is left.
    advance: usize,
    pending: Pending,
    /// A unit was taken since the last request.
    taken: bool,
    /// The home may recall the credit. Only then the port keeps units that are given back.
    keeps: bool,
    /// Latest round of recalls that was seen, and that was answered.
    round: u32,
    answered: u32,
    /// Notes whose acknowledgement was seen.
    noted: u64,
    notes_failed: bool,
    /// Number of the last call that was seen.
    calls: u32,
}

/// Contents of a [`receive`](Port::receive).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Messages received.
    pub messages: usize,
    /// The request has ended, and the object has too few units for its need.
    pub refused: bool,
}

impl Port {
    pub(crate) fn new(
        number: PortNumber,
        outgoing: Sender,
        incoming: Receiver,
        side: Arc<PortSide>,
        home: Arc<HomeSide>,
    ) -> Self {
        let credit = Vec::with_capacity(ANSWERS + CREDIT);
        let (advance, pending, taken, keeps, round, answered) = (CREDIT, Pending::None, false, false, 0, 0);
        let (noted, notes_failed, calls) = (0, false, 0);
        Self {
            number,
            outgoing,
            incoming,
            side,
            home,
            credit,
            advance,
            pending,
            taken,
            keeps,
            round,
            answered,
            noted,
            notes_failed,
            calls,
        }
    }

    /// Makes the port take no units in advance: each need is a request.
    #[must_use]
    pub fn without_credit(mut self) -> Self {
        self.advance = 0;
        self
    }

    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.number
    }

    /// Returns the number of units that can be taken now.
    #[inline]
    #[must_use]
    pub fn credit(&self) -> usize {
        self.credit.len()
    }

    /// Takes a unit from the credit.
    #[inline]
    pub fn take(&mut self) -> Option<Unit> {
        self.taken = true;
        self.credit.pop()
    }

    /// Returns whether a request is under way.
    #[must_use]
    pub fn is_requesting(&self) -> bool {
        self.pending != Pending::None
    }

    /// Requests credit, so that at least `need` units can be taken, and further ones in advance. The answer arrives in
    /// a later [`receive`](Self::receive). Does nothing while a request is under way, or if the ring has no room: the
    /// caller requests again in its next turn. `need` is at most [`NEED_MAX`].
    pub fn request(&mut self, need: usize) {
        if self.is_requesting() {
            return;
        }
        let pending = if need > 0 { Pending::Need } else { Pending::Credit };
        let need = need.min(NEED_MAX).saturating_sub(self.credit.len());
        let extra = self.advance.saturating_sub(self.credit.len());
        if self.outgoing.push(Request::Take { need: need as u32, extra: extra as u32 }.words()) {
            self.pending = pending;
            self.taken = false;
        }
    }

    /// Requests more credit if little is left after units were taken. An object without free units is not requested
    /// again and again.
    #[inline]
    pub fn refill(&mut self) {
        if self.taken && self.credit.len() < self.advance / 4 {
            self.request(0);
        }
    }

    /// Gives a unit back: to the credit, or to the home.
    ///
    /// # Errors
    /// The ring has no room; the caller keeps the unit until a later turn.
    pub fn give_back(&mut self, unit: Unit) -> Result<(), Unit> {
        if self.keeps && self.credit.len() < self.advance {
            self.credit.push(unit);
            return Ok(());
        }
        if self.outgoing.push(Request::GiveBack(unit).words()) { Ok(()) } else { Err(unit) }
    }

    /// Sends a note to the home, in order with the units that are given back.
    ///
    /// # Errors
    /// The ring has no room; the caller sends the note in a later turn.
    pub fn note(&mut self, word: u64) -> Result<(), u64> {
        if self.outgoing.push(Request::Note(word).words()) { Ok(()) } else { Err(word) }
    }

    /// Returns the number of notes that were acknowledged since the port was made, as the last
    /// [`receive`](Self::receive) has seen.
    #[must_use]
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns whether notes have failed: none after the acknowledged ones is made durable.
    #[must_use]
    pub fn notes_failed(&self) -> bool {
        self.notes_failed
    }

    /// Returns the number of the last [call](crate::Home::call) that a [`receive`](Self::receive) has seen.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Gives all credit back, as far as the ring has room. For a drive that is idle.
    pub fn give_back_credit(&mut self) {
        while let Some(unit) = self.credit.last()
            && self.outgoing.push(Request::GiveBack(*unit).words())
        {
            self.credit.pop();
        }
    }

    /// Receives the answers of the home. Called in each turn; the waiting commands follow, and then
    /// [`finish`](Self::finish).
    pub fn receive(&mut self) -> Received {
        // Read before the answers: units that were granted before the recall are among these.
        self.round = self.side.recall.load(Ordering::Acquire);
        let mut received = Received::default();
        self.notes_failed = self.side.notes_failed.load(Ordering::Acquire);
        let calls = self.side.calls.load(Ordering::Acquire);
        received.messages += usize::from(std::mem::replace(&mut self.calls, calls) != calls);
        let noted = self.side.noted.load(Ordering::Acquire);
        received.messages += usize::from(std::mem::replace(&mut self.noted, noted) != noted);
        while let Some(words) = self.incoming.pop() {
            received.messages += 1;
            match Answer::from_words(words) {
                Answer::Grant(unit) => {
                    self.keeps = true;
                    self.credit.push(unit);
                }
                Answer::Settled { refused } => {
                    self.pending = Pending::None;
                    received.refused = refused;
                }
            }
        }
        self.incoming.free();
        received
    }

    /// Answers a recall, and sends all messages of the turn. Returns whether there were some.
    #[inline]
    pub fn finish(&mut self) -> bool {
        if self.round != self.answered {
            self.answer_recall();
        }
        let some = self.outgoing.publish();
        if some {
            self.home.signal(self.number);
        }
        some
    }

    /// Returns whether the home has sent something, or a recall is not answered yet.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.incoming.has_some()
            || self.side.recall.load(Ordering::Acquire) != self.answered
            || self.side.noted.load(Ordering::Acquire) != self.noted
            || self.side.notes_failed.load(Ordering::Acquire) != self.notes_failed
            || self.side.calls.load(Ordering::Acquire) != self.calls
    }

    /// Gives the credit back, unless waiting commands need it. Continues in the next turn if the ring has no room.
    #[cold]
    fn answer_recall(&mut self) {
        let kept = self.pending == Pending::Need;
        if !kept {
            self.give_back_credit();
            if !self.credit.is_empty() {
                return;
            }
        }
        if self.outgoing.push(Request::Recalled { round: self.round, kept }.words()) {
            self.answered = self.round;
            self.keeps = kept;
        }
    }

    /// Announces that the user sleeps, and is woken through the [descriptor](AsFd). Returns true if there is work
    /// after all.
    pub fn arm(&mut self) -> bool {
        self.side.notifier.arm(|| self.has_news())
    }

    /// Ends the announcement.
    pub fn disarm(&mut self) {
        self.side.notifier.disarm();
    }

    #[cfg(test)]
    pub(crate) fn was_notified(&self) -> bool {
        self.side.notifier.clear()
    }

    #[cfg(test)]
    pub(crate) fn credit_units(&self) -> &[Unit] {
        &self.credit
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.side.notifier.as_fd()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Answers that were not read are units of this port, which the home reclaims with the others.
        self.give_back_credit();
        self.outgoing.publish();
        self.side.closed.store(true, Ordering::Release);
        self.home.signal(self.number);
    }
}
