//! `sluice trace`.

use super::converse;
use clap::Args;
use sluice_api::client::{Client, segment};
use sluice_control::drives::{TRACE_EVERY, TraceView};
use sluice_spec::error::ApiError;
use sluice_spec::output::{Form, Output};

/// Longest time of a trace, seconds.
const DAY: u64 = 24 * 60 * 60;

#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    drive: String,
    /// End after so many commands
    #[arg(long, value_name = "COMMANDS")]
    count: Option<u64>,
    /// End after so many seconds; a day if not given
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Only commands that took so many microseconds or longer; looks at every command if --every is not given
    #[arg(long, value_name = "US", default_value_t = 0)]
    slow: u64,
    /// Trace one command of so many, by default of 512, and the next one after a millisecond without any
    #[arg(long, value_name = "COMMANDS")]
    every: Option<u32>,
    /// Print a JSON object for each command, as -o json does
    #[arg(long)]
    json: bool,
}

/// Prints a row for each traced command.
pub(super) fn run(arguments: &TraceArgs, form: Form, client: &Client) -> Result<(), ApiError> {
    let TraceArgs { drive, count, seconds, slow, every, json } = arguments;
    let form = if *json { Form::Json } else { form };
    let every = every.unwrap_or(if *slow > 0 { 1 } else { TRACE_EVERY });
    let (drive, seconds) = (segment(drive), seconds.unwrap_or(DAY));
    let mut path = format!("/v1/drives/{drive}/trace?slow_us={slow}&every={every}&seconds={seconds}");
    if let Some(count) = count {
        path += &format!("&count={count}");
    }
    let output = Output::new(form);
    let (mut dropped, mut heading) = (0, (form == Form::Table).then(heading));
    converse(client.lines(&path, |line| {
        let command: TraceView = serde_json::from_str(line)
            .map_err(|error| ApiError::internal(format!("the daemon's line is not understood: {error}")))?;
        dropped = command.dropped;
        if let Some(heading) = heading.take() {
            output.raw(heading.as_bytes())?;
        }
        match form {
            Form::Json => output.raw(format!("{line}\n").as_bytes()),
            Form::Table => output.raw(row(&command).as_bytes()),
        }
    }))?;
    if let Some(heading) = heading {
        output.raw(heading.as_bytes())?;
    }
    if dropped > 0 {
        eprintln!(
            "{dropped} more commands were chosen and not traced: too many at a time, or read too slowly"
        );
    }
    Ok(())
}

fn heading() -> String {
    let [at, queue, cid, operation, nsid, lba, blocks] =
        ["AT MS", "QUEUE", "CID", "OPERATION", "NSID", "LBA", "BLOCKS"];
    let [classified, path, sent, returned, completed] =
        ["CLASSIFIED US", "PATH", "SENT US", "RETURNED US", "COMPLETED US"];
    format!(
        "{at:>12} {queue:>6} {cid:>5} {operation:<12} {nsid:>4} {lba:>12} {blocks:>6} {classified:>13} {path:>4} \
         {sent:>9} {returned:>11} {completed:>12} STATUS\n"
    )
}

fn row(of: &TraceView) -> String {
    let us = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), thousandths);
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let queue = match of.controller {
        0 => of.queue.to_string(),
        controller => format!("{controller}:{}", of.queue),
    };
    let (at, cid, operation, nsid) = (thousandths(of.fetched_ns / 1000), of.cid, &of.operation, of.nsid);
    let (lba, blocks) = (number(of.slba), number(of.blocks.map(u64::from)));
    let (classified, path) = (us(of.classified_ns), number(of.path.map(u64::from)));
    let (sent, returned, completed) = (us(of.sent_ns), us(of.returned_ns), us(Some(of.completed_ns)));
    let status = of.error.as_deref().unwrap_or("ok");
    format!(
        "{at:>12} {queue:>6} {cid:>5} {operation:<12} {nsid:>4} {lba:>12} {blocks:>6} {classified:>13} {path:>4} \
         {sent:>9} {returned:>11} {completed:>12} {status}\n"
    )
}

/// Returns a thousandth of a number, with its decimals.
fn thousandths(number: u64) -> String {
    format!("{}.{:03}", number / 1000, number % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_columns_under_the_heading() {
        let command = TraceView {
            fetched_ns: 12_345_678,
            controller: 0,
            queue: 2,
            cid: 77,
            opcode: 2,
            operation: "read".to_owned(),
            nsid: 1,
            slba: Some(4096),
            blocks: Some(8),
            classified_ns: None,
            path: Some(0),
            sent_ns: Some(310),
            returned_ns: Some(81_200),
            completed_ns: 81_900,
            error: None,
            dropped: 0,
        };
        let (heading, row) = (heading(), row(&command));
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            words,
            ["12.345", "2", "77", "read", "1", "4096", "8", "-", "0", "0.310", "81.200", "81.900", "ok"]
        );
        let end = |text: &str, of: &str| text.find(of).map(|at| at + of.len());
        assert_eq!(end(&heading, "RETURNED US"), end(&row, "81.200"));
        assert_eq!(heading.find("STATUS"), row.find("ok"));
    }
}
