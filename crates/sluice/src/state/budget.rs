//! What the hosts of one drive may take of the state file: marks of blocks, reservations, and namespaces of its pool.
//!
//! All drives share one file. So the hosts of all of them together leave a part of it to the operator, and those of one
//! drive leave their parts to the others.

use super::{BYTES_MAX, Saved};
use crate::problem::Problem;
use serde::Serialize;

/// Bytes of the file that the hosts of all drives have together; the rest is the operator's.
const HOSTS: usize = (BYTES_MAX / 4 * 3) as usize;

/// Bytes that a drive has at least, however many there are.
const LEAST: usize = HOSTS / crate::drives::DRIVES_MAX;

impl Saved {
    /// Checks what the hosts of a drive want remembered, beside what is remembered of it now. Less than that is always
    /// taken.
    ///
    /// # Errors
    /// In words: it is more than the share of this drive, one of so many.
    pub fn check_share(&self, now: &Saved, drive: &str, drives: usize) -> Result<(), Problem> {
        let share = (HOSTS / drives.max(1)).max(LEAST);
        let bytes = self.of_hosts(drive);
        if bytes <= share || bytes <= now.of_hosts(drive) {
            return Ok(());
        }
        Err(Problem::conflict(format!(
            "the hosts of drive `{drive}` want {bytes} bytes of the state file, and one of {drives} drives has {share}"
        ))
        .hint("have them clear marks of Write Uncorrectable, reservations or namespaces that are of no use"))
    }

    /// Bytes that the hosts of a drive have in the file.
    fn of_hosts(&self, drive: &str) -> usize {
        let marks = self.uncorrectable.iter().filter(|it| it.drive == drive).map(bytes_of);
        let reserved = self.reserved.iter().filter(|it| it.drive == drive).map(bytes_of);
        let pools = self.pools.iter().filter(|it| it.drive == drive).map(bytes_of);
        marks.chain(reserved).chain(pools).sum()
    }
}

/// Bytes of it in the file.
fn bytes_of(record: &impl Serialize) -> usize {
    serde_json::to_string_pretty(record).map_or(usize::MAX, |text| {
        // Each line is two levels further in than here.
        text.len() + 4 * (text.matches('\n').count() + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Uncorrectable, text};
    use super::*;

    fn marked(drive: &str, ranges: u64) -> Saved {
        let ranges = (0..ranges).map(|range| [range << 20, (range << 20) + 512]).collect();
        Saved {
            uncorrectable: vec![Uncorrectable { drive: drive.into(), nsid: 1, ranges }],
            ..Saved::default()
        }
    }

    #[test]
    fn it_is_counted_as_it_is_written() {
        let empty = text::encode(&Saved::default()).len();
        for ranges in [1, 10, 1000] {
            let saved = marked("a", ranges);
            let written = text::encode(&saved).len() - empty;
            assert!(
                saved.of_hosts("a").abs_diff(written) < 64,
                "{ranges}: {} {written}",
                saved.of_hosts("a")
            );
            assert_eq!(saved.of_hosts("b"), 0);
        }
    }

    #[test]
    fn hosts_of_one_drive_leave_the_others_their_shares_and_may_always_take_less() {
        let (none, few, many) = (Saved::default(), marked("a", 100), marked("a", 3_000));
        for drives in [1, 10, crate::drives::DRIVES_MAX] {
            few.check_share(&none, "a", drives).expect("it is a little");
        }
        many.check_share(&none, "a", 10).expect("it is a tenth");
        let problem = many.check_share(&none, "a", crate::drives::DRIVES_MAX).expect_err("it is too much");
        assert!(problem.error.contains("hosts of drive `a`") && problem.hint.is_some(), "{problem}");
        // There were fewer drives when it was stored.
        many.check_share(&marked("a", 3_001), "a", crate::drives::DRIVES_MAX)
            .expect("it is less than it was");
        many.check_share(&none, "b", crate::drives::DRIVES_MAX).expect("b has nothing");
        let all = HOSTS / LEAST * LEAST;
        assert!(all <= HOSTS && HOSTS + (8 << 20) < BYTES_MAX as usize, "the rest is the operator's");
    }
}
