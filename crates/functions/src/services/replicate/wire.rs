//! Orders and status of a set, as operators write and read them.

use super::Replicate;
use super::member::Mode;
use crate::services::service::{Changes, Farewell, Item, Metric, OnLoss, Order, Service, check_options};
use serde::{Deserialize, Serialize};
use sluice_crypt::Given;
use sluice_uif::abi::LAYERS_MAX;
use sluice_uif::{Function, Options};
use std::fmt;

/// Order for a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum SetOrder {
    /// Returns the status.
    Status,
    /// Tries all lost members, and those taken out.
    Resync,
    /// The same, and copies everything.
    ResyncAll,
    /// Tries one member.
    ResyncMember { member: usize },
    /// Takes out the member that is not the drive, where there are two.
    Fail,
    /// Takes out one member.
    FailMember { member: usize },
    /// Compares the members.
    Check,
    /// Begins the set anew with what this member has.
    CopyFrom { member: usize },
}

impl Order for SetOrder {
    fn of_words(words: &[&str]) -> Option<Self> {
        let number = |word: &str| word.parse().ok();
        Some(match words {
            ["status"] => Self::Status,
            ["resync"] => Self::Resync,
            ["resync", "all"] => Self::ResyncAll,
            ["resync", member] => Self::ResyncMember { member: number(member)? },
            ["fail"] => Self::Fail,
            ["fail", member] => Self::FailMember { member: number(member)? },
            ["check"] => Self::Check,
            ["copy", "from", member] => Self::CopyFrom { member: number(member)? },
            _ => return None,
        })
    }
}

impl fmt::Display for SetOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Resync => f.write_str("resync"),
            Self::ResyncAll => f.write_str("resync all"),
            Self::ResyncMember { member } => write!(f, "resync {member}"),
            Self::Fail => f.write_str("fail"),
            Self::FailMember { member } => write!(f, "fail {member}"),
            Self::Check => f.write_str("check"),
            Self::CopyFrom { member } => write!(f, "copy from {member}"),
        }
    }
}

/// Order for a set of equal members, none of which is meant without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct EqualsOrder(pub SetOrder);

impl Order for EqualsOrder {
    fn of_words(words: &[&str]) -> Option<Self> {
        SetOrder::of_words(words).filter(|order| *order != SetOrder::Fail).map(Self)
    }
}

impl fmt::Display for EqualsOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Status of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetStatus {
    pub state: SetState,
    pub generation: u64,
    /// Bytes of the regions in which members may differ.
    pub dirty_bytes: u64,
    pub members: Vec<MemberState>,
    /// Member that is copied from.
    pub source: usize,
    /// Bytes of the drive.
    pub bytes: u64,
    /// Copy rate now, bytes per second.
    pub resync_bytes_s: u64,
    /// Bytes that have to be copied.
    pub stale_bytes: u64,
    pub resync_bytes: u64,
    /// Times that a member was lost.
    pub losses: u64,
    pub source_errors: u64,
    pub log: LogState,
    pub check: SetCheck,
}

/// State of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetState {
    #[serde(rename = "in sync")]
    InSync,
    #[serde(rename = "resyncing")]
    Resyncing,
    /// An operator has taken out all members that miss something.
    #[serde(rename = "out")]
    Out,
    #[serde(rename = "degraded")]
    Degraded,
}

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    #[serde(rename = "in sync")]
    InSync,
    #[serde(rename = "resyncing")]
    Resyncing,
    #[serde(rename = "out")]
    Out,
    #[serde(rename = "lost")]
    Lost,
}

/// State of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogState {
    #[serde(rename = "good")]
    Good,
    #[serde(rename = "was damaged")]
    WasDamaged,
    #[serde(rename = "broken")]
    Broken,
}

/// Progress of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetCheck {
    pub running: bool,
    pub bytes: u64,
    pub different: u64,
    pub unreadable: u64,
    pub first_different: Option<u64>,
}

impl fmt::Display for SetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InSync => "in sync",
            Self::Resyncing => "resyncing",
            Self::Out => "out",
            Self::Degraded => "degraded",
        })
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::InSync => "in sync",
            Self::Resyncing => "resyncing",
            Self::Out => "out",
            Self::Lost => "lost",
        })
    }
}

impl SetStatus {
    /// Parses a status.
    ///
    /// # Errors
    /// The text is no status of a set.
    pub fn parse(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|error| format!("this is no status of a set: {error}: {json}"))
    }
}

const RATE: Item = Item {
    name: "resync_mib_s",
    about: "MiB a second that are copied while the host writes, `64` by default. While it does not, copying is as fast as it can be.",
};

const METRICS: &[Metric] = &[
    Metric { name: "degraded", about: "1 while a member lacks something." },
    Metric { name: "dirty_bytes", about: "Bytes of the regions in which members may differ." },
    Metric { name: "stale_bytes", about: "Bytes that have to be copied." },
    Metric { name: "resync_bytes_total", about: "Bytes that were copied." },
    Metric { name: "resync_bytes_per_second", about: "Copy rate now." },
    Metric { name: "losses_total", about: "Times that a member was lost." },
    Metric { name: "source_errors_total", about: "Times that the source could not be read or written." },
    Metric { name: "check_different_pieces", about: "Pieces that the last check found different." },
    Metric { name: "check_unreadable_pieces", about: "Pieces that the last check could not read." },
    Metric { name: "log_broken", about: "1 while the log cannot be written." },
];

impl Service for Replicate {
    const NAME: &'static str = "replicate";
    const ABOUT: &'static str = "Keeps a second copy of the drive, which the host does not read.";
    const OPTIONS: &'static [Item] = &[RATE];
    const ORDERS: &'static [Item] = &[
        Item { name: "status", about: "Returns the state of the set, in JSON." },
        Item { name: "resync", about: "Tries the secondary now." },
        Item { name: "resync N", about: "Tries member N now." },
        Item { name: "resync all", about: "Tries the secondary now, and copies everything." },
        Item { name: "fail", about: "Takes the secondary out until `resync`." },
        Item { name: "check", about: "Compares both copies in the background." },
        Item { name: "copy from N", about: "Begins the set anew: member N is right." },
    ];
    const METRICS: &'static [Metric] = METRICS;
    const LAYERS: (usize, usize) = (2, 2);
    const KEEPS_COPIES: bool = true;
    const HAS_JOBS: bool = true;

    type Order = SetOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Self::new(options)?))
    }

    fn keeps_size(_: &Options) -> bool {
        true
    }

    fn changes() -> Changes {
        // The log covers only writes that passed the function. There is an order at both ends so that no crash
        // comes between.
        Changes {
            asked: Some(SetOrder::CopyFrom { member: 0 }.to_string()),
            attached: Some(SetOrder::ResyncAll.to_string()),
            detached: Some(Farewell {
                order: SetOrder::Fail.to_string(),
                undo: SetOrder::Resync.to_string(),
                status: SetOrder::Status.to_string(),
                is_given: |status| Ok(SetStatus::parse(status)?.state == SetState::Out),
            }),
            stays: None,
        }
    }
}

/// Replicate with equal members: the function `mirror`.
#[derive(Debug)]
pub(crate) struct Equals;

impl Service for Equals {
    const NAME: &'static str = "mirror";
    const ABOUT: &'static str = "Keeps equal copies, any of which is read.";
    const OPTIONS: &'static [Item] = &[RATE];
    const ORDERS: &'static [Item] = &[
        Item { name: "status", about: "Returns the state of the set and of each member, in JSON." },
        Item { name: "resync", about: "Tries lost members now." },
        Item { name: "resync N", about: "Tries member N now." },
        Item { name: "resync all", about: "Tries lost members now, and copies everything." },
        Item { name: "fail N", about: "Takes member N out until `resync`." },
        Item { name: "check", about: "Compares all members in the background." },
        Item { name: "copy from N", about: "Begins the set anew: member N is right." },
    ];
    const METRICS: &'static [Metric] = METRICS;
    const LAYERS: (usize, usize) = (2, LAYERS_MAX - 1);
    /// Another member takes the place of a member that fails. The host reads the primary of a `replicate`
    /// past the function, and no copy takes its place.
    const ON_LOSS: OnLoss = OnLoss::FailCommand;
    const KEEPS_COPIES: bool = true;
    const HAS_JOBS: bool = true;

    type Order = EqualsOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Replicate::mirror(options)?))
    }

    fn keeps_size(_: &Options) -> bool {
        true
    }

    fn changes() -> Changes {
        Changes {
            stays: Some("the host may be reading another of its members than what it stands on"),
            ..Changes::default()
        }
    }
}

impl Mode {
    /// Checks the names of options.
    pub(super) fn check_options(self, options: &Options) -> Result<(), String> {
        match self {
            Self::Copy => check_options::<Replicate>(options),
            Self::Equals => check_options::<Equals>(options),
        }
    }

    /// Parses an order.
    pub(super) fn order(self, text: &str) -> Result<SetOrder, String> {
        use crate::services::service::parse;
        match self {
            Self::Copy => parse::<Replicate>(text),
            Self::Equals => parse::<Equals>(text).map(|EqualsOrder(order)| order),
        }
    }
}
