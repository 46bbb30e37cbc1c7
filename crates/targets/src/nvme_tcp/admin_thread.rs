//! The thread of a target: operations that wait for the controller in order.
//!
//! The thread connects, keeps the association alive, and handles the controller's events. When a connection
//! is lost, it resets both connections and reconnects with growing pauses.

mod maintenance;

use super::error::{ErrorKind, NvmeTcpError};
use super::fabrics::{Association, IoQueue, Notice};
use super::link::{Data, timespec};
use super::transport::{Tcp, Transport};
use super::{NvmeTcpConfig, NvmeTcpControl};
use crate::remote::orders::{Maintained, Order, PendingCommit, PendingReset, orders};
use crate::remote::{
    Incompatible, LogLimit, Maintenance, NamespaceInfo, Notifier, Present, Retry, Unflushed,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use sluice_nvme::AnaState;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Time for a controller to read the reason of a close, or to close the connection after a shutdown.
const CLOSE_LIMIT: Duration = Duration::from_millis(200);

/// Time for a busy controller to end a lost connection, too. Without its end, changes wait much longer (see
/// [`quiesce`](super::quiesce)).
const END_LIMIT: Duration = Duration::from_secs(1);

/// Duration after which a connection counts as useful, even without commands.
const LONG_LIFE: Duration = Duration::from_secs(30);

/// Time until the next check of an ANA group in the Change state.
const CHANGE_RECHECK: Duration = Duration::from_secs(1);

/// Time between two checks of an unusable path, which may not report its changes itself.
const CLOSED_RECHECK: Duration = Duration::from_secs(5);

/// Count of connections. Objects of an earlier generation are of no use any more.
pub(super) type Generation = u32;

/// A namespace, from the moment it is opened. Dropping it disconnects, without waiting for that.
#[derive(Debug)]
pub(super) struct NamespaceHandle {
    /// Properties of the namespace, or assumed ones while it was not seen yet.
    pub(super) info: NamespaceInfo,
    /// The first connection, if there is one.
    pub(super) first: Option<Box<Connected>>,
    pub(super) events: Receiver<ThreadEvent>,
    /// Notifier of the target, signalled after each event.
    pub(super) notifier: Arc<Notifier>,
    /// Unflushed writes of the namespace, along all paths.
    pub(super) unflushed: Arc<Unflushed>,
    /// Index of this path among all paths.
    pub(super) path: usize,
    pub(super) maintenance: Maintenance,
    requests: Option<Sender<ThreadRequest>>,
    /// Notifier of the admin thread.
    thread_notifier: Arc<Notifier>,
}

/// An I/O queue of some generation.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) generation: Generation,
    pub(super) queue: IoQueue,
    pub(super) info: NamespaceInfo,
}

/// An event from the admin thread.
#[derive(Debug)]
pub(super) enum ThreadEvent {
    Up(Box<Connected>),
    /// The controller was shut down in order: all writes that it acknowledged are durable.
    Durable,
    /// The connection of that generation is to be given up.
    Down(Generation),
    /// The connection is reset: nothing of it arrives any more. `has_ended` if the controller has seen its
    /// end.
    Reset {
        has_ended: bool,
    },
}

/// A request to the admin thread.
#[derive(Debug)]
enum ThreadRequest {
    /// The I/O queue's connection is lost.
    Lost { generation: Generation, why: String },
    /// Changes of a lost connection wait until the controller cannot execute them any more.
    LogQuiescing { changes: usize, delay: Duration },
    /// A command was refused for its namespace's access state.
    CheckAna,
    /// The controller may have lost writes that it had acknowledged.
    LogLoss,
}

impl NamespaceHandle {
    /// Reports the loss of the I/O queue's connection; the admin thread makes the next one.
    pub(super) fn lost(&self, generation: Generation, why: String) {
        self.send(ThreadRequest::Lost { generation, why });
    }

    /// Requests a log message about waiting changes.
    pub(super) fn log_quiescing(&self, changes: usize, delay: Duration) {
        self.send(ThreadRequest::LogQuiescing { changes, delay });
    }

    /// Requests a log message about acknowledged writes that may be lost.
    pub(super) fn log_loss(&self) {
        self.send(ThreadRequest::LogLoss);
    }

    /// Requests a check of the access state (ANA).
    pub(super) fn check_ana(&self) {
        self.send(ThreadRequest::CheckAna);
    }

    fn send(&self, request: ThreadRequest) {
        // Without an admin thread the process is about to end.
        let _ = self.requests.as_ref().map(|requests| requests.send(request));
        self.thread_notifier.notify();
    }
}

impl Drop for NamespaceHandle {
    fn drop(&mut self) {
        self.requests = None;
        self.thread_notifier.notify();
    }
}

/// Connects along all paths to a namespace, and leaves each connection to a thread of its own.
pub(super) fn open(
    configs: &[NvmeTcpConfig],
) -> Result<Vec<(NamespaceHandle, NvmeTcpControl)>, NvmeTcpError> {
    let tried = connect_all(configs);
    let seen = Arc::new(OnceLock::new());
    let first = configs.first().map(|config| (config.loss_notice, config.previous_session));
    let (notice, previous_session) = first.unwrap_or_default();
    let unflushed = Arc::new(Unflushed::along(configs.len(), notice, previous_session));
    if let Some((_, info, _)) = tried.iter().find_map(|(made, _)| made.as_ref().ok()) {
        seen.get_or_init(|| info.clone());
    }
    let begin = |(path, (config, (made, control)))| {
        start((path, config), made, control, (&seen, &unflushed)).map_err(|it| fail(config, it))
    };
    configs.iter().zip(tried).enumerate().map(begin).collect()
}

/// Connects along all paths in parallel, so that several silent controllers take the time of one.
fn connect_all(configs: &[NvmeTcpConfig]) -> Vec<(Result<NewConnection, ErrorKind>, NvmeTcpControl)> {
    let connect = |config| {
        let control = NvmeTcpControl::default();
        (connect(&tcp(config), config, &control), control)
    };
    std::thread::scope(|threads| {
        let begin = |config| std::thread::Builder::new().spawn_scoped(threads, move || connect(config));
        let begun: Vec<_> = configs.iter().map(begin).collect();
        let end = |thread: std::io::Result<ScopedJoinHandle<'_, _>>| {
            let done = thread.ok().and_then(|thread| thread.join().ok());
            done.unwrap_or_else(|| (Err(ErrorKind::NoThread), NvmeTcpControl::default()))
        };
        begun.into_iter().map(end).collect()
    })
}

fn tcp(config: &NvmeTcpConfig) -> Tcp {
    Tcp { address: config.address.clone() }
}

fn fail(config: &NvmeTcpConfig, kind: ErrorKind) -> NvmeTcpError {
    NvmeTcpError { address: config.address.clone(), subnqn: config.subnqn.clone(), kind }
}

/// Starts the thread of a path with the result of its first connection. `seen` is the namespace on the first
/// path that connected.
fn start(
    (path, config): (usize, &NvmeTcpConfig),
    made: Result<NewConnection, ErrorKind>,
    control: NvmeTcpControl,
    (seen, unflushed): (&Arc<OnceLock<NamespaceInfo>>, &Arc<Unflushed>),
) -> Result<(NamespaceHandle, NvmeTcpControl), ErrorKind> {
    let assumed = seen.get().cloned().or_else(|| config.assumed());
    let (connections, first, info) = match (made, assumed) {
        (Ok((_, info, _)), Some(seen)) if !info.replaces(&seen, seen.blocks) => {
            return Err(ErrorKind::Differs);
        }
        (Ok((connections, info, queue)), _) => {
            (Some(connections), Some(Box::new(Connected { generation: 1, queue, info: info.clone() })), info)
        }
        // With assumed properties the target need not wait for a connection.
        (Err(error), Some(assumed)) if error.may_pass() => {
            let NvmeTcpConfig { address, subnqn, .. } = config;
            tracing::warn!(%address, %subnqn, error = %error, "an NVMe/TCP controller cannot be connected to yet");
            control.start_disconnected();
            (None, None, assumed)
        }
        (Err(error), _) => return Err(error),
    };
    let mut retry = Retry::new();
    if connections.is_none() {
        retry.failed();
    }
    let notifiers = || Notifier::new().map(Arc::new).map_err(ErrorKind::Socket);
    let (notifier, thread_notifier) = (notifiers()?, notifiers()?);
    let ((sender, requests), (events, listener)) = (channel(), channel());
    let (maintenance, orders) = orders(&thread_notifier);
    let admin_thread = AdminThread {
        transport: Box::new(tcp(config)),
        config: config.clone(),
        control: control.clone(),
        seen: Arc::clone(seen),
        requests,
        own_notifier: Arc::clone(&thread_notifier),
        orders,
        saved: None,
        resetting: None,
        committing: None,
        events,
        notifier: Arc::clone(&notifier),
        lost_at: connections.is_none().then(Instant::now),
        connections,
        generation: 1,
        retry,
        given_up: false,
        logged: LogLimit::new(),
    };
    let thread = std::thread::Builder::new().name("sluice-nvmetcp".to_owned());
    thread.spawn(move || admin_thread.run()).map_err(|error| {
        tracing::error!(%error, "the thread that drives an NVMe/TCP connection cannot be started");
        ErrorKind::NoThread
    })?;
    let unflushed = Arc::clone(unflushed);
    let handle = NamespaceHandle {
        info,
        first,
        events: listener,
        notifier,
        unflushed,
        path,
        maintenance,
        requests: Some(sender),
        thread_notifier,
    };
    Ok((handle, control))
}

/// The connections of an association.
#[derive(Debug)]
struct Connections {
    association: Association,
    /// Socket of the I/O queue, to reset it.
    io: Arc<OwnedFd>,
    since: Instant,
    keep_alive_at: Option<Instant>,
    completed_before: u64,
    /// Time of the next check of the access state.
    check_ana_at: Option<Instant>,
    _present: Present,
}

/// The result of connecting.
type NewConnection = (Connections, NamespaceInfo, IoQueue);

impl Connections {
    /// Checks that the NSID still belongs to the same namespace. Commands to another one would read and
    /// overwrite its data. If only the size or the properties have changed, commands continue, and fail where
    /// they have to.
    fn check_namespace(
        &mut self,
        config: &NvmeTcpConfig,
        seen: &OnceLock<NamespaceInfo>,
    ) -> Result<(), ErrorKind> {
        let controller = self.association.identify()?;
        let info = self.association.info(&controller, config.nsid)?;
        match seen.get() {
            Some(seen) if !info.is_same_as(seen) => Err(ErrorKind::Replaced),
            _ => Ok(()),
        }
    }

    /// Reads the access state of this path to the namespace.
    fn check_ana(&mut self, config: &NvmeTcpConfig, control: &NvmeTcpControl) -> Result<(), ErrorKind> {
        let state = self.association.ana_state(config.nsid)?;
        if control.set_ana(state) {
            let state = state.map_or("not reported", AnaState::as_str);
            let NvmeTcpConfig { address, subnqn, .. } = config;
            tracing::info!(%address, %subnqn, state, "the access state (ANA) of an NVMe/TCP path");
        }
        // Some controllers do not report when the state is good again.
        let again = match state {
            None | Some(AnaState::Optimized | AnaState::NonOptimized) => None,
            Some(AnaState::Change) => Some(CHANGE_RECHECK),
            Some(_) => Some(CLOSED_RECHECK),
        };
        self.check_ana_at = again.map(|after| Instant::now() + after);
        Ok(())
    }
}

fn connect(
    transport: &dyn Transport,
    config: &NvmeTcpConfig,
    control: &NvmeTcpControl,
) -> Result<NewConnection, ErrorKind> {
    let mut association = Association::start(transport, config)?;
    let controller = association.identify()?;
    // Notices are requested before the namespace is identified, so that no change is missed.
    association.request_notices()?;
    let info = association.info(&controller, config.nsid)?;
    if config.assumed().is_some_and(|assumed| !info.is_enough_for(&assumed)) {
        return Err(Incompatible::TooSmall.into());
    }
    let queue = association.io_queue(transport, config, &controller)?;
    let io = Arc::new(queue.negotiated.socket.try_clone().map_err(ErrorKind::Socket)?);
    let since = Instant::now();
    let keep_alive_at = next_keep_alive(config);
    let _present = Present::new();
    let mut connections = Connections {
        association,
        io,
        since,
        keep_alive_at,
        completed_before: 0,
        check_ana_at: None,
        _present,
    };
    connections.check_ana(config, control)?;
    // After a timeout the target gives the I/O queue up, and its commands wait until both connections are
    // reset. The reset must not wait for an answer on this connection, too.
    connections.association.admin.tie(Some(Arc::clone(&connections.io)));
    Ok((connections, info, queue))
}

impl NvmeTcpConfig {
    /// Returns the assumed properties of the namespace, if they are configured.
    pub(super) fn assumed(&self) -> Option<NamespaceInfo> {
        self.expected.map(|expected| NamespaceInfo::assumed(expected.size, expected.block_size))
    }
}

/// Returns the time of the next Keep Alive, of which there are two within the timeout.
fn next_keep_alive(config: &NvmeTcpConfig) -> Option<Instant> {
    (!config.keep_alive.is_zero()).then(|| Instant::now() + config.keep_alive / 2)
}

struct AdminThread {
    transport: Box<dyn Transport>,
    config: NvmeTcpConfig,
    control: NvmeTcpControl,
    /// Properties at the first connection, along any path.
    seen: Arc<OnceLock<NamespaceInfo>>,
    requests: Receiver<ThreadRequest>,
    own_notifier: Arc<Notifier>,
    /// Orders of the control plane.
    orders: Receiver<Order>,
    /// Namespace at the time at which its context was stored.
    saved: Option<NamespaceInfo>,
    /// Reset in progress.
    resetting: Option<PendingReset>,
    /// Firmware Commit in progress.
    committing: Option<PendingCommit>,
    events: Sender<ThreadEvent>,
    notifier: Arc<Notifier>,
    connections: Option<Connections>,
    generation: Generation,
    retry: Retry,
    lost_at: Option<Instant>,
    /// Set when no more attempts to connect are made.
    given_up: bool,
    logged: LogLimit,
}

impl AdminThread {
    /// Runs until the target is gone.
    fn run(mut self) {
        loop {
            self.own_notifier.clear();
            loop {
                match self.requests.try_recv() {
                    Ok(ThreadRequest::Lost { generation, why }) if generation == self.generation => {
                        self.lose(&why)
                    }
                    Ok(ThreadRequest::Lost { .. }) => {}
                    Ok(ThreadRequest::CheckAna) => {
                        self.connections
                            .iter_mut()
                            .for_each(|connections| connections.check_ana_at = Some(Instant::now()));
                    }
                    Ok(ThreadRequest::LogQuiescing { changes, delay }) => {
                        let NvmeTcpConfig { address, subnqn, .. } = &self.config;
                        let seconds = delay.as_secs_f64();
                        tracing::warn!(
                            %address, %subnqn, changes, seconds,
                            "writes of a lost NVMe/TCP connection are sent again when their controller cannot carry them \
                             out any more"
                        );
                    }
                    Ok(ThreadRequest::LogLoss) => {
                        let NvmeTcpConfig { address, subnqn, nsid, .. } = &self.config;
                        tracing::error!(
                            %address, %subnqn, nsid,
                            "an NVMe/TCP controller may have lost power, and with it writes that were not flushed; the \
                             drive's hosts are told with their next Flush, and a mirror copies the member again"
                        );
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return self.shut_down(),
                }
            }
            while self.committing.is_none()
                && let Ok(order) = self.orders.try_recv()
            {
                self.execute_order(order);
            }
            match &mut self.connections {
                Some(_) if self.committing.is_some() => {
                    // Orders may have come meanwhile.
                    if self.look_at_commit() {
                        continue;
                    }
                }
                Some(connections) => {
                    match serve(connections, &self.config, &self.control, &self.seen, &mut self.logged) {
                        // A notice may have come with an answer. Requests of the target come first, even if
                        // there are many events.
                        Ok(true) => continue,
                        Ok(false) => {}
                        Err(ErrorKind::Abandoned) => {
                            self.await_request();
                            continue;
                        }
                        Err(error) => self.lose(&error.to_string()),
                    }
                }
                None => self.reconnect_if_due(),
            }
            self.sleep();
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&self) {
        let until = match &self.connections {
            // Events wait until the commit has ended: their commands would have to wait for answers.
            Some(connections) if self.committing.is_some() => {
                let end = self.committing.as_ref().map(|pending| Instant::now() + pending.left());
                [connections.keep_alive_at, end].into_iter().flatten().min()
            }
            Some(connections) => {
                let notice_at = connections.association.notice_left().map(|left| Instant::now() + left);
                [connections.keep_alive_at, connections.check_ana_at, notice_at].into_iter().flatten().min()
            }
            None if self.given_up => None,
            None => Some(Instant::now() + self.retry.left()),
        };
        let wait = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let mut polled = vec![PollFd::new(&self.own_notifier, PollFlags::IN)];
        if let Some(connections) = &self.connections {
            polled.push(PollFd::new(&connections.association.admin, PollFlags::IN | PollFlags::RDHUP));
        }
        // After an interrupted poll the loop runs once more.
        let _ = poll(&mut polled, wait.as_ref());
    }

    /// Waits for the target's request with the reason why the I/O queue is given up.
    fn await_request(&self) {
        let _ = poll(&mut [PollFd::new(&self.own_notifier, PollFlags::IN)], Some(&timespec(CLOSE_LIMIT)));
    }

    fn send(&self, event: ThreadEvent) {
        // A target without a receiver is about to be dropped.
        let _ = self.events.send(event);
        self.notifier.notify();
    }

    /// Resets both connections, and notifies the target.
    fn lose(&mut self, why: &str) {
        let Some(connections) = self.connections.take() else { return };
        if let Some(pending) = self.committing.take() {
            pending.failed(why);
        }
        let NvmeTcpConfig { address, subnqn, .. } = &self.config;
        tracing::warn!(%address, %subnqn, why, "an NVMe/TCP connection is lost; connecting again");
        let completed = self.control.status().completed;
        let was_of_use = completed > connections.completed_before || connections.since.elapsed() > LONG_LIFE;
        self.retry.lost(was_of_use);
        self.lost_at = Some(Instant::now());
        self.control.set_connected(false);
        self.send(ThreadEvent::Down(self.generation));
        // The reactor closes its side, too, but may be late.
        let _ = rustix::net::shutdown(&connections.io, Shutdown::Write);
        let has_ended = self.transport.has_ended(connections.io.as_fd(), END_LIMIT);
        self.transport.reset(connections.io.as_fd());
        self.transport.reset(connections.association.admin.as_fd());
        self.send(ThreadEvent::Reset { has_ended });
        self.generation = self.generation.wrapping_add(1);
    }

    fn reconnect_if_due(&mut self) {
        let NvmeTcpConfig { address, subnqn, ctrl_loss, .. } = &self.config;
        let lost_for = self.lost_at.map_or(Duration::ZERO, |at| at.elapsed());
        if !self.given_up && is_given_up(lost_for, *ctrl_loss, self.resetting.is_some()) {
            self.given_up = true;
            let seconds = lost_for.as_secs();
            tracing::error!(
                %address, %subnqn, seconds,
                "an NVMe/TCP controller is given up (ctrl_loss_s); close the drive and open it again to connect"
            );
        }
        if self.given_up || !self.retry.is_due() {
            return;
        }
        let began = Instant::now();
        self.resetting.iter_mut().for_each(PendingReset::attempt);
        let made = connect(&*self.transport, &self.config, &self.control);
        let compared =
            made.as_ref().ok().map(|(connections, info, _)| self.compare_reset(began, connections, info));
        let accepted = made.and_then(|made| self.accept(made));
        self.end_reset(accepted.as_ref().err(), compared);
        let NvmeTcpConfig { address, subnqn, .. } = &self.config;
        match accepted {
            Ok(()) => tracing::info!(%address, %subnqn, "an NVMe/TCP controller is there again"),
            Err(error) => {
                // A reset tries again and again.
                if self.resetting.is_none() || self.logged.admit().is_some() {
                    tracing::warn!(%address, %subnqn, error = %error, "an NVMe/TCP controller cannot be connected to again");
                }
                self.retry.failed();
            }
        }
    }

    /// Takes a new connection, if it leads to the same namespace as before.
    fn accept(&mut self, (mut connections, info, queue): NewConnection) -> Result<(), ErrorKind> {
        let seen = self.seen.get_or_init(|| info.clone());
        if !info.replaces(seen, seen.blocks) {
            let _ = connections.association.shut_down();
            return Err(ErrorKind::Replaced);
        }
        connections.completed_before = self.control.status().completed;
        self.connections = Some(connections);
        self.lost_at = None;
        self.control.set_connected(true);
        self.send(ThreadEvent::Up(Box::new(Connected { generation: self.generation, queue, info })));
        Ok(())
    }

    /// Shuts the controller down, which no target needs any more.
    fn shut_down(mut self) {
        let Some(connections) = &mut self.connections else { return };
        // The target has closed its own connection.
        connections.association.admin.tie(None);
        if let Err(error) = connections.association.shut_down() {
            let NvmeTcpConfig { address, subnqn, .. } = &self.config;
            tracing::debug!(%address, %subnqn, error = %error, "an NVMe/TCP controller was left without a shutdown");
        }
        for socket in [connections.io.as_fd(), connections.association.admin.as_fd()] {
            let _ = rustix::net::shutdown(socket, Shutdown::Write);
            wait_for_end(socket, CLOSE_LIMIT);
        }
    }
}

/// Returns whether a controller is given up that was lost for so long. One that is being reset is not: the reset has its
/// own limit, and is answered at an attempt to connect.
fn is_given_up(lost_for: Duration, ctrl_loss: Option<Duration>, is_resetting: bool) -> bool {
    !is_resetting && ctrl_loss.is_some_and(|limit| lost_for >= limit)
}

/// Handles Keep Alive, access state and events. Returns whether a command was sent.
fn serve(
    connections: &mut Connections,
    config: &NvmeTcpConfig,
    control: &NvmeTcpControl,
    seen: &OnceLock<NamespaceInfo>,
    logged: &mut LogLimit,
) -> Result<bool, ErrorKind> {
    let notice = connections.association.take_notice()?;
    let mut has_asked = notice.is_some();
    if let Some(Notice { kind, info }) = notice {
        control.count_event();
        let NvmeTcpConfig { address, subnqn, .. } = config;
        let what = match (kind, info) {
            (2, 0) => "changed namespaces; a new size counts when the drive is opened again",
            (2, 3) => "another access state (ANA)",
            _ => "an event",
        };
        if let Some(left_out) = logged.admit() {
            tracing::warn!(%address, %subnqn, kind, info, left_out, "an NVMe/TCP controller reports {what}");
        }
        if (kind, info) == (2, 0) {
            connections.check_namespace(config, seen)?;
        }
        connections.check_ana_at = Some(Instant::now());
    }
    if connections.check_ana_at.is_some_and(|at| Instant::now() >= at) {
        connections.check_ana(config, control)?;
        has_asked = true;
    }
    if connections.keep_alive_at.is_some_and(|at| Instant::now() >= at) {
        connections.association.keep_alive()?;
        connections.keep_alive_at = next_keep_alive(config);
        has_asked = true;
    }
    Ok(has_asked)
}

/// Waits until the controller has closed its side, for a short time.
fn wait_for_end(socket: BorrowedFd<'_>, limit: Duration) {
    let _ = poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)], Some(&timespec(limit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_not_given_up_during_its_reset() {
        let [short, long] = [5, 50].map(Duration::from_secs);
        for (lost_for, limit, is_resetting, expected) in [
            (long, Some(short), false, true),
            (long, Some(short), true, false),
            (short, Some(long), false, false),
            (long, None, false, false),
        ] {
            assert_eq!(is_given_up(lost_for, limit, is_resetting), expected, "{lost_for:?} of {limit:?}");
        }
    }
}
