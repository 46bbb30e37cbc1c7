//! Rate limit of log messages, because a guest or an unknown client can cause them at any rate.

use sluice_frontend::LogLimit;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Number of messages that one place in the code writes in one [`WINDOW_NS`]: enough for a hundred guests
/// that start at once. Front-ends limit each single guest much earlier.
pub(super) const BURST: u32 = 100;

/// Length of the interval in which messages are counted, in nanoseconds.
const WINDOW_NS: u64 = 10_000_000_000;

/// A format that drops messages above the limit, and notes their number.
#[derive(Debug)]
pub(super) struct Limited<F> {
    inner: F,
    /// Text for a number of messages left out.
    note: fn(u64) -> String,
    /// Limits, one for each place in the code, so their number is bounded.
    limits: Mutex<HashMap<Identifier, LogLimit>>,
    /// Start of the clock.
    epoch: Instant,
}

impl<F> Limited<F> {
    pub(super) fn new(inner: F, note: fn(u64) -> String) -> Self {
        Self { inner, note, limits: Mutex::default(), epoch: Instant::now() }
    }

    fn admit(&self, metadata: &Metadata<'_>) -> Option<u64> {
        if !is_limited(metadata.target()) {
            return Some(0);
        }
        // 64 bits of nanoseconds last for centuries.
        let now_ns = self.epoch.elapsed().as_nanos() as u64;
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.entry(metadata.callsite()).or_insert(LogLimit::new(BURST, WINDOW_NS)).admit(now_ns)
    }
}

/// Returns whether the messages of a target are limited. Messages that only the operator causes are written
/// in full.
fn is_limited(target: &str) -> bool {
    let name = target.split("::").next().unwrap_or_default();
    !matches!(name, "sluice" | "sluice_control" | "sluice_spec" | "sluice_wiring")
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.admit(event.metadata()) {
            None => return Ok(()),
            Some(0) => {}
            Some(left_out) => writeln!(writer, "{}", (self.note)(left_out))?,
        }
        self.inner.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_is_never_cut_short() {
        assert!(!is_limited("sluice_control::drives"));
        for target in ["sluice_api::server", "sluice_frontend_vfio_user::port", "sluice_controller"] {
            assert!(is_limited(target), "{target}");
        }
    }
}
