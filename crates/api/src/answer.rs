//! Requests and responses; every error is a JSON body with `error` and `hint`.

use super::orders::{ORDERS_MAX, Place};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::words::hint_for;
use std::fmt::Display;
use tokio::sync::Semaphore;

/// Result of a handler.
pub type Answer<T> = Result<T, ErrorAnswer>;

/// An error on its way to a caller.
#[derive(Debug)]
pub struct ErrorAnswer(pub ApiError);

impl From<ApiError> for ErrorAnswer {
    fn from(problem: ApiError) -> Self {
        Self(problem)
    }
}

impl IntoResponse for ErrorAnswer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.kind.http_status());
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self.0)).into_response()
    }
}

/// A JSON body. The content type is not checked, because there is only one.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ErrorAnswer;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| malformed(&rejection))?;
        Ok(serde_json::from_slice(&bytes).map(Body).map_err(|error| unsuitable(&error))?)
    }
}

fn unsuitable(error: &serde_json::Error) -> ApiError {
    let words = error.to_string();
    if !error.is_data() {
        return ApiError::new(Kind::Malformed, format!("the body is not JSON: {words}"));
    }
    let problem = ApiError::invalid(format!("the body does not fit: {words}"));
    problem.hint(hint_for(&words).unwrap_or_else(|| "GET /openapi.json describes it".to_owned()))
}

/// An extractor of axum's whose rejection is a [`ApiError`].
pub(super) struct Checked<E>(pub(super) E);

impl<S: Send + Sync, E> FromRequestParts<S> for Checked<E>
where
    E: FromRequestParts<S>,
    E::Rejection: Display,
{
    type Rejection = ErrorAnswer;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        Ok(E::from_request_parts(parts, state)
            .await
            .map(Checked)
            .map_err(|rejection| malformed(&rejection))?)
    }
}

fn malformed(rejection: &impl Display) -> ApiError {
    ApiError::new(Kind::Malformed, rejection.to_string())
}

/// Logs an order that failed because of the daemon or its machine: limits, full disks, silent reactors. The
/// log has it, too, because the caller may have been a script.
fn log_own_trouble(problem: &ApiError) {
    if matches!(problem.kind, Kind::Internal) {
        tracing::warn!("an order failed: {}", problem.in_one_line());
    }
}

/// Maximum number of pages that are prepared at a time, each on a thread of its own. No order has these
/// threads.
const PAGES_AT_ONCE: usize = 32;

/// Number of threads for orders and pages together, and some for the end of the daemon.
pub const THREADS: usize = ORDERS_MAX + PAGES_AT_ONCE + 4;

static PAGES: Semaphore = Semaphore::const_new(PAGES_AT_ONCE);

/// Executes an order for a drive away from the thread that serves callers. Hanging orders of a drive delay
/// only further orders of that drive. The order keeps its place until it ends, even if its caller has gone.
pub async fn ordered<T: Send + 'static>(
    drive: impl Into<String>,
    work: impl FnOnce(&str) -> Result<T, ApiError> + Send + 'static,
) -> Answer<T> {
    let place = Place::take(drive)?;
    let turn = place.turn().await;
    let work = move || {
        let done = work(place.drive());
        drop((turn, place));
        done
    };
    blocking(work).await
}

/// Prepares a page away from the thread that serves callers. Orders do not delay it.
pub(super) async fn looked<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Answer<T> {
    let room = PAGES.acquire().await;
    let work = move || {
        let done = work();
        drop(room);
        done
    };
    blocking(work).await
}

/// Runs blocking work (files, answers of reactors) on another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Answer<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => Ok(answer.inspect_err(log_own_trouble)?),
        // A panic ends the process, so the runtime is shutting down.
        Err(_) => Err(ApiError::new(Kind::Unavailable, "the daemon is stopping").into()),
    }
}
