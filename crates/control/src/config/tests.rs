use super::*;
use sluice_spec::Target;
use sluice_spec::size::Size;

fn error(text: &str) -> String {
    let problem = parse(text, Path::new("/etc/sluice.toml")).expect_err("something is wrong with it");
    let hint = problem.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    problem.error.trim_start_matches("/etc/sluice.toml:").to_owned() + &hint
}

const WHOLE: &str = r#"
[daemon]
api = "/run/x/api.sock"
state = "state"
sockets = "/run/x/drives"
cores = [0, 2]
idle = { spin_us = 20 }
allow_uids = [1000]

[[drive]]
name = "demo"
doorbells = "mapped"
reactor = 1
[[drive.namespace]]
target = "memory"
size = "64MiB"
[[drive.namespace]]
target = "file"
path = "x.img"
size = "1GiB"
block_size = 4096
on_full = "park"
functions = [ { kind = "delay", read_us = 100 }, { kind = "pass" } ]

[[drive]]
name = "other"
namespaces = [ { target = "null", size = 1048576 } ]
"#;

#[test]
fn a_whole_file_is_read() {
    let config = parse(WHOLE, Path::new("/etc/sluice.toml")).expect("nothing is wrong with it");
    assert_eq!(config.daemon.cores, [0, 2]);
    assert_eq!(config.daemon.idle, super::super::Idle { spin_us: 20, always_poll: false });
    assert_eq!((config.daemon.access().mode, config.daemon.access().group), (0o600, None));
    assert_eq!(config.daemon.state.as_deref(), Some(Path::new("/etc/state")));
    let file = Target::File(sluice_spec::FileTarget {
        path: "/etc/x.img".into(),
        size: Some(Size(1 << 30)),
        on_full: sluice_spec::OnFull::Park,
        read_only: false,
        raw: false,
        lease: None,
    });
    assert_eq!(config.drives[0].namespaces[1].target(), Ok(file));
    assert_eq!(config.drives[1].namespaces[0].size, Some(Size(1 << 20)));
}

#[test]
fn an_empty_file_is_a_configuration() {
    let config = parse("", Path::new("x.toml")).expect("defaults for everything");
    assert_eq!(config.daemon, Settings::default());
    assert!(config.drives.is_empty());
}

#[test]
fn unknown_keys_are_named_with_what_was_meant() {
    assert_eq!(error("[deamon]\n"), "1: deamon: there is no such key here (did you mean `daemon`?)");
    assert_eq!(
        error("[daemon]\ncores = [0]\nsokets = \"/x\"\n"),
        "3: sokets: there is no such key here (did you mean `sockets`?)"
    );
    let block = "[[drive]]\nname = \"a\"\n[[drive.namespace]]\ntarget = \"null\"\n\nblocksize = 512\n";
    assert_eq!(error(block), "6: blocksize: there is no such key here (did you mean `block_size`?)");
    let function = "[[drive]]\nname = \"a\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = 512\n\
                    functions = [\n  { kind = \"pass\" },\n  { kind = \"delay\", raed_us = 1 },\n]\n";
    assert_eq!(error(function), "8: raed_us: there is no such key here (did you mean `read_us`?)");
    assert_eq!(
        error("[daemon]\nidle = { sleep = 5 }\n"),
        "2: sleep: there is no such key here (possible here: spin_us, always_poll)"
    );
}

#[test]
fn the_key_found_is_the_one_in_the_faulty_table() {
    let text = "[[drive]]\nname = \"a\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"/x\"\n\
                [[drive.namespace]]\ntarget = \"null\"\nsize = 512\npath = \"/y\"\n";
    assert_eq!(error(text), "9: path: a null target has none (remove path, or say target = \"file\")");
}

#[test]
fn missing_keys_are_named_where_they_belong() {
    assert_eq!(error("[daemon]\n\n[[drive]]\nreactor = 0\n"), "3: name: missing (add name = ...)");
    let text = "[[drive]]\nname = \"a\"\n\n[[drive.namespace]]\ntarget = \"memory\"\n";
    assert_eq!(error(text), "4: size: a memory target needs one (add size = \"64MiB\")");
    assert_eq!(
        error("\n[[drive]]\nname = \"a\"\n"),
        "2: namespaces: a drive needs at least one namespace \
         (add one, such as target = \"memory\", size = \"64MiB\")"
    );
}

#[test]
fn wrong_types_and_values_are_named() {
    assert_eq!(error("[daemon]\ncores = 1\n"), "2: cores: invalid type: integer `1`, expected a sequence");
    let size = "[[drive]]\nname = \"a\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = \"64M\"\n";
    assert_eq!(error(size), "5: size: `64M` has two meanings: say MiB or MB");
    let target = "[[drive]]\nname = \"a\"\n[[drive.namespace]]\ntarget = \"flie\"\n";
    assert_eq!(
        error(target),
        "4: target: unknown variant `flie`, expected one of `null`, `memory`, `memory-pool`, `thin`, `file`, `nvme`, \
         `nvme-tcp` (did you mean `file`?)"
    );
    assert_eq!(
        error("[daemon]\nsocket_mode = \"rw\"\n"),
        "2: socket_mode: `rw` is not a mode (use octal digits such as \"0660\")"
    );
    assert_eq!(
        error("[daemon]\nsocket_group = \"of nobody\"\n"),
        "2: socket_group: there is no group `of nobody` in /etc/group (a group that is kept elsewhere can be given by its \
         number, which `getent group` says)"
    );
    assert_eq!(
        error("[daemon]\ndrain_s = 9223372036854775807\n"),
        "2: drain_s: more than a day (the unit is seconds)"
    );
    assert_eq!(
        error("[daemon]\ncores = [1, 0, 1]\n"),
        "2: cores: core 1 is named twice (a core has one reactor; name each once)"
    );
}

#[test]
fn there_are_only_so_many_drives() {
    let drive = |name: &str| {
        format!("[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"null\"\nsize = 512\n")
    };
    let text: String = (0..=1024).map(|number| drive(&format!("d{number}"))).collect();
    assert_eq!(
        error(&text),
        "5122: name: there are 1024 drives before this one (that is the most one daemon serves: start another with \
         its own configuration)"
    );
}

#[test]
fn classifiers_and_paths_are_checked() {
    let drive = |classifier: &str, paths: &str| {
        format!(
            "[[drive]]\nname = \"a\"\n{classifier}[[drive.namespace]]\ntarget = \"file\"\npath = \"x\"\nsize = 512\n\
             functions = [ {{ kind = \"pass\" }} ]\npaths = [\n{paths}\n]\n"
        )
    };
    let good = "{ name = \"raw\", below = 1 }, { name = \"copy\", target = \"file\", path = \"y\" }";
    let text = drive("classifier = { object = \"a.o\", errors_max = 1 }\n", good);
    let config = parse(&text, Path::new("/etc/sluice.toml")).expect("nothing is wrong with it");
    let classifier = config.drives[0].classifier.as_ref().expect("it is there");
    assert_eq!(
        (classifier.object.as_path(), classifier.section.as_str()),
        (Path::new("/etc/a.o"), "classifier")
    );
    assert_eq!(config.drives[0].namespaces[0].paths[1].path.as_deref(), Some(Path::new("/etc/y")));
    let zero = drive("[drive.classifier]\nobject = \"a.o\"\nerrors_max = 0\n", "");
    assert!(error(&zero).starts_with("5: errors_max: zero would detach a program that did nothing wrong"));
    for (path, words) in [
        ("{ name = \"raw\", below = 2 }", "9: below: the namespace has 1 function"),
        ("{ name = \"raw\" }", "9: below: a path has either `below` or a `target`"),
        (
            "{ name = \"raw\", below = 1, path = \"y\" }",
            "9: path: only a path with a target of its own has one",
        ),
        ("{ name = \"copy\", target = \"file\" }", "9: path: a file target needs one"),
        (
            "{ name = \"r\", below = 1 }, { name = \"r\", below = 1 }",
            "9: name: `r` is the name of an earlier path",
        ),
    ] {
        let found = error(&drive("", path));
        assert!(found.starts_with(words), "{found}");
    }
}

#[test]
fn drives_for_hosts_on_the_network_are_checked() {
    let drive = |name: &str, tcp: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\n[drive.tcp]\n{tcp}[[drive.namespace]]\ntarget = \"null\"\nsize = 512\n"
        )
    };
    let listen = "[tcp]\nlisten = [\"127.0.0.1:4420\", \"[::1]:4420\"]\n";
    let good = listen.to_owned() + &drive("a", "hosts = [\"nqn.b\"]\n") + &drive("b", "nqn = \"nqn.c\"\n");
    let config = parse(&good, Path::new("/etc/sluice.toml")).expect("nothing is wrong with it");
    assert_eq!(config.tcp.listen.len(), 2);
    assert_eq!(config.drives[1].subnqn(), "nqn.c");
    let starts = |text: String, words: &str| {
        let found = error(&text);
        assert!(found.starts_with(words), "{found}");
    };
    starts(drive("a", ""), "3: tcp: no host could connect: the daemon listens nowhere");
    starts(listen.to_owned() + &drive("a", "nqn = \"disk\"\n"), "6: nqn: `disk` is no NVMe Qualified Name");
    starts(listen.to_owned() + &drive("a", "hosts = [\"\"]\n"), "6: hosts: `` is no NVMe Qualified Name");
    let host = |rest: &str| {
        listen.to_owned() + &drive("a", &format!("hosts = [\"nqn.a\", {{ nqn = \"nqn.b\"{rest} }}]\n"))
    };
    let good = host(
        ", dhchap = { key = \"/k\", controller_key = \"credential:c\", hashes = [\"sha512\"], dh_groups = [\"null\"] }",
    );
    let config = parse(&good, Path::new("/etc/sluice.toml")).expect("nothing is wrong with it");
    let hosts = &config.drives[0].tcp.as_ref().expect("it has hosts").hosts;
    assert_eq!((hosts[1].nqn(), hosts[1].dhchap().map(|it| it.hashes.len())), ("nqn.b", Some(1)));
    assert_eq!(serde_json::to_string(&hosts[0]).expect("JSON"), "\"nqn.a\"");
    starts(host(", dhchap = { key = \"DHHC-1:00:AAAA:\" }"), "6: key: `DHHC-1:00:AAAA:` is no absolute path");
    starts(
        host(", dhchap = { key = \"/a\", controller_key = \"/a\" }"),
        "6: controller_key: it is the host's key",
    );
    starts(host(", dhchap = { key = \"/a\", hashes = [\"md5\"] }"), "6: hashes: unknown variant `md5`");
    starts(host(", key = \"/a\""), "6: key: there is no such key here (possible here: nqn, dhchap)");
    starts(
        listen.to_owned() + &drive("a", "hosts = [7]\n"),
        "6: hosts: invalid type: integer `7`, expected the name of a host",
    );
    starts(
        listen.to_owned() + &drive("a", "hosts = [\"nqn.a\", \"nqn.a\"]\n"),
        "6: hosts: nqn.a is there twice",
    );
    let twice = drive("a", "nqn = \"nqn.c\"\n") + &drive("b", "nqn = \"nqn.c\"\n");
    starts(listen.to_owned() + &twice, "13: nqn: `nqn.c` is the name of an earlier drive");
    let keys = "tls_keys = \"/etc/sluice/a.keys\"\n";
    starts(
        listen.to_owned() + &drive("a", keys),
        "5: tcp: no host could connect: the daemon listens nowhere with TLS",
    );
    let encrypted = "[tcp]\nlisten_tls = [\"127.0.0.1:4421\"]\n";
    assert!(parse(&(encrypted.to_owned() + &drive("a", keys)), Path::new("/etc/sluice.toml")).is_ok());
    starts(
        encrypted.to_owned() + &drive("a", "tls_keys = \"a.keys\"\n"),
        "6: tls_keys: `a.keys` is no absolute path",
    );
    starts(
        "[tcp]\nlisten = [\"[::]:1\"]\nlisten_tls = [\"[::]:1\"]\n".to_owned(),
        "3: listen_tls: [::]:1 is there twice",
    );
    let discovery = "discovery_keys = \"/etc/sluice/a.keys\"\n";
    assert!(parse(&(encrypted.to_owned() + discovery), Path::new("/etc/sluice.toml")).is_ok());
    starts(listen.to_owned() + discovery, "3: discovery_keys: the daemon listens nowhere with TLS");
    starts(
        encrypted.to_owned() + "discovery_keys = \"a.keys\"\n",
        "3: discovery_keys: `a.keys` is no absolute path",
    );
    starts("[tcp]\nlisten = [\"localhost\"]\n".to_owned(), "2: listen: `localhost` is not an address");
    starts("[tcp]\nlisten = [\"[::]:1\", \"[::]:1\"]\n".to_owned(), "2: listen: [::]:1 is there twice");
}

#[test]
fn what_is_not_toml_is_named_by_its_line() {
    assert!(error("[daemon]\napi = /run/x\n").starts_with("2: "));
    assert!(error("[daemon\n").starts_with("1: "));
    assert!(error("a = \"\u{0}\"").starts_with("1: "));
}

#[test]
fn drives_are_checked_beside_each_other() {
    let drive = |name: &str, extra: &str| {
        format!("[[drive]]\nname = \"{name}\"\n{extra}[[drive.namespace]]\ntarget = \"null\"\nsize = 512\n")
    };
    let twice = drive("a", "") + &drive("a", "");
    assert_eq!(error(&twice), "7: name: `a` is the name of an earlier drive (give each drive its own name)");
    let serials = drive("a", "serial = \"S\"\n") + &drive("b", "serial = \"S\"\n");
    assert!(error(&serials).starts_with("9: serial: `S` is the serial number of an earlier drive"));
    assert_eq!(
        error(&drive("a", "reactor = 1\n")),
        "3: reactor: there is no reactor 1 (there is 1, counted from 0: one for each of daemon.cores)"
    );
}

#[test]
fn addresses_are_numbers_with_ports() {
    for address in ["localhost:4440", "127.0.0.1", "::1:4420"] {
        let said = error(&format!("[tcp]\nlisten = [\"{address}\"]\n"));
        assert!(
            said.starts_with(&format!(
                "2: listen: `{address}` is not an address with a port: write it in numbers"
            )),
            "{said}"
        );
    }
}

#[test]
fn a_missing_file_is_an_error_in_words() {
    let problem = load(Path::new("/nonexistent/sluice.toml")).expect_err("no such file");
    assert!(problem.error.starts_with("cannot read the configuration file /nonexistent/sluice.toml"));
    assert_eq!(problem.hint.as_deref(), Some("name an existing file with -c"));
}

/// Checks the last value that each key takes, and the first that it does not.
#[test]
fn limits_of_the_daemon() {
    let numbers = |count: u64| (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(", ");
    let addresses = |ports: std::ops::Range<u64>| {
        ports.map(|port| format!("\"127.0.0.1:{port}\"")).collect::<Vec<_>>().join(", ")
    };
    type Keys<'a> = &'a dyn Fn(u64) -> String;
    let cases: [(&str, Keys<'_>, u64); 6] = [
        ("cores", &|count| format!("[daemon]\ncores = [{}]\n", numbers(count)), 256),
        ("drain_s", &|seconds| format!("[daemon]\ndrain_s = {seconds}\n"), 86_400),
        ("spin_us", &|us| format!("[daemon]\nidle = {{ spin_us = {us} }}\n"), 1_000_000),
        ("socket_mode", &|mode| format!("[daemon]\nsocket_mode = \"{mode:o}\"\n"), 0o777),
        ("listen", &|count| format!("[tcp]\nlisten = [{}]\n", addresses(1..count + 1)), 64),
        (
            "listen_tls",
            &|count| {
                let (half, all) = (addresses(1..33), addresses(33..count + 1));
                format!("[tcp]\nlisten = [{half}]\nlisten_tls = [{all}]\n")
            },
            64,
        ),
    ];
    for (key, text, last) in cases {
        let taken = parse(&text(last), Path::new("/etc/sluice.toml"));
        assert!(taken.is_ok(), "{key}: {taken:?}");
        let refused = error(&text(last + 1));
        assert!(refused.contains(&format!(" {key}: ")), "{refused}");
    }
}

/// Checks files of the most bytes that are read, and of one byte more.
#[test]
fn limits_of_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let file = |bytes: u64| {
        std::fs::write(&path, vec![b'\n'; bytes as usize]).expect("room");
    };
    file(4 << 20);
    assert!(load(&path).is_ok(), "an empty configuration of 4 MiB");
    file((4 << 20) + 1);
    let refused = load(&path).expect_err("it is longer").error;
    assert!(refused.contains("longer than 4194304 bytes"), "{refused}");
    file(1 << 20);
    assert_eq!(crate::object_file::read(&path).map(|bytes| bytes.len()).ok(), Some(1 << 20));
    file((1 << 20) + 1);
    let refused = crate::object_file::read(&path).expect_err("it is longer").error;
    assert!(refused.contains("more than 1048576 bytes"), "{refused}");
}
