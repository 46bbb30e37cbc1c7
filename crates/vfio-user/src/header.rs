//! The header of every message.

use crate::{Command, Errno};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The 16 bytes before every message. Sizes are in bytes and include the header itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Identifier that the sender of the command chooses, repeated in the reply.
    pub id: u16,
    pub command: Command,
    /// Size of the whole message, header included.
    pub size: u32,
    /// Type in bits 3:0, no-reply in bit 4, error in bit 5.
    pub flags: u32,
    /// UNIX error number; only in a reply whose error bit is set.
    pub error: u32,
}

impl Header {
    pub const SIZE: usize = 16;

    pub const TYPE_MASK: u32 = 0xf;
    pub const TYPE_COMMAND: u32 = 0;
    pub const TYPE_REPLY: u32 = 1;
    pub const NO_REPLY: u32 = 1 << 4;
    pub const ERROR: u32 = 1 << 5;

    /// Creates a command that requests a reply. The size is filled in by the sender.
    pub fn command(id: u16, command: Command) -> Self {
        Self { id, command, size: Self::SIZE as u32, flags: Self::TYPE_COMMAND, error: 0 }
    }

    /// Returns the same command with the no-reply flag.
    pub fn without_reply(self) -> Self {
        Self { flags: self.flags | Self::NO_REPLY, ..self }
    }

    /// Returns the header of the reply to this command.
    pub fn reply(&self) -> Self {
        Self { flags: Self::TYPE_REPLY, error: 0, size: Self::SIZE as u32, ..*self }
    }

    /// Returns the header of an error reply to this command, which never carries a payload.
    pub fn error_reply(&self, errno: Errno) -> Self {
        let error = errno.raw_os_error().unsigned_abs();
        Self { flags: Self::TYPE_REPLY | Self::ERROR, error, size: Self::SIZE as u32, ..*self }
    }

    pub fn is_command(&self) -> bool {
        self.flags & Self::TYPE_MASK == Self::TYPE_COMMAND
    }

    pub fn is_reply(&self) -> bool {
        self.flags & Self::TYPE_MASK == Self::TYPE_REPLY
    }

    /// Returns whether the sender of a command waits for no reply.
    pub fn no_reply(&self) -> bool {
        self.flags & Self::NO_REPLY != 0
    }

    /// Returns the error in a reply. A peer may set the bit without a number; that is `EIO`.
    pub fn failure(&self) -> Option<Errno> {
        let number = i32::try_from(self.error).ok().filter(|n| (1..=MAX_ERRNO).contains(n));
        (self.flags & Self::ERROR != 0).then(|| number.map_or(Errno::IO, Errno::from_raw_os_error))
    }
}

/// The largest error number of the kernel.
const MAX_ERRNO: i32 = 4095;

const _: () = assert!(size_of::<Header>() == Header::SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let header = Header { id: 0x0102, command: Command::REGION_READ, size: 32, flags: 0x31, error: 22 };
        assert_eq!(header.as_bytes(), [2, 1, 9, 0, 32, 0, 0, 0, 0x31, 0, 0, 0, 22, 0, 0, 0]);
        assert!(header.is_reply() && header.no_reply());
        assert_eq!(header.failure(), Some(Errno::INVAL));
    }

    #[test]
    fn replies_keep_the_id_and_the_command() {
        let command = Header::command(7, Command::DEVICE_RESET).without_reply();
        assert!(command.is_command() && command.no_reply());
        let reply = command.reply();
        assert!(reply.is_reply() && !reply.no_reply());
        assert_eq!((reply.id, reply.command, reply.failure()), (7, Command::DEVICE_RESET, None));
        assert_eq!(command.error_reply(Errno::NOENT).failure(), Some(Errno::NOENT));
    }

    #[test]
    fn an_error_without_a_sensible_number_is_an_io_error() {
        for error in [0, 4096, u32::MAX] {
            let header = Header { error, flags: Header::TYPE_REPLY | Header::ERROR, ..Header::default() };
            assert_eq!(header.failure(), Some(Errno::IO));
        }
    }
}
