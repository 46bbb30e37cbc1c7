//! Limits of the configuration: the last valid value, and the first invalid one.

use std::path::Path;

/// A limit, with a function that writes a configuration with a given count or size.
struct Limit {
    what: &'static str,
    write: fn(u64) -> String,
    good: &'static [u64],
    bad: &'static [u64],
}

/// Returns a drive, with keys of its own and of its namespace.
fn drive(keys: &str, namespace: &str) -> String {
    format!(
        "[[drive]]\nname = \"d\"\n{keys}\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"64MiB\"\n{namespace}\n"
    )
}

fn list(count: u64, one: impl Fn(u64) -> String) -> String {
    let all: Vec<String> = (0..count).map(one).collect();
    format!("[ {} ]", all.join(", "))
}

fn layers(kind: &str, count: u64) -> String {
    let layers = list(count, |_| "{ target = \"memory\", size = \"64MiB\" }".to_owned());
    drive("", &format!("functions = [ {{ {kind}, layers = {layers} }} ]"))
}

fn remote(keys: &str) -> String {
    format!(
        "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\n\
         nvme_tcp = {{ subnqn = \"nqn.2024-01.org.example:d\", {keys} }}\n"
    )
}

fn device(keys: &str) -> String {
    format!(
        "[[drive]]\nname = \"d\"\n[[drive.namespace]]\ntarget = \"nvme\"\nnvme = {{ vfio_user = \"/run/d\", {keys} }}\n"
    )
}

fn tcp(keys: &str) -> String {
    format!("[tcp]\nlisten = [\"127.0.0.1:4420\"]\n{}", drive(&format!("[drive.tcp]\n{keys}"), ""))
}

const LIMITS: &[Limit] = &[
    Limit {
        what: "letters of a drive's name",
        write: |n| drive("", "").replace("\"d\"", &format!("\"{}\"", "d".repeat(n as usize))),
        good: &[1, 64],
        bad: &[0, 65],
    },
    Limit {
        what: "letters of a serial number",
        write: |n| drive(&format!("serial = \"{}\"", "S".repeat(n as usize)), ""),
        good: &[1, 20],
        bad: &[0, 21],
    },
    Limit {
        what: "drives",
        write: |n| (0..n).map(|n| drive("", "").replace("\"d\"", &format!("\"d{n}\""))).collect(),
        good: &[1, 1024],
        bad: &[1025],
    },
    Limit {
        what: "namespaces of a drive",
        write: |n| {
            let more = "[[drive.namespace]]\ntarget = \"null\"\nsize = \"1MiB\"\n".repeat(n as usize - 1);
            drive("", &more)
        },
        good: &[1, 128],
        bad: &[129],
    },
    Limit {
        what: "seconds to drain",
        write: |n| format!("[daemon]\ndrain_s = {n}\n{}", drive("", "")),
        good: &[0, 86_400],
        bad: &[86_401],
    },
    Limit {
        what: "microseconds of polling",
        write: |n| format!("[daemon]\nidle = {{ spin_us = {n} }}\n{}", drive("", "")),
        good: &[0, 1_000_000],
        bad: &[1_000_001],
    },
    Limit {
        what: "hosts at a time",
        write: |n| tcp(&format!("max_hosts = {n}")),
        good: &[1, 24],
        bad: &[0, 25],
    },
    Limit {
        what: "I/O queues of a host",
        write: |n| tcp(&format!("max_queues = {n}")),
        good: &[1, 128],
        bad: &[0, 129],
    },
    Limit {
        what: "sockets of a drive",
        write: |n| drive(&format!("[drive.vfio_user]\nsockets = {n}"), ""),
        good: &[1, 8],
        bad: &[0, 9],
    },
    Limit {
        what: "ANA groups",
        write: |n| drive("", &format!("ana_group = {n}")),
        good: &[1, 32],
        bad: &[0, 33],
    },
    Limit {
        what: "bytes of a block",
        write: |n| drive("", &format!("block_size = {n}")),
        good: &[512, 4096],
        bad: &[0, 511, 513, 1024, 2048, 4095, 4097, 8192],
    },
    Limit {
        what: "functions over a target",
        write: |n| drive("", &format!("functions = {}", list(n, |_| "{ kind = \"pass\" }".to_owned()))),
        good: &[0, 7],
        bad: &[8],
    },
    Limit {
        what: "further paths",
        write: |n| {
            let path = |n| format!("{{ name = \"p{n}\", below = 1 }}");
            drive("", &format!("functions = [ {{ kind = \"pass\" }} ]\npaths = {}", list(n, path)))
        },
        good: &[0, 6],
        bad: &[7],
    },
    Limit {
        what: "layers of a stripe",
        write: |n| layers("kind = \"stripe\", chunk = \"64KiB\"", n),
        good: &[1, 7],
        bad: &[0, 8],
    },
    Limit {
        what: "layers of a concat",
        write: |n| layers("kind = \"concat\"", n),
        good: &[1, 7],
        bad: &[0, 8],
    },
    Limit {
        what: "layers of a function of one's own",
        write: |n| layers("kind = \"uif\", command = [\"/usr/lib/own\"]", n),
        good: &[0, 6],
        bad: &[7],
    },
    Limit {
        what: "layers of a mirror, of which the last is its log",
        write: |n| layers("kind = \"uif\", function = \"mirror\"", n),
        good: &[2, 6],
        bad: &[7],
    },
    Limit {
        what: "KiB of a chunk of a stripe",
        write: |n| layers(&format!("kind = \"stripe\", chunk = \"{n}KiB\""), 1),
        good: &[16, 20, 1 << 20],
        bad: &[0, 12, 15, 17, (1 << 20) + 4],
    },
    Limit {
        what: "bytes from which a range begins",
        write: |n| drive("", &format!("functions = [ {{ kind = \"range\", from = {n} }} ]")),
        good: &[0, 4096],
        bad: &[1, 512, 4095, 4097],
    },
    Limit {
        what: "seconds for a command of a device",
        write: |n| device(&format!("timeout_s = {n}")),
        good: &[1, 60],
        bad: &[0, 61],
    },
    Limit {
        what: "opcodes of I/O that pass",
        write: |n| device(&format!("passthrough = {{ io = [{n}] }}")),
        // The lowest two bits of an opcode are the direction of its data, and at most one direction is allowed.
        good: &[0x80, 0xfe],
        bad: &[0x7f, 0x83, 0xff, 0x100],
    },
    Limit {
        what: "opcodes of admin commands that pass",
        write: |n| device(&format!("passthrough = {{ admin = [{n}] }}")),
        good: &[0xc0, 0xfe],
        bad: &[0xbf, 0xbe, 0xc3, 0xff, 0x100],
    },
    Limit {
        what: "seconds for a command of a controller",
        write: |n| remote(&format!("address = \"10.0.0.1:4420\", timeout_s = {n}")),
        good: &[1, 60],
        bad: &[0, 61],
    },
    Limit {
        what: "paths to a controller",
        write: |n| remote(&format!("addresses = {}", list(n, |n| format!("\"10.0.0.{n}:4420\"")))),
        good: &[1, 8],
        bad: &[0, 9],
    },
];

#[test]
fn the_last_value_within_each_limit_is_taken_and_the_first_beyond_is_not() {
    let parse = |text: &str| sluice_control::config::parse(text, Path::new("/etc/sluice.toml"));
    for limit in LIMITS {
        for value in limit.good {
            let text = (limit.write)(*value);
            if let Err(problem) = parse(&text) {
                panic!(
                    "{} {}: {problem:?}\n{}",
                    value,
                    limit.what,
                    text.chars().take(2000).collect::<String>()
                );
            }
        }
        for value in limit.bad {
            assert!(parse(&(limit.write)(*value)).is_err(), "{value} {} are taken", limit.what);
        }
    }
}
