//! States of a drive's copies, for `sluice drive show`.

use super::converse;
use serde::Deserialize;
use sluice_api::client::{Client, segment};
use sluice_api::{ControlAnswer, ControlRequest, FunctionList};
use sluice_control::drives::DriveView;
use sluice_spec::FunctionSpec;
use sluice_spec::problem::Problem;
use sluice_spec::size::Size;
use sluice_spec::table::Table;

/// Functions that keep copies.
const KINDS: [&str; 2] = ["mirror", "replicate"];

/// Shown part of such a function's status.
#[derive(Debug, Deserialize)]
struct Status {
    state: String,
    /// States of the members.
    members: Vec<String>,
    bytes: u64,
    stale_bytes: u64,
    resync_bytes_s: u64,
}

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
    for function in list.functions.iter().filter(|function| KINDS.contains(&function.function.as_str())) {
        found = true;
        let mut row = vec![function.nsid.to_string(), function.function.clone()];
        row.extend(match ask(client, &format!("{path}/{}/control", function.number)) {
            Ok(status) => status.cells(),
            Err(problem) => [problem.error, "-".into(), "-".into(), "-".into(), "-".into()],
        });
        table.row(row);
    }
    if found { format!("\n{}", table.text()) } else { String::new() }
}

fn ask(client: &Client, path: &str) -> Result<Status, Problem> {
    let request = ControlRequest { text: "status".to_owned(), quiesce: false };
    let answer = converse(client.post::<ControlAnswer>(path, &request))?;
    serde_json::from_str(&answer.answer).map_err(|_| Problem::internal("it does not say".to_owned()))
}

impl Status {
    fn cells(self) -> [String; 5] {
        let size = |bytes: u64| Size(bytes).to_string();
        // Whole MiB are exact enough.
        let rate = format!("{} MiB", self.resync_bytes_s >> 20);
        [self.state, self.members.join(", "), size(self.stale_bytes), size(self.bytes), rate]
    }
}
