//! Seeds of a test.

/// Returns the seeds of a test: first the earlier failures, and then `count` more, from 0 on. The
/// environment variable `SLUICE_SEEDS` sets another count, `SLUICE_FIRST_SEED` another first seed,
/// `SLUICE_SEED` one seed to run alone.
pub fn seeds(failed_once: &[u64], count: u64) -> impl Iterator<Item = u64> + use<'_> {
    let alone = number("SLUICE_SEED");
    let count = number("SLUICE_SEEDS").unwrap_or(count);
    let known = failed_once.iter().copied().filter(move |_| alone.is_none());
    let first = number("SLUICE_FIRST_SEED").unwrap_or(0);
    let range = alone.map_or(first..first + count, |seed| seed..seed + 1);
    known.chain(range).inspect(|seed| {
        // Shown by the test harness only if the test fails: the last line is the seed that did.
        eprintln!("seed {seed}");
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}
