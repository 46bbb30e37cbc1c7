//! Admission of requests over TCP: by the host name, the origin and the token.

use super::super::answer::ErrorAnswer;
use super::PageAccess;
use super::files::{RULES, is_file};
use super::origin::{Hosts, check};
use axum::Json;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sluice_spec::error::ApiError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Time that the refusal of a wrong token takes.
const WRONG_PAUSE: Duration = Duration::from_millis(500);

/// Rules of admission.
#[derive(Debug)]
pub(super) struct Gate {
    access: Arc<PageAccess>,
    /// Whether a wrong token was logged. Further ones are not.
    has_logged: AtomicBool,
}

/// Admission of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// The request has the token.
    Holder,
    /// The request is for a file of the page.
    Anybody,
}

impl Gate {
    pub(super) fn new(access: Arc<PageAccess>) -> Self {
        Self { access, has_logged: AtomicBool::new(false) }
    }

    /// Admits a request of `peer`, or returns the refusal.
    pub(super) async fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> Result<Admitted, Response> {
        check(headers, Hosts::At(self.access.address))
            .map_err(|problem| ErrorAnswer(problem).into_response())?;
        match bearer(headers) {
            Some(token) if self.access.token.matches(token) => Ok(Admitted::Holder),
            Some(_) => {
                self.log_once(peer);
                tokio::time::sleep(WRONG_PAUSE).await;
                Err(closed(refused("the token is wrong")))
            }
            None if is_file(method, path) => Ok(Admitted::Anybody),
            None => Err(closed(refused("this needs the token of the page"))),
        }
    }

    fn log_once(&self, peer: SocketAddr) {
        if !self.has_logged.swap(true, Relaxed) {
            tracing::warn!("{peer} sent a wrong token for the page; further ones are not logged");
        }
    }
}

/// Returns the token of a request, if there is one: no other site's page can make a browser send it.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn refused(why: &str) -> Response {
    let hint = "`sluice page` prints the address with the token; other programs send it as `Authorization: Bearer TOKEN`";
    let problem = ApiError::invalid(why).hint(hint);
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], Json(problem)).into_response()
}

/// Has the connection closed after the answer.
fn closed(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Adds the rules for browsers to an answer.
pub(super) fn with_rules(mut response: Response) -> Response {
    for (name, value) in RULES {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
