//! The side that is measured: one reactor with drives, wired as the daemon wires them, in this process.

use super::cell::Target;
use super::client::trouble;
use super::cores::{self, Cores};
use super::direct::Direct;
use super::program;
use super::scratch::Scratch;
use sluice_control::config::{Metrics, Settings};
use sluice_control::drives::{Engine, ReactorCounters, Remembered, Running};
use sluice_frontend_tcp::Listener;
use sluice_reactor::{Absence, Local, ReactorHandle};
use sluice_spec::error::ApiError;
use sluice_spec::paths::Places;
use sluice_spec::size::Size;
use sluice_spec::{Doorbells, DriveSpec, NamespaceSpec, NvmeTcpSpec, TargetKind, TcpSpec};
use sluice_wiring::{Wiring, start_functions_by};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of a drive to end.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Key of AES-256, for both halves; the data encrypted with it is worth nothing.
pub(super) const KEY: [u8; 64] = {
    let mut key = [0; 64];
    key[63] = 1;
    key
};

/// Key of the encrypted connections, whose data is worth nothing either.
const TLS_KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n";

/// Writes a file that no other user may read.
fn secret(path: &Path, bytes: impl AsRef<[u8]>) -> Result<PathBuf, ApiError> {
    std::fs::write(path, bytes)
        .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)))
        .map_err(|error| ApiError::io("write", path, &error))?;
    Ok(path.to_owned())
}

/// A reactor and its drives.
pub(super) struct Server {
    drives: Vec<Arc<dyn Running>>,
    /// Listener for hosts that connect over TCP.
    listener: Option<Listener>,
    wiring: Wiring,
    places: Places,
    /// File with a key, for functions that need one.
    key: PathBuf,
    /// Folder of all files, dropped last, when none of them is used any more.
    _scratch: Scratch,
}

impl Server {
    pub(super) fn start(cores: &Cores) -> Result<Self, ApiError> {
        Self::start_with(cores, Settings::default())
    }

    /// Starts a server that records when its reactor was kept from its processor.
    pub(super) fn start_watched(cores: &Cores) -> Result<Self, ApiError> {
        Self::start_with(cores, Settings { watch_turns: true, ..Settings::default() })
    }

    pub(super) fn start_with(cores: &Cores, settings: Settings) -> Result<Self, ApiError> {
        let scratch = Scratch::new()?;
        let folder = scratch.path();
        let places = Places {
            api: folder.join("api.sock"),
            sockets: folder.join("drives"),
            state: folder.join("state"),
        };
        let settings = Settings { cores: cores.reactor.into_iter().collect(), ..settings };
        start_functions_by(program::beside()?);
        let wiring = Wiring::start(&settings, places.clone())?;
        let key = secret(&folder.join("key"), KEY)?;
        Ok(Self { drives: Vec::new(), listener: None, wiring, places, key, _scratch: scratch })
    }

    /// Measures the commands of the drives that are opened later.
    pub(super) fn measured(mut self, metrics: &Metrics) -> Self {
        self.wiring = self.wiring.with_metrics(metrics);
        self
    }

    /// Opens another drive. Returns its socket.
    pub(super) fn open(&mut self, namespace: NamespaceSpec) -> Result<PathBuf, ApiError> {
        let spec = drive(format!("d{}", self.drives.len()), namespace);
        self.drives.push(self.wiring.open(&spec, 0, &Remembered::default())?);
        Ok(self.places.drive_socket(&spec.name))
    }

    /// Opens a drive for hosts that connect over TCP. Returns its address, its name, and the file of keys if
    /// there are some.
    pub(super) fn serve(
        &mut self,
        target: &Target,
        tls: bool,
    ) -> Result<(String, String, Option<PathBuf>), ApiError> {
        let mut spec = drive(format!("d{}", self.drives.len()), self.namespace(target)?);
        let tls_keys = tls.then(|| secret(&self.places.state.with_file_name("keys"), TLS_KEY)).transpose()?;
        spec.tcp = Some(TcpSpec { tls_keys: tls_keys.clone(), ..TcpSpec::default() });
        self.drives.push(self.wiring.open(&spec, 0, &Remembered::default())?);
        if self.listener.is_none() {
            let any = [SocketAddr::from(([127, 0, 0, 1], 0))];
            let started = Listener::start_with_tls(&any, &any, self.wiring.directory());
            self.listener = Some(started.map_err(|error| trouble(&error))?);
        }
        let address = self.listener.iter().flat_map(Listener::addresses).nth(usize::from(tls));
        let address = address.ok_or_else(|| ApiError::internal("nobody listens"))?;
        Ok((address.to_string(), spec.subnqn(), tls_keys))
    }

    /// Opens a drive of another server, to be driven on the reactor.
    pub(super) fn open_remote(&self, nvme_tcp: NvmeTcpSpec) -> Result<Direct, ApiError> {
        let null = Target::Null(Size(0)).namespace(&self.key);
        let namespace = null.map(|namespace| NamespaceSpec {
            target: TargetKind::NvmeTcp,
            size: None,
            nvme_tcp: Some(nvme_tcp),
            ..namespace
        });
        let namespace = namespace.ok_or_else(|| ApiError::internal("null has a namespace"))?;
        Direct::open(&drive("remote".to_owned(), namespace), self.reactor()?.clone())
    }

    /// Opens a target without a drive, to be driven on the reactor.
    pub(super) fn open_directly(&self, target: &Target) -> Result<Direct, ApiError> {
        Direct::open(&drive("direct".to_owned(), self.namespace(target)?), self.reactor()?.clone())
    }

    /// Opens `count` drives on a target. A file can be the target of one drive only.
    pub(super) fn open_all(&mut self, target: &Target, count: u32) -> Result<Vec<PathBuf>, ApiError> {
        if matches!(target, Target::File(_)) && count > 1 {
            return Err(ApiError::invalid(format!("{target} cannot be the target of {count} drives")));
        }
        let namespace = self.namespace(target)?;
        (0..count).map(|_| self.open(namespace.clone())).collect()
    }

    /// Ends all drives.
    pub(super) fn close_all(&mut self) -> Result<(), ApiError> {
        for drive in std::mem::take(&mut self.drives) {
            drive.drain()?;
            let deadline = Instant::now() + DRAIN_LIMIT;
            while !drive.status()?.drained && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            drive.close()?;
        }
        Ok(())
    }

    fn namespace(&self, target: &Target) -> Result<NamespaceSpec, ApiError> {
        let ours = target.namespace(&self.key);
        ours.ok_or_else(|| ApiError::internal("another daemon's drive is not ours to open"))
    }

    pub(super) fn reactor(&self) -> Result<&ReactorHandle, ApiError> {
        self.wiring.reactor(0).ok_or_else(|| ApiError::internal("there is no reactor"))
    }

    /// Runs `work` on the reactor's thread.
    pub(super) fn on_reactor<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Local) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.reactor()?.call(work).map_err(|error| trouble(&error))
    }

    /// Returns the processor time of the reactor, exact to the nanosecond, because its own thread reads it.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.on_reactor(|_| cores::thread_cpu_ns()).ok()
    }

    /// Returns the absences of the reactor from its processor since the last call, if it is watched.
    pub(super) fn take_absences(&self) -> Result<Vec<Absence>, ApiError> {
        self.on_reactor(Local::take_absences)
    }

    /// Returns the counters of the reactor since its start.
    pub(super) fn counters(&self) -> ReactorCounters {
        self.wiring.reactors().into_iter().next().unwrap_or_default()
    }
}

fn drive(name: String, namespace: NamespaceSpec) -> DriveSpec {
    DriveSpec {
        vfio_user: None,
        name,
        serial: None,
        host_timeout_s: None,
        absence: None,
        doorbells: Doorbells::Auto,
        reactor: None,
        classifier: None,
        tcp: None,
        pool: None,
        namespaces: vec![namespace],
    }
}
