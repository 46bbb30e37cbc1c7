//! A group of namespaces with common limits, as a user describes it.

use super::{Fault, check_name};
use serde::{Deserialize, Serialize};
use sluice_functions::QosLimits;
use utoipa::ToSchema;

/// Limits that the namespaces of a group share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Name, unique among groups.
    pub name: String,
    /// Commands and bytes a second of all members together.
    #[serde(default)]
    pub limits: QosLimits,
}

impl GroupSpec {
    pub fn check(&self) -> Result<(), Fault> {
        check_name(&self.name)?;
        self.limits.check().map_err(|fault| fault.under("limits"))
    }
}
