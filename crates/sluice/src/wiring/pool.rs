//! The namespaces that hosts create: opened like those of the operator, and handed to their subsystem at work.

use super::drive::{WiredDrive, closed, gone, in_words};
use super::namespace::NamespaceSeed;
use crate::problem::{Kind, Problem};
use crate::spec::DriveSpec;
use crate::state::{Created, Pooled};
use sluice_controller::{Creation, Pool};
use sluice_frontends::Drive;
use std::time::{Duration, Instant};

/// How long a namespace has to go: longer than its commands have to end.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// How long what is stored of it may take.
const STORE_LIMIT: Duration = Duration::from_secs(60);

/// Between two looks whether it has gone.
const LOOK: Duration = Duration::from_millis(1);

/// Opens those that a drive has.
pub(super) fn open(spec: &DriveSpec, pooled: &Pooled) -> Result<Vec<NamespaceSeed>, Problem> {
    pooled.created.iter().map(|created| NamespaceSeed::created(spec, created, None)).collect()
}

/// What its subsystem is told of a drive's pool.
pub(super) fn pool(spec: &DriveSpec) -> Option<Pool> {
    let pool = spec.pool.as_ref()?;
    Some(Pool { size: pool.size.0, volatile_cache: pool.has_volatile_cache() })
}

impl WiredDrive {
    /// Deletes one, when its commands have ended, and waits for that.
    pub(super) fn remove_namespace(&self, nsid: u32) -> Result<(), Problem> {
        let refused =
            |why: &dyn std::fmt::Display| Problem::conflict(format!("namespace {nsid} stays: {why}"));
        self.tell(move |drive, now_ns| drive.subsystem_mut().delete_namespace(nsid, now_ns))?
            .map_err(|why| refused(&why))?;
        let began = Instant::now();
        while self.ask(move |drive| drive.subsystem().namespaces().any(|it| it.nsid() == nsid))? {
            let is_late = began.elapsed() > REMOVAL_LIMIT;
            // What has begun is waited for, so that what is said here is what has happened.
            if is_late && !self.tell(|drive, _| drive.subsystem_mut().withdraw_deletions())? {
                return Err(refused(&"commands in flight did not come to their end").hint("try again"));
            }
            if began.elapsed() > STORE_LIMIT {
                return Err(Problem::new(
                    Kind::Unavailable,
                    format!("namespace {nsid} is still being deleted"),
                )
                .hint(
                    "what the daemon stores its state on is slow; `sluice drive show` says when it has gone",
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Makes a new one. Nobody sees it before it is stored.
    pub(super) fn make_namespace(
        &self,
        spec: &DriveSpec,
        created: &Created,
        creation: Creation,
    ) -> Result<(), Problem> {
        let seed = NamespaceSeed::created(spec, created, Some(created.size))?;
        let (task, heirs) = (self.task.id(), self.heirs.clone());
        self.bring_home(None)?;
        let made = self.task.call(move |local| {
            let io = local.io(task);
            let drive = local.task_mut::<Drive>(task).filter(|drive| drive.is_whole())?;
            let namespace = seed.build(task, &io, heirs);
            let made =
                |namespace| drive.subsystem_mut().made(creation, namespace).map_err(|why| in_words(&why));
            Some(namespace.and_then(made))
        });
        made.map_err(gone)?.ok_or_else(closed)?
    }
}
