//! Routes for limits of drives, and for groups with common limits.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::orders::NO_DRIVE;
use super::routes::App;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sluice_control::drives::{GroupView, LimitsView};
use sluice_functions::QosLimits;
use sluice_spec::GroupSpec;
use sluice_spec::error::ApiError;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show_limits, set_limits))
        .routes(routes!(list_groups))
        .routes(routes!(show_group, set_group, delete_group))
}

/// Limits of a drive.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LimitsList {
    /// Functions with limits, in the order of the namespaces.
    pub limits: Vec<LimitsView>,
}

/// New limits for a namespace. A limit that is not given ends.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    pub nsid: u32,
    /// Number of the function among those of the namespace with limits, counted from 1; the first if not given.
    #[serde(default = "first")]
    pub number: usize,
    #[serde(default)]
    pub limits: QosLimits,
}

fn first() -> usize {
    1
}

/// All groups.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupList {
    pub groups: Vec<GroupView>,
}

#[utoipa::path(get, path = "/v1/drives/{name}/limits", tag = "drives", summary = "Show the limits of a drive",
    params(("name" = String, Path)),
    responses((status = 200, body = LimitsList, description = "Limits, and the commands over them."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn show_limits(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<LimitsList>> {
    looked(move || app.drives.limits(&name).map(|limits| Json(LimitsList { limits }))).await
}

#[utoipa::path(put, path = "/v1/drives/{name}/limits", tag = "drives", summary = "Set the limits of a namespace",
    description = "The namespace has the function `qos`. Commands that wait follow within 50 ms. For a drive of the \
                   configuration file the limits count until the file says others.",
    params(("name" = String, Path)),
    request_body = LimitsRequest,
    responses(
        (status = 200, body = LimitsList, description = "Limits, and the commands over them."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn set_limits(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<LimitsRequest>,
) -> Answer<Json<LimitsList>> {
    let LimitsRequest { nsid, number, limits } = request;
    let set = move |name: &str| app.drives.set_limits(name, nsid, number, limits);
    ordered(name, set).await.map(|limits| Json(LimitsList { limits }))
}

#[utoipa::path(get, path = "/v1/groups", tag = "groups", summary = "List all groups",
    responses((status = 200, body = GroupList, description = "All groups, by name.")))]
async fn list_groups(State(app): State<App>) -> Answer<Json<GroupList>> {
    looked(move || Ok(Json(GroupList { groups: app.drives.groups() }))).await
}

#[utoipa::path(get, path = "/v1/groups/{name}", tag = "groups", summary = "Show a group",
    params(("name" = String, Path)),
    responses((status = 200, body = GroupView, description = "The group as it is now."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn show_group(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<GroupView>> {
    looked(move || app.drives.group(&name).map(Json)).await
}

#[utoipa::path(put, path = "/v1/groups/{name}", tag = "groups", summary = "Create a group, or change its limits",
    description = "It is so when this returns, and after a restart. A limit that is not given ends. For a group of the \
                   configuration file the limits count until the file says others.",
    params(("name" = String, Path)),
    request_body = QosLimits,
    responses(
        (status = 200, body = GroupView, description = "The group as it is now."),
        (status = 409, body = ApiError, description = "It is less than its members are guaranteed."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn set_group(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(limits): Body<QosLimits>,
) -> Answer<Json<GroupView>> {
    let spec = GroupSpec { name, limits };
    ordered(NO_DRIVE, move |_| app.drives.set_group(spec)).await.map(Json)
}

#[utoipa::path(delete, path = "/v1/groups/{name}", tag = "groups", summary = "Delete a group",
    description = "A group of the configuration file cannot be deleted, nor one that a namespace is in.",
    params(("name" = String, Path)),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It has members, or is declared.")))]
async fn delete_group(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<StatusCode> {
    ordered(NO_DRIVE, move |_| app.drives.delete_group(&name)).await.map(|()| StatusCode::NO_CONTENT)
}
