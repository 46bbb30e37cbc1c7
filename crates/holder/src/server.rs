//! Server of the holder: one thread, one loop.

use crate::closing::Closing;
use crate::message::{check_peer, greeting, kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sluice_handover::{Channel, ChannelError, Message};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Limits of a holder.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time for which the drives of a dead daemon are kept.
    pub patience: Duration,
    /// Time for a former daemon to end after its successor has come.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { patience: Duration::from_secs(600), end: Duration::from_secs(10) }
    }
}

/// Time for the rest of a message whose beginning is there.
const MESSAGE_LIMIT: Duration = Duration::from_secs(1);

/// Interval between two looks while something waits for time to pass.
const LOOK: Duration = Duration::from_millis(5);

/// Interval between two looks at drives of dead daemons.
const SLOW_LOOK: Duration = Duration::from_secs(1);

/// Connections at a time.
const CONNECTIONS_MAX: usize = 4096;

/// Name of a daemon, and of one of its drives.
type Key = (String, String);

/// Drive that is kept.
#[derive(Debug)]
struct Kept {
    /// Connection on which the record came.
    owner: u64,
    /// The file with the record, and the descriptors that it names.
    fds: Vec<OwnedFd>,
    /// Time of the end of its daemon.
    orphan_since: Option<Instant>,
}

/// Connection of a daemon.
#[derive(Debug)]
struct Peer {
    number: u64,
    channel: Channel,
    process: Pid,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// Connection without a greeting.
    New,
    Keeps(Key),
    /// Wait for the records of this daemon, until a time.
    Takes(String, Instant),
}

/// The holder.
#[derive(Debug)]
pub struct Server {
    listener: OwnedFd,
    limits: Limits,
    peers: Vec<Peer>,
    next: u64,
    kept: BTreeMap<Key, Kept>,
    /// Processes whose connections have ended, and which may still be ending.
    ending: Vec<(Pid, OwnedFd)>,
    closing: Closing,
}

impl Server {
    /// Listens at a path, in place of a holder that is gone.
    ///
    /// # Errors
    /// Another holder listens there, or the path cannot be used.
    pub fn listen(path: &Path, limits: Limits) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let probe = socket()?;
        match rustix::net::connect(&probe, &address) {
            Ok(()) | Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
            Err(_) => {}
        }
        let listener = socket()?;
        bind(&listener, &address)?;
        rustix::fs::chmod(path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        listen(&listener, 64)?;
        Ok(Self::of(listener, limits, Closing::start()?))
    }

    fn of(listener: OwnedFd, limits: Limits, closing: Closing) -> Self {
        let (peers, kept, ending) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { listener, limits, peers, next: 0, kept, ending, closing }
    }

    /// Serves until `told` becomes readable.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn run(mut self, told: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let now = Instant::now();
            self.end_waits(now);
            let wait = match () {
                () if self.peers.iter().any(|peer| matches!(peer.role, Role::Takes(..))) => Some(LOOK),
                () if self.kept.values().any(|kept| kept.orphan_since.is_some()) => Some(SLOW_LOOK),
                () => None,
            };
            let wait = wait
                .map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
            let fds = [told, self.listener.as_fd()]
                .into_iter()
                .chain(self.peers.iter().map(|peer| peer.channel.as_fd()));
            let mut polled: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut polled, wait.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            let [told, coming, ref readable @ ..] = ready[..] else { return Ok(()) };
            if told {
                return Ok(());
            }
            let numbers: Vec<u64> = self.peers.iter().map(|peer| peer.number).collect();
            for (number, _) in numbers.into_iter().zip(readable).filter(|(_, is)| **is) {
                self.hear(number);
            }
            if coming {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else { return };
        let Ok(process) = check_peer(socket.as_fd()) else { return };
        let Ok(channel) = Channel::inherited(socket) else { return };
        if self.peers.len() < CONNECTIONS_MAX {
            self.next += 1;
            self.peers.push(Peer { number: self.next, channel, process, role: Role::New });
        }
    }

    /// Receives the message of a connection. One that sends anything else is closed.
    fn hear(&mut self, number: u64) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.number == number) else { return };
        let received = peer.channel.receive(Instant::now() + MESSAGE_LIMIT);
        if received.and_then(|message| self.obey(number, message)).is_err() {
            self.end(number);
        }
    }

    fn obey(&mut self, number: u64, message: Message) -> Result<(), ChannelError> {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.number == number) else { return Ok(()) };
        let text = |bytes: &[u8]| {
            String::from_utf8(bytes.to_vec()).map_err(|_| ChannelError::Malformed("a name that is no text"))
        };
        match (&peer.role, message.kind()) {
            (Role::New, kind::KEEP) => {
                let name = greeting(&message)?;
                let at = name.iter().position(|byte| *byte == 0);
                let (daemon, drive) =
                    name.split_at(at.ok_or(ChannelError::Malformed("a name without a drive"))?);
                peer.role = Role::Keeps((text(daemon)?, text(&drive[1..])?));
            }
            (Role::New, kind::TAKE) => {
                peer.role = Role::Takes(text(greeting(&message)?)?, Instant::now() + self.limits.end);
            }
            (Role::Keeps(key), kind::RECORD) if !message.fds.is_empty() => {
                let kept = Kept { owner: number, fds: message.fds, orphan_since: None };
                let former = self.kept.insert(key.clone(), kept);
                former.into_iter().for_each(|former| self.closing.close(former.fds));
            }
            (Role::Keeps(key), kind::RELEASE) => {
                let key = key.clone();
                let is_its = |kept: &Kept| kept.owner == number || kept.orphan_since.is_some();
                if self.kept.get(&key).is_some_and(is_its) {
                    self.forget(&key);
                }
            }
            _ => return Err(ChannelError::Malformed("a message of another kind")),
        }
        Ok(())
    }

    fn forget(&mut self, key: &Key) {
        if let Some(kept) = self.kept.remove(key) {
            self.closing.close(kept.fds);
        }
    }

    /// Ends a connection. Its drive is an orphan if no other connection has sent a record since.
    fn end(&mut self, number: u64) {
        let Some(at) = self.peers.iter().position(|peer| peer.number == number) else { return };
        let peer = self.peers.swap_remove(at);
        let now = Instant::now();
        for kept in self.kept.values_mut().filter(|kept| kept.owner == number) {
            kept.orphan_since = Some(now);
        }
        if matches!(peer.role, Role::Keeps(_))
            && let Ok(process) = pidfd_open(peer.process, PidfdFlags::empty())
        {
            self.ending.push((peer.process, process));
        }
    }

    /// Ends waits for records, and gives up drives that no daemon has continued.
    fn end_waits(&mut self, now: Instant) {
        self.ending.retain(|(_, process)| !has_ended(process.as_fd()));
        let waits: Vec<u64> = self.peers.iter().map(|peer| peer.number).collect();
        for number in waits {
            let Some(peer) = self.peers.iter().find(|peer| peer.number == number) else { continue };
            let Role::Takes(daemon, until) = &peer.role else { continue };
            let former = self.former(daemon, peer.process);
            if former.is_some() && now < *until {
                continue;
            }
            let sent = match former {
                None => self.send_all(peer, daemon),
                Some(process) => {
                    let why = format!("process {} still serves these drives", process.as_raw_nonzero());
                    peer.channel.send(kind::REFUSED, why.as_bytes(), &[], now + MESSAGE_LIMIT)
                }
            };
            if let Err(error) = sent {
                eprintln!("the records were not sent: {error}");
            }
            self.end(number);
        }
        let patience = self.limits.patience;
        let is_over =
            |kept: &Kept| kept.orphan_since.is_some_and(|since| now.duration_since(since) >= patience);
        let over: Vec<Key> =
            self.kept.iter().filter(|(_, kept)| is_over(kept)).map(|(key, _)| key.clone()).collect();
        for key in over {
            eprintln!("drive {} of {}: no daemon has continued it in time", key.1, key.0);
            self.forget(&key);
        }
    }

    /// Returns another process that keeps drives of this daemon, or has not ended.
    fn former(&self, daemon: &str, successor: Pid) -> Option<Pid> {
        let keeps =
            self.peers.iter().filter(|peer| matches!(&peer.role, Role::Keeps(key) if key.0 == daemon));
        let all = keeps.map(|peer| peer.process).chain(self.ending.iter().map(|(process, _)| *process));
        all.into_iter().find(|process| *process != successor)
    }

    fn send_all(&self, peer: &Peer, daemon: &str) -> Result<(), ChannelError> {
        for ((_, drive), kept) in self.kept.iter().filter(|(key, _)| key.0 == daemon) {
            let fds: Vec<BorrowedFd<'_>> = kept.fds.iter().map(AsFd::as_fd).collect();
            peer.channel.send(kind::RECORD, drive.as_bytes(), &fds, Instant::now() + MESSAGE_LIMIT)?;
        }
        peer.channel.send(kind::END, &[], &[], Instant::now() + MESSAGE_LIMIT)
    }
}

/// Returns whether a process has ended.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A poll that fails shows nothing: the wait has a limit.
    poll(&mut polled, Some(&now)).is_ok_and(|_| !polled[0].revents().is_empty())
}
