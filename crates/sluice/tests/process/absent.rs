//! A remote member that is absent when the near daemon starts, and comes back with a blank disk.

use crate::common::{Daemon, namespace, wait_for};
use crate::nvme::pattern;
use std::net::TcpListener;

const NQN: &str = "nqn.2026-11.example.sluice:absent";

/// Number of bytes that a test writes.
const PART: usize = 64 << 10;

/// Returns the configuration of a set of a local file and a remote member, with a local log.
fn set(function: &str, address: &str) -> String {
    format!(
        "[[drive]]\nname = \"near\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"near.img\"\nsize = \"4MiB\"\n\
         functions = [\n  {{ kind = \"uif\", function = \"{function}\", place = \"daemon\", layers = [\n    {{ target = \
         \"nvme-tcp\", nvme_tcp = {{ address = \"{address}\", subnqn = \"{NQN}\", size = \"4MiB\", timeout_s = 1, \
         fast_io_fail_s = 0 }} }},\n    {{ target = \"file\", path = \"set.log\", size = \"4MiB\" }},\n  ] }},\n]\n"
    )
}

#[test]
fn a_member_that_comes_back_blank_after_a_start_without_it_is_copied_to() {
    for function in ["mirror", "replicate"] {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let address = free.to_string();
        let mut far = Daemon::start(&format!(
            "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
             [[drive.namespace]]\ntarget = \"file\"\npath = \"far.img\"\nsize = \"4MiB\"\n"
        ));
        let mut near = Daemon::start(&set(function, &address));
        if !near.run(&["function", "tell", "near", "status"]).status.success() {
            near.ok(&["function", "tell", "near", "copy from 0"]);
        }
        let status = |near: &Daemon| -> serde_json::Value {
            serde_json::from_str(&near.ok(&["function", "tell", "near", "status"])).expect("JSON")
        };
        let is_in_sync = |near: &Daemon| status(near)["state"] == "in sync";
        let data = pattern(1, PART);
        {
            let mut host = near.host("near");
            let mut disk = namespace(&mut host, 1);
            disk.write(0, &data).expect("written");
            disk.flush().expect("flushed");
        }
        wait_for("a set in sync", || is_in_sync(&near));
        wait_for("clean regions", || status(&near)["dirty_bytes"] == 0);
        let image = far.folder.path().join("far.img");
        assert!(std::fs::read(&image).expect("it is there")[..PART] == data);
        near.stop();
        far.stop();
        near.restart();
        assert!(!is_in_sync(&near), "nothing is there");
        std::fs::remove_file(&image).expect("it is there");
        std::fs::remove_dir_all(far.folder.path().join("state")).expect("it is there");
        far.restart();
        wait_for("a set in sync", || is_in_sync(&near));
        assert!(
            std::fs::read(&image).expect("it is there")[..PART] == data,
            "{function}: in sync, and the copies differ"
        );
    }
}
