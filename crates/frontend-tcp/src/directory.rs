//! Directory of drives: which exist, and which hosts may connect.
//!
//! The control side writes it, the [`Listener`](super::Listener) reads it. No reactor accesses it.

use crate::accept::{AcceptedConnect, Refusal};
use crate::assoc::Hosts;
use crate::auth::AuthResult;
use sluice_frontend::Drive;
use sluice_nvme::Status;
use sluice_nvme::fabrics::{DISCOVERY_NQN, InvalidParameter};
use sluice_nvme_auth::Terms;
use sluice_reactor::TaskHandle;
use sluice_tls::{Identity, Keyring, Keys, Psk, Session};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Drive in the directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Task of the [`Drive`].
    pub drive: TaskHandle,
    /// Hosts that may connect. If empty, every host that has a key may connect. Without keys as well, every
    /// host on this machine may, and no other.
    pub hosts: Vec<KnownHost>,
    /// TLS keys of the hosts. With keys all connections are encrypted, without keys none is.
    pub keys: Option<Arc<Keys>>,
}

/// Host that may connect to a drive.
#[derive(Clone, Debug)]
pub struct KnownHost {
    pub nqn: String,
    /// Keys that the host must authenticate with. Without them its NQN suffices, together with its TLS key if
    /// the drive has keys.
    pub terms: Option<Arc<Terms>>,
}

/// All drives, by subsystem NQN.
#[derive(Debug, Default)]
pub struct Directory {
    drives: Mutex<Drives>,
}

#[derive(Debug, Default)]
struct Drives {
    by_subnqn: BTreeMap<String, Entry>,
    /// Keys of the discovery service; without them it is not encrypted.
    discovery: Option<Arc<Keys>>,
    /// Number of changes, for the Discovery log page.
    generation: u64,
}

/// Refusal of a host with an empty NQN, where the drive lists hosts or has keys.
const NAMELESS: &str = "it sent an empty Host NQN, and the drive is for hosts with a name: set one on the host \
    (nvme connect --hostnqn, or /etc/nvme/hostnqn) and write it into tcp.hosts, or leave tcp.hosts and \
    tcp.tls_keys out to let in every host of this machine";

const UNKNOWN: &str = "there is no such subsystem";

impl Directory {
    fn drives(&self) -> MutexGuard<'_, Drives> {
        // A panic ends the process, so the mutex is never poisoned.
        self.drives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a drive. Returns false if one with this NQN exists.
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

    /// Sets the keys of hosts that may use the discovery service over TLS. Without keys no host may.
    pub fn set_discovery_keys(&self, keys: Option<Arc<Keys>>) {
        self.drives().discovery = keys;
    }

    /// Returns the number of changes so far.
    pub(crate) fn generation(&self) -> u64 {
        self.drives().generation
    }

    /// Returns the generation, and the NQNs of the drives that this host may use. The flag of each is whether
    /// its connections are encrypted.
    pub(crate) fn visible_to(&self, hostnqn: &str, peer: SocketAddr) -> (u64, Vec<(String, bool)>) {
        let drives = self.drives();
        let visible = drives.by_subnqn.iter().filter(|(_, entry)| entry.admits(hostnqn, peer));
        let named = visible.map(|(subnqn, entry)| (subnqn.clone(), entry.keys.is_some()));
        (drives.generation, named.collect())
    }

    /// Checks that the host may use the drive. Returns the keys that it must authenticate with, if any.
    pub(crate) fn check(
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

    /// Checks that the NQNs in the Connect command are those of the TLS key, if there is one.
    pub(crate) fn check_names(subnqn: &str, hostnqn: &str, tls: Option<&Session>) -> Result<(), Refusal> {
        match tls.map(Session::identity) {
            Some(identity) if identity.hostnqn() != hostnqn || identity.subnqn() != subnqn => {
                Err(Refusal::new(Status::CONNECT_INVALID_HOST, "its key is for other names"))
            }
            _ => Ok(()),
        }
    }

    /// Sends a connection to its drive, which completes the Connect command. Blocks while the message is
    /// enqueued.
    pub(crate) fn deliver(&self, subnqn: &str, accepted: AcceptedConnect) {
        let entry = self.drives().by_subnqn.get(subnqn).cloned();
        let Some(Entry { drive, .. }) = entry else {
            return accepted.refuse(&Refusal::parameter(InvalidParameter::SUBNQN, UNKNOWN));
        };
        // A reactor that takes no message is too busy, or gone. The connection is closed then.
        let task = drive.id();
        let sent = drive.mail(move |local| {
            let now_ns = local.now_ns();
            if let Some((hosts, _)) = local.task_mut::<Drive>(task).and_then(Drive::frontend_mut::<Hosts>) {
                hosts.enqueue(accepted, now_ns);
            }
        });
        if sent.is_err() {
            tracing::warn!(subnqn, "a host was turned away: its drive's reactor takes no messages");
        }
    }

    /// Sends an authentication result to the drive, if it still exists.
    pub(crate) fn report(&self, subnqn: &str, result: AuthResult) {
        let entry = self.drives().by_subnqn.get(subnqn).cloned();
        let Some(Entry { drive, .. }) = entry else { return };
        let task = drive.id();
        let sent = drive.call(move |local| {
            let now_ns = local.now_ns();
            let drive = local.task_mut::<Drive>(task);
            if let Some((hosts, subsystem)) = drive.and_then(Drive::frontend_mut::<Hosts>) {
                hosts.take_auth_result(result, subsystem, now_ns);
            }
        });
        if let Err(error) = sent {
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
        // Key derivation then delays only the connection that needs it.
        drop(drives);
        keys.map_or(Vec::new(), |keys| keys.candidates(identity))
    }
}

impl Entry {
    /// Returns whether the host may connect, provided that it has its key.
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

    /// Checks that a Host NQN is required only where the drive decides by it.
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
