//! `sluice shared`: objects that several drives use.

use super::converse;
use clap::Subcommand;
use sluice_api::client::{Client, segment};
use sluice_api::{GrowRequest, SharedList};
use sluice_control::drives::SharedView;
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::size::Size;
use sluice_spec::table::Table;

#[derive(Debug, Subcommand)]
pub(super) enum SharedCommand {
    /// List all shared objects with their use, and the volumes of thin pools
    List,
    /// Grow a thin pool under its running drives; waiting writes continue, and it stays after a restart of the daemon
    Grow {
        name: String,
        /// New size of its file or block device; all of what is there if not given
        #[arg(long)]
        size: Option<Size>,
    },
    /// Open a thin pool that did not open, and the drives that failed without it
    Retry { name: String },
}

pub(super) fn run(command: SharedCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        SharedCommand::List => output.answer(&converse(client.get::<SharedList>("/v1/shared"))?, list),
        SharedCommand::Grow { name, size } => {
            let route = format!("/v1/shared/{}/grow", segment(&name));
            let view = converse(client.post::<SharedView>(&route, &GrowRequest { size }))?;
            output.answer(&view, one)
        }
        SharedCommand::Retry { name } => {
            let route = format!("/v1/shared/{}/retry", segment(&name));
            output.answer(&converse(client.post::<SharedView>(&route, &()))?, one)
        }
    }
}

fn one(shared: &SharedView) -> String {
    list(&SharedList { shared: vec![shared.clone()] })
}

fn list(list: &SharedList) -> String {
    let mut table = Table::new(&["NAME", "TYPE", "REACTOR", "SIZE", "FREE", "USERS"]);
    for shared in &list.shared {
        table.row(vec![
            shared.name.clone(),
            shared.kind.as_str().to_owned(),
            shared.reactor.to_string(),
            shared.size.to_string(),
            shared.free.to_string(),
            shared.users.to_string(),
        ]);
    }
    let mut volumes = Table::new(&["VOLUME", "POOL", "SIZE", "ALLOCATED", "IN-USE"]);
    for shared in &list.shared {
        for volume in &shared.volumes {
            volumes.row(vec![
                volume.name.escape_debug().to_string(),
                shared.name.clone(),
                volume.size.to_string(),
                volume.allocated.to_string(),
                if volume.in_use { "yes" } else { "no" }.to_owned(),
            ]);
        }
    }
    let problem = |it: &SharedView| it.problem.as_ref().map(|why| format!("{}: {why}\n", it.name));
    let problems: String = list.shared.iter().filter_map(problem).collect();
    match list.shared.iter().any(|shared| !shared.volumes.is_empty()) {
        true => format!("{}\n{}{problems}", table.text(), volumes.text()),
        false => table.text() + &problems,
    }
}
