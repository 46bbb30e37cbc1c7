//! One drive at work: a task on a reactor, and the handles the control side keeps.

use super::OneReactor;
use super::classifier::{Attached, Heirs, Programs, SharedMaps, put};
use super::dhchap;
use super::function::FunctionControl;
use super::namespace::{NamespaceSeed, StackControl, StackControls};
use super::pool;
use super::power::{Losses, left_losses, power_id};
use super::remote::tls_keys;
use super::seed::{self, Halfway, Seed};
use sluice_control::drives::{Remembered, Running};
use sluice_frontends::Drive;
use sluice_frontends::tcp::{self, Directory};
use sluice_frontends::vfio_user::Access;
use sluice_reactor::{ReactorGone, ReactorHandle, TaskHandle};
use sluice_router::Classifier;
use sluice_spec::problem::{Kind, Problem};
use sluice_spec::{ClassifierSpec, DriveSpec};
use sluice_tls::Keys;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How long a drive takes no commands, whatever happens: guests give up after half a minute.
const HOLD_LIMIT: Duration = Duration::from_secs(25);

/// How long commands in flight have to end.
const QUIET_LIMIT: Duration = Duration::from_secs(8);

/// Between two looks whether they have.
const QUIET_LOOK: Duration = Duration::from_millis(1);

/// A drive with its task.
pub(super) struct WiredDrive {
    pub(super) name: String,
    pub(super) life: u64,
    pub(super) task: TaskHandle,
    pub(super) reactors: Arc<[OneReactor]>,
    /// One for each namespace, in their order. Locked for a moment, but for a resize.
    namespaces: RwLock<Vec<StackControls>>,
    /// Locked for a moment only, and never by a reactor.
    attached: Mutex<Option<Attached>>,
    pub(super) shared_maps: SharedMaps,
    pub(super) heirs: Heirs,
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
        let _ = self.0.tell(|drive, _| drive.subsystem_mut().resume());
    }
}

/// Where a drive is put.
pub(super) struct Surroundings<'a> {
    /// Of its socket.
    pub(super) folder: &'a Path,
    pub(super) access: Access,
    /// A number that no other has had.
    pub(super) life: u64,
    pub(super) reactor: ReactorHandle,
    /// All there are.
    pub(super) reactors: Arc<[OneReactor]>,
    pub(super) heirs: Heirs,
    pub(super) shared_maps: SharedMaps,
    pub(super) directory: Arc<Directory>,
}

impl WiredDrive {
    /// Opens the targets, loads the classifier, listens, and starts the drive on its reactor.
    pub(super) fn open(
        spec: &DriveSpec,
        remembered: &Remembered,
        at: Surroundings<'_>,
    ) -> Result<Self, Problem> {
        let losses = Losses::of(spec, remembered.unflushed.as_ref());
        let seeds = spec.numbered().map(|(nsid, _)| NamespaceSeed::open_after(spec, nsid, losses));
        let opened: Vec<_> = seeds.collect::<Result<_, _>>()?;
        let (mut namespaces, controls): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let shared_maps = at.shared_maps;
        let load = |it| Programs::load(it, namespaces.len(), &[], &shared_maps).map(|them| (it, them));
        let programs = spec.classifier.as_ref().map(load).transpose()?;
        let attached =
            programs.map(|(it, programs)| classify(it, programs, &mut namespaces, &remembered.detached));
        namespaces.extend(pool::open(spec, &remembered.pooled)?);
        namespaces.iter_mut().for_each(|namespace| namespace.remember(remembered));
        let known = known_hosts(spec)?;
        let keys = tls_keys(spec.tcp.as_ref().and_then(|tcp| tcp.tls_keys.as_deref()))?;
        // The sockets come last: whoever sees one can use it.
        let (sockets, hosts) = (seed::sockets(spec, at.folder, at.access)?, seed::hosts(spec));
        let (identity, heirs) = (seed::identity(spec), at.heirs);
        let halfway = Halfway {
            formatting: remembered.formatting,
            uncorrectable: remembered.uncorrectable.clone(),
            sanitized: remembered.sanitized,
            history: remembered.history.clone(),
            power: (remembered.power_counts, remembered.was_cut),
            losses: left_losses(spec, remembered.unflushed.as_ref()),
        };
        let (name, ana) = (spec.name.clone(), remembered.ana.clone());
        let one_guest = spec.vfio_user.is_some_and(|it| it.one_guest);
        let pool = pool::pool(spec);
        let life = at.life;
        let seed = Seed {
            name,
            life,
            identity,
            power_id: power_id(spec, remembered.power.as_deref()),
            namespaces,
            pool,
            halfway,
            ana,
            one_guest,
            sockets,
            hosts,
            heirs: heirs.clone(),
        };
        let task = at.reactor.call(move |local| seed.plant(local)).map_err(gone)??;
        let (name, attached) = (spec.name.clone(), Mutex::new(attached));
        let (task, namespaces) = (TaskHandle::new(at.reactor, task), RwLock::new(controls));
        let reactors = at.reactors;
        let mut drive =
            Self { name, life, task, reactors, namespaces, attached, shared_maps, heirs, listed: None };
        drive.renew_caches();
        if spec.tcp.is_some() {
            drive.list(at.directory, spec.subnqn(), known, keys)?;
        }
        Ok(drive)
    }

    /// Lets hosts on the network find it.
    fn list(
        &mut self,
        directory: Arc<Directory>,
        subnqn: String,
        hosts: Vec<tcp::KnownHost>,
        keys: Option<Arc<Keys>>,
    ) -> Result<(), Problem> {
        let entry = tcp::Entry { drive: self.task.clone(), hosts, keys };
        if !directory.add(&subnqn, entry) {
            self.close()?;
            return Err(Problem::conflict(format!("another drive is the subsystem {subnqn} already")).hint(
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
        // A panic ends the process, so nobody poisons it.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts programs before the namespaces, and keeps what is seen of them.
    pub(super) fn exchange(
        &self,
        programs: Vec<Box<dyn Classifier>>,
        next: Option<Attached>,
    ) -> Result<(), Problem> {
        let errors_max = next.as_ref().and_then(|next| next.spec.errors_max);
        let before = self.tell(move |drive, _| put(drive.subsystem_mut(), programs, errors_max))?;
        *self.attached() = next.map(|next| next.since(before));
        self.renew_caches();
        Ok(())
    }

    /// Functions fill the caches of the classifier that there is now.
    fn renew_caches(&self) {
        self.uifs().iter().for_each(|(nsid, function)| self.renew_cache(*nsid, function));
    }

    /// A function fills the cache that the classifier has now for its namespace.
    pub(super) fn renew_cache(&self, nsid: u32, function: &FunctionControl) {
        let maps = self.attached().as_ref().map_or_else(Vec::new, |attached| attached.maps_of(nsid).to_vec());
        function.cache.renew(&self.name, &maps, &function.uif);
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
    pub(super) fn uifs(&self) -> Vec<(u32, Arc<FunctionControl>)> {
        let stacks = self.stacks();
        let of = |(nsid, stacks): (u32, &StackControls)| {
            let functions = stacks.iter().flat_map(StackControl::uifs).cloned();
            functions.map(|function| (nsid, function)).collect::<Vec<_>>()
        };
        (1..).zip(&*stacks).flat_map(of).collect()
    }

    /// The function that is listed under this number.
    pub(super) fn uif(&self, number: usize) -> Option<Arc<FunctionControl>> {
        let (_, function) = self.uifs().into_iter().nth(number.checked_sub(1)?)?;
        Some(function)
    }

    /// Asks the drive something, on its own thread.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Drive) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let task = self.task.id();
        let answer = self.task.call(move |local| local.task::<Drive>(task).map(question));
        answer.map_err(gone)?.ok_or_else(closed)
    }

    /// The same, to change it. All of its queues are at home then.
    pub(super) fn tell<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Drive, u64) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let mut order = order;
        loop {
            let told = self.change(move |drive, now_ns| match drive.is_whole() {
                true => Ok(order(drive, now_ns)),
                false => Err(order),
            });
            match told? {
                Ok(answer) => return Ok(answer),
                Err(again) => order = again,
            }
            self.bring_home(None)?;
        }
    }

    /// The same for what may be changed wherever its queues are.
    pub(super) fn change<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut Drive, u64) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let task = self.task.id();
        let answer = self.task.call(move |local| {
            let now_ns = local.now_ns();
            local.task_mut::<Drive>(task).map(|drive| order(drive, now_ns))
        });
        answer.map_err(gone)?.ok_or_else(closed)
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

/// The hosts on the network that may connect, with their keys.
pub(super) fn known_hosts(spec: &DriveSpec) -> Result<Vec<tcp::KnownHost>, Problem> {
    let hosts = spec.tcp.iter().flat_map(|tcp| &tcp.hosts);
    let known = hosts.map(|host| {
        let terms = host.dhchap().map(dhchap::terms).transpose()?;
        Ok(tcp::KnownHost { nqn: host.nqn().to_owned(), terms })
    });
    known.collect()
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
