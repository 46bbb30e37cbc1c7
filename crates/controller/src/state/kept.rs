//! State of a controller whose record is kept outside of this process, in case that the process dies.

use sluice_command::Command;
use sluice_nvme::{CompletionEntry, SubmissionEntry, opcode};

/// Results that wait until a record is kept, and commands of a dead process that are repeated.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Completions of admin commands. Their effects are in no record yet.
    pub(crate) results: Vec<CompletionEntry>,
    /// Commands that were in flight in a dead process. They are in flight again, and not begun.
    pub(crate) repeats: Vec<Command>,
}

/// Returns whether a command has the same result when it is executed a second time, after it was executed in part
/// or as a whole. The state of a controller and its reservations are those before the first time.
pub(crate) fn is_repeatable(sq: u16, entry: &SubmissionEntry) -> bool {
    match sq {
        0 => matches!(
            entry.opcode,
            opcode::admin::DELETE_IO_SQ
                | opcode::admin::CREATE_IO_SQ
                | opcode::admin::GET_LOG_PAGE
                | opcode::admin::DELETE_IO_CQ
                | opcode::admin::CREATE_IO_CQ
                | opcode::admin::IDENTIFY
                | opcode::admin::ABORT
                | opcode::admin::SET_FEATURES
                | opcode::admin::GET_FEATURES
                | opcode::admin::ASYNC_EVENT_REQUEST
                | opcode::admin::KEEP_ALIVE
                | opcode::admin::DOORBELL_BUFFER_CONFIG
                | opcode::admin::FORMAT_NVM
        ),
        // The Compare of a pair would find what its Write has written.
        _ if entry.fuse() != 0 => false,
        _ => matches!(
            entry.opcode,
            opcode::io::FLUSH
                | opcode::io::WRITE
                | opcode::io::READ
                | opcode::io::WRITE_UNCORRECTABLE
                | opcode::io::COMPARE
                | opcode::io::WRITE_ZEROES
                | opcode::io::DATASET_MANAGEMENT
                | opcode::io::VERIFY
                | opcode::io::RESERVATION_REGISTER
                | opcode::io::RESERVATION_REPORT
                | opcode::io::RESERVATION_ACQUIRE
                | opcode::io::RESERVATION_RELEASE
                | opcode::io::COPY
        ),
    }
}
