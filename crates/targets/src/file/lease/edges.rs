//! The protocol of a lease at the edges of its times.

use super::block::{Claim, Content};
use super::protocol::{Loss, Party, Step, Timing};

const TIMING: Timing =
    Timing { renew_ns: 100, expire_ns: 1000, still_ns: 2000, latency_ns: 50, settle_ns: 200 };
/// Holder of an attempt after a failed one.
const NEXT: u128 = 9;

fn claim(holder: u128, counter: u64) -> Claim {
    Claim { holder, counter, name: "here".to_owned(), held: true }
}

fn found(holder: u128, counter: u64) -> Content {
    Content::Claim(claim(holder, counter))
}

fn party() -> Party {
    Party::new(TIMING, 1, "here".to_owned())
}

/// Returns a daemon that has written its claim, after a read from 10 on, at 60: the latest time for that.
fn settling() -> Party {
    let mut party = party();
    assert_eq!(party.next(0), Step::Read);
    party.read(10, 12, Content::Blank);
    assert_eq!(party.next(12), Step::Write(claim(1, 1)));
    party.written(60, true, NEXT);
    assert_eq!((party.next(259), party.next(260)), (Step::Wait(260), Step::Read));
    assert_eq!(party.until_ns(), None);
    party
}

/// Returns a daemon that has a lease until 1010.
fn holder() -> Party {
    let mut party = settling();
    party.read(260, 1009, found(1, 1));
    assert_eq!((party.until_ns(), party.next(1009)), (Some(1010), Step::Read));
    party
}

#[test]
fn a_claim_is_a_lease_while_others_see_it_move() {
    holder();
    // The daemon stood still: others may have seen its claim stand still.
    let mut late = settling();
    late.read(260, 1010, found(1, 1));
    assert_eq!((late.until_ns(), late.next(1010)), (None, Step::Wait(1060)));
    let mut beaten = settling();
    beaten.read(260, 300, found(2, 7));
    assert_eq!((beaten.until_ns(), beaten.next(300)), (None, Step::Wait(350)));
    let mut unread = settling();
    unread.unread(270);
    assert_eq!((unread.next(270), unread.next(320)), (Step::Wait(320), Step::Read));
}

#[test]
fn a_claim_that_took_too_long_to_write_is_none() {
    for (now_ns, good) in [(61, true), (60, false)] {
        let mut party = party();
        party.read(10, 12, Content::Blank);
        party.written(now_ns, good, NEXT);
        assert_eq!(party.next(now_ns), Step::Wait(now_ns + 50));
        assert_eq!(party.next(now_ns + 50), Step::Read);
        party.read(200, 200, Content::Blank);
        assert_eq!(party.next(200), Step::Write(claim(NEXT, 1)), "the first claim may still arrive");
    }
}

#[test]
fn a_lease_is_renewed_until_its_end_and_not_at_it() {
    let mut party = holder();
    party.read(1009, 1009, found(1, 1));
    assert_eq!(party.next(1009), Step::Write(claim(1, 2)));
    party.written(1009, true, NEXT);
    assert_eq!(party.until_ns(), Some(2009), "from the beginning of the read");
    assert_eq!((party.next(1108), party.next(1109)), (Step::Wait(1109), Step::Read));
    party.unread(1109);
    assert_eq!((party.next(1109), party.next(1159)), (Step::Wait(1159), Step::Read));
    party.read(1159, 1160, found(1, 2));
    assert_eq!(party.next(1160), Step::Write(claim(1, 3)));
    party.written(1200, false, NEXT);
    assert_eq!((party.until_ns(), party.next(1200)), (Some(2009), Step::Wait(1259)), "it was not renewed");
    // A write that takes longer than the interval is followed by a read at once.
    party.read(1259, 1260, found(1, 3));
    party.written(1400, true, NEXT);
    assert_eq!((party.until_ns(), party.next(1400)), (Some(2259), Step::Read));
    assert_eq!(party.next(2258), Step::Read);
    assert_eq!(party.next(2259), Step::Lost(Loss::Late));
    assert_eq!((party.until_ns(), party.next(3000)), (None, Step::Lost(Loss::Late)));
    let mut party = holder();
    party.read(1009, 1009, found(1, 1));
    party.written(1010, true, NEXT);
    assert_eq!((party.until_ns(), party.next(1010)), (None, Step::Lost(Loss::Late)), "written too late");
}

#[test]
fn a_lease_is_lost_to_anything_but_the_own_claim() {
    let released = Content::Claim(Claim { held: false, ..claim(1, 1) });
    for content in [found(2, 1), released, Content::Blank, Content::Other] {
        let mut party = holder();
        party.read(1009, 1009, content.clone());
        assert_eq!((party.until_ns(), party.next(1009)), (None, Step::Lost(Loss::Overwritten(content))));
    }
}

#[test]
fn a_claim_that_stands_still_for_long_enough_is_dead() {
    let watching = || {
        let mut party = party();
        party.read(0, 3, found(2, 5));
        assert_eq!((party.next(3), party.next(53)), (Step::Wait(53), Step::Read));
        party.read(2002, 2002, found(2, 5));
        assert_eq!(party.next(2002), Step::Wait(2052), "it may be renewed yet");
        party
    };
    let mut party = watching();
    party.read(2003, 2004, found(2, 5));
    assert_eq!(party.next(2004), Step::Write(claim(1, 1)));
    let mut party = watching();
    party.read(2003, 2004, found(2, 6));
    assert_eq!(party.next(2004), Step::Taken(claim(2, 6)), "it is renewed");
    // A third daemon has taken the lease: its claim is watched for as long.
    let mut party = watching();
    party.read(2003, 2004, found(3, 1));
    party.read(4003, 4003, found(3, 1));
    assert_eq!(party.next(4003), Step::Wait(4053));
    party.read(4004, 4004, found(3, 1));
    assert_eq!(party.next(4004), Step::Write(claim(1, 1)));
    let mut party = watching();
    party.unread(2060);
    assert_eq!((party.next(2060), party.next(2110)), (Step::Wait(2110), Step::Read));
    party.read(2200, 2200, Content::Claim(Claim { held: false, ..claim(2, 6) }));
    assert_eq!(party.next(2200), Step::Write(claim(1, 1)), "it was given back");
    let mut party = watching();
    party.read(2200, 2200, Content::Other);
    assert_eq!(party.next(2200), Step::Other);
}

#[test]
fn only_the_own_lease_is_given_back() {
    let released = Claim { held: false, ..claim(1, 2) };
    assert_eq!(holder().release(1009, &found(1, 1)), Some(released));
    assert_eq!(holder().release(1010, &found(1, 1)), None, "its time is over");
    for content in [found(2, 1), Content::Blank, Content::Other] {
        assert_eq!(holder().release(1009, &content), None);
    }
    assert_eq!(settling().release(100, &found(1, 1)), None, "it is no lease yet");
    let mut party = holder();
    party.release(1009, &found(1, 1));
    assert_eq!(party.until_ns(), None);
}
