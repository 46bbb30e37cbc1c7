//! Sockets of the daemon besides those of its drives.

use sluice_control::config::Config;
use sluice_control::listen::{SocketFile, listen, resume};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::paths::Places;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Copies of the listening sockets, until the daemon stops.
pub(crate) type Copies = Arc<Mutex<Option<Listening>>>;

/// Listening sockets.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) api: UnixListener,
    /// Socket at which metrics are read, if an address is configured.
    pub(crate) metrics: Option<TcpListener>,
}

impl Listening {
    pub(crate) fn open(config: &Config, places: &Places) -> Result<(Self, SocketFile), ApiError> {
        let metrics = config.metrics.listen.map(listen_for_scrapers).transpose()?;
        // Every user may connect. Credentials decide who may call; other callers get an error.
        let (api, file) = listen(&places.api, 0o666)?;
        Ok((Self { api, metrics }, file))
    }

    /// Continues with the sockets of another process, as far as the configuration has them.
    pub(crate) fn resume(
        config: &Config,
        api: OwnedFd,
        metrics: Option<OwnedFd>,
        path: &Path,
    ) -> Result<(Self, SocketFile), ApiError> {
        let metrics = metrics.map(TcpListener::from);
        let listens_at = |socket: &TcpListener| socket.local_addr().ok();
        let metrics = match (config.metrics.listen, metrics) {
            (None, _) => None,
            // A port of 0 is any port.
            (Some(wanted), Some(socket))
                if listens_at(&socket).is_some_and(|at| {
                    at.ip() == wanted.ip() && (wanted.port() == 0 || at.port() == wanted.port())
                }) =>
            {
                Some(socket)
            }
            (Some(wanted), _) => Some(listen_for_scrapers(wanted)?),
        };
        let (api, file) = resume(path, api);
        Ok((Self { api, metrics }, file))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let metrics = self.metrics.as_ref().map(TcpListener::try_clone).transpose()?;
        Ok(Self { api: self.api.try_clone()?, metrics })
    }
}

/// Listens at the address at which metrics are read.
fn listen_for_scrapers(address: SocketAddr) -> Result<TcpListener, ApiError> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        Ok((listener.local_addr()?, listener))
    };
    let (address, listener) = listen().map_err(|error: io::Error| {
        ApiError::new(Kind::InUse, format!("cannot listen on {address} for metrics: {error}"))
            .hint("metrics.listen in the configuration file names the address")
    })?;
    tracing::info!("metrics at http://{address}/metrics");
    Ok(listener)
}
