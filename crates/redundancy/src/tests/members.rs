//! Members that are lost, one after the other or again and again.

use super::log::clean_set;
use crate::{Begun, Ended, Members, Mirror, Step};

const SECOND: u64 = 1_000_000_000;

/// Performs all steps of this time, without an error. Returns the writes that may go now.
fn settle(mirror: &mut Mirror, now_ns: u64) -> usize {
    let mut going = 0;
    while let Some(step) = mirror.next(now_ns) {
        match step {
            Step::Copy { .. } => mirror.copied(Members::NONE, now_ns),
            Step::Flush { member } => mirror.flushed(member, true),
            Step::WriteLog { .. } => mirror.log_written(true, now_ns),
            Step::Go { .. } => going += 1,
            other => panic!("{other:?}"),
        }
    }
    going
}

/// Checks that each loss in a row doubles the time until the member is tried again, from one second up to sixty.
#[test]
fn a_member_that_is_lost_again_is_tried_later() {
    let (mut mirror, mut now_ns) = clean_set(true);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        mirror.lose(1);
        let _ = mirror.journal_step(now_ns);
        mirror.log_written(true, now_ns);
        mirror.rejoin_lost(now_ns);
        assert_eq!(mirror.rejoin_ns(), Some(now_ns + seconds * SECOND));
        mirror.rejoin_lost(now_ns + seconds * SECOND - 1);
        assert_eq!(mirror.status().joined, Members::one(0));
        now_ns += seconds * SECOND;
        mirror.rejoin_lost(now_ns);
        assert_eq!((mirror.status().joined, mirror.rejoin_ns()), (Members::first(2), None));
    }
    assert_eq!(mirror.status().losses, 8);
}

/// Checks members that report lost writes: another takes their place, or the writes in flight and the next Flush fail.
#[test]
fn lost_writes_are_made_up_for_by_another_member_or_reported() {
    for (promotes, member, losses, source, is_told) in
        [(true, 0, 1, 1, false), (true, 1, 1, 0, false), (false, 1, 1, 0, false), (false, 0, 0, 0, true)]
    {
        let (mut mirror, now_ns) = clean_set(promotes);
        let (write, begun) = mirror.begin(0..512);
        assert_eq!((begun, settle(&mut mirror, now_ns)), (Begun::Wait, 1));
        mirror.has_lost_writes(member);
        let status = mirror.status();
        assert_eq!((status.losses, status.source), (losses, source), "{promotes} {member}");
        let ended = mirror.end(write, Members::NONE);
        assert_eq!(ended == Ended::Failed, is_told, "{promotes} {member}: {ended:?}");
        settle_over(&mut mirror, now_ns);
        let flushes: Vec<bool> = (0..2)
            .map(|_| {
                let (flush, begun) = mirror.begin(0..0);
                assert!(matches!(begun, Begun::Go(_)));
                let ended = mirror.end(flush, Members::NONE);
                settle_over(&mut mirror, now_ns);
                ended == Ended::Failed
            })
            .collect();
        assert_eq!(flushes, [is_told, false], "{promotes} {member}");
    }
}

/// Performs all steps of this time, of which some acknowledge writes.
fn settle_over(mirror: &mut Mirror, now_ns: u64) {
    while let Some(step) = mirror.next(now_ns) {
        match step {
            Step::Copy { .. } => mirror.copied(Members::NONE, now_ns),
            Step::Flush { member } => mirror.flushed(member, true),
            Step::WriteLog { .. } => mirror.log_written(true, now_ns),
            Step::Over { good, .. } => assert!(good),
            other => panic!("{other:?}"),
        }
    }
}
