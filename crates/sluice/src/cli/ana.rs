//! `sluice drive ana`.

use super::converse;
use clap::Args;
use sluice_api::AnaList;
use sluice_api::client::{Client, segment};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::Table;
use sluice_spec::{AnaSpec, AnaStateName};

#[derive(Debug, Args)]
pub(super) struct Ana {
    name: String,
    /// The state from now on; without it, the current settings are shown
    #[arg(long, value_enum)]
    state: Option<AnaStateName>,
    /// The only port to set: the address that hosts connect to, or vfio-user:1 for the first socket
    #[arg(long, value_name = "ADDRESS:PORT", requires = "state")]
    port: Option<String>,
    /// The only ANA group to set
    #[arg(long, requires = "state")]
    group: Option<u32>,
}

impl Ana {
    pub(super) fn run(self, client: &Client, output: Output) -> Result<(), ApiError> {
        let path = format!("/v1/drives/{}/ana", segment(&self.name));
        let states: AnaList = match self.state {
            Some(state) => {
                converse(client.post(&path, &AnaSpec { port: self.port, group: self.group, state }))?
            }
            None => converse(client.get(&path))?,
        };
        output.answer(&states, text)
    }
}

fn text(list: &AnaList) -> String {
    let mut table = Table::new(&["PORT", "GROUP", "STATE"]);
    for spec in &list.states {
        let group = spec.group.map_or_else(|| "all".to_owned(), |group| group.to_string());
        table.row(vec![spec.port.clone().unwrap_or_else(|| "all".to_owned()), group, spec.state.to_string()]);
    }
    match list.states.is_empty() {
        true => "all ways are optimized\n".to_owned(),
        false => table.text(),
    }
}
