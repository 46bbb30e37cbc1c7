//! The joint between drives as users see them and the parts that make them work.

use super::upgrade::HandedOver;
use super::{
    CacheView, ClassifierStatus, DeviceView, DriveCounts, FunctionJobs, FunctionView, PersistRequest,
    Remembered,
};
use crate::state::Created;
use serde::{Deserialize, Serialize};
use sluice_classifier::Map;
use sluice_controller::{
    AnaRule, Creation, OperationLatency, PersistentRecord, SlowCommand, Synced, TraceChoice, TraceRing,
};
use sluice_functions::{GroupRefused, GroupStatus, QosLimits, QosWaits};
use sluice_jobs::{PaceChange, Verb};
use sluice_reactor::Progress;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{AnaStateName, ClassifierSpec, DriveSpec, SharedKind, UifSpec};
use sluice_targets::Maintenance;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use utoipa::ToSchema;

/// Builds drives from targets, functions, controllers and front-ends.
///
/// The caller has checked the spec by itself ([`DriveSpec::check`]), that its name is free and that its
/// reactor exists. The engine checks everything that only an open can find out (files, locks, memory).
pub trait Engine: Send + Sync {
    /// Opens a drive's targets and listens at its socket. Blocks for as long as a file takes. The classifier
    /// is loaded, but gets no command of the namespaces that it was detached from.
    fn open(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: &Remembered,
    ) -> Result<Arc<dyn Running>, ApiError>;

    /// Returns whether another process has handed over the drive that is about to be opened.
    fn is_incoming(&self, drive: &str) -> bool {
        let _ = drive;
        false
    }

    /// Returns the channel with names of drives whose classifiers are detached for their errors. It can be
    /// taken once.
    fn detachments(&self) -> Option<Receiver<String>> {
        None
    }

    /// Returns the channel with records that controllers need stored. A controller then waits for
    /// [`Running::persisted`]. The channel can be taken once.
    fn persist_requests(&self) -> Option<Receiver<PersistRequest>> {
        None
    }

    /// Waits until the remote controllers of closed drives are shut down. Returns the number that are not
    /// after `limit`.
    fn await_shutdowns(&self, limit: Duration) -> usize {
        let _ = limit;
        0
    }

    /// Returns the counters of each reactor.
    fn reactors(&self) -> Vec<ReactorCounters>;

    /// Returns the shared objects. Blocks until their reactors have replied.
    fn shared(&self) -> Result<Vec<SharedView>, ApiError> {
        Ok(Vec::new())
    }

    /// Returns the size that a thin pool would be grown to: `size`, or that of its file or device. Changes nothing. Blocks.
    fn plan_growth(&self, pool: &str, size: Option<Size>) -> Result<Size, ApiError> {
        let _ = size;
        Err(ApiError::not_found(format!("there is no shared object `{pool}`")))
    }

    /// Grows a thin pool, with its file, under running drives. Blocks.
    fn grow_shared(&self, pool: &str, size: Size) -> Result<(), ApiError> {
        self.plan_growth(pool, Some(size)).map(drop)
    }

    /// Opens a thin pool that did not open. Blocks.
    fn retry_shared(&self, pool: &str) -> Result<(), ApiError> {
        self.plan_growth(pool, None).map(drop)
    }

    /// Brings a thin pool to rest whose drives are suspended, so that another process can open it. Blocks.
    fn settle_shared(&self, pool: &str) -> Result<(), ApiError> {
        self.plan_growth(pool, None).map(drop)
    }

    /// Opens the thin pools that no drive has opened, after another process has given them up. Blocks.
    fn open_shared(&self) {}

    /// Returns the volumes of a thin pool, with the bytes that only they have. Blocks.
    fn volumes(&self, pool: &str) -> Result<Vec<VolumeView>, ApiError> {
        self.plan_growth(pool, None).map(|_| Vec::new())
    }

    /// Makes a volume of a thin pool with the content of another one, in use or not. Blocks.
    fn clone_volume(&self, pool: &str, from: &str, to: &str) -> Result<(), ApiError> {
        let _ = (from, to);
        self.plan_growth(pool, None).map(drop)
    }

    /// Deletes a volume of a thin pool that no namespace uses. Blocks.
    fn delete_volume(&self, pool: &str, volume: &str) -> Result<(), ApiError> {
        let _ = volume;
        self.plan_growth(pool, None).map(drop)
    }

    /// Creates a group, or changes its limits.
    fn set_group(&self, name: &str, limits: QosLimits) -> Result<(), GroupRefused> {
        let _ = (name, limits);
        Ok(())
    }

    /// Removes a group without members.
    fn remove_group(&self, name: &str) -> Result<(), GroupRefused> {
        let _ = name;
        Ok(())
    }

    /// Returns the groups with their use. Waits for no reactor.
    fn groups(&self) -> Vec<GroupStatus> {
        Vec::new()
    }

    /// Returns the progress of each reactor.
    fn progress(&self) -> Vec<Progress> {
        Vec::new()
    }
}

fn is_zero(size: &Size) -> bool {
    size.0 == 0
}

/// A shared object with its use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SharedView {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: SharedKind,
    /// Reactor on which the object is.
    pub reactor: usize,
    /// Bytes of the object.
    pub size: Size,
    /// Bytes that no drive has, neither in use nor in advance.
    pub free: Size,
    /// Number of namespaces that use the object.
    pub users: usize,
    /// Bytes that the device of a thin pool does not write. They are left out until the pool is opened again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bad: Size,
    /// Volumes of a thin pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeView>,
    /// Reason for which the object is not open, or changes nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A volume of a thin pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    pub name: String,
    /// Bytes of the volume.
    pub size: Size,
    /// Bytes of its extents. Volumes may share extents.
    pub allocated: Size,
    /// Bytes that no other volume has: a deletion gives them back. Only in the list of one pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<Size>,
    /// Whether a namespace uses the volume.
    pub in_use: bool,
}

/// Activates a loaded classifier.
pub type ReadyClassifier<'a> = Box<dyn FnOnce() -> Result<(), ApiError> + 'a>;

/// Stores a change.
pub type Store<'a> = &'a mut dyn FnMut() -> Result<(), ApiError>;

/// A running drive. Every method may block until its reactor has replied.
pub trait Running: Send + Sync {
    /// Returns a number that is unique among all drives, and among all opens of this drive.
    fn generation(&self) -> u64;

    fn status(&self) -> Result<Status, ApiError>;

    /// Returns whether the drive is the reactors' task of this index.
    fn is_task(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// Returns the size of a namespace's target. The target may be larger than the namespace of the guest: a
    /// resize to less would cut data off.
    fn target_size(&self, nsid: u32) -> Result<Size, ApiError> {
        Ok(self.status()?.sizes.get(nsid as usize - 1).copied().unwrap_or_default())
    }

    /// Resizes the target of a namespace to `size`, and notifies the guest if the size of its namespace
    /// changes.
    fn resize(&self, nsid: u32, size: Size) -> Result<(), ApiError>;

    /// Sets the limits of a function of a namespace, by its index among the functions with limits. Waits for no reactor.
    fn set_limits(&self, nsid: u32, index: usize, limits: QosLimits) -> Result<(), ApiError> {
        let _ = (nsid, index, limits);
        Ok(())
    }

    /// Returns the counters of the drive's caches. Waits for no reactor.
    fn caches(&self) -> Vec<CacheView> {
        Vec::new()
    }

    /// Returns the commands over the limits of a namespace's functions, in the order of the functions with limits.
    fn waits(&self, nsid: u32) -> Vec<QosWaits> {
        let _ = nsid;
        Vec::new()
    }

    /// Loads a classifier, or none; calling the result activates it. With `fresh_maps` the classifier gets
    /// new maps, else it takes over those of the classifier before it.
    fn prepare_classifier(
        &self,
        spec: Option<&ClassifierSpec>,
        fresh_maps: bool,
    ) -> Result<ReadyClassifier<'_>, ApiError>;

    /// Returns the status of the classifier, if there is one.
    fn classifier(&self) -> Result<Option<ClassifierStatus>, ApiError>;

    /// Returns the maps of the classifier, if there is one. They can be read and changed from any thread.
    fn maps(&self) -> Option<Vec<Arc<Map>>>;

    /// Returns the histograms of the drive's commands; none if they are not measured. Waits for no reactor.
    fn latency(&self) -> Vec<OperationLatency> {
        Vec::new()
    }

    /// Returns the counters of the drive's namespaces, queues and layers; none if they are not measured. Waits for its
    /// reactor.
    fn counts(&self) -> Result<DriveCounts, ApiError> {
        Ok(DriveCounts::default())
    }

    /// Returns the number of slow commands since the open, and takes the slowest one since the last call. Waits for no
    /// reactor.
    fn take_slowest(&self) -> (u64, Option<SlowCommand>) {
        (0, None)
    }

    /// Begins a trace of commands, which the ring passes on until it is dropped or not read.
    ///
    /// # Errors
    /// The drive is traced already.
    fn begin_trace(&self, choice: TraceChoice) -> Result<Arc<TraceRing>, ApiError> {
        let _ = choice;
        Err(ApiError::conflict("the commands of this drive cannot be traced"))
    }

    /// Returns the number of times that a first client came or the last one went. Waits for no reactor.
    fn client_transitions(&self) -> u64 {
        0
    }

    /// Returns the NVMe devices behind the drive.
    fn devices(&self) -> Vec<DeviceView> {
        Vec::new()
    }

    /// Returns the drive's functions behind the function SDK.
    fn functions(&self) -> Vec<FunctionView> {
        Vec::new()
    }

    /// Returns the background work of the drive's controller and functions. Waits at most `limit` for the
    /// answers of functions.
    fn jobs(&self, limit: Duration) -> Vec<FunctionJobs> {
        let _ = limit;
        Vec::new()
    }

    /// Executes an order for a job that a host ordered from the controller.
    fn order_controller(
        &self,
        nsid: u32,
        verb: Verb,
        name: &str,
        change: PaceChange,
    ) -> Result<(), ApiError> {
        let _ = (nsid, verb, change);
        Err(ApiError::conflict(format!("the job {name} does not run")))
    }

    /// Returns whether the drive has a function of this number, counted from 1.
    fn has_function(&self, number: usize) -> bool {
        let _ = number;
        false
    }

    /// Sends a text to a function, and returns its reply. With `quiesce` no command of the drive is in flight
    /// meanwhile, on any path.
    fn tell_function(&self, number: usize, text: &str, quiesce: bool) -> Result<String, ApiError> {
        let _ = (text, quiesce);
        Err(ApiError::not_found(format!("there is no function {number}")))
    }

    /// Restarts a function if it is in a process. Returns whether it is.
    fn restart_function(&self, number: usize) -> bool {
        let _ = number;
        false
    }

    /// Moves a function to the place of `spec`, under load. Its other options are unchanged.
    fn move_function(&self, number: usize, spec: &UifSpec) -> Result<(), ApiError> {
        let _ = spec;
        Err(ApiError::not_found(format!("there is no function {number}")))
    }

    /// Attaches the function that `spec` has at index `at` of a namespace's stack, counted from the top. No
    /// command is lost, and none is seen halfway. `store` stores the change when the function is ready,
    /// before it gets a command.
    fn attach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        let _ = (spec, nsid, at, store);
        Err(ApiError::conflict("this drive has no functions"))
    }

    /// Detaches the function that `spec` has at index `at` of a namespace's stack. `store` stores the change
    /// when the detach is certain to succeed, before a command bypasses the function.
    fn detach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        let _ = (spec, nsid, at, store);
        Err(ApiError::conflict("this drive has no functions"))
    }

    /// Pauses the target of a namespace that `spec` describes: commands wait over it, or fail after `limit`.
    fn pause_target(&self, spec: &DriveSpec, nsid: u32, limit: Option<Duration>) -> Result<(), ApiError> {
        let _ = (spec, nsid, limit);
        Err(ApiError::conflict("the targets of this drive cannot be paused"))
    }

    /// Returns whether nothing is in a paused target any more, so that its data stays as it is.
    fn is_target_idle(&self, nsid: u32) -> Result<bool, ApiError> {
        let _ = nsid;
        Ok(false)
    }

    /// Lets the commands of a paused target go on.
    fn resume_target(&self, nsid: u32) -> Result<(), ApiError> {
        Err(ApiError::conflict(format!("the target of namespace {nsid} is not paused")))
    }

    /// Puts the target that `spec` describes for a namespace in the place of the present one, which is paused. It must
    /// be the same storage unless it `may_differ`. `store` stores the change before it is made. The target stays
    /// paused.
    fn replace_target(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        may_differ: bool,
        store: Store<'_>,
    ) -> Result<(), ApiError> {
        let _ = (spec, nsid, may_differ, store);
        Err(ApiError::conflict("the targets of this drive cannot be replaced"))
    }

    /// Ends the commands that wait at a paused target, with the status of its ANA state.
    fn refuse_parked(&self, nsid: u32, state: AnaStateName) -> Result<(), ApiError> {
        let _ = (nsid, state);
        Ok(())
    }

    /// Returns the controllers behind the target of a namespace, one for each path to it; none if the daemon drives
    /// none.
    fn maintenance(&self, nsid: u32) -> Result<Vec<Maintenance>, ApiError> {
        let _ = nsid;
        Ok(Vec::new())
    }

    /// Sets the states of the drive's ANA groups. Groups without a rule are optimized.
    fn set_ana(&self, rules: Vec<AnaRule>) -> Result<(), ApiError> {
        let _ = rules;
        Ok(())
    }

    /// Makes the namespace that a host creates, filled with zeros. It becomes visible when its creation is
    /// stored.
    fn create_namespace(
        &self,
        spec: &DriveSpec,
        created: &Created,
        creation: Creation,
    ) -> Result<(), ApiError> {
        let _ = (spec, created, creation);
        Err(ApiError::conflict("this drive has no pool"))
    }

    /// Deletes a namespace that a host has created, when its commands have ended.
    fn delete_namespace(&self, nsid: u32) -> Result<(), ApiError> {
        Err(ApiError::not_found(format!("no host has created a namespace {nsid}")))
    }

    /// Reports that a record which the controller needed stored is stored, or with `well` false that it is
    /// not.
    fn persisted(&self, what: PersistentRecord, well: bool) -> Result<(), ApiError> {
        let _ = (what, well);
        Ok(())
    }

    /// Moves the drive to another reactor, counted from zero, under load. Hosts see a short pause, and no
    /// error. The drive stays if its reads and writes do not end within `limit`.
    fn move_to(&self, reactor: usize, limit: Duration) -> Result<(), ApiError> {
        let _ = (reactor, limit);
        Err(ApiError::conflict("this drive does not move"))
    }

    /// Moves the queue group of a completion queue to another reactor, while the drive stays. The group
    /// returns when an operation needs all queues.
    fn move_queue(&self, queue: u16, reactor: usize, limit: Duration) -> Result<(), ApiError> {
        let _ = (queue, reactor, limit);
        Err(ApiError::conflict("queues of this drive do not move"))
    }

    /// Returns the completion queues whose groups are on other reactors, each with its reactor.
    fn remote_queues(&self) -> Vec<(u16, usize)> {
        Vec::new()
    }

    /// Returns the completion queues of a virtual machine that are on the drive's own reactor.
    fn queues_here(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Returns the reactor that the drive is on now, if the drive can move.
    fn reactor(&self) -> Option<usize> {
        None
    }

    /// Checks whether another process can take the drive over. Nothing is touched.
    fn may_hand_over(&self) -> Result<(), ApiError> {
        Err(ApiError::conflict("it stays with its process"))
    }

    /// Suspends the drive, and returns its record for another process. The drive goes on if that fails.
    fn hand_over(&self) -> Result<HandedOver, ApiError> {
        self.may_hand_over().and(Err(ApiError::conflict("it stays with its process")))
    }

    /// Lets a drive go on that was handed over in vain, or taken over.
    fn go_on(&self) -> Result<(), ApiError> {
        Ok(())
    }

    /// Brings back the functions that have left a drive which was handed over in vain. Blocks.
    fn bring_functions_back(&self) {}

    /// Has the records of the drive kept by a holder that is new, if there is one.
    fn keep_again(&self) -> Result<(), ApiError> {
        Ok(())
    }

    /// Starts the end of the drive. The socket is removed, and no new command begins. Commands in flight
    /// complete, then the client is notified and disconnected. [`Status::drained`] shows when that is over.
    fn drain(&self) -> Result<(), ApiError>;

    /// Flushes all cached writes of a drained drive, whether hosts flushed them or not. Waits at most
    /// `limit`, or until `hurry` is set.
    fn sync(&self, limit: Duration, hurry: &AtomicBool) -> Result<Synced, ApiError> {
        let _ = (limit, hurry);
        Ok(Synced { is_durable: true, ..Synced::default() })
    }

    /// Returns the NSIDs of namespaces with acknowledged writes that may be lost, without a host having been
    /// notified.
    fn doubts(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// Returns the controllers that hold the drive's data, with the power identifier of each at the open, in
    /// hexadecimal.
    fn peers(&self) -> BTreeMap<String, Option<String>> {
        BTreeMap::new()
    }

    /// Closes the files of a drive that was drained, or whose commands are not waited for any longer.
    fn close(&self) -> Result<(), ApiError>;
}

/// Current activity of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether a client (a virtual machine, or a host on the network) is connected.
    pub connected: bool,
    /// Number of virtual machines that are connected.
    pub clients: usize,
    /// NVMe Qualified Names of the connected hosts on the network. A host that is connected twice is listed
    /// twice.
    pub hosts: Vec<String>,
    /// NVMe Qualified Names of the hosts that are authenticated.
    pub authenticated: Vec<String>,
    /// TLS cipher suite of each host's connections; empty if the drive is served without TLS.
    pub ciphers: Vec<String>,
    /// Commands in flight. Asynchronous Event Requests do not count, since a guest always has some.
    pub in_flight: u32,
    /// Whether [`drain`](Running::drain) was called, no command is in flight, and no client is connected.
    pub drained: bool,
    /// Causes that returned queues from other reactors, each with its count.
    pub queue_recalls: Vec<(&'static str, u64)>,
    pub counters: DriveCounters,
    /// Size of each namespace, in the order of the spec.
    pub sizes: Vec<Size>,
    /// Block size of each namespace in bytes, in the order of the spec.
    pub block_sizes: Vec<u32>,
    /// Namespaces that hosts have created.
    pub created: Vec<CreatedStatus>,
}

/// A namespace that a host has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedStatus {
    pub nsid: u32,
    pub size: Size,
    /// Block size in bytes.
    pub block_size: u32,
}

/// Counters of a drive since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveCounters {
    /// I/O commands completed.
    pub commands: u64,
    /// I/O commands that failed.
    pub errors: u64,
    /// Commands, or steps of one, that failed because of the drive's classifier.
    #[serde(default)]
    pub classifier_errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Counters of a reactor since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReactorCounters {
    /// Number of the reactor, counted from zero, as in the configuration of drives.
    pub reactor: usize,
    /// The processor it is bound to; none if the kernel places it.
    pub core: Option<usize>,
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that found work.
    pub busy_turns: u64,
    /// Commands, doorbells and messages that were processed.
    pub commands: u64,
    /// Polls of a drive that found no work.
    pub spurious_polls: u64,
    /// Times the thread went to sleep.
    pub sleeps: u64,
    /// Times a single drive was put to sleep.
    pub drive_sleeps: u64,
    /// Times a sleeping drive was woken.
    pub wakes: u64,
    /// Times a drive was made to wait because it was woken repeatedly for a time at which it had no work. A
    /// value other than zero is a fault of Sluice.
    #[serde(default)]
    pub overdue: u64,
    /// Entries into the kernel.
    pub syscalls: u64,
    /// Entries into the kernel that polled a socket without data, while there was no other work.
    #[serde(default)]
    pub vain_receives: u64,
    /// The longest turn, nanoseconds. Up to sixteen turns without work count as one.
    pub longest_turn_ns: u64,
    /// Time spent in turns that found work, nanoseconds. Its share of an interval is the reactor's load.
    #[serde(default)]
    pub busy_ns: u64,
    /// Time spent in turns without work, nanoseconds.
    pub spin_ns: u64,
    /// Time spent asleep, nanoseconds.
    pub sleep_ns: u64,
    /// Time that a drive is polled without work before it sleeps, nanoseconds. It is less than configured
    /// while the core is shared.
    pub spin_budget_ns: u64,
    /// Measurements of turns, if `daemon.watch_turns` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<WatchedTurns>,
}

/// Time that a reactor's turns took, by part. Processor time is the time that the kernel charged to the
/// thread. It excludes time of other threads, and time that the hypervisor reports as stolen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchedTurns {
    /// The eight turns that took the most processor time, the longest first.
    pub longest: Vec<WatchedTurn>,
    /// The longest time that a turn was kept from its processor, or that a woken reactor was kept from its
    /// turn, nanoseconds.
    pub away_ns: u64,
    /// Number of voluntary waits of turns.
    pub waits: u64,
    /// The longest time that a turn with a voluntary wait was kept from its processor, nanoseconds.
    pub waited_ns: u64,
}

/// A turn of a reactor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchedTurn {
    /// Begin of the turn on the machine's monotonic clock, and its duration by that clock, nanoseconds.
    pub began_ns: u64,
    pub took_ns: u64,
    /// The processor on which the turn ended.
    pub processor: u64,
    /// Processor time of the turn, nanoseconds. It may be up to 50 us too high.
    pub own_ns: u64,
    /// Time for completions of io_uring, nanoseconds by the clock.
    pub events_ns: u64,
    /// Time for the drives' turns, nanoseconds.
    pub drives_ns: u64,
    /// Time for requests of the control plane, nanoseconds.
    pub mails_ns: u64,
    /// Time for expired timers, nanoseconds.
    pub times_ns: u64,
    /// Time for submissions to io_uring, nanoseconds.
    pub submit_ns: u64,
    /// Page faults in the turn.
    pub faults: u64,
}
