//! The command line.

mod ana;
mod attach;
mod bench;
mod chunk_map;
mod classifier;
mod copies;
mod declare;
mod discover;
mod drive;
mod events;
mod function;
mod function_spec;
mod group;
mod job;
mod job_follow;
mod latency;
mod limit;
mod map;
mod member;
mod page;
mod reactor;
mod shared;
mod snapshot;
mod spec_file;
mod target;
mod top;
mod trace;

use crate::{daemon, doctor};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use sluice_api::client::Client;
use sluice_spec::error::ApiError;
use sluice_spec::output::{Form, Output};
use sluice_spec::paths::default_api;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Virtual NVMe drives for unmodified guests.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Socket of the daemon's API; by default that of SLUICE_API, or else the usual place
    #[arg(long, global = true, value_name = "SOCKET")]
    api: Option<PathBuf>,

    /// Form of the answers
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    Serve(daemon::ServeArgs),
    /// Create, show, resize, delete and attach drives
    #[command(subcommand)]
    Drive(drive::DriveCommand),
    /// Show the targets of drives, pause and resume them, and put others in their place
    #[command(subcommand)]
    Target(target::TargetCommand),
    /// Let programs choose the paths of a drive's commands
    #[command(subcommand)]
    Classifier(classifier::ClassifierCommand),
    /// Attach functions to a drive, move them, detach them, send them texts, and run one
    #[command(subcommand)]
    Function(function::FunctionCommand),
    /// Freeze the state of a drive with the function `snapshot`, and go back to it
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Show, compare, repair and make the labels of the members of sets
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Show the background work of drives, pause, resume and cancel it, and set its pace
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Show drives and reactors at work: commands, bytes, latency, load
    Top(top::TopArgs),
    /// Show single commands of a drive with the times of their stages
    Trace(trace::TraceArgs),
    /// Show what happened: drives, clients and devices that came and went, jobs, errors
    Events(events::EventsArgs),
    /// Print the address of the web page, with its token, to open in a browser
    Page,
    /// Make the drives as a file describes them: all changes at once, or none
    Apply(declare::Apply),
    /// Print the changes that `apply` would make; the exit code is 0 for none, and 1 for some
    Diff(declare::Description),
    /// Print a configuration file that makes the same drives on another machine
    Export,
    /// Make the daemon read its configuration file again, and add and remove drives accordingly
    Reload,
    /// Replace the process of the daemon by another, under running virtual machines
    Upgrade(reactor::UpgradeArgs),
    /// Show the reactors
    #[command(subcommand)]
    Reactor(reactor::ReactorCommand),
    /// Show the objects that several drives use, such as pools of memory
    #[command(subcommand)]
    Shared(shared::SharedCommand),
    /// Create, show, change and delete groups of namespaces with common limits
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// List the subsystems at an address on the network that this host may have
    Discover(discover::DiscoverArgs),
    /// Report what the daemon lacks on this machine, and what would make drives faster
    Doctor(doctor::DoctorArgs),
    /// Measure speed, idleness and the cost of a command
    #[command(disable_help_flag = true)]
    Bench(bench::BenchArgs),
    /// Show the version of this tool and of the daemon
    Version,
    /// Print the OpenAPI document of the REST API
    Openapi,
    /// Print completions for a shell, to be sourced by it
    Completions { shell: Shell },
    /// Write the manual pages of all commands into a folder
    #[command(hide = true)]
    Manual { folder: PathBuf },
}

/// Runs the tool with these arguments, the first of which is its own name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // clap returns help and version as "errors", too; they go to standard output.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match cli.run() {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

impl Cli {
    fn run(self) -> Result<ExitCode, ApiError> {
        let output = Output::new(self.output);
        let client = Client::new(self.api.clone().unwrap_or_else(default_api));
        if let Command::Diff(description) = &self.command {
            return Ok(declare::diff(description, &client, output));
        }
        self.execute(&client, output).map(|()| ExitCode::SUCCESS)
    }

    fn execute(self, client: &Client, output: Output) -> Result<(), ApiError> {
        match self.command {
            Command::Serve(arguments) => daemon::serve(&arguments, self.api),
            Command::Drive(command) => drive::run(command, client, output),
            Command::Target(command) => target::run(command, client, output),
            Command::Classifier(command) => classifier::run(command, client, output),
            Command::Function(command) => function::run(command, client, output),
            Command::Snapshot(command) => snapshot::run(command, client, output),
            Command::Member(command) => member::run(command, output),
            Command::Job(command) => job::run(command, client, output),
            Command::Top(arguments) => top::run(&arguments, client, output),
            Command::Trace(arguments) => trace::run(&arguments, self.output, client),
            Command::Events(arguments) => events::run(&arguments, self.output, client),
            Command::Page => page::run(client, output),
            Command::Apply(arguments) => declare::apply(&arguments, client, output),
            // Has an exit code of its own.
            Command::Diff(_) => Ok(()),
            Command::Export => declare::export(client, output),
            Command::Reload => reactor::reload(client, output),
            Command::Upgrade(arguments) => reactor::upgrade(arguments, client, output),
            Command::Reactor(command) => reactor::run(command, client, output),
            Command::Shared(command) => shared::run(command, client, output),
            Command::Group(command) => group::run(command, client, output),
            Command::Discover(arguments) => discover::run(&arguments, output),
            Command::Doctor(arguments) => doctor::run(arguments, client, output),
            Command::Bench(arguments) => bench::run(arguments, self.output),
            Command::Version => reactor::version(client, output),
            Command::Openapi => output.json(&sluice_api::document()),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
                output.raw(&script)
            }
            Command::Manual { folder } => clap_mangen::generate_to(Cli::command(), &folder)
                .map_err(|error| ApiError::io("write the manual into", &folder, &error)),
        }
    }
}

/// Makes a path absolute, because the daemon has a working directory of its own.
fn absolute(path: &Path) -> Result<PathBuf, ApiError> {
    std::path::absolute(path).map_err(|error| ApiError::io("find", path, &error))
}

/// Runs a request to the daemon to its end.
pub(crate) fn converse<T>(talk: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ApiError::internal(format!("cannot start: {error}")))?
        .block_on(talk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
