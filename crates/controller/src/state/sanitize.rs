//! State of a sanitize operation.

use crate::state::erasure::Pass;

/// Last sanitize operation that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SanitizeRecord {
    /// Command dword 10 of the operation.
    pub cdw10: u32,
    /// Overwrite Pattern.
    pub pattern: u32,
    pub state: SanitizeState,
}

/// State of a sanitize operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizeState {
    Running,
    Done,
    /// Failure: only another Sanitize is allowed.
    Failed,
    /// Failure that the host has left by Exit Failure Mode.
    GivenUp,
}

/// Identify's SANICAP: block erase and overwrite. There is no cryptographic erase, since no layer has a key
/// to destroy. Blocks are not modified afterwards, and are not deallocated if the host requests that.
pub(crate) const CAPABILITIES: u32 = 1 << 1 | 1 << 2 | 0b01 << 30;

/// Sanitize Action, CDW10 bits 2:0.
pub(crate) mod action {
    pub(crate) const EXIT_FAILURE_MODE: u32 = 1;
    pub(crate) const BLOCK_ERASE: u32 = 2;
    pub(crate) const OVERWRITE: u32 = 3;
}

/// Bits of CDW10.
pub(crate) const UNRESTRICTED_EXIT: u32 = 1 << 3;

const INVERT_BETWEEN_PASSES: u32 = 1 << 8;

const NO_DEALLOCATE: u32 = 1 << 9;

/// State of the last sanitize operation.
#[derive(Debug, Default)]
pub(crate) struct Sanitize {
    pub(crate) last: Option<SanitizeRecord>,
    /// Number of modifications at its end. Unknown after a restart.
    pub(crate) written: Option<u64>,
}

/// Returns the passes of an operation, each followed by a flush.
pub(crate) fn passes(record: SanitizeRecord) -> Vec<Pass> {
    let deallocates = record.cdw10 & NO_DEALLOCATE == 0;
    if record.cdw10 & 7 != action::OVERWRITE {
        return vec![Pass::Zeroes { deallocate: deallocates }, Pass::Flush];
    }
    let count = match record.cdw10 >> 4 & 0xf {
        0 => 16,
        count => count,
    };
    let inverts = record.cdw10 & INVERT_BETWEEN_PASSES != 0;
    let pattern = |pass| if inverts && pass % 2 == 1 { !record.pattern } else { record.pattern };
    (0..count).flat_map(|pass| [Pass::Pattern(pattern(pass)), Pass::Flush]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the fields of CDW10 (Base 5.22): the kind, the number and the pattern of overwrites.
    #[test]
    fn an_operation_has_the_passes_that_its_host_requested() {
        let of = |cdw10| passes(SanitizeRecord { cdw10, pattern: 0x1234, state: SanitizeState::Running });
        for (cdw10, deallocate) in
            [(2, true), (2 | NO_DEALLOCATE, false), (2 | 3 << 4 | INVERT_BETWEEN_PASSES, true)]
        {
            assert_eq!(of(cdw10), [Pass::Zeroes { deallocate }, Pass::Flush], "{cdw10:#x}");
        }
        for (count, expected) in [(1, 1), (2, 2), (15, 15), (0, 16)] {
            for inverts in [false, true] {
                let inverts_bit = if inverts { INVERT_BETWEEN_PASSES } else { 0 };
                let found =
                    of(action::OVERWRITE | count << 4 | inverts_bit | NO_DEALLOCATE | UNRESTRICTED_EXIT);
                let pattern = |pass| if inverts && pass % 2 == 1 { !0x1234 } else { 0x1234 };
                let all: Vec<Pass> =
                    (0..expected).flat_map(|pass| [Pass::Pattern(pattern(pass)), Pass::Flush]).collect();
                assert_eq!(found, all, "{count} {inverts}");
            }
        }
    }
}
