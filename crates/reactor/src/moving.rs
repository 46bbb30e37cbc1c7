//! Tasks that go from one reactor to another.
//!
//! A task that is to move is not polled any more, and what it has in the ring comes to its end, which takes as long as
//! its slowest read or write. Then it is mailed to the other reactor, with its files, with the completions that came
//! meanwhile and with mail for it, and goes on there. Whatever it looks at it looks at there, once at least; so nothing
//! that happened in between is lost. If its operations take too long it goes on where it is.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{error, fmt, mem, thread};

use crate::clock;
use crate::handle::{CALL_LIMIT, MAILBOX_RETRY, ReactorGone, ReactorHandle};
use crate::io::{Completion, Luggage};
use crate::local::Local;
use crate::mailbox::{Mail, MailboxFull};
use crate::task::{Task, TaskId};

/// Mails that wait for a task that is about to move before others are refused. As many may come that were on their way.
const WAITING_MAX: u32 = 1024;

/// A task from outside, on whichever reactor it is. Mail for one that moves finds it.
#[derive(Clone, Debug)]
pub struct TaskHandle {
    task: TaskId,
    /// Locked for a moment: while it is looked at, and while a task is mailed from one reactor to another.
    place: Arc<Mutex<Place>>,
}

/// Where a task is, or will be when its mail is read there.
#[derive(Clone, Debug)]
struct Place {
    reactor: ReactorHandle,
    moves: u64,
    /// Mails that wait until it has moved.
    waiting: u32,
}

/// Why a task stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Immovable {
    /// Reads or writes of its did not end in time.
    Busy(Duration),
    /// It is about to move already.
    Moving,
    /// The task, or a reactor, is gone.
    Gone,
    /// The other reactor cannot have its files, in words.
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

/// A task that is about to move: not polled, and here until its operations are done.
struct Departure {
    handle: TaskHandle,
    task: Box<dyn Task>,
    to: ReactorHandle,
    limit: Duration,
    until_ns: u64,
    /// What came meanwhile.
    completions: Vec<Completion>,
    mails: Vec<Mail>,
    answer: Answer,
}

/// A task on its way.
struct Traveller {
    handle: TaskHandle,
    from: ReactorHandle,
    task: Box<dyn Task>,
    luggage: Luggage,
    completions: Vec<Completion>,
    mails: Vec<Mail>,
    answer: Answer,
}

/// A traveller in the mail. One whose reactor ends before it gets there goes home; it is gone if that has ended, too.
struct Journey {
    traveller: Option<Traveller>,
    is_home: bool,
}

impl Journey {
    fn to(traveller: Traveller, is_home: bool) -> Mail {
        let mut journey = Self { traveller: Some(traveller), is_home };
        Box::new(move |local| journey.traveller.take().into_iter().for_each(|it| local.arrive(it)))
    }
}

impl Drop for Journey {
    fn drop(&mut self) {
        match self.traveller.take() {
            Some(Traveller { handle, task, luggage, answer, .. }) if self.is_home => {
                drop((task, luggage));
                handle.task.give_back();
                answer(Err(Immovable::Gone));
            }
            Some(traveller) => traveller.go_home(Immovable::Gone),
            None => {}
        }
    }
}

impl Traveller {
    /// It cannot be where it went.
    fn go_home(self, why: Immovable) {
        let Self { handle, from, answer, .. } = self;
        let answer: Answer = Box::new(move |_| answer(Err(why)));
        let (home, itself) = (from.clone(), handle.clone());
        let traveller = Self { handle, from, answer, ..self };
        let mut place = itself.place();
        let returned = home.forward(Journey::to(traveller, true)).err();
        if returned.is_none() {
            *place = Place { reactor: home, moves: place.moves + 1, waiting: place.waiting };
        }
        drop(place);
        // A reactor that has ended takes its tasks along.
        drop(returned);
    }
}

/// Those that are about to move.
#[derive(Default)]
pub(crate) struct Departures(Vec<Departure>);

impl Departures {
    #[inline]
    pub(crate) fn are_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// When the next of them goes on where it is.
    #[inline]
    pub(crate) fn nearest_ns(&self) -> u64 {
        self.0.iter().map(|departure| departure.until_ns).min().unwrap_or(u64::MAX)
    }

    fn of(&mut self, task: TaskId) -> Option<&mut Departure> {
        self.0.iter_mut().find(|departure| departure.handle.task == task)
    }

    /// Keeps a completion for a task that is about to move. False if it is not for such a one.
    pub(crate) fn take(&mut self, completion: &Completion) -> bool {
        self.of(completion.task).map(|departure| departure.completions.push(*completion)).is_some()
    }
}

impl TaskHandle {
    /// Of a task that was added to a reactor, and did not move since.
    #[must_use]
    pub fn new(reactor: ReactorHandle, task: TaskId) -> Self {
        Self { task, place: Arc::new(Mutex::new(Place { reactor, moves: 0, waiting: 0 })) }
    }

    #[must_use]
    pub fn id(&self) -> TaskId {
        self.task
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        // A panic ends the process, so nobody poisons it.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is; it may be on its way to another.
    #[must_use]
    pub fn reactor(&self) -> ReactorHandle {
        self.place().reactor.clone()
    }

    /// [`ReactorHandle::mail`], to the reactor that the task is on when the closure runs.
    ///
    /// # Errors
    /// As there, and if too much waits for a task that is about to move.
    pub fn mail(&self, f: impl FnOnce(&mut Local) + Send + 'static) -> Result<(), MailboxFull> {
        let handle = self.clone();
        let Place { reactor, waiting, .. } = self.place().clone();
        if waiting >= WAITING_MAX {
            return Err(MailboxFull);
        }
        reactor.mail(move |local| handle.bring(local, Box::new(f), None))
    }

    /// [`ReactorHandle::call`], to the reactor that the task is on when the closure runs.
    ///
    /// # Errors
    /// As there.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Local) -> R + Send + 'static,
    ) -> Result<R, ReactorGone> {
        let (handle, began) = (self.clone(), Instant::now());
        while self.place().waiting >= WAITING_MAX {
            if began.elapsed() > CALL_LIMIT {
                return Err(ReactorGone::Silent);
            }
            thread::sleep(MAILBOX_RETRY);
        }
        self.reactor().call_later(move |local, answer| {
            // Nobody listens any more if the call has timed out.
            handle.bring(local, Box::new(move |local| drop(answer.send(f(local)))), None);
        })
    }

    /// Runs a mail for the task, or sends it after the task. One that was here after so many moves in vain comes
    /// again behind whatever was in the mailbox: if the task was not among that, it is gone, and the mail is told.
    fn bring(self, local: &mut Local, mail: Mail, missed: Option<u64>) {
        if let Some(departure) = local.departures.of(self.task) {
            self.place().waiting += 1;
            return departure.mails.push(mail);
        }
        let Place { reactor, moves, .. } = self.place().clone();
        let is_gone = reactor.is_here() && missed == Some(moves);
        if local.tasks.get(self.task).is_some() || is_gone {
            return mail(local);
        }
        // A reactor that has ended runs nothing, which the sender notices.
        drop(reactor.forward(Box::new(move |local| self.bring(local, mail, Some(moves)))));
    }

    /// Moves the task to another reactor, and waits for it. It is not polled until its operations in flight have
    /// ended, for which there is a `limit`. For control threads; it blocks.
    ///
    /// # Errors
    /// It goes on where it is.
    pub fn move_to(&self, to: &ReactorHandle, limit: Duration) -> Result<(), Immovable> {
        let from = self.reactor();
        if from.is(to) {
            return Ok(());
        }
        let (reply, answer) = mpsc::sync_channel(1);
        let (handle, to) = (self.clone(), to.clone());
        let depart = move |local: &mut Local| {
            // Nobody listens any more if it took much too long.
            local.depart(handle, to, limit, Box::new(move |outcome| drop(reply.send(outcome))));
        };
        from.call(depart).map_err(|_| Immovable::Gone)?;
        answer.recv_timeout(limit + CALL_LIMIT).unwrap_or(Err(Immovable::Gone))
    }
}

impl Local {
    fn depart(&mut self, handle: TaskHandle, to: ReactorHandle, limit: Duration, answer: Answer) {
        if self.departures.of(handle.task).is_some() {
            return answer(Err(Immovable::Moving));
        }
        let Some(task) = self.tasks.take_out(handle.task) else {
            return answer(Err(Immovable::Gone));
        };
        self.io.pack(handle.task);
        let until_ns = clock::now_ns().saturating_add(limit.as_nanos() as u64);
        let (completions, mails) = (Vec::new(), Vec::new());
        self.departures.0.push(Departure { handle, task, to, limit, until_ns, completions, mails, answer });
    }

    /// Mails those that have nothing in flight any more, and lets those go on here that took too long. Returns how
    /// many.
    #[cold]
    pub(crate) fn see_off(&mut self, now_ns: u64) -> usize {
        let io = &self.io;
        let is_due = |it: &mut Departure| io.in_flight(it.handle.task) == 0 || it.until_ns <= now_ns;
        let leaving: Vec<_> = self.departures.0.extract_if(.., is_due).collect();
        let count = leaving.len();
        for departure in leaving {
            match self.io.in_flight(departure.handle.task) {
                0 => self.send_off(departure),
                _ => {
                    let why = Immovable::Busy(departure.limit);
                    self.stay(departure, why);
                }
            }
        }
        count
    }

    /// The end of the reactor: nobody leaves any more.
    pub(crate) fn stay_all(&mut self) {
        for departure in mem::take(&mut self.departures.0) {
            self.stay(departure, Immovable::Gone);
        }
    }

    fn equip(&mut self, departure: Departure) -> (ReactorHandle, Traveller) {
        let Departure { handle, task, to, completions, mails, answer, .. } = departure;
        let (luggage, from) = (self.io.take_luggage(handle.task), handle.reactor());
        (to, Traveller { handle, from, task, luggage, completions, mails, answer })
    }

    fn send_off(&mut self, departure: Departure) {
        let (to, traveller) = self.equip(departure);
        let handle = traveller.handle.clone();
        // Whoever reads where it is writes to the other reactor after this.
        let mut place = handle.place();
        let returned = to.forward(Journey::to(traveller, false)).err();
        if returned.is_none() {
            *place = Place { reactor: to, moves: place.moves + 1, waiting: place.waiting };
        }
        drop(place);
        // The other has ended. Whatever it comes to, it comes here.
        returned.into_iter().for_each(|mail| mail(self));
    }

    fn stay(&mut self, departure: Departure, why: Immovable) {
        let (_, mut traveller) = self.equip(departure);
        let answer = mem::replace(&mut traveller.answer, Box::new(drop));
        self.arrive(traveller);
        answer(Err(why));
    }

    /// A task comes, or comes back.
    fn arrive(&mut self, traveller: Traveller) {
        let id = traveller.handle.task;
        if let Err(error) = self.io.unpack(&traveller.luggage, id) {
            return traveller.go_home(Immovable::NoRoom(error.to_string()));
        }
        let Traveller { handle, from, task, luggage, completions, mails, answer } = traveller;
        // Later than any time that it was told elsewhere.
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
            let left = luggage.left_behind();
            drop(from.forward(Box::new(move |local| local.io.release(left))));
        }
        let count = mails.len() as u32;
        mails.into_iter().for_each(|mail| mail(self));
        let mut place = handle.place();
        place.waiting = place.waiting.saturating_sub(count);
        drop(place);
        answer(if from.is_here() { Err(Immovable::Gone) } else { Ok(()) });
    }
}
