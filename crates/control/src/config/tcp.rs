//! `[tcp]`: addresses at which the daemon accepts hosts on the network.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use sluice_spec::{Fault, check_keys};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Maximum number of addresses of one daemon.
const ADDRESSES_MAX: usize = 64;

/// The table `[tcp]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tcp {
    /// Addresses with their ports. If the list is empty, no unencrypted connection is accepted.
    #[serde(deserialize_with = "addresses")]
    pub listen: Vec<SocketAddr>,
    /// Addresses with their ports for drives that have keys. Connections to these addresses use TLS.
    #[serde(deserialize_with = "addresses")]
    pub listen_tls: Vec<SocketAddr>,
    /// File with keys of hosts for the discovery service. With this file the service is also at the addresses
    /// of `listen_tls`.
    pub discovery_keys: Option<PathBuf>,
}

/// Reads numeric addresses. A host name is refused: it may have several addresses, and others later.
fn addresses<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(|_| D::Error::custom(not_an_address(text)))).collect()
}

fn not_an_address(text: &str) -> String {
    let text = text.escape_debug();
    format!(
        "`{text}` is not an address with a port: write it in numbers, such as \"127.0.0.1:4420\", \"[::1]:4420\" or \"0.0.0.0:4420\""
    )
}

impl Tcp {
    /// Returns all addresses, each with its key.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let plain = self.listen.iter().map(|address| ("tcp.listen", *address));
        plain.chain(self.listen_tls.iter().map(|address| ("tcp.listen_tls", *address)))
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        check_keys("discovery_keys", self.discovery_keys.as_deref())?;
        if self.discovery_keys.is_some() && self.listen_tls.is_empty() {
            return Err(Fault::at_key("discovery_keys", "the daemon listens nowhere with TLS")
                .hint("add listen_tls = [\"127.0.0.1:8009\"]"));
        }
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
