//! Drives that a file describes: applied as a whole, compared, and exported.

use crate::common::{Daemon, namespace};
use crate::load::under_load;
use crate::nvme::pattern;
use sluice_api::client::Client;
use sluice_control::drives::{Applied, ApplyRequest, Plan};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Returns a drive on a file.
fn drive(name: &str, mib: u64) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{name}.img\"\nsize = \"{mib}MiB\"\n"
    )
}

/// Writes a file beside the daemon's.
fn file(daemon: &Daemon, text: &str) -> String {
    let path = daemon.folder.path().join("drives.toml");
    std::fs::write(&path, text).expect("room on the disk");
    path.display().to_string()
}

fn names(daemon: &Daemon) -> BTreeSet<String> {
    let list: serde_json::Value =
        serde_json::from_str(&daemon.ok(&["drive", "list", "-o", "json"])).expect("JSON");
    let drives = list["drives"].as_array().expect("a list");
    drives.iter().map(|drive| drive["name"].as_str().expect("a name").to_owned()).collect()
}

fn set(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_file_is_compared_applied_and_exported() {
    let mut daemon = Daemon::start(&drive("fixed", 1));
    let path = file(&daemon, &(drive("web", 4) + &drive("db", 4)));
    let compare = |daemon: &Daemon, more: &[&str]| {
        let done = daemon.run(&[&["diff", "-f", &path], more].concat());
        (done.status.code(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
    };
    let (code, text) = compare(&daemon, &[]);
    let folder = daemon.folder.path().display();
    let line = |name: &str| format!("+ {name}: create, 1 namespace on file {folder}/{name}.img\n");
    assert_eq!((code, text), (Some(1), line("web") + &line("db")));
    assert!(daemon.ok(&["apply", "-f", &path, "--dry-run"]).contains("+ web"));
    assert_eq!(names(&daemon), set(&["fixed"]));
    daemon.ok(&["apply", "-f", &path]);
    let mut host = daemon.host("web");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &pattern(1, 4096)).expect("written");
    assert_eq!(compare(&daemon, &[]), (Some(0), "no difference\n".to_owned()));
    // Under the host, which sees the new size.
    file(&daemon, &drive("web", 8));
    let (code, text) = compare(&daemon, &[]);
    assert_eq!(code, Some(1));
    assert!(text.contains("size 4MiB -> 8MiB") && text.contains("db: not in the file"), "{text}");
    assert_eq!(compare(&daemon, &["--prune"]).1.lines().last(), Some("- db: delete, its files stay"));
    daemon.ok(&["apply", "-f", &path, "--prune"]);
    assert_eq!(names(&daemon), set(&["fixed", "web"]));
    disk.write((8 << 20 >> 9) - 8, &pattern(2, 4096)).expect("inside now");
    // A drive with a host is not deleted.
    file(&daemon, &drive("new", 4));
    assert!(daemon.fails(&["apply", "-f", &path, "--prune"]).contains("has a client"));
    assert_eq!(names(&daemon), set(&["fixed", "web"]));
    assert!(!daemon.folder.path().join("new.img").exists());
    drop(host);
    // A fault is at its line, and changes nothing.
    file(&daemon, &(drive("new", 4) + &drive("other", 4).replace("path", "paht")));
    let error = daemon.fails(&["apply", "-f", &path]);
    assert!(error.contains("drives.toml:11: paht: there is no such key here"), "{error}");
    assert_eq!(compare(&daemon, &[]).0, Some(2));
    let exported = String::from_utf8(daemon.run(&["export"]).stdout).expect("text");
    assert!(exported.contains("[[drive]]\nname = \"web\"\n"), "{exported}");
    file(&daemon, &exported);
    assert_eq!(compare(&daemon, &["--prune"]), (Some(0), "no difference\n".to_owned()));
    daemon.crash();
    daemon.restart();
    assert_eq!(names(&daemon), set(&["fixed", "web"]));
    assert_eq!(compare(&daemon, &["--prune"]), (Some(0), "no difference\n".to_owned()));
}

/// Attaches, moves and detaches functions, and resizes, while a host has commands in flight.
#[test]
fn functions_and_sizes_are_changed_under_load() {
    let daemon = Daemon::start("");
    let described =
        |mib: u64, functions: &str| drive("demo", mib) + &format!("functions = [ {functions} ]\n");
    let process = "{ kind = \"uif\", function = \"pass\" }";
    let inside = "{ kind = \"uif\", function = \"pass\", place = \"daemon\" }";
    let path = file(&daemon, &described(16, ""));
    daemon.ok(&["apply", "-f", &path]);
    let client = Client::new(daemon.api());
    under_load(&daemon, || async {
        for (mib, functions) in [
            (16, process.to_owned()),
            (17, format!("{inside}, {process}")),
            (18, inside.to_owned()),
            (18, String::new()),
        ] {
            let text = described(mib, &functions);
            let request = ApplyRequest { file: path.clone().into(), text, ..ApplyRequest::default() };
            let applied: Applied = client.post("/v1/apply", &request).await.expect("applied");
            assert!(!applied.changes.is_empty());
            let plan: Plan = client.post("/v1/diff", &request).await.expect("a plan");
            assert_eq!(plan, Plan::default());
        }
    });
}

/// Checks an apply whose last drive cannot be made: its file is in use.
#[test]
fn an_apply_that_fails_in_the_middle_leaves_nothing() {
    let daemon = Daemon::start(&drive("fixed", 1));
    let before = daemon.ok(&["export"]);
    let clash = drive("clash", 1).replace("clash.img", "fixed.img");
    let path = file(&daemon, &(drive("a", 1) + &drive("b", 1) + &clash));
    let error = daemon.fails(&["apply", "-f", &path]);
    assert!(error.contains("in use") && error.contains("nothing was changed"), "{error}");
    assert_eq!(daemon.ok(&["export"]), before);
    for name in ["a.img", "b.img"] {
        assert!(!daemon.folder.path().join(name).exists(), "{name} is gone");
    }
}

/// Fails an apply behind the replacement of a paused target by another path to the same file. The target is paused
/// as before, and goes on when that is ordered.
#[test]
fn a_paused_target_is_paused_after_an_apply_that_failed() {
    let daemon = Daemon::start(&drive("fixed", 1));
    let demo = drive("demo", 1);
    let path = file(&daemon, &demo);
    daemon.ok(&["apply", "-f", &path]);
    let folder = daemon.folder.path();
    std::fs::hard_link(folder.join("demo.img"), folder.join("other.img")).expect("another name");
    daemon.ok(&["target", "pause", "demo:1"]);
    let clash = drive("late", 1).replace("late.img", "fixed.img");
    let path = file(&daemon, &(demo.replace("demo.img", "other.img") + &clash));
    let error = daemon.fails(&["apply", "-f", &path]);
    assert!(error.contains("in use") && error.contains("nothing was changed"), "{error}");
    let path = file(&daemon, &demo);
    assert_eq!(daemon.ok(&["diff", "-f", &path]), "no difference\n");
    let complaint = daemon.fails(&["target", "pause", "demo:1"]);
    assert!(complaint.contains("paused already"), "{complaint}");
    let complaint = daemon.fails(&["upgrade"]);
    assert!(complaint.contains("a target of it is paused"), "{complaint}");
    daemon.ok(&["target", "resume", "demo:1"]);
    namespace(&mut daemon.host("demo"), 1).write(0, &[1; 4096]).expect("the target goes on");
}

/// Kills the daemon at moments of an apply. The next one has all of the drives of the file, or none.
#[test]
fn a_daemon_that_is_killed_in_the_middle_has_all_drives_or_none() {
    let mut daemon = Daemon::start("");
    let many: String = (0..24).map(|number| drive(&format!("d{number}"), 1)).collect();
    let all: BTreeSet<String> = (0..24).map(|number| format!("d{number}")).collect();
    let path = file(&daemon, &many);
    let mut taken_back = 0;
    for round in 0..12 {
        let binary = PathBuf::from(crate::common::BINARY);
        let mut tool = Command::new(binary);
        tool.arg("--api").arg(daemon.api()).args(["apply", "-f", &path]);
        let mut applying = tool.stderr(std::process::Stdio::null()).spawn().expect("the tool runs");
        std::thread::sleep(Duration::from_millis(20 + 25 * round));
        daemon.crash();
        let is_answered = applying.wait().expect("it ends").success();
        daemon.restart();
        let found = names(&daemon);
        assert!(found == all || found.is_empty() && !is_answered, "round {round}: {found:?}");
        taken_back += usize::from(daemon.log().contains("the daemon ended while it applied a file"));
        let made = (0..24).filter(|it| daemon.folder.path().join(format!("d{it}.img")).exists()).count();
        assert!(made == found.len(), "round {round}: {made} files of {}", found.len());
        let nothing = daemon.folder.path().join("nothing.toml");
        std::fs::write(&nothing, "").expect("room on the disk");
        daemon.ok(&["apply", "-f", &nothing.display().to_string(), "--prune"]);
        for number in 0..24 {
            let _ = std::fs::remove_file(daemon.folder.path().join(format!("d{number}.img")));
        }
    }
    assert!(taken_back > 0, "no daemon was killed in the middle");
}

/// Changes limits, a group and the target of a drive while a host has commands in flight.
#[test]
fn limits_groups_and_targets_are_changed_under_load() {
    let mut daemon = Daemon::start("");
    let described = |image: &str, iops: u64, group: u64| {
        format!(
            "[[group]]\nname = \"gold\"\nlimits = {{ iops = {group} }}\n[[drive]]\nname = \"demo\"\n[[drive.namespace]]\n\
             target = \"file\"\npath = \"{image}.img\"\nsize = \"16MiB\"\nfunctions = [ {{ kind = \"qos\", group = \"gold\", \
             limits = {{ iops = {iops} }} }} ]\n"
        )
    };
    let path = file(&daemon, &described("a", 5000, 9000));
    daemon.ok(&["apply", "-f", &path]);
    let client = Client::new(daemon.api());
    let folder = daemon.folder.path().to_owned();
    under_load(&daemon, || async {
        for round in 0..3u64 {
            let (from, to) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
            let text = described(from, 4000 - round, 8000 - round);
            let mut request = ApplyRequest { file: path.clone().into(), text, ..ApplyRequest::default() };
            let applied: Applied = client.post("/v1/apply", &request).await.expect("applied");
            assert_eq!(applied.changes.len(), 2, "{applied:?}");
            // The copy is made while the target is paused.
            let _: serde_json::Value =
                client.post("/v1/drives/demo/targets/1/pause", &serde_json::json!({})).await.expect("paused");
            std::fs::copy(folder.join(format!("{from}.img")), folder.join(format!("{to}.img")))
                .expect("room");
            request.text = described(to, 4000 - round, 8000 - round);
            client.post::<Applied>("/v1/apply", &request).await.expect_err("it may be other data");
            request.different_storage = true;
            let applied: Applied = client.post("/v1/apply", &request).await.expect("replaced");
            assert!(applied.changes[0].text.contains("target file "), "{applied:?}");
        }
    });
    let text = described("b", 3998, 7998);
    file(&daemon, &text);
    assert_eq!(daemon.ok(&["diff", "-f", &path]), "no difference\n");
    daemon.crash();
    daemon.restart();
    assert_eq!(daemon.ok(&["diff", "-f", &path]), "no difference\n");
    file(&daemon, &(text + "block_size = 4096\n"));
    let done = daemon.run(&["diff", "-f", &path]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(
        said.contains("! demo: ") && said.contains("block_size: ") && said.contains("  needs: "),
        "{said}"
    );
}
