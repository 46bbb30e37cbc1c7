//! One controller with the connections of its host, as a task of a reactor.

use super::arrival::{Arrival, Refusal};
use super::association::Association;
use super::connection::{Connection, Context, Ended};
use super::judge::{BUSY, Judgement, NO_ROOM, judge_queue};
use super::slots::Outcome;
use super::token::{Kind, Token};
use crate::log_limit::{LogLimit, limited};
use sluice_controller::{DoorbellMode, IO_QUEUES_MAX, Joined};
use sluice_memory::Space;
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, InvalidParameter};
use sluice_nvme::register;
use sluice_reactor::{Arm, Io, Task, TaskId};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Connections that may wait until what was before them is over.
const LOBBY_MAX: usize = 16;

/// How long they wait, in nanoseconds: a host that comes back may be here before its last connection is
/// known to be gone.
const PATIENCE_NS: u64 = 2_000_000_000;

/// What an operator says of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// The drive's, for the log.
    pub name: String,
    /// Identify's CNTLID.
    pub cntlid: u16,
}

/// What an operator sees of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Name of the host that is there.
    pub host: Option<String>,
    /// Its connections, the admin queue's included.
    pub connections: usize,
    /// Associations since the drive was opened.
    pub associations: u64,
    /// Connect commands that failed.
    pub refused: u64,
}

#[derive(Debug)]
enum Guest {
    Nobody,
    Here(Association),
    /// Gone, and something of it is in flight.
    Leaving(Association),
}

/// One controller for hosts on the network: at most one host at a time, and another after it.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    task: TaskId,
    io: Io,
    device: Joined,
    space: Space,
    guest: Guest,
    /// Connections that wait, with the time until which they do.
    lobby: VecDeque<(Arrival, u64)>,
    draining: bool,
    associations: u64,
    refused: u64,
    visits: LogLimit,
    complaints: LogLimit,
}

impl Endpoint {
    /// For `Local::add`, whose closure gets `task` and `io`.
    pub fn new(task: TaskId, io: Io, mut device: Joined, config: Config) -> Self {
        device.set_doorbell_mode(DoorbellMode::Capsules);
        let space = if device.shares_memory() { Space::with_files() } else { Space::new() };
        Self {
            config,
            task,
            io,
            device,
            space,
            guest: Guest::Nobody,
            lobby: VecDeque::with_capacity(LOBBY_MAX),
            draining: false,
            associations: 0,
            refused: 0,
            visits: LogLimit::default(),
            complaints: LogLimit::default(),
        }
    }

    pub fn device(&self) -> &Joined {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut Joined {
        &mut self.device
    }

    pub fn status(&self) -> Status {
        let here = match &self.guest {
            Guest::Here(association) => Some(association),
            _ => None,
        };
        Status {
            host: here.map(|association| association.host.nqn.clone()),
            connections: here.map_or(0, |association| association.connections.len()),
            associations: self.associations,
            refused: self.refused,
        }
    }

    /// The end: nobody else is let in, no more commands are taken, and when those in flight are answered the
    /// host is disconnected. Remove the task when it [`is_drained`](Self::is_drained).
    pub fn drain(&mut self) {
        self.draining = true;
        self.device.pause();
    }

    /// Nobody is there, nobody can come, and nothing is in flight.
    pub fn is_drained(&self) -> bool {
        self.draining && matches!(self.guest, Guest::Nobody)
    }

    /// A connection whose Connect command is to be answered.
    pub(super) fn welcome(&mut self, arrival: Arrival, now_ns: u64) {
        if self.lobby.len() == LOBBY_MAX {
            return self.turn_away(arrival, &BUSY, now_ns);
        }
        self.lobby.push_back((arrival, now_ns.saturating_add(PATIENCE_NS)));
    }

    fn turn_away(&mut self, arrival: Arrival, refusal: &Refusal, now_ns: u64) {
        self.note_refusal(&arrival.host.nqn, arrival.peer, refusal, now_ns);
        arrival.refuse(refusal);
    }

    fn note_refusal(&mut self, host: &str, peer: SocketAddr, refusal: &Refusal, now_ns: u64) {
        self.refused += 1;
        let drive = &self.config.name;
        limited!(warn, self.visits, now_ns, drive, host, %peer, "turned a host away: {}", refusal.why);
    }

    /// Lets in whom it can. Returns the work done.
    #[cold]
    fn receive_guests(&mut self, now_ns: u64) -> usize {
        let mut work = 0;
        for _ in 0..self.lobby.len() {
            let Some((arrival, until_ns)) = self.lobby.pop_front() else { break };
            match self.judge(&arrival) {
                Judgement::Wait(_) if now_ns < until_ns && !self.draining => {
                    self.lobby.push_back((arrival, until_ns));
                    continue;
                }
                Judgement::Wait(refusal) | Judgement::Refuse(refusal) => {
                    self.turn_away(arrival, &refusal, now_ns)
                }
                Judgement::Admit => self.admit(arrival, now_ns),
            }
            work += 1;
        }
        work
    }

    fn judge(&self, arrival: &Arrival) -> Judgement {
        match (&self.guest, arrival.connect.qid) {
            _ if self.draining => Judgement::Wait(BUSY),
            (_, 0) if arrival.cntlid != CNTLID_DYNAMIC && arrival.cntlid != self.config.cntlid => {
                Judgement::parameter(InvalidParameter::CNTLID, "there is no such controller")
            }
            (Guest::Nobody, 0) if self.device.is_quiescent() => Judgement::Admit,
            (_, 0) => Judgement::Wait(BUSY),
            (Guest::Here(association), qid) => judge_queue(association, arrival, qid, self.config.cntlid),
            _ => Judgement::parameter(InvalidParameter::CNTLID, "its admin queue is not connected"),
        }
    }

    fn admit(&mut self, arrival: Arrival, now_ns: u64) {
        let (qid, host, peer) = (arrival.connect.qid, arrival.host.clone(), arrival.peer);
        let (kato_ms, cid) = (arrival.connect.kato_ms, arrival.entry.cid);
        let mut connection = match Connection::new(arrival, self.io.clone(), self.task) {
            Ok(connection) => connection,
            Err(error) => {
                let drive = &self.config.name;
                return limited!(error, self.complaints, now_ns, drive, %error, "cannot take a connection");
            }
        };
        if let Err(refusal) = self.lay_queue(&connection, now_ns) {
            self.note_refusal(&host.nqn, peer, &refusal, now_ns);
            return connection.refuse(cid, &refusal);
        }
        if qid == 0 {
            let drive = &self.config.name;
            limited!(info, self.visits, now_ns, drive, host = host.nqn, %peer, "a host connected");
            self.associations += 1;
            self.guest = Guest::Here(Association::new(host, kato_ms));
            self.device.start_keep_alive(kato_ms, now_ns);
        }
        let dw0 = u32::from(self.config.cntlid);
        connection.answer(0, Outcome { dw0, ..Outcome::default() });
        connection.start();
        if let Guest::Here(association) = &mut self.guest {
            association.connections.insert(qid, connection);
        }
    }

    /// Maps the memory of a connection, and creates its queues.
    fn lay_queue(&mut self, connection: &Connection, now_ns: u64) -> Result<(), Refusal> {
        if let Err(error) = connection.memory.map(&mut self.space) {
            let drive = &self.config.name;
            limited!(error, self.complaints, now_ns, drive, %error, "cannot map a connection's memory");
            return Err(NO_ROOM);
        }
        if connection.qid == 0 {
            self.lay_admin_queue(connection, now_ns);
            return Ok(());
        }
        self.device.create_queue_pair(&connection.memory.queue_pair(), &self.space).map_err(|status| {
            drop(connection.memory.unmap(&mut self.space));
            Refusal::new(status, "the controller is not ready for I/O queues")
        })
    }

    /// Puts the admin queue where the controller finds it when it is enabled.
    fn lay_admin_queue(&mut self, connection: &Connection, now_ns: u64) {
        let pair = connection.memory.queue_pair();
        let size = pair.entries - 1;
        let aqa = size | size << 16;
        let Self { device, space, .. } = self;
        device.write_register(register::AQA, &aqa.to_le_bytes(), space, now_ns);
        device.write_register(register::ASQ, &pair.sq.to_le_bytes(), space, now_ns);
        device.write_register(register::ACQ, &pair.cq.to_le_bytes(), space, now_ns);
    }

    /// A turn with a host: what came in, the controller, what goes out.
    fn serve(&mut self, now_ns: u64) -> usize {
        let mut work = self.each_connection(now_ns, |connection, context| {
            let taken = connection.take_staged(context)?;
            connection.ring(context.device);
            Ok(taken)
        });
        if self.draining {
            self.device.pause();
        }
        work += self.device.turn(&self.space, now_ns);
        let Self { guest: Guest::Here(association), device, space, .. } = self else { return work };
        work += reap(association, device);
        for connection in association.connections.values_mut() {
            connection.expire(now_ns);
            connection.start();
        }
        if association.has_remains() {
            work += association.bury(device, space);
        }
        work + self.end_if_over(now_ns)
    }

    /// Calls `run` for every connection that is open; one that fails comes to its end.
    fn each_connection(
        &mut self,
        now_ns: u64,
        mut run: impl FnMut(&mut Connection, &mut Context<'_>) -> Result<usize, Ended>,
    ) -> usize {
        let Guest::Here(association) = &mut self.guest else { return 0 };
        let kato_ms = association.kato_ms;
        let mut context = Context { device: &mut self.device, space: &self.space, kato_ms, now_ns };
        let mut work = 0;
        for connection in association.connections.values_mut().filter(|it| it.is_open()) {
            match run(connection, &mut context) {
                Ok(done) => work += done,
                Err(why) => {
                    work += 1;
                    let (drive, host) = (&self.config.name, &association.host.nqn);
                    end(connection, why, drive, host, &mut self.complaints, now_ns);
                }
            }
        }
        work
    }

    /// Ends what cannot go on: the association without its admin queue, or with a controller that failed;
    /// the I/O queues of a controller that was disabled; all, at the end of a drain.
    fn end_if_over(&mut self, now_ns: u64) -> usize {
        let Guest::Here(association) = &mut self.guest else { return 0 };
        let admin_is_closed = association.connections.get(&0).is_none_or(Connection::is_closed);
        let drained = self.draining
            && self.device.unfinished() == 0
            && association.connections.values().all(Connection::is_idle);
        let why = match () {
            () if self.device.is_fatal() => Some(Ended::Fatal),
            () if drained => Some(Ended::ByServer),
            () if admin_is_closed => Some(Ended::ByHost),
            () => None,
        };
        if let Some(why) = why {
            self.dismiss(why, now_ns);
            return 1;
        }
        if !self.device.is_ready() && association.connections.len() > 1 {
            let queues = association.connections.iter_mut().filter(|(qid, _)| **qid != 0);
            queues.for_each(|(_, connection)| connection.close());
        }
        0
    }

    /// The host goes: its connections now, their memory when nothing in flight needs it.
    #[cold]
    fn dismiss(&mut self, why: Ended, now_ns: u64) {
        let mut association = match std::mem::replace(&mut self.guest, Guest::Nobody) {
            Guest::Here(association) => association,
            other => return self.guest = other,
        };
        let (drive, host) = (&self.config.name, &association.host.nqn);
        match why {
            Ended::Fatal => {
                limited!(warn, self.complaints, now_ns, drive, host, "disconnected a host: {why}")
            }
            _ => limited!(info, self.visits, now_ns, drive, host, "a host is gone"),
        }
        association.close();
        self.device.reset();
        self.guest = Guest::Leaving(association);
    }

    /// A turn while commands of the last host are in flight.
    #[cold]
    fn see_off(&mut self, now_ns: u64) -> usize {
        let work = self.device.turn(&self.space, now_ns);
        let Guest::Leaving(association) = &self.guest else { return work };
        if !association.is_over() || !self.device.is_quiescent() {
            return work;
        }
        if let Guest::Leaving(association) = std::mem::replace(&mut self.guest, Guest::Nobody) {
            association.release(&mut self.space);
        }
        work + 1
    }

    /// Something on a connection's socket is over.
    fn completed(&mut self, token: Token, result: i32, now_ns: u64) {
        let (association, is_here) = match &mut self.guest {
            Guest::Nobody => return,
            Guest::Here(association) => (association, true),
            Guest::Leaving(association) => (association, false),
        };
        let kato_ms = association.kato_ms;
        let Some(connection) = association.connections.get_mut(&token.qid) else { return };
        let mut context = Context { device: &mut self.device, space: &self.space, kato_ms, now_ns };
        let outcome = match token.kind {
            Kind::Receive => connection.received(result, &mut context),
            Kind::Send => connection.sent(result),
        };
        if let Err(why) = outcome
            && is_here
        {
            let (drive, host) = (&self.config.name, &association.host.nqn);
            end(connection, why, drive, host, &mut self.complaints, now_ns);
        }
    }

    /// When to look although nothing happened.
    fn deadline_ns(&self) -> Option<u64> {
        let connections = match &self.guest {
            Guest::Here(association) => Some(&association.connections),
            _ => None,
        };
        let connections = connections.into_iter().flat_map(|it| it.values());
        let farewell = connections.filter_map(Connection::deadline_ns).min();
        let lobby = self.lobby.iter().map(|(_, until_ns)| *until_ns).min();
        [self.device.deadline_ns(), farewell, lobby].into_iter().flatten().min()
    }

    fn has_work(&self) -> bool {
        match &self.guest {
            Guest::Here(association) => {
                association.connections.values().any(Connection::has_work)
                    || association.has_remains() && self.device.in_flight() == 0
            }
            _ => false,
        }
    }
}

/// Takes the completions of the queues that have some, and lets commands go on that waited for room.
fn reap(association: &mut Association, device: &mut Joined) -> usize {
    let mut fresh = [0u64; IO_QUEUES_MAX as usize / 64 + 1];
    device.take_vectors(|vector| fresh[usize::from(vector) / 64] |= 1 << (vector % 64));
    let mut work = 0;
    for (qid, connection) in &mut association.connections {
        if fresh[usize::from(*qid) / 64] >> (*qid % 64) & 1 != 0 {
            work += connection.reap(device);
        }
        let resumed = connection.resume();
        if resumed > 0 {
            connection.ring(device);
            work += resumed;
        }
    }
    work
}

/// Ends a connection, in the way that its end asks for.
#[cold]
fn end(connection: &mut Connection, why: Ended, drive: &str, host: &str, limit: &mut LogLimit, now_ns: u64) {
    let qid = connection.qid;
    match why {
        Ended::ByHost => tracing::debug!(drive, host, qid, "{why}"),
        _ => limited!(warn, limit, now_ns, drive, host, qid, "a connection ends: {why}"),
    }
    match why {
        Ended::Violation(violation) => connection.terminate(violation, now_ns),
        _ => connection.close(),
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Guest::Here(association) | Guest::Leaving(association) = &mut self.guest {
            association.close();
        }
    }
}

impl Task for Endpoint {
    fn turn(&mut self, now_ns: u64) -> usize {
        let work = if self.lobby.is_empty() { 0 } else { self.receive_guests(now_ns) };
        work + match self.guest {
            Guest::Here(_) => self.serve(now_ns),
            Guest::Nobody => self.device.turn(&self.space, now_ns),
            Guest::Leaving(_) => self.see_off(now_ns),
        }
    }

    fn look_ahead(&self) {
        self.device.look_ahead();
    }

    fn event(&mut self, token: u64, result: i32, _more: bool, now_ns: u64) {
        match Token::of(token) {
            None => self.device.event(token, result, now_ns),
            Some(token) => self.completed(token, result, now_ns),
        }
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        if self.has_work() || self.device.arm() {
            self.device.disarm();
            return Arm::Busy;
        }
        Arm::Asleep { until: self.deadline_ns() }
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }
}
