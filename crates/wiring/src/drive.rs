//! A running drive: a task on a reactor, and the handles of the control side.

use super::OneReactor;
use super::classifier::{Attached, BackgroundChannels, Programs, SharedMaps, put};
use super::dhchap;
use super::function::FunctionControl;
use super::hand_over::IncomingDrive;
use super::held_records::HeldRecords;
use super::latency::DriveLatency;
use super::namespace::{PreparedNamespace, StackControl, StackControls};
use super::pool;
use super::power::{Losses, left_losses, power_id};
use super::prepared::{self, PreparedDrive, Unfinished};
use super::remote::tls_keys;
use super::shared::Pools;
use sluice_control::drives::{Remembered, Running};
use sluice_controller::LatencyClock;
use sluice_frontend::Drive;
use sluice_frontend_tcp::{self as tcp, Directory};
use sluice_frontend_vfio_user::Access;
use sluice_holder::Holder;
use sluice_reactor::{ReactorGone, ReactorHandle, TaskHandle};
use sluice_router::Classifier;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::{ClassifierSpec, DriveSpec, TargetKind};
use sluice_tls::Keys;
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Maximum time that a drive takes no commands. Guests give up after half a minute.
const HOLD_LIMIT: Duration = Duration::from_secs(25);

/// Time limit for commands in flight to end.
const QUIET_LIMIT: Duration = Duration::from_secs(8);

/// Interval between two checks whether commands are in flight.
const QUIET_LOOK: Duration = Duration::from_millis(1);

/// A drive with its task.
pub(super) struct WiredDrive {
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) task: TaskHandle,
    pub(super) reactors: Arc<[OneReactor]>,
    /// Controls of each namespace, in the order of the namespaces. The lock is held briefly, except by a
    /// resize.
    namespaces: RwLock<Vec<StackControls>>,
    /// Attached classifier. The lock is held briefly, and never by a reactor.
    attached: Mutex<Option<Attached>>,
    pub(super) shared_maps: SharedMaps,
    pub(super) pools: Pools,
    /// Whether namespaces that hosts create are in the daemon's memory.
    pub(super) creates_in_memory: bool,
    pub(super) channels: BackgroundChannels,
    pub(super) latency: DriveLatency,
    /// Times that a first client came or the last one went, which the reactor writes.
    pub(super) transitions: Arc<AtomicU64>,
    /// Holder of the drive's records, if its hosts can be continued.
    pub(super) holder: Option<Holder>,
    /// Entry in the directory for hosts on the network, if they may connect.
    listed: Option<Listed>,
}

/// A drive's name in the directory of drives.
struct Listed {
    directory: Arc<Directory>,
    subnqn: String,
}

/// Guard that holds back all commands of a drive until it is dropped.
pub(super) struct Quiet<'a>(&'a WiredDrive);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // An error means that the drive is gone, and then no command waits for it.
        let _ = self.0.execute(|drive, _| drive.subsystem_mut().resume());
    }
}

/// Environment in which a drive is opened.
pub(super) struct OpenContext<'a> {
    /// Folder of the drive's socket.
    pub(super) folder: &'a Path,
    pub(super) access: Access,
    /// Number that no other opened drive has had.
    pub(super) generation: u64,
    pub(super) reactor: ReactorHandle,
    /// All reactors.
    pub(super) reactors: Arc<[OneReactor]>,
    pub(super) channels: BackgroundChannels,
    pub(super) shared_maps: SharedMaps,
    pub(super) pools: Pools,
    /// Clock of the measurement of commands; none if it is off.
    pub(super) latency: Option<LatencyClock>,
    /// Time from which on a command is slow.
    pub(super) slow_ns: u64,
    /// Whether the commands of each layer are counted.
    pub(super) count_layers: bool,
    pub(super) directory: Arc<Directory>,
    /// Record of the drive, if another process hands it over, or has left it.
    pub(super) incoming: Option<IncomingDrive>,
    /// Holder of the drive's records, if its hosts can be continued.
    pub(super) holder: Option<Holder>,
    /// Number of the reactor.
    pub(super) number: usize,
}

impl WiredDrive {
    /// Opens the targets, loads the classifier, listens, and starts the drive on its reactor.
    pub(super) fn open(
        spec: &DriveSpec,
        remembered: &Remembered,
        at: OpenContext<'_>,
    ) -> Result<Self, ApiError> {
        // In a drive that is handed over, nothing is lost.
        let is_flushed = at.incoming.as_ref().is_some_and(|it| !it.is_left);
        let unflushed = remembered.unflushed.as_ref().filter(|_| !is_flushed);
        let was_cut = remembered.was_cut && at.incoming.is_none();
        let losses = Losses::of(spec, unflushed);
        let prepared =
            spec.numbered().map(|(nsid, _)| PreparedNamespace::open_after(spec, nsid, losses, &at.pools));
        let opened: Vec<_> = prepared.collect::<Result<_, _>>()?;
        let (mut namespaces, mut controls): (Vec<_>, Vec<StackControls>) = opened.into_iter().unzip();
        for (nsid, controls) in (1..).zip(&mut controls) {
            controls[0].paused = remembered.paused_targets.iter().any(|(of, _)| *of == nsid);
        }
        let shared_maps = at.shared_maps;
        let load = |it| Programs::load(it, namespaces.len(), &[], &shared_maps).map(|them| (it, them));
        let programs = spec.classifier.as_ref().map(load).transpose()?;
        let attached =
            programs.map(|(it, programs)| classify(it, programs, &mut namespaces, &remembered.detached));
        namespaces.extend(pool::open(spec, &remembered.pooled)?);
        namespaces.iter_mut().for_each(|namespace| namespace.remember(remembered));
        let known = known_hosts(spec)?;
        let keys = tls_keys(spec.tcp.as_ref().and_then(|tcp| tcp.tls_keys.as_deref()))?;
        // The sockets are opened last: a client can use a socket as soon as it exists.
        let may_have_grown = at.incoming.as_ref().is_some_and(|it| it.is_left);
        let (sockets, subsystem, incoming_hosts) = match at.incoming {
            Some(it) => {
                attached.iter().for_each(|attached| attached.fill_maps(&spec.name, &it.maps));
                (prepared::incoming(spec, it.sockets)?, Some(it.subsystem), it.hosts)
            }
            None => (prepared::sockets(spec, at.folder, at.access)?, None, None),
        };
        let incoming_hosts = incoming_hosts.map(|hosts| {
            let (known, directory) = (known.clone(), Arc::downgrade(&at.directory));
            (hosts, tcp::Keys::new(spec.subnqn(), known, directory))
        });
        let hosts = prepared::hosts(spec).map(|config| (config, incoming_hosts));
        let (identity, channels) = (prepared::identity(spec), at.channels);
        let unfinished = Unfinished {
            formatting: remembered.formatting,
            paused: remembered.paused.clone(),
            uncorrectable: remembered.uncorrectable.clone(),
            sanitized: remembered.sanitized,
            history: remembered.history.clone(),
            power: (remembered.power_counts, was_cut),
            losses: left_losses(spec, unflushed),
        };
        let (name, ana) = (spec.name.clone(), remembered.ana.clone());
        let one_guest = spec.vfio_user.is_some_and(|it| it.one_guest);
        let pool = pool::pool(spec);
        let (generation, latency) =
            (at.generation, DriveLatency::new(at.latency, at.slow_ns, at.count_layers));
        let transitions = Arc::<AtomicU64>::default();
        let prepared = PreparedDrive {
            name,
            generation,
            identity,
            power_id: power_id(spec, remembered.power.as_deref()),
            namespaces,
            pool,
            unfinished,
            ana,
            one_guest,
            host_timeout: spec.host_timeout(),
            sockets,
            subsystem,
            may_have_grown,
            sink: at.holder.as_ref().and_then(|holder| HeldRecords::connect(holder, &spec.name, at.number)),
            hosts,
            channels: channels.clone(),
            latency: latency.writer(),
            transitions: Arc::clone(&transitions),
        };
        let task = at.reactor.call(move |local| prepared.install(local)).map_err(gone)??;
        let (name, attached) = (spec.name.clone(), Mutex::new(attached));
        let (task, namespaces) = (TaskHandle::new(at.reactor, task), RwLock::new(controls));
        let reactors = at.reactors;
        let mut drive = Self {
            name,
            generation,
            task,
            reactors,
            namespaces,
            attached,
            shared_maps,
            pools: at.pools,
            creates_in_memory: spec.pool.as_ref().is_some_and(|pool| pool.target == TargetKind::Memory),
            channels,
            latency,
            transitions,
            holder: at.holder,
            listed: None,
        };
        drive.renew_caches();
        if spec.tcp.is_some() {
            drive.list(at.directory, spec.subnqn(), known, keys)?;
        }
        Ok(drive)
    }

    /// Adds the drive to the directory in which hosts on the network find it.
    fn list(
        &mut self,
        directory: Arc<Directory>,
        subnqn: String,
        hosts: Vec<tcp::KnownHost>,
        keys: Option<Arc<Keys>>,
    ) -> Result<(), ApiError> {
        let entry = tcp::Entry { drive: self.task.clone(), hosts, keys };
        if !directory.add(&subnqn, entry) {
            self.close()?;
            return Err(ApiError::conflict(format!("another drive is the subsystem {subnqn} already")).hint(
                "give each drive its own tcp.nqn, or none: it is derived from the serial number then",
            ));
        }
        self.listed = Some(Listed { directory, subnqn });
        Ok(())
    }

    pub(super) fn unlist(&self) {
        if let Some(listed) = &self.listed {
            listed.directory.remove(&listed.subnqn);
        }
    }

    pub(super) fn attached(&self) -> MutexGuard<'_, Option<Attached>> {
        // A panic ends the process, so the lock is never poisoned.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches programs to the namespaces, and stores `next`, the control side's view of them.
    pub(super) fn exchange(
        &self,
        programs: Vec<Box<dyn Classifier>>,
        next: Option<Attached>,
    ) -> Result<(), ApiError> {
        let errors_max = next.as_ref().and_then(|next| next.spec.errors_max);
        let before = self.execute(move |drive, _| put(drive.subsystem_mut(), programs, errors_max))?;
        *self.attached() = next.map(|next| next.since(before));
        self.renew_caches();
        Ok(())
    }

    /// Connects functions with the translation caches of the present classifier.
    fn renew_caches(&self) {
        self.uifs().iter().for_each(|(nsid, function)| self.renew_cache(*nsid, function));
    }

    /// Connects a function with the translation cache that the present classifier has for its namespace.
    pub(super) fn renew_cache(&self, nsid: u32, function: &FunctionControl) {
        let maps = self.attached().as_ref().map_or_else(Vec::new, |attached| attached.maps_of(nsid).to_vec());
        function.cache.renew(&self.name, &maps, &function.uif);
    }

    /// Stops taking commands, and waits until none is in flight.
    pub(super) fn quiesce(&self) -> Result<Quiet<'_>, ApiError> {
        self.execute(|drive, now_ns| drive.subsystem_mut().hold(now_ns + HOLD_LIMIT.as_nanos() as u64))?;
        let quiet = Quiet(self);
        let began = Instant::now();
        while self.query(Drive::unfinished)? > 0 {
            if began.elapsed() > QUIET_LIMIT {
                return Err(ApiError::conflict("commands in flight did not come to their end")
                    .hint("something below may be slow, or gone: try again"));
            }
            std::thread::sleep(QUIET_LOOK);
        }
        Ok(quiet)
    }

    pub(super) fn stacks(&self) -> RwLockReadGuard<'_, Vec<StackControls>> {
        self.namespaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stacks_mut(&self) -> RwLockWriteGuard<'_, Vec<StackControls>> {
        self.namespaces.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the functions behind the function SDK, each with its NSID.
    pub(super) fn uifs(&self) -> Vec<(u32, Arc<FunctionControl>)> {
        let stacks = self.stacks();
        let of = |(nsid, stacks): (u32, &StackControls)| {
            let functions = stacks.iter().flat_map(StackControl::uifs).cloned();
            functions.map(|function| (nsid, function)).collect::<Vec<_>>()
        };
        (1..).zip(&*stacks).flat_map(of).collect()
    }

    /// Returns the function with this number in the list of functions.
    pub(super) fn uif(&self, number: usize) -> Option<Arc<FunctionControl>> {
        let (_, function) = self.uifs().into_iter().nth(number.checked_sub(1)?)?;
        Some(function)
    }

    /// Runs `query` on the thread of the drive's reactor, and returns its result.
    pub(super) fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Drive) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let task = self.task.id();
        let answer = self.task.call(move |local| local.task::<Drive>(task).map(query));
        answer.map_err(gone)?.ok_or_else(closed)
    }

    /// Runs `order`, which may change the drive, on the thread of its reactor. Recalls all of its queue
    /// groups first.
    pub(super) fn execute<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Drive, u64) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let mut order = order;
        loop {
            let done = self.change(move |drive, now_ns| match drive.is_whole() {
                true => Ok(order(drive, now_ns)),
                false => Err(order),
            });
            match done? {
                Ok(answer) => return Ok(answer),
                Err(again) => order = again,
            }
            self.recall_queues(None)?;
        }
    }

    /// Runs `order` on the thread of the drive's reactor, for a change that does not depend on the place of
    /// queue groups.
    pub(super) fn change<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Drive, u64) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let task = self.task.id();
        let answer = self.task.call(move |local| {
            let now_ns = local.now_ns();
            local.task_mut::<Drive>(task).map(|drive| order(drive, now_ns))
        });
        answer.map_err(gone)?.ok_or_else(closed)
    }
}

/// Attaches programs to namespaces that are not built yet, except to those in `detached`.
fn classify(
    spec: &ClassifierSpec,
    programs: Programs,
    namespaces: &mut [PreparedNamespace],
    detached: &[u32],
) -> Attached {
    let (programs, attached) = programs.part(spec);
    for ((nsid, namespace), program) in (1..).zip(namespaces).zip(programs) {
        if !detached.contains(&nsid) {
            namespace.classify(program, spec.errors_max);
        }
    }
    attached
}

/// Returns the hosts on the network that may connect, with their keys.
pub(super) fn known_hosts(spec: &DriveSpec) -> Result<Vec<tcp::KnownHost>, ApiError> {
    let hosts = spec.tcp.iter().flat_map(|tcp| &tcp.hosts);
    let known = hosts.map(|host| {
        let terms = host.dhchap().map(dhchap::terms).transpose()?;
        Ok(tcp::KnownHost { nqn: host.nqn().to_owned(), terms })
    });
    known.collect()
}

/// Returns the problem for a reactor that did not answer.
pub(super) fn gone(error: ReactorGone) -> ApiError {
    ApiError::new(Kind::Unavailable, error.to_string()).hint("the daemon's log may say why; restart it")
}

pub(super) fn closed() -> ApiError {
    ApiError::new(Kind::Unavailable, "the drive is closed")
}

/// Converts an error whose message is sufficient.
pub(super) fn in_words(error: &impl Display) -> ApiError {
    ApiError::invalid(error.to_string())
}
