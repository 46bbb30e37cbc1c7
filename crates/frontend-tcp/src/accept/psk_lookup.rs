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
