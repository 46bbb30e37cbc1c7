//! `sluice reactor`, `sluice reload` and `sluice version`: the daemon itself.

use super::{absolute, converse};
use clap::{Args, Subcommand};
use serde::Serialize;
use sluice_api::client::Client;
use sluice_api::{ReactorList, UpgradeRequest, Version};
use sluice_control::drives::{Reloaded, Upgraded};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::{Table, pairs};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum ReactorCommand {
    /// List all reactors with their counters
    List,
}

pub(super) fn run(command: ReactorCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        ReactorCommand::List => output.answer(&converse(client.get::<ReactorList>("/v1/reactors"))?, list),
    }
}

fn list(list: &ReactorList) -> String {
    let titles =
        ["REACTOR", "CORE", "TURNS", "BUSY-TURNS", "WORK", "SPURIOUS", "SLEEPS", "SYSCALLS", "LONGEST-US"];
    let mut table = Table::new(&titles);
    for reactor in &list.reactors {
        table.row(vec![
            reactor.reactor.to_string(),
            reactor.core.map_or_else(|| "any".to_owned(), |core| core.to_string()),
            reactor.turns.to_string(),
            reactor.busy_turns.to_string(),
            reactor.commands.to_string(),
            reactor.spurious_polls.to_string(),
            reactor.sleeps.to_string(),
            reactor.syscalls.to_string(),
            (reactor.longest_turn_ns / 1000).to_string(),
        ]);
    }
    table.text()
}

/// Reloads the configuration and prints the changes. Fails if a change was refused, after printing the
/// others.
pub(super) fn reload(client: &Client, output: Output) -> Result<(), ApiError> {
    let outcome: Reloaded = converse(client.post("/v1/reload", &()))?;
    output.answer(&outcome, |outcome| {
        let line = |word: &'static str| move |name: &String| format!("drive {name} {word}\n");
        let (added, removed) =
            (outcome.added.iter().map(line("added")), outcome.removed.iter().map(line("removed")));
        let classified = outcome.classified.iter().map(line("classified anew"));
        let lines: String = added.chain(removed).chain(classified).collect();
        if lines.is_empty() { "no drive came or went\n".to_owned() } else { lines }
    })?;
    let words: Vec<String> = outcome.refused.iter().map(ApiError::in_one_line).collect();
    match words.as_slice() {
        [] => Ok(()),
        words => Err(ApiError::conflict(format!("not everything was done: {}", words.join("; ")))),
    }
}

#[derive(Debug, Args)]
pub(super) struct UpgradeArgs {
    /// Binary of the new process; by default the one that the daemon was started from, as it is now
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Upgrades the daemon and prints the new process.
pub(super) fn upgrade(arguments: UpgradeArgs, client: &Client, output: Output) -> Result<(), ApiError> {
    let binary = arguments.binary.as_deref().map(absolute).transpose()?;
    let upgraded: Upgraded = converse(client.post("/v1/upgrade", &UpgradeRequest { binary }))?;
    output.answer(&upgraded, |upgraded| format!("process {} serves now\n", upgraded.process))
}

/// Versions of the tool and of the daemon, to compare them.
#[derive(Serialize)]
struct Versions {
    tool: &'static str,
    /// None if no daemon answers.
    daemon: Option<Version>,
}

pub(super) fn version(client: &Client, output: Output) -> Result<(), ApiError> {
    let daemon = converse(client.get::<Version>("/v1/version")).ok();
    let versions = Versions { tool: env!("CARGO_PKG_VERSION"), daemon };
    output.answer(&versions, |versions| {
        let daemon = match &versions.daemon {
            Some(daemon) => format!("{} (process {})", daemon.version, daemon.pid),
            None => format!("none answers at {}", client.socket().display()),
        };
        pairs(&[("tool", versions.tool.to_owned()), ("daemon", daemon)])
    })
}
