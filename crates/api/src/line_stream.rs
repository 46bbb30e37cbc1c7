//! Streams of JSON lines: bodies that grow while the caller reads.

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use hyper::body::Frame;
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, interval};

/// Media type of JSON lines.
const CONTENT_TYPE: &str = "application/x-ndjson";

/// Answer with a stream of lines.
pub(super) type LineAnswer = ([(HeaderName, &'static str); 1], Body);

/// State of a source of lines.
pub(super) enum Next {
    Lines(String),
    /// Nothing yet.
    Later,
    End,
}

/// Source of lines. It is called when the caller has received the last lines.
pub(super) trait LineSource: Unpin + Send + 'static {
    fn next(&mut self) -> Next;
}

/// Returns an answer with the lines of a source, which is looked at in this interval.
pub(super) fn stream(source: impl LineSource, look: Duration) -> LineAnswer {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::new(Lines { source, look: interval(look) }))
}

/// Formats values as lines.
pub(super) fn lines(values: &[impl Serialize]) -> String {
    values.iter().filter_map(|value| Some(serde_json::to_string(value).ok()? + "\n")).collect()
}

struct Lines<S> {
    source: S,
    look: Interval,
}

impl<S: LineSource> hyper::body::Body for Lines<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            match self.source.next() {
                Next::Lines(lines) => return Poll::Ready(Some(Ok(Frame::data(lines.into())))),
                Next::End => return Poll::Ready(None),
                Next::Later => {
                    ready!(self.look.poll_tick(context));
                }
            }
        }
    }
}
