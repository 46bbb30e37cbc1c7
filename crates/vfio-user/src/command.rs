//! Command codes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Command code of a message; open, since peers may send any value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Command(pub u16);

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Command {
            $($(#[$doc])* pub const $name: Command = Command($code);)*

            /// Returns the constant's name, for messages.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

commands! {
    /// First message of a client: [`crate::version::Version`] and optionally capabilities.
    VERSION = 1;
    DMA_MAP = 2;
    DMA_UNMAP = 3;
    DEVICE_GET_INFO = 4;
    DEVICE_GET_REGION_INFO = 5;
    DEVICE_GET_REGION_IO_FDS = 6;
    DEVICE_GET_IRQ_INFO = 7;
    DEVICE_SET_IRQS = 8;
    REGION_READ = 9;
    REGION_WRITE = 10;
    /// Read from server to client, for memory that was mapped without a file descriptor.
    DMA_READ = 11;
    /// Write from server to client, for memory that was mapped without a file descriptor.
    DMA_WRITE = 12;
    DEVICE_RESET = 13;
    DIRTY_PAGES = 14;
    REGION_WRITE_MULTI = 15;
    DEVICE_FEATURE = 16;
    MIG_DATA_READ = 17;
    MIG_DATA_WRITE = 18;
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Command({})", self.0),
        }
    }
}
