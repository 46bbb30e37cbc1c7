//! `[metrics]`: measurements of the daemon, and the address at which they are read.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use sluice_spec::Fault;
use std::net::SocketAddr;

/// The table `[metrics]`; every key has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Whether the time of each command is measured.
    pub latency: bool,
    /// Whether the commands of each function and target are counted.
    pub layers: bool,
    /// Address at which the metrics can be read over HTTP. Without it they are only on the socket of the API.
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
    /// Milliseconds from which on a command is slow, and reported.
    pub slow_ms: Option<u64>,
}

impl Metrics {
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.slow_ms {
            Some(0) => Err(Fault::at_key("slow_ms", "every command takes longer than that")
                .hint("name the milliseconds that no command should take, such as 500; without the key none is slow")),
            _ if self.layers && !self.latency => Err(Fault::at_key("layers", "commands are not measured")
                .hint("set latency = true")),
            Some(_) if !self.latency => Err(Fault::at_key("slow_ms", "the time of commands is not measured")
                .hint("set latency = true")),
            _ => Ok(()),
        }
    }

    /// Returns the nanoseconds from which on a command is slow.
    pub fn slow_ns(&self) -> u64 {
        self.slow_ms.map_or(u64::MAX, |ms| ms.saturating_mul(1_000_000))
    }
}

/// Reads a numeric address. A host name is refused: it may have several addresses.
pub(super) fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    let problem = || {
        let text = text.escape_debug();
        format!("`{text}` is not an address with a port: write it in numbers, such as \"127.0.0.1:9476\"")
    };
    text.parse().map(Some).map_err(|_| D::Error::custom(problem()))
}
