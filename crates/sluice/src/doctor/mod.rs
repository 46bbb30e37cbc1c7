//! `sluice doctor`: reports what the daemon lacks on a machine, and what would make drives faster.

mod machine;
mod service;

use clap::Args;
use serde::Serialize;
use sluice_api::client::Client;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::output::Output;
use sluice_spec::words::count;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// File of the packaged daemon.
const USUAL_CONFIGURATION: &str = "/etc/sluice/sluice.toml";

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Configuration file to check; by default /etc/sluice/sluice.toml, if it exists
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Drives work, and would be faster, safer or more with a change.
    Slower,
    /// Something does not work.
    Missing,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Slower => "slower",
            Self::Missing => "missing",
        }
    }
}

/// Result of one examination.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    topic: &'static str,
    state: State,
    /// Text of one sentence.
    text: String,
    /// Command or setting that changes the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(topic: &'static str, text: impl Into<String>) -> Self {
        Self { topic, state: State::Ok, text: text.into(), remedy: None }
    }

    fn slower(topic: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { topic, state: State::Slower, text: text.into(), remedy: Some(remedy.into()) }
    }

    fn missing(topic: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { topic, state: State::Missing, text: text.into(), remedy: Some(remedy.into()) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Returns a line for each finding, with the remedy below it.
    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { topic, state, text: sentence, remedy } in &self.findings {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<8} {topic:<14} {sentence}", state.as_str());
            if let Some(remedy) = remedy {
                let _ = writeln!(text, "{:<23} {remedy}", "");
            }
        }
        text
    }

    fn missing(&self) -> usize {
        self.findings.iter().filter(|finding| finding.state == State::Missing).count()
    }
}

/// Examines the machine, the configuration and the daemon, and prints the findings.
///
/// # Errors
/// An error if something is missing.
pub(crate) fn run(arguments: DoctorArgs, client: &Client, output: Output) -> Result<(), ApiError> {
    let usual = || Some(PathBuf::from(USUAL_CONFIGURATION)).filter(|file| file.exists());
    let config = arguments.config.or_else(usual);
    let daemon = service::daemon(client);
    let process = daemon.as_ref().ok().map(|version| version.pid);
    let mut findings = machine::examine(Path::new("/"), process, std::env::consts::ARCH);
    findings.extend(service::examine(config.as_deref(), &daemon, client.socket()));
    let report = Report { findings };
    output.answer(&report, Report::text)?;
    match report.missing() {
        0 => Ok(()),
        missing => Err(ApiError::new(Kind::Invalid, format!("{} missing", count(missing, "thing")))
            .hint("the lines after `missing` have the remedies")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_line_for_each_finding_and_its_remedy() {
        let findings =
            vec![Finding::ok("kernel", "Linux 6.12"), Finding::missing("io_uring", "is off.", "sysctl")];
        let report = Report { findings };
        let remedy = format!("{:<23} sysctl\n", "");
        let lines = "ok       kernel         Linux 6.12\nmissing  io_uring       is off.\n";
        assert_eq!(report.text(), format!("{lines}{remedy}"));
        assert_eq!(report.missing(), 1);
    }
}
