//! What is known before a transaction begins: who the two are, their keys, and what they may agree on.

use crate::{Group, Hash, Key};

/// Who the two are. Both names are part of every response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub hostnqn: String,
    pub subnqn: String,
}

/// What an end is ready to use, what it likes best first. Neither list is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
}

impl Default for Offer {
    /// All there is: the groups from the first of 128 bits of strength on, then the smaller ones.
    fn default() -> Self {
        use Group::{Ffdhe2048, Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Null};
        Self {
            hashes: Hash::ALL.to_vec(),
            groups: vec![Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Ffdhe2048, Null],
        }
    }
}

/// What a host and a subsystem have arranged.
#[derive(Debug)]
pub struct Terms {
    /// With which the host proves that it is the host.
    pub host: Key,
    /// With which the controller proves that it is the subsystem's.
    pub controller: Option<Key>,
    pub offer: Offer,
}
