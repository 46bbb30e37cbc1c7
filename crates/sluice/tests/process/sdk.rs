//! Functions of other authors in a real daemon: in C and in Python, and one that was built for version 1 of
//! the rings.

use crate::common::{Daemon, namespace, tool, wait_for};
use crate::function::{SIZE, Served, Verified, drive, functions};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk").canonicalize().expect("it is there")
}

/// Compiles a program in C with the library, into this folder.
pub(crate) fn compile(folder: &Path, source: &Path) -> PathBuf {
    let build = folder.join("c");
    let made = Command::new("make").arg("-s").arg("-C").arg(sdk().join("c")).env("BUILD", &build).status();
    assert!(made.expect("make is there").success(), "the library does not compile");
    let program = folder.join(source.file_stem().expect("a file"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sdk().join("c"));
    compiler.arg("-o").arg(&program).arg(source).arg(build.join("libsluice_uif.a"));
    assert!(compiler.status().expect("cc is there").success(), "{} does not compile", source.display());
    program
}

/// Returns a drive with a `uif` function with this command.
fn with_command(words: &[&str], more: &str) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let function = format!("{{ kind = \"uif\", command = [{}]{more} }}", words.join(", "));
    drive("disk", "target = \"file\"\npath = \"image.img\"", &function)
}

/// Starts a daemon with the drives that `declare` returns for its folder.
fn daemon(declare: impl FnOnce(&Path) -> String) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &declare(daemon.folder.path()));
    daemon.restart();
    daemon
}

/// Returns whether the image has the host's data, with `byte` XORed to every byte.
fn stored_with(daemon: &Daemon, verified: &Verified, byte: u8) -> bool {
    let image = std::fs::read(daemon.folder.path().join("image.img")).expect("it is there");
    image.iter().zip(&verified.model).all(|(stored, seen)| stored ^ byte == *seen)
}

fn exchanges(daemon: &Daemon, byte: u8) {
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    verified.all_is_well();
    assert!(stored_with(daemon, &verified, byte), "what is stored is not what the function made of it");
    assert_eq!(verified.model.len() as u64, SIZE);
}

/// Checks that the function transforms zeros like other data.
fn zeroes(daemon: &Daemon, byte: u8) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    disk.write_zeroes(8, 1000, false).expect("it is in range");
    let mut read = vec![1; 512];
    disk.read(700, &mut read).expect("it is in range");
    assert_eq!(read, [0; 512]);
    let image = std::fs::read(daemon.folder.path().join("image.img")).expect("it is there");
    assert!(image[8 * 512..1008 * 512].iter().all(|stored| *stored == byte));
}

#[test]
fn a_function_in_c_serves_and_is_confined() {
    let daemon = daemon(|folder| {
        let program = compile(folder, &sdk().join("c/examples/xor.c")).display().to_string();
        with_command(&[&program], ", options = { byte = \"165\" }")
    });
    exchanges(&daemon, 165);
    zeroes(&daemon, 165);
    let pid = functions(&daemon, "disk")["pid"].as_u64().expect("it is there");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    assert!(status.contains("NoNewPrivs:\t1\nSeccomp:\t2\n"), "{status}");
    daemon.ok(&["function", "restart", "disk"]);
    wait_for("the next one", || functions(&daemon, "disk")["starts"] == 2);
    exchanges(&daemon, 165);
}

/// Checks three drives on one process that listens, which refuses one of them.
fn serves_several(start: impl FnOnce(&Path) -> Command) {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let folder = daemon.folder.path();
    let served = Served::spawn(folder, start(folder));
    let with = |name: &str, options: &str| {
        let socket = served.socket.display();
        drive(
            name,
            "target = \"memory\"",
            &format!("{{ kind = \"uif\", socket = \"{socket}\", options = {{ {options} }} }}"),
        )
    };
    let drives = with("a", "byte = \"1\"") + &with("no", "byte = \"no\"") + &with("b", "byte = \"2\"");
    daemon.declare("", &drives);
    daemon.restart();
    let mut hosts = [daemon.host("a"), daemon.host("b")];
    let mut verified: Vec<Verified> =
        hosts.iter_mut().map(|host| Verified::new(namespace(host, 1))).collect();
    verified.iter_mut().for_each(Verified::all_is_well);
    let shown = daemon.ok(&["drive", "show", "no"]);
    assert!(shown.contains("byte is a number"), "{shown}");
    // The process sleeps, and must be woken.
    verified.iter_mut().rev().for_each(Verified::all_is_well);
}

#[test]
fn a_process_in_c_serves_several_drives() {
    serves_several(|folder| Command::new(compile(folder, &sdk().join("c/examples/xor.c"))));
}

#[test]
fn a_process_in_python_serves_several_drives() {
    serves_several(|_| {
        let mut python = Command::new("python3");
        python.arg(sdk().join("python/examples/xor.py")).env("PYTHONPATH", sdk().join("python"));
        python
    });
}

#[test]
fn a_function_in_c_refuses_in_words() {
    let daemon = daemon(|folder| {
        let program = compile(folder, &sdk().join("c/examples/xor.c")).display().to_string();
        with_command(&[&program], ", options = { bite = \"1\" }")
    });
    let shown = daemon.ok(&["drive", "show", "disk"]);
    assert!(shown.contains("it says: xor knows only the option byte"), "{shown}");
}

#[test]
fn a_function_in_python_serves() {
    let daemon = daemon(|_| {
        let (module, program) = (sdk().join("python"), sdk().join("python/examples/xor.py"));
        let module = format!("PYTHONPATH={}", module.display());
        with_command(&["/usr/bin/env", &module, "python3", &program.display().to_string()], "")
    });
    exchanges(&daemon, 90);
    zeroes(&daemon, 90);
}

#[cfg(target_arch = "x86_64")]
mod earlier_and_later {
    use super::*;

    fn fixture(name: &str) -> PathBuf {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        fixtures.join(name).canonicalize().expect("it is there")
    }

    /// Checks a program that was built for version 1, and never since.
    #[test]
    fn a_function_of_version_1_is_still_served() {
        let program = fixture("function-version1").display().to_string();
        let daemon = daemon(|_| with_command(&[&program], ", on_death = \"fail\""));
        exchanges(&daemon, 0x5a);
        let shown = functions(&daemon, "disk");
        assert_eq!((&shown["starts"], &shown["invalid"], &shown["stray"]), (&1.into(), &0.into(), &0.into()));
        assert!(daemon.log().contains("a function was built for earlier rings"), "{}", daemon.log());
    }

    #[test]
    fn one_of_a_version_that_is_not_known_is_refused_in_words() {
        let daemon = daemon(|folder| {
            let program = folder.join("later");
            let mut compiler = Command::new("cc");
            let options = ["-DVERSION=77", "-Os", "-static", "-nostdlib", "-ffreestanding"];
            compiler.args(options).args(["-fno-stack-protector", "-fno-tree-loop-distribute-patterns", "-o"]);
            let done = compiler.arg(&program).arg(fixture("function.c")).status().expect("cc is there");
            assert!(done.success());
            with_command(&[&program.display().to_string()], "")
        });
        let shown = daemon.ok(&["drive", "show", "disk"]);
        let words = "it speaks version 77 of the rings, and this is version 2: rebuild it";
        assert!(shown.contains(words), "{shown}");
        assert!(tool(&daemon.api(), &["drive", "list"]).status.success(), "the daemon is well");
    }
}
