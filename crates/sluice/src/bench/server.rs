//! The side that is measured: one reactor with drives, wired as the daemon wires them, in this process.

use super::cell::Target;
use super::cores::{self, Cores};
use super::direct::Direct;
use super::scratch::Scratch;
use crate::config::Settings;
use crate::drives::{Engine, ReactorCounters, Running};
use crate::paths::Places;
use crate::problem::Problem;
use crate::spec::{Doorbells, DriveSpec, NamespaceSpec};
use crate::wiring::Wiring;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a drive may take to end.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// One reactor and its drives.
pub(super) struct Server {
    drives: Vec<Arc<dyn Running>>,
    wiring: Wiring,
    places: Places,
    /// Gone last, when nothing in it is used any more.
    _scratch: Scratch,
}

impl Server {
    pub(super) fn start(cores: &Cores) -> Result<Self, Problem> {
        let scratch = Scratch::new()?;
        let folder = scratch.path();
        let places = Places {
            api: folder.join("api.sock"),
            sockets: folder.join("drives"),
            state: folder.join("state"),
        };
        let settings = Settings { cores: cores.reactor.into_iter().collect(), ..Settings::default() };
        let wiring = Wiring::start(&settings, places.clone())?;
        Ok(Self { drives: Vec::new(), wiring, places, _scratch: scratch })
    }

    /// Opens another drive; where to connect to it.
    pub(super) fn open(&mut self, namespace: NamespaceSpec) -> Result<PathBuf, Problem> {
        let spec = drive(format!("d{}", self.drives.len()), namespace);
        self.drives.push(self.wiring.open(&spec, 0, &[])?);
        Ok(self.places.drive_socket(&spec.name))
    }

    /// Opens a target without a drive, to be driven on the reactor.
    pub(super) fn open_directly(&self, target: &Target) -> Result<Direct, Problem> {
        let reactor = self.wiring.reactor(0).ok_or_else(|| Problem::internal("there is no reactor"))?;
        Direct::open(&drive("direct".to_owned(), namespace(target)?), reactor.clone())
    }

    /// Opens so many drives on a target. A file is for one only.
    pub(super) fn open_all(&mut self, target: &Target, count: u32) -> Result<Vec<PathBuf>, Problem> {
        if matches!(target, Target::File(_)) && count > 1 {
            return Err(Problem::invalid(format!("{target} cannot be the target of {count} drives")));
        }
        let namespace = namespace(target)?;
        (0..count).map(|_| self.open(namespace.clone())).collect()
    }

    /// Ends all drives.
    pub(super) fn close_all(&mut self) -> Result<(), Problem> {
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

    /// Processor time of the reactor, in nanoseconds, to the nanosecond: it looks itself.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.wiring.reactor(0)?.call(|_| cores::thread_cpu_ns()).ok()
    }

    /// What the reactor has counted since it started.
    pub(super) fn counters(&self) -> ReactorCounters {
        self.wiring.reactors().into_iter().next().unwrap_or_default()
    }
}

fn namespace(target: &Target) -> Result<NamespaceSpec, Problem> {
    target.namespace().ok_or_else(|| Problem::internal("another daemon's drive is not ours to open"))
}

fn drive(name: String, namespace: NamespaceSpec) -> DriveSpec {
    DriveSpec {
        name,
        serial: None,
        doorbells: Doorbells::Auto,
        reactor: None,
        classifier: None,
        namespaces: vec![namespace],
    }
}
