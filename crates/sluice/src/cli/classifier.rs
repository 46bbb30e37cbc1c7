//! `sluice classifier`.

use super::map::{self, MapCommand};
use super::{absolute, converse};
use clap::{Args, Subcommand};
use sluice_api::ReplaceRequest;
use sluice_api::client::{Client, segment};
use sluice_control::drives::ClassifierStatus;
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::pairs;
use sluice_spec::{ClassifierSpec, default_section};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum ClassifierCommand {
    /// Let a program choose the path of each command of a drive; it stays after a restart of the daemon
    Attach {
        drive: String,
        #[command(flatten)]
        program: Program,
    },
    /// Replace a drive's classifier by another program, under load
    Replace {
        drive: String,
        #[command(flatten)]
        program: Program,
        /// Begin with empty maps, instead of the old ones of equal name and shape
        #[arg(long)]
        fresh_maps: bool,
    },
    /// Let all commands of a drive take the first path again
    Detach { drive: String },
    /// Show the state of a drive's classifier
    Show { drive: String },
    /// Show and change a classifier's maps
    #[command(subcommand)]
    Maps(MapCommand),
}

#[derive(Debug, Args)]
pub(super) struct Program {
    /// Object file, as `clang -target bpf -O2 -g -c` makes it
    object: PathBuf,
    /// Section of the object that the program is in
    #[arg(long, default_value_t = default_section())]
    section: String,
    /// Number of errors after which it is detached from a namespace; commands take the first path then
    #[arg(long, value_name = "ERRORS")]
    errors_max: Option<u64>,
    /// Let the program read the machine's clock as it is, instead of in steps of 4 ms
    #[arg(long)]
    precise_clock: bool,
}

impl Program {
    fn spec(self) -> Result<ClassifierSpec, ApiError> {
        let object = absolute(&self.object)?;
        let Self { section, errors_max, precise_clock, .. } = self;
        Ok(ClassifierSpec { object, section, errors_max, precise_clock })
    }
}

pub(super) fn run(command: ClassifierCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        ClassifierCommand::Attach { drive, program } => {
            let status = converse(client.post::<ClassifierStatus>(&path(&drive), &program.spec()?))?;
            output.answer(&status, show)
        }
        ClassifierCommand::Replace { drive, program, fresh_maps } => {
            let request = ReplaceRequest { classifier: program.spec()?, fresh_maps };
            output.answer(&converse(client.put::<ClassifierStatus>(&path(&drive), &request))?, show)
        }
        ClassifierCommand::Detach { drive } => {
            converse(client.delete(&path(&drive)))?;
            let text = format!("drive {drive} has no classifier any more\n");
            output.answer(&serde_json::json!({ "detached": drive }), |_| text)
        }
        ClassifierCommand::Show { drive } => {
            output.answer(&converse(client.get::<ClassifierStatus>(&path(&drive)))?, show)
        }
        ClassifierCommand::Maps(command) => map::run(command, client, output),
    }
}

/// Returns the API path of a drive's classifier.
pub(super) fn path(drive: &str) -> String {
    format!("/v1/drives/{}/classifier", segment(drive))
}

fn show(status: &ClassifierStatus) -> String {
    let hooks = &status.hooks;
    let engine = if status.compiled { "machine code" } else { "interpreted" };
    let clock = if status.precise_clock { "precise" } else { "in steps of 4 ms" };
    let calls = format!(
        "{} at submission, {} at legs done, {} before completion",
        hooks.submission, hooks.leg_done, hooks.before_completion
    );
    let state = match status.detached.as_slice() {
        [] => "attached".to_owned(),
        detached => {
            let numbers: Vec<String> = detached.iter().map(u32::to_string).collect();
            format!("detached for its errors from namespace {}", numbers.join(", "))
        }
    };
    let errors: u64 = status.errors.iter().map(|error| error.commands).sum();
    let mut text = pairs(&[
        ("object", status.object.clone()),
        ("section", status.section.clone()),
        ("state", state),
        ("program", format!("{} instructions, {engine}", status.instructions)),
        ("clock", clock.to_owned()),
        ("calls", calls),
        ("errors max", status.errors_max.map_or_else(|| "none".to_owned(), |most| most.to_string())),
        ("errors", format!("{errors} failed commands")),
        ("overreached", status.overreached.to_string()),
        ("traps", status.traps.to_string()),
    ]);
    add_lists(&mut text, status);
    text
}

fn add_lists(text: &mut String, status: &ClassifierStatus) {
    for error in &status.errors {
        *text += &format!("{:>12} commands: {}\n", error.commands, error.error);
    }
    if let Some(trap) = &status.last_trap {
        *text += &format!("last trap:   {trap}\n");
    }
    for note in &status.notes {
        *text += &format!("note:        {note}\n");
    }
    for (index, count) in status.counters.iter().enumerate().filter(|(_, count)| **count > 0) {
        *text += &format!("counter {index:<3}  {count}\n");
    }
    for line in &status.trace {
        *text += &format!(
            "trace {:>9}.{:09}  {}\n",
            line.when_ns / 1_000_000_000,
            line.when_ns % 1_000_000_000,
            line.text
        );
    }
    if status.trace_dropped > 0 {
        *text += &format!("trace:       {} more found no room\n", status.trace_dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_control::drives::TraceLine;

    #[test]
    fn lines_that_found_no_room_are_counted() {
        let line = TraceLine { when_ns: 1_000_000_002, text: "seen".to_owned() };
        let mut status = ClassifierStatus { trace: vec![line], ..ClassifierStatus::default() };
        let all = show(&status);
        assert!(all.ends_with("trace         1.000000002  seen\n"), "{all}");
        status.trace_dropped = 3;
        assert_eq!(show(&status), all + "trace:       3 more found no room\n");
    }
}
