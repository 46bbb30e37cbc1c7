//! A drive on its way to its reactor, with the resources whose opening may block.

use super::classifier::BackgroundChannels;
use super::drive::in_words;
use super::held_records::HeldRecords;
use super::latency::LatencyWriter;
use super::namespace::PreparedNamespace;
use sluice_control::drives::PersistRequest;
use sluice_controller::{
    AnaRule, Config as ControllerConfig, FormatRecord, FormatState, Identity, PersistentEventRecord,
    PersistentRecord, Pool, PowerCounts, SanitizeRecord, Subsystem, SubsystemRecord,
};
use sluice_frontend::Drive;
use sluice_frontend_tcp as tcp;
use sluice_frontend_vfio_user::{
    Access, Config as SocketConfig, DoorbellPolicy, IncomingSocket, Listener, Socket,
};
use sluice_memory::machine;
use sluice_reactor::{Arm, Io, Local, Task, TaskId};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::paths::socket_folder;
use sluice_spec::{Doorbells, DriveSpec};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

/// Model in Identify Controller's MN, which guests see.
const MODEL: &str = "Sluice Virtual NVMe Drive";

/// Opened resources of a drive, on their way to its reactor.
pub(super) struct PreparedDrive {
    pub(super) name: String,
    pub(super) generation: u64,
    pub(super) identity: Identity,
    pub(super) power_id: [u8; 16],
    pub(super) namespaces: Vec<PreparedNamespace>,
    pub(super) pool: Option<Pool>,
    pub(super) unfinished: Unfinished,
    pub(super) ana: Vec<AnaRule>,
    /// Whether all sockets are paths of one virtual machine.
    pub(super) one_guest: bool,
    pub(super) host_timeout: Duration,
    pub(super) sockets: Vec<(PreparedSocket, SocketConfig)>,
    /// Record of the subsystem, if another process hands the drive over.
    pub(super) subsystem: Option<Vec<u8>>,
    /// Whether that process has died, and the drive may have grown since.
    pub(super) may_have_grown: bool,
    pub(super) sink: Option<HeldRecords>,
    /// Configuration for hosts on the network, and the hosts of another process.
    pub(super) hosts: Option<(tcp::Config, Option<(tcp::IncomingHosts, tcp::Keys)>)>,
    pub(super) channels: BackgroundChannels,
    pub(super) latency: LatencyWriter,
    pub(super) transitions: Arc<AtomicU64>,
}

/// Socket that is opened, or that another process hands over.
pub(super) enum PreparedSocket {
    New(Listener),
    Incoming(Box<IncomingSocket>),
}

/// State that the previous daemon has left, including unfinished operations.
pub(super) struct Unfinished {
    pub(super) formatting: Option<(u32, u32)>,
    /// Erasures that the operator has paused: the NSID and the name of each job.
    pub(super) paused: Vec<(u32, String)>,
    pub(super) sanitized: Option<SanitizeRecord>,
    pub(super) history: PersistentEventRecord,
    /// Ranges of bytes that a host marked by Write Uncorrectable, by NSID.
    pub(super) uncorrectable: Vec<(u32, Vec<[u64; 2]>)>,
    /// Counts with which the SMART log begins, and whether the previous daemon was cut off.
    pub(super) power: (PowerCounts, bool),
    /// NSIDs with losses not reported to hosts yet, and a bit for each controller whose host has ended since.
    pub(super) losses: (Vec<u32>, u32),
}

impl PreparedDrive {
    /// Builds the drive on the thread of its reactor.
    pub(super) fn install(self, local: &mut Local) -> Result<TaskId, ApiError> {
        let mut failed = None;
        let task = local.add(|task, io| or_failed(self.build(task, io), &mut failed));
        match failed {
            None => Ok(task),
            Some(problem) => {
                drop(local.remove(task));
                Err(problem)
            }
        }
    }

    fn build(self, task: TaskId, io: Io) -> Result<Drive, ApiError> {
        let build = |prepared: PreparedNamespace| prepared.build(task, &io, self.channels.clone());
        let namespaces = self.namespaces.into_iter().map(build).collect::<Result<_, _>>()?;
        let no_memory = |error: io::Error| {
            ApiError::internal(format!("there is no memory for a controller: {error}")).limited_by(&error)
        };
        let config = ControllerConfig { identity: self.identity, namespaces };
        let mut subsystem = Subsystem::new(config).map_err(no_memory)?;
        self.latency.install(&mut subsystem);
        subsystem.set_power_id(self.power_id);
        self.pool.into_iter().for_each(|pool| subsystem.set_pool(pool));
        let BackgroundChannels { persist_requests, .. } = self.channels;
        // The thread that stores records runs for as long as there are drives. Without it the host waits, and
        // receives no wrong answer.
        let (drive, generation) = (self.name, self.generation);
        let keep = move |what| {
            drop(persist_requests.send(PersistRequest { drive: drive.clone(), generation, what }))
        };
        if let Some((nsid, block_size)) = self.unfinished.formatting
            && !subsystem.resume_format(nsid, block_size, 0)
        {
            keep(PersistentRecord::Format(FormatRecord { nsid, block_size, state: FormatState::Failed }));
        }
        for (nsid, ranges) in &self.unfinished.uncorrectable {
            subsystem.resume_uncorrectable(*nsid, ranges);
        }
        if let Some(record) = self.unfinished.sanitized {
            subsystem.resume_sanitize(record, 0);
        }
        for (nsid, name) in &self.unfinished.paused {
            subsystem.pause_background_job(*nsid, name);
        }
        let (lost, ended) = &self.unfinished.losses;
        subsystem.resume_losses(lost, *ended);
        subsystem.resume_persistent_events(&self.unfinished.history, now_ms);
        let (counts, was_cut) = self.unfinished.power;
        subsystem.resume_power(counts, was_cut);
        subsystem.on_persist(keep);
        subsystem.set_ana(self.ana);
        subsystem.set_one_guest(self.one_guest);
        subsystem.set_host_timeout(self.host_timeout);
        let now_ns = sluice_reactor::now_ns();
        if let Some(record) = self.subsystem {
            let record = SubsystemRecord::decode(&record, now_ns).map_err(|error| in_words(&error))?;
            subsystem.take_over(record, self.may_have_grown, now_ns).map_err(|error| in_words(&error))?;
        }
        let mut drive = Drive::new(task, io, subsystem);
        drive.count_transitions(self.transitions);
        for (socket, config) in self.sockets {
            match socket {
                PreparedSocket::New(listener) => {
                    Socket::listen(&mut drive, listener, config).map_err(no_memory)?;
                }
                PreparedSocket::Incoming(socket) => {
                    let taken = Socket::take_over(&mut drive, *socket, config, now_ns);
                    taken.map_err(|error| in_words(&error))?;
                }
            }
        }
        if let Some((config, incoming)) = self.hosts {
            match incoming {
                None => tcp::Hosts::admit(&mut drive, config).map_err(no_memory)?,
                Some((hosts, keys)) => tcp::Hosts::take_over(&mut drive, config, &hosts, &keys, now_ns)
                    .map_err(|error| in_words(&error))?,
            }
        }
        if let Some(sink) = self.sink {
            Socket::keep(&mut drive, now_ns);
            drive.keep(Box::new(sink), now_ns);
        }
        Ok(drive)
    }
}

/// Returns milliseconds since 1970-01-01, for reports about the past.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Opens the sockets of a drive: the first in the drive's folder, the others in numbered folders inside of
/// it.
pub(super) fn sockets(
    spec: &DriveSpec,
    folder: &Path,
    access: Access,
) -> Result<Vec<(PreparedSocket, SocketConfig)>, ApiError> {
    let open = |number: usize| {
        let folder = socket_folder(folder, number);
        let listener = listen(&spec.name, &folder, access)?;
        Ok((PreparedSocket::New(listener), socket_config(spec)))
    };
    (1..=spec.sockets()).map(open).collect()
}

/// Returns the sockets that another process hands over.
pub(super) fn incoming(
    spec: &DriveSpec,
    sockets: Vec<IncomingSocket>,
) -> Result<Vec<(PreparedSocket, SocketConfig)>, ApiError> {
    if sockets.len() != spec.sockets() {
        return Err(ApiError::conflict("the drive has another number of sockets"));
    }
    let prepare = |socket| (PreparedSocket::Incoming(Box::new(socket)), socket_config(spec));
    Ok(sockets.into_iter().map(prepare).collect())
}

fn socket_config(spec: &DriveSpec) -> SocketConfig {
    let doorbells = doorbell_policy(spec.doorbells);
    let by_pin = spec.vfio_user.as_ref().is_some_and(|sockets| !sockets.msix);
    let memory_max = spec.vfio_user.and_then(|it| it.memory_max).map(|size| size.0).or_else(machine::memory);
    let name = spec.name.clone();
    let populate = spec.vfio_user.is_some_and(|it| it.populate);
    SocketConfig { name, doorbells, by_pin, memory_max, populate, ..SocketConfig::default() }
}

/// Returns the configuration for hosts on the network, whose controllers come after those of the sockets.
pub(super) fn hosts(spec: &DriveSpec) -> Option<tcp::Config> {
    let tcp = spec.tcp.as_ref()?;
    let cntlid = spec.sockets() as u16 + 1;
    let (name, hosts_max, queues_max) = (spec.name.clone(), tcp.max_hosts, tcp.max_queues);
    Some(tcp::Config { name, cntlid, hosts_max, queues_max })
}

/// Returns the task that was built, or a placeholder for it; then `failed` is set.
pub(super) fn or_failed(built: Result<impl Task, ApiError>, failed: &mut Option<ApiError>) -> Box<dyn Task> {
    match built {
        Ok(task) => Box::new(task),
        Err(problem) => {
            *failed = Some(problem);
            Box::new(FailedTask)
        }
    }
}

/// Placeholder for a task that could not be built, removed at once.
struct FailedTask;

impl Task for FailedTask {
    fn turn(&mut self, _now_ns: u64) -> usize {
        0
    }

    fn event(&mut self, _token: u64, _result: i32, _more: bool, _now_ns: u64) {}

    fn arm(&mut self, _now_ns: u64) -> Arm {
        Arm::Asleep { until: None }
    }
}

/// Listens in the drive's folder, and opens the folder to users that may connect.
fn listen(name: &str, folder: &Path, access: Access) -> Result<Listener, ApiError> {
    let listener = Listener::bind_for(folder, access).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AddrInUse => Kind::InUse,
            _ => Kind::Internal,
        };
        ApiError::new(kind, format!("drive `{name}` cannot listen: {error}")).limited_by(&error)
    })?;
    let opened = match (access.mode & 0o077, access.group) {
        (0, _) => Ok(()),
        // Other users need not see a folder for the group.
        (to, Some(_)) if to & 0o007 == 0 => {
            let given = access.give(folder);
            given.and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(0o750)))
        }
        _ => std::fs::set_permissions(folder, Permissions::from_mode(0o755)),
    };
    opened.map_err(|error| ApiError::io("open to others", folder, &error))?;
    Ok(listener)
}

pub(super) fn identity(spec: &DriveSpec) -> Identity {
    Identity {
        subnqn: spec.subnqn(),
        serial: spec.serial(),
        model: MODEL.to_owned(),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn doorbell_policy(doorbells: Doorbells) -> DoorbellPolicy {
    match doorbells {
        Doorbells::Auto => DoorbellPolicy::Auto,
        Doorbells::Trapped => DoorbellPolicy::Trapped,
        Doorbells::Mapped => DoorbellPolicy::Mapped,
    }
}
