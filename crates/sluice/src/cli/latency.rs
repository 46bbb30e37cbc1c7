//! `sluice drive latency`: how long commands take.

use super::converse;
use sluice_api::LatencyList;
use sluice_api::client::{Client, segment};
use sluice_control::drives::{DriveLatency, DriveView, LatencyView};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::Table;

/// Parts of the commands whose latency is shown.
const QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 1.0];

pub(super) fn run(name: Option<&str>, client: &Client, output: Output) -> Result<(), ApiError> {
    let mut list: LatencyList = converse(client.get("/v1/latency"))?;
    if let Some(name) = name {
        // The error for an unknown drive names a similar one.
        converse(client.get::<DriveView>(&format!("/v1/drives/{}", segment(name))))?;
        list.drives.retain(|drive| drive.drive == name);
    }
    if list.drives.is_empty() {
        return Err(ApiError::conflict("no open drive is measured")
            .hint("set latency = true in [metrics] of the configuration, and restart the daemon"));
    }
    output.answer(&list, |list| table(&list.drives))
}

fn table(drives: &[DriveLatency]) -> String {
    let titles = ["DRIVE", "OPERATION", "COMMANDS", "MEAN-US", "P50-US", "P99-US", "P99.9-US", "MAX-US"];
    let mut table = Table::new(&titles);
    for drive in drives {
        for operation in drive.operations.iter().filter(|operation| operation.count > 0) {
            let LatencyView { operation: name, count, .. } = operation;
            let quantiles = QUANTILES.map(|part| operation.quantile_ns(part));
            let times = std::iter::once(operation.mean_ns()).chain(quantiles).map(in_us);
            let cells = [drive.drive.clone(), name.clone(), count.to_string()];
            table.row(cells.into_iter().chain(times).collect());
        }
    }
    table.text()
}

/// Returns nanoseconds as microseconds.
pub(super) fn in_us(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1000.0))
}
