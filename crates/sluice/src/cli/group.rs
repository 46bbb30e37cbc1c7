//! `sluice group`: namespaces with common limits.

use super::converse;
use super::limit::{LimitArgs, in_words};
use clap::Subcommand;
use sluice_api::GroupList;
use sluice_api::client::{Client, segment};
use sluice_control::drives::GroupView;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::output::Output;
use sluice_spec::table::{Table, pairs};

#[derive(Debug, Subcommand)]
pub(super) enum GroupCommand {
    /// List all groups with their limits
    List,
    /// Show one group
    Show { name: String },
    /// Create a group, or change its limits, under load; it stays after a restart of the daemon
    Set {
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Delete a group without members
    Delete { name: String },
}

pub(super) fn run(command: GroupCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    let path = |name: &str| format!("/v1/groups/{}", segment(name));
    match command {
        GroupCommand::List => output.answer(&converse(client.get::<GroupList>("/v1/groups"))?, list),
        GroupCommand::Show { name } => output.answer(&converse(client.get::<GroupView>(&path(&name)))?, show),
        GroupCommand::Set { name, limits } => {
            let former = match converse(client.get::<GroupView>(&path(&name))) {
                Ok(group) => group.limits,
                Err(problem) if problem.kind == Kind::NotFound => Default::default(),
                Err(problem) => return Err(problem),
            };
            let limits = limits.change(former);
            output.answer(&converse(client.put::<GroupView>(&path(&name), &limits))?, show)
        }
        GroupCommand::Delete { name } => {
            converse(client.delete(&path(&name)))?;
            output.answer(&serde_json::json!({ "deleted": name }), |_| format!("group {name} deleted\n"))
        }
    }
}

fn list(list: &GroupList) -> String {
    let mut table = Table::new(&["NAME", "MEMBERS", "WAITING", "WAITED", "LIMITS"]);
    for group in &list.groups {
        table.row(vec![
            group.name.clone(),
            group.members.to_string(),
            group.waiting.to_string(),
            group.waited.to_string(),
            in_words(&group.limits),
        ]);
    }
    table.text()
}

fn show(group: &GroupView) -> String {
    pairs(&[
        ("name", group.name.clone()),
        ("origin", group.origin.as_str().to_owned()),
        ("limits", in_words(&group.limits)),
        ("members", group.members.to_string()),
        ("waiting", group.waiting.to_string()),
        ("waited", group.waited.to_string()),
    ])
}
