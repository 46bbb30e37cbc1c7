//! `[tcp]`: where hosts on the network come in.

use crate::spec::Fault;
use serde::Deserialize;
use std::net::SocketAddr;

/// Addresses of one daemon.
const ADDRESSES_MAX: usize = 64;

/// The table `[tcp]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tcp {
    /// Addresses with their ports. Nobody is let in without any.
    pub listen: Vec<SocketAddr>,
    /// The same for drives that have keys: connections to these addresses are encrypted.
    pub listen_tls: Vec<SocketAddr>,
}

impl Tcp {
    pub(super) fn check(&self) -> Result<(), Fault> {
        let mut seen = Vec::new();
        for (key, addresses) in [("listen", &self.listen), ("listen_tls", &self.listen_tls)] {
            for address in addresses {
                if seen.len() == ADDRESSES_MAX {
                    return Err(Fault::at_key(key, format!("at most {ADDRESSES_MAX} are possible")));
                }
                if seen.contains(&address) {
                    let words = format!("{address} is there twice");
                    return Err(Fault::at_key(key, words).hint("name each address once"));
                }
                seen.push(address);
            }
        }
        Ok(())
    }
}
