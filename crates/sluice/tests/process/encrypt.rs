//! Encrypt: the sources of its keys, the places where the keys must not be found, and the commands that its
//! classifier passes by.

use crate::common::{BINARY, Daemon, namespace, wait_for};
use crate::programs::compile_own;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Length in bytes of the pieces of a key that are searched for.
const PIECE: usize = 16;

/// A header made by cryptsetup, its key, and its passphrase.
const LUKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crypt/tests/data/argon2id.luks2");
const LUKS_KEY: &str = "732080c411543f1965e4f64484c9152d6a49720ce8009d454116cc10a80c22e1";
const PASSPHRASE: &[u8] = b"correct horse battery staple";

/// Returns random bytes, which are new in each run.
fn random(length: usize) -> Vec<u8> {
    let word = |n| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_usize(n);
        hasher.finish() as u8
    };
    (0..length).map(word).collect()
}

fn secret_file(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("room on the disk");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
    path.display().to_string()
}

fn drive(name: &str, image: &str, function: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{image}\"\n\
         size = \"1MiB\"\nblock_size = 4096\nfunctions = [ {{ kind = \"uif\", {function} }} ]\n"
    )
}

/// Starts a daemon with these drives.
fn daemon(drives: impl FnOnce(&Path) -> String) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drives(daemon.folder.path()));
    daemon.restart();
    daemon
}

fn write(daemon: &Daemon, drive: &str) {
    let mut host = daemon.host(drive);
    namespace(&mut host, 1).write(0, &[7; 8192]).expect("it is in range");
}

fn reads(daemon: &Daemon, drive: &str) -> bool {
    let mut read = [0; 8192];
    namespace(&mut daemon.host(drive), 1).read(0, &mut read).expect("it is in range");
    read == [7; 8192]
}

/// Returns the parts of a process's memory that have pieces of the key. The search covers the memory in a
/// core dump, or, with `all`, the memory that a debugger can read.
fn found(process: u32, key: &[u8], all: bool) -> Vec<String> {
    let folder = Path::new("/proc").join(process.to_string());
    let (Ok(maps), Ok(memory)) =
        (std::fs::read_to_string(folder.join("smaps")), File::open(folder.join("mem")))
    else {
        return Vec::new();
    };
    let (mut map, mut places) = ("", Vec::new());
    for line in maps.lines() {
        if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            map = line;
        }
        if let Some(flags) = line.strip_prefix("VmFlags:")
            && (all || !flags.contains(" dd"))
        {
            places.extend(pieces_in(&memory, map, key));
        }
    }
    places
}

fn pieces_in(memory: &File, map: &str, key: &[u8]) -> Vec<String> {
    let range = map.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
    let number = |text| u64::from_str_radix(text, 16).expect("an address");
    let mut page = [0; 4096];
    let mut places = Vec::new();
    for at in (number(range.0)..number(range.1)).step_by(page.len()) {
        if memory.read_exact_at(&mut page, at).is_ok() {
            let is_piece = |window: &[u8]| key.chunks_exact(PIECE).any(|piece| piece == window);
            let here = page.windows(PIECE).enumerate().filter(|(_, window)| is_piece(window));
            places.extend(here.map(|(offset, _)| format!("{:#x} in {map}", at + offset as u64)));
        }
    }
    places
}

fn number(daemon: &Daemon, words: &[&str], pointer: &str) -> u32 {
    let shown: serde_json::Value = serde_json::from_str(&daemon.ok(words)).expect("JSON");
    shown.pointer(pointer).and_then(serde_json::Value::as_u64).expect("a number") as u32
}

/// Checks a key file and a LUKS header, each in a process and in the daemon. No dump has the key, and the
/// daemon does not have the key of a function in a process.
#[test]
fn a_key_is_in_no_dump_and_with_its_function_alone() {
    let (key, other) = (random(64), random(32));
    // The search works: this process has the key.
    assert!(!found(std::process::id(), &key, false).is_empty());
    let luks_key: Vec<u8> =
        (0..32).map(|n| u8::from_str_radix(&LUKS_KEY[2 * n..][..2], 16).expect("digits")).collect();
    let daemon = daemon(|folder| {
        let here = secret_file(folder, "here", &other);
        let there = secret_file(folder, "there", &key);
        let pass = secret_file(folder, "pass", PASSPHRASE);
        let function = |place, options| {
            format!("function = \"encrypt\", place = \"{place}\", options = {{ {options} }}")
        };
        drive("there", "a.img", &function("process", format!("key_file = \"{there}\"")))
            + &drive("here", "b.img", &function("daemon", format!("key_file = \"{here}\"")))
            + &drive(
                "luks",
                "c.img",
                &function("process", format!("key_file = \"{pass}\", luks = \"{LUKS}\"")),
            )
            + &drive(
                "both",
                "d.img",
                &function("daemon", format!("key_file = \"{pass}\", luks = \"{LUKS}\"")),
            )
    });
    for drive in ["there", "here", "luks", "both"] {
        write(&daemon, drive);
        assert!(reads(&daemon, drive), "{drive}");
    }
    let itself = daemon.pid();
    let of = |drive| number(&daemon, &["function", "show", drive, "-o", "json"], "/functions/0/pid");
    let passphrase = PASSPHRASE.to_vec();
    for (who, process, key, all) in [
        ("the daemon, and a process's key", itself, &key, true),
        ("the daemon", itself, &other, false),
        ("the daemon, of a header", itself, &luks_key, false),
        ("the daemon, a passphrase", itself, &passphrase, false),
        ("a process", of("there"), &key, false),
        ("a process, of a header", of("luks"), &luks_key, false),
        ("a process, a passphrase", of("luks"), &passphrase, false),
    ] {
        let places = found(process, key, all);
        assert!(places.is_empty(), "{who}: {places:#?}");
    }
    for process in [itself, of("there"), of("luks")] {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{process}/{file}")).expect("it is ours");
            assert!(!bytes.windows(PIECE).any(|window| key.starts_with(window)));
            assert!(!bytes.windows(PASSPHRASE.len()).any(|window| window == PASSPHRASE));
        }
    }
    assert!(!daemon.log().contains("correct horse"), "{}", daemon.log());
}

/// A function process that the daemon did not start, with a key from a pipe and a readable file.
struct Served(Child);

impl Served {
    fn start(socket: &Path, key: impl Into<Stdio>, readable: &str) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["function", "run", "encrypt", "--key-fd", "0", "--readable", readable, "--socket"]);
        command.arg(socket).stdin(key);
        let served = Self(command.spawn().expect("the binary is there"));
        wait_for("its socket", || socket.exists());
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_key_comes_through_a_descriptor_and_serves_many_drives() {
    let key = random(64);
    let (reader, writer) = rustix::pipe::pipe().expect("descriptors");
    rustix::io::write(&writer, &key).expect("room in the pipe");
    drop(writer);
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("function.sock");
    let file = secret_file(folder.path(), "key", &key);
    let _served = Served::start(&socket, reader, &file);
    let mut daemon = daemon(|folder| {
        let there = format!("socket = \"{}\", options = {{ key_fd = \"0\" }}", socket.display());
        let own = secret_file(folder, "key", &key);
        let own = format!("function = \"encrypt\", options = {{ key_file = \"{own}\" }}");
        let file = format!("socket = \"{}\", options = {{ key_file = \"{file}\" }}", socket.display());
        let unknown = format!("socket = \"{}\", options = {{ key_fd = \"7\" }}", socket.display());
        drive("a", "a.img", &there)
            + &drive("b", "b.img", &there)
            + &drive("file", "c.img", &file)
            + &drive("own", "e.img", &own)
            + &drive("unknown", "d.img", &unknown)
    });
    for drive in ["a", "b", "file", "own"] {
        write(&daemon, drive);
    }
    let shown = daemon.ok(&["drive", "show", "unknown"]);
    assert!(shown.contains("start it with --key-fd 7"), "{shown}");
    daemon.stop();
    let image = |name| std::fs::read(daemon.folder.path().join(name)).expect("it is there");
    for other in ["b.img", "c.img", "e.img"] {
        assert!(image("a.img") == image(other), "{other}: one key");
    }
    // The pipe is empty by now, but the process still has the key.
    daemon.restart();
    assert!(reads(&daemon, "a") && reads(&daemon, "b"));
}

/// Checks the classifier above a function that takes all commands: the function gets data, and nothing else.
#[test]
fn the_classifier_sends_data_through_the_function_and_the_rest_by() {
    let daemon = daemon(|folder| {
        let object = compile_own(folder, "encrypt");
        format!(
            "[[drive]]\nname = \"demo\"\n[drive.classifier]\nobject = \"{}\"\n[[drive.namespace]]\n\
             target = \"memory\"\nsize = \"1MiB\"\n\
             functions = [ {{ kind = \"uif\", function = \"pass\", place = \"daemon\" }} ]\n\
             paths = [ {{ name = \"device\", below = 1 }} ]\n",
            object.display()
        )
    });
    let mut host = daemon.host("demo");
    let mut disk = namespace(&mut host, 1);
    let sent = || number(&daemon, &["function", "show", "demo", "-o", "json"], "/functions/0/sent");
    disk.write(0, &[7; 4096]).expect("it is in range");
    disk.read(0, &mut [0; 4096]).expect("it is in range");
    disk.write_zeroes(4, 4, false).expect("it is in range");
    let seen = sent();
    assert!(seen >= 3, "{seen}");
    disk.flush().expect("it can be flushed");
    disk.deallocate(&[(0, 8)]).expect("it is in range");
    assert_eq!(sent(), seen, "they pass it by");
    disk.compare(0, &[0; 512]).expect("it was deallocated");
    assert!(sent() > seen);
}

/// Checks a disk that cryptsetup formatted: the header, and the data behind it. The header is not
/// overwritten, and the stored data is encrypted with the header's key.
#[test]
fn a_disk_of_cryptsetups_is_used_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let cryptsetup = |words: &str| {
        let mut command = Command::new("cryptsetup");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir(folder.path());
        command.args(words.split_whitespace()).status().is_ok_and(|status| status.success())
    };
    let (pass, image) = (secret_file(folder.path(), "pass", PASSPHRASE), folder.path().join("disk.img"));
    File::create(&image).and_then(|image| image.set_len(20 << 20)).expect("room on the disk");
    let cost = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000 --sector-size 4096";
    if !cryptsetup(&format!("luksFormat -q --type luks2 {cost} --key-file pass disk.img")) {
        eprintln!("skipped: this machine has no cryptsetup");
        return;
    }
    assert!(cryptsetup("luksDump -q --dump-volume-key --volume-key-file key --key-file pass disk.img"));
    let header = std::fs::read(&image).expect("it is there");
    let disk = |offset: &str| {
        format!(
            "[[drive]]\nname = \"disk{offset}\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"{0}\"\n\
             block_size = 4096\nfunctions = [ {{ kind = \"uif\", function = \"encrypt\", options = \
             {{ luks = \"{0}\", key_file = \"{pass}\", data_offset = \"{offset}\" }} }}, \
             {{ kind = \"range\", from = \"16MiB\" }} ]\n",
            image.display()
        )
    };
    let mut daemon = daemon(|_| disk("0"));
    let shown = daemon.ok(&["drive", "show", "disk0"]);
    assert!(shown.contains("its data begins at byte 16777216, not 0: add the option"), "{shown}");
    daemon.stop();
    daemon.declare("", &disk("16777216"));
    daemon.restart();
    write(&daemon, "disk16777216");
    assert!(reads(&daemon, "disk16777216"));
    daemon.stop();
    let mut stored = std::fs::read(&image).expect("it is there");
    assert!(stored[..16 << 20] == header[..16 << 20], "the header is as it was");
    let key = std::fs::read(folder.path().join("key")).expect("it was dumped");
    let cipher = sluice_crypt::Xts::new(&key).expect("of 64 bytes");
    for (number, sector) in (0..2).zip(stored[16 << 20..].chunks_exact_mut(4096)) {
        cipher.decrypt(number * 8, sector);
        assert!(*sector == [7; 4096]);
    }
}
