//! One controller for hosts on the network, and the association that has it.

use super::access_control::NO_ROOM;
use super::association::Association;
use super::auth_worker::AuthResult;
use super::authenticate;
use super::close_reason::CloseReason;
use super::connect::{AcceptedConnect, Host, Refusal};
use super::connection::{Connection, Context, Device};
use super::slots::Outcome;
use super::token::{Kind, Token};
use crate::log_limit::{LogLimit, limited};
use sluice_controller::{Attached, Controller, DoorbellMode, IO_QUEUES_MAX, Subsystem};
use sluice_memory::Space;
use sluice_nvme::register;
use sluice_nvme_auth::Verdict;
use sluice_reactor::{Io, TaskId};
use std::io;
use std::net::SocketAddr;

/// What all rooms of a drive have in common.
#[derive(Debug)]
pub(super) struct Shared {
    /// The drive's name, for the log.
    pub(super) name: String,
    pub(super) task: TaskId,
    pub(super) io: Io,
    pub(super) draining: bool,
    pub(super) associations: u64,
    /// Connect commands that failed, and connections that were not authenticated.
    pub(super) refused: u64,
    /// Apart from visits, so that hosts that come and go hide none that is not let in.
    pub(super) refusals: LogLimit,
    pub(super) visits: LogLimit,
    pub(super) complaints: LogLimit,
}

#[derive(Debug)]
enum Occupant {
    Vacant,
    Connected(Association),
    /// Gone, and something of it is in flight.
    Leaving(Association),
}

/// A controller: for one association at a time, and another after it.
#[derive(Debug)]
pub(super) struct TcpController {
    /// Which of the drive's rooms.
    number: u8,
    controller: Controller,
    space: Space,
    occupant: Occupant,
}

impl TcpController {
    /// # Errors
    /// There is no memory, or no room, for another controller.
    pub(super) fn new(number: u8, cntlid: u16, queues: u16, subsystem: &mut Subsystem) -> io::Result<Self> {
        let mut controller = Controller::new(subsystem, cntlid)?;
        // Its first host may be refused yet.
        controller.set_present(subsystem, false);
        controller.limit_io_queues(queues);
        controller.set_doorbell_mode(DoorbellMode::Capsules);
        let space = if subsystem.shares_memory() { Space::with_files() } else { Space::new() };
        Ok(Self { number, controller, space, occupant: Occupant::Vacant })
    }

    pub(super) fn controller(&self) -> &Controller {
        &self.controller
    }

    pub(super) fn is_vacant(&self) -> bool {
        matches!(self.occupant, Occupant::Vacant)
    }

    /// Who is here.
    pub(super) fn association(&self) -> Option<&Association> {
        match &self.occupant {
            Occupant::Connected(association) => Some(association),
            _ => None,
        }
    }

    /// Its last guest is on the way out.
    pub(super) fn is_left(&self) -> bool {
        matches!(self.occupant, Occupant::Leaving(_))
    }

    /// What of this host's was under way here when it went is not over. A host that was not let in left nothing.
    pub(super) fn is_left_by(&self, host: &Host) -> bool {
        let Occupant::Leaving(association) = &self.occupant else { return false };
        association.is_let_in && association.host == *host
    }

    /// When it is for whoever wants it, because its guest has not proved who it is.
    pub(super) fn gives_way_ns(&self) -> Option<u64> {
        let admin = self.association()?.connections.get(&0)?;
        admin.auth.as_ref()?.gives_way_ns()
    }

    /// Ends the connection that is this queue if its host had its time to prove who it is on it. Otherwise returns
    /// when it will have had; none if it has proved itself, or the end is near anyway.
    pub(super) fn clear_queue(&mut self, qid: u16, shared: &mut Shared, now_ns: u64) -> Option<u64> {
        let Occupant::Connected(association) = &mut self.occupant else { return None };
        let connection = association.connections.get_mut(&qid).filter(|it| !it.is_closed())?;
        let way_ns = connection.auth.as_ref()?.gives_way_ns()?;
        if way_ns > now_ns {
            return Some(way_ns);
        }
        end(connection, CloseReason::GaveWay, shared, &association.host.nqn, now_ns);
        // It has taken no command yet.
        None
    }

    /// Takes no more commands; those in flight go on.
    pub(super) fn pause(&mut self, subsystem: &mut Subsystem) {
        self.controller.pause(subsystem);
    }

    /// Takes a connection: the admin queue of a new association, or an I/O queue of the one that is here.
    pub(super) fn admit(
        &mut self,
        accepted: AcceptedConnect,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let (qid, host, peer) = (accepted.connect.qid, accepted.host.clone(), accepted.peer);
        let (kato_ms, cid, port) = (accepted.connect.kato_ms, accepted.entry.cid, accepted.port);
        let mut connection = match Connection::new(accepted, shared.io.clone(), shared.task, self.number) {
            Ok(connection) => connection,
            Err(error) => {
                let drive = &shared.name;
                return limited!(error, shared.complaints, now_ns, drive, %error, "cannot take a connection");
            }
        };
        if let Err(refusal) = self.lay_queue(&connection, subsystem, shared, now_ns) {
            shared.note_refusal(&host.nqn, peer, &refusal, now_ns);
            return connection.refuse(cid, &refusal);
        }
        let dw0 = u32::from(self.controller.cntlid());
        let authreq = connection.auth.as_mut().map_or(0, |auth| auth.close(now_ns));
        connection.answer(0, Outcome { dw0: dw0 | authreq, ..Outcome::default() });
        if qid == 0 {
            self.occupant = Occupant::Connected(Association::new(host, port, kato_ms));
            if connection.auth.is_none() {
                self.let_in(peer, subsystem, shared, now_ns);
            }
        }
        connection.start();
        if let Occupant::Connected(association) = &mut self.occupant {
            association.connections.insert(qid, connection);
        }
    }

    /// Tells the subsystem of a host that has proved who it is, or has nothing to prove. Before this nothing that others
    /// see is changed in its name: a name is anybody's to say. Proving may keep a host busy for longer than its
    /// keep-alive timeout, so that begins here, too.
    fn let_in(&mut self, peer: SocketAddr, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) {
        let Occupant::Connected(association) = &mut self.occupant else { return };
        association.is_let_in = true;
        let Association { host, port, kato_ms, .. } = association;
        let (drive, host, cntlid) = (&shared.name, &*host, self.controller.cntlid());
        limited!(info, shared.visits, now_ns, drive, host = host.nqn, %peer, cntlid, "a host connected");
        shared.associations += 1;
        if !self.controller.set_host(subsystem, &host.nqn, host.id) {
            let what = "has the host identifier of another, and is a host without one to reservations";
            limited!(warn, shared.complaints, now_ns, drive, host = host.nqn, %peer, "a host {what}");
        }
        self.controller.set_port(subsystem, &port.to_string());
        self.controller.set_present(subsystem, true);
        self.controller.start_keep_alive(*kato_ms, now_ns);
    }

    /// It is of a connection that is here.
    pub(super) fn has(&self, result: &AuthResult) -> bool {
        self.association()
            .is_some_and(|association| association.connections.values().any(|it| result.is_of(it)))
    }

    /// What came of a message with which the host proves who it is.
    pub(super) fn heard(
        &mut self,
        result: AuthResult,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let Occupant::Connected(association) = &mut self.occupant else { return };
        let Association { host, connections, is_let_in, .. } = association;
        let Some(connection) = connections.values_mut().find(|it| result.is_of(it)) else { return };
        let (drive, host, qid) = (&shared.name, &host.nqn, connection.qid);
        let what = match result.progress.as_ref().map(|progress| progress.verdict) {
            Some(Verdict::Pending) => None,
            Some(Verdict::Authenticated) => {
                tracing::debug!(drive, host, qid, "a host proved who it is");
                None
            }
            Some(Verdict::Failed(why)) => Some(format!("a host did not prove who it is: {why}")),
            Some(Verdict::GivenUp(why)) => Some(format!("a host does not believe the drive: {why}")),
            None => Some("a host did not prove who it is: what it sent could not be looked at".to_owned()),
        };
        if let Some(what) = what {
            shared.note_stranger(host, qid, &what, now_ns);
        }
        authenticate::heard(connection, result, now_ns);
        if qid == 0 && !*is_let_in && !connection.is_unauthenticated() {
            let peer = connection.peer;
            self.let_in(peer, subsystem, shared, now_ns);
        }
    }

    /// Maps the memory of a connection, and creates its queues.
    fn lay_queue(
        &mut self,
        connection: &Connection,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) -> Result<(), Refusal> {
        if let Err(error) = connection.memory.map(&mut self.space) {
            let drive = &shared.name;
            limited!(error, shared.complaints, now_ns, drive, %error, "cannot map a connection's memory");
            return Err(NO_ROOM);
        }
        if connection.qid == 0 {
            self.lay_admin_queue(connection, subsystem, now_ns);
            return Ok(());
        }
        self.controller.create_queue_pair(&connection.memory.queue_pair(), &self.space).map_err(|status| {
            drop(connection.memory.unmap(&mut self.space));
            Refusal::new(status, "the controller is not ready for I/O queues")
        })
    }

    /// Puts the admin queue where the controller finds it when it is enabled.
    fn lay_admin_queue(&mut self, connection: &Connection, subsystem: &mut Subsystem, now_ns: u64) {
        let pair = connection.memory.queue_pair();
        let size = pair.entries - 1;
        let aqa = size | size << 16;
        let Self { controller, space, .. } = self;
        controller.write_register(subsystem, register::AQA, &aqa.to_le_bytes(), space, now_ns);
        controller.write_register(subsystem, register::ASQ, &pair.sq.to_le_bytes(), space, now_ns);
        controller.write_register(subsystem, register::ACQ, &pair.cq.to_le_bytes(), space, now_ns);
    }

    pub(super) fn turn(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        match self.occupant {
            Occupant::Connected(_) => self.serve(subsystem, shared, now_ns),
            Occupant::Vacant => 0,
            Occupant::Leaving(_) => self.see_off(subsystem, now_ns),
        }
    }

    /// A turn with a host: what came in, the controller, what goes out.
    fn serve(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        let mut work = self.take_staged(subsystem, shared, now_ns);
        if shared.draining {
            self.controller.pause(subsystem);
        }
        work += self.controller.turn(subsystem, &self.space, now_ns);
        let Self { occupant: Occupant::Connected(association), controller, space, .. } = self else {
            return work;
        };
        work += reap(association, controller);
        for connection in association.connections.values_mut() {
            if connection.expire(now_ns) {
                controller.abandon_queue(subsystem, connection.qid, now_ns);
            }
            connection.start();
        }
        if association.look_ns.is_some_and(|at| at <= now_ns) {
            association.look(now_ns);
        }
        if association.has_remains() {
            work += association.bury(controller, subsystem, space);
        }
        work + self.end_if_over(subsystem, shared, now_ns)
    }

    /// Takes what came in on the connections that are open; one that fails comes to its end.
    fn take_staged(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        let Occupant::Connected(association) = &mut self.occupant else { return 0 };
        let kato_ms = association.kato_ms;
        let device = Attached { controller: &mut self.controller, subsystem };
        let mut context = Context { device, space: &self.space, kato_ms, now_ns };
        let mut work = 0;
        for connection in association.connections.values_mut().filter(|it| it.is_open()) {
            match connection.take_staged(&mut context) {
                Ok(taken) => {
                    connection.ring(context.device.controller);
                    work += taken;
                }
                Err(why) => {
                    work += 1;
                    end(connection, why, shared, &association.host.nqn, now_ns);
                    let Attached { controller, subsystem } = &mut context.device;
                    controller.abandon_queue(subsystem, connection.qid, now_ns);
                }
            }
        }
        work
    }

    /// Ends what cannot go on: the association without its admin queue, or with a controller that failed;
    /// the I/O queues of a controller that was disabled; all, at the end of a drain.
    fn end_if_over(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        let Occupant::Connected(association) = &mut self.occupant else { return 0 };
        let admin_is_closed = association.connections.get(&0).is_none_or(Connection::is_closed);
        let drained = shared.draining
            && self.controller.unfinished(subsystem) == 0
            && association.connections.values().all(Connection::is_idle);
        let why = match () {
            () if self.controller.is_fatal() => Some(CloseReason::Fatal),
            () if drained => Some(CloseReason::ByServer),
            () if admin_is_closed => Some(CloseReason::ByHost),
            () => None,
        };
        if let Some(why) = why {
            self.dismiss(why, subsystem, shared, now_ns);
            return 1;
        }
        if !self.controller.is_ready() && association.connections.len() > 1 {
            let queues = association.connections.iter_mut().filter(|(qid, _)| **qid != 0);
            queues.for_each(|(_, connection)| connection.close());
        }
        0
    }

    /// The host goes: its connections now, their memory when nothing in flight needs it.
    #[cold]
    pub(super) fn dismiss(
        &mut self,
        why: CloseReason,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let mut association = match std::mem::replace(&mut self.occupant, Occupant::Vacant) {
            Occupant::Connected(association) => association,
            other => return self.occupant = other,
        };
        let (drive, host) = (&shared.name, &association.host.nqn);
        match why {
            CloseReason::Fatal | CloseReason::GaveWay => {
                limited!(warn, shared.complaints, now_ns, drive, host, "disconnected a host: {why}")
            }
            _ if !association.is_let_in => {}
            _ => limited!(info, shared.visits, now_ns, drive, host, "a host is gone"),
        }
        association.close();
        if association.is_let_in {
            self.controller.reset(subsystem);
        }
        self.occupant = Occupant::Leaving(association);
    }

    /// A turn while commands of the last host are in flight.
    #[cold]
    fn see_off(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let work = self.controller.turn(subsystem, &self.space, now_ns);
        let Occupant::Leaving(association) = &self.occupant else { return work };
        if !association.is_over() || !self.controller.is_quiescent(subsystem) {
            return work;
        }
        if let Occupant::Leaving(association) = std::mem::replace(&mut self.occupant, Occupant::Vacant) {
            if association.is_let_in {
                self.controller.set_present(subsystem, false);
            }
            association.release(&mut self.space);
        }
        work + 1
    }

    /// Something on a connection's socket is over.
    pub(super) fn completed(
        &mut self,
        token: Token,
        result: i32,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let (association, is_here) = match &mut self.occupant {
            Occupant::Vacant => return,
            Occupant::Connected(association) => (association, true),
            Occupant::Leaving(association) => (association, false),
        };
        let kato_ms = association.kato_ms;
        let Some(connection) = association.connections.get_mut(&token.qid) else { return };
        let device: Device<'_> = Attached { controller: &mut self.controller, subsystem };
        let mut context = Context { device, space: &self.space, kato_ms, now_ns };
        let outcome = match token.kind {
            Kind::Receive => connection.received(result, &mut context),
            Kind::Send => connection.sent(result),
        };
        if let Err(why) = outcome
            && is_here
        {
            end(connection, why, shared, &association.host.nqn, now_ns);
            self.controller.abandon_queue(subsystem, token.qid, now_ns);
        }
        if token.qid != 0 && matches!(token.kind, Kind::Receive) {
            association.heard(now_ns);
        }
    }

    /// There is something to do before it sleeps.
    pub(super) fn arm(&mut self, subsystem: &Subsystem) -> bool {
        let has_work = match &self.occupant {
            Occupant::Vacant => return false,
            Occupant::Connected(association) => {
                association.connections.values().any(Connection::has_work)
                    || association.has_remains() && self.controller.in_flight(subsystem) == 0
            }
            Occupant::Leaving(_) => false,
        };
        has_work || self.controller.arm(subsystem)
    }

    pub(super) fn disarm(&mut self) {
        self.controller.disarm();
    }

    /// When to look although nothing happened.
    pub(super) fn deadline_ns(&mut self, subsystem: &Subsystem) -> Option<u64> {
        if self.is_vacant() {
            return None;
        }
        let controller = self.controller.deadline_ns(subsystem);
        let connections = self.association().into_iter().flat_map(|it| it.connections.values());
        let farewell = connections.filter_map(Connection::deadline_ns).min();
        let look = self.association().and_then(|association| association.look_ns);
        [controller, farewell, look].into_iter().flatten().min()
    }
}

/// Takes the completions of the queues that have some, and lets commands go on that waited for room.
fn reap(association: &mut Association, controller: &mut Controller) -> usize {
    let mut fresh = [0u64; IO_QUEUES_MAX as usize / 64 + 1];
    controller.take_vectors(|vector| fresh[usize::from(vector) / 64] |= 1 << (vector % 64));
    let mut work = 0;
    for (qid, connection) in &mut association.connections {
        if fresh[usize::from(*qid) / 64] >> (*qid % 64) & 1 != 0 {
            work += connection.reap(controller);
        }
        let resumed = connection.resume();
        if resumed > 0 {
            connection.ring(controller);
            work += resumed;
        }
    }
    work
}

/// Ends a connection, in the way that its end asks for.
#[cold]
fn end(connection: &mut Connection, why: CloseReason, shared: &mut Shared, host: &str, now_ns: u64) {
    let (drive, qid) = (&shared.name, connection.qid);
    let unproved = connection.auth.as_ref().and_then(|auth| auth.unproved(now_ns));
    let went = match why {
        CloseReason::ByHost => true,
        CloseReason::Tls(failure) => failure.is_end(),
        _ => false,
    };
    match (went, unproved) {
        (true, Some(missing)) => {
            shared.note_stranger(host, qid, &format!("a host did not prove who it is: {missing}"), now_ns);
        }
        (true, None) => tracing::debug!(drive, host, qid, "{why}"),
        _ => limited!(warn, shared.complaints, now_ns, drive, host, qid, "a connection ends: {why}"),
    }
    match why {
        CloseReason::Violation(violation) => connection.terminate(violation, now_ns),
        CloseReason::Tls(failure) if !failure.is_peers() => connection.alert(failure, now_ns),
        _ => connection.close(),
    }
}

impl Drop for TcpController {
    fn drop(&mut self) {
        if let Occupant::Connected(association) | Occupant::Leaving(association) = &mut self.occupant {
            association.close();
        }
    }
}
