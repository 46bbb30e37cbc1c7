//! Commands that take longer than the timers of a connection: reclaiming of idle memory, and keep-alive.

use super::host::{Connect, Host, Link, entry, transfer, write_in_capsule};
use super::rig::{DISK, Rig, SLOW};
use super::tunnel::{self, KEY};
use sluice_nvme::{Status, opcode};
use sluice_nvme_tcp::{Data, Digests, Pdu, encode};
use std::thread::sleep;
use std::time::Duration;

/// Duration of a held write: several times the idle time before memory is reclaimed, and above the keep-alive
/// timeout.
const HELD: Duration = Duration::from_secs(7);

/// Shortest keep-alive timeout that a busy machine can keep.
const KEEP_ALIVE_MS: u32 = 5000;

/// Interval of Keep Alive commands.
const PAUSE: Duration = Duration::from_millis(500);

/// Time during which a host sends and reads nothing.
const SILENCE: Duration = Duration::from_millis(2500);

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (seed + at * 7 + at / 512) as u8 | 1).collect()
}

/// Holds writes with their data in the memory of an idle connection: in-capsule data, and data sent after an
/// R2T.
fn held_writes(rig: &Rig, to: std::net::SocketAddr, digests: Digests) {
    let mut host = Host::with(to, Connect::admin(SLOW), digests, 2);
    host.set_keep_alive(KEEP_ALIVE_MS);
    let small: Vec<Vec<u8>> = (0..8).map(|cid| pattern(cid, 4096)).collect();
    for (cid, data) in (0..).zip(&small) {
        host.io[0].submit(&write_in_capsule(cid, u64::from(cid) * 8, 4096), data);
    }
    let large = pattern(9, 256 << 10);
    host.io[1].submit(&transfer(opcode::io::WRITE, 9, 1024, 256 << 10), &[]);
    host.io[1].send_data(9, &large, 65_536);
    for _ in 0..HELD.as_millis() / PAUSE.as_millis() {
        sleep(PAUSE);
        let alive = sluice_nvme::SubmissionEntry { opcode: opcode::admin::KEEP_ALIVE, nsid: 0, ..entry(5) };
        assert_eq!(host.admin.command(&alive).status(), Status::SUCCESS);
    }
    (0..8).for_each(|_| assert_eq!(host.io[0].response().status(), Status::SUCCESS));
    assert_eq!(host.io[1].response().status(), Status::SUCCESS);
    for (cid, data) in (0..).zip(&small) {
        assert!(host.io[1].read(cid, u64::from(cid) * 8, 4096).as_ref() == Ok(data), "write {cid}");
    }
    assert!(host.io[0].read(9, 1024, 256 << 10) == Ok(large));
    assert_eq!(rig.ask(SLOW, |drive| drive.unfinished()), 0);
}

#[test]
fn what_is_held_for_long_is_written_as_it_was_sent() {
    let rig = Rig::with_writes_of(HELD);
    held_writes(&rig, rig.address, Digests { header: true, data: true });
}

#[test]
fn what_is_held_for_long_is_written_as_it_was_sent_over_tls() {
    let rig = Rig::encrypted_with_writes_of(tunnel::keys(KEY), HELD);
    let psk = tunnel::keys(KEY).for_host(super::host::HOSTNQN, SLOW).remove(0);
    held_writes(&rig, tunnel::tunnel(rig.address, psk), Digests::NONE);
}

/// Pauses between two H2CData PDUs, and within one.
#[test]
fn data_that_comes_in_pieces_long_after_one_another_is_written_as_it_was_sent() {
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests::NONE, 1);
    let (data, link) = (pattern(3, 128 << 10), &mut host.io[0]);
    link.submit(&transfer(opcode::io::WRITE, 1, 0, 128 << 10), &[]);
    let Some((Pdu::R2t(r2t), _)) = link.next() else { panic!("no R2T") };
    let piece = |link: &Link, range: std::ops::Range<usize>, last| {
        let (offset, length) = (range.start as u32, range.len() as u32);
        let head = Data { cccid: 1, ttag: r2t.ttag, offset, length, last, success: false };
        link.with_data(encode::h2c_data(head, link.digests, 4).as_bytes(), &data[range])
    };
    let first = piece(link, 0..64 << 10, false);
    link.send(&first);
    sleep(SILENCE);
    let second = piece(link, 64 << 10..128 << 10, true);
    link.send(&second[..30_000]);
    sleep(SILENCE);
    link.send(&second[30_000..]);
    assert_eq!(link.response().status(), Status::SUCCESS);
    assert!(link.read(2, 0, 128 << 10) == Ok(data));
}

/// Pauses before reading the data of many Reads.
#[test]
fn what_is_read_late_is_what_was_read() {
    const READS: u16 = 30;
    let rig = Rig::new();
    let mut host = Host::start(rig.address, DISK, Digests { header: true, data: true }, 1);
    let (data, link) = (pattern(3, 1 << 20), &mut host.io[0]);
    assert_eq!(link.write(1, 0, &data), Status::SUCCESS);
    let reads = (0..READS).flat_map(|cid| link.capsule(&transfer(opcode::io::READ, cid, 0, 1 << 20), &[]));
    let reads: Vec<u8> = reads.collect();
    link.send(&reads);
    sleep(SILENCE);
    let mut answers = 0;
    while answers < READS {
        match link.next() {
            Some((Pdu::Data(piece), bytes)) => assert!(bytes == data[piece.offset as usize..][..bytes.len()]),
            Some((Pdu::Response(entry), _)) => {
                assert_eq!(entry.status(), Status::SUCCESS);
                answers += 1;
            }
            other => panic!("{other:?} is no answer"),
        }
    }
}
