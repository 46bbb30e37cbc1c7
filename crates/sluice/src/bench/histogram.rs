//! Latencies in buckets: exact where they are short, within 1.6 % where they are long.
//!
//! A sample costs a few instructions and no memory: the buckets are there from the start, 64 for each
//! power of two.

/// Buckets for each power of two, as a power of two.
const SUB_BITS: u32 = 6;
/// Values of this many bits and more are counted as the largest with fewer: 18 minutes in nanoseconds.
const VALUE_BITS: u32 = 40;
const BUCKETS: usize = ((VALUE_BITS - SUB_BITS + 1) as usize) << SUB_BITS;
const LARGEST: u64 = (1 << VALUE_BITS) - 1;

/// Samples, in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    largest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), count: 0, largest: 0 }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram({} samples, at most {} ns)", self.count, self.largest)
    }
}

impl Histogram {
    #[inline]
    pub fn record(&mut self, ns: u64) {
        let ns = ns.min(LARGEST);
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.largest = self.largest.max(ns);
    }

    /// Samples.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest, in nanoseconds; zero if there is none.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// The smallest value that at least this share of the samples (0.0 to 1.0) do not exceed, in
    /// nanoseconds, rounded up to the end of its bucket. Zero if there is no sample.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return last_of(index).min(self.largest);
            }
        }
        self.largest
    }
}

/// The bucket of a value. Below 2^(SUB_BITS + 1) each value has its own; above, the bits after the
/// leading one choose.
#[inline]
fn bucket(value: u64) -> usize {
    let shift = shift_of(value);
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// How many low bits of a value its bucket does not tell apart.
#[inline]
fn shift_of(value: u64) -> u32 {
    (value | 1).ilog2().saturating_sub(SUB_BITS)
}

/// The largest value of a bucket.
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
        histogram.record(u64::MAX);
        assert_eq!((histogram.largest(), histogram.quantile(1.0)), (LARGEST, LARGEST));
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_samples(
            mut samples in prop::collection::vec((0u32..40, any::<u64>()).prop_map(|(bits, value)| value >> (63 - bits)), 1..500),
            share in 0.0..=1.0f64,
        ) {
            let mut histogram = Histogram::default();
            samples.iter().for_each(|&sample| histogram.record(sample));
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
