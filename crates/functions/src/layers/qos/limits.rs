//! Limits as a user writes them.

use super::bucket::COMMAND;
use super::{Groups, Member, Qos};
use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_options::{Fault, Size};
use std::sync::Arc;
use utoipa::ToSchema;

/// Milliseconds for which unused units are saved up, unless a user sets another time.
const BURST_MS: u32 = 10;

/// Maximum time for which unused units are saved up.
const BURST_MAX_MS: u32 = 60_000;

/// Commands and bytes a second. A limit that is not given does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QosLimits {
    /// Commands a second, reads and writes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Reads a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// Writes a second, with Write Zeroes and Deallocate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
    /// Bytes a second, read and written together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
    /// Bytes a second that are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bandwidth: Option<Size>,
    /// Bytes a second that are written or zeroed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bandwidth: Option<Size>,
    /// Milliseconds for which unused commands and bytes are saved up; 10 if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u32>,
}

impl QosLimits {
    /// Checks that each limit is possible.
    ///
    /// # Errors
    /// Returns the first key that is wrong.
    pub fn check(&self) -> Result<(), Fault> {
        if let Some((key, _)) = self.named().into_iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(
                Fault::at_key(key, "nothing would ever pass").hint("use 1 or more, or leave the limit out")
            );
        }
        match self.burst_ms {
            Some(burst) if burst > BURST_MAX_MS => {
                Err(Fault::at_key("burst_ms", "more than a minute").hint("the unit is milliseconds"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the limits with their keys, in the order of the buckets.
    pub(super) fn named(&self) -> [(&'static str, Option<u64>); 6] {
        let bytes = |size: Option<Size>| size.map(|size| size.0);
        [
            ("read_iops", self.read_iops),
            ("read_bandwidth", bytes(self.read_bandwidth)),
            ("write_iops", self.write_iops),
            ("write_bandwidth", bytes(self.write_bandwidth)),
            ("iops", self.iops),
            ("bandwidth", bytes(self.bandwidth)),
        ]
    }

    /// Returns the rates in units, in the order of the buckets; zero for none.
    pub(super) fn rates(&self) -> [u64; 6] {
        let limits = self.named().map(|(_, limit)| limit.unwrap_or(0));
        let unit = |index: usize| if index.is_multiple_of(2) { COMMAND } else { 1 };
        std::array::from_fn(|index| limits[index].saturating_mul(unit(index)))
    }

    /// Returns the units of a rate that are saved up.
    pub(super) fn burst_of(&self, per_second: u64) -> u64 {
        let burst = u128::from(self.burst_ms.unwrap_or(BURST_MS)) * u128::from(per_second) / 1000;
        burst.try_into().unwrap_or(u64::MAX)
    }
}

/// Limits of a namespace, and its group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QosOptions {
    /// Commands and bytes a second of this namespace; they can be changed while the drive is in use.
    pub limits: QosLimits,
    /// Group whose limits this namespace shares with others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Part of the group's limits that this namespace gets in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<QosLimits>,
}

impl<L> Kind<L> for QosOptions {
    const NAME: &'static str = "qos";
    const ABOUT: &'static str = "Limits commands and bytes a second. Commands over the limit wait in order.";

    fn check(&self) -> Result<(), Fault> {
        self.limits.check().map_err(|fault| fault.under("limits"))?;
        let Some(guarantee) = self.guarantee else { return Ok(()) };
        if self.group.is_none() {
            return Err(Fault::at_key("guarantee", "only a part of a group is guaranteed")
                .hint("add group = \"NAME\", or remove it"));
        }
        guarantee.check().map_err(|fault| fault.under("guarantee"))
    }

    fn shape(&self) -> Shape {
        // Instances on several reactors share their limits.
        Shape { is_stateless: true, ..Shape::SAME }
    }

    fn limits(&self) -> Option<QosLimits> {
        Some(self.limits)
    }

    fn limits_mut(&mut self) -> Option<&mut QosLimits> {
        Some(&mut self.limits)
    }

    fn open(&self, cx: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let groups: &Groups = cx.groups;
        let (member, held_max) = (groups.member(self)?, cx.commands_max);
        let limited = Arc::clone(&member);
        let make = move |_| Qos::new(Arc::clone(&member), held_max);
        Ok(Prepared::new(make).limited(Member::control(limited)))
    }
}
