//! `sluice target`: the storage under the namespaces of drives.

use super::{absolute, converse, spec_file};
use clap::{Args, Subcommand};
use sluice_api::client::{Client, segment};
use sluice_api::{
    DriveList, FirmwareRequest, PauseRequest, TargetList, TargetReplaceRequest, TargetResetRequest,
};
use sluice_control::drives::{BACK_S, MaintenanceView, TargetView};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::size::Size;
use sluice_spec::table::Table;
use sluice_spec::{NvmeTcpSpec, TargetSpec};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Subcommand)]
pub(super) enum TargetCommand {
    /// List the targets of a drive, or of all drives, with their states
    List {
        /// Name of the drive; all drives without it
        name: Option<String>,
    },
    /// Hold commands back from a target; hosts see no error, until they give up
    Pause {
        /// Name of the drive, and the NSID of its namespace if it has several
        #[arg(value_name = "DRIVE[:NSID]")]
        place: Place,
        /// Seconds after which commands fail; without it, they wait until the target goes on
        #[arg(long, value_name = "SECONDS")]
        fail_after: Option<u32>,
    },
    /// Let the commands of a paused target go on
    Resume {
        /// Name of the drive, and the NSID of its namespace if it has several
        #[arg(value_name = "DRIVE[:NSID]")]
        place: Place,
    },
    /// Put another target in the place of one that is in use, paused or lost; hosts see the same namespace
    Replace(Replace),
    /// Reset the controller behind a target; commands wait until it is back
    Reset {
        /// Name of the drive, and the NSID of its namespace if it has several
        #[arg(value_name = "DRIVE[:NSID]")]
        place: Place,
        /// Seconds until the controller has to be back; then its commands stay parked
        #[arg(long, value_name = "SECONDS", default_value_t = BACK_S)]
        back: u32,
    },
    /// Upgrade the firmware of the controller behind a target; commands wait for its activation alone
    Firmware(Firmware),
}

#[derive(Debug, Args)]
pub(super) struct Firmware {
    /// Name of the drive, and the NSID of its namespace if it has several
    #[arg(value_name = "DRIVE[:NSID]")]
    place: Place,
    /// Image; without it, the image of the slot becomes active
    #[arg(long, value_name = "IMAGE", required_unless_present = "slot")]
    file: Option<PathBuf>,
    /// Firmware slot; 0 for one of the controller's choice
    #[arg(long, default_value_t = 0)]
    slot: u8,
    /// Commit action: 0 stores the image, 1 stores it and activates it by a reset, 2 activates the image of the slot by a
    /// reset, 3 activates it without one; 1 with an image and 2 without, unless given
    #[arg(long)]
    action: Option<u8>,
    /// Seconds until the controller has to be back; then its commands stay parked
    #[arg(long, value_name = "SECONDS", default_value_t = BACK_S)]
    back: u32,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("new").required(true).args(["file", "nvme_tcp", "spec"]))]
pub(super) struct Replace {
    /// Name of the drive, and the NSID of its namespace if it has several
    #[arg(value_name = "DRIVE[:NSID]")]
    place: Place,
    /// Path of a file or a block device
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Size of the file, which is created if it does not exist
    #[arg(long, requires = "file")]
    size: Option<Size>,
    /// Address of a subsystem on the network
    #[arg(long, value_name = "ADDRESS:PORT", requires = "subnqn")]
    nvme_tcp: Option<String>,
    /// NVMe Qualified Name of the subsystem
    #[arg(long, value_name = "NQN", requires = "nvme_tcp")]
    subnqn: Option<String>,
    /// NSID at the subsystem
    #[arg(long, value_name = "NSID", requires = "nvme_tcp", default_value_t = 1)]
    namespace: u32,
    /// Description of the target: the keys of a namespace in TOML or JSON, such as target and path; `-` is standard
    /// input
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Take it also if it is not known to be the same storage; its data must have been copied there
    #[arg(long)]
    different_storage: bool,
}

/// A namespace of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    drive: String,
    /// NSID, 1 if none is given.
    nsid: u32,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((drive, nsid)) = text.split_once(':') else {
            return Ok(Self { drive: text.to_owned(), nsid: 1 });
        };
        let nsid = nsid.parse().ok().filter(|nsid| *nsid > 0);
        let nsid = nsid.ok_or("an NSID is a number from 1 on, as in demo:2")?;
        Ok(Self { drive: drive.to_owned(), nsid })
    }
}

impl Place {
    fn path(&self) -> String {
        format!("/v1/drives/{}/targets/{}", segment(&self.drive), self.nsid)
    }
}

pub(super) fn run(command: TargetCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    let view: TargetView = match command {
        TargetCommand::Reset { place, back } => {
            let request = TargetResetRequest { back_s: Some(back) };
            let view: MaintenanceView = converse(client.post(&format!("{}/reset", place.path()), &request))?;
            return output.answer(&view, maintained);
        }
        TargetCommand::Firmware(firmware) => {
            let path = format!("{}/firmware", firmware.place.path());
            let view: MaintenanceView = converse(client.post(&path, &firmware.request()?))?;
            return output.answer(&view, maintained);
        }
        TargetCommand::List { name } => return list(name, client, output),
        TargetCommand::Pause { place, fail_after } => {
            let request = PauseRequest { fail_after_s: fail_after };
            converse(client.post(&format!("{}/pause", place.path()), &request))?
        }
        TargetCommand::Resume { place } => {
            converse(client.post(&format!("{}/resume", place.path()), &serde_json::json!({})))?
        }
        TargetCommand::Replace(replace) => {
            let (path, different_storage) = (replace.place.path(), replace.different_storage);
            let request = TargetReplaceRequest { target: replace.target()?, different_storage };
            converse(client.put(&path, &request))?
        }
    };
    output.answer(&view, said)
}

impl Firmware {
    fn request(self) -> Result<FirmwareRequest, ApiError> {
        let file = self.file.map(|file| absolute(&file)).transpose()?;
        let action = self.action.unwrap_or(if file.is_some() { 1 } else { 2 });
        Ok(FirmwareRequest { file, slot: self.slot, action, back_s: Some(self.back) })
    }
}

impl Replace {
    fn target(self) -> Result<TargetSpec, ApiError> {
        if let Some(file) = &self.spec {
            let mut target: TargetSpec = spec_file::understand(file, spec_file::read(file)?)?;
            let folder = absolute(file)?;
            target.resolve_paths(folder.parent().unwrap_or(&folder));
            return Ok(target);
        }
        if let (Some(address), Some(subnqn)) = (self.nvme_tcp, self.subnqn) {
            let keys =
                serde_json::json!({ "address": address, "subnqn": subnqn, "namespace": self.namespace });
            let described: Result<NvmeTcpSpec, _> = serde_json::from_value(keys);
            let described = described.map_err(|error| ApiError::invalid(error.to_string()))?;
            return Ok(TargetSpec::nvme_tcp(described));
        }
        let file = self.file.unwrap_or_default();
        Ok(TargetSpec { size: self.size, ..TargetSpec::file(absolute(&file)?) })
    }
}

fn list(name: Option<String>, client: &Client, output: Output) -> Result<(), ApiError> {
    let names = match name {
        Some(name) => vec![name],
        None => {
            let all: DriveList = converse(client.get("/v1/drives"))?;
            all.drives.into_iter().map(|drive| drive.name).collect()
        }
    };
    let mut targets = Vec::new();
    for name in names {
        let of_drive: TargetList = converse(client.get(&format!("/v1/drives/{}/targets", segment(&name))))?;
        targets.extend(of_drive.targets);
    }
    output.answer(&TargetList { targets }, table)
}

fn table(list: &TargetList) -> String {
    let mut table = Table::new(&["DRIVE", "NSID", "STATE", "SIZE", "PLACE"]);
    for target in &list.targets {
        table.row(vec![
            target.drive.clone(),
            target.nsid.to_string(),
            target.state.as_str().to_owned(),
            target.size.map_or_else(|| "-".to_owned(), |size| size.to_string()),
            target.place.clone(),
        ]);
    }
    table.text()
}

fn said(target: &TargetView) -> String {
    let (drive, nsid, place, state) = (&target.drive, target.nsid, &target.place, target.state.as_str());
    let limit = target.fail_after_s.map(|seconds| format!(": its commands fail after {seconds} s"));
    let idle = target.idle.map(|idle| if idle { "; nothing is in it" } else { "; commands are still in it" });
    let (idle, limit) = (idle.unwrap_or_default(), limit.unwrap_or_default());
    format!("namespace {nsid} of {drive} is on {place}, {state}{idle}{limit}\n")
}

fn maintained(done: &MaintenanceView) -> String {
    let MaintenanceView { drive, nsid, firmware, firmware_before, device_ms, own_ms, state, .. } = done;
    let firmware = match firmware == firmware_before {
        true => firmware.clone(),
        false => format!("{firmware} (before: {firmware_before})"),
    };
    let image = done.image_bytes.map(|bytes| format!("; image of {bytes} bytes")).unwrap_or_default();
    let state = state.as_str();
    format!(
        "the controller of namespace {nsid} of {drive} is {state}, firmware {firmware}{image}; commands waited: device \
         {device_ms} ms, own {own_ms} ms\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_drive_and_a_namespace() {
        let place = |text: &str| text.parse::<Place>().map(|it| (it.drive, it.nsid)).ok();
        assert_eq!(place("demo"), Some(("demo".to_owned(), 1)));
        assert_eq!(place("demo:2"), Some(("demo".to_owned(), 2)));
        assert_eq!([place("demo:0"), place("demo:x"), place("demo:")], [None, None, None]);
    }
}
