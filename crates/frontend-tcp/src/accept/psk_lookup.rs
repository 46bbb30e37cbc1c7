//! Keys that were offered to one connection in its TLS handshake.

use crate::directory::Directory;
use sluice_tls::{Identity, Keyring, Psk};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keyring that records the keys it returns. An operator may withdraw a key between the handshake and the
/// Connect command; such a connection is refused.
#[derive(Debug)]
pub(super) struct PskLookup {
    directory: Arc<Directory>,
    offered: Mutex<Vec<Psk>>,
}

impl PskLookup {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self { directory, offered: Mutex::default() }
    }

    fn offered(&self) -> MutexGuard<'_, Vec<Psk>> {
        // A panic ends the process, so the mutex is never poisoned.
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this identity still has the keys that were offered to the handshake.
    pub(super) fn is_valid(&self, identity: &Identity) -> bool {
        let (now, offered) = (self.directory.candidates(identity), self.offered());
        let then = offered.iter().filter(|psk| psk.identity == *identity).map(|psk| &psk.secret);
        !now.is_empty() && then.eq(now.iter().map(|psk| &psk.secret))
    }
}

impl Keyring for PskLookup {
    fn candidates(&self, identity: &Identity) -> Vec<Psk> {
        let found = self.directory.candidates(identity);
        let copies =
            found.iter().map(|psk| Psk { identity: psk.identity.clone(), secret: psk.secret.clone() });
        let mut offered = self.offered();
        // The handshake may look up an identity more than once.
        offered.retain(|psk| psk.identity != *identity);
        offered.extend(copies);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_nvme::fabrics::DISCOVERY_NQN;
    use sluice_tls::Keys;
    use std::os::unix::fs::PermissionsExt;

    /// Returns the keys of a file with these lines.
    fn keys(lines: &str) -> Arc<Keys> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        std::fs::write(&path, lines).expect("room on the disk");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
        Arc::new(Keys::read(&path).expect("keys"))
    }

    const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn a_key_is_valid_while_the_directory_has_it() {
        let (directory, known) = (Arc::new(Directory::default()), keys(KEY));
        let identities: Vec<Identity> = ["nqn.2024-01.org.example:a", "nqn.2024-01.org.example:b"]
            .map(|host| known.for_host(host, DISCOVERY_NQN).remove(0).identity)
            .into();
        let lookup = PskLookup::new(Arc::clone(&directory));
        let valid = |lookup: &PskLookup| [0, 1].map(|number| lookup.is_valid(&identities[number]));
        assert_eq!(valid(&lookup), [false; 2]);
        directory.set_discovery_keys(Some(Arc::clone(&known)));
        assert_eq!(valid(&lookup), [false; 2], "nothing was offered to the handshake");
        // A handshake may look up an identity more than once.
        for _ in 0..2 {
            assert!(!lookup.candidates(&identities[0]).is_empty());
            assert_eq!(valid(&lookup), [true, false]);
        }
        assert!(!lookup.candidates(&identities[1]).is_empty());
        assert_eq!(valid(&lookup), [true; 2]);
        directory.set_discovery_keys(None);
        assert_eq!(valid(&lookup), [false; 2]);
        directory.set_discovery_keys(Some(known));
        assert_eq!(valid(&lookup), [true; 2]);
    }
}
