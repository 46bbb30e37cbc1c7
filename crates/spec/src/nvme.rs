//! The device of an `nvme` target as a user describes it.

use super::{Fault, OperationName, PassthroughSpec};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// A range of another NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmeSpec {
    /// Socket of a vfio-user server whose doorbells can be mapped, such as a drive's socket of another
    /// daemon. Exactly one of `vfio_user`, `pci` and `generic` is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub vfio_user: Option<PathBuf>,
    /// PCI address of a device that is bound to `vfio-pci`, such as `0000:00:04.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The generic device of a namespace that the kernel drives, such as `/dev/ng0n1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub generic: Option<PathBuf>,
    /// NSID on the device. A generic device already stands for one namespace.
    #[serde(default = "first_namespace")]
    pub namespace: u32,
    /// Beginning of the drive's range, in the device's logical blocks.
    #[serde(default)]
    pub first_block: u64,
    /// Length of the drive's range, in the device's logical blocks; all that follow if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    #[serde(default)]
    pub on_loss: LossName,
    /// Seconds that the device may take for a command.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// Operations that pass to the device, all if not given; others are denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passes: Option<Vec<OperationName>>,
    /// Further opcodes, which pass as the guest writes them; none if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passthrough: Option<PassthroughSpec>,
}

/// Outcome of commands while the device is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LossName {
    /// Commands wait until the device is back.
    #[default]
    Park,
    /// The guest gets Internal Path Error.
    Fail,
}

fn first_namespace() -> u32 {
    1
}

fn default_timeout_s() -> u32 {
    10
}

impl NvmeSpec {
    /// Maximum time limit. A guest gives up on a command after half a minute, so a much longer limit is a
    /// mistake of units.
    const TIMEOUT_MAX_S: u32 = 60;

    pub(super) fn check(&self) -> Result<(), Fault> {
        self.check_place()?;
        if self.namespace == 0 || self.namespace == u32::MAX {
            return Err(Fault::at_key("namespace", format!("no namespace has NSID {}", self.namespace))
                .hint("use 1 if the device has one namespace"));
        }
        if self.blocks == Some(0) {
            return Err(Fault::at_key("blocks", "a drive needs at least one block")
                .hint("leave it out for all blocks that the device has"));
        }
        if let Some(passthrough) = &self.passthrough {
            passthrough.check().map_err(|fault| fault.under("passthrough"))?;
        }
        if !(1..=Self::TIMEOUT_MAX_S).contains(&self.timeout_s) {
            return Err(Fault::at_key("timeout_s", format!("{} seconds are not possible", self.timeout_s))
                .hint(format!("use 1 to {}", Self::TIMEOUT_MAX_S)));
        }
        Ok(())
    }

    fn check_place(&self) -> Result<(), Fault> {
        match (&self.vfio_user, &self.pci, &self.generic) {
            (Some(path), None, None) => check_absolute("vfio_user", path),
            (None, None, Some(path)) => check_absolute("generic", path).and_then(|()| self.check_generic()),
            (None, Some(address), None) if is_pci_address(address) => Ok(()),
            (None, Some(address), None) => {
                Err(Fault::at_key("pci", format!("`{}` is not a PCI address", address.escape_debug()))
                    .hint("say it like 0000:00:04.0, as lspci -D does"))
            }
            _ => Err(Fault::at_key("vfio_user", "a device has one of `vfio_user`, `pci` and `generic`")
                .hint(
                    "vfio_user is a server's socket, pci the address of a device of this machine, generic \
                 a namespace that the kernel drives",
                )),
        }
    }

    /// Checks keys that do not fit a device of the kernel.
    fn check_generic(&self) -> Result<(), Fault> {
        if self.namespace != first_namespace() {
            return Err(Fault::at_key("namespace", "a generic device is of one namespace already")
                .hint("leave it out, and name the device of that namespace in `generic`"));
        }
        Ok(())
    }
}

fn check_absolute(key: &'static str, path: &Path) -> Result<(), Fault> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(Fault::at_key(key, format!("{} is not an absolute path", path.display()))
            .hint("the daemon has another working directory than you: start the path with /")),
    }
}

/// Returns whether a text is a PCI address: domain, bus, device and function, as sysfs writes them.
fn is_pci_address(text: &str) -> bool {
    let shape = "hhhh:hh:hh.d";
    let fits = |(letter, shape): (char, char)| match shape {
        'h' => letter.is_ascii_hexdigit(),
        'd' => matches!(letter, '0'..='7'),
        other => letter == other,
    };
    text.chars().count() == shape.len() && text.chars().zip(shape.chars()).all(fits)
}
