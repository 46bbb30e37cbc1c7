//! Silent hosts on the network, which cost little memory. When they send commands again, they are served as
//! before.

use crate::common::{Daemon, wait_for};
use crate::tcp_host::{Host, transfer, write_in_capsule};
use sluice_nvme::{Status, opcode::io};
use sluice_nvme_tcp::{Digests, Pdu};
use std::net::TcpListener;

const NQN: &str = "nqn.2026-11.example.sluice:disk";
const QUEUES: u16 = 4;

/// Returns the KiB of memory that the connections of a daemon use.
fn memory_kib(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let (mut sum, mut is_theirs) = (0, false);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Pss:"), Some(kib)) if is_theirs => sum += kib.parse::<u64>().expect("a number"),
            (Some(first), _) if !first.ends_with(':') => is_theirs = line.contains("memfd:sluice-nvme-tcp"),
            _ => {}
        }
    }
    sum
}

/// Writes and reads, thirty commands at a time and a long one, and checks the data.
fn use_it(host: &mut Host, round: u8) {
    for link in &mut host.io {
        let data = [round; 4096];
        let writes: Vec<u8> =
            (0..30).flat_map(|n| link.capsule(&write_in_capsule(n, u64::from(n) * 8, 4096), &data)).collect();
        link.send(&writes);
        (0..30).for_each(|_| assert_eq!(link.response().status(), Status::SUCCESS));
        let reads: Vec<u8> =
            (0..30).flat_map(|n| link.capsule(&transfer(io::READ, n, u64::from(n) * 8, 4096), &[])).collect();
        link.send(&reads);
        let mut answers = 0;
        while answers < 30 {
            match link.next() {
                Some((Pdu::Data(_), bytes)) => assert!(bytes == data),
                Some((Pdu::Response(_), _)) => answers += 1,
                other => panic!("{other:?} is no answer"),
            }
        }
        assert!(link.read(40, 0, 120 << 10) == Ok(vec![round; 120 << 10]));
    }
}

#[test]
fn who_falls_silent_gives_back_what_he_had() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let daemon = Daemon::start(&format!(
        "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
         [[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n"
    ));
    let mut host = Host::start(address, NQN, Digests { header: true, data: true }, QUEUES);
    for round in 1..=3 {
        use_it(&mut host, round);
        let used = memory_kib(daemon.pid());
        assert!(used > 200 * u64::from(QUEUES), "{used} KiB are not much for so much");
        wait_for("the memory is given back", || memory_kib(daemon.pid()) <= 32 * u64::from(QUEUES + 1));
    }
}
