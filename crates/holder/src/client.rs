//! Client of the holder, in the daemon.

use crate::message::{RECORD_MAX, check_peer, greet, kind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sluice_handover::{Channel, ChannelError};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for the holder to send everything that it keeps. It first waits until the former daemon is gone.
const TAKE_LIMIT: Duration = Duration::from_secs(30);

/// Reason why something is not kept.
#[derive(Debug)]
pub enum HolderError {
    /// The holder cannot be reached.
    Connect(PathBuf, io::Error),
    Channel(ChannelError),
    /// The holder has refused, in these words.
    Refused(String),
    Io(io::Error),
}

impl fmt::Display for HolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(path, error) => {
                write!(f, "cannot connect to the holder at {}: {error}", path.display())
            }
            Self::Channel(error) => write!(f, "the holder: {error}"),
            Self::Refused(why) => write!(f, "the holder refuses: {why}"),
            Self::Io(error) => write!(f, "a record cannot be made: {error}"),
        }
    }
}

impl std::error::Error for HolderError {}

impl From<ChannelError> for HolderError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<io::Error> for HolderError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Drive that a dead daemon has left.
#[derive(Debug)]
pub struct HeldDrive {
    pub name: String,
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The holder of a daemon.
#[derive(Clone, Debug)]
pub struct Holder {
    path: PathBuf,
    /// Name of the daemon, which its successor has, too.
    daemon: String,
}

impl Holder {
    pub fn new(path: &Path, daemon: &str) -> Self {
        Self { path: path.to_owned(), daemon: daemon.to_owned() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn connect(&self) -> Result<Channel, HolderError> {
        let connect = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
            check_peer(socket.as_fd())?;
            Channel::inherited(socket)
        };
        connect().map_err(|error| HolderError::Connect(self.path.clone(), error))
    }

    /// Returns the drives that a daemon of the same name has left, when that one is gone.
    ///
    /// # Errors
    /// The holder does not answer, or the former daemon does not end.
    pub fn take(&self) -> Result<Vec<HeldDrive>, HolderError> {
        let channel = self.connect()?;
        let until = Instant::now() + TAKE_LIMIT;
        channel.send(kind::TAKE, &greet(self.daemon.as_bytes()), &[], until)?;
        let mut drives = Vec::new();
        loop {
            let message = channel.receive(until)?;
            match message.kind() {
                kind::END => return Ok(drives),
                kind::RECORD => {
                    let name = String::from_utf8(message.bytes)
                        .map_err(|_| ChannelError::Malformed("a name that is no text"))?;
                    let mut fds = message.fds.into_iter();
                    let record = fds.next().ok_or(ChannelError::Malformed("a drive without a record"))?;
                    drives.push(HeldDrive { name, bytes: read(record)?, fds: fds.collect() });
                }
                kind::REFUSED => {
                    return Err(HolderError::Refused(String::from_utf8_lossy(&message.bytes).into_owned()));
                }
                _ => return Err(ChannelError::Malformed("a message of another kind").into()),
            }
        }
    }

    /// Checks whether the holder is there.
    ///
    /// # Errors
    /// The holder cannot be reached.
    pub fn check(&self) -> Result<(), HolderError> {
        self.connect().map(drop)
    }

    /// Waits until the holder ends.
    ///
    /// # Errors
    /// The holder cannot be reached.
    pub fn wait_for_end(&self) -> Result<(), HolderError> {
        let channel = self.connect()?;
        loop {
            match poll(&mut [PollFd::new(&channel, PollFlags::IN)], None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }

    /// Begins to keep the records of a drive.
    ///
    /// # Errors
    /// The holder cannot be reached.
    pub fn keep(&self, drive: &str) -> Result<Keeping, HolderError> {
        let channel = self.connect()?;
        let name = [self.daemon.as_bytes(), &[0], drive.as_bytes()].concat();
        channel.send(kind::KEEP, &greet(&name), &[], Instant::now())?;
        Ok(Keeping(channel))
    }
}

fn read(record: OwnedFd) -> Result<Vec<u8>, HolderError> {
    let mut file = File::from(record);
    if file.metadata()?.len() > RECORD_MAX {
        return Err(ChannelError::Malformed("a record that is too long").into());
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Connection on which the records of one drive are sent. The last one counts. If the connection ends without a
/// [`release`](Self::release), the holder goes on to keep it.
#[derive(Debug)]
pub struct Keeping(Channel);

impl Keeping {
    /// Sends a record with the descriptors that it names. Does not wait.
    ///
    /// # Errors
    /// The holder is gone, or is too slow. The connection is of no use after that.
    pub fn put(&self, record: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), HolderError> {
        let file = memfd_create("sluice-record", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(io::Error::from)?;
        let mut file = File::from(file);
        file.write_all(record)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(io::Error::from)?;
        let all: Vec<BorrowedFd<'_>> = [file.as_fd()].into_iter().chain(fds.iter().copied()).collect();
        Ok(self.0.send(kind::RECORD, &[], &all, Instant::now())?)
    }

    /// Ends the records, so that no daemon continues the drive.
    pub fn release(&self) {
        // A holder that is gone keeps nothing.
        let _ = self.0.send(kind::RELEASE, &[], &[], Instant::now());
    }
}
