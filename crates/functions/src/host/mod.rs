//! Functions behind the function SDK, in this process or in one of their own.
//!
//! The layer ([`Uif`]) copies the data of a command into a buffer of the drive's arena and sends the function
//! an entry for it. The function's reply finishes the command, sends it below, or sends it below and has it
//! returned. Below the layer the command has the buffer instead of the host's memory. A function in this process
//! is called instead, and its answer is a value.
//!
//! A function's process is not trusted. It can write anything into the rings and the arena, signal or not,
//! answer or not, and exit. It can reach the data of the commands that it was sent. It can fail these
//! commands, return wrong data for them, and hold them until the deadline, at which the process is killed.
//! The supervisor then starts another process, on a thread of its own, because starting may block.

mod arena;
mod commands;
mod control;
mod deferred_close;
pub mod entry;
mod eventfds;
mod flow;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handshake;
mod instance;
mod layer;
mod local;
mod messages;
mod moving;
mod peer;
mod request;
mod start;
mod supervisor;
mod translate;
mod unreported_loss;

#[cfg(test)]
mod tests;

use crate::SizeOf;
use control::{Order, OrderResult, OrderState};
use instance::InstanceSlot;
pub use layer::Uif;
use sluice_nvme::Status;
use sluice_uif::abi::{CONTROL_BYTES, OTHERS_MAX, POOL_MAX, SCRATCH_MAX};
use sluice_uif::{Failure, Function, Options, Properties};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use supervisor::Supervisor;
pub use supervisor::{Launch, Program};
pub use translate::Translations;

/// Bytes of a drive's arena; the arena takes memory only once it is used.
pub const ARENA_BYTES: usize = 8 << 20;

/// Commands that a function process has at a time.
pub const COMMANDS: u16 = 256;

/// Entries of each ring.
const ENTRIES: u32 = 512;

/// Longest time until a function is ready: a function may have to recover its stored state.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// Times that one command returns to its function, at most. A command that is longer than its buffer may
/// return once more for each further part.
pub const RETURNS_MAX: u32 = 64;

/// Time that a function has for a command, unless the operator configures another.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Treatment of a function's commands when the function exits or does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeath {
    /// Commands fail until the function is back.
    Fail,
    /// Commands wait until the function is back, and begin anew.
    #[default]
    Park,
}

/// Options of a function, and limits of its layer.
#[derive(Debug)]
pub struct UifConfig {
    /// Name of the drive, for the log.
    pub name: String,
    pub options: Options,
    pub deadline: Duration,
    pub on_death: OnDeath,
    /// Size of the layer over its layers below, if the function has another than its first layer.
    pub size: Option<SizeOf>,
    /// Bytes of a write that is never seen half done, if the function ensures that itself.
    pub atomic_write: Option<u32>,
    /// Whether the layer above has copies: one failed Flush reports a loss for all hosts.
    pub reports_loss_once: bool,
}

/// Function on its way to its reactor.
#[derive(Debug)]
pub struct PreparedUif {
    properties: Properties,
    deadline_ns: u64,
    on_death: OnDeath,
    size: Option<SizeOf>,
    atomic_write: Option<u32>,
    reports_loss_once: bool,
    instance: Arc<InstanceSlot>,
}

/// Control side of a function. Dropping it ends the function's process.
#[derive(Debug)]
pub struct UifControl {
    instance: Arc<InstanceSlot>,
    /// Supervisor of a function in a process. Only operators lock the mutex, for as long as a move of the
    /// function takes.
    supervisor: Mutex<Option<Supervisor>>,
    options: Options,
    /// Properties that the drive is built on; another instance of the function must have the same.
    properties: Properties,
}

/// Answer of a function that may be still outstanding.
#[derive(Debug)]
pub struct PendingAnswer(Receiver<OrderResult>);

impl PendingAnswer {
    /// Waits for the answer, until `until` at most. Returns none if the answer is still outstanding.
    pub fn wait(&self, until: Instant) -> Option<Result<String, String>> {
        match self.0.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            // The order was dropped.
            Err(RecvTimeoutError::Disconnected) => Some(Err("it takes no orders".to_owned())),
        }
    }
}

/// State and counters of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UifStatus {
    /// Whether the function is running.
    pub up: bool,
    /// Whether the function accepts commands.
    pub ready: bool,
    /// Status with which the function reported that it cannot start.
    pub refusal: Option<Status>,
    /// Process that the daemon started for the function.
    pub process: Option<u32>,
    /// Times that the function was started or connected to.
    pub starts: u64,
    /// Commands sent to the function; a command that returns counts each time.
    pub sent: u64,
    /// Replies of the function to commands.
    pub replies: u64,
    /// Requests that the function sent to the layers below.
    pub requests: u64,
    /// Replies without a command in the function: late, repeated, or invented. They are dropped.
    pub stray: u64,
    /// Malformed replies. Their commands failed.
    pub invalid: u64,
    /// Times that the function exited or was killed.
    pub deaths: u64,
    /// Exits because of a missed deadline; a part of `deaths`.
    pub timeouts: u64,
    /// Commands that failed because the function was not running.
    pub failed: u64,
    /// Times that a command had to wait for a buffer or an entry of the ring.
    pub waits: u64,
    /// Times that the function slept and was woken.
    pub rings: u64,
    /// Commands that wait now.
    pub waiting: u64,
}

impl PreparedUif {
    /// Prepares a function in this process.
    pub fn local(config: UifConfig, function: Box<dyn Function>) -> io::Result<(Self, UifControl)> {
        let instance = Arc::new(InstanceSlot::new(&config.name)?);
        let properties = function.properties();
        let control = UifControl::new(&instance, None, config.options.clone(), properties);
        control.load_local(function)?;
        Ok((Self::new(&config, properties, instance), control))
    }

    /// Prepares a function in a process: starts or connects to the process, and waits for its Welcome. May
    /// block.
    pub fn external(config: UifConfig, launch: Launch) -> Result<(Self, UifControl), Failure> {
        let instance = Arc::new(InstanceSlot::new(&config.name)?);
        let options = config.options.clone();
        let (supervisor, properties) =
            Supervisor::start(launch, options.clone(), Arc::clone(&instance), None)?;
        let control = UifControl::new(&instance, Some(supervisor), options, properties);
        Ok((Self::new(&config, properties, instance), control))
    }

    fn new(config: &UifConfig, properties: Properties, instance: Arc<InstanceSlot>) -> Self {
        let deadline_ns = u64::try_from(config.deadline.as_nanos()).unwrap_or(u64::MAX);
        let UifConfig { on_death, atomic_write, reports_loss_once, .. } = *config;
        let size = config.size.clone();
        Self { properties, deadline_ns, on_death, size, atomic_write, reports_loss_once, instance }
    }
}

impl UifControl {
    fn new(
        instance: &Arc<InstanceSlot>,
        supervisor: Option<Supervisor>,
        options: Options,
        properties: Properties,
    ) -> Self {
        Self { instance: Arc::clone(instance), supervisor: Mutex::new(supervisor), options, properties }
    }

    /// Locks the supervisor. A panic ends the process, so the mutex is never poisoned.
    fn supervisor(&self) -> MutexGuard<'_, Option<Supervisor>> {
        self.supervisor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn status(&self) -> UifStatus {
        let counts = &self.instance.counts;
        let process = counts.process.load(Relaxed);
        UifStatus {
            up: counts.up.load(Relaxed),
            ready: counts.ready.load(Relaxed),
            refusal: match counts.refusal.load(Relaxed) {
                0 => None,
                status => Some(Status(status)),
            },
            process: (process != 0).then_some(process),
            starts: counts.starts.get(),
            sent: counts.sent.get(),
            replies: counts.replies.get(),
            requests: counts.requests.get(),
            stray: counts.stray.get(),
            invalid: counts.invalid.get(),
            deaths: counts.deaths.get(),
            timeouts: counts.timeouts.get(),
            failed: counts.failed.get(),
            waits: counts.waits.get(),
            rings: counts.rings.get(),
            waiting: counts.waiting.get(),
        }
    }

    /// Sends an order to the function and waits until `limit` for the answer.
    ///
    /// With `quiet` the drive has no command in flight and begins none until this returns. A process that has
    /// not answered by then is killed. A function in this process cannot be killed and has three times as
    /// long.
    ///
    /// # Errors
    /// The error text of the function, or the reason why there is no answer.
    pub fn query(&self, text: &str, quiet: bool, limit: Duration) -> Result<String, String> {
        if text.len() > CONTROL_BYTES {
            return Err(format!("an order has at most {CONTROL_BYTES} bytes"));
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let quiet_ns = quiet.then_some(limit.as_nanos() as u64 / 4 * 3);
        let stage = Arc::new(OrderState::default());
        self.instance.order(Order { text: text.to_owned(), quiet_ns, stage: Arc::clone(&stage), answer });
        let (mut outcome, mut waited) = (answered.recv_timeout(limit), limit);
        if outcome == Err(RecvTimeoutError::Timeout) && !stage.decide() && quiet {
            // The function has the order after all, and must not have it any more when the drive goes on.
            outcome = answered.recv_timeout(2 * limit);
            waited = 3 * limit;
        }
        outcome.unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(format!("it did not answer within {waited:?}")),
            // The order was dropped.
            RecvTimeoutError::Disconnected => Err("it takes no orders".to_owned()),
        })
    }

    /// Sets the translation cache of the classifier that the function fills from now on; none stops that.
    pub fn set_translations(&self, translations: Option<Box<dyn Translations>>) {
        self.instance.set_translations(translations);
    }

    /// Sends an order to the function and returns without waiting for the answer.
    pub fn start_query(&self, text: &str) -> PendingAnswer {
        let (answer, answered) = mpsc::sync_channel(1);
        let order = Order { text: text.to_owned(), quiet_ns: None, stage: Arc::default(), answer };
        self.instance.order(order);
        PendingAnswer(answered)
    }

    /// Ends the function's process and starts it again. Commands wait meanwhile, whatever `on_death` is.
    /// Returns false for a function in this process, which cannot be restarted.
    pub fn restart(&self) -> bool {
        let supervisor = self.supervisor();
        if supervisor.is_some() {
            self.instance.request_restart();
        }
        supervisor.is_some()
    }
}

const _: () = {
    assert!(ARENA_BYTES > (SCRATCH_MAX + POOL_MAX) as usize, "every buffer fits");
    assert!(ENTRIES >= COMMANDS as u32 + OTHERS_MAX as u32, "no ring overflows");
};
