//! Tests of `sluice bench`, as far as its figures are the same in every run.

use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_sluice-bench");

/// Runs the program with these words; returns its JSON output.
fn bench(words: &[&str]) -> serde_json::Value {
    let done = Command::new(BINARY).args(words).args(["-o", "json"]).output().expect("it runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("JSON")
}

#[test]
fn instructions_are_the_same_in_every_run() {
    let count = |function| {
        let words = ["instructions", "--transport", "pcie", "--batch", "4", "--target", "null"];
        let report = bench(&[&words[..], &["--operation", "read", "--function", function]].concat());
        report["counts"][0]["instructions"].as_f64().expect("a number")
    };
    let plain = count("none");
    assert_eq!(count("none"), plain);
    let under = count("pass");
    assert!(plain > 50.0 && under > plain, "{plain} and {under} with a function more");
}

#[test]
fn instructions_are_counted_on_either_side_of_a_connection() {
    let words = ["instructions", "--transport", "tcp", "--runs", "1", "--target", "null"];
    let report = bench(&[&words[..], &["--operation", "read", "--batch", "1,8"]].concat());
    let counts = report["counts"].as_array().expect("counts");
    let of = |side: &str, batch: u32| {
        let count = counts.iter().find(|count| count["side"] == side && count["batch"] == batch);
        ["instructions", "syscalls"].map(|key| count.and_then(|it| it[key].as_f64()).expect("a number"))
    };
    for side in ["host", "controller"] {
        let ([alone, calls], [together, shared]) = (of(side, 1), of(side, 8));
        assert!(alone > together && together > 100.0, "{side}: {alone} and {together}");
        // Sending takes at least one entry into the kernel.
        assert!(calls >= 1.0 && calls > shared && shared > 0.0, "{side}: {calls} and {shared}");
    }
    assert_eq!(counts.len(), 4);
}

#[test]
fn a_cell_is_measured_over_a_socket_and_directly() {
    // A second is enough for some commands on a busy machine. Two runs are so few that one row has them.
    let words = ["--target", "memory:1MiB", "--queue-depth", "4", "--mix", "70%", "--time", "1"];
    let report = bench(&[&words[..], &["--runs", "2", "--direct"]].concat());
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["commands_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    assert_eq!((&rows[0]["doorbells"], &rows[1]["doorbells"]), (&"mapped".into(), &().into()));
    assert!(rows[0]["of_floor"].is_f64());
    let count = |row: &serde_json::Value| {
        let left_out = row["left_out"].as_object().expect("counts").values();
        left_out.chain([&row["runs"]]).map(|count| count.as_u64().expect("a number")).sum::<u64>()
    };
    assert!(rows.iter().all(|row| count(row) == 2), "{rows:?}");
    assert_eq!(rows[0]["line_ns"].is_null(), report["machine"]["host"].is_null());
}

#[test]
fn a_placement_that_never_comes_is_told_in_words() {
    // No round trip takes a second.
    let words = ["--queue-depth", "1", "--runs", "2", "--line-ns", "1000000000..", "--wait", "0.1"];
    let done = Command::new(BINARY).args(words).output().expect("it runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{said}");
    let one = said.contains("here is only one");
    assert!(one || said.contains("round trip was never 1000000000.. ns; it was"), "{said}");
}

#[test]
fn encryption_is_measured_beside_the_bare_cipher() {
    // The time is enough for some commands on a busy machine.
    let report = bench(&["cipher", "--time", "0.3", "--runs", "1"]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4 * 5, "reads and writes of two sizes, alone and through four stacks");
    assert!(rows.iter().all(|row| row["ns_per_byte"].as_f64().is_some_and(|ns| ns > 0.0)), "{rows:?}");
    assert!(rows.iter().step_by(5).all(|row| row["target"].is_null() && row["of_cipher"] == 1.0), "{rows:?}");
}

#[test]
fn drives_that_nobody_uses_are_woken() {
    let report = bench(&["idle", "--drives", "3", "--time", "1"]);
    assert_eq!(report["drives"], 3);
    assert!(report["wake"]["max_ns"].as_u64().is_some_and(|ns| ns > 0), "{report}");
}

#[test]
fn many_clients_share_a_daemon() {
    let report = bench(&["clients", "--clients", "1,5", "--time", "0.2", "--target", "memory:1MiB"]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["clients"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(5)]);
    for row in rows {
        let number = |key: &str| row[key].as_f64().expect("a number");
        assert!(number("commands_per_s") > 0.0 && number("fairness") > 0.0, "{row}");
        assert!(["create", "attach"].iter().all(|key| row[*key]["max_ns"].as_u64() > Some(0)), "{row}");
        assert!(number("used_bytes") > 0.0, "{row}");
    }
}

#[test]
fn the_slowest_commands_are_measured_with_and_without_what_the_machine_did() {
    // The time is enough for some commands on a busy machine.
    let report = bench(&["tail", "--seconds", "0.5", "--queue-depth", "1,32", "--target", "null"]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        let number = |key: &str| row[key].as_f64().expect("a number");
        assert!(number("rate") > 0.0 && number("p50_us") > 0.0, "{row}");
        assert!(number("p50_us") <= number("p99_us") && number("p9999_us") <= number("max_us"), "{row}");
        assert!(
            number("own_max_us") <= number("max_us") * 1.02 && number("excused") <= number("slow"),
            "{row}"
        );
        assert_eq!(number("absences") > 0.0, number("absence_max_us") > 0.0, "{row}");
        assert_eq!(number("absences") > 0.0, number("absent_share") > 0.0, "{row}");
    }
}
