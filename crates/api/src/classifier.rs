//! Routes of classifiers and their maps.

use super::answer::{Answer, Body, Checked, looked, ordered};
use super::routes::App;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use sluice_control::drives::{ClassifierStatus, ENTRIES_MAX, MapDump, MapEntry, MapView};
use sluice_spec::ClassifierSpec;
use sluice_spec::error::ApiError;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show_classifier, attach_classifier, replace_classifier, detach_classifier))
        .routes(routes!(list_maps))
        .routes(routes!(dump_map))
        .routes(routes!(get_map_entry, set_map_entry, delete_map_entry))
}

#[utoipa::path(get, path = "/v1/drives/{name}/classifier", tag = "classifiers", summary = "Show a classifier",
    params(("name" = String, Path)),
    responses(
        (status = 200, body = ClassifierStatus, description = "What the classifier does."),
        (status = 404, body = ApiError, description = "There is no such drive, or it has none.")))]
async fn show_classifier(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<ClassifierStatus>> {
    looked(move || app.drives.show_classifier(&name).map(Json)).await
}

#[utoipa::path(post, path = "/v1/drives/{name}/classifier", tag = "classifiers", summary = "Attach a classifier",
    description = "It decides on commands from now on, and after a restart: the daemon keeps a copy of the object.",
    params(("name" = String, Path)),
    request_body = ClassifierSpec,
    responses(
        (status = 200, body = ClassifierStatus, description = "What the classifier does."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "The drive has one."),
        (status = 422, body = ApiError, description = "The program is refused: where, and why.")))]
async fn attach_classifier(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(spec): Body<ClassifierSpec>,
) -> Answer<Json<ClassifierStatus>> {
    ordered(name, move |name| app.drives.attach_classifier(name, spec).map(Json)).await
}

/// A classifier in place of another.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    #[serde(flatten)]
    pub classifier: ClassifierSpec,
    /// Whether to begin with empty maps, instead of taking over maps with the same name and shape.
    #[serde(default)]
    pub fresh_maps: bool,
}

#[utoipa::path(put, path = "/v1/drives/{name}/classifier", tag = "classifiers", summary = "Replace a classifier",
    description = "Under load: the next command sees the new one, those in flight finish with the old.",
    params(("name" = String, Path)),
    request_body = ReplaceRequest,
    responses(
        (status = 200, body = ClassifierStatus, description = "What the classifier does."),
        (status = 404, body = ApiError, description = "There is no such drive, or it has none."),
        (status = 422, body = ApiError, description = "The program is refused: where, and why.")))]
async fn replace_classifier(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
    Body(request): Body<ReplaceRequest>,
) -> Answer<Json<ClassifierStatus>> {
    let ReplaceRequest { classifier, fresh_maps } = request;
    ordered(name, move |name| app.drives.replace_classifier(name, classifier, fresh_maps).map(Json)).await
}

#[utoipa::path(delete, path = "/v1/drives/{name}/classifier", tag = "classifiers", summary = "Detach a classifier",
    description = "Commands take the first path from now on; those in flight finish as they began.",
    params(("name" = String, Path)),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "There is no such drive, or it has none.")))]
async fn detach_classifier(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<StatusCode> {
    ordered(name, move |name| app.drives.detach_classifier(name).map(|()| StatusCode::NO_CONTENT)).await
}

/// All maps of a classifier.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MapList {
    pub maps: Vec<MapView>,
}

#[utoipa::path(get, path = "/v1/drives/{name}/classifier/maps", tag = "classifiers",
    summary = "List the maps of a classifier",
    params(("name" = String, Path)),
    responses((status = 200, body = MapList, description = "The maps of the classifier."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn list_maps(
    State(app): State<App>,
    Checked(Path(name)): Checked<Path<String>>,
) -> Answer<Json<MapList>> {
    looked(move || app.drives.list_maps(&name).map(|maps| Json(MapList { maps }))).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    /// Position of the first entry: the `next` of the page before.
    #[serde(default)]
    from: usize,
    /// Maximum number of entries; there may be fewer, and never more than 65,536.
    limit: Option<usize>,
}

#[utoipa::path(get, path = "/v1/drives/{name}/classifier/maps/{map}", tag = "classifiers",
    summary = "Show what is in a map",
    description = "In pages: while there is a `next`, ask again `from` there. What changes meanwhile may be there \
                   or not, or be there twice.",
    params(("name" = String, Path), ("map" = String, Path), PageQuery),
    responses((status = 200, body = MapDump, description = "A page of the entries."), (status = 404, body = ApiError, description = "What the path names is not there.")))]
async fn dump_map(
    State(app): State<App>,
    Checked(Path((name, map))): Checked<Path<(String, String)>>,
    Checked(Query(page)): Checked<Query<PageQuery>>,
) -> Answer<Json<MapDump>> {
    let limit = page.limit.unwrap_or(ENTRIES_MAX);
    looked(move || app.drives.dump_map(&name, &map, page.from, limit).map(Json)).await
}

#[utoipa::path(get, path = "/v1/drives/{name}/classifier/maps/{map}/{key}", tag = "classifiers",
    summary = "Show an entry of a map",
    params(("name" = String, Path), ("map" = String, Path), ("key" = String, Path, description = "In hexadecimal.")),
    responses(
        (status = 200, body = MapEntry, description = "The entry."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 422, body = ApiError, description = "Not a key of this map.")))]
async fn get_map_entry(
    State(app): State<App>,
    Checked(Path((name, map, key))): Checked<Path<(String, String, String)>>,
) -> Answer<Json<MapEntry>> {
    looked(move || app.drives.get_map_entry(&name, &map, &key).map(Json)).await
}

/// A value for a map.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ValueRequest {
    /// Value in hexadecimal, with as many bytes as the map's values have.
    pub value: String,
}

#[utoipa::path(put, path = "/v1/drives/{name}/classifier/maps/{map}/{key}", tag = "classifiers",
    summary = "Set an entry of a map",
    description = "The program sees it at once. It is gone when the drive is closed.",
    params(("name" = String, Path), ("map" = String, Path), ("key" = String, Path, description = "In hexadecimal.")),
    request_body = ValueRequest,
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 409, body = ApiError, description = "The map is full."),
        (status = 422, body = ApiError, description = "Not a key or value of this map.")))]
async fn set_map_entry(
    State(app): State<App>,
    Checked(Path((name, map, key))): Checked<Path<(String, String, String)>>,
    Body(request): Body<ValueRequest>,
) -> Answer<StatusCode> {
    let set = move |name: &str| app.drives.set_map_entry(name, &map, &key, &request.value);
    ordered(name, set).await.map(|()| StatusCode::NO_CONTENT)
}

#[utoipa::path(delete, path = "/v1/drives/{name}/classifier/maps/{map}/{key}", tag = "classifiers",
    summary = "Delete an entry of a map",
    params(("name" = String, Path), ("map" = String, Path), ("key" = String, Path, description = "In hexadecimal.")),
    responses(
        (status = 204, description = "It is done."),
        (status = 404, body = ApiError, description = "What the path names is not there."),
        (status = 422, body = ApiError, description = "Not a key of this map, or one that cannot be deleted.")))]
async fn delete_map_entry(
    State(app): State<App>,
    Checked(Path((name, map, key))): Checked<Path<(String, String, String)>>,
) -> Answer<StatusCode> {
    let remove = move |name: &str| app.drives.remove_map_entry(name, &map, &key);
    ordered(name, remove).await.map(|()| StatusCode::NO_CONTENT)
}
