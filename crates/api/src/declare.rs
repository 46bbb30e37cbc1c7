//! Routes for all drives at once, as a file describes them.

use super::answer::{Answer, Body, looked, ordered};
use super::orders::NO_DRIVE;
use super::routes::App;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, header};
use sluice_control::drives::{Applied, ApplyRequest, Plan};
use sluice_spec::error::ApiError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(apply)).routes(routes!(diff)).routes(routes!(export))
}

#[utoipa::path(post, path = "/v1/apply", tag = "drives", summary = "Make the drives as a text describes them",
    description = "All changes are made and stored when this returns, or none is. A daemon that is killed in the middle \
                   begins with the drives of before. Faults have the line and the key.",
    request_body = ApplyRequest,
    responses(
        (status = 200, body = Applied, description = "The changes that were made."),
        (status = 409, body = ApiError, description = "A change could not be made; those before it were taken back."),
        (status = 422, body = ApiError, description = "Something is wrong with the text, or a change is not possible.")))]
async fn apply(State(app): State<App>, Body(request): Body<ApplyRequest>) -> Answer<Json<Applied>> {
    ordered(NO_DRIVE, move |_| app.drives.apply_file(&request)).await.map(Json)
}

#[utoipa::path(post, path = "/v1/diff", tag = "drives", summary = "List the changes that an apply would make",
    description = "Changes nothing.",
    request_body = ApplyRequest,
    responses(
        (status = 200, body = Plan, description = "The changes, in their order."),
        (status = 422, body = ApiError, description = "Something is wrong with the text, or a change is not possible.")))]
async fn diff(State(app): State<App>, Body(request): Body<ApplyRequest>) -> Answer<Json<Plan>> {
    looked(move || app.drives.diff(&request).map(Json)).await
}

#[utoipa::path(get, path = "/v1/export", tag = "drives", summary = "Configuration file that makes the same drives",
    description = "With the secrets of hosts in it. An apply of the text is no change.",
    responses((status = 200, body = String, content_type = "text/plain", description = "TOML.")))]
async fn export(State(app): State<App>) -> Answer<([(HeaderName, &'static str); 1], String)> {
    looked(move || Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], app.drives.export()?))).await
}
