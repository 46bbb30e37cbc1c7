//! Histograms of how long commands take, and metrics at a TCP address.

use crate::common::{Daemon, namespace, wait_for};
use crate::counted::metrics;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const DRIVE: &str = "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";

const NAME: &str = "sluice_drive_command_duration_seconds";

/// Returns the count of an operation's histogram.
fn count(text: &str, operation: &str) -> Option<u64> {
    let start = format!("{NAME}_count{{drive=\"d\",operation=\"{operation}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

/// Starts a daemon with these lines in `[metrics]`.
fn daemon(settings: &str) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &format!("[metrics]\n{settings}\n{DRIVE}"));
    daemon.restart();
    daemon
}

/// Returns the address in the log at which metrics are read.
fn address(daemon: &Daemon) -> SocketAddr {
    // A thread writes the log, perhaps after the API answers.
    wait_for("the address", || daemon.log().contains("/metrics"));
    let log = daemon.log();
    let address = log.rsplit_once("metrics at http://").and_then(|(_, rest)| rest.split_once("/metrics"));
    address.expect("the log has the address").0.parse().expect("an address")
}

/// Sends bytes to an address and returns the reply.
fn exchange(to: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(to).expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a stream");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut reply = Vec::new();
    match stream.read_to_end(&mut reply) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    String::from_utf8(reply).expect("text")
}

#[test]
fn writes_and_their_flushes_are_both_timed() {
    let daemon = daemon("latency = true");
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    for _ in 0..20 {
        disk.write(0, &[7; 4096]).expect("it is in range");
        disk.flush().expect("nothing is wrong");
        // The first two commands of a millisecond are timed.
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_for("all commands", || count(&metrics(&daemon), "flush") == Some(20));
    assert_eq!(count(&metrics(&daemon), "write"), Some(20));
}

#[test]
fn commands_of_a_drive_are_in_its_histograms() {
    // With `slow_ms` each command is timed.
    let daemon = daemon("latency = true\nslow_ms = 60000");
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    (0..7).for_each(|_| disk.write(0, &[7; 4096]).expect("it is in range"));
    (0..5).for_each(|_| disk.read(0, &mut [0; 4096]).expect("it is in range"));
    disk.flush().expect("nothing is wrong");
    wait_for("all commands", || count(&metrics(&daemon), "flush") == Some(1));
    let text = metrics(&daemon);
    assert_eq!(["read", "write", "other"].map(|it| count(&text, it)), [Some(5), Some(7), Some(0)], "{text}");
    let table = daemon.ok(&["drive", "latency", "d"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert_eq!(
        (&rows[1][..3], &rows[2][..3]),
        (&["d", "read", "5"][..], &["d", "write", "7"][..]),
        "{table}"
    );
    assert!(rows[1][3..].iter().all(|us| us.parse::<f64>().is_ok_and(|us| us > 0.0)), "{table}");
    let unknown = daemon.fails(&["drive", "latency", "dd"]);
    assert!(unknown.contains("there is no drive `dd`"), "{unknown}");
}

#[test]
fn nothing_is_measured_where_it_is_off() {
    let daemon = daemon("latency = false");
    let text = metrics(&daemon);
    assert!(
        text.contains(&format!("# TYPE {NAME} histogram")) && !text.contains(&format!("{NAME}_")),
        "{text}"
    );
    let refused = daemon.fails(&["drive", "latency"]);
    assert!(refused.contains("latency = true in [metrics]"), "{refused}");
}

#[test]
fn metrics_and_nothing_else_are_at_a_tcp_address() {
    let daemon = daemon("listen = \"127.0.0.1:0\"");
    let to = address(&daemon);
    let reply = exchange(to, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.contains("\nsluice_drive_open{drive=\"d\"} 1\n"),
        "{reply}"
    );
    for (request, status) in [
        ("GET /v1/drives HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405"),
        ("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab", "405"),
        ("DELETE /v1/drives/d HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("\0\0\r\n\r\n", "400"),
    ] {
        let reply = exchange(to, request);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {reply}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nLong: {}\r\n\r\n", "a".repeat(1 << 16));
    assert!(!exchange(to, &long).starts_with("HTTP/1.1 200"), "a head of 64 KiB");
}

#[test]
fn silent_readers_of_metrics_keep_no_other_out_for_long() {
    let daemon = daemon("listen = \"127.0.0.1:0\"");
    let to = address(&daemon);
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(to)).collect();
    let reply = exchange(to, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    drop(silent);
}

#[test]
fn an_address_in_use_is_refused_in_words() {
    let first = daemon("listen = \"127.0.0.1:0\"");
    let second = Daemon::start("");
    let settings = format!("[metrics]\nlisten = \"{}\"\n", address(&first));
    second.declare("", &settings);
    let mut second = second;
    second.stop();
    let config = second.config();
    let check = ["serve", "--check", "-c", config.to_str().expect("text")];
    let refused = second.fails(&check);
    assert!(refused.contains("metrics.listen: cannot listen on"), "{refused}");
}

#[test]
fn a_slow_command_is_in_the_log_and_among_the_events() {
    let slow = "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n\
                functions = [ { kind = \"delay\", read_us = 300000 } ]\n";
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &format!("[metrics]\nlatency = true\nslow_ms = 250\n{slow}"));
    daemon.restart();
    let mut host = daemon.host("d");
    let mut disk = namespace(&mut host, 1);
    disk.write(8, &[7; 4096]).expect("it is in range");
    disk.read(16, &mut [0; 4096]).expect("it is in range");
    let words = "a Read of 8 blocks at LBA 16 of namespace 1 took 3";
    wait_for("the event", || {
        daemon.ok(&["events"]).lines().any(|line| line.contains("slow_command") && line.contains(words))
    });
    assert!(daemon.log().contains(&format!("drive d: {words}")), "{}", daemon.log());
    assert!(!daemon.ok(&["events"]).contains("a Write"), "that one was fast");
}
