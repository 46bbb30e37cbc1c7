//! Operations of the control side on a running drive.

use super::classifier::{Programs, routed};
use super::drive::{WiredDrive, closed, gone};
use super::function::FunctionControl;
use super::labels;
use super::namespace::StackControl;
use super::{pool, reactor_of};
use sluice_classifier::Map;
use sluice_command::NodeId;
use sluice_control::drives::{
    CacheView, ClassifierStatus, CreatedStatus, DeviceView, DriveCounters, DriveCounts, FunctionJobs,
    FunctionView, HandedOver, ReadyClassifier, Running, Status, Store,
};
use sluice_control::state::Created;
use sluice_controller::{
    AnaRule, Creation, Namespace, OperationLatency, PersistentRecord, SlowCommand, Subsystem, Synced,
    TraceChoice, TraceRing,
};
use sluice_frontend::Drive;
use sluice_frontend_tcp as tcp;
use sluice_frontend_vfio_user::Socket;
use sluice_functions::{QosControl, QosLimits, QosWaits};
use sluice_jobs::{PaceChange, Verb};
use sluice_reactor::Immovable;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{AnaStateName, ClassifierSpec, DriveSpec, UifSpec};
use sluice_targets::Maintenance;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time limit for a function's order.
const ORDER_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for an order while the drive is quiet. A function in the daemon, which cannot be killed, has
/// three times as long.
const QUIET_ORDER_LIMIT: Duration = Duration::from_secs(8);

/// Time limit for the metrics of all functions of a drive; after it, the previous metrics are returned. The
/// limit is short because callers wait.
const METRICS_LIMIT: Duration = Duration::from_millis(40);

/// Interval between two checks whether a flush has ended.
const SYNC_LOOK: Duration = Duration::from_millis(1);

impl Running for WiredDrive {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn may_hand_over(&self) -> Result<(), ApiError> {
        self.check_hand_over()
    }

    fn hand_over(&self) -> Result<HandedOver, ApiError> {
        self.suspend()
    }

    fn go_on(&self) -> Result<(), ApiError> {
        self.continue_now()
    }

    fn bring_functions_back(&self) {
        WiredDrive::bring_functions_back(self);
    }

    fn keep_again(&self) -> Result<(), ApiError> {
        self.keep()
    }

    fn status(&self) -> Result<Status, ApiError> {
        self.query(status)
    }

    fn is_task(&self, index: usize) -> bool {
        self.task.id().index() == index
    }

    fn target_size(&self, nsid: u32) -> Result<Size, ApiError> {
        let namespaces = self.stacks();
        let stacks = namespaces.get(nsid as usize - 1).ok_or_else(closed)?;
        let mut size = self.query(move |drive| target_size(drive.subsystem(), nsid))?;
        // Further paths have files of their own, which are resized as well.
        for stack in stacks {
            size = size.max(stack.target.file_size()?.unwrap_or_default());
        }
        Ok(size)
    }

    fn resize(&self, nsid: u32, size: Size) -> Result<(), ApiError> {
        let namespaces = self.stacks();
        let stacks = namespaces.get(nsid as usize - 1).ok_or_else(closed)?;
        if stacks.iter().any(|stack| !stack.labelled.is_empty()) {
            return Err(labels::keeps_size(&self.name, nsid));
        }
        let resize_targets = || stacks.iter().try_for_each(|stack| stack.target.resize(size));
        let resize = |size: Size| {
            self.execute(move |drive, _| {
                drive.subsystem_mut().resize(nsid, size.0);
                target_size(drive.subsystem(), nsid)
            })
        };
        let now = self.query(move |drive| target_size(drive.subsystem(), nsid))?;
        // The guest must never see blocks that are not there.
        let seen = if size > now {
            resize_targets()?;
            resize(size)?
        } else {
            let before = file_sizes(stacks)?;
            let seen = resize(size)?;
            resize_targets().map_err(|problem| {
                let back = restore_files(stacks, &before).and_then(|()| resize(now));
                not_shrunk(problem, nsid, size, back)
            })?;
            seen
        };
        match seen == size {
            true => Ok(()),
            false => Err(ApiError::internal(format!(
                "the target of namespace {nsid} still has {seen}: see the daemon's log"
            ))),
        }
    }

    fn set_limits(&self, nsid: u32, index: usize, limits: QosLimits) -> Result<(), ApiError> {
        let namespaces = self.stacks();
        let stack = namespaces.get(nsid as usize - 1).and_then(|stacks| stacks.first());
        let control = stack.and_then(|stack| stack.limits.get(index)).ok_or_else(closed)?;
        control.set(limits);
        Ok(())
    }

    fn caches(&self) -> Vec<CacheView> {
        let namespaces = self.stacks();
        let stacks = (1..).zip(namespaces.iter().filter_map(|stacks| stacks.first()));
        let of = |(nsid, stack): (u32, &StackControl)| -> Vec<CacheView> {
            let caches = (1..).zip(&stack.caches);
            caches.map(|(number, counters)| CacheView::new(nsid, number, counters)).collect()
        };
        stacks.flat_map(of).collect()
    }

    fn waits(&self, nsid: u32) -> Vec<QosWaits> {
        let namespaces = self.stacks();
        let stack = namespaces.get(nsid as usize - 1).and_then(|stacks| stacks.first());
        stack.map_or_else(Vec::new, |stack| stack.limits.iter().map(QosControl::waits).collect())
    }

    fn prepare_classifier(
        &self,
        spec: Option<&ClassifierSpec>,
        fresh_maps: bool,
    ) -> Result<ReadyClassifier<'_>, ApiError> {
        let Some(spec) = spec else { return Ok(Box::new(|| self.exchange(Vec::new(), None))) };
        let carry = if fresh_maps { None } else { self.maps() };
        let carry = carry.unwrap_or_default();
        let namespaces = self.stacks().len();
        let programs = Programs::load(spec, namespaces, &carry, &self.shared_maps)?;
        let (programs, next) = programs.part(spec);
        Ok(Box::new(move || self.exchange(programs, Some(next))))
    }

    fn classifier(&self) -> Result<Option<ClassifierStatus>, ApiError> {
        let routed = self.query(|drive| routed(drive.subsystem()))?;
        Ok(self.attached().as_mut().map(|attached| attached.status(&routed)))
    }

    fn maps(&self) -> Option<Vec<Arc<Map>>> {
        self.attached().as_ref().map(|attached| attached.maps().to_vec())
    }

    fn latency(&self) -> Vec<OperationLatency> {
        self.latency.sums()
    }

    fn counts(&self) -> Result<DriveCounts, ApiError> {
        if !self.latency.is_on() {
            return Ok(DriveCounts::default());
        }
        Ok(self.latency.counts(&self.query(layers)?))
    }

    fn take_slowest(&self) -> (u64, Option<SlowCommand>) {
        self.latency.take_slowest()
    }

    fn begin_trace(&self, choice: TraceChoice) -> Result<Arc<TraceRing>, ApiError> {
        // Queue groups come back first, and stay: a trace is of the drive's own reactor.
        let start = |ring| self.execute(move |drive, _| drive.subsystem_mut().begin_trace(ring));
        self.latency.begin_trace(choice, start)
    }

    fn client_transitions(&self) -> u64 {
        self.transitions.load(Relaxed)
    }

    fn devices(&self) -> Vec<DeviceView> {
        let namespaces = self.stacks();
        let stacks = (1..).zip(&*namespaces);
        stacks.flat_map(|(nsid, stacks)| stacks.iter().flat_map(move |it| it.devices(nsid))).collect()
    }

    fn functions(&self) -> Vec<FunctionView> {
        let functions = self.uifs();
        functions.iter().for_each(|(_, function)| function.ask_for_metrics());
        let until = Instant::now() + METRICS_LIMIT;
        let view = |(number, (nsid, function)): (usize, (u32, Arc<FunctionControl>))| {
            let mut view = FunctionView::new(number, nsid, function.about.clone(), function.uif.status());
            if view.ready {
                view.metrics = function.metrics(until);
            }
            view
        };
        (1..).zip(functions).map(view).collect()
    }

    fn jobs(&self, limit: Duration) -> Vec<FunctionJobs> {
        self.list_jobs(limit)
    }

    fn order_controller(
        &self,
        nsid: u32,
        verb: Verb,
        name: &str,
        change: PaceChange,
    ) -> Result<(), ApiError> {
        let name = name.to_owned();
        // Neither command nor queue moves, so queue groups need not be recalled.
        self.change(move |drive, now_ns| {
            drive.subsystem_mut().order_background_job(nsid, verb, &name, change, now_ns)
        })?
        .map_err(ApiError::conflict)
    }

    fn has_function(&self, number: usize) -> bool {
        self.uif(number).is_some()
    }

    fn tell_function(&self, number: usize, text: &str, quiesce: bool) -> Result<String, ApiError> {
        let function = self.uif(number).ok_or_else(closed)?;
        let text = &function.order(text).map_err(says)?;
        let quiet = if quiesce { Some(self.quiesce()?) } else { None };
        let limit = if quiesce { QUIET_ORDER_LIMIT } else { ORDER_LIMIT };
        let answer = function.uif.query(text, quiesce, limit);
        drop(quiet);
        answer.map_err(says)
    }

    fn restart_function(&self, number: usize) -> bool {
        self.uif(number).is_some_and(|function| function.uif.restart())
    }

    fn move_function(&self, number: usize, spec: &UifSpec) -> Result<(), ApiError> {
        self.uif(number).ok_or_else(closed)?.move_to(spec)
    }

    fn attach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        self.attach(spec.namespace(nsid).ok_or_else(closed)?, nsid, at, store)
    }

    fn detach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        self.detach(spec.namespace(nsid).ok_or_else(closed)?, nsid, at, store)
    }

    fn pause_target(&self, spec: &DriveSpec, nsid: u32, limit: Option<Duration>) -> Result<(), ApiError> {
        self.pause(spec.namespace(nsid).ok_or_else(closed)?, nsid, limit)
    }

    fn is_target_idle(&self, nsid: u32) -> Result<bool, ApiError> {
        self.is_clear(nsid)
    }

    fn resume_target(&self, nsid: u32) -> Result<(), ApiError> {
        self.end_pause(nsid)
    }

    fn replace_target(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        may_differ: bool,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        self.replace(spec, nsid, may_differ, store)
    }

    fn refuse_parked(&self, nsid: u32, state: AnaStateName) -> Result<(), ApiError> {
        self.end_parked(nsid, state)
    }

    fn maintenance(&self, nsid: u32) -> Result<Vec<Maintenance>, ApiError> {
        let namespaces = self.stacks();
        let stack = namespaces.get(nsid as usize - 1).and_then(|stacks| stacks.first()).ok_or_else(closed)?;
        Ok(stack.target.maintenance())
    }

    fn set_ana(&self, rules: Vec<AnaRule>) -> Result<(), ApiError> {
        self.execute(move |drive, _| drive.subsystem_mut().set_ana(rules))
    }

    fn create_namespace(
        &self,
        spec: &DriveSpec,
        created: &Created,
        creation: Creation,
    ) -> Result<(), ApiError> {
        self.make_namespace(spec, created, creation)
    }

    fn delete_namespace(&self, nsid: u32) -> Result<(), ApiError> {
        self.remove_namespace(nsid, pool::REMOVAL_LIMIT, pool::STORE_LIMIT)
    }

    fn persisted(&self, what: PersistentRecord, well: bool) -> Result<(), ApiError> {
        // A host waits for this acknowledgement. Only the drive's own reactor has it, so queue groups need
        // not be recalled.
        self.change(move |drive, now_ns| drive.subsystem_mut().persisted(what, well, now_ns))
    }

    fn move_to(&self, reactor: usize, limit: Duration) -> Result<(), ApiError> {
        let to = reactor_of(&self.reactors, reactor)?;
        self.recall_queues(None)?;
        self.task.move_to(&to, limit).map_err(|why| {
            let problem = ApiError::conflict(format!("drive `{}` stays on its reactor: {why}", self.name));
            match why {
                Immovable::Busy(_) => problem.hint("what it is on may be slow at the moment: try again"),
                _ => problem,
            }
        })
    }

    fn move_queue(&self, queue: u16, reactor: usize, limit: Duration) -> Result<(), ApiError> {
        self.move_group(queue, reactor, limit)
    }

    fn remote_queues(&self) -> Vec<(u16, usize)> {
        self.remote_queues().unwrap_or_default()
    }

    fn queues_here(&self) -> Vec<u16> {
        self.query(|drive| drive.here().collect()).unwrap_or_default()
    }

    fn reactor(&self) -> Option<usize> {
        let here = self.task.reactor();
        self.reactors.iter().position(|reactor| reactor.handle.is(&here))
    }

    fn drain(&self) -> Result<(), ApiError> {
        self.unlist();
        // Remote queue groups return by themselves.
        self.change(|drive, now_ns| drive.drain(now_ns))
    }

    fn sync(&self, limit: Duration, hurry: &AtomicBool) -> Result<Synced, ApiError> {
        self.change(|drive, now_ns| drive.subsystem_mut().sync(now_ns))?;
        let began = Instant::now();
        loop {
            match self.query(|drive| drive.subsystem().synced())? {
                Some(synced) => {
                    if synced.is_durable {
                        self.stacks().iter().flatten().for_each(|stack| stack.raise_epochs(&self.name));
                    }
                    return Ok(synced);
                }
                None if began.elapsed() >= limit || hurry.load(Relaxed) => {
                    return Err(ApiError::internal("a flush did not end: acknowledged writes may be lost")
                        .hint("daemon.drain_s is how long a daemon that stops waits"));
                }
                None => std::thread::sleep(SYNC_LOOK),
            }
        }
    }

    fn doubts(&self) -> BTreeSet<u32> {
        let namespaces = self.stacks();
        let stacks = (1..).zip(&*namespaces);
        let doubtful = |(_, stacks): &(u32, &Vec<StackControl>)| stacks.iter().any(StackControl::is_in_doubt);
        stacks.filter(doubtful).map(|(nsid, _)| nsid).collect()
    }

    fn peers(&self) -> BTreeMap<String, Option<String>> {
        self.stacks().iter().flatten().flat_map(StackControl::peers).collect()
    }

    fn close(&self) -> Result<(), ApiError> {
        self.unlist();
        let task = self.task.id();
        self.task.call(move |local| drop(local.remove(task))).map_err(gone)
    }
}

/// Returns the NSID, the number and the kind of each layer.
fn layers(drive: &Drive) -> Vec<(u32, NodeId, &'static str)> {
    let namespaces = drive.subsystem().namespaces();
    let of = |namespace: &Namespace| {
        let nsid = namespace.nsid();
        let layers = namespace.router().stack().layers();
        layers.map(|(layer, kind)| (nsid, layer, kind)).collect::<Vec<_>>()
    };
    namespaces.flat_map(of).collect()
}

fn status(drive: &Drive) -> Status {
    let subsystem = drive.subsystem();
    let counted = subsystem.statistics();
    let tcp::Status { hosts, authenticated, ciphers, .. } = tcp::Hosts::status_of(drive).unwrap_or_default();
    let clients = Socket::statuses(drive).filter(|socket| socket.connected).count();
    Status {
        connected: clients > 0 || !hosts.is_empty(),
        clients,
        hosts,
        authenticated,
        ciphers: ciphers.iter().map(ToString::to_string).collect(),
        in_flight: drive.in_flight(),
        drained: drive.is_drained(),
        queue_recalls: drive.recalls().collect(),
        counters: DriveCounters {
            commands: counted.commands,
            errors: counted.errors,
            classifier_errors: subsystem.namespaces().map(|it| it.router().counters().errors()).sum(),
            bytes_read: counted.bytes_read,
            bytes_written: counted.bytes_written,
        },
        sizes: subsystem
            .namespaces()
            .filter(|namespace| !namespace.is_created())
            .map(|namespace| Size(namespace.blocks() << namespace.block_shift()))
            .collect(),
        block_sizes: subsystem
            .namespaces()
            .filter(|namespace| !namespace.is_created())
            .map(|namespace| namespace.block_size())
            .collect(),
        created: subsystem
            .namespaces()
            .filter(|namespace| namespace.is_created())
            .map(|namespace| CreatedStatus {
                nsid: namespace.nsid(),
                size: Size(namespace.blocks() << namespace.block_shift()),
                block_size: namespace.block_size(),
            })
            .collect(),
    }
}

/// Returns the sizes of a namespace's files in bytes, path by path.
fn file_sizes(stacks: &[StackControl]) -> Result<Vec<Option<Size>>, ApiError> {
    stacks.iter().map(|stack| stack.target.file_size()).collect()
}

/// Restores the previous sizes of files. The parts that were cut off read as zeros.
fn restore_files(stacks: &[StackControl], before: &[Option<Size>]) -> Result<(), ApiError> {
    for (stack, before) in stacks.iter().zip(before) {
        // Files that kept their size are left alone: that size may be why they could not shrink.
        if let Some(size) = before
            && stack.target.file_size()? < *before
        {
            stack.target.resize(*size)?;
        }
    }
    Ok(())
}

/// Returns the problem for targets that could not shrink after their namespace had. `back` is the outcome of
/// undoing that.
fn not_shrunk(mut problem: ApiError, nsid: u32, size: Size, back: Result<Size, ApiError>) -> ApiError {
    if let Err(why) = back {
        problem.error = format!("{}; and namespace {nsid} stays at {size}: {}", problem.error, why.error);
    }
    problem
}

fn target_size(subsystem: &Subsystem, nsid: u32) -> Size {
    let found = subsystem.namespaces().find(|namespace| namespace.nsid() == nsid);
    found.map_or(Size(0), |namespace| Size(namespace.router().stack().target_size()))
}

/// Returns the problem for a function's answer that is an error.
fn says(words: String) -> ApiError {
    ApiError::conflict(format!("the function says: {words}"))
}
