//! One drive at work: a task on a reactor, and the handles the control side keeps.

use super::classifier::{Attached, Heirs, Programs, SharedMaps, put, routed};
use super::function::FunctionControl;
use super::namespace::{NamespaceSeed, StackControl, StackControls};
use crate::drives::{
    ClassifierStatus, DeviceView, DriveCounters, FunctionView, ReadyClassifier, Remembered, Running, Status,
    Store, ToKeep, metrics,
};
use crate::paths::socket_folder;
use crate::problem::{Kind, Problem};
use crate::size::Size;
use crate::spec::{ClassifierSpec, Doorbells, DriveSpec, UifSpec};
use sluice_classifier::Map;
use sluice_controller::{Config as ControllerConfig, Identity, Keep, SanitizeRecord, Subsystem};
use sluice_frontends::Drive;
use sluice_frontends::tcp::{self, Directory};
use sluice_frontends::vfio_user::{Config as SocketConfig, DoorbellPolicy, Listener};
use sluice_reactor::{Arm, Io, Local, ReactorGone, ReactorHandle, Task, TaskId};
use sluice_router::Classifier;
use std::fmt::Display;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// What guests see as the model, in Identify Controller's MN.
const MODEL: &str = "Sluice Virtual NVMe Drive";

/// How long a drive takes no commands, whatever happens: guests give up after half a minute.
const HOLD_LIMIT: Duration = Duration::from_secs(25);

/// How long commands in flight have to end.
const QUIET_LIMIT: Duration = Duration::from_secs(8);

/// Between two looks whether they have.
const QUIET_LOOK: Duration = Duration::from_millis(1);

/// How long a function has for an order.
const ORDER_LIMIT: Duration = Duration::from_secs(60);

/// The same while the drive is quiet; three times as long for one in the daemon, which nobody can end.
const QUIET_ORDER_LIMIT: Duration = Duration::from_secs(8);

/// How long it has to say what it counts.
const METRICS_LIMIT: Duration = Duration::from_millis(500);

/// A drive with its task.
pub(super) struct WiredDrive {
    pub(super) name: String,
    pub(super) reactor: ReactorHandle,
    pub(super) task: TaskId,
    /// One for each namespace, in their order. Locked for a moment, but for a resize.
    namespaces: RwLock<Vec<StackControls>>,
    /// Locked for a moment only, and never by a reactor.
    attached: Mutex<Option<Attached>>,
    shared_maps: SharedMaps,
    /// Where hosts on the network find it, if they may.
    listed: Option<Listed>,
}

/// A drive's name in the directory of drives.
struct Listed {
    directory: Arc<Directory>,
    subnqn: String,
}

/// A drive that takes no commands, for as long as this lives.
pub(super) struct Quiet<'a>(&'a WiredDrive);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A drive that does not answer is gone, and nobody waits for it.
        let _ = self.0.tell(|drive, _| drive.subsystem_mut().go_on());
    }
}

/// Where a drive is put.
pub(super) struct Surroundings<'a> {
    /// Of its socket.
    pub(super) folder: &'a Path,
    pub(super) socket_mode: u32,
    pub(super) reactor: ReactorHandle,
    pub(super) heirs: Heirs,
    pub(super) shared_maps: SharedMaps,
    pub(super) directory: Arc<Directory>,
}

/// Everything of a drive that had to be opened, on its way to its reactor.
struct Seed {
    name: String,
    identity: Identity,
    namespaces: Vec<NamespaceSeed>,
    halfway: Halfway,
    sockets: Vec<(Listener, SocketConfig)>,
    hosts: Option<tcp::Config>,
    heirs: Heirs,
}

/// What the daemon before this one may have left halfway.
struct Halfway {
    formatting: Option<(u32, u32)>,
    sanitized: Option<SanitizeRecord>,
}

impl WiredDrive {
    /// Opens the targets, loads the classifier, listens, and starts the drive on its reactor.
    pub(super) fn open(
        spec: &DriveSpec,
        remembered: &Remembered,
        at: Surroundings<'_>,
    ) -> Result<Self, Problem> {
        let seeds = spec.numbered().map(|(nsid, _)| NamespaceSeed::open(spec, nsid));
        let opened: Vec<_> = seeds.collect::<Result<_, _>>()?;
        let (mut namespaces, controls): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        for (nsid, block_size) in &remembered.block_sizes {
            namespaces[*nsid as usize - 1].format(*block_size);
        }
        let shared_maps = at.shared_maps;
        let load = |it| Programs::load(it, namespaces.len(), &[], &shared_maps).map(|them| (it, them));
        let programs = spec.classifier.as_ref().map(load).transpose()?;
        let attached =
            programs.map(|(it, programs)| classify(it, programs, &mut namespaces, &remembered.detached));
        // The sockets come last: whoever sees one can use it.
        let (sockets, hosts) = (sockets(spec, at.folder, at.socket_mode)?, hosts(spec));
        let (identity, heirs) = (identity(spec), at.heirs);
        let halfway = Halfway { formatting: remembered.formatting, sanitized: remembered.sanitized };
        let seed = Seed { name: spec.name.clone(), identity, namespaces, halfway, sockets, hosts, heirs };
        let task = at.reactor.call(move |local| seed.plant(local)).map_err(gone)??;
        let (name, attached) = (spec.name.clone(), Mutex::new(attached));
        let namespaces = RwLock::new(controls);
        let mut drive =
            Self { name, reactor: at.reactor, task, namespaces, attached, shared_maps, listed: None };
        drive.renew_caches();
        if let Some(tcp) = &spec.tcp {
            drive.list(at.directory, spec.subnqn(), &tcp.hosts)?;
        }
        Ok(drive)
    }

    /// Lets hosts on the network find it.
    fn list(&mut self, directory: Arc<Directory>, subnqn: String, hosts: &[String]) -> Result<(), Problem> {
        let entry = tcp::Entry { reactor: self.reactor.clone(), task: self.task, hosts: hosts.to_vec() };
        if !directory.add(&subnqn, entry) {
            self.close()?;
            return Err(Problem::conflict(format!("another drive is the subsystem {subnqn} already")).hint(
                "give each drive its own tcp.nqn, or none: it is derived from the serial number then",
            ));
        }
        self.listed = Some(Listed { directory, subnqn });
        Ok(())
    }

    fn unlist(&self) {
        if let Some(listed) = &self.listed {
            listed.directory.remove(&listed.subnqn);
        }
    }

    pub(super) fn attached(&self) -> MutexGuard<'_, Option<Attached>> {
        // A panic ends the process, so nobody poisons it.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts programs before the namespaces, and keeps what is seen of them.
    fn exchange(&self, programs: Vec<Box<dyn Classifier>>, next: Option<Attached>) -> Result<(), Problem> {
        let errors_max = next.as_ref().and_then(|next| next.spec.errors_max);
        let before = self.tell(move |drive, _| put(drive.subsystem_mut(), programs, errors_max))?;
        *self.attached() = next.map(|next| next.since(before));
        self.renew_caches();
        Ok(())
    }

    /// Functions fill the caches of the classifier that there is now.
    fn renew_caches(&self) {
        self.uifs().iter().for_each(|(_, function)| self.renew_cache(function));
    }

    /// A function fills the cache of the classifier that there is now.
    pub(super) fn renew_cache(&self, function: &FunctionControl) {
        function.cache.renew(&self.name, &self.maps().unwrap_or_default(), &function.uif);
    }

    /// Takes no command any more, and waits until none is in flight.
    pub(super) fn quiesce(&self) -> Result<Quiet<'_>, Problem> {
        self.tell(|drive, now_ns| drive.subsystem_mut().hold(now_ns + HOLD_LIMIT.as_nanos() as u64))?;
        let quiet = Quiet(self);
        let began = Instant::now();
        while self.ask(Drive::unfinished)? > 0 {
            if began.elapsed() > QUIET_LIMIT {
                return Err(Problem::conflict("commands in flight did not come to their end")
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

    /// The functions behind the function SDK, each with its NSID.
    fn uifs(&self) -> Vec<(u32, Arc<FunctionControl>)> {
        let stacks = self.stacks();
        let of = |(nsid, stacks): (u32, &StackControls)| {
            let functions = stacks.iter().flat_map(StackControl::uifs).cloned();
            functions.map(|function| (nsid, function)).collect::<Vec<_>>()
        };
        (1..).zip(&*stacks).flat_map(of).collect()
    }

    /// The function that is listed under this number.
    fn uif(&self, number: usize) -> Option<Arc<FunctionControl>> {
        let (_, function) = self.uifs().into_iter().nth(number.checked_sub(1)?)?;
        Some(function)
    }

    /// Asks the drive something, on its own thread.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Drive) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let task = self.task;
        let answer = self.reactor.call(move |local| local.task::<Drive>(task).map(question));
        answer.map_err(gone)?.ok_or_else(closed)
    }

    /// The same, to change it.
    pub(super) fn tell<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Drive, u64) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let task = self.task;
        let answer = self.reactor.call(move |local| {
            let now_ns = local.now_ns();
            local.task_mut::<Drive>(task).map(|drive| order(drive, now_ns))
        });
        answer.map_err(gone)?.ok_or_else(closed)
    }
}

impl Running for WiredDrive {
    fn status(&self) -> Result<Status, Problem> {
        self.ask(status)
    }

    fn target_size(&self, nsid: u32) -> Result<Size, Problem> {
        let namespaces = self.stacks();
        let stacks = namespaces.get(nsid as usize - 1).ok_or_else(closed)?;
        let mut size = self.ask(move |drive| target_size(drive.subsystem(), nsid))?;
        // Further paths have files of their own, which are resized as well.
        for stack in stacks {
            size = size.max(stack.target.file_size()?.unwrap_or_default());
        }
        Ok(size)
    }

    fn resize(&self, nsid: u32, size: Size) -> Result<(), Problem> {
        let namespaces = self.stacks();
        let stacks = namespaces.get(nsid as usize - 1).ok_or_else(closed)?;
        let resize_targets = || stacks.iter().try_for_each(|stack| stack.target.resize(size));
        let resize = || {
            self.tell(move |drive, _| {
                drive.subsystem_mut().resize(nsid, size.0);
                target_size(drive.subsystem(), nsid)
            })
        };
        let now = self.ask(move |drive| target_size(drive.subsystem(), nsid))?;
        // The guest must never see blocks that are not there.
        let seen = if size > now {
            resize_targets()?;
            resize()?
        } else {
            let seen = resize()?;
            resize_targets()?;
            seen
        };
        match seen == size {
            true => Ok(()),
            false => Err(Problem::internal(format!(
                "the target of namespace {nsid} still has {seen}: see the daemon's log"
            ))),
        }
    }

    fn prepare_classifier(
        &self,
        spec: Option<&ClassifierSpec>,
        fresh_maps: bool,
    ) -> Result<ReadyClassifier<'_>, Problem> {
        let Some(spec) = spec else { return Ok(Box::new(|| self.exchange(Vec::new(), None))) };
        let carry = if fresh_maps { None } else { self.maps() };
        let carry = carry.unwrap_or_default();
        let programs = Programs::load(spec, self.stacks().len(), &carry, &self.shared_maps)?;
        let (programs, next) = programs.part(spec);
        Ok(Box::new(move || self.exchange(programs, Some(next))))
    }

    fn classifier(&self) -> Result<Option<ClassifierStatus>, Problem> {
        let routed = self.ask(|drive| routed(drive.subsystem()))?;
        Ok(self.attached().as_mut().map(|attached| attached.status(&routed)))
    }

    fn maps(&self) -> Option<Vec<Arc<Map>>> {
        self.attached().as_ref().map(|attached| attached.maps().to_vec())
    }

    fn devices(&self) -> Vec<DeviceView> {
        let namespaces = self.stacks();
        let stacks = (1..).zip(&*namespaces);
        stacks.flat_map(|(nsid, stacks)| stacks.iter().flat_map(move |it| it.devices(nsid))).collect()
    }

    fn functions(&self) -> Vec<FunctionView> {
        let view = |(number, (nsid, function)): (usize, (u32, Arc<FunctionControl>))| {
            let mut view = FunctionView::new(number, nsid, function.about.clone(), function.uif.status());
            if view.ready
                && let Ok(lines) = function.uif.tell("metrics", false, METRICS_LIMIT)
            {
                view.metrics = metrics(&lines);
            }
            view
        };
        (1..).zip(self.uifs()).map(view).collect()
    }

    fn has_function(&self, number: usize) -> bool {
        self.uif(number).is_some()
    }

    fn tell_function(&self, number: usize, text: &str, quiesce: bool) -> Result<String, Problem> {
        let function = self.uif(number).ok_or_else(closed)?;
        let quiet = if quiesce { Some(self.quiesce()?) } else { None };
        let limit = if quiesce { QUIET_ORDER_LIMIT } else { ORDER_LIMIT };
        let answer = function.uif.tell(text, quiesce, limit);
        drop(quiet);
        answer.map_err(|words| Problem::conflict(format!("the function says: {words}")))
    }

    fn restart_function(&self, number: usize) -> bool {
        self.uif(number).is_some_and(|function| function.uif.restart())
    }

    fn move_function(&self, number: usize, spec: &UifSpec) -> Result<(), Problem> {
        self.uif(number).ok_or_else(closed)?.move_to(spec)
    }

    fn attach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), Problem> {
        self.attach(spec.namespace(nsid).ok_or_else(closed)?, nsid, at, store)
    }

    fn detach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), Problem> {
        self.detach(spec.namespace(nsid).ok_or_else(closed)?, nsid, at, store)
    }

    fn kept(&self, what: Keep, well: bool) -> Result<(), Problem> {
        self.tell(move |drive, now_ns| drive.subsystem_mut().kept(what, well, now_ns))
    }

    fn drain(&self) -> Result<(), Problem> {
        self.unlist();
        self.tell(|drive, now_ns| drive.drain(now_ns))
    }

    fn close(&self) -> Result<(), Problem> {
        self.unlist();
        let task = self.task;
        self.reactor.call(move |local| drop(local.remove(task))).map_err(gone)
    }
}

impl Seed {
    /// Builds the drive on the thread of its reactor.
    fn plant(self, local: &mut Local) -> Result<TaskId, Problem> {
        let mut failed = None;
        let task = local.add(|task, io| match self.build(task, io) {
            Ok(drive) => Box::new(drive),
            Err(problem) => {
                failed = Some(problem);
                Box::new(Stillborn)
            }
        });
        match failed {
            None => Ok(task),
            Some(problem) => {
                drop(local.remove(task));
                Err(problem)
            }
        }
    }

    fn build(self, task: TaskId, io: Io) -> Result<Drive, Problem> {
        let build = |seed: NamespaceSeed| seed.build(task, &io, self.heirs.clone());
        let namespaces = self.namespaces.into_iter().map(build).collect::<Result<_, _>>()?;
        let no_memory =
            |error: io::Error| Problem::internal(format!("there is no memory for a controller: {error}"));
        let config = ControllerConfig { identity: self.identity, namespaces };
        let mut subsystem = Subsystem::new(config).map_err(no_memory)?;
        if let Some((nsid, block_size)) = self.halfway.formatting {
            subsystem.resume_format(nsid, block_size, 0);
        }
        if let Some(record) = self.halfway.sanitized {
            subsystem.resume_sanitize(record, 0);
        }
        let Heirs { to_keep, .. } = self.heirs;
        // Without a thread that remembers it the host waits, and is told nothing wrong.
        subsystem.on_keep(move |what| drop(to_keep.send(ToKeep { drive: self.name.clone(), what })));
        let mut drive = Drive::new(task, io, subsystem);
        for (listener, config) in self.sockets {
            drive.listen(listener, config).map_err(no_memory)?;
        }
        if let Some(config) = self.hosts {
            drive.admit_hosts(config);
        }
        Ok(drive)
    }
}

/// Opens the sockets of a drive: the first in its folder, others in folders of their numbers inside of that.
fn sockets(
    spec: &DriveSpec,
    folder: &Path,
    socket_mode: u32,
) -> Result<Vec<(Listener, SocketConfig)>, Problem> {
    let open = |number: usize| {
        let folder = socket_folder(folder, number);
        let listener = listen(&spec.name, &folder, socket_mode)?;
        let doorbells = doorbell_policy(spec.doorbells);
        let config = SocketConfig { name: spec.name.clone(), doorbells, ..SocketConfig::default() };
        Ok((listener, config))
    };
    (1..=spec.sockets()).map(open).collect()
}

/// What hosts on the network find, whose controllers come after those of the sockets.
fn hosts(spec: &DriveSpec) -> Option<tcp::Config> {
    let tcp = spec.tcp.as_ref()?;
    let cntlid = spec.sockets() as u16 + 1;
    Some(tcp::Config { name: spec.name.clone(), cntlid, hosts_max: tcp.max_hosts })
}

/// Stands where a drive could not be built, until it is removed in the same breath.
struct Stillborn;

impl Task for Stillborn {
    fn turn(&mut self, _now_ns: u64) -> usize {
        0
    }

    fn event(&mut self, _token: u64, _result: i32, _more: bool, _now_ns: u64) {}

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Asleep { until: None }
    }
}

/// Puts programs before namespaces that are on their way, but for those it is detached from.
fn classify(
    spec: &ClassifierSpec,
    programs: Programs,
    namespaces: &mut [NamespaceSeed],
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

/// Listens in the drive's folder, where whoever may connect has to get.
fn listen(name: &str, folder: &Path, socket_mode: u32) -> Result<Listener, Problem> {
    let listener = Listener::bind(folder, socket_mode).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => Kind::InUse,
            _ => Kind::Internal,
        };
        Problem::new(kind, format!("drive `{name}` cannot listen: {error}"))
    })?;
    if socket_mode & 0o077 != 0 {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755))
            .map_err(|error| Problem::io("open to others", folder, &error))?;
    }
    Ok(listener)
}

fn identity(spec: &DriveSpec) -> Identity {
    Identity {
        subnqn: spec.subnqn(),
        serial: spec.serial(),
        model: MODEL.to_owned(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn doorbell_policy(doorbells: Doorbells) -> DoorbellPolicy {
    match doorbells {
        Doorbells::Auto => DoorbellPolicy::Auto,
        Doorbells::Trapped => DoorbellPolicy::Trapped,
        Doorbells::Mapped => DoorbellPolicy::Mapped,
    }
}

fn status(drive: &Drive) -> Status {
    let subsystem = drive.subsystem();
    let counted = subsystem.statistics();
    let hosts = drive.hosts().map(|status| status.hosts).unwrap_or_default();
    let clients = drive.sockets().filter(|socket| socket.connected).count();
    Status {
        connected: clients > 0 || !hosts.is_empty(),
        clients,
        hosts,
        in_flight: drive.unfinished(),
        drained: drive.is_drained(),
        counters: DriveCounters {
            commands: counted.commands,
            errors: counted.errors,
            classifier_errors: subsystem.namespaces().map(|it| it.router().counters().errors()).sum(),
            bytes_read: counted.bytes_read,
            bytes_written: counted.bytes_written,
        },
        sizes: subsystem
            .namespaces()
            .map(|namespace| Size(namespace.blocks() << namespace.block_shift()))
            .collect(),
        block_sizes: subsystem.namespaces().map(|namespace| namespace.block_size()).collect(),
    }
}

fn target_size(subsystem: &Subsystem, nsid: u32) -> Size {
    let found = subsystem.namespaces().find(|namespace| namespace.nsid() == nsid);
    found.map_or(Size(0), |namespace| Size(namespace.router().stack().target_size()))
}

/// The reactor did not answer.
pub(super) fn gone(error: ReactorGone) -> Problem {
    Problem::new(Kind::Unavailable, error.to_string()).hint("the daemon's log may say why; restart it")
}

pub(super) fn closed() -> Problem {
    Problem::new(Kind::Unavailable, "the drive is closed")
}

/// For errors whose words say enough.
pub(super) fn in_words(error: &impl Display) -> Problem {
    Problem::invalid(error.to_string())
}
