//! Events as a stream of lines.

use super::answer::{Answer, Checked};
use super::line_stream::{LineAnswer, LineSource, Next, lines, stream};
use super::routes::App;
use axum::extract::{Query, State};
use serde::Deserialize;
use sluice_control::drives::{Drives, Event};
use std::sync::Arc;
use std::time::Duration;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

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
) -> Answer<LineAnswer> {
    let EventsQuery { since, follow } = query;
    Ok(stream(Events { drives: app.drives, at: since, follow }, LOOK))
}

/// Events after the last one that was sent.
struct Events {
    drives: Arc<Drives>,
    /// Number of the last event that was sent.
    at: u64,
    follow: bool,
}

impl LineSource for Events {
    fn next(&mut self) -> Next {
        let events = self.drives.events().since(self.at);
        match events.last() {
            Some(last) => {
                self.at = last.number;
                Next::Lines(lines(&events))
            }
            None if self.follow && !self.drives.events().is_closed() => Next::Later,
            None => Next::End,
        }
    }
}
