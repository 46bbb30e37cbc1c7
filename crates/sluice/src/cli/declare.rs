//! `sluice apply`, `sluice diff` and `sluice export`: all drives at once, as a file describes them.

use super::{absolute, converse};
use clap::Args;
use sluice_api::client::Client;
use sluice_control::drives::{Applied, ApplyRequest, Plan, PlannedChange};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code of a comparison that failed, beside 0 for no difference and 1 for some.
const FAILED: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Description {
    /// File that describes the drives, as the configuration file does; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Delete created drives that are not in the file; their files stay
    #[arg(long)]
    prune: bool,
    /// Make namespaces smaller, too; the data behind the new end is lost
    #[arg(long)]
    shrink: bool,
    /// Take other storage for a target, too, if that is the only change; its data must have been copied there
    #[arg(long)]
    different_storage: bool,
}

#[derive(Debug, Args)]
pub(super) struct Apply {
    #[command(flatten)]
    description: Description,
    /// Delete drives also while a virtual machine uses them, which will not survive it
    #[arg(long, requires = "prune")]
    force: bool,
    /// Print the changes, and make none
    #[arg(long)]
    dry_run: bool,
}

impl Description {
    fn request(&self) -> Result<ApplyRequest, ApiError> {
        let mut text = String::new();
        let (file, read) = match self.file == Path::new("-") {
            true => (absolute(Path::new("standard input"))?, std::io::stdin().read_to_string(&mut text)),
            false => {
                let opened = std::fs::File::open(&self.file);
                (absolute(&self.file)?, opened.and_then(|mut file| file.read_to_string(&mut text)))
            }
        };
        read.map_err(|error| ApiError::io("read", &self.file, &error))?;
        let Self { prune, shrink, different_storage, .. } = *self;
        Ok(ApplyRequest { file, text, prune, shrink, force: false, different_storage })
    }
}

pub(super) fn apply(arguments: &Apply, client: &Client, output: Output) -> Result<(), ApiError> {
    let request = ApplyRequest { force: arguments.force, ..arguments.description.request()? };
    if arguments.dry_run {
        let plan: Plan = converse(client.post("/v1/diff", &request))?;
        return output.answer(&plan, planned);
    }
    let applied: Applied = converse(client.post("/v1/apply", &request))?;
    output.answer(&applied, |applied| lines(&applied.changes))
}

/// Prints the planned changes and the refused differences. The exit code is 0 without any, 1 for changes, and 2 for refusals.
pub(super) fn diff(description: &Description, client: &Client, output: Output) -> ExitCode {
    let compared = description.request().and_then(|request| {
        let plan: Plan = converse(client.post("/v1/diff", &request))?;
        output.answer(&plan, planned)?;
        Ok((plan.changes.is_empty(), plan.refused.is_empty()))
    });
    match compared {
        Ok((_, false)) => ExitCode::from(FAILED),
        Ok((true, true)) => ExitCode::SUCCESS,
        Ok((false, true)) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(FAILED)
        }
    }
}

pub(super) fn export(client: &Client, output: Output) -> Result<(), ApiError> {
    output.raw(converse(client.get_text("/v1/export"))?.as_bytes())
}

fn planned(plan: &Plan) -> String {
    let kept =
        plan.kept.iter().map(|drive| format!("  {drive}: not in the file, and stays without --prune\n"));
    let refused = plan.refused.iter().map(|refused| {
        let needs = refused.needs.iter().map(|needs| format!("  needs: {needs}\n")).collect::<String>();
        format!("! {}: {}\n{needs}", refused.drive, refused.text)
    });
    let refused: String = refused.collect();
    let changes = match plan.changes.is_empty() && !refused.is_empty() {
        true => String::new(),
        false => planned_lines(&plan.changes),
    };
    changes + &refused + &kept.collect::<String>()
}

fn lines(changes: &[PlannedChange]) -> String {
    all_lines(changes, false)
}

fn planned_lines(changes: &[PlannedChange]) -> String {
    all_lines(changes, true)
}

/// Formats changes, with the conditions and options that they need.
fn all_lines(changes: &[PlannedChange], with_needs: bool) -> String {
    let line = |change: &PlannedChange| {
        let sign = match change.kind.as_str() {
            "create" => '+',
            "delete" => '-',
            _ => '~',
        };
        let needs = change.needs.as_ref().filter(|_| with_needs);
        let needs = needs.map(|needs| format!(" (needs {needs})")).unwrap_or_default();
        format!("{sign} {}: {}, {}{needs}\n", change.drive, change.kind, change.text)
    };
    match changes {
        [] => "no difference\n".to_owned(),
        changes => changes.iter().map(line).collect(),
    }
}
