//! Records of a port: one is kept for the case of a crash, another is made for a hand-over.

use super::super::client::Client;
use super::super::interrupts::Interrupts;
use super::super::kept::{Left, Progress};
use super::super::record::{HandOverError, Incoming, take_session};
use super::super::region::Function;
use super::super::session::Session;
use super::super::token::Kind;
use super::super::{Counters, Listener};
use super::{ClientState, Kept, Port};
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_controller::{CannotHandOver, Controller, Subsystem};
use sluice_frontend::limited;
use sluice_memory::Space;
use sluice_reactor::PollFlags;
use std::os::fd::AsFd;

/// Records that are kept outside of this process, in case that it dies.
impl Port {
    /// Begins to keep the port: it [needs a record](Self::needs_record) from now on whenever it has changed.
    pub(crate) fn keep(&mut self, controller: &mut Controller, now_ns: u64) {
        self.kept = Some(Kept { has_changed: true });
        controller.keep();
        self.keep_session(now_ns);
    }

    pub(super) fn keep_session(&mut self, now_ns: u64) {
        let (Some(kept), ClientState::Connected(session)) = (&mut self.kept, &mut self.state) else { return };
        kept.has_changed = true;
        match Progress::new() {
            Ok(progress) => session.keep(progress),
            Err(error) => {
                let drive = &self.config.name;
                limited!(warn, self.warnings, now_ns, drive, "a client is lost if the daemon dies: {error}");
            }
        }
    }

    /// Returns whether answers or results wait until a record is kept.
    #[inline]
    pub(crate) fn needs_record(&self, controller: &Controller) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.has_changed)
            || controller.has_results()
            || self.session().is_some_and(Session::has_changed)
    }

    /// Sends everything that has waited for a record, after one was kept.
    pub(crate) fn kept(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
        self.kept.iter_mut().for_each(|kept| kept.has_changed = false);
        self.let_go(controller, subsystem, now_ns);
    }

    /// Sends everything that waits for a record, although none could be kept yet.
    pub(crate) fn let_go(&mut self, controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
        controller.release_results();
        if self.session().is_some_and(Session::has_changed) {
            self.converse(controller, subsystem, now_ns, |session, _| session.kept());
            self.watch_room();
        }
        if let ClientState::Connected(session) = &mut self.state {
            self.counters.interrupts += session.client.function.interrupt(controller);
        }
    }

    /// Keeps no record any more.
    pub(crate) fn stop_keeping(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) {
        self.kept = None;
        self.let_go(controller, subsystem, now_ns);
        controller.stop_keeping();
        if self.session().is_some_and(|session| session.progress().is_some()) {
            self.converse(controller, subsystem, now_ns, |session, _| session.stop_keeping());
        }
    }
}

/// Hand-over to another process, and its counterpart there.
impl Port {
    /// Returns the listener and the session, if they can be handed over now.
    pub(crate) fn to_hand_over(&self) -> Result<(&Listener, Option<&Session>), CannotHandOver> {
        const BUSY: CannotHandOver = CannotHandOver("a client comes, goes, or waits for an answer");
        let listener = self.acceptor.to_hand_over().filter(|_| self.drain.is_none()).ok_or(BUSY)?;
        match &self.state {
            ClientState::None => Ok((listener, None)),
            ClientState::Connected(session) if session.is_settled() => Ok((listener, Some(session))),
            _ => Err(BUSY),
        }
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    /// Stops all work, after a record was made.
    pub(crate) fn suspend(&mut self) {
        self.is_suspended = true;
        self.acceptor.keep_paths(true);
    }

    /// Ends the suspension, and owns the paths of the socket.
    pub(crate) fn go_on(&mut self) {
        if !std::mem::take(&mut self.is_suspended) {
            return;
        }
        self.acceptor.keep_paths(false);
        self.acceptor.look_now();
        if let ClientState::Connected(session) = &mut self.state {
            session.set_readable();
        }
        self.watch_room();
    }

    pub(crate) fn put(&self, part: &mut Writer) {
        let Counters { clients, turned_away, messages, refused, doorbells, interrupts, maps, unmaps, resets } =
            self.counters;
        part.put(self.epoch);
        [clients, turned_away, messages, refused, doorbells, interrupts, maps, unmaps, resets]
            .into_iter()
            .for_each(|count| part.put(count));
    }

    pub(crate) fn take(&mut self, part: &mut Reader<'_>) -> Result<(), RecordError> {
        self.epoch = part.get()?;
        self.counters = Counters {
            clients: part.get()?,
            turned_away: part.get()?,
            messages: part.get()?,
            refused: part.get()?,
            doorbells: part.get()?,
            interrupts: part.get()?,
            maps: part.get()?,
            unmaps: part.get()?,
            resets: part.get()?,
        };
        Ok(())
    }

    pub(crate) fn space_mut(&mut self) -> &mut Space {
        &mut self.space
    }

    /// Continues the client of a record.
    pub(crate) fn take_client(
        &mut self,
        controller: &Controller,
        part: &mut Reader<'_>,
        incoming: &Incoming,
        left: Option<&Left>,
    ) -> Result<(), HandOverError> {
        let client = self.new_client(controller);
        let session = take_session(part, incoming, client, left)?;
        self.io.poll(session.as_fd(), PollFlags::IN, self.task, self.token(Kind::Message));
        self.state = ClientState::Connected(Box::new(session));
        Ok(())
    }

    /// Makes the state of a client that is new to this process.
    pub(super) fn new_client(&self, controller: &Controller) -> Client {
        let vectors = if self.config.by_pin { 0 } else { controller.vectors() };
        let interrupts = Interrupts::new(self.io.clone(), self.task, self.number, vectors);
        Client::new(self.config.doorbells, Function::new(&self.config.identity, interrupts))
    }
}
