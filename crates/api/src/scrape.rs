//! Metrics at a TCP address, for a Prometheus that cannot open the socket of the API. Nothing else is served there.

use super::routes::{App, metrics_text};
use super::server::raised;
use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// Maximum number of connections at a time; further ones wait to be accepted.
const SCRAPERS_MAX: usize = 16;

/// Time limit for the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for a connection, which has one request.
const LIMIT: Duration = Duration::from_secs(10);

/// Bytes of the head of a request.
const HEAD_MAX: usize = 8 << 10;

/// Pause after an error of accept, which prevents a busy loop.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Server of metrics at a TCP address.
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    router: Router,
    room: Arc<Semaphore>,
    connections: JoinSet<()>,
}

impl MetricsServer {
    /// Creates a server. Call on a runtime.
    ///
    /// # Errors
    /// The listener cannot be used on the runtime.
    pub fn new(listener: StdListener, app: App) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: TcpListener::from_std(listener)?,
            router: Router::new().fallback(answer).with_state(app),
            room: Arc::new(Semaphore::new(SCRAPERS_MAX)),
            connections: JoinSet::new(),
        })
    }

    /// Serves until `stop` is raised.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                accepted = accept(&self.listener, &self.room) => match accepted {
                    Ok((stream, permit)) => {
                        self.connections.spawn(serve(stream, self.router.clone(), permit));
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept a connection for metrics: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = raised(&mut stop) => return,
                // This branch removes finished connections from the set.
                Some(_) = self.connections.join_next() => {}
            }
        }
    }
}

/// Accepts a connection when there is room for one.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn serve(stream: TcpStream, router: Router, permit: OwnedSemaphorePermit) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a reader of metrics went away: {error}"),
        Err(_) => tracing::debug!("a reader of metrics took longer than {} s", LIMIT.as_secs()),
    }
    drop(permit);
}

/// Answers GET /metrics, and refuses all other requests.
async fn answer(State(app): State<App>, method: Method, uri: axum::http::Uri) -> Response {
    match (method, uri.path()) {
        (Method::GET, "/metrics") => metrics_text(State(app)).await.into_response(),
        (_, "/metrics") => {
            (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET")], "only GET\n").into_response()
        }
        _ => (StatusCode::NOT_FOUND, "only /metrics is here\n").into_response(),
    }
}
