//! Upgrade of the daemon: both ends of the conversation of two processes.

use crate::daemon::Prepared;
use crate::sockets::{Copies, InheritedSockets, Listening, SharedListener};
use sluice_command::record::{Reader, Writer};
use sluice_control::config::Config;
use sluice_control::drives::{Drives, HandedOver};
use sluice_control::listen::SocketFile;
use sluice_handover::{
    Channel, Limits, Parcel, Sink, Source, TakeOverError, UpgradeError, Version, locks, take_over, upgrade,
};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::{DriveSpec, SharedKind, SharedSpec};
use sluice_wiring::{reactor_of_record, tls_keys};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

/// Items besides the drives.
const LOCKS: &str = "the lock files";
const METRICS: &str = "the metrics socket";
const PAGE: &str = "the socket of the page";
const HOSTS: &str = "the sockets for hosts on the network";
const API: &str = "the API socket";

/// Bytes of a drive's specification.
const SPEC_MAX: usize = 4 << 20;

/// Begin of the name of a drive's item.
const DRIVE: &str = "drive ";

/// Option of `sluice serve` that a successor is started with.
pub(crate) const OPTION: &str = "--take-over";

/// Process that hands over.
pub(crate) struct Predecessor {
    /// Drives, which hold this in turn.
    pub(crate) drives: Weak<Drives>,
    pub(crate) config: Config,
    pub(crate) copies: Copies,
    pub(crate) hosts: SharedListener,
}

impl Predecessor {
    /// Replaces this process. Returns the identifier of the new one, to which everything belongs.
    pub(crate) fn upgrade(&self, binary: Option<PathBuf>) -> Result<u32, ApiError> {
        let own = || std::env::current_exe().map(|path| without_mark(&path));
        let binary = binary.map_or_else(own, Ok);
        let binary =
            binary.map_err(|error| ApiError::internal(format!("cannot find the binary: {error}")))?;
        check_binary(&binary)?;
        let mut arguments: Vec<_> = std::env::args_os().skip(1).filter(|it| it != OPTION).collect();
        arguments.push(OPTION.into());
        tracing::info!("upgrading to {}", binary.display());
        let stops = || ApiError::new(Kind::Unavailable, "the daemon is stopping");
        let drives = self.drives.upgrade().ok_or_else(stops)?;
        let mut source = Items { own: self, drives, suspended: BTreeMap::new(), until: None };
        let process = upgrade(&binary, &arguments, &mut source, Limits::default()).map_err(called_off)?;
        tracing::info!("process {process} has everything");
        Ok(process)
    }
}

/// Returns the path of a binary that was replaced since it was started.
fn without_mark(path: &Path) -> PathBuf {
    let text = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    text.map_or_else(|| path.to_owned(), PathBuf::from)
}

/// Checks that only root and the daemon's user can have made the binary. Callers of the API must not execute programs
/// of their own as the daemon's user.
fn check_binary(binary: &Path) -> Result<(), ApiError> {
    let cannot = |why: &str| ApiError::invalid(format!("{} is not started: {why}", binary.display()));
    if !binary.is_absolute() {
        return Err(cannot("its path is not absolute"));
    }
    let of_others = |path: &Path| {
        let Ok(found) = std::fs::metadata(path) else { return false };
        let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
        let is_sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        !is_ours || found.mode() & 0o022 != 0 && !is_sticky
    };
    match binary.ancestors().any(of_others) {
        true => {
            Err(cannot("others than root and the daemon's user can write to it, or to a folder of its path"))
        }
        false => Ok(()),
    }
}

fn called_off(error: UpgradeError) -> ApiError {
    tracing::warn!("the upgrade was called off: {error}");
    ApiError::conflict(error.to_string()).hint("nothing has changed: the daemon goes on as it was")
}

struct Items<'a> {
    own: &'a Predecessor,
    drives: Arc<Drives>,
    /// Time until which drives may be suspended, from the first one on.
    until: Option<Instant>,
    /// Drives that were suspended together with earlier ones.
    suspended: BTreeMap<String, (DriveSpec, HandedOver)>,
}

impl Items<'_> {
    /// Returns the descriptors of an item besides the drives.
    fn descriptors(&self, item: &str) -> Result<Vec<OwnedFd>, String> {
        if item == LOCKS {
            // Hosts that connect from now on wait in the kernel.
            self.own.hosts.stop();
            return locks::held().map_err(|error| error.to_string());
        }
        let copies = self.own.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = copies.as_ref().ok_or("the daemon is stopping")?.try_clone();
        let Listening { api, metrics, page } = copies.map_err(|error| error.to_string())?;
        match item {
            API => Ok(vec![api.into()]),
            PAGE => Ok(page.into_iter().map(|page| page.listener.into()).collect()),
            HOSTS => self.own.hosts.sockets().map_err(|error| error.to_string()),
            _ => Ok(metrics.into_iter().map(OwnedFd::from).collect()),
        }
    }
}

impl Source for Items<'_> {
    fn items(&mut self) -> Result<Vec<String>, String> {
        if let Some(pool) = self.own.config.shared.iter().find(|it| it.kind == SharedKind::MemoryPool) {
            return Err(format!(
                "the pool `{}` cannot be handed over: it is in the daemon's memory",
                pool.name
            ));
        }
        let drives = self.drives.to_hand_over().map_err(|problem| problem.in_one_line())?;
        let drives = drives.into_iter().map(|name| format!("{DRIVE}{name}"));
        let metrics = self.own.config.metrics.listen.map(|_| METRICS.to_owned());
        let page = self.own.config.page.listen.map(|_| PAGE.to_owned());
        let hosts = self.own.hosts.is_there().then(|| HOSTS.to_owned());
        let sockets = metrics.into_iter().chain(page).chain(hosts).chain([API.to_owned()]);
        Ok([LOCKS.to_owned()].into_iter().chain(drives).chain(sockets).collect())
    }

    fn suspend(&mut self, item: &str) -> Result<Parcel, String> {
        match item.strip_prefix(DRIVE) {
            Some(drive) => {
                if !self.suspended.contains_key(drive) {
                    let until = *self.until.get_or_insert_with(|| Instant::now() + Limits::default().all);
                    let together = self.drives.hand_over_together(drive, until);
                    self.suspended.extend(together.map_err(|problem| problem.in_one_line())?);
                }
                let (spec, handed) = self.suspended.remove(drive).ok_or("it is gone")?;
                let mut writer = Writer::new(0);
                writer.bytes(&serde_json::to_vec(&spec).map_err(|error| error.to_string())?);
                writer.raw(&handed.bytes);
                Ok(Parcel { bytes: writer.finish(), fds: handed.fds })
            }
            None if item == LOCKS => {
                let bytes = (places(&self.own.config)? + &shared(&self.drives)?).into_bytes();
                Ok(Parcel { bytes, fds: self.descriptors(item)? })
            }
            None => self.descriptors(item).map(|fds| Parcel { bytes: Vec::new(), fds }),
        }
    }

    fn go_on(&mut self) {
        self.drives.go_on();
        self.own.hosts.start_again();
    }
}

/// Returns the folders and the API socket of a daemon, in a form to compare.
fn places(config: &Config) -> Result<String, String> {
    let places = config.daemon.places().map_err(|problem| problem.in_one_line())?;
    Ok(format!("{}\n{}\n{}", places.api.display(), places.state.display(), places.sockets.display()))
}

/// Returns the line with the shared objects of a daemon, behind its places. A daemon without has no such line, as in
/// earlier versions.
fn shared(drives: &Drives) -> Result<String, String> {
    match drives.shared_specs() {
        specs if specs.is_empty() => Ok(String::new()),
        specs => {
            serde_json::to_string(&specs).map(|line| format!("\n{line}")).map_err(|error| error.to_string())
        }
    }
}

/// Reads the shared objects of another daemon, which may be of another version.
fn read_shared(line: &[u8]) -> Result<Vec<SharedSpec>, String> {
    if line.is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(line)
        .map_err(|error| format!("this version does not know a shared object: {error}"))
}

/// Process that takes over.
struct Successor<'a> {
    config: &'a Config,
    prepared: Option<Prepared>,
    inherited: InheritedSockets,
    hosts: Vec<OwnedFd>,
    sockets: Option<(Listening, SocketFile)>,
}

/// Sockets of another process.
pub(crate) struct Sockets {
    pub(crate) listening: Listening,
    pub(crate) file: SocketFile,
    /// Sockets to which hosts on the network connect.
    pub(crate) hosts: Vec<OwnedFd>,
}

/// Takes everything from the process that has started this one.
///
/// # Errors
/// The other process goes on. This one must end without a change of any file.
pub(crate) fn succeed(config: &Config) -> Result<(Prepared, Sockets), ApiError> {
    let channel = io::stdin().as_fd().try_clone_to_owned().and_then(Channel::inherited);
    let channel = channel.map_err(|error| {
        ApiError::invalid(format!("{OPTION} is for a process that a daemon starts: {error}"))
            .hint("use `sluice upgrade`")
    })?;
    let mut successor = Successor {
        config,
        prepared: None,
        inherited: InheritedSockets::default(),
        hosts: Vec::new(),
        sockets: None,
    };
    let taken = take_over(&channel, &mut successor, Version::CURRENT, Limits::default());
    taken.map_err(|error: TakeOverError| ApiError::conflict(format!("did not take over: {error}")))?;
    locks::drop_rest();
    let missing = || ApiError::internal("the other process has sent no state");
    let (listening, file) = successor.sockets.ok_or_else(missing)?;
    let sockets = Sockets { listening, file, hosts: successor.hosts };
    Ok((successor.prepared.ok_or_else(missing)?, sockets))
}

impl Successor<'_> {
    fn take_locks(&mut self, parcel: Parcel) -> Result<(), String> {
        let Parcel { bytes, fds } = parcel;
        let own = places(self.config)?;
        let others = bytes.strip_prefix(own.as_bytes());
        let others = others
            .filter(|others| others.is_empty() || others.starts_with(b"\n"))
            .ok_or("the configuration now names other folders, or another API socket: a restart is needed")?;
        fds.into_iter().try_for_each(locks::put).map_err(|error| error.to_string())?;
        // Thin pools are opened with their drives, which are at rest then.
        let prepared = Prepared::new(self.config).map_err(|problem| problem.in_one_line())?;
        if prepared.drives.shared_specs() != read_shared(others)? {
            return Err("the configuration now has other shared objects: a restart is needed".to_owned());
        }
        self.prepared = Some(prepared);
        Ok(())
    }

    fn take_drive(&mut self, name: &str, parcel: Parcel) -> Result<(), String> {
        let prepared = self.prepared.as_mut().ok_or("it came before the locks")?;
        let Parcel { bytes, fds } = parcel;
        let mut reader = Reader::new(&bytes, 0);
        let spec = reader.bytes(SPEC_MAX).map_err(|error| error.to_string())?;
        let spec: DriveSpec = serde_json::from_slice(spec)
            .map_err(|error| format!("this version cannot have the drive as it is: {error}"))?;
        let bytes = reader.rest().to_vec();
        let reactor = reactor_of_record(&bytes).map_err(|error| error.to_string())?;
        let mut inbox = prepared.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.insert(name.to_owned(), HandedOver { bytes, fds, is_left: false });
        drop(inbox);
        let taken = prepared.drives.take_over(&mut prepared.specs, &spec, reactor);
        taken.map_err(|problem| problem.in_one_line())
    }

    /// Continues with the socket of the API, and with those at addresses that have come before.
    fn take_sockets(&mut self, api: Option<OwnedFd>) -> Result<(), String> {
        // Later, an error would be an outage.
        let discovery = tls_keys(self.config.tcp.discovery_keys.as_deref());
        discovery.map_err(|problem| problem.in_one_line())?;
        let prepared = self.prepared.as_ref().ok_or("it came before the locks")?;
        let api = api.ok_or("it has no descriptor")?;
        let sockets =
            Listening::resume(self.config, api, std::mem::take(&mut self.inherited), &prepared.places);
        self.sockets = Some(sockets.map_err(|problem| problem.in_one_line())?);
        Ok(())
    }
}

impl Sink for Successor<'_> {
    fn prepare(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn take(&mut self, item: &str, mut parcel: Parcel) -> Result<(), String> {
        match item.strip_prefix(DRIVE) {
            Some(drive) => self.take_drive(drive, parcel),
            None if item == LOCKS => self.take_locks(parcel),
            None if item == METRICS => {
                self.inherited.metrics = parcel.fds.pop();
                Ok(())
            }
            None if item == PAGE => {
                self.inherited.page = parcel.fds.pop();
                Ok(())
            }
            None if item == HOSTS => {
                self.hosts = parcel.fds;
                Ok(())
            }
            None if item == API => self.take_sockets(parcel.fds.pop()),
            None => Err("it is not known here".to_owned()),
        }
    }
}
