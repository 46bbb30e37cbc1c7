//! Routes for the targets of drives: their state, pause and replacement.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::routes::App;
use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use sluice_control::drives::{FirmwareOrder, MaintenanceView, TargetView};
use sluice_spec::TargetSpec;
use sluice_spec::error::ApiError;
use std::path::PathBuf;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_targets))
        .routes(routes!(pause_target))
        .routes(routes!(resume_target))
        .routes(routes!(replace_target))
        .routes(routes!(reset_target))
        .routes(routes!(update_firmware))
}

/// Targets of a drive's namespaces.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    pub targets: Vec<TargetView>,
}

#[utoipa::path(get, path = "/v1/drives/{name}/targets", tag = "drives", summary = "List the targets of a drive",
    description = "The target of each namespace, without those of the layers below its functions.",
    params(("name" = String, Path)),
    responses((status = 200, body = TargetList, description = "The targets, by NSID."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn list_targets(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<TargetList>> {
    looked(move || app.drives.targets(&name).map(|targets| Json(TargetList { targets }))).await
}

/// Pause of a target.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Seconds after which commands fail; they wait for ever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_after_s: Option<u32>,
}

#[utoipa::path(post, path = "/v1/drives/{name}/targets/{nsid}/pause", tag = "drives",
    summary = "Pause the target of a namespace",
    description = "Nothing reaches it any more. Commands wait, and hosts see no error, until they give up. Commands that \
                   are in the target already go on. It stays paused after a restart.",
    params(("name" = String, Path), ("nsid" = u32, Path)),
    request_body = PauseRequest,
    responses(
        (status = 200, body = TargetView, description = "The target as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It is paused already, or cannot be.")))]
async fn pause_target(
    State(app): State<App>,
    Checked(Path((name, nsid))): Checked<Path<(String, u32)>>,
    Body(request): Body<PauseRequest>,
) -> Answer<Json<TargetView>> {
    ordered(name, move |name| app.drives.pause_target(name, nsid, request.fail_after_s).map(Json)).await
}

#[utoipa::path(post, path = "/v1/drives/{name}/targets/{nsid}/resume", tag = "drives",
    summary = "Let the commands of a paused target go on",
    params(("name" = String, Path), ("nsid" = u32, Path)),
    responses(
        (status = 200, body = TargetView, description = "The target as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It is not paused.")))]
async fn resume_target(
    State(app): State<App>,
    Checked(Path((name, nsid))): Checked<Path<(String, u32)>>,
) -> Answer<Json<TargetView>> {
    ordered(name, move |name| app.drives.resume_target(name, nsid).map(Json)).await
}

/// Another target for a namespace.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetReplaceRequest {
    pub target: TargetSpec,
    /// Whether the target may be other storage than the one before, whose data the operator has copied.
    #[serde(default)]
    pub different_storage: bool,
}

#[utoipa::path(put, path = "/v1/drives/{name}/targets/{nsid}", tag = "drives",
    summary = "Put another target in the place of a namespace's present one",
    description = "Under load: commands wait meanwhile and go on at the new target, also those of a target that is lost or \
                   paused. Hosts see the same namespace, with its identifiers and its size, or a larger one. The data is \
                   that of the new target. For a drive of the configuration file it counts until the file says another.",
    params(("name" = String, Path), ("nsid" = u32, Path)),
    request_body = TargetReplaceRequest,
    responses(
        (status = 200, body = TargetView, description = "The target as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It is smaller, other storage, or commands did not end."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn replace_target(
    State(app): State<App>,
    Checked(Path((name, nsid))): Checked<Path<(String, u32)>>,
    Body(request): Body<TargetReplaceRequest>,
) -> Answer<Json<TargetView>> {
    let TargetReplaceRequest { target, different_storage } = request;
    ordered(name, move |name| app.drives.replace_target(name, nsid, target, different_storage).map(Json))
        .await
}

/// Reset of the controller behind a target.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetResetRequest {
    /// Seconds until the controller has to be back, 60 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_s: Option<u32>,
}

#[utoipa::path(post, path = "/v1/drives/{name}/targets/{nsid}/reset", tag = "drives",
    summary = "Reset the controller behind a target",
    description = "Under load: commands wait until the target is idle, the controller is shut down and reset, its queues \
                   and event requests are made anew, and it has proved to be the same one. If it is another one, or of \
                   another size, or not back in time, commands stay parked.",
    params(("name" = String, Path), ("nsid" = u32, Path)),
    request_body = TargetResetRequest,
    responses(
        (status = 200, body = MaintenanceView, description = "The controller as it is now, and the times."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "There is no controller, or it is another one: why.")))]
async fn reset_target(
    State(app): State<App>,
    Checked(Path((name, nsid))): Checked<Path<(String, u32)>>,
    Body(request): Body<TargetResetRequest>,
) -> Answer<Json<MaintenanceView>> {
    ordered(name, move |name| app.drives.reset_target(name, nsid, request.back_s).map(Json)).await
}

/// Firmware for the controller behind a target.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FirmwareRequest {
    /// Path of the image on the daemon's machine; none to activate the image of the slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub file: Option<PathBuf>,
    /// Firmware slot; 0 for one of the controller's choice.
    #[serde(default)]
    pub slot: u8,
    /// Commit action: 0 stores the image, 1 stores it and activates it by a reset, 2 activates the image of the slot by a
    /// reset, 3 activates it without one.
    pub action: u8,
    /// Seconds until the controller has to be back, 60 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_s: Option<u32>,
}

#[utoipa::path(post, path = "/v1/drives/{name}/targets/{nsid}/firmware", tag = "drives",
    summary = "Upgrade the firmware of the controller behind a target",
    description = "The image is downloaded in pieces while commands go on; an event reports each tenth. Commands wait for \
                   the activation alone, as for a reset.",
    params(("name" = String, Path), ("nsid" = u32, Path)),
    request_body = FirmwareRequest,
    responses(
        (status = 200, body = MaintenanceView, description = "The controller as it is now, and the times."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "The controller refuses it, or is another one: why."),
        (status = 422, body = ApiError, description = "The image, the slot or the action cannot be: why.")))]
async fn update_firmware(
    State(app): State<App>,
    Checked(Path((name, nsid))): Checked<Path<(String, u32)>>,
    Body(request): Body<FirmwareRequest>,
) -> Answer<Json<MaintenanceView>> {
    let FirmwareRequest { file, slot, action, back_s } = request;
    let order = FirmwareOrder { file, slot, action, back_s };
    ordered(name, move |name| app.drives.update_firmware(name, nsid, &order).map(Json)).await
}
