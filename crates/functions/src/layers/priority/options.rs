//! Options of `priority`.

use super::{Priority, Share};
use crate::{Kind, OpenCx, Prepared, Shape};
use serde::{Deserialize, Serialize};
use sluice_options::Fault;
use std::sync::Arc;
use utoipa::ToSchema;

/// Weight of a drive that names none.
const WEIGHT: u32 = 100;

/// Largest weight.
const WEIGHT_MAX: u32 = 1000;

/// Maximum length of a device's name, bytes.
const NAME_MAX: usize = 64;

/// Part of a device that background drives get in any case, per cent.
const BACKGROUND_MAX: u32 = 90;

/// Class of a drive on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    /// The latency of commands is kept as if there were no background drives.
    #[default]
    Interactive,
    /// Commands take the time that interactive drives leave, and a guaranteed part.
    Background,
}

/// A drive's share of a device that several drives use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityOptions {
    /// Name of the device: drives with the same name share it.
    #[serde(default = "default_device")]
    pub device: String,
    /// `interactive`, or `background`.
    #[serde(default)]
    pub class: PriorityClass,
    /// Part among drives of the same class: 100 if not given, 1 to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Per cent of the device that background drives get in any case; 10 if no drive of the device has the key, and
    /// the number of the drive that was opened last if several have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background_percent: Option<u32>,
}

fn default_device() -> String {
    "default".to_owned()
}

impl<L> Kind<L> for PriorityOptions {
    const NAME: &'static str = "priority";
    const ABOUT: &'static str =
        "Shares a device among drives by the cost of their commands, interactive drives first.";

    fn check(&self) -> Result<(), Fault> {
        let weight = self.weight.unwrap_or(WEIGHT);
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(Fault::at_key("weight", format!("{weight} is not possible"))
                .hint(format!("use 1 to {WEIGHT_MAX}; a drive without weight has {WEIGHT}")));
        }
        if self.device.is_empty() || self.device.len() > NAME_MAX {
            return Err(Fault::at_key("device", format!("a name has 1 to {NAME_MAX} bytes")));
        }
        match self.background_percent {
            Some(percent) if percent == 0 || percent > BACKGROUND_MAX => {
                Err(Fault::at_key("background_percent", format!("{percent} is not possible"))
                    .hint(format!("use 1 to {BACKGROUND_MAX}")))
            }
            _ => Ok(()),
        }
    }

    fn shape(&self) -> Shape {
        // Instances on several reactors use one device.
        Shape { is_stateless: true, ..Shape::SAME }
    }

    fn open(&self, cx: &OpenCx<'_>) -> Result<Prepared, Fault> {
        let device = cx.devices.open(&self.device);
        if let Some(percent) = self.background_percent {
            device.set_background_percent(percent);
        }
        let share = Share { class: self.class, weight: self.weight.unwrap_or(WEIGHT) };
        let held_max = cx.commands_max;
        Ok(Prepared::new(move |_| Priority::new(Arc::clone(&device), share, held_max)))
    }
}
