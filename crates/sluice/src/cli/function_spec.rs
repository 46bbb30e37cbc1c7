//! A function as the command line describes it.

use super::function::service_names;
use super::{absolute, spec_file};
use clap::Args;
use sluice_spec::error::ApiError;
use sluice_spec::{Place, UifSpec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Description of a function by its name, its program or its socket; or by a file, which can have every key.
#[derive(Debug, Args)]
#[group(id = "described", required = true)]
pub(super) struct Described {
    #[arg(group = "described", help = format!("Name of a function that comes with Sluice: {}", service_names()))]
    function: Option<String>,
    /// A program that the daemon starts, and its arguments
    #[arg(long, value_name = "PROGRAM", num_args = 1.., group = "described")]
    command: Vec<String>,
    /// Socket of a function process that the daemon does not start
    #[arg(long, value_name = "PATH", group = "described")]
    socket: Option<PathBuf>,
    /// A file with the keys that a function has in the configuration, in TOML or JSON; `-` is standard input
    #[arg(long, value_name = "FILE", group = "described", conflicts_with_all = ["option", "place"])]
    spec: Option<PathBuf>,
    /// An option for the function; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = option)]
    option: Vec<(String, String)>,
    /// Place of the function: `process` by default, or `daemon`
    #[arg(long)]
    place: Option<Place>,
}

fn option(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("an option is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Described {
    pub(super) fn spec(self) -> Result<UifSpec, ApiError> {
        if let Some(file) = &self.spec {
            return read(&absolute(file)?);
        }
        Ok(UifSpec {
            function: self.function,
            command: self.command,
            socket: self.socket.as_deref().map(absolute).transpose()?,
            options: BTreeMap::from_iter(self.option),
            place: self.place.unwrap_or_default(),
            ..UifSpec::default()
        })
    }
}

/// Reads a function from a file. Relative paths in the file are relative to its folder, as in the
/// configuration.
fn read(file: &Path) -> Result<UifSpec, ApiError> {
    let mut keys = spec_file::read(file)?;
    if keys.remove("kind").is_some_and(|kind| kind != "uif") {
        return Err(ApiError::invalid(format!(
            "{}: only a function of the kind `uif` is attached",
            file.display()
        ))
        .hint("declare others in the configuration, and restart the daemon"));
    }
    let mut spec: UifSpec = spec_file::understand(file, keys)?;
    if let Some(folder) = file.parent() {
        spec.resolve_paths(folder);
    }
    Ok(spec)
}
