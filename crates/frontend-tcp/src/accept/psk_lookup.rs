//! Keys that were offered to one connection in its TLS handshake.

use crate::directory::Directory;
use sluice_tls::{Identity, Keyring, Psk};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keyring that records the keys it returns. An operator may withdraw a key between the handshake and the
/// Connect command; such a connection is refused.
#[derive(Debug)]
pub(super) struct PskLookup {
    directory: Arc<Directory>,
    shown: Mutex<Vec<Psk>>,
}

impl PskLookup {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self { directory, shown: Mutex::default() }
    }

    fn shown(&self) -> MutexGuard<'_, Vec<Psk>> {
        // A panic ends the process, so the mutex is never poisoned.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this identity still has the keys that were offered to the handshake.
    pub(super) fn still_fits(&self, identity: &Identity) -> bool {
        let (now, shown) = (self.directory.candidates(identity), self.shown());
        let then = shown.iter().filter(|psk| psk.identity == *identity).map(|psk| &psk.secret);
        !now.is_empty() && then.eq(now.iter().map(|psk| &psk.secret))
    }
}

impl Keyring for PskLookup {
    fn candidates(&self, identity: &Identity) -> Vec<Psk> {
        let found = self.directory.candidates(identity);
        let copies =
            found.iter().map(|psk| Psk { identity: psk.identity.clone(), secret: psk.secret.clone() });
        let mut shown = self.shown();
        // The handshake may look up an identity more than once.
        shown.retain(|psk| psk.identity != *identity);
        shown.extend(copies);
        found
    }
}
