//! A controller that lies: each time the connection ends, is made anew, and the command succeeds on it.

use super::fake::{DATA_MAX, Fake, Link, Trick, content, whole};
use super::lone::Lone;
use crate::rig::{LIMIT, eventually, pattern};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_nvme_tcp::{Data, Digests, R2t, Violation, encode};
use sluice_targets::NvmeTcpConfig;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Bytes of the commands: read with C2HData, written after an R2T.
const LENGTH: usize = 16 << 10;

/// Creates a drive on a controller with this trick, and with this timeout of commands.
fn rig(timeout: Duration, trick: Box<Trick>) -> Lone {
    Lone::new(Fake::start(trick), |config| NvmeTcpConfig { timeout, ..config })
}

/// Builds a C2HData header with one changed byte.
fn patched(entry: &SubmissionEntry, at: usize, byte: u8) -> Vec<u8> {
    let head = encode::c2h_data(whole(entry, LENGTH), Digests::NONE, 4);
    let mut bytes = head.as_bytes().to_vec();
    bytes[at] = byte;
    bytes
}

fn data(link: &mut Link, data: Data) {
    link.data(data, &vec![0xbb; data.length as usize]);
}

type Wrong = fn(&mut Link, &SubmissionEntry);

/// Invalid answers to a read. Each has one error.
const AT_READS: &[(&str, Wrong)] = &[
    ("a type that no controller sends", |link, entry| link.send(&patched(entry, 0, 0x06))),
    ("a type that there is not", |link, entry| link.send(&patched(entry, 0, 0x0b))),
    ("a second ICResp", |link, entry| link.send(&patched(entry, 0, 0x01))),
    ("a header digest that was not agreed", |link, entry| link.send(&patched(entry, 1, 0x05))),
    ("a data digest that was not agreed", |link, entry| link.send(&patched(entry, 1, 0x06))),
    ("another HLEN", |link, entry| link.send(&patched(entry, 2, 23))),
    ("data that begins in the header", |link, entry| link.send(&patched(entry, 3, 20))),
    ("data that begins between two dwords", |link, entry| link.send(&patched(entry, 3, 26))),
    ("a PDU that is larger than any", |link, entry| link.send(&patched(entry, 7, 0xff))),
    ("a PDU that is shorter than its header", |link, entry| {
        let mut bytes = patched(entry, 4, 8);
        bytes[5..8].fill(0);
        link.send(&bytes);
    }),
    ("data of no command", |link, entry| {
        data(link, Data { cccid: entry.cid ^ 1, ..whole(entry, LENGTH) });
    }),
    ("data of an earlier command in the same place", |link, entry| {
        data(link, Data { cccid: entry.cid.wrapping_sub(256), ..whole(entry, LENGTH) });
    }),
    ("another length than there is data", |link, entry| link.send(&patched(entry, 17, 0x3f))),
    ("data beyond what was asked for", |link, entry| {
        data(link, whole(entry, LENGTH + 4));
    }),
    ("data from beyond the end", |link, entry| {
        data(link, Data { offset: u32::MAX - 3, ..whole(entry, LENGTH) });
    }),
    ("data that leaves some out", |link, entry| {
        data(link, Data { offset: 512, ..whole(entry, LENGTH - 512) });
    }),
    ("the same data twice", |link, entry| {
        data(link, Data { last: false, ..whole(entry, 512) });
        data(link, Data { last: false, ..whole(entry, 512) });
    }),
    ("all data, and more to come", |link, entry| {
        data(link, Data { last: false, ..whole(entry, LENGTH) });
    }),
    ("a success amid the data", |link, entry| {
        data(link, Data { success: true, last: false, ..whole(entry, 512) });
    }),
    ("an R2T for a read", |link, entry| {
        link.ask(R2t { cccid: entry.cid, ttag: 1, offset: 0, length: LENGTH as u32 });
    }),
    ("an answer to no command", |link, entry| {
        link.respond(&SubmissionEntry { cid: entry.cid ^ 2, ..*entry }, Status::SUCCESS, 0);
    }),
    ("an answer to a command that there never was", |link, entry| {
        link.respond(&SubmissionEntry { cid: 0xffff, ..*entry }, Status::SUCCESS, 0);
    }),
    ("two answers to one command", |link, entry| {
        link.respond(entry, Status::NAMESPACE_NOT_READY, 0);
        link.respond(entry, Status::NAMESPACE_NOT_READY, 0);
    }),
];

/// Invalid answers to a write.
const AT_WRITES: &[(&str, Wrong)] = &[
    ("data for a write", |link, entry| data(link, whole(entry, 512))),
    ("an R2T of nothing", |link, entry| {
        link.ask(R2t { cccid: entry.cid, ttag: 1, offset: 0, length: 0 });
    }),
    ("an R2T beyond the data", |link, entry| {
        link.ask(R2t { cccid: entry.cid, ttag: 1, offset: 0, length: LENGTH as u32 + 4 });
    }),
    ("an R2T from beyond the end", |link, entry| {
        link.ask(R2t { cccid: entry.cid, ttag: 1, offset: u32::MAX, length: 2 });
    }),
    ("an R2T that leaves some out", |link, entry| {
        link.ask(R2t { cccid: entry.cid, ttag: 1, offset: 4096, length: 4096 });
    }),
    ("an R2T of no command", |link, entry| {
        link.ask(R2t { cccid: entry.cid ^ 1, ttag: 1, offset: 0, length: 4096 });
    }),
    ("two R2Ts at a time", |link, entry| {
        let half = LENGTH as u32 / 2;
        let first = encode::r2t(R2t { cccid: entry.cid, ttag: 1, offset: 0, length: half }, Digests::NONE);
        let second =
            encode::r2t(R2t { cccid: entry.cid, ttag: 2, offset: half, length: half }, Digests::NONE);
        link.send(&[first.as_bytes(), second.as_bytes()].concat());
    }),
];

#[test]
fn what_a_controller_must_not_send_ends_its_connection() {
    for (is_read, tricks) in [(true, AT_READS), (false, AT_WRITES)] {
        for (what, wrong) in tricks {
            let wrong = *wrong;
            let trick = move |link: &mut Link, entry: &SubmissionEntry| {
                wrong(link, entry);
                false
            };
            let rig = rig(LIMIT, Box::new(trick));
            let (_host, mut disk) = rig.disk();
            let result = if is_read { read(&mut disk) } else { disk.write(3, &pattern(1, LENGTH)) };
            if *what != "two answers to one command" {
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            eventually(what, || rig.fake.seen.lock().expect("no panic").terminated == 1);
            eventually(what, || rig.fake.seen.lock().expect("no panic").queues == 2);
            assert_eq!(rig.control.status().losses, 1, "{what}");
        }
    }
}

fn read(disk: &mut sluice_host::Namespace) -> Result<(), sluice_host::Error> {
    let mut back = vec![0; LENGTH];
    disk.read(3, &mut back)?;
    assert!(back == content(3, LENGTH), "what was read");
    Ok(())
}

/// Covers half a PDU, a termination request, and silence: no violations, but the connection cannot continue.
#[test]
fn a_connection_that_goes_nowhere_is_made_anew() {
    let half: Wrong = |link, entry| link.send(&patched(entry, 0, 0x07)[..13]);
    let data_and_silence: Wrong = |link, entry| {
        link.send(&patched(entry, 0, 0x07));
        link.send(&[1; 5000]);
    };
    let gives_up: Wrong = |link, _| {
        link.send(encode::c2h_term(Violation::SEQUENCE, &[1; 24]).as_bytes());
    };
    for wrong in [half, data_and_silence, gives_up] {
        let trick = move |link: &mut Link, entry: &SubmissionEntry| {
            wrong(link, entry);
            false
        };
        let rig = rig(Duration::from_secs(1), Box::new(trick));
        let (_host, mut disk) = rig.disk();
        read(&mut disk).expect("read on the next connection");
        assert!(rig.control.status().losses >= 1);
    }
}

/// Checks that success with fewer bytes than requested is an error.
#[test]
fn a_success_without_its_data_is_none() {
    let trick = |link: &mut Link, entry: &SubmissionEntry| {
        data(link, Data { last: true, ..whole(entry, 512) });
        link.respond(entry, Status::SUCCESS, 0);
        false
    };
    let rig = rig(LIMIT, Box::new(trick));
    let (_host, mut disk) = rig.disk();
    let status = read(&mut disk).expect_err("too little").status().expect("a status");
    assert!(status.same_code(Status::DATA_TRANSFER_ERROR), "{status:?}");
    read(&mut disk).expect("the connection goes on");
    assert_eq!(rig.control.status().losses, 0);
}

#[test]
fn data_is_sent_in_pieces_as_small_as_the_controller_wants() {
    let rig = rig(LIMIT, Box::new(|_, _| true));
    let (_host, mut disk) = rig.disk();
    let written = pattern(4, 150 << 10);
    disk.write(0, &written).expect("written");
    let seen = rig.fake.seen.lock().expect("no panic");
    assert!(seen.data.iter().all(|piece| piece.len() <= DATA_MAX as usize));
    assert!(seen.data.concat() == written, "all of it, in order");
}

/// Conformance: Base 5.17.2.1, a host has no more commands on a queue than MAXCMD says.
#[test]
fn a_queue_is_as_deep_as_the_controller_takes_commands() {
    for (commands_max, entries) in [(0, 128), (1, 2), (7, 8), (1024, 128)] {
        let fake = Fake::start(Box::new(|_, _| true));
        fake.access.commands_max.store(commands_max, SeqCst);
        let lone = Lone::new(fake, |config| config);
        assert_eq!(lone.fake.seen.lock().expect("no panic").entries, entries, "MAXCMD {commands_max}");
        let (_host, mut disk) = lone.disk();
        read(&mut disk).expect("it works");
    }
}
