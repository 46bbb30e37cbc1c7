//! An error in words, with its remedy.

use serde::{Deserialize, Serialize};
use sluice_options::Fault;
use std::fmt;
use std::path::Path;
use utoipa::ToSchema;

/// Kind of an error, which decides the HTTP status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be read at all.
    Malformed,
    /// The request is readable, but cannot be fulfilled.
    Invalid,
    /// The caller may not do this.
    Forbidden,
    /// No drive, namespace or page has that name.
    NotFound,
    /// Conflict with the present state: a name in use, a drive with a client, a file locked by another
    /// process.
    Conflict,
    /// Another process uses the resource now; later the resource may be free.
    InUse,
    /// Another machine does not answer now; later it may.
    Unreachable,
    /// The daemon does not answer: it is stopping, or does not run.
    Unavailable,
    /// Failure of the daemon itself, or of the machine.
    #[default]
    Internal,
}

impl Kind {
    /// Returns the HTTP status of an error of this kind.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Invalid => 422,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict | Self::InUse => 409,
            Self::Unavailable => 503,
            Self::Unreachable | Self::Internal => 500,
        }
    }

    /// Returns the kind of the errors with an HTTP status, for a client.
    pub fn of_http_status(status: u16) -> Self {
        match status {
            400 | 405 | 413 => Self::Malformed,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            409 => Self::Conflict,
            422 => Self::Invalid,
            503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

/// An error as users and callers of the API see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    #[serde(skip)]
    pub kind: Kind,
    /// Description of the error.
    pub error: String,
    /// Remedy for the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    pub fn new(kind: Kind, error: impl Into<String>) -> Self {
        Self { kind, error: error.into(), hint: None }
    }

    pub fn invalid(error: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, error)
    }

    pub fn conflict(error: impl Into<String>) -> Self {
        Self::new(Kind::Conflict, error)
    }

    pub fn not_found(error: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, error)
    }

    pub fn internal(error: impl Into<String>) -> Self {
        Self::new(Kind::Internal, error)
    }

    /// Returns the problem for a failed system call on a file: `what` is a verb ("read", "create").
    pub fn io(what: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::internal(format!("cannot {what} {}: {error}", path.display())).limited_by(error)
    }

    /// Adds the process limit that causes the error, if there is one, and the ways to raise it.
    pub fn limited_by(self, error: &std::io::Error) -> Self {
        match limit_of(error) {
            Some(limit) => self.hint(limit),
            None => self,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns both sentences on one line, for the log.
    pub fn in_one_line(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{} ({hint})", self.error),
            None => self.error.clone(),
        }
    }

    /// Replaces a path in the message, so that a file has the name that the user gave, not that of an
    /// internal copy.
    pub fn naming(mut self, path: &Path, instead_of: &Path) -> Self {
        self.error = self.error.replace(&instead_of.display().to_string(), &path.display().to_string());
        self
    }

    /// Puts the subject of the error in front of the message.
    pub fn about(mut self, what: &str) -> Self {
        self.error = format!("{what}: {}", self.error);
        self
    }
}

/// Returns the process limit that causes the kernel's refusal, and the ways to raise it.
fn limit_of(error: &std::io::Error) -> Option<&'static str> {
    match rustix::io::Errno::from_io_error(error)? {
        rustix::io::Errno::FBIG => Some(
            "the limit of file sizes is reached, which counts for shared memory, too: raise it (`ulimit -f`, \
             LimitFSIZE= in the unit, or `prlimit --fsize` for a daemon at work)",
        ),
        rustix::io::Errno::MFILE => Some(
            "the limit of open files is reached: raise it (`ulimit -Hn`, LimitNOFILE= in the unit, or \
             `prlimit --nofile` for a daemon at work)",
        ),
        rustix::io::Errno::NFILE => Some("the machine's limit of open files is reached: raise fs.file-max"),
        rustix::io::Errno::NOMEM => Some(
            "memory is short, or a limit of it is reached: see `ulimit -v`, `ulimit -l`, and the memory limit of \
             the daemon's cgroup",
        ),
        _ => None,
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ApiError {}

/// Form of a fault in the API.
impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        let problem = ApiError::invalid(format!("{}: {}", fault.at, fault.error));
        ApiError { hint: fault.hint, ..problem }
    }
}
