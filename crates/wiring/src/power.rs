//! Detection of acknowledged writes that are lost with power, here and at other controllers.

use sluice_control::state::Unflushed;
use sluice_functions::OnLoss;
use sluice_spec::paths::boot_id;
use sluice_spec::{DriveSpec, FunctionSpec, uuid};
use sluice_targets::{LossNotice, PowerId, PreviousSession};
use std::hash::{BuildHasher, RandomState};

/// Returns the power identifier that hosts receive for as long as the drive has lost no acknowledged write:
/// `stored`, if that is valid.
///
/// Otherwise the identifier changes with each start of the machine. For a drive that keeps its writes in the
/// daemon, or elsewhere, the identifier also changes with each opening.
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

/// Returns a bit for each controller whose host has ended together with the daemon that stored `former`.
/// Virtual machines end with their machine; hosts on the network do not.
fn ended_controllers(spec: &DriveSpec, former: Option<&Unflushed>) -> u32 {
    let has_rebooted = former.is_some_and(|former| former.boot.is_some() && former.boot != boot_id());
    if has_rebooted { (1 << spec.sockets()) - 1 } else { 0 }
}

/// Returns NSIDs with losses not reported to hosts yet, and a bit for each controller whose host has ended.
pub(super) fn left_losses(spec: &DriveSpec, former: Option<&Unflushed>) -> (Vec<u32>, u32) {
    let untold = former.map(|former| former.owed().into_iter().collect()).unwrap_or_default();
    (untold, ended_controllers(spec, former))
}

/// Way in which targets report a loss of acknowledged writes, and the state that an earlier daemon has left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Losses<'a> {
    pub(super) notice: LossNotice,
    former: Option<&'a Unflushed>,
    /// Bit for each controller whose host may have outlived that daemon.
    survivors: u64,
}

impl<'a> Losses<'a> {
    /// Returns the losses for the targets of a drive that is opened.
    pub(super) fn of(spec: &DriveSpec, former: Option<&'a Unflushed>) -> Self {
        let survivors = !u64::from(ended_controllers(spec, former));
        let former = former.filter(|former| !former.clean);
        Self { notice: LossNotice::default(), former, survivors }
    }

    /// Returns the losses for targets below a function; `self` applies to those above it.
    pub(super) fn below(self, function: &FunctionSpec) -> Self {
        self.reported(function.shape().on_loss)
    }

    /// Returns the losses for further layer `number` of the function.
    pub(super) fn in_layer(self, function: &FunctionSpec, number: usize) -> Self {
        self.reported(function.shape().on_loss_in(number))
    }

    /// Returns whether the layer above has copies, so that one report of a loss is enough.
    pub(super) fn are_reported_once(self) -> bool {
        self.notice == LossNotice::FailCommand
    }

    fn reported(self, on_loss: OnLoss) -> Self {
        let notice = match on_loss {
            OnLoss::Through => self.notice,
            OnLoss::FailFlush => LossNotice::FailFlush,
            OnLoss::FailCommand => LossNotice::FailCommand,
        };
        Self { notice, ..self }
    }

    /// Returns the session that an earlier daemon left at a controller.
    pub(super) fn former(&self, peer: &str) -> Option<PreviousSession> {
        let left = self.former?;
        let power = left.peers.get(peer).and_then(Option::as_deref);
        Some(PreviousSession { power: power.and_then(of_hexadecimal), survivors: self.survivors })
    }
}

impl Losses<'_> {
    /// Returns the session that an earlier daemon left on a device of this machine. Such a device loses its
    /// power with the machine, not with a daemon. So only a stored power identifier can prove a loss.
    pub(super) fn former_of_device(&self, peer: &str) -> Option<PreviousSession> {
        self.former(peer).filter(|former| former.power.is_some())
    }
}

/// Formats a power identifier as it is stored.
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

    #[test]
    fn one_report_is_enough_below_a_function_with_copies() {
        let below = |on_loss| Losses::default().reported(on_loss);
        assert!(!Losses::default().are_reported_once() && !below(OnLoss::FailFlush).are_reported_once());
        let copies = below(OnLoss::FailCommand);
        assert!(copies.are_reported_once() && copies.reported(OnLoss::Through).are_reported_once());
        assert!(!copies.reported(OnLoss::FailFlush).are_reported_once());
    }
}
