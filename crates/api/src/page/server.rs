//! The page and the API at a TCP address, for callers that have the token.

use super::super::routes::{App, router};
use super::super::scrape::ACCEPT_PAUSE;
use super::super::server::raised;
use super::PageAccess;
use super::gate::{Admitted, Gate, with_rules};
use axum::Router;
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of connections at a time. A further one takes the place of the oldest that has not shown the token.
const CONNECTIONS_MAX: usize = 64;

/// Time limit for the head of a request, and between two requests of a connection.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for a connection that has not shown the token.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for requests being answered when the server stops.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of the head of a request.
const HEAD_MAX: usize = 16 << 10;

/// Server of the page and the API at a TCP address.
#[derive(Debug)]
pub struct PageServer {
    listener: TcpListener,
    door: Arc<Door>,
    /// Connections in the order in which they came, some of which may have ended.
    present: Vec<Present>,
    connections: JoinSet<()>,
}

/// A connection.
#[derive(Debug)]
struct Present {
    /// Whether the connection has shown the token.
    is_holder: Arc<AtomicBool>,
    task: AbortHandle,
}

/// The way from a connection to the API.
#[derive(Debug)]
struct Door {
    gate: Gate,
    pages: TowerToHyperService<Router>,
}

impl PageServer {
    /// Creates a server. Call on a runtime.
    ///
    /// # Errors
    /// The listener cannot be used on the runtime.
    pub fn new(listener: StdListener, access: Arc<PageAccess>, app: App) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: TcpListener::from_std(listener)?,
            door: Arc::new(Door { gate: Gate::new(access), pages: TowerToHyperService::new(router(app)) }),
            present: Vec::new(),
            connections: JoinSet::new(),
        })
    }

    /// Serves until `stop` is raised, then lets the requests being answered finish.
    pub async fn run(mut self, stop: watch::Receiver<bool>) {
        let mut stopping = stop.clone();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(stream, peer, &stop),
                    Err(error) => {
                        tracing::warn!("cannot accept a connection for the page: {error}");
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
        let _ = tokio::time::timeout(STOP_LIMIT, all).await;
    }
}

impl PageServer {
    /// Serves a connection, if there is a place. Strangers never keep a holder of the token out.
    fn admit(&mut self, stream: TcpStream, peer: SocketAddr, stop: &watch::Receiver<bool>) {
        self.present.retain(|present| !present.task.is_finished());
        if self.present.len() >= CONNECTIONS_MAX {
            let is_stranger = |present: &Present| !present.is_holder.load(Relaxed);
            let Some(oldest) = self.present.iter().position(is_stranger) else {
                return tracing::debug!(
                    "no place for {peer}: {CONNECTIONS_MAX} connections have the page's token"
                );
            };
            self.present.remove(oldest).task.abort();
        }
        let is_holder = Arc::new(AtomicBool::new(false));
        let connection = serve(stream, peer, Arc::clone(&self.door), Arc::clone(&is_holder), stop.clone());
        self.present.push(Present { is_holder, task: self.connections.spawn(connection) });
    }
}

impl Door {
    /// Answers a request. Sets `is_holder` when the request has the token.
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr, is_holder: &AtomicBool) -> Response {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let answer = match self.gate.admit(&method, &path, request.headers(), peer).await {
            Ok(admitted) => {
                is_holder.fetch_or(admitted == Admitted::Holder, Relaxed);
                self.pages.call(request).await.into_response()
            }
            Err(refusal) => refusal,
        };
        with_rules(answer)
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    door: Arc<Door>,
    is_holder: Arc<AtomicBool>,
    mut stop: watch::Receiver<bool>,
) {
    let answer = {
        let is_holder = Arc::clone(&is_holder);
        move |request| {
            let (door, is_holder) = (Arc::clone(&door), Arc::clone(&is_holder));
            async move { Ok::<_, Infallible>(door.answer(request, peer, &is_holder).await) }
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => if let Err(error) = ended {
            tracing::debug!("{peer}, a caller of the page, went away: {error}");
        },
        () = stranger_limit(&is_holder) => tracing::debug!("{peer} did not send the page's token in time"),
        () = raised(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(STOP_LIMIT, connection).await;
        }
    }
}

/// Waits until the time limit of a connection without the token; for ever if the token was shown by then.
async fn stranger_limit(is_holder: &AtomicBool) {
    tokio::time::sleep(STRANGER_LIMIT).await;
    if is_holder.load(Relaxed) {
        std::future::pending::<()>().await;
    }
}
