//! `sluice member replace`: labels a new disk in the place of a lost one.

use super::label_of;
use super::view::View;
use clap::Args;
use sluice_metadata::{Device, Found, Role, SetKind, replace};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_wiring::label_problem as problem;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("role").required(true).args(["index", "log"]))]
pub(crate) struct Replace {
    /// Another member of the set, which has everything
    #[arg(long, value_name = "PATH")]
    set: PathBuf,
    /// Index of the lost member
    #[arg(long, value_name = "NUMBER")]
    index: Option<usize>,
    /// Replace the log
    #[arg(long)]
    log: bool,
    /// Size of the log, if the configuration gives one; the length of the device if not given
    #[arg(long, value_name = "SIZE", requires = "log")]
    log_size: Option<Size>,
    /// The new disk, which has no label
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Replace {
    pub(super) fn run(self) -> Result<View, ApiError> {
        let other = label_of(&self.set)?;
        let (set, kind, path) = (other.set, other.kind, self.path.display());
        if !kind.is_redundant() {
            return Err(ApiError::conflict(format!(
                "set {set} is a {}, which has no second copy",
                kind.name()
            ))
            .hint("bring the lost member back, or make a new set from a backup"));
        }
        let role = self.index.map_or(Role::Log, Role::Data);
        if kind == SetKind::Replicate && role == Role::Data(0) {
            return Err(ApiError::conflict(format!(
                "set {set} is a replicate, whose member 0 is never copied to"
            ))
            .hint(
                "remove the label of member 1 (`sluice member forget`), and begin a new set with it as the \
                 namespace's target",
            ));
        }
        if other.expected(role).is_none() || role == other.role {
            return Err(ApiError::invalid(format!(
                "{} is {}, and cannot stand in for {role}",
                self.set.display(),
                other.role
            ))
            .hint(format!("set {set} has members 0 to {} and a log", other.members.len() - 1)));
        }
        if other.epoch <= 1 && role != Role::Log {
            // The log may have no numbers of the members' storage yet, and would take the new disk for the lost one.
            return Err(ApiError::conflict(format!("set {set} was not opened since it got its labels")).hint(
                "remove the labels (`sluice member forget`), and replace the disk as in a set without labels",
            ));
        }
        if other.role == Role::Log && role != Role::Log {
            return Err(ApiError::invalid(format!("{} is the log of set {set}", self.set.display()))
                .hint("name a member of the set with --set"));
        }
        let device = Device::claim(&self.path).map_err(problem)?;
        if device.copies().map_err(problem)?.found() != Found::Missing {
            return Err(ApiError::conflict(format!("{path} has a label"))
                .hint("nothing was written; `sluice member inspect` shows it"));
        }
        let length = device.own_bytes().map_err(problem)?;
        let data_bytes = match role {
            Role::Data(_) => other.data_bytes,
            Role::Log => self.log_size.map_or(length, |size| size.0),
        };
        if data_bytes == 0 {
            return Err(ApiError::invalid(format!("{path} is empty"))
                .hint("give the size of the log with --log-size"));
        }
        replace(&device, &other, role, data_bytes).map_err(problem)?;
        drop(device);
        View::of(&self.path)
    }
}
