//! Storage functions as a user describes them.

use super::{ConcatSpec, Fault, LayerSpec, StripeSpec, UifSpec};
use crate::size::Size;
use crate::words::nearest;
use serde::{Deserialize, Serialize};
use sluice_functions::Range;
use sluice_nvme::Status;
use utoipa::ToSchema;

/// A storage function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum FunctionSpec {
    /// Function that lets all commands through.
    Pass(PassSpec),
    /// Function that holds commands for a time.
    Delay(DelaySpec),
    /// Function that fails some of the commands.
    Fault(FaultSpec),
    /// Function that shows a part of the layer below.
    Range(RangeSpec),
    /// Function that divides the drive among several layers, chunk by chunk.
    Stripe(StripeSpec),
    /// Function that puts several layers one behind the other.
    Concat(ConcatSpec),
    /// Function behind the function SDK, in the daemon or in a process of its own.
    Uif(UifSpec),
}

/// Options of a function that lets all commands through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PassSpec {
    /// Whether the function sees commands again on their way up.
    #[serde(default)]
    pub watch: bool,
}

/// Times for which commands are held, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DelaySpec {
    /// Microseconds for Read.
    pub read_us: u64,
    /// Microseconds for Write, Write Zeroes and Deallocate.
    pub write_us: u64,
    /// Microseconds for Flush.
    pub flush_us: u64,
}

/// Part of the layer below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RangeSpec {
    /// Beginning of the part.
    pub from: Size,
    /// Size of the part; all that follows if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

/// Commands that fail, and their outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    pub outcome: OutcomeName,
    /// The status of `fail` and `fail_afterwards`, by its name in the specification: `write_fault`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Bytes that a `short` command still moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Size>,
    /// Operations that can be hit; all if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationName>,
    /// First byte of the range that a command must touch to be hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Size>,
    /// End of the range that a command must touch to be hit, itself not included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Size>,
    /// Matching commands that pass first.
    #[serde(default)]
    pub skip: u64,
    /// Interval of hits: the first command, and every n-th from there on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Probability that a command is hit, from 0.0 to 1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance: Option<f64>,
    /// Hits after which no further command is hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Seed of all random decisions.
    #[serde(default)]
    pub seed: u64,
}

/// Outcome of a command that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeName {
    /// The command fails and never reaches the target.
    Fail,
    /// The target executes the command, and the command fails afterwards.
    FailAfterwards,
    /// Only the first bytes of the command are moved.
    Short,
    /// The command is held for ever.
    Hang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationName {
    Read,
    Write,
    Flush,
    WriteZeroes,
    Deallocate,
}

impl FunctionSpec {
    /// Returns its name for people: the kind, or the name, program or socket of a function behind the
    /// function SDK.
    pub fn name(&self) -> String {
        let kind = match self {
            Self::Pass(_) => "pass",
            Self::Delay(_) => "delay",
            Self::Range(_) => "range",
            Self::Stripe(_) => "stripe",
            Self::Concat(_) => "concat",
            Self::Fault(_) => "fault",
            Self::Uif(uif) => return uif.about(),
        };
        kind.to_owned()
    }

    pub fn check(&self) -> Result<(), Fault> {
        match self {
            Self::Pass(_) => Ok(()),
            Self::Delay(delay) => delay.check(),
            Self::Range(range) => range.check(),
            Self::Stripe(stripe) => stripe.check(),
            Self::Concat(concat) => concat.check(),
            Self::Fault(fault) => fault.check(),
            Self::Uif(uif) => uif.check(),
        }
    }

    /// Returns the layers below it besides the rest of the stack, to change them.
    pub fn layers_mut(&mut self) -> &mut [LayerSpec] {
        match self {
            Self::Stripe(stripe) => &mut stripe.layers,
            Self::Concat(concat) => &mut concat.layers,
            Self::Uif(uif) => &mut uif.layers,
            Self::Pass(_) | Self::Delay(_) | Self::Range(_) | Self::Fault(_) => &mut [],
        }
    }

    /// Returns the layers below it besides the rest of the stack.
    pub fn layers(&self) -> &[LayerSpec] {
        match self {
            Self::Stripe(stripe) => &stripe.layers,
            Self::Concat(concat) => &concat.layers,
            Self::Uif(uif) => &uif.layers,
            Self::Pass(_) | Self::Delay(_) | Self::Range(_) | Self::Fault(_) => &[],
        }
    }

    /// Returns whether it is as large as the layer below.
    pub(super) fn keeps_size(&self) -> bool {
        match self {
            Self::Pass(_) | Self::Delay(_) | Self::Fault(_) => true,
            Self::Range(_) | Self::Stripe(_) | Self::Concat(_) => false,
            Self::Uif(uif) => uif.keeps_size(),
        }
    }

    /// Describes the part of the layer below that holds the data, and the further layers that do. A `uif`
    /// does not count, because it is attached and detached while the drive is in use.
    pub(super) fn data_location(&self) -> Option<String> {
        let layers = self.layers().iter().map(|layer| format!("[{}]", layer.as_namespace().data_location()));
        let layers = || layers.collect::<Vec<_>>().join(" ");
        match self {
            Self::Range(RangeSpec { from, size }) => {
                let size = size.map_or_else(|| "all".to_owned(), |size| size.to_string());
                Some(format!("range of {size} from {from}"))
            }
            Self::Stripe(StripeSpec { chunk, .. }) => Some(format!("stripe of {chunk} with {}", layers())),
            Self::Concat(_) => Some(format!("concat with {}", layers())),
            Self::Pass(_) | Self::Delay(_) | Self::Fault(_) | Self::Uif(_) => None,
        }
    }

    /// Returns whether a namespace with it has the size of several targets, not of one.
    pub fn is_composed(&self) -> bool {
        matches!(self, Self::Stripe(_) | Self::Concat(_))
    }
}

impl DelaySpec {
    /// Maximum delay. A guest gives up on a command after half a minute, so a longer delay is a mistake of
    /// units.
    const DELAY_MAX_US: u64 = 60_000_000;

    fn check(&self) -> Result<(), Fault> {
        let delays = [("read_us", self.read_us), ("write_us", self.write_us), ("flush_us", self.flush_us)];
        match delays.iter().find(|(_, delay)| *delay > Self::DELAY_MAX_US) {
            Some((key, _)) => Err(Fault::at_key(key, "more than a minute").hint("the unit is microseconds")),
            None => Ok(()),
        }
    }
}

impl RangeSpec {
    fn check(&self) -> Result<(), Fault> {
        let ends = [("from", Some(self.from)), ("size", self.size)];
        match ends.iter().find(|(_, end)| !end.unwrap_or_default().0.is_multiple_of(Range::UNIT)) {
            Some((key, _)) => Err(Fault::at_key(key, "not a multiple of 4096 bytes")),
            None if self.size == Some(Size(0)) => Err(Fault::at_key("size", "nothing is left")),
            None => Ok(()),
        }
    }
}

impl FaultSpec {
    fn check(&self) -> Result<(), Fault> {
        self.nvme_status()?;
        if self.outcome == OutcomeName::Short && self.moved.is_none() {
            return Err(Fault::at_key("moved", "a short command needs one").hint("add moved = 0"));
        }
        if self.outcome != OutcomeName::Short && self.moved.is_some() {
            return Err(Fault::at_key("moved", "only a short command has one"));
        }
        if self.every.is_some() && self.chance.is_some() {
            return Err(Fault::at_key("chance", "`every` is given already").hint("remove one of the two"));
        }
        if self.chance.is_some_and(|chance| !(0.0..=1.0).contains(&chance)) {
            return Err(Fault::at_key("chance", "not a probability").hint("use 0.0 to 1.0"));
        }
        let counts = [("every", self.every), ("limit", self.limit)];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(Fault::at_key(key, "zero would never hit").hint("use 1 or more, or leave it out"));
        }
        let (from, to) = (self.from.unwrap_or_default(), self.to.unwrap_or(Size::MAX));
        if from >= to {
            return Err(Fault::at_key("to", "the range of bytes is empty").hint("`to` is larger than `from`"));
        }
        Ok(())
    }

    /// Returns the status that a failed command gets; Internal Error unless another is named.
    pub fn nvme_status(&self) -> Result<Status, Fault> {
        let Some(name) = &self.status else { return Ok(Status::INTERNAL_ERROR) };
        if !matches!(self.outcome, OutcomeName::Fail | OutcomeName::FailAfterwards) {
            return Err(Fault::at_key("status", "only a failed command has one"));
        }
        let known = || STATUS_CODES.filter_map(|code| Some((Status(code), Status(code).name()?)));
        let found = known().find(|(_, known)| known.eq_ignore_ascii_case(name));
        if let Some((status, _)) = found.filter(|(status, _)| !status.is_success()) {
            return Ok(status);
        }
        let names: Vec<String> = known().map(|(_, name)| name.to_lowercase()).collect();
        let hint = match nearest(name, names.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => {
                "use the specification's name, such as `write_fault` or `unrecovered_read_error`".to_owned()
            }
        };
        Err(Fault::at_key("status", format!("`{name}` is not an error status")).hint(hint))
    }
}

/// Values of the status code type and the status code side by side.
const STATUS_CODES: std::ops::Range<u16> = 0..0x800;
