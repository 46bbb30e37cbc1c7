//! Functions behind the function SDK, in this process or in one of their own.
//!
//! The layer ([`Uif`]) copies the data of a command into a buffer of the drive's arena, shows it to the
//! function, and does what the function says: finish, send below, send below and come back. Below it goes
//! with the buffer instead of the host's memory.
//!
//! A function's process is hostile. It can write what it likes into the rings and the arena, ring or not,
//! answer or not, and end. What it can reach is the data of the commands it was sent; what it can do is to
//! fail them, to lie about them, and to keep them until the deadline, which ends it. The [keeper](keeper)
//! starts another then, on a thread of its own, because starting may block.

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
mod kinds;
mod layer;
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

use control::{Order, OrderResult, OrderState};
use instance::InstanceSlot;
pub use kinds::{Changes, KINDS, changes, make};
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

/// Bytes of a drive's arena; they take memory only once they are used.
pub const ARENA_BYTES: usize = 8 << 20;

/// Commands that a function process has at a time.
pub const COMMANDS: u16 = 256;

/// Entries of its rings.
const ENTRIES: u32 = 512;

/// How long a function may take until it is ready: it may have to recover what it keeps.
pub const START_LIMIT: Duration = Duration::from_secs(60);

/// Times that a function has one command come back to it, at most; and once more for each further piece of one
/// that is longer than its buffer.
pub const RETURNS_MAX: u32 = 64;

/// How long a function has for a command, unless the operator says otherwise.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// What becomes of a function's commands when it dies, or does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeath {
    /// They fail, and so does everything until it is back.
    Fail,
    /// They wait until it is back, and begin anew.
    #[default]
    Park,
}

/// Where a function is, and what it is told.
#[derive(Debug)]
pub struct UifConfig {
    /// For the log.
    pub name: String,
    pub options: Options,
    pub deadline: Duration,
    pub on_death: OnDeath,
}

/// A function on its way to its reactor.
#[derive(Debug)]
pub struct PreparedUif {
    properties: Properties,
    deadline_ns: u64,
    on_death: OnDeath,
    instance: Arc<InstanceSlot>,
}

/// What the control side keeps of a function. Dropping it ends the function's process.
#[derive(Debug)]
pub struct UifControl {
    instance: Arc<InstanceSlot>,
    /// Of a function in a process. Locked by operators only, for as long as one moves the function.
    supervisor: Mutex<Option<Supervisor>>,
    options: Options,
    /// The drive is built on them, wherever the function is.
    properties: Properties,
}

/// An answer of a function that may be still to come.
#[derive(Debug)]
pub struct PendingAnswer(Receiver<OrderResult>);

impl PendingAnswer {
    /// Waits for the answer, until then at most. Returns none if it is still to come.
    pub fn wait(&self, until: Instant) -> Option<Result<String, String>> {
        match self.0.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            // The order was dropped.
            Err(RecvTimeoutError::Disconnected) => Some(Err("it takes no orders".to_owned())),
        }
    }
}

/// How a function is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UifStatus {
    /// It is there.
    pub up: bool,
    /// It can be sent commands.
    pub ready: bool,
    /// Why it cannot, by its own word; a status of a completion entry.
    pub refusal: Option<Status>,
    /// Of the process that the daemon started for it.
    pub process: Option<u32>,
    /// How often it was started, or connected to.
    pub starts: u64,
    /// Commands that it was sent, each time that it was.
    pub sent: u64,
    /// Its answers to them.
    pub replies: u64,
    /// What it asked the layers below for itself.
    pub requests: u64,
    /// Replies to nothing that it had been sent: late, repeated, or invented. They are dropped.
    pub stray: u64,
    /// Replies that made no sense. Their commands failed.
    pub invalid: u64,
    /// Times that it went, or was ended.
    pub deaths: u64,
    /// Those of them because it did not answer in time.
    pub timeouts: u64,
    /// Commands that failed because it was not there.
    pub failed: u64,
    /// Times that a command had to wait for a buffer or a place in the ring.
    pub waits: u64,
    /// Times that it slept and had to be woken.
    pub rings: u64,
    /// Commands that wait now.
    pub waiting: u64,
}

impl PreparedUif {
    /// A function in this process.
    pub fn local(config: UifConfig, function: Box<dyn Function>) -> io::Result<(Self, UifControl)> {
        let instance = Arc::new(InstanceSlot::new(&config.name)?);
        let properties = function.properties();
        let control = UifControl::new(&instance, None, config.options.clone(), properties);
        control.load_local(function)?;
        Ok((Self::new(&config, properties, instance), control))
    }

    /// A function in a process: starts or finds it, and waits for it to say what it is. May block.
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
        Self { properties, deadline_ns, on_death: config.on_death, instance }
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

    /// A panic ends the process, so nobody poisons it.
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

    /// Tells the function something, and waits until `limit` for the answer. With `quiet` the drive has no
    /// command in flight, and begins none until this returns: a process that has not answered until then is
    /// ended; one in this process cannot be, and has three times as long.
    ///
    /// # Errors
    /// In words: the function's, or why there is no answer.
    pub fn query(&self, text: &str, quiet: bool, limit: Duration) -> Result<String, String> {
        if text.len() > CONTROL_BYTES {
            return Err(format!("what it is told has at most {CONTROL_BYTES} bytes"));
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let quiet_ns = quiet.then_some(limit.as_nanos() as u64 / 4 * 3);
        let stage = Arc::new(OrderState::default());
        self.instance.order(Order { text: text.to_owned(), quiet_ns, stage: Arc::clone(&stage), answer });
        let (mut outcome, mut waited) = (answered.recv_timeout(limit), limit);
        if outcome == Err(RecvTimeoutError::Timeout) && !stage.decide() && quiet {
            // It has the order after all, and must not have it any more when the drive goes on.
            outcome = answered.recv_timeout(2 * limit);
            waited = 3 * limit;
        }
        outcome.unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(format!("it did not answer within {waited:?}")),
            // The order was dropped.
            RecvTimeoutError::Disconnected => Err("it takes no orders".to_owned()),
        })
    }

    /// Has the classifier's translation cache filled by what the function says from now on; or none any more.
    pub fn set_translations(&self, translations: Option<Box<dyn Translations>>) {
        self.instance.set_translations(translations);
    }

    /// Tells the function something, and leaves the answer to be looked for.
    pub fn start_query(&self, text: &str) -> PendingAnswer {
        let (answer, answered) = mpsc::sync_channel(1);
        let order = Order { text: text.to_owned(), quiet_ns: None, stage: Arc::default(), answer };
        self.instance.order(order);
        PendingAnswer(answered)
    }

    /// Ends the function's process and starts it again. Its commands wait meanwhile, whatever becomes of
    /// them when it dies by itself. False for one in this process, which there is nothing to restart of.
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
