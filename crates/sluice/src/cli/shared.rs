//! `sluice shared`: objects that several drives use.

use super::converse;
use clap::Subcommand;
use sluice_api::SharedList;
use sluice_api::client::Client;
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::Table;

#[derive(Debug, Subcommand)]
pub(super) enum SharedCommand {
    /// List all shared objects with their use, and the volumes of thin pools
    List,
}

pub(super) fn run(command: SharedCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        SharedCommand::List => output.answer(&converse(client.get::<SharedList>("/v1/shared"))?, list),
    }
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
    match list.shared.iter().any(|shared| !shared.volumes.is_empty()) {
        true => format!("{}\n{}", table.text(), volumes.text()),
        false => table.text(),
    }
}
