//! Routes for shared objects.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::orders::NO_DRIVE;
use super::routes::App;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sluice_control::drives::{SharedView, VolumeView};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_shared))
        .routes(routes!(grow_shared))
        .routes(routes!(retry_shared))
        .routes(routes!(list_volumes))
        .routes(routes!(delete_volume))
        .routes(routes!(clone_volume))
}

/// All shared objects.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SharedList {
    pub shared: Vec<SharedView>,
}

/// A larger size of a thin pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowRequest {
    /// Bytes of the pool's file or block device. Without it, the pool takes all of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

/// Volumes of a thin pool.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    pub volumes: Vec<VolumeView>,
}

/// Name of a new volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneRequest {
    /// 1 to 64 bytes that no volume of the pool has as its name.
    pub to: String,
}

#[utoipa::path(get, path = "/v1/shared", tag = "daemon", summary = "List the shared objects",
    description = "Objects that several drives use, such as pools of memory, with their use.",
    responses((status = 200, body = SharedList, description = "All shared objects.")))]
async fn list_shared(State(app): State<App>) -> Answer<Json<SharedList>> {
    looked(move || app.drives.shared().map(|shared| Json(SharedList { shared }))).await
}

#[utoipa::path(post, path = "/v1/shared/{name}/grow", tag = "daemon", summary = "Grow a thin pool",
    description = "The pool's file or block device is larger when this returns, and after a restart. Drives of the pool \
                   run meanwhile, and writes that wait for space continue.",
    params(("name" = String, Path)),
    request_body = GrowRequest,
    responses(
        (status = 200, body = SharedView, description = "The pool as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It would become smaller."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn grow_shared(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<GrowRequest>,
) -> Answer<Json<SharedView>> {
    ordered(NO_DRIVE, move |_| app.drives.grow_shared(&name, request.size).map(Json)).await
}

#[utoipa::path(post, path = "/v1/shared/{name}/retry", tag = "daemon", summary = "Open a thin pool that did not open",
    description = "Drives that failed without the pool are opened, too. A pool that is open stays as it is.",
    params(("name" = String, Path)),
    responses(
        (status = 200, body = SharedView, description = "The pool as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn retry_shared(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<SharedView>> {
    ordered(NO_DRIVE, move |_| app.drives.retry_shared(&name).map(Json)).await
}

#[utoipa::path(get, path = "/v1/shared/{name}/volumes", tag = "daemon", summary = "List the volumes of a thin pool",
    description = "With the bytes that no other volume has. They are counted, which takes a moment in a large pool.",
    params(("name" = String, Path)),
    responses(
        (status = 200, body = VolumeList, description = "All volumes."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn list_volumes(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<VolumeList>> {
    looked(move || app.drives.volumes(&name).map(|volumes| Json(VolumeList { volumes }))).await
}

#[utoipa::path(post, path = "/v1/shared/{name}/volumes/{volume}/clone", tag = "daemon", summary = "Clone a volume of a thin pool",
    description = "The new volume shares all extents of the other one until one of the two is written. A drive that uses the \
                   other one runs on: its writes wait for a moment. Commands that were acknowledged before the request are \
                   in the clone, and it is durable when this returns.",
    params(("name" = String, Path), ("volume" = String, Path)),
    request_body = CloneRequest,
    responses(
        (status = 200, body = VolumeView, description = "The new volume."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "Commands of the volume do not end."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn clone_volume(
    State(app): State<App>,
    Checked(Path((name, volume))): Checked<Path<(String, String)>>,
    Body(request): Body<CloneRequest>,
) -> Answer<Json<VolumeView>> {
    ordered(NO_DRIVE, move |_| app.drives.clone_volume(&name, &volume, &request.to).map(Json)).await
}

#[utoipa::path(delete, path = "/v1/shared/{name}/volumes/{volume}", tag = "daemon", summary = "Delete a volume of a thin pool",
    description = "Extents that no other volume has are free. A volume of a drive is not deleted.",
    params(("name" = String, Path), ("volume" = String, Path)),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "A drive has it."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn delete_volume(
    State(app): State<App>,
    Checked(Path((name, volume))): Checked<Path<(String, String)>>,
) -> Answer<StatusCode> {
    ordered(NO_DRIVE, move |_| app.drives.delete_volume(&name, &volume))
        .await
        .map(|()| StatusCode::NO_CONTENT)
}
