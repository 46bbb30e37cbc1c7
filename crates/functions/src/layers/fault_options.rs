//! Options of a [`Fault`].

use super::fault_rule::{Outcome, Rule, When};
use crate::{Fault, Kind, OpenCx, Prepared};
use serde::{Deserialize, Serialize};
use sluice_command::Operation;
use sluice_nvme::Status;
use sluice_options::words::nearest;
use sluice_options::{Fault as KeyFault, Size};
use std::num::NonZeroU64;
use utoipa::ToSchema;

/// Commands that fail, and their outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultOptions {
    /// Outcome of a command that is hit: `fail` (the target never has it), `fail_afterwards` (it is done, and
    /// its answer lost), `short` (only the first `moved` bytes are), or `hang`.
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

/// Name of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationName {
    Read,
    Write,
    Flush,
    WriteZeroes,
    Deallocate,
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Read => Self::Read,
            OperationName::Write => Self::Write,
            OperationName::Flush => Self::Flush,
            OperationName::WriteZeroes => Self::WriteZeroes,
            OperationName::Deallocate => Self::Deallocate,
        }
    }
}

impl<L> Kind<L> for FaultOptions {
    const NAME: &'static str = "fault";
    const ABOUT: &'static str = "Fails, shortens or holds some of the commands: trouble on purpose.";

    fn check(&self) -> Result<(), KeyFault> {
        self.nvme_status()?;
        if self.outcome == OutcomeName::Short && self.moved.is_none() {
            return Err(KeyFault::at_key("moved", "a short command needs one").hint("add moved = 0"));
        }
        if self.outcome != OutcomeName::Short && self.moved.is_some() {
            return Err(KeyFault::at_key("moved", "only a short command has one"));
        }
        if self.every.is_some() && self.chance.is_some() {
            return Err(KeyFault::at_key("chance", "`every` is given already").hint("remove one of the two"));
        }
        if self.chance.is_some_and(|chance| !(0.0..=1.0).contains(&chance)) {
            return Err(KeyFault::at_key("chance", "not a probability").hint("use 0.0 to 1.0"));
        }
        let counts = [("every", self.every), ("limit", self.limit)];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(KeyFault::at_key(key, "zero would never hit").hint("use 1 or more, or leave it out"));
        }
        let (from, to) = (self.from.unwrap_or_default(), self.to.unwrap_or(Size::MAX));
        if from >= to {
            return Err(
                KeyFault::at_key("to", "the range of bytes is empty").hint("`to` is larger than `from`")
            );
        }
        Ok(())
    }

    fn open(&self, _: &OpenCx<'_>) -> Result<Prepared, KeyFault> {
        let (seed, rule) = (self.seed, self.rule()?);
        Ok(Prepared::new(move |_| Fault::new(seed, vec![rule.clone()])))
    }
}

impl FaultOptions {
    fn rule(&self) -> Result<Rule, KeyFault> {
        let every = self.every.and_then(NonZeroU64::new).map(When::Every);
        let bytes = self.from.unwrap_or_default().0..self.to.unwrap_or(Size::MAX).0;
        Ok(Rule {
            operations: self.operations.iter().copied().map(Operation::from).collect(),
            bytes: (self.from.is_some() || self.to.is_some()).then_some(bytes),
            skip: self.skip,
            when: every.or(self.chance.map(When::Chance)).unwrap_or_default(),
            limit: self.limit.and_then(NonZeroU64::new),
            outcome: self.outcome()?,
        })
    }

    fn outcome(&self) -> Result<Outcome, KeyFault> {
        Ok(match self.outcome {
            OutcomeName::Fail => Outcome::Fail(self.nvme_status()?),
            OutcomeName::FailAfterwards => Outcome::FailAfterwards(self.nvme_status()?),
            OutcomeName::Short => Outcome::Short(self.moved.unwrap_or_default().0),
            OutcomeName::Hang => Outcome::Hang,
        })
    }

    /// Returns the status that a failed command gets; Internal Error unless another is named.
    fn nvme_status(&self) -> Result<Status, KeyFault> {
        let Some(name) = &self.status else { return Ok(Status::INTERNAL_ERROR) };
        if !matches!(self.outcome, OutcomeName::Fail | OutcomeName::FailAfterwards) {
            return Err(KeyFault::at_key("status", "only a failed command has one"));
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
        Err(KeyFault::at_key("status", format!("`{name}` is not an error status")).hint(hint))
    }
}

/// Values of the status code type and the status code side by side.
const STATUS_CODES: std::ops::Range<u16> = 0..0x800;
