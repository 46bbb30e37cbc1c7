//! Reads the configuration file. Every error names the file, the line, the key, and what to do.

use super::locate::Document;
use super::{Metrics, Page, Settings, Tcp};
use crate::drives::DRIVES_MAX;
use serde::Deserialize;
use sluice_spec::error::ApiError;
use sluice_spec::paths::open_file;
use sluice_spec::words::{hint_for, quoted};
use sluice_spec::{DriveSpec, Fault, GroupSpec, SharedSpec, Step};
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a configuration file, bytes.
const BYTES_MAX: u64 = 4 << 20;

/// A whole configuration file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default)]
    pub daemon: Settings,
    #[serde(default)]
    pub tcp: Tcp,
    #[serde(default)]
    pub metrics: Metrics,
    #[serde(default)]
    pub page: Page,
    /// Objects that several drives use.
    #[serde(default)]
    pub shared: Vec<SharedSpec>,
    /// Declared groups with common limits; others are created through the API.
    #[serde(default, rename = "group")]
    pub groups: Vec<GroupSpec>,
    /// Declared drives; others are created through the API.
    #[serde(default, rename = "drive")]
    pub drives: Vec<DriveSpec>,
    /// Path of the file, for messages.
    #[serde(skip)]
    pub file: PathBuf,
}

/// Values that must be unique among drives.
#[derive(Default)]
struct Seen<'a> {
    names: HashSet<&'a str>,
    serials: HashSet<String>,
    subnqns: HashSet<String>,
}

/// Reads and checks a configuration file.
pub fn load(file: &Path) -> Result<Config, ApiError> {
    parse(&read(file)?, file)
}

/// Reads a configuration file and returns it with all of its faults. A file that cannot be parsed is an
/// error.
pub fn examine(file: &Path) -> Result<(Config, Vec<ApiError>), ApiError> {
    understand(&read(file)?, file)
}

fn read(file: &Path) -> Result<String, ApiError> {
    let mut text = String::new();
    open_file(file)
        .and_then(|opened| opened.take(BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| unreadable(file, &error))?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(ApiError::invalid(format!("{}: longer than {BYTES_MAX} bytes", file.display()))),
        false => Ok(text),
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> ApiError {
    let problem = ApiError::io("read the configuration file", file, error);
    match error.kind() {
        std::io::ErrorKind::NotFound => problem.hint("name an existing file with -c"),
        std::io::ErrorKind::PermissionDenied => problem.hint("let the user of the daemon read it"),
        _ => problem,
    }
}

/// Checks the text of a configuration file; `file` is its path. Returns the first fault as an error.
pub fn parse(text: &str, file: &Path) -> Result<Config, ApiError> {
    let (config, faults) = understand(text, file)?;
    faults.into_iter().next().map_or(Ok(config), Err)
}

/// Parses the text of a configuration file and returns it with all of its faults.
fn understand(text: &str, file: &Path) -> Result<(Config, Vec<ApiError>), ApiError> {
    let (document, config) = shape(text, file)?;
    let faults = config.faults().into_iter().map(|fault| faulty(&document, file, fault)).collect();
    Ok((config, faults))
}

/// Parses the text of a configuration file, and resolves its paths.
pub(super) fn shape<'a>(text: &'a str, file: &Path) -> Result<(Document<'a>, Config), ApiError> {
    let document = Document::parse(text).map_err(|error| unparsable(text, file, &error))?;
    let read = Config::deserialize(toml::de::Deserializer::from(document.table()));
    let mut config = read.map_err(|error| unsuitable(&document, file, &error))?;
    config.file = file.to_owned();
    let folder = folder_of(file)?;
    config.daemon.resolve_paths(&folder);
    config.page.resolve_paths(&folder);
    for drive in &mut config.drives {
        drive.resolve_paths(&folder);
    }
    Ok((document, config))
}

impl Config {
    /// Returns the first fault of each table, and of each drive.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        faults.extend(self.daemon.check().err().map(|fault| fault.under("daemon")));
        faults.extend(self.tcp.check().err().map(|fault| fault.under("tcp")));
        faults.extend(self.metrics.check().err().map(|fault| fault.under("metrics")));
        faults.extend(self.page.check().err().map(|fault| fault.under("page")));
        faults.extend(self.faults_of_shared());
        faults.extend(self.faults_of_groups());
        let mut seen = Seen::default();
        for (index, drive) in self.drives.iter().enumerate() {
            let checked = check_room(index).and_then(|()| drive.check());
            let checked = checked.and_then(|()| self.check_among(drive, &mut seen));
            faults.extend(checked.err().map(|fault| fault.inside("drive", index)));
        }
        faults
    }

    /// Checks a drive against the drives before it and against `[daemon]` and `[tcp]`.
    fn check_among<'a>(&self, drive: &'a DriveSpec, seen: &mut Seen<'a>) -> Result<(), Fault> {
        if !seen.names.insert(&drive.name) {
            return Err(Fault::at_key("name", format!("`{}` is the name of an earlier drive", drive.name))
                .hint("give each drive its own name"));
        }
        if !seen.serials.insert(drive.serial()) {
            let serial = drive.serial();
            return Err(Fault::at_key(
                "serial",
                format!("`{serial}` is the serial number of an earlier drive"),
            )
            .hint("give each drive its own, or none: it is derived from the name then"));
        }
        let wants_tls = drive.tcp.as_ref().map(|tcp| tcp.tls_keys.is_some());
        if wants_tls == Some(false) && self.tcp.listen.is_empty() {
            return Err(Fault::at_key("tcp", "no host could connect: the daemon listens nowhere")
                .hint("add [tcp] with listen = [\"127.0.0.1:4420\"]"));
        }
        if wants_tls == Some(true) && self.tcp.listen_tls.is_empty() {
            return Err(Fault::at_key("tcp", "no host could connect: the daemon listens nowhere with TLS")
                .hint("add [tcp] with listen_tls = [\"127.0.0.1:4421\"]"));
        }
        if drive.tcp.is_some() && !seen.subnqns.insert(drive.subnqn()) {
            return Err(Fault::at_key(
                "nqn",
                format!("`{}` is the name of an earlier drive", drive.subnqn()),
            )
            .hint("give each drive its own, or none: it is derived from the serial number then")
            .under("tcp"));
        }
        self.check_pools(drive)?;
        check_reactor(drive, self.daemon.reactors())
    }

    /// Returns the first fault of each shared object.
    fn faults_of_shared(&self) -> Vec<Fault> {
        let (mut names, reactors) = (HashSet::new(), self.daemon.reactors());
        let check = |shared: &SharedSpec, names: &mut HashSet<String>| {
            shared.check(reactors)?;
            match names.insert(shared.name.clone()) {
                true => Ok(()),
                false => {
                    Err(Fault::at_key("name", format!("`{}` is the name of an earlier object", shared.name))
                        .hint("give each shared object its own name"))
                }
            }
        };
        let checked =
            self.shared.iter().enumerate().map(|(index, shared)| {
                check(shared, &mut names).map_err(|fault| fault.inside("shared", index))
            });
        checked.filter_map(Result::err).collect()
    }

    /// Returns the first fault of each group.
    fn faults_of_groups(&self) -> Vec<Fault> {
        let mut names = HashSet::new();
        let mut check = |group: &GroupSpec| {
            group.check()?;
            match names.insert(group.name.clone()) {
                true => Ok(()),
                false => {
                    Err(Fault::at_key("name", format!("`{}` is the name of an earlier group", group.name))
                        .hint("give each group its own name"))
                }
            }
        };
        let groups = self.groups.iter().enumerate();
        groups.filter_map(|(index, group)| check(group).err().map(|it| it.inside("group", index))).collect()
    }

    /// Checks that the pools of a drive are declared.
    fn check_pools(&self, drive: &DriveSpec) -> Result<(), Fault> {
        for (index, namespace) in drive.namespaces.iter().enumerate() {
            let Some(name) = &namespace.shared else { continue };
            let kind = namespace.target.as_str();
            let found = self.shared.iter().find(|shared| shared.name == *name);
            if let Some(other) = found.map(|shared| shared.kind.as_str()).filter(|other| *other != kind) {
                return Err(Fault::at_key(
                    "shared",
                    format!("`{name}` is of type \"{other}\", and the target \"{kind}\""),
                )
                .hint(format!("name an object with type = \"{kind}\""))
                .inside("namespaces", index));
            }
            if found.is_none() {
                return Err(Fault::at_key("shared", format!("there is no shared object `{name}`"))
                    .hint(format!("add [[shared]] with name = \"{name}\", type = \"{kind}\" and a size"))
                    .inside("namespaces", index));
            }
        }
        Ok(())
    }
}

fn check_room(before: usize) -> Result<(), Fault> {
    match before < DRIVES_MAX {
        true => Ok(()),
        false => Err(Fault::at_key("name", format!("there are {DRIVES_MAX} drives before this one"))
            .hint("that is the most one daemon serves: start another with its own configuration")),
    }
}

/// Checks that the reactor of a drive exists, if the drive names one.
pub fn check_reactor(drive: &DriveSpec, reactors: usize) -> Result<(), Fault> {
    match drive.reactor {
        Some(reactor) if reactor >= reactors => {
            Err(Fault::at_key("reactor", format!("there is no reactor {reactor}")).hint(format!(
                "there {} {reactors}, counted from 0: one for each of daemon.cores",
                if reactors == 1 { "is" } else { "are" }
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the absolute folder of the file. Paths in the file are relative to this folder, wherever the
/// daemon was started.
fn folder_of(file: &Path) -> Result<PathBuf, ApiError> {
    let folder = file.parent().unwrap_or(Path::new(""));
    std::path::absolute(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
        .map_err(|error| ApiError::io("find the folder of", file, &error))
}

/// Describes a syntax error of TOML.
fn unparsable(text: &str, file: &Path, error: &toml::de::Error) -> ApiError {
    let offset = error.span().map_or(0, |span| span.start).min(text.len());
    let line = 1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
    at_line(file, line, error.message().trim_end())
        .hint("this line is not TOML; strings need quotes, lists brackets")
}

/// Describes valid TOML that does not have the shape of a configuration.
fn unsuitable(document: &Document<'_>, file: &Path, error: &toml::de::Error) -> ApiError {
    let (span, message) = (error.span().unwrap_or(0..0), error.message());
    let problem = if message.starts_with("unknown field") {
        let key = quoted(message).next().unwrap_or_default();
        let offset = document.key_within(&span, key).unwrap_or(span.start);
        at_line(file, document.line(offset), &format!("{key}: there is no such key here"))
    } else if message.starts_with("missing field") {
        let key = quoted(message).next().unwrap_or_default();
        at_line(file, document.line(span.start), &format!("{key}: missing")).hint(format!("add {key} = ..."))
    } else {
        let key = document.key_of(&span).map(|key| format!("{key}: ")).unwrap_or_default();
        at_line(file, document.line(span.start), &format!("{key}{message}"))
    };
    match hint_for(message) {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}

/// Describes a configuration of the right shape whose values are impossible.
pub(super) fn faulty(document: &Document<'_>, file: &Path, fault: Fault) -> ApiError {
    let line = document.line(document.find(&fault.at));
    let key = fault.at.0.iter().rev().find_map(|step| match step {
        Step::Key(key) => Some(*key),
        Step::Index(_) => None,
    });
    let problem = at_line(file, line, &format!("{}: {}", key.unwrap_or_default(), fault.error));
    ApiError { hint: fault.hint, ..problem }
}

fn at_line(file: &Path, line: usize, words: &str) -> ApiError {
    ApiError::invalid(format!("{}:{line}: {words}", file.display()))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
