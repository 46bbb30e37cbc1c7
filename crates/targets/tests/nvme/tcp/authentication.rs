//! Both ends prove who they are, or cannot.

use super::rig::{HOSTNQN, KEY, Rig, config, keys};
use crate::rig::open;
use sluice_frontend_tcp::KnownHost;
use sluice_nvme_auth::{Group, Hash, Key, Offer, Terms};
use sluice_targets::{NvmeTcpConfig, PreparedNvmeTcp};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

const HOST_KEY: &str = "DHHC-1:01:AQADAgUEBwYJCAsKDQwPDhEQExIVFBcWGRgbGh0cHx7rtB3q:";
const CONTROLLER_KEY: &str =
    "DHHC-1:02:CQgLCg0MDw4BAAMCBQQHBhkYGxodHB8eERATEhUUFxYpKCsqLSwvLiEgIyIlJCcmebLBXA==:";
const OTHER_KEY: &str = "DHHC-1:00:TUxPTklIS0pFREdGQUBDQl1cX15ZWFtaVVRXVlFQU1J2NL99:";

/// Bytes of ICResp, and with the first response; where AUTHREQ is in that, in dword 0.
const ICRESP: usize = 128;
const START: usize = ICRESP + 24;
const AUTHREQ: usize = ICRESP + 8 + 2;

fn terms(host: &str, controller: Option<&str>, offer: Offer) -> Option<Arc<Terms>> {
    let key = |text: &str| Key::parse(text.as_bytes()).expect("a key");
    Some(Arc::new(Terms { host: key(host), controller: controller.map(key), offer }))
}

fn rig(terms: Option<Arc<Terms>>) -> Rig {
    Rig::for_hosts(vec![KnownHost { nqn: HOSTNQN.to_owned(), terms }])
}

#[test]
fn a_drive_whose_ends_know_one_another() {
    let rig = rig(terms(HOST_KEY, Some(CONTROLLER_KEY), Offer::default()));
    let offers =
        [(Hash::Sha256, Group::Null), (Hash::Sha384, Group::Ffdhe2048), (Hash::Sha512, Group::Ffdhe4096)];
    for (hash, group) in offers {
        for controller in [None, Some(CONTROLLER_KEY)] {
            let offer = Offer { hashes: vec![hash], groups: vec![group] };
            let config = NvmeTcpConfig { terms: terms(HOST_KEY, controller, offer), ..config(rig.address) };
            let (drive, control) = rig.drive("proved", &config);
            let mut host = drive.guest();
            let mut disk = open(&mut host);
            let data = vec![hash.id(); 64 << 10];
            disk.write(8, &data).expect("it works");
            let mut back = vec![0; data.len()];
            disk.read(8, &mut back).expect("it works");
            assert!(back == data && control.status().connected);
        }
    }
}

/// Checks that a TLS key is no DH-HMAC-CHAP key, and the reverse.
#[test]
fn an_encrypted_connection_is_authenticated_too() {
    let offer = || Offer { hashes: vec![Hash::Sha256], groups: vec![Group::Ffdhe2048] };
    let ends = || terms(HOST_KEY, Some(CONTROLLER_KEY), offer());
    let rig = Rig::encrypted_for_hosts(vec![KnownHost { nqn: HOSTNQN.to_owned(), terms: ends() }]);
    let ours = |terms| NvmeTcpConfig { keys: Some(keys(KEY)), terms, ..config(rig.address) };
    let why = |config| PreparedNvmeTcp::open(&config).expect_err("refused").to_string();
    let words = why(ours(terms(OTHER_KEY, Some(CONTROLLER_KEY), offer())));
    assert!(words.contains("the keys differ"), "{words}");
    let words = why(ours(None));
    assert!(words.contains("name one with `dhchap`"), "{words}");

    let (drive, _) = rig.drive("both", &ours(ends()));
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    let data = vec![7; 1 << 20];
    disk.write(8, &data).expect("it works");
    let mut back = vec![0; data.len()];
    disk.read(8, &mut back).expect("it works");
    assert!(back == data);
}

/// Starts a proxy that changes the first PDUs of the controller on each connection: ICResp, and the response
/// to Connect. If `what` returns false, the connection ends behind that.
fn between(target: SocketAddr, what: fn(usize, &mut [u8; START]) -> bool) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for (number, host) in listener.incoming().enumerate() {
            let mut host = host.expect("a connection");
            let mut controller = TcpStream::connect(target).expect("the controller");
            let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let (mut from_host, mut to_controller) = (clone(&host), clone(&controller));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_host, &mut to_controller);
                let _ = to_controller.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut start = [0; START];
                let (icresp, response) = start.split_at_mut(ICRESP);
                let begun = controller.read_exact(icresp).and_then(|()| host.write_all(icresp));
                if begun.and_then(|()| controller.read_exact(response)).is_ok() {
                    let goes_on = what(number, &mut start);
                    let _ = host.write_all(&start[ICRESP..]);
                    let _ = goes_on.then(|| std::io::copy(&mut controller, &mut host));
                }
                let _ = host.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Checks that a host with the controller's key verifies its proof on each queue, required or not.
#[test]
fn a_controller_that_asks_on_the_admin_queue_alone_proves_itself_on_all() {
    let offer = || Offer { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
    let rig = rig(terms(HOST_KEY, Some(CONTROLLER_KEY), offer()));
    let terms = terms(HOST_KEY, Some(CONTROLLER_KEY), offer());
    // Each association has its admin queue first.
    let address = between(rig.address, |number, start| {
        start[AUTHREQ] = if number == 0 { start[AUTHREQ] } else { 0 };
        true
    });
    let (drive, control) = rig.drive("modest", &NvmeTcpConfig { terms, ..config(address) });
    let mut host = drive.guest();
    let mut disk = open(&mut host);
    disk.write(8, &[3; 4096]).expect("its queue is authenticated");
    assert!(control.status().connected);
}

#[test]
fn a_controller_that_goes_instead_may_have_another_key() {
    let ends = || terms(HOST_KEY, None, Offer::default());
    let rig = rig(ends());
    let address = between(rig.address, |_, _| false);
    let error = PreparedNvmeTcp::open(&NvmeTcpConfig { terms: ends(), ..config(address) });
    let error = error.expect_err("nobody is there").to_string();
    assert!(error.contains("the authentication failed: it closed the connection"), "{error}");
}

#[test]
fn what_they_cannot_prove_is_said() {
    let null = || Offer { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
    let both = || terms(HOST_KEY, Some(CONTROLLER_KEY), null());
    let cases = [
        (terms(HOST_KEY, None, null()), terms(OTHER_KEY, None, null()), "the keys differ"),
        (both(), terms(HOST_KEY, Some(OTHER_KEY), null()), "the keys differ"),
        (terms(HOST_KEY, None, null()), both(), "the keys differ"),
        (terms(HOST_KEY, None, null()), None, "no key for that; name one with `dhchap`"),
        (None, both(), "does not prove who it is"),
        (
            terms(HOST_KEY, None, null()),
            terms(HOST_KEY, None, Offer { groups: vec![Group::Ffdhe2048], ..null() }),
            "no Diffie-Hellman group in common",
        ),
    ];
    for (theirs, ours, words) in cases {
        let rig = rig(theirs);
        let error = PreparedNvmeTcp::open(&NvmeTcpConfig { terms: ours, ..config(rig.address) });
        let error = error.expect_err("they do not agree").to_string();
        assert!(error.contains(words), "{error}");
    }
}
