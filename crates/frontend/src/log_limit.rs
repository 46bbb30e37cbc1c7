//! Rate limits for log messages that clients can provoke.

/// Default limit for a client: messages of one kind in a window, and the window in nanoseconds.
const OF_A_CLIENT: (u32, u64) = (8, 40_000_000_000);

/// Rate limit of a log message. Each kind of message has a limit of its own for each client or other source.
#[derive(Clone, Debug)]
pub struct LogLimit {
    burst: u32,
    window_ns: u64,
    /// Begin of the present window, which starts with a message.
    start_ns: u64,
    written: u32,
    left_out: u64,
}

impl Default for LogLimit {
    fn default() -> Self {
        let (burst, window_ns) = OF_A_CLIENT;
        Self::new(burst, window_ns)
    }
}

impl LogLimit {
    /// Makes a limit of `burst` messages, at least one, in `window_ns` nanoseconds.
    pub const fn new(burst: u32, window_ns: u64) -> Self {
        Self { burst, window_ns, start_ns: 0, written: 0, left_out: 0 }
    }

    /// Returns the number of messages left out since the last one, or `None` if no message may be written
    /// now.
    pub fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if self.written == 0 || now_ns.saturating_sub(self.start_ns) >= self.window_ns {
            (self.start_ns, self.written) = (now_ns, 0);
        }
        if self.written >= self.burst {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Macro of `tracing` with the name of the first argument, subject to a [`LogLimit`] at a time. The crate that uses
/// it depends on `tracing`, and is the target of the message.
#[macro_export]
macro_rules! limited {
    ($level:ident, $limit:expr, $now_ns:expr, $($argument:tt)+) => {
        match $limit.admit($now_ns) {
            None => {}
            Some(0) => tracing::$level!($($argument)+),
            Some(suppressed) => tracing::$level!(suppressed, $($argument)+),
        }
    };
}
#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u32 = 5;
    const WINDOW_NS: u64 = 1000;

    fn admitted(limit: &mut LogLimit, now_ns: u64, tries: u32) -> u32 {
        (0..tries).filter(|_| limit.admit(now_ns).is_some()).count() as u32
    }

    #[test]
    fn a_burst_passes_and_the_rest_is_counted() {
        let mut limit = LogLimit::new(BURST, WINDOW_NS);
        assert_eq!(admitted(&mut limit, 7, BURST + 90), BURST);
        assert_eq!(limit.admit(6 + WINDOW_NS), None);
        assert_eq!(limit.admit(7 + WINDOW_NS), Some(91));
        assert_eq!(limit.admit(7 + WINDOW_NS), Some(0));
    }

    #[test]
    fn a_long_silence_gives_one_burst_and_no_more() {
        let mut limit = LogLimit::new(BURST, WINDOW_NS);
        assert_eq!(admitted(&mut limit, 0, 100), BURST);
        assert_eq!(admitted(&mut limit, u64::MAX, 100), BURST);
    }

    #[test]
    fn a_clock_that_goes_back_is_no_trouble() {
        let mut limit = LogLimit::new(BURST, WINDOW_NS);
        assert_eq!(admitted(&mut limit, WINDOW_NS, 100), BURST);
        assert_eq!(admitted(&mut limit, 0, 100), 0);
    }
}
