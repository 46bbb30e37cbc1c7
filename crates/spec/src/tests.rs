mod limits;

use super::drive::NAME_MAX;
use super::namespace::FUNCTIONS_MAX;
use super::*;
use crate::size::Size;
use std::path::Path;

fn drive(json: &str) -> DriveSpec {
    serde_json::from_str(json).expect("a readable spec")
}

fn fault(json: &str) -> String {
    let fault = drive(json).check().expect_err("something is wrong with it");
    format!("{}: {} ({})", fault.at, fault.error, fault.hint.unwrap_or_default())
}

fn fault_of_namespace(json: &str) -> String {
    fault(&format!(r#"{{"name": "d", "namespaces": [{json}]}}"#))
}

#[test]
fn defaults_are_filled_in() {
    let spec = drive(r#"{"name": "d", "namespaces": [{"target": "memory", "size": "64MiB"}]}"#);
    assert_eq!(spec.check(), Ok(()));
    assert_eq!(spec.doorbells, Doorbells::Auto);
    assert_eq!(spec.namespaces[0].block_size, 512);
    assert_eq!(spec.namespaces[0].target(), Ok(Target::Memory { size: Size(64 << 20) }));
}

#[test]
fn what_is_missing_or_misplaced_is_named() {
    assert_eq!(
        fault(r#"{"name": "d"}"#),
        "namespaces: a drive needs at least one namespace \
         (add one, such as target = \"memory\", size = \"64MiB\")"
    );
    assert_eq!(
        fault_of_namespace(r#"{"target": "memory"}"#),
        "namespaces[0].size: a memory target needs one (add size = \"64MiB\")"
    );
    assert_eq!(
        fault_of_namespace(r#"{"target": "null", "size": 512, "path": "/x"}"#),
        "namespaces[0].path: a null target has none (remove path, or say target = \"file\")"
    );
    assert_eq!(
        fault_of_namespace(r#"{"target": "file", "path": "x.img"}"#),
        "namespaces[0].path: x.img is not an absolute path \
         (the daemon has another working directory than you: start the path with /)"
    );
}

#[test]
fn sizes_fit_their_blocks() {
    assert_eq!(
        fault_of_namespace(r#"{"target": "null", "size": 6144, "block_size": 4096}"#),
        "namespaces[0].size: 6KiB is not a multiple of the block size (use a multiple of 4096 bytes)"
    );
    assert!(fault_of_namespace(r#"{"target": "null", "size": 0}"#).contains("no bytes"));
    assert!(fault_of_namespace(r#"{"target": "null", "size": 9223372036854775808}"#).contains("more than"));
    assert!(
        fault_of_namespace(r#"{"target": "null", "size": 512, "block_size": 520}"#).contains("use 512 or")
    );
}

#[test]
fn names_cannot_leave_their_folder() {
    for name in ["", ".", "..", "a/b", "-a", "a b", "a\0b", "é"] {
        assert!(check_name(name).is_err(), "{name:?}");
    }
    assert!(check_name(&"a".repeat(NAME_MAX + 1)).is_err());
    for name in ["a", "web-1.data_2", "9"] {
        assert_eq!(check_name(name), Ok(()));
    }
}

#[test]
fn identity_is_derived_and_stays() {
    let namespace = r#"[{"target": "null", "size": 512}]"#;
    let spec = drive(&format!(r#"{{"name": "demo", "namespaces": {namespace}}}"#));
    // Guests store these identifiers: a change here changes the identity of every drive.
    assert_eq!(spec.serial(), "SL07F72FB3AF456330");
    assert_eq!(spec.subnqn(), "nqn.2014-08.org.nvmexpress:uuid:273e26a3-9caa-8968-b933-4443e5e3c654");
    let named = drive(&format!(r#"{{"name": "demo", "serial": "S1", "namespaces": {namespace}}}"#));
    assert_eq!(named.serial(), "S1");
    assert_ne!(named.namespace_uuid(1, &[]), spec.namespace_uuid(1, &[]));
    assert_ne!(spec.namespace_uuid(1, &[]), spec.namespace_uuid(2, &[]));
    assert_eq!(spec.namespace_uuid(1, &[])[6] >> 4, 8);
    for serial in ["", "with space", "more-than-20-characters"] {
        let spec = DriveSpec { serial: Some(serial.to_owned()), ..spec.clone() };
        assert!(spec.check().is_err(), "{serial:?}");
    }
}

#[test]
fn functions_are_checked() {
    let of = |function: &str| {
        fault_of_namespace(&format!(r#"{{"target": "null", "size": 512, "functions": [{function}]}}"#))
    };
    assert_eq!(
        of(r#"{"kind": "fault", "outcome": "fail", "status": "write_falt"}"#),
        "namespaces[0].functions[0].status: `write_falt` is not an error status (did you mean `write_fault`?)"
    );
    assert!(
        of(r#"{"kind": "fault", "outcome": "fail", "status": "success"}"#).contains("not an error status")
    );
    assert!(of(r#"{"kind": "fault", "outcome": "hang", "status": "write_fault"}"#).contains("only a failed"));
    assert!(of(r#"{"kind": "fault", "outcome": "short"}"#).contains("needs one"));
    assert!(of(r#"{"kind": "fault", "outcome": "fail", "every": 0}"#).contains("never hit"));
    assert!(of(r#"{"kind": "fault", "outcome": "fail", "every": 2, "chance": 0.5}"#).contains("remove one"));
    assert!(of(r#"{"kind": "fault", "outcome": "fail", "chance": 1.5}"#).contains("probability"));
    assert!(of(r#"{"kind": "fault", "outcome": "fail", "from": 512, "to": 512}"#).contains("empty"));
    assert!(of(r#"{"kind": "delay", "read_us": 60000001}"#).contains("microseconds"));
    let deep = [r#"{"kind": "pass"}"#; FUNCTIONS_MAX + 1].join(",");
    assert!(of(&deep).contains("at most"));
}

#[test]
fn layers_are_checked() {
    let of = |layers: &str| {
        let function = format!(r#"{{"kind": "uif", "function": "pass", "layers": [{layers}]}}"#);
        fault_of_namespace(&format!(r#"{{"target": "null", "size": 512, "functions": [{function}]}}"#))
    };
    let at = "namespaces[0].functions[0].layers";
    assert!(of(r#"{"target": "memory"}"#).starts_with(&format!("{at}[0].size: a memory target needs one")));
    let second = r#"{"target": "null", "size": 512}, {"target": "file", "path": "relative"}"#;
    assert!(of(second).starts_with(&format!("{at}[1].path: relative is not an absolute path")));
    let deep = r#"{"target": "null", "size": 512, "functions": [{"kind": "delay", "read_us": 60000001}]}"#;
    assert!(of(deep).starts_with(&format!("{at}[0].functions[0].read_us")));
    assert!(of(&[r#"{"target": "null", "size": 512}"#; 7].join(",")).contains("at most 6"));
}

#[test]
fn paths_of_layers_are_relative_to_the_folder() {
    let mut spec = drive(
        r#"{"name":"d","namespaces":[{"target":"null","size":512,"functions":[{"kind":"uif","function":"pass",
            "layers":[{"target":"file","path":"y","functions":[{"kind":"uif","function":"pass",
            "layers":[{"target":"nvme","nvme":{"vfio_user":"z"}}]}]}]}]}]}"#,
    );
    spec.resolve_paths(Path::new("/at"));
    let text = serde_json::to_string(&spec).expect("a spec can be written");
    assert!(text.contains(r#""path":"/at/y""#) && text.contains(r#""vfio_user":"/at/z""#), "{text}");
}

#[test]
fn what_is_written_is_read_back() {
    let text = r#"{"name":"d","serial":"S","doorbells":"mapped","reactor":1,"namespaces":[
        {"target":"file","path":"/x","size":4096,"on_full":"park","block_size":4096,"functions":[
            {"kind":"delay","read_us":5},{"kind":"pass"},
            {"kind":"uif","function":"pass","layers":[{"target":"memory","size":4096},{"target":"file","path":"/y"}]},
            {"kind":"fault","outcome":"fail_afterwards","status":"write_fault","operations":["flush"],"limit":1}]},
        {"target":"nvme","nvme":{"generic":"/dev/ng0n1","passes":["read"]}},
        {"target":"nvme","nvme":{"vfio_user":"/run/x/cntrl","first_block":8,"on_loss":"fail","passes":["read"]}},
        {"target":"null","size":"1MiB"}]}"#;
    let spec = drive(text);
    assert_eq!(spec.check(), Ok(()));
    let again = drive(&serde_json::to_string(&spec).expect("a spec can be written"));
    assert_eq!(again, spec);
}

/// Covers a fault found by fuzzing: JSON read 1e-63 as its neighbour, so that a drive differed from the
/// stored one.
#[test]
fn a_chance_is_read_to_its_last_digit() {
    let chance = |text: &str| {
        let function = format!(r#"[{{"kind":"fault","outcome":"fail","chance":{text}}}]"#);
        let spec = drive(&format!(
            r#"{{"name":"d","namespaces":[{{"target":"null","size":512,"functions":{function}}}]}}"#
        ));
        match &spec.namespaces[0].functions[..] {
            [FunctionSpec::Fault(fault)] => fault.chance,
            others => panic!("{others:?}"),
        }
    };
    assert_eq!(chance("1e-63"), Some(1e-63));
    assert_eq!(chance("0.3"), Some(0.3));
}

#[test]
fn unknown_keys_are_refused() {
    for text in [
        r#"{"name":"d","colour":"red"}"#,
        r#"{"name":"d","namespaces":[{"target":"null","sise":1}]}"#,
        r#"{"name":"d","namespaces":[{"target":"null","functions":[{"kind":"delay","read_ms":1}]}]}"#,
    ] {
        let error = serde_json::from_str::<DriveSpec>(text).expect_err("an unknown key").to_string();
        assert!(error.contains("unknown field"), "{error}");
    }
}

#[test]
fn devices_are_checked() {
    let of = |nvme: &str| fault_of_namespace(&format!(r#"{{"target": "nvme", {nvme}}}"#));
    assert!(of(r#""block_size": 512"#).starts_with("namespaces[0].nvme: an nvme target needs one"));
    let relative = of(r#""nvme": {"vfio_user": "run/cntrl"}"#);
    assert!(relative.starts_with("namespaces[0].nvme.vfio_user: run/cntrl is not an absolute path"));
    let relative = of(r#""nvme": {"generic": "ng0n1"}"#);
    assert!(relative.starts_with("namespaces[0].nvme.generic: ng0n1 is not an absolute path"));
    let second = of(r#""nvme": {"generic": "/dev/ng0n2", "namespace": 2}"#);
    assert!(second.contains("nvme.namespace: a generic device is of one namespace already"), "{second}");
    let two = of(r#""nvme": {"generic": "/dev/ng0n1", "pci": "0000:00:04.0"}"#);
    assert!(two.contains("one of `vfio_user`, `pci` and `generic`"), "{two}");
    let device = |more: &str| of(&format!(r#""nvme": {{"vfio_user": "/run/cntrl", {more}}}"#));
    assert!(device(r#""namespace": 0"#).contains("nvme.namespace"));
    assert!(device(r#""blocks": 0"#).contains("nvme.blocks"));
    assert!(device(r#""timeout_s": 0"#).contains("nvme.timeout_s"));
    assert!(of(r#""nvme": {"vfio_user": "/run/cntrl"}, "size": 512"#).contains("namespaces[0].size"));
    assert!(of(r#""nvme": {"vfio_user": "/run/cntrl"}, "path": "/x""#).contains("namespaces[0].path"));
    let misplaced = r#"{"target": "null", "size": 512, "nvme": {"vfio_user": "/run/cntrl"}}"#;
    assert!(fault_of_namespace(misplaced).contains("a null target has none"));
}

#[test]
fn remote_subsystems_are_checked() {
    let of = |more: &str| fault_of_namespace(&format!(r#"{{"target": "nvme-tcp", {more}}}"#));
    assert!(of(r#""block_size": 512"#).starts_with("namespaces[0].nvme_tcp: an nvme-tcp target needs one"));
    let remote = |address: &str, more: &str| {
        of(&format!(r#""nvme_tcp": {{"address": "{address}", "subnqn": "nqn.2024-01.org.example:d"{more}}}"#))
    };
    for address in ["10.0.0.1", "10.0.0.1:", "10.0.0.1:0", ":4420", "fd00::1:4420", "10.0.0.1:70000"] {
        assert!(remote(address, "").contains("is no address and port"), "{address}");
    }
    assert!(remote("[fd00::1]:4420", r#", "namespace": 0"#).contains("nvme_tcp.namespace"));
    assert!(remote("a.example:4420", r#", "timeout_s": 0"#).contains("nvme_tcp.timeout_s"));
    assert!(remote("a.example:4420", r#", "hostnqn": "me""#).contains("nvme_tcp.hostnqn"));
    let several = |addresses: &str, more: &str| {
        of(&format!(
            r#""nvme_tcp": {{"addresses": [{addresses}], "subnqn": "nqn.2024-01.org.example:d"{more}}}"#
        ))
    };
    assert!(several(r#""a:1", "b""#, "").contains("`b` is no address and port"));
    assert!(several(r#""a:1", "a:1""#, "").contains("`a:1` is there twice"));
    assert!(several(r#""a:1", "b:1""#, r#", "address": "c:1""#).contains("nvme_tcp.address"));
    assert!(several(&[r#""a:1""#; 9].join(","), "").contains("at most 8"));
    let without = remote("a:1", r#", "policy": "queue-depth""#);
    assert!(without.contains("nvme_tcp.policy") && without.contains("`addresses`"), "{without}");
    assert!(of(r#""nvme_tcp": {"subnqn": "nqn.2024-01.org.example:d"}"#).contains("nvme_tcp.address"));
    let sized = r#""size": 512, "nvme_tcp": {"address": "a:1", "subnqn": "nqn.2024-01.org.example:d"}"#;
    assert!(of(sized).contains("namespaces[0].size"));
    let misplaced = r#"{"target": "null", "size": 512, "nvme_tcp": {"address": "a:1", "subnqn": "nqn.x"}}"#;
    assert!(fault_of_namespace(misplaced).contains("a null target has none"));
}

/// Returns the first namespace of a drive on a file.
fn on_file(path: &str, functions: &str) -> NamespaceSpec {
    let text = format!(
        r#"{{"name": "d", "namespaces": [{{"target": "file", "path": "{path}", "functions": [{functions}]}}]}}"#
    );
    let spec = drive(&text);
    assert_eq!(spec.check(), Ok(()));
    spec.namespaces[0].clone()
}

/// Checks the descriptions that let an erasure of an earlier daemon resume only on the same data.
#[test]
fn data_is_elsewhere_on_other_layers_and_on_another_part_of_one() {
    let range = |from: &str| format!(r#"{{"kind": "range", "from": "{from}"}}"#);
    let sized = r#"{"kind": "range", "from": "1MiB", "size": "1MiB"}"#.to_owned();
    let layer = |path: &str, functions: &str| {
        format!(r#"{{"target": "file", "path": "{path}", "functions": [{functions}]}}"#)
    };
    let concat = |layers: &str| format!(r#"{{"kind": "concat", "layers": [{layers}]}}"#);
    let stripe =
        |chunk: &str| format!(r#"{{"kind": "stripe", "chunk": "{chunk}", "layers": [{}]}}"#, layer("/b", ""));
    let map = |chunks: &str, chunk: &str| {
        let layer = layer("/b", "");
        format!(r#"{{"kind": "map", "chunk": "{chunk}", "chunks": [{chunks}], "layers": [{layer}]}}"#)
    };
    let elsewhere = [
        ("/a", String::new()),
        ("/b", String::new()),
        ("/a", range("1MiB")),
        ("/a", range("2MiB")),
        ("/a", sized),
        ("/a", concat(&layer("/b", ""))),
        ("/a", concat(&layer("/c", ""))),
        ("/a", concat(&[layer("/b", ""), layer("/c", "")].join(","))),
        ("/a", concat(&layer("/b", &range("1MiB")))),
        ("/a", concat(&layer("/b", &concat(&layer("/c", ""))))),
        ("/a", stripe("64KiB")),
        ("/a", stripe("128KiB")),
        ("/a", map("[0, 0], [1, 0]", "64GiB")),
        ("/a", map("[1, 0], [0, 0]", "64GiB")),
        ("/a", map("[0, 0], [1, 0]", "32GiB")),
        ("/a", map("[0, 0], [], [1, 0]", "64GiB")),
    ];
    let words = elsewhere.map(|(path, functions)| on_file(path, &functions).data_location());
    let different: std::collections::HashSet<_> = words.iter().collect();
    assert_eq!(different.len(), words.len(), "{words:#?}");
    // These functions are attached and detached in use.
    let mirror = format!(r#"{{"kind": "uif", "function": "replicate", "layers": [{}]}}"#, layer("/b", ""));
    assert_eq!(on_file("/a", &format!(r#"{{"kind": "pass"}}, {mirror}"#)).data_location(), words[0]);
}

#[test]
fn a_target_is_limited_by_copies_of_what_grows_with_it() {
    const OF_MIB: &str = r#"{"target": "memory", "size": "1MiB"}"#;
    const LOG: &str = r#"{"target": "memory", "size": "512KiB"}"#;
    let uif = |more: &str| format!(r#"{{"kind": "uif", {more}}}"#);
    let copied = |layer: &str| uif(&format!(r#""function": "replicate", "layers": [{layer}, {LOG}]"#));
    let replicate = copied(OF_MIB);
    let (range, snapshot) =
        (r#"{"kind": "range", "size": "1MiB"}"#.to_owned(), uif(r#""function": "snapshot""#));
    let encrypt = |key: &str| uif(&format!(r#""function": "encrypt", "options": {{"{key}": "/x"}}"#));
    let foreign = uif(r#""socket": "/x""#);
    let room = |functions: &[&str]| on_file("/a", &functions.join(",")).room();
    let limit = Some(Size(1 << 20));
    for above in ["", &range, &snapshot] {
        let above: Vec<_> = [above, &replicate].into_iter().filter(|it| !it.is_empty()).collect();
        let with = |below: &str| room(&[&above[..], &[below]].concat());
        assert_eq!(room(&above), limit);
        for keeps in [r#"{"kind": "pass"}"#, &encrypt("key_file"), &replicate] {
            assert_eq!(with(keeps), limit, "{keeps}");
        }
    }
    for has_its_own in [&range, &snapshot, &encrypt("luks"), &foreign] {
        assert_eq!(room(&[&replicate, has_its_own]), None, "{has_its_own}");
        // The size of a copy with such a function over it is not known either.
        let layer = OF_MIB.replace('}', &format!(r#", "functions": [{has_its_own}]}}"#));
        assert_eq!(room(&[&copied(&layer)]), None, "{has_its_own}");
        assert_eq!(room(&[&copied(&format!("{layer}, {OF_MIB}"))]), limit, "{has_its_own}");
    }
}
