//! docs/tutorials/first-function.md, carried out: every file of the page is written, every command of the page is
//! run.

use crate::common::{BINARY, Daemon, namespace};
use crate::function::functions;
use crate::sdk::sdk;
use sluice_nvme::Status;
use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/tutorials/first-function.md");

/// Returns the code blocks of the page, each as the rest of the line after its three back ticks and its
/// content.
fn blocks() -> impl Iterator<Item = (&'static str, &'static str)> {
    let odd = PAGE.split("```").skip(1).step_by(2);
    odd.map(|block| block.split_once('\n').expect("a block has lines"))
}

/// A reader of the page, in a folder of theirs.
struct Reader {
    daemon: Daemon,
    serves: bool,
}

impl Reader {
    fn folder(&self) -> &Path {
        self.daemon.folder.path()
    }

    fn here(&self, text: &str) -> String {
        text.replace("/tmp/first", &self.folder().display().to_string())
    }

    fn write(&self, name: &str, text: &str) {
        let text = self.here(text);
        if name == "sluice.toml" {
            return self.daemon.declare("", &text);
        }
        let path = self.folder().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("room on the disk");
        std::fs::write(path, text).expect("room on the disk");
    }

    fn run(&mut self, line: &str) {
        if line.starts_with("sluice serve ") {
            self.daemon.restart();
            self.serves = true;
            return;
        }
        let checkout = sdk().parent().expect("a folder").display().to_string();
        let tools = Path::new(BINARY).parent().expect("a folder").display().to_string();
        // A target folder of the workspace has the same dependencies already.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tutorial").display().to_string();
        let line = line.replace("--target-dir target", &format!("--target-dir {target}"));
        let line = line.replace("cp target/", &format!("cp {target}/"));
        if line.starts_with("cargo ") {
            let lock = self.folder().join("guard-rs/Cargo.lock");
            std::fs::copy(Path::new(&checkout).join("Cargo.lock"), lock).expect("room on the disk");
        }
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &self.here(&line)]).current_dir(self.folder());
        let path = std::env::var("PATH").expect("there is one");
        shell.env("SLUICE", &checkout).env("PATH", format!("{tools}:{path}"));
        shell.env("SLUICE_API", self.daemon.api()).env("CARGO_NET_OFFLINE", "true");
        let done = shell.output().expect("sh is there");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Checks the behaviour that the page promises.
    fn is_guarded(&self) {
        let mut host = self.daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        for block in [0, 2047] {
            let error = disk.write(block, &[1; 512]).expect_err("it is guarded");
            let refused = error.status().is_some_and(|s| s.same_code(Status::NAMESPACE_WRITE_PROTECTED));
            assert!(refused, "{error}");
            disk.write_zeroes(block, 1, false).expect_err("it is guarded");
        }
        let mut read = [7; 512];
        disk.read(0, &mut read).expect("everyone may read");
        assert_eq!(read, [0; 512]);
        disk.write(2048, &[1; 512]).expect("nobody guards this");
    }

    fn sent(&self) -> u64 {
        functions(&self.daemon, "disk")["sent"].as_u64().expect("a number")
    }
}

#[test]
fn the_first_function_is_there_in_ten_minutes() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let mut reader = Reader { daemon, serves: false };
    let mut checked = 0;
    for (title, text) in blocks() {
        let words: Vec<&str> = title.split(' ').collect();
        match words[..] {
            ["console"] => {
                text.lines().filter_map(|line| line.strip_prefix("$ ")).for_each(|line| reader.run(line))
            }
            [_, name] => reader.write(name, text),
            _ => panic!("a block without a name: {title}"),
        }
        if title == "console" && reader.serves {
            let before = reader.sent();
            reader.is_guarded();
            assert!(reader.sent() > before, "the function was not asked");
            checked += 1;
        }
    }
    assert_eq!(checked, 5, "python, its second look, c, rust, and past it");
    // The function refuses four writes. The write beyond its blocks passes by it.
    let before = reader.sent();
    reader.is_guarded();
    assert_eq!(reader.sent() - before, 4, "a classifier sends past it what is none of its business");
    let log = reader.daemon.log();
    assert!(!log.contains("ERROR"), "{log}");
}

/// Checks that the page has the text of the template.
#[test]
fn the_template_is_the_one_on_the_page() {
    let shown = blocks().find(|(title, _)| *title == "rust src/main.rs").expect("it is there").1;
    let template = std::fs::read_to_string(sdk().join("rust/template/src/main.rs")).expect("it is there");
    assert_eq!(shown, template);
}
