//! Client of the API, for the tool.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_spec::error::{ApiError, Kind};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Maximum length of an answer that is read, in bytes.
const ANSWER_MAX: usize = 64 << 20;

/// Time limit for the daemon's answer: allocating a large file is slow on some file systems.
const LIMIT: Duration = Duration::from_secs(300);

/// Client of the daemon at one socket, with a connection for each request.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Sends GET, and returns the JSON answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        understood(&self.request(Method::GET, path, Bytes::new()).await?)
    }

    /// Sends GET, and returns the answer as text.
    pub async fn get_text(&self, path: &str) -> Result<String, ApiError> {
        let answer = self.request(Method::GET, path, Bytes::new()).await?;
        String::from_utf8(answer.to_vec()).map_err(|_| strange("it is not text"))
    }

    /// Sends POST with a JSON body, and returns the JSON answer.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::internal(error.to_string()))?;
        understood(&self.request(Method::POST, path, body.into()).await?)
    }

    /// Sends PUT with a JSON body, and returns the JSON answer.
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::internal(error.to_string()))?;
        understood(&self.request(Method::PUT, path, body.into()).await?)
    }

    /// Sends PUT with a JSON body; the answer has no content.
    pub async fn put_quietly(&self, path: &str, body: &impl Serialize) -> Result<(), ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::internal(error.to_string()))?;
        self.request(Method::PUT, path, body.into()).await.map(drop)
    }

    /// Sends DELETE; the answer has no content.
    pub async fn delete(&self, path: &str) -> Result<(), ApiError> {
        self.request(Method::DELETE, path, Bytes::new()).await.map(drop)
    }

    /// Sends any request. Returns the body of a successful answer, or else the problem that the answer
    /// contains.
    pub async fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ApiError> {
        let exchange = tokio::time::timeout(LIMIT, self.exchange(method, path, body));
        let (status, answer) = exchange.await.map_err(|_| self.silent())??;
        if (200..300).contains(&status) {
            return Ok(answer);
        }
        Err(refused(status, &answer))
    }

    /// Sends GET, and passes each line of the answer to `each` as it comes, until the end of the answer or an error
    /// of `each`.
    pub async fn lines(
        &self,
        path: &str,
        mut each: impl FnMut(&str) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let sent = tokio::time::timeout(LIMIT, self.send(Method::GET, path, Bytes::new()));
        let response = sent.await.map_err(|_| self.silent())??;
        let status = response.status();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken(&error))?;
            text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if text.len() > ANSWER_MAX {
                return Err(strange("a line is too long"));
            }
            if !status.is_success() {
                continue;
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                each(str::from_utf8(&line[..end]).map_err(|_| strange("a line is not text"))?)?;
            }
        }
        match status.is_success() {
            true => Ok(()),
            false => Err(refused(status.as_u16(), &text)),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(u16, Bytes), ApiError> {
        let response = self.send(method, path, body).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        Ok((status, body.map_err(|error| broken(&error))?.to_bytes()))
    }

    /// Sends a request, and returns the head of the answer.
    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ApiError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(&error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "sluice")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .map_err(|error| ApiError::internal(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| broken(&error))
    }

    fn unreachable(&self, error: &io::Error) -> ApiError {
        let socket = self.socket.display();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ApiError::new(Kind::Unavailable, format!("no daemon answers at {socket}")).hint(
                    "start one with `sluice serve -c FILE`, or name its socket with --api or SLUICE_API",
                )
            }
            io::ErrorKind::PermissionDenied => {
                ApiError::new(Kind::Forbidden, format!("you may not connect to {socket}"))
                    .hint("call as root or as the daemon's user")
            }
            _ => ApiError::new(Kind::Unavailable, format!("cannot connect to {socket}: {error}")),
        }
    }

    fn silent(&self) -> ApiError {
        let words =
            format!("the daemon at {} did not answer within {} s", self.socket.display(), LIMIT.as_secs());
        ApiError::new(Kind::Unavailable, words)
            .hint("its log may say what it waits for; what you asked may still happen")
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// Returns the problem in an answer that is no success.
fn refused(status: u16, answer: &[u8]) -> ApiError {
    let kind = Kind::of_http_status(status);
    match serde_json::from_slice::<ApiError>(answer) {
        Ok(problem) => ApiError { kind, ..problem },
        Err(_) => ApiError { kind, ..strange(&format!("it says {status}")) },
    }
}

fn understood<T: DeserializeOwned>(answer: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(answer).map_err(|error| strange(&error.to_string()))
}

fn strange(why: &str) -> ApiError {
    ApiError::internal(format!("the daemon's answer is not understood: {why}"))
        .hint("are the tool and the daemon of the same version? see `sluice version`")
}

fn broken(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(Kind::Unavailable, format!("the daemon went away before it answered: {error}"))
        .hint("its log says why")
}

/// Encodes a word as one segment of a URL's path.
pub fn segment(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    word.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
