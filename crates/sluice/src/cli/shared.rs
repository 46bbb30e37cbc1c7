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
    /// List all shared objects with their use
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
    table.text()
}
