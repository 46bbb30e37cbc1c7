//! Refusal of requests that a browser sends for another site: by its `Origin` and `Sec-Fetch-Site`, and by a host name
//! that leads here (DNS rebinding).

use super::super::answer::ErrorAnswer;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sluice_spec::error::{ApiError, Kind};
use std::net::{IpAddr, SocketAddr};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Names by which a server may be addressed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hosts {
    /// Names without a dot, and IP addresses: no other site has such a name. For the UNIX socket, which is forwarded
    /// under any of them.
    Local,
    /// The address, and `localhost` with its port.
    At(SocketAddr),
}

impl Hosts {
    fn allow(self, host: Option<&str>) -> bool {
        match (self, host) {
            (Self::Local, None) => true,
            (Self::Local, Some(host)) => is_local(host),
            (Self::At(_), None) => false,
            (Self::At(address), Some(host)) => {
                let port = address.port();
                let same = |name: &str| {
                    host.eq_ignore_ascii_case(&format!("{name}:{port}"))
                        || (port == 80 && host.eq_ignore_ascii_case(name))
                };
                let ip = match address.ip() {
                    IpAddr::V4(ip) => ip.to_string(),
                    IpAddr::V6(ip) => format!("[{ip}]"),
                };
                same(&ip) || same("localhost")
            }
        }
    }
}

/// Returns whether no public name has this form: it is an IP address, or has no dot.
fn is_local(host: &str) -> bool {
    if host.starts_with('[') {
        return true;
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    !name.contains('.') || name.parse::<IpAddr>().is_ok()
}

/// Returns the only value of a header; `Err` if there are several, or it is not text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let unclear = || ApiError::new(Kind::Malformed, format!("the header {name} is not clear"));
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| unclear()),
        (Some(_), Some(_)) => Err(unclear()),
    }
}

/// Checks that a request does not come from another site.
///
/// # Errors
/// The host is none of `hosts`, or a browser sent the request for another origin.
pub(super) fn check(headers: &HeaderMap, hosts: Hosts) -> Result<(), ApiError> {
    let host = only(headers, &header::HOST)?;
    if !hosts.allow(host) {
        let name = host.unwrap_or_default().escape_debug().to_string();
        return Err(ApiError::new(Kind::Forbidden, format!("`{name}` is not a name of this daemon"))
            .hint("use the address itself, or localhost: a name of another site could lead here"));
    }
    let site = only(headers, &SEC_FETCH_SITE)?;
    let is_own_site = site.is_none_or(|site| ["same-origin", "none"].contains(&site));
    let origin = only(headers, &header::ORIGIN)?;
    let is_own_origin = origin.is_none_or(|origin| {
        let name = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        name.zip(host).is_some_and(|(name, host)| name.eq_ignore_ascii_case(host))
    });
    match is_own_site && is_own_origin {
        true => Ok(()),
        false => Err(ApiError::new(Kind::Forbidden, "a page of another site may not call this daemon")
            .hint("open the page's own address, which `sluice page` prints")),
    }
}

/// Refuses requests of other sites on the UNIX socket, which may be forwarded to a port that a browser reaches.
pub(in super::super) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    match check(request.headers(), Hosts::Local) {
        Ok(()) => next.run(request).await,
        Err(problem) => ErrorAnswer(problem).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("text")))
            .collect()
    }

    fn at(address: &str) -> Hosts {
        Hosts::At(address.parse().expect("an address"))
    }

    #[test]
    fn only_its_own_names_lead_to_an_address() {
        let own = at("127.0.0.1:9477");
        for host in ["127.0.0.1:9477", "localhost:9477", "LocalHost:9477"] {
            assert_eq!(check(&headers(&[("host", host)]), own), Ok(()), "{host}");
        }
        for host in
            ["", "127.0.0.1", "127.0.0.1:80", "127.0.0.2:9477", "evil.example:9477", "localhost.:9477"]
        {
            let refused = check(&headers(&[("host", host)]), own).expect_err(host);
            assert_eq!(refused.kind, Kind::Forbidden);
        }
        assert!(check(&headers(&[]), own).is_err());
        assert_eq!(check(&headers(&[("host", "[::1]:9477")]), at("[::1]:9477")), Ok(()));
        assert_eq!(check(&headers(&[("host", "localhost")]), at("127.0.0.1:80")), Ok(()));
    }

    #[test]
    fn names_that_sites_can_have_do_not_lead_to_the_socket() {
        for host in ["sluice", "localhost:8080", "127.0.0.1:1", "[::1]:1", "10.0.0.1"] {
            assert_eq!(check(&headers(&[("host", host)]), Hosts::Local), Ok(()), "{host}");
        }
        assert_eq!(check(&headers(&[]), Hosts::Local), Ok(()));
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.:1"] {
            assert!(check(&headers(&[("host", host)]), Hosts::Local).is_err(), "{host}");
        }
    }

    #[test]
    fn other_origins_are_refused() {
        let host = ("host", "127.0.0.1:9477");
        for hosts in [Hosts::Local, at("127.0.0.1:9477")] {
            for good in [
                [host, ("origin", "http://127.0.0.1:9477")],
                [host, ("sec-fetch-site", "same-origin")],
                [host, ("sec-fetch-site", "none")],
            ] {
                assert_eq!(check(&headers(&good), hosts), Ok(()), "{good:?}");
            }
            for bad in [
                [host, ("origin", "http://127.0.0.1:9478")],
                [host, ("origin", "http://evil.example")],
                [host, ("origin", "null")],
                [host, ("origin", "")],
                [host, ("sec-fetch-site", "cross-site")],
                [host, ("sec-fetch-site", "same-site")],
                [host, ("sec-fetch-site", "")],
            ] {
                let refused = check(&headers(&bad), hosts).expect_err(bad[1].1);
                assert_eq!(refused.kind, Kind::Forbidden, "{bad:?}");
            }
        }
        let mut twice = headers(&[host, ("origin", "http://127.0.0.1:9477")]);
        twice.append(header::ORIGIN, "http://evil.example".parse().expect("text"));
        assert_eq!(check(&twice, Hosts::Local).expect_err("two origins").kind, Kind::Malformed);
    }
}
