//! Causes of a recall of queue groups.

use std::fmt;

/// Reason why all queues of a drive must be served by the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecallCause {
    /// Admin command with this opcode.
    AdminCommand(u8),
    /// I/O command with this opcode, or one of a fused pair.
    IoCommand(u8),
    /// Register write, reset, or end of the host.
    Reset,
    /// Unmapped memory.
    Memory,
    /// Change of memory or interrupts of queues by the client.
    Client,
    /// Data of a command outside of all mapped memory.
    Buffer,
    /// Doorbell write with an invalid value.
    Doorbell,
    /// Fatal status of the controller.
    Fatal,
    /// Request of the operator.
    Operator,
    /// End of the drive.
    End,
    /// Lack of room for the group at the remote controller.
    Room,
}

impl RecallCause {
    /// Label of each cause, in the order of their [numbers](Self::number).
    pub const LABELS: [&'static str; 11] = [
        "admin_command",
        "io_command",
        "reset",
        "memory",
        "client",
        "buffer",
        "doorbell",
        "fatal",
        "operator",
        "end",
        "room",
    ];

    /// Returns the index of the label.
    pub fn number(self) -> usize {
        match self {
            Self::AdminCommand(_) => 0,
            Self::IoCommand(_) => 1,
            Self::Reset => 2,
            Self::Memory => 3,
            Self::Client => 4,
            Self::Buffer => 5,
            Self::Doorbell => 6,
            Self::Fatal => 7,
            Self::Operator => 8,
            Self::End => 9,
            Self::Room => 10,
        }
    }
}

impl fmt::Display for RecallCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdminCommand(opcode) => return write!(f, "the host sent admin command {opcode:02x}h"),
            Self::IoCommand(opcode) => {
                return write!(f, "the host sent I/O command {opcode:02x}h, or a fused one");
            }
            Self::Reset => "the host wrote a register of its controller, was reset, or is gone",
            Self::Memory => "memory of the host was unmapped",
            Self::Client => "the client changed the memory or the interrupts of the host",
            Self::Buffer => "data of a command is not in memory that the client has shared",
            Self::Doorbell => "the host rang a doorbell with a value that cannot be",
            Self::Fatal => "the controller is in fatal status",
            Self::Operator => "an order takes all queues of the drive",
            Self::End => "the drive ends",
            Self::Room => "there was no room for a queue's interrupt where it was sent",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_has_a_word_of_its_own() {
        let all = [
            RecallCause::AdminCommand(6),
            RecallCause::IoCommand(1),
            RecallCause::Reset,
            RecallCause::Memory,
            RecallCause::Client,
            RecallCause::Buffer,
            RecallCause::Doorbell,
            RecallCause::Fatal,
            RecallCause::Operator,
            RecallCause::End,
            RecallCause::Room,
        ];
        assert!(all.iter().map(|cause| cause.number()).eq(0..RecallCause::LABELS.len()));
        assert_eq!(BTreeSet::from(RecallCause::LABELS).len(), RecallCause::LABELS.len());
        assert_eq!(all.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len(), all.len());
    }
}
