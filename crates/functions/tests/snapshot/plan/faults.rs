//! Faults of a run: failures of the store, losses of its power, torn blocks.

use super::Plan;
use crate::instance::Faults;

impl Plan {
    pub(in super::super) fn fail(&mut self, writes: f64, reads: f64) {
        self.instance.faults = Faults { writes, reads, ..Faults::default() };
        self.has_unreported_loss |= writes > 0.0;
    }

    /// Fails every flush from this request for metadata on; the request itself is done.
    pub(in super::super) fn fail_from(&mut self, step: u64) {
        self.instance.faults.step = Some(step);
    }

    /// Fails one flush, of the host's or of the function's, after this many requests for metadata, and loses
    /// the metadata that it was to make durable. The other flushes succeed.
    pub(in super::super) fn lose_after(&mut self, requests: u64, is_hosts: bool) {
        // Commands may fail because of it.
        self.fail(f64::MIN_POSITIVE, 0.0);
        (self.instance.faults.lost, self.instance.faults.is_hosts) = (Some(requests), is_hosts);
    }

    /// Cuts the power of the store alone after this many requests for metadata.
    pub(in super::super) fn lose_power_after(&mut self, requests: u64) {
        self.fail(f64::MIN_POSITIVE, 0.0);
        (self.instance.faults.power, self.may_have_lost_power) = (Some(requests), true);
    }

    pub(in super::super) fn cut_at(&mut self, at: u64) {
        self.cut_at = Some(at);
    }

    /// Lets power cuts tear metadata within a sector.
    pub(in super::super) fn tear(&mut self) {
        self.instance.unit = Some(64);
    }
}
