//! `sluice events`.

use super::converse;
use clap::Args;
use sluice_api::client::Client;
use sluice_control::drives::Event;
use sluice_spec::error::ApiError;
use sluice_spec::output::{Form, Output};

#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Go on with further events, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Number of an event: only later ones
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    since: u64,
}

/// Prints a line for each event.
pub(super) fn run(arguments: &EventsArgs, form: Form, client: &Client) -> Result<(), ApiError> {
    let EventsArgs { follow, since } = arguments;
    let output = Output::new(form);
    converse(client.lines(&format!("/v1/events?since={since}&follow={follow}"), |line| match form {
        Form::Json => output.raw(format!("{line}\n").as_bytes()),
        Form::Table => {
            let event: Event = serde_json::from_str(line).map_err(|error| {
                ApiError::internal(format!("the daemon's event is not understood: {error}"))
            })?;
            output.raw(text(&event).as_bytes())
        }
    }))
}

fn text(event: &Event) -> String {
    let Event { time_ms, event, drive, text, .. } = event;
    let drive = drive.as_deref().unwrap_or("-");
    format!("{}  {:<17}  {drive}  {text}\n", utc(*time_ms), event.as_str())
}

/// Returns a time in the form of RFC 3339.
fn utc(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Returns year, month and day of the Gregorian calendar, from days since 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    (year, month as u64 + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_795_789_323_045), "2026-11-27T14:22:03.045Z");
        assert_eq!(utc(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
    }
}
