//! The files of `examples/`, carried out: each configuration passes `--check`, serves, and stores data.

use crate::common::{BINARY, Daemon, namespace, tool};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Folders of the examples' files, each in the temporary folder instead.
const FOLDERS: [&str; 4] = ["/srv/", "/mnt/", "/etc/sluice/", "/usr/lib/sluice/"];

/// Keys whose place is that of the test.
const PLACES: [&str; 4] = ["api = \"", "sockets = \"", "state = \"", "socket_group = \""];

fn example(name: &str) -> PathBuf {
    Path::new(CHECKOUT).join("examples").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(example(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// An example that is adapted to a temporary folder.
struct Adapted {
    folder: tempfile::TempDir,
    text: String,
}

impl Adapted {
    /// Adapts an example: paths, sizes, and the address of hosts.
    fn new(name: &str, address: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut text = text(&format!("{name}.toml")).replace("GiB", "MiB").replace("10.0.0.1:4420", address);
        for path in FOLDERS {
            let here = format!("{}{path}", folder.path().display());
            text = text.replace(path, &here);
        }
        for path in text.split(['"', ' ', '\n']).filter(|word| Path::new(word).starts_with(folder.path())) {
            std::fs::create_dir_all(Path::new(path).parent().expect("a folder")).expect("room on the disk");
        }
        Self { folder, text }
    }

    /// Returns the commands of the comments that belong before the start, or after it.
    fn commands(&self, after: bool) -> impl Iterator<Item = &str> {
        let commands = self.text.lines().filter_map(|line| line.strip_prefix("#   $ "));
        commands.filter(move |command| command.starts_with("sluice ") == after)
    }

    fn execute(&self, command: &str) {
        let tools = Path::new(BINARY).parent().expect("a folder").display();
        let done = Command::new("sh")
            .args(["-c", &format!("PATH={tools}:$PATH; {command}")])
            .current_dir(CHECKOUT)
            .env("SLUICE_API", self.folder.path().join("api.sock"))
            .output()
            .expect("a shell is there");
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Returns the configuration without its places. The table of the daemon is the one that the test begins.
    fn drives(&self) -> String {
        let own = |line: &&str| *line != "[daemon]" && !PLACES.iter().any(|key| line.starts_with(key));
        self.text.lines().filter(own).map(|line| format!("{line}\n")).collect()
    }

    /// Checks the configuration as an operator does before a start.
    fn check(&self) -> Output {
        let file = self.folder.path().join("sluice.toml");
        let settings = "[daemon]\napi = \"api.sock\"\nstate = \"state\"\nsockets = \"drives\"\n";
        std::fs::write(&file, format!("{settings}{}", self.drives())).expect("room on the disk");
        let words = ["serve", "--check", "-c", &file.display().to_string()];
        tool(&self.folder.path().join("api.sock"), &words)
    }

    /// Prepares, checks and starts it, and executes the commands that belong after the start.
    fn start(self) -> Daemon {
        self.commands(false).for_each(|command| self.execute(command));
        let done = self.check();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let (drives, after) = (self.drives(), self.commands(true).map(str::to_owned).collect::<Vec<_>>());
        let daemon = Daemon::start_at(self.folder, None, &drives);
        for command in after {
            daemon.ok(&command.split(' ').skip(1).collect::<Vec<_>>());
        }
        daemon
    }
}

/// Returns the names of the drives, in their order.
fn drives(text: &str) -> Vec<String> {
    let file: toml::Table = toml::from_str(text).expect("TOML");
    let drives = file["drive"].as_array().expect("drives");
    drives.iter().map(|drive| drive["name"].as_str().expect("a name").to_owned()).collect()
}

/// Writes to the first namespace of a drive and reads it back.
fn write_and_read(daemon: &Daemon, drive: &str) {
    let mut host = daemon.host(drive);
    let mut disk = namespace(&mut host, 1);
    let data: Vec<u8> = (0..256 << 10).map(|number: u32| (number / 512 + number) as u8).collect();
    disk.write(0, &data).expect("written");
    disk.flush().expect("flushed");
    let mut back = vec![0; data.len()];
    disk.read(0, &mut back).expect("read");
    assert!(back == data, "{drive}");
}

fn carry_out(name: &str) {
    let adapted = Adapted::new(name, "");
    let drives = drives(&adapted.text);
    let daemon = adapted.start();
    for drive in drives {
        write_and_read(&daemon, &drive);
    }
}

/// Declares a test for each example that one daemon carries out.
macro_rules! examples {
    ($($name:ident)+) => {
        const ALONE: &[&str] = &[$(stringify!($name)),+];
        $(#[test]
        fn $name() {
            carry_out(stringify!($name));
        })+
    };
}

examples! { file memory mirror replicate encrypt stripe concat snapshot pool shared lease observe reactors }

/// Checks that a daemon serves a drive to another one, which has the same keys.
fn carry_out_pair(far: &str, near: &str, keys: &[(&str, &str)]) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let [near, far] = [near, far].map(|name| Adapted::new(name, &free.to_string()));
    for (adapted, (name, key)) in
        [&near, &far].into_iter().flat_map(|it| keys.iter().map(move |key| (it, key)))
    {
        let file = adapted.folder.path().join("etc/sluice").join(name);
        std::fs::write(&file, format!("{key}\n")).expect("room on the disk");
        adapted.execute(&format!("chmod 600 {}", file.display()));
    }
    let _far = far.start();
    write_and_read(&near.start(), "far");
}

#[test]
fn network_and_remote() {
    let key = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    carry_out_pair("network", "remote", &[("disk.keys", key)]);
}

#[test]
fn authentication() {
    let host = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let disk = "DHHC-1:00:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:";
    carry_out_pair("authentication", "authentication-remote", &[("host.key", host), ("disk.key", disk)]);
}

#[test]
fn every_configuration_has_a_test_and_a_line_on_the_page() {
    let page = text("README.md");
    for entry in std::fs::read_dir(example("")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let name = file.strip_suffix(".toml");
        let pairs = ["network", "remote", "authentication", "authentication-remote"];
        let tested = |name| ALONE.contains(&name) || pairs.contains(&name);
        assert!(name.is_none_or(tested), "{file}");
        assert!(file == "README.md" || page.contains(&format!("[{file}]({file})")), "README.md lacks {file}");
    }
}

#[test]
fn the_libvirt_file_has_the_printed_arguments() {
    let xml = text("libvirt.xml");
    let parse = "import sys, xml.etree.ElementTree as tree; tree.parse(sys.argv[1])";
    let done = Command::new("python3").args(["-c", parse]).arg(example("libvirt.xml")).output();
    let done = done.expect("python3 is installed, by scripts/setup.sh");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    if let Ok(done) = Command::new("virt-xml-validate").arg(example("libvirt.xml")).output() {
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    let daemon = Adapted::new("file", "").start();
    let sockets = daemon.folder.path().join("drives").display().to_string();
    let printed = daemon
        .ok(&["drive", "attach", "disk", "--print", "libvirt"])
        .replace("DIR/drives", "/run/sluice/drives");
    assert!(!printed.contains(&sockets), "{printed}");
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let needs = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";
    assert!(printed.contains(needs) && xml.contains(needs), "{printed}");
    let element = &printed[printed.find("<qemu:commandline").expect("the element")..];
    let arguments = element.trim_end().strip_suffix("</qemu:commandline>").expect("its end");
    assert!(flat(&xml).contains(flat(arguments).trim_end()), "{printed}");
}
