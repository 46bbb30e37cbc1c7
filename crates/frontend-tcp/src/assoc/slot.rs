//! One controller of a drive for hosts on the network, and the association that has it.

use super::access_control::NO_ROOM;
use super::association::Association;
use crate::accept::{AcceptedConnect, Host, Refusal};
use crate::auth::AuthResult;
use crate::conn::{CloseReason, Connection, Context, Outcome, authenticate};
use crate::token::{Kind, Owner, Token};
use sluice_controller::{Controller, DoorbellMode, IO_QUEUES_MAX, Subsystem};
use sluice_frontend::{LogLimit, limited};
use sluice_memory::Space;
use sluice_nvme::register;
use sluice_nvme_auth::Verdict;
use sluice_reactor::{Io, TaskId};
use std::io;
use std::net::SocketAddr;

/// State that all TCP controllers of a drive share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Name of the drive, for the log.
    pub(super) name: String,
    pub(super) task: TaskId,
    pub(super) io: Io,
    /// Number of the front-end in its drive.
    pub(super) frontend: u8,
    pub(super) draining: bool,
    pub(super) associations: u64,
    /// Connect commands that failed, and connections that were not authenticated.
    pub(super) refused: u64,
    /// Limit of refusals in the log. Connects have their own, so that hosts that come and go hide no refused
    /// host.
    pub(super) refusals: LogLimit,
    pub(super) connects: LogLimit,
    pub(super) warnings: LogLimit,
}

#[derive(Debug)]
pub(super) enum SlotState {
    Vacant,
    Connected(Association),
    /// Disconnected, with commands or socket operations still in flight.
    Leaving(Association),
}

/// Controller that serves one association at a time.
#[derive(Debug)]
pub(super) struct TcpController {
    /// Index among the controllers of the drive.
    number: u8,
    pub(super) controller: Controller,
    pub(super) space: Space,
    pub(super) state: SlotState,
}

impl TcpController {
    /// Creates a controller that is not present yet and has no association.
    ///
    /// # Errors
    /// There is no memory, or no free slot, for another controller.
    pub(super) fn new(number: u8, cntlid: u16, queues: u16, subsystem: &mut Subsystem) -> io::Result<Self> {
        let mut controller = Controller::new(subsystem, cntlid)?;
        // Its first host may still be refused.
        controller.set_present(subsystem, false);
        controller.limit_io_queues(queues);
        controller.set_doorbell_mode(DoorbellMode::Capsules);
        let space = if subsystem.shares_memory() { Space::with_files() } else { Space::new() };
        Ok(Self { number, controller, space, state: SlotState::Vacant })
    }

    pub(super) fn owner(&self, shared: &Shared) -> Owner {
        Owner { frontend: shared.frontend, controller: self.number }
    }

    pub(super) fn controller(&self) -> &Controller {
        &self.controller
    }

    pub(super) fn is_vacant(&self) -> bool {
        matches!(self.state, SlotState::Vacant)
    }

    /// Returns the association that is connected.
    pub(super) fn association(&self) -> Option<&Association> {
        match &self.state {
            SlotState::Connected(association) => Some(association),
            _ => None,
        }
    }

    /// Returns whether the last association is still winding down.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.state, SlotState::Leaving(_))
    }

    /// Returns whether commands of this host, which has disconnected, are still in flight here. A host that
    /// was never authenticated has none.
    pub(super) fn is_leaving_of(&self, host: &Host) -> bool {
        let SlotState::Leaving(association) = &self.state else { return false };
        association.is_announced && association.host == *host
    }

    /// Returns the time from which another host may take the controller. None if its host is authenticated.
    pub(super) fn evictable_ns(&self) -> Option<u64> {
        let admin = self.association()?.connections.get(&0)?;
        admin.auth.as_ref()?.evictable_ns()
    }

    /// Closes the connection of queue `qid` if its host has had its time to authenticate.
    ///
    /// Otherwise returns when that time is over. None if the host is authenticated or the connection ends
    /// anyway.
    pub(super) fn evict_queue(&mut self, qid: u16, shared: &mut Shared, now_ns: u64) -> Option<u64> {
        let SlotState::Connected(association) = &mut self.state else { return None };
        let connection = association.connections.get_mut(&qid).filter(|it| !it.is_closed())?;
        let evict_ns = connection.auth.as_ref()?.evictable_ns()?;
        if evict_ns > now_ns {
            return Some(evict_ns);
        }
        end(connection, CloseReason::Evicted, shared, &association.host.nqn, now_ns);
        // The controller has no command of this queue yet, so none is to be abandoned.
        None
    }

    /// Stops fetching commands. Commands in flight go on.
    pub(super) fn pause(&mut self, subsystem: &mut Subsystem) {
        self.controller.pause(subsystem);
    }

    /// Takes a connection: the admin queue of a new association, or an I/O queue of the present one.
    pub(super) fn admit(
        &mut self,
        accepted: AcceptedConnect,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let (qid, host, peer) = (accepted.connect.qid, accepted.host.clone(), accepted.peer);
        let (kato_ms, cid, port) = (accepted.connect.kato_ms, accepted.entry.cid, accepted.port);
        let owner = self.owner(shared);
        let mut connection = match Connection::new(accepted, shared.io.clone(), shared.task, owner) {
            Ok(connection) => connection,
            Err(error) => {
                let drive = &shared.name;
                return limited!(error, shared.warnings, now_ns, drive, %error, "cannot take a connection");
            }
        };
        if let Err(refusal) = self.create_queue(&connection, subsystem, shared, now_ns) {
            shared.note_refusal(&host.nqn, peer, &refusal, now_ns);
            return connection.refuse(cid, &refusal);
        }
        let dw0 = u32::from(self.controller.cntlid());
        let authreq = connection.auth.as_mut().map_or(0, |auth| auth.close(now_ns));
        connection.answer(0, Outcome { dw0: dw0 | authreq, ..Outcome::default() });
        if qid == 0 {
            self.state = SlotState::Connected(Association::new(host, port, kato_ms));
            if connection.auth.is_none() {
                self.announce(peer, subsystem, shared, now_ns);
            }
        }
        connection.start();
        if let SlotState::Connected(association) = &mut self.state {
            association.connections.insert(qid, connection);
        }
    }

    /// Reports a host to the subsystem once it has authenticated, or at once if it need not.
    ///
    /// Host names are not secret. So before this call nothing that other hosts see is changed in the name of
    /// the host. The keep-alive timer starts here, because authentication may take longer than its timeout.
    fn announce(&mut self, peer: SocketAddr, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) {
        let SlotState::Connected(association) = &mut self.state else { return };
        association.is_announced = true;
        let Association { host, port, kato_ms, .. } = association;
        let (drive, host, cntlid) = (&shared.name, &*host, self.controller.cntlid());
        limited!(info, shared.connects, now_ns, drive, host = host.nqn, %peer, cntlid, "a host connected");
        shared.associations += 1;
        if !self.controller.set_host(subsystem, &host.nqn, host.id) {
            let what = "has the host identifier of another, and is a host without one to reservations";
            limited!(warn, shared.warnings, now_ns, drive, host = host.nqn, %peer, "a host {what}");
        }
        self.controller.set_port(subsystem, &port.to_string());
        self.controller.set_present(subsystem, true);
        self.controller.start_keep_alive(*kato_ms, now_ns);
    }

    /// Returns whether the result belongs to a connection of this association.
    pub(super) fn has(&self, result: &AuthResult) -> bool {
        self.association()
            .is_some_and(|association| association.connections.values().any(|it| it.awaits(result)))
    }

    /// Applies the result of an authentication message.
    pub(super) fn take_auth_result(
        &mut self,
        result: AuthResult,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let SlotState::Connected(association) = &mut self.state else { return };
        let Association { host, connections, is_announced, .. } = association;
        let Some(connection) = connections.values_mut().find(|it| it.awaits(&result)) else { return };
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
            shared.note_unauthenticated(host, qid, &what, now_ns);
        }
        authenticate::take_result(connection, result, now_ns);
        if qid == 0 && !*is_announced && !connection.is_unauthenticated() {
            let peer = connection.peer;
            self.announce(peer, subsystem, shared, now_ns);
        }
    }

    /// Maps the memory of a connection, and creates its queues.
    fn create_queue(
        &mut self,
        connection: &Connection,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) -> Result<(), Refusal> {
        if let Err(error) = connection.memory.map(&mut self.space) {
            let drive = &shared.name;
            limited!(error, shared.warnings, now_ns, drive, %error, "cannot map a connection's memory");
            return Err(NO_ROOM);
        }
        if connection.qid == 0 {
            self.set_admin_queue(connection, subsystem, now_ns);
            return Ok(());
        }
        self.controller.create_queue_pair(&connection.memory.queue_pair(), &self.space).map_err(|status| {
            drop(connection.memory.unmap(&mut self.space));
            Refusal::new(status, "the controller is not ready for I/O queues")
        })
    }

    /// Writes the addresses of the admin queue to AQA, ASQ and ACQ, which the controller reads when it is
    /// enabled.
    fn set_admin_queue(&mut self, connection: &Connection, subsystem: &mut Subsystem, now_ns: u64) {
        let pair = connection.memory.queue_pair();
        let size = pair.entries - 1;
        let aqa = size | size << 16;
        let Self { controller, space, .. } = self;
        controller.write_register(subsystem, register::AQA, &aqa.to_le_bytes(), space, now_ns);
        controller.write_register(subsystem, register::ASQ, &pair.sq.to_le_bytes(), space, now_ns);
        controller.write_register(subsystem, register::ACQ, &pair.cq.to_le_bytes(), space, now_ns);
    }

    pub(super) fn turn(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        match self.state {
            SlotState::Connected(_) => self.serve(subsystem, shared, now_ns),
            SlotState::Vacant => 0,
            SlotState::Leaving(_) => self.finish_leaving(subsystem, now_ns),
        }
    }

    /// Runs a turn with a connected host: received PDUs, the controller, then responses.
    fn serve(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        let mut work = self.take_staged(subsystem, shared, now_ns);
        if shared.draining {
            self.controller.pause(subsystem);
        }
        work += self.controller.turn(subsystem, &self.space, now_ns);
        let Self { state: SlotState::Connected(association), controller, space, .. } = self else {
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
        if association.has_closed() {
            work += association.remove_closed(controller, subsystem, space);
        }
        work + self.end_if_over(subsystem, shared, now_ns)
    }

    /// Processes received bytes of all open connections. A connection that fails is closed.
    fn take_staged(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        let SlotState::Connected(association) = &mut self.state else { return 0 };
        let kato_ms = association.kato_ms;
        let Self { controller, space, .. } = self;
        let mut context = Context { controller, subsystem, space, kato_ms, now_ns };
        let mut work = 0;
        for connection in association.connections.values_mut().filter(|it| it.is_open()) {
            match connection.take_staged(&mut context) {
                Ok(taken) => {
                    connection.ring(context.controller);
                    work += taken;
                }
                Err(why) => {
                    work += 1;
                    end(connection, why, shared, &association.host.nqn, now_ns);
                    context.controller.abandon_queue(context.subsystem, connection.qid, now_ns);
                }
            }
        }
        work
    }

    /// Ends an association without its admin queue or with a failed controller, and every association after a
    /// drain. Closes the I/O queues of a disabled controller.
    fn end_if_over(&mut self, subsystem: &mut Subsystem, shared: &mut Shared, now_ns: u64) -> usize {
        let SlotState::Connected(association) = &mut self.state else { return 0 };
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
            self.disconnect(why, subsystem, shared, now_ns);
            return 1;
        }
        if !self.controller.is_ready() && association.connections.len() > 1 {
            let queues = association.connections.iter_mut().filter(|(qid, _)| **qid != 0);
            queues.for_each(|(_, connection)| connection.close());
        }
        0
    }

    /// Disconnects the host. Connections are closed now; their memory is freed when nothing in flight needs
    /// it.
    #[cold]
    pub(super) fn disconnect(
        &mut self,
        why: CloseReason,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let mut association = match std::mem::replace(&mut self.state, SlotState::Vacant) {
            SlotState::Connected(association) => association,
            other => return self.state = other,
        };
        let (drive, host) = (&shared.name, &association.host.nqn);
        match why {
            CloseReason::Fatal | CloseReason::Evicted => {
                limited!(warn, shared.warnings, now_ns, drive, host, "disconnected a host: {why}")
            }
            _ if !association.is_announced => {}
            _ => limited!(info, shared.connects, now_ns, drive, host, "a host is gone"),
        }
        association.close();
        if association.is_announced {
            self.controller.reset(subsystem);
        }
        self.state = SlotState::Leaving(association);
    }

    /// Runs a turn while commands of the last host are in flight.
    #[cold]
    fn finish_leaving(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let work = self.controller.turn(subsystem, &self.space, now_ns);
        let SlotState::Leaving(association) = &self.state else { return work };
        if !association.is_over() || !self.controller.is_quiescent(subsystem) {
            return work;
        }
        if let SlotState::Leaving(association) = std::mem::replace(&mut self.state, SlotState::Vacant) {
            if association.is_announced {
                self.controller.set_present(subsystem, false);
            }
            association.release(&mut self.space);
        }
        work + 1
    }

    /// Handles the completion of a socket operation.
    pub(super) fn completed(
        &mut self,
        token: Token,
        result: i32,
        subsystem: &mut Subsystem,
        shared: &mut Shared,
        now_ns: u64,
    ) {
        let (association, is_here) = match &mut self.state {
            SlotState::Vacant => return,
            SlotState::Connected(association) => (association, true),
            SlotState::Leaving(association) => (association, false),
        };
        let kato_ms = association.kato_ms;
        let Some(connection) = association.connections.get_mut(&token.qid) else { return };
        let Self { controller, space, .. } = self;
        let mut context = Context { controller, subsystem: &mut *subsystem, space, kato_ms, now_ns };
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
            association.schedule_look(now_ns);
        }
    }

    /// Prepares for sleep. Returns whether there is work to do first.
    pub(super) fn arm(&mut self, subsystem: &Subsystem) -> bool {
        let has_work = match &self.state {
            SlotState::Vacant => return false,
            SlotState::Connected(association) => {
                association.connections.values().any(Connection::has_work)
                    || association.has_closed() && self.controller.in_flight(subsystem) == 0
            }
            SlotState::Leaving(_) => false,
        };
        has_work || self.controller.arm(subsystem)
    }

    pub(super) fn disarm(&mut self) {
        self.controller.disarm();
    }

    /// Returns when to run a turn even without an event.
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

/// Words with a bit for each queue of an association.
const QUEUE_WORDS: usize = (IO_QUEUES_MAX as usize + 1).div_ceil(64);

const _: () = assert!(IO_QUEUES_MAX as usize / 64 < QUEUE_WORDS, "the last queue has a bit");

/// Takes the completions of signalled queues, and resumes commands that waited for buffer space.
fn reap(association: &mut Association, controller: &mut Controller) -> usize {
    let mut fresh = [0u64; QUEUE_WORDS];
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

/// Ends a connection: with C2HTermReq after a violation, with a TLS alert after a TLS failure, otherwise at
/// once.
#[cold]
fn end(connection: &mut Connection, why: CloseReason, shared: &mut Shared, host: &str, now_ns: u64) {
    let (drive, qid) = (&shared.name, connection.qid);
    let missing = connection.auth.as_ref().and_then(|auth| auth.missing(now_ns));
    let went = match why {
        CloseReason::ByHost => true,
        CloseReason::Tls(failure) => failure.is_end(),
        _ => false,
    };
    match (went, missing) {
        (true, Some(missing)) => {
            shared.note_unauthenticated(
                host,
                qid,
                &format!("a host did not prove who it is: {missing}"),
                now_ns,
            );
        }
        (true, None) => tracing::debug!(drive, host, qid, "{why}"),
        _ => limited!(warn, shared.warnings, now_ns, drive, host, qid, "a connection ends: {why}"),
    }
    match why {
        CloseReason::Violation(violation) => connection.terminate(violation, now_ns),
        CloseReason::Tls(failure) if !failure.is_peers() => connection.alert(failure, now_ns),
        _ => connection.close(),
    }
}

impl Drop for TcpController {
    fn drop(&mut self) {
        if let SlotState::Connected(association) | SlotState::Leaving(association) = &mut self.state {
            association.close();
        }
    }
}
