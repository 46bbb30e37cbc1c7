//! Choice of the commands that are timed and traced, and their stamps.
//!
//! The first two commands of a millisecond are timed, and each counts as one command in the histograms. Of all other
//! commands every [`TIMED_EVERY`]th is timed, and counts for all of these since the last one. So a drive with few commands
//! has exact histograms, and a busy one pays little. The two groups are kept apart: a command that was timed because of
//! a pause counts for no other, since all that a host sends after a pause may be of one kind.
//!
//! A stamp has the clock at the fetch of a command, the number of commands for which it counts, whether it is traced,
//! and its opcode.

use crate::state::limits::BATCH_MAX;
use sluice_command::Slot;

/// Bit of a stamp: the command is traced.
const TRACED: u64 = 1 << u8::BITS;

/// Place of the number of commands in a stamp.
const WEIGHT_SHIFT: u32 = u8::BITS + 1;
const WEIGHT_BITS: u32 = 8;
const WEIGHT_MAX: u32 = (1 << WEIGHT_BITS) - 1;

/// Bits of a stamp below the clock.
pub(crate) const LOW_BITS: u32 = WEIGHT_SHIFT + WEIGHT_BITS;

/// Number of commands of which one is timed. At about 210 instructions for a timed command, it costs each command
/// about two. As a prime it has no factor in common with the pattern of a load, such as reads and writes in turn.
pub const TIMED_EVERY: u32 = 127;

// A weight may include the rest of a batch.
const _: () = assert!(TIMED_EVERY + BATCH_MAX <= WEIGHT_MAX);

/// Interval whose first [`EXACT`] commands are timed, nanoseconds.
const INTERVAL_NS: u64 = 1_000_000;

/// Commands that are timed in each interval. A host that writes and flushes sends pairs.
const EXACT: u32 = 2;

/// Commands of a batch with a look, before a trace was consulted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Commands at the head of the batch that each count for one.
    pub(crate) exact: u32,
    /// Index and weight of a command that counts for others, too.
    pub(crate) counted: Option<(u32, u32)>,
    /// All commands since the last look, with this batch.
    pub(crate) commands: u32,
}

/// Points in time at which commands are chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks {
    /// Commands until the next counted one, from `full`.
    left: i32,
    full: i32,
    /// Commands that the next counted one counts for besides those from `full` to it.
    rest: i32,
    period: i32,
    /// `left` at the end of the last look.
    left_at_look: i32,
    /// Commands of the present interval that may still be timed.
    exact: u32,
    interval_ends_ns: u64,
    /// Time of the next look if no counted command comes before; zero if it is at the next batch.
    next_ns: u64,
}

impl Looks {
    /// Sets how many commands there are for each counted one. With one, all are timed.
    pub(crate) fn set_period(&mut self, commands: u32) {
        self.rest += self.full - self.left;
        self.period = commands.clamp(1, TIMED_EVERY).cast_signed();
        (self.left, self.full, self.left_at_look) = (self.period, self.period, self.period);
        self.next_ns = 0;
    }

    /// Returns whether every command is timed.
    fn are_all(&self) -> bool {
        self.period <= 1
    }

    /// Counts a batch of commands, and returns whether it has a look.
    #[inline(always)]
    pub(crate) fn is_due(&mut self, count: u32, now_ns: u64) -> bool {
        self.left = self.left.wrapping_sub(count.cast_signed());
        self.left <= 0 || now_ns >= self.next_ns
    }

    /// Chooses commands of the batch of `count` that was counted last.
    pub(crate) fn look(&mut self, count: u32, now_ns: u64) -> Look {
        let commands = (self.left_at_look - self.left).max(0).cast_unsigned();
        if self.are_all() {
            (self.left, self.full, self.rest) = (1, 1, 0);
            self.left_at_look = 1;
            return Look { exact: count, counted: None, commands };
        }
        if now_ns >= self.interval_ends_ns {
            (self.exact, self.interval_ends_ns) = (EXACT, now_ns.saturating_add(INTERVAL_NS));
        }
        let exact = self.exact.min(count);
        self.exact -= exact;
        self.next_ns = if self.exact > 0 { 0 } else { self.interval_ends_ns };
        // The exact ones count for themselves.
        self.left += exact.cast_signed();
        let others = (count - exact).cast_signed();
        let counted = (self.left <= 0 && others > 0).then(|| {
            let before = self.left + others;
            let index = (before - 1).clamp(0, others - 1);
            let weight = self.rest + (self.full - before) + index + 1;
            self.rest = others - index - 1;
            self.full = (self.period - self.rest).max(1);
            self.left = self.full;
            (exact + index.cast_unsigned(), weight.clamp(1, WEIGHT_MAX.cast_signed()).cast_unsigned())
        });
        self.left_at_look = self.left;
        Look { exact, counted, commands }
    }
}

/// Commands of a batch that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) look: Look,
    /// First command that is traced, and their number.
    pub(crate) traced: (u32, u32),
    /// Clock at the fetch of the batch.
    pub(crate) at: u64,
}

impl Chosen {
    /// Returns the number of commands up to the last of these.
    pub(crate) fn end(&self) -> u32 {
        let counted = self.look.counted.map_or(0, |(index, _)| index + 1);
        let traced = if self.traced.1 > 0 { self.traced.0 + self.traced.1 } else { 0 };
        self.look.exact.max(counted).max(traced)
    }

    /// Returns the stamp of a command by its index in the batch, if it is one of these.
    #[inline]
    pub(crate) fn stamp(&self, index: u32, opcode: u8) -> Option<u64> {
        let weight = match self.look.counted {
            _ if index < self.look.exact => 1,
            Some((counted, weight)) if counted == index => weight,
            _ => 0,
        };
        let is_traced = self.traces(index);
        let mark = if is_traced { TRACED } else { 0 };
        (weight > 0 || is_traced).then(|| stamp(self.at, weight) | mark | u64::from(opcode))
    }

    /// Returns whether a command is traced, by its index in the batch.
    pub(crate) fn traces(&self, index: u32) -> bool {
        index.checked_sub(self.traced.0).is_some_and(|index| index < self.traced.1)
    }
}

/// Returns the stamp of a command that was fetched when the clock was `now`, without its opcode.
pub(crate) fn stamp(now: u64, weight: u32) -> u64 {
    now << LOW_BITS | u64::from(weight) << WEIGHT_SHIFT
}

/// Returns the number of commands for which a command with this stamp counts.
pub(crate) fn weight(stamp: u64) -> u64 {
    stamp >> WEIGHT_SHIFT & u64::from(WEIGHT_MAX)
}

/// Returns a stamp without the mark of a trace.
#[inline(always)]
pub(crate) fn unmarked(stamp: u64) -> u64 {
    stamp & !TRACED
}

/// Returns whether a command is traced.
#[inline]
pub(crate) fn is_traced(slot: &Slot) -> bool {
    slot.origin.timed && slot.stamp & TRACED != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(looks: &mut Looks, count: u32, now_ns: u64) -> Option<Look> {
        looks.is_due(count, now_ns).then(|| looks.look(count, now_ns))
    }

    fn of(period: u32) -> Looks {
        let mut looks = Looks::default();
        looks.set_period(period);
        looks
    }

    #[test]
    fn the_first_two_commands_of_an_interval_count_for_themselves() {
        let mut looks = of(127);
        let exact = |exact, commands| Some(Look { exact, counted: None, commands });
        assert_eq!(look(&mut looks, 1, 5), exact(1, 1));
        assert_eq!(look(&mut looks, 3, 5), exact(1, 3));
        assert_eq!(look(&mut looks, 1, 4 + INTERVAL_NS), None);
        assert_eq!(look(&mut looks, 4, 5 + INTERVAL_NS), exact(2, 5));
        // Two and one and two are of the other group.
        assert_eq!(look(&mut looks, 121, 5 + INTERVAL_NS), None);
        let counted = Some(Look { exact: 0, counted: Some((0, 127)), commands: 122 });
        assert_eq!(look(&mut looks, 1, 5 + INTERVAL_NS), counted);
    }

    /// Sends batches, and returns how many commands of each kind there were, and for how many the timed ones count.
    fn measured(batches: impl Iterator<Item = (u64, Vec<usize>)>) -> [[u32; 2]; 3] {
        let (mut looks, mut sums) = (of(TIMED_EVERY), [[0; 2]; 3]);
        for (now_ns, kinds) in batches {
            let count = kinds.len() as u32;
            let chosen =
                Chosen { look: look(&mut looks, count, now_ns).unwrap_or_default(), ..Chosen::default() };
            for (index, &kind) in kinds.iter().enumerate() {
                sums[kind][0] += 1;
                sums[kind][1] += chosen.stamp(index as u32, 0).map_or(0, weight) as u32;
            }
        }
        sums
    }

    #[test]
    fn each_kind_of_command_has_its_share() {
        // Writes with a flush behind each, the next 2 ms later; bursts with a flush at the end; a steady mix.
        let pairs = (0..2000)
            .map(|number| (number / 2 * 2_050_000 + number % 2 * 50_000, vec![(number % 2) as usize]));
        assert_eq!(measured(pairs), [[1000, 1000], [1000, 1000], [0, 0]]);
        let bursts = (0..40_000_u64).map(|number| {
            let kind = [0, 2, 2, 1][(number % 32 / 8) as usize];
            (number / 32 * 5_000_000 + number % 32 * 10_000, vec![kind])
        });
        let mix = (0..3000_u64).map(|number| (number * 1_000, (0..16).map(|kind| kind % 3).collect()));
        for sums in [measured(bursts), measured(mix)] {
            for [sent, counted] in sums {
                assert!(counted.abs_diff(sent) <= sent / 10, "{sums:?}");
            }
            let [sent, counted] = [0, 1].map(|column| sums.iter().map(|kind| kind[column]).sum::<u32>());
            assert!((sent - 126..=sent).contains(&counted), "{sums:?}");
        }
    }

    #[test]
    fn the_counted_commands_are_each_of_a_number_whatever_the_batches() {
        for period in [2, 5, 16, 61, 127] {
            let mut looks = of(period);
            assert_eq!(look(&mut looks, 2, 1).map(|it| it.exact), Some(2));
            let (mut total, mut at, mut seen, mut commands) = (0, Vec::new(), 0, 2);
            for round in 0..800_u32 {
                let count = if period < BATCH_MAX { 1 } else { 1 + round * 7 % BATCH_MAX };
                if let Some(found) = look(&mut looks, count, 1) {
                    let (index, weight) = found.counted.expect("the interval has had its commands");
                    at.push(total + index + 1);
                    seen += weight;
                    assert_eq!(seen, total + index + 1, "all commands up to this one are represented");
                    commands += found.commands;
                    assert_eq!(commands, 2 + total + count);
                }
                total += count;
            }
            let expected: Vec<u32> = (period..=total).step_by(period as usize).collect();
            assert_eq!(at, expected, "{period}");
        }
    }

    #[test]
    fn no_command_is_lost_where_batches_are_longer_than_the_period() {
        let mut looks = of(3);
        let weights: Vec<_> =
            (0..4).map(|_| look(&mut looks, 16, 1).map(|it| (it.exact, it.counted))).collect();
        let [first, rest @ ..] = &weights[..] else { panic!("four batches") };
        assert_eq!(*first, Some((2, Some((4, 3)))));
        assert_eq!(*rest, [Some((0, Some((0, 12)))), Some((0, Some((0, 16)))), Some((0, Some((0, 16))))]);
    }

    #[test]
    fn a_change_of_the_period_loses_no_command() {
        let mut looks = of(127);
        look(&mut looks, 2, 1);
        assert_eq!(look(&mut looks, 100, 1), None);
        looks.set_period(16);
        assert_eq!(look(&mut looks, 15, 1).and_then(|it| it.counted), None);
        assert_eq!(look(&mut looks, 1, 1).and_then(|it| it.counted), Some((0, 116)));
    }

    #[test]
    fn every_command_is_timed_where_the_period_is_one() {
        for period in [0, 1] {
            let mut looks = of(period);
            for count in [1, 16, 3] {
                assert_eq!(look(&mut looks, count, 0).map(|it| (it.exact, it.counted)), Some((count, None)));
            }
        }
    }

    #[test]
    fn stamps_keep_all_their_parts() {
        let look = Look { exact: 2, counted: Some((4, WEIGHT_MAX)), commands: 9 };
        let chosen = Chosen { look, traced: (1, 1), at: 9 };
        let stamps: Vec<_> = (0..6).map(|index| chosen.stamp(index, 0xff)).collect();
        let weights: Vec<_> = stamps.iter().map(|stamp| stamp.map(weight)).collect();
        assert_eq!(weights, [Some(1), Some(1), None, None, Some(u64::from(WEIGHT_MAX)), None]);
        assert_eq!(stamps[1].map(unmarked), stamps[0]);
        assert_ne!(stamps[1], stamps[0]);
        assert_eq!(stamps[4].map(|stamp| (stamp >> LOW_BITS, stamp as u8)), Some((9, 0xff)));
        assert_eq!((0..6).filter(|&index| chosen.traces(index)).collect::<Vec<_>>(), [1]);
        assert_eq!(chosen.end(), 5);
        let only_traced = Chosen { look: Look::default(), traced: (3, 2), at: 9 };
        assert_eq!((only_traced.end(), only_traced.stamp(4, 1).map(weight)), (5, Some(0)));
        assert_eq!(Chosen { traced: (3, 0), ..Chosen::default() }.end(), 0);
    }
}
