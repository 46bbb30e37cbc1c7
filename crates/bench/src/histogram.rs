//! Latencies in buckets: exact where they are short, within 1.6 % where they are long.
//!
//! A sample costs a few instructions and no memory: the buckets exist from the start, 64 for each power of
//! two. A sample is recorded in the unit of the clock, and the results are in nanoseconds.

use quanta::Clock;

/// Buckets for each power of two, as a power of two.
const SUB_BITS: u32 = 6;
/// Bits of a recorded value. Longer values are counted as the largest of these: 18 minutes in nanoseconds, or
/// 5 in ticks of a fast clock.
const VALUE_BITS: u32 = 40;
const BUCKETS: usize = ((VALUE_BITS - SUB_BITS + 1) as usize) << SUB_BITS;
const LARGEST: u64 = (1 << VALUE_BITS) - 1;

/// Samples, counted in buckets.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    /// Largest sample in units, as the buckets are.
    largest: u64,
    /// Nanoseconds of a unit.
    unit_ns: f64,
}

/// Histogram of samples in nanoseconds.
impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), largest: 0, unit_ns: 1.0 }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram({} samples, at most {} ns)", self.count(), self.largest())
    }
}

impl Histogram {
    /// Returns a histogram of samples in the raw ticks of a clock.
    pub fn of_ticks(clock: &Clock) -> Self {
        const SAMPLE: u64 = 1 << 32;
        let unit_ns = clock.delta_as_nanos(0, SAMPLE) as f64 / SAMPLE as f64;
        Self { unit_ns, ..Self::default() }
    }

    /// Records `count` samples of the same value.
    #[inline]
    pub fn record(&mut self, value: u64, count: u64) {
        let value = value.min(LARGEST);
        self.counts[bucket(value)] += count;
        self.largest = self.largest.max(value);
    }

    /// Removes a recorded sample. The [`largest`](Self::largest) stays the same.
    pub fn take_out(&mut self, value: u64) {
        let count = &mut self.counts[bucket(value.min(LARGEST))];
        *count = count.saturating_sub(1);
    }

    /// Adds the samples of another histogram of the same clock.
    pub fn merge(&mut self, other: &Self) {
        debug_assert_eq!(self.unit_ns, other.unit_ns, "histograms of one clock");
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(sum, count)| *sum += count);
        self.largest = self.largest.max(other.largest);
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the longest sample in nanoseconds; zero if there is none.
    pub fn largest(&self) -> u64 {
        self.ns(self.largest)
    }

    /// Returns the smallest value that at least this share of the samples (0.0 to 1.0) do not exceed. The
    /// value is in nanoseconds, rounded up to the end of its bucket; zero if there is no sample.
    pub fn quantile(&self, share: f64) -> u64 {
        let total = self.count();
        let wanted = ((share * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return self.ns(last_of(index).min(self.largest));
            }
        }
        self.largest()
    }

    fn ns(&self, value: u64) -> u64 {
        (value as f64 * self.unit_ns).round() as u64
    }
}

/// Returns the bucket of a value. Each value below 2^(SUB_BITS + 1) has its own bucket; above, the bits after
/// the leading one choose.
#[inline]
fn bucket(value: u64) -> usize {
    let shift = shift_of(value);
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// Returns the number of low bits of a value that its bucket does not distinguish.
#[inline]
fn shift_of(value: u64) -> u32 {
    (value | 1).ilog2().saturating_sub(SUB_BITS)
}

/// Returns the largest value of a bucket.
fn last_of(index: usize) -> u64 {
    let shift = (index >> SUB_BITS).saturating_sub(1) as u32;
    let first = (index - ((shift as usize) << SUB_BITS)) as u64;
    ((first + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut next = 0;
        for index in 0..BUCKETS {
            let last = last_of(index);
            assert_eq!((bucket(next), bucket(last)), (index, index));
            assert!(last - next <= next >> SUB_BITS, "bucket {index} is too wide");
            next = last + 1;
        }
        assert_eq!(next, LARGEST + 1);
    }

    #[test]
    fn nothing_has_no_quantiles() {
        assert_eq!((Histogram::default().quantile(0.5), Histogram::default().largest()), (0, 0));
    }

    #[test]
    fn what_is_too_long_is_counted_as_the_longest() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX, 1);
        assert_eq!((histogram.largest(), histogram.quantile(1.0)), (LARGEST, LARGEST));
    }

    #[test]
    fn ticks_become_nanoseconds() {
        let (clock, _) = Clock::mock();
        assert_eq!(Histogram::of_ticks(&clock).unit_ns, 1.0);
        let mut histogram = Histogram { unit_ns: 0.5, ..Histogram::default() };
        histogram.record(100, 3);
        histogram.record(200, 1);
        assert_eq!((histogram.quantile(0.75), histogram.largest(), histogram.count()), (50, 100, 4));
    }

    proptest! {
        #[test]
        fn merged_samples_are_those_of_both(
            samples in prop::collection::vec((any::<bool>(), 0..LARGEST), 0..200),
            share in 0.0..=1.0f64,
        ) {
            let [mut all, mut one, mut other] = [(); 3].map(|()| Histogram::default());
            for &(first, sample) in &samples {
                all.record(sample, 1);
                if first { one.record(sample, 1) } else { other.record(sample, 1) }
            }
            one.merge(&other);
            prop_assert_eq!(one.quantile(share), all.quantile(share));
            prop_assert_eq!((one.count(), one.largest()), (all.count(), all.largest()));
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_samples(
            mut samples in prop::collection::vec((0u32..40, any::<u64>()).prop_map(|(bits, value)| value >> (63 - bits)), 1..500),
            share in 0.0..=1.0f64,
        ) {
            let mut histogram = Histogram::default();
            samples.iter().for_each(|&sample| histogram.record(sample, 1));
            samples.sort_unstable();
            let rank = ((share * samples.len() as f64).ceil() as usize).max(1);
            let exact = samples[rank - 1].min(LARGEST);
            let found = histogram.quantile(share);
            prop_assert!(found >= exact && found - exact <= exact >> SUB_BITS, "{found} for {exact}");
            prop_assert_eq!(histogram.count(), samples.len() as u64);
            prop_assert_eq!(histogram.largest(), samples[samples.len() - 1].min(LARGEST));
        }
    }
}
