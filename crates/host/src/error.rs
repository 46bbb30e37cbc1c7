//! Errors between a host and its controller.

use sluice_nvme::{CompletionEntry, Status};
use sluice_vfio_user::{Command, Errno};
use std::{fmt, io};

/// An error of an operation of the host.
#[derive(Debug)]
pub enum Error {
    /// A command completed with a status other than success; the complete entry.
    Status(CompletionEntry),
    /// Something did not happen in time.
    Timeout(&'static str),
    /// CSTS.CFS is set.
    ControllerFatal,
    /// Every identifier of the queue is in flight.
    QueueFull,
    /// The other side broke the rules.
    Protocol(&'static str),
    /// The host or this controller does not support the operation.
    Unsupported(&'static str),
    /// The vfio-user server refused a message.
    Refused(Command, Errno),
    /// The vfio-user connection ended.
    Connection(sluice_vfio_user::Error),
    /// Something has to be set up first; what, and how.
    Setup(String),
    /// The operating system refused.
    System(io::Error),
}

impl Error {
    /// Returns the status of the failed command, if a command failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Status(completion) => Some(completion.status()),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Status(completion) => write!(f, "the command failed: {:?}", completion.status()),
            Error::Timeout(what) => write!(f, "{what} did not happen in time"),
            Error::ControllerFatal => f.write_str("the controller reports a fatal status"),
            Error::QueueFull => f.write_str("the queue has no room for another command"),
            Error::Protocol(what) => write!(f, "the other side broke the rules: {what}"),
            Error::Unsupported(what) => write!(f, "not supported: {what}"),
            Error::Refused(command, errno) => write!(f, "the server refused {command:?}: {errno}"),
            Error::Connection(error) => write!(f, "{error}"),
            Error::Setup(what) => f.write_str(what),
            Error::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<sluice_vfio_user::Error> for Error {
    fn from(error: sluice_vfio_user::Error) -> Self {
        Error::Connection(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::System(error)
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::System(errno.into())
    }
}
