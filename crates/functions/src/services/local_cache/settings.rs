//! Options.

use super::LocalCache;
use super::format::{LINE_MAX, LINE_MIN};
use crate::services::service::check_options;
use crate::services::store::parse_bytes;
use sluice_uif::Options;

/// Time at which a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The cache's device has it.
    WriteBack,
    /// The drive has it.
    WriteThrough,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    /// Bytes of a line of a new cache.
    pub(super) line: u64,
    /// Bytes after which a sequence bypasses the cache.
    pub(super) sequential: u64,
    /// Percentage of the slots that may have dirty data.
    pub(super) dirty: u64,
    /// Bytes in a second that are written back while the host is active.
    pub(super) rate: u64,
}

impl Settings {
    pub(super) fn of(options: &Options) -> Result<Self, String> {
        check_options::<LocalCache>(options)?;
        let bytes = |key: &str, default: u64| options.get(key).map_or(Some(default), parse_bytes);
        let mode = match options.get("mode") {
            Some("write-back") => Mode::WriteBack,
            Some("write-through") => Mode::WriteThrough,
            _ => return Err("mode is write-back or write-through".to_owned()),
        };
        let line = bytes("line", LINE_MAX)
            .filter(|line| (LINE_MIN..=LINE_MAX).contains(line) && line.is_power_of_two())
            .ok_or("line is 16KiB, 32KiB or 64KiB")?;
        let sequential = bytes("sequential", 4 << 20)
            .filter(|bytes| *bytes >= 1 << 20)
            .ok_or("sequential is a number of bytes, from 1MiB on")?;
        let percent = |text: &str| text.strip_suffix('%').and_then(|number| number.parse().ok());
        let dirty = options
            .get("dirty")
            .map_or(Some(75), percent)
            .filter(|dirty| (1..=100).contains(dirty))
            .ok_or("dirty is a percentage, from 1% to 100%")?;
        let rate = bytes("rate", 64 << 20)
            .filter(|rate| *rate >= 1 << 20)
            .ok_or("rate is a number of bytes in a second, from 1MiB on")?;
        Ok(Self { mode, line, sequential, dirty, rate })
    }
}
