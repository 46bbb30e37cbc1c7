//! Queue groups on other reactors: the layers that serve them there, and their migration there and back.

use super::drive::{WiredDrive, closed, gone, in_words};
use super::latency::LatencyWriter;
use super::namespace::{PreparedStack, Site};
use super::reactor_of;
use sluice_controller::{CannotMigrate, Config, Identity, Namespace, NamespaceConfig, PeerConfig, Subsystem};
use sluice_frontend::{Migration, RemoteHandle, RemoteQueues};
use sluice_reactor::{CALL_LIMIT, Io, Local, ReactorHandle, TaskId};
use sluice_router::RouterBuilder;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit for commands of remote queue groups to end when the groups are recalled.
const RECALL_LIMIT: Duration = Duration::from_secs(5);

/// Pause between the first two checks whether recalled groups are back; the pause doubles up to `LOOK_MAX`.
/// Each check wakes the drive's reactor.
const LOOK: Duration = Duration::from_micros(200);
const LOOK_MAX: Duration = Duration::from_millis(10);

/// Opened resources of a remote task, on their way to its reactor.
struct PreparedRemote {
    name: String,
    identity: Identity,
    namespaces: Vec<(NamespaceConfig, PreparedStack)>,
    latency: LatencyWriter,
}

impl PreparedRemote {
    /// Builds the remote queues on the thread of their reactor.
    fn install(
        self,
        reactor: ReactorHandle,
        local: &mut Local,
    ) -> Result<(RemoteHandle, PeerConfig), ApiError> {
        let (mut failed, mut prepared) = (None, Some(self));
        let task = local.add(|task, io| {
            let built =
                prepared.take().ok_or_else(closed).and_then(|prepared| prepared.build(reactor, task, io));
            super::prepared::or_failed(built, &mut failed)
        });
        let peer_config = match failed {
            None => local.task::<RemoteQueues>(task).ok_or_else(closed).and_then(|remote| {
                Ok((remote.handle(), remote.peer_config().map_err(|why| in_words(&why))?))
            }),
            Some(problem) => Err(problem),
        };
        peer_config.inspect_err(|_| drop(local.remove(task)))
    }

    fn build(self, reactor: ReactorHandle, task: TaskId, io: Io) -> Result<RemoteQueues, ApiError> {
        let namespaces = self.namespaces.into_iter().map(|(config, stack)| {
            let stack = stack.build_alone(&Site { task, io: &io, nsid: config.nsid })?;
            let router = RouterBuilder::new(stack).drive(self.name.clone()).build();
            Namespace::new(config, router).map_err(|error| in_words(&error))
        });
        let namespaces = namespaces.collect::<Result<_, _>>()?;
        let no_memory = |error| ApiError::internal(format!("there is no memory for a controller: {error}"));
        let config = Config { identity: self.identity, namespaces };
        let mut subsystem = Subsystem::new(config).map_err(no_memory)?;
        self.latency.install(&mut subsystem);
        RemoteQueues::new(reactor, task, io, subsystem).map_err(no_memory)
    }
}

impl WiredDrive {
    /// Moves the queue group of this completion queue to another reactor, or back to the drive's own.
    pub(super) fn move_group(&self, queue: u16, reactor: usize, limit: Duration) -> Result<(), ApiError> {
        let to = reactor_of(&self.reactors, reactor)?;
        let here = self.query(move |drive| {
            let mut groups = drive.remote_groups();
            groups.find(|(remote, _)| *remote == queue).map(|(_, handle)| handle.reactor().clone())
        })?;
        if here.as_ref().is_some_and(|here| here.is(&to)) {
            return Ok(());
        }
        if here.is_some() {
            self.recall_queues(Some(queue))?;
        }
        let owner = self.task.reactor();
        if owner.is(&to) {
            return Ok(());
        }
        let stays = |why: CannotMigrate| {
            ApiError::conflict(format!("queue {queue} of drive `{}` stays on its reactor: {why}", self.name))
        };
        let peer_config = self.query(|drive| drive.subsystem().peer_config())?.map_err(stays)?;
        let prepared = self.prepare_remote(peer_config).map_err(|problem| {
            problem.about(&format!("queue {queue} of drive `{}` stays on its reactor", self.name))
        })?;
        let there = to.clone();
        let (remote, peer_config) = to.call(move |local| prepared.install(there, local)).map_err(gone)??;
        let task = remote.task();
        let (reply, answer) = mpsc::sync_channel(1);
        // The receiver is gone if the migration took much too long.
        let answered = Box::new(move |outcome| _ = reply.send(outcome));
        let sent = self.change(move |drive, now_ns| {
            let until_ns = now_ns.saturating_add(limit.as_nanos() as u64);
            drive.migrate_group(Migration {
                queue,
                to: remote,
                peer_config,
                owner,
                until_ns,
                answer: answered,
            });
        });
        let outcome = sent.and_then(|()| {
            let outcome = answer.recv_timeout(limit + CALL_LIMIT).map_err(|_| closed())?;
            outcome.map_err(stays)
        });
        if outcome.is_err() {
            // A group that arrived in spite of the error keeps the remote task.
            let remove = move |local: &mut Local| {
                if local.task::<RemoteQueues>(task).is_some_and(RemoteQueues::is_vacant) {
                    drop(local.remove(task));
                }
            };
            if let Err(error) = to.call(remove) {
                tracing::warn!(%error, "a remote task without a queue could not be ended");
            }
        }
        outcome
    }

    /// Recalls remote queue groups, all or that of one completion queue, and waits until they are back.
    pub(super) fn recall_queues(&self, queue: Option<u16>) -> Result<(), ApiError> {
        let is_back = move |drive: &sluice_frontend::Drive| {
            !drive.remote_groups().any(|(remote, _)| queue.is_none_or(|queue| queue == remote))
        };
        let (began, mut pause) = (Instant::now(), LOOK);
        self.change(move |drive, now_ns| drive.recall_groups(queue, now_ns))?;
        while !self.query(is_back)? {
            if began.elapsed() > RECALL_LIMIT {
                return Err(ApiError::conflict(format!(
                    "queues of drive `{}` are on other reactors, and their commands did not come to their end",
                    self.name
                ))
                .hint("what it is on may be slow at the moment: try again"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
        }
        Ok(())
    }

    /// Returns the reactors that have queue groups of the drive, by completion queue.
    pub(super) fn remote_queues(&self) -> Result<Vec<(u16, usize)>, ApiError> {
        let groups = self.query(|drive| {
            drive.remote_groups().map(|(queue, handle)| (queue, handle.reactor().clone())).collect::<Vec<_>>()
        })?;
        let index = |handle: &ReactorHandle| self.reactors.iter().position(|it| it.handle.is(handle));
        Ok(groups.iter().filter_map(|(queue, handle)| Some((*queue, index(handle)?))).collect())
    }

    /// Opens the layers of the drive a second time. May block.
    fn prepare_remote(&self, peer_config: PeerConfig) -> Result<PreparedRemote, ApiError> {
        let stacks = self.stacks();
        let namespaces = peer_config.namespaces.into_iter().map(|it| {
            let no_clone =
                || ApiError::conflict("its layers are of kinds that work on one reactor at a time");
            // A namespace with a further path has another stack, or a second entry into this one.
            let Some([stack]) = stacks.get(it.config.nsid as usize - 1).map(Vec::as_slice) else {
                return Err(no_clone());
            };
            let size = Size(it.blocks * u64::from(it.config.block_size));
            Ok((it.config, stack.open_clone(size)?.ok_or_else(no_clone)?))
        });
        let namespaces = namespaces.collect::<Result<_, _>>()?;
        let (name, identity) = (self.name.clone(), peer_config.identity);
        Ok(PreparedRemote { name, identity, namespaces, latency: self.latency.writer() })
    }
}
