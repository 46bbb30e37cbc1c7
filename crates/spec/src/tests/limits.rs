//! Limits of the keys of a drive, as docs/reference/configuration.md has them: the last value that is taken and
//! the first that is not.

use super::*;

/// Numbers of a key.
type Numbers = &'static [u64];

/// Key, description with a number for it, numbers that are taken, and numbers that are refused.
type Case = (&'static str, fn(&u64) -> String, Numbers, Numbers);

/// Checks which values of a key a description can have.
fn limits<V: std::fmt::Display>(key: &str, of: impl Fn(&V) -> String, taken: &[V], refused: &[V]) {
    for value in taken {
        assert_eq!(drive(&of(value)).check(), Ok(()), "{key} {value}");
    }
    for value in refused {
        let fault = drive(&of(value)).check().expect_err("it is beyond the limit");
        assert_eq!(fault.at.to_string(), key, "{value}: {}", fault.error);
    }
}

/// Returns a drive with further keys.
fn with(keys: &str) -> String {
    format!(r#"{{"name": "d", "namespaces": [{{"target": "null", "size": 4096}}], {keys}}}"#)
}

/// Returns a drive with one namespace.
fn namespace(keys: &str) -> String {
    format!(r#"{{"name": "d", "namespaces": [{{{keys}}}]}}"#)
}

fn on_null(keys: &str) -> String {
    namespace(&format!(r#""target": "null", "size": 4096, {keys}"#))
}

/// Returns a list of so many elements, made of their numbers.
fn list(count: u64, element: impl Fn(u64) -> String) -> String {
    format!("[{}]", (0..count).map(element).collect::<Vec<_>>().join(", "))
}

#[test]
fn numbers_of_a_drive() {
    let cases: [Case; 9] = [
        ("host_timeout_s", |n| with(&format!(r#""host_timeout_s": {n}"#)), &[0, 6, 86_400], &[1, 5, 86_401]),
        ("tcp.max_hosts", |n| with(&format!(r#""tcp": {{"max_hosts": {n}}}"#)), &[1, 24], &[0, 25]),
        ("tcp.max_queues", |n| with(&format!(r#""tcp": {{"max_queues": {n}}}"#)), &[1, 128], &[0, 129]),
        (
            "tcp.hosts",
            |n| {
                let hosts = list(*n, |number| format!(r#""nqn.2024-01.org.example:{number}""#));
                with(&format!(r#""tcp": {{"hosts": {hosts}}}"#))
            },
            &[1, 1024],
            &[1025],
        ),
        ("vfio_user.sockets", |n| with(&format!(r#""vfio_user": {{"sockets": {n}}}"#)), &[1, 8], &[0, 9]),
        ("vfio_user.memory_max", |n| with(&format!(r#""vfio_user": {{"memory_max": {n}}}"#)), &[1], &[0]),
        (
            "pool.size",
            |n| with(&format!(r#""pool": {{"target": "memory", "size": {n}}}"#)),
            &[1, i64::MAX as u64],
            &[0, 1 << 63],
        ),
        (
            "classifier.errors_max",
            |n| with(&format!(r#""classifier": {{"object": "/x", "errors_max": {n}}}"#)),
            &[1],
            &[0],
        ),
        (
            "namespaces",
            |n| {
                let namespaces = list(*n, |_| r#"{"target": "null", "size": 4096}"#.to_owned());
                format!(r#"{{"name": "d", "namespaces": {namespaces}}}"#)
            },
            &[1, 128],
            &[0, 129],
        ),
    ];
    for (key, of, taken, refused) in cases {
        limits(key, of, taken, refused);
    }
}

#[test]
fn numbers_of_a_namespace() {
    let null_of = |n: &u64| namespace(&format!(r#""target": "null", "size": {n}"#));
    limits("namespaces[0].size", null_of, &[512, (1 << 63) - 512], &[0, 511, 513, 1 << 63]);
    let pooled = |n: &u64| namespace(&format!(r#""target": "memory-pool", "shared": "fast", "size": {n}"#));
    limits("namespaces[0].size", pooled, &[512, 1 << 40], &[0, (1 << 40) + 512]);
    let thin =
        |n: &u64| namespace(&format!(r#""target": "thin", "shared": "bulk", "volume": "v", "size": {n}"#));
    limits("namespaces[0].size", thin, &[512, 64 << 40], &[0, (64 << 40) + 512]);
    let name = |n: &usize| {
        let name = "v".repeat(*n);
        namespace(&format!(r#""target": "thin", "shared": "bulk", "volume": "{name}", "size": 512"#))
    };
    limits("namespaces[0].volume", name, &[1, 64], &[0, 65]);
    let block = |n: &u64| on_null(&format!(r#""block_size": {n}"#));
    limits("namespaces[0].block_size", block, &[512, 4096], &[0, 511, 1024, 2048, 8192]);
    let group = |n: &u64| on_null(&format!(r#""ana_group": {n}"#));
    limits("namespaces[0].ana_group", group, &[1, 32], &[0, 33]);
    let functions =
        |n: &u64| on_null(&format!(r#""functions": {}"#, list(*n, |_| r#"{"kind": "pass"}"#.to_owned())));
    limits("namespaces[0].functions", functions, &[0, 7], &[8]);
    let paths = |n: &u64| {
        let path = |number| format!(r#"{{"name": "p{number}", "below": 1}}"#);
        on_null(&format!(r#""functions": [{{"kind": "pass"}}], "paths": {}"#, list(*n, path)))
    };
    limits("namespaces[0].paths", paths, &[0, 6], &[7]);
}

#[test]
fn numbers_of_functions() {
    let at = "namespaces[0].functions[0]";
    let function = |keys: &str| on_null(&format!(r#""functions": [{{{keys}}}]"#));
    let layers = |n: u64| list(n, |_| r#"{"target": "null", "size": 4096}"#.to_owned());
    let uif = |n: &u64| function(&format!(r#""kind": "uif", "function": "pass", "layers": {}"#, layers(*n)));
    limits(&format!("{at}.layers"), uif, &[0, 6], &[7]);
    for kind in ["stripe", "concat"] {
        let parts = |n: &u64| function(&format!(r#""kind": "{kind}", "layers": {}"#, layers(*n)));
        // The rest of the stack is the first of 2 to 8.
        limits(&format!("{at}.layers"), parts, &[1, 7], &[0, 8]);
    }
    let chunk = |n: &u64| function(&format!(r#""kind": "stripe", "chunk": {n}, "layers": {}"#, layers(1)));
    let (least, most) = (16 << 10, 1 << 30);
    limits(&format!("{at}.chunk"), chunk, &[least, most], &[least - 4096, least + 512, most + 4096]);
    let map = |n: &u64| function(&format!(r#""kind": "map", "chunk": {n}, "counts": [1]"#));
    limits(&format!("{at}.chunk"), map, &[1 << 20, 1 << 62], &[0, 1 << 19, 3 << 20, (1 << 20) + 512]);
    let counts = |n: &u64| function(&format!(r#""kind": "map", "counts": [{n}]"#));
    limits(&format!("{at}.counts"), counts, &[1, 65_536], &[0, 65_537]);
    let deadline = |n: &u64| function(&format!(r#""kind": "uif", "function": "pass", "deadline_ms": {n}"#));
    limits(&format!("{at}.deadline_ms"), deadline, &[1, 600_000], &[0, 600_001]);
    for key in ["read_us", "write_us"] {
        let delay = |n: &u64| function(&format!(r#""kind": "delay", "{key}": {n}"#));
        limits(&format!("{at}.{key}"), delay, &[1, 60_000_000], &[60_000_001]);
    }
    let fault = |n: &f64| function(&format!(r#""kind": "fault", "outcome": "fail", "chance": {n}"#));
    limits(&format!("{at}.chance"), fault, &[0.001, 1.0], &[-0.001, 1.001]);
}

#[test]
fn numbers_of_devices_and_subsystems() {
    let nvme =
        |keys: String| namespace(&format!(r#""target": "nvme", "nvme": {{"vfio_user": "/x", {keys}}}"#));
    let tcp = |keys: String| {
        let keys = format!(r#""subnqn": "nqn.2024-01.org.example:d", {keys}"#);
        namespace(&format!(r#""target": "nvme-tcp", "nvme_tcp": {{{keys}}}"#))
    };
    let timeout = |n: &u64| nvme(format!(r#""timeout_s": {n}"#));
    limits("namespaces[0].nvme.timeout_s", timeout, &[1, 60], &[0, 61]);
    let nsid = |n: &u64| nvme(format!(r#""namespace": {n}"#));
    limits("namespaces[0].nvme.namespace", nsid, &[1, 0xffff_fffe], &[0, 0xffff_ffff]);
    let timeout = |n: &u64| tcp(format!(r#""address": "a:1", "timeout_s": {n}"#));
    limits("namespaces[0].nvme_tcp.timeout_s", timeout, &[1, 60], &[0, 61]);
    let nsid = |n: &u64| tcp(format!(r#""address": "a:1", "namespace": {n}"#));
    limits("namespaces[0].nvme_tcp.namespace", nsid, &[1, 0xffff_fffe], &[0, 0xffff_ffff]);
    let size = |n: &u64| tcp(format!(r#""address": "a:1", "size": {n}"#));
    limits("namespaces[0].nvme_tcp.size", size, &[4096, (1 << 63) - 4096], &[0, 512, 4097, 1 << 63]);
    let port = |n: &u64| tcp(format!(r#""address": "a:{n}""#));
    limits("namespaces[0].nvme_tcp.address", port, &[1, 65_535], &[0, 65_536]);
    let addresses =
        |n: &u64| tcp(format!(r#""addresses": {}"#, list(*n, |number| format!(r#""a:{}""#, number + 1))));
    limits("namespaces[0].nvme_tcp.addresses", addresses, &[1, 8], &[9]);
}

#[test]
fn words() {
    let letters = |count: usize| "a".repeat(count);
    let name = |name: &String| {
        format!(r#"{{"name": "{name}", "namespaces": [{{"target": "null", "size": 4096}}]}}"#)
    };
    limits("name", name, &[letters(1), letters(64)], &[letters(0), letters(65)]);
    let serial = |serial: &String| with(&format!(r#""serial": "{serial}""#));
    let [first, last] = ["!", "~"].map(str::to_owned);
    let [space, delete] = [" ", "\\u007f"].map(str::to_owned);
    limits("serial", serial, &[first, last, letters(20)], &[letters(0), letters(21), space, delete]);
    let section =
        |section: &String| with(&format!(r#""classifier": {{"object": "/x", "section": "{section}"}}"#));
    limits("classifier.section", section, &[letters(1), letters(64)], &[letters(0), letters(65)]);
    let nqn = |count: usize| format!("nqn.{}", letters(count - 4));
    let subsystem = |nqn: &String| with(&format!(r#""tcp": {{"nqn": "{nqn}"}}"#));
    limits("tcp.nqn", subsystem, &[nqn(5), nqn(223)], &[nqn(224)]);
}

#[test]
fn a_thin_pool_has_a_path_and_a_pool_of_memory_has_none() {
    let check = |rest: &str| {
        let json = format!(r#"{{"name": "bulk", "size": "1GiB", {rest}}}"#);
        serde_json::from_str::<SharedSpec>(&json).expect("a readable spec").check(1)
    };
    assert_eq!(check(r#""type": "thin", "path": "/pool.img""#), Ok(()));
    for rest in [
        r#""type": "thin""#,
        r#""type": "thin", "path": "pool.img""#,
        r#""type": "memory-pool", "path": "/a""#,
    ] {
        assert_eq!(check(rest).expect_err("it is not possible").at.to_string(), "path", "{rest}");
    }
}

#[test]
fn memory_of_a_pool() {
    const EXTENT: u64 = 64 << 10;
    let pool = |size: u64| {
        let json = format!(r#"{{"name": "fast", "type": "memory-pool", "size": {size}}}"#);
        serde_json::from_str::<SharedSpec>(&json).expect("a readable spec").check(1)
    };
    for size in [EXTENT, EXTENT * u64::from(u32::MAX)] {
        assert_eq!(pool(size), Ok(()), "{size}");
    }
    for size in [0, EXTENT - 512, EXTENT + 512, EXTENT << 32] {
        assert_eq!(pool(size).expect_err("it is not possible").at.to_string(), "size", "{size}");
    }
}
