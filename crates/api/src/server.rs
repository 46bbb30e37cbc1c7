//! Acceptance of callers: a limited number, each with a time limit; refused callers get an answer.

use super::Policy;
use super::answer::ErrorAnswer;
use super::callers::{is_function, refused, refused_function};
use super::orders::ORDERS_MAX;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// Maximum number of callers served at a time; further callers wait to be accepted. There is room for callers
/// that only read besides all callers that wait for an order.
const CALLERS_MAX: usize = ORDERS_MAX + 256;

/// Maximum number of callers being refused at a time; further ones are disconnected without an answer.
const REFUSALS_MAX: usize = 8;

/// Time limit for a caller to send the head of a request, and to send the next one.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for the head of a request from a caller that will be refused.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Time limit for requests being answered when the server stops.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Pause after an error of accept (no more descriptors), which prevents a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening API.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    policy: Policy,
    allowed: Router,
    callers: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    connections: JoinSet<()>,
}

impl Server {
    pub fn new(listener: UnixListener, policy: Policy, allowed: Router) -> Self {
        Self {
            listener,
            policy,
            allowed,
            callers: Arc::new(Semaphore::new(CALLERS_MAX)),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            connections: JoinSet::new(),
        }
    }

    /// Serves until `stop` is raised, then lets the requests being answered finish.
    pub async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut stopping = stop.clone();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, &stop).await,
                    Err(error) => {
                        tracing::warn!("cannot accept a caller of the API: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = raised(&mut stopping) => break,
                // This branch removes finished connections from the set.
                Some(_) = self.connections.join_next() => {}
            }
        }
        drop(self.listener);
        let all = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_LIMIT, all).await.is_err() {
            tracing::warn!("a request was still being answered after {} s", STOP_LIMIT.as_secs());
        }
    }

    async fn admit(&mut self, stream: UnixStream, stop: &watch::Receiver<bool>) {
        // A caller without credentials has no permission.
        let Ok(caller) = stream.peer_cred() else { return };
        let is_function = is_function(caller.pid(), caller.uid());
        let (router, limit, permit) = if !is_function && self.policy.allows(caller.uid(), caller.gid()) {
            let mut stopping = stop.clone();
            let permit = tokio::select! {
                permit = Arc::clone(&self.callers).acquire_owned() => permit.ok(),
                () = raised(&mut stopping) => None,
            };
            (self.allowed.clone(), HEAD_LIMIT, permit)
        } else {
            let what = if is_function { ", a function" } else { "" };
            tracing::warn!(
                "refused a caller of the API: user {}, group {}{what}",
                caller.uid(),
                caller.gid()
            );
            let permit = Arc::clone(&self.refusals).try_acquire_owned().ok();
            let answer = if is_function { function_refusal() } else { refusal(caller.uid()) };
            (answer, REFUSAL_LIMIT, permit)
        };
        if let Some(permit) = permit {
            self.connections.spawn(serve(stream, router, limit, permit, stop.clone()));
        }
    }
}

/// Returns the router for a caller that may not call: every page is an error.
pub fn refusal(uid: u32) -> Router {
    Router::new().fallback(async move || ErrorAnswer(refused(uid)))
}

/// Returns the router for a function's process: every page is an error.
fn function_refusal() -> Router {
    Router::new().fallback(async || ErrorAnswer(refused_function()))
}

/// Waits until the flag is raised, or its sender is gone.
pub(super) async fn raised(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn serve(
    stream: UnixStream,
    router: Router,
    limit: Duration,
    permit: OwnedSemaphorePermit,
    mut stop: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limit)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = raised(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a caller of the API went away: {error}");
    }
    drop(permit);
}
