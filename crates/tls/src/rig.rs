//! Access for tests and fuzzers: both ends of a connection without a handshake, one of which may send
//! anything, and the parsers of input from before a connection.

use crate::handshake::chosen;
use crate::record::{HEADER, Kind, OVERHEAD, Traffic};
use crate::{Hash, Identity, Keyring, Keys, Psk, Session};
use sluice_crypt::SecretBytes;

/// Parses the text of a file of keys. The error is the number of a line, and its problem.
///
/// # Errors
/// A line is malformed, or there is none.
///
/// # Panics
/// If there is no memory for it.
pub fn keys(text: &[u8]) -> Result<Keys, (usize, &'static str)> {
    Keys::new(SecretBytes::copy_of(text).expect("memory"))
}

/// Returns the keys with which a ClientHello, without the header of its message, is answered.
pub fn keys_for(hello: &[u8], keyring: &dyn Keyring) -> Vec<Psk> {
    chosen(hello, keyring)
}

impl Keyring for Keys {
    fn candidates(&self, identity: &Identity) -> Vec<Psk> {
        Keys::candidates(self, identity)
    }
}

impl Session {
    /// Creates both ends of a connection, with public keys.
    ///
    /// # Panics
    /// Never.
    pub fn pair(hash: Hash) -> (Self, Self) {
        let end = |incoming: u8, outgoing: u8| {
            let traffic = |byte| Traffic::new(hash, &vec![byte; hash.length()], 0);
            let name = format!("NVMe0R{:02} nqn.host nqn.subsystem", hash.number());
            let identity = Identity::parse(&name).expect("an identity");
            Self::new(identity, hash, traffic(incoming), traffic(outgoing))
        };
        (end(1, 2), end(2, 1))
    }

    /// Seals a record of any type, with any content and zeros of padding.
    ///
    /// # Panics
    /// If the record is longer than its header can express.
    pub fn seal_any(&mut self, kind: u8, content: &[u8], zeros: usize) -> Vec<u8> {
        let mut record = vec![0; content.len() + zeros + OVERHEAD];
        record[HEADER..HEADER + content.len()].copy_from_slice(content);
        record[HEADER + content.len()] = kind;
        self.outgoing.close(content.len() + 1 + zeros, &mut record);
        record
    }

    /// Seals a KeyUpdate, which may request one in return; the next record has the next key.
    pub fn update(&mut self, asks: bool) -> Vec<u8> {
        const KEY_UPDATE: u8 = 24;
        let record = self.seal_any(Kind::HANDSHAKE.0, &[KEY_UPDATE, 0, 0, 1, u8::from(asks)], 0);
        self.outgoing.update();
        record
    }
}
