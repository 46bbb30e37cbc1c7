//! Events as a stream of lines.

use super::answer::{Answer, Checked};
use super::routes::App;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderName, header};
use hyper::body::Frame;
use serde::Deserialize;
use sluice_control::drives::{Drives, Event};
use sluice_spec::error::ApiError;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, interval};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Media type of JSON lines.
pub(super) const CONTENT_TYPE: &str = "application/x-ndjson";

/// Interval between two looks for further events.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list_events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// Number of the last event that is known already. Without it all events in memory follow.
    #[serde(default)]
    since: u64,
    /// Whether to go on with further events until the caller closes the connection, or the daemon stops.
    #[serde(default)]
    follow: bool,
}

#[utoipa::path(get, path = "/v1/events", tag = "daemon", summary = "Events of the drives, one JSON object a line",
    description = "The daemon looks for changes once in a second, and has the last 1,024 events in memory. A line of \
                   the kind `lost` stands for events that were dropped before the caller read them.",
    params(EventsQuery),
    responses((status = 200, body = Event, content_type = "application/x-ndjson", description = "Lines, each an event.")))]
async fn list_events(
    State(app): State<App>,
    Checked(Query(query)): Checked<Query<EventsQuery>>,
) -> Answer<([(HeaderName, &'static str); 1], Body)> {
    let EventsQuery { since, follow } = query;
    let lines = Lines { drives: app.drives, at: since, follow, look: interval(LOOK) };
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::new(lines)))
}

/// Body of lines. The next ones are read from memory when the caller has received the last.
struct Lines {
    drives: Arc<Drives>,
    /// Number of the last event that was sent.
    at: u64,
    follow: bool,
    look: Interval,
}

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            let events = self.drives.events().since(self.at);
            if let Some(last) = events.last() {
                self.at = last.number;
                return Poll::Ready(Some(Ok(Frame::data(lines(&events).into()))));
            }
            if !self.follow || self.drives.events().is_closed() {
                return Poll::Ready(None);
            }
            ready!(self.look.poll_tick(context));
        }
    }
}

fn lines(events: &[Event]) -> String {
    let line = |event| serde_json::to_string(event).map_err(|error| ApiError::internal(error.to_string()));
    events.iter().filter_map(|event| Some(line(event).ok()? + "\n")).collect()
}
