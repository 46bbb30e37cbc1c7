//! Pace of a job, and its measured rate.

use serde::{Deserialize, Serialize};

const SECOND_NS: u64 = 1_000_000_000;

/// Share of a job that is not limited, percent.
const WHOLE: u8 = 100;

/// Weight of a job among the jobs that are due at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    Low,
    #[default]
    Normal,
    High,
}

impl Priority {
    /// Returns the cost of a byte in virtual time: a job with a quarter of the cost gets four times as much.
    pub(crate) fn cost(self) -> u64 {
        match self {
            Self::Low => 16,
            Self::Normal => 4,
            Self::High => 1,
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Low, Self::Normal, Self::High].into_iter().find(|priority| priority.word() == word)
    }

    /// Returns the name of the priority.
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

/// Limits of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Maximum rate in MiB per second; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<u32>,
    /// Maximum share of time in which a step of the job is in flight, percent; none for no limit. The job
    /// takes at most that share of its reactor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u8>,
    #[serde(default)]
    pub priority: Priority,
}

/// Change of a job's limits. A limit without a value is unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceChange {
    /// MiB per second; zero for no limit.
    pub mib_s: Option<u32>,
    /// Percent of the time, 1 to 100; 100 for no limit.
    pub share: Option<u8>,
    pub priority: Option<Priority>,
}

impl PaceChange {
    /// Parses `mib_s=N`, `share=N` and `priority=low|normal|high`, one or several.
    ///
    /// # Errors
    /// Returns a message that names the wrong word.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut change = Self::default();
        for word in words {
            let wrong = || {
                format!("`{word}` is no limit: they are mib_s=N, share=1..100 and priority=low|normal|high")
            };
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            match key {
                "mib_s" => change.mib_s = Some(value.parse().map_err(|_| wrong())?),
                "share" => {
                    let share = value.parse().ok().filter(|share| (1..=WHOLE).contains(share));
                    change.share = Some(share.ok_or_else(wrong)?);
                }
                "priority" => change.priority = Some(Priority::parse(value).ok_or_else(wrong)?),
                _ => return Err(wrong()),
            }
        }
        match change == Self::default() {
            true => Err("a pace needs a limit: mib_s=N, share=1..100 or priority=low|normal|high".to_owned()),
            false => Ok(change),
        }
    }

    /// Returns the words that [`parse`](Self::parse) reads.
    pub fn words(&self) -> String {
        let words = [
            self.mib_s.map(|mib_s| format!("mib_s={mib_s}")),
            self.share.map(|share| format!("share={share}")),
            self.priority.map(|priority| format!("priority={}", priority.word())),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

impl Pace {
    /// Applies a change.
    pub(crate) fn change(&mut self, change: PaceChange) {
        if let Some(mib_s) = change.mib_s {
            self.mib_s = (mib_s > 0).then_some(mib_s);
        }
        if let Some(share) = change.share {
            self.share = (share < WHOLE).then_some(share.max(1));
        }
        self.priority = change.priority.unwrap_or(self.priority);
    }

    /// Returns the limit in bytes per second.
    pub(crate) fn bytes_s(&self) -> Option<u64> {
        self.mib_s.map(|mib_s| u64::from(mib_s) << 20)
    }

    /// Returns the time that so many bytes take at this rate, nanoseconds.
    pub(crate) fn time_of(&self, bytes: u64) -> u64 {
        let Some(bytes_s) = self.bytes_s() else { return 0 };
        let ns = (u128::from(bytes) * u128::from(SECOND_NS)).div_ceil(u128::from(bytes_s.max(1)));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the pause after a step that took `took_ns`, so that the steps keep to the share.
    pub(crate) fn pause_after(&self, took_ns: u64) -> u64 {
        let Some(share) = self.share else { return 0 };
        let share = share.clamp(1, WHOLE);
        let ns = (u128::from(took_ns) * u128::from(WHOLE - share)).div_ceil(u128::from(share));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// Rate of a job, measured over a second or more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    since_ns: u64,
    bytes: u64,
    pub(crate) bytes_s: u64,
}

impl Meter {
    /// Gap without a step after which the next step starts a new measurement.
    const GAP_NS: u64 = 5 * SECOND_NS;

    pub(crate) fn count(&mut self, bytes: u64, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        if passed_ns > Self::GAP_NS {
            *self = Self { since_ns: now_ns, ..Self::default() };
        } else if passed_ns >= SECOND_NS {
            let bytes_s = u128::from(self.bytes) * u128::from(SECOND_NS) / u128::from(passed_ns);
            *self = Self { since_ns: now_ns, bytes: 0, bytes_s: bytes_s as u64 };
        }
        self.bytes += bytes;
    }
}
