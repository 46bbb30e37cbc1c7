//! Traces of single commands as a stream of lines.

use super::answer::{Answer, Checked, ordered};
use super::line_stream::{LineAnswer, LineSource, Next, lines, stream};
use super::routes::App;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use sluice_control::drives::{DriveTrace, Drives, TRACE_EVERY, TraceView};
use sluice_spec::error::ApiError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Interval between two looks for further commands.
const LOOK: Duration = Duration::from_millis(50);

/// Lines that are sent at a time.
const LINES_MAX: usize = 128;

/// Longest time of a trace, seconds.
const SECONDS_MAX: u64 = 24 * 60 * 60;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(trace_drive))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct TraceQuery {
    /// Number of commands after which the trace ends.
    count: Option<u64>,
    /// Seconds after which the trace ends, at most a day.
    #[serde(default = "seconds")]
    seconds: u64,
    /// Only commands that took so many microseconds or longer.
    #[serde(default)]
    slow_us: u64,
    /// Number of commands of which the first is traced; after a millisecond without a traced one, the next. Without it, 512.
    #[serde(default = "every")]
    every: u32,
}

fn seconds() -> u64 {
    10
}

fn every() -> u32 {
    TRACE_EVERY
}

#[utoipa::path(get, path = "/v1/drives/{name}/trace", tag = "drives", summary = "Trace single commands of a drive, one JSON object a line",
    description = "The times of each stage of a command. A drive has one trace at a time. The trace ends with the \
                   connection, or when the caller reads nothing for five seconds.",
    params(("name" = String, Path), TraceQuery),
    responses(
        (status = 200, body = TraceView, content_type = "application/x-ndjson", description = "Lines, each a command."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "Its state does not allow it."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn trace_drive(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Checked(Query(query)): Checked<Query<TraceQuery>>,
) -> Answer<LineAnswer> {
    let TraceQuery { count, seconds, slow_us, every } = query;
    let drives = Arc::clone(&app.drives);
    let trace = ordered(name, move |name: &str| drives.begin_trace(name, every, slow_us)).await?;
    let seconds = Duration::from_secs(seconds.min(SECONDS_MAX));
    let left = count.unwrap_or(u64::MAX);
    Ok(stream(Traced { drives: app.drives, trace, left, until: Instant::now() + seconds }, LOOK))
}

/// Traced commands that have ended.
struct Traced {
    drives: Arc<Drives>,
    trace: DriveTrace,
    /// Lines that are to be sent.
    left: u64,
    until: Instant,
}

impl LineSource for Traced {
    fn next(&mut self) -> Next {
        // Before the last look: commands that ended until then are taken.
        let is_over =
            self.trace.is_over() || Instant::now() >= self.until || self.drives.events().is_closed();
        let most = usize::try_from(self.left).unwrap_or(LINES_MAX).min(LINES_MAX);
        let found: Vec<_> = std::iter::from_fn(|| self.trace.take()).take(most).collect();
        if !found.is_empty() {
            self.left -= found.len() as u64;
            return Next::Lines(lines(&found));
        }
        if is_over || self.left == 0 { Next::End } else { Next::Later }
    }
}
