//! The same, encrypted.

use super::proxy::Proxy;
use super::rig::{KEY, Rig, SIZE, config, keys};
use crate::model;
use crate::rig::{BLOCK, LIMIT, eventually, open, open_at, pattern};
use sluice_targets::{Digests, NvmeTcpConfig, PreparedNvmeTcp};
use sluice_tls::Keys;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// The same key as [`KEY`], for TLS_AES_256_GCM_SHA384 as that is for TLS_AES_128_GCM_SHA256.
const LONG: &str =
    "NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

fn encrypted(rig: &Rig) -> NvmeTcpConfig {
    NvmeTcpConfig { keys: Some(keys(KEY)), ..config(rig.address) }
}

#[test]
fn random_commands_do_what_the_model_says() {
    for (seed, digests) in [(1, Digests::NONE), (2, Digests { header: true, data: true })] {
        let rig = Rig::encrypted();
        let (drive, control) = rig.drive("disk", &NvmeTcpConfig { digests, ..encrypted(&rig) });
        let mut host = drive.guest();
        let lanes = model::run(&mut host, seed, 800);
        let mut disk = open_at(&mut host, 2);
        let mut slba = 0;
        for (number, lane) in lanes.iter().enumerate() {
            let mut there = vec![0; lane.len()];
            disk.read(slba, &mut there).expect("read");
            assert!(there == *lane, "{digests:?}, lane {number}");
            slba += (lane.len() / BLOCK) as u64;
        }
        let status = control.status();
        assert_eq!((status.sent, status.losses, status.interrupted), (status.completed, 0, 0));
    }
}

#[test]
fn what_is_large_goes_in_many_records() {
    let rig = Rig::encrypted();
    let (drive, _) = rig.drive("disk", &encrypted(&rig));
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    let data = pattern(1, SIZE as usize);
    disk.write(0, &data).expect("written");
    let mut back = vec![0; data.len()];
    disk.read(0, &mut back).expect("read");
    assert!(back == data);
}

/// Flips a bit in transit: the connection ends, the data never shows it, and the command is repeated on the
/// next connection.
#[test]
fn what_was_changed_on_the_way_is_not_taken() {
    let rig = Rig::encrypted();
    let proxy = Proxy::to(rig.address);
    let through = NvmeTcpConfig { address: proxy.address.to_string(), ..encrypted(&rig) };
    let (drive, control) = rig.drive("disk", &through);
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    let data = pattern(2, 1 << 20);
    for round in 1..=4 {
        proxy.spoil();
        let mut back = vec![0; data.len()];
        disk.write(0, &data).expect("written");
        disk.read(0, &mut back).expect("read");
        assert!(back == data);
        eventually("the connection was lost", || control.status().losses >= round);
    }
    proxy.cut();
    disk.write(0, &data).expect("written after a cut");
}

#[test]
fn who_has_not_the_key_is_told() {
    let rig = Rig::encrypted();
    let good = encrypted(&rig);
    let with = |keys: Option<Arc<Keys>>| NvmeTcpConfig { keys, timeout: LIMIT, ..good.clone() };
    let why = |config: &NvmeTcpConfig| PreparedNvmeTcp::open(config).expect_err("refused").to_string();
    for other in ["/////wQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh91kf2k", "00"] {
        let line = match other {
            "00" => LONG.to_owned(),
            key => format!("NVMeTLSkey-1:00:{key}:"),
        };
        let words = why(&with(Some(keys(&line))));
        assert!(words.contains("refuses the TLS handshake"), "{words}");
    }
    let stranger = why(&with(Some(keys(&format!("nqn.2024-01.example:other {KEY}")))));
    assert!(stranger.contains("the file of keys has none for the host"), "{stranger}");
    assert!(PreparedNvmeTcp::open(&with(None)).is_err());
    let open = Rig::new();
    let unlike = why(&NvmeTcpConfig { address: open.address.to_string(), ..good.clone() });
    assert!(unlike.contains("what came is no TLS"), "{unlike}");
    drop(rig.drive("disk", &good));
}

/// Closes connections that do not begin with TLS, and accepts others meanwhile.
#[test]
fn what_is_no_tls_is_closed() {
    let rig = Rig::encrypted();
    let knock = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(rig.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream.write_all(bytes).expect("room");
        stream
    };
    let silent: Vec<TcpStream> = (0..32).map(|_| knock(&[22, 3, 1])).collect();
    for bytes in [&[0; 128][..], &[0xff; 4096], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut answer = Vec::new();
        // The connection may be reset, with unread bytes.
        let _ = knock(bytes).read_to_end(&mut answer);
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
    }
    drop(rig.drive("disk", &encrypted(&rig)));
    drop(silent);
}
