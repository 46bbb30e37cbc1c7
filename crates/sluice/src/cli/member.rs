//! `sluice member`: the labels of files and block devices, without a daemon.

mod adopt;
mod replace;
mod view;

use clap::Subcommand;
use sluice_metadata::{Device, Found, Label, Place, Role, Shape, Verdict, judge};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_wiring::label_problem as problem;
use std::path::{Path, PathBuf};
use view::View;

#[derive(Debug, Subcommand)]
pub(super) enum MemberCommand {
    /// Show the labels of files and block devices
    Inspect {
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Compare the labels of all members of a set
    Check {
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Write the lost one of the two copies of a label again
    Repair {
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Remove labels; the data stays
    Forget {
        /// UUID of the set that the devices belong to
        #[arg(long, value_name = "UUID")]
        set: String,
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Label a new disk as a member of a mirror or replicate, in the place of a lost one; it is copied to
    Replace(replace::Replace),
    /// Label the members of a set that has no labels; data stays where it is
    Adopt(adopt::Adopt),
}

pub(super) fn run(command: MemberCommand, output: Output) -> Result<(), ApiError> {
    match command {
        MemberCommand::Inspect { paths } => {
            let views = paths.iter().map(|path| View::of(path)).collect::<Result<Vec<_>, _>>()?;
            output.answer(&views, |views| view::pages(views))
        }
        MemberCommand::Check { paths } => check(&paths, output),
        MemberCommand::Repair { paths } => repair(&paths, output),
        MemberCommand::Forget { set, paths } => forget(&set, &paths),
        MemberCommand::Replace(replace) => {
            let views = [replace.run()?];
            output.answer(&views, |views| view::table(views))
        }
        MemberCommand::Adopt(adopt) => {
            let views = adopt.run()?;
            output.answer(&views, |views| view::table(views))
        }
    }
}

/// Compares the labels of all members of a set. Each counts for the role that it has in its label.
fn check(paths: &[PathBuf], output: Output) -> Result<(), ApiError> {
    let mut labelled = Vec::new();
    for path in paths {
        let label = label_of(path)?;
        let place = Place::look(path, label.role, None).map_err(problem)?;
        labelled.push((label, place));
    }
    let Some((latest, _)) = labelled.iter().max_by_key(|(label, _)| (label.epoch, label.sequence)) else {
        return Ok(());
    };
    let (latest, mut missing) = (latest.clone(), Vec::new());
    let roles = (0..latest.members.len()).map(Role::Data);
    let mut places = Vec::new();
    for role in roles.chain(latest.expected(Role::Log).map(|_| Role::Log)) {
        let mut found = labelled.iter().filter(|(label, _)| label.role == role).map(|(_, place)| place);
        match (found.next(), found.next()) {
            (Some(place), None) => places.push(place.clone()),
            (Some(first), Some(second)) => {
                let (first, second) = (first.path.display(), second.path.display());
                return Err(ApiError::conflict(format!(
                    "{first} and {second} are both {role}, {}",
                    uuid(&latest, role)
                )));
            }
            (None, _) => missing.push(format!("{role}, {}", uuid(&latest, role))),
        }
    }
    if !missing.is_empty() {
        let missing = missing.join("; ");
        return Err(ApiError::conflict(format!("set {} is not complete without {missing}", latest.set))
            .hint("name all members of the set, and its log"));
    }
    let shape = Shape { kind: latest.kind, chunk: latest.chunk };
    let verdict = judge(&shape, &places).map_err(|it| ApiError::conflict(it.error).hint(it.hint))?;
    let mut views = places.iter().map(|place| View::of(&place.path)).collect::<Result<Vec<_>, _>>()?;
    if let Verdict::Labelled(assembly) = verdict {
        views.iter_mut().zip(assembly.stale).for_each(|(view, stale)| view.note_stale(stale));
    }
    output.answer(&views, |views| view::table(views))
}

fn uuid(label: &Label, role: Role) -> String {
    label.expected(role).unwrap_or_default().to_string()
}

fn repair(paths: &[PathBuf], output: Output) -> Result<(), ApiError> {
    let mut views = Vec::new();
    for path in paths {
        let label = label_of(path)?;
        let device = Device::claim(path).map_err(problem)?;
        if !device.copies().map_err(problem)?.are_whole() {
            device.store(&label).map_err(problem)?;
        }
        drop(device);
        views.push(View::of(path)?);
    }
    output.answer(&views, |views| view::table(views))
}

/// Removes the labels of devices that all belong to this set.
fn forget(set: &str, paths: &[PathBuf]) -> Result<(), ApiError> {
    let mut devices = Vec::new();
    for path in paths {
        let label = label_of(path)?;
        if label.set.to_string() != set {
            let (path, role, member) = (path.display(), label.role, label.member);
            let words = format!("{path} is {role}, {member}, of set {}, and not of set {set}", label.set);
            return Err(ApiError::conflict(words).hint("nothing was written"));
        }
        devices.push(Device::claim(path).map_err(problem)?);
    }
    devices.iter().try_for_each(Device::forget).map_err(problem)
}

/// Returns the label of a device that must have one.
fn label_of(path: &Path) -> Result<Label, ApiError> {
    let found = Device::open(path).and_then(|device| device.found()).map_err(problem)?;
    let path = path.display();
    match found {
        Found::Label(label) => Ok(*label),
        Found::Missing => Err(ApiError::conflict(format!("{path} has no label"))),
        Found::Damaged => {
            Err(ApiError::conflict(format!("{path} has a damaged label: neither of its two copies is whole"))
                .hint("bring back a good copy of the device"))
        }
        Found::Unsupported(why) => Err(ApiError::conflict(format!("{path} has a label with {why}"))
            .hint("use the version of Sluice that made the label")),
    }
}
