//! All drives of the daemon: opened, shown and stored.
//!
//! One change of a drive is made at a time. It may take long, while changes of other drives proceed. A change
//! that cannot be stored is not made: a change that the API has acknowledged persists across a restart.

mod ana;
mod balance;
mod cache;
mod change;
mod classifier;
mod coming;
mod counts;
mod creation;
mod declare;
mod device;
mod drain;
mod engine;
mod events;
mod foresee;
mod function;
mod groups;
mod hosts;
mod jobs;
mod latency;
mod layout;
mod limits;
mod merge;
mod moving;
mod opening;
mod paused;
mod persist;
mod pool;
mod power;
mod recover;
mod reload;
mod resizing;
mod retry;
mod shared;
mod stalls;
mod storage;
mod target;
mod trace;
mod upgrade;
mod view;

pub use cache::CacheView;
pub use classifier::{
    ClassifierStatus, ENTRIES_MAX, ErrorCount, HookCounts, MapDump, MapEntry, MapKindName, MapView,
    TraceLine, to_hex,
};
pub use counts::{DriveCounts, LayerCounts, NamespaceCounts, QueueCounts};
pub use declare::{Applied, ApplyRequest, Plan, PlannedChange, RefusedChange};
pub use device::DevicePlace;
pub use device::DeviceView;
pub use engine::{
    CreatedStatus, DriveCounters, Engine, ReactorCounters, ReadyClassifier, Running, SharedView, Status,
    Store, VolumeView, WatchedTurn, WatchedTurns,
};
pub use events::{Event, EventKind, EventLog};
pub use foresee::{Foreseen, foresee};
pub use function::FunctionView;
pub use function::metrics;
pub use groups::GroupView;
pub use jobs::{FunctionJobs, JobState, JobView, OF_CONTROLLER, PaceView, PriorityName, drive_of_job};
pub use latency::{DriveLatency, LatencyBucket, LatencyView};
pub use limits::LimitsView;
pub use persist::{PersistRequest, Remembered};
pub use reload::Reloaded;
pub use shared::{foresee_shared, shared_at_start};
pub use storage::Insist;
pub use storage::random as new_identity;
pub use target::{BACK_S, FirmwareOrder, MaintenanceView, TargetState, TargetView, differs};
pub use trace::{DriveTrace, TRACE_EVERY, TraceView};
pub use upgrade::{HandedOver, Upgrade, Upgraded};
pub use view::{DriveState, DriveView, NamespaceView, Origin, QueueView, RecallView};

use crate::config::{Config, Metrics, Page, Settings, Tcp, check_reactor};
use crate::listen::check_length;
use crate::state::{Access, Saved, StateFile};
use change::Changes;
use coming::Coming;
use hosts::AllHosted;
use sluice_spec::error::ApiError;
use sluice_spec::paths::Places;
use sluice_spec::words::nearest;
use sluice_spec::{DriveSpec, GroupSpec, SharedSpec, TargetKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use storage::Why;

/// Maximum number of drives of one daemon.
pub const DRIVES_MAX: usize = 1024;

/// A drive: its specification, and the running drive or the error of its open.
#[derive(Clone)]
struct Entry {
    spec: DriveSpec,
    origin: Origin,
    /// The reactor that the drive was opened on.
    reactor: usize,
    /// Whether an operator has moved the drive. It is not moved by itself then.
    moved: bool,
    running: Result<Arc<dyn Running>, ApiError>,
}

impl Entry {
    /// Returns the reactor that the drive is on now.
    fn reactor(&self) -> usize {
        self.running.as_ref().ok().and_then(|running| running.reactor()).unwrap_or(self.reactor)
    }

    /// Returns the drive's queues that are on other reactors.
    fn remote_queues(&self) -> Vec<QueueView> {
        let away = self.running.as_ref().map_or_else(|_| Vec::new(), |running| running.remote_queues());
        away.into_iter().map(|(queue, reactor)| QueueView { queue, reactor }).collect()
    }
}

/// All drives of the daemon.
pub struct Drives {
    engine: Box<dyn Engine>,
    places: Places,
    /// The configuration file; empty if there is none.
    config_file: PathBuf,
    /// `[daemon]`, `[tcp]`, `[metrics]` and `[page]` as they were at the start.
    settings: Settings,
    tcp: Tcp,
    metrics: Metrics,
    page: Page,
    /// Shared objects with their present sizes. Locked for a moment only.
    shared: Mutex<Vec<SharedSpec>>,
    reactors: usize,
    state: StateFile,
    /// Changes in progress, by drive.
    changes: Changes,
    /// Held for the whole of a reload.
    reloads: Mutex<()>,
    /// Content of the state file. Locked while it is stored; taken before the lock of the entries.
    saved: Mutex<Saved>,
    /// A copy of the ANA states in `saved`, so that readers do not wait for a store.
    ana: Mutex<Vec<Access>>,
    /// Changes that hosts made to each drive. Locked for a moment only.
    hosted: Mutex<AllHosted>,
    /// Whether a thread watches paused jobs. Taken before the lock of `saved`.
    watches_pauses: Mutex<bool>,
    /// Drives in the configuration file when it was last read. Taken before the lock of `saved`: no drive is
    /// both declared and created.
    declared: Mutex<Vec<DriveSpec>>,
    /// Groups in the configuration file when it was last read. Taken before the lock of `saved`.
    declared_groups: Mutex<Vec<GroupSpec>>,
    /// Held while a drive or queue group moves.
    moves: Mutex<()>,
    /// Held while a pool is grown or opened again, or has its volumes changed.
    pool_orders: Mutex<()>,
    /// Number of times that drives have stopped their reactors.
    stalls: Mutex<BTreeMap<String, u64>>,
    events: events::EventLog,
    /// Drives that are being created.
    coming: Mutex<Vec<Coming>>,
    /// Removed files that are still to be closed.
    bin: pool::Bin,
    /// Whether the daemon stops, so that no change begins any more.
    ending: Arc<AtomicBool>,
    /// Devices whose controllers are reset. No target on them is resumed meanwhile.
    maintained: Mutex<BTreeSet<String>>,
    /// Time for which hosts may see the Change state (ANATT).
    change_limit: Duration,
    /// Whether the daemon is being replaced by another process.
    upgrading: AtomicBool,
    /// Held while records of drives are stored, and during an upgrade. Locked before `stores`.
    keeps: Mutex<()>,
    /// Held for reading while the state is stored, for writing during an upgrade.
    stores: RwLock<()>,
    upgrade: OnceLock<Upgrade>,
    /// Locked for a moment only: never while a call blocks.
    entries: Mutex<BTreeMap<String, Entry>>,
}

impl std::fmt::Debug for Drives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(lock(&self.entries).keys()).finish()
    }
}

impl Drives {
    /// Loads the state without opening a drive, so that changes of hosts can be stored from the first open
    /// on. Also returns the declared and stored drives, which are to be [opened](Self::open_all).
    pub fn prepare(
        config: &Config,
        places: Places,
        state: StateFile,
        engine: Box<dyn Engine>,
    ) -> Result<(Self, Vec<(DriveSpec, Origin)>), ApiError> {
        let stored = state.load()?;
        let mut saved = stored.clone();
        declare::take_back(&mut saved);
        let specs = merge::merge(config, &mut saved)?;
        groups::merge(config, &mut saved);
        let shared = shared::merge(config, &mut saved);
        storage::note_older(specs.iter().map(|(spec, _)| spec), &mut saved);
        let hosted = hosts::load(&state, &mut saved)?;
        if saved != stored {
            state.store(&saved)?;
        }
        let drives = Self {
            engine,
            places,
            config_file: config.file.clone(),
            settings: config.daemon.clone(),
            tcp: config.tcp.clone(),
            metrics: config.metrics.clone(),
            page: config.page.clone(),
            shared: Mutex::new(shared),
            reactors: config.daemon.reactors(),
            state,
            changes: Changes::default(),
            reloads: Mutex::default(),
            ana: Mutex::new(saved.ana.clone()),
            saved: Mutex::new(saved),
            declared: Mutex::new(config.drives.clone()),
            declared_groups: Mutex::new(config.groups.clone()),
            moves: Mutex::default(),
            pool_orders: Mutex::default(),
            stalls: Mutex::default(),
            events: events::EventLog::default(),
            coming: Mutex::default(),
            bin: pool::Bin::start()?,
            hosted: Mutex::new(hosted),
            watches_pauses: Mutex::default(),
            ending: Arc::default(),
            maintained: Mutex::default(),
            change_limit: target::CHANGE_LIMIT,
            upgrading: AtomicBool::new(false),
            keeps: Mutex::default(),
            stores: RwLock::default(),
            upgrade: OnceLock::new(),
            entries: Mutex::default(),
        };
        drives.open_groups()?;
        drives.forget_former_formats(config)?;
        for (spec, _) in &specs {
            drives.sweep_pool(spec)?;
        }
        Ok((drives, specs))
    }

    fn open_entry(&self, spec: DriveSpec, origin: Origin, reactor: usize) -> Entry {
        // A drive that failed stays in the list and can be opened again. A refused creation leaves no drive,
        // so its error has no such hint.
        let hint = || format!("when that is mended, `sluice drive open {}` tries again", spec.name);
        let running = self.open_again(&spec, reactor, Why::KNOWN).map_err(|problem| match problem.hint {
            Some(_) => problem,
            None => problem.hint(hint()),
        });
        Entry { spec, origin, reactor, moved: false, running }
    }

    /// Opens a drive with its stored state.
    fn open_again(&self, spec: &DriveSpec, reactor: usize, why: Why) -> Result<Arc<dyn Running>, ApiError> {
        let remembered = self.remembered(spec, why)?;
        let settled = self.settle_and_store(spec, why)?;
        let remembered = Remembered { uuids: settled.uuids.clone(), ..remembered };
        self.open_engine(&settled.spec(spec), reactor, remembered).inspect_err(|_| self.unsettle(&settled))
    }

    /// Opens a drive that failed before. Refuses it if the maximum number of drives is open.
    fn try_again(&self, spec: &DriveSpec, reactor: usize, why: Why) -> Result<Arc<dyn Running>, ApiError> {
        let open = lock(&self.entries).values().filter(|entry| entry.running.is_ok()).count();
        match open < DRIVES_MAX {
            true => self.open_again(spec, reactor, why),
            false => Err(no_room(&spec.name)),
        }
    }

    fn open_engine(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: Remembered,
    ) -> Result<Arc<dyn Running>, ApiError> {
        check_reactor(spec, self.reactors)?;
        self.check_serial(spec)?;
        check_length(&self.places.drive_socket(&spec.name))?;
        self.open_with_account(spec, reactor, remembered)
    }

    /// Checks that the serial number is unique. A guest takes two drives with one serial number for the same
    /// drive, and refuses the second.
    fn check_serial(&self, spec: &DriveSpec) -> Result<(), ApiError> {
        let entries = lock(&self.entries);
        coming::check_serial(spec, &entries, &lock(&self.coming))
    }

    /// Returns the reactor for a drive: its configured one, else the one with the fewest drives. The count
    /// includes drives that are about to be on the reactors `placed`.
    fn place(&self, spec: &DriveSpec, placed: &[usize]) -> usize {
        let entries = lock(&self.entries);
        self.place_beside(spec, &entries, &lock(&self.coming), placed)
    }

    fn place_beside(
        &self,
        spec: &DriveSpec,
        entries: &BTreeMap<String, Entry>,
        coming: &[Coming],
        placed: &[usize],
    ) -> usize {
        let load = |reactor: &usize| {
            let there = entries.values().filter(|entry| entry.reactor() == *reactor).count();
            let coming = coming.iter().filter(|coming| coming.reactor == *reactor).count();
            there + coming + placed.iter().filter(|other| *other == reactor).count()
        };
        spec.reactor.or_else(|| (0..self.reactors).min_by_key(load)).unwrap_or(0)
    }

    fn is_declared(&self, name: &str) -> ApiError {
        let file = self.config_file.display();
        ApiError::conflict(format!("drive `{name}` is declared in {file}, and would be back after a restart"))
            .hint(format!("remove its [[drive]] from {file} and run `sluice reload`"))
    }

    /// Opens a drive again that failed.
    pub fn open(&self, name: &str, insist: Insist) -> Result<DriveView, ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        if entry.running.is_err() {
            let running = self.try_again(&entry.spec, entry.reactor, Why::Known(insist));
            self.amend(name, |entry| entry.running = running.clone());
            running?;
            tracing::info!("drive {name} opened");
        }
        self.show(name)
    }

    /// Returns the drive's specification in the configuration, if the drive is declared.
    fn declared(&self, name: &str) -> Option<DriveSpec> {
        lock(&self.declared).iter().find(|declared| declared.name == name).cloned()
    }

    /// Returns a view of one drive.
    pub fn show(&self, name: &str) -> Result<DriveView, ApiError> {
        Ok(self.view(&self.entry(name)?))
    }

    /// Returns views of all drives, in the order of their names.
    pub fn list(&self) -> Vec<DriveView> {
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        entries.iter().map(|entry| self.view(entry)).collect()
    }

    /// Returns the number of drives. Waits for no reactor.
    pub fn count(&self) -> usize {
        lock(&self.entries).len()
    }

    pub fn reactors(&self) -> Vec<ReactorCounters> {
        self.engine.reactors()
    }

    /// Returns the last events.
    pub fn events(&self) -> &EventLog {
        &self.events
    }

    fn entry(&self, name: &str) -> Result<Entry, ApiError> {
        let entries = lock(&self.entries);
        entries.get(name).cloned().ok_or_else(|| unknown(name, entries.keys().map(String::as_str)))
    }

    fn sockets(&self, spec: &DriveSpec) -> Vec<String> {
        let sockets = self.places.drive_sockets(&spec.name, spec.sockets());
        sockets.iter().map(|socket| socket.display().to_string()).collect()
    }

    fn view(&self, entry: &Entry) -> DriveView {
        let status = entry.running.clone().and_then(|running| running.status());
        let (state, problem) = match &status {
            Ok(status) if status.connected => (DriveState::Connected, None),
            Ok(_) => (DriveState::Ready, None),
            Err(problem) => (DriveState::Failed, Some(problem.clone())),
        };
        let status = status.unwrap_or_default();
        let mut sockets = self.sockets(&entry.spec).into_iter();
        DriveView {
            name: entry.spec.name.clone(),
            state,
            problem,
            origin: entry.origin,
            serial: entry.spec.serial(),
            subnqn: entry.spec.subnqn(),
            socket: sockets.next(),
            more_sockets: sockets.collect(),
            migratable: false,
            clients: status.clients,
            tcp: entry.spec.tcp.clone(),
            hosts: status.hosts.clone(),
            authenticated: status.authenticated.clone(),
            ciphers: status.ciphers.clone(),
            reactor: entry.reactor(),
            remote_queues: entry.remote_queues(),
            queue_recalls: status
                .queue_recalls
                .iter()
                .map(|(cause, times)| RecallView { cause: (*cause).to_owned(), times: *times })
                .collect(),
            doorbells: entry.spec.doorbells,
            msix: entry.spec.vfio_user.is_none_or(|it| it.msix),
            in_flight: status.in_flight,
            stalls: lock(&self.stalls).get(&entry.spec.name).copied().unwrap_or_default(),
            counters: status.counters,
            classifier: entry.spec.classifier.clone(),
            namespaces: namespace_views(&entry.spec, &status),
            devices: entry.running.as_ref().map_or_else(|_| Vec::new(), |running| running.devices()),
        }
    }
}

fn namespace_views(spec: &DriveSpec, status: &Status) -> Vec<NamespaceView> {
    let view = |(index, (nsid, namespace)): (usize, (u32, &sluice_spec::NamespaceSpec))| NamespaceView {
        nsid,
        by_host: false,
        target: namespace.target,
        path: namespace.path.as_ref().map(|path| path.display().to_string()),
        size: status.sizes.get(index).copied().or(namespace.size),
        block_size: status.block_sizes.get(index).copied().unwrap_or(namespace.block_size),
        on_full: namespace.on_full,
        format: namespace.format,
        lease: namespace.lease.as_ref().map(|path| path.display().to_string()),
        read_only: namespace.read_only,
        nvme: namespace.nvme.clone(),
        nvme_tcp: namespace.nvme_tcp.clone(),
        shared: namespace.shared.clone(),
        volume: namespace.volume.clone(),
        functions: namespace.functions.clone(),
        paths: namespace.paths.clone(),
    };
    let created = status.created.iter().map(|created| NamespaceView {
        nsid: created.nsid,
        by_host: true,
        size: Some(created.size),
        block_size: created.block_size,
        ..NamespaceView::of(spec.pool.as_ref().map_or(TargetKind::Null, |pool| pool.target))
    });
    spec.numbered().enumerate().map(view).chain(created).collect()
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> ApiError {
    let problem = ApiError::not_found(format!("there is no drive `{name}`"));
    match nearest(name, known.clone()) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None if known.count() == 0 => {
            problem.hint("there are no drives at all; see `sluice drive create --help`")
        }
        None => problem.hint("`sluice drive list` shows what there is"),
    }
}

fn serial_taken(by: &str, serial: &str) -> ApiError {
    ApiError::conflict(format!("drive `{by}` has the serial number {serial} already"))
        .hint("give each drive its own, or none: it is derived from the name then")
}

fn no_room(name: &str) -> ApiError {
    ApiError::conflict(format!("there is no room for drive `{name}`"))
        .hint(format!("a daemon has at most {DRIVES_MAX} drives"))
}

/// Locks a mutex. A panic cannot poison it, since a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(any(test, feature = "script"))]
pub mod script;
#[cfg(test)]
mod tests;
