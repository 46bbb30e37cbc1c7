//! Members with labels: a wrong one is refused, and nothing is written.

use crate::common::{BINARY, Daemon, namespace, tool, wait_for};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: usize = 1 << 20;
const SIZE: usize = 8 * MIB;
const CHUNK: usize = 64 << 10;
const KINDS: [&str; 4] = ["stripe", "concat", "mirror", "replicate"];

/// The log of a mirror of two members of 8 MiB, in version 1 of the format, whose region 3 is dirty: its first
/// blocks, before zeros. Made by the rule of docs/formats.md.
const OLD_LOG: &[u8] = include_bytes!("../fixtures/mirror-log-version1");
const LOG_SIZE: usize = 512 << 10;

fn layer(name: &str, size: &str) -> String {
    format!("{{ target = \"file\", path = \"{name}\", size = \"{size}\" }}")
}

fn is_redundant(kind: &str) -> bool {
    matches!(kind, "mirror" | "replicate")
}

/// Returns the names of a set's files.
fn names(kind: &str) -> &'static [&'static str] {
    if is_redundant(kind) { &["m0", "m1", "mlog"] } else { &["m0", "m1"] }
}

/// Returns a drive of two members; `more` is of the function.
fn drive(kind: &str, more: &str) -> String {
    let (m1, log) = (layer("m1", "8MiB"), layer("mlog", "512KiB"));
    let function = match kind {
        "stripe" => format!("kind = \"stripe\", chunk = \"64KiB\", layers = [ {m1} ]{more}"),
        "concat" => format!("kind = \"concat\", layers = [ {m1} ]{more}"),
        _ => format!(
            "kind = \"uif\", function = \"{kind}\", place = \"daemon\", layers = [ {m1}, {log} ]{more}"
        ),
    };
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"m0\"\nsize = \"8MiB\"\n\
         functions = [ {{ {function} }} ]\n"
    )
}

/// Bytes of the whole drive.
fn pattern(kind: &str) -> Vec<u8> {
    let bytes = if is_redundant(kind) { SIZE } else { 2 * SIZE };
    (0..bytes / 512).flat_map(|block| [(block * 7 + block / 256) as u8; 512]).collect()
}

/// Returns the members of a set with these bytes, as every version has laid them out.
fn members(kind: &str, whole: &[u8]) -> [Vec<u8>; 2] {
    match kind {
        "stripe" => {
            let chunks = |odd: usize| whole.chunks(CHUNK).skip(odd).step_by(2).flatten().copied().collect();
            [chunks(0), chunks(1)]
        }
        "concat" => [whole[..SIZE].to_vec(), whole[SIZE..].to_vec()],
        _ => [whole.to_vec(), whole.to_vec()],
    }
}

fn write_all(daemon: &Daemon, whole: &[u8]) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for (index, piece) in whole.chunks(128 << 10).enumerate() {
        disk.write((index * (128 << 10) / 512) as u64, piece).expect("it is in range");
    }
    disk.flush().expect("nothing is wrong");
}

fn read_all(daemon: &Daemon, bytes: usize) -> Vec<u8> {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut whole = vec![0; bytes];
    for (index, piece) in whole.chunks_mut(128 << 10).enumerate() {
        disk.read((index * (128 << 10) / 512) as u64, piece).expect("it is in range");
    }
    whole
}

/// A labelled set in the folder of a stopped daemon.
struct Labelled {
    daemon: Daemon,
    kind: &'static str,
}

impl Labelled {
    /// Makes a set with labels, and data.
    fn new(kind: &'static str) -> Self {
        let mut daemon = Daemon::start("");
        daemon.stop();
        daemon.declare("", &drive(kind, ", labels = true"));
        daemon.restart();
        write_all(&daemon, &pattern(kind));
        daemon.stop();
        Self { daemon, kind }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.daemon.folder.path().join(name)
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        names(self.kind).iter().map(|name| std::fs::read(self.at(name)).expect("it is there")).collect()
    }

    fn put(&self, bytes: &[Vec<u8>]) {
        for (name, bytes) in names(self.kind).iter().zip(bytes) {
            std::fs::write(self.at(name), bytes).expect("room");
        }
    }

    /// Opens the set once more.
    fn use_it(&mut self) {
        self.daemon.restart();
        assert!(read_all(&self.daemon, pattern(self.kind).len()) == pattern(self.kind));
        self.daemon.stop();
    }

    fn uuids(&self, name: &str) -> [String; 2] {
        uuids(&self.at(name))
    }

    /// Checks that the drive is refused with all of these words, and that no byte of any file changes.
    fn is_refused(&mut self, words: &[String]) {
        let before = self.bytes();
        self.daemon.restart();
        let error = self.daemon.fails(&["drive", "open", "disk"]);
        self.daemon.stop();
        for word in words {
            assert!(error.contains(word), "{}: {error} lacks {word}", self.kind);
        }
        assert!(self.bytes() == before, "{}: {error}, and something was written", self.kind);
        let config = self.daemon.config().display().to_string();
        let check = self.daemon.fails(&["serve", "--check", "-c", &config]);
        assert!(words.iter().all(|word| check.contains(word)), "{check}");
        assert!(self.bytes() == before, "a check writes nothing");
    }
}

fn member(words: &[&str]) -> std::process::Output {
    Command::new(BINARY).arg("member").args(words).output().expect("the binary is there")
}

fn inspect(path: &Path) -> serde_json::Value {
    let done = member(&["inspect", "-o", "json", &path.display().to_string()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let views: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    views[0].clone()
}

/// Returns the UUIDs of a member and of its set.
fn uuids(path: &Path) -> [String; 2] {
    let view = inspect(path);
    ["member", "set"].map(|key| view["label"][key].as_str().expect("a UUID").to_owned())
}

#[test]
fn swapped_members_are_refused() {
    for kind in KINDS {
        let mut set = Labelled::new(kind);
        let ([first, id], [second, _]) = (set.uuids("m0"), set.uuids("m1"));
        let mut bytes = set.bytes();
        bytes.swap(0, 1);
        set.put(&bytes);
        set.is_refused(&[first, second, id]);
        bytes.swap(0, 1);
        set.put(&bytes);
        set.use_it();
    }
}

#[test]
fn a_member_of_another_set_is_refused() {
    for kind in KINDS {
        let (mut set, other) = (Labelled::new(kind), Labelled::new(kind));
        for (index, name) in names(kind).iter().enumerate() {
            let (own, theirs) = (set.uuids(name), other.uuids(name));
            let bytes = set.bytes();
            let mut exchanged = bytes.clone();
            exchanged[index] = other.bytes().swap_remove(index);
            set.put(&exchanged);
            // Of two members, either may be the wrong one.
            set.is_refused(&[own[1].clone(), theirs[1].clone()]);
            set.put(&bytes);
        }
        set.use_it();
    }
}

#[test]
fn another_disk_or_a_truncated_member_is_refused() {
    for kind in KINDS {
        let mut set = Labelled::new(kind);
        let [second, id] = set.uuids("m1");
        let bytes = set.bytes();
        let cases =
            [vec![0; SIZE + MIB], Vec::new(), bytes[1][..SIZE / 2].to_vec(), bytes[1][..SIZE].to_vec()];
        for wrong in cases {
            std::fs::write(set.at("m1"), wrong).expect("room");
            set.is_refused(&[second.clone(), id.clone()]);
        }
        set.put(&bytes);
        set.use_it();
    }
}

#[test]
fn an_older_copy_is_refused_or_copied_to() {
    for kind in KINDS {
        let mut set = Labelled::new(kind);
        let older = set.bytes();
        set.use_it();
        let bytes = set.bytes();
        let ids = names(kind).iter().map(|name| set.uuids(name)).collect::<Vec<_>>();
        for (index, name) in names(kind).iter().enumerate() {
            // The primary of a replicate is the member that the host reads.
            if index == 2 || !is_redundant(kind) || index == 0 && kind == "replicate" {
                std::fs::write(set.at(name), &older[index]).expect("room");
                set.is_refused(&ids[index]);
                set.put(&bytes);
            }
        }
        set.daemon.restart();
        assert!(read_all(&set.daemon, pattern(kind).len()) == pattern(kind));
        let hot = set.bytes();
        set.daemon.stop();
        let bytes = set.bytes();
        if !is_redundant(kind) {
            // A copy of the open drive is older than the closed one.
            std::fs::write(set.at("m1"), &hot[1]).expect("room");
            set.is_refused(&ids[1]);
            set.put(&bytes);
        }
        if is_redundant(kind) {
            // The second member has other data from an earlier time.
            let mut stale = older[1].clone();
            stale[5 * MIB..6 * MIB].fill(0xee);
            std::fs::write(set.at("m1"), &stale).expect("room");
            set.daemon.restart();
            assert!(read_all(&set.daemon, SIZE) == pattern(kind));
            let log = set.daemon.log();
            assert!(log.contains("older copy") && ids[1].iter().all(|id| log.contains(id)), "{log}");
            let data = |name: &str| std::fs::read(set.at(name)).expect("it is there")[..SIZE].to_vec();
            wait_for("equal members", || data("m1") == pattern(kind));
            set.daemon.stop();
            assert_ne!(set.uuids("m1")[0], ids[1][0], "it is new storage");
        }
        set.use_it();
    }
}

#[test]
fn an_older_primary_of_replicate_is_refused() {
    let mut set = Labelled::new("replicate");
    let older = set.bytes();
    set.use_it();
    let (bytes, ids) = (set.bytes(), set.uuids("m0"));
    std::fs::write(set.at("m0"), &older[0]).expect("room");
    set.is_refused(&ids);
    set.put(&bytes);
    set.use_it();
    // A new set can be begun with the secondary.
    let forget = |id: &str| member(&["forget", "--set", id, &set.at("m1").display().to_string()]);
    assert!(!forget(&ids[0]).status.success(), "that is no set");
    assert!(forget(&ids[1]).status.success());
    assert!(std::fs::read(set.at("m1")).expect("it is there") == pattern("replicate"));
}

#[test]
fn a_new_disk_becomes_a_member_by_one_command() {
    for kind in ["mirror", "replicate"] {
        let mut set = Labelled::new(kind);
        std::fs::write(set.at("m1"), "").expect("room");
        let (m0, m1) = (set.at("m0").display().to_string(), set.at("m1").display().to_string());
        let done = member(&["replace", "--set", &m0, "--index", "1", &m1]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        set.daemon.restart();
        assert!(read_all(&set.daemon, SIZE) == pattern(kind));
        wait_for("equal members", || {
            std::fs::read(set.at("m1")).expect("it is there")[..SIZE] == pattern(kind)
        });
        set.daemon.stop();
        set.use_it();
        std::fs::write(set.at("mlog"), "").expect("room");
        let log = set.at("mlog").display().to_string();
        let done = member(&["replace", "--set", &m0, "--log", "--log-size", "512KiB", &log]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        set.daemon.restart();
        let status = || set.daemon.run(&["function", "tell", "disk", "status"]).stderr;
        wait_for("the refusal", || String::from_utf8_lossy(&status()).contains("copy from N"));
        set.daemon.ok(&["function", "tell", "disk", "copy from 0"]);
        assert!(read_all(&set.daemon, SIZE) == pattern(kind));
        set.daemon.stop();
        set.use_it();
    }
    let set = Labelled::new("stripe");
    let (m0, m1) = (set.at("m0").display().to_string(), set.at("m1").display().to_string());
    let done = member(&["replace", "--set", &m0, "--index", "1", &m1]);
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("no second copy"));
}

/// Lays out a set as version 8125aff did: data from byte 0, and the log of that version.
fn lay_out(kind: &str, folder: &Path) {
    let [first, mut second] = members(kind, &pattern(kind));
    if is_redundant(kind) {
        let mut log = OLD_LOG.to_vec();
        log.resize(LOG_SIZE, 0);
        std::fs::write(folder.join("mlog"), log).expect("room");
        // The members differ in the dirty region.
        second[3 * MIB..4 * MIB].fill(0xdd);
    }
    std::fs::write(folder.join("m0"), first).expect("room");
    std::fs::write(folder.join("m1"), second).expect("room");
}

#[test]
fn a_set_of_an_earlier_version_is_adopted_by_one_command() {
    for kind in KINDS {
        let mut daemon = Daemon::start("");
        daemon.stop();
        daemon.declare("", &drive(kind, ""));
        lay_out(kind, daemon.folder.path());
        let mut set = Labelled { daemon, kind };
        let before = set.bytes();
        let config = set.daemon.config().display().to_string();
        let adopt = ["adopt", "--config", &config, "--drive", "disk"];
        let done = member(&adopt);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        for (now, before) in set.bytes().iter().zip(&before) {
            assert!(now[..before.len()] == before[..], "{kind}: data stays where it is");
            assert_eq!(now.len(), before.len() + MIB);
        }
        let again = member(&adopt);
        let error = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(!again.status.success() && set.uuids("m0").iter().all(|id| error.contains(id)), "{error}");
        set.daemon.restart();
        assert!(read_all(&set.daemon, pattern(kind).len()) == pattern(kind), "{kind}");
        if is_redundant(kind) {
            wait_for("the dirty region to be copied", || {
                let bytes = set.bytes();
                bytes[0][..SIZE] == bytes[1][..SIZE]
            });
        }
        set.daemon.stop();
        let ([first, id], [second, _]) = (set.uuids("m0"), set.uuids("m1"));
        let mut bytes = set.bytes();
        bytes.swap(0, 1);
        set.put(&bytes);
        set.is_refused(&[first, second, id]);
    }
}

#[test]
fn a_set_without_labels_works_as_before_with_a_warning() {
    for kind in KINDS {
        let mut daemon = Daemon::start("");
        daemon.stop();
        daemon.declare("", &drive(kind, ""));
        lay_out(kind, daemon.folder.path());
        daemon.restart();
        assert!(read_all(&daemon, pattern(kind).len()) == pattern(kind), "{kind}");
        let log = daemon.log();
        assert!(log.contains("sluice member adopt --config FILE --drive disk"), "{log}");
        daemon.stop();
        for name in names(kind) {
            assert_eq!(inspect(&daemon.folder.path().join(name))["state"], "no label");
        }
        daemon.declare("", &drive(kind, ", labels = true"));
        daemon.restart();
        let error = daemon.fails(&["drive", "open", "disk"]);
        assert!(error.contains("labels = true") && error.contains("member adopt"), "{error}");
        daemon.stop();
        daemon.declare("", &drive(kind, ", labels = false"));
        daemon.restart();
        assert!(read_all(&daemon, pattern(kind).len()) == pattern(kind), "{kind}");
        assert!(!daemon.log().contains("member adopt"));
        daemon.stop();
    }
}

#[test]
fn the_tool_shows_compares_and_repairs_labels() {
    let mut set = Labelled::new("mirror");
    let paths: Vec<String> = names("mirror").iter().map(|name| set.at(name).display().to_string()).collect();
    let words = |first| std::iter::once(first).chain(paths.iter().map(String::as_str)).collect::<Vec<_>>();
    let shown = member(&["inspect", &paths[1]]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.contains("kind:   mirror") && shown.contains("role:   member 1 of 2"), "{shown}");
    assert!(set.uuids("m1").iter().all(|id| shown.contains(id)), "{shown}");
    let checked = member(&words("check"));
    let checked = String::from_utf8(checked.stdout).expect("text");
    assert!(checked.matches("current").count() == 3 && checked.contains("log of 2 members"), "{checked}");
    let incomplete = member(&["check", &paths[0], &paths[2]]);
    let error = String::from_utf8_lossy(&incomplete.stderr).into_owned();
    assert!(!incomplete.status.success() && set.uuids("m1").iter().all(|id| error.contains(id)), "{error}");
    for copy in [SIZE, SIZE + MIB / 2] {
        let mut bytes = set.bytes();
        bytes[1][copy..copy + 512].fill(0xff);
        set.put(&bytes);
        assert!(inspect(&set.at("m1"))["copies"].as_array().expect("two").iter().any(|it| it == "foreign"));
        let done = member(&words("repair"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(inspect(&set.at("m1"))["copies"], serde_json::json!(["good", "good"]));
    }
    set.daemon.restart();
    for words in [["repair", &paths[0]].as_slice(), &["adopt", "--kind", "concat", &paths[0], &paths[1]]] {
        let busy = member(words);
        assert!(!busy.status.success() && String::from_utf8_lossy(&busy.stderr).contains("in use"));
    }
    let resized = tool(&set.daemon.api(), &["drive", "resize", "disk", "--size", "4MiB", "--shrink"]);
    assert!(String::from_utf8_lossy(&resized.stderr).contains("labels lie behind"), "{resized:?}");
    set.daemon.stop();
    set.use_it();
}
