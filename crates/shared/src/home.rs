//! A shared object on its home reactor.

use crate::message::{Answer, Request};
use crate::port::NEED_MAX;
use crate::ports::{Connection, HomeSide, PORTS_MAX, PortNumber, PortSide};
use crate::ring::{Receiver, Sender};
use crate::{Object, Unit};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Messages of all ports that are handled in one turn; of one port.
const MESSAGES_PER_TURN: usize = 2048;
const MESSAGES_OF_ONE: usize = 128;

/// Units of a closed port that are reclaimed in one turn.
const RECLAIMED_PER_TURN: usize = 2048;

/// Request of a port.
#[derive(Clone, Copy, Debug)]
struct Want {
    need: usize,
    extra: usize,
}

/// A port as the home sees it.
#[derive(Debug)]
struct Attached {
    requests: Receiver,
    answers: Sender,
    side: Arc<PortSide>,
    want: Option<Want>,
    /// The port may hold credit.
    may_hold: bool,
    /// The port is closed, and its units are being reclaimed.
    closing: bool,
    /// Round of recalls that waits for this port; zero for none.
    awaited: u32,
    /// Answers were written, but not published.
    touched: bool,
}

impl Attached {
    fn answer(&mut self, answer: Answer) {
        // One request is under way at a time, and the ring has room for its whole answer.
        let fits = self.answers.push(answer.words());
        debug_assert!(fits, "a port requests again before it has read the last answer");
    }
}

/// A shared object with its ports. Polled on the home reactor by [`turn`](Self::turn).
#[derive(Debug)]
pub struct Home<O> {
    object: O,
    side: Arc<HomeSide>,
    ports: Vec<Option<Attached>>,
    /// Ports with a request, the oldest first.
    waiting: VecDeque<PortNumber>,
    /// Units for the oldest request, until there are as many as it needs.
    held: Vec<Unit>,
    /// Number of the latest round of recalls, which is made for the oldest request.
    round: u32,
    round_is_open: bool,
    /// Ports that the open round waits for.
    awaited: usize,
    /// Closed ports with units that are not reclaimed yet.
    closing: VecDeque<PortNumber>,
    /// Messages were left for the next turn.
    has_unread: bool,
    // Lists of a turn, kept for their memory.
    signalled: Vec<PortNumber>,
    touched: Vec<PortNumber>,
    recalled: Vec<PortNumber>,
}

impl<O: Object> Home<O> {
    /// Creates the home of an object.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new(object: O) -> io::Result<Self> {
        let ports = std::iter::repeat_with(|| None).take(PORTS_MAX).collect();
        let list = || Vec::with_capacity(PORTS_MAX);
        Ok(Self {
            object,
            side: Arc::new(HomeSide::new()?),
            ports,
            waiting: VecDeque::with_capacity(PORTS_MAX),
            held: Vec::with_capacity(NEED_MAX),
            round: 0,
            round_is_open: false,
            awaited: 0,
            closing: VecDeque::with_capacity(PORTS_MAX),
            has_unread: false,
            signalled: list(),
            touched: list(),
            recalled: list(),
        })
    }

    /// Returns the side that ports and control threads reach.
    #[must_use]
    pub fn side(&self) -> &Arc<HomeSide> {
        &self.side
    }

    #[must_use]
    pub fn object(&self) -> &O {
        &self.object
    }

    pub fn object_mut(&mut self) -> &mut O {
        &mut self.object
    }

    /// Acknowledges that this many further notes of a port are durable.
    pub fn acknowledge(&mut self, number: PortNumber, notes: u64) {
        let Some(port) = &self.ports[number.index()] else { return };
        port.side.noted.fetch_add(notes, Ordering::Release);
        port.side.notifier.notify();
    }

    /// Reports that notes of a port that are not acknowledged never will be.
    pub fn fail_notes(&mut self, number: PortNumber) {
        let Some(port) = &self.ports[number.index()] else { return };
        port.side.notes_failed.store(true, Ordering::Release);
        port.side.notifier.notify();
    }

    /// Sends a port's user a new number, which is odd if the object needs something of the user: its own meaning.
    pub fn call(&mut self, number: PortNumber, needs: bool) {
        let Some(port) = &self.ports[number.index()] else { return };
        let calls = (port.side.calls.load(Ordering::Acquire) & !1).wrapping_add(2) | u32::from(needs);
        port.side.calls.store(calls, Ordering::Release);
        port.side.notifier.notify();
    }

    /// Returns whether a port is closed, and its units are being reclaimed.
    #[must_use]
    pub fn is_closing(&self, number: PortNumber) -> bool {
        self.ports[number.index()].as_ref().is_some_and(|port| port.closing)
    }

    /// Adds a port, which may have sent messages already, or be closed.
    pub fn attach(&mut self, connection: Connection) {
        let Connection { number, requests, answers, side } = connection;
        let (want, may_hold, closing, awaited, touched) = (None, false, false, 0, false);
        let port = Attached { requests, answers, side, want, may_hold, closing, awaited, touched };
        self.ports[number.index()] = Some(port);
        self.side.signal_again(number);
    }

    /// Handles the messages of all ports; returns the work done.
    pub fn turn(&mut self) -> usize {
        let mut work = 0;
        if self.side.is_signalled() {
            work += self.read_all();
        }
        work += self.reclaim();
        work += self.serve();
        self.publish();
        work
    }

    fn read_all(&mut self) -> usize {
        let mut signalled = std::mem::take(&mut self.signalled);
        self.side.take_signals(|number| signalled.push(number));
        let mut messages = 0;
        self.has_unread = false;
        for number in signalled.drain(..) {
            match messages < MESSAGES_PER_TURN {
                true => messages += self.read(number),
                false => self.put_back(number),
            }
        }
        self.signalled = signalled;
        messages
    }

    /// Handles messages of a port; returns how many. A closed port counts as one.
    fn read(&mut self, number: PortNumber) -> usize {
        // A port that is not attached yet is read when it is.
        let Some(port) = &mut self.ports[number.index()] else { return 0 };
        if port.closing {
            return 0;
        }
        // Read before the messages: a closed port sends no further ones.
        let closed = port.side.closed.load(Ordering::Acquire);
        for messages in 0..MESSAGES_OF_ONE {
            let Some(port) = &mut self.ports[number.index()] else { return messages };
            let Some(words) = port.requests.pop() else {
                port.requests.free();
                if closed {
                    self.begin_closing(number);
                }
                return messages + usize::from(closed);
            };
            self.handle(number, Request::from_words(words));
        }
        if let Some(port) = &mut self.ports[number.index()] {
            port.requests.free();
        }
        self.put_back(number);
        MESSAGES_OF_ONE
    }

    /// Leaves further messages of a port for the next turn. Units that were given back may be among them.
    fn put_back(&mut self, number: PortNumber) {
        self.side.signal_again(number);
        self.has_unread = true;
    }

    fn handle(&mut self, number: PortNumber, request: Request) {
        let Some(port) = &mut self.ports[number.index()] else { return };
        match request {
            Request::GiveBack(unit) => self.object.give_back(number, unit),
            Request::Note(word) => self.object.note(number, word),
            Request::Take { need, extra } => {
                debug_assert!(port.want.is_none(), "a port has one request at a time");
                port.want = Some(Want { need: need as usize, extra: extra as usize });
                self.waiting.push_back(number);
            }
            Request::Recalled { round, kept } => {
                // After a later grant, the answer to an earlier round has no meaning.
                if self.round_is_open && round == self.round && port.awaited == round {
                    port.awaited = 0;
                    port.may_hold = kept;
                    self.awaited -= 1;
                }
            }
        }
    }

    fn begin_closing(&mut self, number: PortNumber) {
        let Some(port) = &mut self.ports[number.index()] else { return };
        port.closing = true;
        self.closing.push_back(number);
        if self.waiting.front() == Some(&number) {
            self.give_held_back(number);
            self.round_is_open = false;
        }
        self.waiting.retain(|waiting| *waiting != number);
    }

    fn give_held_back(&mut self, number: PortNumber) {
        for unit in self.held.drain(..) {
            self.object.give_back(number, unit);
        }
    }

    /// Reclaims units of the first closed port; returns the work done.
    fn reclaim(&mut self) -> usize {
        let Some(&number) = self.closing.front() else { return 0 };
        if self.object.reclaim(number, RECLAIMED_PER_TURN) {
            self.closing.pop_front();
            let port = self.ports[number.index()].take();
            if self.round_is_open && port.is_some_and(|port| port.awaited == self.round) {
                self.awaited -= 1;
            }
            self.side.free_number(number);
        }
        1
    }

    /// Serves requests in order; returns how many were settled.
    fn serve(&mut self) -> usize {
        let mut settled = 0;
        while let Some(&number) = self.waiting.front() {
            let want = self.ports[number.index()].as_ref().and_then(|port| port.want);
            let Want { need, extra } = want.unwrap_or(Want { need: 0, extra: 0 });
            while self.held.len() < need
                && let Some(unit) = self.object.take(number)
            {
                self.held.push(unit);
            }
            let refused = self.held.len() < need;
            if refused && (self.has_unread || self.waits_for_others(number)) {
                break;
            }
            self.waiting.pop_front();
            self.round_is_open = false;
            match refused {
                true => self.give_held_back(number),
                false => self.take_extra(number, extra),
            }
            self.settle(number, refused);
            settled += 1;
        }
        settled
    }

    /// Takes credit in advance, if no other port waits.
    fn take_extra(&mut self, number: PortNumber, extra: usize) {
        let count = if self.waiting.is_empty() { extra } else { 0 };
        for _ in 0..count {
            let Some(unit) = self.object.take(number) else { break };
            self.held.push(unit);
        }
    }

    fn settle(&mut self, number: PortNumber, refused: bool) {
        let Some(port) = &mut self.ports[number.index()] else { return };
        port.want = None;
        port.may_hold |= !self.held.is_empty();
        for unit in self.held.drain(..) {
            port.answer(Answer::Grant(unit));
        }
        port.answer(Answer::Settled { refused });
        if !std::mem::replace(&mut port.touched, true) {
            self.touched.push(number);
        }
    }

    /// Returns whether other ports may give units back, after a recall for the oldest request.
    fn waits_for_others(&mut self, number: PortNumber) -> bool {
        if !self.round_is_open {
            self.begin_round(number);
        }
        self.awaited > 0
    }

    #[cold]
    fn begin_round(&mut self, front: PortNumber) {
        // Zero is the round of a port that was never recalled.
        self.round = self.round.wrapping_add(1).max(1);
        self.round_is_open = true;
        self.awaited = 0;
        for (index, port) in self.ports.iter_mut().enumerate() {
            let (number, Some(port)) = (PortNumber(index as u16), port) else { continue };
            if number == front || !(port.may_hold || port.closing) {
                continue;
            }
            port.awaited = self.round;
            self.awaited += 1;
            if !port.closing {
                self.recalled.push(number);
            }
        }
    }

    /// Publishes answers, then recalls: a port sees all earlier grants when it sees a recall.
    fn publish(&mut self) {
        for number in self.touched.drain(..) {
            let Some(port) = &mut self.ports[number.index()] else { continue };
            port.touched = false;
            if port.answers.publish() {
                port.side.notifier.notify();
            }
        }
        for number in self.recalled.drain(..) {
            let Some(port) = &self.ports[number.index()] else { continue };
            port.side.recall.store(self.round, Ordering::Release);
            port.side.notifier.notify();
        }
    }

    /// Announces sleep; returns true if there is work after all.
    pub fn arm(&mut self) -> bool {
        let (side, closing) = (&self.side, &self.closing);
        side.notifier.arm(|| !closing.is_empty() || side.is_signalled())
    }

    /// Ends the announcement.
    pub fn disarm(&mut self) {
        self.side.notifier.disarm();
    }
}
