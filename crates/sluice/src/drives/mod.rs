//! All drives of the daemon: created, resized, shown and deleted, and remembered.
//!
//! One change is made at a time. A change that cannot be stored is not made: what the API has
//! acknowledged is there after a restart.

mod ana;
mod arrangement;
mod balance;
mod classifier;
mod device;
mod drain;
mod engine;
mod function;
mod kept;
mod merge;
mod moving;
mod opening;
mod pool;
mod reload;
mod view;

pub use classifier::{
    ClassifierStatus, ENTRIES_MAX, ErrorCount, HookCounts, MapDump, MapEntry, MapKindName, MapView,
    TraceLine, to_hex,
};
pub use device::DeviceView;
pub use engine::{
    CreatedStatus, DriveCounters, Engine, ReactorCounters, ReadyClassifier, Running, Status, Store,
    WatchedTurn, WatchedTurns,
};
pub use function::FunctionView;
pub(crate) use function::metrics;
pub use kept::{Remembered, ToKeep};
pub use reload::Reloaded;
pub use view::{CallView, DriveState, DriveView, NamespaceView, Origin, QueueView};

use crate::config::{Config, Settings, Tcp, check_reactor};
use crate::listen::check_length;
use crate::paths::Places;
use crate::problem::{Kind, Problem};
use crate::size::Size;
use crate::spec::{AnaSpec, DriveSpec, FunctionSpec, TargetKind};
use crate::state::{Resized, Saved, StateFile};
use crate::words::nearest;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Drives of one daemon.
pub const DRIVES_MAX: usize = 1024;

/// One drive: what was asked for, and what became of it.
#[derive(Clone)]
struct Entry {
    spec: DriveSpec,
    origin: Origin,
    /// The reactor that it was opened on.
    reactor: usize,
    /// Somebody has moved it: it stays where it is.
    moved: bool,
    running: Result<Arc<dyn Running>, Problem>,
}

impl Entry {
    /// The reactor that it is on.
    fn reactor(&self) -> usize {
        self.running.as_ref().ok().and_then(|running| running.reactor()).unwrap_or(self.reactor)
    }

    /// Its queues that are on others.
    fn queues_away(&self) -> Vec<QueueView> {
        let away = self.running.as_ref().map_or_else(|_| Vec::new(), |running| running.queues_away());
        away.into_iter().map(|(queue, reactor)| QueueView { queue, reactor }).collect()
    }
}

/// All drives of the daemon.
pub struct Drives {
    engine: Box<dyn Engine>,
    places: Places,
    /// The configuration file; empty if there is none.
    config_file: PathBuf,
    /// What it said of the daemon at the start, and of where hosts come in.
    settings: Settings,
    tcp: Tcp,
    reactors: usize,
    state: StateFile,
    /// What the state file holds. Whoever makes a change holds this lock from beginning to end; it is
    /// taken before that of the entries.
    saved: Mutex<Saved>,
    /// Held by whoever moves a drive.
    moves: Mutex<()>,
    /// Files that were removed.
    bin: pool::Bin,
    /// The daemon stops: no change begins any more.
    ending: AtomicBool,
    /// Locked for a moment only: never while something blocks.
    entries: Mutex<BTreeMap<String, Entry>>,
}

impl std::fmt::Debug for Drives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(lock(&self.entries).keys()).finish()
    }
}

impl Drives {
    /// Opens every drive that is declared or remembered. One that cannot be opened is kept as failed,
    /// so that one missing disk does not hold up the others.
    pub fn start(
        config: &Config,
        places: Places,
        state: StateFile,
        engine: Box<dyn Engine>,
    ) -> Result<Self, Problem> {
        let stored = state.load()?;
        let mut saved = stored.clone();
        let specs = merge::merge(config, &mut saved)?;
        let bin = pool::Bin::start()?;
        specs.iter().for_each(|(spec, _)| bin.take(pool::sweep(spec, &mut saved)));
        if saved != stored {
            state.store(&saved)?;
        }
        let remembered = saved.clone();
        let drives = Self {
            engine,
            places,
            config_file: config.file.clone(),
            settings: config.daemon.clone(),
            tcp: config.tcp.clone(),
            reactors: config.daemon.reactors(),
            state,
            saved: Mutex::new(saved),
            moves: Mutex::default(),
            bin,
            ending: AtomicBool::new(false),
            entries: Mutex::default(),
        };
        drives.open_all(specs, &remembered);
        Ok(drives)
    }

    fn open_entry(&self, spec: DriveSpec, origin: Origin, reactor: usize, saved: &Saved) -> Entry {
        let running = self.open_engine(&spec, reactor, saved);
        Entry { spec, origin, reactor, moved: false, running }
    }

    fn open_engine(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        saved: &Saved,
    ) -> Result<Arc<dyn Running>, Problem> {
        check_reactor(spec, self.reactors)?;
        self.check_serial(spec)?;
        check_length(&self.places.drive_socket(&spec.name))?;
        pool::check(spec, saved)?;
        let remembered = Remembered {
            detached: classifier::still_detached(spec, saved),
            block_sizes: kept::block_sizes(spec, saved),
            formatting: kept::formatting(spec, saved),
            uncorrectable: kept::uncorrectable(spec, saved),
            sanitized: kept::sanitized(spec, saved),
            history: self.state.load_history(&spec.name),
            reservations: kept::reservations(spec, saved),
            ana: ana::states(&spec.name, saved).iter().map(AnaSpec::rule).collect(),
            pooled: pool::of(saved, &spec.name).cloned().unwrap_or_default(),
        };
        self.engine.open(spec, reactor, &remembered)
    }

    /// A guest takes two drives of one serial number for one, and refuses the second.
    fn check_serial(&self, spec: &DriveSpec) -> Result<(), Problem> {
        let serial = spec.serial();
        let entries = lock(&self.entries);
        let other =
            entries.values().find(|other| other.spec.name != spec.name && other.spec.serial() == serial);
        match other {
            Some(other) => Err(Problem::conflict(format!(
                "drive `{}` has the serial number {serial} already",
                other.spec.name
            ))
            .hint("give each drive its own, or none: it is derived from the name then")),
            None => Ok(()),
        }
    }

    /// The reactor a drive goes to: the one it asks for, else the one with the fewest drives, those included that are
    /// about to be on these.
    fn place(&self, spec: &DriveSpec, placed: &[usize]) -> usize {
        let entries = lock(&self.entries);
        let load = |reactor: &usize| {
            let there = entries.values().filter(|entry| entry.reactor() == *reactor).count();
            there + placed.iter().filter(|other| *other == reactor).count()
        };
        spec.reactor.or_else(|| (0..self.reactors).min_by_key(load)).unwrap_or(0)
    }

    /// Begins a change, which is the only one until the guard is dropped.
    fn change(&self) -> Result<MutexGuard<'_, Saved>, Problem> {
        let saved = lock(&self.saved);
        self.may_change().map(|()| saved)
    }

    fn may_change(&self) -> Result<(), Problem> {
        match self.ending.load(SeqCst) {
            false => Ok(()),
            true => Err(Problem::new(Kind::Unavailable, "the daemon is stopping").hint("start it again")),
        }
    }

    /// Opens a new drive and remembers it.
    pub fn create(&self, mut spec: DriveSpec) -> Result<DriveView, Problem> {
        spec.check()?;
        let mut saved = self.change()?;
        self.check_free(&spec.name)?;
        spec.classifier = spec.classifier.map(|classifier| self.keep_object(classifier)).transpose()?;
        let reactor = self.place(&spec, &[]);
        let entry = self.open_entry(spec, Origin::Created, reactor, &saved);
        let running = entry.running.clone()?;
        let mut next = saved.clone();
        next.drives.push(entry.spec.clone());
        if let Err(problem) = self.state.store(&next) {
            drain::end_one(&entry.spec.name, running)?;
            return Err(problem);
        }
        *saved = next;
        tracing::info!("drive {} created, on reactor {}", entry.spec.name, entry.reactor);
        let view = self.view(&entry);
        lock(&self.entries).insert(entry.spec.name.clone(), entry);
        Ok(view)
    }

    fn check_free(&self, name: &str) -> Result<(), Problem> {
        let entries = lock(&self.entries);
        if entries.contains_key(name) {
            return Err(Problem::conflict(format!("there is a drive `{name}` already"))
                .hint("choose another name, or delete that one first"));
        }
        if entries.len() >= DRIVES_MAX {
            return Err(Problem::conflict(format!("there are {DRIVES_MAX} drives already"))
                .hint("that is the most one daemon serves: start another with its own configuration"));
        }
        Ok(())
    }

    /// Ends a drive and forgets it; its files stay. One with a client goes only by `force`, because the
    /// virtual machine does not survive it.
    pub fn delete(&self, name: &str, force: bool) -> Result<(), Problem> {
        let mut saved = self.change()?;
        let entry = self.entry(name)?;
        if entry.origin == Origin::Declared {
            return Err(self.is_declared(name));
        }
        if let (Ok(running), false) = (&entry.running, force)
            && running.status()?.connected
        {
            return Err(in_use(name));
        }
        let mut next = saved.clone();
        next.drives.retain(|drive| drive.name != name);
        next.detached.retain(|detached| detached.drive != name);
        kept::forget(&mut next, name);
        self.state.store(&next)?;
        *saved = next;
        self.state.sweep(&saved);
        self.state.forget_history(name);
        lock(&self.entries).remove(name);
        tracing::info!("drive {name} deleted");
        entry.running.map_or(Ok(()), |running| drain::end_one(name, running))
    }

    fn is_declared(&self, name: &str) -> Problem {
        let file = self.config_file.display();
        Problem::conflict(format!("drive `{name}` is declared in {file}, and would be back after a restart"))
            .hint(format!("remove its [[drive]] from {file} and run `sluice reload`"))
    }

    /// Tries again to open a drive that failed.
    pub fn open(&self, name: &str) -> Result<DriveView, Problem> {
        let saved = self.change()?;
        let mut entry = self.entry(name)?;
        if entry.running.is_err() {
            entry.running = self.open_engine(&entry.spec, entry.reactor, &saved);
            lock(&self.entries).insert(name.to_owned(), entry.clone());
            entry.running.clone()?;
            tracing::info!("drive {name} opened");
        }
        Ok(self.view(&entry))
    }

    /// Makes the target of a namespace larger, or smaller if `shrink` says that what lies behind may go.
    pub fn resize(&self, name: &str, nsid: u32, size: Size, shrink: bool) -> Result<DriveView, Problem> {
        let mut saved = self.change()?;
        let mut entry = self.entry(name)?;
        let running = entry.running.clone()?;
        check_resize(&entry, nsid, size)?;
        let now = running.target_size(nsid)?;
        if !shrink && size < now {
            return Err(Problem::conflict(format!(
                "{size} is less than the {now} of namespace {nsid}'s target"
            ))
            .hint("what lies behind is lost: to do it all the same, say so (--shrink)"));
        }
        let former = saved.clone();
        let mut next = former.clone();
        remember_size(&mut next, &entry, nsid, size);
        // Stored first: after a crash in between, the next start goes the rest of the way.
        self.state.store(&next)?;
        if let Err(problem) = running.resize(nsid, size) {
            self.state.store(&former)?;
            return Err(problem);
        }
        *saved = next;
        if let Some(namespace) = entry.spec.namespace_mut(nsid) {
            namespace.size = Some(size);
        }
        lock(&self.entries).insert(name.to_owned(), entry.clone());
        tracing::info!("namespace {nsid} of drive {name} now has {size}");
        Ok(self.view(&entry))
    }

    /// One drive.
    pub fn show(&self, name: &str) -> Result<DriveView, Problem> {
        Ok(self.view(&self.entry(name)?))
    }

    /// All drives, by name.
    pub fn list(&self) -> Vec<DriveView> {
        let entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        entries.iter().map(|entry| self.view(entry)).collect()
    }

    pub fn reactors(&self) -> Vec<ReactorCounters> {
        self.engine.reactors()
    }

    fn entry(&self, name: &str) -> Result<Entry, Problem> {
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
            clients: status.clients,
            tcp: entry.spec.tcp.clone(),
            hosts: status.hosts.clone(),
            authenticated: status.authenticated.clone(),
            ciphers: status.ciphers.clone(),
            reactor: entry.reactor(),
            queues_away: entry.queues_away(),
            called_home: status
                .called_home
                .iter()
                .map(|(cause, times)| CallView { cause: (*cause).to_owned(), times: *times })
                .collect(),
            doorbells: entry.spec.doorbells,
            in_flight: status.in_flight,
            counters: status.counters,
            classifier: entry.spec.classifier.clone(),
            namespaces: namespace_views(&entry.spec, &status),
            devices: entry.running.as_ref().map_or_else(|_| Vec::new(), |running| running.devices()),
        }
    }
}

fn namespace_views(spec: &DriveSpec, status: &Status) -> Vec<NamespaceView> {
    let view = |(index, (nsid, namespace)): (usize, (u32, &crate::spec::NamespaceSpec))| NamespaceView {
        nsid,
        by_host: false,
        target: namespace.target,
        path: namespace.path.as_ref().map(|path| path.display().to_string()),
        size: status.sizes.get(index).copied().or(namespace.size),
        block_size: status.block_sizes.get(index).copied().unwrap_or(namespace.block_size),
        on_full: namespace.on_full,
        read_only: namespace.read_only,
        nvme: namespace.nvme.clone(),
        nvme_tcp: namespace.nvme_tcp.clone(),
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

fn check_resize(entry: &Entry, nsid: u32, size: Size) -> Result<(), Problem> {
    let Some(namespace) = entry.spec.namespace(nsid) else {
        let (name, last) = (&entry.spec.name, entry.spec.namespaces.len());
        let problem = Problem::not_found(format!("drive `{name}` has no namespace {nsid}"));
        return Err(problem.hint(match last {
            1 => "its only namespace is 1".to_owned(),
            last => format!("its namespaces are 1 to {last}"),
        }));
    };
    if namespace.functions.iter().any(FunctionSpec::is_composed) {
        return Err(Problem::invalid("the drive has the size of the layers that it is made of")
            .hint("its size is where they are declared"));
    }
    if namespace.target == TargetKind::Nvme {
        return Err(Problem::invalid("an nvme target has the size of its range of the device")
            .hint("change first_block and blocks where the drive is declared"));
    }
    if namespace.target == TargetKind::NvmeTcp {
        return Err(Problem::invalid("an nvme-tcp target has the size of its namespace there")
            .hint("resize it there, and open the drive again"));
    }
    Ok(namespace.check_size(size)?)
}

/// Notes a new size: in the spec of a created drive, beside that of a declared one.
fn remember_size(saved: &mut Saved, entry: &Entry, nsid: u32, size: Size) {
    let name = &entry.spec.name;
    if entry.origin == Origin::Created {
        let drive = saved.drives.iter_mut().find(|drive| drive.name == *name);
        if let Some(namespace) = drive.and_then(|drive| drive.namespace_mut(nsid)) {
            namespace.size = Some(size);
        }
        return;
    }
    match saved.resized.iter_mut().find(|resized| resized.drive == *name && resized.nsid == nsid) {
        Some(resized) => resized.size = size,
        None => {
            let declared = entry.spec.namespace(nsid).and_then(|namespace| namespace.size);
            saved.resized.push(Resized { drive: name.clone(), nsid, declared, size });
        }
    }
}

fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Problem {
    let problem = Problem::not_found(format!("there is no drive `{name}`"));
    match nearest(name, known.clone()) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None if known.count() == 0 => {
            problem.hint("there are no drives at all; see `sluice drive create --help`")
        }
        None => problem.hint("`sluice drive list` shows what there is"),
    }
}

fn in_use(name: &str) -> Problem {
    Problem::conflict(format!("drive `{name}` has a client, which would not survive it"))
        .hint("shut the virtual machine down first, or insist (--force)")
}

/// A lock that a panic cannot poison: a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
mod tests;
