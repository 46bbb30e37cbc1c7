//! Small seeded generator: the same seed gives the same run, on every machine and in every release.

/// SplitMix64: one word of state, full period, and any seed is a good one. Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Returns a number from zero to `bound`, itself not included; zero if the bound is.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no division, and a bias of at most bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        match (high - low).checked_add(1) {
            Some(width) => low + self.below(width),
            None => self.next_u64(),
        }
    }

    /// Returns true once in `of` calls, on average.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// Returns true with this probability, from 0.0 to 1.0.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        // A double holds 53 bits exactly.
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Returns one of these, each as likely as any other.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// Returns a generator of its own, so that drawing more in one place does not change another.
    pub fn split(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        // The published reference output of SplitMix64 for seed 1234567.
        let mut random = Random::new(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] += 1;
            assert!((3..=4).contains(&random.between(3, 4)));
        }
        assert!(seen.iter().all(|&times| times > 100), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.between(9, 9), 9);
        random.between(0, u64::MAX);
    }

    #[test]
    fn a_chance_of_nothing_never_comes_and_of_one_always() {
        let mut random = Random::new(1);
        let half = (0..1000).filter(|_| random.chance(0.5)).count();
        assert!((400..600).contains(&half), "{half}");
        assert!((0..1000).all(|_| !random.chance(0.0) && random.chance(1.0)));
    }
}
