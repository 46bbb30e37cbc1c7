//! Functions: opened on the calling thread, which may involve a process, and built on the thread of their
//! reactor.

use super::cache::CacheControl;
use super::drive::{closed, in_words};
use super::jobs::Jobs;
use super::namespace::{PreparedStack, Site, StackControl};
use super::power::Losses;
use super::shared::Pools;
use sluice_command::{Layer, NodeId, StackBuilder};
use sluice_control::drives::metrics;
use sluice_controller::{COMMANDS_MAX, Subsystem, TRANSFER_MAX};
use sluice_crypt::Given;
use sluice_functions::host::{Launch, PendingAnswer, PreparedUif, Program, UifConfig, UifControl};
use sluice_functions::{CacheCounters, OpenCx, Prepared, QosControl, Record, make};
use sluice_jobs::Order;
use sluice_spec::error::ApiError;
use sluice_spec::paths::Places;
use sluice_spec::{FunctionSpec, LayerSpec, Provenance, UifSpec};
use sluice_uif::{Function, Options};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Order that every function answers, with its counters.
const METRICS: &str = "metrics";

/// A function on its way to its reactor.
pub(super) enum PreparedFunction {
    /// Function that is only a layer, with the layers below it besides the rest of the stack.
    Layer { prepared: Prepared, is_stateless: bool, below: Vec<PreparedStack> },
    /// Function behind the function SDK, with the layers below it besides the rest of the stack.
    Uif(PreparedUif, Vec<PreparedStack>),
}

/// Controls of an open function.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Control of a function that is more than a layer.
    pub(super) function: Option<FunctionControl>,
    /// Controls of the layers below a function that is only a layer.
    pub(super) layers: Vec<StackControl>,
    /// Control of limits that can be changed.
    pub(super) limits: Option<QosControl>,
    /// Counters of a cache.
    pub(super) cached: Option<Arc<CacheCounters>>,
}

/// Control of a function that is more than a layer.
#[derive(Debug)]
pub(super) struct FunctionControl {
    /// Name, program or socket of the function.
    pub(super) about: String,
    /// Record of a function of Sluice's own.
    service: Option<&'static Record>,
    /// Present specification. A move changes the place.
    spec: Mutex<UifSpec>,
    pub(super) uif: UifControl,
    pub(super) cache: CacheControl,
    /// Controls of the layers below the function.
    pub(super) layers: Vec<StackControl>,
    /// Whether the function has left and must be brought back. The lock is held while the function moves.
    away: Mutex<bool>,
    counted: Mutex<Counted>,
    /// Jobs of the function, if it has some.
    pub(super) jobs: Option<Jobs>,
}

/// Latest metrics that a function has returned.
#[derive(Debug, Default)]
struct Counted {
    /// Pending query for metrics.
    asked: Option<PendingAnswer>,
    /// Whether callers have waited in vain for the pending query; they do not wait for it again.
    is_late: bool,
    said: BTreeMap<String, u64>,
}

impl FunctionControl {
    /// Returns whether a second instance cannot continue at once: the function keeps state, or is someone else's.
    pub(super) fn keeps_state(&self) -> bool {
        self.service.is_none_or(|service| service.keeps_state)
    }
}

impl PreparedFunction {
    /// Opens a function of `drive`, in a namespace with blocks of `block_size` bytes. May block. A function
    /// in a process is started, or found. `above` applies to targets right below the layer above the
    /// function, and to the function itself.
    pub(super) fn open(
        spec: &FunctionSpec,
        drive: &str,
        block_size: u32,
        above: Losses<'_>,
        pools: &Pools,
    ) -> Result<(Self, Held), ApiError> {
        // The layers are opened first, because a function may need them as soon as it runs.
        let open_layer = |(number, layer): (usize, &LayerSpec)| {
            PreparedStack::open(&layer.as_namespace(), drive, above.in_layer(spec, number), pools)
        };
        let opened: Vec<_> = spec.layers().iter().enumerate().map(open_layer).collect::<Result<_, _>>()?;
        let (below, layers) = opened.into_iter().unzip();
        let FunctionSpec::Uif(uif) = spec else {
            let (commands_max, transfer_max) = (COMMANDS_MAX as usize, TRANSFER_MAX.into());
            let Pools { groups, devices, .. } = pools;
            let cx = OpenCx { drive, commands_max, transfer_max, groups, devices };
            let prepared = spec.open(&cx)?.ok_or_else(closed)?;
            let is_stateless = spec.shape().is_stateless;
            let (limits, cached) = (prepared.limits().cloned(), prepared.cache().cloned());
            return Ok((
                Self::Layer { prepared, is_stateless, below },
                Held { function: None, layers, limits, cached },
            ));
        };
        let (prepared, control) = open(uif, drive, above)?;
        let cache = CacheControl::new(uif.translations.clone(), block_size);
        let (about, away, counted) = (uif.about(), Mutex::default(), Mutex::default());
        let (service, jobs, spec) = (uif.service(), Jobs::of(uif), Mutex::new(uif.clone()));
        let control =
            FunctionControl { about, service, spec, uif: control, cache, layers, away, counted, jobs };
        Ok((
            Self::Uif(prepared, below),
            Held { function: Some(control), layers: Vec::new(), limits: None, cached: None },
        ))
    }

    /// Adds the layer to a stack, over `top`, on the thread of its reactor.
    pub(super) fn build(
        self,
        top: NodeId,
        stack: &mut StackBuilder,
        at: &Site<'_>,
    ) -> Result<NodeId, ApiError> {
        let mut below = vec![top];
        let layer: Box<dyn Layer> = match self {
            Self::Layer { prepared, below: layers, .. } => {
                build_layers(layers, &mut below, stack, at)?;
                let sizes: Vec<u64> = below.iter().map(|node| stack.size_of(*node)).collect();
                prepared.check_sizes(&sizes)?;
                prepared.build(below.len())
            }
            Self::Uif(prepared, layers) => {
                build_layers(layers, &mut below, stack, at)?;
                let token_prefix = Subsystem::token_prefix(at.nsid, stack.next_id());
                Box::new(prepared.build(at.task, at.io, token_prefix).map_err(|error| {
                    ApiError::internal(format!("the reactor cannot take a function: {error}"))
                        .hint("each takes three of the reactor's places and five descriptors (ulimit -n)")
                })?)
            }
        };
        stack.add(layer, &below).map_err(|error| in_words(&error))
    }
}

/// Adds the layers below a function besides the rest of the stack.
fn build_layers(
    layers: Vec<PreparedStack>,
    below: &mut Vec<NodeId>,
    stack: &mut StackBuilder,
    at: &Site<'_>,
) -> Result<(), ApiError> {
    for layer in layers {
        below.push(layer.build_aside(stack, at)?);
    }
    Ok(())
}

fn open(spec: &UifSpec, drive: &str, above: Losses<'_>) -> Result<(PreparedUif, UifControl), ApiError> {
    let config = UifConfig {
        name: drive.to_owned(),
        options: Options::new(spec.options.clone()),
        deadline: spec.deadline(),
        on_death: spec.on_death.into(),
        size: spec.service().and_then(|service| (service.size)(&Options::new(spec.options.clone()))),
        atomic_write: spec.service().and_then(|it| (it.atomic_write)(&Options::new(spec.options.clone()))),
        reports_loss_once: above.are_reported_once(),
    };
    match start_of(spec)? {
        Start::InDaemon(function) => PreparedUif::local(config, function)
            .map_err(|error| ApiError::internal(format!("there is no memory for a function: {error}"))),
        Start::Process(launch) => PreparedUif::external(config, launch).map_err(|failure| {
            ApiError::invalid(format!("the function {} does not serve: {failure}", spec.about()))
        }),
    }
}

/// Start of a function, in the daemon or in a process, with the means to run it there.
enum Start {
    InDaemon(Box<dyn Function>),
    Process(Launch),
}

fn start_of(spec: &UifSpec) -> Result<Start, ApiError> {
    Ok(Start::Process(match spec.provenance()? {
        Provenance::Here(kind) => {
            let options = Options::new(spec.options.clone());
            return make(&kind, &options, &Given::default()).map(Start::InDaemon).map_err(ApiError::invalid);
        }
        Provenance::Own(kind) => {
            let own = this_program()?;
            let words = ["function", "run", &kind].map(OsString::from);
            program(&[], [own.into_os_string()].into_iter().chain(words), credentials(), spec)?
        }
        Provenance::Program(path, arguments) => {
            check_executable(&path, spec)?;
            let words = arguments.into_iter().map(OsString::from);
            let hidden = HIDDEN.get().map_or(&[][..], Vec::as_slice);
            program(hidden, [path.into_os_string()].into_iter().chain(words), Vec::new(), spec)?
        }
        Provenance::Socket(path) => Launch::Socket(path, spec.uid),
    }))
}

impl FunctionControl {
    /// Moves the function to the place that `spec` names.
    pub(super) fn move_to(&self, spec: &UifSpec) -> Result<(), ApiError> {
        self.start(&mut self.away(), spec)
    }

    /// Checks an order's text before the function receives it. The orders of a third-party function are not
    /// checked.
    ///
    /// # Errors
    /// The function has no such order. The text lists those it has.
    pub(super) fn order(&self, text: &str) -> Result<String, String> {
        let is_for_job = self.jobs.is_some() && Order::parse(text).is_some();
        match self.service {
            Some(service) if text != METRICS && !is_for_job => (service.order_of_text)(text),
            _ => Ok(text.to_owned()),
        }
    }

    /// Sends the function a query for its metrics, unless one is pending.
    pub(super) fn ask_for_metrics(&self) {
        let mut counted = self.counted();
        if !self.uif.status().ready {
            return;
        }
        counted.look(Instant::now());
        counted.asked.get_or_insert_with(|| self.uif.start_query(METRICS));
    }

    /// Returns the function's metrics, or those of its last answer if none arrives by `until`. Waits once for
    /// each answer.
    pub(super) fn metrics(&self, until: Instant) -> BTreeMap<String, u64> {
        let mut counted = self.counted();
        if !counted.is_late {
            counted.look(until);
        }
        counted.said.clone()
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the function as one that has left and must be brought back. Returns whether it was marked
    /// before.
    pub(super) fn note_away(&self) -> bool {
        std::mem::replace(&mut self.away(), true)
    }

    /// Brings the function back to its place, unless it was moved meanwhile.
    pub(super) fn come_back(&self) -> Result<(), ApiError> {
        let mut away = self.away();
        let spec = self.present().clone();
        if *away { self.start(&mut away, &spec) } else { Ok(()) }
    }

    /// Has the function leave: what it keeps is in its layers and files then, for the next instance.
    pub(super) fn leave_for_now(&self) -> Result<(), ApiError> {
        let mut away = self.away();
        if !*away {
            let stays =
                |words: String| ApiError::conflict(format!("the function {} stays: {words}", self.about));
            self.uif.leave().map_err(stays)?;
            *away = true;
        }
        Ok(())
    }

    /// Returns whether the function has left and must be brought back.
    pub(super) fn is_away(&self) -> bool {
        *self.away()
    }

    fn present(&self) -> MutexGuard<'_, UifSpec> {
        // A panic ends the process, so the lock is never poisoned.
        self.spec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mark. A panic ends the process, so the lock is never poisoned.
    fn away(&self) -> MutexGuard<'_, bool> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, away: &mut bool, spec: &UifSpec) -> Result<(), ApiError> {
        let moved = match start_of(spec)? {
            Start::InDaemon(function) => self.uif.move_into_daemon(function),
            Start::Process(launch) => self.uif.move_to_process(launch),
        };
        moved.map_err(|words| {
            ApiError::conflict(format!("the function {} cannot move: {words}", self.about))
                .hint("it stays where it is")
        })?;
        *away = false;
        self.present().clone_from(spec);
        Ok(())
    }
}

impl Counted {
    /// Takes the answer if it arrives by `until`.
    fn look(&mut self, until: Instant) {
        let Some(answer) = self.asked.as_ref().map(|asked| asked.wait(until)) else { return };
        self.is_late = answer.is_none();
        if let Some(answer) = answer {
            self.asked = None;
            self.said = answer.map_or_else(|_| BTreeMap::new(), |lines| metrics(&lines));
        }
    }
}

/// Files and folders of the daemon that third-party functions cannot open. A process has one daemon.
static HIDDEN: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Hides the daemon's state, its sockets and its credentials from third-party functions.
pub(super) fn hide(places: &Places) {
    let mut lock = places.api.clone().into_os_string();
    lock.push(".lock");
    // The lock file of the API's socket exists before the socket does. Hiding it puts the socket into a
    // folder with a hidden file.
    let mut hidden = vec![places.state.clone(), places.sockets.clone(), lock.into()];
    hidden.extend(std::env::var_os(CREDENTIALS).map(PathBuf::from));
    // A second daemon of this process keeps the paths of the first one; that happens in tests only.
    let _ = HIDDEN.set(hidden);
}

/// Name of the environment variable with the folder of systemd's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Returns the environment variable that Sluice's own functions need to find a key.
fn credentials() -> Vec<(OsString, OsString)> {
    std::env::var_os(CREDENTIALS).map(|folder| (CREDENTIALS.into(), folder)).into_iter().collect()
}

/// Returns the launch of a process that begins as this program, applies restrictions, and then executes
/// `command`.
fn program(
    hidden: &[PathBuf],
    command: impl IntoIterator<Item = OsString>,
    environment: Vec<(OsString, OsString)>,
    spec: &UifSpec,
) -> Result<Launch, ApiError> {
    let mut arguments: Vec<OsString> = vec!["function".into(), "launch".into()];
    for path in hidden {
        arguments.extend(["--hide".into(), path.clone().into_os_string()]);
    }
    let own = rustix::process::geteuid().as_raw();
    if spec.uid.is_some_and(|uid| uid != own) {
        arguments.push("--own-user".into());
    }
    arguments.push("--".into());
    arguments.extend(command);
    Ok(Launch::Program(Program { path: this_program()?, arguments, user: spec.user(), environment }))
}

/// Checks that a program is executable. A missing program is an error of the configuration and is reported at
/// once.
fn check_executable(path: &Path, spec: &UifSpec) -> Result<(), ApiError> {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).map_err(|error| {
        ApiError::invalid(format!("the function {} does not serve: {error}", spec.about()))
            .hint("`command` names a program that the function's user can execute")
    })
}

/// Path of the program `sluice`, for a process that runs another program.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Sets the path of the program `sluice`, which starts functions in a process. A daemon is that program
/// itself.
pub fn start_functions_by(program: PathBuf) {
    // A process has one such path: the first.
    let _ = PROGRAM.set(program);
}

fn this_program() -> Result<PathBuf, ApiError> {
    if let Some(program) = PROGRAM.get() {
        return Ok(program.clone());
    }
    // The link leads to the file as it was started, even if it has been replaced since, so both sides have
    // the same version.
    let link = PathBuf::from("/proc/self/exe");
    match link.exists() {
        true => Ok(link),
        false => Err(ApiError::internal("cannot find this program: /proc is not mounted")),
    }
}
