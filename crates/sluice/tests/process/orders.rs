//! Orders for functions, and the functions' counters.

use crate::common::{Daemon, namespace};
use crate::function::{Verified, drive, functions};
use crate::load::block_on;
use sluice_api::client::Client;

fn daemon() -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let there =
        "{ kind = \"uif\", function = \"pass\", layers = [ { target = \"memory\", size = \"1MiB\" } ] }";
    let here = "{ kind = \"uif\", function = \"pass\", place = \"daemon\" }";
    let memory = "target = \"memory\"";
    daemon.declare("", &(drive("one", memory, there) + &drive("two", memory, &format!("{there}, {here}"))));
    daemon.restart();
    daemon
}

#[test]
fn functions_are_told_and_say_what_they_think_of_it() {
    let daemon = daemon();
    let words = daemon.fails(&["function", "tell", "one", "jump", "over", "it"]);
    assert!(words.contains("the function says: this function takes no orders"), "{words}");
    assert_eq!(daemon.ok(&["function", "tell", "one", "metrics"]), "\n");
    let words = daemon.fails(&["function", "tell", "two", "metrics"]);
    assert!(words.contains("has 2 that may be meant"), "{words}");
    for which in ["1", "2"] {
        daemon.ok(&["function", "tell", "two", "--function", which, "--quiesce", "metrics"]);
    }
    let words = daemon.fails(&["function", "tell", "one", "--function", "encrypt", "metrics"]);
    assert!(words.contains("drive `one` has no such function"), "{words}");
    assert_eq!(functions(&daemon, "one")["ready"], true);
}

#[test]
fn a_drive_is_quiet_for_a_moment_and_its_host_does_not_notice() {
    let daemon = daemon();
    let mut host = daemon.host("one");
    let mut verified = Verified::new(namespace(&mut host, 1));
    let worker = std::thread::spawn(move || {
        verified.work(800).expect("every command succeeds");
        verified
    });
    for _ in 0..20 {
        daemon.ok(&["function", "tell", "one", "--quiesce", "metrics"]);
    }
    worker.join().expect("every command succeeds").all_is_well();
}

#[test]
fn every_function_that_there_is_is_listed_with_its_orders() {
    let daemon = daemon();
    let printed = daemon.ok(&["function", "kinds", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let served = block_on(Client::new(daemon.api()).get::<serde_json::Value>("/v1/functions"));
    assert_eq!(served.expect("a list"), listed);
    let functions = listed["functions"].as_array().expect("a list");
    let of = |keys: &str| functions.iter().find(|it| it["keys"] == keys).unwrap_or_else(|| panic!("{keys}"));
    assert_eq!(of(r#"kind = "delay""#)["options"].as_array().map(Vec::len), Some(3));
    let replicate = of(r#"kind = "uif", function = "replicate""#);
    let orders = replicate["orders"].as_array().expect("a list");
    assert!(orders.iter().any(|order| order["name"] == "resync all"), "{orders:?}");
    let text = daemon.ok(&["function", "kinds"]);
    assert!(text.contains("kind = \"range\"\n    Shows a part of the layer below"), "{text}");
}
