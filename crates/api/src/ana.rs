//! Routes for Asymmetric Namespace Access.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::routes::App;
use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use sluice_spec::AnaSpec;
use sluice_spec::error::ApiError;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show_ana, set_ana))
}

/// States of a drive's ANA groups.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AnaList {
    /// States in order. If two are for the same port and group, the later one counts. All others are
    /// optimized.
    pub states: Vec<AnaSpec>,
}

#[utoipa::path(get, path = "/v1/drives/{name}/ana", tag = "drives", summary = "Show how a drive is to be accessed",
    params(("name" = String, Path)),
    responses((status = 200, body = AnaList, description = "The states that were said."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn show_ana(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<AnaList>> {
    looked(move || app.drives.ana(&name).map(|states| Json(AnaList { states }))).await
}

#[utoipa::path(post, path = "/v1/drives/{name}/ana", tag = "drives",
    summary = "Say which ways to a drive hosts should take",
    description = "Gives ANA groups of its namespaces a state, at a port or at all. Hosts are told; it stays after a restart.",
    params(("name" = String, Path)),
    request_body = AnaSpec,
    responses(
        (status = 200, body = AnaList, description = "The states that were said."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn set_ana(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(spec): Body<AnaSpec>,
) -> Answer<Json<AnaList>> {
    ordered(name, move |name| app.drives.set_ana(name, spec).map(|states| Json(AnaList { states }))).await
}
