//! Acceptor: the listening socket within a task, and the times at which to accept.

use super::Listener;
use super::token::{Kind, Token};
use rustix::io::Errno;
use sluice_frontend::descriptors::{Fill, fill};
use sluice_frontend::{LogLimit, limited};
use sluice_reactor::{Io, PollFlags, TaskId};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Pause after accept(2) or the poll failed for lack of a resource, or while no client can be admitted, in
/// nanoseconds.
const RETRY_NS: u64 = 100_000_000;

/// Listening socket of a port.
#[derive(Debug)]
pub(super) struct Acceptor {
    /// Socket; `None` once closed.
    listener: Option<Listener>,
    token: Token,
    /// Client that was accepted before its predecessor was found to be gone.
    early: Option<UnixStream>,
    polled: bool,
    /// Possibility that a client waits.
    pending: bool,
    /// Time before which no client is admitted.
    not_before_ns: u64,
    warnings: LogLimit,
}

impl Acceptor {
    pub(super) fn new(listener: Listener, port: u8) -> Self {
        let token = Token { port, kind: Kind::Listener, epoch: 0 };
        let listener = Some(listener);
        let warnings = LogLimit::default();
        Self { listener, token, early: None, polled: false, pending: true, not_before_ns: 0, warnings }
    }

    /// Returns whether a call of [`accept`](Self::accept) is due.
    #[inline]
    pub(super) fn is_pending(&self, now_ns: u64) -> bool {
        self.pending && now_ns >= self.not_before_ns
    }

    /// Polls the socket, so that a connection causes an event.
    pub(super) fn watch(&mut self, io: &Io, task: TaskId) {
        if let Some(listener) = self.listener.as_ref().filter(|_| !self.polled) {
            self.polled = true;
            io.poll(listener.as_fd(), PollFlags::IN, task, self.token.raw());
        }
    }

    /// Handles an event of the listening socket.
    pub(super) fn event(&mut self, result: i32, more: bool, now_ns: u64) {
        self.pending = true;
        self.polled = more;
        if result < 0 {
            self.hold(now_ns);
        }
    }

    /// Returns the next client, if one waits.
    pub(super) fn accept(&mut self, drive: &str, now_ns: u64) -> Option<UnixStream> {
        if let Some(client) = self.early.take() {
            return Some(client);
        }
        let accepted = self.listener.as_ref().map_or(Ok(None), Listener::accept);
        match accepted {
            Ok(Some(client)) if fill(&client) == Fill::Full => {
                limited!(
                    warn,
                    self.warnings,
                    now_ns,
                    drive,
                    "turned a client away: hardly any descriptors are left; raise the limit of open files (LimitNOFILE=, \
                     ulimit -n)"
                );
                self.hold(now_ns);
            }
            Ok(Some(client)) => return Some(client),
            Ok(None) => self.pending = false,
            // The client has closed the connection already.
            Err(Errno::CONNABORTED) => {}
            Err(errno) => {
                limited!(warn, self.warnings, now_ns, drive, %errno, "cannot accept a client");
                self.hold(now_ns);
            }
        }
        None
    }

    /// Puts a client back, which the next [`accept`](Self::accept) returns.
    pub(super) fn put_back(&mut self, client: UnixStream) {
        self.early = Some(client);
    }

    /// Returns the end of a pause, if a client may wait for it.
    pub(super) fn retry_ns(&self, now_ns: u64) -> Option<u64> {
        (self.pending && self.not_before_ns > now_ns).then_some(self.not_before_ns)
    }

    /// Pauses: admits no client for [`RETRY_NS`].
    pub(super) fn hold(&mut self, now_ns: u64) {
        self.not_before_ns = now_ns.saturating_add(RETRY_NS);
    }

    /// Schedules another [`accept`](Self::accept) in `after_ns` nanoseconds.
    pub(super) fn look_again(&mut self, after_ns: u64, now_ns: u64) {
        self.pending = true;
        self.not_before_ns = self.not_before_ns.max(now_ns.saturating_add(after_ns));
    }

    /// Returns the socket, unless it is closed or an accepted client waits.
    pub(super) fn to_hand_over(&self) -> Option<&Listener> {
        self.listener.as_ref().filter(|_| self.early.is_none())
    }

    /// Sets whether the paths of the socket stay when it is dropped.
    pub(super) fn keep_paths(&mut self, keeps: bool) {
        self.listener.iter_mut().for_each(|listener| listener.keep_paths(keeps));
    }

    /// Looks for a client in the next turn.
    pub(super) fn look_now(&mut self) {
        self.pending = true;
    }

    /// Closes the socket for good and removes its file. Returns the clients that wait.
    pub(super) fn close(&mut self, io: &Io, task: TaskId) -> Vec<UnixStream> {
        let Some(listener) = self.listener.take() else { return Vec::new() };
        io.cancel(task, self.token.raw());
        self.early.take().into_iter().chain(listener.refuse()).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.listener.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Returns a listening socket in a folder of its own, which is removed with it.
    fn acceptor(name: &str) -> (Acceptor, PathBuf) {
        let folder = std::env::temp_dir().join(format!("sluice-accept-{}-{name}", std::process::id()));
        let listener = Listener::bind(&folder, 0o600).expect("a listener");
        let path = listener.path().to_owned();
        (Acceptor::new(listener, 3), path)
    }

    #[test]
    fn clients_are_accepted_one_after_the_other() {
        let (mut acceptor, path) = acceptor("order");
        assert!(acceptor.is_pending(0) && acceptor.to_hand_over().is_some());
        let clients = [0, 1].map(|_| UnixStream::connect(&path).expect("it listens"));
        let first = acceptor.accept("drive", 0).expect("a client");
        acceptor.put_back(first);
        assert!(acceptor.to_hand_over().is_none(), "a client is in this process");
        assert!(acceptor.accept("drive", 0).is_some() && acceptor.to_hand_over().is_some());
        assert!(acceptor.accept("drive", 0).is_some() && acceptor.is_pending(0));
        assert!(acceptor.accept("drive", 0).is_none() && !acceptor.is_pending(0));
        assert_eq!(acceptor.retry_ns(0), None);
        acceptor.look_now();
        assert!(acceptor.is_pending(0));
        drop(clients);
    }

    #[test]
    fn a_pause_ends_at_its_time() {
        let (mut acceptor, _path) = acceptor("pause");
        acceptor.hold(7);
        let end = 7 + RETRY_NS;
        assert_eq!((acceptor.is_pending(end - 1), acceptor.retry_ns(end - 1)), (false, Some(end)));
        assert_eq!((acceptor.is_pending(end), acceptor.retry_ns(end)), (true, None));
        // A later look does not shorten a pause.
        acceptor.look_again(1, 7);
        assert_eq!(acceptor.retry_ns(7), Some(end));
        acceptor.look_again(2 * RETRY_NS, 7);
        assert_eq!(acceptor.retry_ns(7), Some(7 + 2 * RETRY_NS));
        assert!(acceptor.accept("drive", u64::MAX).is_none(), "no client waits");
        assert_eq!(acceptor.retry_ns(7), None);
        acceptor.event(1, true, 7);
        assert!(acceptor.polled && acceptor.is_pending(7 + 2 * RETRY_NS) && !acceptor.is_closed());
        acceptor.event(-5, false, 9 * RETRY_NS);
        assert!(!acceptor.polled && !acceptor.is_pending(10 * RETRY_NS - 1));
        assert!(acceptor.is_pending(10 * RETRY_NS));
    }
}
