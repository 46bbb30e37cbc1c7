//! Sockets of the daemon besides those of its drives.

use crate::page::PageSocket;
use sluice_control::config::{Config, Tcp};
use sluice_control::listen::{SocketFile, listen, resume};
use sluice_frontend_tcp::{Directory, Listener};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::paths::Places;
use sluice_wiring::tls_keys;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Copies of the listening sockets, until the daemon stops.
pub(crate) type Copies = Arc<Mutex<Option<Listening>>>;

/// Listening sockets.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) api: UnixListener,
    /// Socket at which metrics are read, if an address is configured.
    pub(crate) metrics: Option<TcpListener>,
    pub(crate) page: Option<PageSocket>,
}

/// Sockets of another process, which has ended or will.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    pub(crate) metrics: Option<OwnedFd>,
    pub(crate) page: Option<OwnedFd>,
}

impl Listening {
    pub(crate) fn open(config: &Config, places: &Places) -> Result<(Self, SocketFile), ApiError> {
        let (metrics, page) = Self::at_addresses(config, places, InheritedSockets::default())?;
        // Every user may connect. Credentials decide who may call; other callers get an error.
        let (api, file) = listen(&places.api, 0o666)?;
        Ok((Self { api, metrics, page }, file))
    }

    /// Continues with the sockets of another process, as far as the configuration has them.
    pub(crate) fn resume(
        config: &Config,
        api: OwnedFd,
        inherited: InheritedSockets,
        places: &Places,
    ) -> Result<(Self, SocketFile), ApiError> {
        let (metrics, page) = Self::at_addresses(config, places, inherited)?;
        let (api, file) = resume(&places.api, api);
        Ok((Self { api, metrics, page }, file))
    }

    /// Returns the sockets at configured addresses: those of another process that listen there.
    fn at_addresses(
        config: &Config,
        places: &Places,
        inherited: InheritedSockets,
    ) -> Result<(Option<TcpListener>, Option<PageSocket>), ApiError> {
        let metrics =
            |wanted| if_at(wanted, inherited.metrics).map_or_else(|| listen_for_scrapers(wanted), Ok);
        let metrics = config.metrics.listen.map(metrics).transpose()?;
        Ok((metrics, PageSocket::open(&config.page, places, inherited.page)?))
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let metrics = self.metrics.as_ref().map(TcpListener::try_clone).transpose()?;
        let page = self.page.as_ref().map(PageSocket::try_clone).transpose()?;
        Ok(Self { api: self.api.try_clone()?, metrics, page })
    }
}

/// Returns the socket of another process, if it listens at that address.
pub(crate) fn if_at(address: SocketAddr, socket: Option<OwnedFd>) -> Option<TcpListener> {
    let socket = TcpListener::from(socket?);
    let at = socket.local_addr().ok()?;
    // A port of 0 is any port.
    (at.ip() == address.ip() && (address.port() == 0 || at.port() == address.port())).then_some(socket)
}

/// Listener for hosts on the network, which an upgrade stops while another process may have its sockets.
#[derive(Clone, Debug)]
pub(crate) struct SharedListener {
    tcp: Tcp,
    directory: Arc<Directory>,
    state: Arc<Mutex<ListenerState>>,
}

#[derive(Debug, Default)]
struct ListenerState {
    listener: Option<Listener>,
    /// Sockets of a listener that was stopped.
    stopped: Vec<TcpListener>,
    /// Set when the daemon stops.
    is_closed: bool,
}

impl SharedListener {
    /// Lets hosts on the network connect, if an address is configured. `former` are the sockets of another process.
    pub(crate) fn start(
        tcp: &Tcp,
        directory: Arc<Directory>,
        former: Vec<TcpListener>,
    ) -> Result<Self, ApiError> {
        directory.set_discovery_keys(tls_keys(tcp.discovery_keys.as_deref())?);
        let listener = Self { tcp: tcp.clone(), directory, state: Arc::default() };
        listener.listen(former)?;
        Ok(listener)
    }

    fn listen(&self, former: Vec<TcpListener>) -> Result<(), ApiError> {
        let Tcp { listen, listen_tls, .. } = &self.tcp;
        if listen.is_empty() && listen_tls.is_empty() {
            return Ok(());
        }
        let listener = Listener::resume(former, listen, listen_tls, Arc::clone(&self.directory));
        let listener = listener.map_err(|error| {
            ApiError::new(Kind::InUse, error.to_string())
                .hint("tcp.listen and tcp.listen_tls in the configuration file name the addresses")
        })?;
        let addresses: Vec<String> = listener.addresses().iter().map(ToString::to_string).collect();
        tracing::info!("hosts may connect to {}", addresses.join(", "));
        self.state().listener = Some(listener);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, ListenerState> {
        // A panic ends the process, so the lock is never poisoned.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_there(&self) -> bool {
        self.state().listener.is_some()
    }

    /// Stops to accept hosts, and leaves the sockets open.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        if let Some(listener) = state.listener.take() {
            // Without copies the addresses are bound anew.
            state.stopped = listener.sockets().unwrap_or_default();
        }
    }

    /// Accepts hosts again after [`stop`](Self::stop).
    pub(crate) fn start_again(&self) {
        let mut state = self.state();
        let former = std::mem::take(&mut state.stopped);
        if state.is_closed || state.listener.is_some() {
            return;
        }
        drop(state);
        if let Err(problem) = self.listen(former) {
            tracing::error!("hosts are not let in any more: {}", problem.in_one_line());
        }
    }

    /// Closes the sockets.
    pub(crate) fn close(&self) {
        *self.state() = ListenerState { is_closed: true, ..ListenerState::default() };
    }

    /// Returns copies of the sockets.
    pub(crate) fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.state().stopped.iter().map(|socket| Ok(socket.try_clone()?.into())).collect()
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
