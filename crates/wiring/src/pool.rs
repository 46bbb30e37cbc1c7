//! Namespaces that hosts create: opened like those of the operator, and added to their running subsystem.

use super::drive::{WiredDrive, closed, gone, in_words};
use super::namespace::PreparedNamespace;
use sluice_control::state::{Created, Pooled};
use sluice_controller::{Creation, Pool};
use sluice_frontend::Drive;
use sluice_spec::DriveSpec;
use sluice_spec::error::{ApiError, Kind};
use std::time::{Duration, Instant};

/// Time limit for the drain of a namespace; longer than the time that its commands have to end.
pub(super) const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for a deletion to be stored.
pub(super) const STORE_LIMIT: Duration = Duration::from_secs(60);

/// Interval between two checks whether a namespace is gone.
const LOOK: Duration = Duration::from_millis(1);

/// Opens the host-created namespaces of a drive.
pub(super) fn open(spec: &DriveSpec, pooled: &Pooled) -> Result<Vec<PreparedNamespace>, ApiError> {
    pooled.created.iter().map(|created| PreparedNamespace::created(spec, created, None)).collect()
}

/// Returns the properties of a drive's pool for its subsystem.
pub(super) fn pool(spec: &DriveSpec) -> Option<Pool> {
    let pool = spec.pool.as_ref()?;
    Some(Pool { size: pool.size.0, volatile_cache: pool.has_volatile_cache() })
}

impl WiredDrive {
    /// Deletes a host-created namespace after its commands have drained. Waits at most `removal` for the
    /// drain and `store` for the state file.
    pub(super) fn remove_namespace(
        &self,
        nsid: u32,
        removal: Duration,
        store: Duration,
    ) -> Result<(), ApiError> {
        let refused =
            |why: &dyn std::fmt::Display| ApiError::conflict(format!("namespace {nsid} stays: {why}"));
        self.execute(move |drive, now_ns| drive.subsystem_mut().delete_namespace(nsid, now_ns))?
            .map_err(|why| refused(&why))?;
        let began = Instant::now();
        while self.query(move |drive| drive.subsystem().namespaces().any(|it| it.nsid() == nsid))? {
            let is_late = began.elapsed() > removal;
            // A deletion that is being stored is waited for, so that the answer matches the outcome.
            if is_late && !self.execute(|drive, _| drive.subsystem_mut().withdraw_deletions())? {
                return Err(refused(&"commands in flight did not come to their end").hint("try again"));
            }
            if began.elapsed() > store {
                return Err(ApiError::new(
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

    /// Creates a namespace, which is visible only after it is stored.
    pub(super) fn make_namespace(
        &self,
        spec: &DriveSpec,
        created: &Created,
        creation: Creation,
    ) -> Result<(), ApiError> {
        let prepared = PreparedNamespace::created(spec, created, Some(created.size))?;
        let (task, channels) = (self.task.id(), self.channels.clone());
        self.recall_queues(None)?;
        let made = self.task.call(move |local| {
            let io = local.io(task);
            let drive = local.task_mut::<Drive>(task).filter(|drive| drive.is_whole())?;
            let namespace = prepared.build(task, &io, channels);
            let made =
                |namespace| drive.subsystem_mut().made(creation, namespace).map_err(|why| in_words(&why));
            Some(namespace.and_then(made))
        });
        made.map_err(gone)?.ok_or_else(closed)?
    }
}

#[cfg(test)]
mod tests {
    use crate::Wiring;
    use sluice_control::config::Settings;
    use sluice_control::drives::{Engine, Remembered, Running};
    use sluice_control::state::{Created, Pooled};
    use sluice_controller::{Creation, PersistentRecord};
    use sluice_spec::DriveSpec;
    use sluice_spec::paths::Places;
    use std::time::Duration;

    const DRIVE: &str = r#"{ "name": "demo", "pool": { "target": "memory", "size": "1MiB" },
        "namespaces": [ { "target": "null", "size": "1MiB" } ] }"#;

    #[test]
    fn a_namespace_whose_end_takes_long_to_store_is_said_to_be_on_its_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let [api, sockets, state] = ["api", "sockets", "state"].map(|name| Some(folder.path().join(name)));
        let places = Places::resolve(api, sockets, state).expect("all are named");
        let wiring = Wiring::start(&Settings::default(), places).expect("a reactor");
        let spec: DriveSpec = serde_json::from_str(DRIVE).expect("a drive");
        let (block_size, blocks, shared, ana_group) = (512, 8, true, 1);
        let creation = Creation { nsid: 2, block_size, blocks, shared, ana_group };
        let mut pooled = Pooled { drive: "demo".to_owned(), ..Pooled::default() };
        pooled.add(Created::of(creation, 1, None));
        let remembered = Remembered { pooled, ..Remembered::default() };
        let drive = wiring.wire(&spec, 0, &remembered).expect("it opens");
        // The deletion is not stored within the limit, and a deletion that has begun is not withdrawn.
        let problem =
            drive.remove_namespace(2, Duration::ZERO, Duration::ZERO).expect_err("it is not stored");
        assert_eq!(problem.error, "namespace 2 is still being deleted");
        assert!(problem.hint.is_some_and(|hint| hint.contains("sluice drive show")));
        let asked = wiring.persist_requests().expect("nobody took it").recv().expect("somebody is asked");
        assert_eq!(asked.what, PersistentRecord::Deletion(vec![2]));
        drive.persisted(asked.what, true).expect("the drive is there");
        while drive.status().expect("the drive is there").created.iter().any(|it| it.nsid == 2) {
            std::thread::yield_now();
        }
        drive.close().expect("it ends");
    }
}
