//! Hosts on the network of a drive, each with its own controller.

use super::access_control::{BUSY, Decision, FEW_DESCRIPTORS, NO_ROOM, STILL_LEAVING, decide_queue};
use super::association::Association;
use super::pending::PendingQueue;
use super::slot::{Shared, TcpController};
use crate::accept::{AcceptedConnect, Host, Refusal};
use crate::auth::AuthResult;
use crate::conn::CloseReason;
use crate::token::Token;
use sluice_controller::Subsystem;
use sluice_frontend::descriptors::{CONNECTIONS_OF_EACH, Fill, fill};
use sluice_frontend::{Drive, Frontend, FrontendToken, LogLimit, NewFrontend, NvmeFrontend, Served, limited};
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, InvalidParameter};
use sluice_reactor::Arm;
use sluice_tls::Suite;
use std::io;
use std::net::SocketAddr;

/// Controllers that may still have commands in flight of a host that disconnected, when that host reconnects.
const LEAVING_OF_ONE_HOST_MAX: usize = 4;

/// Configuration of the hosts of a drive.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the drive, for the log.
    pub name: String,
    /// Identifier of the first controller; the others follow.
    pub cntlid: u16,
    /// Associations at a time, each with its own controller.
    pub hosts_max: u8,
    /// I/O queues of each association, and so its connections without the admin queue.
    pub queues_max: u16,
}

/// Status of the hosts, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// NQNs of connected hosts, once for each association. A host that has yet to authenticate is not listed.
    pub hosts: Vec<String>,
    /// NQNs of the connected hosts that authenticated.
    pub authenticated: Vec<String>,
    /// Cipher suites of the encrypted associations.
    pub ciphers: Vec<Suite>,
    /// Connections of these hosts, admin queues included, on which nothing is left to authenticate.
    pub connections: usize,
    /// Associations since the drive was opened.
    pub associations: u64,
    /// Connect commands that failed, and connections that were not authenticated.
    pub refused: u64,
}

/// Front-end of a drive for hosts on the network, with a controller for each, created on demand.
#[derive(Debug)]
pub struct Hosts {
    pub(super) config: Config,
    pub(super) shared: Shared,
    pub(super) slots: Vec<TcpController>,
    pub(super) pending: PendingQueue<AcceptedConnect>,
    /// Set while another process may have the hosts: they get no turn.
    pub(super) is_suspended: bool,
    /// Time when an unauthenticated host gives way to a pending connection.
    evict_ns: Option<u64>,
}

impl Hosts {
    /// Admits hosts on the network to a drive, which a [`Directory`](crate::Directory) sends there.
    ///
    /// # Errors
    /// The drive has as many front-ends as it can have.
    pub fn admit(drive: &mut Drive, config: Config) -> io::Result<()> {
        drive.add(|new| Ok(Self::new(new, config)))
    }

    /// Returns the status of the hosts of a drive, if it admits hosts on the network.
    pub fn status_of(drive: &Drive) -> Option<Status> {
        drive.frontends::<Self>().next().map(Self::status)
    }

    pub(super) fn new(new: NewFrontend<'_>, config: Config) -> Self {
        let shared = Shared {
            name: config.name.clone(),
            task: new.task,
            io: new.io,
            frontend: new.number,
            draining: false,
            associations: 0,
            refused: 0,
            refusals: LogLimit::default(),
            connects: LogLimit::default(),
            warnings: LogLimit::default(),
        };
        Self {
            config,
            shared,
            slots: Vec::new(),
            pending: PendingQueue::new(),
            is_suspended: false,
            evict_ns: None,
        }
    }

    /// Returns the limit of concurrent associations.
    fn most(&self) -> usize {
        self.config.hosts_max.into()
    }

    fn status(&self) -> Status {
        let here = || {
            self.slots
                .iter()
                .filter_map(TcpController::association)
                .filter(|association| association.is_announced)
        };
        let proved = here().filter(|association| association.is_authenticated());
        Status {
            hosts: here().map(|association| association.host.nqn.clone()).collect(),
            authenticated: proved.map(|association| association.host.nqn.clone()).collect(),
            ciphers: here().filter_map(Association::suite).collect(),
            connections: here().map(Association::authenticated_connections).sum(),
            associations: self.shared.associations,
            refused: self.shared.refused,
        }
    }

    /// Returns whether no host is connected, and nothing of a former host is in flight.
    fn is_vacant(&self) -> bool {
        self.slots.iter().all(TcpController::is_vacant)
    }

    /// Queues a connection whose Connect command is to be completed.
    pub(crate) fn enqueue(&mut self, accepted: AcceptedConnect, now_ns: u64) {
        if let Some(left_out) = self.pending.put(accepted, now_ns) {
            self.refuse(left_out, &BUSY, now_ns);
        }
    }

    /// Passes an authentication result to its connection.
    pub(crate) fn take_auth_result(&mut self, result: AuthResult, subsystem: &mut Subsystem, now_ns: u64) {
        // The connection may be gone.
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.has(&result)) {
            slot.take_auth_result(result, subsystem, &mut self.shared, now_ns);
        }
    }

    fn refuse(&mut self, accepted: AcceptedConnect, refusal: &Refusal, now_ns: u64) {
        self.shared.note_refusal(&accepted.host.nqn, accepted.peer, refusal, now_ns);
        accepted.refuse(refusal);
    }

    /// Admits or refuses pending connections, as far as possible. Returns the work done.
    #[cold]
    fn admit_pending(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let mut work = 0;
        self.evict_ns = None;
        for _ in 0..self.pending.len() {
            let Some((accepted, until_ns)) = self.pending.pop() else { break };
            match self.decide_fairly(&accepted) {
                Decision::Wait(_) if now_ns < until_ns && !self.shared.draining => {
                    let evict_ns = self.evict_unauthenticated(&accepted, subsystem, now_ns);
                    self.evict_ns = [self.evict_ns, evict_ns].into_iter().flatten().min();
                    self.pending.put_back(accepted, until_ns);
                    continue;
                }
                Decision::Wait(refusal) | Decision::Refuse(refusal) => {
                    self.refuse(accepted, &refusal, now_ns)
                }
                Decision::Admit(number) => {
                    self.make_controller(number, subsystem, now_ns);
                    match self.slots.get_mut(usize::from(number)) {
                        Some(slot) => slot.admit(accepted, subsystem, &mut self.shared, now_ns),
                        None => self.refuse(accepted, &NO_ROOM, now_ns),
                    }
                }
            }
            work += 1;
        }
        work
    }

    /// Returns the index of the requested controller, if it exists or is the next to be created.
    fn requested(&self, accepted: &AcceptedConnect) -> Option<u8> {
        let requested = usize::from(accepted.cntlid).checked_sub(self.config.cntlid.into())?;
        (requested < self.most() && requested <= self.slots.len()).then_some(requested as u8)
    }

    fn association(&self, slot: u8) -> Option<&Association> {
        self.slots.get(usize::from(slot))?.association()
    }

    /// Returns the number of controllers with commands in flight of this host, which has disconnected.
    fn leaving_of(&self, host: &Host) -> usize {
        self.slots.iter().filter(|slot| slot.is_leaving_of(host)).count()
    }

    /// Returns the limit of such controllers for one host, which leaves controllers for others.
    fn leaving_max(&self) -> usize {
        (self.most() / 2).clamp(1, LEAVING_OF_ONE_HOST_MAX)
    }

    /// Decides like [`decide`](Self::decide), but refuses a connection that takes the descriptors of other
    /// drives.
    fn decide_fairly(&self, accepted: &AcceptedConnect) -> Decision {
        let decision = self.decide(accepted);
        let connections = || {
            self.slots
                .iter()
                .filter_map(TcpController::association)
                .map(|it| it.connections.len())
                .sum::<usize>()
        };
        let takes_more = || connections() >= CONNECTIONS_OF_EACH && fill(&accepted.socket) > Fill::Free;
        match decision {
            Decision::Admit(_) if takes_more() => Decision::Refuse(FEW_DESCRIPTORS),
            other => other,
        }
    }

    /// Decides about a connection. An admin queue gets the first free controller, or the requested one. An
    /// I/O queue gets the controller of its association.
    fn decide(&self, accepted: &AcceptedConnect) -> Decision {
        let is_free = |number: usize| self.slots.get(number).is_none_or(TcpController::is_vacant);
        match (accepted.connect.qid, self.requested(accepted)) {
            _ if self.shared.draining => Decision::Wait(BUSY),
            // Earlier commands of the host hold back later ones that overlap them. While in flight they
            // occupy a controller, too.
            (0, _) if self.leaving_of(&accepted.host) >= self.leaving_max() => Decision::Wait(STILL_LEAVING),
            (0, _) if accepted.cntlid == CNTLID_DYNAMIC => {
                let vacant = (0..self.config.hosts_max).find(|number| is_free(usize::from(*number)));
                vacant.map_or(Decision::Wait(BUSY), Decision::Admit)
            }
            (0, Some(requested)) => match is_free(requested.into()) {
                true => Decision::Admit(requested),
                false => Decision::Wait(BUSY),
            },
            (0, None) => Decision::parameter(InvalidParameter::CNTLID, "there is no such controller"),
            (_, requested) => {
                match requested.and_then(|requested| Some((requested, self.association(requested)?))) {
                    Some((requested, association)) => {
                        decide_queue(association, accepted, requested, self.config.queues_max)
                    }
                    None => Decision::parameter(InvalidParameter::CNTLID, "its admin queue is not connected"),
                }
            }
        }
    }

    /// Disconnects the unauthenticated host that has had the longest time to authenticate, unless a
    /// controller becomes free anyway.
    ///
    /// Returns when that time is over, if it is not yet. So a host without a key keeps others out only
    /// briefly.
    fn evict_unauthenticated(
        &mut self,
        accepted: &AcceptedConnect,
        subsystem: &mut Subsystem,
        now_ns: u64,
    ) -> Option<u64> {
        let requested = self.requested(accepted).map(usize::from);
        let Self { slots, shared, .. } = self;
        if accepted.connect.qid != 0 {
            return slots.get_mut(requested?)?.evict_queue(accepted.connect.qid, shared, now_ns);
        }
        let is_requested = |number: usize| requested.is_none_or(|requested| requested == number);
        let wanted = || slots.iter().enumerate().filter(|(number, _)| is_requested(*number));
        if wanted().any(|(_, slot)| slot.is_leaving()) {
            return None;
        }
        let (evict_ns, number) =
            wanted().filter_map(|(number, slot)| Some((slot.evictable_ns()?, number))).min()?;
        if evict_ns > now_ns {
            return Some(evict_ns);
        }
        slots[number].disconnect(CloseReason::Evicted, subsystem, shared, now_ns);
        None
    }

    /// Creates the controller of this number if it is the next.
    pub(super) fn make_controller(&mut self, number: u8, subsystem: &mut Subsystem, now_ns: u64) {
        if usize::from(number) != self.slots.len() {
            return;
        }
        let Config { cntlid, queues_max, .. } = self.config;
        match TcpController::new(number, cntlid + u16::from(number), queues_max, subsystem) {
            Ok(slot) => self.slots.push(slot),
            Err(error) => {
                let (drive, warnings) = (&self.shared.name, &mut self.shared.warnings);
                limited!(error, warnings, now_ns, drive, %error, "cannot make another controller");
            }
        }
    }

    /// Returns when to run a turn even without an event.
    fn deadline_ns(&mut self, subsystem: &Subsystem) -> Option<u64> {
        let slots = self.slots.iter_mut().filter_map(|slot| slot.deadline_ns(subsystem)).min();
        [self.pending.until_ns(), slots, self.evict_ns].into_iter().flatten().min()
    }
}

impl Frontend for Hosts {
    type Backend = Subsystem;

    fn turn(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> Served {
        if self.is_suspended {
            return Served { work: 0, is_vacant: false };
        }
        let mut work = if self.pending.is_empty() { 0 } else { self.admit_pending(subsystem, now_ns) };
        for slot in &mut self.slots {
            work += slot.turn(subsystem, &mut self.shared, now_ns);
        }
        Served { work, is_vacant: self.is_vacant() }
    }

    fn look_ahead(&self) -> bool {
        let present = self.slots.iter().find(|slot| !slot.is_vacant());
        present.inspect(|slot| slot.controller().look_ahead()).is_some()
    }

    /// Handles the completion of a socket operation.
    fn event(
        &mut self,
        subsystem: &mut Subsystem,
        token: FrontendToken,
        result: i32,
        _more: bool,
        now_ns: u64,
    ) {
        let Some(token) = Token::of(token) else { return };
        if let Some(slot) = self.slots.get_mut(usize::from(token.owner.controller)) {
            slot.completed(token, result, subsystem, &mut self.shared, now_ns);
        }
    }

    fn is_suspended(&self) -> bool {
        self.is_suspended
    }

    fn arm(&mut self, subsystem: &mut Subsystem, _now_ns: u64) -> Arm {
        match self.slots.iter_mut().fold(false, |work, slot| slot.arm(subsystem) | work) {
            true => Arm::Busy,
            false => Arm::Asleep { until: self.deadline_ns(subsystem) },
        }
    }

    fn disarm(&mut self) {
        self.slots.iter_mut().for_each(TcpController::disarm);
    }

    fn drain(&mut self, subsystem: &mut Subsystem, _now_ns: u64) {
        self.shared.draining = true;
        self.slots.iter_mut().for_each(|slot| slot.pause(subsystem));
    }

    fn is_drained(&self) -> bool {
        self.shared.draining && self.is_vacant()
    }

    fn unfinished(&self, subsystem: &Subsystem) -> u32 {
        self.slots.iter().map(|slot| slot.controller().unfinished(subsystem)).sum()
    }

    fn hosts_max(&self) -> usize {
        self.most()
    }
}

impl NvmeFrontend for Hosts {}

impl Shared {
    pub(super) fn note_refusal(&mut self, host: &str, peer: SocketAddr, refusal: &Refusal, now_ns: u64) {
        self.refused += 1;
        let drive = &self.name;
        limited!(warn, self.refusals, now_ns, drive, host, %peer, "turned a host away: {}", refusal.why);
    }

    /// Counts and logs a connected host that was not authenticated.
    pub(super) fn note_unauthenticated(&mut self, host: &str, qid: u16, what: &str, now_ns: u64) {
        self.refused += 1;
        let drive = &self.name;
        limited!(warn, self.refusals, now_ns, drive, host, qid, "{what}");
    }
}

#[cfg(test)]
mod tests;
