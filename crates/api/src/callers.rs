//! Permission to call the API, by the credentials that the kernel provides (SO_PEERCRED).

use sluice_control::launch::is_limited;
use sluice_spec::error::{ApiError, Kind};

/// Users and groups that may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub uids: Vec<u32>,
    pub gids: Vec<u32>,
}

impl Policy {
    /// Returns a policy for these users and groups. Root and the daemon's user may always call.
    pub fn new(allow_uids: &[u32], allow_gids: &[u32]) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self { uids: [&[0, own], allow_uids].concat(), gids: allow_gids.to_vec() }
    }

    /// Returns whether a caller with these effective IDs may call. A group counts if it is the caller's own,
    /// or if `/etc/group` lists the caller in it.
    pub fn allows(&self, uid: u32, gid: u32) -> bool {
        self.uids.contains(&uid) || self.gids.contains(&gid) || (!self.gids.is_empty() && self.is_member(uid))
    }

    fn is_member(&self, uid: u32) -> bool {
        // The kernel reports only the caller's own group in a form that cannot be stale. The other groups are
        // looked up by name. Users that only a network directory lists have none here.
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let Some(name) = user_name(&read("/etc/passwd"), uid) else { return false };
        groups_with(&read("/etc/group"), &name).iter().any(|gid| self.gids.contains(gid))
    }
}

/// Returns whether the caller is the process of a function, or was started by one. Such a process has
/// resource limits that it cannot raise again. The user decides nothing, since it may be the daemon's.
pub(super) fn is_function(pid: Option<i32>, uid: u32) -> bool {
    // A process that is invisible here, as one of another container, was not started by this process.
    let Some(pid) = pid.filter(|pid| *pid > 0) else { return false };
    match std::fs::read_to_string(format!("/proc/{pid}/limits")) {
        Ok(limits) => is_limited(&limits),
        // The process has ended and left its socket to another, or /proc hides processes of other users.
        Err(_) => uid == rustix::process::geteuid().as_raw(),
    }
}

/// Returns the error for a function's process.
pub(super) fn refused_function() -> ApiError {
    ApiError::new(Kind::Forbidden, "the process of a function may not call this daemon")
        .hint("orders for its own drive are given from outside of it, with `sluice function tell`")
}

/// Returns the error for other callers that may not call.
pub(super) fn refused(uid: u32) -> ApiError {
    ApiError::new(Kind::Forbidden, format!("user {uid} may not call this daemon")).hint(
        "call as root or as the daemon's user, or add the user to daemon.allow_uids (a group: daemon.allow_gids)",
    )
}

/// Returns the name of a user in `/etc/passwd`: `name:password:uid:...`.
fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = fields.filter(|fields| fields.get(2).is_some_and(|field| field.parse() == Ok(uid)));
    Some(found.next()?[0].to_owned())
}

/// Returns the groups in `/etc/group` that list a user: `name:password:gid:member,member`.
fn groups_with(group: &str, name: &str) -> Vec<u32> {
    let fields = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let listed = fields
        .filter(|fields| fields.get(3).is_some_and(|list| list.split(',').any(|member| member == name)));
    listed.filter_map(|fields| fields[2].parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_daemon_and_those_configured_may_call() {
        let policy = Policy::new(&[1000], &[50]);
        let own = rustix::process::geteuid().as_raw();
        for uid in [0, own, 1000] {
            assert!(policy.allows(uid, 4_000_000_000));
        }
        assert!(policy.allows(4_000_000_001, 50));
        assert!(!policy.allows(4_000_000_001, 51));
        assert!(!Policy { uids: vec![5], gids: vec![] }.allows(0, 0));
    }

    #[test]
    fn callers_that_no_function_has_started_are_none() {
        let own = rustix::process::geteuid().as_raw();
        let this = std::process::id().cast_signed();
        assert!(!is_function(Some(this), own) && !is_function(None, own) && !is_function(Some(0), own));
        // A process that has ended may have been a function.
        assert!(is_function(Some(i32::MAX), own) && !is_function(Some(i32::MAX), own.wrapping_add(1)));
    }

    #[test]
    fn members_of_a_group_are_found() {
        let passwd = "root:x:0:0::/root:/bin/sh\n\nann:x:1001:1001::/home/ann:/bin/sh\nbroken\n";
        let group = "disk:x:6:bob,ann\nstaff:x:50:annabel\nkvm:x:36:ann\nann:x:1001:\n:::\n";
        assert_eq!(user_name(passwd, 1001).as_deref(), Some("ann"));
        assert_eq!(user_name(passwd, 7), None);
        assert_eq!(groups_with(group, "ann"), [6, 36]);
        assert!(groups_with(group, "nobody").is_empty());
    }
}
