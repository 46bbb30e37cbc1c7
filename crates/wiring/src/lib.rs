//! Where the crates meet: specs become reactors, targets, functions, controllers and sockets.
//!
//! What may block (files, sockets, memory) is opened on the thread that asks; what belongs to a reactor
//! is built on its own thread, out of what was opened.
#![forbid(unsafe_code)]

mod cache;
mod check;
mod classifier;
mod dhchap;
mod drive;
mod edit_stack;
mod function;
mod namespace;
mod outpost;
mod pool;
mod power;
mod remote;
mod running;
mod seed;
mod target;
mod twin;

pub use check::Examination;
use classifier::{Heirs, Retired, SharedMaps, start_retiring};
use drive::{Surroundings, WiredDrive};
pub use function::start_functions_by;
pub use namespace::{NamespaceSeed, StackControl, StackControls};
pub use remote::tls_keys;
use sluice_control::config::Settings;
use sluice_control::drives::{
    Engine, ReactorCounters, Remembered, Running, ToKeep, WatchedTurn, WatchedTurns,
};
use sluice_frontends::tcp::Directory;
use sluice_frontends::vfio_user::Access;
use sluice_reactor::{IdlePolicy, Progress, ReactorConfig, ReactorHandle, Turn, Watched};
use sluice_spec::DriveSpec;
use sluice_spec::paths::Places;
use sluice_spec::problem::Problem;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// The reactors, and what drives on them need to know.
#[derive(Debug)]
pub struct Wiring {
    reactors: Arc<[OneReactor]>,
    places: Places,
    access: Access,
    /// Where classifiers go that nobody runs any more.
    retired: Retired,
    /// Drives whose classifiers were detached for their errors, by name.
    detached: Sender<String>,
    detachments: Mutex<Option<Receiver<String>>>,
    /// What controllers want remembered.
    to_keep: Sender<ToKeep>,
    /// Drives that were opened.
    lives: AtomicU64,
    orders: Mutex<Option<Receiver<ToKeep>>>,
    shared_maps: SharedMaps,
    /// The drives that hosts on the network find.
    directory: Arc<Directory>,
}

#[derive(Clone, Debug)]
struct OneReactor {
    core: Option<usize>,
    /// Whether its turns are.
    watched: bool,
    handle: ReactorHandle,
}

impl Wiring {
    /// Starts the reactors.
    pub fn start(settings: &Settings, places: Places) -> Result<Self, Problem> {
        function::hide(&places);
        let cores: Vec<Option<usize>> = match settings.cores.as_slice() {
            [] => vec![None],
            cores => cores.iter().copied().map(Some).collect(),
        };
        let start = |(index, core)| start_reactor(index, core, settings);
        let reactors = cores.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        let (detached, detachments) = mpsc::channel();
        let (to_keep, orders) = mpsc::channel();
        Ok(Self {
            reactors,
            places,
            access: settings.access(),
            retired: start_retiring()?,
            detached,
            detachments: Mutex::new(Some(detachments)),
            to_keep,
            lives: AtomicU64::new(0),
            orders: Mutex::new(Some(orders)),
            shared_maps: SharedMaps::default(),
            directory: Arc::default(),
        })
    }

    /// The drives that hosts on the network find, for whoever lets them in.
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    /// A reactor, for whoever brings a task of their own.
    pub fn reactor(&self, index: usize) -> Option<&ReactorHandle> {
        self.reactors.get(index).map(|reactor| &reactor.handle)
    }
}

fn start_reactor(index: usize, core: Option<usize>, settings: &Settings) -> Result<OneReactor, Problem> {
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
        let problem = Problem::internal(format!("reactor {index} cannot start: {error}"));
        match core {
            Some(_) => problem.hint("daemon.cores names the processors to use"),
            None => problem,
        }
    })?;
    Ok(OneReactor { core, watched: settings.watch_turns, handle })
}

impl Wiring {
    fn wire(&self, spec: &DriveSpec, reactor: usize, remembered: &Remembered) -> Result<WiredDrive, Problem> {
        let socket = self.places.drive_socket(&spec.name);
        let folder = socket.parent().unwrap_or(&self.places.sockets);
        let surroundings = Surroundings {
            folder,
            access: self.access,
            life: self.lives.fetch_add(1, Relaxed),
            reactor: reactor_of(&self.reactors, reactor)?,
            reactors: Arc::clone(&self.reactors),
            heirs: Heirs {
                retired: self.retired.clone(),
                detached: self.detached.clone(),
                to_keep: self.to_keep.clone(),
            },
            shared_maps: self.shared_maps.clone(),
            directory: self.directory(),
        };
        WiredDrive::open(spec, remembered, surroundings)
    }
}

impl Engine for Wiring {
    fn open(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: &Remembered,
    ) -> Result<Arc<dyn Running>, Problem> {
        Ok(Arc::new(self.wire(spec, reactor, remembered)?))
    }

    fn detachments(&self) -> Option<Receiver<String>> {
        // A panic ends the process, so nobody poisons it.
        self.detachments.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn to_keep(&self) -> Option<Receiver<ToKeep>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn await_shutdowns(&self, limit: std::time::Duration) -> usize {
        sluice_targets::await_shutdowns(limit)
    }

    fn reactors(&self) -> Vec<ReactorCounters> {
        self.reactors.iter().enumerate().map(|(index, reactor)| counters(index, reactor)).collect()
    }

    fn progress(&self) -> Vec<Progress> {
        self.reactors.iter().map(|reactor| reactor.handle.progress()).collect()
    }
}

/// A reactor by its number, counted from zero.
fn reactor_of(reactors: &[OneReactor], index: usize) -> Result<ReactorHandle, Problem> {
    let found = reactors.get(index).map(|reactor| reactor.handle.clone());
    found.ok_or_else(|| Problem::invalid(format!("there is no reactor {index}")))
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
