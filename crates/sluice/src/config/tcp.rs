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
}

impl Tcp {
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.listen.len() > ADDRESSES_MAX {
            return Err(Fault::at_key("listen", format!("at most {ADDRESSES_MAX} are possible")));
        }
        let repeated = (1..self.listen.len()).find(|&at| self.listen[..at].contains(&self.listen[at]));
        match repeated {
            Some(at) => Err(Fault::at_key("listen", format!("{} is there twice", self.listen[at]))
                .hint("name each address once")),
            None => Ok(()),
        }
    }
}
