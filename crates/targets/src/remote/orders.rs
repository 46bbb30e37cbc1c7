//! Orders of the control plane for the admin thread of a controller.
//!
//! The control plane sends an order at a time, and waits for the answer. The thread serves its target between two
//! orders, and while a Firmware Commit is in progress. A reset is answered when the controller is back. An order is
//! withdrawn when its requester gives up waiting before the thread has begun it.

use super::Notifier;
use super::maintenance::{
    Activation, CommitLimits, ControllerContext, MaintenanceFault, ResetReport, activation,
};
use sluice_nvme::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Time for an answer of the admin thread beyond the time of the controller.
const GRACE: Duration = Duration::from_secs(30);

/// Interval between two checks whether the daemon ends.
const SLICE: Duration = Duration::from_millis(100);

/// State of an order: waiting, withdrawn by its requester, or begun by the admin thread.
#[derive(Debug, Default)]
struct Claim(AtomicU8);

impl Claim {
    const WAITING: u8 = 0;
    const WITHDRAWN: u8 = 1;
    const BEGUN: u8 = 2;

    /// Ends the time in which the order waits. Returns whether the order has this state from now on.
    fn set(&self, state: u8) -> bool {
        self.0.compare_exchange(Self::WAITING, state, SeqCst, SeqCst).is_ok()
    }
}

/// Sender of the answer to an order.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    sender: SyncSender<Result<T, MaintenanceFault>>,
    claim: Arc<Claim>,
}

impl<T> Reply<T> {
    /// Begins the order, unless its requester has given up waiting.
    fn begin(&self) -> bool {
        self.claim.set(Claim::BEGUN)
    }

    /// Answers the order. The requester may have given up waiting.
    pub(crate) fn send(&self, result: Result<T, MaintenanceFault>) {
        let _ = self.sender.try_send(result);
    }

    /// Carries the order out at once, unless it was withdrawn.
    fn carry_out(&self, act: impl FnOnce() -> Result<T, MaintenanceFault>) {
        if self.begin() {
            self.send(act());
        }
    }
}

/// An order for an admin thread.
pub(crate) enum Order {
    /// Stores the context of the controller, for comparison after a reset.
    Save(Reply<ControllerContext>),
    Download {
        offset: u32,
        piece: Vec<u8>,
        reply: Reply<()>,
    },
    Commit {
        slot: u8,
        action: u8,
        limits: CommitLimits,
        reply: Reply<Activation>,
    },
    /// Shuts the controller down and resets it. The target of the controller is idle.
    Reset {
        limit: Duration,
        reply: Reply<ResetReport>,
    },
    /// Compares the controller with its stored context, without a reset.
    Compare(Reply<ControllerContext>),
}

/// Admin thread of a controller, which executes the orders of the control plane.
pub(crate) trait Maintained {
    /// Stores the context of the controller, for comparison after a reset.
    fn save(&mut self) -> Result<ControllerContext, MaintenanceFault>;

    /// Compares the controller with its stored context.
    fn compare(&mut self) -> Result<ControllerContext, MaintenanceFault>;

    /// Sends the piece of an image that begins at byte `offset`.
    fn download(&mut self, offset: u32, piece: &[u8]) -> Result<(), MaintenanceFault>;

    /// Sends Firmware Commit. The answer comes with its completion, or when the limit for that is over. The thread serves
    /// its targets meanwhile, and until the completion.
    fn begin_commit(&mut self, slot: u8, action: u8, limits: CommitLimits, reply: Reply<Activation>);

    /// Shuts the controller down, so that its cache is durable, and resets it. The answer comes when the thread has
    /// connected again.
    fn begin_reset(&mut self, limit: Duration, reply: Reply<ResetReport>);

    /// Executes an order that was not withdrawn.
    fn execute_order(&mut self, order: Order) {
        match order {
            Order::Save(reply) => reply.carry_out(|| self.save()),
            Order::Compare(reply) => reply.carry_out(|| self.compare()),
            Order::Download { offset, piece, reply } => reply.carry_out(|| self.download(offset, &piece)),
            Order::Commit { slot, action, limits, reply } => {
                if reply.begin() {
                    self.begin_commit(slot, action, limits, reply);
                }
            }
            Order::Reset { limit, reply } => {
                if reply.begin() {
                    self.begin_reset(limit, reply);
                }
            }
        }
    }
}

/// A Firmware Commit in progress.
#[derive(Debug)]
pub(crate) struct PendingCommit {
    /// None once it was answered without a completion.
    reply: Option<Reply<Activation>>,
    until: Instant,
    /// Time until which the controller may be busy.
    busy_until: Instant,
}

impl PendingCommit {
    pub(crate) fn new(reply: Reply<Activation>, limits: CommitLimits) -> Self {
        let now = Instant::now();
        Self { reply: Some(reply), until: now + limits.answer, busy_until: now + limits.busy }
    }

    /// Returns the time until the limit is over.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns whether the order was answered without a completion.
    pub(crate) fn is_answered(&self) -> bool {
        self.reply.is_none()
    }

    /// Answers with the status of the completion.
    pub(crate) fn completed(self, status: Status) {
        match self.reply {
            Some(reply) => reply.send(activation(status)),
            None => tracing::info!("a Firmware Commit has ended after its limit: {status:?}"),
        }
    }

    /// Answers that there was no completion within the limit, which is over. Returns whether the controller may still be
    /// busy: other commands would block the thread until their time-out, and a reset would interrupt the commit.
    pub(crate) fn is_overdue(&mut self) -> bool {
        if let Some(reply) = self.reply.take() {
            reply.send(Err(commit_failed("it was not completed in time, and may still be in progress")));
        }
        self.until = self.busy_until;
        !self.left().is_zero()
    }

    /// Answers that there will be no completion.
    pub(crate) fn failed(self, why: &str) {
        if let Some(reply) = self.reply {
            reply.send(Err(commit_failed(why)));
        }
    }
}

fn commit_failed(why: &str) -> MaintenanceFault {
    MaintenanceFault::Failed(format!("Firmware Commit: {why}"))
}

/// A reset in progress.
pub(crate) struct PendingReset {
    reply: Reply<ResetReport>,
    limit: Duration,
    began: Instant,
    /// Time of the controller so far.
    device: Duration,
    /// Time since which the controller is tried to reach.
    first_attempt: Option<Instant>,
    last: String,
}

impl PendingReset {
    /// Creates the state of a reset that began at `began`, after a shutdown that took `device`.
    pub(crate) fn new(reply: Reply<ResetReport>, limit: Duration, began: Instant, device: Duration) -> Self {
        Self { reply, limit, began, device, first_attempt: None, last: "none".to_owned() }
    }

    /// Records the begin of an attempt to connect.
    pub(crate) fn attempt(&mut self) {
        self.first_attempt.get_or_insert_with(Instant::now);
    }

    /// Records that the controller could be reached at `reached`, and became ready in `ready`.
    pub(crate) fn reached(&mut self, reached: Instant, ready: Duration) {
        let waited = self.first_attempt.map(|first| reached.saturating_duration_since(first));
        self.device += waited.unwrap_or_default() + ready;
    }

    /// Records a failed attempt. Returns the reset, unless its time is over and it was answered.
    pub(crate) fn failed(mut self, why: String) -> Option<Self> {
        self.last = why;
        if self.began.elapsed() < self.limit {
            return Some(self);
        }
        let fault = MaintenanceFault::NotBack { limit: self.limit, last: self.last };
        self.reply.send(Err(fault));
        None
    }

    /// Answers the reset.
    pub(crate) fn end(self, context: Result<ControllerContext, MaintenanceFault>) {
        let device = self.device;
        self.reply.send(context.map(|context| ResetReport { device, context }));
    }
}

/// Creates the two ends of the orders for an admin thread with this notifier.
pub(crate) fn orders(notifier: &Arc<Notifier>) -> (Maintenance, Receiver<Order>) {
    let (orders, receiver) = channel();
    (Maintenance { orders, notifier: Arc::clone(notifier), ending: Arc::default() }, receiver)
}

/// Returns the fault of an order without a reset that has no answer. The controller is as it was.
fn unanswered(limit: Duration) -> MaintenanceFault {
    MaintenanceFault::Failed(format!("it did not answer within {} s", limit.as_secs()))
}

fn not_back(limit: Duration) -> MaintenanceFault {
    MaintenanceFault::NotBack { limit, last: "none".to_owned() }
}

/// Handle of the control plane on the controller behind a target. It keeps no connection alive.
#[derive(Clone, Debug)]
pub struct Maintenance {
    orders: Sender<Order>,
    notifier: Arc<Notifier>,
    /// Set when the daemon ends.
    ending: Arc<AtomicBool>,
}

impl Maintenance {
    /// Returns the handle with a flag whose setting ends all waiting within a fraction of a second.
    #[must_use]
    pub fn until(self, ending: &Arc<AtomicBool>) -> Self {
        Self { ending: Arc::clone(ending), ..self }
    }

    /// Stores the context of the controller, and returns it. All methods block until the answer comes.
    ///
    /// # Errors
    /// The controller is not connected, or does not answer.
    pub fn save(&self) -> Result<ControllerContext, MaintenanceFault> {
        self.save_within(GRACE)
    }

    fn save_within(&self, limit: Duration) -> Result<ControllerContext, MaintenanceFault> {
        self.send(limit, unanswered, Order::Save)
    }

    /// Downloads the piece of an image that begins at `offset`.
    ///
    /// # Errors
    /// The controller refuses it, or does not answer.
    pub fn download(&self, offset: u32, piece: Vec<u8>) -> Result<(), MaintenanceFault> {
        self.send(GRACE, unanswered, |reply| Order::Download { offset, piece, reply })
    }

    /// Commits the downloaded image, or activates the one in a slot.
    ///
    /// # Errors
    /// The controller refuses it, or needs a reset that this host cannot do.
    pub fn commit(&self, slot: u8, action: u8, limits: CommitLimits) -> Result<Activation, MaintenanceFault> {
        let order = |reply| Order::Commit { slot, action, limits, reply };
        self.send(limits.answer + GRACE, unanswered, order)
    }

    /// Resets the controller, whose target is idle, and waits for at most `limit` until it is back.
    ///
    /// # Errors
    /// The controller is another one then, or did not come back. Its target stays as it is.
    pub fn reset(&self, limit: Duration) -> Result<ResetReport, MaintenanceFault> {
        self.reset_within(limit + GRACE)
    }

    fn reset_within(&self, limit: Duration) -> Result<ResetReport, MaintenanceFault> {
        self.send(limit, not_back, |reply| Order::Reset { limit: limit.saturating_sub(GRACE), reply })
    }

    /// Compares the controller with its stored context.
    ///
    /// # Errors
    /// The controller is another one, or does not answer.
    pub fn compare(&self) -> Result<ControllerContext, MaintenanceFault> {
        self.send(GRACE, unanswered, Order::Compare)
    }

    /// Sends an order and waits for the answer. `unanswered` returns the fault of one that was begun and is not answered
    /// within `limit`.
    fn send<T>(
        &self,
        limit: Duration,
        unanswered: fn(Duration) -> MaintenanceFault,
        order: impl FnOnce(Reply<T>) -> Order,
    ) -> Result<T, MaintenanceFault> {
        let ((sender, replied), claim) = (sync_channel(1), Arc::<Claim>::default());
        let reply = Reply { sender, claim: Arc::clone(&claim) };
        self.orders.send(order(reply)).map_err(|_| MaintenanceFault::Gone)?;
        self.notifier.notify();
        let began = Instant::now();
        loop {
            let left = limit.saturating_sub(began.elapsed());
            match replied.recv_timeout(left.min(SLICE)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(MaintenanceFault::Gone),
                Err(RecvTimeoutError::Timeout) if self.ending.load(SeqCst) => {
                    return Err(MaintenanceFault::Ending { has_begun: !claim.set(Claim::WITHDRAWN) });
                }
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout) if claim.set(Claim::WITHDRAWN) => {
                    return Err(MaintenanceFault::Busy { limit });
                }
                Err(RecvTimeoutError::Timeout) => return Err(unanswered(limit)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::maintenance::tests::controller;

    fn reply<T>() -> (Reply<T>, Receiver<Result<T, MaintenanceFault>>) {
        let (sender, replied) = sync_channel(1);
        (Reply { sender, claim: Arc::default() }, replied)
    }

    /// An admin thread that counts the orders that it carries out.
    #[derive(Default)]
    struct Thread {
        carried_out: u32,
        resets: Vec<Reply<ResetReport>>,
    }

    impl Thread {
        fn context(&mut self) -> Result<ControllerContext, MaintenanceFault> {
            self.carried_out += 1;
            ControllerContext::of(&controller(0), 4096)
        }
    }

    impl Maintained for Thread {
        fn save(&mut self) -> Result<ControllerContext, MaintenanceFault> {
            self.context()
        }

        fn compare(&mut self) -> Result<ControllerContext, MaintenanceFault> {
            self.context()
        }

        fn download(&mut self, _offset: u32, _piece: &[u8]) -> Result<(), MaintenanceFault> {
            self.context().map(drop)
        }

        fn begin_commit(&mut self, _slot: u8, _action: u8, limits: CommitLimits, reply: Reply<Activation>) {
            self.carried_out += 1;
            PendingCommit::new(reply, limits).completed(Status::SUCCESS);
        }

        fn begin_reset(&mut self, _limit: Duration, reply: Reply<ResetReport>) {
            self.carried_out += 1;
            self.resets.push(reply);
        }
    }

    fn ends() -> (Maintenance, Receiver<Order>, Arc<AtomicBool>) {
        let (maintenance, receiver) = orders(&Arc::new(Notifier::new().expect("an eventfd")));
        let ending = Arc::new(AtomicBool::new(false));
        (maintenance.until(&ending), receiver, ending)
    }

    #[test]
    fn the_end_of_the_daemon_ends_all_waiting() {
        let (maintenance, receiver, ending) = ends();
        ending.store(true, SeqCst);
        let hour = Duration::from_secs(3600);
        assert_eq!(maintenance.reset(hour), Err(MaintenanceFault::Ending { has_begun: false }));
        assert_eq!(
            maintenance.commit(1, 3, CommitLimits { answer: hour, busy: hour }),
            Err(MaintenanceFault::Ending { has_begun: false })
        );
        ending.store(false, SeqCst);
        let mut thread = Thread::default();
        receiver.try_iter().for_each(|order| thread.execute_order(order));
        assert_eq!(thread.carried_out, 0, "they were withdrawn");
        let begun = std::thread::spawn(move || {
            thread.execute_order(receiver.recv().expect("an order"));
            ending.store(true, SeqCst);
            thread
        });
        assert_eq!(maintenance.reset(hour), Err(MaintenanceFault::Ending { has_begun: true }));
        assert_eq!(begun.join().expect("no panic").carried_out, 1);
    }

    #[test]
    fn an_order_whose_requester_gave_up_is_not_executed() {
        let (maintenance, receiver, _) = ends();
        let soon = Duration::from_millis(1);
        assert_eq!(
            maintenance.send(soon, unanswered, Order::Save),
            Err(MaintenanceFault::Busy { limit: soon })
        );
        let reset = |reply| Order::Reset { limit: soon, reply };
        assert_eq!(maintenance.send(soon, not_back, reset), Err(MaintenanceFault::Busy { limit: soon }));
        let mut thread = Thread::default();
        receiver.try_iter().for_each(|order| thread.execute_order(order));
        assert_eq!(thread.carried_out, 0);
        let run = std::thread::spawn(move || {
            thread.execute_order(receiver.recv().expect("an order"));
            thread.carried_out
        });
        assert!(maintenance.save().is_ok());
        assert_eq!(run.join().expect("no panic"), 1);
    }

    #[test]
    fn a_commit_that_never_ends_is_answered_and_the_controller_may_be_busy() {
        let hour = Duration::from_secs(3600);
        for (busy, is_busy) in [(Duration::ZERO, false), (hour, true)] {
            let (reply, replied) = reply();
            let mut pending = PendingCommit::new(reply, CommitLimits { answer: Duration::ZERO, busy });
            assert!(pending.left().is_zero() && !pending.is_answered());
            assert_eq!(pending.is_overdue(), is_busy);
            let fault = replied.recv().expect("an answer").expect_err("it failed");
            assert!(fault.to_string().contains("may still be in progress"), "{fault}");
            assert!(!fault.is_after_reset() && pending.is_answered());
            assert_eq!(pending.left() > Duration::ZERO, is_busy);
            pending.completed(Status::SUCCESS);
            assert!(replied.try_recv().is_err(), "there is one answer");
        }
    }

    /// Sends orders that are begun and never answered: only after a reset the controller may be another one.
    #[test]
    fn an_order_without_an_answer_is_no_reset_unless_it_was_one() {
        /// The thread may be late, and an order is withdrawn then.
        const ATTEMPTS: usize = 3000;
        let (maintenance, receiver, _) = ends();
        let thread = std::thread::spawn(move || {
            let begin = |order: &Order| match order {
                Order::Save(reply) => reply.begin(),
                Order::Reset { reply, .. } => reply.begin(),
                _ => false,
            };
            // The orders are kept, so that their requester waits.
            receiver.iter().inspect(|order| _ = begin(order)).collect::<Vec<_>>().len()
        });
        let soon = Duration::from_millis(20);
        let is_busy = |fault: &MaintenanceFault| matches!(fault, MaintenanceFault::Busy { .. });
        let save = || maintenance.save_within(soon).expect_err("there is no answer");
        let fault = std::iter::repeat_with(save)
            .take(ATTEMPTS)
            .find(|fault| !is_busy(fault))
            .expect("it is begun once");
        assert!(!fault.is_after_reset(), "{fault}");
        let reset = || maintenance.reset_within(soon).expect_err("there is no answer");
        let fault = std::iter::repeat_with(reset)
            .take(ATTEMPTS)
            .find(|fault| !is_busy(fault))
            .expect("it is begun once");
        assert!(fault.is_after_reset(), "{fault}");
        drop(maintenance);
        thread.join().expect("no panic");
    }

    #[test]
    fn a_reset_is_answered_once_its_time_is_over() {
        let (reply, replied) = reply();
        let pending = PendingReset::new(reply, Duration::from_secs(600), Instant::now(), Duration::ZERO);
        let pending = pending.failed("refused".to_owned()).expect("there is time");
        assert!(replied.try_recv().is_err());
        let late = PendingReset { limit: Duration::ZERO, ..pending };
        assert!(late.failed("still refused".to_owned()).is_none());
        let fault = replied.recv().expect("an answer").expect_err("it is not back");
        assert!(fault.is_after_reset() && fault.to_string().contains("still refused"), "{fault}");
    }

    #[test]
    fn the_time_until_a_controller_is_reached_is_its_own() {
        let (reply, replied) = reply();
        let second = Duration::from_secs(1);
        let mut pending = PendingReset::new(reply, second, Instant::now(), second);
        pending.attempt();
        let first = pending.first_attempt.expect("it began");
        pending.attempt();
        pending.reached(first + second * 2, second * 3);
        let context = ControllerContext::of(&controller(0), 4096);
        pending.end(context);
        assert_eq!(replied.recv().expect("an answer").map(|report| report.device), Ok(second * 6));
    }
}
