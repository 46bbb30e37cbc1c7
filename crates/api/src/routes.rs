//! Routes, each described at its handler; the OpenAPI document is made of these descriptions.

use super::ana;
use super::answer::{Answer, Body, Checked, ErrorAnswer, looked, ordered};
use super::classifier;
use super::declare;
use super::events;
use super::function;
use super::jobs;
use super::limits;
use super::metrics;
use super::orders::NO_DRIVE;
use super::page::{self, PageAccess};
use super::shared;
use super::targets;
use super::trace;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use sluice_control::drives::{DriveLatency, DriveView, Drives, Insist, ReactorCounters, Reloaded, Upgraded};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, LayerSpec};
use std::path::PathBuf;
use std::sync::Arc;
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{IntoParams, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Maximum length of a body that is read, in bytes.
const BODY_MAX: usize = 1 << 20;

/// State that the handlers share.
#[derive(Clone, Debug)]
pub struct App {
    pub drives: Arc<Drives>,
    /// Address and token of the page, if it is served over TCP.
    pub page: Option<Arc<PageAccess>>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sluice",
        description = "Virtual NVMe drives. Every error has a JSON body with `error` and mostly `hint`.",
        license(name = "Apache-2.0 OR MIT")
    ),
    // Layers and functions contain each other, so no schema that is visited leads to this one.
    components(schemas(LayerSpec)),
    tags(
        (name = "drives", description = "Drives: NVM subsystems with their namespaces."),
        (name = "classifiers", description = "Programs that decide where the commands of a drive go."),
        (name = "functions", description = "Functions behind the function SDK."),
        (name = "jobs", description = "Background work of drives: copies, comparisons, deletions."),
        (name = "groups", description = "Groups of namespaces with common limits."),
        (name = "daemon", description = "The daemon itself.")
    )
)]
struct Base;

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(list_drives, create_drive))
        .routes(routes!(show_drive, delete_drive))
        .routes(routes!(resize_drive))
        .routes(routes!(delete_namespace))
        .routes(routes!(open_drive))
        .routes(routes!(move_drive))
        .merge(classifier::routes())
        .merge(function::routes())
        .merge(ana::routes())
        .merge(targets::routes())
        .merge(declare::routes())
        .merge(jobs::routes())
        .merge(limits::routes())
        .merge(shared::routes())
        .merge(events::routes())
        .merge(page::routes())
        .merge(trace::routes())
        .routes(routes!(reload))
        .routes(routes!(upgrade))
        .routes(routes!(list_reactors))
        .routes(routes!(list_latency))
        .routes(routes!(version))
        .routes(routes!(metrics_text))
        .routes(routes!(openapi))
}

/// Returns the OpenAPI document of all routes.
pub fn document() -> Document {
    describe(routes().into_openapi())
}

/// Adds the response that every page may give. The causes are a caller without permission, the end of the
/// daemon, a body that is not JSON, and a failure of the machine.
fn describe(mut document: Document) -> Document {
    let problem = RefOr::Ref(Ref::from_schema_name("ApiError"));
    let body = ContentBuilder::new().schema(Some(problem)).build();
    let other = ResponseBuilder::new()
        .description("Any other error: what went wrong, and what to do about it.")
        .content("application/json", body)
        .build();
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            responses.entry("default".to_owned()).or_insert_with(|| RefOr::T(other.clone()));
        }
    }
    open_parts(&mut document);
    document
}

/// Allows further keys in schemas that are parts of another one (`allOf`): the keys of a function have its
/// `kind` beside them. The daemon refuses unknown keys all the same.
fn open_parts(document: &mut Document) {
    let Some(components) = &mut document.components else { return };
    let mut parts = Vec::new();
    for schema in components.schemas.values() {
        let RefOr::T(Schema::OneOf(choices)) = schema else { continue };
        for choice in &choices.items {
            let RefOr::T(Schema::AllOf(all)) = choice else { continue };
            parts.extend(all.items.iter().filter_map(|part| match part {
                RefOr::Ref(part) => part.ref_location.rsplit('/').next().map(str::to_owned),
                RefOr::T(_) => None,
            }));
        }
    }
    for part in parts {
        if let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(&part) {
            object.additional_properties = None;
        }
    }
}

/// Returns the router with all pages for an allowed caller.
pub fn router(app: App) -> Router {
    Router::from(routes())
        .merge(page::router())
        .fallback(async || {
            ErrorAnswer(ApiError::new(Kind::NotFound, "there is no such page").hint(SEE_DOCUMENT))
        })
        .method_not_allowed_fallback(async || {
            let problem =
                ApiError::new(Kind::Malformed, "this page does not know that method").hint(SEE_DOCUMENT);
            (StatusCode::METHOD_NOT_ALLOWED, Json(problem))
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(from_fn(page::refuse_other_sites))
        .with_state(app)
}

const SEE_DOCUMENT: &str = "GET /openapi.json lists all";

/// All drives.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DriveList {
    pub drives: Vec<DriveView>,
}

#[utoipa::path(get, path = "/v1/drives", tag = "drives", summary = "List all drives",
    responses((status = 200, body = DriveList, description = "All drives, by name.")))]
async fn list_drives(State(app): State<App>) -> Answer<Json<DriveList>> {
    looked(move || Ok(Json(DriveList { drives: app.drives.list() }))).await
}

#[utoipa::path(post, path = "/v1/drives", tag = "drives", summary = "Create a drive",
    description = "It is there when this returns, and after a restart.",
    request_body = DriveSpec,
    responses(
        (status = 201, body = DriveView, description = "The drive as it is now."),
        (status = 400, body = ApiError, description = "Not JSON."),
        (status = 409, body = ApiError, description = "The name or a file is in use."),
        (status = 422, body = ApiError, description = "Not a possible drive.")))]
async fn create_drive(State(app): State<App>, Body(spec): Body<DriveSpec>) -> Answer<impl IntoResponse> {
    let view = ordered(spec.name.clone(), move |_| app.drives.create(spec)).await?;
    let location = format!("/v1/drives/{}", view.name);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(view)))
}

#[utoipa::path(get, path = "/v1/drives/{name}", tag = "drives", summary = "Show a drive",
    params(("name" = String, Path)),
    responses((status = 200, body = DriveView, description = "The drive as it is now."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn show_drive(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<DriveView>> {
    looked(move || app.drives.show(&name).map(Json)).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct DeleteQuery {
    /// Whether to delete even if there is a client, which will not survive the deletion.
    #[serde(default)]
    force: bool,
}

#[utoipa::path(delete, path = "/v1/drives/{name}", tag = "drives", summary = "Delete a drive",
    description = "Its files stay. A drive of the configuration file cannot be deleted.",
    params(("name" = String, Path), DeleteQuery),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It has a client, or is declared.")))]
async fn delete_drive(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Checked(Query(query)): Checked<Query<DeleteQuery>>,
) -> Answer<StatusCode> {
    ordered(name, move |name| app.drives.delete(name, query.force).map(|()| StatusCode::NO_CONTENT)).await
}

#[utoipa::path(delete, path = "/v1/drives/{name}/namespaces/{nsid}", tag = "drives",
    summary = "Delete a namespace that a host has created",
    description = "With what is in it, when its commands have ended. One that the operator gave the drive stays.",
    params(("name" = String, Path), ("nsid" = u32, Path), DeleteQuery),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "The drive has a client, or commands did not end.")))]
async fn delete_namespace(
    State(app): State<App>,
    Checked(Path((name, nsid))): Checked<Path<(String, u32)>>,
    Checked(Query(query)): Checked<Query<DeleteQuery>>,
) -> Answer<StatusCode> {
    let delete = move |name: &str| app.drives.delete_namespace(name, nsid, query.force);
    ordered(name, delete).await.map(|()| StatusCode::NO_CONTENT)
}

/// A new size for a namespace.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    pub nsid: u32,
    pub size: Size,
    /// Whether the namespace may become smaller; the data behind its new end is lost.
    #[serde(default)]
    pub shrink: bool,
}

#[utoipa::path(post, path = "/v1/drives/{name}/resize", tag = "drives", summary = "Resize a namespace",
    description = "The guest is told. For a drive of the configuration file the size counts until the file says another.",
    params(("name" = String, Path)),
    request_body = ResizeRequest,
    responses(
        (status = 200, body = DriveView, description = "The drive as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It would become smaller."),
        (status = 422, body = ApiError, description = "It cannot be: why.")))]
async fn resize_drive(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<ResizeRequest>,
) -> Answer<Json<DriveView>> {
    let ResizeRequest { nsid, size, shrink } = request;
    ordered(name, move |name| app.drives.resize(name, nsid, size, shrink).map(Json)).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct OpenQuery {
    /// Whether to create files again, empty, that the drive has had open, and that do not exist any more.
    #[serde(default)]
    make_anew: bool,
    /// Whether to take over files that were served before, when the state folder that belongs to them is
    /// gone.
    #[serde(default)]
    adopt: bool,
}

#[utoipa::path(post, path = "/v1/drives/{name}/open", tag = "drives",
    summary = "Open a drive that could not be opened at the start",
    description = "Does nothing if the drive is open. A file with a size that the drive has had open, and that does not \
                   exist any more, is made again, empty, only with `make_anew`.",
    params(("name" = String, Path), OpenQuery),
    responses(
        (status = 200, body = DriveView, description = "The drive as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = "default", body = ApiError, description = "It still cannot be opened.")))]
async fn open_drive(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Checked(Query(query)): Checked<Query<OpenQuery>>,
) -> Answer<Json<DriveView>> {
    ordered(name, move |name| {
        app.drives.open(name, Insist { make_anew: query.make_anew, adopt: query.adopt }).map(Json)
    })
    .await
}

/// New place of a drive.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveMoveRequest {
    /// Number of the reactor, counted from zero.
    pub reactor: usize,
    /// Completion queue of the host that moves instead of the drive, with the submission queues that complete
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
}

#[utoipa::path(post, path = "/v1/drives/{name}/move", tag = "drives",
    summary = "Move a drive, or a queue of it, to another reactor, under load",
    description = "With all its queues and whoever has it. Its commands wait until what it reads and writes at that \
                   moment has ended. It is forgotten with the next start. With `queue`, one completion queue of a virtual \
                   machine goes there, with its submission queues, and the drive stays; it comes back by itself when the \
                   host or the operator does something that takes all queues.",
    params(("name" = String, Path)),
    request_body = DriveMoveRequest,
    responses(
        (status = 200, body = DriveView, description = "The drive as it is now."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "It did not come to rest in time, and goes on where it is."),
        (status = 422, body = ApiError, description = "There is no such reactor.")))]
async fn move_drive(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<DriveMoveRequest>,
) -> Answer<Json<DriveView>> {
    let DriveMoveRequest { reactor, queue } = request;
    let moved = move |name: &str| match queue {
        None => app.drives.move_to(name, reactor),
        Some(queue) => app.drives.move_queue(name, queue, reactor),
    };
    ordered(name, moved).await.map(Json)
}

#[utoipa::path(post, path = "/v1/reload", tag = "daemon", summary = "Read the configuration file again",
    description = "Drives that it declares now are opened, those that it no longer does are ended, and classifiers \
                   are put in the place of others. What else differs is refused, and waits for a restart.",
    responses(
        (status = 200, body = Reloaded, description = "What was done, and what was refused."),
        (status = 409, body = ApiError, description = "There is no file, or it declares a drive that was created."),
        (status = 422, body = ApiError, description = "Something is wrong with the file.")))]
async fn reload(State(app): State<App>) -> Answer<Json<Reloaded>> {
    let outcome = ordered(NO_DRIVE, move |_| app.drives.reload()).await?;
    outcome.log();
    Ok(Json(outcome))
}

/// Binary to which the daemon is upgraded.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// Absolute path of the binary; without it, that of the running daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub binary: Option<PathBuf>,
}

#[utoipa::path(post, path = "/v1/upgrade", tag = "daemon", summary = "Replace the process of the daemon",
    description = "Another process takes all drives under load. Virtual machines notice a pause of milliseconds. If \
                   the other process fails, this one goes on.",
    request_body = UpgradeRequest,
    responses(
        (status = 200, body = Upgraded, description = "The other process serves from now on."),
        (status = 409, body = ApiError, description = "A drive cannot be handed over, or the other process failed. \
                                                       Nothing has changed.")))]
async fn upgrade(
    State(app): State<App>,
    Body(UpgradeRequest { binary }): Body<UpgradeRequest>,
) -> Answer<Json<Upgraded>> {
    ordered(NO_DRIVE, move |_| app.drives.upgrade(binary)).await.map(Json)
}

/// All reactors.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReactorList {
    pub reactors: Vec<ReactorCounters>,
}

#[utoipa::path(get, path = "/v1/reactors", tag = "daemon", summary = "Counters of all reactors",
    responses((status = 200, body = ReactorList, description = "All reactors.")))]
async fn list_reactors(State(app): State<App>) -> Json<ReactorList> {
    Json(ReactorList { reactors: app.drives.reactors() })
}

/// Latency of all drives.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LatencyList {
    pub drives: Vec<DriveLatency>,
}

#[utoipa::path(get, path = "/v1/latency", tag = "drives", summary = "Latency of the commands of all drives",
    description = "Histograms since each drive was opened. Drives that failed have none, and no drive has any with \
                   `metrics.latency = false`.",
    responses((status = 200, body = LatencyList, description = "All open drives, by name.")))]
async fn list_latency(State(app): State<App>) -> Answer<Json<LatencyList>> {
    looked(move || Ok(Json(LatencyList { drives: app.drives.latency() }))).await
}

/// Version of the daemon that answers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Version number of the daemon.
    pub version: String,
    /// Process number of the daemon.
    pub pid: u32,
}

impl Version {
    fn of_this() -> Self {
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
    }
}

#[utoipa::path(get, path = "/v1/version", tag = "daemon", summary = "Version of the daemon",
    responses((status = 200, body = Version, description = "Of the daemon that answers.")))]
async fn version() -> Json<Version> {
    Json(Version::of_this())
}

#[utoipa::path(get, path = "/metrics", tag = "daemon", summary = "Counters for Prometheus",
    responses((status = 200, body = String, content_type = "text/plain", description = "Text in the format of Prometheus.")))]
pub(super) async fn metrics_text(
    State(app): State<App>,
) -> Answer<([(HeaderName, &'static str); 1], String)> {
    looked(move || {
        let text = metrics::text(&metrics::Snapshot::take(&app.drives));
        Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
    })
    .await
}

#[utoipa::path(get, path = "/openapi.json", tag = "daemon", summary = "This document",
    responses((status = 200, body = Object, description = "An OpenAPI document.")))]
async fn openapi() -> Json<Document> {
    Json(document())
}
