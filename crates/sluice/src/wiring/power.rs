//! What is known of acknowledged writes across a loss of power, here and at other controllers.

use crate::spec::{DriveSpec, FunctionSpec, UifSpec, uuid};
use sluice_targets::LossNotice;
use std::hash::{BuildHasher, RandomState};

/// The kernel's identifier of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The identifier of this start of the machine; none where the kernel gives none.
pub(super) fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string(BOOT_ID).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The value that hosts get for as long as the drive has lost no acknowledged write: another one after each start of the
/// machine, and after each opening of a drive that keeps them in the daemon, or elsewhere.
pub(super) fn power_id(spec: &DriveSpec) -> [u8; 16] {
    let since = match boot_id() {
        Some(boot) if spec.outlives_daemon() => boot,
        _ => {
            let random = || RandomState::new().hash_one("a power identifier");
            format!("{:016x}{:016x}", random(), random())
        }
    };
    uuid(&format!("power {} {since}", spec.serial()))
}

/// How targets below a function tell of a loss; `above` is how those above it would.
pub(super) fn notice_below(function: &FunctionSpec, above: LossNotice) -> LossNotice {
    match function {
        // The host reads its primary past it, and nothing takes its place.
        FunctionSpec::Uif(uif) if is_mirror(uif) => LossNotice::FailCommand,
        FunctionSpec::Uif(_) => LossNotice::FailFlush,
        _ => above,
    }
}

/// The same for a further layer of the function, of so many; the last of a set is its log.
pub(super) fn notice_of_layer(
    function: &FunctionSpec,
    above: LossNotice,
    number: usize,
    count: usize,
) -> LossNotice {
    match function {
        FunctionSpec::Uif(uif) if !uif.copies().is_empty() && number + 1 < count => LossNotice::FailCommand,
        FunctionSpec::Uif(_) => LossNotice::FailFlush,
        _ => above,
    }
}

fn is_mirror(uif: &UifSpec) -> bool {
    uif.function.as_deref() == Some("mirror")
}
