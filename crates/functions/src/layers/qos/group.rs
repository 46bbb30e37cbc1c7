//! Groups of namespaces with common limits, and their members. For control threads.

use super::bucket::Budget;
use super::{QosLimits, QosOptions};
use sluice_options::{Fault, words::nearest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Maximum number of groups of a daemon.
const GROUPS_MAX: usize = 1024;

/// All groups of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    groups: Arc<Mutex<BTreeMap<String, Group>>>,
    /// Number of changes of any limit. Layers read the limits again when it has changed.
    changes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Group {
    budget: Arc<Budget>,
    members: Vec<Weak<Member>>,
}

/// A group with its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub name: String,
    pub limits: QosLimits,
    /// Open namespaces of the group.
    pub members: usize,
    /// Commands that wait now, and that have waited, of the open namespaces.
    pub waits: QosWaits,
}

/// Commands over a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosWaits {
    /// Commands that wait now.
    pub waiting: u64,
    /// Commands that have waited.
    pub total: u64,
}

/// Reason for which a group is not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupRefused {
    Unknown,
    TooMany,
    /// Number of open namespaces of the group.
    InUse(usize),
    /// Key of a limit that is below the sum of the members' guarantees, and that sum.
    Guaranteed(&'static str, u64),
}

impl std::fmt::Display for GroupRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such group"),
            Self::TooMany => write!(f, "there are {GROUPS_MAX} groups already"),
            Self::InUse(1) => f.write_str("a namespace is in it"),
            Self::InUse(members) => write!(f, "{members} namespaces are in it"),
            Self::Guaranteed(key, sum) => {
                write!(f, "`{key}` is less than the {sum} that is guaranteed to its members")
            }
        }
    }
}

/// Limits of one namespace, which all instances of its layer share.
#[derive(Debug)]
pub struct Member {
    pub(super) own: Budget,
    pub(super) guarantee: Budget,
    pub(super) group: Option<Arc<Budget>>,
    pub(super) changes: Arc<AtomicU64>,
    pub(super) waiting: AtomicU64,
    pub(super) waited: AtomicU64,
}

/// Limits of a running namespace, for control threads.
#[derive(Clone, Debug)]
pub struct QosControl(Arc<Member>);

impl QosControl {
    /// Sets the limits of the namespace. Waiting commands follow within 50 ms.
    pub fn set(&self, limits: QosLimits) {
        self.set_at(limits, sluice_reactor::now_ns());
    }

    pub(super) fn set_at(&self, limits: QosLimits, now_ns: u64) {
        self.0.own.set(limits, now_ns);
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    #[must_use]
    pub fn limits(&self) -> QosLimits {
        self.0.own.limits()
    }

    #[must_use]
    pub fn waits(&self) -> QosWaits {
        self.0.waits()
    }
}

impl Member {
    pub(super) fn alone(limits: QosLimits, now_ns: u64) -> Arc<Self> {
        Arc::new(Self {
            own: Budget::new(limits, now_ns),
            guarantee: Budget::default(),
            group: None,
            changes: Arc::default(),
            waiting: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        })
    }

    pub(super) fn control(member: Arc<Self>) -> QosControl {
        QosControl(member)
    }

    fn waits(&self) -> QosWaits {
        let (waiting, total) = (self.waiting.load(Ordering::Relaxed), self.waited.load(Ordering::Relaxed));
        QosWaits { waiting, total }
    }
}

impl Group {
    fn members(&self) -> impl Iterator<Item = Arc<Member>> {
        self.members.iter().filter_map(Weak::upgrade)
    }

    /// Checks that limits leave room for the guarantees of all members, and for one more.
    fn check(&self, limits: QosLimits, further: Option<QosLimits>) -> Result<(), GroupRefused> {
        let guaranteed: Vec<_> = self.members().map(|it| it.guarantee.limits()).chain(further).collect();
        for (index, (key, limit)) in limits.named().into_iter().enumerate() {
            let all = guaranteed.iter().map(|it| it.named()[index].1.unwrap_or(0));
            let sum = all.fold(0, u64::saturating_add);
            if limit.is_some_and(|limit| limit < sum) {
                return Err(GroupRefused::Guaranteed(key, sum));
            }
        }
        Ok(())
    }

    fn status(&self, name: &str) -> GroupStatus {
        let members: Vec<_> = self.members().collect();
        let waits = members.iter().fold(QosWaits::default(), |sum, member| {
            let QosWaits { waiting, total } = member.waits();
            QosWaits { waiting: sum.waiting + waiting, total: sum.total + total }
        });
        let (limits, members) = (self.budget.limits(), members.len());
        GroupStatus { name: name.to_owned(), limits, members, waits }
    }
}

impl Groups {
    /// Creates a group, or changes its limits. Waiting commands follow within 50 ms.
    ///
    /// # Errors
    /// The limits are below the guarantees of the members, or there are too many groups.
    pub fn set(&self, name: &str, limits: QosLimits) -> Result<(), GroupRefused> {
        self.set_at(name, limits, sluice_reactor::now_ns())
    }

    pub(super) fn set_at(&self, name: &str, limits: QosLimits, now_ns: u64) -> Result<(), GroupRefused> {
        let mut groups = self.locked();
        if let Some(group) = groups.get(name) {
            group.check(limits, None)?;
            group.budget.set(limits, now_ns);
            self.changes.fetch_add(1, Ordering::Release);
            return Ok(());
        }
        if groups.len() >= GROUPS_MAX {
            return Err(GroupRefused::TooMany);
        }
        let budget = Arc::new(Budget::new(limits, now_ns));
        groups.insert(name.to_owned(), Group { budget, members: Vec::new() });
        Ok(())
    }

    /// Removes a group without members.
    ///
    /// # Errors
    /// The group has members, or does not exist.
    pub fn remove(&self, name: &str) -> Result<(), GroupRefused> {
        let mut groups = self.locked();
        let group = groups.get(name).ok_or(GroupRefused::Unknown)?;
        match group.members().count() {
            0 => {
                groups.remove(name);
                Ok(())
            }
            members => Err(GroupRefused::InUse(members)),
        }
    }

    /// Returns all groups, by name.
    #[must_use]
    pub fn list(&self) -> Vec<GroupStatus> {
        self.locked().iter().map(|(name, group)| group.status(name)).collect()
    }

    /// Opens the limits of a namespace, in its group if it has one.
    pub(super) fn member(&self, options: &QosOptions) -> Result<Arc<Member>, Fault> {
        self.member_at(options, sluice_reactor::now_ns())
    }

    pub(super) fn member_at(&self, options: &QosOptions, now_ns: u64) -> Result<Arc<Member>, Fault> {
        let guarantee = options.guarantee.unwrap_or_default();
        let mut groups = self.locked();
        let group = options.group.as_deref().map(|name| find(&mut groups, name)).transpose()?;
        if let Some(group) = &group {
            let checked = group.check(group.budget.limits(), options.guarantee);
            checked.map_err(|refused| Fault::at_key("guarantee", format!("of the group, {refused}")))?;
        }
        let member = Arc::new(Member {
            own: Budget::new(options.limits, now_ns),
            guarantee: Budget::new(guarantee, now_ns),
            group: group.as_ref().map(|group| Arc::clone(&group.budget)),
            changes: Arc::clone(&self.changes),
            waiting: AtomicU64::new(0),
            waited: AtomicU64::new(0),
        });
        if let Some(group) = group {
            group.members.retain(|member| member.strong_count() > 0);
            group.members.push(Arc::downgrade(&member));
        }
        Ok(member)
    }

    /// Locks the groups. A panic ends the process, so the lock is never poisoned.
    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find<'a>(groups: &'a mut BTreeMap<String, Group>, name: &str) -> Result<&'a mut Group, Fault> {
    let hint = match nearest(name, groups.keys().map(String::as_str)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("declare it with [[group]], or create it: sluice group set {name}"),
    };
    let found = groups.get_mut(name);
    found.ok_or_else(|| Fault::at_key("group", format!("there is no group `{name}`")).hint(hint))
}
