//! Migration of a queue group to a remote controller.

use crate::model::host_state::HostState;
use crate::model::peer_config::{CannotMigrate, PeerConfig};
use crate::model::{Controller, Subsystem};
use crate::state::health::{Busy, Health};
use crate::state::queue::{CompletionQueue, HeadError, Service, SubmissionQueue};
use crate::state::remote_queues::groups::{Migrating, RemoteGroup};
use crate::state::remote_queues::tally::Tally;
use sluice_memory::Space;
use std::io;
use std::sync::Arc;

/// Queue group with all that is needed to serve it.
#[derive(Debug)]
pub struct MigratingGroup {
    pub(super) cq: CompletionQueue,
    pub(super) sqs: Vec<SubmissionQueue>,
    pub(super) host: HostState,
    busy: Busy,
    pub(super) tally: Arc<Tally>,
}

/// Methods of the owner.
impl Controller {
    /// Starts the migration of the queue group with this completion queue. No entry is taken from its queues
    /// until the migration is [finished](Self::finish_migration) or [cancelled](Self::cancel_migration).
    ///
    /// # Errors
    /// The group cannot migrate. Nothing has changed.
    pub fn begin_migration(&mut self, subsystem: &Subsystem, cq: u16) -> Result<(), CannotMigrate> {
        if self.remote_groups.migrating.is_some() {
            return Err(CannotMigrate("another queue is about to move"));
        }
        let sqs = self.may_group_migrate(subsystem, cq)?;
        self.stop_serving(&sqs);
        self.remote_groups.migrating = Some(Migrating { cq, sqs });
        Ok(())
    }

    /// Returns the host's I/O completion queues that this controller serves.
    pub fn queues_here(&self) -> impl Iterator<Item = u16> {
        self.cqs.iter().skip(1).flatten().map(|cq| cq.id)
    }

    /// Returns the completion queue of a submission queue. Its identifier names the group as well.
    pub fn group_of(&self, sq: u16) -> Option<u16> {
        Some(self.sqs.get(usize::from(sq))?.as_ref()?.cq)
    }

    /// Returns the submission queues of a group that may migrate.
    fn may_group_migrate(&self, subsystem: &Subsystem, cq: u16) -> Result<Vec<u16>, CannotMigrate> {
        self.may_migrate()?;
        subsystem.peer_config()?;
        let found = self.cqs.get(usize::from(cq)).and_then(Option::as_ref).filter(|_| cq != 0);
        let queue = found.ok_or(CannotMigrate("the host has no such I/O queue here"))?;
        let sqs = || self.sqs.iter().flatten().filter(|sq| sq.cq == cq);
        let is_sound = queue.service == Service::On
            && !queue.deleting
            && queue.head_error == HeadError::None
            && sqs().all(|sq| sq.service == Service::On && !sq.deleting);
        if !is_sound || queue.users == 0 {
            return Err(CannotMigrate(
                "the queue is being deleted, has no submission queue, or is not served",
            ));
        }
        Ok(sqs().map(|sq| sq.id).collect())
    }

    /// Returns whether no command of the migrating group is in flight.
    pub fn migrating_is_idle(&self, subsystem: &Subsystem) -> bool {
        let sqs = self.remote_groups.migrating.iter().flat_map(|migrating| &migrating.sqs);
        let mut sqs = sqs.filter_map(|id| self.sqs[usize::from(*id)].as_ref());
        sqs.all(|sq| sq.in_flight == 0) && !subsystem.has_completions()
    }

    /// Returns the interrupt vector of the migrating group, if there is one.
    pub fn migrating_vector(&self) -> Option<u16> {
        let migrating = self.remote_groups.migrating.as_ref()?;
        self.cqs[usize::from(migrating.cq)].as_ref()?.vector
    }

    /// Hands out the migrating group, or none while its commands are in flight. `there` is the configuration
    /// of the remote drive.
    ///
    /// # Errors
    /// Something has changed. The caller must [cancel](Self::cancel_migration) the migration.
    pub fn finish_migration(
        &mut self,
        subsystem: &mut Subsystem,
        there: &PeerConfig,
        space: &Space,
    ) -> Result<Option<MigratingGroup>, CannotMigrate> {
        let Some(Migrating { cq, sqs }) = &self.remote_groups.migrating else {
            return Err(CannotMigrate("the host has begun anew"));
        };
        let cq = *cq;
        if self.may_group_migrate(subsystem, cq)? != *sqs || sqs.iter().any(|id| self.is_served(*id)) {
            return Err(CannotMigrate("the host has changed its queues"));
        }
        if subsystem.peer_config()? != *there {
            return Err(CannotMigrate("the drive is not what it was"));
        }
        if !self.migrating_is_idle(subsystem) {
            return Ok(None);
        }
        let host =
            self.share_host_state().map_err(|_| CannotMigrate("there is no memory for its doorbells"))?;
        let sqs = self.remote_groups.migrating.take().map(|migrating| migrating.sqs).unwrap_or_default();
        let Some((cq, sqs)) = self.take_group(cq, &sqs) else { return Ok(None) };
        self.remote_groups.groups.push(RemoteGroup {
            cq: (cq.id, cq.size),
            sqs: sqs.iter().map(|sq| (sq.id, sq.size)).collect(),
            generation: space.generation(),
            rung: false,
        });
        Ok(Some(MigratingGroup {
            cq,
            sqs,
            host,
            busy: subsystem.health().busy_time(),
            tally: subsystem.health_mut().remote.begin(),
        }))
    }

    /// Cancels the migration: the owner serves the group again.
    pub fn cancel_migration(&mut self) {
        if let Some(Migrating { sqs, .. }) = self.remote_groups.migrating.take() {
            self.serve_again(sqs);
        }
    }
}

/// Methods of a remote controller.
impl Controller {
    /// Creates a controller for groups of another one, with the same identifier, beside a subsystem of its
    /// own.
    ///
    /// # Errors
    /// There is no memory, or there are no descriptors.
    pub fn new_remote(subsystem: &mut Subsystem, cntlid: u16) -> io::Result<Self> {
        let mut remote = Self::new(subsystem, cntlid)?;
        remote.remote_groups.is_remote = true;
        Ok(remote)
    }

    /// Serves a group from the next turn on.
    pub fn accept_group(&mut self, subsystem: &mut Subsystem, group: MigratingGroup) {
        let MigratingGroup { cq, sqs, host, busy, tally } = group;
        self.adopt(host);
        *subsystem.health_mut() = Health::of_remote(busy);
        self.remote_groups.tally = Some(tally);
        subsystem.set_enabled(self.number(), true);
        self.install_group(cq, sqs);
    }

    /// Executes [`turn`](Self::turn) of a remote controller, and then publishes its counters for the owner.
    pub fn remote_turn(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) -> usize {
        self.remote_groups.tally.iter().for_each(|tally| tally.open());
        let work = self.turn(subsystem, space, now_ns);
        if let Some(tally) = &self.remote_groups.tally {
            if work > 0 {
                let health = subsystem.health();
                tally.put(health.here(), health.busy_time(), self.error_count(), subsystem.in_flight());
            }
            tally.close();
        }
        work
    }
}
