//! Moving a task from one reactor to another.
//!
//! A task that is to move is not polled any more, and its operations in the ring end. That takes as long as
//! its slowest read or write. Then the task is mailed to the other reactor, with its files, its completions
//! that arrived meanwhile and its mail. There the task continues, and polls each of its sources at least
//! once, so that no event is lost. If its operations take too long the task stays.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{error, fmt, mem, thread};

use crate::clock;
use crate::handle::{CALL_LIMIT, MAILBOX_RETRY, ReactorGone, ReactorHandle};
use crate::io::{Completion, TaskIoState};
use crate::local::Local;
use crate::mailbox::{Mail, MailboxFull};
use crate::task::{Task, TaskId};

/// Mails that wait for a task that is about to move, before others are refused. Up to as many more may arrive
/// that were in transit.
const WAITING_MAX: u32 = 1024;

/// A handle of a task, on whichever reactor it is. Mail for a task that moves reaches it.
#[derive(Clone, Debug)]
pub struct TaskHandle {
    task: TaskId,
    /// Locked briefly: while it is read, and while a task is mailed from one reactor to another.
    location: Arc<Mutex<Location>>,
}

/// Reactor on which a task is, or will be when its mail is read there.
#[derive(Clone, Debug)]
struct Location {
    reactor: ReactorHandle,
    moves: u64,
    /// Mails that wait until the task has moved.
    waiting: u32,
}

/// Reason for which a task was not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Immovable {
    /// Reads or writes of the task did not end in time.
    Busy(Duration),
    /// A move of the task is under way already.
    Moving,
    /// The task, or a reactor, is gone.
    Gone,
    /// The other reactor cannot register the task's files; with the reason in words.
    NoRoom(String),
}

impl fmt::Display for Immovable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(limit) => {
                write!(f, "reads or writes under way did not end within {} ms", limit.as_millis())
            }
            Self::Moving => f.write_str("it is about to move already"),
            Self::Gone => f.write_str("it, or the reactor, is gone"),
            Self::NoRoom(why) => write!(f, "the reactor cannot have its files: {why}"),
        }
    }
}

impl error::Error for Immovable {}

type Answer = Box<dyn FnOnce(Result<(), Immovable>) + Send>;

/// Interval between two cancellations of what a moving task has in flight, in nanoseconds.
const CANCEL_AGAIN_NS: u64 = 10_000_000;

/// A task that is about to move: not polled, and here until its operations are done.
struct PendingMove {
    handle: TaskHandle,
    task: Box<dyn Task>,
    to: ReactorHandle,
    limit: Duration,
    until_ns: u64,
    /// Time of the next cancellation of the operations in flight.
    again_ns: u64,
    /// Completions and mails that arrived meanwhile.
    completions: Vec<Completion>,
    mails: Vec<Mail>,
    answer: Answer,
}

/// A task on its way to another reactor.
struct MovingTask {
    handle: TaskHandle,
    from: ReactorHandle,
    task: Box<dyn Task>,
    state: TaskIoState,
    completions: Vec<Completion>,
    mails: Vec<Mail>,
    answer: Answer,
}

/// A moving task in the mail. If the receiving reactor ends before it reads the mail, the task returns to its
/// previous reactor; it is gone if that has ended, too.
struct MoveMail {
    moving: Option<MovingTask>,
    is_return: bool,
}

impl MoveMail {
    fn to(moving: MovingTask, is_return: bool) -> Mail {
        let mut mail = Self { moving: Some(moving), is_return };
        Box::new(move |local| mail.moving.take().into_iter().for_each(|it| local.arrive(it)))
    }
}

impl Drop for MoveMail {
    fn drop(&mut self) {
        match self.moving.take() {
            Some(MovingTask { handle, task, state, answer, .. }) if self.is_return => {
                drop((task, state));
                handle.task.give_back();
                answer(Err(Immovable::Gone));
            }
            Some(moving) => moving.send_back(Immovable::Gone),
            None => {}
        }
    }
}

impl MovingTask {
    /// Returns the task to its previous reactor, because it cannot be on the other.
    fn send_back(self, why: Immovable) {
        let Self { handle, from, answer, .. } = self;
        let answer: Answer = Box::new(move |_| answer(Err(why)));
        let (previous, itself) = (from.clone(), handle.clone());
        let moving = Self { handle, from, answer, ..self };
        let mut location = itself.location();
        let returned = previous.forward(MoveMail::to(moving, true)).err();
        if returned.is_none() {
            *location = Location { reactor: previous, moves: location.moves + 1, waiting: location.waiting };
        }
        drop(location);
        // A reactor that has ended drops its tasks.
        drop(returned);
    }
}

/// Tasks that are about to move.
#[derive(Default)]
pub(crate) struct PendingMoves(Vec<PendingMove>);

impl PendingMoves {
    #[inline]
    pub(crate) fn are_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns when a pending move needs the next turn: at its time limit, or for another cancellation.
    #[inline]
    pub(crate) fn nearest_ns(&self) -> u64 {
        self.0.iter().map(|pending| pending.until_ns.min(pending.again_ns)).min().unwrap_or(u64::MAX)
    }

    fn of(&mut self, task: TaskId) -> Option<&mut PendingMove> {
        self.0.iter_mut().find(|pending| pending.handle.task == task)
    }

    /// Keeps a completion for a task that is about to move. Returns false if the completion is for another
    /// task.
    pub(crate) fn take(&mut self, completion: &Completion) -> bool {
        self.of(completion.task).map(|pending| pending.completions.push(*completion)).is_some()
    }
}

impl TaskHandle {
    /// Creates the handle of a task that was added to a reactor, and did not move since.
    #[must_use]
    pub fn new(reactor: ReactorHandle, task: TaskId) -> Self {
        Self { task, location: Arc::new(Mutex::new(Location { reactor, moves: 0, waiting: 0 })) }
    }

    #[must_use]
    pub fn id(&self) -> TaskId {
        self.task
    }

    fn location(&self) -> MutexGuard<'_, Location> {
        // A panic ends the process, so the lock is never poisoned.
        self.location.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reactor that the task is on; the task may be on its way to another.
    #[must_use]
    pub fn reactor(&self) -> ReactorHandle {
        self.location().reactor.clone()
    }

    /// Queues a closure as [`ReactorHandle::mail`] does, for the reactor that the task is on when the closure
    /// runs.
    ///
    /// # Errors
    /// Those of [`ReactorHandle::mail`]; too many mails wait for a task that is about to move.
    pub fn mail(&self, f: impl FnOnce(&mut Local) + Send + 'static) -> Result<(), MailboxFull> {
        let handle = self.clone();
        let Location { reactor, waiting, .. } = self.location().clone();
        if waiting >= WAITING_MAX {
            return Err(MailboxFull);
        }
        reactor.mail(move |local| handle.bring(local, Box::new(f), None))
    }

    /// Runs a closure as [`ReactorHandle::call`] does, on the reactor that the task is on when the closure
    /// runs.
    ///
    /// # Errors
    /// Those of [`ReactorHandle::call`].
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Local) -> R + Send + 'static,
    ) -> Result<R, ReactorGone> {
        let (handle, began) = (self.clone(), Instant::now());
        while self.location().waiting >= WAITING_MAX {
            if began.elapsed() > CALL_LIMIT {
                return Err(ReactorGone::Silent);
            }
            thread::sleep(MAILBOX_RETRY);
        }
        self.reactor().call_later(move |local, answer| {
            // The receiver is gone if the call has timed out.
            handle.bring(local, Box::new(move |local| drop(answer.send(f(local)))), None);
        })
    }

    /// Runs a mail for the task, or forwards it after the task. A mail that found no task here after `missed`
    /// moves is queued again behind the contents of the mailbox. If the task was not among these, it is gone,
    /// and the mail runs without it.
    fn bring(self, local: &mut Local, mail: Mail, missed: Option<u64>) {
        if let Some(pending) = local.pending_moves.of(self.task) {
            self.location().waiting += 1;
            return pending.mails.push(mail);
        }
        let Location { reactor, moves, .. } = self.location().clone();
        let is_gone = reactor.is_here() && missed == Some(moves);
        if local.tasks.get(self.task).is_some() || is_gone {
            return mail(local);
        }
        // A reactor that has ended runs no mail, which the sender notices.
        drop(reactor.forward(Box::new(move |local| self.bring(local, mail, Some(moves)))));
    }

    /// Moves the task to another reactor, and waits for it. The task is not polled until its operations in
    /// flight have ended, for which there is a `limit`. For control threads; it blocks.
    ///
    /// # Errors
    /// The task stays where it is.
    pub fn move_to(&self, to: &ReactorHandle, limit: Duration) -> Result<(), Immovable> {
        let from = self.reactor();
        if from.is(to) {
            return Ok(());
        }
        let (reply, answer) = mpsc::sync_channel(1);
        let (handle, to) = (self.clone(), to.clone());
        let begin_move = move |local: &mut Local| {
            // The receiver is gone if the move took much too long.
            local.begin_move(handle, to, limit, Box::new(move |outcome| drop(reply.send(outcome))));
        };
        from.call(begin_move).map_err(|_| Immovable::Gone)?;
        answer.recv_timeout(limit + CALL_LIMIT).unwrap_or(Err(Immovable::Gone))
    }
}

impl Local {
    fn begin_move(&mut self, handle: TaskHandle, to: ReactorHandle, limit: Duration, answer: Answer) {
        if self.pending_moves.of(handle.task).is_some() {
            return answer(Err(Immovable::Moving));
        }
        let Some(task) = self.tasks.take_out(handle.task) else {
            return answer(Err(Immovable::Gone));
        };
        self.io.pack(handle.task);
        let now_ns = clock::now_ns();
        let until_ns = now_ns.saturating_add(limit.as_nanos() as u64);
        let (completions, mails) = (Vec::new(), Vec::new());
        self.pending_moves.0.push(PendingMove {
            handle,
            task,
            to,
            limit,
            until_ns,
            again_ns: now_ns.saturating_add(CANCEL_AGAIN_NS),
            completions,
            mails,
            answer,
        });
    }

    /// Mails tasks that have nothing in flight any more, and cancels the moves that took too long. Returns
    /// the number of both.
    #[cold]
    pub(crate) fn finish_moves(&mut self, now_ns: u64) -> usize {
        let io = &self.io;
        for pending in self.pending_moves.0.iter_mut().filter(|pending| pending.again_ns <= now_ns) {
            // The kernel loses a cancellation that comes when a thread of its own is just about to block.
            if io.in_flight(pending.handle.task) > 0 {
                io.pack(pending.handle.task);
            }
            pending.again_ns = now_ns.saturating_add(CANCEL_AGAIN_NS);
        }
        let is_due = |it: &mut PendingMove| io.in_flight(it.handle.task) == 0 || it.until_ns <= now_ns;
        let leaving: Vec<_> = self.pending_moves.0.extract_if(.., is_due).collect();
        let count = leaving.len();
        for pending in leaving {
            match self.io.in_flight(pending.handle.task) {
                0 => self.send_task(pending),
                _ => {
                    let why = Immovable::Busy(pending.limit);
                    self.cancel_move(pending, why);
                }
            }
        }
        count
    }

    /// Cancels all moves, at the end of the reactor.
    pub(crate) fn cancel_all_moves(&mut self) {
        for pending in mem::take(&mut self.pending_moves.0) {
            self.cancel_move(pending, Immovable::Gone);
        }
    }

    fn pack_task(&mut self, pending: PendingMove) -> (ReactorHandle, MovingTask) {
        let PendingMove { handle, task, to, completions, mails, answer, .. } = pending;
        let (state, from) = (self.io.take_state(handle.task), handle.reactor());
        (to, MovingTask { handle, from, task, state, completions, mails, answer })
    }

    fn send_task(&mut self, pending: PendingMove) {
        let (to, moving) = self.pack_task(pending);
        let handle = moving.handle.clone();
        // Any thread that reads the location afterwards writes to the other reactor after this mail.
        let mut location = handle.location();
        let returned = to.forward(MoveMail::to(moving, false)).err();
        if returned.is_none() {
            *location = Location { reactor: to, moves: location.moves + 1, waiting: location.waiting };
        }
        drop(location);
        // The other reactor has ended: the mail runs here, and the task comes back.
        returned.into_iter().for_each(|mail| mail(self));
    }

    fn cancel_move(&mut self, pending: PendingMove, why: Immovable) {
        let (_, mut moving) = self.pack_task(pending);
        let answer = mem::replace(&mut moving.answer, Box::new(drop));
        self.arrive(moving);
        answer(Err(why));
    }

    /// Adds a task that arrives from another reactor, or comes back.
    fn arrive(&mut self, moving: MovingTask) {
        let id = moving.handle.task;
        if let Err(error) = self.io.unpack(&moving.state, id) {
            return moving.send_back(Immovable::NoRoom(error.to_string()));
        }
        let MovingTask { handle, from, task, state, completions, mails, answer } = moving;
        // Later than any time that the task has seen on another reactor.
        let now_ns = clock::now_ns();
        self.now_ns = now_ns;
        self.tasks.insert(id, task, now_ns);
        if let Some(task) = self.tasks.get_mut(id) {
            task.disarm();
        }
        for completion in completions {
            self.tasks.deliver(&completion, now_ns);
        }
        if !from.is_here() {
            let left = state.stale_files();
            drop(from.forward(Box::new(move |local| local.io.release(left))));
        }
        let count = mails.len() as u32;
        mails.into_iter().for_each(|mail| mail(self));
        let mut location = handle.location();
        location.waiting = location.waiting.saturating_sub(count);
        drop(location);
        answer(if from.is_here() { Err(Immovable::Gone) } else { Ok(()) });
    }
}
