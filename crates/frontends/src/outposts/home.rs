//! A drive's outposts, as home sees them.

use super::Outpost;
use super::line::Post;
use crate::Drive;
use crate::log_limit::{LogLimit, limited};
use crate::vfio_user::Port;
use sluice_controller::{
    CannotMigrate, Controller, MigratingGroup, PeerConfig, RecallCause, ReturningGroup, Subsystem,
};
use sluice_memory::Space;
use sluice_reactor::{ReactorHandle, TaskId};
use std::fmt;
use std::os::fd::OwnedFd;

/// Groups of a drive that can be away at a time.
const AWAY_MAX: usize = 16;

/// Regions of a client whose map is handed on: a client that has more changes them all the time, and has its queues
/// called home each time.
const REGIONS_MAX: usize = 1024;

/// A queue group that is to leave.
pub struct Departure {
    /// Identifier of its completion queue.
    pub queue: u16,
    pub to: Post,
    /// What it is like there.
    pub likeness: PeerConfig,
    /// Where the drive is.
    pub home: ReactorHandle,
    /// When it stays if its commands have not ended.
    pub until_ns: u64,
    /// Is told when it has gone, or stays.
    pub answer: Box<dyn FnOnce(Result<(), CannotMigrate>) + Send>,
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Departure").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// What goes to an outpost.
pub(super) struct Parcel {
    pub(super) posting: MigratingGroup,
    pub(super) space: Space,
    pub(super) eventfd: Option<OwnedFd>,
    pub(super) home: (ReactorHandle, TaskId),
}

impl Parcel {
    /// There is no outpost that would take it.
    fn return_home(self) {
        let Self { posting, space, home: (reactor, home), .. } = self;
        reactor.mail_always(move |local| {
            let now_ns = local.now_ns();
            match local.task_mut::<Drive>(home) {
                Some(drive) => drive.welcome(posting.into_returning(), 0, space, now_ns),
                None => crate::release::slow((posting, space)),
            }
        });
    }
}

/// A group that is away.
#[derive(Debug)]
struct Away {
    queue: u16,
    post: Post,
    called: bool,
}

impl Away {
    /// Calls it home. False if it was.
    fn call(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.called, true);
        if is_first {
            self.post.call();
        }
        is_first
    }
}

/// The outposts of a drive with one socket.
#[derive(Debug, Default)]
pub(crate) struct Outposts {
    departing: Option<Departure>,
    away: Vec<Away>,
    /// How often groups were brought home, by the number of what did.
    causes: [u64; RecallCause::LABELS.len()],
    log: LogLimit,
}

impl Outposts {
    #[inline]
    pub(crate) fn are_some(&self) -> bool {
        self.departing.is_some() || !self.away.is_empty()
    }

    /// A group is about to leave, and its commands may end at any time.
    pub(crate) fn are_busy(&self) -> bool {
        self.departing.is_some()
    }

    /// Has a group leave, if it may.
    pub(crate) fn begin(&mut self, departure: Departure, controller: &mut Controller, subsystem: &Subsystem) {
        let begun = match self.away.len() < AWAY_MAX && self.departing.is_none() {
            true => controller.begin_migration(subsystem, departure.queue),
            false => Err(CannotMigrate("as many of the drive's queues have moved as can")),
        };
        match begun {
            Ok(()) => self.departing = Some(departure),
            Err(why) => (departure.answer)(Err(why)),
        }
    }

    /// After a turn of the drive: a group leaves, others are called home, or are told of a doorbell.
    #[cold]
    pub(crate) fn advance(
        &mut self,
        task: TaskId,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        port: &Port,
        now_ns: u64,
    ) {
        if let Some(departure) = self.departing.take() {
            self.send(departure, task, controller, subsystem, port, now_ns);
        }
        if let Some(cause) = controller.recall_cause() {
            self.call(cause, port.drive(), now_ns);
        }
        controller.take_rung(|queue| {
            self.away.iter().filter(|away| away.queue == queue).for_each(|away| away.post.nudge());
        });
    }

    /// Calls all groups home that were not called yet.
    pub(crate) fn call(&mut self, cause: RecallCause, drive: &str, now_ns: u64) {
        if self.away.iter_mut().fold(false, |any, away| away.call() | any) {
            self.note(cause, drive, now_ns);
        }
    }

    /// Calls a group home that somebody wants elsewhere.
    pub(crate) fn call_one(&mut self, queue: u16) {
        self.away.iter_mut().filter(|away| away.queue == queue).for_each(|away| _ = away.call());
    }

    fn note(&mut self, cause: RecallCause, drive: &str, now_ns: u64) {
        self.causes[cause.number()] += 1;
        limited!(info, self.log, now_ns, drive, "queues come home from other reactors: {cause}");
    }

    /// How often groups were brought home by what, as its [label](RecallCause::LABELS).
    pub(crate) fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RecallCause::LABELS.into_iter().zip(self.causes).filter(|(_, times)| *times > 0)
    }

    fn send(
        &mut self,
        departure: Departure,
        task: TaskId,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        port: &Port,
        now_ns: u64,
    ) {
        let late = CannotMigrate("commands under way did not end in time: try again");
        let packed = match now_ns < departure.until_ns {
            true => Self::pack(&departure, task, controller, subsystem, port),
            false => Err(late),
        };
        match packed {
            Ok(None) => self.departing = Some(departure),
            Ok(Some(parcel)) => {
                let Departure { queue, to, answer, .. } = departure;
                let outpost = to.task;
                to.reactor.mail_always(move |local| {
                    match local.task_mut::<Outpost>(outpost).filter(|outpost| outpost.is_vacant()) {
                        Some(outpost) => outpost.unpack(parcel),
                        None => parcel.return_home(),
                    }
                });
                self.away.push(Away { queue, post: to, called: false });
                answer(Ok(()));
            }
            Err(why) => {
                controller.cancel_migration();
                (departure.answer)(Err(why));
            }
        }
    }

    fn pack(
        departure: &Departure,
        task: TaskId,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        port: &Port,
    ) -> Result<Option<Parcel>, CannotMigrate> {
        if !controller.migrating_is_idle(subsystem) {
            return Ok(None);
        }
        if port.space().has_remote_memory() {
            return Err(CannotMigrate("some of the host's memory is not shared"));
        }
        if port.space().len() > REGIONS_MAX {
            return Err(CannotMigrate("the host's memory is in too many pieces"));
        }
        let eventfd = port.interrupt_of(controller.migrating_vector())?;
        let posting = controller.finish_migration(subsystem, &departure.likeness, port.space())?;
        Ok(posting.map(|posting| Parcel {
            posting,
            space: port.space().shared_part(),
            eventfd,
            home: (departure.home.clone(), task),
        }))
    }

    /// A group is home.
    pub(crate) fn welcome(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        group: ReturningGroup,
        port: &Port,
        now_ns: u64,
    ) {
        let (queue, cause) = (group.queue(), group.cause());
        controller.take_back_group(subsystem, group, port.space());
        let came = self.away.extract_if(.., |away| away.queue == queue).next();
        if came.is_some_and(|away| !away.called)
            && let Some(cause) = cause
        {
            self.note(cause, port.drive(), now_ns);
        }
    }

    /// Groups that are away, by their completion queues.
    pub(crate) fn away(&self) -> impl Iterator<Item = (u16, &Post)> {
        self.away.iter().map(|away| (away.queue, &away.post))
    }

    pub(crate) fn interrupts(&self) -> u64 {
        self.away.iter().map(|away| away.post.interrupts()).sum()
    }
}

/// Groups whose drive is gone end.
impl Drop for Outposts {
    fn drop(&mut self) {
        self.away.iter_mut().for_each(|away| _ = away.call());
    }
}
