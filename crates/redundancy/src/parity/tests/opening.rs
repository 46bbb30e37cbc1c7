//! Openings of an array that are refused, and attempts that fail.

use super::rig::{Rig, disk};
use crate::parity::{
    ARRAY_LOG_MIN, ArrayConfig, BATCH_MAX, Geometry, HostCommand, NOTES_BYTES, Parity, ROWS_MAX, Step,
    array_region_bytes,
};
use crate::{Members, UNSEEN};

fn rig() -> Rig {
    let mut rig = Rig::new(5, (4, 2), 4096, 8);
    rig.submit_at(Some(HostCommand::Write), 0, 128);
    rig.drain();
    rig.come_to_rest();
    rig.crash(true);
    rig
}

/// Opens the array with this change of its configuration. Returns the reason why it is refused.
fn refusal(change: impl Fn(&mut ArrayConfig)) -> String {
    let mut rig = rig();
    change(&mut rig.config);
    rig.open();
    let words = rig.comes_up().expect_err("it is refused");
    assert!(rig.parity.alarm_ns().is_none() && rig.parity.next(u64::MAX).is_none());
    words
}

#[test]
fn limits_are_those_of_the_documentation() {
    assert_eq!((NOTES_BYTES, ROWS_MAX, BATCH_MAX, ARRAY_LOG_MIN), (1 << 20, 64 << 10, 512 << 10, 3 << 20));
    let gib = 1 << 30;
    for (size, region) in [(0, 1), (gib, 1), (64 * gib, 1), (65 * gib, 2), (128 * gib, 2), (1000 * gib, 16)] {
        assert_eq!(array_region_bytes(size), region << 20, "{size}");
    }
}

#[test]
fn a_configuration_of_no_array_is_refused() {
    let config = rig().config;
    let makes = |change: &dyn Fn(&mut ArrayConfig)| {
        let mut config = config;
        change(&mut config);
        Parity::new(config).map(drop)
    };
    assert_eq!(makes(&|_| ()), Ok(()));
    assert!(makes(&|it| it.log_bytes -= 1).is_err_and(|words| words.contains("needs 3145728")));
    let eight = Geometry { members: 8, parities: 2, chunk: 4096, q_is_last: false };
    assert!(makes(&|it| it.geometry = eight).is_err_and(|words| words.contains("more than 7")));
    assert!(makes(&|it| it.geometry = Geometry { members: 7, ..eight }).is_ok());
    assert!(makes(&|it| it.spares = 3).is_ok() && makes(&|it| it.spares = 4).is_err());
    assert!(makes(&|it| it.size = 0).is_err() && makes(&|it| it.size += 512).is_err());
    for (region, is_right) in [(0, false), (2048, false), (4096, true), (12288, false), (1 << 30, true)] {
        assert_eq!(makes(&|it| it.region_bytes = region).is_ok(), is_right, "{region}");
    }
    let most = 4096 << 17;
    assert!(makes(&|it| (it.region_bytes, it.size) = (4096, most)).is_ok());
    assert!(makes(&|it| (it.region_bytes, it.size) = (4096, most + 4096)).is_err());
}

#[test]
fn the_log_of_another_array_is_refused() {
    let shape = refusal(|it| it.geometry.parities = 1);
    assert!(
        shape.contains(
            "4 members with 2 parities and chunks of 4096 bytes, and this one has 4 members with 1"
        )
    );
    assert!(refusal(|it| it.geometry.chunk = 8192).contains("chunks of 8192"));
    assert!(refusal(|it| it.size -= 4096).contains("members with 32768 bytes, and one has 28672"));
    // The region of the log is 8 KiB, so there are at most so many.
    assert!(refusal(|it| (it.size, it.region_bytes) = ((8192 << 17) + 4096, 16384)).contains("no room"));
    let mut larger = Rig::new(5, (4, 2), 4096, 8);
    larger.config.new = Members::first(4);
    larger.log = disk(2 * ARRAY_LOG_MIN, &mut larger.random, false);
    larger.config.log_bytes = 2 * ARRAY_LOG_MIN;
    larger.tasks.clear();
    larger.open();
    assert_eq!(larger.comes_up(), Ok(()));
    larger.crash(true);
    (larger.config.new, larger.config.log_bytes) = (Members::NONE, 2 * ARRAY_LOG_MIN - 4096);
    larger.open();
    let words = larger.comes_up().expect_err("its journal may be longer");
    assert_eq!(
        words,
        format!("the log has {} bytes, and had {}", 2 * ARRAY_LOG_MIN - 4096, 2 * ARRAY_LOG_MIN)
    );
}

#[test]
fn a_blank_log_is_one_of_new_members_only() {
    for (new, is_right) in [(0b1111, true), (0b0111, false), (0, false)] {
        let mut rig = rig();
        rig.log = disk(ARRAY_LOG_MIN, &mut rig.random, false);
        rig.config.new = Members(new);
        rig.open();
        let outcome = rig.comes_up();
        assert_eq!((outcome.is_ok(), rig.parity.asks()), (is_right, !is_right), "{new:b}: {outcome:?}");
    }
}

/// Opens an array with members that are others or not there: as many as there are parities may be.
#[test]
fn an_array_is_opened_without_as_many_members_as_there_are_parities() {
    for (other, unseen, is_right) in [
        (&[][..], &[][..], true),
        (&[0, 3], &[], true),
        (&[1], &[2], true),
        (&[0, 1], &[2], false),
        (&[], &[1, 2, 3], false),
    ] {
        let mut rig = rig();
        other.iter().for_each(|member| rig.replace(*member));
        unseen.iter().for_each(|member| rig.members[*member].storage = UNSEEN);
        rig.open();
        let outcome = rig.comes_up();
        assert_eq!((outcome.is_ok(), rig.parity.asks()), (is_right, !is_right), "{outcome:?}");
        if is_right {
            assert_eq!(rig.parity.status().losses, (other.len() + unseen.len()) as u64);
            rig.read_all();
        } else {
            assert!(outcome.is_err_and(|words| words.contains("lack something")));
        }
    }
}

/// Fails reads of the log, up to the one from which on the array is refused.
#[test]
fn the_log_is_read_up_to_three_times() {
    for (stage, fails, is_right) in [(0, 2, true), (0, 3, false), (1, 2, true), (1, 3, false)] {
        let mut rig = rig();
        rig.open();
        // The second stage is that of the journal.
        while stage == 1 && !format!("{:?}", rig.tasks).contains("ReadBatch") {
            rig.turn();
        }
        rig.log_up = false;
        (0..fails).for_each(|_| _ = rig.turn());
        rig.log_up = true;
        let outcome = rig.comes_up();
        assert_eq!(outcome.is_ok(), is_right, "{outcome:?}");
        assert!(is_right || outcome.is_err_and(|words| words.contains("cannot be read")));
    }
}

/// Opens an array whose log cannot be written: it is refused after three attempts.
#[test]
fn an_array_whose_log_cannot_be_written_is_not_opened() {
    for (fails, is_right) in [(2, true), (3, false)] {
        let mut rig = rig();
        rig.open();
        while !format!("{:?}", rig.tasks).contains("WriteLog") {
            rig.turn();
        }
        rig.log_up = false;
        (0..fails).for_each(|_| _ = rig.turn());
        rig.log_up = true;
        assert_eq!(rig.comes_up().is_ok(), is_right);
        assert!(
            is_right || rig.parity.next(u64::MAX).is_none_or(|step| !matches!(step, Step::Ready(Ok(()))))
        );
    }
}

/// Loses members while the journal is replayed: one more than there are parities, and the array is refused.
#[test]
fn members_that_fail_while_the_journal_is_replayed_are_lost() {
    for (count, is_right) in [(1, true), (2, true), (3, false)] {
        let mut rig = Rig::new(5, (4, 2), 4096, 8);
        (0..6).for_each(|number| rig.submit_at(Some(HostCommand::Write), 20 * number, 20));
        rig.drain();
        rig.crash(false);
        rig.open();
        while !format!("{:?}", rig.tasks).contains("Restore") {
            assert!(rig.turn());
        }
        (0..count).for_each(|member| rig.members[member].up = false);
        let outcome = rig.comes_up();
        assert_eq!(outcome.is_ok(), is_right, "{outcome:?}");
        if is_right {
            assert_eq!(rig.parity.status().losses, count as u64);
            rig.read_all();
        } else {
            assert!(outcome.is_err_and(|words| words.contains("member 2 cannot be written")));
            // Nothing is lost: it is opened when they are back.
            rig.members.iter_mut().for_each(|member| member.up = true);
            rig.crash(false);
            rig.open();
            assert_eq!(rig.comes_up(), Ok(()));
            rig.read_all();
        }
        rig.members.iter_mut().for_each(|member| member.up = true);
        rig.come_to_rest();
    }
}
