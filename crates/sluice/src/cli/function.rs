//! `sluice function`.

use super::converse;
use super::function_spec::Described;
use crate::log;
use clap::{Args, Subcommand};
use sluice_api::client::{Client, segment};
use sluice_api::{
    AttachRequest, ControlAnswer, ControlRequest, FunctionList, KindList, MoveRequest, RestartRequest,
};
use sluice_control::drives::FunctionView;
use sluice_control::launch::Restrictions;
use sluice_crypt::Given;
use sluice_functions::{SERVICES, describe, make};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::Table;
use sluice_spec::{Place, check_kind};
use sluice_uif::{Arguments, sandbox};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum FunctionCommand {
    /// List the functions that a drive can have, with their options, orders and metrics
    Kinds,
    /// Show the functions of a drive that use the function SDK
    Show { drive: String },
    /// End the processes of a drive's functions and start them again; no command is lost
    Restart {
        drive: String,
        /// Number of the only function to restart, as `show` prints it
        #[arg(long)]
        number: Option<usize>,
    },
    /// Insert a function into the stack of a drive, under load; it stays after a restart of the daemon
    Attach {
        drive: String,
        #[command(flatten)]
        function: Described,
        /// Number of the namespace
        #[arg(long, value_name = "NSID", default_value_t = 1)]
        namespace: u32,
        /// Number of existing functions above the new one, by default none
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        below: usize,
    },
    /// Remove a function from the stack of a drive, under load; no command is lost
    Detach {
        drive: String,
        #[command(flatten)]
        which: Which,
    },
    /// Move a function into the daemon, or into a process of its own, under load; no command is lost
    Move {
        drive: String,
        place: Place,
        #[command(flatten)]
        which: Which,
    },
    /// Send a text to a function, and print its answer
    Tell {
        drive: String,
        /// The text; its meaning is up to the function
        #[arg(required = true)]
        text: Vec<String>,
        #[command(flatten)]
        which: Which,
        /// Let the drive's commands end first, and begin none before the answer
        #[arg(long)]
        quiesce: bool,
    },
    /// Run one of Sluice's own functions in this process
    Run {
        #[arg(help = format!("Name of the function: {}", service_names()))]
        kind: String,
        /// Socket to listen on, for any number of drives; by default standard input is a daemon's socket
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// A file, or a folder with all below it, that it may read because its drives' options name it
        #[arg(long, value_name = "PATH", requires = "socket")]
        readable: Vec<PathBuf>,
        /// An inherited descriptor, which its drives' option key_fd may name
        #[arg(long, value_name = "NUMBER", requires = "socket")]
        key_fd: Vec<i32>,
    },
    /// Drop the rights that a function's process must not have, and execute its program; the daemon starts it
    #[command(hide = true)]
    Launch {
        /// A file or folder that the program cannot open
        #[arg(long, value_name = "PATH")]
        hide: Vec<PathBuf>,
        /// The user of this process runs only functions
        #[arg(long)]
        own_user: bool,
        /// The program and its arguments
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

/// Returns the names of the functions that come with Sluice and use the function SDK.
pub(super) fn service_names() -> String {
    SERVICES.iter().map(|service| service.name).collect::<Vec<_>>().join(", ")
}

/// Choice of one of a drive's functions.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Number of the function, or its name as `show` prints it; needed if the drive has several
    #[arg(long, value_name = "WHICH")]
    function: Option<String>,
    /// Number of the namespace whose functions are meant
    #[arg(long, value_name = "NSID")]
    namespace: Option<u32>,
}

impl Which {
    /// Returns the API path of the function.
    fn path(&self, drive: &str, client: &Client) -> Result<String, ApiError> {
        let path = functions_path(drive);
        let list = converse(client.get::<FunctionList>(&path))?;
        let number = which(drive, &list, self.function.as_deref(), self.namespace)?;
        Ok(format!("{path}/{number}"))
    }
}

fn functions_path(drive: &str) -> String {
    format!("/v1/drives/{}/functions", segment(drive))
}

pub(super) fn run(command: FunctionCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        FunctionCommand::Kinds => output.answer(&KindList { functions: describe() }, kinds),
        FunctionCommand::Show { drive } => {
            output.answer(&converse(client.get::<FunctionList>(&functions_path(&drive)))?, table)
        }
        FunctionCommand::Restart { drive, number } => {
            let request = RestartRequest { number };
            let path = format!("{}/restart", functions_path(&drive));
            output.answer(&converse(client.post::<FunctionList>(&path, &request))?, table)
        }
        FunctionCommand::Attach { drive, function, namespace, below } => {
            let request = AttachRequest { function: function.spec()?, nsid: namespace, below };
            output.answer(&converse(client.post::<FunctionList>(&functions_path(&drive), &request))?, table)
        }
        FunctionCommand::Detach { drive, which } => {
            converse(client.delete(&which.path(&drive, client)?))?;
            let text = format!("drive {drive} does not have the function any more\n");
            output.answer(&serde_json::json!({ "detached": drive }), |_| text)
        }
        FunctionCommand::Move { drive, place, which } => {
            let path = format!("{}/move", which.path(&drive, client)?);
            output.answer(&converse(client.post::<FunctionList>(&path, &MoveRequest { place }))?, table)
        }
        FunctionCommand::Tell { drive, text, which, quiesce } => {
            let request = ControlRequest { text: text.join(" "), quiesce };
            let path = format!("{}/control", which.path(&drive, client)?);
            let answer = converse(client.post::<ControlAnswer>(&path, &request))?;
            output.answer(&answer, |answer| format!("{}\n", answer.answer.trim_end_matches('\n')))
        }
        FunctionCommand::Run { kind, socket, readable, key_fd } => {
            be(&kind, &Arguments { socket, readable, unconfined: false }, &key_fd)
        }
        FunctionCommand::Launch { hide, own_user, command } => {
            launch(&Restrictions { hidden: hide, command, has_own_user: own_user })
        }
    }
}

/// Formats the functions that there are, and under each its options, orders and metrics.
fn kinds(list: &KindList) -> String {
    let mut text = String::new();
    for function in &list.functions {
        let layers = match function.layers().as_str() {
            "" => String::new(),
            layers => format!(" Layers besides the rest of the stack: {layers}."),
        };
        text += &format!("{}\n    {}{layers}\n", function.keys, function.about);
        let mut table = Table::new(&["", "", ""]);
        let mut rows = |what: &str, items: Vec<(&String, &String)>| {
            items.into_iter().for_each(|(name, about)| {
                table.row(vec![what.to_owned(), name.clone(), about.clone()]);
            });
        };
        rows("    option", function.options.iter().map(|it| (&it.name, &it.about)).collect());
        rows("    order", function.orders.iter().map(|it| (&it.name, &it.about)).collect());
        rows("    metric", function.metrics.iter().map(|it| (&it.name, &it.about)).collect());
        text.extend(table.text().lines().skip(1).map(|line| format!("{line}\n")));
        text.push('\n');
    }
    text
}

fn table(list: &FunctionList) -> String {
    let titles = [
        "NUMBER", "NSID", "FUNCTION", "STATE", "PID", "STARTS", "SENT", "REPLIES", "STRAY", "INVALID",
        "DEATHS", "TIMEOUTS", "FAILED", "WAITING",
    ];
    let mut table = Table::new(&titles);
    for function in &list.functions {
        table.row(vec![
            function.number.to_string(),
            function.nsid.to_string(),
            function.function.clone(),
            state(function),
            function.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            function.starts.to_string(),
            function.sent.to_string(),
            function.replies.to_string(),
            function.stray.to_string(),
            function.invalid.to_string(),
            function.deaths.to_string(),
            function.timeouts.to_string(),
            function.failed.to_string(),
            function.waiting.to_string(),
        ]);
    }
    table.text()
}

/// Returns the number of the only function that matches.
///
/// # Errors
/// If no function matches, or several do.
pub(super) fn which(
    drive: &str,
    list: &FunctionList,
    function: Option<&str>,
    namespace: Option<u32>,
) -> Result<usize, ApiError> {
    let is_meant = |it: &&FunctionView| {
        let named = function.is_none_or(|which| it.function == which || it.number.to_string() == which);
        named && namespace.is_none_or(|nsid| it.nsid == nsid)
    };
    match list.functions.iter().filter(is_meant).collect::<Vec<_>>().as_slice() {
        [only] => Ok(only.number),
        [] => Err(ApiError::not_found(format!("drive `{drive}` has no such function"))
            .hint(format!("`sluice function show {drive}` lists what it has"))),
        several => Err(ApiError::invalid(format!("drive `{drive}` has {} that may be meant", several.len()))
            .hint("say which by its number: --function 1")),
    }
}

fn state(function: &FunctionView) -> String {
    match &function.refusal {
        _ if !function.up => "down".to_owned(),
        Some(reason) => format!("refuses: {reason}"),
        None if function.ready => "up".to_owned(),
        None => "starting".to_owned(),
    }
}

/// Restricts this process and executes the program. Returns only if the program cannot be executed, or none
/// is given.
fn launch(restrictions: &Restrictions) -> Result<(), ApiError> {
    restrictions
        .apply()
        .map_err(|error| ApiError::internal(format!("this process cannot be restricted: {error}")))?;
    let Some((program, arguments)) = restrictions.command.split_first() else { return Ok(()) };
    let error = std::process::Command::new(program).args(arguments).exec();
    Err(ApiError::io("execute", Path::new(program), &error)
        .hint("let the function's user read and execute it; it cannot be in a folder of the daemon's"))
}

/// Serves a function in this process until the daemon is gone.
fn be(kind: &str, arguments: &Arguments, key_fds: &[i32]) -> Result<(), ApiError> {
    check_kind(kind)?;
    log::start_plainly();
    // The process must be hidden before it has a key.
    sandbox::hide().map_err(|error| ApiError::internal(format!("this process cannot hide: {error}")))?;
    let given = Given::read(key_fds).map_err(ApiError::invalid)?;
    arguments.serve(&mut |options| make(kind, options, &given)).map_err(|failure| {
        let socket = arguments.socket.as_ref().map(|path| format!(" at {}", path.display()));
        let place = socket.unwrap_or_default();
        ApiError::internal(format!("the function {kind} does not serve{place}: {failure}"))
    })
}
