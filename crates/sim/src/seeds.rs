//! Which seeds a test runs.

/// The seeds of a test: those that failed once, and then `count` more. The environment variable
/// `SLUICE_SEEDS` says another count, `SLUICE_SEED` one seed to run alone.
pub fn seeds(failed_once: &[u64], count: u64) -> impl Iterator<Item = u64> + use<'_> {
    let alone = number("SLUICE_SEED");
    let count = number("SLUICE_SEEDS").unwrap_or(count);
    let known = failed_once.iter().copied().filter(move |_| alone.is_none());
    let range = alone.map_or(0..count, |seed| seed..seed + 1);
    known.chain(range).inspect(|seed| {
        // Shown by the test harness only if the test fails: the last line is the seed that did.
        eprintln!("seed {seed}");
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}
