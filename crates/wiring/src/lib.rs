//! Wiring of the crates: specs become reactors, targets, functions, controllers and sockets.
//!
//! Resources whose opening may block (files, sockets, memory) are opened on the calling thread. Objects that
//! belong to a reactor are built on its thread, from the opened resources.
#![forbid(unsafe_code)]

mod cache;
mod check;
mod classifier;
mod clone_stack;
mod dhchap;
mod drive;
mod edit_stack;
mod function;
mod hand_over;
mod held_records;
mod jobs;
mod labels;
mod latency;
mod map_record;
mod namespace;
mod pause;
mod pool;
mod power;
mod prepared;
mod remote;
mod remote_queues;
mod running;
mod shared;
mod target;
mod thin_pool;

pub use check::Examination;
use classifier::{BackgroundChannels, Retired, SharedMaps, start_retiring};
use drive::{OpenContext, WiredDrive};
pub use function::start_functions_by;
use hand_over::IncomingDrive;
pub use hand_over::reactor_of_record;
pub use labels::problem as label_problem;
pub use namespace::{PreparedNamespace, StackControl, StackControls};
pub use remote::tls_keys;
use shared::Pools;
use sluice_control::config::{Metrics, Settings};
use sluice_control::drives::{
    Engine, HandedOver, PersistRequest, ReactorCounters, Remembered, Running, SharedView, VolumeView,
    WatchedTurn, WatchedTurns,
};
use sluice_controller::LatencyClock;
use sluice_frontend_tcp::Directory;
use sluice_frontend_vfio_user::Access;
use sluice_functions::{GroupRefused, GroupStatus, QosLimits};
use sluice_holder::Holder;
use sluice_reactor::{IdlePolicy, Progress, ReactorConfig, ReactorHandle, Turn, Watched};
use sluice_spec::error::ApiError;
use sluice_spec::paths::Places;
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, SharedSpec};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// Reactors, and the resources that drives on them share.
#[derive(Debug)]
pub struct Wiring {
    reactors: Arc<[OneReactor]>,
    places: Places,
    access: Access,
    /// Channel for classifiers that no router runs any more.
    retired: Retired,
    /// Channel for the names of drives whose classifiers were detached because of errors.
    detached: Sender<String>,
    detachments: Mutex<Option<Receiver<String>>>,
    /// Channel for the persistent records of controllers.
    persist_requests: Sender<PersistRequest>,
    /// Number of drives that were opened.
    generations: AtomicU64,
    orders: Mutex<Option<Receiver<PersistRequest>>>,
    shared_maps: SharedMaps,
    pools: Pools,
    /// Clock of the measurement of commands; none if it is off.
    latency: Option<LatencyClock>,
    /// Time from which on a command is slow.
    slow_ns: u64,
    /// Whether the commands of each layer are counted.
    count_layers: bool,
    /// Drives that hosts on the network find.
    directory: Arc<Directory>,
    inbox: Inbox,
    /// Process that keeps records of the drives while the daemon is gone.
    holder: Option<Holder>,
}

/// Records of drives that another process hands over, by name. A drive that is opened takes its own.
pub type Inbox = Arc<Mutex<BTreeMap<String, HandedOver>>>;

#[derive(Clone, Debug)]
struct OneReactor {
    core: Option<usize>,
    /// Whether the turns of the reactor are watched.
    watched: bool,
    handle: ReactorHandle,
}

impl Wiring {
    /// Starts the reactors.
    pub fn start(settings: &Settings, places: Places) -> Result<Self, ApiError> {
        function::hide(&places);
        let cores: Vec<Option<usize>> = match settings.cores.as_slice() {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let start = |(index, core)| start_reactor(index, core, settings);
        let reactors = cores.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        let (detached, detachments) = mpsc::channel();
        let (persist_requests, orders) = mpsc::channel();
        Ok(Self {
            reactors,
            places,
            access: settings.access(),
            retired: start_retiring()?,
            detached,
            detachments: Mutex::new(Some(detachments)),
            persist_requests,
            generations: AtomicU64::new(0),
            orders: Mutex::new(Some(orders)),
            shared_maps: SharedMaps::default(),
            pools: Pools::default(),
            latency: None,
            slow_ns: u64::MAX,
            count_layers: false,
            directory: Arc::default(),
            inbox: Inbox::default(),
            holder: None,
        })
    }

    /// Has records of the drives kept by this holder.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<Holder>) -> Self {
        self.holder = holder;
        self
    }

    /// Starts the shared objects, on their home reactors. Takes their memory from the machine, which may take seconds.
    pub fn with_shared(mut self, specs: &[SharedSpec]) -> Result<Self, ApiError> {
        self.pools = Pools::start(specs, &self.reactors)?;
        Ok(self)
    }

    /// Measures the commands of the drives as configured. Calibrates the clock, which may take a tenth of a second.
    #[must_use]
    pub fn with_metrics(mut self, metrics: &Metrics) -> Self {
        self.latency = metrics.latency.then(LatencyClock::new);
        self.slow_ns = metrics.slow_ns();
        self.count_layers = metrics.layers;
        self
    }

    /// Returns the directory of drives that hosts on the network find, for the code that admits these hosts.
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    /// Returns the place for records of drives that another process hands over.
    pub fn inbox(&self) -> Inbox {
        Arc::clone(&self.inbox)
    }

    /// Returns a reactor, for callers that add tasks of their own.
    pub fn reactor(&self, index: usize) -> Option<&ReactorHandle> {
        self.reactors.get(index).map(|reactor| &reactor.handle)
    }
}

fn start_reactor(index: usize, core: Option<usize>, settings: &Settings) -> Result<OneReactor, ApiError> {
    let idle = IdlePolicy {
        spin: settings.idle.spin(),
        always_poll: settings.idle.always_poll,
        ..IdlePolicy::default()
    };
    let config = ReactorConfig {
        name: format!("reactor-{index}"),
        core,
        idle,
        watch: settings.watch_turns,
        ..ReactorConfig::default()
    };
    let handle = ReactorHandle::start(config).map_err(|error| {
        let problem = ApiError::internal(format!("reactor {index} cannot start: {error}"));
        match core {
            Some(_) => problem.hint("daemon.cores names the processors to use"),
            None => problem,
        }
    })?;
    Ok(OneReactor { core, watched: settings.watch_turns, handle })
}

impl Wiring {
    fn wire(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: &Remembered,
    ) -> Result<WiredDrive, ApiError> {
        let socket = self.places.drive_socket(&spec.name);
        let folder = socket.parent().unwrap_or(&self.places.sockets);
        let incoming = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).remove(&spec.name);
        let read = |it| IncomingDrive::read(it).map_err(|error| ApiError::invalid(error.to_string()));
        let incoming = incoming.map(read);
        let context = OpenContext {
            folder,
            access: self.access,
            generation: self.generations.fetch_add(1, Relaxed),
            reactor: reactor_of(&self.reactors, reactor)?,
            reactors: Arc::clone(&self.reactors),
            channels: BackgroundChannels {
                retired: self.retired.clone(),
                detached: self.detached.clone(),
                persist_requests: self.persist_requests.clone(),
            },
            shared_maps: self.shared_maps.clone(),
            pools: self.pools.clone(),
            latency: self.latency.clone(),
            slow_ns: self.slow_ns,
            count_layers: self.count_layers,
            directory: self.directory(),
            incoming: incoming.transpose()?,
            holder: self.holder_for(spec),
            number: reactor,
        };
        WiredDrive::open(spec, remembered, context)
    }
}

impl Wiring {
    /// Returns the holder for a drive whose hosts can be continued: its data is not in the daemon.
    fn holder_for(&self, spec: &DriveSpec) -> Option<Holder> {
        self.holder.clone().filter(|_| spec.can_be_continued() && spec.sockets() > 0)
    }
}

impl Engine for Wiring {
    fn open(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: &Remembered,
    ) -> Result<Arc<dyn Running>, ApiError> {
        Ok(Arc::new(self.wire(spec, reactor, remembered)?))
    }

    fn is_incoming(&self, drive: &str) -> bool {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.get(drive).is_some_and(|handed| !handed.is_left)
    }

    fn detachments(&self) -> Option<Receiver<String>> {
        // A panic ends the process, so the lock is never poisoned.
        self.detachments.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn persist_requests(&self) -> Option<Receiver<PersistRequest>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn await_shutdowns(&self, limit: std::time::Duration) -> usize {
        sluice_targets::await_shutdowns(limit)
    }

    fn shared(&self) -> Result<Vec<SharedView>, ApiError> {
        self.pools.views()
    }

    fn plan_growth(&self, pool: &str, size: Option<Size>) -> Result<Size, ApiError> {
        self.pools.plan_growth(pool, size)
    }

    fn grow_shared(&self, pool: &str, size: Size) -> Result<(), ApiError> {
        self.pools.grow(pool, size)
    }

    fn volumes(&self, pool: &str) -> Result<Vec<VolumeView>, ApiError> {
        self.pools.thin(pool)?.volumes()
    }

    fn clone_volume(&self, pool: &str, from: &str, to: &str) -> Result<(), ApiError> {
        self.pools.thin(pool)?.clone_volume(from, to)
    }

    fn delete_volume(&self, pool: &str, volume: &str) -> Result<(), ApiError> {
        self.pools.thin(pool)?.delete_volume(volume)
    }

    fn retry_shared(&self, pool: &str) -> Result<(), ApiError> {
        self.pools.retry(pool)
    }

    fn settle_shared(&self, pool: &str) -> Result<(), ApiError> {
        self.pools.settle(pool)
    }

    fn open_shared(&self) {
        self.pools.open_rest();
    }

    fn set_group(&self, name: &str, limits: QosLimits) -> Result<(), GroupRefused> {
        self.pools.groups.set(name, limits)
    }

    fn remove_group(&self, name: &str) -> Result<(), GroupRefused> {
        self.pools.groups.remove(name)
    }

    fn groups(&self) -> Vec<GroupStatus> {
        self.pools.groups.list()
    }

    fn reactors(&self) -> Vec<ReactorCounters> {
        self.reactors.iter().enumerate().map(|(index, reactor)| counters(index, reactor)).collect()
    }

    fn progress(&self) -> Vec<Progress> {
        self.reactors.iter().map(|reactor| reactor.handle.progress()).collect()
    }
}

/// Returns a reactor by its number, counted from zero.
fn reactor_of(reactors: &[OneReactor], index: usize) -> Result<ReactorHandle, ApiError> {
    let found = reactors.get(index).map(|reactor| reactor.handle.clone());
    found.ok_or_else(|| ApiError::invalid(format!("there is no reactor {index}")))
}

fn counters(index: usize, reactor: &OneReactor) -> ReactorCounters {
    let counted = reactor.handle.counters();
    ReactorCounters {
        reactor: index,
        core: reactor.core,
        turns: counted.turns,
        busy_turns: counted.busy_turns,
        commands: counted.commands,
        spurious_polls: counted.spurious_polls,
        sleeps: counted.sleeps,
        drive_sleeps: counted.task_sleeps,
        wakes: counted.wakes,
        overdue: counted.overdue,
        syscalls: counted.syscalls,
        vain_receives: counted.vain_receives,
        longest_turn_ns: counted.longest_turn_ns,
        busy_ns: counted.busy_ns,
        spin_ns: counted.spin_ns,
        sleep_ns: counted.sleep_ns,
        spin_budget_ns: counted.spin_budget_ns,
        watched: reactor.watched.then(|| watched(counted.watched)),
    }
}

fn watched(found: Watched) -> WatchedTurns {
    let turn = |turn: Turn| WatchedTurn {
        began_ns: turn.began_ns,
        took_ns: turn.took_ns,
        processor: turn.processor,
        own_ns: turn.own_ns,
        events_ns: turn.events_ns,
        drives_ns: turn.tasks_ns,
        mails_ns: turn.mails_ns,
        times_ns: turn.times_ns,
        submit_ns: turn.submit_ns,
        faults: turn.faults,
    };
    WatchedTurns {
        longest: found.longest.into_iter().filter(|turn| turn.own_ns > 0).map(turn).collect(),
        away_ns: found.away_ns,
        waits: found.waits,
        waited_ns: found.waited_ns,
    }
}
