//! A guest or a stranger can cause messages as fast as it likes; they are written only so fast.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Messages of one place in the code that are written in one [`WINDOW`]: enough for a hundred guests
/// that start at once. Front-ends hold back each single guest much earlier.
pub(super) const BURST: u32 = 100;

/// The time in which they are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// What one place in the code has said lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    start: Instant,
    written: u32,
    left_out: u64,
}

impl Window {
    fn new(start: Instant) -> Self {
        Self { start, written: 0, left_out: 0 }
    }

    /// If one more may be written: how many before it were not.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let mut left_out = 0;
        if now.saturating_duration_since(self.start) >= WINDOW {
            left_out = self.left_out;
            *self = Self::new(now);
        }
        if self.written == BURST {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(left_out)
    }
}

/// A format that leaves out what comes too often, and says how much that was.
#[derive(Debug)]
pub(super) struct Limited<F> {
    inner: F,
    /// Words for a number of messages left out.
    note: fn(u64) -> String,
    /// There is one for each place in the code, so their number is bounded.
    windows: Mutex<HashMap<Identifier, Window>>,
}

impl<F> Limited<F> {
    pub(super) fn new(inner: F, note: fn(u64) -> String) -> Self {
        Self { inner, note, windows: Mutex::default() }
    }

    fn admit(&self, metadata: &Metadata<'_>) -> Option<u64> {
        if !is_limited(metadata.target()) {
            return Some(0);
        }
        let now = Instant::now();
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.entry(metadata.callsite()).or_insert_with(|| Window::new(now)).admit(now)
    }
}

/// What the operator causes is written in full; what anybody else can cause is not.
fn is_limited(target: &str) -> bool {
    !target.starts_with("sluice::") || target.starts_with("sluice::api")
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
    fn a_burst_is_written_and_the_rest_counted() {
        let start = Instant::now();
        let mut window = Window::new(start);
        assert!((0..BURST).all(|_| window.admit(start) == Some(0)));
        assert!((0..90).all(|_| window.admit(start).is_none()));
        let later = start + WINDOW;
        assert_eq!(window.admit(later), Some(90));
        assert!((1..BURST).all(|_| window.admit(later) == Some(0)));
        assert_eq!(window.admit(later), None);
        assert_eq!(window.admit(start), None, "a clock that goes back is no trouble");
    }

    #[test]
    fn the_operator_is_never_cut_short() {
        assert!(!is_limited("sluice::drives"));
        for target in ["sluice::api::server", "sluice_frontends::vfio_user", "sluice_controller"] {
            assert!(is_limited(target), "{target}");
        }
    }
}
