//! Messages that a guest can provoke, in numbers that a log can bear.

/// Messages in a row before any is held back.
const BURST: u32 = 8;

/// How long it takes until one more may pass, in nanoseconds.
const REFILL_NS: u64 = 5_000_000_000;

/// A token bucket: one for each thing that is complained about, in everyone who is.
#[derive(Debug)]
pub(crate) struct LogLimit {
    tokens: u32,
    /// When the last token came.
    refilled_ns: u64,
    suppressed: u64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self { tokens: BURST, refilled_ns: 0, suppressed: 0 }
    }
}

impl LogLimit {
    /// Whether a message may be written now; if so, how many were held back since the last.
    pub(crate) fn admit(&mut self, now_ns: u64) -> Option<u64> {
        let refills = now_ns.saturating_sub(self.refilled_ns) / REFILL_NS;
        if refills > 0 {
            self.tokens = u64::from(self.tokens).saturating_add(refills).min(u64::from(BURST)) as u32;
            self.refilled_ns = now_ns;
        }
        if self.tokens == 0 {
            self.suppressed += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// A macro of `tracing`, named by the first argument, behind a [`LogLimit`] and the time.
macro_rules! limited {
    ($level:ident, $limit:expr, $now_ns:expr, $($argument:tt)+) => {
        match $limit.admit($now_ns) {
            None => {}
            Some(0) => tracing::$level!($($argument)+),
            Some(suppressed) => tracing::$level!(suppressed, $($argument)+),
        }
    };
}
pub(crate) use limited;

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(limit: &mut LogLimit, now_ns: u64, tries: u32) -> u32 {
        (0..tries).filter(|_| limit.admit(now_ns).is_some()).count() as u32
    }

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let mut limit = LogLimit::default();
        assert_eq!(admitted(&mut limit, 7, BURST + 5), BURST);
        assert_eq!(limit.admit(7 + REFILL_NS), Some(5));
        assert_eq!(limit.admit(7 + REFILL_NS), None);
    }

    #[test]
    fn a_long_silence_gives_one_burst_and_no_more() {
        let mut limit = LogLimit::default();
        assert_eq!(admitted(&mut limit, 0, 100), BURST);
        assert_eq!(admitted(&mut limit, u64::MAX, 100), BURST);
    }

    #[test]
    fn a_clock_that_stands_still_gives_nothing() {
        let mut limit = LogLimit::default();
        assert_eq!(admitted(&mut limit, REFILL_NS, 100), BURST);
        assert_eq!(admitted(&mut limit, 0, 100), 0);
    }
}
