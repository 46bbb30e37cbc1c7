//! UNIX sockets to listen on. A socket in use is never replaced, and no socket is left behind.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sluice_frontend::folder::{check_folder, set_socket_mode};
use sluice_spec::error::ApiError;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Maximum length of a socket's path (`sockaddr_un` without the final zero), bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A bound socket file; removed when dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
}

impl SocketFile {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Listens at `path`, non-blocking, with these permissions from the first moment. The socket of a crashed
/// daemon is replaced; a socket with a listener is not.
pub fn listen(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), ApiError> {
    check_length(path)?;
    remove_stale(path)?;
    let bound = bind(path, mode).map_err(|error| match error {
        Errno::ADDRINUSE => occupied(path),
        error => ApiError::io("listen at", path, &error.into()),
    })?;
    Ok((UnixListener::from(bound), SocketFile { path: path.to_owned() }))
}

/// Continues with a socket of another process that listens at `path`.
pub fn resume(path: &Path, socket: OwnedFd) -> (UnixListener, SocketFile) {
    (UnixListener::from(socket), SocketFile { path: path.to_owned() })
}

/// Creates a folder and its missing parents with `mode`. An existing folder is refused if every user may
/// write to it: another user could replace files in the folder.
pub fn make_folder(path: &Path, mode: u32) -> Result<(), ApiError> {
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|error| {
        ApiError::io("create the folder", path, &error)
            .hint("create it for the daemon's user, or configure another")
    })?;
    check_folder(path).map_err(|error| {
        ApiError::io("use the folder", path, &error)
            .hint("take that permission away (chmod o-w), or configure another")
    })
}

/// Checks that a path fits a socket address. The error names the limit.
pub fn check_length(path: &Path) -> Result<(), ApiError> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        return Err(ApiError::invalid(format!("{} is too long for a socket", path.display())).hint(format!(
            "it has {length} bytes, the kernel allows {SOCKET_PATH_MAX}: choose a shorter name or folder"
        )));
    }
    Ok(())
}

fn bind(path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The kernel creates the file with the mode of the socket, less the umask. The file is thus never wider
    // than `mode`, not even for a moment. `set_socket_mode` adds the bits that the umask removed.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    set_socket_mode(path, mode)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn remove_stale(path: &Path) -> Result<(), ApiError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ApiError::io("look at", path, &error)),
    };
    if !found.file_type().is_socket() {
        return Err(ApiError::conflict(format!("{} exists and is not a socket", path.display()))
            .hint("move it away, or configure another place"));
    }
    if somebody_listens(path).map_err(|error| ApiError::io("look who listens at", path, &error.into()))? {
        return Err(occupied(path));
    }
    std::fs::remove_file(path).map_err(|error| ApiError::io("remove the stale socket", path, &error))
}

/// Connects without blocking. A listener whose backlog is full counts as a listener.
fn somebody_listens(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN) | Err(Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}

fn occupied(path: &Path) -> ApiError {
    ApiError::conflict(format!("somebody listens at {} already", path.display()))
        .hint("stop the other daemon, or configure another place for this one")
}

/// Returns the permission bits of a file.
pub fn mode_of(path: &Path) -> io::Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_respected_and_a_leftover_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let (listener, file) = listen(&path, 0o600).expect("a free path");
        assert_eq!(mode_of(&path).expect("the socket is there"), 0o600);
        let problem = listen(&path, 0o600).expect_err("somebody listens");
        assert!(problem.error.contains("somebody listens"), "{problem}");
        std::mem::forget(file);
        drop(listener);
        assert!(path.exists(), "as after a crash");
        let (_listener, file) = listen(&path, 0o666).expect("nobody listens any more");
        assert_eq!(mode_of(&path).expect("the socket is there"), 0o666);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_all_may_write_to_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("open");
        make_folder(&path, 0o755).expect("a new folder");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("it is ours");
        let problem = make_folder(&path, 0o755).expect_err("every user may write there");
        assert!(problem.error.contains("every user may write to the folder"), "{problem}");
        assert!(problem.hint.is_some_and(|hint| hint.contains("chmod o-w")));
    }

    #[test]
    fn a_full_backlog_is_still_somebody() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let (_listener, _file) = listen(&path, 0o600).expect("a free path");
        let waiting: Vec<_> = std::iter::repeat_with(|| somebody_listens(&path)).take(200).collect();
        assert!(waiting.iter().all(|answer| *answer == Ok(true)));
    }

    #[test]
    fn a_file_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        std::fs::write(&path, "precious").expect("a file");
        let problem = listen(&path, 0o600).expect_err("a file is in the way");
        assert!(problem.error.contains("is not a socket"), "{problem}");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
    }

    #[test]
    fn a_long_path_is_refused_in_words() {
        let path = PathBuf::from(format!("/{}", "x".repeat(SOCKET_PATH_MAX)));
        let longest = PathBuf::from(format!("/{}", "x".repeat(106)));
        assert!(check_length(&longest).is_ok(), "107 bytes");
        let problem = listen(&path, 0o600).expect_err("too long");
        assert!(problem.hint.is_some_and(|hint| hint.contains("has 108 bytes")));
    }
}
