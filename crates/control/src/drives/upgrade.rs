//! Upgrades: the drives of the daemon go to another process, under load.

use super::shared::pools_of;
use super::{Drives, Entry, Origin, lock};
use serde::{Deserialize, Serialize};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::{DriveSpec, NamespaceSpec, TargetKind};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use utoipa::ToSchema;

/// Drive on its way to another process: a record, and the descriptors that it names.
#[derive(Debug, Default)]
pub struct HandedOver {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// Whether the other process has died. Else it has flushed everything, and goes on if this one fails.
    pub is_left: bool,
}

/// Result of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Upgraded {
    /// Identifier of the process that serves from now on.
    pub process: u32,
}

/// Upgrade of the daemon to a binary, or to its own one. Returns the identifier of the new process.
pub type Upgrade = Box<dyn Fn(Option<PathBuf>) -> Result<u32, ApiError> + Send + Sync>;

/// Methods of the process that hands over.
impl Drives {
    /// Sets the way in which the daemon upgrades itself.
    pub fn on_upgrade(&self, upgrade: Upgrade) {
        // The daemon does this once.
        let _ = self.upgrade.set(upgrade);
    }

    /// Replaces the process of the daemon. No change begins meanwhile. After a success none begins at all, since
    /// the process ends.
    ///
    /// # Errors
    /// The upgrade was called off, and everything goes on.
    pub fn upgrade(&self, binary: Option<PathBuf>) -> Result<Upgraded, ApiError> {
        let upgrade = self.upgrade.get().ok_or_else(|| ApiError::conflict("this daemon has no upgrade"))?;
        if self.upgrading.swap(true, SeqCst) {
            return Err(ApiError::conflict("an upgrade is under way already"));
        }
        self.upgrade_alone(upgrade, binary).inspect_err(|_| self.upgrading.store(false, SeqCst))
    }

    /// Returns whether an upgrade is under way, or has succeeded.
    pub fn is_upgrading(&self) -> bool {
        self.upgrading.load(SeqCst)
    }

    /// Upgrades when the changes in progress are over.
    fn upgrade_alone(&self, upgrade: &Upgrade, binary: Option<PathBuf>) -> Result<Upgraded, ApiError> {
        let busy =
            |what: String| ApiError::conflict(format!("{what} is being changed")).hint("try again later");
        let pools = self.pool_orders.try_lock().ok();
        let alone = self.reloads.try_lock().ok().zip(self.moves.try_lock().ok()).zip(pools);
        let _alone = alone.ok_or_else(|| busy("the daemon".to_owned()))?;
        let names: Vec<String> = lock(&self.entries).keys().cloned().collect();
        let begin =
            |name: &String| self.changes.try_begin(name).ok_or_else(|| busy(format!("drive `{name}`")));
        let _changes: Vec<_> = names.iter().map(begin).collect::<Result<_, _>>()?;
        if !lock(&self.coming).is_empty() {
            return Err(ApiError::conflict("a drive is being created").hint("try again when it is there"));
        }
        self.settle();
        if !self.state.is_settled() {
            return Err(ApiError::conflict("the stored state is not the current one: the disk may be full"));
        }
        // The other process reads the state while drives still serve. A drive with something to store does not
        // settle, so the upgrade is called off.
        let guards = (lock(&self.keeps), self.stores.write().unwrap_or_else(PoisonError::into_inner));
        let upgraded = upgrade(binary);
        match &upgraded {
            // From now on only the other process stores.
            Ok(_) => std::mem::forget(guards),
            Err(_) => {
                self.store_all_again();
                // Changes that have waited for the guards go on.
                self.upgrading.store(false, SeqCst);
            }
        }
        Ok(Upgraded { process: upgraded? })
    }

    /// Stores all state, in place of what a process has left that did not become the daemon.
    fn store_all_again(&self) {
        let stored = self.state.store_owed(&lock(&self.saved));
        if let Err(problem) = stored.and(self.store_all_hosted_again()) {
            tracing::warn!("the state cannot be stored again now: {}", problem.in_one_line());
        }
    }

    /// Returns the names of the open drives, if all of them can be handed over. Nothing is touched. Drives
    /// that take longest to open come first, because a drive is suspended until all after it are open.
    ///
    /// # Errors
    /// A drive cannot be handed over. The error names it.
    pub fn to_hand_over(&self) -> Result<Vec<String>, ApiError> {
        let drives = self.running();
        for (name, running) in &drives {
            running.may_hand_over().map_err(|problem| of_drive(name, problem))?;
        }
        let entries = lock(&self.entries);
        let mut names: Vec<String> = drives.into_iter().map(|(name, _)| name).collect();
        names.sort_by_cached_key(|name| Reverse(entries.get(name).map(|entry| work_of(&entry.spec))));
        Ok(names)
    }

    /// Suspends a drive, and all others that share a pool with it. Then their pools are at rest. Returns the drives, with
    /// their specifications and records.
    ///
    /// # Errors
    /// A drive is not suspended, or not before `until`. [`go_on`](Self::go_on) lets all go on.
    pub fn hand_over_together(
        &self,
        name: &str,
        until: Instant,
    ) -> Result<BTreeMap<String, (DriveSpec, HandedOver)>, ApiError> {
        let entries = lock(&self.entries).clone();
        let open = entries.iter().filter(|(_, entry)| entry.running.is_ok());
        let specs: BTreeMap<&str, BTreeSet<&str>> =
            open.map(|(drive, entry)| (drive.as_str(), pools_of(&entry.spec).collect())).collect();
        let (mut pools, mut together) = (BTreeSet::new(), BTreeSet::from([name]));
        loop {
            let before = together.len();
            pools.extend(together.iter().filter_map(|drive| specs.get(drive)).flatten());
            together.extend(specs.iter().filter(|(_, of)| !of.is_disjoint(&pools)).map(|(drive, _)| drive));
            if together.len() == before {
                break;
            }
        }
        let handed = |drive: &str| {
            if Instant::now() >= until {
                return Err(ApiError::conflict("the drives that share its pools take too long"));
            }
            let handed = self.hand_over(drive).map_err(|problem| match drive == name {
                true => problem,
                false => problem.about(&format!("drive `{drive}`, which shares a pool with it")),
            })?;
            Ok((drive.to_owned(), handed))
        };
        let handed = together.into_iter().map(handed).collect::<Result<_, ApiError>>()?;
        pools.into_iter().try_for_each(|pool| self.engine.settle_shared(pool))?;
        Ok(handed)
    }

    /// Suspends a drive, and returns its specification and its record.
    ///
    /// # Errors
    /// The drive goes on.
    fn hand_over(&self, name: &str) -> Result<(DriveSpec, HandedOver), ApiError> {
        let entry = self.entry(name)?;
        Ok((entry.spec, entry.running?.hand_over()?))
    }

    /// Lets all drives go on: after an upgrade that was called off, or in the new process.
    pub fn go_on(&self) {
        let drives = self.running();
        for (name, running) in &drives {
            if let Err(problem) = running.go_on() {
                tracing::error!("drive {name} does not go on: {}", problem.in_one_line());
            }
        }
        // A program that hangs at its start holds up no other drive.
        drives.iter().for_each(|(_, running)| running.bring_functions_back());
    }
}

/// Methods of the process that takes over.
impl Drives {
    /// Opens a drive for which the engine has a record, on this reactor. Takes the drive out of `specs`. `former` is
    /// the drive as it is in the other process.
    ///
    /// # Errors
    /// No such drive is declared or stored, it is another one now, or it cannot be opened.
    pub fn take_over(
        &self,
        specs: &mut Vec<(DriveSpec, Origin)>,
        former: &DriveSpec,
        reactor: usize,
    ) -> Result<(), ApiError> {
        let name = &former.name;
        let at = specs.iter().position(|(spec, _)| spec.name == *name);
        let at = at.ok_or_else(|| ApiError::not_found("it is not in the configuration or the state"))?;
        // A reload refuses such a change, too. A classifier may be another one.
        let rest = |spec: &DriveSpec| DriveSpec { classifier: None, ..spec.clone() };
        if rest(&specs[at].0) != rest(former) {
            return Err(ApiError::conflict(
                "the configuration now declares it otherwise: a restart is needed",
            ));
        }
        let (spec, origin) = specs.remove(at);
        let reactor = if reactor < self.reactors { reactor } else { self.place(&spec, &[]) };
        let entry: Entry = self.open_entry(spec, origin, reactor);
        let opened = entry.running.clone().map(drop);
        lock(&self.entries).insert(name.clone(), entry);
        // The other process goes on with the drive, so no remedy is for this one.
        opened.map_err(|problem| ApiError { hint: None, ..problem })
    }
}

/// Returns the refusal of a change while the daemon is replaced.
pub(super) fn under_way() -> ApiError {
    ApiError::new(Kind::Unavailable, "the daemon is being upgraded").hint("try again in a moment")
}

/// Returns the work of opening a drive, for comparison: its pools, its functions, and its NVMe/TCP targets.
fn work_of(drive: &DriveSpec) -> [usize; 3] {
    let sum = |of: fn(&NamespaceSpec) -> usize| drive.namespaces.iter().map(of).sum();
    [
        pools_of(drive).count(),
        sum(|namespace| namespace.functions.len()),
        sum(|namespace| usize::from(namespace.target == TargetKind::NvmeTcp)),
    ]
}

fn of_drive(name: &str, problem: ApiError) -> ApiError {
    ApiError { error: format!("drive `{name}` cannot be handed over: {}", problem.error), ..problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_with_pools_functions_and_controllers_are_more_work_in_this_order() {
        let drive = |namespaces: &[&str]| {
            let namespaces = namespaces.join(",");
            let text = format!(r#"{{ "name": "a", "namespaces": [{namespaces}] }}"#);
            work_of(&serde_json::from_str(&text).expect("a drive"))
        };
        let remote = r#"{ "target": "nvme-tcp" }"#;
        let function = r#"{ "target": "null", "functions": [{ "kind": "delay" }] }"#;
        let pool = r#"{ "target": "thin", "shared": "p" }"#;
        let drives = [
            &[r#"{ "target": "null" }"#][..],
            &[remote],
            &[remote, remote],
            &[function],
            &[remote, function],
            &[pool],
        ];
        let works = drives.map(drive);
        assert!(works.is_sorted_by(|less, more| less < more), "{works:?}");
    }
}
