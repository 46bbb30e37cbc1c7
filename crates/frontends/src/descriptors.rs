//! How full the process's table of descriptors is. A new descriptor tells: the kernel gives out the lowest number that is
//! free, so all numbers below it are in use.
//!
//! Connections of one drive take at most half of the table while others have few, and none takes the last eighth. That
//! is for callers of the API, for new drives, and for what drives open at work.

use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd};

/// Connections that a drive may have however full the table is, but for its last eighth.
pub(crate) const CONNECTIONS_OF_EACH: usize = 32;

/// How full the table was when a descriptor was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fill {
    Free,
    /// More than half is in use.
    Crowded,
    /// The reserve alone is left.
    Full,
}

/// The table as a new descriptor tells of it.
pub(crate) fn fill(new: impl AsFd) -> Fill {
    let number = new.as_fd().as_raw_fd().unsigned_abs().into();
    of(number, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn of(number: u64, limit: u64) -> Fill {
    if number >= limit - limit / 8 {
        Fill::Full
    } else if number >= limit / 2 {
        Fill::Crowded
    } else {
        Fill::Free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eighth_is_kept_and_the_second_half_shared() {
        let at = |number| of(number, 1000);
        assert_eq!([at(0), at(499), at(500), at(874), at(875)].map(|it| it as u8), [0, 0, 1, 1, 2]);
        assert_eq!(of(1 << 20, u64::MAX), Fill::Free);
        assert_eq!(fill(std::io::stdin()), Fill::Free);
    }
}
