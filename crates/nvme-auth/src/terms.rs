//! Parameters from before a transaction: the names of both ends, their keys, and the algorithms to choose
//! from.

use crate::{Group, Hash, Key};

/// Names of both ends, which are part of every response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub hostnqn: String,
    pub subnqn: String,
}

/// Algorithms that an end accepts, in the order of its preference. Neither list is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub hashes: Vec<Hash>,
    pub groups: Vec<Group>,
}

impl Default for Offer {
    /// Returns all algorithms: the groups from the first of 128 bits of strength on, then the smaller ones.
    fn default() -> Self {
        use Group::{Ffdhe2048, Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Null};
        Self {
            hashes: Hash::ALL.to_vec(),
            groups: vec![Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Ffdhe2048, Null],
        }
    }
}

/// Terms of authentication between a host and a subsystem.
#[derive(Debug)]
pub struct Terms {
    /// Key with which the host authenticates itself.
    pub host: Key,
    /// Key with which the controller authenticates itself as one of the subsystem.
    pub controller: Option<Key>,
    pub offer: Offer,
}
