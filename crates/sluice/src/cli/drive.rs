//! `sluice drive`.

use super::ana::Ana;
use super::attach::{ABORTS_UP_TO, Attachment, Monitor, device_id, hot_plugged};
use super::copies::copies;
use super::limit::DriveLimit;
use super::{absolute, chunk_map, converse, latency, spec_file};
use crate::qmp::Monitor as Qmp;
use clap::{Args, Subcommand};
use sluice_api::client::{Client, segment};
use sluice_api::{DriveList, DriveMoveRequest, ResizeRequest};
use sluice_control::drives::{DriveState, DriveView, NamespaceView};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::size::Size;
use sluice_spec::table::{Table, pairs};
use sluice_spec::{
    Doorbells, DriveSpec, FunctionSpec, HostSpec, ImageFormat, NamespaceSpec, OnFull, TargetKind,
};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum DriveCommand {
    /// Create a drive, at once; it stays after a restart of the daemon
    Create(Create),
    /// List all drives
    List,
    /// Show one drive
    Show {
        name: String,
        /// Show the tables of its `map` functions instead: the place of each part of the drive
        #[arg(long)]
        map: bool,
    },
    /// Show how long the commands of drives take, since each was opened
    Latency {
        /// Name of the drive; all drives without it
        name: Option<String>,
    },
    /// Resize a namespace and notify the guest
    Resize(Resize),
    /// Show the limits of a drive, or set those of a namespace, under load
    Limit(DriveLimit),
    /// Show or set which ways to a drive hosts should take (Asymmetric Namespace Access)
    Ana(Ana),
    /// Delete a drive; its files stay
    Delete {
        name: String,
        /// Delete it also while a virtual machine uses it, which will not survive it
        #[arg(long)]
        force: bool,
    },
    /// Delete a namespace that a host has created, with its data
    DeleteNamespace {
        name: String,
        #[arg(long)]
        nsid: u32,
        /// Delete it also while a client is connected, which may use it
        #[arg(long)]
        force: bool,
    },
    /// Move a drive to another reactor, under load
    Move {
        name: String,
        /// Number of the reactor, counted from 0, see `sluice reactor list`
        #[arg(long)]
        reactor: usize,
        /// Move only this completion queue of its virtual machine, with its submission queues
        #[arg(long, value_name = "ID")]
        queue: Option<u16>,
    },
    /// Open a drive that could not be opened when the daemon started
    Open {
        name: String,
        /// Create files again, empty, that the drive had open before and that do not exist any more
        #[arg(long)]
        make_anew: bool,
        /// Take over files that were served before, although the state folder with their reservations is gone
        #[arg(long)]
        adopt: bool,
    },
    /// Print the arguments with which a virtual machine monitor attaches a drive
    Attach {
        name: String,
        /// Number of the drive's socket, counted from 1
        #[arg(long, default_value_t = 1, value_name = "NUMBER")]
        socket: usize,
        /// Monitor to print the arguments for
        #[arg(long, value_enum, default_value_t, value_name = "MONITOR")]
        print: Monitor,
        /// Socket of the monitor (QMP) of a running QEMU, into which the drive is plugged; nothing is printed then
        #[arg(long, value_name = "SOCKET", conflicts_with = "print")]
        qmp: Option<PathBuf>,
        /// Port or bus of the machine for the drive, such as a `pcie-root-port`
        #[arg(long, value_name = "ID", requires = "qmp")]
        bus: Option<String>,
    },
    /// Unplug a drive from a running QEMU, and wait until the guest has released it
    Detach {
        name: String,
        /// Number of the drive's socket, counted from 1
        #[arg(long, default_value_t = 1, value_name = "NUMBER")]
        socket: usize,
        /// Socket of the monitor (QMP)
        #[arg(long, value_name = "SOCKET")]
        qmp: PathBuf,
    },
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["memory", "file", "null", "spec"]))]
pub(super) struct Create {
    name: String,
    /// Size of a drive in the daemon's memory; its data is lost when the daemon stops
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Path of a file or a block device for the data
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Size of a drive without data: reads and writes succeed and do not move any
    #[arg(long, value_name = "SIZE")]
    null: Option<Size>,
    /// Description of the drive: the JSON body of POST /v1/drives, or the keys of a [[drive]] in TOML; `-` is
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "block_size", "on_full", "format", "serial", "doorbells", "reactor"])]
    spec: Option<PathBuf>,
    /// Size of a file, which is created if it does not exist
    #[arg(long, requires = "file")]
    size: Option<Size>,
    /// Bytes of a logical block: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    block_size: u32,
    /// Result of a write when the file system is full
    #[arg(long, requires = "file", value_enum)]
    on_full: Option<OnFull>,
    /// `raw` if a file is to be served as it is, although it begins like an image of another format
    #[arg(long, requires = "file", value_enum)]
    format: Option<ImageFormat>,
    /// Serial number; derived from the name if not given
    #[arg(long)]
    serial: Option<String>,
    /// Way in which doorbells reach the daemon
    #[arg(long, value_enum, default_value_t)]
    doorbells: Doorbells,
    /// Number of the reactor that serves it, counted from 0
    #[arg(long)]
    reactor: Option<usize>,
    /// Seconds after which hosts give up a command, 30 if not given; 0 for never
    #[arg(long, value_name = "SECONDS")]
    host_timeout: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct Resize {
    name: String,
    /// Number of the namespace
    #[arg(long, default_value_t = 1)]
    nsid: u32,
    #[arg(long)]
    size: Size,
    /// Allow a smaller size; the data behind it is lost
    #[arg(long)]
    shrink: bool,
}

pub(super) fn run(command: DriveCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        DriveCommand::Create(create) => {
            let spec = create.spec()?;
            output.answer(&converse(client.post::<DriveView>("/v1/drives", &spec))?, show)
        }
        DriveCommand::List => output.answer(&converse(client.get::<DriveList>("/v1/drives"))?, list),
        DriveCommand::Show { name, map: true } => {
            output.answer(&chunk_map::stretches(&fetch(client, &name)?), chunk_map::text)
        }
        DriveCommand::Show { name, map: false } => {
            output.answer(&fetch(client, &name)?, |drive| show(drive) + &copies(drive, client))
        }
        DriveCommand::Latency { name } => latency::run(name.as_deref(), client, output),
        DriveCommand::Resize(resize) => {
            let request = ResizeRequest { nsid: resize.nsid, size: resize.size, shrink: resize.shrink };
            let view =
                converse(client.post::<DriveView>(&format!("{}/resize", path(&resize.name)), &request))?;
            output.answer(&view, show)
        }
        DriveCommand::Limit(limit) => limit.run(client, output),
        DriveCommand::Ana(ana) => ana.run(client, output),
        DriveCommand::Delete { name, force } => {
            converse(client.delete(&format!("{}?force={force}", path(&name))))?;
            output.answer(&serde_json::json!({ "deleted": name }), |_| format!("drive {name} deleted\n"))
        }
        DriveCommand::DeleteNamespace { name, nsid, force } => {
            converse(client.delete(&format!("{}/namespaces/{nsid}?force={force}", path(&name))))?;
            let words = format!("namespace {nsid} of drive {name} deleted\n");
            output.answer(&serde_json::json!({ "deleted": name, "nsid": nsid }), |_| words.clone())
        }
        DriveCommand::Open { name, make_anew, adopt } => {
            let route = format!("{}/open?make_anew={make_anew}&adopt={adopt}", path(&name));
            output.answer(&converse(client.post::<DriveView>(&route, &()))?, show)
        }
        DriveCommand::Move { name, reactor, queue } => {
            let request = DriveMoveRequest { reactor, queue };
            let view = converse(client.post::<DriveView>(&format!("{}/move", path(&name)), &request))?;
            output.answer(&view, show)
        }
        DriveCommand::Attach { name, socket, print, qmp: None, .. } => {
            let view = fetch(client, &name)?;
            let socket = check_attachable(&view, socket)?;
            output.answer(&Attachment::new(print, socket), Attachment::text)
        }
        DriveCommand::Attach { name, socket: number, qmp: Some(qmp), bus, .. } => {
            let view = fetch(client, &name)?;
            let socket = absolute(Path::new(check_attachable(&view, number)?))?;
            let id = device_id(&name, number);
            Qmp::connect(&qmp)?.add_device(&hot_plugged(&id, &socket, bus.as_deref())?)?;
            output.answer(&serde_json::json!({ "device": id }), |_| {
                format!("drive {name} is plugged in as {id}\n")
            })
        }
        DriveCommand::Detach { name, socket, qmp } => {
            let view = fetch(client, &name)?;
            let mut monitor = Qmp::connect(&qmp)?;
            if view.msix && monitor.version <= ABORTS_UP_TO {
                return Err(ApiError::conflict(format!(
                    "QEMU {}.{} aborts when a vfio-user device with MSI-X goes, and the machine with it",
                    monitor.version.0, monitor.version.1
                ))
                .hint("declare the drive with `msix = false` in its [drive.vfio_user] before the machine starts"));
            }
            let id = device_id(&name, socket);
            monitor.remove_device(&id)?;
            output.answer(&serde_json::json!({ "device": id }), |_| format!("drive {name} is unplugged\n"))
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/drives/{}", segment(name))
}

fn fetch(client: &Client, name: &str) -> Result<DriveView, ApiError> {
    converse(client.get(&path(name)))
}

/// Returns the socket of this number, if the drive can be attached by it.
///
/// # Errors
/// If the drive has no such socket, or is not open.
fn check_attachable(view: &DriveView, number: usize) -> Result<&str, ApiError> {
    let name = &view.name;
    let sockets: Vec<&String> = view.socket.iter().chain(&view.more_sockets).collect();
    let Some(socket) = number.checked_sub(1).and_then(|index| sockets.get(index)) else {
        if !sockets.is_empty() {
            let count = sockets.len();
            return Err(ApiError::invalid(format!(
                "drive `{name}` has no socket {number}, but {count} of them"
            ))
            .hint("each is for one virtual machine: say more as `sockets` of its [drive.vfio_user]"));
        }
        let hint = format!("connect a host: nvme connect -t tcp -a ADDRESS -s 4420 -n {}", view.subnqn);
        return Err(ApiError::conflict(format!("drive `{name}` is for hosts on the network")).hint(hint));
    };
    match view.state {
        DriveState::Failed => Err(ApiError::conflict(format!("drive `{name}` is not open"))
            .hint(format!("`sluice drive show {name}` says why; `sluice drive open {name}` tries again"))),
        DriveState::Connected if view.clients > 0 => {
            let (clients, count) = (view.clients, sockets.len());
            eprintln!(
                "note: {clients} of the {count} sockets of drive `{name}` have a client; a second one at a socket \
                 is refused (EBUSY) while the first is there"
            );
            Ok(socket)
        }
        DriveState::Connected | DriveState::Ready => Ok(socket),
    }
}

impl Create {
    fn spec(self) -> Result<DriveSpec, ApiError> {
        if let Some(file) = &self.spec {
            return read_spec(file, self.name);
        }
        Ok(DriveSpec {
            namespaces: vec![self.namespace()?],
            name: self.name,
            serial: self.serial,
            doorbells: self.doorbells,
            reactor: self.reactor,
            host_timeout_s: self.host_timeout,
            absence: None,
            classifier: None,
            vfio_user: None,
            tcp: None,
            pool: None,
        })
    }

    fn namespace(&self) -> Result<NamespaceSpec, ApiError> {
        let (target, size) = match (self.memory, self.null) {
            (Some(size), _) => (TargetKind::Memory, Some(size)),
            (_, Some(size)) => (TargetKind::Null, Some(size)),
            _ => (TargetKind::File, self.size),
        };
        Ok(NamespaceSpec {
            target,
            size,
            path: self.file.as_deref().map(absolute).transpose()?,
            on_full: self.on_full,
            format: self.format,
            lease: None,
            read_only: false,
            nvme: None,
            nvme_tcp: None,
            shared: None,
            volume: None,
            block_size: self.block_size,
            ana_group: None,
            functions: Vec::new(),
            paths: Vec::new(),
        })
    }
}

/// Reads the description of a drive from a file. The name on the command line replaces a name in the file.
fn read_spec(file: &Path, name: String) -> Result<DriveSpec, ApiError> {
    let mut keys = spec_file::read(file)?;
    keys.insert("name".to_owned(), name.into());
    spec_file::understand(file, keys)
}

fn list(list: &DriveList) -> String {
    let mut table = Table::new(&["NAME", "STATE", "ORIGIN", "NAMESPACES", "SIZE", "REACTOR", "SOCKET"]);
    for drive in &list.drives {
        table.row(vec![
            drive.name.clone(),
            state_of(drive),
            drive.origin.as_str().to_owned(),
            drive.namespaces.len().to_string(),
            drive.namespaces.iter().map(size_of).collect::<Vec<_>>().join("+"),
            drive.reactor.to_string(),
            way_in(drive),
        ]);
    }
    table.text()
}

/// Returns the state of a drive, with the number of clients and hosts if there are several.
fn state_of(drive: &DriveView) -> String {
    match drive.clients + drive.hosts.len() {
        0 | 1 => drive.state.as_str().to_owned(),
        count => format!("{}: {count}", drive.state.as_str()),
    }
}

/// Returns the sockets of a drive, and the hosts that may connect to it.
fn way_in(drive: &DriveView) -> String {
    let over_tcp = drive.tcp.as_ref().map(|tcp| match (tcp.hosts.is_empty(), &tcp.tls_keys) {
        (true, None) => "NVMe/TCP, those on this machine".to_owned(),
        (true, Some(_)) => "NVMe/TCP, those with a key".to_owned(),
        (false, _) => {
            let names: Vec<&str> = tcp.hosts.iter().map(HostSpec::nqn).collect();
            format!("NVMe/TCP, {}", names.join(", "))
        }
    });
    let sockets = drive.socket.iter().chain(&drive.more_sockets).cloned();
    sockets.chain(over_tcp).collect::<Vec<_>>().join("; ")
}

fn size_of(namespace: &NamespaceView) -> String {
    namespace.size.map_or_else(|| "?".to_owned(), |size| size.to_string())
}

/// Returns the drive's reactor, and the reactors of queues that were moved to others.
fn reactors(drive: &DriveView) -> String {
    let away = drive.remote_queues.iter().map(|it| format!(", queue {} on {}", it.queue, it.reactor));
    drive.reactor.to_string() + &away.collect::<String>()
}

fn show(drive: &DriveView) -> String {
    let counters = &drive.counters;
    let mut text = pairs(&[
        ("name", drive.name.clone()),
        ("state", drive.state.as_str().to_owned()),
        ("origin", drive.origin.as_str().to_owned()),
        ("serial", drive.serial.clone()),
        ("subnqn", drive.subnqn.clone()),
        (if drive.socket.is_none() { "hosts" } else { "socket" }, way_in(drive)),
        ("reactor", reactors(drive)),
        ("doorbells", drive.doorbells.as_str().to_owned()),
        ("in flight", drive.in_flight.to_string()),
        ("commands", format!("{} ({} failed)", counters.commands, counters.errors)),
        ("read", format!("{} bytes", counters.bytes_read)),
        ("written", format!("{} bytes", counters.bytes_written)),
    ]);
    if drive.socket.is_some() {
        text += if drive.migratable { "migratable: yes\n" } else { "migratable: no\n" };
    }
    if drive.clients > 0 {
        text += &format!("connected: {} over vfio-user\n", drive.clients);
    }
    for (index, host) in drive.hosts.iter().enumerate() {
        let proof = if drive.authenticated.contains(host) { ", authenticated" } else { "" };
        let cipher = drive.ciphers.get(index).map_or(String::new(), |cipher| format!(" ({cipher})"));
        let host = if host.is_empty() { "a host without a name" } else { host };
        text += &format!("connected: {host}{cipher}{proof}\n");
    }
    if !drive.queue_recalls.is_empty() {
        let recalls = drive.queue_recalls.iter().map(|recall| format!("{} {}", recall.cause, recall.times));
        text += &format!("queues recalled: {}\n", recalls.collect::<Vec<_>>().join(", "));
    }
    if let Some(classifier) = &drive.classifier {
        text += &format!("classifier: {} (see `sluice classifier show`)\n", classifier.object.display());
    }
    if let Some(problem) = &drive.problem {
        text += &format!("problem:   {}\n", problem.to_string().replace('\n', "\n           "));
    }
    text + "\n" + &namespaces(drive)
}

fn namespaces(drive: &DriveView) -> String {
    let mut table = Table::new(&["NSID", "SIZE", "BLOCK", "TARGET", "PATH", "FUNCTIONS"]);
    for namespace in &drive.namespaces {
        let functions: Vec<String> = namespace.functions.iter().map(FunctionSpec::name).collect();
        table.row(vec![
            namespace.nsid.to_string(),
            size_of(namespace),
            namespace.block_size.to_string(),
            namespace.target.as_str().to_owned(),
            namespace.path.clone().unwrap_or_else(|| {
                if namespace.by_host { "made by a host".to_owned() } else { "-".to_owned() }
            }),
            if functions.is_empty() { "-".to_owned() } else { functions.join(", ") },
        ]);
    }
    table.text() + &paths(drive) + &devices(drive)
}

/// Returns a table of the NVMe devices behind the drive, with their states.
fn devices(drive: &DriveView) -> String {
    if drive.devices.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "NSID",
        "DEVICE",
        "NAMESPACE",
        "FROM BLOCK",
        "STATE",
        "IN FLIGHT",
        "SENT",
        "COPIED",
        "LOSSES",
        "EVENTS",
    ]);
    for device in &drive.devices {
        table.row(vec![
            device.nsid.to_string(),
            device.device.clone(),
            device.namespace.to_string(),
            device.first_block.to_string(),
            match (device.connected, &device.access) {
                (true, Some(access)) => format!("there, {access}"),
                (true, None) => "there".to_owned(),
                (false, _) => "lost".to_owned(),
            },
            device.under_way.map_or("-".to_owned(), |commands| commands.to_string()),
            device.sent.to_string(),
            device.copied.to_string(),
            device.losses.to_string(),
            device.events.to_string(),
        ]);
    }
    format!("\n{}", table.text())
}

/// Lists the paths that a classifier can choose, for each namespace with several.
fn paths(drive: &DriveView) -> String {
    let mut text = String::new();
    for namespace in drive.namespaces.iter().filter(|namespace| !namespace.paths.is_empty()) {
        text += &format!("\npaths of namespace {}: 0 the whole stack", namespace.nsid);
        for (number, path) in (1..).zip(&namespace.paths) {
            text += &format!(", {number} {}", path.name);
        }
        text.push('\n');
    }
    text
}
