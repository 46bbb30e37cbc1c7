//! Which drives there are for hosts, and who may have them.
//!
//! Written by the control side, read by the [`Listener`](super::Listener); no reactor ever looks at it.

use super::auth_worker::AuthResult;
use super::connect::{AcceptedConnect, Refusal};
use crate::Drive;
use sluice_nvme::Status;
use sluice_nvme::fabrics::{DISCOVERY_NQN, InvalidParameter};
use sluice_nvme_auth::Terms;
use sluice_reactor::TaskHandle;
use sluice_tls::{Identity, Keyring, Keys, Psk, Session};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One drive.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its [`Drive`].
    pub drive: TaskHandle,
    /// The hosts that may connect. Without any, every host that has a key may; if there are no keys either,
    /// every host on this machine, and no other.
    pub hosts: Vec<KnownHost>,
    /// Keys of the hosts. With them all connections are encrypted, without them none is.
    pub keys: Option<Arc<Keys>>,
}

/// A host that may connect to a drive.
#[derive(Clone, Debug)]
pub struct KnownHost {
    pub nqn: String,
    /// It has to prove who it is with these keys; without any, its word is enough, or its key of the drive's.
    pub terms: Option<Arc<Terms>>,
}

/// All drives, by the name of their subsystem.
#[derive(Debug, Default)]
pub struct Directory {
    drives: Mutex<Drives>,
}

#[derive(Debug, Default)]
struct Drives {
    by_subnqn: BTreeMap<String, Entry>,
    /// Keys for the discovery service; it is not encrypted without.
    discovery: Option<Arc<Keys>>,
    /// Counts changes, for the Discovery log page.
    generation: u64,
}

/// The words for a host that a list of names, or a key, cannot be for.
const NAMELESS: &str = "it sent an empty Host NQN, and the drive is for hosts with a name: set one on the host \
    (nvme connect --hostnqn, or /etc/nvme/hostnqn) and write it into tcp.hosts, or leave tcp.hosts and \
    tcp.tls_keys out to let in every host of this machine";

const UNKNOWN: &str = "there is no such subsystem";

impl Directory {
    fn drives(&self) -> MutexGuard<'_, Drives> {
        // A panic ends the process, so nobody poisons it.
        self.drives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a drive; false if there is one of this name.
    pub fn add(&self, subnqn: &str, entry: Entry) -> bool {
        let mut drives = self.drives();
        if drives.by_subnqn.contains_key(subnqn) {
            return false;
        }
        drives.generation += 1;
        drives.by_subnqn.insert(subnqn.to_owned(), entry);
        true
    }

    pub fn remove(&self, subnqn: &str) {
        let mut drives = self.drives();
        if drives.by_subnqn.remove(subnqn).is_some() {
            drives.generation += 1;
        }
    }

    /// The hosts that have one of these keys may use the discovery service over TLS; none without.
    pub fn set_discovery_keys(&self, keys: Option<Arc<Keys>>) {
        self.drives().discovery = keys;
    }

    /// Counts changes.
    pub(super) fn generation(&self) -> u64 {
        self.drives().generation
    }

    /// The generation, and the names of the drives that this host may have, each with whether connections to
    /// it are encrypted.
    pub(super) fn visible_to(&self, hostnqn: &str, peer: SocketAddr) -> (u64, Vec<(String, bool)>) {
        let drives = self.drives();
        let visible = drives.by_subnqn.iter().filter(|(_, entry)| entry.admits(hostnqn, peer));
        let named = visible.map(|(subnqn, entry)| (subnqn.clone(), entry.keys.is_some()));
        (drives.generation, named.collect())
    }

    /// If the host may have the drive, and what it has to prove who it is with.
    pub(super) fn check(
        &self,
        subnqn: &str,
        hostnqn: &str,
        peer: SocketAddr,
        tls: Option<&Session>,
    ) -> Result<Option<Arc<Terms>>, Refusal> {
        Self::check_names(subnqn, hostnqn, tls)?;
        let drives = self.drives();
        let entry = drives.by_subnqn.get(subnqn);
        let entry = entry.ok_or_else(|| Refusal::parameter(InvalidParameter::SUBNQN, UNKNOWN))?;
        match entry.admits(hostnqn, peer) {
            true if entry.keys.is_some() && tls.is_none() => {
                Err(Refusal::new(Status::CONNECT_INVALID_HOST, "the drive has keys, and it does not use TLS"))
            }
            true => Ok(entry.hosts.iter().find(|host| host.nqn == hostnqn).and_then(|it| it.terms.clone())),
            false => Err(Refusal::new(Status::CONNECT_INVALID_HOST, entry.denial(hostnqn))),
        }
    }

    /// If the names that a host says are those that its key is for.
    pub(super) fn check_names(subnqn: &str, hostnqn: &str, tls: Option<&Session>) -> Result<(), Refusal> {
        match tls.map(Session::identity) {
            Some(identity) if identity.hostnqn() != hostnqn || identity.subnqn() != subnqn => {
                Err(Refusal::new(Status::CONNECT_INVALID_HOST, "its key is for other names"))
            }
            _ => Ok(()),
        }
    }

    /// Sends a connection to its drive, which answers the Connect command. Blocks for as long as it takes
    /// to leave a message.
    pub(super) fn deliver(&self, subnqn: &str, accepted: AcceptedConnect) {
        let entry = self.drives().by_subnqn.get(subnqn).cloned();
        let Some(Entry { drive, .. }) = entry else {
            return accepted.refuse(&Refusal::parameter(InvalidParameter::SUBNQN, UNKNOWN));
        };
        // A reactor that takes no message is too busy, or gone: the connection is closed.
        let task = drive.id();
        let sent = drive.mail(move |local| {
            let now_ns = local.now_ns();
            if let Some(hosts) = local.task_mut::<Drive>(task).and_then(Drive::hosts_mut) {
                hosts.welcome(accepted, now_ns);
            }
        });
        if sent.is_err() {
            tracing::warn!(subnqn, "a host was turned away: its drive's reactor takes no messages");
        }
    }

    /// Sends what came of a host's proof back to where it waits, if it still does.
    pub(super) fn report(&self, subnqn: &str, result: AuthResult) {
        let entry = self.drives().by_subnqn.get(subnqn).cloned();
        let Some(Entry { drive, .. }) = entry else { return };
        let task = drive.id();
        let told = drive.call(move |local| {
            let now_ns = local.now_ns();
            if let Some(drive) = local.task_mut::<Drive>(task) {
                drive.heard(result, now_ns);
            }
        });
        if let Err(error) = told {
            tracing::warn!(subnqn, %error, "a host waits in vain: its drive's reactor takes no messages");
        }
    }
}

impl Keyring for Directory {
    fn candidates(&self, identity: &Identity) -> Vec<Psk> {
        let drives = self.drives();
        let keys = match identity.subnqn() {
            DISCOVERY_NQN => drives.discovery.clone(),
            subnqn => drives.by_subnqn.get(subnqn).and_then(|entry| entry.keys.clone()),
        };
        // What is computed now is computed for one that waits alone.
        drop(drives);
        keys.map_or(Vec::new(), |keys| keys.candidates(identity))
    }
}

impl Entry {
    /// For the hosts that could connect if they have the key.
    fn admits(&self, hostnqn: &str, peer: SocketAddr) -> bool {
        match &self.keys {
            Some(keys) => {
                (self.hosts.is_empty() || self.hosts.iter().any(|host| host.nqn == hostnqn))
                    && keys.names(hostnqn)
            }
            None => admits(&self.hosts, hostnqn, peer),
        }
    }

    fn denial(&self, hostnqn: &str) -> &'static str {
        match (&self.keys, self.hosts.is_empty()) {
            (Some(_), _) | (_, false) if hostnqn.is_empty() => NAMELESS,
            (Some(_), true) => "there is no key for it",
            (None, true) => "it is not on this machine, and the drive names no hosts",
            (_, false) => "the drive's hosts do not name it, or there is no key for it",
        }
    }
}

fn admits(hosts: &[KnownHost], hostnqn: &str, peer: SocketAddr) -> bool {
    match hosts.is_empty() {
        true => peer.ip().to_canonical().is_loopback(),
        false => hosts.iter().any(|host| host.nqn == hostnqn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name is needed where the name decides, and nowhere else.
    #[test]
    fn a_host_without_a_name_may_come_where_any_may() {
        let from = |address: &str| SocketAddr::new(address.parse().expect("an address"), 1);
        assert!(admits(&[], "", from("127.0.0.1")));
        assert!(!admits(&[], "", from("10.0.0.1")));
        assert!(!admits(&[KnownHost { nqn: "nqn.a".to_owned(), terms: None }], "", from("127.0.0.1")));
    }

    #[test]
    fn strangers_are_denied() {
        let from = |address: &str| SocketAddr::new(address.parse().expect("an address"), 1);
        let listed = ["nqn.a", "nqn.b"].map(|nqn| KnownHost { nqn: nqn.to_owned(), terms: None });
        for near in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(admits(&[], "nqn.c", from(near)));
            assert!(!admits(&listed, "nqn.c", from(near)));
        }
        for far in ["10.0.0.1", "fe80::1", "::ffff:10.0.0.1"] {
            assert!(!admits(&[], "nqn.a", from(far)));
            assert!(admits(&listed, "nqn.b", from(far)));
        }
    }
}
