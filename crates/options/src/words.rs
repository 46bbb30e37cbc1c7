//! Words for people: "did you mean", "3 drives".

/// Maximum length of a compared word. Longer words are no typing errors, and comparing them takes memory by
/// the square.
const LONGEST: usize = 80;

/// Returns the candidate that was most likely meant; `None` if no candidate is near.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > LONGEST {
        return None;
    }
    let given = given.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&given, &candidate.to_lowercase()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= tolerance(candidate))
        .map(|(_, candidate)| candidate)
}

/// Returns the number of typing errors that a word of this length may have.
fn tolerance(word: &str) -> usize {
    match word.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        6..=8 => 2,
        _ => 3,
    }
}

/// Returns every word between backticks: serde names fields and variants this way, the offending one first.
pub fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

/// Returns the remedy for a message of serde, if the message lists the possible words.
pub fn hint_for(message: &str) -> Option<String> {
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return None;
    }
    let mut words = quoted(message);
    let given = words.next()?;
    let known: Vec<&str> = words.collect();
    match nearest(given, known.iter().copied()) {
        Some(meant) => Some(format!("did you mean `{meant}`?")),
        None => Some(format!("possible here: {}", known.join(", "))),
    }
}

/// Formats a number of things: `1 drive`, `2 drives`.
pub fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["demo", "database", "web-1"];
        assert_eq!(nearest("dmeo", known), Some("demo"));
        assert_eq!(nearest("Databse", known), Some("database"));
        assert_eq!(nearest("web-2", known), Some("web-1"));
        assert_eq!(nearest("backup", known), None);
        assert_eq!(nearest("x", []), None);
        // Long words, which may be sent to use up memory, are not compared at all.
        assert_eq!(nearest(&"d".repeat(1 << 20), known), None);
        let longer = "d".repeat(LONGEST + 1);
        assert_eq!(nearest(&longer[1..], [longer.as_str()]), Some(longer.as_str()));
        assert_eq!(nearest(&longer, [longer.as_str()]), None);
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(
            [count(0, "drive"), count(1, "drive"), count(2, "drive")],
            ["0 drives", "1 drive", "2 drives"]
        );
    }

    #[test]
    fn serde_messages_become_hints() {
        let near = "unknown field `blocksize`, expected one of `target`, `block_size`";
        assert_eq!(hint_for(near).as_deref(), Some("did you mean `block_size`?"));
        let far = "unknown variant `floppy`, expected one of `null`, `memory`, `file`";
        assert_eq!(hint_for(far).as_deref(), Some("possible here: null, memory, file"));
        assert_eq!(hint_for("missing field `name`"), None);
    }
}
