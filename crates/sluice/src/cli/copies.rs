//! States of a drive's copies, for `sluice drive show`.

use super::converse;
use serde::Deserialize;
use sluice_api::client::{Client, segment};
use sluice_api::{ControlAnswer, ControlRequest, FunctionList};
use sluice_control::drives::{DriveView, FunctionView};
use sluice_functions::{SetOrder, service};
use sluice_spec::FunctionSpec;
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::table::Table;

/// Returns a table with a line for each set of copies; an empty string if there is none.
pub(super) fn copies(drive: &DriveView, client: &Client) -> String {
    let has_some = |function: &FunctionSpec| matches!(function, FunctionSpec::Uif(_));
    if !drive.namespaces.iter().any(|namespace| namespace.functions.iter().any(has_some)) {
        return String::new();
    }
    let path = format!("/v1/drives/{}/functions", segment(&drive.name));
    let Ok(list) = converse(client.get::<FunctionList>(&path)) else { return String::new() };
    let mut table = Table::new(&["NSID", "FUNCTION", "STATE", "MEMBERS", "TO COPY", "OF", "A SECOND"]);
    let mut found = false;
    for function in list.functions.iter().filter(keeps_copies) {
        found = true;
        let mut row = vec![function.nsid.to_string(), function.function.clone()];
        row.extend(match ask(client, &format!("{path}/{}/control", function.number)) {
            Ok(status) => cells(&status),
            Err(problem) => [problem.error, "-".into(), "-".into(), "-".into(), "-".into()],
        });
        table.row(row);
    }
    if found { format!("\n{}", table.text()) } else { String::new() }
}

fn keeps_copies(function: &&FunctionView) -> bool {
    service(&function.function).is_some_and(|service| service.keeps_copies)
}

/// Facts that the status of every set has.
#[derive(Deserialize)]
struct SetFacts {
    state: String,
    members: Vec<String>,
    bytes: u64,
    stale_bytes: u64,
    resync_bytes_s: u64,
}

fn ask(client: &Client, path: &str) -> Result<SetFacts, ApiError> {
    let request = ControlRequest { text: SetOrder::Status.to_string(), quiesce: false };
    let answer = converse(client.post::<ControlAnswer>(path, &request))?;
    serde_json::from_str(&answer.answer)
        .map_err(|error| ApiError::internal(format!("this is no status of a set: {error}")))
}

fn cells(status: &SetFacts) -> [String; 5] {
    let size = |bytes: u64| Size(bytes).to_string();
    // Whole MiB are exact enough.
    let rate = format!("{} MiB", status.resync_bytes_s >> 20);
    [status.state.clone(), status.members.join(", "), size(status.stale_bytes), size(status.bytes), rate]
}
