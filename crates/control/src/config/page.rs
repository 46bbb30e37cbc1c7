//! `[page]`: the address of the web page, and the token for it.

use super::metrics::address;
use serde::Deserialize;
use sluice_spec::Fault;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Name of the file with the token, in the state folder, unless another is named.
const TOKEN_FILE: &str = "page-token";

/// The table `[page]`; every key has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// Address at which the page and the API are served over HTTP, to callers with the token. Without it they are only
    /// on the socket of the API.
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
    /// File with the token.
    pub token_file: Option<PathBuf>,
}

impl Page {
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.listen {
            Some(address) if !address.ip().is_loopback() => {
                let words = format!("{} is not a loopback address, and the page has no TLS", address.ip());
                Err(Fault::at_key("listen", words).hint(
                    "listen on 127.0.0.1 or [::1], and reach it from another machine through a tunnel: \
                     `ssh -L 9477:127.0.0.1:9477 MACHINE`",
                ))
            }
            None if self.token_file.is_some() => {
                Err(Fault::at_key("token_file", "a token without an address to use it at")
                    .hint("add listen = \"127.0.0.1:9477\""))
            }
            _ => Ok(()),
        }
    }

    /// Makes a relative path absolute; it is relative to `folder`.
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        self.token_file.iter_mut().for_each(|path| *path = folder.join(&path));
    }

    /// Returns the path of the file with the token, for a daemon with this state folder.
    pub fn token_path(&self, state: &Path) -> PathBuf {
        self.token_file.clone().unwrap_or_else(|| state.join(TOKEN_FILE))
    }
}
