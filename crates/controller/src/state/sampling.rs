//! Choice of the commands that are timed and traced, and their stamps.
//!
//! One command of [`TIMED_EVERY`] is timed, and counts in the histograms for all that came since the last one. If a
//! millisecond has passed, the next command is timed. So each command of a drive with little to do is, and the
//! others cost little. Of a batch it is any command, not always the first.
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

/// Time without a timed command after which the next one is timed, nanoseconds.
const QUIET_NS: u64 = 1_000_000;

/// Points in time at which commands are chosen.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Commands until the next look, which has one of them.
    left: i32,
    /// `left` after the last look.
    full: i32,
    /// Commands behind the last look in its batch, which `full` does not include.
    rest: i32,
    period: i32,
    /// Time of the next look if there are fewer commands.
    next_ns: u64,
}

impl Looks {
    /// Sets how many commands lie between two looks. The next command has one.
    pub(crate) fn set_period(&mut self, commands: u32) {
        self.period = commands.clamp(1, TIMED_EVERY).cast_signed();
        (self.left, self.full, self.rest, self.next_ns) = (self.period, self.period, 0, 0);
    }

    /// Returns whether every command has a look.
    pub(crate) fn are_at_all(&self) -> bool {
        self.period <= 1
    }

    /// Counts a batch of commands, and returns whether one of them has a look.
    #[inline(always)]
    pub(crate) fn is_due(&mut self, count: u32, now_ns: u64) -> bool {
        self.left = self.left.wrapping_sub(count.cast_signed());
        self.left <= 0 || now_ns >= self.next_ns
    }

    /// Begins the next interval. Returns the index of the command with the look in the batch of `count` that was counted
    /// last, and the number of commands since the last look, with this one.
    pub(crate) fn look(&mut self, count: u32, now_ns: u64) -> (u32, u32) {
        let count = count.cast_signed();
        let before = self.left.saturating_add(count);
        // After a pause, the first.
        let index = if self.left <= 0 { (before - 1).clamp(0, count - 1) } else { 0 };
        let since = self.rest + (self.full - before) + index + 1;
        self.rest = count - index - 1;
        self.full = (self.period - self.rest).max(1);
        (self.left, self.next_ns) = (self.full, now_ns.saturating_add(QUIET_NS));
        (index.cast_unsigned(), since.max(1).cast_unsigned().min(WEIGHT_MAX))
    }
}

/// Commands of a batch that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Commands before them.
    pub(crate) skipped: u32,
    pub(crate) traced: u32,
    pub(crate) timed: u32,
    /// Stamp of a timed command, without its opcode.
    pub(crate) at: u64,
    /// Whether the trace is over.
    pub(crate) trace_is_over: bool,
}

impl Chosen {
    /// Returns the number of commands up to the last of these.
    pub(crate) fn end(&self) -> u32 {
        match self.traced.max(self.timed) {
            0 => 0,
            count => self.skipped + count,
        }
    }

    /// Returns the stamp of a command by its index in the batch, if it is one of these.
    #[inline]
    pub(crate) fn stamp(&self, index: u32, opcode: u8) -> Option<u64> {
        let index = index.checked_sub(self.skipped)?;
        let (timed, traced) = (index < self.timed, index < self.traced);
        let at = if timed { self.at } else { self.at >> LOW_BITS << LOW_BITS };
        (timed || traced).then_some(at | if traced { TRACED } else { 0 } | u64::from(opcode))
    }

    /// Returns whether a command is traced, by its index in the batch.
    pub(crate) fn traces(&self, index: u32) -> bool {
        index.checked_sub(self.skipped).is_some_and(|index| index < self.traced)
    }

    /// Returns the choice without its traces.
    pub(crate) fn untraced(self) -> Self {
        Self { traced: 0, ..self }
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

    /// Returns the number of the command with a look, counted from the last one, in a batch that has one.
    fn look(looks: &mut Looks, count: u32, now_ns: u64) -> Option<(u32, u32)> {
        looks.is_due(count, now_ns).then(|| looks.look(count, now_ns))
    }

    #[test]
    fn a_look_is_due_after_so_many_commands_or_after_a_pause() {
        let mut looks = Looks::default();
        looks.set_period(61);
        assert_eq!(look(&mut looks, 8, 5), Some((0, 1)), "the first command");
        assert_eq!((1..7).find_map(|_| look(&mut looks, 8, 5)), None);
        assert_eq!(
            look(&mut looks, 8, 5),
            Some((5, 61)),
            "7 and 48 behind the first, and the sixth of these"
        );
        assert_eq!(look(&mut looks, 1, 5 + QUIET_NS - 1), None);
        assert_eq!(look(&mut looks, 1, 5 + QUIET_NS), Some((0, 2 + 2)));
        assert_eq!(look(&mut looks, 60, 5 + QUIET_NS), None);
        assert_eq!(look(&mut looks, 16, 5 + QUIET_NS), Some((0, 61)));
    }

    #[test]
    fn looks_are_at_each_command_of_a_number_whatever_the_batches() {
        for period in [2, 5, 16, 61, 127] {
            let mut looks = Looks::default();
            looks.set_period(period);
            let (mut total, mut at, mut seen) = (0, Vec::new(), 0);
            for round in 0..800_u32 {
                let count = if period < BATCH_MAX { 1 } else { 1 + round * 7 % BATCH_MAX };
                if let Some((index, since)) = look(&mut looks, count, 1) {
                    at.push(total + index);
                    seen += since;
                    assert_eq!(seen, total + index + 1, "all commands up to this one are represented");
                }
                total += count;
            }
            let expected: Vec<u32> = (0..total).step_by(period as usize).collect();
            assert_eq!(at, expected, "{period}");
        }
    }

    #[test]
    fn no_command_is_lost_where_batches_are_longer_than_the_period() {
        let mut looks = Looks::default();
        looks.set_period(3);
        let since: Vec<_> = (0..4).map(|_| look(&mut looks, 16, 1)).collect();
        assert_eq!(since, [Some((2, 3)), Some((0, 14)), Some((0, 16)), Some((0, 16))]);
    }

    #[test]
    fn every_command_has_a_look_where_the_period_is_one() {
        let mut looks = Looks::default();
        for period in [0, 1] {
            looks.set_period(period);
            assert!(looks.are_at_all());
            assert!((0..10).all(|_| look(&mut looks, 1, 0) == Some((0, 1))));
        }
        looks.set_period(2);
        assert!(!looks.are_at_all());
    }

    #[test]
    fn stamps_keep_all_their_parts() {
        let chosen =
            Chosen { skipped: 3, traced: 1, timed: 2, at: stamp(9, WEIGHT_MAX), trace_is_over: false };
        let stamps: Vec<_> = (0..7).map(|index| chosen.stamp(index, 0xff)).collect();
        let (weight_of, most) = (|index: usize| stamps[index].map(weight), Some(u64::from(WEIGHT_MAX)));
        assert_eq!((0..7).map(weight_of).collect::<Vec<_>>(), [None, None, None, most, most, None, None]);
        assert_eq!(stamps[3].map(unmarked), stamps[4]);
        assert_eq!(stamps[4].map(|stamp| (stamp >> LOW_BITS, stamp as u8)), Some((9, 0xff)));
        assert_eq!((0..7).filter(|&index| chosen.traces(index)).collect::<Vec<_>>(), [3]);
        assert_eq!((chosen.end(), chosen.untraced().end()), (5, 5));
        let only_traced = Chosen { timed: 0, traced: 2, ..chosen };
        assert_eq!(only_traced.stamp(4, 1).map(weight), Some(0));
        assert_eq!(Chosen { skipped: 3, ..Chosen::default() }.end(), 0);
    }
}
