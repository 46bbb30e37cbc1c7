//! Orders, their refusals, and the figures of a drive with versions.

use super::alone::Rig;
use crate::store::left_out::NOTHING_LOST;
use sluice_nvme::Status;
use std::collections::BTreeMap;

/// Returns the figures that are not zero.
fn figures(rig: &mut Rig) -> BTreeMap<String, u64> {
    let text = rig.order("metrics").expect("it has some");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let figures = lines.map(|line| {
        let (name, number) = line.rsplit_once(' ').expect("a name and a number");
        (
            name.rsplit_once("snapshot_").map_or(name, |(_, name)| name).to_owned(),
            number.parse().expect("a number"),
        )
    });
    figures.filter(|(_, number)| *number > 0).collect()
}

fn wanted(figures: &[(&str, u64)]) -> BTreeMap<String, u64> {
    figures.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

#[test]
fn figures_follow_the_work() {
    let mut rig = Rig::new();
    // The room for mappings limits this store.
    let (chunks, free) = (figures(&mut rig)["store_chunks"], figures(&mut rig)["store_chunks_free"]);
    assert_eq!(figures(&mut rig), wanted(&[("store_chunks", chunks), ("store_chunks_free", free)]));
    (0..3).for_each(|chunk| rig.submit_write(chunk, chunk));
    let three = [("store_chunks", chunks), ("store_chunks_free", free - 3), ("chunks_mapped", 3)];
    let counts = [("copies_total", 3), ("commits_total", 3)];
    assert_eq!(figures(&mut rig), wanted(&[&three[..], &counts].concat()));
    // A write in place is none of these.
    rig.submit_write(10, 1);
    assert_eq!(figures(&mut rig), wanted(&[&three[..], &counts].concat()));
    rig.order("create one").expect("it can");
    rig.submit_write(11, 1);
    let found = figures(&mut rig);
    assert_eq!((found["versions"], found["copies_total"], found["commits_total"]), (1, 4, 5));
    assert_eq!((found["store_chunks_free"], found["chunks_mapped"]), (free - 4, 3));
    let status = rig.order("status").expect("it is ready");
    let free = (free - 4) << 16;
    let store = chunks << 16;
    let text = format!(
        r#"{{"ready":true,"size":1048576,"chunk":65536,"mapped":196608,"store":{store},"free":{free},"low":false,"versions":1}}"#
    );
    assert_eq!(status, text);
    let list = rig.order("list").expect("it is ready");
    assert!(list.starts_with(r#"[{"name":"one","created":1"#) && list.ends_with("}]"), "{list}");
    rig.order("delete one").expect("it is there");
    let found = figures(&mut rig);
    assert_eq!((found.get("versions"), found["store_chunks_free"]), (None, (free >> 16) + 1));
    let job = rig.order("jobs").expect("it has one");
    assert!(job.contains(r#""name":"delete","state":"done","done":65536,"total":65536"#), "{job}");
}

/// Fills the store with versions of one chunk: it is low from 80 % on, and then commands fail.
#[test]
fn a_store_that_is_full_refuses_writes_and_says_so() {
    let mut rig = Rig::new();
    let (chunks, all) = (figures(&mut rig)["store_chunks"], figures(&mut rig)["store_chunks_free"]);
    assert!(all < 128);
    for number in 0..all {
        assert_eq!(rig.write(1000 + number), Status::SUCCESS, "write {number}");
        let found = figures(&mut rig);
        let free = all - number - 1;
        assert_eq!(
            (found.get("store_low").copied(), found.get("store_chunks_free").copied()),
            ((free * 5 < chunks).then_some(1), (free > 0).then_some(free))
        );
        rig.order(&format!("create v{number}")).expect("it can");
    }
    assert_eq!(rig.write(1), Status::CAPACITY_EXCEEDED);
    let found = figures(&mut rig);
    assert_eq!((found["capacity_exceeded_total"], found["versions"]), (1, all));
    assert!(found["checkpoints_total"] > 0);
    // A deletion makes room.
    rig.order("delete v3").expect("it is there");
    assert_eq!(rig.write(2), Status::SUCCESS);
}

#[test]
fn orders_that_cannot_be_are_refused_with_the_reason() {
    let mut rig = Rig::new();
    let refused = |rig: &mut Rig, order: &str, words: &str| {
        let answer = rig.order(order);
        assert!(answer.as_ref().is_err_and(|found| found.contains(words)), "{order}: {answer:?}");
    };
    refused(&mut rig, "delete one", "no version `one`");
    refused(&mut rig, "rollback one", "no version `one`");
    refused(&mut rig, "create a/b", "cannot be a name");
    rig.order("create one").expect("it can");
    refused(&mut rig, "create one", "already");
    refused(&mut rig, "open at last durable point", NOTHING_LOST);
    rig.is_busy = true;
    for order in ["create two", "delete one", "rollback one"] {
        refused(&mut rig, order, "quiet drive");
    }
    rig.is_busy = false;
    refused(&mut rig, "job pause delete", "does not run");
    refused(&mut rig, "job pause other", "no job `other`; the jobs are delete");
    // A store that is none is refused, and each order has the reason.
    let mut rig = Rig::over(vec![0xff; rig.store.len()], &[("size", "1MiB")]);
    assert_eq!(rig.ready, Some(Status::NAMESPACE_NOT_READY));
    let status = rig.order("status").expect("it has one");
    let reason =
        status.strip_prefix(r#"{"ready":false,"reason":""#).and_then(|rest| rest.strip_suffix(r#""}"#));
    let reason = reason.expect("it has a reason").to_owned();
    assert!(reason.len() > 10, "{reason}");
    for order in ["create two", "delete one", "list"] {
        refused(&mut rig, order, &reason);
    }
    assert_eq!(rig.write(1), Status::NAMESPACE_NOT_READY);
}

/// Fails all writes of the store: the order and commands fail, and go on when it works again.
#[test]
fn failures_of_the_store_are_counted_and_end_with_it() {
    let mut rig = Rig::new();
    assert_eq!(rig.write(1), Status::SUCCESS);
    rig.fails = true;
    assert!(rig.order("create one").is_err_and(|words| words.contains("the store failed")));
    assert!(figures(&mut rig)["metadata_failures_total"] > 0);
    rig.submit_write(2, 5);
    assert_eq!(rig.ended(2), Some(Status::WRITE_FAULT));
    rig.fails = false;
    rig.order("create two").expect("it can");
    rig.submit_write(3, 5);
    assert_eq!(rig.ended(3), Some(Status::SUCCESS));
}

/// Deletes a version that has many chunks in steps of a limited rate, with a pause and an end of the job.
#[test]
fn a_deletion_keeps_its_rate() {
    let options = [("size", "4MiB"), ("chunk", "4KiB"), ("delete_mib_s", "1")];
    let mut rig = Rig::over(vec![0; 8 << 20], &options);
    assert_eq!(rig.ready, Some(Status::SUCCESS));
    rig.chunk = 4096;
    (0..512).for_each(|chunk| rig.submit_write(chunk, chunk));
    rig.order("create one").expect("it can");
    (0..512).for_each(|chunk| rig.submit_write(1000 + chunk, chunk));
    rig.order("delete one").expect("it is there");
    let report = |rig: &mut Rig| rig.order("jobs").expect("it has some");
    let running = report(&mut rig);
    assert!(running.contains(r#""state":"running""#) && running.contains("frees the chunks"), "{running}");
    assert!(rig.order("job pause delete").expect("it runs").contains(r#""state":"paused""#));
    rig.let_pass(10_000_000_000);
    assert!(report(&mut rig).contains(r#""state":"paused""#));
    rig.order("job resume delete").expect("it is paused");
    assert!(rig.order("job cancel delete").expect("it runs").contains("stay in use until this is resumed"));
    rig.let_pass(10_000_000_000);
    assert!(report(&mut rig).contains(r#""state":"cancelled""#));
    rig.order("job resume delete").expect("it is cancelled");
    // 2 MiB of chunks at 1 MiB a second.
    let mut seconds = 0;
    while !report(&mut rig).contains(r#""state":"done","done":2097152,"total":2097152"#) {
        rig.let_pass(250_000_000);
        seconds += 1;
        assert!(seconds < 40, "{}", report(&mut rig));
    }
    assert!(seconds > 3, "{seconds}");
}
