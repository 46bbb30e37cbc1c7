//! Routes of functions.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::routes::App;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sluice_control::drives::FunctionView;
use sluice_functions::{Description, describe};
use sluice_spec::error::ApiError;
use sluice_spec::{Place, UifSpec};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_kinds))
        .routes(routes!(list, attach_function))
        .routes(routes!(detach_function))
        .routes(routes!(restart))
        .routes(routes!(control))
        .routes(routes!(move_function))
}

/// The functions of a drive behind the function SDK.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FunctionList {
    pub functions: Vec<FunctionView>,
}

/// The functions that a drive can have.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KindList {
    pub functions: Vec<Description>,
}

/// A function for a drive.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachRequest {
    /// Function as in a drive's description, without its `kind`.
    pub function: UifSpec,
    /// NSID of the namespace.
    #[serde(default = "first")]
    pub nsid: u32,
    /// Number of the namespace's functions that stay above the new one; none if not given.
    #[serde(default)]
    pub below: usize,
}

fn first() -> u32 {
    1
}

/// Function to restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartRequest {
    /// Number of the function in the list; all functions of the drive if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
}

/// New place of a function.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    pub place: Place,
}

/// Order for a function.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlRequest {
    /// Text of the order, whose meaning is between the operator and the function.
    pub text: String,
    /// Whether the drive is quiet meanwhile: commands in flight end first, and none begins before the answer.
    #[serde(default)]
    pub quiesce: bool,
}

/// Answer of a function to an order.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ControlAnswer {
    pub answer: String,
}

#[utoipa::path(get, path = "/v1/functions", tag = "functions", summary = "List the functions that a drive can have",
    description = "Each with its options, its orders and its metrics.",
    responses((status = 200, body = KindList, description = "The functions that come with Sluice.")))]
async fn list_kinds() -> Json<KindList> {
    Json(KindList { functions: describe() })
}

#[utoipa::path(get, path = "/v1/drives/{name}/functions", tag = "functions", summary = "Show a drive's functions",
    params(("name" = String, Path)),
    responses((status = 200, body = FunctionList, description = "The functions of the drive."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn list(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<FunctionList>> {
    looked(move || Ok(Json(FunctionList { functions: app.drives.functions(&name)? }))).await
}

#[utoipa::path(post, path = "/v1/drives/{name}/functions", tag = "functions", summary = "Attach a function to a drive",
    description = "Under load: the drive is quiet for a moment, and commands that come after are shown to it. It stays \
                   after a restart. One that cannot start is not attached.",
    params(("name" = String, Path)),
    request_body = AttachRequest,
    responses(
        (status = 200, body = FunctionList, description = "The functions of the drive."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It cannot start, or would make another namespace of it: why."),
        (status = 422, body = ApiError, description = "Not a possible function.")))]
async fn attach_function(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(AttachRequest { function, nsid, below }): Body<AttachRequest>,
) -> Answer<Json<FunctionList>> {
    let attach = move |name: &str| app.drives.attach_function(name, nsid, below, function);
    ordered(name, attach).await.map(|functions| Json(FunctionList { functions }))
}

#[utoipa::path(delete, path = "/v1/drives/{name}/functions/{number}", tag = "functions",
    summary = "Detach a function from a drive",
    description = "Under load: it finishes what it has, and commands that come after go on without it.",
    params(("name" = String, Path), ("number" = usize, Path, description = "As it is listed.")),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "The namespace would be another without it, or it cannot leave: why.")))]
async fn detach_function(
    State(app): State<App>,
    Checked(Path((name, number))): Checked<Path<(String, usize)>>,
) -> Answer<StatusCode> {
    ordered(name, move |name| app.drives.detach_function(name, number).map(|_| StatusCode::NO_CONTENT)).await
}

#[utoipa::path(post, path = "/v1/drives/{name}/functions/restart", tag = "functions",
    summary = "Restart the processes of a drive's functions",
    description = "They finish what they have, for 5 s at most, and are started again; no command fails of it.",
    params(("name" = String, Path)),
    request_body = RestartRequest,
    responses(
        (status = 200, body = FunctionList, description = "The functions of the drive."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "None of them is in a process.")))]
async fn restart(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<RestartRequest>,
) -> Answer<Json<FunctionList>> {
    ordered(name, move |name| {
        let functions = app.drives.restart_functions(name, request.number)?;
        Ok(Json(FunctionList { functions }))
    })
    .await
}

#[utoipa::path(post, path = "/v1/drives/{name}/functions/{number}/control", tag = "functions",
    summary = "Tell a function something",
    params(("name" = String, Path), ("number" = usize, Path, description = "As it is listed.")),
    request_body = ControlRequest,
    responses(
        (status = 200, body = ControlAnswer, description = "What the function answers."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "The function refuses, or does not answer: why.")))]
async fn control(
    State(app): State<App>,
    Checked(Path((name, number))): Checked<Path<(String, usize)>>,
    Body(ControlRequest { text, quiesce }): Body<ControlRequest>,
) -> Answer<Json<ControlAnswer>> {
    ordered(name, move |name| {
        let answer = app.drives.tell_function(name, number, &text, quiesce)?;
        Ok(Json(ControlAnswer { answer }))
    })
    .await
}

#[utoipa::path(post, path = "/v1/drives/{name}/functions/{number}/move", tag = "functions",
    summary = "Move a function into the daemon, or into a process of its own",
    description = "Under load: it finishes what it has where it was, and gets what comes after in the other place. It \
                   stays there after a restart.",
    params(("name" = String, Path), ("number" = usize, Path, description = "As it is listed.")),
    request_body = MoveRequest,
    responses(
        (status = 200, body = FunctionList, description = "The functions of the drive."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It is there, or cannot leave: why."),
        (status = 422, body = ApiError, description = "It cannot be there.")))]
async fn move_function(
    State(app): State<App>,
    Checked(Path((name, number))): Checked<Path<(String, usize)>>,
    Body(MoveRequest { place }): Body<MoveRequest>,
) -> Answer<Json<FunctionList>> {
    ordered(name, move |name| {
        Ok(Json(FunctionList { functions: app.drives.move_function(name, number, place)? }))
    })
    .await
}
