//! The web page: its files, the address at which it is served over TCP, and the token for it.

mod files;
mod gate;
mod origin;
mod server;

pub(super) use files::router;
pub(super) use origin::refuse_other_sites;
pub use server::PageServer;

use super::answer::Answer;
use super::routes::App;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use sluice_control::token::Token;
use sluice_spec::error::{ApiError, Kind};
use std::net::SocketAddr;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Address of the page over TCP, and the token for it.
#[derive(Clone, Debug)]
pub struct PageAccess {
    pub address: SocketAddr,
    pub token: Token,
}

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show_page))
}

/// Address of the web page.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PageView {
    /// URL to open in a browser. It contains the token, and is as secret.
    pub url: String,
}

#[utoipa::path(get, path = "/v1/page", tag = "daemon", summary = "Address of the web page",
    responses(
        (status = 200, body = PageView, description = "The URL to open in a browser, with the token."),
        (status = 404, body = ApiError, description = "The page has no address on TCP.")))]
async fn show_page(State(app): State<App>) -> Answer<Json<PageView>> {
    let Some(PageAccess { address, token }) = app.page.as_deref() else {
        return Err(ApiError::new(Kind::NotFound, "the page is on the socket of the API alone")
            .hint("set listen = \"127.0.0.1:9477\" in [page] of the configuration, and restart the daemon")
            .into());
    };
    // Browsers send no fragment to a server, so that no log has the token.
    Ok(Json(PageView { url: format!("http://{address}/#token={}", token.as_str()) }))
}
