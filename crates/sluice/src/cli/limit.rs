//! `sluice drive limit`, and the options of limits.

use super::converse;
use clap::Args;
use sluice_api::client::{Client, segment};
use sluice_api::{LimitsList, LimitsRequest};
use sluice_functions::QosLimits;
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::size::Size;
use sluice_spec::table::Table;
use std::str::FromStr;

/// A limit from the command line: a value, or `none`.
#[derive(Clone, Copy, Debug)]
struct Limit<T>(Option<T>);

impl<T: FromStr> FromStr for Limit<T>
where
    T::Err: ToString,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => text.parse().map(|value| Self(Some(value))).map_err(|error: T::Err| error.to_string()),
        }
    }
}

/// Limits to change; all others stay.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct LimitArgs {
    /// Commands a second, reads and writes together; `none` ends the limit
    #[arg(long, value_name = "COUNT")]
    iops: Option<Limit<u64>>,
    /// Reads a second
    #[arg(long, value_name = "COUNT")]
    read_iops: Option<Limit<u64>>,
    /// Writes a second
    #[arg(long, value_name = "COUNT")]
    write_iops: Option<Limit<u64>>,
    /// Bytes a second, read and written together
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Limit<Size>>,
    /// Bytes a second that are read
    #[arg(long, value_name = "SIZE")]
    read_bandwidth: Option<Limit<Size>>,
    /// Bytes a second that are written
    #[arg(long, value_name = "SIZE")]
    write_bandwidth: Option<Limit<Size>>,
    /// Milliseconds for which unused commands and bytes are saved up, 10 if not set
    #[arg(long, value_name = "MS")]
    burst_ms: Option<Limit<u32>>,
}

impl LimitArgs {
    fn is_empty(&self) -> bool {
        let Self { iops, read_iops, write_iops, bandwidth, read_bandwidth, write_bandwidth, burst_ms } = self;
        let none = [iops, read_iops, write_iops].iter().all(|limit| limit.is_none());
        none && [bandwidth, read_bandwidth, write_bandwidth].iter().all(|limit| limit.is_none())
            && burst_ms.is_none()
    }

    /// Returns the limits after the change.
    pub(super) fn change(&self, limits: QosLimits) -> QosLimits {
        fn new<T>(change: Option<&Limit<T>>, limit: Option<T>) -> Option<T>
        where
            T: Copy,
        {
            change.map_or(limit, |change| change.0)
        }
        QosLimits {
            iops: new(self.iops.as_ref(), limits.iops),
            read_iops: new(self.read_iops.as_ref(), limits.read_iops),
            write_iops: new(self.write_iops.as_ref(), limits.write_iops),
            bandwidth: new(self.bandwidth.as_ref(), limits.bandwidth),
            read_bandwidth: new(self.read_bandwidth.as_ref(), limits.read_bandwidth),
            write_bandwidth: new(self.write_bandwidth.as_ref(), limits.write_bandwidth),
            burst_ms: new(self.burst_ms.as_ref(), limits.burst_ms),
        }
    }
}

/// Limits of a namespace with the function `qos`.
#[derive(Debug, Args)]
pub(super) struct DriveLimit {
    name: String,
    /// Number of the namespace
    #[arg(long, default_value_t = 1)]
    nsid: u32,
    /// Number of the function among those of the namespace with limits, counted from 1
    #[arg(long, default_value_t = 1)]
    number: usize,
    #[command(flatten)]
    limits: LimitArgs,
}

impl DriveLimit {
    pub(super) fn run(self, client: &Client, output: Output) -> Result<(), ApiError> {
        let Self { name, nsid, number, limits } = self;
        let path = format!("/v1/drives/{}/limits", segment(&name));
        let mut list: LimitsList = converse(client.get(&path))?;
        if !limits.is_empty() {
            let former = list.limits.iter().find(|it| it.nsid == nsid && it.number == number);
            let limits = limits.change(former.map(|it| it.limits).unwrap_or_default());
            list = converse(client.put(&path, &LimitsRequest { nsid, number, limits }))?;
        }
        output.answer(&list, text)
    }
}

fn text(list: &LimitsList) -> String {
    let mut table = Table::new(&["NSID", "NUMBER", "LIMITS", "GROUP", "GUARANTEE", "WAITING", "WAITED"]);
    for it in &list.limits {
        table.row(vec![
            it.nsid.to_string(),
            it.number.to_string(),
            in_words(&it.limits),
            it.group.clone().unwrap_or_else(|| "-".to_owned()),
            it.guarantee.as_ref().map_or_else(|| "-".to_owned(), in_words),
            it.waiting.to_string(),
            it.waited.to_string(),
        ]);
    }
    match list.limits.is_empty() {
        true => "no function with limits\n".to_owned(),
        false => table.text(),
    }
}

/// Describes limits in one line.
pub(super) fn in_words(limits: &QosLimits) -> String {
    let count = |name: &str, limit: Option<u64>| limit.map(|limit| format!("{name} {limit}"));
    let bytes = |name: &str, limit: Option<Size>| limit.map(|limit| format!("{name} {limit}"));
    let all = [
        count("iops", limits.iops),
        count("read-iops", limits.read_iops),
        count("write-iops", limits.write_iops),
        bytes("bandwidth", limits.bandwidth),
        bytes("read-bandwidth", limits.read_bandwidth),
        bytes("write-bandwidth", limits.write_bandwidth),
        count("burst-ms", limits.burst_ms.map(u64::from)),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}
