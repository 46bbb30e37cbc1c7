use super::super::script::{MIB, Stage};
use super::*;
use crate::state::Applying;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

const FILE: &str = "/etc/drives.toml";

fn request(text: &str) -> ApplyRequest {
    ApplyRequest { file: FILE.into(), text: text.to_owned(), ..ApplyRequest::default() }
}

/// Returns a drive in memory.
fn drive(name: &str, mib: u64, more: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"{mib}MiB\"\n{more}"
    )
}

fn uif(name: &str, more: &str) -> String {
    format!("{{ kind = \"uif\", function = \"{name}\"{more} }}")
}

fn functions(list: &[String]) -> String {
    format!("functions = [ {} ]\n", list.join(", "))
}

/// Returns the changes in words.
fn words(changes: &[PlannedChange]) -> Vec<String> {
    changes.iter().map(|it| format!("{} {}: {}", it.kind, it.drive, it.text)).collect()
}

fn names(drives: &Drives) -> Vec<String> {
    drives.list().into_iter().map(|view| view.name).collect()
}

fn size(drives: &Drives, name: &str) -> Option<Size> {
    drives.show(name).expect("it is there").namespaces[0].size
}

#[test]
fn drives_become_as_the_text_describes_them() {
    let stage = Stage::new();
    let drives = stage.start("");
    let text = drive("a", 1, "") + &drive("b", 1, &functions(&[uif("pass", "")]));
    let plan = drives.diff(&request(&text)).expect("a plan");
    let created = ["create a: 1 namespace on null", "create b: 1 namespace on null"];
    assert_eq!(words(&plan.changes), created);
    assert!(names(&drives).is_empty(), "a plan changes nothing");
    assert_eq!(words(&drives.apply_file(&request(&text)).expect("applied").changes), created);
    assert_eq!(drives.apply_file(&request(&text)), Ok(Applied::default()), "there is no difference");
    let list = [uif("encrypt", ""), uif("pass", ", place = \"daemon\"")];
    let text = drive("b", 2, &functions(&list)) + &drive("c", 1, "");
    let changes = [
        "create c: 1 namespace on null",
        "change b: namespace 1: attach encrypt below 0 functions",
        "change b: namespace 1: function 2 goes in the daemon",
        "change b: namespace 1: size 1MiB -> 2MiB",
    ];
    let plan = drives.diff(&request(&text)).expect("a plan");
    assert_eq!((words(&plan.changes), plan.kept), (changes.map(str::to_owned).into(), vec!["a".to_owned()]));
    let pruning = ApplyRequest { prune: true, ..request(&text) };
    let applied = drives.apply_file(&pruning).expect("applied");
    assert_eq!(words(&applied.changes).last().map(String::as_str), Some("delete a: its files stay"));
    assert_eq!(drives.diff(&pruning), Ok(Plan::default()));
    drop(drives);
    let drives = stage.start("");
    assert_eq!(names(&drives), ["b", "c"]);
    assert_eq!(drives.diff(&pruning), Ok(Plan::default()), "it was on the disk");
    assert_eq!(drives.saved().applying, None);
}

#[test]
fn a_namespace_becomes_smaller_only_if_that_is_said() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.apply_file(&request(&drive("a", 2, ""))).expect("applied");
    let smaller = request(&drive("a", 1, ""));
    let problem = drives.apply_file(&smaller).expect_err("data would be lost");
    assert!(problem.error.starts_with("/etc/drives.toml:5: size: 1MiB is less than the 2MiB"), "{problem}");
    drives.apply_file(&ApplyRequest { shrink: true, ..smaller }).expect("applied");
    assert_eq!(size(&drives, "a"), Some(Size(MIB)));
}

#[test]
fn a_change_that_cannot_be_made_is_refused_with_its_line_before_any_other() {
    let stage = Stage::new();
    let config = format!("[daemon]\ncores = [0, 1]\n{}", drive("fixed", 1, ""));
    let drives = stage.start(&config);
    drives.apply_file(&request(&drive("a", 1, ""))).expect("applied");
    let new = drive("new", 1, "");
    let refused = |text: String| {
        let problem = drives.apply_file(&request(&text)).expect_err("it cannot be");
        assert_eq!(names(&drives), ["a", "fixed"], "{problem}");
        problem.in_one_line()
    };
    for (text, line, key) in [
        (drive("a", 1, "block_size = 4096\n"), 11, "block_size"),
        (drive("a", 1, "").replace("\"null\"", "\"memory\""), 9, "target"),
        (drive("a", 1, "").replace("[[drive.n", "serial = \"X\"\n[[drive.n"), 8, "serial"),
        (drive("fixed", 1, &functions(&["{ kind = \"pass\" }".to_owned()])), 11, "functions"),
        (drive("a", 1, "sise = 1\n"), 11, "sise"),
        (drive("b", 1, "").replace("[[drive.n", "reactor = 2\n[[drive.n"), 8, "reactor"),
    ] {
        let problem = refused(new.clone() + &text);
        assert!(problem.starts_with(&format!("/etc/drives.toml:{line}: {key}: ")), "{problem}");
    }
    let own = "[daemon]\ncores = [0]\n".to_owned();
    assert!(
        refused(own + &new).starts_with("/etc/drives.toml:2: cores: the running daemon has another value")
    );
    let serial = drive("b", 1, "").replace("[[drive.n", "serial = \"SL9F0AAF4D2B1E3C77\"\n[[drive.n");
    let taken = drives.show("a").expect("it is there").serial;
    let problem = refused(serial.replace("SL9F0AAF4D2B1E3C77", &taken));
    assert!(
        problem.starts_with("/etc/drives.toml:3: serial: ") && problem.contains("drive `a`"),
        "{problem}"
    );
    // The same reactors, and the declared drive as it is.
    drives.apply_file(&request(&(config + &drive("b", 1, "")))).expect("applied");
    assert_eq!(names(&drives), ["a", "b", "fixed"]);
}

#[test]
fn a_step_that_fails_takes_the_others_back() {
    let stage = Stage::new();
    let drives = stage.start(&drive("fixed", 1, &functions(&[uif("pass", "")])));
    let path = stage.folder.path().join("made.img");
    let text = drive("a", 1, "") + &drive("fixed", 2, &functions(&[uif("pass", "")]));
    drives.apply_file(&request(&drive("a", 1, ""))).expect("applied");
    let before = drives.saved();
    let file = format!(
        "[[drive]]\nname = \"made\"\n[[drive.namespace]]\ntarget = \"file\"\nsize = \"1MiB\"\npath = \"{}\"\n",
        path.display()
    );
    // The last step fails: a function of the declared drive does not move.
    stage.script.refuse_move.store(true, SeqCst);
    let moved = text.replace("function = \"pass\"", "function = \"pass\", place = \"daemon\"");
    let problem = drives.apply_file(&request(&(moved + &file))).expect_err("it does not move");
    assert!(problem.error.ends_with("nothing was changed"), "{problem}");
    assert!(problem.error.contains("drive `fixed`"), "{problem}");
    let [mut now, mut before] = [drives.saved(), before];
    [&mut now, &mut before].into_iter().for_each(|saved| saved.storage = None);
    assert_eq!(now, before);
    assert_eq!((names(&drives), size(&drives, "fixed")), (vec!["a".into(), "fixed".into()], Some(Size(MIB))));
    assert!(!path.exists(), "the file that was made is gone");
    // A size that cannot be given: the step before it, a creation, is taken back.
    stage.script.refuse_resize.store(true, SeqCst);
    let problem = drives.apply_file(&request(&(text + &file))).expect_err("no room");
    assert!(problem.error.ends_with("nothing was changed") && !path.exists(), "{problem}");
    assert_eq!(names(&drives), ["a", "fixed"]);
}

#[test]
fn a_classifier_is_known_by_its_program_and_taken_back() {
    let stage = Stage::new();
    let drives = stage.start("");
    let object = |name: &str| {
        let path = stage.folder.path().join(name);
        std::fs::write(&path, name).expect("room on the disk");
        format!("[drive.classifier]\nobject = \"{}\"\n", path.display())
    };
    let text = |classifier: &str| drive("a", 1, "").replace("[[drive.n", &format!("{classifier}[[drive.n"));
    let with = text(&object("a.o"));
    drives.apply_file(&request(&with)).expect("applied");
    assert_eq!(drives.apply_file(&request(&with)), Ok(Applied::default()), "the copy is the same program");
    let before = drives.show_classifier("a").expect("it has one");
    drives.apply_file(&request(&(with.clone() + &drive("z", 1, "")))).expect("applied");
    stage.script.refuse_resize.store(true, SeqCst);
    for other in [text(&object("b.o")), text("")] {
        let plan = drives.diff(&request(&other)).expect("a plan");
        assert!(plan.changes[0].text.starts_with("classifier "), "{plan:?}");
        let problem = drives.apply_file(&request(&(other + &drive("z", 2, "")))).expect_err("no room");
        assert!(problem.error.ends_with("nothing was changed"), "{problem}");
        assert_eq!(drives.show_classifier("a").as_ref(), Ok(&before));
    }
    let copies = std::fs::read_dir(stage.state().join("objects")).expect("a folder");
    assert!(copies.flatten().any(|copy| before.object == copy.path().display().to_string()));
    drives.apply_file(&request(&text(""))).expect("applied");
    assert!(drives.show_classifier("a").is_err());
}

#[test]
fn a_state_that_cannot_be_stored_is_not_applied() {
    let stage = Stage::new();
    let drives = stage.start("");
    drives.apply_file(&request(&drive("a", 1, ""))).expect("applied");
    let block = stage.state().join("drives.state.new");
    std::fs::create_dir(&block).expect("room on the disk");
    drives.apply_file(&request(&drive("b", 1, ""))).expect_err("it cannot be stored");
    assert_eq!(names(&drives), ["a"]);
    std::fs::remove_dir(&block).expect("it was made");
    drives.apply_file(&request(&drive("b", 1, ""))).expect("applied");
}

/// Leaves a state as a daemon does that is killed between two steps.
#[test]
fn a_daemon_that_was_killed_in_the_middle_begins_as_before() {
    let stage = Stage::new();
    let config = drive("fixed", 1, "");
    let drives = stage.start(&config);
    drives.apply_file(&request(&drive("a", 1, ""))).expect("applied");
    let before = drives.saved();
    let [made, used] = ["made.img", "used.img"].map(|name| stage.folder.path().join(name));
    let names_of = ["a", "fixed", "new", "b"].map(str::to_owned).into();
    let applying = Applying::of(&before, names_of, vec![made.clone(), used.clone()]);
    drives.store(|saved| saved.applying = Some(Box::new(applying))).expect("stored");
    drives.resize("a", 1, Size(2 * MIB), false).expect("it runs");
    drives.resize("fixed", 1, Size(2 * MIB), false).expect("it runs");
    let mut new = drives.entry("a").expect("it is there").spec;
    new.name = "new".to_owned();
    drives.create(new).expect("a free name");
    std::fs::File::create(&made).and_then(|file| file.set_len(MIB)).expect("room");
    std::fs::write(&used, [1; 512]).expect("room");
    drop(drives);
    let seen = crate::drives::foresee(
        &crate::config::parse(&config, Path::new(FILE)).expect("a file"),
        &stage.state(),
    );
    assert_eq!(seen.expect("nothing is wrong").len(), 2);
    let drives = stage.start(&config);
    assert_eq!(names(&drives), ["a", "fixed"]);
    assert_eq!([size(&drives, "a"), size(&drives, "fixed")], [Some(Size(MIB)); 2]);
    assert!(!made.exists() && used.exists(), "nothing was written to the first");
    let [mut now, mut before] = [drives.saved(), before];
    [&mut now, &mut before].into_iter().for_each(|saved| saved.storage = None);
    assert_eq!(now, before);
}

#[test]
fn the_file_of_the_daemon_itself_is_reloaded_and_not_applied() {
    let stage = Stage::new();
    let file = stage.folder.path().join("sluice.toml");
    std::fs::write(&file, drive("a", 1, "")).expect("room");
    let mut drives = stage.start("");
    drives.config_file.clone_from(&file);
    let request = ApplyRequest { file, ..request(&drive("a", 1, "")) };
    let problem = drives.apply_file(&request).expect_err("it is that of the daemon");
    assert_eq!(problem.hint.as_deref(), Some("`sluice reload` makes the daemon read it again"));
    drives.diff(&request).expect("a difference may be looked at");
}

#[test]
fn limits_and_groups_change_and_are_taken_back() {
    let stage = Stage::new();
    let drives = stage.start("");
    let group = |iops: u64| format!("[[group]]\nname = \"gold\"\nlimits = {{ iops = {iops} }}\n");
    let limited = |iops: u64| {
        drive(
            "a",
            1,
            &functions(&[format!("{{ kind = \"qos\", limits = {{ iops = {iops} }}, group = \"gold\" }}")]),
        )
    };
    let first = drives.apply_file(&request(&(group(100) + &limited(10)))).expect("applied");
    assert_eq!(words(&first.changes), ["create group gold: iops 100", "create a: 1 namespace on null"]);
    drives.apply_file(&request(&drive("z", 1, ""))).expect("applied");
    let text = group(200) + &limited(20) + &drive("b", 1, "") + &drive("z", 2, "");
    let changes = [
        "change group gold: iops 100 -> iops 200",
        "create b: 1 namespace on null",
        "change a: namespace 1: limits 1: iops 10 -> iops 20",
        "change z: namespace 1: size 1MiB -> 2MiB",
    ];
    assert_eq!(words(&drives.diff(&request(&text)).expect("a plan").changes), changes);
    let before = drives.saved();
    stage.script.refuse_resize.store(true, SeqCst);
    let problem = drives.apply_file(&request(&text)).expect_err("no room");
    assert!(problem.error.ends_with("nothing was changed"), "{problem}");
    let [mut now, mut before] = [drives.saved(), before];
    [&mut now, &mut before].into_iter().for_each(|saved| saved.storage = None);
    assert_eq!(now, before);
    assert_eq!(drives.group("gold").expect("it is there").limits.iops, Some(100));
    assert_eq!(drives.limits("a").expect("it is there")[0].limits.iops, Some(10));
    stage.script.refuse_resize.store(false, SeqCst);
    drives.apply_file(&request(&text)).expect("applied");
    assert_eq!(drives.limits("a").expect("it is there")[0].limits.iops, Some(20));
    assert_eq!(drives.diff(&request(&text)), Ok(Plan::default()));
    drop(drives);
    lock(&stage.script.groups).clear();
    let drives = stage.start("");
    assert_eq!(drives.diff(&request(&text)), Ok(Plan::default()), "it was on the disk");
    assert_eq!(drives.export().map(|text| drives.diff(&request(&text))), Ok(Ok(Plan::default())));
}

#[test]
fn a_target_is_replaced_alone_or_by_the_same_storage() {
    let stage = Stage::new();
    let drives = stage.start("");
    let on = |name: &str| {
        let path = stage.folder.path().join(name);
        std::fs::write(&path, vec![0; MIB as usize]).expect("room on the disk");
        drive("a", 1, "").replace("\"null\"", &format!("\"file\"\npath = \"{}\"", path.display()))
    };
    drives.apply_file(&request(&on("one"))).expect("applied");
    let two = on("two");
    let plan = drives.diff(&request(&two)).expect("a plan");
    assert!(plan.changes[0].text.starts_with("namespace 1: target file "), "{plan:?}");
    assert!(
        plan.changes[0].needs.as_deref().is_some_and(|it| it.contains("--different-storage")),
        "{plan:?}"
    );
    let problem = drives.apply_file(&request(&two)).expect_err("it may be other data");
    assert!(problem.error.contains("same storage"), "{problem}");
    assert_eq!(drives.diff(&request(&on("one"))), Ok(Plan::default()), "nothing has changed");
    let insisting = |text: &str| ApplyRequest { different_storage: true, ..request(text) };
    let both = two.clone() + &drive("b", 1, "");
    let problem = drives.apply_file(&insisting(&both)).expect_err("hosts would write to it");
    assert!(problem.error.starts_with("/etc/drives.toml:4: target: other storage"), "{problem}");
    assert_eq!(names(&drives), ["a"]);
    assert_eq!(drives.apply_file(&insisting(&two)).expect("applied").changes.len(), 1);
    assert_eq!(drives.diff(&request(&two)), Ok(Plan::default()));
    assert_eq!(drives.saved().applying, None);
    drop(drives);
    assert_eq!(stage.start("").diff(&request(&two)), Ok(Plan::default()), "it was on the disk");
}

#[test]
fn a_difference_lists_all_that_is_refused_with_its_remedy() {
    let stage = Stage::new();
    let drives = stage.start("");
    let cached = |mib: u64| functions(&[format!("{{ kind = \"cache\", size = \"{mib}MiB\" }}")]);
    drives.apply_file(&request(&(drive("a", 2, &cached(1)) + &drive("b", 1, "")))).expect("applied");
    let text = drive("a", 1, &(cached(2) + "block_size = 4096\n")) + &drive("b", 2, "");
    let plan = drives.diff(&request(&text)).expect("a plan");
    assert!(
        words(&plan.changes).contains(&"change b: namespace 1: size 1MiB -> 2MiB".to_owned()),
        "{plan:?}"
    );
    let texts: Vec<&str> = plan.refused.iter().map(|refused| refused.text.as_str()).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    for (line, key, needs) in
        [(7, "block_size", "apply again"), (6, "functions", "cache"), (5, "size", "--shrink")]
    {
        let found =
            plan.refused.iter().find(|it| it.text.starts_with(&format!("/etc/drives.toml:{line}: {key}: ")));
        let found = found.unwrap_or_else(|| panic!("{key}: {texts:?}"));
        assert!(found.needs.as_deref().is_some_and(|it| it.contains(needs)), "{found:?}");
    }
    drives.apply_file(&request(&text)).expect_err("it is refused");
    assert_eq!(size(&drives, "b"), Some(Size(MIB)), "none is made");
}

/// A source of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    fn target(&mut self, folder: &Path) -> String {
        let kib = 64 * (1 + self.below(1 << 14));
        match self.below(5) {
            0 => format!("target = \"memory\", size = \"{kib}KiB\""),
            1 => format!("target = \"null\", size = {}", kib << 10),
            2 => "target = \"nvme-tcp\", nvme_tcp = { address = \"10.0.0.1:4420\", subnqn = \"nqn.2026-11.example:far\", \
                  digests = [\"header\"], fast_io_fail_s = 7 }"
                .to_owned(),
            3 => "target = \"nvme\", nvme = { vfio_user = \"/run/x/cntrl\", first_block = 64, passes = [\"read\"] }".to_owned(),
            _ => format!(
                "target = \"file\", path = \"{}\", size = \"{kib}KiB\", on_full = \"{}\"",
                folder.join(format!("f {}.img", self.below(1000))).display(),
                self.one(&["park", "fail"])
            ),
        }
    }

    fn function(&mut self, folder: &Path) -> String {
        match self.below(7) {
            0 => "{ kind = \"pass\" }".to_owned(),
            1 => format!("{{ kind = \"delay\", read_us = {} }}", self.below(1000)),
            2 => "{ kind = \"readonly\" }".to_owned(),
            3 => format!("{{ kind = \"concat\", layers = [ {{ {} }} ] }}", self.target(folder)),
            4 => "{ kind = \"uif\", command = [\"/bin/a b\", \"--x='y'\"], uid = 7 }".to_owned(),
            5 => "{ kind = \"uif\", function = \"pass\", place = \"daemon\", deadline_ms = 9 }".to_owned(),
            _ => "{ kind = \"uif\", function = \"encrypt\", options = { key_file = \"/k \\\"e\\\" ü\" } }"
                .to_owned(),
        }
    }

    /// Returns the table of a drive.
    fn drive(&mut self, name: &str, folder: &Path) -> String {
        let mut text = format!("[[drive]]\nname = \"{name}\"\n");
        if self.below(3) == 0 {
            let _ = writeln!(text, "serial = \"S#{name}\"");
        }
        if self.below(3) == 0 {
            let _ = writeln!(text, "reactor = {}", self.below(2));
        }
        if self.below(3) == 0 {
            let _ = writeln!(text, "host_timeout_s = {}", self.one(&["0", "6", "60"]));
        }
        if self.below(3) == 0 {
            let _ = writeln!(text, "absence = {{ answer = \"retry\" }}");
        }
        let _ = writeln!(text, "doorbells = \"{}\"", self.one(&["auto", "mapped", "trapped"]));
        match self.below(4) {
            0 => {
                let _ = writeln!(text, "[drive.tcp]\nnqn = \"nqn.2026-11.example:{name}\"\nmax_hosts = 3");
            }
            1 => {
                let _ = writeln!(text, "[drive.vfio_user]\nsockets = 2\nmsix = false");
            }
            _ => {}
        }
        for _ in 0..=self.below(3) {
            let target = self.target(folder).replace(", target", "\ntarget");
            let lines = format!("[[drive.namespace]]\nblock_size = {}\n", self.one(&["512", "4096"]));
            text += &lines;
            // The keys of the inline table, a line for each.
            let table: toml::Table = format!("x = {{ {target} }}").parse().expect("TOML");
            for (key, value) in table["x"].as_table().expect("a table") {
                let json = serde_json::to_value(value).expect("JSON");
                let value = match json.is_object() {
                    true => target[target.find(&format!("{key} = ")).expect("it is there")..]
                        .split_once(" = ")
                        .map(|(_, value)| value.to_owned())
                        .expect("a value"),
                    false => json.to_string(),
                };
                let _ = writeln!(text, "{key} = {value}");
            }
            let list: Vec<String> = (0..self.below(4)).map(|_| self.function(folder)).collect();
            text += &functions(&list);
        }
        text
    }
}

/// Checks that a daemon with the exported drives has no difference from the first, and that no text is.
#[test]
fn what_is_exported_makes_the_same_drives() {
    let mut random = Random(1);
    let head = "[daemon]\ncores = [0, 1]\n[tcp]\nlisten = [\"127.0.0.1:4420\"]\n";
    let mut tried = 0;
    for _ in 0..80 {
        let stage = Stage::new();
        let folder = stage.folder.path().join("a b");
        std::fs::create_dir(&folder).expect("room");
        let mut text = String::new();
        for number in 0..random.below(4) {
            let drive = random.drive(&format!("d{number}"), &folder);
            // Not every description is possible.
            if crate::config::parse(&format!("{head}{text}{drive}"), Path::new(FILE)).is_ok() {
                text += &drive;
                tried += 1;
            }
        }
        let drives = stage.start(&format!("{head}{}", drive("declared", 1, "")));
        drives.apply_file(&request(&text)).unwrap_or_else(|problem| panic!("{problem}\n{text}"));
        let exported = drives.export().expect("it can be written");
        let same = ApplyRequest { prune: true, ..request(&exported) };
        assert_eq!(drives.diff(&same), Ok(Plan::default()), "{exported}");
        assert_eq!(drives.apply_file(&same), Ok(Applied::default()), "{exported}");
        let there = crate::config::parse(&exported, Path::new(FILE));
        let there = there.unwrap_or_else(|problem| panic!("{problem}\n{exported}"));
        let here: Vec<DriveSpec> = lock(&drives.entries).values().map(|entry| entry.spec.clone()).collect();
        assert_eq!(there.drives, here);
        // Another daemon, with these drives declared, exports the same text.
        let other = Stage::new();
        let drives = other.start(&format!(
            "{}{exported}",
            if exported.contains("cores") { "" } else { "[daemon]\ncores = [0, 1]\n" }
        ));
        assert_eq!(drives.export().expect("it can be written"), exported);
    }
    assert!(tried > 40, "{tried} drives were possible");
}
