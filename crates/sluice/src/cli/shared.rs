//! `sluice shared`: objects that several drives use.

use super::converse;
use clap::Subcommand;
use sluice_api::client::{Client, segment};
use sluice_api::{CloneRequest, GrowRequest, SharedList, VolumeList};
use sluice_control::drives::{SharedView, VolumeView};
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
        /// New size of its file or block device; without it, the pool takes all of the device
        #[arg(long)]
        size: Option<Size>,
    },
    /// Open a thin pool that did not open, and the drives that failed without it
    Retry { name: String },
    /// Volumes of a thin pool
    #[command(subcommand)]
    Volume(VolumeCommand),
}

#[derive(Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// List the volumes of a pool with the bytes that no other volume has
    List { pool: String },
    /// Make a volume with the content of another one, under a running drive, too; both share their extents until written
    Clone { pool: String, from: String, to: String },
    /// Delete a volume that no drive has
    Delete { pool: String, volume: String },
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
        SharedCommand::Volume(command) => volume(command, client, output),
    }
}

fn volume(command: VolumeCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    let route = |pool: &str| format!("/v1/shared/{}/volumes", segment(pool));
    match command {
        VolumeCommand::List { pool } => {
            let list = converse(client.get::<VolumeList>(&route(&pool)))?;
            output.answer(&list, |list| volumes(list.volumes.iter().map(|volume| (pool.as_str(), volume))))
        }
        VolumeCommand::Clone { pool, from, to } => {
            let route = format!("{}/{}/clone", route(&pool), segment(&from));
            let made = converse(client.post::<VolumeView>(&route, &CloneRequest { to }))?;
            output.answer(&made, |made| volumes([(pool.as_str(), made)].into_iter()))
        }
        VolumeCommand::Delete { pool, volume } => {
            converse(client.delete(&format!("{}/{}", route(&pool), segment(&volume))))?;
            let words = format!("volume {} of pool {pool} deleted\n", volume.escape_debug());
            output.answer(&serde_json::json!({ "deleted": volume, "pool": pool }), |_| words.clone())
        }
    }
}

/// Formats volumes, each with its pool.
fn volumes<'a>(all: impl Iterator<Item = (&'a str, &'a VolumeView)>) -> String {
    let mut table = Table::new(&["VOLUME", "POOL", "SIZE", "ALLOCATED", "OWN", "IN-USE"]);
    for (pool, volume) in all {
        table.row(vec![
            volume.name.escape_debug().to_string(),
            pool.to_owned(),
            volume.size.to_string(),
            volume.allocated.to_string(),
            volume.exclusive.map_or("-".to_owned(), |size| size.to_string()),
            if volume.in_use { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table.text()
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
    let bad = |it: &&SharedView| it.bad.0 > 0;
    let bad = list.shared.iter().filter(bad);
    let bad = bad.map(|it| format!("{}: its device does not write {}, which is left out\n", it.name, it.bad));
    let problem = |it: &SharedView| it.problem.as_ref().map(|why| format!("{}: {why}\n", it.name));
    let problems: String = list.shared.iter().filter_map(problem).chain(bad).collect();
    match list.shared.iter().any(|shared| !shared.volumes.is_empty()) {
        true => {
            let all =
                list.shared.iter().flat_map(|it| it.volumes.iter().map(|volume| (it.name.as_str(), volume)));
            format!("{}\n{}{problems}", table.text(), volumes(all))
        }
        false => table.text() + &problems,
    }
}
