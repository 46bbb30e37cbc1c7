//! Fill level of the process's descriptor table. The number of a new descriptor shows the level: the kernel
//! returns the lowest free number, so all numbers below are in use.
//!
//! Connections of one drive take at most half of the table while others have few, and none takes the last
//! eighth. That reserve is for callers of the API, for new drives, and for files that drives open while they
//! run.

use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd};

/// Connections that a drive may have at any fill level below the last eighth.
pub const CONNECTIONS_OF_EACH: usize = 32;

/// Fill level of the table when a descriptor was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fill {
    Free,
    /// More than half in use.
    Crowded,
    /// Only the reserve left.
    Full,
}

/// Returns the fill level of the table, judged by the number of a new descriptor.
pub fn fill(new: impl AsFd) -> Fill {
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
