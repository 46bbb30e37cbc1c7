//! A drive's classifier: a program for each of its namespaces, all of the same maps.

use sluice_classifier::{LoadError, Loaded, Map, MapKind, TraceRecord, View};
use sluice_control::drives::{ClassifierStatus, ErrorCount, ToKeep};
use sluice_control::object_file;
use sluice_controller::Subsystem;
use sluice_router::{Classifier, Counters, ProgramError};
use sluice_spec::ClassifierSpec;
use sluice_spec::problem::Problem;
use std::collections::VecDeque;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Trace records that are kept to be shown, the latest.
const TRACE_KEPT: usize = 256;

/// Takes programs whose last command is done: to give their memory back takes its time, and is not done
/// on a reactor.
pub(super) type Retired = Sender<Box<dyn Classifier>>;

/// Who is told of a drive's programs what its reactor cannot see to.
#[derive(Clone, Debug)]
pub(super) struct Heirs {
    pub(super) retired: Retired,
    /// Gets the drive's name when its classifier was detached for its errors.
    pub(super) detached: Sender<String>,
    /// Gets what a drive's controller wants remembered.
    pub(super) to_keep: Sender<ToKeep>,
}

/// A thread that drops what it is sent, and ends when nobody can send any more.
pub(super) fn start_retiring() -> Result<Retired, Problem> {
    let (retired, programs) = mpsc::channel::<Box<dyn Classifier>>();
    std::thread::Builder::new()
        .name("retired".to_owned())
        .spawn(move || programs.into_iter().for_each(drop))
        .map_err(|error| Problem::internal(format!("cannot start a thread: {error}")))?;
    Ok(retired)
}

/// The maps that are declared shared, of all drives. One that no program has any more is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedMaps(Arc<Mutex<Vec<Weak<Map>>>>);

/// A program that was loaded for every namespace of a drive.
pub(super) struct Programs {
    /// In the order of the namespaces.
    pub(super) classifiers: Vec<Box<dyn Classifier>>,
    views: Vec<View>,
    /// Of the object file.
    digest: String,
}

impl Programs {
    /// Reads, verifies and compiles the program. Blocks for as long as that takes. It gets the maps of `carry`,
    /// and the shared ones, that are as it declares them.
    pub(super) fn load(
        spec: &ClassifierSpec,
        namespaces: usize,
        carry: &[Arc<Map>],
        shared: &SharedMaps,
    ) -> Result<Self, Problem> {
        // Held to the end, so that two programs at once do not make a map each. A panic ends the process, so
        // nobody poisons it.
        let mut shared = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|map| map.strong_count() > 0);
        let mut carry = carry.to_vec();
        carry.extend(shared.iter().filter_map(Weak::upgrade));
        let programs = Self::load_each(spec, namespaces, &carry)?;
        let is_new = |map: &&Arc<Map>| map.def().shared() && !carry.iter().any(|old| Arc::ptr_eq(old, map));
        shared.extend(programs.maps().iter().filter(is_new).map(Arc::downgrade));
        Ok(programs)
    }

    fn load_each(spec: &ClassifierSpec, namespaces: usize, carry: &[Arc<Map>]) -> Result<Self, Problem> {
        let object = object_file::read(&spec.object)?;
        object_file::check(&object, &spec.object)?;
        let load = |carry: &[Arc<Map>]| {
            sluice_classifier::load(&object, &spec.section, carry).map_err(|error| refused(spec, &error))
        };
        let digest = object_file::digest(&object);
        let mut programs = Self { classifiers: Vec::new(), views: Vec::new(), digest };
        programs.push(load(carry)?);
        // What the first has, the others have, too: a drive's maps are its reactor's. But a translation cache knows the
        // blocks of one namespace, and in another it would be wrong.
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

    /// Parts the programs, which go to their routers, from what stays here.
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

fn refused(spec: &ClassifierSpec, error: &LoadError) -> Problem {
    Problem::invalid(format!("classifier {}: {error}", spec.object.display()))
}

/// A classifier that was attached, seen from the control side.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) spec: ClassifierSpec,
    digest: String,
    views: Vec<View>,
    /// What the routers had counted when it came, in the order of the namespaces.
    before: Vec<Counters>,
    /// The latest trace records.
    trace: VecDeque<TraceRecord>,
}

/// What a router says of its program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routed {
    is_attached: bool,
    counters: Counters,
}

/// What all routers of a drive say, in the order of the namespaces.
pub(super) fn routed(subsystem: &Subsystem) -> Vec<Routed> {
    let one = |namespace: &sluice_controller::Namespace| Routed {
        is_attached: namespace.router().is_attached(),
        counters: namespace.router().counters(),
    };
    subsystem.namespaces().map(one).collect()
}

/// Puts a program before each namespace, or none. What the routers had counted until then.
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
    /// What the routers had counted when it was put before them.
    pub(super) fn since(mut self, before: Vec<Counters>) -> Self {
        self.before = before;
        self
    }

    pub(super) fn maps(&self) -> &[Arc<Map>] {
        self.views.first().map_or(&[], View::maps)
    }

    /// Those of a namespace, which has a translation cache of its own.
    pub(super) fn maps_of(&self, nsid: u32) -> &[Arc<Map>] {
        self.views.get(nsid.wrapping_sub(1) as usize).map_or(&[], View::maps)
    }

    /// What the routers say may be from just before the program came.
    pub(super) fn status(&mut self, routed: &[Routed]) -> ClassifierStatus {
        self.take_trace();
        let mut status = ClassifierStatus {
            object: self.spec.object.display().to_string(),
            digest: self.digest.clone(),
            section: self.spec.section.clone(),
            errors_max: self.spec.errors_max,
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

    /// Takes what the programs said since the last time, in the order they said it.
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
