//! A drive's classifier: one program per namespace. The programs share their maps, except for translation
//! caches.

use sluice_classifier::{LoadError, Loaded, Map, MapKind, TraceRecord, View};
use sluice_control::drives::{ClassifierStatus, ErrorCount, PersistRequest};
use sluice_control::object_file;
use sluice_controller::Subsystem;
use sluice_router::{Classifier, Counters, ProgramError};
use sluice_spec::ClassifierSpec;
use sluice_spec::error::ApiError;
use std::collections::VecDeque;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Maximum number of trace records kept for display; the latest are kept.
const TRACE_KEPT: usize = 256;

/// Channel for programs whose last command is done. Freeing their memory takes time and is not done on a
/// reactor.
pub(super) type Retired = Sender<Box<dyn Classifier>>;

/// Channels from a drive's reactor to threads that do the work which would block the reactor.
#[derive(Clone, Debug)]
pub(super) struct BackgroundChannels {
    pub(super) retired: Retired,
    /// Receives the drive's name when its classifier is detached because of errors.
    pub(super) detached: Sender<String>,
    /// Receives the persistent records of a drive's controller.
    pub(super) persist_requests: Sender<PersistRequest>,
}

/// Starts a thread that drops the programs it receives, and ends when all senders are gone.
pub(super) fn start_retiring() -> Result<Retired, ApiError> {
    let (retired, programs) = mpsc::channel::<Box<dyn Classifier>>();
    std::thread::Builder::new()
        .name("retired".to_owned())
        .spawn(move || programs.into_iter().for_each(drop))
        .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))?;
    Ok(retired)
}

/// Maps of all drives that are declared shared. A map ends with the last program that has it.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedMaps(Arc<Mutex<Vec<Weak<Map>>>>);

/// Classifier programs, one for each namespace of a drive.
pub(super) struct Programs {
    /// Classifiers in the order of the namespaces.
    pub(super) classifiers: Vec<Box<dyn Classifier>>,
    views: Vec<View>,
    /// Digest of the object file.
    digest: String,
}

impl Programs {
    /// Reads, verifies and compiles the program; blocks meanwhile. The program gets those maps of `carry`,
    /// and those shared maps, that match its declarations.
    pub(super) fn load(
        spec: &ClassifierSpec,
        namespaces: usize,
        carry: &[Arc<Map>],
        shared: &SharedMaps,
    ) -> Result<Self, ApiError> {
        // Locked to the end, so that two concurrent loads do not each create the same map. A panic ends the
        // process, so the lock is never poisoned.
        let mut shared = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|map| map.strong_count() > 0);
        let mut carry = carry.to_vec();
        carry.extend(shared.iter().filter_map(Weak::upgrade));
        let programs = Self::load_each(spec, namespaces, &carry)?;
        let is_new = |map: &&Arc<Map>| map.def().shared() && !carry.iter().any(|old| Arc::ptr_eq(old, map));
        shared.extend(programs.maps().iter().filter(is_new).map(Arc::downgrade));
        Ok(programs)
    }

    fn load_each(spec: &ClassifierSpec, namespaces: usize, carry: &[Arc<Map>]) -> Result<Self, ApiError> {
        let object = object_file::read(&spec.object)?;
        object_file::check(&object, &spec.object)?;
        let load = |carry: &[Arc<Map>]| {
            sluice_classifier::load(&object, &spec.section, spec.clock(), carry)
                .map_err(|error| refused(spec, &error))
        };
        let digest = object_file::digest(&object);
        let mut programs = Self { classifiers: Vec::new(), views: Vec::new(), digest };
        programs.push(load(carry)?);
        // All programs of a drive have the maps of the first one, because they run on one reactor. A
        // translation cache that is not declared shared is excluded: it holds the blocks of one namespace and
        // would be wrong in another.
        let of_all = |map: &&Arc<Map>| map.def().kind != MapKind::Translation || map.def().shared();
        let shared: Vec<_> = programs.maps().iter().filter(of_all).cloned().collect();
        for _ in 1..namespaces {
            programs.push(load(&shared)?);
        }
        Ok(programs)
    }

    fn push(&mut self, loaded: Loaded) {
        self.classifiers.push(loaded.classifier);
        self.views.push(loaded.view);
    }

    pub(super) fn maps(&self) -> &[Arc<Map>] {
        self.views.first().map_or(&[], View::maps)
    }

    /// Splits the programs, which go to their routers, from the state that the control side keeps.
    pub(super) fn part(self, spec: &ClassifierSpec) -> (Vec<Box<dyn Classifier>>, Attached) {
        let attached = Attached {
            spec: spec.clone(),
            digest: self.digest,
            before: vec![Counters::default(); self.views.len()],
            views: self.views,
            trace: VecDeque::new(),
        };
        (self.classifiers, attached)
    }
}

fn refused(spec: &ClassifierSpec, error: &LoadError) -> ApiError {
    ApiError::invalid(format!("classifier {}: {error}", spec.object.display()))
}

/// Attached classifier, as the control side sees it.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) spec: ClassifierSpec,
    digest: String,
    views: Vec<View>,
    /// Counters of the routers at the time of attachment, in the order of the namespaces.
    before: Vec<Counters>,
    /// Latest trace records.
    trace: VecDeque<TraceRecord>,
}

/// State of a router's program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routed {
    is_attached: bool,
    counters: Counters,
}

/// Returns the state of all routers of a drive, in the order of the namespaces.
pub(super) fn routed(subsystem: &Subsystem) -> Vec<Routed> {
    let one = |namespace: &sluice_controller::Namespace| Routed {
        is_attached: namespace.router().is_attached(),
        counters: namespace.router().counters(),
    };
    subsystem.namespaces().map(one).collect()
}

/// Attaches a program to each namespace; detaches the program of a namespace for which there is none. Returns
/// the counters of the routers from before.
pub(super) fn put(
    subsystem: &mut Subsystem,
    classifiers: Vec<Box<dyn Classifier>>,
    errors_max: Option<u64>,
) -> Vec<Counters> {
    let before = routed(subsystem).iter().map(|routed| routed.counters).collect();
    let numbers: Vec<u32> = subsystem.namespaces().map(|namespace| namespace.nsid()).collect();
    let mut classifiers = classifiers.into_iter();
    for nsid in numbers {
        let Some(router) = subsystem.router_mut(nsid) else { continue };
        router.set_errors_max(errors_max);
        match classifiers.next() {
            Some(classifier) => router.replace(classifier),
            None => router.detach(),
        }
    }
    before
}

impl Attached {
    /// Sets the counters of the routers at the time of attachment.
    pub(super) fn since(mut self, before: Vec<Counters>) -> Self {
        self.before = before;
        self
    }

    pub(super) fn maps(&self) -> &[Arc<Map>] {
        self.views.first().map_or(&[], View::maps)
    }

    /// Returns the number of namespaces with a program.
    pub(super) fn namespaces(&self) -> u32 {
        self.views.len() as u32
    }

    /// Returns the maps of a namespace, including the translation cache of its own.
    pub(super) fn maps_of(&self, nsid: u32) -> &[Arc<Map>] {
        self.views.get(nsid.wrapping_sub(1) as usize).map_or(&[], View::maps)
    }

    /// Returns the status. The states in `routed` may be from just before the program was attached.
    pub(super) fn status(&mut self, routed: &[Routed]) -> ClassifierStatus {
        self.take_trace();
        let mut status = ClassifierStatus {
            object: self.spec.object.display().to_string(),
            digest: self.digest.clone(),
            section: self.spec.section.clone(),
            errors_max: self.spec.errors_max,
            precise_clock: self.spec.precise_clock,
            trace: self.trace.iter().map(Into::into).collect(),
            ..ClassifierStatus::default()
        };
        if let Some(first) = self.views.first() {
            status.instructions = first.instructions();
            status.compiled = first.is_compiled();
            status.notes = first.notes().to_vec();
        }
        self.views.iter().for_each(|view| add_view(&mut status, view));
        let since = |reason: ProgramError| {
            let of = |(now, before): (&Routed, &Counters)| {
                now.counters.of(reason).saturating_sub(before.of(reason))
            };
            routed.iter().zip(&self.before).map(of).sum()
        };
        let errors =
            ProgramError::ALL.map(|reason| ErrorCount { error: reason.to_string(), commands: since(reason) });
        status.errors = errors.into_iter().filter(|error| error.commands > 0).collect();
        let overreached =
            |(now, before): (&Routed, &Counters)| now.counters.overreached.saturating_sub(before.overreached);
        status.overreached = routed.iter().zip(&self.before).map(overreached).sum();
        let numbered = (1..).zip(routed);
        status.detached = numbered.filter(|(_, routed)| !routed.is_attached).map(|(nsid, _)| nsid).collect();
        status
    }

    /// Takes the trace records since the last call, and sorts them by time.
    fn take_trace(&mut self) {
        let said =
            self.views.iter().flat_map(|view| std::iter::from_fn(|| view.pop_trace()).take(TRACE_KEPT));
        self.trace.extend(said);
        self.trace.make_contiguous().sort_by_key(|record| record.when_ns);
        let surplus = self.trace.len().saturating_sub(TRACE_KEPT);
        self.trace.drain(..surplus);
    }
}

fn add_view(status: &mut ClassifierStatus, view: &View) {
    let hooks = view.hooks();
    status.hooks.submission += hooks.submission;
    status.hooks.leg_done += hooks.leg_done;
    status.hooks.before_completion += hooks.before_completion;
    status.traps += view.traps();
    status.last_trap = view.last_trap().or(status.last_trap.take());
    status.trace_dropped += view.trace_dropped();
    let counters = view.counters();
    status.counters.resize(counters.len(), 0);
    status.counters.iter_mut().zip(counters).for_each(|(sum, one)| *sum += one);
}
