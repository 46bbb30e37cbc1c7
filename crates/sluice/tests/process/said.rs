//! Messages for operators when something is wrong. Each has the name that they gave, the unit, and a remedy.

use crate::common::{Daemon, namespace, tool, wait_for};
use crate::programs::compile;
use rustix::fs::{CWD, Mode, mkfifoat};

/// Source of an object file without a classifier.
const NO_PROGRAM: &str = "int nothing(void) { return 0; }\n";

fn drive(name: &str, namespace: &str) -> String {
    format!("[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\n{namespace}\n")
}

#[test]
fn a_size_that_cannot_be_is_said_to_be_that() {
    let daemon = Daemon::start("");
    let said = daemon.fails(&["drive", "create", "a", "--memory", "0"]);
    assert!(said.contains("a namespace of no bytes is not possible"), "{said}");
    let said = daemon.fails(&["drive", "create", "a", "--memory", "900TiB"]);
    assert!(
        said.contains("there is no room for 900TiB of memory: that is more than a process can have"),
        "{said}"
    );
}

#[test]
fn a_classifier_is_named_as_the_operator_named_it() {
    let daemon = Daemon::start("");
    daemon.ok(&["drive", "create", "demo", "--null", "1MiB"]);
    let folder = daemon.folder.path();
    let object = compile(folder, "impossible", NO_PROGRAM).display().to_string();
    let said = daemon.fails(&["classifier", "attach", "demo", &object]);
    assert!(said.contains("classifier DIR/impossible.o: ") && !said.contains("DIR/state"), "{said}");
    let source = folder.join("impossible.c").display().to_string();
    std::fs::write(&source, NO_PROGRAM).expect("room on the disk");
    let said = daemon.fails(&["classifier", "attach", "demo", &source]);
    assert!(
        said.contains("DIR/impossible.c is text, as the source of a program is, and not an object file"),
        "{said}"
    );
    let spec = folder.join("spec.json");
    let namespaces = "[{\"target\": \"null\", \"size\": \"1MiB\"}]";
    let text = format!("{{\"classifier\": {{\"object\": \"{object}\"}}, \"namespaces\": {namespaces}}}");
    std::fs::write(&spec, text).expect("room on the disk");
    let said = daemon.fails(&["drive", "create", "other", "--spec", &spec.display().to_string()]);
    assert!(said.contains("classifier DIR/impossible.o: ") && !said.contains("DIR/state"), "{said}");
}

#[test]
fn a_refused_change_leaves_no_file_and_no_hint_of_another_order() {
    let daemon = Daemon::start("");
    daemon.ok(&["drive", "create", "demo", "--memory", "1MiB"]);
    let folder = daemon.folder.path();
    let spec = folder.join("spec.json");
    let layer = folder.join("layer.img").display().to_string();
    let function = format!(
        "{{\"command\": [\"/no/such/program\"], \"layers\": [{{\"target\": \"file\", \"path\": \"{layer}\", \"size\": \"1MiB\"}}]}}"
    );
    std::fs::write(&spec, &function).expect("room on the disk");
    let path = spec.display().to_string();
    let said = daemon.fails(&["function", "attach", "demo", "--spec", &path]);
    assert!(said.contains("/no/such/program") && !said.contains("drive open"), "{said}");
    assert!(!folder.join("layer.img").exists(), "what it made is taken away");
    let image = folder.join("image.img").display().to_string();
    let namespaces = format!(
        "{{\"namespaces\": [{{\"target\": \"file\", \"path\": \"{image}\", \"size\": \"1MiB\"}}, \
         {{\"target\": \"null\", \"size\": \"1MiB\", \"functions\": [{{\"kind\": \"uif\", \"command\": [\"/no/such/program\"]}}]}}]}}"
    );
    std::fs::write(&spec, namespaces).expect("room on the disk");
    let said = daemon.fails(&["drive", "create", "two", "--spec", &path]);
    assert!(said.contains("/no/such/program") && !said.contains("drive open"), "{said}");
    assert!(!folder.join("image.img").exists(), "what it made is taken away");
    // A file that existed before the order stays.
    std::fs::write(folder.join("image.img"), [7; 4096]).expect("room on the disk");
    daemon.fails(&["drive", "create", "two", "--spec", &path]);
    assert!(folder.join("image.img").exists(), "it was not made by the order");
    assert!(!daemon.ok(&["drive", "list"]).contains("two"));
}

#[test]
fn nothing_is_waited_for_that_is_no_file() {
    let daemon = Daemon::start("");
    daemon.ok(&["drive", "create", "demo", "--memory", "1MiB"]);
    let pipe = daemon.folder.path().join("pipe");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("a pipe");
    let (pipe, spec) = (pipe.display().to_string(), daemon.folder.path().join("spec.json"));
    let key = daemon.folder.path().join("key");
    std::fs::write(&key, "passphrase").expect("room on the disk");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
    let key = key.display().to_string();
    let encrypt = |options: &str| {
        format!(
            "{{\"namespaces\": [{{\"target\": \"memory\", \"size\": \"1MiB\", \"functions\": [{{\"kind\": \"uif\", \
             \"function\": \"encrypt\", \"place\": \"daemon\", \"options\": {{{options}}}}}]}}]}}"
        )
    };
    let memory = "{\"target\": \"memory\", \"size\": \"1MiB\"}";
    for text in [
        encrypt(&format!("\"key_file\": \"{key}\", \"luks\": \"{pipe}\"")),
        encrypt(&format!("\"key_file\": \"{pipe}\"")),
        format!("{{\"namespaces\": [{{\"target\": \"file\", \"path\": \"{pipe}\", \"size\": \"1MiB\"}}]}}"),
        format!("{{\"namespaces\": [{{\"target\": \"nvme\", \"nvme\": {{\"generic\": \"{pipe}\"}}}}]}}"),
        format!("{{\"namespaces\": [{{\"target\": \"nvme\", \"nvme\": {{\"vfio_user\": \"{pipe}\"}}}}]}}"),
        format!("{{\"classifier\": {{\"object\": \"{pipe}\"}}, \"namespaces\": [{memory}]}}"),
        format!("{{\"tcp\": {{\"tls_keys\": \"{pipe}\"}}, \"namespaces\": [{memory}]}}"),
        format!(
            "{{\"tcp\": {{\"hosts\": [{{\"nqn\": \"nqn.2024-01.org.example:h\", \"dhchap\": {{\"key\": \"{pipe}\"}}}}]}}, \
             \"namespaces\": [{memory}]}}"
        ),
    ] {
        std::fs::write(&spec, &text).expect("room on the disk");
        let said = daemon.fails(&["drive", "create", "two", "--spec", &spec.display().to_string()]);
        assert!(said.contains("DIR/pipe"), "{text}: {said}");
    }
    let done = tool(&daemon.api(), &["serve", "--check", "-c", &pipe]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("it is not a regular file"));
    daemon.ok(&["drive", "list"]);
}

#[test]
fn a_function_is_called_by_its_name() {
    let function = "target = \"memory\"\nsize = \"1MiB\"\nfunctions = [ { kind = \"uif\", function = \"pass\", \
                    place = \"daemon\" }, { kind = \"pass\" }, { kind = \"uif\", function = \"mirror\", place = \"daemon\", \
                    layers = [ { target = \"memory\", size = \"1MiB\" }, { target = \"memory\", size = \"16MiB\" } ] } ]";
    let daemon = Daemon::start(&drive("demo", function));
    let shown = daemon.ok(&["drive", "show", "demo"]);
    assert!(shown.contains("pass, pass, mirror"), "{shown}");
    assert!(daemon.ok(&["reactor", "list"]).contains("BUSY-TURNS"), "a count, not a share");
}

#[test]
fn an_image_of_another_format_is_not_served_as_raw() {
    let daemon = Daemon::start("");
    for (name, magic) in [("a.qcow2", &b"QFI\xfb"[..]), ("b.vhdx", b"vhdxfile"), ("c.vmdk", b"KDMV")] {
        let path = daemon.folder.path().join(name);
        let mut bytes = vec![0; 4096];
        bytes[..magic.len()].copy_from_slice(magic);
        std::fs::write(&path, bytes).expect("room on the disk");
        let path = path.display().to_string();
        let said = daemon.fails(&["drive", "create", "demo", "--file", &path]);
        assert!(said.contains("image, and would be served as raw bytes"), "{said}");
        daemon.ok(&["drive", "create", "demo", "--file", &path, "--format", "raw"]);
        daemon.ok(&["drive", "delete", "demo"]);
    }
}

#[test]
fn what_a_guest_writes_makes_no_image_of_another_format() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drive("disk", "target = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\""));
    daemon.restart();
    let mut host = daemon.host("disk");
    namespace(&mut host, 1).write(0, &signed()).expect("written");
    drop(host);
    daemon.stop();
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut bytes = [0; 512];
    namespace(&mut host, 1).read(0, &mut bytes).expect("read");
    assert_eq!(bytes, signed());
    drop(host);
    daemon.stop();
    // A new file of that name was never served.
    let path = daemon.folder.path().join("disk.img");
    std::fs::remove_file(&path).expect("it is there");
    let mut other = vec![0; 1 << 20];
    other[..512].copy_from_slice(&signed());
    std::fs::write(&path, other).expect("room on the disk");
    daemon.restart();
    assert!(daemon.ok(&["drive", "show", "disk"]).contains("image, and would be served as raw bytes"));
}

/// Returns a block that begins like a qcow image.
fn signed() -> [u8; 512] {
    let mut block = [0; 512];
    block[..4].copy_from_slice(b"QFI\xfb");
    block
}

#[test]
fn an_image_that_loses_its_tail_is_said_to() {
    let daemon = Daemon::start("");
    let path = daemon.folder.path().join("odd.img");
    std::fs::write(&path, [0; 1000]).expect("room on the disk");
    daemon.ok(&["drive", "create", "odd", "--file", &path.display().to_string()]);
    wait_for("the word on the tail", || {
        daemon.log().contains("odd.img has 1000 bytes, which is no multiple")
    });
}

#[test]
fn an_address_that_is_absent_does_not_keep_the_others() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    // The address is of a network for documentation, and no machine has it.
    let tcp = "[tcp]\nlisten = [\"192.0.2.1:4420\", \"127.0.0.1:0\"]\n";
    daemon.declare("", &(tcp.to_owned() + &drive("disk", "target = \"null\"\nsize = \"1MiB\"")));
    daemon.restart();
    let said = "cannot listen on 192.0.2.1:4420: no interface has this address";
    wait_for("the word on the absent one", || daemon.log().contains(said));
    wait_for("the other address", || daemon.log().contains("hosts may connect to 127.0.0.1:"));
    daemon.ok(&["drive", "show", "disk"]);
}
