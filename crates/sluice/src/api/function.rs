//! The routes about functions.

use super::answer::{Answer, Body, Checked, blocking};
use super::routes::App;
use crate::drives::FunctionView;
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(restart))
}

/// The functions of a drive behind the function SDK.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FunctionList {
    pub functions: Vec<FunctionView>,
}

/// Which function to restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// As it is listed; all of the drive if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
}

#[utoipa::path(get, path = "/v1/drives/{name}/functions", tag = "functions", summary = "Show a drive's functions",
    params(("name" = String, Path)),
    responses((status = 200, body = FunctionList), (status = 404, body = Problem)))]
async fn list(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<FunctionList>> {
    blocking(move || Ok(Json(FunctionList { functions: app.drives.functions(&name)? }))).await
}

#[utoipa::path(post, path = "/v1/drives/{name}/functions/restart", tag = "functions",
    summary = "Restart the processes of a drive's functions",
    description = "They are killed and started again; their commands wait meanwhile and do not fail.",
    params(("name" = String, Path)),
    request_body = RestartRequest,
    responses(
        (status = 200, body = FunctionList),
        (status = 404, body = Problem),
        (status = 409, body = Problem, description = "None of them is in a process.")))]
async fn restart(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<RestartRequest>,
) -> Answer<Json<FunctionList>> {
    blocking(move || {
        let functions = app.drives.restart_functions(&name, request.number)?;
        Ok(Json(FunctionList { functions }))
    })
    .await
}
