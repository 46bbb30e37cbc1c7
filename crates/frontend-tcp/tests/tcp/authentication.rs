//! In-band authentication: hosts that succeed, and hosts that fail.

use super::host::{Connect, HOSTNQN, Link, apart, in_capsule};
use super::rig::{DISK, HOSTS, Rig, SLOW, eventually};
use sluice_frontend_tcp::KnownHost;
use sluice_nvme::fabrics::{AUTHENTICATION_REQUIRED, Authentication, Fctype};
use sluice_nvme::{Status, SubmissionEntry, register};
use sluice_nvme_auth::{
    Entropy, Failure, Group, Hash, Host, Key, MESSAGE_MAX, Names, Offer, PROTOCOL_SPECIFIC,
    SECURITY_PROTOCOL, Step, Terms,
};
use sluice_nvme_tcp::{Digests, Pdu};
use std::sync::Arc;

const VAULT: &str = "nqn.2024-01.org.example:vault";

const HOST_KEY: &str = "DHHC-1:01:AQADAgUEBwYJCAsKDQwPDhEQExIVFBcWGRgbGh0cHx7rtB3q:";
const CONTROLLER_KEY: &str =
    "DHHC-1:02:CQgLCg0MDw4BAAMCBQQHBhkYGxodHB8eERATEhUUFxYpKCsqLSwvLiEgIyIlJCcmebLBXA==:";
const OTHER_KEY: &str = "DHHC-1:00:TUxPTklIS0pFREdGQUBDQl1cX15ZWFtaVVRXVlFQU1J2NL99:";

fn terms(host: &str, controller: Option<&str>) -> Arc<Terms> {
    let key = |text: &str| Key::parse(text.as_bytes()).expect("a key");
    let offer = Offer { hashes: vec![Hash::Sha512], groups: vec![Group::Ffdhe2048] };
    Arc::new(Terms { host: key(host), controller: controller.map(key), offer })
}

/// Returns a drive whose host has keys.
fn rig() -> Rig {
    let rig = Rig::new();
    let terms = Some(terms(HOST_KEY, Some(CONTROLLER_KEY)));
    rig.list_known(VAULT, [KnownHost { nqn: HOSTNQN.to_owned(), terms }]);
    rig
}

fn command(fctype: Fctype, length: usize) -> SubmissionEntry {
    let length = length as u32;
    let its = Authentication { secp: SECURITY_PROTOCOL, spsp: PROTOCOL_SPECIFIC, length };
    let dptr = if fctype == Fctype::AUTHENTICATION_SEND { in_capsule(length) } else { apart(length) };
    SubmissionEntry { flags: 1 << 6, cid: 7, dptr, ..its.entry(fctype) }
}

fn say(link: &mut Link, message: &[u8]) -> Status {
    link.submit(&command(Fctype::AUTHENTICATION_SEND, message.len()), message);
    link.response().status()
}

fn hear(link: &mut Link) -> Result<Vec<u8>, Status> {
    link.submit(&command(Fctype::AUTHENTICATION_RECEIVE, MESSAGE_MAX), &[]);
    match link.next() {
        Some((Pdu::Data(data), payload)) => {
            assert_eq!((data.length as usize, data.last), (MESSAGE_MAX, true));
            if !data.success {
                assert_eq!(link.response().status(), Status::SUCCESS);
            }
            Ok(payload)
        }
        Some((Pdu::Response(entry), _)) => Err(entry.status()),
        other => panic!("{other:?} is no answer to Authentication Receive"),
    }
}

/// Runs an authentication transaction as a conforming host does.
fn prove(link: &mut Link, terms: Arc<Terms>) -> Result<(), Failure> {
    let names = Names { hostnqn: HOSTNQN.to_owned(), subnqn: VAULT.to_owned() };
    let mut host = Host::new(names, terms, 5, Entropy::draw().expect("random numbers"));
    let mut message = host.negotiate();
    loop {
        assert_eq!(say(link, &message), Status::SUCCESS);
        match host.take(&hear(link).expect("an answer")) {
            Step::Send(next) => message = next,
            Step::Done(last) => {
                last.iter().for_each(|last| assert_eq!(say(link, last), Status::SUCCESS));
                return Ok(());
            }
            Step::Failed(why, _) => return Err(why),
        }
    }
}

/// Returns a connection whose queue is not authenticated yet, and the controller ID.
fn connected(rig: &Rig, connect: &Connect, digests: Digests) -> (Link, u16) {
    let mut link = Link::open(rig.address, digests);
    let response = link.connect(connect);
    assert_eq!(response.status(), Status::SUCCESS);
    assert_eq!(response.dw0 >> 16, AUTHENTICATION_REQUIRED >> 16, "what it has to do");
    (link, response.dw0 as u16)
}

/// Starts the keep-alive timer only after authentication, whose arithmetic may take a host longer than that
/// timer.
#[test]
fn the_keep_alive_timer_begins_when_a_host_is_let_in() {
    let rig = rig();
    let short = |subnqn| Connect { kato_ms: 1, ..Connect::admin(subnqn) };
    let (mut admin, _) = connected(&rig, &short(VAULT), Digests::NONE);
    // This timer would expire after the first one, if the first one had started.
    let mut other = Link::open(rig.address, Digests::NONE);
    assert_eq!(other.connect(&short(SLOW)).status(), Status::SUCCESS);
    assert!(other.is_over());
    prove(&mut admin, terms(HOST_KEY, None)).expect("it is still there");
    assert!(admin.is_over(), "its time begins");
}

/// Conformance: Base 6.1, a host proves by DH-HMAC-CHAP who it is, with Authentication Send and Authentication Receive.
/// Conformance: Base 6.3, a queue that needs authentication says so in AUTHREQ, and serves nothing else before.
/// Conformance: Base 8.13.5, a queue in use can be authenticated once more.
#[test]
fn a_host_with_the_key_is_let_in_queue_by_queue() {
    let rig = rig();
    for (controller, digests) in
        [(None, Digests::NONE), (Some(CONTROLLER_KEY), Digests { header: true, data: true })]
    {
        let (mut admin, cntlid) = connected(&rig, &Connect::admin(VAULT), digests);
        let property = sluice_nvme::fabrics::property_get(register::CAP, 8);
        let property = SubmissionEntry { flags: 1 << 6, dptr: apart(0), ..property };
        assert_eq!(admin.command(&property).status(), Status::AUTHENTICATION_REQUIRED);
        assert!(rig.status().authenticated.is_empty());
        prove(&mut admin, terms(HOST_KEY, controller)).expect("the right key");
        assert_eq!(rig.status().authenticated, [HOSTNQN]);
        admin.enable();
        let connect = Connect { cntlid, ..Connect::io(VAULT, 1) };
        let (mut io, _) = connected(&rig, &connect, digests);
        assert_eq!(io.write(1, 0, &[1; 4096]), Status::AUTHENTICATION_REQUIRED);
        assert_eq!(io.read(1, 0, 4096), Err(Status::AUTHENTICATION_REQUIRED));
        prove(&mut io, terms(HOST_KEY, controller)).expect("the right key");
        assert_eq!(io.write(1, 0, &[1; 65_536]), Status::SUCCESS);
        assert!(io.read(2, 0, 4096).is_ok());
        // The queue is authenticated once more, with commands before and after.
        prove(&mut io, terms(HOST_KEY, controller)).expect("the right key");
        assert!(io.read(3, 0, 4096).is_ok());
        drop((admin, io));
        rig.wait_for_nobody();
    }
}

/// Conformance: Base 8.13.5, a host that fails is told by AUTH_Failure1 and disconnected.
#[test]
fn a_host_with_another_key_is_told_and_disconnected() {
    let rig = rig();
    let (mut admin, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    assert_eq!(prove(&mut admin, terms(OTHER_KEY, None)), Err(Failure::FAILED));
    assert!(admin.is_over());
    rig.wait_for_nobody();
    // The same for a host that was authenticated before.
    let (mut admin, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    prove(&mut admin, terms(HOST_KEY, None)).expect("the right key");
    admin.enable();
    assert_eq!(prove(&mut admin, terms(OTHER_KEY, None)), Err(Failure::FAILED));
    assert!(admin.is_over());
    rig.wait_for_nobody();
    // A host that rejects the controller's response sends AUTH_Failure2, and disconnects.
    let (mut admin, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    assert_eq!(prove(&mut admin, terms(HOST_KEY, Some(OTHER_KEY))), Err(Failure::FAILED));
    let failure2 = [0, 0xf0, 0, 0, 5, 0, 1, 1];
    assert_eq!(say(&mut admin, &failure2), Status::SUCCESS);
    assert!(admin.is_over());
    eventually("all of them were counted", || rig.status().refused == 3);
    // A host without a key disconnects silently.
    let (admin, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    drop(admin);
    eventually("that was counted, too", || rig.status().refused == 4);
}

/// Checks that a host changes nothing that others see before it is authenticated: its name proves nothing.
#[test]
fn a_host_that_has_proved_nothing_is_not_there() {
    let rig = Rig::with_a_private_namespace();
    let terms_of_host = Some(terms(HOST_KEY, None));
    rig.list_known(VAULT, [KnownHost { nqn: HOSTNQN.to_owned(), terms: terms_of_host }]);
    let (mut stranger, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    let (mut owner, cntlid) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    let status = rig.status();
    assert_eq!((status.hosts.len(), status.connections, status.associations), (0, 0, 0));
    prove(&mut owner, terms(HOST_KEY, None)).expect("the right key");
    owner.enable();
    assert_eq!(owner.controllers(), [cntlid]);
    assert_eq!(owner.namespaces(), [1, 2], "what is private to it");
    let status = rig.status();
    assert_eq!((status.hosts, status.connections, status.associations), (vec![HOSTNQN.into()], 1, 1));
    // An unauthenticated I/O queue is not counted, either.
    let idler = connected(&rig, &Connect { cntlid, ..Connect::io(VAULT, 1) }, Digests::NONE).0;
    assert_eq!(rig.status().connections, 1);
    drop(idler);
    assert_eq!(prove(&mut stranger, terms(OTHER_KEY, None)), Err(Failure::FAILED));
    assert!(stranger.is_over());
    assert_eq!((owner.controllers(), owner.namespaces()), (vec![cntlid], vec![1, 2]));
    assert_eq!(rig.status().hosts, [HOSTNQN]);
}

/// Checks that an unauthenticated connection does not delay a drain.
#[test]
fn a_host_that_has_proved_nothing_does_not_delay_the_end_of_the_drive() {
    let rig = rig();
    let mut stranger = connected(&rig, &Connect::admin(VAULT), Digests::NONE).0;
    rig.ask(DISK, |drive| drive.drain(0));
    eventually("nobody is there", || rig.ask(DISK, |drive| drive.is_drained()));
    assert!(stranger.is_over());
}

/// Checks that a host with a permitted name but without its key occupies a controller only briefly.
#[test]
fn nobody_is_kept_out_by_hosts_that_do_not_prove_who_they_are() {
    let rig = rig();
    let (mut first, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    prove(&mut first, terms(HOST_KEY, None)).expect("the right key");
    first.enable();
    let mut idler = connected(&rig, &Connect::admin(VAULT), Digests::NONE).0;
    assert_eq!(rig.status().hosts, [HOSTNQN], "it has a place, and is not there");
    let (mut second, cntlid) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    prove(&mut second, terms(HOST_KEY, None)).expect("the right key");
    assert!(idler.is_over());
    // Authenticated hosts do not give way.
    let mut third = Link::open(rig.address, Digests::NONE);
    assert_eq!(third.connect(&Connect::admin(VAULT)).status(), Status::CONNECT_CONTROLLER_BUSY);
    let mut third = Link::open(rig.address, Digests::NONE);
    let asked = Connect { cntlid, ..Connect::admin(VAULT) };
    assert_eq!(third.connect(&asked).status(), Status::CONNECT_CONTROLLER_BUSY);
    assert_eq!(rig.status().authenticated.len(), usize::from(HOSTS));
}

/// Checks the same for an I/O queue of an authenticated host.
#[test]
fn a_queue_is_not_kept_from_its_host_by_one_that_does_not_prove_who_it_is() {
    let rig = rig();
    let (mut admin, cntlid) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    prove(&mut admin, terms(HOST_KEY, None)).expect("the right key");
    admin.enable();
    let connect = Connect { cntlid, ..Connect::io(VAULT, 1) };
    let mut idler = connected(&rig, &connect, Digests::NONE).0;
    let mut io = connected(&rig, &connect, Digests::NONE).0;
    assert!(idler.is_over());
    prove(&mut io, terms(HOST_KEY, None)).expect("the right key");
    // An authenticated queue is not given to another connection.
    let mut late = Link::open(rig.address, Digests::NONE);
    assert_eq!(late.connect(&connect).status(), Status::COMMAND_SEQUENCE_ERROR);
    assert!(io.read(1, 0, 4096).is_ok());
    assert_eq!(rig.status().connections, 2);
}

/// Limits new transactions, since each costs the drive's machine up to a tenth of a second.
#[test]
fn a_host_begins_anew_once_until_it_is_let_in() {
    let rig = rig();
    let (mut admin, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    let names = Names { hostnqn: HOSTNQN.to_owned(), subnqn: VAULT.to_owned() };
    let mut host = Host::new(names, terms(HOST_KEY, None), 5, Entropy::draw().expect("random numbers"));
    assert_eq!(say(&mut admin, &host.negotiate()), Status::SUCCESS);
    assert_eq!(say(&mut admin, &host.negotiate()), Status::SUCCESS);
    assert_eq!(say(&mut admin, &host.negotiate()), Status::COMMAND_SEQUENCE_ERROR);
    let Step::Send(reply) = host.take(&hear(&mut admin).expect("the second challenge")) else {
        panic!("it is as good as any")
    };
    assert_eq!(say(&mut admin, &reply), Status::SUCCESS);
    assert_eq!(host.take(&hear(&mut admin).expect("an answer")), Step::Done(None));
    admin.enable();
}

/// Conformance: Base 6.1, an Authentication Receive without anything to receive fails.
/// Conformance: Base 6.2, an Authentication Send or Receive for another security protocol fails.
#[test]
fn messages_that_make_no_sense() {
    let rig = rig();
    let (mut admin, _) = connected(&rig, &Connect::admin(VAULT), Digests::NONE);
    assert_eq!(hear(&mut admin), Err(Status::COMMAND_SEQUENCE_ERROR), "nothing was said yet");
    let send = command(Fctype::AUTHENTICATION_SEND, 0);
    assert_eq!(admin.command(&send).status(), Status::INVALID_FIELD, "an empty message");
    for (secp, spsp, length) in [
        (0xe8, PROTOCOL_SPECIFIC, 16),
        (SECURITY_PROTOCOL, 1, 16),
        (SECURITY_PROTOCOL, PROTOCOL_SPECIFIC, 1 << 20),
    ] {
        let its = Authentication { secp, spsp, length }.entry(Fctype::AUTHENTICATION_RECEIVE);
        let entry = SubmissionEntry { flags: 1 << 6, cid: 3, dptr: apart(length), ..its };
        assert_eq!(admin.command(&entry).status(), Status::INVALID_FIELD, "{entry:?}");
    }
    // A reply that does not fit stays for the next Receive. The message may also be sent in answer to an R2T.
    let names = Names { hostnqn: HOSTNQN.to_owned(), subnqn: VAULT.to_owned() };
    let host = Host::new(names, terms(HOST_KEY, None), 5, Entropy::draw().expect("random numbers"));
    let message = host.negotiate();
    let sent = command(Fctype::AUTHENTICATION_SEND, message.len());
    admin.submit(&SubmissionEntry { dptr: apart(message.len() as u32), ..sent }, &[]);
    admin.send_data(sent.cid, &message, 30);
    assert_eq!(admin.response().status(), Status::SUCCESS);
    let short = command(Fctype::AUTHENTICATION_RECEIVE, 64);
    assert_eq!(admin.command(&short).status(), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(hear(&mut admin).expect("the challenge")[..2], [1, 1]);
    // A message that is no valid reply.
    assert_eq!(say(&mut admin, &[0x5a; 300]), Status::SUCCESS);
    let failure = hear(&mut admin).expect("why");
    assert_eq!(failure[..8], [0, 0xf1, 0, 0, 5, 0, 1, Failure::MESSAGE.0]);
    assert!(admin.is_over());
}

#[test]
fn a_host_without_a_key_has_nothing_to_prove() {
    let rig = Rig::new();
    let mut link = Link::open(rig.address, Digests::NONE);
    assert_eq!(link.connect(&Connect::admin(super::rig::DISK)).dw0, 1);
    assert_eq!(say(&mut link, &[0; 72]), Status::INVALID_OPCODE);
    link.enable();
    assert!(rig.status().authenticated.is_empty());
}
