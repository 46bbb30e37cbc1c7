//! Socket `DIR/cntrl`, to which clients connect.

use rustix::fs::{AtFlags, fchmod};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, open, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{accept_with, bind, connect, listen, shutdown, socket_with};
use sluice_frontend::folder::{check_folder, set_socket_mode};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Name of the socket in its directory, by convention of vfio-user NVMe servers and their clients.
pub const SOCKET_NAME: &str = "cntrl";

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 8;

/// Permissions to connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Mode of the socket.
    pub mode: u32,
    /// Group of the socket; the process's own if there is none.
    pub group: Option<u32>,
}

impl Access {
    /// Gives a path to the group, if there is one.
    ///
    /// # Errors
    /// A message that names the path: the process may not give it to the group.
    pub fn give(self, path: &Path) -> io::Result<()> {
        let Some(group) = self.group else { return Ok(()) };
        lchown(path, None, Some(group)).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "; a user that is not root may give a file to groups that it is in, and to no others"
                }
                _ => "",
            };
            explain(path, error.kind(), &format!("cannot be given to group {group}: {error}{hint}"))
        })
    }
}

/// Listening socket that belongs to this process alone, removed when dropped.
///
/// A listener is made on a thread that may wait for the file system, and then handed to a reactor.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, so that a foreign socket in its place is not removed.
    identity: (u64, u64),
    /// Directory, locked against other servers for the lifetime of the listener.
    directory: OwnedFd,
    created_directory: bool,
    /// Whether the paths stay when the listener is dropped, since another process still listens there.
    keeps_paths: bool,
}

impl Listener {
    /// Listens on `cntrl` in `directory`, which is made (for its owner only) if it is not there. `mode` is
    /// that of the socket: 0o600 unless other users shall connect.
    ///
    /// A socket that a dead server left behind is replaced.
    ///
    /// # Errors
    /// A message that names the path: it is served already, it is not a socket, it is too long, or the error
    /// of the kernel.
    pub fn bind(directory: &Path, mode: u32) -> io::Result<Listener> {
        Self::bind_for(directory, Access { mode, group: None })
    }

    /// Listens like [`bind`](Self::bind), with a group whose members may connect.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), or the group cannot be given.
    pub fn bind_for(directory: &Path, access: Access) -> io::Result<Listener> {
        let path = directory.join(SOCKET_NAME);
        let address = SocketAddrUnix::new(&path).map_err(|_| {
            explain(&path, io::ErrorKind::InvalidFilename, "the path is too long for a socket (107 bytes)")
        })?;
        let created_directory = make_directory(directory)?;
        let locked = lock(directory)?;
        check_folder(directory).map_err(|error| explain(directory, error.kind(), &error.to_string()))?;
        remove_stale(&path, &address)?;
        let socket = open_socket(&path, &address, access)?;
        let stat = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| refused(&path, e))?;
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Listener { socket, path, identity, directory: locked, created_directory, keeps_paths: false })
    }

    /// Continues with a socket of another process, and with its lock of the directory. The paths stay when the
    /// listener is dropped, until [`keep_paths`](Self::keep_paths).
    ///
    /// # Errors
    /// The socket file is not there.
    pub(super) fn resume(
        socket: OwnedFd,
        directory: OwnedFd,
        path: PathBuf,
        created_directory: bool,
    ) -> io::Result<Listener> {
        let stat = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| refused(&path, e))?;
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Listener { socket, path, identity, directory, created_directory, keeps_paths: true })
    }

    /// Sets whether the paths stay when the listener is dropped.
    pub(super) fn keep_paths(&mut self, keeps: bool) {
        self.keeps_paths = keeps;
    }

    pub(super) fn socket_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn directory_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    pub(super) fn has_created_directory(&self) -> bool {
        self.created_directory
    }

    /// Returns the path to which clients connect.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the next client that waits, if one does.
    pub(super) fn accept(&self) -> Result<Option<UnixStream>, Errno> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket.into())),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Stops listening, and returns the clients that wait. The end of the socket would otherwise close their
    /// connections, and with them all descriptors that they sent.
    pub(super) fn refuse(&self) -> impl Iterator<Item = UnixStream> {
        let _ = shutdown(&self.socket, Shutdown::Both);
        std::iter::from_fn(|| self.accept().ok().flatten())
    }

    fn is_still_ours(&self) -> bool {
        let stat = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.keeps_paths {
            return;
        }
        if self.is_still_ours()
            && let Err(error) = unlinkat(CWD, &self.path, AtFlags::empty())
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a socket");
        }
        if let Some(directory) = self.path.parent().filter(|_| self.created_directory) {
            // A directory that is not empty stays: the call fails.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Makes a directory. Returns whether there was none.
fn make_directory(directory: &Path) -> io::Result<bool> {
    if directory.is_dir() {
        return Ok(false);
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| explain(directory, error.kind(), &format!("cannot make the directory: {error}")))?;
    Ok(true)
}

/// Locks a directory against other servers, also while neither has a socket yet.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(directory, flags, Mode::empty()).map_err(|e| refused(directory, e))?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(opened),
        Err(Errno::WOULDBLOCK) => Err(in_use(directory)),
        Err(errno) => Err(refused(directory, errno)),
    }
}

/// Removes a socket at `path` on which no server listens.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let stat = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(refused(path, errno)),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(explain(path, io::ErrorKind::AlreadyExists, "it exists and is not a socket"));
    }
    match connect(new_socket()?, address) {
        Err(Errno::CONNREFUSED) => {}
        // A server listens, perhaps with a full backlog.
        Ok(()) | Err(Errno::AGAIN) => return Err(in_use(path)),
        Err(errno) => return Err(refused(path, errno)),
    }
    unlinkat(CWD, path, AtFlags::empty()).map_err(|errno| refused(path, errno))
}

fn open_socket(path: &Path, address: &SocketAddrUnix, access: Access) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    let refused = |errno| refused(path, errno);
    // The socket file gets the mode of the socket without the bits of the process's umask, so it is never
    // open to others. The configured mode is set before any client can connect.
    fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(refused)?;
    bind(&socket, address).map_err(refused)?;
    // The group is set first: the mode is meant for no other group.
    access.give(path)?;
    set_socket_mode(path, access.mode).map_err(refused)?;
    listen(&socket, BACKLOG).map_err(refused)?;
    Ok(socket)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn in_use(path: &Path) -> io::Error {
    explain(
        path,
        io::ErrorKind::AddrInUse,
        "another process serves it; stop that one, or use another directory",
    )
}

fn refused(path: &Path, errno: Errno) -> io::Error {
    explain(path, io::Error::from(errno).kind(), &errno.to_string())
}

fn explain(path: &Path, kind: io::ErrorKind, why: &str) -> io::Error {
    io::Error::new(kind, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A directory of our own, removed in the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("sluice-listener-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).expect("a new directory");
            Self(path)
        }

        fn drive(&self) -> PathBuf {
            self.0.join("drives/one")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_may_connect() {
        let scratch = Scratch::new();
        let listener = Listener::bind(&scratch.drive(), 0o600).expect("bound");
        assert_eq!(mode_of(&scratch.drive()), 0o700);
        assert_eq!(mode_of(listener.path()), 0o600);
        assert!(listener.accept().expect("a healthy socket").is_none());
        let _client = UnixStream::connect(listener.path()).expect("connected");
        assert!(listener.accept().expect("a healthy socket").is_some());
    }

    #[test]
    fn those_who_wait_are_seen_to() {
        let scratch = Scratch::new();
        let listener = Listener::bind(&scratch.drive(), 0o600).expect("bound");
        let waiting: Vec<_> =
            (0..3).map(|_| UnixStream::connect(listener.path()).expect("connected")).collect();
        assert_eq!(listener.refuse().count(), waiting.len());
        let error = UnixStream::connect(listener.path()).expect_err("nobody may connect");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_configured_mode_is_exact() {
        let scratch = Scratch::new();
        let listener = Listener::bind(&scratch.drive(), 0o666).expect("bound");
        assert_eq!(mode_of(listener.path()), 0o666);
    }

    #[test]
    fn nothing_is_left_behind() {
        let scratch = Scratch::new();
        drop(Listener::bind(&scratch.drive(), 0o600).expect("bound"));
        assert!(!scratch.drive().exists());
        std::fs::create_dir_all(scratch.drive()).expect("made");
        drop(Listener::bind(&scratch.drive(), 0o600).expect("bound"));
        assert!(scratch.drive().exists() && !scratch.drive().join(SOCKET_NAME).exists());
    }

    #[test]
    fn one_server_at_a_time() {
        let scratch = Scratch::new();
        let first = Listener::bind(&scratch.drive(), 0o600).expect("bound");
        let error = Listener::bind(&scratch.drive(), 0o600).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("drives/one"), "{error}");
        assert!(first.path().exists());
    }

    #[test]
    fn a_server_that_does_not_lock_is_noticed() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.drive()).expect("made");
        let path = scratch.drive().join(SOCKET_NAME);
        let other = UnixListener::bind(&path).expect("bound");
        let error = Listener::bind(&scratch.drive(), 0o600).expect_err("in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(other);
        let listener = Listener::bind(&scratch.drive(), 0o600).expect("the stale one is replaced");
        assert_eq!(listener.path(), path);
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.drive()).expect("made");
        let path = scratch.drive().join(SOCKET_NAME);
        std::fs::write(&path, "precious").expect("written");
        let error = Listener::bind(&scratch.drive(), 0o600).expect_err("not a socket");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    }

    #[test]
    fn somebody_elses_socket_is_not_removed() {
        let scratch = Scratch::new();
        let listener = Listener::bind(&scratch.drive(), 0o600).expect("bound");
        let path = listener.path().to_owned();
        std::fs::remove_file(&path).expect("removed behind our back");
        let _other = UnixListener::bind(&path).expect("bound");
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn a_directory_that_others_may_write_to_or_point_elsewhere_is_refused() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.drive()).expect("made");
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink(scratch.drive(), &link).expect("made");
        Listener::bind(&link, 0o600).expect_err("a link");
        std::fs::set_permissions(scratch.drive(), PermissionsExt::from_mode(0o777)).expect("it is ours");
        let error = Listener::bind(&scratch.drive(), 0o600).expect_err("every user may write there");
        assert!(error.to_string().contains("every user may write"), "{error}");
    }

    #[test]
    fn a_path_that_is_too_long_is_said_to_be() {
        let directory = PathBuf::from("/tmp").join("x".repeat(120));
        let error = Listener::bind(&directory, 0o600).expect_err("too long");
        assert!(error.to_string().contains("too long"), "{error}");
        assert!(!directory.exists());
    }
}
