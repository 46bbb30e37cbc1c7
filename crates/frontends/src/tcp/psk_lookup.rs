//! The keys that one connection was shown in its TLS handshake.

use super::directory::Directory;
use sluice_tls::{Identity, Keyring, Psk};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handshake and a Connect command take their time, and an operator may withdraw a key meanwhile: it lets nobody in
/// who has not come in by then.
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
        // A panic ends the process, so nobody poisons it.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if this identity still has the keys that the handshake was shown.
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
        // It may be asked for the same again.
        shown.retain(|psk| psk.identity != *identity);
        shown.extend(copies);
        found
    }
}
