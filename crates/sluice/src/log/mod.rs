//! Log messages to standard error, without ever waiting for its reader.

mod limit;
mod writer;

pub use writer::Flush;

use clap::ValueEnum;
use limit::Limited;
use sluice_spec::error::ApiError;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

/// Environment variable with the levels that are shown: `info`, or `warn,sluice_frontend=debug`.
pub const VARIABLE: &str = "SLUICE_LOG";

/// Form of the log messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A line of text for each.
    #[default]
    Text,
    /// A JSON object for each, on a line.
    Json,
}

/// Sends this process's messages to standard error from now on. Dropping the returned [`Flush`] waits up to a
/// second until they are written.
///
/// # Errors
/// If `levels` cannot be parsed, or messages go elsewhere already.
pub fn start(format: Format, levels: &str) -> Result<Flush, ApiError> {
    let levels: Targets = levels.parse().map_err(|error| {
        ApiError::invalid(format!("{VARIABLE} is not a list of levels: {error}"))
            .hint("use words such as `info`, or `warn,sluice_frontend=debug`")
    })?;
    let (sink, flush) = writer::start();
    let installed = match format {
        Format::Text => tracing::subscriber::set_global_default(text(sink, levels)),
        Format::Json => tracing::subscriber::set_global_default(json(sink, levels)),
    };
    installed.map_err(|_| ApiError::internal("messages go somewhere else already"))?;
    Ok(flush)
}

/// Sends messages to standard error without a thread, for a process that is about to be confined and can
/// start none.
pub fn start_plainly() {
    let levels = std::env::var(VARIABLE).ok().and_then(|levels| levels.parse().ok());
    let levels = levels.unwrap_or_else(|| Targets::new().with_default(tracing::Level::INFO));
    // A second start changes nothing.
    let _ = tracing::subscriber::set_global_default(text(std::io::stderr, levels));
}

fn text<W>(sink: W, levels: Targets) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let format = Limited::new(fmt::format().with_ansi(false), |left_out| {
        format!("({left_out} more like the next one were left out)")
    });
    Registry::default().with(fmt::layer().event_format(format).with_writer(sink).with_filter(levels))
}

fn json<W>(sink: W, levels: Targets) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let format = Limited::new(fmt::format().json().flatten_event(true), |left_out| {
        format!("{{\"left_out\":{left_out},\"message\":\"more like the next one were left out\"}}")
    });
    let layer = fmt::layer().fmt_fields(JsonFields::new()).event_format(format);
    Registry::default().with(layer.with_writer(sink).with_filter(levels))
}

#[cfg(test)]
mod tests;
