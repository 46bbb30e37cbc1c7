//! Errors of the socket.

use crate::{Errno, Header, MAX_MESSAGE_FDS, MAX_MESSAGE_SIZE, MAX_UNSENT};
use std::fmt;

/// Reason for which a connection ended. Every one of these is final: the stream is no longer in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// End of the connection between two messages, by the peer.
    Closed,
    /// End of the connection inside a message, by the peer.
    ClosedInsideMessage,
    /// Size in a header that is shorter than the header or longer than [`MAX_MESSAGE_SIZE`].
    MessageSize(u32),
    /// Message with more than [`MAX_MESSAGE_FDS`] file descriptors.
    TooManyFds,
    /// Peer that does not read: [`MAX_UNSENT`] bytes wait already, or
    /// [`MAX_UNSENT_FDS`](crate::MAX_UNSENT_FDS) descriptors.
    PeerDoesNotRead,
    /// Message to be sent that is longer than [`MAX_MESSAGE_SIZE`] or has too many file descriptors.
    UnsendableMessage,
    /// Error of the socket itself.
    Socket(Errno),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Closed => f.write_str("the peer closed the connection"),
            Error::ClosedInsideMessage => f.write_str("the peer closed the connection inside a message"),
            Error::MessageSize(size) => write!(
                f,
                "a message claims {size} bytes; {} to {MAX_MESSAGE_SIZE} are possible",
                Header::SIZE
            ),
            Error::TooManyFds => {
                write!(f, "a message came with more than {MAX_MESSAGE_FDS} file descriptors")
            }
            Error::PeerDoesNotRead => {
                write!(
                    f,
                    "the peer does not read its messages: up to {MAX_UNSENT} bytes, or descriptors, wait for it"
                )
            }
            Error::UnsendableMessage => write!(
                f,
                "a message to be sent is over {MAX_MESSAGE_SIZE} bytes or {MAX_MESSAGE_FDS} file descriptors"
            ),
            Error::Socket(errno) => write!(f, "the socket failed: {errno}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    /// Converts an errno. The end of a peer causes any of these, depending on the call that detects it.
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Error::Closed,
            errno => Error::Socket(errno),
        }
    }
}
