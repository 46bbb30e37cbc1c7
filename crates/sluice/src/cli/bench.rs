//! `sluice bench`: hands over to the program `sluice-bench`, so that the daemon has no ptrace in it.

use clap::Args;
use sluice_spec::error::ApiError;
use sluice_spec::output::Form;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Name of the program.
const PROGRAM: &str = "sluice-bench";

/// Arguments of `sluice bench`, as `sluice-bench` takes them.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// See `sluice bench --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `sluice-bench`. Returns only if that fails.
pub(super) fn run(arguments: BenchArgs, form: Form) -> Result<(), ApiError> {
    let program = program();
    let mut command = Command::new(&program);
    if form == Form::Json {
        command.args(["--output", "json"]);
    }
    let error = command.args(arguments.arguments).exec();
    Err(ApiError::io("start", &program, &error)
        .hint(format!("{PROGRAM} belongs beside `sluice`, or in the PATH; `make bench` builds both")))
}

/// Returns the path of `sluice-bench` beside this program, or its bare name, which is looked up in PATH.
fn program() -> PathBuf {
    let here = std::env::current_exe().ok();
    let beside = here.as_deref().and_then(|path| path.parent()).map(|folder| folder.join(PROGRAM));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM))
}
