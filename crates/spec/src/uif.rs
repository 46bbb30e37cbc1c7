//! Functions behind the function SDK, as a user describes them.

use super::{Fault, LayerSpec};
use crate::words::nearest;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sluice_functions::host::{DEADLINE, OnDeath};
use sluice_functions::{OnLoss, Record, SERVICES, SetShape, Shape, service};
use sluice_uif::Options;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use utoipa::ToSchema;

/// A function behind the function SDK: one of Sluice's own by its name, or a third-party function by its
/// program or its socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UifSpec {
    /// Name of a function that comes with Sluice: `pass`, `encrypt`, `replicate`, `mirror` or `snapshot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Program that the daemon starts, and its arguments. The program's standard input is its socket.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Socket of a function process that the daemon does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    #[serde(default)]
    pub place: Place,
    /// Options that the function receives.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Milliseconds that the function has for a command, before the function is ended; 5,000 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    #[serde(default)]
    pub on_death: OnDeathName,
    /// Name of the translation cache of the drive's classifier that the function fills.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub translations: Option<String>,
    /// Layers below the function besides the rest of the stack, which is layer 0: layer 1, layer 2 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub layers: Vec<LayerSpec>,
    /// Whether each member of a `mirror` or `replicate` must have a label; if not given, labels count where there are
    /// some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// User ID of the process. Only a daemon that may switch users can set it. With `socket`: the user that
    /// listens there, if it is neither root nor the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group ID of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// Place of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A process of its own.
    #[default]
    Process,
    /// The daemon, where the function is faster, and trusted.
    Daemon,
}

impl Place {
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Process => "in a process of its own",
            Self::Daemon => "in the daemon",
        }
    }
}

/// Outcome of a function's commands when its process dies, or does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDeathName {
    /// Commands wait until the function is back.
    #[default]
    Park,
    /// Commands fail, and so do new commands until the function is back.
    Fail,
}

/// Source of a function, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Function of Sluice's own in the daemon, by name.
    Here(String),
    /// Function of Sluice's own in a process, by name.
    Own(String),
    /// A program and its arguments.
    Program(PathBuf, Vec<String>),
    Socket(PathBuf),
}

/// Maximum deadline. A guest gives up on a command after half a minute, so a much longer deadline is a
/// mistake of units.
const DEADLINE_MAX_MS: u64 = 600_000;

impl UifSpec {
    /// Returns the record of a function of Sluice's own.
    pub fn service(&self) -> Option<&'static Record> {
        self.function.as_deref().and_then(service)
    }

    /// Returns the relation to the layers below. A third-party function may have a size of its own, and may
    /// acknowledge a write before it is below.
    pub(super) fn shape(&self) -> Shape {
        let options = || Options::new(self.options.clone());
        let (keeps_size, keeps_copies, on_loss) = match self.service() {
            Some(service) => ((service.keeps_size)(&options()), service.keeps_copies, service.on_loss),
            None => (false, false, OnLoss::FailFlush),
        };
        Shape {
            keeps_size,
            holds_writes: !matches!(self.provenance(), Ok(Provenance::Here(_) | Provenance::Own(_))),
            // The last layer of a set is its log.
            copies: if keeps_copies { self.layers.len().saturating_sub(1) } else { 0 },
            on_loss,
            on_loss_besides: self.service().map_or(OnLoss::FailFlush, |service| service.on_loss_in),
            data: self.service().and_then(|service| (service.data)(&options())),
            set: self.set_kind().map(|kind| SetShape { kind, chunk: 0, labels: self.labels }),
            ..Shape::SAME
        }
    }

    /// Returns its name if it keeps members equal, which can have labels.
    pub(super) fn set_kind(&self) -> Option<&'static str> {
        ["mirror", "replicate", "parity"].into_iter().find(|kind| self.function.as_deref() == Some(kind))
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        self.provenance()?;
        if let Some(deadline) = self.deadline_ms
            && !(1..=DEADLINE_MAX_MS).contains(&deadline)
        {
            return Err(Fault::at_key("deadline_ms", format!("{deadline} ms are not possible"))
                .hint(format!("use 1 to {DEADLINE_MAX_MS}")));
        }
        if self.labels.is_some() && self.set_kind().is_none() {
            return Err(Fault::at_key(
                "labels",
                "only `mirror`, `replicate` and `parity` have members with labels",
            ));
        }
        let has_user = self.uid.is_some() || self.gid.is_some();
        if has_user && self.place == Place::Daemon {
            return Err(Fault::at_key("uid", "only a process has a user of its own"));
        }
        if self.socket.is_some() {
            if self.gid.is_some() {
                return Err(Fault::at_key("gid", "whoever starts a process that listens chooses its group")
                    .hint("leave it out; uid is the user that listens at the socket"));
            }
        } else if self.uid.is_some() != self.gid.is_some() {
            return Err(Fault::at_key("gid", "uid and gid come together"));
        }
        Ok(())
    }

    /// Converts the loose keys into the source and place of the function.
    pub fn provenance(&self) -> Result<Provenance, Fault> {
        match (&self.function, self.command.as_slice(), &self.socket) {
            (Some(name), [], None) => {
                check_kind(name)?;
                Ok(match self.place {
                    Place::Daemon => Provenance::Here(name.clone()),
                    Place::Process => Provenance::Own(name.clone()),
                })
            }
            (None, [..], _) if self.place == Place::Daemon => {
                Err(Fault::at_key("place", "only a function of Sluice's own can be in the daemon"))
            }
            (None, [program, arguments @ ..], None) => {
                let path = PathBuf::from(program);
                if !path.is_absolute() {
                    return Err(Fault::at_key("command", format!("{program} is not an absolute path"))
                        .hint("start the program's path with /"));
                }
                Ok(Provenance::Program(path, arguments.to_vec()))
            }
            (None, [], Some(path)) if path.is_absolute() => Ok(Provenance::Socket(path.clone())),
            (None, [], Some(path)) => {
                Err(Fault::at_key("socket", format!("{} is not an absolute path", path.display())))
            }
            _ => {
                Err(Fault::at_key("function", "exactly one of function, command and socket says which it is")
                    .hint("add function = \"encrypt\", or command = [\"/path/to/it\"]"))
            }
        }
    }

    /// Returns its name, its program or its socket.
    pub fn about(&self) -> String {
        let program = self.command.first().cloned();
        let socket = self.socket.as_ref().map(|path| path.display().to_string());
        self.function.clone().or(program).or(socket).unwrap_or_default()
    }

    pub fn deadline(&self) -> Duration {
        self.deadline_ms.map_or(DEADLINE, Duration::from_millis)
    }

    pub fn user(&self) -> Option<(u32, u32)> {
        self.uid.zip(self.gid)
    }
}

impl From<OnDeathName> for OnDeath {
    fn from(name: OnDeathName) -> Self {
        match name {
            OnDeathName::Park => Self::Park,
            OnDeathName::Fail => Self::Fail,
        }
    }
}

/// Checks that Sluice has a function of this name.
pub fn check_kind(name: &str) -> Result<(), Fault> {
    let names: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
    if names.contains(&name) {
        return Ok(());
    }
    let fault = Fault::at_key("function", format!("Sluice has no function `{}`", name.escape_debug()));
    Err(match nearest(name, names.iter().copied()) {
        Some(meant) => fault.hint(format!("did you mean `{meant}`?")),
        None => fault.hint(format!("it has {}", names.join(", "))),
    })
}
