//! Orders that hang, in any number. Reading goes on, and so do orders for other drives.

use crate::common::{Daemon, LIMIT, namespace};
use crate::function::drive;
use crate::hostile::{be, quoted};
use crate::many::ticks;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Number of orders that hang at once.
const ORDERS: usize = 1000;

/// Time limit of a page, far above its time on a machine with other work.
const PAGE_LIMIT: Duration = Duration::from_secs(4);

/// Pages that callers read.
const PAGES: [&str; 10] = [
    "/v1/drives",
    "/v1/drives/far",
    "/v1/drives/stuck",
    "/v1/drives/stuck/ana",
    "/v1/drives/mute/functions",
    "/v1/jobs",
    "/v1/reactors",
    "/v1/version",
    "/metrics",
    "/openapi.json",
];

/// Sends a request without reading its answer.
fn send(daemon: &Daemon, method: &str, path: &str, body: &str) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.api()).expect("the API listens");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    stream
}

/// Reads the answer to a request.
fn answer(mut stream: UnixStream, limit: Duration) -> Option<String> {
    stream.set_read_timeout(Some(limit)).expect("it is ours");
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns a namespace at an address where a machine listens and never answers.
fn silent(address: &str, name: &str) -> String {
    format!(
        r#""nvme_tcp": {{"address": "{address}", "subnqn": "nqn.2026-11.example.sluice:{name}", "timeout_s": 60}}"#
    )
}

/// Returns a drive with such a namespace, for the configuration file.
fn declared(address: &str, name: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
         nvme_tcp = {{ address = \"{address}\", subnqn = \"nqn.2026-11.example.sluice:{name}\", timeout_s = 60 }}\n"
    )
}

/// Starts a daemon with a drive that cannot be opened yet, a drive whose reads take a minute, and one whose
/// function answers no order.
fn daemon(address: &str) -> Daemon {
    let function = format!("{{ kind = \"uif\", command = [{}] }}", quoted(&be("mute")));
    let mute = drive("mute", "target = \"memory\"", &[&*function; 4].join(", "));
    let daemon = Daemon::start(&(declared(address, "far") + &mute));
    let stuck = r#"{"name": "stuck", "namespaces": [{"target": "memory", "size": "1MiB",
                   "functions": [{"kind": "delay", "read_us": 60000000}]}]}"#;
    let created = answer(send(&daemon, "POST", "/v1/drives", stuck), PAGE_LIMIT).expect("an answer");
    assert!(created.starts_with("HTTP/1.1 201"), "{created}");
    daemon
}

/// Reads all pages. Returns the slowest with its time.
fn look(daemon: &Daemon) -> (Duration, &'static str) {
    let timed = PAGES.map(|page| {
        let began = Instant::now();
        let text = answer(send(daemon, "GET", page, ""), PAGE_LIMIT);
        let text = text.unwrap_or_else(|| panic!("GET {page} waits for orders"));
        assert!(text.starts_with("HTTP/1.1 200"), "{page}: {text}");
        (began.elapsed(), page)
    });
    timed.into_iter().max().expect("there are pages")
}

/// Sends creations, openings and deletions. Each waits for a machine or a command that does not answer.
fn hang(daemon: &Arc<Daemon>, address: &str) -> Vec<UnixStream> {
    let (daemon, address) = (Arc::clone(daemon), address.to_owned());
    let (sent, all) = channel();
    // The sender has a thread of its own, because the daemon may not accept its connections.
    std::thread::spawn(move || drop(sent.send(send_all(&daemon, &address))));
    all.recv_timeout(LIMIT).expect("each caller is accepted")
}

fn send_all(daemon: &Daemon, address: &str) -> Vec<UnixStream> {
    let order = |number: usize| match number % 3 {
        0 => {
            let name = format!("new-{number}");
            let body = format!(
                r#"{{"name": "{name}", "namespaces": [{{"target": "nvme-tcp", {}}}]}}"#,
                silent(address, &name)
            );
            send(daemon, "POST", "/v1/drives", &body)
        }
        1 => send(daemon, "POST", "/v1/drives/far/open", ""),
        _ => send(daemon, "DELETE", "/v1/drives/stuck?force=true", ""),
    };
    (0..ORDERS).map(order).collect()
}

/// Creates, resizes and deletes a drive, while orders for others hang. Returns how long that takes.
fn change_another(daemon: &Daemon) -> Duration {
    const WAITS: &str = "it waits for other drives";
    let began = Instant::now();
    let body = r#"{"name": "small", "namespaces": [{"target": "memory", "size": "1MiB"}]}"#;
    let created = answer(send(daemon, "POST", "/v1/drives", body), PAGE_LIMIT).expect(WAITS);
    assert!(created.starts_with("HTTP/1.1 201"), "{created}");
    let size = r#"{"nsid": 1, "size": "2MiB"}"#;
    let resized = answer(send(daemon, "POST", "/v1/drives/small/resize", size), PAGE_LIMIT).expect(WAITS);
    assert!(resized.starts_with("HTTP/1.1 200"), "{resized}");
    let deleted = answer(send(daemon, "DELETE", "/v1/drives/small", ""), PAGE_LIMIT).expect(WAITS);
    assert!(deleted.starts_with("HTTP/1.1 204"), "{deleted}");
    began.elapsed()
}

#[test]
fn a_thousand_orders_that_hang_hold_up_neither_readers_nor_other_drives() {
    // The port has no listener while the daemon starts, so that the drive fails at once.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let daemon = Arc::new(daemon(&address));
    let machine = TcpListener::bind(&address).expect("the port is free");
    let mut host = daemon.host("stuck");
    let mut disk = namespace(&mut host, 1);
    let reading = std::thread::spawn(move || drop(disk.read(0, &mut [0; 512])));
    let looks = || (0..5).map(|_| look(&daemon)).max().expect("five looks");
    let idle = looks();
    let orders = hang(&daemon, &address);
    // The first look comes while the daemon still begins them.
    let beginning = look(&daemon);
    let (began, before) = (Instant::now(), ticks(daemon.pid()));
    let hanging = looks();
    let (took, busy) = (began.elapsed(), ticks(daemon.pid()) - before);
    let others = change_another(&daemon);
    println!(
        "the slowest page: {idle:?} without orders, {beginning:?} while {ORDERS} begin, {hanging:?} while they hang, with {busy} \
         ticks of processor time in {took:?}; three orders for another drive: {others:?}"
    );
    drop((orders, machine, daemon));
    reading.join().expect("its command ended with the daemon");
    drop(host);
}

/// Checks that an order for one drive takes no longer while orders for another hang.
#[test]
fn drives_that_hang_in_orders_hold_up_no_other() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let daemon = daemon(&address);
    let _machine = TcpListener::bind(&address).expect("the port is free");
    let mut host = daemon.host("stuck");
    let mut disk = namespace(&mut host, 1);
    let reading = std::thread::spawn(move || drop(disk.read(0, &mut [0; 512])));
    // There is one order of each kind. The reload opens a drive that does not answer, either.
    let config = std::fs::read_to_string(daemon.config()).expect("it is ours");
    std::fs::write(daemon.config(), config + &declared(&address, "late")).expect("room on the disk");
    let hanging = [
        send(&daemon, "POST", "/v1/reload", ""),
        send(&daemon, "POST", "/v1/drives/far/open", ""),
        send(&daemon, "DELETE", "/v1/drives/stuck?force=true", ""),
    ];
    std::thread::sleep(Duration::from_millis(200));
    let took = change_another(&daemon);
    println!("three orders beside three that hang: {took:?}");
    drop((hanging, daemon));
    reading.join().expect("its command ended with the daemon");
    drop(host);
}
