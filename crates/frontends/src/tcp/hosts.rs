//! The hosts of a drive that are on the network, each with a controller of its own.

use super::arrival::{Arrival, Host, Refusal};
use super::association::Association;
use super::ended::Ended;
use super::judge::{BUSY, CROWDED, Judgement, NO_ROOM, NOT_OVER, judge_queue};
use super::lobby::Lobby;
use super::notary::Finding;
use super::room::{House, Room};
use super::token::Token;
use crate::descriptors::{CONNECTIONS_OF_EACH, Fill, fill};
use crate::log_limit::{LogLimit, limited};
use sluice_controller::Subsystem;
use sluice_nvme::fabrics::{CNTLID_DYNAMIC, InvalidParameter};
use sluice_reactor::{Io, TaskId};
use sluice_tls::Suite;
use std::net::SocketAddr;

/// Places at most that a host has left with commands under way when it is let in again.
const LEFT_OF_ONE_HOST_MAX: usize = 4;

/// What an operator says of the hosts of a drive.
#[derive(Clone, Debug)]
pub struct Config {
    /// The drive's name, for the log.
    pub name: String,
    /// The identifier of the first controller; others follow.
    pub cntlid: u16,
    /// Associations at a time, each with a controller of its own.
    pub hosts_max: u8,
    /// I/O queues of each, and so connections, less the one of the admin queue.
    pub queues_max: u16,
}

/// What an operator sees of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Names of the hosts that are there; of one that is there twice, twice. A host that has yet to prove who it is is
    /// not there.
    pub hosts: Vec<String>,
    /// Those of them that proved who they are.
    pub authenticated: Vec<String>,
    /// What the connections of each are encrypted with; none if they are not.
    pub ciphers: Vec<Suite>,
    /// Their connections, the admin queues' included, on which nothing is left to prove.
    pub connections: usize,
    /// Associations since the drive was opened.
    pub associations: u64,
    /// Connect commands that failed.
    pub refused: u64,
}

/// Controllers for hosts on the network, made as hosts come.
#[derive(Debug)]
pub(crate) struct Hosts {
    config: Config,
    house: House,
    rooms: Vec<Room>,
    lobby: Lobby<Arrival>,
    /// When somebody gives way to one of them.
    way_ns: Option<u64>,
}

impl Hosts {
    pub(crate) fn new(task: TaskId, io: Io, config: Config) -> Self {
        let house = House {
            name: config.name.clone(),
            task,
            io,
            draining: false,
            associations: 0,
            refused: 0,
            refusals: LogLimit::default(),
            visits: LogLimit::default(),
            complaints: LogLimit::default(),
        };
        Self { config, house, rooms: Vec::new(), lobby: Lobby::new(), way_ns: None }
    }

    /// Associations that there may be at a time.
    pub(crate) fn most(&self) -> usize {
        self.config.hosts_max.into()
    }

    pub(crate) fn status(&self) -> Status {
        let here = || self.rooms.iter().filter_map(Room::guest).filter(|association| association.is_let_in);
        let proved = here().filter(|association| association.is_authenticated());
        Status {
            hosts: here().map(|association| association.host.nqn.clone()).collect(),
            authenticated: proved.map(|association| association.host.nqn.clone()).collect(),
            ciphers: here().filter_map(Association::suite).collect(),
            connections: here().map(Association::proved_connections).sum(),
            associations: self.house.associations,
            refused: self.house.refused,
        }
    }

    /// Commands in flight, apart from those that wait for what may never happen.
    pub(crate) fn unfinished(&self, subsystem: &Subsystem) -> u32 {
        self.rooms.iter().map(|room| room.controller().unfinished(subsystem)).sum()
    }

    /// The end: nobody else is let in, no more commands are taken, and when those in flight are answered the
    /// hosts are disconnected.
    pub(crate) fn drain(&mut self, subsystem: &mut Subsystem) {
        self.house.draining = true;
        self.rooms.iter_mut().for_each(|room| room.pause(subsystem));
    }

    /// Nobody is there, nobody can come, and nothing is in flight.
    pub(crate) fn is_drained(&self) -> bool {
        self.house.draining && self.is_vacant()
    }

    /// Nobody is there, and nothing of anybody in flight.
    pub(crate) fn is_vacant(&self) -> bool {
        self.rooms.iter().all(Room::is_vacant)
    }

    /// A connection whose Connect command is to be answered.
    pub(super) fn welcome(&mut self, arrival: Arrival, now_ns: u64) {
        if let Some(left_out) = self.lobby.enter(arrival, now_ns) {
            self.turn_away(left_out, &BUSY, now_ns);
        }
    }

    /// What came of a message with which a host proves who it is.
    pub(crate) fn heard(&mut self, finding: Finding, subsystem: &mut Subsystem, now_ns: u64) {
        // Its connection may be over.
        if let Some(room) = self.rooms.iter_mut().find(|room| room.has(&finding)) {
            room.heard(finding, subsystem, &mut self.house, now_ns);
        }
    }

    fn turn_away(&mut self, arrival: Arrival, refusal: &Refusal, now_ns: u64) {
        self.house.note_refusal(&arrival.host.nqn, arrival.peer, refusal, now_ns);
        arrival.refuse(refusal);
    }

    /// Lets in whom it can. Returns the work done.
    #[cold]
    fn receive_guests(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let mut work = 0;
        self.way_ns = None;
        for _ in 0..self.lobby.len() {
            let Some((arrival, until_ns)) = self.lobby.pop() else { break };
            match self.judge_fairly(&arrival) {
                Judgement::Wait(_) if now_ns < until_ns && !self.house.draining => {
                    let way_ns = self.make_way(&arrival, subsystem, now_ns);
                    self.way_ns = [self.way_ns, way_ns].into_iter().flatten().min();
                    self.lobby.stay(arrival, until_ns);
                    continue;
                }
                Judgement::Wait(refusal) | Judgement::Refuse(refusal) => {
                    self.turn_away(arrival, &refusal, now_ns)
                }
                Judgement::Admit(number) => {
                    self.open_room(number, subsystem, now_ns);
                    match self.rooms.get_mut(usize::from(number)) {
                        Some(room) => room.admit(arrival, subsystem, &mut self.house, now_ns),
                        None => self.turn_away(arrival, &NO_ROOM, now_ns),
                    }
                }
            }
            work += 1;
        }
        work
    }

    /// The room of the controller that it asks for, which is there, or the next to be made.
    fn asked(&self, arrival: &Arrival) -> Option<u8> {
        let asked = usize::from(arrival.cntlid).checked_sub(self.config.cntlid.into())?;
        (asked < self.most() && asked <= self.rooms.len()).then_some(asked as u8)
    }

    fn guest(&self, room: u8) -> Option<&Association> {
        self.rooms.get(usize::from(room))?.guest()
    }

    /// Places in which commands of this host are under way that it has left.
    fn left_by(&self, host: &Host) -> usize {
        self.rooms.iter().filter(|room| room.is_left_by(host)).count()
    }

    /// How many of those a host may have, so that it leaves places for others.
    fn left_max(&self) -> usize {
        (self.most() / 2).clamp(1, LEFT_OF_ONE_HOST_MAX)
    }

    /// The same as [`judge`](Self::judge), and refuses one that takes the descriptors of other drives.
    fn judge_fairly(&self, arrival: &Arrival) -> Judgement {
        let judgement = self.judge(arrival);
        let connections =
            || self.rooms.iter().filter_map(Room::guest).map(|it| it.connections.len()).sum::<usize>();
        let takes_more = || connections() >= CONNECTIONS_OF_EACH && fill(&arrival.socket) > Fill::Free;
        match judgement {
            Judgement::Admit(_) if takes_more() => Judgement::Refuse(CROWDED),
            other => other,
        }
    }

    /// Which room it is for: the admin queue for the first that is vacant, or the one it asks for; I/O queues for
    /// their association's.
    fn judge(&self, arrival: &Arrival) -> Judgement {
        let is_free = |number: usize| self.rooms.get(number).is_none_or(Room::is_vacant);
        match (arrival.connect.qid, self.asked(arrival)) {
            _ if self.house.draining => Judgement::Wait(BUSY),
            // Its earlier commands hold back later ones that overlap them. While they are under way they keep a place, too.
            (0, _) if self.left_by(&arrival.host) >= self.left_max() => Judgement::Wait(NOT_OVER),
            (0, _) if arrival.cntlid == CNTLID_DYNAMIC => {
                let vacant = (0..self.config.hosts_max).find(|number| is_free(usize::from(*number)));
                vacant.map_or(Judgement::Wait(BUSY), Judgement::Admit)
            }
            (0, Some(asked)) => match is_free(asked.into()) {
                true => Judgement::Admit(asked),
                false => Judgement::Wait(BUSY),
            },
            (0, None) => Judgement::parameter(InvalidParameter::CNTLID, "there is no such controller"),
            (_, asked) => match asked.and_then(|asked| Some((asked, self.guest(asked)?))) {
                Some((asked, association)) => {
                    judge_queue(association, arrival, asked, self.config.queues_max)
                }
                None => Judgement::parameter(InvalidParameter::CNTLID, "its admin queue is not connected"),
            },
        }
    }

    /// Ends who has had the longest to prove who it is in a place that is wanted, unless one becomes vacant anyway;
    /// returns when it will have had long enough. Who knows nothing but a name keeps nobody out for long.
    fn make_way(&mut self, arrival: &Arrival, subsystem: &mut Subsystem, now_ns: u64) -> Option<u64> {
        let asked = self.asked(arrival).map(usize::from);
        let Self { rooms, house, .. } = self;
        if arrival.connect.qid != 0 {
            return rooms.get_mut(asked?)?.clear_queue(arrival.connect.qid, house, now_ns);
        }
        let is_asked = |number: usize| asked.is_none_or(|asked| asked == number);
        let wanted = || rooms.iter().enumerate().filter(|(number, _)| is_asked(*number));
        if wanted().any(|(_, room)| room.is_left()) {
            return None;
        }
        let (way_ns, number) =
            wanted().filter_map(|(number, room)| Some((room.gives_way_ns()?, number))).min()?;
        if way_ns > now_ns {
            return Some(way_ns);
        }
        rooms[number].dismiss(Ended::GaveWay, subsystem, house, now_ns);
        None
    }

    /// Makes the room of this number if it is the next.
    fn open_room(&mut self, number: u8, subsystem: &mut Subsystem, now_ns: u64) {
        if usize::from(number) != self.rooms.len() {
            return;
        }
        let Config { cntlid, queues_max, .. } = self.config;
        match Room::new(number, cntlid + u16::from(number), queues_max, subsystem) {
            Ok(room) => self.rooms.push(room),
            Err(error) => {
                let (drive, complaints) = (&self.house.name, &mut self.house.complaints);
                limited!(error, complaints, now_ns, drive, %error, "cannot make another controller");
            }
        }
    }

    pub(crate) fn turn(&mut self, subsystem: &mut Subsystem, now_ns: u64) -> usize {
        let mut work = if self.lobby.is_empty() { 0 } else { self.receive_guests(subsystem, now_ns) };
        for room in &mut self.rooms {
            work += room.turn(subsystem, &mut self.house, now_ns);
        }
        work
    }

    pub(crate) fn look_ahead(&self) {
        let present = self.rooms.iter().find(|room| !room.is_vacant());
        present.inspect(|room| room.controller().look_ahead());
    }

    /// Something on a connection's socket is over.
    pub(crate) fn event(&mut self, token: Token, result: i32, subsystem: &mut Subsystem, now_ns: u64) {
        if let Some(room) = self.rooms.get_mut(usize::from(token.room)) {
            room.completed(token, result, subsystem, &mut self.house, now_ns);
        }
    }

    /// True if there is something to do before it sleeps.
    pub(crate) fn arm(&mut self, subsystem: &Subsystem) -> bool {
        self.rooms.iter_mut().fold(false, |work, room| room.arm(subsystem) | work)
    }

    pub(crate) fn disarm(&mut self) {
        self.rooms.iter_mut().for_each(Room::disarm);
    }

    /// When to look although nothing happened.
    pub(crate) fn deadline_ns(&mut self, subsystem: &Subsystem) -> Option<u64> {
        let rooms = self.rooms.iter_mut().filter_map(|room| room.deadline_ns(subsystem)).min();
        [self.lobby.until_ns(), rooms, self.way_ns].into_iter().flatten().min()
    }
}

impl House {
    pub(super) fn note_refusal(&mut self, host: &str, peer: SocketAddr, refusal: &Refusal, now_ns: u64) {
        self.refused += 1;
        let drive = &self.name;
        limited!(warn, self.refusals, now_ns, drive, host, %peer, "turned a host away: {}", refusal.why);
    }

    /// A host that is connected and was not authenticated.
    pub(super) fn note_stranger(&mut self, host: &str, qid: u16, what: &str, now_ns: u64) {
        self.refused += 1;
        let drive = &self.name;
        limited!(warn, self.refusals, now_ns, drive, host, qid, "{what}");
    }
}
