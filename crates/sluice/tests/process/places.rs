//! Model of one place that a [host's load](crate::numbered) writes: the list of the writes that a read may return, the
//! durable one first. A successful Flush or a write with FUA shortens the list. A write that failed or was never
//! answered is done or is not done.

/// Result of a write, from the view of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The write failed, or no answer came.
    Unknown,
    /// The write was acknowledged, and was submitted in this epoch.
    Acknowledged(u32),
    /// The write was acknowledged, but then a Flush failed, so that no later Flush is about it.
    Doubtful(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) number: u32,
    /// Number that the place holds after the write: zero after a Write Zeroes.
    pub(crate) holds: u32,
    pub(crate) outcome: Outcome,
}

/// Writes that a read of the place may return, the oldest first. The first one is durable.
#[derive(Debug)]
pub(crate) struct Place {
    versions: Vec<Version>,
    pub(crate) last: u32,
    pub(crate) is_busy: bool,
}

impl Place {
    /// Returns a place of zeros.
    pub(crate) fn new() -> Self {
        let durable = Version { number: 0, holds: 0, outcome: Outcome::Acknowledged(0) };
        Self { versions: vec![durable], last: 0, is_busy: false }
    }

    /// Returns the last write that was acknowledged.
    pub(crate) fn acknowledged(&self) -> u32 {
        self.last_acknowledged().map_or(0, |version| version.number)
    }

    fn last_acknowledged(&self) -> Option<&Version> {
        self.versions.iter().rev().find(|version| version.outcome != Outcome::Unknown)
    }

    /// Records the success of a Flush that was sent when this write was the last one acknowledged.
    pub(crate) fn flushed(&mut self, mark: u32) {
        let is =
            |version: &Version| version.number == mark && matches!(version.outcome, Outcome::Acknowledged(_));
        if self.versions.iter().any(is) {
            self.versions.retain(|version| version.number >= mark);
        }
    }

    /// Adds a write that has ended.
    pub(crate) fn wrote(&mut self, written: Version, is_durable: bool) {
        self.is_busy = false;
        self.versions.push(written);
        if is_durable && written.outcome != Outcome::Unknown {
            self.versions.drain(..self.versions.len() - 1);
        }
    }

    /// Records that a later Flush is not about the writes acknowledged so far.
    pub(crate) fn doubt(&mut self) {
        for version in &mut self.versions {
            if let Outcome::Acknowledged(epoch) = version.outcome {
                version.outcome = Outcome::Doubtful(epoch);
            }
        }
    }

    /// Records that the place has this number durably, and nothing else from then on.
    pub(crate) fn settle(&mut self, number: u32, epoch: u32) {
        let outcome = Outcome::Acknowledged(epoch);
        self.versions = vec![Version { number, holds: number, outcome }];
    }

    /// Returns the number of a place that was settled.
    pub(crate) fn durable(&self) -> u32 {
        self.versions[0].holds
    }

    /// Returns whether a place with this number lacks an acknowledged write.
    pub(crate) fn has_lost(&self, number: u32) -> bool {
        let is_unknown = |version: &Version| version.outcome == Outcome::Unknown && version.holds == number;
        let expected = self.last_acknowledged().map_or(0, |version| version.holds);
        number < expected && !self.versions.iter().any(is_unknown)
    }

    /// Returns the versions that a read may return now. A write that was acknowledged is the oldest of them
    /// unless a cut came after its submission.
    pub(crate) fn visible(&self, has_copy: bool, epoch: u32) -> &[Version] {
        let is_certain = |version: &Version| match version.outcome {
            Outcome::Unknown => false,
            Outcome::Acknowledged(then) | Outcome::Doubtful(then) => {
                has_copy || then == epoch && epoch.is_multiple_of(2)
            }
        };
        let first = self.versions.iter().rposition(is_certain).unwrap_or(0);
        &self.versions[first..]
    }
}

#[test]
fn a_flush_and_a_cut_leave_the_writes_that_may_be_there() {
    let write = |place: &mut Place, number, epoch, is_acknowledged| {
        let outcome = if is_acknowledged { Outcome::Acknowledged(epoch) } else { Outcome::Unknown };
        place.wrote(Version { number, holds: number, outcome }, false);
    };
    let numbers = |versions: &[Version]| versions.iter().map(|version| version.number).collect::<Vec<_>>();
    let mut place = Place::new();
    write(&mut place, 1, 0, true);
    write(&mut place, 2, 0, false);
    assert_eq!(numbers(place.visible(false, 0)), [1, 2], "nothing was cut");
    assert_eq!(numbers(place.visible(false, 1)), [0, 1, 2], "the cut may have taken it");
    assert_eq!(numbers(place.visible(true, 2)), [1, 2], "another copy has it");
    let mark = place.acknowledged();
    write(&mut place, 3, 0, true);
    place.flushed(mark);
    assert_eq!(numbers(place.visible(false, 2)), [1, 2, 3], "the third came later");
    place.versions[2].outcome = Outcome::Doubtful(0);
    place.flushed(3);
    assert_eq!(numbers(place.visible(false, 2)), [1, 2, 3], "a Flush failed before");
    write(&mut place, 4, 2, true);
    place.flushed(4);
    assert_eq!(numbers(place.visible(false, 4)), [4]);
}

#[test]
fn a_write_with_fua_replaces_all_and_a_flush_after_a_loss_of_power_nothing() {
    let version = |number, outcome| Version { number, holds: number, outcome };
    let mut place = Place::new();
    place.wrote(version(1, Outcome::Acknowledged(0)), false);
    place.wrote(version(2, Outcome::Unknown), true);
    assert_eq!(place.visible(false, 2).len(), 3, "it was not acknowledged");
    place.wrote(version(3, Outcome::Acknowledged(0)), true);
    assert_eq!(place.durable(), 3);
    place.wrote(version(4, Outcome::Acknowledged(0)), false);
    assert!(place.has_lost(3) && !place.has_lost(4));
    place.doubt();
    let mark = place.acknowledged();
    place.flushed(mark);
    assert_eq!(place.visible(false, 2).len(), 2, "the Flush came after the loss");
    place.wrote(Version { holds: 0, ..version(5, Outcome::Unknown) }, false);
    assert!(place.has_lost(3) && !place.has_lost(0), "the zeros may be there");
    place.settle(3, 2);
    assert_eq!((place.durable(), place.visible(false, 2).len()), (3, 1));
}
