//! `sluice serve`: from the configuration file to the exit code.

use crate::check::{Checked, check};
use crate::sockets::{Copies, Listening, SharedListener};
use crate::upgrade::{Predecessor, Sockets, succeed};
use crate::{log, recover, watchdog};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use sluice_api::{App, MetricsServer, NO_DRIVE, PageServer, Policy, Server, THREADS, ordered, router};
use sluice_control::config::{Config, load};
use sluice_control::drives::{DriveState, DriveView, Drives, Origin, shared_at_start};
use sluice_control::exclusive::Exclusive;
use sluice_control::listen::{SocketFile, make_folder};
use sluice_control::state::StateFile;
use sluice_frontend_tcp::Directory;
use sluice_holder::Holder;
use sluice_memory::limits::ignore_file_size_signal;
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use sluice_spec::paths::Places;
use sluice_spec::words::count;
use sluice_wiring::{Inbox, Wiring};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Time limit of the end once the operator has sent a second signal, or the drain limit has passed.
const HURRY_LIMIT: Duration = Duration::from_secs(2);

/// Interval between two checks whether an upgrade is over.
const UPGRADE_LOOK: Duration = Duration::from_millis(5);

/// Idle time after which an order thread ends: a century, so that it never ends.
const ORDER_THREAD_IDLE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file; without it, every key has its default
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Report all faults of the configuration file and of the files that it names, change nothing, and end
    #[arg(long, requires = "config")]
    check: bool,
    /// Take over from the daemon that has started this process; `sluice upgrade` uses it
    #[arg(long, hide = true, conflicts_with = "check")]
    take_over: bool,
    /// Form of the log messages
    #[arg(long, value_enum, default_value_t)]
    log: log::Format,
}

/// Runs the daemon until a signal stops it. `api` overrides the socket that the configuration names.
pub fn serve(arguments: &ServeArgs, api: Option<PathBuf>) -> Result<(), ApiError> {
    if let (Some(file), true) = (&arguments.config, arguments.check) {
        return report(&check(file, api)?);
    }
    let mut config = arguments.config.as_deref().map_or_else(|| Ok(Config::default()), load)?;
    config.daemon.api = api.or(config.daemon.api);
    let levels = std::env::var(log::VARIABLE).unwrap_or_else(|_| "info".to_owned());
    // Dropped last, so that every message is written.
    let _flush = log::start(arguments.log, &levels)?;
    hide_memory(config.daemon.dumpable)?;
    raise_descriptor_limit();
    ignore_file_size_signal().map_err(trouble)?;
    let runtime = runtime().map_err(trouble)?;
    let daemon = match arguments.take_over {
        false => Daemon::start(config, &runtime)?,
        true => Daemon::succeed(config, &runtime)?,
    };
    let outcome = runtime.block_on(daemon.serve_until_told());
    // A change that hangs does not keep the process.
    runtime.shutdown_background();
    outcome
}

/// Builds the runtime of the control thread, with one order thread that stays. Limits of the process
/// (RLIMIT_AS, RLIMIT_NPROC, pids.max of a cgroup) may keep tokio from starting one. If there is none then,
/// tokio ends the process.
fn runtime() -> std::io::Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(ORDER_THREAD_IDLE)
        .max_blocking_threads(THREADS)
        .build()?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Prints that a configuration has no faults, with the notes.
fn report(checked: &Checked) -> Result<(), ApiError> {
    checked.notes.iter().for_each(|note| println!("note: {note}"));
    let Checked { config, .. } = checked;
    let drives = count(config.drives.len(), "drive");
    println!("{}: nothing is wrong with it; it declares {drives}", config.file.display());
    Ok(())
}

fn trouble(error: std::io::Error) -> ApiError {
    ApiError::internal(format!("cannot start the control thread: {error}"))
}

/// A daemon that owns its places and has its drives open.
struct Daemon {
    config: Config,
    drives: Arc<Drives>,
    told: Told,
    listening: Listening,
    hosts: SharedListener,
    api_socket: SocketFile,
    locks: [Exclusive; 2],
    /// Identifier of the process that has taken over, once one has.
    successor: watch::Receiver<Option<u32>>,
    copies: Copies,
}

/// Daemon whose state is loaded, and whose drives are not open yet.
pub(crate) struct Prepared {
    pub(crate) drives: Drives,
    /// Drives that are to be opened.
    pub(crate) specs: Vec<(DriveSpec, Origin)>,
    pub(crate) inbox: Inbox,
    directory: Arc<Directory>,
    locks: [Exclusive; 2],
    pub(crate) places: Places,
    pub(crate) holder: Option<Holder>,
}

impl Prepared {
    pub(crate) fn new(config: &Config) -> Result<Self, ApiError> {
        let places = config.daemon.places()?;
        let locks = claim(&places)?;
        let state = StateFile::open(&places.state)?;
        let shared = shared_at_start(config, &state)?;
        let wiring = Wiring::start(&config.daemon, places.clone())?.with_shared(&shared)?;
        let name = places.state.to_string_lossy();
        let holder = config.daemon.holder.as_deref().map(|path| Holder::new(path, &name));
        let wiring = wiring.with_metrics(&config.metrics).with_holder(holder.clone());
        let (directory, inbox) = (wiring.directory(), wiring.inbox());
        let (drives, specs) = Drives::prepare(config, places.clone(), state, Box::new(wiring))?;
        Ok(Self { drives, specs, inbox, directory, locks, places, holder })
    }
}

impl Daemon {
    fn start(config: Config, runtime: &Runtime) -> Result<Self, ApiError> {
        let mut prepared = Prepared::new(&config)?;
        recover::recover(&mut prepared);
        Self::open(config, prepared, None, || told(runtime))
    }

    /// Continues a daemon that has started this process.
    fn succeed(config: Config, runtime: &Runtime) -> Result<Self, ApiError> {
        // From the moment on in which the other process leaves, signals are for this one.
        let told = told(runtime)?;
        let (prepared, sockets) = succeed(&config)?;
        Self::open(config, prepared, Some(sockets), || Ok(told))
    }

    /// Opens the drives that are not open yet, and the sockets, unless another process has handed its own over.
    fn open(
        config: Config,
        prepared: Prepared,
        sockets: Option<Sockets>,
        told: impl FnOnce() -> Result<Told, ApiError>,
    ) -> Result<Self, ApiError> {
        let Prepared { drives, specs, directory, locks, places, holder, .. } = prepared;
        let drives = Arc::new(drives);
        drives.heed_detachments()?;
        drives.heed_hosts()?;
        drives.keep_pauses();
        // Drives that were taken over have waited for the other process to end.
        drives.go_on();
        match &sockets {
            None => drives.open_all(specs),
            // These have failed in the other process, too. The API does not wait for them.
            Some(_) => open_in_background(Arc::clone(&drives), specs)?,
        }
        recover::watch(holder, &drives)?;
        drives.balance()?;
        drives.heed_failures()?;
        drives.heed_doubts()?;
        drives.watch_stalls()?;
        drives.watch_events()?;
        // The drives must be open before hosts connect: a host that finds no such subsystem does not try
        // again.
        let (own, former) = match sockets {
            Some(Sockets { listening, file, hosts }) => (Some((listening, file)), hosts),
            None => (None, Vec::new()),
        };
        let former = former.into_iter().map(TcpListener::from).collect();
        let hosts = SharedListener::start(&config.tcp, directory, former)?;
        // The signals are caught before the daemon is visible and can get one.
        let told = told()?;
        let (listening, api_socket) = own.map_or_else(|| Listening::open(&config, &places), Ok)?;
        let copies = Copies::new(Mutex::new(Some(listening.try_clone().map_err(trouble)?)));
        let successor = offer_upgrade(&drives, &config, &copies, &hosts);
        tracing::info!(
            "serving {} on {}; API at {}",
            served(&drives.list()),
            count(config.daemon.reactors(), "reactor"),
            places.api.display()
        );
        Ok(Self { config, drives, told, listening, hosts, api_socket, locks, successor, copies })
    }

    async fn serve_until_told(mut self) -> Result<(), ApiError> {
        let listener = tokio::net::UnixListener::from_std(self.listening.api).map_err(trouble)?;
        let policy = Policy::new(&self.config.daemon.allow_uids, &self.config.daemon.allow_gids);
        let (raise, stop) = watch::channel(false);
        let access = self.listening.page.as_ref().map(|page| Arc::clone(&page.access));
        let app = App { drives: Arc::clone(&self.drives), page: access };
        if let Some(listener) = self.listening.metrics {
            let server = MetricsServer::new(listener, app.clone()).map_err(trouble)?;
            drop(tokio::spawn(server.run(stop.clone())));
        }
        if let Some(page) = self.listening.page {
            let server = PageServer::new(page.listener, page.access, app.clone()).map_err(trouble)?;
            drop(tokio::spawn(server.run(stop.clone())));
        }
        let api = tokio::spawn(Server::new(listener, policy, router(app)).run(stop));
        watchdog::start(Handle::current(), Arc::clone(&self.drives))?;
        notify(&[NotifyState::Ready]);
        tokio::select! {
            biased;
            _ = self.successor.wait_for(Option::is_some) => {}
            signal = obey_until_stop(&mut self.told, &self.drives) => {
                tracing::info!("told to stop by {signal}");
            }
        }
        // Another process may be about to have everything.
        while self.drives.is_upgrading() && self.successor.borrow().is_none() {
            tokio::time::sleep(UPGRADE_LOOK).await;
        }
        let process = *self.successor.borrow();
        if let Some(process) = process {
            let _ = raise.send(true);
            // The caller who has ordered the upgrade gets its answer.
            let _ = tokio::time::timeout(HURRY_LIMIT, api).await;
            tracing::info!("process {process} goes on; signals are for that one");
            leave(process, (self.drives, self.hosts, self.api_socket, self.locks));
            return Ok(());
        }
        notify(&[NotifyState::Stopping]);
        drop(self.copies.lock().unwrap_or_else(PoisonError::into_inner).take());
        let deadline = Instant::now() + self.config.daemon.drain_limit();
        // The listener ends before the drives. A host that finds no such subsystem does not try again, but a
        // host that cannot connect does.
        self.hosts.close();
        // Sending fails only if the server has ended by itself. Callers are answered while the drives end.
        let _ = raise.send(true);
        let outcome = drain(deadline, &self.drives, &mut self.told).await;
        let answered = match outcome {
            Ok(()) => api.await.is_ok(),
            Err(_) => tokio::time::timeout(HURRY_LIMIT, api).await.is_ok(),
        };
        if !answered {
            tracing::warn!("some callers of the API were not answered");
        }
        outcome
    }
}

fn told(runtime: &Runtime) -> Result<Told, ApiError> {
    runtime.block_on(async { Told::new() }).map_err(trouble)
}

fn open_in_background(drives: Arc<Drives>, specs: Vec<(DriveSpec, Origin)>) -> Result<(), ApiError> {
    let open = move || {
        drives.open_shared();
        drives.open_all(specs);
    };
    std::thread::Builder::new().name("opening".to_owned()).spawn(open).map(drop).map_err(trouble)
}

/// Lets the API upgrade the daemon. The result shows the process that has taken over.
fn offer_upgrade(
    drives: &Arc<Drives>,
    config: &Config,
    copies: &Copies,
    hosts: &SharedListener,
) -> watch::Receiver<Option<u32>> {
    let (weak, copies) = (Arc::downgrade(drives), Arc::clone(copies));
    let predecessor = Predecessor { drives: weak, config: config.clone(), copies, hosts: hosts.clone() };
    let (taken, successor) = watch::channel(None);
    drives.on_upgrade(Box::new(move |binary| {
        let process = predecessor.upgrade(binary)?;
        taken.send_replace(Some(process));
        Ok(process)
    }));
    successor
}

/// Leaves everything to another process: nothing is closed in order, and no path is removed.
fn leave(process: u32, everything: impl Sized) {
    notify(&[NotifyState::MainPid(process)]);
    std::mem::forget(everything);
}

/// Returns the number of drives served, as text, with the number of failed drives apart.
fn served(drives: &[DriveView]) -> String {
    let failed = drives.iter().filter(|drive| drive.state == DriveState::Failed).count();
    match failed {
        0 => count(drives.len(), "drive"),
        failed => format!("{} of {}, {failed} failed,", drives.len() - failed, count(drives.len(), "drive")),
    }
}

/// Reloads at each signal to reload. Returns the name of the signal that stops the daemon.
async fn obey_until_stop(told: &mut Told, drives: &Arc<Drives>) -> &'static str {
    loop {
        match told.next().await {
            Order::Stop(signal) => return signal,
            // A reload that hangs in a task of its own does not keep the daemon from stopping.
            Order::Reload => drop(tokio::spawn(reload(Arc::clone(drives)))),
        }
    }
}

async fn reload(drives: Arc<Drives>) {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
    match ordered(NO_DRIVE, move |_| drives.reload()).await {
        Ok(outcome) => outcome.log(),
        Err(error) => tracing::error!("not reloaded: {}", error.0.in_one_line()),
    }
    notify(&[NotifyState::Ready]);
}

/// Finishes the commands in flight. After a second signal it waits only for [`HURRY_LIMIT`].
async fn drain(deadline: Instant, drives: &Arc<Drives>, told: &mut Told) -> Result<(), ApiError> {
    let (drives, hurry) = (Arc::clone(drives), Arc::new(AtomicBool::new(false)));
    let hurried = Arc::clone(&hurry);
    let mut drained = tokio::task::spawn_blocking(move || drives.drain(deadline, &hurried));
    let ended = tokio::select! {
        ended = &mut drained => Some(ended),
        signal = told.stop() => {
            tracing::warn!("told again, by {signal}: not waiting any longer");
            hurry.store(true, Relaxed);
            tokio::time::timeout(HURRY_LIMIT, drained).await.ok()
        }
    };
    let cut_short = || ApiError::internal("a reactor or a change did not answer; ended without it");
    ended.and_then(Result::ok).ok_or_else(cut_short)??;
    tracing::info!("every command finished; stopped");
    Ok(())
}

/// Makes the folders and locks them for this daemon. The state folder has a lock of its own.
fn claim(places: &Places) -> Result<[Exclusive; 2], ApiError> {
    if let Some(folder) = places.api.parent() {
        make_folder(folder, 0o755)?;
    }
    make_folder(&places.sockets, 0o755)?;
    let mut lock = places.api.clone().into_os_string();
    lock.push(".lock");
    let api = Exclusive::take(Path::new(&lock), &format!("the API socket {}", places.api.display()))?;
    // No drive can have this name: drive names start with a letter or a digit.
    let lock = places.sockets.join(".lock");
    let sockets = Exclusive::take(&lock, &format!("the sockets folder {}", places.sockets.display()))?;
    Ok([api, sockets])
}

/// Effect of a signal.
enum Order {
    /// The name of the signal.
    Stop(&'static str),
    Reload,
}

/// The signals that a daemon obeys.
struct Told {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// SIGXCPU, the soft limit of processor time; at the hard limit the kernel kills the process.
    processor_time: Signal,
}

impl Told {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            processor_time: signal(SignalKind::from_raw(rustix::process::Signal::XCPU.as_raw()))?,
        })
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.terminate.recv() => Order::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Order::Stop("SIGINT"),
            _ = self.hang_up.recv() => Order::Reload,
            _ = self.processor_time.recv() => {
                Order::Stop("SIGXCPU: the limit of processor time (`ulimit -t`, LimitCPU=) is reached")
            }
        }
    }

    /// Waits for the next signal that stops a daemon, and returns its name.
    async fn stop(&mut self) -> &'static str {
        loop {
            if let Order::Stop(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// Keeps other processes of this user out of the daemon's memory, with its keys and the guests' data, unless
/// the operator allows debuggers. Call before a key is read.
fn hide_memory(dumpable: bool) -> Result<(), ApiError> {
    if dumpable {
        return Ok(());
    }
    sluice_uif::sandbox::hide()
        .map_err(|error| ApiError::internal(format!("cannot keep other processes out of this one: {error}")))
}

/// Raises the soft limit of open files to the hard limit. A hundred controllers with a hundred interrupts
/// each need more descriptors than the usual limit.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        let current = limit.current.map_or_else(|| "its value".to_owned(), |current| current.to_string());
        tracing::warn!("cannot raise the limit of open files above {current}: {error}");
    }
}

/// Sends the state to systemd, if it is there.
pub(crate) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
