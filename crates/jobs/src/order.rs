//! Orders for jobs, as text on their way to a function.

use crate::PaceChange;
use serde::{Deserialize, Serialize};

/// Name of an order for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Pause,
    Resume,
    Cancel,
    Pace,
}

impl Verb {
    const ALL: [Self; 4] = [Self::Pause, Self::Resume, Self::Cancel, Self::Pace];

    /// Returns the name of the order.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Pace => "pace",
        }
    }
}

/// Order for the jobs of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// List of all jobs; the answer is an array of [reports](crate::Report).
    List,
    /// Order for the job of this name; the answer is its report.
    Do(Verb, String, PaceChange),
}

impl Order {
    /// Creates an order without a pace.
    pub fn new(verb: Verb, name: impl Into<String>) -> Self {
        Self::Do(verb, name.into(), PaceChange::default())
    }

    /// Parses `jobs`, `job pause|resume|cancel NAME` and `job pace NAME LIMIT...`. Returns none if the text is
    /// no order for jobs.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let mut words = text.split_whitespace();
        match words.next()? {
            "jobs" if words.next().is_none() => Some(Ok(Self::List)),
            "job" => Some(Self::parse_one(words)),
            _ => None,
        }
    }

    fn parse_one<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let verb = words.next().and_then(|word| Verb::ALL.into_iter().find(|verb| verb.word() == word));
        let (Some(verb), Some(name)) = (verb, words.next()) else {
            return Err(
                "the orders for jobs are jobs, job pause NAME, job resume NAME, job cancel NAME and \
                        job pace NAME LIMIT..."
                    .to_owned(),
            );
        };
        let change = match verb {
            Verb::Pace => PaceChange::parse(words)?,
            _ => match words.next() {
                None => PaceChange::default(),
                Some(more) => return Err(format!("`{more}` does not belong to `{} {name}`", verb.word())),
            },
        };
        Ok(Self::Do(verb, name.to_owned(), change))
    }

    /// Returns the text that [`parse`](Self::parse) reads.
    pub fn text(&self) -> String {
        match self {
            Self::List => "jobs".to_owned(),
            Self::Do(verb, name, change) => {
                format!("job {} {name} {}", verb.word(), change.words()).trim_end().to_owned()
            }
        }
    }
}
