//! The classifier's verdict: a word of 64 bits, and its decoded form.
//!
//! | bits | field | |
//! |---|---|---|
//! | 0 to 6 | start | legs to start; leg n goes down path n |
//! | 7 | | zero |
//! | 8 to 14 | events | legs at whose end to call again |
//! | 15 | event | call again before completion |
//! | 16 to 31 | cookie | handed back at the next hook |
//! | 32 to 46 | status | the status of rule 1 |
//! | 47 | | zero |
//! | 48 to 51 | rule | when the command is finished, below |
//! | 52 to 55 | leg | which leg's status wins |
//! | 56 to 63 | | zero |
//!
//! | rule | | finished | with |
//! |---|---|---|---|
//! | 0 | hold | not yet: a later verdict decides | |
//! | 1 | now | at once | the status |
//! | 2 | leg | when the leg is done | its status |
//! | 3 | all | when all legs are done | the leg's status; the first error, if the leg is 15 |
//! | 4 | any good | when a leg is done that is good; with the last, if none is | success; else as rule 3 |
//!
//! A verdict replaces all fields of earlier verdicts of the command: events, rule and cookie. Rules consider
//! every leg that the command has started, whichever verdict started it; the last end of a repeated leg
//! counts. The first error is that of the lowest-numbered leg that failed, so that it does not depend on
//! which was faster.
//!
//! **Finished is not completed.** Legs that are still in flight may access the host's memory. So a
//! command that is finished, be it `now`, is completed only when the last of them is back. Their results then
//! change nothing, with one exception: a success is none if they did not transfer all of the command.
//!
//! A field that the rule has no use for is zero. A word of zeroes is impossible: it holds a command for which
//! no event will occur.

use crate::ProgramError;
use sluice_nvme::Status;
use std::fmt;

/// A way to send a command; it goes down the path of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leg(u8);

impl Leg {
    /// Number of legs.
    pub const COUNT: usize = 7;
    /// Leg down the first path: through the whole stack.
    pub const FIRST: Leg = Leg(0);

    /// Returns the leg of this number; none if there is no such leg.
    pub const fn new(number: u8) -> Option<Leg> {
        if (number as usize) < Self::COUNT { Some(Leg(number)) } else { None }
    }

    pub const fn number(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of legs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Legs(u8);

impl Legs {
    pub const NONE: Legs = Legs(0);
    const BITS: u8 = (1 << Leg::COUNT) - 1;

    pub const fn of(leg: Leg) -> Self {
        Self(1 << leg.0)
    }

    /// Returns this set with one more leg.
    pub const fn and(self, leg: Leg) -> Self {
        Self(self.0 | 1 << leg.0)
    }

    /// Returns a bitmap: bit n for leg n.
    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn contains(self, leg: Leg) -> bool {
        self.0 & 1 << leg.0 != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) const fn union(self, other: Legs) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn common(self, other: Legs) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn without(self, other: Legs) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set of the first `count` legs.
    pub(crate) const fn first(count: usize) -> Self {
        Self(if count < Leg::COUNT { (1 << count) - 1 } else { Self::BITS })
    }

    /// Returns the legs in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Leg> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let leg = Leg::new(bits.trailing_zeros() as u8)?;
            bits &= bits - 1;
            Some(leg)
        })
    }
}

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Leg::number)).finish()
    }
}

/// Leg whose status a command has that finishes with several legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Winner {
    /// The first leg that failed; success if none did.
    FirstError,
    Leg(Leg),
}

/// Rule by which a command is finished, and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Hold,
    Now(Status),
    Leg(Leg),
    All(Winner),
    AnyGood(Winner),
}

/// Decoded verdict. The word was well-formed; whether the decision is possible depends on the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub start: Legs,
    /// Legs at whose end the program is called again.
    pub events: Legs,
    pub before_completion: bool,
    pub cookie: u16,
    pub finish: Finish,
}

/// Encoded verdict. Not to be trusted before [`decode`](Self::decode).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict(pub u64);

const EVENTS: u32 = 8;
const BEFORE_COMPLETION: u64 = 1 << 15;
const COOKIE: u32 = 16;
const COOKIES: u64 = 0xffff << COOKIE;
const STATUS: u32 = 32;
const STATUS_BITS: u64 = 0x7fff;
const RULE: u32 = 48;
const LEG: u32 = 52;
const NIBBLE: u64 = 0xf;
const FIRST_ERROR: u8 = 15;
const UNUSED: u64 = 0xff00_8000_0000_0080;

const HOLD: u64 = 0;
const NOW: u64 = 1;
const ONE: u64 = 2;
const ALL: u64 = 3;
const ANY_GOOD: u64 = 4;

impl Verdict {
    /// Starts the leg; the command is finished when the leg is.
    #[inline]
    pub const fn send(leg: Leg) -> Self {
        Self::finish_with(leg).and_start(Legs::of(leg))
    }

    /// Finishes the command now. Bit 15 of a status is no part of it.
    #[inline]
    pub const fn complete(status: Status) -> Self {
        Self(NOW << RULE | (status.0 as u64 & STATUS_BITS) << STATUS)
    }

    /// Holds the command until a later verdict; needs the event of a leg.
    #[inline]
    pub const fn hold() -> Self {
        Self(HOLD << RULE)
    }

    /// Finishes the command when this leg is done, which this verdict or an earlier one started.
    #[inline]
    pub const fn finish_with(leg: Leg) -> Self {
        Self(ONE << RULE | (leg.0 as u64) << LEG)
    }

    /// Finishes the command when all legs are done.
    #[inline]
    pub const fn all(winner: Winner) -> Self {
        Self(ALL << RULE | winner.bits() << LEG)
    }

    /// Finishes the command when a leg is good, or when all have failed.
    #[inline]
    pub const fn any_good(winner: Winner) -> Self {
        Self(ANY_GOOD << RULE | winner.bits() << LEG)
    }

    #[inline]
    pub const fn and_start(self, legs: Legs) -> Self {
        Self(self.0 | legs.0 as u64)
    }

    /// Requests a call when one of these legs is done, unless the command is finished by then.
    #[inline]
    pub const fn and_call_at(self, legs: Legs) -> Self {
        Self(self.0 | (legs.0 as u64) << EVENTS)
    }

    #[inline]
    pub const fn and_call_before_completion(self) -> Self {
        Self(self.0 | BEFORE_COMPLETION)
    }

    /// Sets the cookie. To be called once.
    #[inline]
    pub const fn with_cookie(self, cookie: u16) -> Self {
        Self(self.0 | (cookie as u64) << COOKIE)
    }

    /// Returns the leg, if the verdict starts one leg, finishes with it, and requests no hook. There may be
    /// no such path.
    #[inline]
    pub(crate) fn only_leg(self) -> Option<Leg> {
        let leg = Leg::new((self.0 >> LEG & NIBBLE) as u8)?;
        let is_all = self.0 & !COOKIES == Self::send(leg).0;
        is_all.then_some(leg)
    }

    /// Decodes the word, if it has a meaning.
    #[inline]
    pub fn decode(self) -> Result<Decision, ProgramError> {
        if self.0 & UNUSED != 0 {
            return Err(ProgramError::UnknownBits);
        }
        Ok(Decision {
            start: Legs(self.0 as u8),
            events: Legs((self.0 >> EVENTS) as u8 & Legs::BITS),
            before_completion: self.0 & BEFORE_COMPLETION != 0,
            cookie: (self.0 >> COOKIE) as u16,
            finish: self.finish().ok_or(ProgramError::UnknownBits)?,
        })
    }

    #[inline]
    fn finish(self) -> Option<Finish> {
        let status = Status((self.0 >> STATUS & STATUS_BITS) as u16);
        let number = (self.0 >> LEG & NIBBLE) as u8;
        match (self.0 >> RULE & NIBBLE, status, number) {
            (HOLD, Status(0), 0) => Some(Finish::Hold),
            (NOW, status, 0) => Some(Finish::Now(status)),
            (ONE, Status(0), number) => Leg::new(number).map(Finish::Leg),
            (ALL, Status(0), number) => Winner::new(number).map(Finish::All),
            (ANY_GOOD, Status(0), number) => Winner::new(number).map(Finish::AnyGood),
            _ => None,
        }
    }
}

impl Winner {
    const fn bits(self) -> u64 {
        match self {
            Self::FirstError => FIRST_ERROR as u64,
            Self::Leg(leg) => leg.0 as u64,
        }
    }

    fn new(number: u8) -> Option<Self> {
        match number {
            FIRST_ERROR => Some(Self::FirstError),
            number => Leg::new(number).map(Self::Leg),
        }
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decode() {
            Ok(decision) => decision.fmt(f),
            Err(_) => write!(f, "Verdict({:#018x})", self.0),
        }
    }
}
