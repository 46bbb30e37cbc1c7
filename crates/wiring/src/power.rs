//! What is known of acknowledged writes across a loss of power, here and at other controllers.

use sluice_control::state::Unflushed;
use sluice_spec::paths::boot_id;
use sluice_spec::{DriveSpec, FunctionSpec, uuid};
use sluice_targets::{LossNotice, PowerId, PreviousSession};
use std::hash::{BuildHasher, RandomState};

/// The value that hosts get for as long as the drive has lost no acknowledged write: `stored`, if it is. Else it is
/// another one after each start of the machine, and after each opening of a drive that keeps them in the daemon, or
/// elsewhere.
pub(super) fn power_id(spec: &DriveSpec, stored: Option<&str>) -> PowerId {
    if let Some(power) = stored.and_then(of_hexadecimal) {
        return power;
    }
    let since = match boot_id() {
        Some(boot) if spec.outlives_daemon() => boot,
        _ => format!("{:016x}", RandomState::new().hash_one("a power identifier")),
    };
    uuid(&format!("power {} {since}", spec.serial()))
}

/// Bit per controller whose host has ended together with the daemon that stored this: virtual machines end with their
/// machine, and hosts on the network do not.
fn ended_controllers(spec: &DriveSpec, former: Option<&Unflushed>) -> u32 {
    let has_rebooted = former.is_some_and(|former| former.boot.is_some() && former.boot != boot_id());
    if has_rebooted { (1 << spec.sockets()) - 1 } else { 0 }
}

/// NSIDs with losses that hosts are yet to be told of, with the controllers whose hosts have ended.
pub(super) fn left_losses(spec: &DriveSpec, former: Option<&Unflushed>) -> (Vec<u32>, u32) {
    let untold = former.map(|former| former.owed().into_iter().collect()).unwrap_or_default();
    (untold, ended_controllers(spec, former))
}

/// How targets tell of a loss of acknowledged writes, and what an earlier daemon has left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses<'a> {
    pub(super) notice: LossNotice,
    former: Option<&'a Unflushed>,
    /// Bit per controller whose host may have lived through the end of that daemon.
    survivors: u64,
}

impl<'a> Losses<'a> {
    /// Of a drive that is opened.
    pub(super) fn of(spec: &DriveSpec, former: Option<&'a Unflushed>) -> Self {
        let survivors = !u64::from(ended_controllers(spec, former));
        let former = former.filter(|former| !former.clean);
        Self { notice: LossNotice::default(), former, survivors }
    }

    /// Of targets below a function, where those above it have these.
    pub(super) fn below(self, function: &FunctionSpec) -> Self {
        let notice = match function {
            // The host reads the primary of a replicated drive past it, and nothing takes its place.
            FunctionSpec::Uif(uif) if uif.function.as_deref() == Some("mirror") => LossNotice::FailCommand,
            FunctionSpec::Uif(_) => LossNotice::FailFlush,
            _ => self.notice,
        };
        Self { notice, ..self }
    }

    /// The same for a further layer of the function, of so many. The last of a set is its log.
    pub(super) fn in_layer(self, function: &FunctionSpec, number: usize, count: usize) -> Self {
        let notice = match function {
            FunctionSpec::Uif(uif) if !uif.copies().is_empty() && number + 1 < count => {
                LossNotice::FailCommand
            }
            FunctionSpec::Uif(_) => LossNotice::FailFlush,
            _ => self.notice,
        };
        Self { notice, ..self }
    }

    /// What was left at a controller.
    pub(super) fn former(&self, peer: &str) -> Option<PreviousSession> {
        let left = self.former?;
        let power = left.peers.get(peer).and_then(Option::as_deref);
        Some(PreviousSession { power: power.and_then(of_hexadecimal), survivors: self.survivors })
    }
}

impl Losses<'_> {
    /// What was left on a device of this machine. It loses its power with the machine, and not with a daemon: that is no loss
    /// to tell of, unless it proves one.
    pub(super) fn former_of_device(&self, peer: &str) -> Option<PreviousSession> {
        self.former(peer).filter(|former| former.power.is_some())
    }
}

/// A power identifier as it is stored.
pub(super) fn in_hexadecimal(power: PowerId) -> String {
    format!("{:032x}", u128::from_be_bytes(power))
}

fn of_hexadecimal(hex: &str) -> Option<PowerId> {
    u128::from_str_radix(hex, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_this_machine_has_to_prove_a_loss_and_a_far_controller_that_there_was_none() {
        let spec: DriveSpec =
            serde_json::from_str(r#"{"name":"a","namespaces":[{"target":"null","size":"1MiB"}]}"#)
                .expect("a drive");
        let power = [7; 16];
        let peers = [("with".to_owned(), Some(in_hexadecimal(power))), ("without".to_owned(), None)];
        let left = Unflushed { peers: peers.into(), ..Unflushed::default() };
        let losses = Losses::of(&spec, Some(&left));
        let of =
            |peer: &str| [losses.former(peer), losses.former_of_device(peer)].map(|it| it.map(|it| it.power));
        assert_eq!(of("with"), [Some(Some(power)); 2]);
        for peer in ["without", "unknown"] {
            assert_eq!(of(peer), [Some(None), None]);
        }
        let clean = Unflushed { clean: true, ..left };
        assert_eq!(Losses::of(&spec, Some(&clean)).former("with"), None);
    }
}
