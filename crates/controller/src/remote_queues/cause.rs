//! What brings queue groups home.

use std::fmt;

/// Why the queues of a drive have to be in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecallCause {
    /// The host sent an admin command with this opcode.
    AdminCommand(u8),
    /// It sent an I/O command with this opcode, or one of two that are fused.
    IoCommand(u8),
    /// It wrote a register, was reset, or is gone.
    Reset,
    /// Some of its memory is taken back.
    Memory,
    /// Its client has changed what queues use: memory, interrupts.
    Client,
    /// Data of a command is where no memory is that was shown.
    Buffer,
    /// It rang a doorbell with a value that cannot be.
    Doorbell,
    /// Its controller is in fatal status.
    Fatal,
    /// An order of the operator.
    Operator,
    /// The drive ends.
    End,
    /// There was no room for the group where it was sent.
    Room,
}

impl RecallCause {
    /// A word for each, in the order of their [numbers](Self::number).
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

    /// Of its kind.
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
