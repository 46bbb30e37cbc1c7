//! `[tcp]`: where hosts on the network come in.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use sluice_spec::{Fault, check_keys};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Addresses of one daemon.
const ADDRESSES_MAX: usize = 64;

/// The table `[tcp]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tcp {
    /// Addresses with their ports. Nobody is let in without any.
    #[serde(deserialize_with = "addresses")]
    pub listen: Vec<SocketAddr>,
    /// The same for drives that have keys: connections to these addresses are encrypted.
    #[serde(deserialize_with = "addresses")]
    pub listen_tls: Vec<SocketAddr>,
    /// File with keys of hosts for the discovery service, which is at the addresses of `listen_tls`, too, then.
    pub discovery_keys: Option<PathBuf>,
}

/// Reads addresses, which are numbers: a name may mean several, and others later.
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
    /// All addresses, each with its key.
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
