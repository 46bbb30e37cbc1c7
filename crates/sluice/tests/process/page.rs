//! The web page over TCP: who is let in, and who is not.

use crate::common::{Daemon, wait_for};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const DRIVE: &str = "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n";

const ON: &str = "[page]\nlisten = \"127.0.0.1:0\"\n";

/// A daemon with its page, and the token for it.
struct Page {
    daemon: Daemon,
    address: SocketAddr,
    token: String,
}

fn page() -> Page {
    let daemon = Daemon::start(&format!("{ON}{DRIVE}"));
    let url = daemon.ok(&["page"]);
    let (address, token) =
        url.trim().strip_prefix("http://").and_then(|rest| rest.split_once("/#token=")).expect("a URL");
    Page { address: address.parse().expect("an address"), token: token.to_owned(), daemon }
}

/// Sends bytes and returns the reply, until the other end closes the connection.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> String {
    // The daemon may refuse, and close the connection, before it has read everything.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    String::from_utf8(reply).expect("text")
}

impl Page {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a stream");
        stream
    }

    /// Sends a request with these headers, each ended by a line feed, and the right host.
    fn send(&self, line: &str, headers: &str, body: &str) -> String {
        self.send_to(&self.address.to_string(), line, headers, body)
    }

    fn send_to(&self, host: &str, line: &str, headers: &str, body: &str) -> String {
        let headers = headers.replace('\n', "\r\n");
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        exchange(self.connect(), request.as_bytes())
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}\n", self.token)
    }
}

fn status(reply: &str) -> &str {
    reply.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or(reply)
}

#[test]
fn the_page_has_no_address_unless_it_is_configured() {
    let daemon = Daemon::start(DRIVE);
    let refused = daemon.fails(&["page"]);
    assert!(
        refused.contains("the page is on the socket of the API alone") && refused.contains("[page]"),
        "{refused}"
    );
    assert!(!daemon.folder.path().join("state/page-token").exists());
    let stream = UnixStream::connect(daemon.api()).expect("it listens");
    let reply = exchange(stream, b"GET / HTTP/1.1\r\nHost: localhost:8080\r\nConnection: close\r\n\r\n");
    assert!(status(&reply) == "200" && reply.contains("<title>Sluice</title>"), "{reply}");
}

#[test]
fn requests_without_the_token_get_the_files_of_the_page_and_nothing_else() {
    let page = page();
    for (line, expected) in [
        ("GET /", "200"),
        ("HEAD /", "200"),
        ("GET /page/app.js", "200"),
        ("GET /page/none.js", "401"),
        ("GET /page/../v1/drives", "401"),
        ("POST /", "401"),
        ("GET /v1/drives", "401"),
        ("GET /v1/page", "401"),
        ("GET /v1/events?follow=true", "401"),
        ("GET /metrics", "401"),
        ("GET /openapi.json", "401"),
        ("GET //v1/drives", "401"),
        ("DELETE /v1/drives/d?force=true", "401"),
        ("POST /v1/reload", "401"),
        ("OPTIONS /v1/drives", "401"),
    ] {
        let reply = page.send(line, "", "");
        assert_eq!(status(&reply), expected, "{line}: {reply}");
        assert!(!reply.contains(&page.token) && !reply.to_lowercase().contains("access-control"), "{reply}");
    }
    let reply = page.send("GET /v1/drives", "", "");
    assert!(reply.contains("this needs the token of the page") && reply.contains("`sluice page`"), "{reply}");
    assert!(!page.daemon.log().contains(&page.token), "the log has no token");
}

#[test]
fn orders_go_through_with_the_token() {
    let page = page();
    let spec = r#"{"name":"e","namespaces":[{"target":"memory","size":"1MiB"}]}"#;
    let reply = page.send("POST /v1/drives", &page.bearer(), spec);
    assert_eq!(status(&reply), "201", "{reply}");
    let reply = page.send("GET /v1/drives", &page.bearer(), "");
    assert!(status(&reply) == "200" && reply.contains("\"name\":\"e\""), "{reply}");
    // The name of the scheme has no case.
    let reply = page.send("GET /metrics", &format!("authorization: bearer {}\n", page.token), "");
    assert!(status(&reply) == "200" && reply.contains("sluice_drive_open"), "{reply}");
    let own = format!("{}Origin: http://{}\nSec-Fetch-Site: same-origin\n", page.bearer(), page.address);
    assert_eq!(status(&page.send("DELETE /v1/drives/e", &own, "")), "204");
    assert!(!page.daemon.ok(&["drive", "list"]).contains("e "));
    assert_eq!(status(&page.send("GET /v1/none", &page.bearer(), "")), "404");
}

#[test]
fn a_wrong_token_is_refused_slowly_and_logged_once() {
    let page = page();
    let start = Instant::now();
    let half = &page.token[..32];
    for token in ["a", "b", half, &format!("{}0", page.token), &page.token.to_uppercase().replace('0', "1")] {
        let reply = page.send("GET /v1/drives", &format!("Authorization: Bearer {token}\n"), "");
        assert!(status(&reply) == "401" && reply.contains("the token is wrong"), "{token}: {reply}");
    }
    assert!(start.elapsed() >= Duration::from_millis(2500), "{:?}", start.elapsed());
    let reply = page.send("GET /", "Authorization: Bearer 1\n", "");
    assert_eq!(status(&reply), "401", "also for a file of the page");
    for headers in [
        format!("Authorization: Basic {}\n", page.token),
        format!("Authorization: {}\n", page.token),
        format!("Cookie: token={}\n", page.token),
    ] {
        assert_eq!(status(&page.send("GET /v1/drives", &headers, "")), "401", "{headers}");
    }
    let in_url = format!("GET /v1/drives?token={}", page.token);
    assert_eq!(status(&page.send(&in_url, "", "")), "401");
    let log = page.daemon.log();
    assert_eq!(log.matches("sent a wrong token for the page").count(), 1, "{log}");
}

#[test]
fn names_and_pages_of_other_sites_are_refused_even_with_the_token() {
    let page = page();
    let port = page.address.port();
    let token = page.bearer();
    for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1", "sluice", ""] {
        let reply = page.send_to(host, "GET /v1/drives", &token, "");
        assert!(status(&reply) == "403" && reply.contains("is not a name of this daemon"), "{host}: {reply}");
        assert_eq!(status(&page.send_to(host, "GET /", "", "")), "403", "{host}");
    }
    assert_eq!(status(&page.send_to(&format!("localhost:{port}"), "GET /v1/drives", &token, "")), "200");
    for header in [
        "Origin: http://evil.example\n".to_owned(),
        "Origin: null\n".to_owned(),
        format!("Origin: http://127.0.0.1:{}\n", port ^ 1),
        "Sec-Fetch-Site: cross-site\n".to_owned(),
        "Sec-Fetch-Site: same-site\n".to_owned(),
    ] {
        let reply = page.send("DELETE /v1/drives/d?force=true", &format!("{token}{header}"), "");
        assert!(status(&reply) == "403" && reply.contains("another site"), "{header}: {reply}");
        assert_eq!(status(&page.send("GET /", &header, "")), "403", "{header}");
    }
    let own = format!("{token}Origin: http://{}\nOrigin: http://evil.example\n", page.address);
    assert_eq!(status(&page.send("GET /v1/drives", &own, "")), "400", "two origins");
    assert!(page.daemon.ok(&["drive", "list"]).contains("d "));
}

/// Checks that the socket of the API, which an operator may forward to a port, obeys no other site either.
#[test]
fn the_socket_of_the_api_obeys_no_other_site() {
    let daemon = Daemon::start(DRIVE);
    let send = |headers: &str| {
        let request =
            format!("POST /v1/reload HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n");
        exchange(UnixStream::connect(daemon.api()).expect("it listens"), request.as_bytes())
    };
    for headers in [
        "Host: localhost:8080\r\nOrigin: http://evil.example\r\n",
        "Host: localhost:8080\r\nSec-Fetch-Site: cross-site\r\n",
        "Host: evil.example:8080\r\nOrigin: http://evil.example:8080\r\n",
    ] {
        let reply = send(headers);
        assert_eq!(status(&reply), "403", "{headers}: {reply}");
    }
    for headers in ["Host: sluice\r\n", "Host: localhost:8080\r\nOrigin: http://localhost:8080\r\n", ""] {
        let reply = send(headers);
        assert_eq!(status(&reply), "200", "{headers}: {reply}");
    }
}

#[test]
fn every_answer_has_the_rules_for_browsers() {
    let page = page();
    let replies = [
        page.send("GET /", "", ""),
        page.send("GET /page/style.css", "", ""),
        page.send("GET /v1/drives", &page.bearer(), ""),
        page.send("GET /v1/drives", "", ""),
        page.send_to("evil.example", "GET /", "", ""),
    ];
    for reply in &replies {
        let head = reply.split("\r\n\r\n").next().unwrap_or_default().to_lowercase();
        for rule in [
            "content-security-policy: default-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert_eq!(head.matches(rule).count(), 1, "{rule}: {head}");
        }
        assert!(!head.contains("unsafe-inline") && !head.contains("access-control"), "{head}");
    }
    assert!(replies[0].contains("content-type: text/html; charset=utf-8"), "{}", replies[0]);
}

#[test]
fn the_token_survives_a_restart_and_is_the_daemons_alone() {
    let mut page = page();
    let path = page.daemon.folder.path().join("state/page-token");
    assert_eq!(path.metadata().expect("it is there").mode() & 0o777, 0o600);
    page.daemon.stop();
    page.daemon.restart();
    let url = page.daemon.ok(&["page"]);
    assert!(url.trim().ends_with(&page.token), "{url}");
    page.daemon.stop();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
    let config = page.daemon.config();
    for check in [true, false] {
        let mut words = vec!["serve", "-c", config.to_str().expect("text")];
        words.extend(check.then_some("--check"));
        let refused = page.daemon.fails(&words);
        assert!(refused.contains("others may use it: its mode is 0644"), "{refused}");
    }
}

#[test]
fn an_address_that_others_reach_is_refused_in_words() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let config = daemon.config();
    let check = ["serve", "--check", "-c", config.to_str().expect("text")];
    for (settings, words) in [
        ("listen = \"0.0.0.0:9477\"", "0.0.0.0 is not a loopback address, and the page has no TLS"),
        ("listen = \"[::]:9477\"", ":: is not a loopback address"),
        ("listen = \"192.0.2.1:9477\"", "ssh -L"),
        ("listen = \"localhost:9477\"", "write it in numbers"),
        ("token_file = \"token\"", "a token without an address"),
    ] {
        daemon.declare("", &format!("[page]\n{settings}\n"));
        for words_of in [&check[..], &check[..1]] {
            let refused = match words_of.len() {
                1 => daemon.fails(&["serve", "-c", config.to_str().expect("text")]),
                _ => daemon.fails(words_of),
            };
            assert!(refused.contains(words), "{settings}: {refused}");
        }
    }
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("an address");
    daemon.declare("", &format!("[page]\nlisten = \"{address}\"\ntoken_file = \"token\"\n"));
    let refused = daemon.fails(&check);
    assert!(refused.contains(&format!("page.listen: cannot listen on {address} for the page")), "{refused}");
    assert!(!daemon.folder.path().join("token").exists(), "a check changes nothing");
}

#[test]
fn strangers_with_hostile_requests_hold_up_nobody() {
    let page = page();
    let long =
        format!("GET /v1/drives HTTP/1.1\r\nHost: {}\r\nLong: {}\r\n\r\n", page.address, "a".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\nHost: {}\r\n{}\r\n", page.address, "a: b\r\n".repeat(10_000));
    let bomb = format!(
        "POST /v1/drives HTTP/1.1\r\nHost: {}\r\nContent-Length: 99999999999\r\n\r\nab",
        page.address
    );
    for request in [long.as_bytes(), many.as_bytes(), bomb.as_bytes(), b"\0\xff\r\n\r\n"] {
        let reply = exchange(page.connect(), request);
        assert!(!reply.starts_with("HTTP/1.1 2"), "{reply}");
    }
    let large = page.send("POST /v1/drives", &page.bearer(), &" ".repeat((1 << 20) + 1));
    assert!(!large.starts_with("HTTP/1.1 2"), "{large}");
}

/// Checks that connections without the token, far more than there are places, make room for others at once.
#[test]
fn strangers_without_number_keep_nobody_out() {
    let page = page();
    let start = Instant::now();
    let mut silent = Vec::new();
    for round in 0..50 {
        for _ in 0..20 {
            let mut stream = page.connect();
            // Some of them are in the middle of a request.
            if round % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHos").expect("room in the socket");
            }
            silent.push(stream);
        }
        assert_eq!(status(&page.send("GET /v1/version", &page.bearer(), "")), "200", "round {round}");
    }
    let mut buffer = [0; 16];
    let mut is_closed = |stream: &mut TcpStream| matches!(stream.read(&mut buffer), Ok(0) | Err(_));
    assert!(silent.iter_mut().all(&mut is_closed), "all of them are closed");
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
}

#[test]
fn a_stranger_who_goes_on_is_disconnected_and_a_reader_of_events_is_not() {
    let page = page();
    let mut reader = page.connect();
    let request = format!(
        "GET /v1/events?follow=true HTTP/1.1\r\nHost: {}\r\n{}\r\n",
        page.address,
        page.bearer().replace('\n', "\r\n")
    );
    reader.write_all(request.as_bytes()).expect("it is read");
    let mut stranger = page.connect();
    let request = format!("HEAD / HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
    let start = Instant::now();
    let mut buffer = [0; 4096];
    // A new request long before the limit between two requests.
    wait_for("the end of the connection", || {
        std::thread::sleep(Duration::from_millis(500));
        stranger.write_all(request.as_bytes()).is_err()
            || matches!(stranger.read(&mut buffer), Ok(0) | Err(_))
    });
    assert!(start.elapsed() > Duration::from_secs(5), "{:?}", start.elapsed());
    page.daemon.ok(&["drive", "create", "e", "--null", "1MiB"]);
    let mut text = String::new();
    while !text.contains("drive_added\",\"drive\":\"e\"") {
        let count = reader.read(&mut buffer).expect("events");
        assert!(count > 0, "the reader is cut off: {text}");
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
}

#[test]
fn another_page_in_the_configuration_waits_for_a_restart() {
    let page = page();
    page.daemon.declare("", DRIVE);
    let refused = page.daemon.run(&["reload"]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("[page] is not what it was"), "{words}");
    assert_eq!(status(&page.send("GET /v1/version", &page.bearer(), "")), "200");
}

#[test]
fn an_upgrade_keeps_the_address_and_the_token() {
    let page = page();
    let first = page.daemon.pid();
    page.daemon.upgrade(&[]);
    assert_ne!(page.daemon.pid(), first);
    let reply = page.send("GET /v1/version", &page.bearer(), "");
    assert!(status(&reply) == "200" && reply.contains(&format!("\"pid\":{}", page.daemon.pid())), "{reply}");
    let url = page.daemon.ok(&["page"]);
    assert_eq!(url.trim(), format!("http://{}/#token={}", page.address, page.token));
}
