//! Poison: wrong data on purpose, for tests of functions that detect or repair it.

use super::service::{Item, Metric, NoOrder, Service, check_options};
use crate::Random;
use sluice_command::Operation;
use sluice_crypt::Given;
use sluice_uif::{Answer, Call, Function, Interest, Io, Options, Properties};

/// Bytes that are exchanged: the smallest block.
const BLOCK: usize = 512;

/// Function that changes data without an error.
#[derive(Debug)]
pub(super) struct Poison {
    random: Random,
    /// Probabilities for a command.
    flip_read: f64,
    flip_write: f64,
    swap_write: f64,
    lose_write: f64,
    flipped: u64,
    swapped: u64,
    lost: u64,
}

impl Service for Poison {
    const NAME: &'static str = "poison";
    const ABOUT: &'static str = "Changes data without an error, at a rate and from a seed: for tests.";
    const OPTIONS: &'static [Item] = &[
        Item { name: "seed", about: "Seed of all random decisions, `0` by default." },
        Item {
            name: "flip_read",
            about: "Probability that a bit of a read's data is flipped, from `0.0` to `1.0`.",
        },
        Item { name: "flip_write", about: "Probability that a bit of a write's data is flipped." },
        Item { name: "swap_write", about: "Probability that two blocks of a write change places." },
        Item { name: "lose_write", about: "Probability that a write is acknowledged and not done." },
    ];
    const METRICS: &'static [Metric] = &[
        Metric { name: "flipped_total", about: "Bits that were flipped." },
        Metric { name: "swapped_total", about: "Pairs of blocks that changed places." },
        Metric { name: "lost_total", about: "Writes that were acknowledged and not done." },
    ];
    /// The seed goes on.
    const KEEPS_STATE: bool = true;

    type Order = NoOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Self::new(options)?))
    }

    fn keeps_size(_: &Options) -> bool {
        true
    }
}

impl Poison {
    fn new(options: &Options) -> Result<Self, String> {
        check_options::<Self>(options)?;
        let chance = |key: &str| match options.get(key).map(str::parse::<f64>) {
            None => Ok(0.0),
            Some(Ok(chance)) if (0.0..=1.0).contains(&chance) => Ok(chance),
            Some(_) => Err(format!("{key} is a probability, from 0.0 to 1.0")),
        };
        let seed = options.get("seed").map_or(Ok(0), str::parse);
        Ok(Self {
            random: Random::new(seed.map_err(|_| "seed is a number".to_owned())?),
            flip_read: chance("flip_read")?,
            flip_write: chance("flip_write")?,
            swap_write: chance("swap_write")?,
            lose_write: chance("lose_write")?,
            flipped: 0,
            swapped: 0,
            lost: 0,
        })
    }

    fn flip(&mut self, data: &mut [u8], chance: f64) {
        if !data.is_empty() && self.random.chance(chance) {
            let byte = self.random.below(data.len() as u64) as usize;
            data[byte] ^= 1 << self.random.below(8);
            self.flipped += 1;
        }
    }

    fn swap(&mut self, data: &mut [u8]) {
        let blocks = (data.len() / BLOCK) as u64;
        if blocks > 1 && self.random.chance(self.swap_write) {
            let first = self.random.below(blocks - 1) as usize;
            let second = self.random.between(first as u64 + 1, blocks - 1) as usize;
            let (low, high) = data.split_at_mut(second * BLOCK);
            low[first * BLOCK..][..BLOCK].swap_with_slice(&mut high[..BLOCK]);
            self.swapped += 1;
        }
    }
}

impl Function for Poison {
    fn properties(&self) -> Properties {
        Properties::NONE.with(Operation::Write, Interest::Before).with(Operation::Read, Interest::After)
    }

    fn submit(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        self.flip(call.data, self.flip_write);
        self.swap(call.data);
        if self.random.chance(self.lose_write) {
            self.lost += 1;
            return Answer::Finish(sluice_nvme::Status::SUCCESS);
        }
        Answer::Forward
    }

    fn returned(&mut self, call: &mut Call<'_>, _io: &mut Io<'_>) -> Answer {
        self.flip(call.data, self.flip_read);
        Answer::Finish(call.status)
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        count("flipped_total", self.flipped);
        count("swapped_total", self.swapped);
        count("lost_total", self.lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poison(options: &[(&str, &str)]) -> Result<Poison, String> {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Poison::new(&Options::new(options))
    }

    #[test]
    fn data_changes_as_often_as_it_should_and_the_same_with_the_same_seed() {
        let run = |seed: &str| {
            let mut it =
                poison(&[("seed", seed), ("flip_write", "0.25"), ("swap_write", "0.5")]).expect("good ones");
            let mut changed = Vec::new();
            for number in 0..400u32 {
                let mut data: Vec<u8> = (0..2048u32).map(|byte| (byte / 512 + number) as u8).collect();
                let before = data.clone();
                it.flip(&mut data, it.flip_write);
                it.swap(&mut data);
                changed.push(data != before);
            }
            (changed, it.flipped, it.swapped)
        };
        let (changed, flipped, swapped) = run("3");
        assert!((60..140).contains(&flipped) && (150..250).contains(&swapped), "{flipped} {swapped}");
        assert!(changed.iter().filter(|it| **it).count() as u64 >= swapped);
        assert_eq!(run("3").0, changed);
        assert_ne!(run("4").0, changed);
    }

    #[test]
    fn options_are_probabilities() {
        assert!(poison(&[("flip_read", "1.0"), ("lose_write", "0")]).is_ok());
        for wrong in [("flip_read", "1.5"), ("flip_write", "-1"), ("seed", "x"), ("nonsense", "1")] {
            assert!(poison(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
