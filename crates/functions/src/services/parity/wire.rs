//! Orders, status and record of the function, as operators write and read them.

use super::ParityFunction;
use super::settings::{NAME, Settings};
use crate::services::replicate::{LogState, MemberState, SetCheck};
use crate::services::service::{Changes, Item, Metric, OnLoss, Order, Service, SizeOf};
use serde::{Deserialize, Serialize};
use sluice_crypt::Given;
use sluice_uif::abi::LAYERS_MAX;
use sluice_uif::{Function, Options};
use std::fmt;

/// Order for an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ArrayOrder {
    /// Returns the status.
    Status,
    /// Tries all lost members, and those taken out.
    Resync,
    /// Tries one member.
    ResyncMember { member: usize },
    /// Takes out one member.
    FailMember { member: usize },
    /// Compares all data with the parities.
    Check,
    /// Computes all parities from the data.
    Recompute,
    /// Gives the array so many parities.
    Parities { parities: usize },
}

impl Order for ArrayOrder {
    fn of_words(words: &[&str]) -> Option<Self> {
        let number = |word: &str| word.parse().ok();
        Some(match words {
            ["status"] => Self::Status,
            ["resync"] => Self::Resync,
            ["resync", member] => Self::ResyncMember { member: number(member)? },
            ["fail", member] => Self::FailMember { member: number(member)? },
            ["check"] => Self::Check,
            ["recompute"] => Self::Recompute,
            ["parities", parities] => Self::Parities { parities: number(parities)? },
            _ => return None,
        })
    }
}

impl fmt::Display for ArrayOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Resync => f.write_str("resync"),
            Self::ResyncMember { member } => write!(f, "resync {member}"),
            Self::FailMember { member } => write!(f, "fail {member}"),
            Self::Check => f.write_str("check"),
            Self::Recompute => f.write_str("recompute"),
            Self::Parities { parities } => write!(f, "parities {parities}"),
        }
    }
}

/// State of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayState {
    #[serde(rename = "in sync")]
    InSync,
    #[serde(rename = "resyncing")]
    Resyncing,
    /// An operator has taken out all members that are missing.
    #[serde(rename = "out")]
    Out,
    #[serde(rename = "degraded")]
    Degraded,
}

/// Status of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayStatusView {
    pub state: ArrayState,
    pub members: Vec<MemberState>,
    pub parity: u8,
    /// Members behind those of the array, for another parity.
    #[serde(default)]
    pub spares: u8,
    /// Whether the number of parities is being changed. Then commands wait that need a parity.
    #[serde(default)]
    pub changing: bool,
    /// Bytes of the drive.
    pub bytes: u64,
    /// Bytes of each member in regions where something has to be rebuilt.
    pub stale_bytes: u64,
    pub resync_bytes: u64,
    pub resync_bytes_s: u64,
    /// Times that a member was lost.
    pub losses: u64,
    /// Cells that were written again because they could not be read, or were wrong.
    pub repairs: u64,
    /// Reads whose data did not fit to the parities.
    pub mismatches: u64,
    pub log: LogState,
    pub check: SetCheck,
}

impl ArrayStatusView {
    /// Parses a status.
    ///
    /// # Errors
    /// The text is no status of an array.
    pub fn parse(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|error| format!("this is no status of an array: {error}: {json}"))
    }
}

impl Service for ParityFunction {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Divides the drive among several layers, of which one or two may fail.";
    const OPTIONS: &'static [Item] = &[
        Item {
            name: "parity",
            about: "Number of members that may fail in a new array: `1` (RAID-5, the default) or `2` (RAID-6).",
        },
        Item {
            name: "chunk",
            about: "Bytes of a chunk: a multiple of 4 KiB from 4 KiB to 1 MiB, `64KiB` by default.",
        },
        Item {
            name: "resync_mib_s",
            about: "MiB a second of each member that are rebuilt or compared while the host works, `64` by default.",
        },
        Item {
            name: "safe_read",
            about: "`true` compares each read with the parities. Each read takes as long as that of a whole stripe.",
        },
        Item {
            name: "spare",
            about: "`true` leaves the last member before the log out of the array, until `parities 2` makes it the second parity.",
        },
    ];
    const ORDERS: &'static [Item] = &[
        Item { name: "status", about: "Returns the state of the array and of each member, in JSON." },
        Item { name: "resync", about: "Tries lost members now." },
        Item { name: "resync N", about: "Tries member N now." },
        Item { name: "fail N", about: "Takes member N out until `resync`." },
        Item { name: "check", about: "Compares all data with the parities in the background." },
        Item { name: "recompute", about: "Computes all parities from the data, which is right." },
        Item {
            name: "parities N",
            about: "Gives an array with a spare 2 parities, or 1 again, while the drive is in use.",
        },
    ];
    const METRICS: &'static [Metric] = &[
        Metric { name: "degraded", about: "1 while a member lacks something." },
        Metric {
            name: "stale_bytes",
            about: "Bytes of each member in regions where something has to be rebuilt.",
        },
        Metric { name: "resync_bytes_total", about: "Bytes of each member that were rebuilt." },
        Metric { name: "resync_bytes_per_second", about: "Rate of rebuilding now." },
        Metric { name: "losses_total", about: "Times that a member was lost." },
        Metric {
            name: "repairs_total",
            about: "Cells that were written again because they were unreadable or wrong.",
        },
        Metric { name: "mismatches_total", about: "Reads whose data did not fit to the parities." },
        Metric { name: "check_different_pieces", about: "Pieces that the last check found different." },
        Metric { name: "check_unreadable_pieces", about: "Pieces that the last check could not read." },
        Metric { name: "log_broken", about: "1 while the log cannot be written." },
    ];
    const LAYERS: (usize, usize) = (3, LAYERS_MAX - 1);
    const ON_LOSS: OnLoss = OnLoss::FailCommand;
    const KEEPS_COPIES: bool = true;
    const HAS_JOBS: bool = true;

    type Order = ArrayOrder;

    fn make(options: &Options, _: &Given) -> Result<Box<dyn Function>, String> {
        Ok(Box::new(Self::new(options)?))
    }

    fn size(options: &Options) -> Option<SizeOf> {
        let settings = Settings::of(options).ok()?;
        Some(SizeOf::new(move |sizes| settings.drive_bytes(sizes)))
    }

    fn data(options: &Options) -> Option<String> {
        Settings::of(options).ok().map(|settings| settings.data())
    }

    fn changes() -> Changes {
        Changes { stays: Some("its members have the data in parts"), ..Changes::default() }
    }
}
