//! The joint between the drives as users know them and the parts that make them work.

use super::{ClassifierStatus, DeviceView, FunctionView, Remembered, ToKeep};
use crate::state::Created;
use serde::{Deserialize, Serialize};
use sluice_classifier::Map;
use sluice_controller::{AnaRule, Creation, PersistentRecord, Synced};
use sluice_reactor::Progress;
use sluice_spec::problem::Problem;
use sluice_spec::size::Size;
use sluice_spec::{ClassifierSpec, DriveSpec, UifSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use utoipa::ToSchema;

/// Builds drives out of targets, functions, controllers and front-ends.
///
/// Who checks what: a spec that arrives was checked by itself ([`DriveSpec::check`]), its name is free
/// and its reactor exists. Everything that only opening can tell (files, locks, memory) is checked here.
pub trait Engine: Send + Sync {
    /// Opens a drive's targets and listens at its socket. Blocks for as long as a file takes. The classifier is
    /// loaded, but decides on nothing in the namespaces that it was detached from.
    fn open(
        &self,
        spec: &DriveSpec,
        reactor: usize,
        remembered: &Remembered,
    ) -> Result<Arc<dyn Running>, Problem>;

    /// Names drives as their classifiers are detached for their errors. To be taken once.
    fn detachments(&self) -> Option<Receiver<String>> {
        None
    }

    /// What controllers want remembered, which then wait for [`Running::kept`]. To be taken once.
    fn to_keep(&self) -> Option<Receiver<ToKeep>> {
        None
    }

    /// Waits until the controllers that closed drives were on are shut down. Returns how many are not after `limit`.
    fn await_shutdowns(&self, limit: Duration) -> usize {
        let _ = limit;
        0
    }

    /// What each reactor has counted.
    fn reactors(&self) -> Vec<ReactorCounters>;

    /// How far each reactor is.
    fn progress(&self) -> Vec<Progress> {
        Vec::new()
    }
}

/// Puts a classifier to use that was loaded.
pub type ReadyClassifier<'a> = Box<dyn FnOnce() -> Result<(), Problem> + 'a>;

/// Has a change remembered.
pub type Store<'a> = &'a mut dyn FnMut() -> Result<(), Problem>;

/// A drive at work. Every method may block until its reactor has answered.
pub trait Running: Send + Sync {
    /// A number that no other drive has had, nor this one when it was opened before.
    fn life(&self) -> u64;

    fn status(&self) -> Result<Status, Problem>;

    /// Returns true if it is the reactors' task of this index.
    fn is_task(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// Bytes of a namespace's target, which may have more than the guest sees: a resize to less would cut
    /// something off.
    fn target_size(&self, nsid: u32) -> Result<Size, Problem> {
        Ok(self.status()?.sizes.get(nsid as usize - 1).copied().unwrap_or_default())
    }

    /// Makes the target of a namespace `size` bytes large, and tells the guest if it sees that.
    fn resize(&self, nsid: u32, size: Size) -> Result<(), Problem>;

    /// Loads a classifier, or none, which the answer puts to use when it is called. With `fresh_maps` it
    /// begins with maps of its own; else it takes over those of the one before it.
    fn prepare_classifier(
        &self,
        spec: Option<&ClassifierSpec>,
        fresh_maps: bool,
    ) -> Result<ReadyClassifier<'_>, Problem>;

    /// What the classifier does, if there is one.
    fn classifier(&self) -> Result<Option<ClassifierStatus>, Problem>;

    /// The maps of the classifier, if there is one. They can be read and changed from any thread.
    fn maps(&self) -> Option<Vec<Arc<Map>>>;

    /// The NVMe devices behind it.
    fn devices(&self) -> Vec<DeviceView> {
        Vec::new()
    }

    /// Its functions behind the function SDK.
    fn functions(&self) -> Vec<FunctionView> {
        Vec::new()
    }

    /// If it has one of this number, counted from 1.
    fn has_function(&self, number: usize) -> bool {
        let _ = number;
        false
    }

    /// Tells one of them something, and returns its answer. With `quiesce` no command of the drive is in flight
    /// meanwhile, on any path.
    fn tell_function(&self, number: usize, text: &str, quiesce: bool) -> Result<String, Problem> {
        let _ = (text, quiesce);
        Err(Problem::not_found(format!("there is no function {number}")))
    }

    /// Restarts one of them, if it is in a process; whether it is.
    fn restart_function(&self, number: usize) -> bool {
        let _ = number;
        false
    }

    /// Moves one of them to where it is to be now, under load; everything else of it is as it was.
    fn move_function(&self, number: usize, spec: &UifSpec) -> Result<(), Problem> {
        let _ = spec;
        Err(Problem::not_found(format!("there is no function {number}")))
    }

    /// Attaches the function that the drive shall have in a namespace at this place of its stack, counted from the
    /// top. No command is lost, and none is seen halfway. `store` has it remembered: when it serves, and before it
    /// gets a command.
    fn attach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), Problem> {
        let _ = (spec, nsid, at, store);
        Err(Problem::conflict("this drive has no functions"))
    }

    /// Detaches the one that it has there. `store` has that remembered: when it is known that it can be done, and
    /// before a command goes by without it.
    fn detach_function(
        &self,
        spec: &DriveSpec,
        nsid: u32,
        at: usize,
        store: Store<'_>,
    ) -> Result<(), Problem> {
        let _ = (spec, nsid, at, store);
        Err(Problem::conflict("this drive has no functions"))
    }

    /// Its ANA groups are in these states from now on, and otherwise optimized.
    fn set_ana(&self, rules: Vec<AnaRule>) -> Result<(), Problem> {
        let _ = rules;
        Ok(())
    }

    /// Makes the namespace that a host creates, of zeros, and hands it over: the drive has it when that is stored.
    fn create_namespace(
        &self,
        spec: &DriveSpec,
        created: &Created,
        creation: Creation,
    ) -> Result<(), Problem> {
        let _ = (spec, created, creation);
        Err(Problem::conflict("this drive has no pool"))
    }

    /// Deletes a namespace that a host has created, when its commands have ended.
    fn delete_namespace(&self, nsid: u32) -> Result<(), Problem> {
        Err(Problem::not_found(format!("no host has created a namespace {nsid}")))
    }

    /// What its controller wanted remembered is, or `well` is false.
    fn kept(&self, what: PersistentRecord, well: bool) -> Result<(), Problem> {
        let _ = (what, well);
        Ok(())
    }

    /// Goes to another reactor, counted from zero, at work; whoever has it sees a short pause, and no error. Stays if
    /// its reads and writes do not end within `limit`.
    fn move_to(&self, reactor: usize, limit: Duration) -> Result<(), Problem> {
        let _ = (reactor, limit);
        Err(Problem::conflict("this drive does not move"))
    }

    /// One of its queue groups goes to another reactor, by its completion queue; the drive stays where it is. It comes back when
    /// something is to be done that takes all queues.
    fn move_queue(&self, queue: u16, reactor: usize, limit: Duration) -> Result<(), Problem> {
        let _ = (queue, reactor, limit);
        Err(Problem::conflict("queues of this drive do not move"))
    }

    /// Completion queues whose groups are on other reactors, and on which.
    fn queues_away(&self) -> Vec<(u16, usize)> {
        Vec::new()
    }

    /// Completion queues that are where the drive is, of a virtual machine.
    fn queues_here(&self) -> Vec<u16> {
        Vec::new()
    }

    /// The reactor that it is on now, if it is one that moves.
    fn reactor(&self) -> Option<usize> {
        None
    }

    /// Begins the end: the socket is gone and nothing new begins. What is in flight goes on, and the client
    /// is told of its end and disconnected. [`Status::drained`] tells when that is over.
    fn drain(&self) -> Result<(), Problem>;

    /// Flushes all that is cached of a drive that was drained, whether hosts have or not; waits for `limit` at most, or until
    /// `hurry` is set.
    fn sync(&self, limit: Duration, hurry: &AtomicBool) -> Result<Synced, Problem> {
        let _ = (limit, hurry);
        Ok(Synced { is_durable: true, ..Synced::default() })
    }

    /// NSIDs of namespaces with acknowledged writes that may be lost, of which perhaps no host was told.
    fn doubts(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// The controllers that its data is on, with the power identifier that each gave when it was opened, in hexadecimal.
    fn peers(&self) -> BTreeMap<String, Option<String>> {
        BTreeMap::new()
    }

    /// Closes the files of a drive that was drained, or whose commands nobody waits for any more.
    fn close(&self) -> Result<(), Problem>;
}

/// What a drive is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// A client (a virtual machine, or a host on the network) is there.
    pub connected: bool,
    /// Virtual machines that are.
    pub clients: usize,
    /// NVMe Qualified Names of the hosts on the network that are; of one that is there twice, twice.
    pub hosts: Vec<String>,
    /// Those of them that proved who they are.
    pub authenticated: Vec<String>,
    /// What the connections of each are encrypted with; none if they are not.
    pub ciphers: Vec<String>,
    /// Commands in flight; requests for events, which a guest always has some of, do not count.
    pub in_flight: u32,
    /// Told to [`drain`](Running::drain), and nothing is in flight any more, and nobody there.
    pub drained: bool,
    /// What brought queues home from other reactors, and how often.
    pub called_home: Vec<(&'static str, u64)>,
    pub counters: DriveCounters,
    /// Bytes of each namespace, in the order of the spec.
    pub sizes: Vec<Size>,
    /// Bytes of a block of each namespace, likewise.
    pub block_sizes: Vec<u32>,
    /// Namespaces that hosts have created.
    pub created: Vec<CreatedStatus>,
}

/// A namespace that a host has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedStatus {
    pub nsid: u32,
    pub size: Size,
    /// Bytes.
    pub block_size: u32,
}

/// What a drive has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriveCounters {
    /// I/O commands completed.
    pub commands: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Commands, or steps of one, that failed because of the drive's classifier.
    #[serde(default)]
    pub classifier_errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// What a reactor has counted since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReactorCounters {
    /// Counted from zero, as drives name it.
    pub reactor: usize,
    /// The processor it is bound to; none if the kernel places it.
    pub core: Option<usize>,
    /// Turns of the loop.
    pub turns: u64,
    /// Turns that found work.
    pub busy_turns: u64,
    /// Commands, doorbells and messages that were worked on.
    pub commands: u64,
    /// Looks at a drive that found nothing.
    pub spurious_polls: u64,
    /// Times the thread went to sleep.
    pub sleeps: u64,
    /// Times a single drive was put to sleep.
    pub drive_sleeps: u64,
    /// Times a sleeping drive was woken.
    pub wakes: u64,
    /// Times a drive had to wait that was woken again and again for a time at which it did nothing: a fault of Sluice's,
    /// if it is not zero.
    #[serde(default)]
    pub overdue: u64,
    /// Entries into the kernel.
    pub syscalls: u64,
    /// Of these: looks at a socket that found nothing, while there was nothing else to do.
    #[serde(default)]
    pub vain_receives: u64,
    /// The longest turn, nanoseconds; up to sixteen turns that find nothing count as one.
    pub longest_turn_ns: u64,
    /// Time spent in turns that found work, nanoseconds: its load is what of an interval was spent so.
    #[serde(default)]
    pub busy_ns: u64,
    /// Time spent in turns that found nothing, nanoseconds.
    pub spin_ns: u64,
    /// Time spent asleep, nanoseconds.
    pub sleep_ns: u64,
    /// How long a drive is polled without work now, nanoseconds: less than configured while the core
    /// is shared.
    pub spin_budget_ns: u64,
    /// With `daemon.watch_turns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<WatchedTurns>,
}

/// What a reactor's turns spent their time on. Processor time is what the kernel charged its thread for: without what
/// other threads had, or the hypervisor took and said so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchedTurns {
    /// The eight turns that took the most processor time, the most first.
    pub longest: Vec<WatchedTurn>,
    /// The longest that a turn was kept from its processor, or from beginning when the reactor was woken, nanoseconds.
    pub away_ns: u64,
    /// How often turns waited for something of their own will.
    pub waits: u64,
    /// The longest that a turn was kept from its processor in which it did.
    pub waited_ns: u64,
}

/// A turn of a reactor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchedTurn {
    /// When it began, nanoseconds of the machine's monotonic clock, and how long it took by that.
    pub began_ns: u64,
    pub took_ns: u64,
    /// The processor on which it ended.
    pub processor: u64,
    /// Its processor time, nanoseconds; told up to 50 us too long.
    pub own_ns: u64,
    /// What it consisted of, by the clock: what io_uring had completed.
    pub events_ns: u64,
    /// The drives' turns.
    pub drives_ns: u64,
    /// What the control plane wanted.
    pub mails_ns: u64,
    /// What had waited for a time.
    pub times_ns: u64,
    /// What io_uring was given.
    pub submit_ns: u64,
    /// Page faults in it.
    pub faults: u64,
}
