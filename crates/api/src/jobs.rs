//! Routes of jobs: the background work of drives.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::routes::App;
use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use sluice_control::drives::{JobView, PriorityName, drive_of_job};
use sluice_jobs::{PaceChange, Verb};
use sluice_spec::error::ApiError;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_jobs))
        .routes(routes!(show_job))
        .routes(routes!(pause_job))
        .routes(routes!(resume_job))
        .routes(routes!(cancel_job))
        .routes(routes!(pace_job))
}

/// The jobs of all drives.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    pub jobs: Vec<JobView>,
}

/// New limits of a job. A limit that is left out stays.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PaceRequest {
    /// Maximum rate in MiB per second; 0 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<u32>,
    /// Maximum share of the time in which a step of the job is in flight, percent; 100 for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub share: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<PriorityName>,
}

impl PaceRequest {
    /// Returns the change, if it is one.
    fn change(self) -> Result<PaceChange, ApiError> {
        if self.share.is_some_and(|share| !(1..=100).contains(&share)) {
            return Err(ApiError::invalid("share is a percentage, 1 to 100"));
        }
        let change =
            PaceChange { mib_s: self.mib_s, share: self.share, priority: self.priority.map(Into::into) };
        match change == PaceChange::default() {
            true => Err(ApiError::invalid("a pace needs at least one of mib_s, share and priority")),
            false => Ok(change),
        }
    }
}

#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", summary = "List the background work of all drives",
    description = "Work that runs, is paused, or has ended since the daemon started.",
    responses((status = 200, body = JobList, description = "All jobs, by drive.")))]
async fn list_jobs(State(app): State<App>) -> Answer<Json<JobList>> {
    looked(move || Ok(Json(JobList { jobs: app.drives.list_jobs() }))).await
}

#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", summary = "Show a job",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = JobView, description = "The job as it is now."),
        (status = 404, body = ApiError, description = "There is no such job.")))]
async fn show_job(State(app): State<App>, Checked(Path(id)): Checked<Path<String>>) -> Answer<Json<JobView>> {
    looked(move || app.drives.show_job(&id).map(Json)).await
}

/// Executes an order for a job among the orders of its drive.
async fn order(app: App, id: String, verb: Verb, change: PaceChange) -> Answer<Json<JobView>> {
    let drive = drive_of_job(&id).to_owned();
    ordered(drive, move |_| app.drives.order_job(&id, verb, change).map(Json)).await
}

#[utoipa::path(post, path = "/v1/jobs/{id}/pause", tag = "jobs", summary = "Pause a job",
    description = "The step in flight ends, and none begins until the job is resumed. The pause is stored, and survives a restart of the daemon.",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = JobView, description = "The job as it is now."),
        (status = 404, body = ApiError, description = "There is no such job."),
        (status = 409, body = ApiError, description = "It does not run: why.")))]
async fn pause_job(
    State(app): State<App>,
    Checked(Path(id)): Checked<Path<String>>,
) -> Answer<Json<JobView>> {
    order(app, id, Verb::Pause, PaceChange::default()).await
}

#[utoipa::path(post, path = "/v1/jobs/{id}/resume", tag = "jobs", summary = "Resume a job",
    description = "One that was paused, or cancelled: it goes on where it was.",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = JobView, description = "The job as it is now."),
        (status = 404, body = ApiError, description = "There is no such job."),
        (status = 409, body = ApiError, description = "It is over.")))]
async fn resume_job(
    State(app): State<App>,
    Checked(Path(id)): Checked<Path<String>>,
) -> Answer<Json<JobView>> {
    order(app, id, Verb::Resume, PaceChange::default()).await
}

#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", summary = "Cancel a job",
    description = "A cancelled resync leaves its members out of the set, also after a restart. `detail` says what is left.",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = JobView, description = "The job as it is now."),
        (status = 404, body = ApiError, description = "There is no such job."),
        (status = 409, body = ApiError, description = "It is over, or cannot be cancelled: why.")))]
async fn cancel_job(
    State(app): State<App>,
    Checked(Path(id)): Checked<Path<String>>,
) -> Answer<Json<JobView>> {
    order(app, id, Verb::Cancel, PaceChange::default()).await
}

#[utoipa::path(post, path = "/v1/jobs/{id}/pace", tag = "jobs", summary = "Set the limits of a job",
    description = "They count at once, and until the daemon or the function starts again.",
    params(("id" = String, Path)),
    request_body = PaceRequest,
    responses(
        (status = 200, body = JobView, description = "The job as it is now."),
        (status = 404, body = ApiError, description = "There is no such job."),
        (status = 422, body = ApiError, description = "Not possible limits.")))]
async fn pace_job(
    State(app): State<App>,
    Checked(Path(id)): Checked<Path<String>>,
    Body(request): Body<PaceRequest>,
) -> Answer<Json<JobView>> {
    let change = request.change()?;
    order(app, id, Verb::Pace, change).await
}
