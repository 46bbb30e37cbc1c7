//! The pages docs/reference/cli.md and metrics.md: a test writes them from the program, and fails when the
//! program has changed.

use crate::common::{BINARY, Daemon};
use crate::counted::metrics;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variable with which the tests write the pages.
const WRITE: &str = "SLUICE_WRITE_DOCS";

const CLI: &str = "# Command line

All commands of `sluice`, as `sluice COMMAND -h` prints them; `--help` prints more of each option. A test writes this page
(`SLUICE_WRITE_DOCS=1 cargo test --release --workspace --test process reference`).

Each command has three more options. `--api SOCKET` names the socket of the daemon's API: by default that of the variable
`SLUICE_API`, or else the [usual place](configuration.md#daemon). `-o json` prints answers for programs. `-h` prints help.
A command that fails prints `error:`, mostly with a `hint:`, and ends with the exit code 1; a wrong command line ends with 2.

`sluice bench` is a program of its own with its own `--help`: see [performance](../internals/performance.md).
";

const METRICS: &str = "# Metrics

`GET /metrics` of the [API](api.md) has these counters in the text format of Prometheus. A test writes this page
(`SLUICE_WRITE_DOCS=1 cargo test --release --workspace --test process reference`).

    curl --unix-socket /run/sluice/api.sock http://sluice/metrics

Labels: `sluice_drive_...` has `drive`. `sluice_device_...` has `drive`, `nsid`, `device`, `namespace` and `first_block`, for drives
on NVMe devices. `sluice_reactor_...` has `reactor`, counted from 0. The load of a reactor is the growth of its `busy_seconds_total` in an interval.

`sluice_drive_command_duration_seconds` has `drive` and `operation`: `read`, `write`, `flush`, or `other` for all other I/O commands.
The first two commands of a millisecond are timed. Of the others one of 127 is timed, and counts for all 127. So counts and sums of busy drives are
estimates: the counters of namespaces and queues are exact. With `slow_ms` each command is timed.
There are samples with `latency = true` in [`[metrics]`](configuration.md#metrics).

With `latency = true` there are counters of namespaces and queues, and with `layers = true` of layers. `sluice_namespace_...` has `drive` and `nsid`, and its histogram
`operation`. `sluice_queue_...` has `drive`, `controller` (counted from 0) and `queue`, the identifier of the submission queue.
`sluice_layer_...` has `drive`, `nsid`, `layer` and `kind`: each function and each target of a namespace, of which 32 are counted. A layer counts the
commands that it receives; parts of a command that a function divides are commands of the layers below. Namespaces and queues
are there as soon as they have had a command. An identifier of a queue keeps its counters when its queue is deleted and created again.
The counters include queues on other reactors, and begin at zero when the drive is opened.

Functions behind the SDK have metrics of their own, as `sluice_function_NAME` with `drive` and `number`.
[replicate and mirror](functions.md#replicate) and [snapshot](functions.md#snapshot) list theirs.
A function that does not answer within 40 ms has its last reported values.

| metric | type | meaning |
| --- | --- | --- |
";

/// Compares a page with its text, or writes it.
fn is_on_page(name: &str, text: &str) {
    let page: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&page, text).expect("the sources can be written");
    }
    let there = std::fs::read_to_string(&page).unwrap_or_default();
    for (line, (is, expected)) in text.lines().zip(there.lines()).enumerate() {
        assert_eq!(is, expected, "{name}, line {}: write it anew with {WRITE}=1", line + 1);
    }
    assert!(text == there, "{name} is too short or too long: write it anew with {WRITE}=1");
}

fn help(words: &[String]) -> String {
    let done = Command::new(BINARY).args(words).arg("-h").output().expect("the binary is there");
    assert!(done.status.success(), "{words:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// Returns the names in the list of commands, without `help` and `bench`.
fn commands(help: &str) -> Vec<String> {
    let list = help.split_once("Commands:\n").map_or("", |(_, list)| list);
    let names = list.lines().take_while(|line| line.starts_with("  "));
    let names =
        names.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| !["help", "bench"].contains(name)).map(str::to_owned).collect()
}

/// Returns help without the options that all commands have.
fn own_options(help: &str) -> String {
    let common = ["      --api <SOCKET>", "  -o, --output <FORM>", "  -h, --help", "  -V, --version"];
    let lines: Vec<&str> =
        help.lines().filter(|line| !common.iter().any(|option| line.starts_with(option))).collect();
    let text = lines.join("\n");
    text.trim_end().strip_suffix("Options:").unwrap_or(&text).trim_end().to_owned()
}

/// Adds the section of a command, and those of its own commands.
fn add_sections(words: &[String], text: &mut String) {
    let help = help(words);
    if !words.is_empty() {
        *text += &format!("\n## `sluice {}`\n\n```text\n{}\n```\n", words.join(" "), own_options(&help));
    }
    for name in commands(&help) {
        add_sections(&[words, &[name]].concat(), text);
    }
}

#[test]
fn the_page_of_the_command_line_has_all_commands() {
    let mut text = CLI.to_owned();
    add_sections(&[], &mut text);
    assert!(text.contains("\n## `sluice drive create`\n"), "{text}");
    is_on_page("cli.md", &text);
}

#[test]
fn the_page_of_metrics_has_all_metrics() {
    let daemon = Daemon::start("");
    let metrics = metrics(&daemon);
    let of = |what: &str| {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        lines.filter_map(|line| line.split_once(' ')).collect::<Vec<_>>()
    };
    let (helps, types) = (of("# HELP"), of("# TYPE"));
    assert!(helps.len() > 30 && helps.len() == types.len(), "{metrics}");
    let rows = helps.iter().zip(types).map(|((name, help), (same, kind))| {
        assert_eq!(*name, same);
        format!("| `{name}` | {kind} | {help} |\n")
    });
    is_on_page("metrics.md", &(METRICS.to_owned() + &rows.collect::<String>()));
}
