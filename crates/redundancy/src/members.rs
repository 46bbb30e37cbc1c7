//! Subsets of the members of a set.

use std::fmt;

/// Maximum number of members in a set.
pub const MEMBERS_MAX: usize = 8;

/// Some members of a set, as a bit mask.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Members(pub(crate) u8);

impl Members {
    pub const NONE: Self = Self(0);

    /// Returns members 0 to `count`, itself not included.
    pub fn first(count: usize) -> Self {
        Self(((1u16 << count.min(MEMBERS_MAX)) - 1) as u8)
    }

    /// Returns one member; none if the number is out of range.
    pub fn one(member: usize) -> Self {
        Self(if member < MEMBERS_MAX { 1 << member } else { 0 })
    }

    pub fn contains(self, member: usize) -> bool {
        self.0 & Self::one(member).0 != 0
    }

    /// Returns whether all of `others` are among these.
    pub fn covers(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the lowest member.
    pub fn lowest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    #[must_use]
    pub fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    #[must_use]
    pub fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MEMBERS_MAX).filter(move |member| self.contains(*member))
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
