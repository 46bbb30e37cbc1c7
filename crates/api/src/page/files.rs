//! The files of the page, which are part of the program.

use super::super::routes::App;
use axum::Router;
use axum::http::{HeaderName, Method, header};
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::get;

/// A file of the page.
struct File {
    path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

macro_rules! script {
    ($name:literal) => {
        File {
            path: concat!("/page/", $name),
            media_type: "text/javascript; charset=utf-8",
            text: include_str!(concat!("../../page/", $name)),
        }
    };
}

const FILES: &[File] = &[
    File { path: "/", media_type: "text/html; charset=utf-8", text: include_str!("../../page/index.html") },
    File {
        path: "/page/style.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("../../page/style.css"),
    },
    File { path: "/page/icon.svg", media_type: "image/svg+xml", text: include_str!("../../page/icon.svg") },
    script!("app.js"),
    script!("api.js"),
    script!("attach.js"),
    script!("create.js"),
    script!("dom.js"),
    script!("drive.js"),
    script!("drives.js"),
    script!("events.js"),
    script!("form.js"),
    script!("format.js"),
    script!("graph.js"),
    script!("jobs.js"),
    script!("machine.js"),
    script!("plot.js"),
    script!("poll.js"),
];

/// Rules for the browser: nothing is loaded from elsewhere, no text becomes code, no other site embeds or reads an
/// answer, and no copy stays on a disk.
pub(super) const RULES: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Returns the routes of all files.
pub(in super::super) fn router() -> Router<App> {
    FILES.iter().fold(Router::new(), |router, file| router.route(file.path, get(async || file.answer())))
}

/// Returns whether the request is for a file of the page, which has no secret in it.
pub(super) fn is_file(method: &Method, path: &str) -> bool {
    (method == Method::GET || method == Method::HEAD) && FILES.iter().any(|file| file.path == path)
}

impl File {
    fn answer(&self) -> impl IntoResponse + use<> {
        let (media_type, text) = (self.media_type, self.text);
        (AppendHeaders(RULES), [(header::CONTENT_TYPE, media_type)], text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum size of all files of the page together, bytes.
    const BYTES_MAX: usize = 60_000;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes < BYTES_MAX, "the files of the page have {bytes} bytes");
    }

    #[test]
    fn scripts_import_files_that_are_there() {
        for file in FILES {
            for name in file.text.split(" from \"./").skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(is_file(&Method::GET, &format!("/page/{name}")), "{}: {name}", file.path);
            }
            assert!(!file.text.contains("innerHTML"), "{}: text from outside is no markup", file.path);
        }
    }
}
