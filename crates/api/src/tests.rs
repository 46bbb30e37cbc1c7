use super::*;
use crate::client::{Client, segment};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};
use sluice_control::drives::script::{DECLARED, Stage, spec};
use sluice_control::drives::{DriveState, DriveView};
use sluice_control::listen::listen;
use sluice_spec::error::{ApiError, Kind};
use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use tokio::sync::watch;

/// Runs `test` against an API that allows these users to call.
fn with_policy<F: Future<Output = ()>>(policy: Policy, test: impl FnOnce(Client, Stage) -> F) {
    let stage = Stage::new();
    let drives = Arc::new(stage.start(DECLARED));
    let socket = stage.folder.path().join("api.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (listener, _file) = listen(&socket, 0o666).expect("a free path");
        let listener = tokio::net::UnixListener::from_std(listener).expect("a listener");
        let (raise, stop) = watch::channel(false);
        let server =
            tokio::spawn(Server::new(listener, policy, router(App { drives, page: None })).run(stop));
        test(Client::new(socket.clone()), stage).await;
        raise.send(true).expect("the server runs");
        server.await.expect("it ends");
    });
}

fn with_api<F: Future<Output = ()>>(test: impl FnOnce(Client, Stage) -> F) {
    with_policy(Policy::new(&[], &[]), test);
}

async fn problem(client: &Client, method: Method, path: &str, body: &str) -> ApiError {
    client.request(method, path, Bytes::from(body.to_owned())).await.expect_err("it cannot succeed")
}

#[test]
fn a_drive_lives_through_the_api() {
    with_api(async |client, _stage| {
        let created: DriveView = client.post("/v1/drives", &spec("a")).await.expect("a free name");
        assert_eq!((created.name.as_str(), created.state), ("a", DriveState::Ready));
        assert!(created.socket.is_some_and(|socket| socket.ends_with("/drives/a/cntrl")));
        let list: DriveList = client.get("/v1/drives").await.expect("a list");
        assert_eq!(list.drives.iter().map(|drive| drive.name.as_str()).collect::<Vec<_>>(), ["a", "fixed"]);
        let request = json!({"nsid": 1, "size": "2MiB"});
        let resized: DriveView = client.post("/v1/drives/a/resize", &request).await.expect("there is room");
        assert_eq!(resized.namespaces[0].size.expect("open").0, 2 << 20);
        assert_eq!(client.get::<DriveView>("/v1/drives/a").await, Ok(resized));
        client.delete("/v1/drives/a").await.expect("nobody uses it");
        assert_eq!(client.get::<DriveView>("/v1/drives/a").await.expect_err("gone").kind, Kind::NotFound);
    });
}

#[test]
fn problems_have_their_status_and_words() {
    with_api(async |client, stage| {
        let conflict = problem(&client, Method::POST, "/v1/drives", &json!(spec("fixed")).to_string()).await;
        assert_eq!(conflict.kind, Kind::Conflict);
        assert_eq!(conflict.hint.as_deref(), Some("choose another name, or delete that one first"));
        let slip = problem(&client, Method::GET, "/v1/drives/fixde", "").await;
        assert_eq!((slip.kind, slip.hint.as_deref()), (Kind::NotFound, Some("did you mean `fixed`?")));
        stage.played("fixed").connected.store(true, SeqCst);
        assert_eq!(
            problem(&client, Method::DELETE, "/v1/drives/fixed?force=true", "").await.kind,
            Kind::Conflict
        );
        let smaller = r#"{"nsid": 1, "size": 512}"#;
        assert_eq!(
            problem(&client, Method::POST, "/v1/drives/fixed/resize", smaller).await.kind,
            Kind::Conflict
        );
    });
}

#[test]
fn bodies_that_do_not_fit_are_explained() {
    with_api(async |client, _stage| {
        let torn = problem(&client, Method::POST, "/v1/drives", r#"{"name":"#).await;
        assert_eq!(torn.kind, Kind::Malformed);
        let text = r#"{"name":"a","namespaces":[{"target":"null","sise":512}]}"#;
        let slip = problem(&client, Method::POST, "/v1/drives", text).await;
        assert_eq!((slip.kind, slip.hint.as_deref()), (Kind::Invalid, Some("did you mean `size`?")));
        let text = r#"{"name":"a","namespaces":[{"target":"null"}]}"#;
        let missing = problem(&client, Method::POST, "/v1/drives", text).await;
        assert_eq!(missing.error, "namespaces[0].size: a null target needs one");
        let mut long = serde_json::to_string(&spec("a")).expect("it can be written");
        long.push_str(&" ".repeat((1 << 20) + 1 - long.len()));
        assert_eq!(problem(&client, Method::POST, "/v1/drives", &long).await.kind, Kind::Malformed);
        long.pop();
        let longest = client.request(Method::POST, "/v1/drives", Bytes::from(long)).await;
        assert!(longest.is_ok(), "1 MiB");
    });
}

#[test]
fn every_answer_is_json_even_where_nothing_is() {
    with_api(async |client, _stage| {
        for (method, path) in [
            (Method::GET, "/v2/drives"),
            (Method::PUT, "/v1/drives"),
            (Method::GET, "/v1/drives/%ff"),
            (Method::DELETE, "/v1/drives/fixed?force=perhaps"),
            (Method::DELETE, "/v1/drives/fixed?forse=true"),
        ] {
            let problem = problem(&client, method, path, "").await;
            assert!(matches!(problem.kind, Kind::Malformed | Kind::NotFound), "{path}: {problem}");
            assert!(!problem.error.contains("not understood"), "{path}: {problem}");
        }
    });
}

#[test]
fn others_are_refused_in_words() {
    // Not even root is on this list.
    with_policy(Policy { uids: vec![4_000_000_000], gids: vec![] }, async |client, stage| {
        for (method, path) in [(Method::GET, "/v1/drives"), (Method::POST, "/v1/drives"), (Method::GET, "/x")]
        {
            let problem = problem(&client, method, path, "{}").await;
            assert_eq!(problem.kind, Kind::Forbidden);
            assert!(problem.error.contains("may not call"), "{problem}");
            assert!(problem.hint.is_some_and(|hint| hint.contains("daemon.allow_uids")));
        }
        assert_eq!(stage.script.open.lock().expect("unpoisoned").len(), 1, "nothing was created");
    });
}

#[test]
fn the_document_lists_every_route() {
    let document = serde_json::to_value(document()).expect("a document");
    let paths = document["paths"].as_object().expect("paths");
    let mut listed: Vec<String> = paths
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().expect("methods").keys().map(move |method| format!("{method} {path}"))
        })
        .collect();
    listed.sort();
    assert_eq!(
        listed,
        [
            "delete /v1/drives/{name}",
            "delete /v1/drives/{name}/classifier",
            "delete /v1/drives/{name}/classifier/maps/{map}/{key}",
            "delete /v1/drives/{name}/functions/{number}",
            "delete /v1/drives/{name}/namespaces/{nsid}",
            "delete /v1/groups/{name}",
            "delete /v1/shared/{name}/volumes/{volume}",
            "get /metrics",
            "get /openapi.json",
            "get /v1/drives",
            "get /v1/drives/{name}",
            "get /v1/drives/{name}/ana",
            "get /v1/drives/{name}/classifier",
            "get /v1/drives/{name}/classifier/maps",
            "get /v1/drives/{name}/classifier/maps/{map}",
            "get /v1/drives/{name}/classifier/maps/{map}/{key}",
            "get /v1/drives/{name}/functions",
            "get /v1/drives/{name}/limits",
            "get /v1/drives/{name}/targets",
            "get /v1/drives/{name}/trace",
            "get /v1/events",
            "get /v1/export",
            "get /v1/functions",
            "get /v1/groups",
            "get /v1/groups/{name}",
            "get /v1/jobs",
            "get /v1/jobs/{id}",
            "get /v1/latency",
            "get /v1/page",
            "get /v1/reactors",
            "get /v1/shared",
            "get /v1/shared/{name}/volumes",
            "get /v1/version",
            "post /v1/apply",
            "post /v1/diff",
            "post /v1/drives",
            "post /v1/drives/{name}/ana",
            "post /v1/drives/{name}/classifier",
            "post /v1/drives/{name}/functions",
            "post /v1/drives/{name}/functions/restart",
            "post /v1/drives/{name}/functions/{number}/control",
            "post /v1/drives/{name}/functions/{number}/move",
            "post /v1/drives/{name}/move",
            "post /v1/drives/{name}/open",
            "post /v1/drives/{name}/resize",
            "post /v1/drives/{name}/targets/{nsid}/firmware",
            "post /v1/drives/{name}/targets/{nsid}/pause",
            "post /v1/drives/{name}/targets/{nsid}/reset",
            "post /v1/drives/{name}/targets/{nsid}/resume",
            "post /v1/jobs/{id}/cancel",
            "post /v1/jobs/{id}/pace",
            "post /v1/jobs/{id}/pause",
            "post /v1/jobs/{id}/resume",
            "post /v1/reload",
            "post /v1/shared/{name}/grow",
            "post /v1/shared/{name}/retry",
            "post /v1/shared/{name}/volumes/{volume}/clone",
            "post /v1/upgrade",
            "put /v1/drives/{name}/classifier",
            "put /v1/drives/{name}/classifier/maps/{map}/{key}",
            "put /v1/drives/{name}/limits",
            "put /v1/drives/{name}/targets/{nsid}",
            "put /v1/groups/{name}",
        ]
    );
    // Each method has a description, and every reference has a target.
    for methods in paths.values().flat_map(|methods| methods.as_object().expect("methods").values()) {
        assert!(methods["summary"].is_string(), "{methods}");
        for (status, response) in methods["responses"].as_object().expect("responses") {
            let words = response["description"].as_str().unwrap_or_default();
            assert!(!words.is_empty(), "{status} of {methods}");
        }
    }
    references(&document, &mut |reference| {
        let pointer = reference.trim_start_matches('#');
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    });
}

fn references(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| match value.as_str() {
            Some(reference) if key == "$ref" => visit(reference),
            _ => references(value, visit),
        }),
        Value::Array(list) => list.iter().for_each(|value| references(value, visit)),
        _ => {}
    }
}

#[test]
fn the_daemon_tells_of_itself() {
    with_api(async |client, _stage| {
        let version: Version = client.get("/v1/version").await.expect("a version");
        assert_eq!(version.pid, std::process::id());
        let served: Value = client.get("/openapi.json").await.expect("a document");
        assert_eq!(served, serde_json::to_value(document()).expect("a document"));
        let metrics = client.get_text("/metrics").await.expect("metrics");
        assert!(metrics.contains("\nsluice_drive_open{drive=\"fixed\"} 1\n"), "{metrics}");
        assert!(metrics.contains("# TYPE sluice_reactor_turns_total counter\n"), "{metrics}");
    });
}

#[test]
fn garbage_on_the_socket_hurts_nobody() {
    with_api(async |client, _stage| {
        let socket = client.socket().to_owned();
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = UnixStream::connect(socket).expect("somebody listens");
            stream.write_all(b"\x00\xff nonsense\r\n\r\n").expect("it is read");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        });
        let answer = answer.await.expect("no panic").expect("an end");
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        client.get::<Version>("/v1/version").await.expect("others are served");
    });
}

#[test]
fn idle_callers_do_not_hold_up_the_end() {
    with_api(async |client, _stage| {
        let idle: Vec<_> = (0..10).map(|_| UnixStream::connect(client.socket())).collect();
        client.get::<Version>("/v1/version").await.expect("others are served");
        // The server ends, with these connections open, before the test does.
        std::mem::forget(idle);
    });
}

#[test]
fn no_daemon_is_a_problem_in_words() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = Client::new("/nonexistent/api.sock".into());
    let problem = runtime.block_on(client.get::<Version>("/v1/version")).expect_err("no daemon");
    assert_eq!(problem.error, "no daemon answers at /nonexistent/api.sock");
    assert!(problem.hint.is_some_and(|hint| hint.contains("sluice serve")));
}

#[test]
fn words_become_segments() {
    assert_eq!(segment("web-1.a"), "web-1.a");
    assert_eq!(segment("a/b ?é"), "a%2Fb%20%3F%C3%A9");
}

/// Checks that names are unique: of two samples with the same name and labels, Prometheus keeps one.
#[test]
fn no_two_samples_have_one_name() {
    use sluice_control::drives::DeviceView;
    let stage = Stage::new();
    let mut views = stage.start(DECLARED).list();
    let device = |namespace| DeviceView { namespace, bytes: Some(7), ..DeviceView::default() };
    views[0].devices = vec![device(1), device(2)];
    let text = metrics::text(&metrics::Snapshot { drives: views, ..metrics::Snapshot::default() });
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let mut names: Vec<&str> = samples.filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "{text}");
    assert_eq!(text.matches("sluice_device_bytes_total{").count(), 2, "{text}");
}

/// Returns `thing` with a value of its own in each counter, from `first` on.
fn numbered<T: serde::Serialize + serde::de::DeserializeOwned>(thing: &T, first: u64) -> T {
    fn number(value: &mut Value, next: &mut u64) {
        match value {
            Value::Number(_) => {
                *value = (*next).into();
                *next += 1;
            }
            Value::Object(map) => map.values_mut().for_each(|value| number(value, next)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(thing).expect("it is JSON");
    number(&mut value, &mut first.clone());
    serde_json::from_value(value).expect("it is the same")
}

#[test]
fn each_sample_shows_its_own_counter() {
    use sluice_control::drives::{DeviceView, ReactorCounters};
    let stage = Stage::new();
    let mut drive = stage.start(DECLARED).list()[0].clone();
    (drive.in_flight, drive.stalls, drive.counters) = (90, 91, numbered(&drive.counters, 100));
    let some = Some(0);
    let device = DeviceView { under_way: some, bytes: some, bytes_copied: some, ..DeviceView::default() };
    let device = numbered(&device, 200);
    let reactor: ReactorCounters = numbered(&ReactorCounters::default(), 300);
    drive.devices = vec![device.clone()];
    let (drives, reactors) = (vec![drive.clone()], vec![reactor.clone()]);
    let text = metrics::text(&metrics::Snapshot { drives, reactors, ..metrics::Snapshot::default() });
    let counters = &drive.counters;
    let expected = [
        ("drive_open", 1),
        ("drive_connected", 0),
        ("drive_commands_in_flight", 90),
        ("drive_remote_queues", 0),
        ("drive_commands_total", counters.commands),
        ("drive_errors_total", counters.errors),
        ("drive_stalls_total", 91),
        ("drive_classified", 0),
        ("drive_classifier_errors_total", counters.classifier_errors),
        ("drive_read_bytes_total", counters.bytes_read),
        ("drive_written_bytes_total", counters.bytes_written),
        ("device_connected", 0),
        ("device_commands_in_flight", device.under_way.expect("it has some")),
        ("device_sent_total", device.sent),
        ("device_completed_total", device.completed),
        ("device_copied_total", device.copied),
        ("device_losses_total", device.losses),
        ("device_interrupted_total", device.interrupted),
        ("device_strays_total", device.strays),
        ("device_events_total", device.events),
        ("device_bytes_total", device.bytes.expect("it has some")),
        ("device_copied_bytes_total", device.bytes_copied.expect("it has some")),
        ("reactor_turns_total", reactor.turns),
        ("reactor_busy_turns_total", reactor.busy_turns),
        ("reactor_work_total", reactor.commands),
        ("reactor_spurious_polls_total", reactor.spurious_polls),
        ("reactor_sleeps_total", reactor.sleeps),
        ("reactor_overdue_total", reactor.overdue),
        ("reactor_syscalls_total", reactor.syscalls),
        ("reactor_vain_receives_total", reactor.vain_receives),
    ];
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let seconds = [("busy", reactor.busy_ns), ("spin", reactor.spin_ns), ("sleep", reactor.sleep_ns)].map(
        |(name, ns)| {
            format!("sluice_reactor_{name}_seconds_total{{reactor=\"{}\"}} 0.000000{ns}", reactor.reactor)
        },
    );
    assert!(seconds.iter().all(|expected| samples.contains(&expected.as_str())), "{seconds:?}: {text}");
    assert_eq!(samples.len(), expected.len() + seconds.len(), "{text}");
    for (name, value) in expected {
        let is_it = |line: &&&str| line.starts_with(&format!("sluice_{name}{{"));
        let sample = samples.iter().find(is_it).unwrap_or_else(|| panic!("no {name}: {text}"));
        assert!(sample.ends_with(&format!("}} {value}")), "{name} {value}: {sample}");
    }
}

#[test]
fn buckets_of_a_histogram_are_cumulative() {
    use sluice_control::drives::{DriveLatency, LatencyBucket, LatencyView};
    let buckets = [(144, 2), (1024, 3), (1152, 5), (1 << 35, 7)];
    let buckets = buckets.map(|(below_ns, count)| LatencyBucket { below_ns, count }).to_vec();
    let read = LatencyView { operation: "read".into(), count: 17, sum_ns: 1_000_000_007, buckets };
    let latency = vec![DriveLatency { drive: "d".into(), operations: vec![read] }];
    let text = metrics::text(&metrics::Snapshot { latency, ..metrics::Snapshot::default() });
    let name = "sluice_drive_command_duration_seconds";
    let labels = "drive=\"d\",operation=\"read\"";
    let of = |suffix: &str, more: &str| {
        let start = format!("{name}_{suffix}{{{labels}{more}}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{start}: {text}"))
    };
    assert_eq!(of("bucket", ",le=\"0.000001024\""), "5");
    assert_eq!(of("bucket", ",le=\"0.000002048\""), "10");
    assert_eq!(of("bucket", ",le=\"17.179869184\""), "10");
    assert_eq!(of("bucket", ",le=\"+Inf\""), "17");
    assert_eq!((of("count", ""), of("sum", "")), ("17", "1.000000007"));
    assert_eq!(text.matches(&format!("{name}_bucket{{")).count(), 26, "{text}");
}
